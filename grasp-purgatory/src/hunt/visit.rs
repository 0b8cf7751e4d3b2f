//! One visit to one address: the wanted objects by id; if it refuses those, its advertisement, what that shows, and a
//! guess or two. All of it is one turn with the server.

use std::collections::{BTreeSet, VecDeque};

use grasp_core::{CloneUrl, Identifier, Mono, Oid};

use super::case::{DirectFailure, Flight, Path, State, Step, Visit};
use super::queue::End;
use super::throttle::Pass;
use super::{Advertisement, Errand, Hunter, Output, Report, Trouble};

impl Hunter {
    /// Lets those begin whose turn it is.
    pub(super) fn grant(&mut self, out: &mut Vec<Output>, passes: Vec<Pass>) {
        let mut passes = VecDeque::from(passes);
        while let Some(pass) = passes.pop_front() {
            let identifier = pass.identifier().clone();
            let case = self.cases.get(&identifier);
            let parked = case.and_then(|case| case.parked_at(pass.host())).cloned();
            match parked {
                Some(url) => self.fly(out, &identifier, &url, pass),
                None => passes.extend(self.throttle.release(self.now.mono, pass)),
            }
        }
    }

    /// The server of a visit may be asked: somebody does so, now or when a hand is free.
    pub(super) fn fly(
        &mut self,
        out: &mut Vec<Output>,
        identifier: &Identifier,
        url: &CloneUrl,
        pass: Pass,
    ) {
        let case = self.cases.get_mut(identifier);
        let visit = case.and_then(|case| case.visits.get_mut(url));
        let has_begun = visit.is_some_and(|visit| {
            visit.state = State::Ready;
            visit.step != Step::Open
        });
        match has_begun {
            true => self.crew.enlist_again(url.clone(), pass),
            false => self.crew.enlist(url.clone(), pass),
        }
        self.set_out(out);
    }

    /// Begins conversations for as long as a hand is free.
    pub(super) fn set_out(&mut self, out: &mut Vec<Output>) {
        while let Some((url, pass)) = self.crew.next() {
            let identifier = pass.identifier().clone();
            if self.trim(&identifier, &url) {
                self.begin(out, identifier, url, pass);
                continue;
            }
            self.crew.back();
            let passes = self.throttle.release(self.now.mono, pass);
            self.leave(out, &identifier, &url);
            self.grant(out, passes);
        }
    }

    /// Leaves out of a visit what others have brought since it was planned. Says whether anything is left.
    fn trim(&mut self, identifier: &Identifier, url: &CloneUrl) -> bool {
        let Some(case) = self.cases.get_mut(identifier) else { return false };
        let wanted = case.needs.of(url);
        match case.visits.get_mut(url).map(|visit| &mut visit.step) {
            None => false,
            Some(Step::Open | Step::List) => !wanted.is_empty(),
            Some(Step::Direct(oids) | Step::Batch(oids)) => {
                oids.retain(|oid| wanted.contains(oid));
                !oids.is_empty()
            }
            Some(Step::Guess(oid)) => wanted.contains(oid),
        }
    }

    /// Begins the conversation that a visit waits for.
    fn begin(&mut self, out: &mut Vec<Output>, identifier: Identifier, url: CloneUrl, pass: Pass) {
        let errand = Errand(self.next_errand);
        self.next_errand += 1;
        let Some(case) = self.cases.get_mut(&identifier) else { return };
        let wanted = case.needs.of(&url);
        let Some(visit) = case.visits.get_mut(&url) else { return };
        visit.state = State::Flying(errand);
        if visit.step == Step::Open {
            self.memory.visited(self.now.mono, &url);
            visit.step = match self.memory.may_ask_directly(&url, &wanted) {
                true => Step::Direct(wanted.clone()),
                false => Step::List,
            };
        }
        let (asked, began) = (visit.step.oids(), self.now.mono);
        let (to, oids) = (url.clone(), asked.clone());
        out.push(match visit.step {
            Step::Open | Step::List => {
                Output::List { errand, identifier: identifier.clone(), url: to, wanted }
            }
            _ => Output::Fetch { errand, identifier: identifier.clone(), url: to, oids },
        });
        // Until a server answers it is late early; once it does, large things have their time.
        let late_at = Some(began + self.config.answer_is_late);
        self.late.extend(late_at.map(|at| (at, errand)));
        let (gives_way_at, has_answered) = (late_at, false);
        let flight =
            Flight { identifier, url, asked, pass, began, has_answered, late_at, gives_way_at };
        self.flights.insert(errand, flight);
    }

