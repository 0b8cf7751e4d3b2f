//! Collecting what no view shows any more.
//!
//! Every object of a family can be asked for by its id from each of its views. So what a force-push removed, what was
//! deleted, and the repository of an owner who vanished must leave the object store, though not all of it the disk:
//!
//! ```text
//!   reachable from a ref that some view shows, or wanted by what waits ──▶ objects/
//!   reachable from a tip or a view that was retired in the last 90 days ─▶ attic/    read by nobody but operators
//!   anything else ────────────────────────────────────────────────────────▶ gone
//! ```
//!
//! Whatever takes a ref away leaves a mark; the next maintenance of the family finds it, and repacks only if something
//! became unreachable. A crash at any point leaves the mark, and the next attempt does the rest.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use grasp_core::nostr::types::Timestamp;
use grasp_core::{Identifier, Oid};
use nostr::key::PublicKey;

use super::unpacking::{Quarantine, move_objects};
use super::{FamilyGuard, RepoStore, retired};
use crate::git::check::{Objects, Proofs};
use crate::git::command::GitCommand;
use crate::git::error::GitError;
use crate::git::layout::{self, Family};
use crate::git::refs::{Pending, RETENTION};
use crate::git::{blocking, never_stops, read};

const PACK: &str = "pack-objects";

/// Timeout of a git process that lists or packs reachable objects.
const LONGEST: Duration = Duration::from_secs(30 * 60);

/// The reason why a family may have objects that no view shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mark {
    /// A branch or tag was moved or deleted. Usually what it showed is part of what it shows now.
    Moved,
    /// Something was taken away for good.
    Removed,
}

impl Mark {
    const REMOVED: &str = "removed\n";

    /// Leaves a mark in a family, unless there is one that says more.
    pub(super) fn leave(self, family: &Family) -> Result<(), GitError> {
        if !family.path().is_dir() || Self::read(family)?.is_some_and(|mark| mark >= self) {
            return Ok(());
        }
        let text = if self == Self::Removed { Self::REMOVED } else { "moved\n" };
        layout::write_synced(&path(family), text.as_bytes())?;
        layout::sync(family.path())
    }

    fn read(family: &Family) -> Result<Option<Self>, GitError> {
        match fs::read_to_string(path(family)) {
            Ok(text) if text == Self::REMOVED => Ok(Some(Self::Removed)),
            Ok(_) => Ok(Some(Self::Moved)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(GitError::io("read", path(family), error)),
        }
    }
}

fn path(family: &Family) -> PathBuf {
    family.path().join("garbage")
}

/// The objects that a family keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Roots {
    /// Shown by a view, or wanted.
    shown: BTreeSet<Oid>,
    /// Retired tips and whose they were, by when that was.
    retired: BTreeMap<(Oid, PublicKey), u64>,
    /// Uploads that may depend on the family, and their tips.
    staged: BTreeMap<Oid, PathBuf>,
}

impl Roots {
    fn retired_tips(&self) -> BTreeSet<Oid> {
        self.retired.keys().map(|(tip, _)| *tip).collect()
    }
}

/// The packs that take the place of all others.
#[derive(Debug)]
struct Packed {
    kept: Quarantine,
    attic: Quarantine,
}

impl RepoStore {
    /// Removes from a family what no view shows, nothing wants and no upload leans on, if anything was taken away
    /// since the last time. What was retired lately stays on disk, where no view reads it. Says whether it repacked.
    ///
    /// Packing takes no lock, so that no request waits for it, unless refs moved meanwhile.
    pub async fn collect(
        &self,
        identifier: &Identifier,
        wanted: &BTreeSet<Oid>,
        now: Timestamp,
    ) -> Result<bool, GitError> {
        let guard = self.lock(identifier).await?;
        let Some((mark, mut roots)) = guard.roots(wanted, now).await? else { return Ok(false) };
        drop(guard);
        let reader = self.reader(identifier);
        if mark == Mark::Moved && !reader.has_unreachable(&roots).await? {
            let guard = self.lock(identifier).await?;
            let is_same = guard.roots(wanted, now).await? == Some((mark, roots));
            if is_same {
                guard.finish_collecting().await?;
            }
            return Ok(false);
        }
        let mut packed = reader.pack(self, &roots).await?;
        let mut guard = self.lock(identifier).await?;
        let Some((_, current)) = guard.roots(wanted, now).await? else { return Ok(false) };
        if current != roots {
            roots = current;
            packed = reader.pack(self, &roots).await?;
        }
        guard.replace(packed, roots).await?;
        guard.finish_collecting().await?;
        Ok(true)
    }

