//! One visit to one address: the wanted objects by id; if it refuses those, its advertisement, what that shows, and a
//! guess or two. All of it uses one permit of the host.

use std::collections::{BTreeSet, VecDeque};

use grasp_core::{CloneUrl, Identifier, Mono, Oid};

use super::attempt::{DirectFailure, Request, Role, Visit, VisitState, VisitStep};
use super::queue::End;
use super::throttle::HostPermit;
use super::{Advertisement, HuntReport, Hunter, Output, RequestId, Trouble};

impl Hunter {
    /// Starts the visits that these permits are for.
    pub(super) fn grant(&mut self, out: &mut Vec<Output>, permits: Vec<HostPermit>) {
        let mut permits = VecDeque::from(permits);
        while let Some(permit) = permits.pop_front() {
            let identifier = permit.identifier().clone();
            let hunt = self.hunts.get(&identifier);
            let queued = hunt.and_then(|hunt| hunt.queued_at(permit.host())).cloned();
            match queued {
                Some(url) => self.start(out, &identifier, &url, permit),
                None => permits.extend(self.throttle.release(self.now.mono, permit)),
            }
        }
    }

    /// Starts the request of a visit that has a permit, now or when a slot is free.
    pub(super) fn start(
        &mut self,
        out: &mut Vec<Output>,
        identifier: &Identifier,
        url: &CloneUrl,
        permit: HostPermit,
    ) {
        let hunt = self.hunts.get_mut(identifier);
        let visit = hunt.and_then(|hunt| hunt.visits.get_mut(url));
        let has_begun = visit.is_some_and(|visit| {
            visit.state = VisitState::Ready;
            visit.step != VisitStep::Open
        });
        match has_begun {
            true => self.slots.enqueue_first(url.clone(), permit),
            false => self.slots.enqueue(url.clone(), permit),
        }
        self.start_ready(out);
    }

    /// Starts requests while a slot is free.
    pub(super) fn start_ready(&mut self, out: &mut Vec<Output>) {
        while let Some((url, permit)) = self.slots.next() {
            let identifier = permit.identifier().clone();
            if self.trim(&identifier, &url) {
                self.begin(out, identifier, url, permit);
                continue;
            }
            self.slots.release();
            let permits = self.throttle.release(self.now.mono, permit);
            self.leave(out, &identifier, &url);
            self.grant(out, permits);
        }
    }

    /// Leaves out of a visit what others have brought since it was planned. Says whether anything is left.
    fn trim(&mut self, identifier: &Identifier, url: &CloneUrl) -> bool {
        let Some(hunt) = self.hunts.get_mut(identifier) else { return false };
        let wanted = hunt.needs.of(url);
        match hunt.visits.get_mut(url).map(|visit| &mut visit.step) {
            None => false,
            Some(VisitStep::Open | VisitStep::List) => !wanted.is_empty(),
            Some(VisitStep::Direct(oids) | VisitStep::Batch(oids)) => {
                oids.retain(|oid| wanted.contains(oid));
                !oids.is_empty()
            }
            Some(VisitStep::Guess(oid)) => wanted.contains(oid),
        }
    }

    /// Begins the request of a visit that has a slot.
    fn begin(
        &mut self,
        out: &mut Vec<Output>,
        identifier: Identifier,
        url: CloneUrl,
        permit: HostPermit,
    ) {
        let request_id = RequestId(self.next_request);
        self.next_request += 1;
        let Some(hunt) = self.hunts.get_mut(&identifier) else { return };
        let wanted = hunt.needs.of(&url);
        let Some(visit) = hunt.visits.get_mut(&url) else { return };
        visit.state = VisitState::Running(request_id);
        if visit.step == VisitStep::Open {
            self.memory.visited(self.now.mono, &url);
            visit.step = match self.memory.may_ask_directly(&url, &wanted) {
                true => VisitStep::Direct(wanted.clone()),
                false => VisitStep::List,
            };
        }
        let (asked, began) = (visit.step.oids(), self.now.mono);
        let (to, oids) = (url.clone(), asked.clone());
        out.push(match visit.step {
            VisitStep::Open | VisitStep::List => {
                Output::List { request_id, identifier: identifier.clone(), url: to, wanted }
            }
            _ => Output::Fetch { request_id, identifier: identifier.clone(), url: to, oids },
        });
        // Until a server answers it is late early; once it does, large things have their time.
        let late_at = Some(began + self.config.answer_is_late);
        self.late.extend(late_at.map(|at| (at, request_id)));
        let (gives_way_at, has_answered) = (late_at, false);
        let id = request_id;
        let request = Request {
            id,
            identifier,
            url,
            asked,
            permit,
            began,
            has_answered,
            late_at,
            gives_way_at,
        };
        self.requests.insert(request_id, request);
    }

