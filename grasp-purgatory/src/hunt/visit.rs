//! One visit to one address: its advertisement, what can be had together, then a guess or two.

use std::collections::{BTreeSet, VecDeque};

use grasp_core::{CloneUrl, Identifier, Oid};

use super::case::{Flight, Path, State, Step};
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

    /// Begins the conversation that a visit waits for.
    pub(super) fn fly(
        &mut self,
        out: &mut Vec<Output>,
        identifier: &Identifier,
        url: &CloneUrl,
        pass: Pass,
    ) {
        let errand = Errand(self.next_errand);
        self.next_errand += 1;
        let Some(case) = self.cases.get_mut(identifier) else { return };
        let wanted = case.needs.of(url);
        let Some(visit) = case.visits.get_mut(url) else { return };
        visit.state = State::Flying(errand);
        let (asked, is_main) = (visit.step.oids(), visit.path == Path::Main);
        let (identifier, url) = (identifier.clone(), url.clone());
        let patience = match visit.step {
            Step::List => self.config.listing_is_late,
            Step::Batch(_) | Step::Guess(_) => self.config.fetch_is_late,
        };
        let late_at = is_main.then(|| self.now.mono + patience);
        self.late.extend(late_at.map(|at| (at, errand)));
        if visit.step == Step::List {
            self.memory.visited(self.now.mono, &url);
        }
        out.push(match visit.step {
            Step::List => {
                Output::List { errand, identifier: identifier.clone(), url: url.clone(), wanted }
            }
            Step::Batch(_) | Step::Guess(_) => Output::Fetch {
                errand,
                identifier: identifier.clone(),
                url: url.clone(),
                oids: asked.clone(),
            },
        });
        self.flights.insert(errand, Flight { identifier, url, asked, pass, late_at });
    }

    pub(super) fn on_listed(
        &mut self,
        out: &mut Vec<Output>,
        errand: Errand,
        result: Result<Advertisement, Trouble>,
    ) {
        let Some((landed, passes)) = self.land(errand) else { return };
        let Landed { identifier, url, .. } = &landed;
        match result {
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
            self.note(out, &landed, trouble);
        }
        let case = self.cases.get_mut(identifier);
        let is_enough = case.is_some_and(|case| {
            case.needs.got(got);
            case.needs.is_empty()
        });
        match is_enough {
            true => self.satisfy(out, identifier),
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
        let Flight { identifier, url, asked, pass, late_at } = self.flights.remove(&errand)?;
        if let Some(at) = late_at {
            self.late.remove(&(at, errand));
        }
        let passes = self.throttle.release(self.now.mono, pass);
        Some((Landed { errand, identifier, url, asked }, passes))
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

    /// Ends a visit: the attempt goes on with another address, or the line with the next there.
    fn end_visit(&mut self, out: &mut Vec<Output>, landed: &Landed) {
        let Landed { errand, identifier, url, .. } = landed;
        let Some(case) = self.cases.get_mut(identifier) else { return };
        let is_over =
            |state: State| matches!(state, State::Parked) || state == State::Flying(*errand);
        let path = match case.visits.get(url) {
            Some(visit) if is_over(visit.state) => visit.path,
            _ => return,
        };
        case.visits.remove(url);
        match path {
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
}