    fn reader(&self, identifier: &Identifier) -> Objects {
        Objects::of(self, self.family(identifier))
    }
}

impl FamilyGuard {
    async fn roots(
        &self,
        wanted: &BTreeSet<Oid>,
        now: Timestamp,
    ) -> Result<Option<(Mark, Roots)>, GitError> {
        let (family, wanted) = (self.family.clone(), wanted.clone());
        self.blocking(move || roots(&family, wanted, now)).await
    }

    /// Puts packs in the place of all objects. Retired ones go first: at no time are they nowhere.
    async fn replace(&mut self, packed: Packed, roots: Roots) -> Result<(), GitError> {
        let (store, family) = (self.store.clone(), self.family.clone());
        self.blocking(move || {
            replace_objects(&packed.attic, &family.attic())?;
            write_tips(&family, &roots.retired)?;
            forget_retained(&family, || store.scratch())?;
            Proofs::retain(&family, &roots.shown, &store.scratch())?;
            // What was found to be whole with objects that go now is looked at again.
            store.count_removal();
            replace_objects(&packed.kept, &family.objects())
        })
        .await
    }

    async fn finish_collecting(&self) -> Result<(), GitError> {
        let mark = path(&self.family);
        self.blocking(move || layout::remove(&mark)).await
    }
}

impl Objects {
    /// Returns whether a retired tip is not reachable from a view.
    async fn has_unreachable(&self, roots: &Roots) -> Result<bool, GitError> {
        const COMMAND: &str = "rev-list";
        let here = present(vec![self.family.objects()], roots.retired_tips()).await?;
        let command = self.command(COMMAND).args(["--max-count=1", "--stdin"]);
        let input = revisions(&here, &roots.shown);
        let found = command.limit(LONGEST).run(input).await?.success(COMMAND)?;
        Ok(!found.is_empty())
    }

    async fn pack(&self, store: &RepoStore, roots: &Roots) -> Result<Packed, GitError> {
        let staged: Vec<&Path> = roots.staged.values().map(PathBuf::as_path).collect();
        // Objects of the uploads themselves are not taken along.
        let kept = self.command(PACK).arg("--local").reading_all(&staged);
        let tips = roots.shown.iter().chain(roots.staged.keys());
        let kept = pack(store, kept, revisions(tips, [])).await?;
        let attic = self.family.attic();
        let retired = vec![self.family.objects(), attic.clone()];
        let retired = present(retired, roots.retired_tips()).await?;
        let command = self.command(PACK).reading_all(&[&attic]);
        let attic = pack(store, command, revisions(&retired, &roots.shown)).await?;
        Ok(Packed { kept, attic })
    }
}

/// Those of these objects that are in one of these directories.
async fn present(places: Vec<PathBuf>, tips: BTreeSet<Oid>) -> Result<BTreeSet<Oid>, GitError> {
    blocking(move || {
        let missing = read::missing(&places, &tips)?;
        Ok(tips.difference(&missing).copied().collect())
    })
    .await
}

/// Packs what is reachable from some tips, in a place of its own.
async fn pack(
    store: &RepoStore,
    command: GitCommand,
    revisions: Vec<u8>,
) -> Result<Quarantine, GitError> {
    let scratch = store.scratch();
    let place = blocking(move || Quarantine::create(scratch)).await?;
    command
        .args(["--revs", "--non-empty", "--delta-base-offset", "-q"])
        .arg(place.objects().join("pack/pack"))
        .keeping(place.kept())
        .limit(LONGEST)
        .run(revisions)
        .await?
        .success(PACK)?;
    Ok(place)
}

/// Forgets what the attic has of an owner, and has the family collected.
pub(super) fn forget_retired_tips(family: &Family, owner: &PublicKey) -> Result<(), GitError> {
    let mut tips = read_tips(family)?;
    let before = tips.len();
    tips.retain(|(_, of), _| of != owner);
    if tips.len() < before {
        write_tips(family, &tips)?;
    }
    Mark::Removed.leave(family)
}

/// Tips to start from, and tips to stop at, as git reads them.
fn revisions<'a>(
    from: impl IntoIterator<Item = &'a Oid>,
    up_to: impl IntoIterator<Item = &'a Oid>,
) -> Vec<u8> {
    let from = from.into_iter().map(|tip| format!("{tip}\n"));
    let up_to = up_to.into_iter().map(|tip| format!("^{tip}\n"));
    from.chain(up_to).collect::<String>().into_bytes()
}

