//! A repository store, a working copy, and pushes between the two.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use grasp_core::admission::Presence;
use grasp_core::nip34::State;
use grasp_core::push::{
    AuthorisedPush, Candidate, CommandReader, KnownProposal, Progress, PushRequest, PushView,
    authorise, encode_pkt,
};
use grasp_core::resources::Claimant;
use grasp_core::service::Endpoint;
use grasp_core::{Oid, RefName, RepoId};
use grasp_purgatory::database::{Commit, Committed, Database as _};
use grasp_purgatory::git::{
    Git, GitError, Incoming, Protocol, RefTarget, RepoGuard, RepoStore, Service, Slots,
    StagingLimits, WantedRefs,
};
use nostr::event::{EventBuilder, EventId, FinalizeEvent, Kind, Tag};
use nostr::key::Keys;
use nostr::types::Timestamp;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::memory_database::MemoryDatabase;

/// A limit on the size of packs that no test reaches.
pub(crate) const MAX_PACK_BYTES: u64 = 1 << 30;

pub(crate) fn now() -> Timestamp {
    Timestamp::from_secs(1_700_000_000)
}

pub(crate) fn name(text: &str) -> RefName {
    text.parse().unwrap()
}

/// Returns the repository of a new owner, which does not exist yet.
pub(crate) fn new_repo(identifier: &str) -> RepoId {
    RepoId::new(Keys::generate().public_key(), identifier.parse().unwrap())
}

pub(crate) fn installed_git() -> Git {
    Git::find(&std::env::var_os("PATH").unwrap(), Slots::default()).unwrap()
}

/// Opens the store of hosted repositories.
pub(crate) async fn open(
    root: &Path,
    git: Git,
    limits: StagingLimits,
    database: &Arc<MemoryDatabase>,
) -> Result<RepoStore, GitError> {
    RepoStore::open(
        root,
        Endpoint::Repository,
        git,
        limits,
        database.clone(),
        None,
    )
    .await
}

/// A repository store in a temporary directory, and its database.
pub(crate) struct Fixture {
    pub(crate) dir: TempDir,
    pub(crate) database: Arc<MemoryDatabase>,
    pub(crate) store: RepoStore,
}

impl Fixture {
    pub(crate) async fn new() -> Self {
        Self::limited(StagingLimits::default()).await
    }

    pub(crate) async fn limited(limits: StagingLimits) -> Self {
        Self::with_git(installed_git(), limits).await
    }

