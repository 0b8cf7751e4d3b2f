//! A store whose packs are in a pack storage: what is on disk is a cache, which is filled before it is read.
//!
//! A pack is in the pack storage before the commit that names it, and for a day after the last commit that did. So any
//! process that reads the row of a family finds its packs, and one that has read an old row does too.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use grasp_core::resources::Claimant;
use grasp_core::{Identifier, Mono};
use tokio::task::JoinSet;

use super::repair::{READ_TIMEOUT, file_of, is_as_committed, objects_of};
use super::unpacking::{Quarantine, move_packs};
use super::{FamilyGuard, RepoStore, remove_garbage, unnamed_files};
use crate::database::{FamilyRow, Pack};
use crate::git::blocking;
use crate::git::check::{Objects, Proofs};
use crate::git::error::GitError;
use crate::git::layout::{self, Family};
use crate::git::packs::cache::InUse;
use crate::git::packs::{self, KINDS, PackCache, PackFigures, PackStorageError, Soundness};

/// Times that the row of a family is read because packs of it were replaced while they were downloaded.
const MAX_ROWS: usize = 4;

/// Times that a pack is downloaded that came damaged.
const MAX_DOWNLOADS: usize = 2;

/// The packs that a reader of a family needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::git) enum Needed {
    /// Those that views read.
    Served,
    /// Those of the attic too.
    All,
}

impl Present {
    /// Returns the size of the packs that views read.
    pub(in crate::git) fn bytes(&self) -> u64 {
        bytes_of(&self.row)
    }
}

/// Returns the size of the packs that views of a family read.
pub(super) fn bytes_of(row: &FamilyRow) -> u64 {
    row.packs.iter().filter(|pack| !pack.is_attic).map(|pack| pack.bytes).sum()
}

impl Needed {
    fn of(self, row: &FamilyRow) -> BTreeSet<Pack> {
        let is_needed = |pack: &&Pack| self == Self::All || !pack.is_attic;
        row.packs.iter().filter(is_needed).cloned().collect()
    }
}

/// A family whose packs are on disk, and stay there while this is kept.
#[derive(Clone, Debug)]
pub(in crate::git) struct Present {
    pub(in crate::git) row: FamilyRow,
    /// Packs that the row names and the pack storage does not have.
    pub(in crate::git) lost: BTreeSet<Pack>,
    pub(in crate::git) in_use: Arc<InUse>,
}

impl RepoStore {
    /// Returns the pack storage and its bound on disk.
    pub fn packs(&self) -> Option<&PackCache> {
        self.inner.packs.as_ref()
    }

    /// Returns figures of the pack storage, if there is one. Stores that share it have the same figures.
    pub fn pack_figures(&self) -> Option<PackFigures> {
        self.packs().map(PackCache::figures)
    }

    /// Brings the packs that a family's row names onto disk; `None` without a pack storage: they are there.
    ///
    /// A pack that the pack storage does not have is no error here. Git reports the objects that it does not find, as it
    /// does when a file was lost.
    pub(in crate::git) async fn present(
        &self,
        identifier: &Identifier,
        needed: Needed,
    ) -> Result<Option<Present>, GitError> {
        let Some(cache) = self.packs() else { return Ok(None) };
        let family = self.family(identifier);
        let in_use = Arc::new(cache.enter(self.endpoint(), &family).await);
        let row = self.family_row(identifier).await?;
        if self.absent(&family, needed.of(&row)).await?.is_empty() {
            cache.hit();
            self.remove_replaced(identifier, &family, &row).await?;
            return Ok(Some(Present { row, lost: BTreeSet::new(), in_use }));
        }
        cache.missed();
        // Others may wait for the same packs, so it goes on if this reader leaves.
        let download = self.clone().download(identifier.clone(), needed, in_use.clone());
        let (row, lost) = match tokio::spawn(download).await {
            Ok(downloaded) => downloaded?,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => return Err(GitError::Stopping),
        };
        Ok(Some(Present { row, lost, in_use }))
    }