/// Returns the objects to keep, if there may be something to collect.
fn roots(
    family: &Family,
    wanted: BTreeSet<Oid>,
    now: Timestamp,
) -> Result<Option<(Mark, Roots)>, GitError> {
    let oldest = now.as_secs().saturating_sub(RETENTION.as_secs());
    let mut retired = read_tips(family)?;
    let is_over = retired.values().any(|since| *since < oldest);
    let mark = if is_over { Some(Mark::Removed) } else { Mark::read(family)? };
    let Some(mark) = mark else { return Ok(None) };
    let mut note = |oid: Oid, owner: PublicKey, since: u64| {
        let known = retired.entry((oid, owner)).or_insert(since);
        *known = since.max(*known);
    };
    let mut shown = BTreeSet::new();
    for owner in super::owners(family)? {
        let snapshot = read::snapshot(&family.view(&owner))?;
        snapshot.retained().for_each(|(oid, since)| note(oid, owner, since));
        shown.extend(snapshot.visible().into_values());
    }
    for view in layout::list(&family.retired())? {
        let Some((owner, since)) = retired::parse(layout::name(&view)) else { continue };
        let snapshot = read::snapshot(&view)?;
        snapshot.visible().into_values().for_each(|oid| note(oid, owner, since));
    }
    retired.retain(|(oid, _), since| *since >= oldest && !shown.contains(oid));
    let missing = read::missing(&[family.objects()], &wanted)?;
    shown.extend(wanted.difference(&missing));
    Ok(Some((mark, Roots { shown, retired, staged: staged(family)? })))
}

fn staged(family: &Family) -> Result<BTreeMap<Oid, PathBuf>, GitError> {
    let mut staged = BTreeMap::new();
    for event in layout::list(&family.staging())? {
        for tip in layout::list(&event)? {
            staged.extend(layout::name(&tip).parse().ok().map(|oid: Oid| (oid, tip)));
        }
    }
    Ok(staged)
}

fn tips_file(family: &Family) -> PathBuf {
    family.attic().join("tips")
}

/// The tips that were retired and whose they were, by when that was.
fn read_tips(family: &Family) -> Result<BTreeMap<(Oid, PublicKey), u64>, GitError> {
    let path = tips_file(family);
    let text = match fs::read_to_string(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        text => text.map_err(|error| GitError::io("read", path, error))?,
    };
    let parse = |line: &str| {
        let mut words = line.split(' ');
        let (oid, owner, since) = (words.next()?, words.next()?, words.next()?);
        Some(((oid.parse().ok()?, PublicKey::from_hex(owner).ok()?), since.parse().ok()?))
    };
    Ok(text.lines().filter_map(parse).collect())
}

fn write_tips(family: &Family, tips: &BTreeMap<(Oid, PublicKey), u64>) -> Result<(), GitError> {
    if tips.is_empty() {
        return layout::remove(&family.attic());
    }
    let line =
        |((oid, owner), since): (&(Oid, PublicKey), &u64)| format!("{oid} {owner} {since}\n");
    let text: String = tips.iter().map(line).collect();
    let new = family.attic().join("tips.new");
    layout::write_synced(&new, text.as_bytes())?;
    layout::rename(&new, &tips_file(family))?;
    layout::sync(&family.attic())
}

/// Takes retained tips out of the views: the attic has them now.
fn forget_retained(family: &Family, scratch: impl Fn() -> PathBuf) -> Result<(), GitError> {
    for owner in super::owners(family)? {
        let view = family.view(&owner);
        let snapshot = read::snapshot(&view)?;
        let next = snapshot.clone().without_retained();
        if next != snapshot {
            let pending = Pending::of(family.journal(&owner), view);
            pending.commit(&next, &scratch(), never_stops)?;
        }
    }
    Ok(())
}

/// Puts new packs into an object directory, and removes all others.
fn replace_objects(new: &Quarantine, objects: &Path) -> Result<(), GitError> {
    layout::create_dir(&objects.join("pack"))?;
    let packed = layout::list(&new.objects().join("pack"))?;
    let stays: BTreeSet<String> = packed.iter().map(|file| layout::name(file).to_owned()).collect();
    move_objects(&new.objects(), objects)?;
    for directory in layout::list(objects)?.into_iter().filter(|path| path.is_dir()) {
        for file in layout::list(&directory)? {
            if !stays.contains(layout::name(&file)) {
                layout::remove(&file)?;
            }
        }
        layout::sync(&directory)?;
    }
    Ok(())
}
