//! The one way in: verify, judge, store or hold or refuse, and only then acknowledge and publish.
//!
//! ```text
//! events ─▶ verify ─▶ look up what the rulebook asks for ─▶ judge ─┬▶ store (one transaction) ─▶ hub
//!          off the async threads      one read per round           ├▶ hold (git side)
//!                                                                  └▶ refuse
//! ```
//!
//! A batch is judged in rounds. What is refused for want of something is judged again when a round stored anything,
//! so the order inside a batch does not matter.

mod git_side;
mod lookup;
mod round;

use std::sync::Arc;

use futures_util::future::BoxFuture;
use grasp_core::Verified;
pub use grasp_core::admission::{Answer, Origin, Verdict};
use grasp_core::admission::{Lasting, Policy, Rejection};
use nostr::event::Event;

pub use self::git_side::{GitFacts, GitSide, Kept, RelayOnly};
use self::round::{Pending, next_round};
use crate::clock::Clock;
use crate::nostr::Hub;
use crate::store::EventStore;

/// Takes events into this server, whoever brings them.
pub trait Ingest: Send + Sync + 'static {
    /// Judges and keeps events in order; one verdict each, given only once what it promises is durable.
    fn ingest_verified(
        &self,
        events: Vec<Verified<Arc<Event>>>,
        origin: Origin,
    ) -> BoxFuture<'_, Vec<Verdict>>;

    /// The same for events that nobody has checked yet.
    fn ingest(&self, events: Vec<Event>, origin: Origin) -> BoxFuture<'_, Vec<Verdict>> {
        Box::pin(async move {
            let checked = check_all(events).await;
            let good = checked.iter().flatten().cloned().collect();
            let mut verdicts = self.ingest_verified(good, origin).await.into_iter();
            let forged = || Verdict::Reject(Rejection::Forged);
            let failed = || Verdict::Reject(Rejection::Internal);
            let answer = |event: &Option<_>| match event {
                Some(_) => verdicts.next().unwrap_or_else(failed),
                None => forged(),
            };
            checked.iter().map(answer).collect()
        })
    }
}

/// Checks ids and signatures on a thread that may be busy for long; `None` for what is forged.
async fn check_all(events: Vec<Event>) -> Vec<Option<Verified<Arc<Event>>>> {
    let count = events.len();
    let check = |event| Verified::check(event).ok().map(Verified::share);
    let work = move || events.into_iter().map(check).collect();
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| vec![None; count])
}

/// The server's own way in.
pub struct Pipeline {
    /// Where accepted events are kept.
    pub store: Arc<dyn EventStore>,
    /// Where git data is, and where events wait for it.
    pub git: Arc<dyn GitSide>,
    /// Where accepted events are told to whoever listens.
    pub hub: Hub,
    /// The settings of the rulebook.
    pub policy: Policy,
    /// The time.
    pub clock: Clock,
}

impl Ingest for Pipeline {
    fn ingest_verified(
        &self,
        events: Vec<Verified<Arc<Event>>>,
        origin: Origin,
    ) -> BoxFuture<'_, Vec<Verdict>> {
        Box::pin(async move {
            let mut verdicts = vec![Verdict::Reject(Rejection::Internal); events.len()];
            let mut pending: Vec<Pending> = events
                .into_iter()
                .enumerate()
                .map(|(position, event)| Pending { position, event })
                .collect();
            while !pending.is_empty() {
                let (round, mut later) = next_round(pending);
                let judged = self.judge_and_keep(&round, &origin).await;
                let progress = judged.iter().any(|verdict| matches!(verdict, Verdict::Accept(_)));
                for (pending, verdict) in round.into_iter().zip(judged) {
                    let again = progress && may_change(&verdict);
                    if let Some(place) = verdicts.get_mut(pending.position) {
                        *place = verdict;
                    }
                    if again {
                        later.push(pending);
                    }
                }
                pending = later;
            }
            verdicts
        })
    }
}

/// Whether something stored just now could turn a refusal.
fn may_change(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Reject(why)
        if *why != Rejection::TooFarAhead && why.lasting() == Lasting::UntilDependency)
}
