//! Is all of it here? Not only the tips: every commit, tree and blob that can be reached from them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use git2::{ObjectType, Odb, OdbLookupFlags};
use grasp_core::resources::Claimant;
use grasp_core::{Oid, RefName};

use crate::database::RepoRow;

use super::binary::Git;
use super::blocking;
use super::command::GitCommand;
use super::error::{GitError, says_disk_full};
use super::layout::{self, RepoDir};
use super::limits::ProcessLimits;
use super::packs::cache::InUse;
use super::process::Finished;
use super::store::Quarantine;

const REV_LIST: &str = "rev-list";

/// Timeout of one walk through a history.
const MAX_WALK: Duration = Duration::from_secs(30 * 60);

/// Walks that may be spent on finding the broken ones of several tips.
const MAX_WALKS: usize = 32;

/// The result of a connectivity check: the tips that are not here with their whole history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Completeness {
    /// Tips that are not here.
    pub missing: BTreeSet<Oid>,
    /// Tips that are here, but not everything behind them is.
    pub broken: BTreeSet<Oid>,
}

impl Completeness {
    /// Returns whether nothing is lacking.
    pub fn is_complete(&self) -> bool {
        self.missing.is_empty() && self.broken.is_empty()
    }

    /// Returns the missing and the broken tips.
    pub fn lacking(&self) -> BTreeSet<Oid> {
        &self.missing | &self.broken
    }

    /// Returns the lack as an error of the sender.
    pub(super) fn required(self) -> Result<(), GitError> {
        match self.missing.len() + self.broken.len() {
            0 => Ok(()),
            count => Err(GitError::Incomplete { count }),
        }
    }
}

/// The objects of a repository, perhaps with some that are being received.
#[derive(Clone, Debug)]
pub(super) struct Objects {
    pub(super) git: Git,
    pub(super) dir: RepoDir,
    pub(super) incoming: Option<Quarantine>,
    /// Keeps the packs on disk, where they are a cache.
    pub(super) in_use: Option<Arc<InUse>>,
    /// The party that they are read for.
    pub(super) claimant: Claimant,
}

impl Objects {
    /// A command that reads these objects, and writes new ones where things are received.
    pub(super) fn command(&self, subcommand: &'static str) -> GitCommand {
        let command = self.git.command(subcommand).repository(self.dir.path());
        let mut command = command.claimed_by(self.claimant);
        if let Some(in_use) = &self.in_use {
            command = command.keeping(in_use.clone());
        }
        match &self.incoming {
            None => command,
            Some(incoming) => command
                .writing_objects(&incoming.objects())
                .reading_objects(&self.dir.objects())
                .keeping(incoming.kept()),
        }
    }

    /// Finds out about tips. What is proven already is not walked again, nor is anything behind it.
    pub(super) async fn examine(&self, tips: &BTreeSet<Oid>) -> Result<Completeness, GitError> {
        let (unproven, missing) = self.unproven_and_missing(tips).await?;
        let here: Vec<_> = unproven.difference(&missing).copied().collect();
        let broken = self.broken_among(here).await?;
        Ok(Completeness { missing, broken })
    }

    /// Lists what tips need beyond what is proven, if there is something and all of it is here. For few new objects.
    pub(super) async fn list(
        &self,
        tips: &BTreeSet<Oid>,
    ) -> Result<Option<BTreeSet<Oid>>, GitError> {
        let (unproven, missing) = self.unproven_and_missing(tips).await?;
        match missing.is_empty() && !unproven.is_empty() {
            true => self.list_new(&unproven).await,
            false => Ok(None),
        }
    }

