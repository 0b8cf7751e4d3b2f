//! Ref advertisements, answered without starting git.
//!
//! Refs come from the database. Capabilities come from git itself, which is asked once: the answers are those of
//! `git upload-pack` and `git receive-pack`, byte for byte. Requests that this module does not know are left to git.
//! In one case git before 2.41 says less: for an empty repository in versions 0 and 1 it tells no capabilities.

mod lists;

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use grasp_core::push::{Pkt, encode_pkt, read_pkt};
use grasp_core::resources::Claimant;
use grasp_core::{Oid, RefName, RepoId};
use tokio::io::AsyncReadExt as _;

use super::check::Objects;
use super::error::GitError;
use super::refs::{Refs, Target};
use super::store::RepoStore;
use super::{blocking, check, layout};
use crate::database::View;

pub(super) use self::lists::ListCache;
pub use self::lists::RefList;
use self::lists::{ListKey, Version};

/// Bytes of a list that are encoded at once.
const CHUNK: usize = 32 * 1024;

/// Refs that are considered at once.
const REFS_PER_STEP: usize = 2_000;

const FLUSH: &[u8] = b"0000";

/// Capabilities of the installed git in advertisements, independent of a repository.
#[derive(Debug)]
pub(super) struct Capabilities {
    /// The list of `upload-pack` in versions 0 and 1, without a symref.
    upload: String,
    /// The list of `receive-pack`.
    receive: String,
    /// The whole advertisement of version 2.
    version_2: Vec<u8>,
}

impl Capabilities {
    /// Asks git, in a repository that has only a HEAD.
    async fn read(store: &RepoStore) -> Result<Self, GitError> {
        let upload = advertised_by_git(store, Service::UploadPack, Protocol::V0).await?;
        let receive = advertised_by_git(store, Service::ReceivePack, Protocol::V0).await?;
        let version_2 = advertised_by_git(store, Service::UploadPack, Protocol::V2).await?;
        Ok(Self {
            upload: list_of(&upload)?,
            receive: list_of(&receive)?,
            version_2,
        })
    }
}

async fn advertised_by_git(
    store: &RepoStore,
    service: Service,
    protocol: Protocol,
) -> Result<Vec<u8>, GitError> {
    let command = store.serving_command((service, protocol), &["--http-backend-info-refs"]);
    let command = command.arg(store.detached()).claimed_by(Claimant::server());
    let mut process = command.spawn().await?;
    drop(process.take_stdin());
    let mut answer = Vec::new();
    if let Some(mut output) = process.take_stdout() {
        let read = output.read_to_end(&mut answer).await;
        read.map_err(|source| GitError::Spawn {
            command: "upload-pack",
            source,
        })?;
    }
    process.finish().await?;
    Ok(answer)
}

/// Returns the capabilities after the first ref of an advertisement.
fn list_of(advertisement: &[u8]) -> Result<String, GitError> {
    let line: &[u8] = match read_pkt(advertisement) {
        Ok(Some((Pkt::Data(line), _))) => line,
        _ => &[],
    };
    let list = line
        .iter()
        .position(|byte| *byte == 0)
        .and_then(|at| line.get(at + 1..));
    let list = list
        .and_then(|list| std::str::from_utf8(list).ok())
        .map(str::trim_end);
    let said = String::from_utf8_lossy(line).into_owned();
    list.map(str::to_owned).ok_or(GitError::Failed {
        command: "upload-pack",
        said,
    })
}

impl RepoStore {
    /// Returns the answer to `info/refs`, without the line that HTTP puts before it. It is made on the account of this
    /// claimant.
    ///
    /// For a client that pushes, refs without their object are left out, so that the push brings it.
    pub async fn advertisement(
        &self,
        repo: &RepoId,
        (service, protocol): (Service, Protocol),
        claimant: Claimant,
    ) -> Result<RefList, GitError> {
        let capabilities = self
            .capabilities()
            .get_or_try_init(|| Capabilities::read(self))
            .await?;
        let view = self.view_for(repo, claimant).await?;
        if (service, protocol) == (Service::UploadPack, Protocol::V2) {
            return Ok(RefList::text(&capabilities.version_2));
        }
        let list = match service {
            Service::UploadPack => {
                let capabilities = Some(upload_list(capabilities, &view.refs));
                let version = Version {
                    generation: view.generation,
                    packs: Vec::new(),
                };
                let key = ListKey::fetch(self.dir(repo).key());
                self.list(
                    key,
                    version,
                    view.refs,
                    Form::Fetch { capabilities },
                    claimant,
                )
                .await?
            }
            Service::ReceivePack => self.push_list(repo, view, capabilities, claimant).await?,
        };
        // Version 2 has no pushes; git answers them in version 0.
        match protocol {
            Protocol::V1 => Ok(list.with_start(b"version 1\n")),
            Protocol::V0 | Protocol::V2 => Ok(list),
        }
    }

