//! Uploads that wait for their event, in the pack storage for the next process that writes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};

use grasp_core::Oid;
use nostr::event::EventId;

use super::{StoredPacks, index};
use crate::git::blocking;
use crate::git::error::GitError;
use crate::git::layout;
use crate::git::packs::{self, PackStorageError, Soundness};
use crate::git::store::pack_change::move_packs;
use crate::git::store::staging::remove_place;
use crate::git::store::unpacking::Quarantine;
use crate::git::store::{RepoGuard, RepoStore};

/// End of the name of an empty file as large as one of the pack storage that has not been downloaded.
const ABSENT: &str = ".absent";

/// Files of uploads with their sizes, by the directory of the upload below staging.
type Listed = BTreeMap<String, BTreeMap<String, u64>>;

impl StoredPacks {
    /// Makes staging on disk as it is in the pack storage, without the contents of files.
    pub(super) async fn list_uploads(&self, store: &RepoStore) -> Result<(), GitError> {
        let mut listed = Listed::new();
        for (name, bytes) in self.upload_files(store).await? {
            if let Some((directory, file)) = name.rsplit_once('/').filter(|_| is_upload(&name)) {
                let files = listed.entry(directory.to_owned()).or_default();
                files.insert(file.to_owned(), bytes);
            }
        }
        let staging = store.layout().staging();
        blocking(move || mirror(&staging, &listed)).await
    }

    /// Returns the keys of uploads that are not waiting any more.
    pub(super) async fn unknown_uploads(
        &self,
        store: &RepoStore,
    ) -> Result<BTreeSet<String>, GitError> {
        let files = self.upload_files(store).await?;
        let staging = store.layout().staging();
        let prefix = packs::staging_prefix(store.endpoint());
        blocking(move || {
            let mut unknown = BTreeSet::new();
            for name in files.into_keys() {
                let place = name.rsplit_once('/').map(|(place, _)| staging.join(place));
                if !place.is_some_and(|place| place.is_dir()) {
                    unknown.insert(format!("{prefix}{name}"));
                }
            }
            Ok(unknown)
        })
        .await
    }

    /// Returns the files of all uploads, by their names below staging.
    async fn upload_files(&self, store: &RepoStore) -> Result<BTreeMap<String, u64>, GitError> {
        let prefix = packs::staging_prefix(store.endpoint());
        let mut files = BTreeMap::new();
        for (key, bytes) in self.storage().list(&prefix).await? {
            if let Some(name) = key.strip_prefix(&prefix) {
                files.insert(name.to_owned(), bytes);
            }
        }
        Ok(files)
    }

    /// Removes uploads at these places. What could not be removed goes with a later sweep.
    pub(in crate::git::store) async fn delete_uploads(
        &self,
        store: &RepoStore,
        places: &[PathBuf],
    ) {
        for place in places {
            if let Err(error) = self.try_delete_upload(store, place).await {
                tracing::warn!(%error, "could not remove an upload from the pack storage");
                return;
            }
        }
    }

    async fn try_delete_upload(
        &self,
        store: &RepoStore,
        place: &Path,
    ) -> Result<(), PackStorageError> {
        let place = name_of(&store.layout().staging(), place);
        let prefix = format!("{}{place}/", packs::staging_prefix(store.endpoint()));
        for key in self.storage().list(&prefix).await?.into_keys() {
            self.storage().delete(&key).await?;
        }
        Ok(())
    }

    /// Stores new uploads. Those that cannot be stored are not kept.
    pub(in crate::git::store) async fn store_uploads(
        &self,
        guard: &RepoGuard,
        places: Vec<PathBuf>,
    ) -> Result<(), GitError> {
        let mut stored = Ok(());
        for place in places {
            if stored.is_ok() {
                stored = self.store_upload(guard, &place).await;
            }
            if stored.is_err() {
                let staging = guard.repository.store.layout().staging();
                let removing = guard.held.run(move || remove_place(&staging, &place));
                removing.await?;
            }
        }
        stored
    }

    async fn store_upload(&self, guard: &RepoGuard, place: &Path) -> Result<(), GitError> {
        let store = &guard.repository.store;
        let prefix = packs::staging_prefix(store.endpoint());
        let above = name_of(&store.layout().staging(), place);
        let files = place.join("pack");
        for file in guard.held.run(move || layout::list(&files)).await? {
            if file.extension().is_some_and(|kind| kind == "pack") {
                let key = |file: &Path| format!("{prefix}{above}/{}", layout::name(file));
                self.upload_file(&file, key).await?;
            }
        }
        Ok(())
    }

    /// Downloads an upload that another process has received. One that the pack storage has lost or damaged is left out;
    /// its objects are hunted for when its event comes.
    pub(in crate::git::store) async fn bring_upload(
        &self,
        guard: &RepoGuard,
        place: &Path,
    ) -> Result<(), GitError> {
        let store = &guard.repository.store;
        let files = place.join("pack");
        let mut absent = guard.held.run(move || layout::list(&files)).await?;
        absent.retain(|file| layout::name(file).ends_with(ABSENT));
        if absent.is_empty() {
            return Ok(());
        }
        let staging = store.layout().staging();
        let upload = place.to_owned();
        let names = guard.held.run(move || names_of(&staging, &upload)).await?;
        let scratch = store.scratch();
        let copy = blocking(move || Quarantine::create(scratch)).await?;
        let files = copy.objects().join("pack");
        let prefix = packs::staging_prefix(store.endpoint());
        for name in names {
            let file = files.join(layout::name(Path::new(&name)));
            let key = format!("{prefix}{name}");
            self.storage().get(&key, &file).await?;
        }
        for file in guard.held.run(move || layout::list(&files)).await? {
            if file.extension().is_some_and(|kind| kind == "pack") {
                repair_copy(store, file).await?;
            }
        }
        let to = place.to_owned();
        let moving = guard.held.run(move || {
            move_packs(&copy.objects(), &to)?;
            absent.iter().try_for_each(|file| layout::remove(file))
        });
        moving.await
    }
}

/// Makes the index of a downloaded pack if that is missing, and removes a pack that is damaged.
async fn repair_copy(store: &RepoStore, file: PathBuf) -> Result<(), GitError> {
    let checked = file.clone();
    let checking = blocking(move || packs::check_pack(&checked, layout::size(&checked)?));
    match checking.await? {
        Soundness::Sound => Ok(()),
        Soundness::Unindexed => index(store, &file).await,
        Soundness::Damaged => {
            tracing::error!(?file, "an upload is damaged in the pack storage");
            blocking(move || layout::remove(&file)).await
        }
    }
}

/// Returns the name of a place below staging.
fn name_of(staging: &Path, place: &Path) -> String {
    let below = place.strip_prefix(staging).unwrap_or(place);
    below.to_string_lossy().into_owned()
}

/// Returns the names of the files of an upload below staging, as they are in the pack storage.
fn names_of(staging: &Path, place: &Path) -> Result<Vec<String>, GitError> {
    let above = name_of(staging, place);
    let mut names = Vec::new();
    for file in layout::list(&place.join("pack"))? {
        let name = layout::name(&file).trim_end_matches(ABSENT);
        names.push(format!("{above}/{name}"));
    }
    Ok(names)
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
                let place = name_of(staging, &tip);
                let here: BTreeSet<String> = names_of(staging, &tip)?.into_iter().collect();
                let files = listed.get(&place).into_iter().flat_map(BTreeMap::keys);
                if here != files.map(|file| format!("{place}/{file}")).collect() {
                    remove_place(staging, &tip)?;
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
