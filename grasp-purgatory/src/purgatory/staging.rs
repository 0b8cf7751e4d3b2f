//! Uploads whose event has not been received yet.

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::admission::Policy;
use grasp_core::nip34::Proposal;
use grasp_core::resources::{Claimant, ClientNetwork};
use grasp_core::{Oid, RepoId};
use nostr::event::EventId;
use nostr::types::Timestamp;
use serde::{Deserialize, Serialize};

use super::io::{Config, Outputs, Record};
use super::shares::Shares;

/// The repository that an upload was pushed to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PushTarget {
    /// A hosted repository.
    Repository(RepoId),
    /// A contributor's own repository for pull requests, `/prs/<npub>/<identifier>.git` (GRASP-06).
    Contributor(RepoId),
}

impl PushTarget {
    pub(super) fn repo(&self) -> &RepoId {
        match self {
            Self::Repository(repo) | Self::Contributor(repo) => repo,
        }
    }

    /// Returns the key of an upload. Uploads of one tip with one key are the same objects on disk, with the same
    /// consequences.
    pub fn upload_key(&self) -> String {
        match self {
            Self::Repository(repo) => format!("repository {repo}"),
            Self::Contributor(repo) => format!("contributor {repo}"),
        }
    }

    /// Returns whether a pull request may have been pushed here.
    ///
    /// A repository takes pushes from everyone. A contributor's repository takes only what its owner signed, for a
    /// repository of that identifier, with this very address under `clone`.
    fn accepts(&self, policy: &Policy, proposal: &Proposal) -> bool {
        match self {
            Self::Repository(_) => true,
            Self::Contributor(repo) => policy.own_urls(proposal).any(|own| own == *repo),
        }
    }
}

/// The uploads of one tip: their sizes in bytes by target. A client may push a pull request to its author's repository
/// and to the main one before it publishes the event.
type Uploads = BTreeMap<PushTarget, u64>;

/// The uploads that wait for one event. Several are kept, so that no client can displace another's.
#[derive(Clone, Debug)]
pub(super) struct StagedUploads {
    pub(super) tips: BTreeMap<Oid, Uploads>,
    pub(super) until: Timestamp,
}

impl StagedUploads {
    /// Returns the targets of the tip of a pull request that are right for its author.
    pub(super) fn targets_of<'a>(
        &'a self,
        policy: &'a Policy,
        proposal: &'a Proposal,
    ) -> impl Iterator<Item = &'a PushTarget> {
        let uploads = self
            .tips
            .get(&proposal.tip)
            .into_iter()
            .flat_map(Uploads::keys);
        uploads.filter(move |target| target.accepts(policy, proposal))
    }

    pub(super) fn repos(&self) -> impl Iterator<Item = &RepoId> {
        self.tips
            .values()
            .flat_map(Uploads::keys)
            .map(PushTarget::repo)
    }

    /// Returns the tips that were uploaded to a repository.
    fn tips_at(&self, repo: &RepoId) -> BTreeSet<Oid> {
        let is_there = |uploads: &Uploads| uploads.keys().any(|target| target.repo() == repo);
        self.tips
            .iter()
            .filter(|(_, uploads)| is_there(uploads))
            .map(|(tip, _)| *tip)
            .collect()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.tips.values().flat_map(Uploads::values).sum()
    }

    pub(super) fn count(&self) -> usize {
        self.tips.values().map(Uploads::len).sum()
    }
}

/// All uploads that wait for their events. Only journal records change them.
#[derive(Debug)]
pub(super) struct Staging {
    by_event: BTreeMap<EventId, StagedUploads>,
    /// Shares of the disk for uploads.
    disk: Shares<Option<ClientNetwork>>,
}

impl Staging {
    pub(super) fn new(config: &Config) -> Self {
        let disk = Shares::new(config.staged, 0, config.staged.bytes / 8, |one| one.network);
        Self {
            by_event: BTreeMap::new(),
            disk,
        }
    }