    /// Answers an `ls-refs` of version 2; `None` if the request is another one.
    pub async fn ls_refs(
        &self,
        repo: &RepoId,
        request: &[u8],
        claimant: Claimant,
    ) -> Result<Option<RefList>, GitError> {
        if !LsRefs::is_command_of(request) {
            return Ok(None);
        }
        let request = request.to_vec();
        let parsed = self
            .git()
            .work(claimant, move || LsRefs::parse(&request))
            .await?;
        let Some(request) = parsed else {
            return Ok(None);
        };
        let view = self.view_for(repo, claimant).await?;
        let version = Version {
            generation: view.generation,
            packs: Vec::new(),
        };
        let key = ListKey::listed(self.dir(repo).key(), &request);
        let form = Form::Listed(request);
        self.list(key, version, view.refs, form, claimant)
            .await
            .map(Some)
    }

    async fn push_list(
        &self,
        repo: &RepoId,
        view: View,
        capabilities: &Capabilities,
        claimant: Claimant,
    ) -> Result<RefList, GitError> {
        let objects = self.repository(repo).objects().await?;
        let packs = objects.dir.objects().join("pack");
        // Which objects are here depends on the packs alone.
        let packs = blocking(move || layout::list(&packs)).await?;
        let version = Version {
            generation: view.generation,
            packs,
        };
        let key = ListKey::push(self.dir(repo).key());
        if let Some(list) = self.cached_list(&key, &version, claimant).await? {
            return Ok(list);
        }
        let lost = self.lost_tips(objects, &view.refs, claimant).await?;
        let capabilities = Some(capabilities.receive.clone());
        self.list(
            key,
            version,
            view.refs,
            Form::Push { capabilities, lost },
            claimant,
        )
        .await
    }

    /// Returns the tips of refs that are not here.
    async fn lost_tips(
        &self,
        objects: Objects,
        refs: &Refs,
        claimant: Claimant,
    ) -> Result<BTreeSet<Oid>, GitError> {
        let mut tips: BTreeSet<Oid> = refs.refs.values().map(|target| target.oid).collect();
        let mut lost = BTreeSet::new();
        while let Some(next) = tips.iter().nth(REFS_PER_STEP).copied() {
            let rest = tips.split_off(&next);
            lost.append(&mut self.lost_among(&objects, tips, claimant).await?);
            tips = rest;
        }
        lost.append(&mut self.lost_among(&objects, tips, claimant).await?);
        Ok(lost)
    }

    async fn lost_among(
        &self,
        objects: &Objects,
        tips: BTreeSet<Oid>,
        claimant: Claimant,
    ) -> Result<BTreeSet<Oid>, GitError> {
        let objects = objects.clone();
        let look = move || check::missing(&[objects.dir.objects()], &tips);
        self.git().work(claimant, look).await?
    }
}

/// Encodes a list of refs piece by piece.
#[derive(Debug)]
struct Encoder {
    refs: Arc<Refs>,
    form: Form,
    /// The beginning, which is sent with the first piece.
    start: Vec<u8>,
    /// The last ref that was encoded.
    last: Option<RefName>,
    is_finished: bool,
}

/// The form of a list, and what each line of it depends on.
#[derive(Debug)]
enum Form {
    /// For a client that fetches, in versions 0 and 1. The capabilities go into the first line.
    Fetch { capabilities: Option<String> },
    /// For a client that pushes, without these tips.
    Push {
        capabilities: Option<String>,
        lost: BTreeSet<Oid>,
    },
    /// For a client that fetches in version 2.
    Listed(LsRefs),
}