    pub(crate) async fn with_git(git: Git, limits: StagingLimits) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let database = Arc::default();
        let store = open(&dir.path().join("git"), git, limits, &database)
            .await
            .unwrap();
        Self {
            dir,
            database,
            store,
        }
    }

    /// Ends the server and starts it again.
    pub(crate) async fn restart(self) -> Self {
        let Self {
            dir,
            database,
            store,
        } = self;
        drop(store);
        let (root, limits) = (dir.path().join("git"), StagingLimits::default());
        let store = open(&root, installed_git(), limits, &database)
            .await
            .unwrap();
        Self {
            dir,
            database,
            store,
        }
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.dir.path().join("git")
    }

    /// Creates an empty repository of a new owner.
    pub(crate) async fn repo(&self, identifier: &str) -> RepoId {
        let repo = new_repo(identifier);
        self.create(&repo).await;
        repo
    }

    pub(crate) async fn create(&self, repo: &RepoId) {
        self.store
            .lock(repo)
            .await
            .unwrap()
            .create_view()
            .await
            .unwrap();
    }

    /// Returns the directory in which git reads a view as it is committed now, made by a request for it.
    pub(crate) async fn view(&self, repo: &RepoId) -> PathBuf {
        self.advertised(repo, Service::UploadPack, Protocol::V0)
            .await;
        let generation = self.store.view(repo).await.unwrap().generation;
        let path = self
            .root()
            .join("views")
            .join(self.key(repo))
            .join(generation.0.to_string());
        assert!(path.is_dir(), "git reads the view there");
        path
    }

    /// Returns the directory of a repository, found as an operator would find it.
    pub(crate) fn repo_dir(&self, repo: &RepoId) -> PathBuf {
        let mut names = files_below(&self.root().join("repositories"))
            .into_iter()
            .filter(|path| {
                path.ends_with("repository")
                    && std::fs::read_to_string(path).unwrap() == repo.to_string()
            });
        names
            .next()
            .expect("the repository says its name")
            .parent()
            .unwrap()
            .to_owned()
    }

    /// Returns the name of a repository below the other directories.
    fn key(&self, repo: &RepoId) -> String {
        let dir = self.repo_dir(repo);
        let parts = dir
            .strip_prefix(self.root().join("repositories"))
            .unwrap()
            .iter();
        parts.map(|part| part.to_str().unwrap()).collect()
    }

    /// Returns what git itself advertises.
    pub(crate) async fn advertised(
        &self,
        repo: &RepoId,
        service: Service,
        protocol: Protocol,
    ) -> String {
        let claimant = Claimant::default();
        let mut process = self
            .store
            .advertise(repo, (service, protocol), claimant)
            .await
            .unwrap();
        let mut answer = Vec::new();
        process
            .take_stdout()
            .unwrap()
            .read_to_end(&mut answer)
            .await
            .unwrap();
        assert!(process.finish().await.unwrap().status.success());
        String::from_utf8(answer).unwrap()
    }

    /// Receives a pack.
    pub(crate) async fn receive(&self, repo: &RepoId, pack: &[u8]) -> Result<Incoming, GitError> {
        let incoming = self
            .store
            .repository(repo)
            .incoming(Claimant::default())
            .await?;
        let mut unpacking = incoming.unpack(MAX_PACK_BYTES, MAX_PACK_BYTES).await?;
        unpacking.feed(pack).await?;
        unpacking.finish().await?;
        Ok(incoming)
    }

    /// Pushes as the relay would: receive, lock, judge, take objects in, move refs.
    pub(crate) async fn push(
        &self,
        repo: &RepoId,
        work: &Work,
        moves: &[(&str, Option<Oid>)],
    ) -> Result<(), GitError> {
        let tips: Vec<_> = moves.iter().filter_map(|(_, tip)| *tip).collect();
        let incoming = match tips.as_slice() {
            [] => None,
            tips => Some(self.receive(repo, &work.pack(tips)).await?),
        };
        let mut guard = self.store.lock(repo).await?;
        let push = judged(&guard.refs().await?, moves);
        execute(&mut guard, &push, incoming).await
    }

    /// Makes the branches and tags of a repository exactly these, as a release does.
    pub(crate) async fn apply(
        &self,
        guard: &mut RepoGuard,
        target: &RefTarget,
    ) -> Result<(), GitError> {
        let wanted = WantedRefs {
            target: Some(target.clone()),
            ..WantedRefs::default()
        };
        let repos = guard.plan(&wanted, now()).await?.into_iter().collect();
        let commit = Commit {
            repos,
            ..Commit::default()
        };
        match self.database.commit(commit).await? {
            Committed::Done { .. } => Ok(()),
            Committed::Conflict(_) => Err(GitError::Outdated),
        }
    }

    /// Returns git's answer to one request for objects.
    pub(crate) async fn fetch_v2(&self, repo: &RepoId, wants: &[Oid]) -> Vec<u8> {
        let mut request = Vec::new();
        encode_pkt(b"command=fetch\n", &mut request);
        encode_pkt(b"object-format=sha1", &mut request);
        request.extend_from_slice(b"0001");
        for want in wants {
            encode_pkt(format!("want {want}\n").as_bytes(), &mut request);
        }
        encode_pkt(b"done\n", &mut request);
        request.extend_from_slice(b"0000");
        let mut process = self
            .store
            .upload_pack(repo, Protocol::V2, Claimant::default())
            .await
            .unwrap();
        let mut stdin = process.take_stdin().unwrap();
        stdin.write_all(&request).await.unwrap();
        drop(stdin);
        let mut answer = Vec::new();
        process
            .take_stdout()
            .unwrap()
            .read_to_end(&mut answer)
            .await
            .unwrap();
        process.finish().await.unwrap();
        answer
    }
}

