//! One repository of a store.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use grasp_core::nostr::types::Timestamp;
use grasp_core::resources::Claimant;
use grasp_core::{Oid, RepoId};
use nostr::event::EventId;

use super::collect::{self, Keep};
use super::incoming::CopySource;
use super::repair::{self, Inspection};
use super::stored::Present;
use super::{Incoming, RepoGuard, RepoStore, present};
use crate::database::{Pack, RepoRow, RetiredRef, View};
use crate::git::blocking;
use crate::git::check::Objects;
use crate::git::error::GitError;
use crate::git::layout::{self, RepoDir};
use crate::git::packs::cache::InUse;

/// Times that refs and packs are read because refs were changed in between.
const MAX_READS: usize = 8;

/// One repository of a store: its objects, its refs, and what waits outside. None of it need exist.
///
/// Reading takes no lock; changing goes through [`Repository::lock`].
#[derive(Clone, Debug)]
pub struct Repository {
    pub(super) store: RepoStore,
    pub(super) id: RepoId,
    pub(super) dir: RepoDir,
}

impl Repository {
    /// Waits for its turn to change anything here.
    ///
    /// Turns come in the order of asking. Other repositories are not affected.
    pub async fn lock(&self) -> Result<RepoGuard, GitError> {
        let held = self.store.lock_of(self.dir.key()).lock_owned().await;
        RepoGuard::begin(self.clone(), held).await
    }

    /// Returns all that is committed, but for retired refs.
    pub async fn row(&self) -> Result<RepoRow, GitError> {
        self.store.row(&self.id).await
    }

    /// Returns the tips that were replaced lately.
    pub async fn retired_refs(&self) -> Result<Vec<RetiredRef>, GitError> {
        let database = self.store.database();
        let retired = database.retired(self.store.endpoint(), self.id.clone());
        Ok(retired.await?)
    }

    /// Returns the packs that are committed.
    pub(super) async fn packs(&self) -> Result<BTreeSet<Pack>, GitError> {
        let database = self.store.database();
        let packs = database.packs_of(self.store.endpoint(), self.id.clone());
        Ok(packs.await?)
    }

    /// Makes the directory, or the parts of it that are not there. To be called where blocking is allowed.
    pub(super) fn create(&self) -> Result<(), GitError> {
        self.dir.create(&self.id, &self.store.scratch())
    }

    /// Returns the objects, all of them on disk.
    pub(in crate::git) async fn objects(&self) -> Result<Objects, GitError> {
        let present = present(self).await?;
        Ok(self.objects_kept_by(present.map(|present| present.in_use)))
    }

    /// Returns the objects that are on disk, for the server's own work.
    pub(super) fn objects_kept_by(&self, in_use: Option<Arc<InUse>>) -> Objects {
        Objects {
            git: self.store.git().clone(),
            dir: self.dir.clone(),
            incoming: None,
            in_use,
            claimant: Claimant::server(),
        }
    }

    /// Returns the size of the objects in bytes, on disk or in the pack storage. What is staged is not among them.
    pub async fn bytes(&self) -> Result<u64, GitError> {
        if self.store.stored().is_some() {
            return Ok(self.packs().await?.iter().map(|pack| pack.bytes).sum());
        }
        let objects = self.dir.objects();
        blocking(move || match objects.is_dir() {
            true => layout::size(&objects),
            false => Ok(0),
        })
        .await
    }

    /// Returns the size of one staged tip.
    pub async fn staged_bytes(&self, event: EventId, tip: Oid) -> Result<u64, GitError> {
        let place = self.dir.staged_tip(&event, &tip);
        blocking(move || layout::size(&place)).await
    }

    /// Returns whether the history of refs lacks objects. Walks through all of it, without regard to earlier proofs.
    pub(super) async fn is_broken(&self) -> Result<bool, GitError> {
        let objects = self.objects().await?;
        let tips: Vec<_> = self.row().await?.tips().into_iter().collect();
        Ok(!tips.is_empty() && !objects.is_whole(&tips).await?)
    }

    /// Returns the objects that are not here with their whole history.
    pub async fn lacking(&self, tips: &BTreeSet<Oid>) -> Result<BTreeSet<Oid>, GitError> {
        let objects = self.dir.objects();
        let has_none = match self.store.stored() {
            Some(_) => self.packs().await?.is_empty(),
            None => blocking(move || Ok(!objects.is_dir())).await?,
        };
        if tips.is_empty() || has_none {
            return Ok(tips.clone());
        }
        Ok(self.lock().await?.check(tips).await?.lacking())
    }

    /// Returns what to copy from, if these tips are here with their whole history. Takes no lock.
    pub async fn source(&self, tips: &BTreeSet<Oid>) -> Result<Option<CopySource>, GitError> {
        if self.packs().await?.is_empty() {
            return Ok(None);
        }
        let objects = self.objects().await?;
        let is_complete = objects.examine(tips).await?.is_complete();
        Ok(is_complete.then_some(CopySource { objects }))
    }

