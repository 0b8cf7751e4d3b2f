//! Fetches git data that events wait for: a state machine without input, output or clock.
//!
//! ```text
//!   purgatory ──Wanted───▶ ┌────────┐ ──Brief──▶ what is wanted here, and not here?
//!   world     ──Briefed──▶ │ Hunter │ ──List───▶ what does that server have?
//!   servers   ──Fetched──▶ │        │ ──Fetch──▶ get these from there
//!   timer     ──Tick─────▶ └────────┘ ──Report─▶ log, metrics
//!                 next_deadline() ─────────────▶ timer
//! ```
//!
//! One attempt for an identifier asks servers one after the other, those that the repository's maintainers name first.
//! A visit asks for the wanted objects by their ids, and for the server's advertisement only if it refuses them; all
//! of that uses one permit of the host. An attempt visits the servers that may be asked right
//! now, queues visits to the others, and is over once each of them was asked: waiting is not failing. A
//! slow server is no longer waited for: another one is asked beside it. The number of requests is
//! limited; when others wait, slow ones are cancelled.
//!
//! How much a server is asked for depends on what it is: its NIP-11 document shows whether it is a GRASP server.
//!
//! Invariants: one attempt per identifier; no server over its limits or asked during its pause; no address tried
//! twice in one attempt; no object requested that is here.

mod attempt;
#[cfg(feature = "driver")]
mod driver;
mod io;
mod permit;
mod plan;
mod queue;
mod throttle;
mod visit;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use grasp_core::{Host, Identifier, Mono, Now};

#[cfg(feature = "driver")]
pub use self::driver::{HuntFigures, HuntHandle, SyncContext, hunt};
pub use self::io::{HuntConfig, HuntReport, Input, Output, RequestId, Scope, Trouble};
pub use self::permit::{Admission, Enqueued, Permit, PermitConfig, Permits, RateWindow};
pub use self::plan::{Advertisement, Fingerprint};
pub use self::throttle::{HostClass, HostFigures, Position};

use self::attempt::{IdentifierHunt, Request};
use self::plan::AddressMemory;
use self::queue::{HourlyPull, Queue};
use self::throttle::{FetchSlots, Throttle};

/// The state machine of the hunt: the wanted objects, and the requests for them.
///
/// ```
/// use std::time::Duration;
/// use grasp_core::{Mono, Now};
/// use grasp_purgatory::hunt::{HuntConfig, Hunter, Input, Output};
/// use nostr::types::Timestamp;
///
/// let now = Now::new(Mono::ZERO, Timestamp::from_secs(1_800_000_000));
/// let mut hunter = Hunter::new(HuntConfig::default(), now);
/// let identifier: grasp_core::Identifier = "grasp".parse().unwrap();
///
/// let _ = hunter.handle(now, Input::Wanted { identifier: identifier.clone(), after: None });
/// assert_eq!(hunter.next_deadline(), Some(Mono::from_millis(20)));
///
/// let outputs = hunter.handle(now.after(Duration::from_millis(20)), Input::Tick);
/// assert!(outputs.iter().any(|output| matches!(output, Output::Brief { .. })));
/// ```
#[derive(Debug)]
pub struct Hunter {
    config: HuntConfig,
    queue: Queue,
    throttle: Throttle,
    slots: FetchSlots,
    memory: AddressMemory,
    pull: HourlyPull,
    /// Wanted objects and visits by identifier.
    hunts: BTreeMap<Identifier, IdentifierHunt>,
    /// Conversations under way.
    requests: BTreeMap<RequestId, Request>,
    /// Times at which requests become slow.
    late: BTreeSet<(Mono, RequestId)>,
    next_request: u64,
    /// Identifiers that were hunted for to the end since there was last nothing to hunt for.
    done: u64,
    now: Now,
}

/// The next attempt of an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HuntSchedule {
    /// Unsuccessful attempts since the last reset.
    pub attempts: u32,
    /// Time until the next; `None` while one is under way.
    pub next_in: Option<Duration>,
    /// The best position in the queue of a host, while the attempt waits for one.
    pub in_line: Option<Position>,
}

impl Hunter {
    /// Creates a hunter without work. Held events are to be announced again after a restart.
    pub fn new(config: HuntConfig, now: Now) -> Self {
        Self {
            queue: Queue::new(&config),
            throttle: Throttle::new(&config),
            slots: FetchSlots::new(config.at_once),
            memory: AddressMemory::new(&config),
            pull: HourlyPull::new(config.pull_every, now),
            hunts: BTreeMap::new(),
            requests: BTreeMap::new(),
            late: BTreeSet::new(),
            next_request: 0,
            done: 0,
            config,
            now,
        }
    }