impl Encoder {
    fn of(refs: Arc<Refs>, form: Form) -> Self {
        let mut list = Self {
            refs,
            form,
            start: Vec::new(),
            last: None,
            is_finished: false,
        };
        match &mut list.form {
            Form::Push { .. } => {}
            Form::Fetch { capabilities } => {
                if let Some((_, target)) = head(&list.refs) {
                    let line = (&target.oid, "HEAD");
                    encode_advertised(line, capabilities.take(), &mut list.start);
                }
            }
            Form::Listed(request) => {
                if let Some((name, target)) = head(&list.refs).filter(|_| request.wants("HEAD")) {
                    let symref = match request.symrefs {
                        true => format!(" symref-target:{name}"),
                        false => String::new(),
                    };
                    let line = format!("{} HEAD{symref}\n", target.oid);
                    encode_pkt(line.as_bytes(), &mut list.start);
                }
            }
        }
        list
    }

    /// Encodes the next piece, which is empty if none of the refs that were considered is part of the list. Returns `None`
    /// after the end.
    fn next_piece(&mut self) -> Option<Vec<u8>> {
        if self.is_finished {
            return None;
        }
        let mut piece = std::mem::take(&mut self.start);
        let from = self.last.take().map_or(Bound::Unbounded, Bound::Excluded);
        let rest = self.refs.refs.range((from, Bound::Unbounded));
        for (number, (name, target)) in rest.enumerate() {
            self.form.encode(name, target, &mut piece);
            if piece.len() >= CHUNK || number >= REFS_PER_STEP {
                self.last = Some(name.clone());
                return Some(piece);
            }
        }
        self.is_finished = true;
        self.form.finish(&mut piece);
        Some(piece)
    }
}

impl Form {
    /// Encodes one ref, unless the list is without it.
    fn encode(&mut self, name: &RefName, target: &Target, to: &mut Vec<u8>) {
        match self {
            Self::Fetch { capabilities } => {
                encode_advertised((&target.oid, name.as_str()), capabilities.take(), to);
                if let Some(peeled) = &target.peeled {
                    encode_advertised((peeled, &format!("{name}^{{}}")), None, to);
                }
            }
            Self::Push { capabilities, lost } => {
                if !lost.contains(&target.oid) {
                    encode_advertised((&target.oid, name.as_str()), capabilities.take(), to);
                }
            }
            Self::Listed(request) => {
                if request.wants(name.as_str()) {
                    let peeled = target.peeled.filter(|_| request.peel);
                    let peeled = peeled
                        .map(|oid| format!(" peeled:{oid}"))
                        .unwrap_or_default();
                    encode_pkt(format!("{} {name}{peeled}\n", target.oid).as_bytes(), to);
                }
            }
        }
    }

    /// Encodes the end. A list without refs has its capabilities there.
    fn finish(&mut self, to: &mut Vec<u8>) {
        if let Self::Fetch { capabilities } | Self::Push { capabilities, .. } = self {
            let line = (&Oid::ZERO, "capabilities^{}");
            capabilities
                .take()
                .into_iter()
                .for_each(|all| encode_advertised(line, Some(all), to));
        }
        to.extend(FLUSH);
    }
}

/// Encodes a line of an advertisement of version 0 or 1.
fn encode_advertised((oid, name): (&Oid, &str), capabilities: Option<String>, to: &mut Vec<u8>) {
    let line = match capabilities {
        Some(capabilities) => format!("{oid} {name}\0{capabilities}\n"),
        None => format!("{oid} {name}\n"),
    };
    encode_pkt(line.as_bytes(), to);
}

/// Returns HEAD and the commit that it leads to, unless its branch does not exist.
fn head(refs: &Refs) -> Option<(&RefName, &Target)> {
    refs.refs.get_key_value(&refs.head)
}

/// Returns the capabilities of `upload-pack`, among which one says what HEAD is.
fn upload_list(capabilities: &Capabilities, refs: &Refs) -> String {
    let list = &capabilities.upload;
    let Some((name, _)) = head(refs) else {
        return list.clone();
    };
    let after_symref = [" filter", " session-id=", " object-format="];
    let at = after_symref
        .iter()
        .find_map(|next| list.find(next))
        .unwrap_or(list.len());
    let (before, after) = list.split_at_checked(at).unwrap_or((list, ""));
    format!("{before} symref=HEAD:{name}{after}")
}

