//! The status of a running server or sidecar, collected from its parts.

pub(crate) mod managed;
mod server;
mod usage;

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use grasp_core::limits::ConnectionStatus;
use grasp_core::{Mono, RelayUrl, RepoId};
use grasp_sync::driver::{self, Counts, RelayStatus};
use grasp_sync::engine::PeerReliability;
use grasp_sync::{Sidecar, Syncer};
use tokio::time::MissedTickBehavior;

use self::server::ServerParts;
use crate::Clock;
use crate::in_step::InStep;
use crate::instance::metrics::{self, SyncSink};
use crate::instance::server::CommonParts;
use crate::instance::server::node::NodeView;
use crate::instance::settings::Settings;
use crate::metrics::{Metrics, table};
use crate::role::RoleWatch;
use crate::tls::Certificates;
use crate::web::Frame;
use crate::web::figures::{
    IntakeFigures, MissingRow, Neighbour, RelayRow, RepositoryRow, Status, WaitingRow,
};
use crate::web::history::{FigureHistory, Sample};

/// Collects the status from all parts of a process. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Overview(Arc<SharedOverview>);

struct SharedOverview {
    service: String,
    name: String,
    frame: Frame,
    clock: Clock,
    metrics: Metrics,
    /// The driver of sync, while it runs.
    syncer: std::sync::Mutex<Option<Arc<Syncer>>>,
    started: u64,
    rate: std::sync::Mutex<EventRate>,
    history: std::sync::Mutex<FigureHistory>,
    subject: Subject,
}

/// The relay whose status it is.
enum Subject {
    Server(Box<ServerParts>),
    /// A relay of another kind, and its address.
    Sidecar(Arc<Sidecar>, RelayUrl),
}

impl Overview {
    /// Creates the overview of a server, with its nodes if it has several.
    pub(crate) fn of_server(base: &CommonParts, roles: RoleWatch, nodes: Option<NodeView>) -> Self {
        let CommonParts {
            settings,
            host,
            metrics,
            ..
        } = base;
        let clock = host.clock.clone();
        let parts = ServerParts::new(base.clone(), roles, nodes);
        let subject = Subject::Server(Box::new(parts));
        Self::new(
            settings,
            settings.public_info().name,
            clock,
            metrics.clone(),
            subject,
        )
    }

    /// Creates the overview of a sidecar.
    pub(crate) fn of_sidecar(
        settings: &Settings,
        relay: RelayUrl,
        sidecar: Arc<Sidecar>,
        metrics: Metrics,
    ) -> Self {
        let name = settings.policy.service.to_string();
        let subject = Subject::Sidecar(sidecar, relay);
        Self::new(settings, name, Clock::system(), metrics, subject)
    }

    fn new(
        settings: &Settings,
        name: String,
        clock: Clock,
        metrics: Metrics,
        subject: Subject,
    ) -> Self {
        let root = match &subject {
            Subject::Server(_) => format!("{}/", settings.policy.service.mount_path()),
            Subject::Sidecar(..) => "/".into(),
        };
        let now = clock.now();
        let overview = Self(Arc::new(SharedOverview {
            service: settings.policy.service.to_string(),
            frame: Frame::new(root, &name, &settings.pages.branding),
            name,
            started: now.unix.as_secs(),
            rate: std::sync::Mutex::new(EventRate::new(now.mono)),
            history: std::sync::Mutex::default(),
            clock,
            metrics,
            syncer: std::sync::Mutex::default(),
            subject,
        }));
        tokio::spawn(record_history(Arc::downgrade(&overview.0)));
        overview
    }

    /// Includes this sync from now on, or none.
    pub(crate) fn set_syncer(&self, syncer: Option<Arc<Syncer>>) {
        *self.0.syncer.lock().unwrap_or_else(PoisonError::into_inner) = syncer;
    }

