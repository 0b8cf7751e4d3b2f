//! Decides whether an event is stored, held or refused, for events of clients and of sync alike.
//!
//! ```text
//! event ─▶ Needs::of ─▶ the caller looks things up ─▶ Facts ─▶ judge ─▶ Verdict ─▶ Outcome ─▶ Answer (the OK message)
//! ```
//!
//! [`judge`] is a pure function of the event, the time and the facts.

mod facts;
mod fan_out;
mod policy;
mod rules;
mod verdict;

pub use facts::{Facts, KnownAnnouncement, Needs, Origin, Presence, SyncPath};
pub use fan_out::{ExceededLimit, FanOut, FanOutLimits, Share};
pub use policy::{Archive, Bans, Policy};
pub use verdict::{Answer, Hold, Outcome, Rejection, Retry, Verdict};

use nostr::event::{Event, Kind, Tag};
use nostr::types::Timestamp;

use crate::kinds;
use crate::verified::Verified;

/// Judges an event by the facts known at this moment.
///
/// ```
/// use grasp_core::admission::{Facts, Origin, Policy, Rejection, Verdict, judge};
/// use grasp_core::Verified;
/// use nostr::event::{EventBuilder, FinalizeEvent, Kind};
/// use nostr::{key::Keys, types::Timestamp};
///
/// let note = EventBuilder::new(Kind::TextNote, "hi").finalize(&Keys::generate()).unwrap();
/// let now = note.created_at;
/// let note = Verified::check(note).unwrap();
/// let policy = Policy::new("grasp.example".parse().unwrap());
/// let verdict = judge(&policy, now, &Origin::anonymous(), note.as_ref(), &Facts::default());
/// assert_eq!(verdict, Verdict::from(Rejection::Unrelated));
/// assert!(verdict.outcome().answer().message.starts_with("restricted: "));
/// ```
pub fn judge(
    policy: &Policy,
    now: Timestamp,
    origin: &Origin,
    event: Verified<&Event>,
    facts: &Facts,
) -> Verdict {
    let verdict = check_any_kind(policy, now, origin, &event).and_then(|()| match facts.known {
        Some(presence) => Ok(Verdict::Done(Outcome::Duplicate(presence))),
        None => judge_kind(policy, origin, &event, facts),
    });
    verdict.unwrap_or_else(Verdict::from)
}

/// The checks that every kind goes through, in their order.
fn check_any_kind(
    policy: &Policy,
    now: Timestamp,
    origin: &Origin,
    event: &Event,
) -> Result<(), Rejection> {
    if policy.bans.authors.contains(&event.pubkey) {
        Err(Rejection::Banned)
    } else if is_expired(event, now) {
        Err(Rejection::Expired)
    } else if event.created_at > now + policy.max_ahead {
        Err(Rejection::TooFarAhead)
    } else if event.is_protected() && !origin.is_author(&event.pubkey) {
        Err(Rejection::Protected)
    } else if embeds_protected(event) {
        Err(Rejection::ProtectedRepost)
    } else if has_too_many_tags(event) {
        Err(Rejection::Malformed(format!("it has more than {MAX_TAGS} tags")))
    } else {
        Ok(())
    }
}

/// Tags of one event, each of which may be a row of an index. The refs of a state are not indexed, and not counted.
pub const MAX_TAGS: usize = 2_000;

fn has_too_many_tags(event: &Event) -> bool {
    let is_counted = |tag: &&Tag| event.kind != kinds::STATE || tag.single_letter_tag().is_some();
    event.tags.iter().filter(is_counted).count() > MAX_TAGS
}

/// Returns whether a repost contains an event that only its author may publish (NIP-70).
fn embeds_protected(event: &Event) -> bool {
    matches!(event.kind, Kind::Repost | Kind::GenericRepost)
        && Event::from_json(&event.content).is_ok_and(|inner| inner.is_protected())
}

/// Returns whether the expiration of an event has passed (NIP-40); the stated second counts as passed.
pub fn is_expired(event: &Event, now: Timestamp) -> bool {
    event.tags.expiration().is_some_and(|end| end <= now)
}

fn judge_kind(
    policy: &Policy,
    origin: &Origin,
    event: &Event,
    facts: &Facts,
) -> Result<Verdict, Rejection> {
    match event.kind {
        kind if kinds::NEVER_STORED_KINDS.contains(&kind) => Err(Rejection::NeverStored),
        Kind::GitRepoAnnouncement => rules::judge_announcement(policy, event, facts),
        Kind::RepoState => rules::judge_state(policy, event, facts),
        Kind::GitPullRequest | Kind::GitPullRequestUpdate => {
            rules::judge_proposal(policy, event, facts)
        }
        _ => rules::judge_other(policy, origin, event, facts),
    }
}

#[cfg(test)]
mod tests;
