//! One attempt for one identifier: who is asked next, and when it is over.

use grasp_core::{CloneUrl, Host, Identifier};

use super::case::{Case, Path, State, Visit};
use super::plan::{Needs, next_place};
use super::queue::{End, Follows};
use super::{Errand, Hunter, Output, Report};
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
        let case = self.cases.entry(identifier.clone()).or_default();
        (case.needs, case.places) = (needs, places);
        case.tried.clear();
        self.go_on(out, identifier);
    }

    /// Asks the next server that may be asked now. Without one the attempt is over: it stands in line with those that
    /// may be asked later, and leaves those that are late to themselves.
    pub(super) fn go_on(&mut self, out: &mut Vec<Output>, identifier: &Identifier) {
        let Some(case) = self.cases.get_mut(identifier) else { return };
        if case.has_main() || !self.queue.is_running(identifier) {
            return;
        }
        let mut leave_out = case.busy_hosts();
        while let Some(url) = next_place(&case.places, &case.tried, &leave_out).cloned() {
            if case.needs.of(&url).is_empty() {
                case.tried.insert(url);
                continue;
            }
            let Some(pass) = self.throttle.admit(self.now.mono, &url.host(), identifier) else {
                leave_out.insert(url.host());
                continue;
            };
            case.tried.insert(url.clone());
            case.visits.insert(url.clone(), Visit::new(Path::Main, &self.config));
            return self.fly(out, identifier, &url, pass);
        }
        let end = if case.needs.is_pressing() { End::Wanting } else { End::Later };
        self.stand_in_lines(out, identifier);
        self.end_attempt(out, identifier, end);
    }

    /// Takes a turn with every server that could not be asked.
    fn stand_in_lines(&mut self, out: &mut Vec<Output>, identifier: &Identifier) {
        let Some(case) = self.cases.get(identifier) else { return };
        let untried = case.places.iter().filter(|url| !case.tried.contains(*url));
        let hosts: Vec<Host> = untried.map(CloneUrl::host).collect();
        for host in hosts {
            self.stand_in_line(out, identifier, &host);
        }
    }

    /// Takes a turn with a server for the next address there, unless it is being visited for us already.
    pub(super) fn stand_in_line(
        &mut self,
        out: &mut Vec<Output>,
        identifier: &Identifier,
        host: &Host,
    ) {
        let Some(case) = self.cases.get_mut(identifier) else { return };
        if case.busy_hosts().contains(host) {
            return;
        }
        let tried = case.lines.entry(host.clone()).or_default();
        // What the attempt has tried is not tried again here, nor is the reverse true: the next attempt begins anew.
        let mut here = case.places.iter().filter(|url| url.host() == *host);
        let next = here.find(|url| {
            !tried.contains(*url) && !case.tried.contains(*url) && !case.needs.of(url).is_empty()
        });
        let Some(url) = next.cloned() else {
            case.lines.remove(host);
            return;
        };
        tried.insert(url.clone());
        case.visits.insert(url.clone(), Visit::new(Path::Line, &self.config));
        match self.throttle.enqueue(self.now.mono, host, identifier) {
            Some(passes) => self.grant(out, passes),
            None => {
                case.visits.remove(&url);
                case.lines.remove(host);
            }
        }
    }

    /// An attempt's visit takes long.
    pub(super) fn on_late(&mut self, out: &mut Vec<Output>, errand: Errand) {
        let Some(flight) = self.flights.get_mut(&errand) else { return };
        flight.late_at = None;
        let (identifier, url) = (flight.identifier.clone(), flight.url.clone());
        let Some(case) = self.cases.get_mut(&identifier) else { return };
        let Some(visit) = case.visits.get_mut(&url) else { return };
        visit.path = Path::Overdue;
        self.move_on(out, &identifier);
    }

    /// Asks somebody else beside a visit that takes long, if there may be one more of those.
    pub(super) fn move_on(&mut self, out: &mut Vec<Output>, identifier: &Identifier) {
        let most = self.config.late_visits;
        if self.cases.get_mut(identifier).is_some_and(|case| case.let_go(most)) {
            self.go_on(out, identifier);
        }
    }

    /// Everything is here that was wanted: nobody needs to be asked any more.
    pub(super) fn satisfy(&mut self, out: &mut Vec<Output>, identifier: &Identifier, end: End) {
        if let Some(case) = self.cases.remove(identifier) {
            self.call_off(out, identifier, &case);
        }
        if self.queue.is_running(identifier) {
            self.end_attempt(out, identifier, end);
        } else {
            // Between two attempts something may have come to be wanted that this hunt never knew of.
            self.queue.settle(self.now.mono, identifier);
        }
    }

    fn call_off(&mut self, out: &mut Vec<Output>, identifier: &Identifier, case: &Case) {
        for (url, visit) in &case.visits {
            match visit.state {
                State::Parked => self.throttle.withdraw(&url.host(), identifier),
                State::Ready => {}
                State::Flying(errand) => {
                    // The one that brought the last object has landed.
                    let Some(flight) = self.flights.get_mut(&errand) else { continue };
                    if let Some(at) = flight.late_at.take() {
                        self.late.remove(&(at, errand));
                    }
                    out.push(Output::Cancel { errand });
                }
            }
        }
        for pass in self.crew.withdraw(identifier) {
            let passes = self.throttle.release(self.now.mono, pass);
            self.grant(out, passes);
        }
    }

    pub(super) fn end_attempt(&mut self, out: &mut Vec<Output>, identifier: &Identifier, end: End) {
        let follows = self.queue.ended(self.now.mono, identifier, end);
        self.forget_if_idle(identifier);
        let identifier = identifier.clone();
        let next = match (end, follows) {
            (End::Satisfied, Follows::Nothing) => {
                return out.push(Output::Report(Report::Complete { identifier }));
            }
            (End::Needless, Follows::Nothing) => {
                return out.push(Output::Report(Report::Needless { identifier }));
            }
            (_, Follows::Nothing) => None,
            (_, Follows::Attempt(next)) => Some(next - self.now.mono),
        };
        let attempts = self.queue.attempts(&identifier);
        out.push(Output::Report(Report::Incomplete { identifier, attempts, next }));
    }

    /// Drops a case that nobody works on; the next attempt makes a new one.
    pub(super) fn forget_if_idle(&mut self, identifier: &Identifier) {
        let is_idle = self.cases.get(identifier).is_some_and(|case| case.visits.is_empty());
        if is_idle && !self.queue.is_running(identifier) {
            self.cases.remove(identifier);
        }
    }
}
