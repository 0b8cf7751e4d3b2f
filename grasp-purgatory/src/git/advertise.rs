//! Ref advertisements, answered without starting git.
//!
//! Refs come from `packed-refs` and HEAD of a view. Capabilities come from git itself, which is asked once: the answers
//! are those of `git upload-pack` and `git receive-pack`, byte for byte. Requests that this module does not know are
//! left to git.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use grasp_core::push::{Pkt, encode_pkt, read_pkt};
use grasp_core::resources::Claimant;
use grasp_core::{Oid, RefName, RepoId};
use tokio::io::AsyncReadExt as _;

use super::error::GitError;
use super::refs::{Snapshot, Target};
use super::serve::{Protocol, Service};
use super::store::RepoStore;
use super::{blocking, layout, read};

/// Size of `packed-refs` up to which it is read here: some 3,500 refs. Git reads larger ones, of which only so many at the
/// same time are served.
const MAX_PACKED_REFS_BYTES: u64 = 256 * 1024;

/// The most `ref-prefix` arguments of an `ls-refs` that is answered here.
const MAX_PREFIXES: usize = 64;

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
    /// Asks git, in a repository without refs.
    async fn read(store: &RepoStore) -> Result<Self, GitError> {
        let upload = advertised_by_git(store, Service::UploadPack, Protocol::V0).await?;
        let receive = advertised_by_git(store, Service::ReceivePack, Protocol::V0).await?;
        let version_2 = advertised_by_git(store, Service::UploadPack, Protocol::V2).await?;
        Ok(Self { upload: list_of(&upload)?, receive: list_of(&receive)?, version_2 })
    }
}

async fn advertised_by_git(
    store: &RepoStore,
    service: Service,
    protocol: Protocol,
) -> Result<Vec<u8>, GitError> {
    let command = store.serving_command((service, protocol), &["--http-backend-info-refs"]);
    let command = command.arg(store.workbench()).claimed_by(Claimant::server());
    let mut process = command.spawn().await?;
    drop(process.take_stdin());
    let mut answer = Vec::new();
    if let Some(mut output) = process.take_stdout() {
        let read = output.read_to_end(&mut answer).await;
        read.map_err(|source| GitError::Spawn { command: "upload-pack", source })?;
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
    let list = line.iter().position(|byte| *byte == 0).and_then(|at| line.get(at + 1..));
    let list = list.and_then(|list| std::str::from_utf8(list).ok()).map(str::trim_end);
    let said = String::from_utf8_lossy(line).into_owned();
    list.map(str::to_owned).ok_or(GitError::Failed { command: "upload-pack", said })
}

impl RepoStore {
    /// Returns the answer to `info/refs`, without the line that HTTP puts before it; `None` if git must answer.
    pub async fn advertisement(
        &self,
        repo: &RepoId,
        (service, protocol): (Service, Protocol),
    ) -> Result<Option<Vec<u8>>, GitError> {
        let capabilities = self.capabilities().get_or_try_init(|| Capabilities::read(self)).await?;
        let Some(refs) = self.read_packed(repo).await? else { return Ok(None) };
        if service == Service::ReceivePack && !self.has_tips(repo, &refs).await? {
            return Ok(None);
        }
        Ok(Some(match (service, protocol) {
            (Service::UploadPack, Protocol::V2) => capabilities.version_2.clone(),
            (Service::UploadPack, protocol) => {
                version_0(protocol, upload_lines(&refs), &upload_list(capabilities, &refs))
            }
            (Service::ReceivePack, protocol) => {
                let lines = visible(&refs).map(|(name, target)| (target.oid, name.to_string()));
                version_0(protocol, lines.collect(), &capabilities.receive)
            }
        }))
    }

    /// Answers an `ls-refs` of version 2; `None` if the request is another one, or git must answer.
    pub async fn ls_refs(
        &self,
        repo: &RepoId,
        request: &[u8],
    ) -> Result<Option<Vec<u8>>, GitError> {
        let Some(request) = LsRefs::parse(request) else { return Ok(None) };
        let Some(refs) = self.read_packed(repo).await? else { return Ok(None) };
        blocking(move || Ok(Some(request.answer(&refs)))).await
    }

    /// Returns whether the objects that refs name are here. Git leaves out refs that lack theirs, so that a push brings them.
    async fn has_tips(&self, repo: &RepoId, refs: &Snapshot) -> Result<bool, GitError> {
        let objects = self.family(&repo.identifier).objects();
        let tips: BTreeSet<Oid> = visible(refs).map(|(_, target)| target.oid).collect();
        blocking(move || Ok(read::missing(&[objects], &tips)?.is_empty())).await
    }

    /// Reads the refs of a view; `None` if there are too many, or some are not in `packed-refs`, which is not this server's
    /// doing.
    async fn read_packed(&self, repo: &RepoId) -> Result<Option<Snapshot>, GitError> {
        let (store, repo) = (self.clone(), repo.clone());
        blocking(move || {
            let view = store.seat(&repo);
            if !view.is_dir() {
                return Err(GitError::NoView);
            }
            if !layout::list(&view.join("refs"))?.is_empty() {
                return Ok(None);
            }
            let packed = view.join("packed-refs");
            if fs::metadata(&packed).is_ok_and(|file| file.len() > MAX_PACKED_REFS_BYTES) {
                return Ok(None);
            }
            // HEAD first: a branch that it names later on is then among the refs that are read after it.
            let head = read_text(&view.join("HEAD"))?;
            Ok(decode(&read_text(&packed)?, &head))
        })
        .await
    }
}

fn read_text(path: &Path) -> Result<String, GitError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(text),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(String::new()),
        Err(source) => Err(GitError::Io { doing: "read", path: path.to_owned(), source }),
    }
}

