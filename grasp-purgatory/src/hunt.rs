//! Fetches git data that events wait for: a state machine without input, output or clock.
//!
//! ```text
//!   purgatory ──Wanted─────▶ ┌────────┐ ──ReadWants──▶ what is wanted here, and not here?
//!   context   ──WantsRead──▶ │ Hunter │ ──List───────▶ what does that server have?
//!   servers   ──Ended──────▶ │        │ ──Fetch──────▶ get these from there
//!   timer     ──Tick───────▶ └────────┘ ──Report─────▶ log, metrics
//!                   next_deadline() ─────────────────▶ timer
//! ```
//!
//! One attempt for a repository asks servers one after the other, those that the repository's maintainers name first.
//! A visit asks for the wanted objects by their ids, and for the server's advertisement only if it refuses them; its
//! requests come one after the other, before those of visits that wait. An attempt visits the servers that may be asked
//! right now, queues visits to the others, and is over once each of them was asked: waiting is not failing. A
//! slow server is no longer waited for: another one is asked beside it. The number of requests is
//! limited; when others wait, slow ones are cancelled.
//!
//! How much a server is asked for depends on what it is: its NIP-11 document shows whether it is a GRASP server.
//!
//! Invariants: one attempt per repo; no server over its limits or asked during its pause; no address tried
//! twice in one attempt; no object requested that is here.

mod attempt;
#[cfg(feature = "driver")]
mod driver;
mod hosts;
mod io;
mod plan;
mod schedule;
mod visit;

use std::collections::BTreeMap;
use std::time::Duration;

use grasp_core::{Host, Mono, Now, RepoId};

#[cfg(feature = "driver")]
pub use self::driver::{HuntFigures, HuntHandle, SyncContext, hunt};
pub use self::hosts::{HostClass, HostFigures, HostLimits, QueuePosition};
pub use self::io::{FetchError, HuntConfig, HuntReport, Input, Output, RequestId, Scope};
pub use self::plan::{Advertisement, Fingerprint};

use self::attempt::Hunt;
use self::hosts::{Hosts, ReadyVisits};
use self::plan::AddressMemory;
use self::schedule::{HourlyPull, Schedule, Start};
use self::visit::{Request, VisitState};

/// Addresses of which it is remembered what they did not have.
const MAX_ADDRESSES: usize = 4_096;

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
/// let owner = nostr::key::Keys::generate().public_key();
/// let repo = grasp_core::RepoId::new(owner, "grasp".parse().unwrap());
///
/// let _ = hunter.handle(now, Input::Wanted { repo: repo.clone(), after: None });
/// assert_eq!(hunter.next_deadline(), Some(Mono::from_millis(20)));
///
/// let outputs = hunter.handle(now.after(Duration::from_millis(20)), Input::Tick);
/// assert!(outputs.iter().any(|output| matches!(output, Output::ReadWants { .. })));
/// ```
#[derive(Debug)]
pub struct Hunter {
    config: HuntConfig,
    schedule: Schedule,
    pull: HourlyPull,
    hosts: Hosts,
    memory: AddressMemory,
    /// Wanted objects and visits by repository.
    hunts: BTreeMap<RepoId, Hunt>,
    /// Visits with a permit that wait because all slots are in use.
    ready: ReadyVisits,
    /// Requests under way, at most [`HuntConfig::at_once`].
    requests: BTreeMap<RequestId, Request>,
    next_request: u64,
    /// Repositories that were hunted for to the end since there was last nothing to hunt for.
    done: u64,
    now: Now,
    outputs: Vec<Output>,
}

/// The next attempt of a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HuntSchedule {
    /// Unsuccessful attempts since the last reset.
    pub attempts: u32,
    /// Time until the next; `None` while one is under way.
    pub next_in: Option<Duration>,
    /// The best position in the queue of a host, while the attempt waits for a permit.
    pub position: Option<QueuePosition>,
}

impl Hunter {
    /// Creates a hunter without work. Held events are to be announced again after a restart.
    pub fn new(config: HuntConfig, now: Now) -> Self {
        Self {
            schedule: Schedule::new(&config),
            pull: HourlyPull::new(config.pull_every, now.mono),
            hosts: Hosts::new(&config),
            memory: AddressMemory::new(MAX_ADDRESSES),
            hunts: BTreeMap::new(),
            ready: ReadyVisits::default(),
            requests: BTreeMap::new(),
            next_request: 0,
            done: 0,
            config,
            now,
            outputs: Vec::new(),
        }
    }