    /// A server has begun to answer: its objects may take longer than its silence.
    pub(super) fn on_answered(&mut self, errand: Errand) {
        let Some(flight) = self.flights.get_mut(&errand) else { return };
        let now = self.now.mono;
        flight.has_answered = true;
        let late_at = now + self.config.fetch_is_late;
        if let Some(at) = flight.late_at.replace(late_at) {
            self.late.remove(&(at, errand));
        }
        self.late.insert((late_at, errand));
        if let Some(at) = flight.gives_way_at.as_mut() {
            *at = now + self.config.fetch_gives_way * self.memory.patience(&flight.url);
        }
    }

    /// When a conversation gives way, if somebody waits for a hand.
    pub(super) fn next_to_give_way(&self) -> Option<(Mono, Errand)> {
        let told = self.flights.values().filter(|flight| flight.gives_way_at.is_none()).count();
        let flights = self.flights.iter();
        let times = flights.filter_map(|(errand, flight)| Some((flight.gives_way_at?, *errand)));
        // Whoever was told to give way makes room for one of those who wait.
        if self.crew.waiting() > told { times.min() } else { None }
    }

    /// Those who have had their time give way to those who wait.
    pub(super) fn give_way(&mut self, out: &mut Vec<Output>) {
        while let Some((at, errand)) = self.next_to_give_way() {
            let Some(flight) = self.flights.get_mut(&errand).filter(|_| at <= self.now.mono) else {
                return;
            };
            flight.gives_way_at = None;
            out.push(Output::Cancel { errand });
        }
    }

    pub(super) fn on_listed(
        &mut self,
        out: &mut Vec<Output>,
        errand: Errand,
        result: Result<Advertisement, Trouble>,
    ) {
        let Some(landed) = self.land(errand) else { return };
        match result.map_err(|trouble| landed.judge(trouble)) {
            Ok(advertised) => {
                self.learn(&landed, advertised);
                self.continue_visit(out, landed);
            }
            Err(trouble) => {
                self.note(out, &landed, &trouble);
                self.fail_visit(out, landed, &trouble);
            }
        }
    }

    /// Remembers an advertisement, and what it says about objects that the server did not give before.
    fn learn(&mut self, landed: &Landed, advertised: Advertisement) {
        let Landed { identifier, url, .. } = landed;
        self.memory.listed(self.now.mono, url, advertised.fingerprint);
        let case = self.cases.get_mut(identifier);
        let Some(visit) = case.and_then(|case| case.visits.get_mut(url)) else { return };
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
        errand: Errand,
        got: &BTreeSet<Oid>,
        trouble: Option<Trouble>,
    ) {
        let Some(landed) = self.land(errand) else { return };
        let Landed { identifier, url, asked, .. } = &landed;
        if !got.is_empty() {
            let (identifier, url) = (identifier.clone(), url.clone());
            out.push(Output::Report(Report::Fetched { identifier, url, oids: got.len() }));
        }
        let lacking: BTreeSet<Oid> = asked.difference(got).copied().collect();
        // Whoever says that all is well and leaves something out has refused it.
        let is_about_objects = trouble.as_ref().is_none_or(Trouble::is_about_the_objects);
        let is_refusal = matches!(trouble, None | Some(Trouble::Refused(_)));
        if is_about_objects {
            let failed = DirectFailure { asked: asked.clone(), lacking, is_refusal };
            self.note_lacking(identifier, url, failed);
        }
        if landed.gave_way && landed.has_answered {
            self.memory.gave_way(url);
        }
        let trouble = trouble.map(|trouble| landed.judge(trouble));
        if let Some(trouble) = &trouble {
            self.note(out, &landed, trouble);
        }
        let case = self.cases.get_mut(identifier);
        let is_enough = case.is_some_and(|case| {
            case.needs.got(got);
            case.needs.is_empty()
        });
        match trouble {
            _ if is_enough => {
                self.satisfy(out, identifier, End::Satisfied);
                self.release(out, landed.pass);
            }
            Some(trouble) if !is_about_objects => self.fail_visit(out, landed, &trouble),
            _ => self.continue_visit(out, landed),
        }
    }

