//! One attempt for one identifier: the next server to ask, and the end.

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::service::relay_of_clone_url;
use grasp_core::{CloneUrl, Host, Identifier, Mono, Oid, RelayUrl};

use super::plan::{Advertisement, Needs, next_place};
use super::queue::End;
use super::throttle::{HostPermit, Throttle};
use super::{HostClass, HuntConfig, HuntReport, Hunter, Output, RequestId, Trouble};
use crate::purgatory::Want;

impl Hunter {
    pub(super) fn on_briefed(
        &mut self,
        out: &mut Vec<Output>,
        identifier: &Identifier,
        wants: Option<Vec<Want>>,
    ) {
        if !self.queue.is_running(identifier) {
            return;
        }
        let Some(wants) = wants else {
            return self.end_attempt(out, identifier, End::Wanting);
        };
        let needs = Needs::new(wants);
        if needs.is_empty() {
            let end = self.queue.needless(identifier);
            return self.satisfy(out, identifier, end);
        }
        let places = needs.places(&self.memory, self.config.places_per_attempt, self.now.mono);
        let hunt = self.hunts.entry(identifier.clone()).or_default();
        (hunt.needs, hunt.places) = (needs, places);
        hunt.tried.clear();
        self.ask_next(out, identifier);
    }

    /// Asks the next server that may be asked now. Without one it queues visits with those that may be asked later,
    /// and is over once these were asked; those that are late it leaves to themselves.
    pub(super) fn ask_next(&mut self, out: &mut Vec<Output>, identifier: &Identifier) {
        let Some(hunt) = self.hunts.get_mut(identifier) else { return };
        if hunt.awaits_visit() || !self.queue.is_running(identifier) {
            return;
        }
        let mut leave_out = hunt.busy_hosts();
        while let Some(url) = next_place(&hunt.places, &hunt.tried, &leave_out).cloned() {
            if hunt.needs.of(&url).is_empty() {
                hunt.tried.insert(url);
                continue;
            }
            classify(&mut self.throttle, self.now.mono, out, &url);
            let Some(permit) = self.throttle.admit(self.now.mono, &url.host(), identifier) else {
                leave_out.insert(url.host());
                continue;
            };
            hunt.tried.insert(url.clone());
            hunt.visits.insert(url.clone(), Visit::new(Role::Primary, &self.config));
            return self.start(out, identifier, &url, permit);
        }
        self.enqueue_with_hosts(out, identifier);
        if let Some(hunt) = self.hunts.get(identifier).filter(|hunt| hunt.has_queued_visit()) {
            let were_asked = hunt.tried.iter().any(|url| !hunt.visits.contains_key(url));
            self.queue.wait_for_hosts(self.now.mono, identifier, were_asked);
            out.push(Output::Report(HuntReport::InLine { identifier: identifier.clone() }));
        } else {
            self.give_up_attempt(out, identifier);
        }
    }

    /// Ends an attempt for which every server was asked and something is left.
    fn give_up_attempt(&mut self, out: &mut Vec<Output>, identifier: &Identifier) {
        let is_pressing = self.hunts.get(identifier).is_none_or(|hunt| hunt.needs.is_pressing());
        self.end_attempt(out, identifier, if is_pressing { End::Wanting } else { End::Later });
    }

    /// Ends an attempt whose queued visits are over.
    pub(super) fn end_if_all_asked(&mut self, out: &mut Vec<Output>, identifier: &Identifier) {
        let has_queued_visit =
            self.hunts.get(identifier).is_some_and(IdentifierHunt::has_queued_visit);
        if self.queue.waits_for_hosts(identifier) && !has_queued_visit {
            self.give_up_attempt(out, identifier);
        }
        self.forget_if_idle(identifier);
    }

    /// Queues a visit with every host that could not be asked.
    fn enqueue_with_hosts(&mut self, out: &mut Vec<Output>, identifier: &Identifier) {
        let Some(hunt) = self.hunts.get(identifier) else { return };
        let untried = hunt.places.iter().filter(|url| !hunt.tried.contains(*url));
        let hosts: Vec<Host> = untried.map(CloneUrl::host).collect();
        for host in hosts {
            self.enqueue_with_host(out, identifier, &host);
        }
    }

