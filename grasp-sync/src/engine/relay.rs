//! One relay: dialled, connected, subscribed to, asked, disconnected, dialled again.

use std::time::Duration;

use crate::index::RelaySyncNeeds;

use grasp_core::Mono;
use grasp_core::limits::Admit;
use grasp_core::resources::Grant;

use super::context::Context;
use super::facts::RelayFacts;
use super::history::{PassKind, RelayHistory, choose_start};
use super::ids::ConnId;
use super::io::{Fault, Output};
use super::report::{PeerReliability, Report};
use super::session::Session;

/// Time after which a handshake is given up if the driver does not answer.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct Relay {
    pub(super) history: RelayHistory,
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
    Dialing {
        conn: ConnId,
        /// The time at which the attempt is given up if the driver does not answer.
        until: Mono,
    },
    Up(Box<Session>),
}

impl Link {
    /// Returns the session if it is on this connection.
    pub(super) fn session(&mut self, conn: ConnId) -> Option<&mut Session> {
        match self {
            Self::Up(session) if session.subs.conn == conn => Some(session),
            _ => None,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        matches!(self, Self::Idle)
    }

    /// Returns whether this attempt to connect is under way.
    pub(super) fn is_dialing(&self, attempt: ConnId) -> bool {
        matches!(self, Self::Dialing { conn, .. } if *conn == attempt)
    }

    pub(super) fn dial(&mut self, ctx: &mut Context<'_>) {
        let conn = ctx.shared.ids.next(ConnId);
        *self = Self::Dialing { conn, until: ctx.mono() + HANDSHAKE_TIMEOUT };
        ctx.history.health.seen.attempts += 1;
        ctx.history.waits_since = ctx.now.unix;
        ctx.history.state.connecting();
        let configured = ctx.history.state.is_bootstrap;
        ctx.out.push(Output::Connect { relay: ctx.relay.clone(), conn, configured });
        ctx.report_status();
    }

    /// Starts a session. Ends a connection that is not wanted, or no longer.
    pub(super) fn connected(&mut self, ctx: &mut Context<'_>, conn: ConnId, facts: &RelayFacts) {
        if !self.is_dialing(conn) {
            return disconnect(ctx, conn);
        }
        let now = ctx.now;
        if facts.is_private {
            self.failed(ctx, conn, Fault::Private);
            return disconnect(ctx, conn);
        }
        ctx.history.connected(now.mono, facts, &ctx.shared.config);
        let how = choose_start(ctx);
        let session = Session::begin(ctx, conn, how);
        ctx.report_status();
        *self = Self::Up(Box::new(session));
        ctx.schedule_write();
        self.report_health(ctx);
    }

    /// Handles a failed attempt to connect. Ignores any but the current one.
    pub(super) fn failed(&mut self, ctx: &mut Context<'_>, conn: ConnId, why: Fault) {
        if self.is_dialing(conn) {
            let now = ctx.mono();
            ctx.history.health.failed(now, why);
            let failure = ctx.history.health.failure(now);
            ctx.report(|relay| Report::ConnectFailed { relay, why, failure });
            self.end(ctx);
        }
    }

    /// Handles a lost connection. Ignores any but the current one.
    pub(super) fn lost(&mut self, ctx: &mut Context<'_>, conn: ConnId) {
        if self.session(conn).is_none() {
            return;
        }
        ctx.history.health.lost(ctx.now.mono);
        self.end(ctx);
        let seen = ctx.history.health.seen(ctx.mono());
        ctx.report(|relay| Report::Reliability { relay, seen });
    }

    /// Counts forged events. Too many of them end the connection, and count as a failure of the relay.
    pub(super) fn forged(&mut self, ctx: &mut Context<'_>, conn: ConnId, count: usize) {
        if self.session(conn).is_none() || !ctx.history.health.forged(count) {
            return;
        }
        let count = ctx.history.health.forged;
        ctx.report(|relay| Report::Forged { relay, count });
        self.lost(ctx, conn);
        disconnect(ctx, conn);
    }

    /// Reports the health and reliability that an earlier process recorded.
    pub(super) fn followed(&self, ctx: &mut Context<'_>) {
        let seen = ctx.history.health.seen(ctx.mono());
        if seen != PeerReliability::default() {
            ctx.report(|relay| Report::Reliability { relay, seen });
        }
        self.report_health(ctx);
    }

    /// Ends the connection in favour of a relay that waits.
    pub(super) fn give_way(&mut self, ctx: &mut Context<'_>) {
        ctx.history.health.set_connected(ctx.now.mono, false);
        self.close(ctx);
        ctx.report(|relay| Report::GaveWay { relay });
    }

    /// Ends the connection or attempt for reasons of our own: there is no room for it, or the relay is no longer a target.
    pub(super) fn close(&mut self, ctx: &mut Context<'_>) {
        let conn = match self {
            Self::Idle => None,
            Self::Dialing { conn, .. } => Some(*conn),
            Self::Up(session) => Some(session.subs.conn),
        };
        self.end(ctx);
        if let Some(conn) = conn {
            disconnect(ctx, conn);
        }
    }

    /// Asks for items that were just discovered.
    pub(super) fn discovered(&mut self, ctx: &mut Context<'_>, added: &RelaySyncNeeds) {
        if let Self::Up(session) = self {
            session.discovered(ctx, added);
        }
    }

    /// Fetches everything again, because the local relay lost it.
    pub(super) fn begin_anew(&mut self, ctx: &mut Context<'_>) {
        let now = ctx.now.unix;
        ctx.history.forget_delivered(now);
        match self {
            Self::Up(session) => session.start_over(ctx, PassKind::Fresh),
            Self::Idle | Self::Dialing { .. } => ctx.history.state.start_over(now),
        }
    }

    /// Handles timeouts, a due daily pass and a due record.
    pub(super) fn tick(&mut self, ctx: &mut Context<'_>) {
        match self {
            Self::Up(session) => {
                session.check_timeouts(ctx);
                let is_due = ctx.now.mono >= ctx.history.daily.due;
                if is_due && session.ended.is_some() && !ctx.history.pace.is_paused(ctx.now.mono) {
                    session.start_over(ctx, PassKind::Daily);
                }
            }
            Self::Dialing { conn, until } if ctx.now.mono >= *until => {
                let conn = *conn;
                self.failed(ctx, conn, Fault::Unreachable);
                disconnect(ctx, conn);
            }
            Self::Idle | Self::Dialing { .. } => {}
        }
        ctx.history.health.forgive(ctx.now.mono);
        self.report_health(ctx);
        if ctx.history.write_at.is_some_and(|at| ctx.now.mono >= at) {
            ctx.history.write_at = None;
            let record = ctx.history.record(ctx.now, ctx.relay, self);
            ctx.out.push(Output::Persist(Box::new(record)));
        }
    }

    /// Sends what may be sent; returns when the relay next needs to run.
    pub(super) fn pump(&mut self, ctx: &mut Context<'_>) -> Option<Mono> {
        let own = match self {
            Self::Up(session) => {
                session.pump(ctx);
                session.deadline(ctx)
            }
            Self::Idle => match ctx.history.health.admit(ctx.now.mono) {
                Admit::Go => None,
                Admit::Wait(until) => Some(until),
            },
            Self::Dialing { until, .. } => Some(*until),
        };
        let forgiven = ctx.history.health.forgiven_at();
        own.into_iter().chain(ctx.history.write_at).chain(forgiven).min()
    }

    /// Ends the connection or attempt.
    fn end(&mut self, ctx: &mut Context<'_>) {
        if let Self::Up(session) = std::mem::replace(self, Self::Idle) {
            let jobs = session.backlog.jobs.keys();
            jobs.for_each(|id| session.backlog.forget_inventory(ctx, *id));
            if let Some(since) = session.listening_since {
                ctx.history.listening_times.ended(since, ctx.now.unix);
            }
        }
        let now = ctx.now.unix;
        ctx.history.waits_since = now;
        ctx.history.wants.disconnected();
        ctx.schedule_write();
        ctx.history.state.disconnected(now);
        ctx.report_status();
        self.report_health(ctx);
    }

    fn report_health(&self, ctx: &mut Context<'_>) {
        if let Some((health, failing_for)) = ctx.history.health.news(ctx.now.mono) {
            ctx.report(|relay| Report::Health { relay, health, failing_for });
        }
    }
}

/// Ends a connection that is not wanted.
fn disconnect(ctx: &mut Context<'_>, conn: ConnId) {
    let relay = ctx.relay.clone();
    ctx.out.push(Output::Disconnect { relay, conn });
}

/// Removes items from what is confirmed: they are no longer wanted, or wanted less.
pub(super) fn forget(ctx: &mut Context<'_>, removed: &RelaySyncNeeds) {
    let confirmed = &mut ctx.history.state.confirmed;
    for repo in removed.repos.keys() {
        let needs = ctx.shared.index.repos().get(repo);
        let level = needs.filter(|needs| needs.relays.contains(ctx.relay)).map(|needs| needs.level);
        match (level, confirmed.repos.get_mut(repo)) {
            (Some(level), Some(had)) => *had = (*had).min(level),
            _ => _ = confirmed.repos.remove(repo),
        }
    }
    confirmed.root_events = confirmed.root_events.without(&removed.root_events);
    confirmed.coordinates.retain(|member| !removed.coordinates.contains(member));
}
