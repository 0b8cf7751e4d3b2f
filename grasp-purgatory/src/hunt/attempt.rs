//! One attempt for one identifier: who is asked next, and when it is over.

use grasp_core::service::relay_of_clone_url;
use grasp_core::{CloneUrl, Host, Identifier, Mono, RelayUrl};

use super::case::{Case, Path, State, Visit};
use super::plan::{Needs, next_place};
use super::queue::{End, Follows};
use super::throttle::Throttle;
use super::{Errand, HostClass, Hunter, Output, Report};
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

    /// Asks the next server that may be asked now. Without one it stands in line with those that may be asked later,
    /// and is over once these were asked; those that are late it leaves to themselves.
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
            classify(&mut self.throttle, self.now.mono, out, &url);
            let Some(pass) = self.throttle.admit(self.now.mono, &url.host(), identifier) else {
                leave_out.insert(url.host());
                continue;
            };
            case.tried.insert(url.clone());
            case.visits.insert(url.clone(), Visit::new(Path::Main, &self.config));
            return self.fly(out, identifier, &url, pass);
        }
        self.stand_in_lines(out, identifier);
        if let Some(case) = self.cases.get(identifier).filter(|case| case.is_in_line()) {
            let were_asked = case.tried.iter().any(|url| !case.visits.contains_key(url));
            self.queue.in_line(self.now.mono, identifier, were_asked);
            out.push(Output::Report(Report::InLine { identifier: identifier.clone() }));
        } else {
            self.give_up_attempt(out, identifier);
        }
    }

    /// Ends an attempt for which every server was asked and something is left.
    fn give_up_attempt(&mut self, out: &mut Vec<Output>, identifier: &Identifier) {
        let is_pressing = self.cases.get(identifier).is_none_or(|case| case.needs.is_pressing());
        self.end_attempt(out, identifier, if is_pressing { End::Wanting } else { End::Later });
    }

    /// Ends an attempt that was in line once its last turn is over.
    pub(super) fn end_if_out_of_line(&mut self, out: &mut Vec<Output>, identifier: &Identifier) {
        let is_in_line = self.cases.get(identifier).is_some_and(Case::is_in_line);
        if self.queue.is_in_line(identifier) && !is_in_line {
            self.give_up_attempt(out, identifier);
        }
        self.forget_if_idle(identifier);
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
        classify(&mut self.throttle, self.now.mono, out, &url);
        match self.throttle.enqueue(self.now.mono, host, identifier) {
            Some(passes) => self.grant(out, passes),
            None => {
                case.visits.remove(&url);
                case.lines.remove(host);
            }
        }
    }

    /// A visit takes long. One whose turn had come in line is waited for no longer: every server was asked.
    pub(super) fn on_late(&mut self, out: &mut Vec<Output>, errand: Errand) {
        let Some(flight) = self.flights.get_mut(&errand) else { return };
        let limit = flight.began + self.config.answer_limit;
        flight.late_at = (!flight.has_answered && self.now.mono < limit).then_some(limit);
        self.late.extend(flight.late_at.map(|at| (at, errand)));
        if !flight.has_answered && flight.late_at.is_none() {
            flight.gives_way_at = None;
            return out.push(Output::Cancel { errand });
        }
        let (identifier, url) = (flight.identifier.clone(), flight.url.clone());
        let Some(case) = self.cases.get_mut(&identifier) else { return };
        let Some(visit) = case.visits.get_mut(&url) else { return };
        match visit.path {
            Path::Main => {
                visit.path = Path::Overdue;
                self.move_on(out, &identifier);
            }
            Path::Line => {
                visit.path = Path::Late;
                case.lines.remove(&url.host());
                self.end_if_out_of_line(out, &identifier);
            }
            Path::Overdue | Path::Late => {}
        }
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
        if self.queue.is_running(identifier) || self.queue.is_in_line(identifier) {
            self.end_attempt(out, identifier, end);
        } else {
            // Between two attempts something may have come to be wanted that this hunt never knew of.
            self.queue.settle(self.now.mono, identifier);
        }
    }

    fn call_off(&mut self, out: &mut Vec<Output>, identifier: &Identifier, case: &Case) {
        for (url, visit) in &case.visits {
            match visit.state {
                State::Parked => {
                    let passes = self.throttle.withdraw(self.now.mono, &url.host(), identifier);
                    self.grant(out, passes);
                }
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
                self.done += 1;
                return out.push(Output::Report(Report::Complete { identifier }));
            }
            (End::Needless, Follows::Nothing) => {
                self.done += 1;
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

    pub(super) fn on_classified(
        &mut self,
        out: &mut Vec<Output>,
        host: Host,
        class: Option<HostClass>,
    ) {
        let Some(class) = class else { return };
        let passes = self.throttle.classified(self.now.mono, &host, class);
        out.push(Output::Report(Report::Classified { host, class }));
        self.grant(out, passes);
    }
}

/// Asks what kind of server a host is, if its address is one that GRASP servers have and the answer is not known.
///
/// Only the root of a host is believed: below it, hosts serve documents that strangers wrote.
fn classify(throttle: &mut Throttle, now: Mono, out: &mut Vec<Output>, url: &CloneUrl) {
    let is_root = |relay: &RelayUrl| relay.as_str().matches('/').count() == 2;
    let Some(relay) = relay_of_clone_url(url).filter(is_root) else { return };
    if throttle.must_classify(now, &url.host()) {
        out.push(Output::Classify { host: url.host(), relay });
    }
}
