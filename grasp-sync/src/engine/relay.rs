//! One relay: dialled, connected, subscribed to, asked, disconnected, dialled again.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use grasp_core::limits::{Admit, BackoffSnapshot};
use grasp_core::nostr::event::EventId;
use grasp_core::resources::Grant;
use grasp_core::{Mono, Now, RelayUrl, nostr};
use nostr::types::Timestamp;
use serde::{Deserialize, Serialize};

use super::Config;
use super::facts::RelayFacts;
use super::filter::Layer;
use super::history::{CountAs, PassKind, RelayHistory, Rng, choose_start};
use super::io::{
    ConnId, Fault, Frame, Ids, InventoryId, JobId, Output, PeerReliability, Report, Said,
};
use super::job::JobMethod;
use super::judge::Arrival;
use super::missing::Question;
use super::rejected::Rejected;
use super::session::ConnectionSession;
use super::suspended::{RequestMode, SuspendedLayer};
use super::visits::Visits;
use crate::memory::Memory;
use grasp_core::sync::{MAX_PROOFS, ProofSet, RelaySyncNeeds, SyncIndex};

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
    Up(Box<ConnectionSession>),
}

impl Link {
    /// Returns the session if it is on this connection.
    pub(super) fn session(&mut self, conn: ConnId) -> Option<&mut ConnectionSession> {
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

    pub(super) fn dial(&mut self, ctx: &mut RelayContext<'_>) {
        let conn = ctx.shared.ids.next(ConnId);
        *self = Self::Dialing {
            conn,
            until: ctx.mono() + HANDSHAKE_TIMEOUT,
        };
        ctx.history.health.seen.attempts += 1;
        ctx.history.kept.waits_since = Some(ctx.now.unix);
        ctx.history.state.connecting();
        let is_named = ctx.shared.config.named.contains(ctx.relay);
        let configured = ctx.history.state.is_bootstrap || is_named;
        ctx.out.push(Output::Connect {
            relay: ctx.relay.clone(),
            conn,
            configured,
            needs_document: ctx.history.health.needs_document(),
        });
        ctx.report_status();
    }

    /// Starts a session. Ends a connection that is not wanted, or no longer.
    pub(super) fn connected(
        &mut self,
        ctx: &mut RelayContext<'_>,
        conn: ConnId,
        facts: &RelayFacts,
    ) {
        if !self.is_dialing(conn) {
            return disconnect(ctx, conn);
        }
        let now = ctx.now;
        if facts.is_private && !ctx.shared.config.dials_private() {
            self.failed(ctx, conn, Fault::Private);
            return disconnect(ctx, conn);
        }
        if facts.has_document {
            ctx.history.health.document_read();
        }
        ctx.history.connected(now.mono, facts, &ctx.shared.config);
        ctx.history.health.seen.last_success_at = Some(now.unix);
        let how = choose_start(ctx);
        let session = ConnectionSession::begin(ctx, conn, how, facts);
        ctx.report_status();
        *self = Self::Up(Box::new(session));
        ctx.schedule_write();
        self.report_health(ctx);
    }

    /// Handles a failed attempt to connect. Ignores any but the current one.
    pub(super) fn failed(&mut self, ctx: &mut RelayContext<'_>, conn: ConnId, why: Fault) {
        if self.is_dialing(conn) {
            self.give_up(ctx, why);
        }
    }

    fn give_up(&mut self, ctx: &mut RelayContext<'_>, why: Fault) {
        let now = ctx.mono();
        ctx.history.health.failed(now, why);
        let failure = ctx.history.health.failure(now);
        ctx.report(|relay| Report::ConnectFailed {
            relay,
            why,
            failure,
        });
        self.end(ctx);
        ctx.visits_failed();
    }

    /// Handles a message. A relay without a document that begins with a challenge may be a private service.
    pub(super) fn heard(&mut self, ctx: &mut RelayContext<'_>, conn: ConnId, said: Said) {
        let Some(session) = self.session(conn) else {
            return;
        };
        if session.seems_private(&said) {
            if !ctx.shared.config.dials_private() {
                self.give_up(ctx, Fault::Private);
                return disconnect(ctx, conn);
            }
            session.set_private(ctx.mono());
        }
        session.handle_message(ctx, said);
    }

    /// Handles a lost connection. Ignores any but the current one.
    pub(super) fn lost(&mut self, ctx: &mut RelayContext<'_>, conn: ConnId) {
        if self.session(conn).is_none() {
            return;
        }
        ctx.history.health.lost(ctx.now.mono);
        self.end(ctx);
        ctx.visits_failed();
        let seen = ctx.history.health.seen(ctx.mono());
        ctx.report(|relay| Report::Reliability { relay, seen });
    }

    /// Counts forged events. Too many of them end the connection, and count as a failure of the relay.
    pub(super) fn forged(&mut self, ctx: &mut RelayContext<'_>, conn: ConnId, count: usize) {
        if self.session(conn).is_none() || !ctx.history.health.forged(count) {
            return;
        }
        let count = ctx.history.health.forged_events;
        ctx.report(|relay| Report::Forged { relay, count });
        self.lost(ctx, conn);
        disconnect(ctx, conn);
    }

    /// Reports the health and reliability that an earlier process recorded.
    pub(super) fn followed(&self, ctx: &mut RelayContext<'_>) {
        let seen = ctx.history.health.seen(ctx.mono());
        if seen != PeerReliability::default() {
            ctx.report(|relay| Report::Reliability { relay, seen });
        }
        self.report_health(ctx);
    }

    /// Ends the connection in favour of a relay that waits.
    pub(super) fn give_way(&mut self, ctx: &mut RelayContext<'_>) {
        ctx.history.health.set_connected(ctx.now.mono, false);
        self.close(ctx);
        ctx.visits_failed();
        ctx.report(|relay| Report::GaveWay { relay });
    }

    /// Ends the connection or attempt for reasons of our own: there is no room for it, or the relay is no longer a target.
    pub(super) fn close(&mut self, ctx: &mut RelayContext<'_>) {
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
    pub(super) fn discovered(
        &mut self,
        ctx: &mut RelayContext<'_>,
        added: &RelaySyncNeeds,
        method: JobMethod,
    ) {
        if let Self::Up(session) = self {
            session.add(ctx, added, method, CountAs::NEW);
        }
    }

    /// Fetches everything again, because the local relay lost it.
    pub(super) fn begin_anew(&mut self, ctx: &mut RelayContext<'_>) {
        let now = ctx.now.unix;
        ctx.history.forget_delivered(now);
        match self {
            Self::Up(session) => session.start_over(ctx, PassKind::Fresh),
            Self::Idle | Self::Dialing { .. } => ctx.history.state.start_over(now),
        }
    }

    /// Begins a full pass, after the one that is under way. Without a connection, the relay may be dialled at once.
    pub(super) fn sync_now(&mut self, ctx: &mut RelayContext<'_>) {
        ctx.history.daily = ctx.now.mono;
        match self {
            Self::Up(_) => self.begin_due_pass(ctx),
            Self::Idle | Self::Dialing { .. } => ctx.history.health.retry_at_once(ctx.now.mono),
        }
    }

    fn begin_due_pass(&mut self, ctx: &mut RelayContext<'_>) {
        let Self::Up(session) = self else { return };
        let is_due = ctx.now.mono >= ctx.history.daily;
        if is_due && session.ended.is_some() && !ctx.history.pace.is_paused(ctx.now.mono) {
            session.start_over(ctx, PassKind::Daily);
        }
    }

    /// Handles timeouts, a due daily pass and a due record.
    pub(super) fn tick(&mut self, ctx: &mut RelayContext<'_>) {
        match self {
            Self::Up(session) => {
                session.check_timeouts(ctx);
                self.begin_due_pass(ctx);
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
            let record = ctx.history.record(ctx.now, self);
            ctx.out.push(Output::Persist(Box::new(record)));
        }
    }

    /// Sends what may be sent; returns when the relay next needs to run.
    pub(super) fn pump(&mut self, ctx: &mut RelayContext<'_>) -> Option<Mono> {
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
        let unserved = ctx.end_waiting_visits(matches!(self, Self::Up(_)));
        let left = ctx.update_leaving(matches!(self, Self::Up(_)));
        own.into_iter()
            .chain(ctx.history.write_at)
            .chain(forgiven)
            .chain(unserved)
            .chain(left)
            .min()
    }

    /// Ends the connection or attempt.
    fn end(&mut self, ctx: &mut RelayContext<'_>) {
        if let Self::Up(session) = std::mem::replace(self, Self::Idle) {
            let jobs = session.backlog.jobs.keys();
            jobs.for_each(|id| session.backlog.forget_inventory(ctx, *id));
            if let Some(since) = session.listening_since {
                ctx.history.listening_times.ended(since, ctx.now.unix);
            }
            ctx.history.health.seen.last_success_at = Some(ctx.now.unix);
        }
        let now = ctx.now.unix;
        ctx.history.kept.waits_since = Some(now);
        ctx.history.wants.disconnected();
        ctx.schedule_write();
        ctx.history.state.disconnected(now);
        ctx.report_status();
        self.report_health(ctx);
    }

    fn report_health(&self, ctx: &mut RelayContext<'_>) {
        if let Some((health, failing_for)) = ctx.history.health.news(ctx.now.mono) {
            ctx.report(|relay| Report::Health {
                relay,
                health,
                failing_for,
            });
        }
    }
}

/// Ends a connection that is not wanted.
fn disconnect(ctx: &mut RelayContext<'_>, conn: ConnId) {
    let relay = ctx.relay.clone();
    ctx.out.push(Output::Disconnect { relay, conn });
}

/// Removes items from what is confirmed: they are no longer wanted, or wanted less.
pub(super) fn forget(ctx: &mut RelayContext<'_>, removed: &RelaySyncNeeds) {
    let confirmed = &mut ctx.history.state.confirmed;
    for repo in removed.repos.keys() {
        let needs = ctx.shared.index.repos().get(repo);
        let level = needs
            .filter(|needs| needs.relays.contains(ctx.relay))
            .map(|needs| needs.level);
        match (level, confirmed.repos.get_mut(repo)) {
            (Some(level), Some(had)) => *had = (*had).min(level),
            _ => _ = confirmed.repos.remove(repo),
        }
    }
    confirmed.root_events = confirmed.root_events.without(&removed.root_events);
    confirmed
        .coordinates
        .retain(|member| !removed.coordinates.contains(member));
}

/// The record of one relay, in calendar time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RelayRecord {
    /// The address of the relay.
    pub relay: RelayUrl,
    /// Its failures, if it is not healthy.
    pub backoff: Option<BackoffSnapshot>,
    /// Time until which it is not dialled, even if its backoff has ended.
    pub unusable_until: Option<Timestamp>,
    /// The end of the pause that its rate limit made necessary.
    pub paused_until: Option<Timestamp>,
    /// Layers that are suspended.
    #[serde(default)]
    pub suspended: Vec<SuspendedLayer>,
    /// The end of the last full pass.
    pub full_pass_at: Option<Timestamp>,
    /// Bytes of subscriptions that it remembers at most, as it said.
    pub retained_bytes: Option<usize>,
    /// Interruptions of live subscriptions since the last full pass: an event that was published then with an older
    /// date is found by the next.
    #[serde(default)]
    pub interrupted: usize,
    /// The address that it was last found at.
    pub address: Option<IpAddr>,
    /// The time at which it was followed, last tried or last connected: the longest ago is the next.
    pub waits_since: Option<Timestamp>,
    /// True if a connection was ended for forged events, and no later one has lasted without any.
    #[serde(default)]
    pub is_forging: bool,
    /// Its reliability so far.
    #[serde(default)]
    pub seen: PeerReliability,
    /// Proofs of the history that it has sent completely.
    pub proofs: ProofSet,
}

impl RelayRecord {
    /// Returns the record of a relay that was never followed.
    pub(crate) fn new(relay: RelayUrl) -> Self {
        Self {
            relay,
            backoff: None,
            unusable_until: None,
            paused_until: None,
            suspended: Vec::new(),
            full_pass_at: None,
            retained_bytes: None,
            interrupted: 0,
            address: None,
            waits_since: None,
            is_forging: false,
            seen: PeerReliability::default(),
            proofs: ProofSet::with_capacity(MAX_PROOFS),
        }
    }

    /// Returns whether the relay never delivered anything, so that little is lost with this.
    pub(crate) fn is_empty(&self) -> bool {
        self.proofs.iter().next().is_none()
    }
}

/// Records of relays that are not targets at the moment: restored ones whose repositories are not known yet, and
/// retired ones, so that removing and adding a relay resets nothing.
#[derive(Debug, Default)]
pub(super) struct Records(pub(super) BTreeMap<RelayUrl, RelayRecord>);

const MAX_RECORDS: usize = 1_000;

impl Records {
    pub(super) fn keep(&mut self, record: RelayRecord) {
        if self.0.len() >= MAX_RECORDS && !self.0.contains_key(&record.relay) {
            // Relays that never delivered anything make room for those that did: any event can name a relay.
            let empty = self.0.values().find(|record| record.is_empty());
            let Some(empty) = empty.map(|record| record.relay.clone()) else {
                return;
            };
            if record.is_empty() {
                return;
            }
            self.0.remove(&empty);
        }
        self.0.insert(record.relay.clone(), record);
    }
}

/// Origins of events that are remembered.
const MAX_ORIGINS: usize = 40_000;
/// Time that an origin is remembered: git data may take days to arrive.
const ORIGIN_MEMORY_SECS: u64 = 7 * 24 * 60 * 60;

/// The purpose of a request for the local relay's inventory.
#[derive(Debug)]
pub(super) enum InventoryRequest {
    /// A job compares it with a relay's set.
    Job(RelayUrl, JobId),
    /// Finds the repositories that a relay lacks events of.
    Missing(Box<Question>),
}

/// State that all relays share.
#[derive(Debug)]
pub(super) struct EngineState {
    pub(super) config: Config,
    /// Items wanted from each relay.
    pub(super) index: SyncIndex,
    pub(super) rejected: Rejected,
    /// The origin of events that the local relay holds, or refused for want of a dependency, until they are stored. Git
    /// data may take hours to arrive; without this, such an event would then count as published by a client.
    pub(super) origins: Memory<EventId, (RelayUrl, Arrival), MAX_ORIGINS, ORIGIN_MEMORY_SECS>,
    pub(super) ids: Ids,
    pub(super) rng: Rng,
    /// Open requests to the local relay.
    pub(super) inventories: BTreeMap<InventoryId, InventoryRequest>,
    /// Events that relays have offered and that are not here yet.
    pub(super) wanted: usize,
    pub(super) visits: Visits,
    /// Local items that sessions hold in memory.
    pub(super) held_items: BTreeMap<JobId, usize>,
}

/// The context in which a relay runs: the time, its history, the shared state, and the outputs.
pub(super) struct RelayContext<'a> {
    pub(super) now: Now,
    pub(super) relay: &'a RelayUrl,
    pub(super) history: &'a mut RelayHistory,
    pub(super) shared: &'a mut EngineState,
    pub(super) out: &'a mut Vec<Output>,
}

impl RelayContext<'_> {
    pub(super) fn mono(&self) -> Mono {
        self.now.mono
    }