    /// A place for objects that are about to come from this claimant. The repository has to be served.
    pub async fn incoming(&self, claimant: Claimant) -> Result<Incoming, GitError> {
        if !self.store.has_view(&self.id).await? {
            return Err(GitError::NoView);
        }
        if self.store.stored().is_some() {
            return self.lock().await?.incoming(claimant).await;
        }
        let repository = self.clone();
        blocking(move || Incoming::new(&repository, None, claimant)).await
    }

    /// A place for objects that are fetched. The repository need not be served yet: the objects may be what it takes.
    pub async fn incoming_for(&self) -> Result<Incoming, GitError> {
        // A removal of the repository that is under way ends first.
        let guard = self.lock().await?;
        // The fetch has no authority: any client's event may name the server.
        guard.incoming(Claimant::default()).await
    }

    /// Takes exactly what these tips need of what has arrived, if it is whole; says which of them are here now.
    ///
    /// The server may have sent more than was requested. None of that is kept: it could be read by its id.
    pub async fn take_in(
        &self,
        mut incoming: Incoming,
        tips: &BTreeSet<Oid>,
    ) -> Result<BTreeSet<Oid>, GitError> {
        let whole = tips - &incoming.check(tips).await?.lacking();
        if whole.is_empty() {
            drop(incoming);
            let mut guard = self.lock().await?;
            // It may have been made in vain.
            if self.packs().await?.is_empty() {
                guard.remove_if_deserted().await?;
            }
            return Ok(whole);
        }
        let part = incoming.extract(&whole, None).await?;
        let mut guard = self.lock().await?;
        guard.promote(part).await?;
        guard.compact().await?;
        Ok(whole)
    }

    /// Removes what no ref shows, nothing wants and no upload leans on, if anything was taken away since the last time.
    /// Returns whether it repacked.
    ///
    /// Packing takes no lock, so that no request waits for it, unless refs moved meanwhile.
    pub async fn collect(&self, keep: &Keep) -> Result<bool, GitError> {
        collect::collect(self, keep).await
    }

    /// Removes everything that no ref and no upload needs, replaced tips included. Returns whether it became smaller.
    pub async fn purge(&self, now: Timestamp) -> Result<bool, GitError> {
        collect::purge(self, now).await
    }

    /// Looks for objects that are missing on disk, and makes caches anew. Histories are walked if `walk`, and if a pack is
    /// lost.
    pub async fn inspect(&self, walk: bool) -> Result<Inspection, GitError> {
        repair::inspect(self, walk).await
    }

    /// Reads all packs that were not read since this time. Objects of a damaged pack that can be read are packed anew, and
    /// the pack is removed. Returns the names of damaged packs.
    pub async fn verify(
        &self,
        before: Timestamp,
        now: Timestamp,
    ) -> Result<BTreeSet<String>, GitError> {
        repair::verify(self, before, now).await
    }

    /// Reads refs and packs. Refs are those that are kept in memory, unless they have changed.
    async fn readable_parts(&self) -> Result<ReadableParts, GitError> {
        let mut view = self.store.view(&self.id).await?;
        for _ in 0..MAX_READS {
            let present = present(self).await?;
            if present.is_none() {
                return Ok(ReadableParts { view, present });
            }
            // No generation comes twice: if it is the same, the packs are of the time in between.
            let after = self.store.view(&self.id).await?;
            if after.generation == view.generation {
                return Ok(ReadableParts { view, present });
            }
            view = after;
        }
        Err(GitError::Outdated)
    }

    /// Returns a directory in which git reads the repository as it is committed now.
    pub(in crate::git) async fn readable(&self) -> Result<Readable, GitError> {
        let ReadableParts { view, present } = self.readable_parts().await?;
        let bytes = match &present {
            Some(present) => present.bytes(),
            None => self.bytes().await?,
        };
        let repository = self.clone();
        let path = blocking(move || {
            let dir = &repository.dir;
            if !dir.objects().is_dir() {
                return Ok(repository.store.workbench());
            }
            let scratch = repository.store.scratch();
            match dir.cached_view(&view.refs, view.generation, &scratch) {
                // The directory is a cache: git finds the objects of every list of refs that was sent without it.
                Err(error) if error.is_disk_full() => {
                    layout::remove(&scratch)?;
                    Ok(dir.path().to_owned())
                }
                cached => cached,
            }
        });
        Ok(Readable {
            path: path.await?,
            bytes,
            in_use: present.map(|present| present.in_use),
        })
    }
}

/// The refs and packs of a repository, of one moment.
struct ReadableParts {
    view: View,
    /// `None` where all packs are on disk.
    present: Option<Present>,
}

/// A directory in which git reads a repository.
#[derive(Debug)]
pub(in crate::git) struct Readable {
    pub(in crate::git) path: PathBuf,
    /// Size of the objects.
    pub(in crate::git) bytes: u64,
    /// Keeps the packs on disk, where they are a cache.
    pub(in crate::git) in_use: Option<Arc<InUse>>,
}
