//! The status of a running server, collected from its parts.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::Duration;

use grasp_core::service::Endpoint;
use grasp_core::{Identifier, Mono, kinds};
use grasp_purgatory::hunt::{HuntFigures, HuntSchedule};
use grasp_purgatory::{Counts, Phase, Purgatory};
use grasp_relay::Clock;
use grasp_relay::metrics::{Metric, Metrics, table};
use grasp_relay::nostr::Hub;
use grasp_relay::purgatory::{DamagedRepo, PurgatoryDriver};
use grasp_relay::store::{EventStore, StoreError};
use grasp_relay::web::figures::{IntakeFigures, PurgatoryFigures, RelayRow, Status, WaitingRow};
use grasp_relay::web::{Listing, RepositoryList};
use grasp_sync::Syncer;
use nostr::filter::Filter;
use tokio::sync::Mutex;

use crate::admin::{AdminHandler, AdminRequest, AdminResponse};
use crate::files::bytes_below;
use crate::http::StatusSource;
use crate::metrics::{self, hunt};
use crate::rate::Rate;
use crate::rows;
use crate::server::DATABASE;
use crate::settings::Settings;

/// Limits the age of a count of all events, which scans an index.
const MAX_COUNT_AGE: Duration = Duration::from_secs(60);

/// Limits the age of a count or measurement to this many times its duration: exact in a small store, cheap in a large one.
const MAX_AGE_PER_DURATION: u32 = 100;

/// Limits the age of a measurement of the disk, which visits every file.
const MAX_MEASUREMENT_AGE: Duration = Duration::from_secs(3_600);

/// Limits the damaged repositories in the status.
const MAX_DAMAGED_NAMED: usize = 100;

/// Events that expire within this time are counted as expiring.
const EXPIRING_WITHIN: Duration = Duration::from_secs(3_600);

/// Collects the status from all parts of a server. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Overview(Arc<Inner>);

struct Inner {
    service: String,
    name: String,
    root: String,
    data_dir: PathBuf,
    repositories: PathBuf,
    store: Arc<dyn EventStore>,
    hub: Hub,
    purgatory: PurgatoryDriver,
    clock: Clock,
    metrics: Metrics,
    listing: Listing,
    syncer: OnceLock<Arc<Syncer>>,
    started: u64,
    counts: Mutex<Option<(Mono, StoreCounts)>>,
    disk_usage: Mutex<Option<(Mono, DiskUsage)>>,
    rate: std::sync::Mutex<Rate>,
}

/// Cached counts of the event store.
#[derive(Clone, Copy, Debug, Default)]
struct StoreCounts {
    events: u64,
    repositories: u64,
    fresh_for: Duration,
}

/// Cached measurement of the disk.
#[derive(Clone, Copy, Debug, Default)]
struct DiskUsage {
    git_bytes: u64,
    disk_bytes: u64,
    fresh_for: Duration,
}

impl Overview {
    pub(crate) fn new(
        settings: &Settings,
        purgatory: &PurgatoryDriver,
        hub: &Hub,
        metrics: Metrics,
    ) -> Self {
        let (store, clock) = (Arc::clone(purgatory.store()), purgatory.clock().clone());
        let policy = purgatory.policy().clone();
        let service = settings.service.clone();
        let listing =
            Listing::new(Arc::clone(&store), service, clock.clone(), move |a| policy.hosts(a));
        Self(Arc::new(Inner {
            service: settings.service.to_string(),
            name: settings.info().name,
            root: format!("{}/", settings.service.mount_path()),
            data_dir: settings.data_dir.clone(),
            repositories: settings.repositories(),
            started: clock.now().unix.as_secs(),
            rate: std::sync::Mutex::new(Rate::new(clock.now().mono)),
            store,
            hub: hub.clone(),
            purgatory: purgatory.clone(),
            clock,
            metrics,
            listing,
            syncer: OnceLock::new(),
            counts: Mutex::new(None),
            disk_usage: Mutex::new(None),
        }))
    }