    /// Returns the objects of a family, all of them on disk.
    pub(in crate::git) async fn objects(
        &self,
        identifier: &Identifier,
        needed: Needed,
    ) -> Result<Objects, GitError> {
        let in_use = self.present(identifier, needed).await?.map(|present| present.in_use);
        Ok(Objects { in_use, ..Objects::of(self, self.family(identifier)) })
    }

    /// Returns those of these packs that are not on disk with their index.
    async fn absent(
        &self,
        family: &Family,
        packs: BTreeSet<Pack>,
    ) -> Result<BTreeSet<Pack>, GitError> {
        let family = family.clone();
        blocking(move || {
            let is_absent = |pack: &Pack| {
                let file = file_of(&family, pack);
                !is_as_committed(&file, pack) || !file.with_extension("idx").exists()
            };
            Ok(packs.into_iter().filter(is_absent).collect())
        })
        .await
    }

    /// Downloads what a family lacks, one reader at a time. Returns its row and the packs that the pack storage lacks.
    async fn download(
        self,
        identifier: Identifier,
        needed: Needed,
        in_use: Arc<InUse>,
    ) -> Result<(FamilyRow, BTreeSet<Pack>), GitError> {
        let (Some(cache), family) = (self.packs(), self.family(&identifier)) else {
            return Err(GitError::NoView);
        };
        let _turn = cache.transfer(&in_use).await;
        let mut lost = BTreeSet::new();
        for _ in 0..MAX_ROWS {
            // Another reader may have brought them, or others have taken their place.
            let row = self.family_row(&identifier).await?;
            let absent = self.absent(&family, needed.of(&row)).await?;
            if absent.is_subset(&lost) {
                self.measure(&family, 0).await?;
                return Ok((row, absent));
            }
            let (scratch, name) = (self.scratch(), identifier.clone());
            let created = family.clone();
            blocking(move || created.create(&name, &scratch)).await?;
            self.measure(&family, absent.iter().map(|pack| pack.bytes).sum()).await?;
            lost = self.download_all(&identifier, absent).await?;
        }
        Err(GitError::Outdated)
    }

    /// Downloads packs; returns those that the pack storage does not have, or has damaged.
    async fn download_all(
        &self,
        identifier: &Identifier,
        packs: BTreeSet<Pack>,
    ) -> Result<BTreeSet<Pack>, GitError> {
        let mut downloads = JoinSet::new();
        for pack in packs {
            let (store, identifier) = (self.clone(), identifier.clone());
            downloads.spawn(async move {
                let is_here = store.download_one(&identifier, &pack).await?;
                Ok::<_, GitError>((!is_here).then_some(pack))
            });
        }
        let mut lost = BTreeSet::new();
        while let Some(ended) = downloads.join_next().await {
            lost.extend(ended.map_err(|_| GitError::Stopping)??);
        }
        Ok(lost)
    }

    async fn download_one(&self, identifier: &Identifier, pack: &Pack) -> Result<bool, GitError> {
        let (Some(cache), family) = (self.packs(), self.family(identifier)) else {
            return Ok(false);
        };
        let _slot = cache.download_slot().await;
        for _ in 0..MAX_DOWNLOADS {
            let Some((copy, soundness)) = self.copy_of(&family, pack).await? else {
                return Ok(false);
            };
            match soundness {
                Soundness::Damaged => continue,
                Soundness::Unindexed => self.index(&copy_file(&copy, pack)).await?,
                Soundness::Sound => {}
            }
            // A pack that was replaced meanwhile must not come back: what is only in it is not the family's.
            let _landing = cache.landing(self.endpoint(), &family).await;
            if self.family_row(identifier).await?.packs.contains(pack) {
                let (to, is_attic) = (objects_of(&family, pack), pack.is_attic);
                blocking(move || move_packs(&copy.objects(), &to, is_attic)).await?;
            }
            return Ok(true);
        }
        tracing::error!(%identifier, pack = pack.name, "a pack is damaged in the pack storage");
        Ok(false)
    }

