//! Objects on their way in.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use grasp_core::Oid;
use grasp_core::push::AuthorisedPush;
use grasp_core::resources::Claimant;

use super::collect::PACK;
use super::unpacking::Unpacking;
use super::{Quarantine, Removals, Repository};
use crate::active_work::WorkGuard;
use crate::git::chains::PackIndex;
use crate::git::check::{Completeness, Objects, Proofs, revisions};
use crate::git::command::GitCommand;
use crate::git::error::GitError;
use crate::git::layout;
use crate::git::limits::ProcessLimits;
use crate::git::packs::cache::InUse;
use crate::git::{blocking, chains, check};

/// Uploads from this size on are not packed again if every object that came is needed.
const LARGE_PACK_BYTES: u64 = 64 * 1024 * 1024;

/// Received objects up to which those that are needed are listed by the connectivity check.
const MAX_LISTED: u64 = 10_000;

/// A repository that has what another one lacks.
#[derive(Clone, Debug)]
pub struct CopySource {
    pub(super) objects: Objects,
}

/// Objects that have arrived for a repository and that no view can read.
///
/// Receiving takes no lock, however slow the sender. Dropping it forgets the objects.
#[derive(Debug)]
pub struct Incoming {
    repository: Repository,
    objects: Objects,
    quarantine: Quarantine,
    whole: BTreeSet<Oid>,
    /// What these tips need beyond what the repository has proven, if it was listed.
    needed: Option<(BTreeSet<Oid>, BTreeSet<Oid>)>,
    /// The objects that some tips need, extracted for each use before the lock was taken; none where they need everything.
    parts: BTreeMap<BTreeSet<Oid>, Vec<Option<Self>>>,
    /// The delta chains of the received packs were found to be short.
    is_inspected: bool,
    /// Complete histories may depend on objects of the repository as it was then.
    as_of: Removals,
    _expected: WorkGuard,
}

impl Incoming {
    /// Makes the repository if need be, and keeps it until what is received was taken in or dropped.
    pub(super) fn new(
        repository: &Repository,
        in_use: Option<Arc<InUse>>,
        claimant: Claimant,
    ) -> Result<Self, GitError> {
        let expected = repository.store.begin_arrival(&repository.id);
        repository.create()?;
        let quarantine = Quarantine::create(repository.store.scratch())?;
        Ok(Self {
            repository: repository.clone(),
            objects: Objects {
                incoming: Some(quarantine.clone()),
                claimant,
                ..repository.objects_kept_by(in_use)
            },
            quarantine,
            whole: BTreeSet::new(),
            needed: None,
            parts: BTreeMap::new(),
            is_inspected: false,
            as_of: repository.store.removals(),
            _expected: expected,
        })
    }

    /// An empty place for objects of the same repository.
    async fn beside(&self) -> Result<Self, GitError> {
        let repository = self.repository.clone();
        let in_use = self.objects.in_use.clone();
        let claimant = self.objects.claimant;
        let mut other = blocking(move || Self::new(&repository, in_use, claimant)).await?;
        other.as_of = self.as_of;
        Ok(other)
    }

    /// Starts to unpack at most so many bytes; the pack is fed to what is returned. Memory is bounded by what comes,
    /// and by `memory` in any case.
    pub async fn unpack(&self, max_bytes: u64, memory: u64) -> Result<Unpacking, GitError> {
        Unpacking::start(&self.objects, max_bytes, memory).await
    }

    /// A git command whose new objects arrive here, such as `fetch`.
    pub fn command(&self, subcommand: &'static str) -> GitCommand {
        self.objects.command(subcommand)
    }

    /// Checks the histories of these tips, together with the repository's objects.
    pub async fn check(&mut self, tips: &BTreeSet<Oid>) -> Result<Completeness, GitError> {
        self.inspect().await?;
        self.forget_if_outdated();
        let unknown: BTreeSet<_> = tips.difference(&self.whole).copied().collect();
        let needed = match self.count().await? <= MAX_LISTED {
            true => self.objects.list(&unknown).await?,
            false => None,
        };
        let found = match needed.is_some() {
            true => Completeness::default(),
            false => self.objects.examine(&unknown).await?,
        };
        self.whole.extend(&unknown - &found.lacking());
        if let Some(needed) = needed {
            self.needed = Some((unknown, needed));
        }
        Ok(found)
    }

