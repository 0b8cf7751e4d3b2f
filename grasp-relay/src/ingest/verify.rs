//! Verification: ids and signatures, on blocking threads where it takes long.

use std::convert::Infallible;
use std::sync::Arc;

use grasp_core::Verified;
use grasp_core::admission::{Outcome, Rejection};
use nostr::event::Event;
use tokio::sync::oneshot;

use super::weight;

/// Events that are verified by one thread at once: some milliseconds of work.
const VERIFY_BATCH: usize = 64;

/// Events that are verified by the task that has them, if there are no more: some tenths of a millisecond.
const MAX_VERIFIED_AT_ONCE: usize = 4;

/// Bytes of the events that are verified so.
const MAX_BYTES_VERIFIED_AT_ONCE: usize = 16 * 1024;

/// The time from which a batch may be judged: a client's batches are verified side by side and judged one after the other.
#[derive(Debug, Default)]
pub struct Turn(Option<oneshot::Receiver<Infallible>>);

/// The end of a batch, at which the [`Turn`] of the next one comes: when this is dropped.
#[derive(Debug)]
pub(crate) struct TurnEnd {
    _ends: oneshot::Sender<Infallible>,
}

impl Turn {
    /// Returns the turn of the batch that follows another one, and the end of that.
    pub(crate) fn after_another() -> (TurnEnd, Self) {
        let (ends, ended) = oneshot::channel();
        (TurnEnd { _ends: ends }, Self(Some(ended)))
    }

    async fn comes(self) {
        if let Some(ended) = self.0 {
            // Nothing is sent: the sender is dropped.
            let _ = ended.await;
        }
    }
}

/// Verifies events, waits for their turn, and has the genuine ones judged; the others are refused.
pub(crate) async fn verify_then<F: Future<Output = Vec<Outcome>>>(
    events: Vec<Event>,
    turn: Turn,
    judge: impl FnOnce(Vec<Verified<Arc<Event>>>) -> F,
) -> Vec<Outcome> {
    let checked = verify_all(events).await;
    turn.comes().await;
    let genuine: Vec<bool> = checked.iter().map(Option::is_some).collect();
    let mut outcomes = judge(checked.into_iter().flatten().collect())
        .await
        .into_iter();
    let outcome = |genuine| match genuine {
        true => outcomes.next().unwrap_or(Rejection::Internal.into()),
        false => Rejection::Forged.into(),
    };
    genuine.into_iter().map(outcome).collect()
}

/// Verifies ids and signatures; `None` for a forged event. A few small events are verified at once, because handing them
/// to a blocking thread would take longer; more go to blocking threads.
async fn verify_all(events: Vec<Event>) -> Vec<Option<Verified<Arc<Event>>>> {
    if is_verified_at_once(&events) {
        return verify(events);
    }
    let mut checks = Vec::new();
    let mut events = events.into_iter();
    while events.len() > 0 {
        let share: Vec<Event> = events.by_ref().take(VERIFY_BATCH).collect();
        let count = share.len();
        checks.push((tokio::task::spawn_blocking(|| verify(share)), count));
    }
    let mut checked = Vec::new();
    for (check, count) in checks {
        checked.extend(check.await.unwrap_or_else(|_| vec![None; count]));
    }
    checked
}

fn verify(events: Vec<Event>) -> Vec<Option<Verified<Arc<Event>>>> {
    let mut checked = Vec::with_capacity(events.len());
    for event in events {
        checked.push(Verified::check(event).ok().map(Verified::share));
    }
    checked
}

/// Returns whether verifying these events takes so little time that other connections need not notice.
fn is_verified_at_once(events: &[Event]) -> bool {
    if events.len() > MAX_VERIFIED_AT_ONCE {
        return false;
    }
    let mut bytes = 0;
    for event in events {
        bytes += weight(event);
    }
    bytes <= MAX_BYTES_VERIFIED_AT_ONCE
}
