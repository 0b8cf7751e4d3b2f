//! Uploads whose event has not been received: kept, and hidden from clients.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use grasp_core::Oid;
use grasp_core::push::PushCommand;
use nostr::event::EventId;

use super::{Incoming, RepoGuard};
use crate::git::error::GitError;
use crate::git::layout::{self, RepoDir};

/// Limits of uploads that wait for events. Above a limit new uploads are refused; none is evicted here.
///
/// Purgatory shares the room for all of it among client networks, and makes room for newcomers after they were taken
/// in. So the limits of a repository and of all repositories are enforced here only at twice their size.
#[derive(Clone, Copy, Debug)]
pub struct StagingLimits {
    /// Competing tips for one event: a wrong upload must not displace the right one.
    pub tips_per_event: usize,
    /// Bytes of all tips for one event.
    pub bytes_per_event: u64,
    /// Bytes of everything that waits in one repository.
    pub bytes_per_repo: u64,
    /// Bytes of everything that waits.
    pub bytes_in_all: u64,
}

/// Multiple of a limit that may be on disk until purgatory has made room.
const LIMIT_FACTOR: u64 = 2;

impl Default for StagingLimits {
    fn default() -> Self {
        const MIB: u64 = 1024 * 1024;
        Self {
            tips_per_event: 4,
            bytes_per_event: 128 * MIB,
            bytes_per_repo: 512 * MIB,
            bytes_in_all: 2 * 1024 * MIB,
        }
    }
}

/// Keeps what the tips of a push need until their events come, unless the same tip is kept already.
pub(super) async fn stage(
    guard: &RepoGuard,
    commands: &[PushCommand],
    incoming: &mut Incoming,
) -> Result<(), GitError> {
    let mut uploads = Vec::new();
    for command in commands {
        if let (Some(event), Some(tip)) = (command.name.event(), command.new) {
            let part = incoming.part(&BTreeSet::from([tip])).await?;
            uploads.push(Upload { event, tip, part });
        }
    }
    if uploads.is_empty() {
        return Ok(());
    }
    let dir = guard.repository.dir.clone();
    let limits = guard.repository.store.staging_limits();
    let staging = guard.held.run(move || stage_all(&dir, &limits, &uploads));
    let (placed, staged) = staging.await?;
    if let Some(stored) = guard.repository.store.stored() {
        stored.store_uploads(guard, placed).await?;
    }
    staged
}

/// Returns the tips that wait for an event.
pub(super) async fn staged(guard: &RepoGuard, event: EventId) -> Result<BTreeSet<Oid>, GitError> {
    let place = guard.repository.dir.staged(&event);
    let tips = guard.held.run(move || layout::list(&place)).await?;
    let tips = tips.iter().filter_map(|tip| layout::name(tip).parse().ok());
    Ok(tips.collect())
}

/// Returns the objects of a tip that waits for an event, all of them on disk; `None` if it does not wait.
pub(super) async fn bring(
    guard: &RepoGuard,
    event: EventId,
    tip: Oid,
) -> Result<Option<PathBuf>, GitError> {
    let place = guard.repository.dir.staged_tip(&event, &tip);
    let there = place.clone();
    if !guard.held.run(move || Ok(there.is_dir())).await? {
        return Ok(None);
    }
    if let Some(stored) = guard.repository.store.stored() {
        stored.bring_upload(guard, &place).await?;
    }
    Ok(Some(place))
}

/// Returns the objects of all tips that wait, all of them on disk.
pub(super) async fn bring_all(guard: &RepoGuard) -> Result<BTreeMap<Oid, PathBuf>, GitError> {
    let dir = guard.repository.dir.clone();
    let places = guard.held.run(move || tips_of(&dir)).await?;
    if let Some(stored) = guard.repository.store.stored() {
        for place in places.values() {
            stored.bring_upload(guard, place).await?;
        }
    }
    Ok(places)
}

fn tips_of(dir: &RepoDir) -> Result<BTreeMap<Oid, PathBuf>, GitError> {
    let mut staged = BTreeMap::new();
    for event in layout::list(&dir.staging())? {
        for tip in layout::list(&event)? {
            if let Ok(oid) = layout::name(&tip).parse() {
                staged.insert(oid, tip);
            }
        }
    }
    Ok(staged)
}

