//! One event that is kept here, and what it waits for.

use std::collections::BTreeSet;
use std::sync::Arc;

use grasp_core::nip34::{Announcement, Proposal, State};
use grasp_core::{Identifier, Version, kinds};
use nostr::event::{Event, EventId};
use nostr::key::PublicKey;
use nostr::types::Timestamp;
use serde::{Deserialize, Serialize};

/// A pull request is looked after under this many identifiers; honest ones name one or two.
pub(super) const MOST_IDENTIFIERS: usize = 16;

/// Where an event stands in its life here.
///
/// An event comes in [`Waiting`](Self::Waiting). Release, deletion or being superseded end it; running out of time
/// shelves it. From the shelf it is released like any other if its data appears, goes back to waiting if it is
/// offered by a user or signed for anew, and is forgotten at the end of its second term.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Acknowledged and hunted for.
    Waiting,
    /// Expired. An announcement has lost its view. A state or pull request is looked for once an hour, and a push may
    /// still bring what it needs.
    Shelved,
}

/// Why an event is kept here no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// It is stored and served.
    Served,
    /// A version that wins over it is kept or served.
    Superseded,
    /// Its author took it back, or took the repository elsewhere.
    Withdrawn,
    /// The event store would not have it.
    Refused,
    /// Its second term ended.
    Forgotten,
    /// The shelf was full.
    Evicted,
}

/// One event that is kept here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) event: Arc<Event>,
    pub(super) what: What,
    pub(super) phase: Phase,
    /// When it came in.
    pub(super) since: Timestamp,
    /// When the phase ends.
    pub(super) until: Timestamp,
    /// Roughly how much memory it takes.
    pub(super) bytes: u64,
}

/// What an event says, read once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum What {
    Announcement(Announcement),
    State(State),
    Proposal(Proposal),
}

impl Entry {
    /// `None` if the event is nothing that waits for git data.
    pub(super) fn new(
        event: Arc<Event>,
        phase: Phase,
        since: Timestamp,
        until: Timestamp,
    ) -> Option<Self> {
        let what = What::read(&event)?;
        let bytes = size(&event);
        Some(Self { event, what, phase, since, until, bytes })
    }

    pub(super) fn id(&self) -> EventId {
        self.event.id
    }

    pub(super) fn author(&self) -> PublicKey {
        self.event.pubkey
    }

    pub(super) fn version(&self) -> Version {
        Version::of(&self.event)
    }

    /// The identifiers under which it is looked after.
    pub(super) fn identifiers(&self) -> BTreeSet<&Identifier> {
        match &self.what {
            What::Announcement(announcement) => BTreeSet::from([&announcement.repo.identifier]),
            What::State(state) => BTreeSet::from([&state.repo.identifier]),
            What::Proposal(proposal) => {
                let all: BTreeSet<_> = proposal.repos.iter().map(|repo| &repo.identifier).collect();
                all.into_iter().take(MOST_IDENTIFIERS).collect()
            }
        }
    }

    pub(super) fn announcement(&self) -> Option<&Announcement> {
        match &self.what {
            What::Announcement(announcement) => Some(announcement),
            _ => None,
        }
    }

    pub(super) fn state(&self) -> Option<&State> {
        match &self.what {
            What::State(state) => Some(state),
            _ => None,
        }
    }

    pub(super) fn proposal(&self) -> Option<&Proposal> {
        match &self.what {
            What::Proposal(proposal) => Some(proposal),
            _ => None,
        }
    }
}

impl What {
    fn read(event: &Event) -> Option<Self> {
        if event.kind == kinds::ANNOUNCEMENT {
            Announcement::parse(event).ok().map(Self::Announcement)
        } else if event.kind == kinds::STATE {
            State::parse(event).ok().map(Self::State)
        } else {
            Proposal::parse(event).ok().map(Self::Proposal)
        }
    }
}

/// Roughly what an event and its reading take in memory.
fn size(event: &Event) -> u64 {
    const FIXED: usize = 512;
    const PER_VALUE: usize = 48;
    let values = event.tags.iter().flat_map(|tag| tag.as_slice());
    let tags: usize = values.map(|value| value.len() + PER_VALUE).sum();
    (FIXED + event.content.len() + 2 * tags) as u64
}
