//! The local relay, which this crate keeps complete. To embed the crate is to implement [`SyncedRelay`].
//!
//! The types that the trait uses are re-exported here.

use std::sync::Arc;

#[doc(no_inline)]
pub use futures_core::future::BoxFuture;
#[doc(no_inline)]
pub use futures_core::stream::BoxStream;
use grasp_core::admission;
#[doc(no_inline)]
pub use grasp_core::admission::{Origin, Retry};
use grasp_core::nip34::Announcement;
#[doc(no_inline)]
pub use grasp_core::nostr::event::{Event, EventId, Kind};
#[doc(no_inline)]
pub use grasp_core::nostr::filter::Filter;
#[doc(no_inline)]
pub use grasp_core::{RepoId, Verified};

#[doc(no_inline)]
pub use crate::engine::{InventoryFailed, Row};
use crate::engine::{Judged, Outcome};

/// The relay that is kept complete: it tells what it has, ingests events that were found elsewhere, and judges them
/// by its own rules.
///
/// Its methods must not panic or block a thread for long. They are called concurrently, from any task.
pub trait SyncedRelay: Send + Sync + 'static {
    /// Streams what is stored and what comes: every stored event of these kinds, then [`News::CaughtUp`], then
    /// everything that is accepted, held or removed later.
    ///
    /// Any order will do, and repetitions change nothing: of several versions of an announcement the one that wins by
    /// NIP-01 counts. Listen to what comes before reading what is stored, so that no event is missed in between. Only
    /// removals must come after the acceptance that they undo, and before the next.
    ///
    /// A feed may end, for example because its reader was too slow. It is then begun anew, and a repository that the new
    /// feed does not stream up to [`News::CaughtUp`] counts as retired.
    ///
    /// Later events may be of any kind, and should be: an event that was refused for want of one is then offered
    /// again. Events stored by [`ingest`](Self::ingest) are streamed like any other. Of stored
    /// [replies](grasp_core::kinds::REPLY_KINDS) a relay that has many others may stream only those of its repositories,
    /// or none: then an event that names only a reply is found only if that reply is streamed later.
    ///
    /// Stored addressable and replaceable events of any kind that name a repository should be streamed too, and those
    /// that name one of these. If they are not, an event that names only such an event is found only if that one is
    /// streamed later.
    fn accepted(&self, kinds: &[Kind]) -> BoxStream<'static, News>;

    /// Returns whether [`accepted`](Self::accepted) tells what is held when it begins. If not, announcements are
    /// compared again after every restart, so that held ones are found again.
    fn tells_held(&self) -> bool {
        true
    }

    /// Ingests events that were found elsewhere, as its own rules decide. Returns one answer for each, in order, once
    /// what it promises is durable.
    fn ingest(
        &self,
        events: Vec<Verified<Arc<Event>>>,
        origin: Origin,
    ) -> BoxFuture<'_, Vec<Taken>>;

    /// Returns everything that is served for this filter, in any order and without a limit; `limit` is never set.
    ///
    /// Held events and ids that were deleted may be included: they need not be fetched again.
    fn inventory(&self, filter: Filter) -> BoxFuture<'_, Result<Vec<Row>, InventoryFailed>>;
}

/// Something that happened at the local relay.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum News {
    /// This event is served.
    Accepted(Arc<Event>),
    /// This announcement waits for its git data: until it is accepted, only its states are wanted.
    Held(Arc<Event>),
    /// A repository is no longer kept here: its announcement was deleted, withdrawn or has expired.
    Retired(RepoId),
    /// An event that begins a thread is no longer kept here.
    Removed(EventId),
    /// Everything that was stored when the feed began has been streamed. Sent once.
    CaughtUp,
    /// Some stored events are lost without having been deleted: everything is to be compared again.
    Lost,
}