    /// Returns the objects that these tips need beyond what is proven; `None` if not all are here, or too many to list.
    async fn list_new(&self, tips: &BTreeSet<Oid>) -> Result<Option<BTreeSet<Oid>>, GitError> {
        let arguments = [
            "--objects",
            "--no-object-names",
            "--stdin",
            "--not",
            "--all",
        ];
        let finished = self.rev_list(&arguments, tips).await;
        match finished {
            Err(GitError::Spawn { source, .. }) if source.kind() == io::ErrorKind::FileTooLarge => {
                Ok(None)
            }
            Ok(finished) if !finished.status.success() => Ok(None),
            finished => {
                let output = finished?.success(REV_LIST)?;
                let lines = output
                    .split(|byte| *byte == b'\n')
                    .filter(|line| !line.is_empty());
                let oids = lines.map(|line| std::str::from_utf8(line).ok()?.parse().ok());
                Ok(oids.collect())
            }
        }
    }

    async fn unproven_and_missing(
        &self,
        tips: &BTreeSet<Oid>,
    ) -> Result<(BTreeSet<Oid>, BTreeSet<Oid>), GitError> {
        let tips = tips.clone();
        let dir = self.dir.clone();
        let stores = self.stores();
        blocking(move || {
            let proofs = Proofs::load(&dir)?;
            let unproven: BTreeSet<_> = tips
                .into_iter()
                .filter(|tip| !proofs.contains(tip))
                .collect();
            let missing = missing(&stores, &unproven)?;
            Ok((unproven, missing))
        })
        .await
    }

    fn stores(&self) -> Vec<PathBuf> {
        let incoming = self.incoming.iter().map(Quarantine::objects);
        std::iter::once(self.dir.objects())
            .chain(incoming)
            .collect()
    }

    /// Walks all at once, which is what almost always suffices; if something lacks, halves until it is found.
    async fn broken_among(&self, tips: Vec<Oid>) -> Result<BTreeSet<Oid>, GitError> {
        let mut broken = BTreeSet::new();
        let mut groups = vec![tips];
        let mut walks = 0;
        while let Some(mut group) = groups.pop() {
            if group.is_empty() {
                continue;
            }
            if walks == MAX_WALKS {
                broken.extend(group);
                continue;
            }
            walks += 1;
            if self.walk(&group, &["--not", "--all"]).await? {
                continue;
            }
            if group.len() == 1 {
                broken.extend(group);
                continue;
            }
            let half = group.split_off(group.len() / 2);
            groups.extend([group, half]);
        }
        Ok(broken)
    }

    /// Returns whether everything behind these tips is here, without regard to earlier proofs.
    pub(super) async fn is_whole(&self, tips: &[Oid]) -> Result<bool, GitError> {
        self.walk(tips, &[]).await
    }

    /// The stores that a process may read for new objects: the received ones, or else the repository.
    pub(super) async fn limits(&self) -> Result<ProcessLimits, GitError> {
        let new = self
            .incoming
            .as_ref()
            .map_or(self.dir.objects(), Quarantine::objects);
        let bytes = blocking(move || layout::size(&new)).await?;
        Ok(ProcessLimits::for_data(&self.claimant, bytes))
    }

    /// Returns the number of objects that these tips need beyond what is proven.
    pub(super) async fn count_new(&self, tips: &BTreeSet<Oid>) -> Result<u64, GitError> {
        let arguments = ["--objects", "--count", "--stdin", "--not", "--all"];
        let output = self.rev_list(&arguments, tips).await?.success(REV_LIST)?;
        let count = String::from_utf8_lossy(&output).trim().parse();
        count.map_err(|_| GitError::failed(REV_LIST, "it counted nothing"))
    }

    /// Returns whether everything is here that these tips need beyond what the further arguments leave out.
    async fn walk(&self, tips: &[Oid], up_to: &[&str]) -> Result<bool, GitError> {
        let arguments = [&["--objects", "--quiet", "--stdin"][..], up_to].concat();
        let finished = self.rev_list(&arguments, tips).await?;
        if !finished.status.success() && says_lack(&finished.words) {
            return Ok(false);
        }
        finished.success(REV_LIST).map(|_| true)
    }