    /// Includes sync from now on, if it runs; it starts after all other parts.
    pub(crate) fn set_syncer(&self, syncer: Option<Arc<Syncer>>) {
        if let Some(syncer) = syncer {
            let _ = self.0.syncer.set(syncer);
        }
    }

    /// Returns the relays that are synced with.
    async fn relays(&self) -> Vec<RelayRow> {
        match self.0.syncer.get() {
            Some(syncer) => syncer.status().await.relays.iter().map(rows::relay_row).collect(),
            None => Vec::new(),
        }
    }

    /// Returns the new events per second over the last minute.
    fn new_per_second(&self, new: u64) -> f64 {
        let now = self.0.clock.now().mono;
        self.0.rate.lock().unwrap_or_else(PoisonError::into_inner).per_second(now, new)
    }

    /// Returns the list of repositories that pages show.
    pub(crate) fn listing(&self) -> Listing {
        self.0.listing.clone()
    }

    /// Returns the repositories, the latest active first.
    pub(crate) async fn repositories(&self) -> Result<Arc<RepositoryList>, StoreError> {
        self.0.listing.rows().await
    }

    /// Returns the repository names whose events wait for git data.
    pub(crate) async fn waiting(&self) -> Vec<WaitingRow> {
        let (turns, now) = (self.turns().await, self.0.clock.now().unix.as_secs());
        let rows =
            self.0.purgatory.ask(move |purgatory| rows::waiting_rows(purgatory, now, &turns)).await;
        rows.unwrap_or_default()
    }

    /// Returns the next attempt for each name that is hunted for.
    async fn turns(&self) -> BTreeMap<Identifier, HuntSchedule> {
        match self.0.purgatory.hunting() {
            Some(hunting) => hunting.schedule().await,
            None => BTreeMap::new(),
        }
    }

    async fn purgatory(&self) -> PurgatoryFigures {
        let soon = self.0.clock.now().unix + EXPIRING_WITHIN;
        let figures = self.0.purgatory.ask(move |held: &Purgatory| {
            let waiting = [Phase::Waiting, Phase::Expired].map(|phase| held.wanting(phase));
            (held.counts(), held.expiring(soon), waiting)
        });
        let (counts, expiring, waiting) = figures.await.unwrap_or_default();
        let mut turns = self.turns().await;
        // The hunt keeps the turn of a name whose git data came by a push.
        turns.retain(|name, _| waiting.iter().any(|names| names.contains(name)));
        let next = turns.values().filter_map(|turn| turn.next_in).min();
        let queued = turns.values().filter(|turn| turn.position.is_some()).count() as u64;
        let hunt = self.hunt().await.unwrap_or_default();
        let busy = hunt.hosts.iter().filter(|(_, host)| host.waiting > 0);
        let per_minute: u64 = busy.map(|(_, host)| host.per_minute as u64).sum();
        let Counts {
            announcements,
            states,
            proposals,
            expired,
            staged,
            bytes,
            staged_bytes,
            pending_tasks,
        } = counts;
        self.set(&table::PENDING_CLEANUP, &[], pending_tasks as u64);
        PurgatoryFigures {
            announcements: announcements as u64,
            states: states as u64,
            proposals: proposals as u64,
            expired: expired as u64,
            staged: staged as u64,
            bytes,
            staged_bytes,
            hunting: turns.len() as u64,
            hunted: hunt.done,
            in_line: queued,
            per_minute,
            seconds_left: (queued * 60).checked_div(per_minute),
            next_attempt_in: next.map(|next| next.as_secs()),
            expiring: expiring as u64,
        }
    }

    /// Returns the figures of the hunt, in total and by host.
    async fn hunt(&self) -> Option<HuntFigures> {
        self.0.purgatory.hunting()?.figures().await
    }

