//! One visit to one address: the wanted objects by id; if it refuses those, its advertisement, what that shows, and a
//! guess or two. Its requests come one after the other, each with a permit of the host.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use grasp_core::{CloneUrl, Host, Mono, Oid, RepoId};

use super::hosts::Permit;
use super::plan::Failure;
use super::schedule::End;
use super::{Advertisement, FetchError, HuntReport, Hunter, Output, RequestId};

/// Objects asked for in one visit although the server does not advertise them.
const GUESSES_PER_VISIT: usize = 2;

/// Pause of a server that asks for fewer requests and does not say for how long.
const DEFAULT_PAUSE: Duration = Duration::from_secs(60);

/// Longest pause that a server can ask for.
const MAX_PAUSE: Duration = Duration::from_secs(60 * 60);

/// Time of a transfer after which it is cancelled if other requests wait because all slots are in use. Doubled each
/// time that an address has given way, so that large transfers end eventually. A server that has not answered gives
/// way as soon as it is late.
const FETCH_GIVES_WAY: Duration = Duration::from_secs(5 * 60);

/// One address being asked.
#[derive(Debug)]
pub(super) struct Visit {
    pub(super) url: CloneUrl,
    pub(super) role: Role,
    pub(super) state: VisitState,
    next: NextRequest,
    advertised: Option<Advertisement>,
    /// The objects that the first request did not bring, until the advertisement says more about them.
    lacking: Option<Lacking>,
    /// The advertised objects were requested together.
    was_batched: bool,
    guesses_left: usize,
}

/// The role of a visit in its attempt, which decides what follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// The attempt waits for its end.
    Awaited,
    /// The attempt still waits for it although it is slow: too many others are late.
    Slow,
    /// Slow; the attempt asks other servers beside it.
    Late,
    /// Began in the queue of its host.
    Queued,
}