    /// Lists what these tips lead to, within limits for the size of the data.
    async fn rev_list<'a>(
        &self,
        arguments: &[&str],
        tips: impl IntoIterator<Item = &'a Oid>,
    ) -> Result<Finished, GitError> {
        let command = self
            .command(REV_LIST)
            .args(arguments)
            .limited(self.limits().await?);
        command.limit(MAX_WALK).run(revisions(tips, [])).await
    }
}

/// Returns tips to start from, and tips to stop at, as git reads them.
pub(super) fn revisions<'a>(
    from: impl IntoIterator<Item = &'a Oid>,
    up_to: impl IntoIterator<Item = &'a Oid>,
) -> Vec<u8> {
    let from = from.into_iter().map(|tip| format!("{tip}\n"));
    let up_to = up_to.into_iter().map(|tip| format!("^{tip}\n"));
    from.chain(up_to).collect::<String>().into_bytes()
}

/// Returns whether git's error output is about a missing object.
fn says_lack(words: &str) -> bool {
    const WORDS: &[&str] = &[
        "bad object",
        "bad tree object",
        "missing",
        "ould not read",
        "Failed to traverse",
    ];
    !says_disk_full(words) && WORDS.iter().any(|lack| words.contains(lack))
}

/// Number of remembered tips, the latest. A forgotten one costs a walk to the next that is not.
const MAX_PROOFS: usize = 1024;

/// Further tips that are remembered because branches and tags show them.
const MAX_SHOWN_PROOFS: usize = 512;

/// Returns the tips whose proofs are kept, that of HEAD first.
pub(super) fn proofs_to_keep(row: &RepoRow) -> BTreeSet<Oid> {
    let Some(view) = &row.view else {
        return BTreeSet::new();
    };
    let refs = &view.refs;
    let head = refs.refs.get(&refs.head);
    let ruled = refs.refs.iter().filter(|(name, _)| name.is_branch_or_tag());
    let targets = head.into_iter().chain(ruled.map(|(_, target)| target));
    targets
        .map(|target| target.oid)
        .take(MAX_SHOWN_PROOFS)
        .collect()
}

/// The remembered tips in the order in which they were proven.
#[derive(Clone, Debug, Default)]
pub(in crate::git) struct Proofs {
    by_age: BTreeMap<u64, Oid>,
    tips: BTreeSet<Oid>,
}