    /// Queues a visit to the next address of a host, unless one is under way there.
    pub(super) fn enqueue_with_host(
        &mut self,
        out: &mut Vec<Output>,
        identifier: &Identifier,
        host: &Host,
    ) {
        let Some(hunt) = self.hunts.get_mut(identifier) else { return };
        if hunt.busy_hosts().contains(host) {
            return;
        }
        let tried = hunt.lines.entry(host.clone()).or_default();
        // What the attempt has tried is not tried again here, nor is the reverse true: the next attempt begins anew.
        let mut here = hunt.places.iter().filter(|url| url.host() == *host);
        let next = here.find(|url| {
            !tried.contains(*url) && !hunt.tried.contains(*url) && !hunt.needs.of(url).is_empty()
        });
        let Some(url) = next.cloned() else {
            hunt.lines.remove(host);
            return;
        };
        tried.insert(url.clone());
        hunt.visits.insert(url.clone(), Visit::new(Role::Queued, &self.config));
        classify(&mut self.throttle, self.now.mono, out, &url);
        match self.throttle.enqueue(self.now.mono, host, identifier) {
            Some(permits) => self.grant(out, permits),
            None => {
                hunt.visits.remove(&url);
                hunt.lines.remove(host);
            }
        }
    }

    /// Handles a slow visit. One that began in the queue of its host is waited for no longer: every server was asked.
    pub(super) fn on_late(&mut self, out: &mut Vec<Output>, request_id: RequestId) {
        let Some(request) = self.requests.get_mut(&request_id) else { return };
        let limit = request.began + self.config.answer_limit;
        request.late_at = (!request.has_answered && self.now.mono < limit).then_some(limit);
        self.late.extend(request.late_at.map(|at| (at, request_id)));
        if !request.has_answered && request.late_at.is_none() {
            request.gives_way_at = None;
            return out.push(Output::Cancel { request_id });
        }
        let (identifier, url) = (request.identifier.clone(), request.url.clone());
        let Some(hunt) = self.hunts.get_mut(&identifier) else { return };
        let Some(visit) = hunt.visits.get_mut(&url) else { return };
        match visit.role {
            Role::Primary => {
                visit.role = Role::Slow;
                self.ask_another(out, &identifier);
            }
            Role::Queued => {
                visit.role = Role::Hedge;
                hunt.lines.remove(&url.host());
                self.end_if_all_asked(out, &identifier);
            }
            Role::Slow | Role::Hedge => {}
        }
    }

    /// Asks another server beside a slow visit, unless too many are slow.
    pub(super) fn ask_another(&mut self, out: &mut Vec<Output>, identifier: &Identifier) {
        let most = self.config.late_visits;
        if self.hunts.get_mut(identifier).is_some_and(|hunt| hunt.stop_waiting(most)) {
            self.ask_next(out, identifier);
        }
    }

    /// Cancels the remaining requests: every wanted object is here.
    pub(super) fn satisfy(&mut self, out: &mut Vec<Output>, identifier: &Identifier, end: End) {
        if let Some(hunt) = self.hunts.remove(identifier) {
            self.cancel_all(out, identifier, &hunt);
        }
        if self.queue.is_running(identifier) || self.queue.waits_for_hosts(identifier) {
            self.end_attempt(out, identifier, end);
        } else {
            // Between two attempts something may have come to be wanted that this hunt never knew of.
            self.queue.settle(self.now.mono, identifier);
        }
    }

    fn cancel_all(
        &mut self,
        out: &mut Vec<Output>,
        identifier: &Identifier,
        hunt: &IdentifierHunt,
    ) {
        for (url, visit) in &hunt.visits {
            match visit.state {
                VisitState::Queued => {
                    let permits = self.throttle.withdraw(self.now.mono, &url.host(), identifier);
                    self.grant(out, permits);
                }
                VisitState::Ready => {}
                VisitState::Running(request_id) => {
                    // The one that brought the last object has landed.
                    let Some(request) = self.requests.get_mut(&request_id) else { continue };
                    if let Some(at) = request.late_at.take() {
                        self.late.remove(&(at, request_id));
                    }
                    out.push(Output::Cancel { request_id });
                }
            }
        }
        for permit in self.slots.withdraw(identifier) {
            let permits = self.throttle.release(self.now.mono, permit);
            self.grant(out, permits);
        }
    }

