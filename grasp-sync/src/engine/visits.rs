//! What a relay is followed for, and visits: histories that are fetched from a relay on request (GRASP-03).
//!
//! A visit confirms nothing and proves nothing, and nothing of it stays open. It shares the connection of a relay that
//! is a target; any other relay is followed for as long as it has visits. One that finds no connection for some time
//! has failed, so that whoever waits for it can turn to another relay.

use std::collections::BTreeMap;
use std::time::Duration;

use grasp_core::limits::Admit;
use grasp_core::nostr::filter::Filter;
use grasp_core::sync::PendingItems;
use grasp_core::{Mono, Now, RelayUrl};

use super::SyncEngine;
use super::backlog::Purpose;
use super::filter::Layer;
use super::history::CountAs;
use super::io::{JobId, Output, VisitId, VisitOutcome};
use super::job::{FilterJob, JobMethod};
use super::relay::{EngineState, Link, RelayContext};
use super::session::ConnectionSession;

/// Time for which a connection stays without a visit: the next may follow at once.
const VISIT_GAP: Duration = Duration::from_secs(5);
/// Time that a visit waits for a connection.
const CONNECTION_WAIT: Duration = Duration::from_secs(2 * 60);

/// What a relay is followed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// Announcements and all that a repository wants: it is a bootstrap relay, or a repository lists it.
    Full,
    /// Threads whose root's author names it as theirs. It is asked for no announcements.
    Roots,
    /// Visits alone.
    Visits,
}

/// A visit that has not ended.
#[derive(Debug)]
struct Visit {
    filters: Vec<Filter>,
    began: Mono,
}

/// The visits that have not ended, by relay.
#[derive(Debug, Default)]
pub(super) struct Visits(BTreeMap<RelayUrl, BTreeMap<VisitId, Visit>>);

impl Visits {
    fn add(&mut self, relay: RelayUrl, id: VisitId, visit: Visit) {
        self.0.entry(relay).or_default().insert(id, visit);
    }

    /// Returns when the oldest visit of a relay began.
    fn oldest(&self, relay: &RelayUrl) -> Option<Mono> {
        let visits = self.0.get(relay)?.values();
        visits.map(|visit| visit.began).min()
    }

    /// Returns whether a relay has a visit.
    fn has(&self, relay: &RelayUrl) -> bool {
        self.0.contains_key(relay)
    }

    fn at(&self, relay: &RelayUrl) -> impl Iterator<Item = (VisitId, &Vec<Filter>)> {
        let visits = self.0.get(relay).into_iter().flatten();
        visits.map(|(id, visit)| (*id, &visit.filters))
    }

    fn relay_of(&self, id: VisitId) -> Option<RelayUrl> {
        let mut visits = self.0.iter();
        let found = visits.find(|(_, visits)| visits.contains_key(&id));
        found.map(|(relay, _)| relay.clone())
    }

    /// Removes a visit; returns whether it was there.
    fn end(&mut self, relay: &RelayUrl, id: VisitId) -> bool {
        let Some(visits) = self.0.get_mut(relay) else {
            return false;
        };
        let was_open = visits.remove(&id).is_some();
        if visits.is_empty() {
            self.0.remove(relay);
        }
        was_open
    }

    /// Removes and returns the visits of a relay.
    fn take(&mut self, relay: &RelayUrl) -> impl Iterator<Item = VisitId> + use<> {
        self.0.remove(relay).unwrap_or_default().into_keys()
    }
}

impl EngineState {
    /// Returns what a relay is to be followed for; `None` if for nothing.
    pub(super) fn scope_of(&self, relay: &RelayUrl) -> Option<Scope> {
        if self.index.is_listed(relay) {
            return Some(Scope::Full);
        }
        if self.index.is_target(relay) {
            return Some(Scope::Roots);
        }
        self.visits.has(relay).then_some(Scope::Visits)
    }
}

impl SyncEngine {
    /// Begins a visit, as soon as the relay is connected.
    pub(super) fn visit(&mut self, now: Now, relay: RelayUrl, id: VisitId, filters: Vec<Filter>) {
        let is_for_all = filters.iter().any(|one| Layer::of(one) == Layer::All);
        if is_for_all || self.shared.config.own.is_own_url(relay.as_str()) {
            let outcome = VisitOutcome::Failed;
            return self.out.push(Output::Visited { id, outcome });
        }
        if filters.is_empty() {
            let outcome = VisitOutcome::Complete;
            return self.out.push(Output::Visited { id, outcome });
        }
        let began = now.mono;
        let visit = Visit { filters, began };
        self.shared.visits.add(relay.clone(), id, visit);
        if !self.relays.contains_key(&relay) {
            self.follow_new(now, [relay.clone()].into());
        }
        self.with_relay(now, &relay, |link, ctx| link.visit(ctx));
        self.connections.needs_check = true;
    }