    /// Counts all events and repositories, or returns the last counts while they are fresh.
    async fn counts(&self) -> Result<StoreCounts, StoreError> {
        let mut last = self.0.counts.lock().await;
        let now = self.0.clock.now();
        if let Some((_, counts)) = last.filter(|(at, one)| now.mono - *at < one.fresh_for) {
            return Ok(counts);
        }
        let everything = self.0.store.count(vec![Filter::new()], now.unix);
        let announcements = vec![Filter::new().kind(kinds::ANNOUNCEMENT)];
        let announcements = self.0.store.count(announcements, now.unix);
        let (events, repositories) = (everything.await?, announcements.await?);
        let took = self.0.clock.now().mono - now.mono;
        let fresh_for = took.saturating_mul(MAX_AGE_PER_DURATION).min(MAX_COUNT_AGE);
        let counts = StoreCounts { events, repositories, fresh_for };
        *last = Some((now.mono, counts));
        Ok(counts)
    }

    /// Measures the disk, or returns the last measurement while it is fresh.
    async fn disk_usage(&self) -> DiskUsage {
        let mut last = self.0.disk_usage.lock().await;
        let now = self.0.clock.now().mono;
        if let Some((_, usage)) = last.filter(|(at, one)| now - *at < one.fresh_for) {
            return usage;
        }
        let (data, git) = (self.0.data_dir.clone(), self.0.repositories.clone());
        let measure = move || {
            let (all, git_bytes) = (bytes_below(&data), bytes_below(&git));
            let disk_bytes = if git.starts_with(&data) { all } else { all + git_bytes };
            (git_bytes, disk_bytes)
        };
        let (git_bytes, disk_bytes) =
            tokio::task::spawn_blocking(measure).await.unwrap_or_default();
        let took = self.0.clock.now().mono - now;
        let fresh_for = took.saturating_mul(MAX_AGE_PER_DURATION).min(MAX_MEASUREMENT_AGE);
        let usage = DiskUsage { git_bytes, disk_bytes, fresh_for };
        *last = Some((now, usage));
        usage
    }

    fn set_gauges(&self, status: &Status) {
        let held = &status.purgatory;
        self.set(&table::BUILD, &[&status.version], 1);
        self.set(&table::STARTED, &[], status.started);
        self.set(&table::STORED, &[], status.events);
        self.set(&table::REPOSITORIES, &[], status.repositories);
        self.set(&table::STORE_BYTES, &[], status.store_bytes);
        self.set(&table::GIT_BYTES, &[], status.git_bytes);
        self.set(&table::DISK_BYTES, &[], status.disk_bytes);
        self.set(&table::SOCKETS, &[], status.sockets);
        self.set(&table::LISTENERS, &[], status.listeners);
        self.set(&table::SUBSCRIPTIONS, &[], status.subscriptions);
        self.set(&table::HELD, &["announcement"], held.announcements);
        self.set(&table::HELD, &["state"], held.states);
        self.set(&table::HELD, &["proposal"], held.proposals);
        self.set(&table::HELD_BYTES, &[], held.bytes);
        self.set(&table::EXPIRED, &[], held.expired);
        self.set(&table::STAGED, &[], held.staged);
        self.set(&table::STAGED_BYTES, &[], held.staged_bytes);
        self.set(&hunt::QUEUE, &[], held.hunting);
        if let Some(memory) = resident_bytes() {
            self.set(&table::MEMORY, &[], memory);
        }
        if let Ok(files) = std::fs::read_dir("/proc/self/fd") {
            self.set(&table::FILES, &[], files.count() as u64);
        }
    }

    fn set(&self, metric: &Metric, labels: &[&str], value: u64) {
        self.0.metrics.set(metric, labels, value as f64);
    }
}

fn intake(metrics: &Metrics) -> IntakeFigures {
    let of = |outcomes: &[&str]| {
        let sources = ["client", "live", "catch_up", "daily"];
        let series = sources.iter().flat_map(|source| outcomes.iter().map(move |o| [*source, *o]));
        series.filter_map(|labels| metrics.value(&table::EVENTS, &labels)).sum::<f64>() as u64
    };
    IntakeFigures {
        stored: of(&["stored"]),
        held: of(&["held"]),
        known: of(&["known", "superseded"]),
        rejected: of(&["rejected"]),
    }
}

