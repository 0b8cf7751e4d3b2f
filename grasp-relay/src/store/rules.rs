//! What every store agrees on, whatever it is made of.

use std::collections::BTreeSet;
use std::time::Duration;

use grasp_core::admission::Needs;
use grasp_core::nip34::Proposal;
use grasp_core::{Identifier, ServiceIdentity, kinds};
use nostr::event::{Event, Kind};
use nostr::filter::{Filter, SingleLetterTag};
use nostr::types::Timestamp;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// What an operator decides about deletion, vanishing and rollback.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// The address this relay is known by: a request to vanish that names it is obeyed.
    ///
    /// Requests for all relays are obeyed without one too.
    pub service: Option<ServiceIdentity>,
    /// How many superseded versions of one announcement or state are kept for rollback.
    pub kept_versions: usize,
    /// How long a deletion request is served after it was received, or last removed or blocked something.
    pub deletions_served: Duration,
    /// How much longer its targets stay refused after it is no longer served.
    pub deletions_gated: Duration,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            service: None,
            kept_versions: 64,
            deletions_served: 30 * DAY,
            deletions_gated: 180 * DAY,
        }
    }
}

impl Rules {
    /// A request last useful at this time or earlier is no longer served.
    pub(crate) fn retired_before(&self, now: Timestamp) -> u64 {
        ago(now, self.deletions_served)
    }

    /// A request last useful at this time or earlier no longer refuses anything.
    pub(crate) fn forgotten_before(&self, now: Timestamp) -> u64 {
        ago(now, self.deletions_served.saturating_add(self.deletions_gated))
    }
}

/// A request that was useful after this time is not noted as useful again: a flood of blocked events stays cheap.
pub(crate) fn noted_before(now: Timestamp) -> u64 {
    ago(now, DAY)
}

fn ago(now: Timestamp, length: Duration) -> u64 {
    now.as_secs().saturating_sub(length.as_secs())
}

/// Says whether superseded versions of this kind are kept: repository announcements and states.
pub(crate) fn keeps_versions(kind: Kind) -> bool {
    kind == kinds::ANNOUNCEMENT || kind == kinds::STATE
}

/// The kinds that speak of git data.
pub(crate) const WITH_GIT_DATA: [Kind; 4] =
    [kinds::ANNOUNCEMENT, kinds::STATE, kinds::PULL_REQUEST, kinds::PULL_REQUEST_UPDATE];

/// Returns the names of the repositories whose git data an event speaks of; none for other kinds.
pub(crate) fn repository_names(event: &Event) -> BTreeSet<Identifier> {
    if !WITH_GIT_DATA.contains(&event.kind) {
        return BTreeSet::new();
    }
    let proposal = Proposal::parse(event).ok();
    let addressed = proposal.into_iter().flat_map(|proposal| proposal.repos);
    Needs::of(event).identifier.into_iter().chain(addressed.map(|repo| repo.identifier)).collect()
}

/// Says whether no event can match: a list is empty, its times exclude each other, or it is one we do not answer.
pub(crate) fn matches_nothing(filter: &Filter) -> bool {
    filter.ids.as_ref().is_some_and(BTreeSet::is_empty)
        || filter.authors.as_ref().is_some_and(BTreeSet::is_empty)
        || filter.kinds.as_ref().is_some_and(BTreeSet::is_empty)
        || filter.generic_tags.values().any(BTreeSet::is_empty)
        || filter.search.is_some()
        || filter.limit == Some(0)
        || filter.since > filter.until.or(Some(Timestamp::max()))
}

/// Says whether an event has a tag of this name with one of these values.
pub(crate) fn has_tag(event: &Event, name: SingleLetterTag, values: &BTreeSet<String>) -> bool {
    event.tags.iter().any(|tag| {
        tag.single_letter_tag() == Some(name)
            && tag.content().is_some_and(|value| values.contains(value))
    })
}