    /// Ends a visit before it has fetched everything.
    pub(super) fn end_visit(&mut self, now: Now, id: VisitId) {
        let Some(relay) = self.shared.visits.relay_of(id) else {
            return;
        };
        self.shared.visits.end(&relay, id);
        self.with_relay(now, &relay, |link, ctx| {
            if let Link::Up(session) = link {
                let visit = Purpose::Visit(id);
                session
                    .backlog
                    .drop_batch_for(ctx, &mut session.subs, visit);
            }
        });
    }

    /// Ends the visits of a relay that cannot be followed.
    pub(super) fn refuse_visits(&mut self, relay: &RelayUrl) {
        for id in self.shared.visits.take(relay) {
            let outcome = VisitOutcome::Failed;
            self.out.push(Output::Visited { id, outcome });
        }
    }
}

impl Link {
    /// Begins the visits of the relay. Without a connection they wait for one, unless the relay failed lately.
    fn visit(&mut self, ctx: &mut RelayContext<'_>) {
        match self {
            Self::Up(session) => session.begin_visits(ctx),
            Self::Idle if ctx.history.health.admit(ctx.mono()) != Admit::Go => ctx.visits_failed(),
            Self::Idle | Self::Dialing { .. } => {}
        }
    }
}

impl ConnectionSession {
    /// Queues the visits of the relay that are not under way.
    pub(super) fn begin_visits(&mut self, ctx: &mut RelayContext<'_>) {
        let is_new = |id: VisitId| self.backlog.batch_for(Purpose::Visit(id)).is_none();
        let visits = ctx.shared.visits.at(ctx.relay);
        let new: Vec<(VisitId, Vec<Filter>)> = visits
            .filter(|(id, _)| is_new(*id))
            .map(|(id, filters)| (id, filters.clone()))
            .collect();
        for (id, filters) in new {
            let purpose = Purpose::Visit(id);
            let method = JobMethod::Reconcile;
            let nothing = PendingItems::default();
            self.backlog
                .fetch(ctx, purpose, filters, method, nothing, CountAs::NEW);
        }
    }

    /// Ends the visits that failed: one of their jobs was given up, or has to wait until a backoff or suspension ends.
    pub(super) fn end_failed_visits(&mut self, ctx: &mut RelayContext<'_>) {
        if !ctx.shared.visits.has(ctx.relay) {
            return;
        }
        let suspended = ctx.suspended_layers();
        let backs_off = ctx.history.wants.is_backing_off(ctx.mono());
        let visits: Vec<VisitId> = ctx.shared.visits.at(ctx.relay).map(|(id, _)| id).collect();
        for id in visits {
            let Some(batch) = self.backlog.batch_for(Purpose::Visit(id)) else {
                ctx.visited(id, VisitOutcome::Failed);
                continue;
            };
            let goes_on = |(_, job): (JobId, &FilterJob)| {
                job.is_at_work(suspended.contains_key(&job.layer), backs_off)
            };
            if self.backlog.jobs_of(batch).all(goes_on) {
                continue;
            }
            self.backlog.drop_batch(ctx, &mut self.subs, batch);
            ctx.visited(id, VisitOutcome::Failed);
        }
    }
}

impl RelayContext<'_> {
    /// Ends a visit of the relay, unless it has ended.
    pub(super) fn visited(&mut self, id: VisitId, outcome: VisitOutcome) {
        if self.shared.visits.end(self.relay, id) {
            self.out.push(Output::Visited { id, outcome });
        }
    }

    /// Ends all visits of the relay without success.
    pub(super) fn visits_failed(&mut self) {
        for id in self.shared.visits.take(self.relay) {
            let outcome = VisitOutcome::Failed;
            self.out.push(Output::Visited { id, outcome });
        }
    }

    /// Ends the visits of a relay that has found no connection for them in time; returns when they end.
    pub(super) fn end_waiting_visits(&mut self, is_connected: bool) -> Option<Mono> {
        if is_connected {
            return None;
        }
        let at = self.shared.visits.oldest(self.relay)? + CONNECTION_WAIT;
        if self.now.mono < at {
            return Some(at);
        }
        self.visits_failed();
        None
    }

    /// Returns when the relay is left, if it is followed for visits alone and has none.
    pub(super) fn update_leaving(&mut self, is_connected: bool) -> Option<Mono> {
        if self.history.scope != Scope::Visits || self.shared.visits.has(self.relay) {
            self.history.leave_at = None;
            return None;
        }
        let wait = if is_connected {
            VISIT_GAP
        } else {
            Duration::ZERO
        };
        let at = self.now.mono + wait;
        let leave_at = self.history.leave_at.map_or(at, |earlier| earlier.min(at));
        self.history.leave_at = Some(leave_at);
        Some(leave_at)
    }
}