    /// The same for those who need all of them.
    pub async fn check_all(&mut self, tips: &BTreeSet<Oid>) -> Result<(), GitError> {
        self.check(tips).await?.required()
    }

    /// Refuses packs with objects that take too long to read, before any of them is read.
    async fn inspect(&mut self) -> Result<(), GitError> {
        if self.is_inspected {
            return Ok(());
        }
        let quarantine = self.quarantine.objects();
        blocking(move || {
            for index in indexes(&quarantine)? {
                let are_short = chains::are_short(&index.with_extension("pack"), &index);
                if !are_short.map_err(|source| GitError::io("read", &index, source))? {
                    return Err(GitError::LongChain {
                        limit: chains::MAX_CHAIN,
                    });
                }
            }
            Ok(())
        })
        .await?;
        self.is_inspected = true;
        Ok(())
    }

    /// Returns the number of received objects in packs.
    pub(in crate::git) async fn count(&self) -> Result<u64, GitError> {
        let quarantine = self.quarantine.objects();
        blocking(move || {
            let open = |index: &PathBuf| {
                let opened = PackIndex::open(index);
                opened.map_err(|source| GitError::io("read", index, source))
            };
            indexes(&quarantine)?
                .iter()
                .map(|index| Ok(open(index)?.count()))
                .sum()
        })
        .await
    }

    /// Tips that were found to be whole, and are so still; the caller holds the repository's lock.
    pub(super) fn into_whole(mut self) -> BTreeSet<Oid> {
        self.forget_if_outdated();
        std::mem::take(&mut self.whole)
    }

    fn forget_if_outdated(&mut self) {
        let now = self.repository.store.removals();
        if now != self.as_of {
            self.whole.clear();
            self.needed = None;
            self.as_of = now;
        }
    }

    pub(super) fn quarantine(&self) -> &Quarantine {
        &self.quarantine
    }

    /// Returns the number of received bytes.
    pub async fn bytes(&self) -> Result<u64, GitError> {
        let place = self.quarantine.objects();
        blocking(move || layout::size(&place)).await
    }

    /// Packs what tips of another repository need beyond what this one has into this place.
    pub(super) async fn fill_from(
        &mut self,
        source: Objects,
        tips: &BTreeSet<Oid>,
    ) -> Result<(), GitError> {
        let source = Objects {
            claimant: self.objects.claimant,
            ..source
        };
        let here = self.objects.dir.clone();
        let there = source.dir.objects();
        let shared = blocking(move || {
            let proven = Proofs::load(&here)?.tips().clone();
            let unknown = check::missing(&[there], &proven)?;
            Ok(&proven - &unknown)
        })
        .await?;
        // Temporary files lie here: whoever locks the source removes those that it does not know.
        let command = source
            .command(PACK)
            .writing_objects(&self.quarantine.objects())
            .reading_objects(&source.dir.objects())
            .limited(source.limits().await?)
            .arg("--revs");
        self.quarantine
            .fill(command, revisions(tips, &shared))
            .await?
            .success(PACK)?;
        self.check(tips).await?.required()
    }

    /// Takes out what each command of a push needs, so that nothing is packed or synced while the repository is locked.
    pub async fn prepare(&mut self, push: &AuthorisedPush) -> Result<(), GitError> {
        let limit = self.repository.store.staging_limits().bytes_per_event;
        for tip in push.stage().iter().filter_map(|command| command.new) {
            let tips = BTreeSet::from([tip]);
            let first = self
                .parts
                .get(&tips)
                .and_then(|parts| parts.first()?.as_ref());
            let part = match first {
                Some(first) => first.duplicate().await?,
                None => self.extract(&tips, Some(limit)).await?,
            };
            part.sync().await?;
            self.parts.entry(tips).or_default().push(Some(part));
        }
        let signed: BTreeSet<_> = push
            .execute()
            .iter()
            .filter_map(|command| command.new)
            .collect();
        if !signed.is_empty() {
            let is_needed_whole = self.is_needed_whole(&signed).await?;
            let part = if is_needed_whole {
                None
            } else {
                Some(self.extract(&signed, None).await?)
            };
            // Uploads of the same tip take theirs from the end.
            self.parts.entry(signed).or_default().insert(0, part);
        }
        Ok(())
    }

