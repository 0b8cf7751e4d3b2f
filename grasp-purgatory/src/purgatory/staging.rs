//! Uploads that came before the event that names them.

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::admission::Policy;
use grasp_core::nip34::Proposal;
use grasp_core::{Identifier, Oid, RepoId};
use nostr::event::EventId;
use nostr::types::Timestamp;
use serde::{Deserialize, Serialize};

use super::books::Usage;
use super::config::Config;

/// Where an upload came in.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PushTarget {
    /// At a hosted repository.
    Repository(RepoId),
    /// At a contributor's own place for pull requests, `/prs/<npub>/<identifier>.git` (GRASP-06).
    Contributor(RepoId),
}

impl PushTarget {
    /// The name of the repository there.
    pub(super) fn name(&self) -> &Identifier {
        match self {
            Self::Repository(repo) | Self::Contributor(repo) => &repo.identifier,
        }
    }

    /// Whether uploads of one tip at both endpoints are the same objects on disk, with the same consequences.
    ///
    /// All repositories of a name share their object store. So do the contributors' places, but each of them is served
    /// only what was brought to it.
    fn is_same_upload(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Repository(one), Self::Repository(other)) => one.identifier == other.identifier,
            (one, other) => one == other,
        }
    }

    /// Whether a pull request may have come in here.
    ///
    /// Anybody may push to a repository. A contributor's place takes only what its owner signed, for a repository of
    /// that name, with that very place under `clone`.
    pub(super) fn fits(&self, policy: &Policy, proposal: &Proposal) -> bool {
        match self {
            Self::Repository(_) => true,
            Self::Contributor(place) => policy.own_urls(proposal).any(|own| own == *place),
        }
    }
}

/// The uploads that wait for one event. Several, so that nobody can push another's away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Placeholder {
    pub(super) tips: BTreeMap<Oid, Uploads>,
    pub(super) until: Timestamp,
}

/// The uploads of one tip: their sizes in bytes, by where they came in. A client may bring a pull request to its
/// author's place and to the repository before it publishes the event.
pub(super) type Uploads = BTreeMap<PushTarget, u64>;

impl Placeholder {
    /// Where a tip came in, by every way that is right for the author of the pull request.
    pub(super) fn came_by<'a>(
        &'a self,
        policy: &'a Policy,
        proposal: &'a Proposal,
    ) -> impl Iterator<Item = &'a PushTarget> {
        let uploads = self.tips.get(&proposal.tip).into_iter().flat_map(Uploads::keys);
        uploads.filter(move |target| target.fits(policy, proposal))
    }

    /// The names of the repositories that anything was uploaded to.
    pub(super) fn names(&self) -> impl Iterator<Item = &Identifier> {
        self.tips.values().flat_map(Uploads::keys).map(PushTarget::name)
    }

    /// The tips that were uploaded to repositories of a name.
    pub(super) fn tips_under(&self, name: &Identifier) -> BTreeSet<Oid> {
        let is_there = |uploads: &Uploads| uploads.keys().any(|target| target.name() == name);
        self.tips.iter().filter(|(_, uploads)| is_there(uploads)).map(|(tip, _)| *tip).collect()
    }

    /// The bytes of all uploads.
    pub(super) fn bytes(&self) -> u64 {
        self.tips.values().flat_map(Uploads::values).sum()
    }

    fn uploads(&self) -> usize {
        self.tips.values().map(Uploads::len).sum()
    }
}

/// What an upload is to those that wait for the same event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Uploading {
    /// The same as one of them.
    Again,
    /// One more.
    New,
    /// One too many.
    TooMany,
}

/// All uploads that wait for their events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Staging {
    by_event: BTreeMap<EventId, Placeholder>,
    usage: Usage,
}

impl Staging {
    pub(super) fn add(
        &mut self,
        id: EventId,
        tip: Oid,
        (target, bytes): (PushTarget, u64),
        until: Timestamp,
    ) {
        let placeholder =
            self.by_event.entry(id).or_insert_with(|| Placeholder { tips: BTreeMap::new(), until });
        placeholder.until = until;
        let (uploads, usage) = (placeholder.tips.entry(tip).or_default(), &mut self.usage);
        uploads.retain(|other, before| {
            let replaced = other.is_same_upload(&target);
            if replaced {
                *usage = usage.minus(*before);
            }
            !replaced
        });
        *usage = usage.plus(bytes);
        uploads.insert(target, bytes);
    }

    /// Drops the uploads for an event but the one to keep.
    pub(super) fn drop_but(&mut self, id: &EventId, keep: Option<Oid>) {
        let Some(placeholder) = self.by_event.get_mut(id) else { return };
        let usage = &mut self.usage;
        placeholder.tips.retain(|tip, uploads| {
            let kept = keep == Some(*tip);
            if !kept {
                uploads.values().for_each(|bytes| *usage = usage.minus(*bytes));
            }
            kept
        });
        if placeholder.tips.is_empty() {
            self.by_event.remove(id);
        }
    }

    /// Whether this upload waits for an event already, or may be one more for it.
    pub(super) fn room(
        &self,
        config: &Config,
        id: &EventId,
        tip: &Oid,
        target: &PushTarget,
    ) -> Uploading {
        let waiting = self.by_event.get(id);
        let same = waiting.and_then(|placeholder| placeholder.tips.get(tip));
        let waits =
            same.is_some_and(|targets| targets.keys().any(|one| one.is_same_upload(target)));
        let uploads = waiting.map_or(0, Placeholder::uploads);
        match waits {
            true => Uploading::Again,
            false if uploads < config.tips_per_event => Uploading::New,
            false => Uploading::TooMany,
        }
    }

    pub(super) fn of(&self, id: &EventId) -> Option<&Placeholder> {
        self.by_event.get(id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&EventId, &Placeholder)> {
        self.by_event.iter()
    }

    pub(super) fn usage(&self) -> Usage {
        self.usage
    }
}
