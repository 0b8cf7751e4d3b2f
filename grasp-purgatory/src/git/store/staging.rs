//! Uploads whose event has not been received: kept, and hidden from clients.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::fs::File;
use std::path::{Path, PathBuf};

use grasp_core::push::PushCommand;
use grasp_core::{Oid, RepoId};
use nostr::event::EventId;

use super::present::bytes_of;
use super::unpacking::{Quarantine, move_packs};
use super::{Incoming, RepoGuard, RepoStore};
use crate::git::blocking;
use crate::git::error::GitError;
use crate::git::layout::{self, RepoDir};
use crate::git::packs::{self, PackStorageError, Soundness};

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

/// End of the name of an empty file as large as one of the pack storage that has not been downloaded.
const ABSENT: &str = ".absent";

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

impl RepoGuard {
    /// Keeps what the tips of a push need until their events come, unless the same tip is kept already.
    pub(super) async fn stage(
        &mut self,
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
        let (dir, limits) = (self.dir.clone(), self.store.inner.staging);
        let (placed, staged) = self
            .blocking(move || stage_all(&dir, &limits, &uploads))
            .await?;
        self.upload_staged(placed).await?;
        staged
    }

    /// The tips that wait for this event.
    pub async fn staged(&self, event: EventId) -> Result<BTreeSet<Oid>, GitError> {
        let place = self.dir.staged(&event);
        self.blocking(move || {
            let tips = layout::list(&place)?;
            Ok(tips
                .iter()
                .filter_map(|tip| layout::name(tip).parse().ok())
                .collect())
        })
        .await
    }

    /// Takes a staged tip into the repository, now that its event has come. Says whether it was there.
    ///
    /// The tip can be read by its id from then on; a ref to it is made by [`RepoGuard::move_refs`].
    pub async fn promote_staged(&mut self, event: EventId, tip: Oid) -> Result<bool, GitError> {
        let from = self.dir.staged_tip(&event, &tip);
        let there = from.clone();
        if !self.blocking(move || Ok(there.is_dir())).await? {
            return Ok(false);
        }
        self.bring_upload(&from).await?;
        let packs = from.clone();
        self.add_packs(move |dir| move_packs(&packs, &dir.objects()))
            .await?;
        self.discard_staged_tip(event, tip).await?;
        // The repository may have lost nothing since the upload was checked, but looking costs little.
        _ = self.check(&BTreeSet::from([tip])).await?;
        Ok(true)
    }