    /// Handles one input and returns the outputs to perform.
    #[must_use = "a task that is not begun never ends"]
    pub fn handle(&mut self, now: Now, input: Input) -> Vec<Output> {
        self.now = now;
        match input {
            Input::Wanted { repo, after } => {
                if self.schedule.is_empty() {
                    self.done = 0;
                }
                self.schedule.enqueue(now.mono, &repo, after);
            }
            Input::WantsRead { repo, wants } => self.on_wants_read(&repo, wants),
            Input::Answered { request_id } => self.on_answered(request_id),
            Input::Classified { host, class } => self.on_classified(host, class),
            Input::Listed {
                request_id,
                advertised,
            } => self.on_listed(request_id, advertised),
            Input::Ended {
                request_id,
                got,
                error,
            } => self.on_ended(request_id, &got, error),
            Input::ReposListed { repos } => self.pull.listed(now, repos),
            Input::Tick => {}
        }
        self.advance();
        // It looks at everything, which would take the square of very many.
        debug_assert!(self.hunts.len() > 1_000 || self.is_sound());
        std::mem::take(&mut self.outputs)
    }

    /// Returns the time of the next [`Input::Tick`]. To be asked again after each [`handle`](Self::handle).
    pub fn next_deadline(&self) -> Option<Mono> {
        let late = self.next_late().map(|(at, _)| at);
        let gives_way = self.next_to_give_way().map(|(at, _)| at);
        let pull = Some(self.pull.next_deadline());
        [
            self.schedule.next_deadline(),
            self.hosts.next_deadline(),
            late,
            gives_way,
            pull,
        ]
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

    /// Returns the next attempt of each repository, counted from now.
    pub fn schedule_at(&self, now: Mono) -> impl Iterator<Item = (&RepoId, HuntSchedule)> {
        let positions = self.hosts.positions();
        self.schedule.iter().map(move |(repo, attempts, next)| {
            let position = positions.get(repo).copied();
            (
                repo,
                HuntSchedule {
                    attempts,
                    next_in: next.map(|at| at - now),
                    position,
                },
            )
        })
    }

    /// Returns limits and use of each server that was asked lately.
    pub fn hosts(&self) -> impl Iterator<Item = (&Host, HostFigures)> {
        self.hosts.figures()
    }

    /// Starts everything that is due.
    fn advance(&mut self) {
        let now = self.now.mono;
        if self.pull.must_list(now) {
            self.outputs.push(Output::ListRepos);
        }
        for repo in self.pull.due(now) {
            self.schedule.pull(now, &repo);
        }
        for start in self.schedule.start(now) {
            let (repo, attempt) = (start.repo.clone(), start.attempt);
            self.report(HuntReport::Started { repo, attempt });
            let Start { repo, scope, .. } = start;
            self.outputs.push(Output::ReadWants { repo, scope });
        }
        let permits = self.hosts.due(now);
        self.grant(permits);
        while let Some((_, request_id)) = self.next_late().filter(|(at, _)| *at <= now) {
            self.on_late(request_id);
        }
        self.start_ready();
        self.give_way();
    }

    fn report(&mut self, report: HuntReport) {
        self.outputs.push(Output::Report(report));
    }

    /// Checks the invariants between two inputs.
    fn is_sound(&self) -> bool {
        let visits = self.hunts.values().flat_map(|hunt| hunt.visits.values());
        let mut states = visits.map(|visit| visit.state);
        let all_run = states.all(|state| match state {
            VisitState::Running(request_id) => self.requests.contains_key(&request_id),
            VisitState::Queued | VisitState::Ready => true,
        });
        let awaited_only_in_attempts = self
            .hunts
            .iter()
            .all(|(repo, hunt)| !hunt.awaits_visit() || self.schedule.is_running(repo));
        let needed = self.hunts.values().all(|hunt| !hunt.needs.is_empty());
        all_run
            && awaited_only_in_attempts
            && needed
            && self.requests.len() <= self.config.at_once.get()
    }
}
