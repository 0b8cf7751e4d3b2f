//! History, then live, each event once: what of both goes on the wire for one subscription.
//!
//! A subscription hears live events before its history is read, so nothing falls between the two; this keeps what
//! comes early until the end of history, and drops what history has already brought.

use std::collections::HashSet;
use std::sync::Arc;

use grasp_core::Mono;
use nostr::event::EventId;

use super::hub::{Capacity, Published};
use super::limits::Limits;

/// One subscription's way from history to live.
///
/// *Reading* until [`caught_up`](Self::caught_up); then *settling*, because an event that history brought may be
/// published a moment after its commit; then *live* at the first event after that time.
#[derive(Clone, Debug)]
pub(crate) struct Delivery {
    /// The beginning of every EVENT message.
    prefix: String,
    phase: Phase,
    capacity: Capacity,
}

#[derive(Clone, Debug)]
enum Phase {
    Reading { sent: Sent, early: Vec<Arc<Published>>, early_bytes: usize },
    Settling { sent: Sent, until: Mono },
    Live,
}

/// The ids of history.
type Sent = HashSet<Half>;

/// The first half of an id: nobody can make a stranger's event collide with another on purpose.
pub(crate) type Half = [u8; 16];

/// What to do with a live event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Live {
    Send,
    /// It waits for the end of history.
    Kept,
    /// History brought it.
    Known,
    /// Too much waits for the end of history.
    Overflow,
}

impl Delivery {
    pub(crate) fn new(prefix: String, limits: &Limits) -> Self {
        Self {
            prefix,
            phase: Phase::Reading { sent: Sent::new(), early: Vec::new(), early_bytes: 0 },
            capacity: Capacity { events: limits.live_queue_events, bytes: limits.live_queue_bytes },
        }
    }

    /// An EVENT message.
    pub(crate) fn frame(&self, json: &str) -> String {
        [&self.prefix, json, "]"].concat()
    }

    /// Notes that history brought this event.
    pub(crate) fn stored(&mut self, id: &EventId) {
        if let Phase::Reading { sent, .. } = &mut self.phase {
            sent.insert(half(id));
        }
    }

    /// Ends history; gives what came early and is still to be sent.
    pub(crate) fn caught_up(&mut self, now: Mono, limits: &Limits) -> Vec<Arc<Published>> {
        match std::mem::replace(&mut self.phase, Phase::Live) {
            Phase::Reading { sent, mut early, .. } => {
                early.retain(|published| !sent.contains(&half(&published.event.id)));
                self.phase = Phase::Settling { sent, until: now + limits.settle };
                early
            }
            other => {
                self.phase = other;
                Vec::new()
            }
        }
    }

    /// Judges a live event.
    pub(crate) fn live(&mut self, now: Mono, published: &Arc<Published>) -> Live {
        match &mut self.phase {
            Phase::Reading { early, early_bytes, .. } => {
                *early_bytes = early_bytes.saturating_add(published.json.len());
                if early.len() >= self.capacity.events || *early_bytes > self.capacity.bytes {
                    return Live::Overflow;
                }
                early.push(published.clone());
                Live::Kept
            }
            Phase::Settling { sent, until } if now < *until => {
                if sent.remove(&half(&published.event.id)) { Live::Known } else { Live::Send }
            }
            Phase::Settling { .. } => {
                self.phase = Phase::Live;
                Live::Send
            }
            Phase::Live => Live::Send,
        }
    }
}

pub(crate) fn half(id: &EventId) -> Half {
    let mut half = [0; 16];
    half.copy_from_slice(&id.as_bytes()[..16]);
    half
}

#[cfg(test)]
mod tests {
    use nostr::event::{EventBuilder, FinalizeEvent, Kind};
    use nostr::key::Keys;
    use std::time::Duration;

    use super::*;

    fn limits() -> Limits {
        Limits { live_queue_events: 3, settle: Duration::from_secs(10), ..Limits::default() }
    }

    fn notes() -> [Arc<Published>; 5] {
        let keys = Keys::generate();
        [0, 1, 2, 3, 4].map(|nth| {
            let note = EventBuilder::new(Kind::from(1), nth.to_string()).finalize(&keys);
            Arc::new(Published::new(Arc::new(note.expect("signed"))))
        })
    }

    #[test]
    fn what_history_brought_does_not_come_again() {
        let [old, racing, late, fresh, other] = notes();
        let (now, limits) = (Mono::from_secs(5), limits());
        let mut delivery = Delivery::new(String::new(), &limits);
        assert_eq!(delivery.live(now, &racing), Live::Kept);
        assert_eq!(delivery.live(now, &fresh), Live::Kept);
        assert_eq!(delivery.live(now, &other), Live::Kept);
        for stored in [&old, &racing, &late] {
            delivery.stored(&stored.event.id);
        }
        assert_eq!(delivery.caught_up(now, &limits), [fresh, other]);
        // Committed before history was read, published after its end.
        assert_eq!(delivery.live(now, &late), Live::Known);
    }

    #[test]
    fn memory_of_history_ends_with_the_settling_time() {
        let [old, other, ..] = notes();
        let (now, limits) = (Mono::from_secs(5), limits());
        let mut delivery = Delivery::new(String::new(), &limits);
        delivery.stored(&old.event.id);
        assert!(delivery.caught_up(now, &limits).is_empty());
        assert_eq!(delivery.live(now, &other), Live::Send);
        assert_eq!(delivery.live(now + limits.settle, &old), Live::Send);
        assert!(matches!(delivery.phase, Phase::Live));
    }

    #[test]
    fn too_much_before_the_end_of_history_is_an_overflow() {
        let [a, b, c, d, _] = notes();
        let mut delivery = Delivery::new(String::new(), &limits());
        for kept in [a, b, c] {
            assert_eq!(delivery.live(Mono::ZERO, &kept), Live::Kept);
        }
        assert_eq!(delivery.live(Mono::ZERO, &d), Live::Overflow);
    }
}