    pub(super) fn send(&mut self, conn: ConnId, frame: Frame) {
        if let Some(request) = frame.request() {
            self.report(|relay| Report::Requested { relay, request });
        }
        self.out.push(Output::Send {
            relay: self.relay.clone(),
            conn,
            frame,
        });
    }

    /// Reports something about this relay.
    pub(super) fn report(&mut self, about: impl FnOnce(RelayUrl) -> Report) {
        self.out.push(Output::Report(about(self.relay.clone())));
    }

    /// Pauses requests because the relay rate-limits us. Written at once, so that a restart keeps the pause.
    pub(super) fn pause_starts(&mut self) {
        let is_news = !self.history.pace.is_paused(self.now.mono);
        self.history.pace.refused(self.now.mono);
        if is_news {
            self.history.write_at = Some(self.now.mono);
        }
    }

    /// Suspends requests that the relay refuses.
    pub(super) fn suspend(&mut self, layer: Layer, mode: RequestMode) {
        self.history.suspended.suspend(self.now.mono, layer, mode);
        self.schedule_write();
    }

    /// Returns the layers whose history is suspended, and until when.
    pub(super) fn suspended_layers(&self) -> BTreeMap<Layer, Mono> {
        let layers = [Layer::Announcements, Layer::Repos, Layer::Roots];
        let until =
            |layer| match self
                .history
                .suspended
                .admit(self.mono(), layer, RequestMode::History)
            {
                Admit::Go => None,
                Admit::Wait(until) => Some((layer, until)),
            };
        layers.into_iter().filter_map(until).collect()
    }

