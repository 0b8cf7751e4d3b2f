//! Objects on their way in.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use grasp_core::Oid;
use tokio::io::AsyncWriteExt;
use tokio::process::ChildStdin;

use super::arrivals::Expected;
use super::{Quarantine, Removals, RepoStore};
use crate::git::blocking;
use crate::git::check::{Completeness, Objects, Proofs};
use crate::git::command::{Bounds, FLAWS, GitCommand};
use crate::git::error::{GitError, says_disk_full};
use crate::git::layout::{self, Family};
use crate::git::process::GitProcess;

/// Files that git may write whatever the limit on what is sent.
const LEAST_FILE: u64 = 64 * 1024 * 1024;

/// Objects that have arrived for a family and that no view can read.
///
/// Receiving takes no lock, however slow the sender. Dropping it forgets the objects.
#[derive(Debug)]
pub struct Incoming {
    store: RepoStore,
    objects: Objects,
    quarantine: Quarantine,
    whole: BTreeSet<Oid>,
    /// What is whole may be so only with objects of the family as it was then.
    as_of: Removals,
    _expected: Expected,
}

impl Incoming {
    pub(super) fn new(store: &RepoStore, family: Family) -> Result<Self, GitError> {
        let quarantine = Quarantine::create(store.scratch())?;
        let (git, expected) = (store.git().clone(), store.inner.arrivals.expect(&family));
        let objects = Objects { git, family, incoming: Some(quarantine.clone()) };
        let (store, as_of) = (store.clone(), store.removals());
        Ok(Self { store, objects, quarantine, whole: BTreeSet::new(), as_of, _expected: expected })
    }

    /// Starts to unpack; the pack is fed to what is returned.
    ///
    /// A few bytes can say "a gigabyte of nothing", so memory is bounded apart from what is sent. What a thin pack
    /// leans on is written with it, which is why files may become somewhat larger than what came.
    pub async fn unpack(&self, max_bytes: u64, memory: u64) -> Result<Unpacking, GitError> {
        let file = max_bytes.saturating_mul(2).max(LEAST_FILE);
        let mut process = self
            .command("index-pack")
            .args(["--stdin", "--fix-thin"])
            .arg(format!("--strict={}", FLAWS.map(|flaw| format!("{flaw}=ignore")).join(",")))
            .arg(format!("--max-input-size={max_bytes}"))
            .setting("pack.threads", "2")
            .bounded(Bounds { memory, file })
            .paced_by_client()
            .spawn()
            .await?;
        let pack = process.take_stdin();
        Ok(Unpacking { pack, process: Some(process), max_bytes })
    }

    /// A git command whose new objects arrive here, such as `fetch`.
    pub fn command(&self, subcommand: &'static str) -> GitCommand {
        self.objects.command(subcommand)
    }

    /// Whether the histories of these tips are whole, with what the family has.
    pub async fn check(&mut self, tips: &BTreeSet<Oid>) -> Result<Completeness, GitError> {
        self.forget_if_outdated();
        let unknown = tips.difference(&self.whole).copied().collect();
        let findings = self.objects.examine(&unknown).await?;
        self.whole.extend(&findings.whole);
        Ok(findings.completeness())
    }

    /// The same for those who need all of them.
    pub async fn check_all(&mut self, tips: &BTreeSet<Oid>) -> Result<(), GitError> {
        self.check(tips).await?.required()
    }

    /// How many objects have arrived in packs.
    pub(in crate::git) async fn count(&self) -> Result<u64, GitError> {
        let packs = self.quarantine.objects().join("pack");
        blocking(move || {
            let mut files = layout::list(&packs)?;
            files.retain(|file| file.extension().is_some_and(|kind| kind == "idx"));
            files.iter().map(|index| objects_in(index)).sum()
        })
        .await
    }

    /// Tips that were found to be whole, and are so still; the caller holds the family's lock.
    pub(super) fn into_whole(mut self) -> BTreeSet<Oid> {
        self.forget_if_outdated();
        std::mem::take(&mut self.whole)
    }

    fn forget_if_outdated(&mut self) {
        let now = self.store.removals();
        if now != self.as_of {
            self.whole.clear();
            self.as_of = now;
        }
    }

    pub(super) fn quarantine(&self) -> &Quarantine {
        &self.quarantine
    }