    /// A server has begun to answer: its objects may take longer than its silence.
    pub(super) fn on_answered(&mut self, request_id: RequestId) {
        let Some(request) = self.requests.get_mut(&request_id) else { return };
        let now = self.now.mono;
        request.has_answered = true;
        let late_at = now + self.config.fetch_is_late;
        if let Some(at) = request.late_at.replace(late_at) {
            self.late.remove(&(at, request_id));
        }
        self.late.insert((late_at, request_id));
        if let Some(at) = request.gives_way_at.as_mut() {
            *at = now + self.config.fetch_gives_way * self.memory.time_factor(&request.url);
        }
    }

    /// Returns the next request to cancel for a waiting one.
    pub(super) fn next_to_give_way(&self) -> Option<(Mono, RequestId)> {
        let told = self.requests.values().filter(|request| request.gives_way_at.is_none()).count();
        let requests = self.requests.iter();
        let times =
            requests.filter_map(|(request_id, request)| Some((request.gives_way_at?, *request_id)));
        // Each cancelled request makes room for one waiting request.
        if self.slots.waiting() > told { times.min() } else { None }
    }

    /// Cancels requests that have had their time for those that wait.
    pub(super) fn give_way(&mut self, out: &mut Vec<Output>) {
        while let Some((at, request_id)) = self.next_to_give_way() {
            let Some(request) = self.requests.get_mut(&request_id).filter(|_| at <= self.now.mono)
            else {
                return;
            };
            request.gives_way_at = None;
            out.push(Output::Cancel { request_id });
        }
    }

    pub(super) fn on_listed(
        &mut self,
        out: &mut Vec<Output>,
        request_id: RequestId,
        result: Result<Advertisement, Trouble>,
    ) {
        let Some(finished) = self.finish(request_id) else { return };
        match result.map_err(|trouble| finished.read(trouble)) {
            Ok(advertised) => {
                self.learn(&finished, advertised);
                self.continue_visit(out, finished);
            }
            Err(trouble) => {
                self.note(out, &finished, &trouble);
                self.fail_visit(out, finished, &trouble);
            }
        }
    }

    /// Remembers an advertisement, and what it says about objects that the server did not give before.
    fn learn(&mut self, finished: &Request, advertised: Advertisement) {
        let Request { identifier, url, .. } = finished;
        self.memory.listed(self.now.mono, url, advertised.fingerprint);
        let hunt = self.hunts.get_mut(identifier);
        let Some(visit) = hunt.and_then(|hunt| hunt.visits.get_mut(url)) else { return };
        let failed = visit.failed.take();
        let has = visit.advertised.insert(advertised).has.clone();
        match failed {
            Some(DirectFailure { asked, lacking, is_refusal: true }) => {
                self.memory.refused(url, asked.iter().copied());
                if asked.len() == 1 && has.is_disjoint(&asked) {
                    self.remember_lacking(url, &asked, lacking);
                }
            }
            Some(DirectFailure { asked, lacking, .. }) => {
                self.remember_lacking(url, &asked, lacking);
            }
            None => {}
        }
    }