    fn syncer(&self) -> Option<Arc<Syncer>> {
        self.0
            .syncer
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Returns the display name.
    pub(crate) fn name(&self) -> String {
        match self.server() {
            Ok(parts) => parts.base.name(),
            Err(_) => self.0.name.clone(),
        }
    }

    /// Returns what the pages share.
    pub(crate) fn frame(&self) -> &Frame {
        &self.0.frame
    }

    /// Returns the parts of a server; for a sidecar, what to do instead.
    fn server(&self) -> Result<&ServerParts, String> {
        match &self.0.subject {
            Subject::Server(parts) => Ok(parts),
            Subject::Sidecar(_, relay) => {
                Err(format!("a sidecar hosts nothing; ask the relay, {relay}"))
            }
        }
    }

    /// Returns the repositories, the latest active first.
    pub(crate) async fn repositories(&self) -> Result<Vec<RepositoryRow>, String> {
        let list = self.server()?.base.listing.rows().await;
        list.map(|list| list.rows.clone())
            .map_err(|error| error.to_string())
    }

    /// Returns the repositories whose events wait for git data.
    pub(crate) async fn waiting(&self) -> Result<Vec<WaitingRow>, String> {
        self.server()?.waiting().await
    }

    /// Salvages damaged packs of a repository, and starts to fetch what is missing. Returns whether objects are.
    pub(crate) async fn repair(&self, repo: &RepoId) -> Result<bool, String> {
        let repaired = self.server()?.purgatory()?.repair(repo).await;
        repaired.map_err(|error| error.to_string())
    }

    /// Removes objects that no ref of a repository reaches. Returns whether there were some.
    pub(crate) async fn purge(&self, repo: &RepoId) -> Result<bool, String> {
        let purged = self.server()?.purgatory()?.purge(repo).await;
        purged.map_err(|error| error.to_string())
    }

    /// Returns whether a repository is known to lack objects.
    pub(crate) fn lacks_objects(&self, repo: &RepoId) -> Result<bool, String> {
        Ok(self.server()?.purgatory()?.lacks_objects(repo))
    }

    /// Returns whether everything that must work does: the store and purgatory of a server, the relay of a sidecar.
    pub(crate) async fn is_ready(&self) -> bool {
        match &self.0.subject {
            Subject::Server(parts) => parts.is_ready().await,
            Subject::Sidecar(sidecar, _) => sidecar.is_reachable().await,
        }
    }

    /// Returns the addresses of damaged repositories, some of them if there are many.
    pub(crate) fn damaged(&self) -> Vec<String> {
        self.server().map(ServerParts::damaged).unwrap_or_default()
    }

    /// Returns the TLS certificate of a server that does TLS itself.
    pub(crate) fn certificates(&self) -> Option<&Certificates> {
        self.server().ok()?.base.certificates.as_ref()
    }

    /// Returns the days for which the TLS certificate is valid, if the server does TLS itself.
    pub(crate) fn certificate_days_left(&self) -> Option<u64> {
        self.server().ok()?.certificate_days_left()
    }

    /// Returns why an operator has to look after the TLS certificate, if that is so.
    pub(crate) fn certificate_trouble(&self) -> Option<String> {
        self.server().ok()?.certificate_trouble()
    }

    /// Returns whether `/health` fails while the server is degraded.
    pub(crate) fn fails_when_degraded(&self) -> bool {
        self.server()
            .is_ok_and(|parts| parts.base.settings.fail_health_when_degraded)
    }

    /// Returns whether only members use the server.
    pub(crate) fn is_private(&self) -> bool {
        self.server()
            .is_ok_and(|parts| parts.base.settings.private.enabled)
    }

    /// Returns the status.
    pub(crate) async fn status(&self) -> Status {
        self.collect().await.0
    }

    /// Returns the relays that are synced with.
    pub(crate) async fn relays(&self) -> Vec<RelayRow> {
        let Some(syncer) = self.syncer() else {
            return Vec::new();
        };
        syncer.status().await.relays.iter().map(relay_row).collect()
    }

    /// Takes a reading of the figures that are shown over time.
    async fn sample(&self) {
        let inner = &self.0;
        let relays = self.relays().await;
        let mut sample = Sample {
            lag: relays.iter().map(|relay| relay.backlog).sum(),
            ..Sample::default()
        };
        match &inner.subject {
            Subject::Server(parts) => {
                let intake = server::intake(&inner.metrics);
                sample.events = intake.stored + intake.held;
                sample.hunted = parts.hunted().await;
                let pushes = inner.metrics.value(&table::REQUESTS, &["push", "2xx"]);
                sample.pushes = pushes.unwrap_or_default() as u64;
            }
            Subject::Sidecar(..) => sample.events = relays.iter().map(|relay| relay.stored).sum(),
        }
        let now = inner.clock.now().unix.as_secs();
        let mut history = inner.history.lock().unwrap_or_else(PoisonError::into_inner);
        history.record(now, sample);
    }

    /// Returns the status, and that of each relay in detail.
    async fn collect(&self) -> (Status, driver::Status) {
        let inner = &self.0;
        let sync = match self.syncer() {
            Some(syncer) => syncer.status().await,
            None => driver::Status::default(),
        };
        let relays = &sync.relays;
        let mut status = match &inner.subject {
            Subject::Server(parts) => parts.status().await,
            Subject::Sidecar(_, relay) => Status {
                beside: Some(relay.to_string()),
                intake: sidecar_intake(relays),
                ..Status::default()
            },
        };
        let now = inner.clock.now();
        // A sidecar counts a held event once it is stored.
        let held = if status.beside.is_none() {
            status.intake.held
        } else {
            0
        };
        let new = status.intake.stored + held;
        let per_second = inner
            .rate
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .per_second(now.mono, new);
        status.version = env!("CARGO_PKG_VERSION").into();
        status.service = inner.service.clone();
        status.now = now.unix.as_secs();
        status.started = inner.started;
        status.ready = self.is_ready().await;
        status.events_per_minute = 60.0 * per_second;
        status.relays = relays.iter().map(relay_row).collect();
        let history = inner.history.lock().unwrap_or_else(PoisonError::into_inner);
        status.history = history.series(status.now);
        drop(history);
        if let Subject::Server(parts) = &inner.subject {
            status.neighbours = neighbours(&status.relays, parts.base.in_step.as_ref());
        }
        (status, sync)
    }

    /// Returns all metrics in the text format of Prometheus.
    pub(crate) async fn exposition(&self) -> String {
        let (status, sync) = self.collect().await;
        let metrics = &self.0.metrics;
        metrics.set(&table::BUILD, &[&status.version], 1.0);
        metrics.set(&table::STARTED, &[], status.started as f64);
        let current = Metrics::default();
        grasp_sync::metrics::record_status(&SyncSink(&current), &sync.relays);
        grasp_sync::metrics::record_outbox(&SyncSink(&current), sync.outbox);
        let all = match &self.0.subject {
            Subject::Server(parts) => {
                parts.set_gauges(&status);
                if let Some(figures) = parts.hunt().await {
                    metrics::set_hunt_gauges(&current, &figures);
                }
                metrics::all()
            }
            Subject::Sidecar(..) => metrics::of_sidecar(),
        };
        metrics.replace(&current);
        metrics.render(&all)
    }
}

/// Interval of the readings of figures over time.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(10);

/// Takes readings for as long as the overview is used.
async fn record_history(overview: Weak<SharedOverview>) {
    let mut interval = tokio::time::interval(SAMPLE_INTERVAL);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        let Some(inner) = overview.upgrade() else {
            return;
        };
        Overview(inner).sample().await;
    }
}