    /// Downloads the files of a pack to a place of their own, as they are; `None` if the pack is not there.
    pub(super) async fn copy_of(
        &self,
        family: &Family,
        pack: &Pack,
    ) -> Result<Option<(Quarantine, Soundness)>, GitError> {
        let Some(cache) = self.packs() else { return Ok(None) };
        let scratch = self.scratch();
        let copy = blocking(move || Quarantine::create(scratch)).await?;
        let file = copy_file(&copy, pack);
        let get = |kind: &str| {
            let file = file.with_extension(kind);
            let key = packs::pack_key(self.endpoint(), family, &file);
            async move { cache.storage().get(&key, &file).await }
        };
        let (is_there, ..) = tokio::try_join!(get("pack"), get("idx"), get("rev"))?;
        if !is_there {
            return Ok(None);
        }
        let bytes = pack.bytes;
        let soundness = blocking(move || packs::check_pack(&file, bytes)).await?;
        Ok(Some((copy, soundness)))
    }

    /// Makes the index of a pack that is being brought onto disk.
    pub(super) async fn index(&self, file: &Path) -> Result<(), GitError> {
        const COMMAND: &str = "index-pack";
        let index = file.with_extension("idx");
        blocking(move || layout::remove(&index)).await?;
        let command = self.git().command(COMMAND).repository(&self.workbench()).arg(file);
        let command = command.claimed_by(Claimant::server()).limit(READ_TIMEOUT);
        command.run(Vec::new()).await?.success(COMMAND).map(drop)
    }

    /// Removes packs that others have taken the place of, unless the family is being changed.
    async fn remove_replaced(
        &self,
        identifier: &Identifier,
        family: &Family,
        row: &FamilyRow,
    ) -> Result<(), GitError> {
        let (named, place) = (row.packs.clone(), family.clone());
        let unnamed = blocking(move || unnamed_files(&place, &named)).await?;
        let Ok(_held) = self.lock_of(family.key()).try_lock_owned() else { return Ok(()) };
        if unnamed.is_empty() || self.inner.unsettled.lock().contains(family.key()) {
            return Ok(());
        }
        let (named, place) = (self.family_row(identifier).await?.packs, family.clone());
        self.count_removal();
        blocking(move || remove_garbage(&place, &named)).await?;
        self.measure(family, 0).await
    }

    /// Notes the size of a family on disk, which is about to grow by so many bytes.
    pub(super) async fn measure(&self, family: &Family, more: u64) -> Result<(), GitError> {
        let Some(cache) = self.packs() else { return Ok(()) };
        let place = family.clone();
        let bytes = blocking(move || match place.path().is_dir() {
            true => layout::size(place.path()),
            false => Ok(0),
        });
        cache.resize(self.endpoint(), family, bytes.await?.saturating_add(more));
        Ok(())
    }

    /// Notes the sizes of all families on disk.
    pub(super) async fn measure_all(&self) -> Result<(), GitError> {
        if self.packs().is_none() {
            return Ok(());
        }
        let layout = self.layout().clone();
        let families = blocking(move || {
            let mut families = Vec::new();
            for shard in layout::list(&layout.families())? {
                for rest in layout::list(&shard)? {
                    let key = format!("{}{}", layout::name(&shard), layout::name(&rest));
                    families.push(layout.family_of_key(key));
                }
            }
            Ok(families)
        });
        for family in families.await? {
            self.measure(&family, 0).await?;
        }
        Ok(())
    }
}

/// Returns the file of a pack in a place of its own.
pub(super) fn copy_file(copy: &Quarantine, pack: &Pack) -> PathBuf {
    copy.objects().join("pack").join(format!("{}.pack", pack.name))
}