    pub(super) fn on_fetched(
        &mut self,
        out: &mut Vec<Output>,
        request_id: RequestId,
        got: &BTreeSet<Oid>,
        trouble: Option<Trouble>,
    ) {
        let Some(finished) = self.finish(request_id) else { return };
        let Request { identifier, url, asked, .. } = &finished;
        if !got.is_empty() {
            let (identifier, url) = (identifier.clone(), url.clone());
            out.push(Output::Report(HuntReport::Fetched { identifier, url, oids: got.len() }));
        }
        let lacking: BTreeSet<Oid> = asked.difference(got).copied().collect();
        // A server that reports success and leaves objects out has refused them.
        let is_about_objects = trouble.as_ref().is_none_or(Trouble::is_about_the_objects);
        let is_refusal = matches!(trouble, None | Some(Trouble::Refused(_)));
        if is_about_objects {
            let failed = DirectFailure { asked: asked.clone(), lacking, is_refusal };
            self.note_lacking(identifier, url, failed);
        }
        if finished.was_cancelled() && finished.has_answered {
            self.memory.gave_way(url);
        }
        let trouble = trouble.map(|trouble| finished.read(trouble));
        if let Some(trouble) = &trouble {
            self.note(out, &finished, trouble);
        }
        let hunt = self.hunts.get_mut(identifier);
        let is_enough = hunt.is_some_and(|hunt| {
            hunt.needs.got(got);
            hunt.needs.is_empty()
        });
        match trouble {
            _ if is_enough => {
                self.satisfy(out, identifier, End::Satisfied);
                self.release(out, finished.permit);
            }
            Some(trouble) if !is_about_objects => self.fail_visit(out, finished, &trouble),
            _ => self.continue_visit(out, finished),
        }
    }

    /// Keeps in mind what a server did not give: until its advertisement tells why, or for longer.
    fn note_lacking(&mut self, identifier: &Identifier, url: &CloneUrl, failed: DirectFailure) {
        let hunt = self.hunts.get_mut(identifier);
        match hunt.and_then(|hunt| hunt.visits.get_mut(url)) {
            Some(visit) if matches!(visit.step, VisitStep::Direct(_)) => {
                visit.failed = (!failed.lacking.is_empty()).then_some(failed);
            }
            _ => self.remember_lacking(url, &failed.asked, failed.lacking),
        }
    }

    fn remember_lacking(&mut self, url: &CloneUrl, asked: &BTreeSet<Oid>, lacking: BTreeSet<Oid>) {
        match asked.first() {
            Some(oid) if asked.len() == 1 && lacking.contains(oid) => self.memory.missed(url, *oid),
            _ => self.memory.doubted(url, lacking),
        }
    }

    /// Ends a request. Its permit stays taken until it is released.
    fn finish(&mut self, request_id: RequestId) -> Option<Request> {
        let request = self.requests.remove(&request_id)?;
        self.slots.release();
        if let Some(at) = request.late_at {
            self.late.remove(&(at, request_id));
        }
        Some(request)
    }

    /// Releases a permit, and starts the visits that get one in its place.
    fn release(&mut self, out: &mut Vec<Output>, permit: HostPermit) {
        let permits = self.throttle.release(self.now.mono, permit);
        self.grant(out, permits);
    }

    /// Takes the next step of a visit with the same permit, or ends it.
    fn continue_visit(&mut self, out: &mut Vec<Output>, finished: Request) {
        let Some(step) = self.next_step(&finished) else { return self.end_visit(out, finished) };
        let Request { identifier, url, permit, .. } = finished;
        let hunt = self.hunts.get_mut(&identifier);
        if let Some(visit) = hunt.and_then(|hunt| hunt.visits.get_mut(&url)) {
            (visit.step, visit.state) = (step, VisitState::Queued);
        }
        let permits = self.throttle.continue_with(self.now.mono, permit);
        self.grant(out, permits);
        self.leave_queued(out, &identifier, &url);
    }

    /// The next step of a visit, if there is one.
    fn next_step(&mut self, finished: &Request) -> Option<VisitStep> {
        let Request { id: request_id, identifier, url, .. } = finished;
        let hunt = self.hunts.get_mut(identifier)?;
        let wanted = hunt.needs.of(url);
        let visit = hunt.visits.get_mut(url)?;
        if visit.state != VisitState::Running(*request_id) || wanted.is_empty() {
            return None;
        }
        let Some(advertised) = &visit.advertised else { return Some(VisitStep::List) };
        let plan = self.memory.plan(url, &wanted, advertised);
        if !visit.batched && !plan.batch.is_empty() {
            visit.batched = true;
            return Some(VisitStep::Batch(plan.batch));
        }
        let guess = plan.guesses.first().filter(|_| visit.guesses_left > 0)?;
        if !self.throttle.may_guess(self.now.mono, &url.host()) {
            return None;
        }
        visit.guesses_left -= 1;
        Some(VisitStep::Guess(*guess))
    }