/// A request for refs in version 2.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct LsRefs {
    peel: bool,
    symrefs: bool,
    /// Prefixes in order, of which none is a prefix of another; without any, everything is wanted.
    prefixes: Vec<String>,
}

const LS_REFS: &str = "command=ls-refs";

impl LsRefs {
    /// Returns whether this is the beginning of such a request.
    fn is_command_of(request: &[u8]) -> bool {
        let Ok(Some((Pkt::Data(line), _))) = read_pkt(request) else {
            return false;
        };
        line.strip_suffix(b"\n").unwrap_or(line) == LS_REFS.as_bytes()
    }

    /// Parses a whole request; `None` if it is another command or has anything unexpected in it.
    fn parse(mut bytes: &[u8]) -> Option<Self> {
        let mut request = Self::default();
        let mut is_command = true;
        let mut in_arguments = false;
        loop {
            let (pkt, rest) = read_pkt(bytes).ok()??;
            bytes = rest;
            match pkt {
                Pkt::Data(line) => {
                    let line = std::str::from_utf8(line).ok()?.trim_end_matches('\n');
                    if is_command {
                        (line == LS_REFS).then_some(())?;
                    } else if in_arguments {
                        request.argument(line)?;
                    } else {
                        let is_known = line.starts_with("agent=") || line == "object-format=sha1";
                        is_known.then_some(())?;
                    }
                    is_command = false;
                }
                Pkt::Delimiter if !is_command && !in_arguments => in_arguments = true,
                Pkt::Flush if !is_command => {
                    request.sort_prefixes();
                    return Some(request);
                }
                _ => return None,
            }
        }
    }

    fn argument(&mut self, line: &str) -> Option<()> {
        match line {
            "peel" => self.peel = true,
            "symrefs" => self.symrefs = true,
            // An unborn HEAD is never told.
            "unborn" => {}
            _ => self
                .prefixes
                .push(line.strip_prefix("ref-prefix ")?.to_owned()),
        }
        Some(())
    }

    /// Sorts the prefixes. All that begin with a prefix come right after it, and are left out.
    fn sort_prefixes(&mut self) {
        self.prefixes.sort_unstable();
        self.prefixes
            .dedup_by(|longer, shorter| longer.starts_with(shorter.as_str()));
    }

    /// Returns whether a ref of this name is wanted. Only the prefix that comes right before it can be one of it.
    fn wants(&self, name: &str) -> bool {
        if self.prefixes.is_empty() {
            return true;
        }
        let after = self
            .prefixes
            .partition_point(|prefix| prefix.as_str() <= name);
        let before = after.checked_sub(1).and_then(|at| self.prefixes.get(at));
        before.is_some_and(|prefix| name.starts_with(prefix.as_str()))
    }
}

/// The operation of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Fetch or clone.
    UploadPack,
    /// Push.
    ReceivePack,
}

impl Service {
    /// Reads the value of `service=`.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::UploadPack, Self::ReceivePack]
            .into_iter()
            .find(|service| service.name() == name)
    }

    /// Its name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::UploadPack => "git-upload-pack",
            Self::ReceivePack => "git-receive-pack",
        }
    }
}

/// A version of git's protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    /// Refs first, no version line.
    #[default]
    V0,
    /// As before, with a version line.
    V1,
    /// Commands first. For fetching only.
    V2,
}

impl Protocol {
    /// The highest version that a `Git-Protocol` header asks for. Nothing else of it reaches git.
    ///
    /// ```
    /// use grasp_purgatory::git::Protocol;
    ///
    /// assert_eq!(Protocol::from_header("version=2"), Protocol::V2);
    /// assert_eq!(Protocol::from_header("version=1:agent=x; rm -rf"), Protocol::V1);
    /// assert_eq!(Protocol::from_header("version=22"), Protocol::V0);
    /// ```
    pub fn from_header(value: &str) -> Self {
        let versions = value.split(':').map(|token| match token {
            "version=2" => Self::V2,
            "version=1" => Self::V1,
            _ => Self::V0,
        });
        versions.max().unwrap_or_default()
    }

    pub(super) fn value(self) -> &'static str {
        match self {
            Self::V0 => "version=0",
            Self::V1 => "version=1",
            Self::V2 => "version=2",
        }
    }
}