/// Returns the hosts of relays that are synced with and of git servers that are compared, those with relays first.
fn neighbours(relays: &[RelayRow], in_step: Option<&InStep>) -> Vec<Neighbour> {
    let mut hosts: BTreeMap<String, Neighbour> = BTreeMap::new();
    for relay in relays {
        let Ok(url) = relay.url.parse::<RelayUrl>() else {
            continue;
        };
        let host = hosts.entry(url.host().to_string()).or_default();
        host.is_relay = true;
        host.is_connected |= relay.state.is_connected();
        host.missing += relay.missing.iter().map(|it| it.events).sum::<u64>();
    }
    for (name, steps) in in_step.map(InStep::hosts).unwrap_or_default() {
        let host = hosts.entry(name.to_string()).or_default();
        host.equal = steps.equal as u64;
        host.different = steps.different as u64;
        host.unreachable = steps.unreachable as u64;
        host.unknown = steps.unknown as u64;
    }
    let mut rows = Vec::new();
    for (name, mut row) in hosts {
        row.host = name;
        rows.push(row);
    }
    rows.sort_by_key(|row| (!row.is_connected, !row.is_relay, Reverse(row.equal)));
    rows.truncate(MAX_NEIGHBOURS);
    rows
}

/// Limits the hosts in the status that are around this one.
const MAX_NEIGHBOURS: usize = 100;

fn sidecar_intake(relays: &BTreeMap<RelayUrl, RelayStatus>) -> IntakeFigures {
    let sum = |of: fn(&Counts) -> u64| relays.values().map(|relay| of(&relay.counts)).sum();
    IntakeFigures {
        stored: sum(Counts::stored),
        held: sum(|counts| counts.held),
        known: sum(|counts| counts.known),
        rejected: sum(|counts| counts.refused + counts.forged),
    }
}

