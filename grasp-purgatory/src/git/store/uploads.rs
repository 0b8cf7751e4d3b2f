//! Uploads that wait for their event, in the pack storage: what was promised to a client survives the server that it was
//! promised by. The next writer lists them, and downloads one when it is needed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};

use grasp_core::Oid;
use nostr::event::EventId;

use super::staging::{ABSENT, discard, names_of, place_of};
use super::unpacking::{Quarantine, move_packs};
use super::{FamilyGuard, RepoStore};
use crate::git::error::GitError;
use crate::git::packs::{self, PackStorageError, Soundness};
use crate::git::{blocking, layout};

/// Files of uploads with their sizes, by the directory of the upload below staging.
type Listed = BTreeMap<String, BTreeMap<String, u64>>;

impl RepoStore {
    /// Makes staging on disk as it is in the pack storage, without the contents of files.
    pub(super) async fn list_staged(&self) -> Result<(), GitError> {
        let mut listed = Listed::new();
        for (name, bytes) in self.staged_objects().await? {
            if let Some((directory, file)) = name.rsplit_once('/').filter(|_| is_upload(&name)) {
                listed.entry(directory.to_owned()).or_default().insert(file.to_owned(), bytes);
            }
        }
        let staging = self.layout().staging();
        blocking(move || mirror(&staging, &listed)).await
    }

    /// Returns the files of all uploads in the pack storage, by their names below staging.
    async fn staged_objects(&self) -> Result<BTreeMap<String, u64>, GitError> {
        let Some(cache) = self.packs() else { return Ok(BTreeMap::new()) };
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
                !name.rsplit_once('/').is_some_and(|(place, _)| staging.join(place).is_dir())
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
        let Some(cache) = self.packs() else { return Ok(()) };
        let prefix = format!("{}{place}/", packs::staging_prefix(self.endpoint()));
        for key in cache.storage().list(&prefix).await?.into_keys() {
            cache.storage().delete(&key).await?;
        }
        Ok(())
    }
}

impl FamilyGuard {
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
                let staging = self.family.layout().staging();
                self.blocking(move || discard(&staging, &place)).await?;
            }
        }
        stored
    }

    async fn upload_place(&self, place: &Path) -> Result<(), GitError> {
        let (staging, packs) = (self.family.layout().staging(), place.join("pack"));
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

    /// Brings all uploads of the family onto disk.
    pub(super) async fn bring_staged(&self) -> Result<(), GitError> {
        if self.store.packs().is_none() {
            return Ok(());
        }
        let staging = self.family.staging();
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
        let Some(cache) = self.store.packs() else { return Ok(()) };
        let (staging, directory) = (self.family.layout().staging(), place.join("pack"));
        let (upload, scratch) = (place.to_owned(), self.store.scratch());
        let (absent, names, copy) = self
            .blocking(move || {
                let mut absent = layout::list(&directory)?;
                absent.retain(|file| layout::name(file).ends_with(ABSENT));
                Ok((absent, names_of(&staging, &upload)?, Quarantine::create(scratch)?))
            })
            .await?;
        if absent.is_empty() {
            return Ok(());
        }
        let prefix = packs::staging_prefix(self.store.endpoint());
        for name in names {
            let file = copy.objects().join("pack").join(layout::name(Path::new(&name)));
            cache.storage().get(&format!("{prefix}{name}"), &file).await?;
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
            move_packs(&copy.objects(), &to, false)?;
            absent.iter().try_for_each(|file| layout::remove(file))
        })
        .await
    }

    async fn blocking_list(&self, directory: PathBuf) -> Result<Vec<PathBuf>, GitError> {
        self.blocking(move || layout::list(&directory)).await
    }
}

/// Returns whether this is the name of a file of an upload: family, event, tip and file.
fn is_upload(name: &str) -> bool {
    let parts: Vec<&str> = name.split('/').collect();
    let [family, event, tip, file] = parts.as_slice() else { return false };
    family.len() == 64
        && family.bytes().all(|byte| byte.is_ascii_hexdigit())
        && EventId::from_hex(event).is_ok()
        && tip.parse::<Oid>().is_ok()
        && file.starts_with("pack-")
}

/// Makes a directory have these uploads and no others. Files that are not there get a place of their size.
fn mirror(staging: &Path, listed: &Listed) -> Result<(), GitError> {
    for family in layout::list(staging)? {
        for event in layout::list(&family)? {
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