    pub(super) fn apply(&mut self, record: &Record) {
        match record {
            Record::Staged {
                id,
                tip,
                target,
                bytes,
                until,
            } => {
                self.insert(*id, *tip, target, *bytes, *until);
            }
            Record::Unstaged { id, keep } => self.take(id, *keep),
            _ => {}
        }
    }

    fn record(&mut self, out: &mut Outputs, id: &EventId, record: Record) {
        self.apply(&record);
        self.account(id);
        out.write(record);
    }

    pub(super) fn stage(
        &mut self,
        out: &mut Outputs,
        id: EventId,
        tip: Oid,
        (target, bytes): (PushTarget, u64),
        until: Timestamp,
    ) {
        self.record(
            out,
            &id,
            Record::Staged {
                id,
                tip,
                target,
                bytes,
                until,
            },
        );
    }

    /// Drops the uploads for an event but for the tip to keep. Returns whether there were any.
    pub(super) fn remove(&mut self, out: &mut Outputs, id: EventId, keep: Option<Oid>) -> bool {
        let is_staged = self.by_event.contains_key(&id);
        if is_staged {
            self.record(out, &id, Record::Unstaged { id, keep });
        }
        is_staged
    }

    /// Makes the disk shares agree with the uploads for an event.
    fn account(&mut self, id: &EventId) {
        match self.by_event.get(id) {
            Some(staged) => self.disk.add(*id, Claimant::default(), staged.bytes()),
            None => self.disk.release(id),
        }
    }

    pub(super) fn account_all(&mut self) {
        let ids: Vec<EventId> = self.by_event.keys().copied().collect();
        ids.iter().for_each(|id| self.account(id));
    }

    fn insert(&mut self, id: EventId, tip: Oid, target: &PushTarget, bytes: u64, until: Timestamp) {
        let staged = self.by_event.entry(id).or_insert_with(|| StagedUploads {
            tips: BTreeMap::new(),
            until,
        });
        staged.until = until;
        let uploads = staged.tips.entry(tip).or_default();
        uploads.retain(|other, _| other.upload_key() != target.upload_key());
        uploads.insert(target.clone(), bytes);
    }

    fn take(&mut self, id: &EventId, keep: Option<Oid>) {
        let Some(staged) = self.by_event.get_mut(id) else {
            return;
        };
        staged.tips.retain(|tip, _| keep == Some(*tip));
        if staged.tips.is_empty() {
            self.by_event.remove(id);
        }
    }

    /// Reserves disk for an upload. Returns the events whose uploads must be evicted for it, and whether there is room.
    /// The network with most uploads makes room for one with less; spared events keep theirs.
    pub(super) fn reserve(
        &mut self,
        config: &Config,
        (id, tip, target): (EventId, &Oid, &PushTarget),
        bytes: u64,
        network: Option<ClientNetwork>,
        is_spared: impl Fn(&EventId) -> bool,
    ) -> (Vec<EventId>, bool) {
        let staged = self.by_event.get(&id);
        let same_tip = staged.and_then(|staged| staged.tips.get(tip));
        if same_tip.is_some_and(|targets| {
            targets
                .keys()
                .any(|one| one.upload_key() == target.upload_key())
        }) {
            return (Vec::new(), true);
        }
        let uploads = staged.map_or(0, StagedUploads::count);
        if uploads >= config.tips_per_event {
            return (Vec::new(), false);
        }
        let all = staged.map_or(0, StagedUploads::bytes).saturating_add(bytes);
        let is_spared = |other: &EventId| *other == id || is_spared(other);
        self.disk
            .reserve(id, Claimant::maybe_at(network), all, is_spared)
    }

    pub(super) fn of(&self, id: &EventId) -> Option<&StagedUploads> {
        self.by_event.get(id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&EventId, &StagedUploads)> {
        self.by_event.iter()
    }

    pub(super) fn tips(&self, id: &EventId) -> BTreeSet<Oid> {
        self.of(id)
            .map(|staged| staged.tips.keys().copied().collect())
            .unwrap_or_default()
    }

    pub(super) fn tips_at(&self, id: &EventId, repo: &RepoId) -> BTreeSet<Oid> {
        self.of(id)
            .map(|staged| staged.tips_at(repo))
            .unwrap_or_default()
    }
}