    pub(super) fn end_attempt(&mut self, out: &mut Vec<Output>, identifier: &Identifier, end: End) {
        let follows = self.queue.ended(self.now.mono, identifier, end);
        self.forget_if_idle(identifier);
        let identifier = identifier.clone();
        let next = match (end, follows) {
            (End::Satisfied, None) => {
                self.done += 1;
                return out.push(Output::Report(HuntReport::Complete { identifier }));
            }
            (End::Needless, None) => {
                self.done += 1;
                return out.push(Output::Report(HuntReport::Needless { identifier }));
            }
            (_, None) => None,
            (_, Some(next)) => Some(next - self.now.mono),
        };
        let attempts = self.queue.attempts(&identifier);
        out.push(Output::Report(HuntReport::Incomplete { identifier, attempts, next }));
    }

    /// Drops the state of an identifier without visits; the next attempt makes a new one.
    pub(super) fn forget_if_idle(&mut self, identifier: &Identifier) {
        let is_idle = self.hunts.get(identifier).is_some_and(|hunt| hunt.visits.is_empty());
        if is_idle && !self.queue.is_running(identifier) {
            self.hunts.remove(identifier);
        }
    }

    pub(super) fn on_classified(
        &mut self,
        out: &mut Vec<Output>,
        host: Host,
        class: Option<HostClass>,
    ) {
        let Some(class) = class else { return };
        let permits = self.throttle.classified(self.now.mono, &host, class);
        out.push(Output::Report(HuntReport::Classified { host, class }));
        self.grant(out, permits);
    }
}

/// Classifies a host, if its address is one that GRASP servers have and its class is unknown.
///
/// Only the root of a host is trusted: below it, hosts serve documents of their users.
fn classify(throttle: &mut Throttle, now: Mono, out: &mut Vec<Output>, url: &CloneUrl) {
    let is_root = |relay: &RelayUrl| relay.as_str().matches('/').count() == 2;
    let Some(relay) = relay_of_clone_url(url).filter(is_root) else { return };
    if throttle.must_classify(now, &url.host()) {
        out.push(Output::Classify { host: url.host(), relay });
    }
}

/// The hunt for one identifier. Outlives an attempt while a visit runs or is queued.
#[derive(Debug, Default)]
pub(super) struct IdentifierHunt {
    pub(super) needs: Needs,
    /// Addresses of the present attempt, in order.
    pub(super) places: Vec<CloneUrl>,
    /// Addresses that the present attempt has tried.
    pub(super) tried: BTreeSet<CloneUrl>,
    /// Hosts with a queued visit, and the addresses tried there.
    pub(super) lines: BTreeMap<Host, BTreeSet<CloneUrl>>,
    pub(super) visits: BTreeMap<CloneUrl, Visit>,
}

/// One address being asked: for the wanted objects, and if it refuses those, for its advertisement and what that shows.
#[derive(Debug)]
pub(super) struct Visit {
    pub(super) role: Role,
    pub(super) step: VisitStep,
    pub(super) state: VisitState,
    pub(super) advertised: Option<Advertisement>,
    /// The objects that asking for them directly did not bring, until the advertisement says more about them.
    pub(super) failed: Option<DirectFailure>,
    /// The advertised objects were requested together.
    pub(super) batched: bool,
    pub(super) guesses_left: usize,
}

/// Objects that were asked for without an advertisement and did not come.
#[derive(Debug)]
pub(super) struct DirectFailure {
    pub(super) asked: BTreeSet<Oid>,
    pub(super) lacking: BTreeSet<Oid>,
    /// The server refused them, rather than sending broken ones.
    pub(super) is_refusal: bool,
}

/// The role of a visit in its attempt, which decides what follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// The attempt waits for its end.
    Primary,
    /// The attempt still waits for it although it is slow: too many others are.
    Slow,
    /// Slow; the attempt asks other servers beside it.
    Hedge,
    /// Began in the queue of its host.
    Queued,
}