/// Executes a judged push: takes its objects in, and moves refs as the release that follows does.
pub(crate) async fn execute(
    guard: &mut RepoGuard,
    push: &AuthorisedPush,
    incoming: Option<Incoming>,
) -> Result<(), GitError> {
    if let Some(incoming) = incoming {
        guard.take_push(push, incoming).await?;
    }
    guard.move_refs(push.execute(), now()).await
}

/// Returns the verdict on a push whose resulting refs a maintainer has signed.
pub(crate) fn judged(
    refs: &BTreeMap<RefName, Oid>,
    moves: &[(&str, Option<Oid>)],
) -> AuthorisedPush {
    let mut would_be = refs.clone();
    let mut proposals = BTreeMap::new();
    for (text, new) in moves {
        match new {
            Some(oid) => would_be.insert(name(text), *oid),
            None => would_be.remove(&name(text)),
        };
        if let Some(id) = text.strip_prefix("refs/nostr/") {
            proposals.insert(EventId::from_hex(id).unwrap(), KnownProposal::Unknown);
        }
    }
    let state = signed_state(&would_be);
    let verdict = authorise(
        &request(refs, moves),
        &PushView {
            refs,
            maintainers: &BTreeSet::from([state.repo.owner]),
            candidates: &[Candidate {
                state: Arc::new(state),
                presence: Presence::Held,
            }],
            proposals: &proposals,
        },
    );
    verdict
        .authorised
        .unwrap_or_else(|| panic!("{:?}", verdict.refs))
}

/// Returns the request of a client that moves refs.
pub(crate) fn request(refs: &BTreeMap<RefName, Oid>, moves: &[(&str, Option<Oid>)]) -> PushRequest {
    let mut request = Vec::new();
    for (text, new) in moves {
        let old = refs.get(&name(text)).copied().unwrap_or(Oid::ZERO);
        let line = format!("{old} {} {text}\0report-status", new.unwrap_or(Oid::ZERO));
        let line = if request.is_empty() {
            line.as_str()
        } else {
            line.split('\0').next().unwrap()
        };
        encode_pkt(line.as_bytes(), &mut request);
    }
    request.extend_from_slice(b"0000");
    let Ok(Progress::Complete { request, .. }) = CommandReader::default().feed(&request) else {
        panic!("a good command list")
    };
    request
}

fn signed_state(refs: &BTreeMap<RefName, Oid>) -> State {
    let declared = refs.iter().filter(|(name, _)| name.is_branch_or_tag());
    let tags = declared.map(|(name, oid)| [name.to_string(), oid.to_string()]);
    let tags = tags
        .chain([["d".to_owned(), "x".to_owned()]])
        .map(|tag| Tag::parse(tag).unwrap());
    let event = EventBuilder::new(Kind::Custom(30618), "").tags(tags);
    State::parse(&event.finalize(&Keys::generate()).unwrap()).unwrap()
}

/// A working copy.
pub(crate) struct Work {
    pub(crate) dir: TempDir,
}

impl Work {
    pub(crate) fn new() -> Self {
        let work = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        work.git(&["init", "-q", "-b", "main"]);
        work
    }

    pub(crate) fn git(&self, arguments: &[&str]) -> String {
        git(self.dir.path(), arguments, b"")
            .unwrap_or_else(|error| panic!("{arguments:?}: {error}"))
    }

    pub(crate) fn write(&self, file: &str, content: &[u8]) {
        std::fs::write(self.dir.path().join(file), content).unwrap();
    }