    /// Returns the prepared directory with the objects that these tips need and nothing else.
    pub(super) async fn part(&mut self, tips: &BTreeSet<Oid>) -> Result<Self, GitError> {
        if let Some(part) = self.prepared(tips).flatten() {
            return Ok(part);
        }
        let part = self.extract(tips, None).await?;
        part.sync().await?;
        Ok(part)
    }

    async fn sync(&self) -> Result<(), GitError> {
        let objects = self.quarantine.objects();
        blocking(move || layout::sync_tree(&objects)).await
    }

    /// The same objects in a place of their own.
    async fn duplicate(&self) -> Result<Self, GitError> {
        let mut other = self.beside().await?;
        let from = self.quarantine.objects();
        let to = other.quarantine.objects();
        let linking =
            blocking(move || layout::copy_tree(&from, &to, |from, to| fs::hard_link(from, to)));
        linking.await?;
        other.is_inspected = self.is_inspected;
        other.whole.clone_from(&self.whole);
        Ok(other)
    }

    /// The same, or all of it where that was found to be needed.
    pub(super) async fn into_part(mut self, tips: &BTreeSet<Oid>) -> Result<Self, GitError> {
        match self.prepared(tips) {
            Some(Some(part)) => Ok(part),
            Some(None) => Ok(self),
            None => self.extract(tips, None).await,
        }
    }

    /// Returns the objects prepared for these tips, unless the repository has lost objects that were left out.
    fn prepared(&mut self, tips: &BTreeSet<Oid>) -> Option<Option<Self>> {
        let now = self.repository.store.removals();
        let part = self.parts.get_mut(tips)?.pop()?;
        let is_valid = part.as_ref().map_or(self.as_of, |part| part.as_of) == now;
        is_valid.then_some(part)
    }

    /// Returns whether these tips need everything that was received, so that it is not written twice.
    ///
    /// Of small uploads it is known which objects are needed; large ones are counted. Git adds objects of the repository to a
    /// pack that was sent without them.
    async fn is_needed_whole(&self, tips: &BTreeSet<Oid>) -> Result<bool, GitError> {
        let quarantine = self.quarantine.objects();
        if let Some((_, needed)) = self.needed.clone().filter(|(all, _)| all == tips) {
            let dir = self.objects.dir.objects();
            return blocking(move || {
                let rest = &check::all(&quarantine)? - &needed;
                Ok(rest.is_empty() || check::missing(&[dir], &rest)?.is_empty())
            })
            .await;
        }
        if blocking(move || layout::size(&quarantine)).await? < LARGE_PACK_BYTES {
            return Ok(false);
        }
        Ok(self.objects.count_new(tips).await? == self.count().await?)
    }

    /// Extracts the received objects that these tips need beyond what the repository has proven, to a directory of
    /// at most so many bytes.
    pub(super) async fn extract(
        &self,
        tips: &BTreeSet<Oid>,
        max_bytes: Option<u64>,
    ) -> Result<Self, GitError> {
        let mut part = self.beside().await?;
        let dir = self.objects.dir.clone();
        let proofs = blocking(move || Proofs::load(&dir)).await?;
        part.is_inspected = true;
        part.whole = tips.intersection(&self.whole).copied().collect();
        let limits = ProcessLimits {
            file: max_bytes,
            ..self.objects.limits().await?
        };
        // Deltas that were sent are kept, and none are looked for.
        let command = self
            .command(PACK)
            .args(["--revs", "--window=0"])
            .limited(limits);
        let packed = part
            .quarantine
            .fill(command, revisions(tips, proofs.tips()))
            .await?;
        if max_bytes.is_some() && packed.words.contains("File too large") {
            return Err(GitError::StagingFull);
        }
        packed.success(PACK)?;
        Ok(part)
    }
}

/// The indexes of all packs in an object directory.
fn indexes(objects: &Path) -> Result<Vec<PathBuf>, GitError> {
    let mut files = layout::list(&objects.join("pack"))?;
    files.retain(|file| file.extension().is_some_and(|kind| kind == "idx"));
    Ok(files)
}
