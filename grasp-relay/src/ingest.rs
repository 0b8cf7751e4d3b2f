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

mod authority;
mod bounds;
mod budgets;
mod git_side;
mod lookup;
mod round;

use std::sync::{Arc, Mutex};

use futures_util::future::BoxFuture;
use grasp_core::Verified;
pub use grasp_core::admission::{Answer, Origin, Verdict};
use grasp_core::admission::{FanOut, Policy, Rejection};
use nostr::event::Event;

pub use self::budgets::Budgets;
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
            let genuine: Vec<bool> = checked.iter().map(Option::is_some).collect();
            let checked = checked.into_iter().flatten().collect();
            let mut verdicts = self.ingest_verified(checked, origin).await.into_iter();
            let mut judged = || verdicts.next().unwrap_or(Verdict::Reject(Rejection::Internal));
            let answer = |genuine| match genuine {
                true => judged(),
                false => Verdict::Reject(Rejection::Forged),
            };
            genuine.into_iter().map(answer).collect()
        })
    }
}

/// Events checked by one thread in one go: some milliseconds of work.
const SHARE: usize = 64;

/// Checks ids and signatures on threads that may be busy for long; `None` for what is forged.
async fn check_all(events: Vec<Event>) -> Vec<Option<Verified<Arc<Event>>>> {
    let mut checks = Vec::new();
    let mut events = events.into_iter();
    while events.len() > 0 {
        let share: Vec<Event> = events.by_ref().take(SHARE).collect();
        let count = share.len();
        let check = |event| Verified::check(event).ok().map(Verified::share);
        let check = move || share.into_iter().map(check).collect();
        checks.push((tokio::task::spawn_blocking(check), count));
    }
    let mut checked = Vec::new();
    for (check, count) in checks {
        checked.extend(check.await.unwrap_or_else(|_| vec![None; count]));
    }
    checked
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
    /// Who has brought how much, and what hangs on what.
    pub fan_out: Mutex<FanOut>,
    /// What clients may make it do.
    pub budgets: Budgets,
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
                    let turns = matches!(&verdict, Verdict::Reject(why) if why.is_reversible());
                    if let Some(place) = verdicts.get_mut(pending.position) {
                        *place = verdict;
                    }
                    if progress && turns {
                        later.push(pending);
                    }
                }
                pending = later;
            }
            verdicts
        })
    }
}
