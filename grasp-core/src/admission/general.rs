//! Every other kind: it belongs to something accepted, or it does not belong here.

use nostr::event::Event;

use super::facts::{Facts, Origin};
use super::policy::Policy;
use super::verdict::{Acceptance, Known, Rejection, Verdict};
use crate::kinds;
use crate::version::Version;

pub(super) fn judge(policy: &Policy, origin: &Origin, event: &Event, facts: &Facts) -> Verdict {
    if facts.latest.is_some_and(|latest| latest > Version::of(event)) {
        return Verdict::Known(Known::Superseded);
    }
    if event.kind == kinds::VANISH && !event.tags.iter().any(|tag| tag.kind() == "relay") {
        return Verdict::Reject(Rejection::Malformed("it names no relay".to_owned()));
    }
    if event.kind.is_ephemeral() {
        return match origin {
            // It is worth something only to those who listen now; a copy from elsewhere is late by nature.
            Origin::Sync { .. } => Verdict::Reject(Rejection::NeverStored),
            Origin::Client { .. } => welcome(policy, event, facts, Verdict::Broadcast),
        };
    }
    welcome(policy, event, facts, Verdict::Accept(Acceptance::Related))
}

/// Returns the verdict for an event that is welcome, or why this one is not.
fn welcome(policy: &Policy, event: &Event, facts: &Facts, verdict: Verdict) -> Verdict {
    if is_always_welcome(policy, event) {
        return verdict;
    }
    let is_about_its_author = kinds::PROFILE_KINDS.contains(&event.kind);
    match (is_about_its_author, facts) {
        (true, Facts { author_known: true, .. }) | (false, Facts { related: true, .. }) => verdict,
        (true, _) => Verdict::Reject(Rejection::UnknownAuthor),
        (false, _) => Verdict::Reject(Rejection::Unrelated),
    }
}

/// Requests to delete are honoured whether or not their target is here; server lists and the operator's own words
/// need no reason.
fn is_always_welcome(policy: &Policy, event: &Event) -> bool {
    kinds::UNCONDITIONAL_KINDS.contains(&event.kind) || policy.is_operators(event)
}