impl Proofs {
    pub(in crate::git) fn load(dir: &RepoDir) -> Result<Self, GitError> {
        let path = dir.proofs();
        match fs::read_to_string(&path) {
            Ok(text) => Ok(Self::parse(&text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(GitError::io("read", path, error)),
        }
    }

    pub(in crate::git) fn contains(&self, tip: &Oid) -> bool {
        self.tips.contains(tip)
    }

    pub(in crate::git) fn tips(&self) -> &BTreeSet<Oid> {
        &self.tips
    }

    /// Returns whether some would be forgotten with this number of new ones.
    pub(in crate::git) fn is_full_with(&self, new: usize) -> bool {
        self.by_age.len() + new > MAX_PROOFS
    }

    /// Remembers more tips, and forgets the oldest ones that are too many and not shown; the caller holds the repository's
    /// lock.
    pub(in crate::git) fn add(
        mut self,
        dir: &RepoDir,
        new: BTreeSet<Oid>,
        shown: &BTreeSet<Oid>,
        scratch: &Path,
    ) -> Result<(), GitError> {
        let next = self.by_age.keys().next_back().map_or(0, |last| last + 1);
        self.by_age.extend((next..).zip(new));
        let others = self.by_age.iter().filter(|(_, tip)| !shown.contains(tip));
        let excess = others.clone().count().saturating_sub(MAX_PROOFS);
        let oldest: Vec<u64> = others.map(|(age, _)| *age).take(excess).collect();
        oldest.iter().for_each(|age| _ = self.by_age.remove(age));
        self.write(dir, scratch)
    }

    /// Forgets all tips but these; the caller holds the repository's lock.
    pub(in crate::git) fn retain(
        dir: &RepoDir,
        tips: &BTreeSet<Oid>,
        scratch: &Path,
    ) -> Result<(), GitError> {
        let mut proofs = Self::load(dir)?;
        proofs.by_age.retain(|_, tip| tips.contains(tip));
        proofs.write(dir, scratch)
    }

    /// Forgets all tips: objects that they depend on may be gone.
    pub(in crate::git) fn forget(dir: &RepoDir) -> Result<(), GitError> {
        layout::remove(&dir.proofs())
    }

    /// Replaces the file. It is a cache: a crash may leave the old one or none.
    fn write(&self, dir: &RepoDir, scratch: &Path) -> Result<(), GitError> {
        layout::write(scratch, self.encode().as_bytes())?;
        layout::rename(scratch, &dir.proofs())
    }

    fn parse(text: &str) -> Self {
        let by_age: BTreeMap<_, _> = text.lines().filter_map(parse_line).collect();
        let tips = by_age.values().copied().collect();
        Self { by_age, tips }
    }

    fn encode(&self) -> String {
        let mut text = String::from("# pack-refs with: sorted \n");
        for (age, oid) in &self.by_age {
            _ = writeln!(text, "{oid} refs/proven/{age:016x}");
        }
        text
    }
}

fn parse_line(line: &str) -> Option<(u64, Oid)> {
    let (oid, name) = line.split_once(' ')?;
    let age = u64::from_str_radix(name.strip_prefix("refs/proven/")?, 16).ok()?;
    Some((age, oid.parse().ok()?))
}

/// The size of a tag at most.
const MAX_TAG: usize = 1024 * 1024;

/// Limit of tags that point to tags.
const MAX_TAGS: usize = 16;

/// Returns the objects behind tags among these; an error if one is to be a branch and is no commit.
pub(super) fn behind_tags(
    objects: &Path,
    tips: &BTreeMap<RefName, Oid>,
) -> Result<BTreeMap<Oid, Oid>, GitError> {
    let odb = Odb::new()?;
    odb.add_disk_alternate(&objects.to_string_lossy())?;
    let mut behind = BTreeMap::new();
    for (name, tip) in tips {
        let Some(oid) = theirs(tip) else {
            return Err(GitError::Incomplete { count: 1 });
        };
        let (_, kind) = odb.read_header(oid)?;
        if kind != ObjectType::Commit && name.as_str().starts_with("refs/heads/") {
            return Err(GitError::NotACommit(name.clone()));
        }
        behind.extend(peel(&odb, oid)?.map(|peeled| (*tip, ours(peeled))));
    }
    Ok(behind)
}

/// Returns the object behind a tag, or behind tags of tags; `None` if it is no tag.
///
/// A tag is read as a whole, and a few bytes of a pack can be a tag of any size.
fn peel(odb: &Odb<'_>, oid: git2::Oid) -> Result<Option<git2::Oid>, GitError> {
    let mut at = oid;
    for _ in 0..=MAX_TAGS {
        let (size, kind) = odb.read_header(at)?;
        if kind != ObjectType::Tag {
            return Ok((at != oid).then_some(at));
        }
        if size > MAX_TAG {
            return Err(GitError::BadPack(String::from("a tag is too large")));
        }
        let tag = odb.read(at)?;
        at = target_of(tag.data()).ok_or(GitError::BadPack(String::from("a tag has no object")))?;
    }
    Err(GitError::BadPack(String::from("too many tags upon tags")))
}

/// Returns the object that a tag names in its first line.
fn target_of(tag: &[u8]) -> Option<git2::Oid> {
    let line = tag.strip_prefix(b"object ")?.get(..40)?;
    std::str::from_utf8(line).ok()?.parse().ok()
}

/// Returns the objects that are in none of the stores. Misses are expected, so nothing is looked up twice.
pub(super) fn missing(
    stores: &[impl AsRef<Path>],
    wanted: &BTreeSet<Oid>,
) -> Result<BTreeSet<Oid>, GitError> {
    if wanted.is_empty() {
        return Ok(BTreeSet::new());
    }
    let odb = Odb::new()?;
    for store in stores {
        odb.add_disk_alternate(&store.as_ref().to_string_lossy())?;
    }
    let is_here =
        |oid: &Oid| theirs(oid).is_some_and(|oid| odb.exists_ext(oid, OdbLookupFlags::NO_REFRESH));
    Ok(wanted.iter().filter(|oid| !is_here(oid)).copied().collect())
}

/// Returns all objects of a store.
pub(super) fn all(store: &Path) -> Result<BTreeSet<Oid>, GitError> {
    let odb = Odb::new()?;
    odb.add_disk_alternate(&store.to_string_lossy())?;
    let mut all = BTreeSet::new();
    odb.foreach(|oid| {
        all.insert(ours(*oid));
        true
    })?;
    Ok(all)
}

fn ours(oid: git2::Oid) -> Oid {
    // libgit2 is linked with the older hash alone.
    oid.as_bytes().try_into().map_or(Oid::ZERO, Oid::Sha1)
}

/// `None` for the newer hash, of which no repository here has objects.
fn theirs(oid: &Oid) -> Option<git2::Oid> {
    match oid {
        Oid::Sha1(bytes) => git2::Oid::from_bytes(bytes).ok(),
        Oid::Sha256(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::database::View;
    use crate::git::{Refs, Target};

    fn oid(n: usize) -> Oid {
        format!("{n:040x}").parse().unwrap()
    }

    fn row(branches: std::ops::Range<usize>, proposals: std::ops::Range<usize>) -> RepoRow {
        let branch = |n: usize| format!("refs/heads/{n}").parse().unwrap();
        let mut refs = Refs {
            head: branch(branches.end - 1),
            ..Refs::default()
        };
        for n in branches {
            refs.refs.insert(
                branch(n),
                Target {
                    oid: oid(n),
                    peeled: None,
                },
            );
        }
        for n in proposals {
            let name = format!("refs/nostr/{n:064x}").parse().unwrap();
            refs.refs.insert(
                name,
                Target {
                    oid: oid(n),
                    peeled: None,
                },
            );
        }
        let view = View {
            refs: Arc::new(refs),
            ..View::default()
        };
        RepoRow {
            view: Some(view),
            ..RepoRow::default()
        }
    }

    #[test]
    fn proofs_of_branches_are_kept_and_those_of_pull_requests_are_not() {
        let kept = proofs_to_keep(&row(0..4, 1_000..5_000));
        assert_eq!(kept, (0..4).map(oid).collect());
        assert!(proofs_to_keep(&RepoRow::default()).is_empty());
    }

    #[test]
    fn proofs_that_are_kept_are_limited_and_that_of_head_is_among_them() {
        let kept = proofs_to_keep(&row(1_000..5_000, 0..0));
        assert!(kept.contains(&oid(4_999)), "the tip of HEAD");
        assert_eq!(kept.len(), MAX_SHOWN_PROOFS);
    }

    #[test]
    fn proofs_of_others_do_not_displace_those_of_tips_that_are_shown() {
        let dir = tempfile::tempdir().unwrap();
        let layout = crate::git::layout::Layout::new(dir.path());
        let dir = layout.dir_of_key("a".repeat(64));
        fs::create_dir_all(dir.path()).unwrap();
        let scratch = dir.path().join("scratch");
        let add = |tips: std::ops::Range<usize>, shown: &BTreeSet<Oid>| {
            let proofs = Proofs::load(&dir).unwrap();
            proofs
                .add(&dir, tips.map(oid).collect(), shown, &scratch)
                .unwrap();
        };
        let shown = BTreeSet::from([oid(0), oid(1)]);
        add(0..3, &BTreeSet::new());
        add(10..10_000, &shown);
        let proofs = Proofs::load(&dir).unwrap();
        assert_eq!(
            [0, 1, 2, 10, 9_999].map(|n| proofs.contains(&oid(n))),
            [true, true, false, false, true]
        );
        assert_eq!(proofs.tips().len(), MAX_PROOFS + 2);
    }
}