/// Returns the row of one relay.
fn relay_row((url, status): (&RelayUrl, &RelayStatus)) -> RelayRow {
    let down = status.connection == ConnectionStatus::Disconnected;
    let failed = status.failed.filter(|_| down);
    RelayRow {
        url: url.to_string(),
        state: status.connection,
        since: status.since.as_secs(),
        health: status.health,
        synced_at: status.synced_at.map(|at| at.as_secs()),
        backlog: status.backlog.max(status.wanted),
        stored: status.counts.stored(),
        gaps: status.gaps,
        interruptions: status.interruptions,
        refusal: status
            .last_refusal
            .as_ref()
            .map(|text| text.as_str().to_owned()),
        failure: failed.map(|failed| failed.why.to_string()),
        retry_at: failed.map(|failed| failed.retry_at.as_secs()),
        uptime: status
            .reliability
            .as_ref()
            .and_then(PeerReliability::uptime),
        coverage: status
            .reliability
            .as_ref()
            .and_then(PeerReliability::coverage),
        missing: status
            .reliability
            .as_ref()
            .map(missing_rows)
            .unwrap_or_default(),
    }
}

/// Returns the number of events that a relay lacks by repository, most first. Any author can name a repository, with any
/// characters.
fn missing_rows(seen: &PeerReliability) -> Vec<MissingRow> {
    let row = |(repo, events): (&RepoId, &u64)| MissingRow {
        repository: repo.to_string().escape_debug().to_string(),
        events: *events,
    };
    let mut rows: Vec<_> = seen.missing.iter().map(row).collect();
    rows.sort_by_key(|row| Reverse(row.events));
    rows
}

/// The period that a rate is computed over.
const WINDOW: Duration = Duration::from_secs(60);

/// The least time between two samples.
const MIN_SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// Samples of a total over the last minute.
#[derive(Clone, Debug)]
struct EventRate {
    samples: VecDeque<(Mono, u64)>,
}

impl EventRate {
    /// Starts with a total of 0 at this time.
    fn new(now: Mono) -> Self {
        Self {
            samples: VecDeque::from([(now, 0)]),
        }
    }

    /// Adds a sample and returns the growth per second, over the last minute or since the start.
    fn per_second(&mut self, now: Mono, total: u64) -> f64 {
        // The oldest sample but one shows whether the oldest is still needed.
        while self
            .samples
            .get(1)
            .is_some_and(|(at, _)| now - *at >= WINDOW)
        {
            self.samples.pop_front();
        }
        let (since, before) = self.samples.front().copied().unwrap_or((now, total));
        if self
            .samples
            .back()
            .is_none_or(|(at, _)| now - *at >= MIN_SAMPLE_INTERVAL)
        {
            self.samples.push_back((now, total));
        }
        total.saturating_sub(before) as f64 / (now - since).max(MIN_SAMPLE_INTERVAL).as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relay_is_shown_with_its_reliability() {
        let owner = "79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798";
        let repo = |name: &str| format!("30617:{owner}:{name}").parse::<RepoId>().unwrap();
        let mut reliability = PeerReliability::default();
        reliability.up = Duration::from_secs(30);
        reliability.down = Duration::from_secs(10);
        reliability.received = 1;
        reliability.compared = 3;
        reliability.lacking = 1;
        reliability.missing = [(repo("few"), 2), (repo("many\n"), 7)].into();
        let mut status = RelayStatus::default();
        status.reliability = Some(reliability);
        let row = relay_row((&"wss://relay.example.com".parse().unwrap(), &status));
        assert_eq!((row.uptime, row.coverage), (Some(0.75), Some(0.75)));
        let lacks = |row: &MissingRow| (row.repository.clone(), row.events);
        let expected = [
            (format!("30617:{owner}:many\\n"), 7),
            (format!("30617:{owner}:few"), 2),
        ];
        assert_eq!(row.missing.iter().map(lacks).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn only_the_last_minute_counts() {
        let mut rate = EventRate::new(Mono::ZERO);
        assert_eq!(rate.per_second(Mono::from_secs(10), 100), 10.0);
        for second in 11..=200 {
            rate.per_second(Mono::from_secs(second), 100);
        }
        assert_eq!(rate.per_second(Mono::from_secs(201), 100), 0.0);
        assert!(rate.samples.len() < 70);
    }

    #[test]
    fn rare_samples_count_since_the_last_one() {
        let mut rate = EventRate::new(Mono::ZERO);
        rate.per_second(Mono::from_secs(1_000), 50);
        assert_eq!(rate.per_second(Mono::from_secs(2_000), 1_050), 1.0);
    }
}