    /// Handles one input and returns the outputs to perform.
    #[must_use = "a task that is not begun never ends"]
    pub fn handle(&mut self, now: Now, input: Input) -> Vec<Output> {
        self.now = now;
        let mut out = Vec::new();
        match input {
            Input::Wanted { identifier, after } => {
                if self.queue.is_empty() {
                    self.done = 0;
                }
                if self.queue.enqueue(now.mono, &identifier, after) {
                    out.push(Output::Report(HuntReport::Queued { identifier, after }));
                }
            }
            Input::Briefed { identifier, wants } => self.on_briefed(&mut out, &identifier, wants),
            Input::Answered { request_id } => self.on_answered(request_id),
            Input::Classified { host, class } => self.on_classified(&mut out, host, class),
            Input::Listed { request_id, result } => self.on_listed(&mut out, request_id, result),
            Input::Fetched { request_id, got, trouble } => {
                self.on_fetched(&mut out, request_id, &got, trouble);
            }
            Input::Counted { identifiers } => self.pull.counted(identifiers),
            Input::Tick => {}
        }
        self.advance(&mut out);
        // It looks at everything, which would take the square of very many.
        debug_assert!(self.hunts.len() > 1_000 || self.is_sound());
        out
    }

    /// Returns the time of the next [`Input::Tick`]. To be asked again after each [`handle`](Self::handle).
    pub fn next_deadline(&self) -> Option<Mono> {
        let late = self.late.first().map(|(at, _)| *at);
        let pull = Some(self.pull.next_deadline(self.now));
        let gives_way = self.next_to_give_way().map(|(at, _)| at);
        [self.queue.next_deadline(), self.throttle.next_deadline(), late, gives_way, pull]
            .into_iter()
            .flatten()
            .min()
    }

    /// Returns the number of requests under way.
    pub fn in_flight(&self) -> usize {
        self.requests.len()
    }

    /// Returns the number of finished hunts since there was last nothing to hunt for.
    pub fn done(&self) -> u64 {
        self.done
    }

    /// Returns the next attempt of each identifier, counted from now.
    pub fn schedule_at(&self, now: Mono) -> impl Iterator<Item = (&Identifier, HuntSchedule)> {
        let positions = self.throttle.positions();
        self.queue.schedule().map(move |(identifier, attempts, next)| {
            let in_line = positions.get(identifier).copied();
            (identifier, HuntSchedule { attempts, next_in: next.map(|at| at - now), in_line })
        })
    }

    /// Returns limits and use of each server that was asked lately.
    pub fn hosts(&self) -> impl Iterator<Item = (&Host, HostFigures)> {
        self.throttle.figures()
    }

    /// Starts everything that is due.
    fn advance(&mut self, out: &mut Vec<Output>) {
        let now = self.now.mono;
        if self.pull.must_count(now) {
            out.push(Output::Count);
        }
        for identifier in self.pull.due(self.now) {
            self.queue.pull(now, &identifier);
        }
        for start in self.queue.start(now) {
            let (identifier, attempt) = (start.identifier.clone(), start.attempt);
            out.push(Output::Report(HuntReport::Started { identifier, attempt }));
            out.push(Output::Brief { identifier: start.identifier, scope: start.scope });
        }
        let permits = self.throttle.due(now);
        self.grant(out, permits);
        while self.late.first().is_some_and(|(at, _)| *at <= now) {
            let Some((_, request_id)) = self.late.pop_first() else { break };
            self.on_late(out, request_id);
        }
        self.start_ready(out);
        self.give_way(out);
    }

    /// Checks the invariants between two inputs.
    fn is_sound(&self) -> bool {
        let flying = self.hunts.values().flat_map(IdentifierHunt::request_ids);
        let all_fly = flying.into_iter().all(|request_id| self.requests.contains_key(&request_id));
        let awaited_only_in_attempts = self
            .hunts
            .iter()
            .all(|(identifier, hunt)| !hunt.awaits_visit() || self.queue.is_running(identifier));
        let needed = self.hunts.values().all(|hunt| !hunt.needs.is_empty());
        let hands = self.slots.busy() == self.requests.len()
            && self.requests.len() <= self.config.at_once.get();
        all_fly && awaited_only_in_attempts && needed && hands
    }
}
