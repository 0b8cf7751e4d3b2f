//! One visit to one address: its advertisement, what can be had together, then a guess or two.

use std::collections::{BTreeSet, VecDeque};

use grasp_core::{CloneUrl, Identifier, Mono, Oid};

use super::case::{Flight, Path, State, Step};
use super::queue::End;
use super::throttle::Pass;
use super::{Advertisement, Errand, HuntConfig, Hunter, Output, Report, Trouble};

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
            visit.step != Step::List
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
            Some(Step::List) => !wanted.is_empty(),
            Some(Step::Batch(oids)) => {
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
        let (asked, is_main) = (visit.step.oids(), visit.path == Path::Main);
        let HuntConfig { listing_is_late, fetch_is_late, fetch_gives_way, .. } = self.config;
        let is_listing = visit.step == Step::List;
        let (late, gives_way) = match is_listing {
            true => (listing_is_late, listing_is_late),
            false => (fetch_is_late, fetch_gives_way),
        };
        let late_at = is_main.then(|| self.now.mono + late);
        self.late.extend(late_at.map(|at| (at, errand)));
        let (to, oids) = (url.clone(), asked.clone());
        out.push(match is_listing {
            true => {
                self.memory.visited(self.now.mono, &url);
                Output::List { errand, identifier: identifier.clone(), url: to, wanted }
            }
            false => Output::Fetch { errand, identifier: identifier.clone(), url: to, oids },
        });
        let gives_way_at = Some(self.now.mono + gives_way);
        self.flights.insert(errand, Flight { identifier, url, asked, pass, late_at, gives_way_at });
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
        let Some((landed, passes)) = self.land(errand) else { return };
        let Landed { identifier, url, .. } = &landed;
        match result.map_err(|trouble| landed.judge(trouble)) {
            Ok(advertised) => {
                self.memory.listed(self.now.mono, url, advertised.fingerprint);
                let case = self.cases.get_mut(identifier);
                if let Some(visit) = case.and_then(|case| case.visits.get_mut(url)) {
                    visit.advertised = Some(advertised);
                }
                self.continue_visit(out, &landed);
            }
            Err(trouble) => {
                self.note(out, &landed, trouble);
                self.end_visit(out, &landed);
            }
        }
        self.grant(out, passes);
    }

    pub(super) fn on_fetched(
        &mut self,
        out: &mut Vec<Output>,
        errand: Errand,
        got: &BTreeSet<Oid>,
        trouble: Option<Trouble>,
    ) {
        let Some((landed, passes)) = self.land(errand) else { return };
        let Landed { identifier, url, asked, .. } = &landed;
        if !got.is_empty() {
            let (identifier, url) = (identifier.clone(), url.clone());
            out.push(Output::Report(Report::Fetched { identifier, url, oids: got.len() }));
        }
        let lacking: BTreeSet<Oid> = asked.difference(got).copied().collect();
        // Whoever says that all is well and leaves something out has refused it.
        let is_about_objects = trouble.as_ref().is_none_or(Trouble::is_about_the_objects);
        if is_about_objects {
            self.remember_lacking(url, asked, lacking);
        }
        if let Some(trouble) = trouble {
            self.note(out, &landed, landed.judge(trouble));
        }
        let case = self.cases.get_mut(identifier);
        let is_enough = case.is_some_and(|case| {
            case.needs.got(got);
            case.needs.is_empty()
        });
        match is_enough {
            true => self.satisfy(out, identifier, End::Satisfied),
            false if is_about_objects => self.continue_visit(out, &landed),
            false => self.end_visit(out, &landed),
        }
        self.grant(out, passes);
    }

    fn remember_lacking(&mut self, url: &CloneUrl, asked: &BTreeSet<Oid>, lacking: BTreeSet<Oid>) {
        match asked.first() {
            Some(oid) if asked.len() == 1 && lacking.contains(oid) => self.memory.missed(url, *oid),
            _ => self.memory.doubted(url, lacking),
        }
    }

    /// Ends a conversation; who may begin in its place is to be granted that afterwards.
    fn land(&mut self, errand: Errand) -> Option<(Landed, Vec<Pass>)> {
        let flight = self.flights.remove(&errand)?;
        let Flight { identifier, url, asked, pass, late_at, gives_way_at } = flight;
        self.crew.back();
        if let Some(at) = late_at {
            self.late.remove(&(at, errand));
        }
        let passes = self.throttle.release(self.now.mono, pass);
        let gave_way = gives_way_at.is_none();
        Some((Landed { errand, identifier, url, asked, gave_way }, passes))
    }

    /// Takes the next step of a visit, in the server's line.
    fn continue_visit(&mut self, out: &mut Vec<Output>, landed: &Landed) {
        let Landed { errand, identifier, url, .. } = landed;
        let host = url.host();
        let Some(case) = self.cases.get_mut(identifier) else { return };
        let wanted = case.needs.of(url);
        let Some(visit) = case.visits.get_mut(url) else { return };
        if visit.state != State::Flying(*errand) {
            return;
        }
        let Some(advertised) = &visit.advertised else { return };
        let plan = self.memory.plan(url, &wanted, advertised);
        let guess = plan.guesses.first().filter(|_| visit.guesses_left > 0);
        visit.step = if !visit.batched && !plan.batch.is_empty() {
            visit.batched = true;
            Step::Batch(plan.batch)
        } else if let Some(oid) = guess.filter(|_| self.throttle.may_guess(self.now.mono, &host)) {
            visit.guesses_left -= 1;
            Step::Guess(*oid)
        } else {
            return self.end_visit(out, landed);
        };
        visit.state = State::Parked;
        match self.throttle.enqueue(self.now.mono, &host, identifier) {
            Some(passes) => {
                self.grant(out, passes);
                self.leave_to_its_line(out, identifier, url);
            }
            None => self.end_visit(out, landed),
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
    fn end_visit(&mut self, out: &mut Vec<Output>, landed: &Landed) {
        let Landed { errand, identifier, url, .. } = landed;
        let visit = self.cases.get(identifier).and_then(|case| case.visits.get(url));
        let is_over = |state| state == State::Parked || state == State::Flying(*errand);
        if visit.is_some_and(|visit| is_over(visit.state)) {
            self.leave(out, identifier, url);
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
        self.forget_if_idle(identifier);
    }

    /// Draws the consequences of trouble with a server.
    fn note(&mut self, out: &mut Vec<Output>, landed: &Landed, trouble: Trouble) {
        if trouble == Trouble::Cancelled {
            return;
        }
        if let Trouble::Limited { retry_after } = trouble {
            let length = retry_after.unwrap_or(self.config.pause).min(self.config.longest_pause);
            let host = landed.url.host();
            self.throttle.pause(self.now.mono, &host, self.now.mono + length);
            out.push(Output::Report(Report::Paused { host, length }));
        }
        let (identifier, url) = (landed.identifier.clone(), landed.url.clone());
        out.push(Output::Report(Report::Failed { identifier, url, trouble }));
    }
}

/// A conversation that has ended.
struct Landed {
    errand: Errand,
    identifier: Identifier,
    url: CloneUrl,
    asked: BTreeSet<Oid>,
    gave_way: bool,
}

impl Landed {
    /// Who had to give way was too slow.
    fn judge(&self, trouble: Trouble) -> Trouble {
        if self.gave_way && trouble == Trouble::Cancelled { Trouble::Stalled } else { trouble }
    }
}