    /// Forgets one of the tips that wait for this event.
    pub async fn discard_staged_tip(&mut self, event: EventId, tip: Oid) -> Result<(), GitError> {
        let (staging, place) = (
            self.dir.layout().staging(),
            self.dir.staged_tip(&event, &tip),
        );
        let upload = place_of(&staging, &place);
        self.blocking(move || discard(&staging, &place)).await?;
        self.store.delete_staged(vec![upload]).await;
        Ok(())
    }
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
    let (of_repo, of_all) = (dir.staging(), dir.layout().staging());
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
        let Some(bytes) = stage(dir, limits, upload, room)? else {
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
fn stage(
    dir: &RepoDir,
    limits: &StagingLimits,
    Upload { event, tip, part }: &Upload,
    room: u64,
) -> Result<Option<u64>, GitError> {
    let (place, target) = (dir.staged(event), dir.staged_tip(event, tip));
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

impl RepoStore {
    /// Returns the size of the objects of a repository, in bytes, on disk or in the pack storage. What is staged is not among
    /// them.
    pub async fn repo_bytes(&self, repo: &RepoId) -> Result<u64, GitError> {
        if self.packs().is_some() {
            return Ok(bytes_of(&self.row(repo).await?));
        }
        let objects = self.dir(repo).objects();
        blocking(move || {
            if objects.is_dir() {
                layout::size(&objects)
            } else {
                Ok(0)
            }
        })
        .await
    }

    /// Returns the size of one staged tip.
    pub async fn staged_bytes(
        &self,
        repo: &RepoId,
        event: EventId,
        tip: Oid,
    ) -> Result<u64, GitError> {
        let place = self.dir(repo).staged_tip(&event, &tip);
        blocking(move || layout::size(&place)).await
    }

    /// Drops staged uploads that are not among these, and returns their number.
    ///
    /// For the start, before any push: a run that ended between receiving an upload and journaling it has
    /// promised nothing for it.
    pub async fn forget_staged_but(
        &self,
        keep: BTreeSet<(EventId, Oid)>,
    ) -> Result<usize, GitError> {
        let staging = self.layout().staging();
        let gone = blocking(move || forget_staged_but(&staging, &keep)).await?;
        let count = gone.len();
        self.delete_staged(gone).await;
        Ok(count)
    }
}

/// Removes a place in staging, and the directories above it that are empty then.
pub(super) fn discard(staging: &Path, place: &Path) -> Result<(), GitError> {
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

/// Returns the places of the removed uploads.
fn forget_staged_but(
    staging: &Path,
    keep: &BTreeSet<(EventId, Oid)>,
) -> Result<Vec<String>, GitError> {
    let mut gone = Vec::new();
    for dir in layout::list(staging)? {
        for event in layout::list(&dir)? {
            let id = EventId::from_hex(layout::name(&event)).ok();
            for tip in layout::list(&event)? {
                let known = id.zip(layout::name(&tip).parse().ok());
                if !known.is_some_and(|known| keep.contains(&known)) {
                    discard(staging, &tip)?;
                    gone.push(place_of(staging, &tip));
                }
            }
        }
    }
    Ok(gone)
}

/// Returns the place of an upload below staging.
pub(super) fn place_of(staging: &Path, place: &Path) -> String {
    place
        .strip_prefix(staging)
        .unwrap_or(place)
        .to_string_lossy()
        .into_owned()
}

/// Returns the names of the files of an upload below staging, as they are in the pack storage.
pub(super) fn names_of(staging: &Path, place: &Path) -> Result<Vec<String>, GitError> {
    let above = place_of(staging, place);
    let files = layout::list(&place.join("pack"))?;
    let name = |file: &PathBuf| layout::name(file).trim_end_matches(ABSENT).to_owned();
    Ok(files
        .iter()
        .map(|file| format!("{above}/{}", name(file)))
        .collect())
}

/// Files of uploads with their sizes, by the directory of the upload below staging.
type Listed = BTreeMap<String, BTreeMap<String, u64>>;

impl RepoStore {
    /// Makes staging on disk as it is in the pack storage, without the contents of files.
    pub(super) async fn list_staged(&self) -> Result<(), GitError> {
        let mut listed = Listed::new();
        for (name, bytes) in self.staged_objects().await? {
            if let Some((directory, file)) = name.rsplit_once('/').filter(|_| is_upload(&name)) {
                listed
                    .entry(directory.to_owned())
                    .or_default()
                    .insert(file.to_owned(), bytes);
            }
        }
        let staging = self.layout().staging();
        blocking(move || mirror(&staging, &listed)).await
    }

    /// Returns the files of all uploads in the pack storage, by their names below staging.
    async fn staged_objects(&self) -> Result<BTreeMap<String, u64>, GitError> {
        let Some(cache) = self.packs() else {
            return Ok(BTreeMap::new());
        };
        let prefix = packs::staging_prefix(self.endpoint());
        let listed = cache.storage().list(&prefix).await?.into_iter();
        let below =
            |(key, bytes): (String, u64)| Some((key.strip_prefix(&prefix)?.to_owned(), bytes));
        Ok(listed.filter_map(below).collect())
    }

    /// Returns the keys of uploads in the pack storage that are not waiting any more.
    pub(super) async fn unknown_staged_keys(&self) -> Result<BTreeSet<String>, GitError> {
        let (objects, staging) = (self.staged_objects().await?, self.layout().staging());
        let prefix = packs::staging_prefix(self.endpoint());
        blocking(move || {
            let is_unknown = |name: &String| {
                !name
                    .rsplit_once('/')
                    .is_some_and(|(place, _)| staging.join(place).is_dir())
            };
            Ok(objects
                .into_keys()
                .filter(is_unknown)
                .map(|name| format!("{prefix}{name}"))
                .collect())
        })
        .await
    }

    /// Removes uploads at these places from the pack storage. What could not be removed goes with a later sweep.
    pub(super) async fn delete_staged(&self, places: Vec<String>) {
        for place in places {
            if let Err(error) = self.try_delete_staged(&place).await {
                tracing::warn!(%error, "could not remove an upload from the pack storage");
                return;
            }
        }
    }

    async fn try_delete_staged(&self, place: &str) -> Result<(), PackStorageError> {
        let Some(cache) = self.packs() else {
            return Ok(());
        };
        let prefix = format!("{}{place}/", packs::staging_prefix(self.endpoint()));
        for key in cache.storage().list(&prefix).await?.into_keys() {
            cache.storage().delete(&key).await?;
        }
        Ok(())
    }
}

impl RepoGuard {
    /// Stores new uploads in the pack storage, if there is one. Those that cannot be stored are not kept.
    pub(super) async fn upload_staged(&self, places: Vec<PathBuf>) -> Result<(), GitError> {
        if self.store.packs().is_none() {
            return Ok(());
        }
        let mut stored = Ok(());
        for place in places {
            if stored.is_ok() {
                stored = self.upload_place(&place).await;
            }
            if stored.is_err() {
                let staging = self.dir.layout().staging();
                self.blocking(move || discard(&staging, &place)).await?;
            }
        }
        stored
    }

    async fn upload_place(&self, place: &Path) -> Result<(), GitError> {
        let (staging, packs) = (self.dir.layout().staging(), place.join("pack"));
        let prefix = packs::staging_prefix(self.store.endpoint());
        let above = place_of(&staging, place);
        let key = |file: &Path| format!("{prefix}{above}/{}", layout::name(file));
        for file in self.blocking(move || layout::list(&packs)).await? {
            if file.extension().is_some_and(|kind| kind == "pack") {
                self.store.upload_files(&file, key).await?;
            }
        }
        Ok(())
    }

    /// Brings all uploads of the repository onto disk.
    pub(super) async fn bring_staged(&self) -> Result<(), GitError> {
        if self.store.packs().is_none() {
            return Ok(());
        }
        let staging = self.dir.staging();
        let places = self.blocking(move || {
            let events = layout::list(&staging)?;
            let tips: Result<Vec<_>, _> = events.iter().map(|event| layout::list(event)).collect();
            Ok(tips?.concat())
        });
        for place in places.await? {
            self.bring_upload(&place).await?;
        }
        Ok(())
    }

    /// Downloads an upload that another process has received. One that the pack storage has lost or damaged is left out;
    /// its objects are hunted for when its event comes.
    pub(super) async fn bring_upload(&self, place: &Path) -> Result<(), GitError> {
        let Some(cache) = self.store.packs() else {
            return Ok(());
        };
        let (staging, directory) = (self.dir.layout().staging(), place.join("pack"));
        let (upload, scratch) = (place.to_owned(), self.store.scratch());
        let (absent, names, copy) = self
            .blocking(move || {
                let mut absent = layout::list(&directory)?;
                absent.retain(|file| layout::name(file).ends_with(ABSENT));
                Ok((
                    absent,
                    names_of(&staging, &upload)?,
                    Quarantine::create(scratch)?,
                ))
            })
            .await?;
        if absent.is_empty() {
            return Ok(());
        }
        let prefix = packs::staging_prefix(self.store.endpoint());
        for name in names {
            let file = copy
                .objects()
                .join("pack")
                .join(layout::name(Path::new(&name)));
            cache
                .storage()
                .get(&format!("{prefix}{name}"), &file)
                .await?;
        }
        for file in self.blocking_list(copy.objects().join("pack")).await? {
            if file.extension().is_none_or(|kind| kind != "pack") {
                continue;
            }
            let checked = file.clone();
            let soundness = self.blocking(move || {
                let bytes = layout::size(&checked)?;
                packs::check_pack(&checked, bytes)
            });
            match soundness.await? {
                Soundness::Sound => {}
                Soundness::Unindexed => self.store.index(&file).await?,
                Soundness::Damaged => {
                    tracing::error!(?file, "an upload is damaged in the pack storage");
                    self.blocking(move || layout::remove(&file)).await?;
                }
            }
        }
        let to = place.to_owned();
        self.blocking(move || {
            move_packs(&copy.objects(), &to)?;
            absent.iter().try_for_each(|file| layout::remove(file))
        })
        .await
    }

    async fn blocking_list(&self, directory: PathBuf) -> Result<Vec<PathBuf>, GitError> {
        self.blocking(move || layout::list(&directory)).await
    }
}

/// Returns whether this is the name of a file of an upload: repository, event, tip and file.
fn is_upload(name: &str) -> bool {
    let parts: Vec<&str> = name.split('/').collect();
    let [dir, event, tip, file] = parts.as_slice() else {
        return false;
    };
    dir.len() == 64
        && dir.bytes().all(|byte| byte.is_ascii_hexdigit())
        && EventId::from_hex(event).is_ok()
        && tip.parse::<Oid>().is_ok()
        && file.starts_with("pack-")
}

/// Makes a directory have these uploads and no others. Files that are not there get a place of their size.
fn mirror(staging: &Path, listed: &Listed) -> Result<(), GitError> {
    for dir in layout::list(staging)? {
        for event in layout::list(&dir)? {
            for tip in layout::list(&event)? {
                let place = place_of(staging, &tip);
                let here: BTreeSet<String> = names_of(staging, &tip)?.into_iter().collect();
                let files = listed.get(&place).into_iter().flat_map(BTreeMap::keys);
                if here != files.map(|file| format!("{place}/{file}")).collect() {
                    discard(staging, &tip)?;
                }
            }
        }
    }
    for (place, files) in listed {
        let directory = staging.join(place).join("pack");
        if directory.is_dir() {
            continue;
        }
        layout::create_dir(&directory)?;
        for (file, bytes) in files {
            let path = directory.join(format!("{file}{ABSENT}"));
            let made = File::create(&path).and_then(|file| file.set_len(*bytes));
            made.map_err(|source| GitError::io("create", path, source))?;
        }
    }
    Ok(())
}