/// Uploads.
impl RepoStore {
    /// Stores packs that are on disk in the pack storage, if there is one. The caller holds the family's lock.
    pub(super) async fn upload(&self, family: &Family, packs: &[Pack]) -> Result<(), GitError> {
        for pack in packs {
            let file = file_of(family, pack);
            self.upload_files(&file, |file| packs::pack_key(self.endpoint(), family, file)).await?;
        }
        Ok(())
    }

    /// Stores a pack with its indexes.
    pub(super) async fn upload_files(
        &self,
        pack: &Path,
        key: impl Fn(&Path) -> String,
    ) -> Result<(), GitError> {
        let Some(cache) = self.packs() else { return Ok(()) };
        for kind in KINDS {
            self.inner.unnamed_objects.lock().forget(&key(&pack.with_extension(kind)));
        }
        Ok(cache.storage().put_pack(pack, key).await?)
    }

    /// Removes the files of a pack from the pack storage.
    pub(super) async fn delete_pack(&self, family: &Family, pack: &Pack) -> Result<(), GitError> {
        let Some(cache) = self.packs() else { return Ok(()) };
        for kind in KINDS {
            let file = file_of(family, pack).with_extension(kind);
            cache.storage().delete(&packs::pack_key(self.endpoint(), family, &file)).await?;
        }
        Ok(())
    }

    /// Returns those of these packs that the pack storage does not have as they were committed. What can be read on disk
    /// is stored again.
    pub(super) async fn restore_objects(
        &self,
        family: &Family,
        named: &BTreeSet<Pack>,
    ) -> Result<BTreeSet<Pack>, GitError> {
        let Some(cache) = self.packs() else { return Ok(BTreeSet::new()) };
        let prefix = packs::family_prefix(self.endpoint(), family);
        let listed = match named.is_empty() {
            true => BTreeMap::new(),
            false => cache.storage().list(&prefix).await?,
        };
        let mut lost = BTreeSet::new();
        for pack in named {
            let size = |kind: &str| listed.get(&format!("{prefix}{}.{kind}", pack.name)).copied();
            if size("pack") == Some(pack.bytes) && size("idx").is_some() {
                continue;
            }
            if self.upload_again(family, pack).await? {
                tracing::warn!(
                    pack = pack.name,
                    "stored a pack again that the pack storage had lost"
                );
            } else if size("pack") != Some(pack.bytes) {
                lost.insert(pack.clone());
            }
        }
        Ok(lost)
    }

    /// Stores a pack again if it is on disk as it was committed, and returns whether it is.
    pub(super) async fn upload_again(
        &self,
        family: &Family,
        pack: &Pack,
    ) -> Result<bool, GitError> {
        let (file, bytes) = (file_of(family, pack), pack.bytes);
        let found = blocking(move || match file.exists() {
            true => packs::check_pack(&file, bytes),
            false => Ok(Soundness::Damaged),
        });
        if found.await? != Soundness::Sound {
            return Ok(false);
        }
        self.upload(family, std::slice::from_ref(pack)).await?;
        Ok(true)
    }
}

/// One writer after another.
impl RepoStore {
    /// Begins to change repositories, which another process may have changed before: forgets what that may have made
    /// wrong, and lists the uploads that wait for their event. Without a pack storage there is no other process.
    ///
    /// To be called before anything is changed, each time that this process becomes the one that writes.
    pub async fn became_writer(&self) -> Result<(), GitError> {
        let Some(cache) = self.packs() else { return Ok(()) };
        if !cache.storage().is_ours().await? {
            if !self.database().packs(self.endpoint()).await?.is_empty() {
                return Err(PackStorageError::Foreign.into());
            }
            cache.storage().claim().await?;
        }
        self.inner.unnamed_objects.lock().clear();
        self.inner.unsettled.lock().clear();
        self.count_removal();
        cache.unsettle_all();
        self.list_staged().await
    }

