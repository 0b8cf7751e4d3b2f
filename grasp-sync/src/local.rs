//! The relay that is kept complete, as this crate sees it. To embed the crate is to implement [`LocalRelay`].
//!
//! Whatever the trait speaks of is here too, wherever it is from.

use std::sync::Arc;

#[doc(no_inline)]
pub use futures_core::future::BoxFuture;
#[doc(no_inline)]
pub use futures_core::stream::BoxStream;
use grasp_core::admission::{Known, Rejection, Verdict};
#[doc(no_inline)]
pub use grasp_core::admission::{Lasting, Origin};
#[doc(no_inline)]
pub use grasp_core::nostr::event::{Event, EventId, Kind};
#[doc(no_inline)]
pub use grasp_core::nostr::filter::Filter;
#[doc(no_inline)]
pub use grasp_core::{RepoId, Verified};

#[doc(no_inline)]
pub use crate::engine::{InventoryFailed, Row};
use crate::engine::{Judged, Outcome};

/// The relay that is kept complete: it tells what it has, takes what is found elsewhere, and judges it by its own
/// rules.
///
/// Nothing here may panic or block a thread for long. All three are called at the same time, from any task.
pub trait LocalRelay: Send + Sync + 'static {
    /// What is here, and what comes: every stored event of these kinds in any order, then [`News::CaughtUp`], then
    /// everything that is accepted, held or let go later. Without an end; a new call begins anew.
    ///
    /// Later events may be of any kind, and should be: something that was refused for want of one is then offered
    /// again. What [`ingest`](Self::ingest) stored is told here like anything else. Of stored
    /// [replies](grasp_core::kinds::REPLIES) a relay that has many others may tell only those of its repositories,
    /// or none: then what names nothing but a reply is found only if that reply is told of later.
    fn accepted(&self, kinds: &[Kind]) -> BoxStream<'static, News>;

    /// Whether [`accepted`](Self::accepted) tells what is held when it begins. If not, announcements are compared anew
    /// after every restart, so that what is held is found again.
    fn tells_held(&self) -> bool {
        true
    }

    /// Takes in events that were found elsewhere, if its own rules say so. One answer each, in their order, given
    /// once what it promises is durable.
    fn ingest(
        &self,
        events: Vec<Verified<Arc<Event>>>,
        origin: Origin,
    ) -> BoxFuture<'_, Vec<Taken>>;

    /// Everything that is served for this filter, in any order, however much it is; `limit` is never set.
    ///
    /// Held events and ids that were deleted may be among it: they need not be fetched again.
    fn inventory(&self, filter: Filter) -> BoxFuture<'_, Result<Vec<Row>, InventoryFailed>>;
}

/// What the local relay tells about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum News {
    /// This event is served.
    Accepted(Arc<Event>),
    /// This announcement waits for its git data: until it is told as accepted, only its states are wanted.
    Held(Arc<Event>),
    /// A repository is no longer kept here: its announcement was deleted, withdrawn or has expired.
    Retired(RepoId),
    /// An event that threads begin with is no longer kept here.
    Removed(EventId),
    /// Everything that was stored when the feed began has been told. Said once.
    CaughtUp,
    /// Some of what was stored is gone, and nobody deleted it: everything is to be compared anew.
    Lost,
}

/// What the local relay made of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Taken {
    /// It is stored, and was not before.
    Stored,
    /// It is held until its git data is here.
    Held,
    /// It was here already, or a version that wins over it.
    Known,
    /// It was refused, for so long.
    Refused(Lasting),
}

impl Taken {
    /// What a driver tells the engine. Whole events are remembered only if something that arrives may change the
    /// answer.
    pub fn judged(self, event: &Arc<Event>) -> Judged {
        let outcome = match self {
            Self::Stored => Outcome::Stored,
            Self::Held => Outcome::Held,
            Self::Known => Outcome::Known,
            Self::Refused(lasting) => {
                let wanting = lasting == Lasting::UntilDependency;
                Outcome::Refused { lasting, event: wanting.then(|| Arc::clone(event)) }
            }
        };
        Judged { row: Row::of(event), outcome }
    }
}

impl Row {
    /// An event, as far as cursors and sets care.
    pub fn of(event: &Event) -> Self {
        Self { at: event.created_at, id: event.id }
    }
}

/// For relays that judge by the rulebook of this project.
impl From<&Verdict> for Taken {
    fn from(verdict: &Verdict) -> Self {
        match verdict {
            Verdict::Accept(_) | Verdict::Delist { keep: true } => Self::Stored,
            Verdict::Hold(_) => Self::Held,
            Verdict::Known(Known::Stored | Known::Held | Known::Superseded) => Self::Known,
            // Nothing of it is kept, and nobody need fetch it again.
            Verdict::Broadcast => Self::Refused(Lasting::Forever),
            // Its author may be invited by somebody else.
            Verdict::Delist { keep: false } => Self::Refused(Lasting::UntilDependency),
            Verdict::Reject(why) => Self::from(why),
        }
    }
}

impl From<&Rejection> for Taken {
    fn from(why: &Rejection) -> Self {
        Self::Refused(why.lasting())
    }
}

#[cfg(test)]
mod tests {
    use grasp_core::nostr::event::{EventBuilder, FinalizeEvent};
    use grasp_core::nostr::key::Keys;

    use super::*;

    #[test]
    fn only_what_may_be_taken_later_is_remembered_whole() {
        let event = EventBuilder::new(Kind::GitIssue, "").finalize(&Keys::generate()).unwrap();
        let event = Arc::new(event);
        for (lasting, whole) in
            [(Lasting::Forever, false), (Lasting::Briefly, false), (Lasting::UntilDependency, true)]
        {
            let judged = Taken::Refused(lasting).judged(&event);
            let Outcome::Refused { event: kept, .. } = judged.outcome else { panic!() };
            assert_eq!((kept.is_some(), judged.row.id), (whole, event.id), "{lasting:?}");
        }
    }

    #[test]
    fn an_announcement_that_lists_others_may_be_welcome_later() {
        let gone = Verdict::Delist { keep: false };
        assert_eq!(Taken::from(&gone), Taken::Refused(Lasting::UntilDependency));
        let full = Verdict::Reject(Rejection::Quota);
        assert_eq!(Taken::from(&full), Taken::Refused(Lasting::Briefly));
    }
}