    /// Keeps in mind what a server did not give: until its advertisement tells why, or for longer.
    fn note_lacking(&mut self, identifier: &Identifier, url: &CloneUrl, failed: DirectFailure) {
        let case = self.cases.get_mut(identifier);
        match case.and_then(|case| case.visits.get_mut(url)) {
            Some(visit) if matches!(visit.step, Step::Direct(_)) => {
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

    /// Ends a conversation. The turn with the server goes on until its pass is released.
    fn land(&mut self, errand: Errand) -> Option<Landed> {
        let flight = self.flights.remove(&errand)?;
        let Flight { identifier, url, asked, pass, began, has_answered, late_at, gives_way_at } =
            flight;
        self.crew.back();
        if let Some(at) = late_at {
            self.late.remove(&(at, errand));
        }
        let gave_way = gives_way_at.is_none();
        Some(Landed { errand, identifier, url, asked, pass, began, has_answered, gave_way })
    }

    /// Ends a turn with a server; those whose turn it is now begin.
    fn release(&mut self, out: &mut Vec<Output>, pass: Pass) {
        let passes = self.throttle.release(self.now.mono, pass);
        self.grant(out, passes);
    }

    /// Takes the next step of a visit within the same turn, or ends it.
    fn continue_visit(&mut self, out: &mut Vec<Output>, landed: Landed) {
        let Some(step) = self.next_step(&landed) else { return self.end_visit(out, landed) };
        let Landed { identifier, url, pass, .. } = landed;
        let case = self.cases.get_mut(&identifier);
        if let Some(visit) = case.and_then(|case| case.visits.get_mut(&url)) {
            (visit.step, visit.state) = (step, State::Parked);
        }
        let passes = self.throttle.continue_with(self.now.mono, pass);
        self.grant(out, passes);
        self.leave_to_its_line(out, &identifier, &url);
    }

    /// The next step of a visit, if there is one.
    fn next_step(&mut self, landed: &Landed) -> Option<Step> {
        let Landed { errand, identifier, url, .. } = landed;
        let case = self.cases.get_mut(identifier)?;
        let wanted = case.needs.of(url);
        let visit = case.visits.get_mut(url)?;
        if visit.state != State::Flying(*errand) || wanted.is_empty() {
            return None;
        }
        let Some(advertised) = &visit.advertised else { return Some(Step::List) };
        let plan = self.memory.plan(url, &wanted, advertised);
        if !visit.batched && !plan.batch.is_empty() {
            visit.batched = true;
            return Some(Step::Batch(plan.batch));
        }
        let guess = plan.guesses.first().filter(|_| visit.guesses_left > 0)?;
        if !self.throttle.may_guess(self.now.mono, &url.host()) {
            return None;
        }
        visit.guesses_left -= 1;
        Some(Step::Guess(*guess))
    }

    /// Ends a visit that met trouble. A server that asked for less has not been asked yet: the visit waits for its
    /// turn again.
    fn fail_visit(&mut self, out: &mut Vec<Output>, landed: Landed, trouble: &Trouble) {
        if !matches!(trouble, Trouble::Limited { .. }) {
            return self.end_visit(out, landed);
        }
        let Landed { errand, identifier, url, pass, .. } = landed;
        let case = self.cases.get_mut(&identifier);
        let visit = case.and_then(|case| case.visits.get_mut(&url));
        let Some(visit) = visit.filter(|visit| visit.state == State::Flying(errand)) else {
            return self.release(out, pass);
        };
        *visit = Visit::new(visit.path, &self.config);
        if visit.path == Path::Late {
            visit.path = Path::Line;
        }
        self.release(out, pass);
        match self.throttle.enqueue(self.now.mono, &url.host(), &identifier) {
            Some(passes) => {
                self.grant(out, passes);
                self.leave_to_its_line(out, &identifier, &url);
            }
            None => self.leave(out, &identifier, &url),
        }
    }

    /// An attempt does not wait for a server that has become throttled half-way.
    fn leave_to_its_line(
        &mut self,
        out: &mut Vec<Output>,
        identifier: &Identifier,
        url: &CloneUrl,
    ) {
        let Some(case) = self.cases.get_mut(identifier) else { return };
        let Some(visit) = case.visits.get_mut(url) else { return };
        let is_awaited = matches!(visit.path, Path::Main | Path::Overdue);
        if visit.state == State::Parked && is_awaited {
            visit.path = Path::Line;
            case.lines.entry(url.host()).or_default().insert(url.clone());
            self.go_on(out, identifier);
        }
    }

    /// Ends a visit, unless it has ended or begun anew since.
    fn end_visit(&mut self, out: &mut Vec<Output>, landed: Landed) {
        let Landed { errand, identifier, url, pass, .. } = landed;
        self.release(out, pass);
        let visit = self.cases.get(&identifier).and_then(|case| case.visits.get(&url));
        if visit.is_some_and(|visit| visit.state == State::Flying(errand)) {
            self.leave(out, &identifier, &url);
        }
    }

    /// Ends a visit: the attempt goes on with another address, or the line with the next there.
    fn leave(&mut self, out: &mut Vec<Output>, identifier: &Identifier, url: &CloneUrl) {
        let Some(case) = self.cases.get_mut(identifier) else { return };
        let Some(visit) = case.visits.remove(url) else { return };
        match visit.path {
            Path::Main | Path::Overdue => self.go_on(out, identifier),
            Path::Late => self.move_on(out, identifier),
            Path::Line => self.stand_in_line(out, identifier, &url.host()),
        }
        self.end_if_out_of_line(out, identifier);
    }

    /// Draws the consequences of trouble with a server.
    fn note(&mut self, out: &mut Vec<Output>, landed: &Landed, trouble: &Trouble) {
        if *trouble == Trouble::Cancelled {
            return;
        }
        if let Trouble::Limited { retry_after } = trouble {
            let length = retry_after.unwrap_or(self.config.pause).min(self.config.longest_pause);
            let (host, now) = (landed.url.host(), self.now.mono);
            self.throttle.limited(now, &host, landed.began, now + length);
            out.push(Output::Report(Report::Paused { host, length }));
        }
        let (identifier, url) = (landed.identifier.clone(), landed.url.clone());
        out.push(Output::Report(Report::Failed { identifier, url, trouble: trouble.clone() }));
    }
}

/// A conversation that has ended.
struct Landed {
    errand: Errand,
    identifier: Identifier,
    url: CloneUrl,
    asked: BTreeSet<Oid>,
    pass: Pass,
    began: Mono,
    has_answered: bool,
    gave_way: bool,
}

impl Landed {
    /// Who had to give way was too slow.
    fn judge(&self, trouble: Trouble) -> Trouble {
        if self.gave_way && trouble == Trouble::Cancelled { Trouble::Stalled } else { trouble }
    }
}