    /// Deletes objects from the pack storage that nothing has named for a day, and returns their number. For the one
    /// process that writes.
    pub async fn sweep(&self, now: Mono) -> Result<usize, GitError> {
        let Some(cache) = self.packs() else { return Ok(0) };
        let named = self.database().packs(self.endpoint()).await?;
        let named: BTreeMap<String, BTreeSet<Pack>> = named
            .into_iter()
            .map(|(identifier, packs)| (self.family(&identifier).key().to_owned(), packs))
            .collect();
        let prefix = packs::packs_prefix(self.endpoint());
        // What is stored and named meanwhile counts as unnamed until the next list, which is before its time is over.
        let is_unnamed = |key: &str| {
            let of_family = key.strip_prefix(&prefix).and_then(|rest| rest.split_once('/'));
            let named = of_family.and_then(|(family, file)| {
                let (name, _) = file.rsplit_once('.')?;
                named.get(family)?.iter().find(|pack| pack.name == name)
            });
            named.is_none()
        };
        let listed = cache.storage().list_where(&prefix, is_unnamed).await?;
        let mut keys: BTreeSet<String> = listed.into_keys().collect();
        keys.extend(self.unknown_staged_keys().await?);
        let due = self.inner.unnamed_objects.lock().listed(now, keys);
        let mut deleted = 0;
        for key in due {
            // Whoever stores an object and names it holds this lock from before to after.
            let family = key.split('/').nth(2).unwrap_or_default();
            let _held = self.lock_of(family).lock_owned().await;
            if self.inner.unnamed_objects.lock().contains(&key) {
                cache.storage().delete(&key).await?;
                self.inner.unnamed_objects.lock().forget(&key);
                deleted += 1;
            }
        }
        Ok(deleted)
    }
}

impl FamilyGuard {
    /// Returns the objects of the family, all of them on disk.
    pub(super) async fn objects(&self) -> Result<Objects, GitError> {
        self.is_present.get_or_try_init(|| self.bring(Needed::Served)).await?;
        let objects = Objects::of(&self.store, self.family.clone());
        Ok(Objects { in_use: self.in_use.clone(), ..objects })
    }

    /// Brings packs onto disk. What views serve is proven then: each of them was whole when it came to be served.
    ///
    /// Without that proof every check would walk all histories, and every push would be packed with all of its own.
    pub(super) async fn bring(&self, needed: Needed) -> Result<(), GitError> {
        let present = self.store.present(&self.identifier, needed).await?;
        let Some(Present { row, lost, .. }) = present else { return Ok(()) };
        let proofs = self.family.proofs();
        if !lost.is_empty() || self.blocking(move || Ok(proofs.exists())).await? {
            return Ok(());
        }
        let tips = row.views.values().flat_map(|view| view.refs.refs.values());
        let tips: BTreeSet<_> = tips.map(|target| target.oid).collect();
        if tips.is_empty() { Ok(()) } else { self.remember(tips).await }
    }

    /// Compares what is on disk with the database before the first change since this process writes.
    pub(super) async fn settle_cached(&self) -> Result<(), GitError> {
        let (Some(cache), Some(in_use)) = (self.store.packs(), &self.in_use) else { return Ok(()) };
        if cache.set_settled(in_use, true) {
            return Ok(());
        }
        let settled = self.compare_with_row().await;
        if settled.is_err() {
            cache.set_settled(in_use, false);
        }
        settled
    }
    async fn compare_with_row(&self) -> Result<(), GitError> {
        let (store, family, named) =
            (self.store.clone(), self.family.clone(), self.row().await?.packs);
        self.blocking(move || {
            Proofs::forget(&family)?;
            let unnamed = unnamed_files(&family, &named)?;
            if !unnamed.is_empty() {
                // What was found to be whole with objects that go now is looked at again.
                store.count_removal();
            }
            unnamed.iter().try_for_each(|file| layout::remove(file))
        })
        .await
    }
}