    pub(super) fn report_status(&mut self) {
        let status = self.history.state.connection_status();
        self.report(|relay| Report::Status { relay, status });
    }

    /// Reports the number of interruptions since the last full pass, if it has changed.
    pub(super) fn report_interruptions(&mut self) {
        let times = self.history.kept.interrupted;
        if std::mem::replace(&mut self.history.interrupted_reported, times) != times {
            self.report(|relay| Report::Interrupted { relay, times });
            self.schedule_write();
        }
    }

    /// Schedules the relay's record to be written.
    pub(super) fn schedule_write(&mut self) {
        let at = self.now.mono + self.shared.config.persist_after;
        self.history.write_at.get_or_insert(at);
    }
}

#[cfg(test)]
mod tests {
    use grasp_core::nostr::filter::Filter;
    use grasp_core::sync::{FilterHash, Proof};

    use super::*;

    fn record(relay: &str, gave: bool) -> RelayRecord {
        let mut proofs = ProofSet::with_capacity(MAX_PROOFS);
        if gave {
            let filter = FilterHash::of(&Filter::new());
            let (since, until, at) = (0.into(), 9.into(), 9.into());
            proofs.add(Proof {
                filter,
                since,
                until,
                at,
            });
        }
        let relay = format!("wss://{relay}.example").parse().unwrap();
        RelayRecord {
            proofs,
            ..RelayRecord::new(relay)
        }
    }

    #[test]
    fn empty_records_displace_no_others() {
        let mut records = Records::default();
        for n in 0..MAX_RECORDS {
            records.keep(record(&format!("a{n}"), false));
        }
        let (honest, late) = (record("z", true), record("zz", false));
        records.keep(honest.clone());
        records.keep(late.clone());
        assert_eq!(records.0.len(), MAX_RECORDS);
        assert_eq!(records.0.remove(&late.relay), None);
        assert_eq!(records.0.remove(&honest.relay), Some(honest));
    }
}
