//! One relay: dialled, connected, subscribed to, asked, disconnected, dialled again.

mod answers;
mod auth;
mod check;
mod consolidate;
mod gaps;
mod jobs;
mod live;
mod pages;
mod progress;
mod pump;
mod refusals;
mod resume;
mod session;
mod standing;
mod subs;
mod whole;

use grasp_core::limits::Admit;
use grasp_core::resources::Grant;
use grasp_core::sync::{AddFilters, RelaySyncNeeds};
use grasp_core::{Mono, RelayUrl};

pub(super) use self::answers::{Came, Origin};
pub(super) use self::gaps::Course;
use self::resume::Sort;
pub(super) use self::resume::record;
pub(super) use self::session::Session;
pub(super) use self::standing::Standing;
use super::desk::Desk;
use super::facts::RelayFacts;
use super::ids::ConnId;
use super::io::{Fault, Output};
use super::report::Report;

#[derive(Debug)]
pub(super) struct Relay {
    pub(super) standing: Standing,
    pub(super) link: Link,
    /// The time at which it next needs to run.
    pub(super) deadline: Option<Mono>,
    /// Its place among the relays that are followed, unless the operator named it.
    pub(super) place: Option<Grant>,
}

/// The state of the connection to a relay.
#[derive(Debug)]
pub(super) enum Link {
    /// Not connected.
    Idle,
    Dialing(ConnId),
    Up(Box<Session>),
}