impl News {
    /// Returns what to stream when this event was deleted or has expired. Not for an event that a newer version
    /// replaced: that version is streamed instead.
    ///
    /// ```
    /// use grasp_sync::core::nostr::event::{EventBuilder, FinalizeEvent, Kind, Tag};
    /// use grasp_sync::core::nostr::key::Keys;
    /// use grasp_sync::local::News;
    ///
    /// let keys = Keys::generate();
    /// let issue = EventBuilder::new(Kind::GitIssue, "it fails").finalize(&keys)?;
    /// assert_eq!(News::removed(&issue), News::Removed(issue.id));
    /// let announcement = EventBuilder::new(Kind::GitRepoAnnouncement, "");
    /// let announcement = announcement.tag(Tag::identifier("x")).finalize(&keys)?;
    /// assert!(matches!(News::removed(&announcement), News::Retired(repo) if repo.identifier.as_str() == "x"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn removed(event: &Event) -> Self {
        match Announcement::parse(event) {
            Ok(announcement) => Self::Retired(announcement.repo),
            Err(_) => Self::Removed(event.id),
        }
    }
}

/// The local relay's answer to an event. Exhaustive on purpose: a program that wraps a relay passes on every answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Taken {
    /// It is stored, and was not before.
    Stored,
    /// It is held until its git data is here.
    Held,
    /// It was here already, or a version that wins over it.
    Known,
    /// It was refused, until then.
    Refused(Retry),
}

impl Taken {
    /// Returns the judgement for the engine. The event is included only if a dependency may change the answer.
    pub fn judged(self, event: &Arc<Event>) -> Judged {
        let outcome = match self {
            Self::Stored => Outcome::Stored,
            Self::Held => Outcome::Held,
            Self::Known => Outcome::Known,
            Self::Refused(retry) => {
                let wanting = retry == Retry::AfterDependency;
                Outcome::Refused {
                    retry,
                    event: wanting.then(|| Arc::clone(event)),
                }
            }
        };
        Judged {
            row: Row::of(event),
            outcome,
        }
    }
}

impl Row {
    /// Returns the time and id of an event.
    pub fn of(event: &Event) -> Self {
        Self {
            at: event.created_at,
            id: event.id,
        }
    }
}

/// For relays that use the admission rules of this project.
impl From<admission::Outcome> for Taken {
    fn from(outcome: admission::Outcome) -> Self {
        match outcome {
            admission::Outcome::Stored => Self::Stored,
            admission::Outcome::Held => Self::Held,
            admission::Outcome::Duplicate(_) | admission::Outcome::Superseded => Self::Known,
            // Nothing of it is kept, and it need not be fetched again.
            admission::Outcome::Broadcast => Self::Refused(Retry::Never),
            admission::Outcome::Refused { retry, .. } => Self::Refused(retry),
        }
    }
}

#[cfg(test)]
mod tests {
    use grasp_core::nostr::event::{EventBuilder, FinalizeEvent};
    use grasp_core::nostr::key::Keys;

    use super::*;

    #[test]
    fn keeps_only_events_that_may_be_accepted_later() {
        let event = EventBuilder::new(Kind::GitIssue, "")
            .finalize(&Keys::generate())
            .unwrap();
        let event = Arc::new(event);
        for (retry, whole) in [
            (Retry::Never, false),
            (Retry::Soon, false),
            (Retry::AfterDependency, true),
        ] {
            let judged = Taken::Refused(retry).judged(&event);
            let Outcome::Refused { event: kept, .. } = judged.outcome else {
                panic!()
            };
            assert_eq!(
                (kept.is_some(), judged.row.id),
                (whole, event.id),
                "{retry:?}"
            );
        }
    }

    #[test]
    fn a_delisted_announcement_may_be_accepted_later() {
        let gone = admission::Verdict::Delist { keep: false };
        assert_eq!(
            Taken::from(gone.outcome()),
            Taken::Refused(Retry::AfterDependency)
        );
    }
}