    /// Commits one file with this content.
    pub(crate) fn commit(&self, content: &str) -> Oid {
        self.write("file", content.as_bytes());
        self.git(&["add", "-A"]);
        self.git(&["commit", "-q", "-m", content]);
        self.rev("HEAD")
    }

    pub(crate) fn rev(&self, what: &str) -> Oid {
        self.git(&["rev-parse", what]).parse().unwrap()
    }

    /// Returns a pack with everything that these tips need.
    pub(crate) fn pack(&self, tips: &[Oid]) -> Vec<u8> {
        let input: String = tips.iter().map(|tip| format!("{tip}\n")).collect();
        self.pack_of(&["--revs"], &input)
    }

    /// A pack with everything that a tip needs, with the deltas that it is stored as.
    pub(crate) fn pack_as_stored(&self, tip: Oid) -> Vec<u8> {
        self.pack_of(
            &["--revs", "--depth=4000", "--window=0"],
            &format!("{tip}\n"),
        )
    }

    /// A pack with just these objects.
    pub(crate) fn pack_only(&self, objects: &[Oid]) -> Vec<u8> {
        let input: String = objects.iter().map(|oid| format!("{oid}\n")).collect();
        self.pack_of(&[], &input)
    }

    /// Returns the pack that git sends for a tip to a server that has `had`.
    pub(crate) fn thin_pack(&self, tip: Oid, had: Oid) -> Vec<u8> {
        self.pack_of(&["--revs", "--thin"], &format!("{tip}\n^{had}\n"))
    }

    /// The last commit, its tree and its file.
    pub(crate) fn objects_of_last_commit(&self) -> Vec<Oid> {
        ["HEAD", "HEAD^{tree}", "HEAD:file"]
            .map(|what| self.rev(what))
            .into()
    }

    fn pack_of(&self, arguments: &[&str], input: &str) -> Vec<u8> {
        let arguments = [&["pack-objects", "--stdout", "-q"], arguments].concat();
        raw_git(self.dir.path(), &arguments, input.as_bytes()).unwrap()
    }
}

/// Runs the installed git and returns its output.
pub(crate) fn git(dir: &Path, arguments: &[&str], input: &[u8]) -> Result<String, String> {
    let output = raw_git(dir, arguments, input)?;
    Ok(String::from_utf8(output).unwrap().trim().to_owned())
}

fn raw_git(dir: &Path, arguments: &[&str], input: &[u8]) -> Result<Vec<u8>, String> {
    let mut child = Command::new("git")
        .args(arguments)
        .current_dir(dir)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .envs(["AUTHOR", "COMMITTER"].map(|who| (format!("GIT_{who}_NAME"), "Alice")))
        .envs(["AUTHOR", "COMMITTER"].map(|who| (format!("GIT_{who}_EMAIL"), "alice@example")))
        .envs(["AUTHOR", "COMMITTER"].map(|who| (format!("GIT_{who}_DATE"), "1700000000 +0000")))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut stdin, input) = (child.stdin.take().unwrap(), input.to_vec());
    let feeder = std::thread::spawn(move || _ = stdin.write_all(&input));
    let output = child.wait_with_output().unwrap();
    feeder.join().unwrap();
    if output.status.success() {
        return Ok(output.stdout);
    }
    Err(String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Returns 4 × `n` bytes that do not compress.
pub(crate) fn noise(n: u32) -> Vec<u8> {
    (0..n)
        .flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes())
        .collect()
}

/// All files below a directory.
pub(crate) fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files_below(&path)),
            false => found.push(path),
        }
    }
    found
}

/// Bytes of all packs below a directory.
pub(crate) fn pack_bytes(dir: &Path) -> u64 {
    let packs = files_below(dir)
        .into_iter()
        .filter(|path| path.extension().is_some_and(|e| e == "pack"));
    // A quarantine is removed in the background.
    packs
        .map(|pack| pack.metadata().map_or(0, |metadata| metadata.len()))
        .sum()
}