    /// Packs everything that a tip of another family needs into this place.
    pub(super) async fn fill_from(
        &mut self,
        store: &RepoStore,
        family: Family,
        tip: Oid,
    ) -> Result<(), GitError> {
        const COMMAND: &str = "pack-objects";
        let source = Objects { git: store.git().clone(), family, incoming: None };
        source
            .command(COMMAND)
            .args(["--revs", "--non-empty", "--delta-base-offset", "-q"])
            .arg(self.quarantine.objects().join("pack/pack"))
            .keeping(self.quarantine.kept())
            .run(format!("{tip}\n").into_bytes())
            .await?
            .success(COMMAND)?;
        self.check(&BTreeSet::from([tip])).await?.required()
    }

    /// What these tips need beyond what the family has proven, and nothing else that was sent, in a place of its own.
    pub(super) async fn extract(&self, tips: &BTreeSet<Oid>) -> Result<Self, GitError> {
        const COMMAND: &str = "pack-objects";
        let (store, family) = (self.store.clone(), self.objects.family.clone());
        let (mut part, proofs) = blocking(move || {
            let proofs = Proofs::load(&family)?;
            Ok((Self::new(&store, family)?, proofs))
        })
        .await?;
        part.as_of = self.as_of;
        part.whole = tips.intersection(&self.whole).copied().collect();
        let wanted = tips.iter().map(|tip| format!("{tip}\n"));
        let had = proofs.tips().iter().map(|tip| format!("^{tip}\n"));
        let input: String = wanted.chain(had).collect();
        self.command(COMMAND)
            .args(["--revs", "--non-empty", "--delta-base-offset", "-q"])
            .arg(part.quarantine.objects().join("pack/pack"))
            .keeping(part.quarantine.kept())
            .run(input.into_bytes())
            .await?
            .success(COMMAND)?;
        Ok(part)
    }
}

/// A pack being unpacked. Dropping it stops git, and forgets what came.
#[derive(Debug)]
pub struct Unpacking {
    pack: Option<ChildStdin>,
    process: Option<GitProcess>,
    max_bytes: u64,
}

impl Unpacking {
    /// Hands the next bytes of the pack to git. An error says what git thinks of those before.
    pub async fn feed(&mut self, bytes: &[u8]) -> Result<(), GitError> {
        let fed = match &mut self.pack {
            Some(pack) => pack.write_all(bytes).await.is_ok(),
            None => false,
        };
        if fed {
            return Ok(());
        }
        // Git reads no further only if it has found fault, or if bytes follow the pack.
        self.end().await?;
        Err(GitError::BadPack(String::from("bytes after the end of the pack")))
    }

    /// Says that the pack is complete, and waits for git's opinion.
    pub async fn finish(mut self) -> Result<(), GitError> {
        self.end().await
    }

    async fn end(&mut self) -> Result<(), GitError> {
        self.pack = None;
        let Some(process) = self.process.take() else {
            return Err(GitError::BadPack(String::from("it was refused before")));
        };
        let finished = process.run(Vec::new()).await?;
        if finished.status.success() {
            return Ok(());
        }
        Err(refusal(&finished.words, self.max_bytes))
    }
}

/// How many objects a pack's index lists: the last entry of its first table.
fn objects_in(index: &Path) -> Result<u64, GitError> {
    const LAST: u64 = 8 + 255 * 4;
    let mut number = [0; 4];
    let read = File::open(index).and_then(|file| file.read_exact_at(&mut number, LAST));
    read.map_err(|source| GitError::io("read", index, source))?;
    Ok(u32::from_be_bytes(number).into())
}

/// Why git did not take a pack.
fn refusal(words: &str, limit: u64) -> GitError {
    if says_disk_full(words) {
        return GitError::DiskFull;
    }
    if words.contains("exceeds maximum allowed size") {
        return GitError::TooLarge { limit };
    }
    if words.contains("ut of memory") {
        return GitError::BadPack(String::from("it takes too much memory to unpack"));
    }
    let fault = words.lines().find(|line| line.starts_with("error:") || line.starts_with("fatal:"));
    let fault = fault.or(words.lines().next()).unwrap_or("git gave no reason");
    GitError::BadPack(fault.chars().filter(|c| !c.is_control()).take(200).collect())
}
