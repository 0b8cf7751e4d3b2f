//! Uploads that came before the event that names them.

use std::collections::BTreeMap;

use grasp_core::admission::Policy;
use grasp_core::nip34::Proposal;
use grasp_core::{Identifier, Oid, RepoId};
use nostr::event::EventId;
use nostr::types::Timestamp;
use serde::{Deserialize, Serialize};

use super::books::{Room, Usage};
use super::config::Config;

/// Where an upload came in.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Came {
    /// At a hosted repository.
    Repository(RepoId),
    /// At a contributor's own place for pull requests, `/prs/<npub>/<identifier>.git` (GRASP-06).
    Contributor(RepoId),
}

impl Came {
    /// The name of the repository there.
    pub(super) fn name(&self) -> &Identifier {
        match self {
            Self::Repository(repo) | Self::Contributor(repo) => &repo.identifier,
        }
    }

    /// Whether a pull request may have come in here.
    ///
    /// Anybody may push to a repository. A contributor's place takes only what its owner signed, for a repository of
    /// that name, with that very place under `clone`.
    pub(super) fn fits(&self, policy: &Policy, proposal: &Proposal) -> bool {
        match self {
            Self::Repository(_) => true,
            Self::Contributor(place) => policy.own_places(proposal).any(|own| own == *place),
        }
    }
}

/// The uploads that wait for one event. Several, so that nobody can push another's away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Placeholder {
    pub(super) tips: BTreeMap<Oid, Upload>,
    pub(super) until: Timestamp,
}

/// One upload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Upload {
    pub(super) door: Came,
    pub(super) bytes: u64,
}

/// All uploads that wait for their events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Staging {
    by_event: BTreeMap<EventId, Placeholder>,
    usage: Usage,
}

impl Staging {
    pub(super) fn add(&mut self, id: EventId, tip: Oid, upload: Upload, until: Timestamp) {
        self.usage = self.usage.plus(upload.bytes);
        let placeholder =
            self.by_event.entry(id).or_insert_with(|| Placeholder { tips: BTreeMap::new(), until });
        placeholder.until = until;
        if let Some(before) = placeholder.tips.insert(tip, upload) {
            self.usage = self.usage.minus(before.bytes);
        }
    }

    /// Drops the uploads for an event but the one to keep.
    pub(super) fn drop_but(&mut self, id: &EventId, keep: Option<Oid>) {
        let Some(placeholder) = self.by_event.get_mut(id) else { return };
        let usage = &mut self.usage;
        placeholder.tips.retain(|tip, upload| {
            let kept = keep == Some(*tip);
            if !kept {
                *usage = usage.minus(upload.bytes);
            }
            kept
        });
        if placeholder.tips.is_empty() {
            self.by_event.remove(id);
        }
    }

    /// Whether one more upload may wait for an event.
    pub(super) fn room(&self, config: &Config, id: &EventId, bytes: u64) -> Room {
        let tips = self.by_event.get(id).map_or(0, |placeholder| placeholder.tips.len());
        let fits = tips < config.tips_per_event && self.usage.plus(bytes).is_within(config.staged);
        if fits { Room::Free } else { Room::Full }
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