/// Parses `packed-refs` and HEAD; `None` for anything that this server does not write.
fn decode(packed: &str, head: &str) -> Option<Snapshot> {
    let mut refs: BTreeMap<RefName, Target> = BTreeMap::new();
    let mut last = None;
    for line in packed.lines() {
        if line.starts_with('#') {
            continue;
        }
        if let Some(peeled) = line.strip_prefix('^') {
            let target: &mut Target = refs.get_mut(last.as_ref()?)?;
            target.peeled = Some(peeled.parse().ok()?);
            continue;
        }
        let (oid, name) = line.split_once(' ')?;
        let name: RefName = name.parse().ok()?;
        refs.insert(name.clone(), Target { oid: oid.parse().ok()?, peeled: None });
        last = Some(name);
    }
    let head = head.strip_prefix("ref: ")?.trim_end().parse().ok()?;
    Some(Snapshot { refs, head: Some(head) })
}

/// Returns the refs that clients may see.
fn visible(refs: &Snapshot) -> impl Iterator<Item = (&RefName, &Target)> {
    refs.refs.iter().filter(|(name, _)| !name.as_str().starts_with("refs/grasp/"))
}

/// Returns HEAD and the commit that it leads to, unless its branch does not exist.
fn head(refs: &Snapshot) -> Option<(&RefName, &Target)> {
    let name = refs.head.as_ref()?;
    refs.refs.get(name).map(|target| (name, target))
}

/// Returns the capabilities of `upload-pack`, among which one says what HEAD is.
fn upload_list(capabilities: &Capabilities, refs: &Snapshot) -> String {
    let list = &capabilities.upload;
    let Some((name, _)) = head(refs) else { return list.clone() };
    let after_symref = [" filter", " session-id=", " object-format="];
    let at = after_symref.iter().find_map(|next| list.find(next)).unwrap_or(list.len());
    let (before, after) = list.split_at_checked(at).unwrap_or((list, ""));
    format!("{before} symref=HEAD:{name}{after}")
}

fn upload_lines(refs: &Snapshot) -> Vec<(Oid, String)> {
    let head = head(refs).map(|(_, target)| (target.oid, "HEAD".to_owned()));
    let lines = visible(refs).flat_map(|(name, target)| {
        let peeled = target.peeled.map(|oid| (oid, format!("{name}^{{}}")));
        [Some((target.oid, name.to_string())), peeled].into_iter().flatten()
    });
    head.into_iter().chain(lines).collect()
}

/// Writes an advertisement of version 0 or 1. Version 2 has no pushes; git answers them in version 0.
fn version_0(protocol: Protocol, lines: Vec<(Oid, String)>, capabilities: &str) -> Vec<u8> {
    let mut answer = Vec::new();
    if protocol == Protocol::V1 {
        encode_pkt(b"version 1\n", &mut answer);
    }
    let nothing = lines.is_empty().then(|| (Oid::ZERO, "capabilities^{}".to_owned()));
    for (number, (oid, name)) in nothing.into_iter().chain(lines).enumerate() {
        let line = match number {
            0 => format!("{oid} {name}\0{capabilities}\n"),
            _ => format!("{oid} {name}\n"),
        };
        encode_pkt(line.as_bytes(), &mut answer);
    }
    answer.extend(FLUSH);
    answer
}

/// A request for refs in version 2.
#[derive(Debug, Default, PartialEq, Eq)]
struct LsRefs {
    peel: bool,
    symrefs: bool,
    prefixes: Vec<String>,
}

impl LsRefs {
    /// Parses a whole request; `None` if it is another command or has anything unexpected in it.
    fn parse(mut bytes: &[u8]) -> Option<Self> {
        let mut request = Self::default();
        let (mut is_command, mut in_arguments) = (true, false);
        loop {
            let (pkt, rest) = read_pkt(bytes).ok()??;
            bytes = rest;
            match pkt {
                Pkt::Data(line) => {
                    let line = std::str::from_utf8(line).ok()?.trim_end_matches('\n');
                    if is_command {
                        (line == "command=ls-refs").then_some(())?;
                    } else if in_arguments {
                        request.argument(line)?;
                    } else {
                        let is_known = line.starts_with("agent=") || line == "object-format=sha1";
                        is_known.then_some(())?;
                    }
                    is_command = false;
                }
                Pkt::Delimiter if !is_command && !in_arguments => in_arguments = true,
                Pkt::Flush if !is_command => return Some(request),
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
            _ => {
                let prefix = line.strip_prefix("ref-prefix ")?;
                (self.prefixes.len() < MAX_PREFIXES).then_some(())?;
                self.prefixes.push(prefix.to_owned());
            }
        }
        Some(())
    }

    fn answer(&self, refs: &Snapshot) -> Vec<u8> {
        let is_wanted = |name: &str| {
            self.prefixes.is_empty() || self.prefixes.iter().any(|prefix| name.starts_with(prefix))
        };
        let mut answer = Vec::new();
        if let Some((name, target)) = head(refs).filter(|_| is_wanted("HEAD")) {
            let symref = match self.symrefs {
                true => format!(" symref-target:{name}"),
                false => String::new(),
            };
            encode_pkt(format!("{} HEAD{symref}\n", target.oid).as_bytes(), &mut answer);
        }
        for (name, target) in visible(refs).filter(|(name, _)| is_wanted(name.as_str())) {
            let peeled = target.peeled.filter(|_| self.peel);
            let peeled = peeled.map(|oid| format!(" peeled:{oid}")).unwrap_or_default();
            encode_pkt(format!("{} {name}{peeled}\n", target.oid).as_bytes(), &mut answer);
        }
        answer.extend(FLUSH);
        answer
    }
}