impl Role {
    pub(super) fn is_awaited(self) -> bool {
        matches!(self, Self::Awaited | Self::Slow)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VisitState {
    /// Waits for a permit of its host.
    Queued,
    /// Has a permit and waits for a request slot.
    Ready,
    Running(RequestId),
}

/// The request that a visit makes next.
#[derive(Clone, Debug, PartialEq, Eq)]
enum NextRequest {
    /// Not decided before a permit is granted.
    Undecided,
    List,
    Fetch(BTreeSet<Oid>),
}

/// Objects that a request did not bring.
#[derive(Debug)]
struct Lacking {
    oids: BTreeSet<Oid>,
    /// A single object was requested.
    was_alone: bool,
    /// The server refused them without having advertised anything, rather than sending broken ones.
    is_refusal: bool,
}

impl Lacking {
    /// Returns the reason, given what the server advertises.
    fn failure(&self, has: &BTreeSet<Oid>) -> Failure {
        let is_advertised = !has.is_disjoint(&self.oids);
        match (self.is_refusal, self.was_alone) {
            (true, true) if !is_advertised => Failure::Missed,
            (true, _) => Failure::Refused,
            (false, true) => Failure::Missed,
            (false, false) => Failure::Doubted,
        }
    }
}

impl Visit {
    pub(super) fn new(url: CloneUrl, role: Role) -> Self {
        Self {
            url,
            role,
            state: VisitState::Queued,
            next: NextRequest::Undecided,
            advertised: None,
            lacking: None,
            was_batched: false,
            guesses_left: GUESSES_PER_VISIT,
        }
    }
}

/// A request under way.
#[derive(Debug)]
pub(super) struct Request {
    id: RequestId,
    pub(super) url: CloneUrl,
    /// The requested objects; empty for an advertisement.
    asked: BTreeSet<Oid>,
    pub(super) permit: Permit,
    pub(super) began: Mono,
    /// The server has begun to answer.
    pub(super) has_answered: bool,
    /// Time of the next check for slowness.
    pub(super) late_at: Option<Mono>,
    /// Time from which it is cancelled for waiting requests; `None` once it was.
    pub(super) gives_way_at: Option<Mono>,
}

impl Hunter {
    fn visit(&mut self, repo: &RepoId, host: &Host) -> Option<&mut Visit> {
        self.hunts.get_mut(repo)?.visits.get_mut(host)
    }

    /// Returns the visit that a request belongs to, unless it has ended or begun anew since.
    fn visit_of(&mut self, request: &Request) -> Option<&mut Visit> {
        let visit = self.visit(&request.permit.repo, &request.permit.host);
        visit.filter(|visit| visit.state == VisitState::Running(request.id))
    }

    /// Makes the visits that these permits are for ready.
    pub(super) fn grant(&mut self, permits: Vec<Permit>) {
        let mut permits = VecDeque::from(permits);
        while let Some(permit) = permits.pop_front() {
            let visit = self.visit(&permit.repo, &permit.host);
            match visit.filter(|visit| visit.state == VisitState::Queued) {
                Some(visit) => {
                    visit.state = VisitState::Ready;
                    let has_begun = visit.next != NextRequest::Undecided;
                    self.ready.push(permit, has_begun);
                }
                None => permits.extend(self.hosts.release(self.now.mono, permit)),
            }
        }
    }

    /// Releases a permit, and grants those that follow.
    pub(super) fn release(&mut self, permit: Permit) {
        let permits = self.hosts.release(self.now.mono, permit);
        self.grant(permits);
    }

    /// Starts the requests of ready visits while a slot is free.
    pub(super) fn start_ready(&mut self) {
        while self.requests.len() < self.config.at_once.get() {
            let Some(permit) = self.ready.pop() else {
                return;
            };
            if let Err(permit) = self.begin(permit) {
                self.leave(permit);
            }
        }
    }

    /// Begins the request of a visit. Returns the permit if others have brought what it was to ask for.
    fn begin(&mut self, permit: Permit) -> Result<(), Permit> {
        let repo = permit.repo.clone();
        let Some(hunt) = self.hunts.get_mut(&repo) else {
            return Err(permit);
        };
        let Some(visit) = hunt.visits.get_mut(&permit.host) else {
            return Err(permit);
        };
        let (url, wanted) = (visit.url.clone(), hunt.needs.of(&visit.url));
        if wanted.is_empty() {
            return Err(permit);
        }
        if visit.next == NextRequest::Undecided {
            self.memory.visited(self.now.mono, &url);
            visit.next = match self.memory.may_ask_directly(&url, &wanted) {
                true => NextRequest::Fetch(wanted.clone()),
                false => NextRequest::List,
            };
        }
        let asked: BTreeSet<Oid> = match &visit.next {
            NextRequest::Fetch(oids) => oids.intersection(&wanted).copied().collect(),
            _ => BTreeSet::new(),
        };
        let is_list = visit.next == NextRequest::List;
        if asked.is_empty() && !is_list {
            return Err(permit);
        }
        let (id, began) = (RequestId(self.next_request), self.now.mono);
        self.next_request += 1;
        visit.state = VisitState::Running(id);
        let (request_id, to, oids) = (id, url.clone(), asked.clone());
        self.outputs.push(match is_list {
            true => Output::List {
                request_id,
                repo,
                url: to,
                wanted,
            },
            false => Output::Fetch {
                request_id,
                repo,
                url: to,
                oids,
            },
        });
        // Until a server answers it is late early; once it does, large things have their time.
        let late_at = Some(began + self.config.answer_is_late);
        let (has_answered, gives_way_at) = (false, late_at);
        let request = Request {
            id,
            url,
            asked,
            permit,
            began,
            has_answered,
            late_at,
            gives_way_at,
        };
        self.requests.insert(id, request);
        Ok(())
    }

    /// A server has begun to answer: its objects may take longer than its silence.
    pub(super) fn on_answered(&mut self, request_id: RequestId) {
        let Some(request) = self.requests.get_mut(&request_id) else {
            return;
        };
        let now = self.now.mono;
        request.has_answered = true;
        request.late_at = Some(now + self.config.fetch_is_late);
        if let Some(at) = request.gives_way_at.as_mut() {
            *at = now + FETCH_GIVES_WAY * self.memory.time_factor(&request.url);
        }
    }

    /// Returns the next request that becomes slow.
    pub(super) fn next_late(&self) -> Option<(Mono, RequestId)> {
        self.requests
            .values()
            .filter_map(|request| Some((request.late_at?, request.id)))
            .min()
    }

    /// Returns the next request to cancel for a waiting one.
    pub(super) fn next_to_give_way(&self) -> Option<(Mono, RequestId)> {
        let requests = self.requests.values();
        let times = requests.filter_map(|request| Some((request.gives_way_at?, request.id)));
        let cancelled = self.requests.len() - times.clone().count();
        // Each cancelled request makes room for one waiting request.
        if self.ready.len() > cancelled {
            times.min()
        } else {
            None
        }
    }

    /// Cancels requests that have had their time for those that wait.
    pub(super) fn give_way(&mut self) {
        while let Some((at, request_id)) = self.next_to_give_way() {
            let request = self
                .requests
                .get_mut(&request_id)
                .filter(|_| at <= self.now.mono);
            let Some(request) = request else { return };
            request.gives_way_at = None;
            self.outputs.push(Output::Cancel { request_id });
        }
    }

    /// Remembers an advertisement, and what it says about objects that the server did not give before.
    pub(super) fn on_listed(&mut self, request_id: RequestId, advertised: Advertisement) {
        let Some(request) = self.requests.remove(&request_id) else {
            return;
        };
        self.memory
            .listed(self.now.mono, &request.url, advertised.fingerprint);
        let lacking = self.visit_of(&request).and_then(|visit| {
            let lacking = visit.lacking.take();
            let has = &visit.advertised.insert(advertised).has;
            lacking.map(|lacking| (lacking.failure(has), lacking.oids))
        });
        if let Some((failure, oids)) = lacking {
            self.memory.failed(&request.url, oids, failure);
        }
        self.continue_visit(request);
    }

    pub(super) fn on_ended(
        &mut self,
        request_id: RequestId,
        got: &BTreeSet<Oid>,
        error: Option<FetchError>,
    ) {
        let Some(request) = self.requests.remove(&request_id) else {
            return;
        };
        let repo = request.permit.repo.clone();
        if !got.is_empty() {
            let (repo, url) = (repo.clone(), request.url.clone());
            self.report(HuntReport::Fetched {
                repo,
                url,
                oids: got.len(),
            });
        }
        // A server that reports success and leaves objects out has refused them.
        let is_about_objects = !request.asked.is_empty()
            && error.as_ref().is_none_or(FetchError::is_about_the_objects);
        if is_about_objects {
            let is_refusal = matches!(error, None | Some(FetchError::Refused(_)));
            self.note_lacking(&request, got, is_refusal);
        }
        let gave_way = request.gives_way_at.is_none();
        if gave_way && request.has_answered {
            self.memory.gave_way(&request.url);
        }
        let error = match error {
            Some(FetchError::Cancelled) if gave_way => Some(FetchError::Stalled),
            error => error,
        };
        if let Some(error) = &error {
            self.note_error(&request, error);
        }
        let is_enough = self.hunts.get_mut(&repo).is_some_and(|hunt| {
            hunt.needs.got(got);
            hunt.needs.is_empty()
        });
        match error {
            _ if is_enough => {
                self.satisfy(&repo, End::Satisfied);
                self.release(request.permit);
            }
            Some(FetchError::RateLimited { .. }) => self.retry_visit(request),
            Some(_) if !is_about_objects => self.end_visit(request),
            _ => self.continue_visit(request),
        }
    }

    /// Keeps in mind what a server did not give: until its advertisement tells why, or for longer.
    fn note_lacking(&mut self, request: &Request, got: &BTreeSet<Oid>, is_refusal: bool) {
        let oids = request.asked.difference(got).copied().collect();
        let lacking = Lacking {
            oids,
            was_alone: request.asked.len() == 1,
            is_refusal,
        };
        match self
            .visit_of(request)
            .filter(|visit| visit.advertised.is_none())
        {
            Some(visit) => visit.lacking = Some(lacking),
            None => {
                let failure = Lacking {
                    is_refusal: false,
                    ..lacking
                };
                let reason = failure.failure(&BTreeSet::new());
                self.memory.failed(&request.url, failure.oids, reason);
            }
        }
    }

    /// Takes the next step of a visit, ahead of others at its host, or ends it.
    fn continue_visit(&mut self, request: Request) {
        let Some(next) = self.next_request(&request) else {
            return self.end_visit(request);
        };
        let (repo, host) = (request.permit.repo.clone(), request.permit.host.clone());
        if let Some(visit) = self.visit_of(&request) {
            (visit.next, visit.state) = (next, VisitState::Queued);
        }
        let permits = self.hosts.continue_with(self.now.mono, request.permit);
        self.grant(permits);
        // An attempt does not wait for a server that has become throttled half-way.
        let Some(visit) = self.visit(&repo, &host) else {
            return;
        };
        if visit.state == VisitState::Queued && visit.role.is_awaited() {
            visit.role = Role::Queued;
            self.ask_next(&repo);
        }
    }

    /// Returns the next request of a visit, if there is one.
    fn next_request(&mut self, request: &Request) -> Option<NextRequest> {
        let Request {
            id, url, permit, ..
        } = request;
        let hunt = self.hunts.get_mut(&permit.repo)?;
        let wanted = hunt.needs.of(url);
        let visit = hunt.visits.get_mut(&permit.host)?;
        if visit.state != VisitState::Running(*id) || wanted.is_empty() {
            return None;
        }
        let Some(advertised) = &visit.advertised else {
            return Some(NextRequest::List);
        };
        let plan = self.memory.plan(url, &wanted, advertised);
        if !visit.was_batched && !plan.batch.is_empty() {
            visit.was_batched = true;
            return Some(NextRequest::Fetch(plan.batch));
        }
        let guess = plan.guesses.first().filter(|_| visit.guesses_left > 0)?;
        if !self.hosts.may_guess(self.now.mono, &permit.host) {
            return None;
        }
        visit.guesses_left -= 1;
        Some(NextRequest::Fetch(BTreeSet::from([*guess])))
    }

    /// Queues a visit again: a server that asked for fewer requests has not been asked yet.
    fn retry_visit(&mut self, request: Request) {
        let Some(visit) = self.visit_of(&request) else {
            return self.release(request.permit);
        };
        *visit = Visit::new(request.url, Role::Queued);
        let (host, repo) = (request.permit.host.clone(), request.permit.repo.clone());
        self.release(request.permit);
        match self.hosts.enqueue(self.now.mono, &host, &repo) {
            Some(permits) => self.grant(permits),
            None => self.remove_visit(&repo, &host),
        }
        self.ask_next(&repo);
    }

    /// Ends a visit, unless it has ended or begun anew since.
    fn end_visit(&mut self, request: Request) {
        match self.visit_of(&request).is_some() {
            true => self.leave(request.permit),
            false => self.release(request.permit),
        }
    }

    /// Ends a visit that has a permit.
    fn leave(&mut self, permit: Permit) {
        let (repo, host) = (permit.repo.clone(), permit.host.clone());
        self.release(permit);
        self.remove_visit(&repo, &host);
    }

    /// Ends a visit: the attempt goes on with another address, or the queue of the host with the next there.
    fn remove_visit(&mut self, repo: &RepoId, host: &Host) {
        let Some(hunt) = self.hunts.get_mut(repo) else {
            return;
        };
        let Some(visit) = hunt.visits.remove(host) else {
            return;
        };
        match visit.role {
            Role::Awaited | Role::Slow => self.ask_next(repo),
            Role::Late => self.ask_another(repo),
            Role::Queued => self.enqueue_with_host(repo, host),
        }
        self.end_if_all_asked(repo);
    }

    /// Draws the consequences of a server's failure, and reports it.
    fn note_error(&mut self, request: &Request, error: &FetchError) {
        if *error == FetchError::Cancelled {
            return;
        }
        if let FetchError::RateLimited { retry_after } = error {
            let length = retry_after.unwrap_or(DEFAULT_PAUSE).min(MAX_PAUSE);
            let (host, now) = (request.permit.host.clone(), self.now.mono);
            self.hosts.limited(now, &host, request.began, now + length);
            self.report(HuntReport::Paused { host, length });
        }
        let (repo, url) = (request.permit.repo.clone(), request.url.clone());
        self.report(HuntReport::Failed {
            repo,
            url,
            error: error.clone(),
        });
    }
}