    /// Ends a visit that met trouble. A server that asked for less has not been asked yet: the visit waits for its
    /// turn again.
    fn fail_visit(&mut self, out: &mut Vec<Output>, finished: Request, trouble: &Trouble) {
        if !matches!(trouble, Trouble::Limited { .. }) {
            return self.end_visit(out, finished);
        }
        let Request { id: request_id, identifier, url, permit, .. } = finished;
        let hunt = self.hunts.get_mut(&identifier);
        let visit = hunt.and_then(|hunt| hunt.visits.get_mut(&url));
        let Some(visit) = visit.filter(|visit| visit.state == VisitState::Running(request_id))
        else {
            return self.release(out, permit);
        };
        *visit = Visit::new(visit.role, &self.config);
        if visit.role == Role::Hedge {
            visit.role = Role::Queued;
        }
        self.release(out, permit);
        match self.throttle.enqueue(self.now.mono, &url.host(), &identifier) {
            Some(permits) => {
                self.grant(out, permits);
                self.leave_queued(out, &identifier, &url);
            }
            None => self.leave(out, &identifier, &url),
        }
    }

    /// An attempt does not wait for a server that has become throttled half-way.
    fn leave_queued(&mut self, out: &mut Vec<Output>, identifier: &Identifier, url: &CloneUrl) {
        let Some(hunt) = self.hunts.get_mut(identifier) else { return };
        let Some(visit) = hunt.visits.get_mut(url) else { return };
        let is_awaited = matches!(visit.role, Role::Primary | Role::Slow);
        if visit.state == VisitState::Queued && is_awaited {
            visit.role = Role::Queued;
            hunt.lines.entry(url.host()).or_default().insert(url.clone());
            self.ask_next(out, identifier);
        }
    }

    /// Ends a visit, unless it has ended or begun anew since.
    fn end_visit(&mut self, out: &mut Vec<Output>, finished: Request) {
        let Request { id: request_id, identifier, url, permit, .. } = finished;
        self.release(out, permit);
        let visit = self.hunts.get(&identifier).and_then(|hunt| hunt.visits.get(&url));
        if visit.is_some_and(|visit| visit.state == VisitState::Running(request_id)) {
            self.leave(out, &identifier, &url);
        }
    }

    /// Ends a visit: the attempt goes on with another address, or the line with the next there.
    fn leave(&mut self, out: &mut Vec<Output>, identifier: &Identifier, url: &CloneUrl) {
        let Some(hunt) = self.hunts.get_mut(identifier) else { return };
        let Some(visit) = hunt.visits.remove(url) else { return };
        match visit.role {
            Role::Primary | Role::Slow => self.ask_next(out, identifier),
            Role::Hedge => self.ask_another(out, identifier),
            Role::Queued => self.enqueue_with_host(out, identifier, &url.host()),
        }
        self.end_if_all_asked(out, identifier);
    }

    /// Draws the consequences of trouble with a server.
    fn note(&mut self, out: &mut Vec<Output>, finished: &Request, trouble: &Trouble) {
        if *trouble == Trouble::Cancelled {
            return;
        }
        if let Trouble::Limited { retry_after } = trouble {
            let length = retry_after.unwrap_or(self.config.pause).min(self.config.longest_pause);
            let (host, now) = (finished.url.host(), self.now.mono);
            self.throttle.limited(now, &host, finished.began, now + length);
            out.push(Output::Report(HuntReport::Paused { host, length }));
        }
        let (identifier, url) = (finished.identifier.clone(), finished.url.clone());
        out.push(Output::Report(HuntReport::Failed { identifier, url, trouble: trouble.clone() }));
    }
}