/// The request that a visit makes next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum VisitStep {
    /// Not decided before a permit is granted.
    Open,
    /// All that is wanted, without asking what the server has.
    Direct(BTreeSet<Oid>),
    List,
    Batch(BTreeSet<Oid>),
    Guess(Oid),
}

/// The state of a visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VisitState {
    /// Waits for a permit of its host.
    Queued,
    /// Has a permit and waits for a fetch slot.
    Ready,
    Running(RequestId),
}

/// A request under way.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) id: RequestId,
    pub(super) identifier: Identifier,
    pub(super) url: CloneUrl,
    /// The requested objects; empty for an advertisement.
    pub(super) asked: BTreeSet<Oid>,
    pub(super) permit: HostPermit,
    pub(super) began: Mono,
    /// The server has begun to answer.
    pub(super) has_answered: bool,
    /// Time of the next check for slowness.
    pub(super) late_at: Option<Mono>,
    /// Time from which it is cancelled for waiting requests; `None` once it was.
    pub(super) gives_way_at: Option<Mono>,
}

impl Request {
    /// Returns whether it was cancelled for a waiting request.
    pub(super) fn was_cancelled(&self) -> bool {
        self.gives_way_at.is_none()
    }

    /// Reads the cancellation for a waiting request as slowness.
    pub(super) fn read(&self, trouble: Trouble) -> Trouble {
        if self.was_cancelled() && trouble == Trouble::Cancelled {
            Trouble::Stalled
        } else {
            trouble
        }
    }
}

impl IdentifierHunt {
    /// Returns whether an attempt waits for a visit.
    pub(super) fn awaits_visit(&self) -> bool {
        self.visits.values().any(|visit| matches!(visit.role, Role::Primary | Role::Slow))
    }

    /// Stops waiting for a visit that takes long, unless too many are late. Says whether there is one to wait for no
    /// longer.
    pub(super) fn stop_waiting(&mut self, most_late: usize) -> bool {
        if self.late() >= most_late {
            return false;
        }
        let overdue = self.visits.values_mut().find(|visit| visit.role == Role::Slow);
        overdue.map(|visit| visit.role = Role::Hedge).is_some()
    }

    /// Returns whether a queued visit has not ended.
    pub(super) fn has_queued_visit(&self) -> bool {
        self.visits.values().any(|visit| visit.role == Role::Queued)
    }

    /// Returns the number of slow visits that are not waited for.
    pub(super) fn late(&self) -> usize {
        self.visits.values().filter(|visit| visit.role == Role::Hedge).count()
    }

    /// Returns the hosts with a visit.
    pub(super) fn busy_hosts(&self) -> BTreeSet<Host> {
        self.visits.keys().map(CloneUrl::host).collect()
    }

    /// Returns the visit that waits for a permit of a host.
    pub(super) fn queued_at(&self, host: &Host) -> Option<&CloneUrl> {
        let queued = self.visits.iter().filter(|(_, visit)| visit.state == VisitState::Queued);
        queued.map(|(url, _)| url).find(|url| url.host() == *host)
    }

    /// Returns the requests under way.
    pub(super) fn request_ids(&self) -> impl Iterator<Item = RequestId> + '_ {
        self.visits.values().filter_map(|visit| match visit.state {
            VisitState::Running(request_id) => Some(request_id),
            VisitState::Queued | VisitState::Ready => None,
        })
    }
}

impl Visit {
    pub(super) fn new(role: Role, config: &HuntConfig) -> Self {
        Self {
            role,
            step: VisitStep::Open,
            state: VisitState::Queued,
            advertised: None,
            failed: None,
            batched: false,
            guesses_left: config.guesses_per_visit,
        }
    }
}

impl VisitStep {
    /// The objects that are asked for.
    pub(super) fn oids(&self) -> BTreeSet<Oid> {
        match self {
            Self::Open | Self::List => BTreeSet::new(),
            Self::Direct(oids) | Self::Batch(oids) => oids.clone(),
            Self::Guess(oid) => BTreeSet::from([*oid]),
        }
    }
}