/// Forgets one of the tips that wait for an event.
pub(super) async fn discard(guard: &RepoGuard, event: EventId, tip: Oid) -> Result<(), GitError> {
    let store = &guard.repository.store;
    let staging = store.layout().staging();
    let place = guard.repository.dir.staged_tip(&event, &tip);
    let removed = place.clone();
    let removing = guard.held.run(move || remove_place(&staging, &removed));
    removing.await?;
    if let Some(stored) = store.stored() {
        stored.delete_uploads(store, &[place]).await;
    }
    Ok(())
}

/// An upload on its way into staging. What came of it is on disk.
struct Upload {
    event: EventId,
    tip: Oid,
    part: Incoming,
}

/// Moves uploads into staging up to the first that does not fit, and returns the new places with the outcome. What waits
/// already is measured once for all of them: the repository is locked meanwhile.
fn stage_all(
    dir: &RepoDir,
    limits: &StagingLimits,
    uploads: &[Upload],
) -> Result<(Vec<PathBuf>, Result<(), GitError>), GitError> {
    let of_repo = dir.staging();
    let of_all = dir.layout().staging();
    layout::create_dir(&of_repo)?;
    let room = |dir: &Path, limit: u64| -> Result<u64, GitError> {
        Ok(limit
            .saturating_mul(LIMIT_FACTOR)
            .saturating_sub(layout::size(dir)?))
    };
    let in_repo = room(&of_repo, limits.bytes_per_repo)?;
    let mut room = in_repo.min(room(&of_all, limits.bytes_in_all)?);
    let mut placed = Vec::new();
    let staged = uploads.iter().try_for_each(|upload| {
        let Some(bytes) = place(dir, limits, upload, room)? else {
            return Ok(());
        };
        room -= bytes;
        placed.push(dir.staged_tip(&upload.event, &upload.tip));
        Ok(())
    });
    if of_repo.is_dir() {
        layout::sync(&of_repo)?;
    }
    prune(&of_all, &of_repo);
    layout::sync(&of_all)?;
    Ok((placed, staged))
}

/// Moves one upload into staging, if it fits into this room; how many bytes it takes, unless it is there already.
fn place(
    dir: &RepoDir,
    limits: &StagingLimits,
    Upload { event, tip, part }: &Upload,
    room: u64,
) -> Result<Option<u64>, GitError> {
    let place = dir.staged(event);
    let target = dir.staged_tip(event, tip);
    if target.is_dir() {
        return Ok(None);
    }
    layout::create_dir(&place)?;
    let size = layout::size(&part.quarantine().objects())?;
    let of_event = layout::size(&place)?.saturating_add(size);
    let tips = layout::list(&place)?.len();
    if tips >= limits.tips_per_event || of_event > limits.bytes_per_event || size > room {
        prune(&dir.layout().staging(), &place);
        return Err(GitError::StagingFull);
    }
    layout::rename(&part.quarantine().objects(), &target)?;
    layout::sync(&place)?;
    Ok(Some(size))
}

/// Removes a place in staging, and the directories above it that are empty then.
pub(super) fn remove_place(staging: &Path, place: &Path) -> Result<(), GitError> {
    layout::remove(place)?;
    place
        .parent()
        .into_iter()
        .for_each(|above| prune(staging, above));
    Ok(())
}

/// Removes a directory in staging and those above it, as far as they are empty.
fn prune(staging: &Path, directory: &Path) {
    let directories = directory.ancestors().take_while(|above| *above != staging);
    // One that is not empty stays, and so do all above it.
    directories
        .into_iter()
        .take_while(|above| fs::remove_dir(above).is_ok())
        .for_each(drop);
}

/// Removes the uploads that are not among these, and returns their places.
pub(super) fn remove_others(
    staging: &Path,
    keep: &BTreeSet<(EventId, Oid)>,
) -> Result<Vec<PathBuf>, GitError> {
    let mut gone = Vec::new();
    for dir in layout::list(staging)? {
        for event in layout::list(&dir)? {
            let id = EventId::from_hex(layout::name(&event)).ok();
            for tip in layout::list(&event)? {
                let known = id.zip(layout::name(&tip).parse().ok());
                if !known.is_some_and(|known| keep.contains(&known)) {
                    remove_place(staging, &tip)?;
                    gone.push(tip);
                }
            }
        }
    }
    Ok(gone)
}