/// Returns the bytes of the database's files.
fn store_bytes(data_dir: &std::path::Path) -> u64 {
    let files = [DATABASE.to_owned(), format!("{DATABASE}-wal")];
    let sizes = files.iter().filter_map(|file| data_dir.join(file).metadata().ok());
    sizes.map(|file| file.len()).sum()
}

/// Returns the resident memory of this process (Linux).
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    kib.checked_mul(1_024)
}

impl StatusSource for Overview {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn root(&self) -> &str {
        &self.0.root
    }

    /// Returns whether the store answers, and purgatory answers and can write its journal.
    async fn is_ready(&self) -> bool {
        let empty = vec![Filter::new().ids([])];
        let store = self.0.store.count(empty, self.0.clock.now().unix).await.is_ok();
        let purgatory = self.0.purgatory.can_write() && self.0.purgatory.ask(|_| ()).await.is_ok();
        self.set(&table::STORE_UP, &[], u64::from(store));
        self.set(&table::PURGATORY_UP, &[], u64::from(purgatory));
        store && purgatory
    }

    /// Returns the addresses of damaged repositories, some of them if there are many.
    fn damaged(&self) -> Vec<String> {
        let damaged = self.0.purgatory.damaged();
        self.set(&table::DAMAGED, &[], damaged.len() as u64);
        let service = &self.0.purgatory.policy().service;
        let address = |DamagedRepo { endpoint, repo }: DamagedRepo| {
            let path = service.repo_path(&repo);
            let mount = service.mount_path();
            match endpoint {
                Endpoint::Repository => path,
                Endpoint::PullRequests => {
                    format!("{mount}/prs{}", path.strip_prefix(&mount).unwrap_or(&path))
                }
            }
        };
        damaged.into_iter().take(MAX_DAMAGED_NAMED).map(address).collect()
    }

    async fn status(&self) -> Status {
        let inner = &self.0;
        let stats = inner.hub.stats().await;
        let counts = self.counts().await.unwrap_or_default();
        let disk_usage = self.disk_usage().await;
        let intake = intake(&inner.metrics);
        Status {
            version: env!("CARGO_PKG_VERSION").into(),
            service: inner.service.clone(),
            beside: None,
            now: inner.clock.now().unix.as_secs(),
            started: inner.started,
            ready: self.is_ready().await,
            events: counts.events,
            repositories: counts.repositories,
            store_bytes: store_bytes(&inner.data_dir),
            git_bytes: disk_usage.git_bytes,
            disk_bytes: disk_usage.disk_bytes,
            damaged: self.damaged(),
            sockets: stats.sockets as u64,
            listeners: stats.listeners as u64,
            subscriptions: stats.subscriptions as u64,
            intake,
            events_per_minute: 60.0 * self.new_per_second(intake.stored + intake.held),
            purgatory: self.purgatory().await,
            relays: self.relays().await,
        }
    }

    async fn exposition(&self) -> String {
        let status = self.status().await;
        self.set_gauges(&status);
        if let Some(figures) = self.hunt().await {
            hunt::set_gauges(&self.0.metrics, &figures);
        }
        self.0.metrics.render(&metrics::all())
    }
}

impl AdminHandler for Overview {
    async fn handle(&self, request: AdminRequest) -> AdminResponse {
        match request {
            AdminRequest::Status => AdminResponse::Status(Box::new(self.status().await)),
            AdminRequest::Waiting => AdminResponse::Waiting(self.waiting().await),
            AdminRequest::Repositories => match self.repositories().await {
                Ok(list) => AdminResponse::Repositories(list.rows.clone()),
                Err(error) => AdminResponse::Failed(error.to_string()),
            },
        }
    }
}