impl Link {
    /// Returns the session if it is on this connection.
    pub(super) fn session(&mut self, conn: ConnId) -> Option<&mut Session> {
        match self {
            Self::Up(session) if session.conn == conn => Some(session),
            _ => None,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        matches!(self, Self::Idle)
    }

    pub(super) fn dial(&mut self, desk: &mut Desk<'_>, conn: ConnId) {
        *self = Self::Dialing(conn);
        desk.standing.health.dialled();
        desk.standing.waits_since = desk.now.unix;
        let Some(state) = desk.state() else { return };
        state.connecting();
        let (status, configured) = (state.connection_status(), state.is_bootstrap);
        let relay = desk.relay.clone();
        desk.out.push(Output::Connect { relay: relay.clone(), conn, configured });
        desk.report(Report::Status { relay, status });
    }

    /// Starts a session. Ends a connection that is not wanted, or no longer.
    pub(super) fn connected(&mut self, desk: &mut Desk<'_>, conn: ConnId, facts: &RelayFacts) {
        if !matches!(self, Self::Dialing(dialled) if *dialled == conn) {
            return hang_up(desk, conn);
        }
        let now = desk.now;
        if facts.is_private {
            self.failed(desk, conn, Fault::Private);
            return hang_up(desk, conn);
        }
        desk.standing.connected(now.mono, facts, &desk.shared.config);
        let how = resume::take_up(desk);
        let session = Session::begin(desk, conn, how);
        session.report_status(desk);
        *self = Self::Up(Box::new(session));
        desk.note_change();
        self.report_health(desk);
    }

    /// Handles a failed attempt to connect. Ignores any but the current one.
    pub(super) fn failed(&mut self, desk: &mut Desk<'_>, conn: ConnId, why: Fault) {
        if matches!(self, Self::Dialing(dialled) if *dialled == conn) {
            let (now, quarantine) = (desk.mono(), desk.shared.config.quarantine);
            desk.standing.health.failed(now, why, quarantine);
            let (relay, failure) = (desk.relay.clone(), desk.standing.health.failure(now));
            desk.report(Report::ConnectFailed { relay, why, failure });
            self.end(desk);
        }
    }

    /// Handles a lost connection. Ignores any but the current one.
    pub(super) fn lost(&mut self, desk: &mut Desk<'_>, conn: ConnId) {
        if self.session(conn).is_none() {
            return;
        }
        desk.standing.health.lost(desk.now.mono);
        self.end(desk);
        let (relay, seen) = (desk.relay.clone(), desk.standing.health.seen(desk.mono()));
        desk.report(Report::Reliability { relay, seen });
    }

    /// The connection brought forged events. Too many of them end it, and count as a failure of the relay.
    pub(super) fn forged(&mut self, desk: &mut Desk<'_>, conn: ConnId, count: usize) {
        if self.session(conn).is_none() || !desk.standing.health.forged(count) {
            return;
        }
        let (relay, count) = (desk.relay.clone(), desk.standing.health.forged_count());
        desk.report(Report::Forged { relay, count });
        self.lost(desk, conn);
        hang_up(desk, conn);
    }

    /// There is no room for the connection that stands now, which is no fault of the relay.
    pub(super) fn crowded(&mut self, desk: &mut Desk<'_>, conn: ConnId) {
        self.end(desk);
        hang_up(desk, conn);
    }

    /// Ends the connection in favour of a relay that waits.
    pub(super) fn give_way(&mut self, desk: &mut Desk<'_>) {
        let Self::Up(session) = self else { return };
        let (conn, relay) = (session.conn, desk.relay.clone());
        desk.standing.health.released(desk.now.mono);
        self.end(desk);
        hang_up(desk, conn);
        desk.report(Report::GaveWay { relay });
    }

    /// Ends the connection to a relay that is no longer a target.
    pub(super) fn retire(&mut self, desk: &mut Desk<'_>) {
        let conn = match self {
            Self::Idle => None,
            Self::Dialing(conn) => Some(*conn),
            Self::Up(session) => Some(session.conn),
        };
        self.end(desk);
        if let Some(conn) = conn {
            hang_up(desk, conn);
        }
    }

    /// Asks for new items.
    pub(super) fn add(&mut self, desk: &mut Desk<'_>, action: AddFilters) {
        if let Self::Up(session) = self {
            session.discovered(desk, action);
        }
    }

    /// Fetches everything again, because the local relay lost it.
    pub(super) fn begin_anew(&mut self, desk: &mut Desk<'_>) {
        let now = desk.now.unix;
        desk.standing.forget_what_was_given(now);
        match self {
            Self::Up(session) => session.start_over(desk, Sort::Fresh),
            Self::Idle | Self::Dialing(_) => {
                desk.state().into_iter().for_each(|state| state.start_over(now));
            }
        }
    }

    /// Handles timeouts, a due daily pass and a due record.
    pub(super) fn tick(&mut self, desk: &mut Desk<'_>) {
        if let Self::Up(session) = self {
            session.watch(desk);
            let is_due = desk.standing.daily.is_due(desk.now.mono);
            if is_due && session.has_ended() && !desk.standing.pace.is_paused(desk.now.mono) {
                session.start_over(desk, Sort::Daily);
            }
        }
        desk.standing.health.forgive(desk.now.mono);
        self.report_health(desk);
        if desk.standing.write_at.is_some_and(|at| desk.now.mono >= at) {
            desk.standing.write_at = None;
            let state = desk.shared.states.get(desk.relay);
            let record = record(desk.now, desk.relay, self, desk.standing, state);
            desk.out.push(Output::Persist(Box::new(record)));
        }
    }

    /// Sends what may be sent; returns when the relay next needs to run.
    pub(super) fn pump(&mut self, desk: &mut Desk<'_>) -> Option<Mono> {
        let own = match self {
            Self::Up(session) => {
                session.pump(desk);
                session.deadline(desk)
            }
            Self::Idle => match desk.standing.health.admit(desk.now.mono) {
                Admit::Go => None,
                Admit::Wait(until) => Some(until),
            },
            Self::Dialing(_) => None,
        };
        let forgiven = desk.standing.health.forgiven_at();
        own.into_iter().chain(desk.standing.write_at).chain(forgiven).min()
    }

    /// Ends the connection or attempt.
    fn end(&mut self, desk: &mut Desk<'_>) {
        if let Self::Up(session) = std::mem::replace(self, Self::Idle) {
            session.forget_inventories(desk);
            if let Some(since) = session.listening_since {
                desk.standing.listened.ended(since, desk.now.unix);
            }
        }
        let now = desk.now.unix;
        desk.standing.waits_since = now;
        desk.shared.pending.remove(desk.relay);
        desk.standing.wants.disconnected();
        desk.note_change();
        let Some(state) = desk.state() else { return };
        state.disconnected(now);
        let status = state.connection_status();
        let relay = desk.relay.clone();
        desk.report(Report::Status { relay, status });
        self.report_health(desk);
    }

    fn report_health(&self, desk: &mut Desk<'_>) {
        if let Some((health, failing_for)) = desk.standing.health.news(desk.now.mono) {
            let relay = desk.relay.clone();
            desk.report(Report::Health { relay, health, failing_for });
        }
    }
}

/// Ends a connection that is not wanted.
fn hang_up(desk: &mut Desk<'_>, conn: ConnId) {
    let relay = desk.relay.clone();
    desk.out.push(Output::Disconnect { relay, conn });
}

/// Removes items from what is confirmed: they are no longer wanted, or wanted less.
pub(super) fn forget(desk: &mut Desk<'_>, relay: &RelayUrl, removed: &RelaySyncNeeds) {
    let levels: Vec<_> = removed
        .repos
        .keys()
        .map(|repo| {
            let needs = desk.shared.index.repos().get(repo);
            let level = needs.filter(|needs| needs.relays.contains(relay)).map(|needs| needs.level);
            (repo.clone(), level)
        })
        .collect();
    let Some(state) = desk.state() else { return };
    for (repo, level) in levels {
        match (level, state.confirmed.repos.get_mut(&repo)) {
            (Some(level), Some(had)) => *had = (*had).min(level),
            _ => _ = state.confirmed.repos.remove(&repo),
        }
    }
    state.confirmed.root_events = state.confirmed.root_events.without(&removed.root_events);
    state.confirmed.coordinates.retain(|member| !removed.coordinates.contains(member));
}
