//! How the running server stands: one look at all its parts.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::Duration;

use grasp_core::service::Door;
use grasp_core::{Identifier, Mono, kinds};
use grasp_purgatory::hunt::{HuntFigures, Turn};
use grasp_purgatory::{Counts, Phase, Purgatory};
use grasp_relay::Clock;
use grasp_relay::keeper::{DamagedRepo, Keeper};
use grasp_relay::metrics::{Metric, Metrics, table};
use grasp_relay::nostr::Hub;
use grasp_relay::store::{EventStore, StoreError};
use grasp_relay::web::figures::{Intake, PurgatoryFigures, RelayRow, Status, WaitingRow};
use grasp_relay::web::{Listed, Listing};
use grasp_sync::Syncer;
use nostr::filter::Filter;
use tokio::sync::Mutex;

use crate::admin::{Answer, Answers, Question};
use crate::disk::bytes_below;
use crate::http::Stands;
use crate::metrics::{self, hunt};
use crate::pace::Pace;
use crate::rows;
use crate::settings::Settings;

/// How old a count of everything may be at most, and how much longer than it took to make: it reads an index from
/// end to end, so in a small store it is fresh and in a large one it costs little.
const COUNT_EVERY: Duration = Duration::from_secs(60);
const COUNT_COST: u32 = 100;

/// How old a measurement of the disk may be at most: it looks at every file.
const MEASURE_EVERY: Duration = Duration::from_secs(3_600);

/// Damaged repositories that are named.
const MAX_DAMAGED_NAMED: usize = 100;

/// What ends within this time is told of as expiring.
const SOON: Duration = Duration::from_secs(3_600);

/// Sees all parts. Cheap to clone.
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
    keeper: Keeper,
    clock: Clock,
    metrics: Metrics,
    listing: Listing,
    syncer: OnceLock<Arc<Syncer>>,
    started: u64,
    counted: Mutex<Option<(Mono, Counted)>>,
    measured: Mutex<Option<(Mono, Measured)>>,
    pace: std::sync::Mutex<Pace>,
}

/// What is counted only now and then.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    events: u64,
    repositories: u64,
    /// How long this holds.
    fresh_for: Duration,
}

/// What is on disk, measured only now and then.
#[derive(Clone, Copy, Debug, Default)]
struct Measured {
    git_bytes: u64,
    disk_bytes: u64,
    /// How long this holds.
    fresh_for: Duration,
}

impl Overview {
    pub(crate) fn new(settings: &Settings, keeper: &Keeper, hub: &Hub, metrics: Metrics) -> Self {
        let (store, clock) = (Arc::clone(keeper.store()), keeper.clock().clone());
        let policy = keeper.policy().clone();
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
            pace: std::sync::Mutex::new(Pace::new(clock.now().mono)),
            store,
            hub: hub.clone(),
            keeper: keeper.clone(),
            clock,
            metrics,
            listing,
            syncer: OnceLock::new(),
            counted: Mutex::new(None),
            measured: Mutex::new(None),
        }))
    }

    /// Sees sync too from now on, if there is any. It begins after everything that it works with, pages included.
    pub(crate) fn follow(&self, syncer: Option<Arc<Syncer>>) {
        if let Some(syncer) = syncer {
            let _ = self.0.syncer.set(syncer);
        }
    }

    /// Whether everything that must work does: the store answers, and purgatory takes orders and can write them down.
    pub(crate) async fn is_ready(&self) -> bool {
        let nothing = vec![Filter::new().ids([])];
        let store = self.0.store.count(nothing, self.0.clock.now().unix).await.is_ok();
        let purgatory = self.0.keeper.can_write() && self.0.keeper.ask(|_| ()).await.is_ok();
        self.set(&table::STORE_UP, &[], u64::from(store));
        self.set(&table::PURGATORY_UP, &[], u64::from(purgatory));
        store && purgatory
    }

    /// How things stand.
    pub(crate) async fn status(&self) -> Status {
        let inner = &self.0;
        let census = inner.hub.census().await;
        let counted = self.counted().await.unwrap_or_default();
        let measured = self.measured().await;
        let intake = intake(&inner.metrics);
        Status {
            version: env!("CARGO_PKG_VERSION").into(),
            service: inner.service.clone(),
            beside: None,
            now: inner.clock.now().unix.as_secs(),
            started: inner.started,
            ready: self.is_ready().await,
            events: counted.events,
            repositories: counted.repositories,
            store_bytes: store_bytes(&inner.data_dir),
            git_bytes: measured.git_bytes,
            disk_bytes: measured.disk_bytes,
            damaged: self.damaged(),
            sockets: census.sockets as u64,
            listeners: census.listeners as u64,
            subscriptions: census.subscriptions as u64,
            intake,
            events_per_minute: 60.0 * self.pace(intake.stored + intake.held),
            purgatory: self.purgatory().await,
            relays: self.relays().await,
        }
    }

    /// Every relay that is followed.
    async fn relays(&self) -> Vec<RelayRow> {
        match self.0.syncer.get() {
            Some(syncer) => syncer.status().await.relays.iter().map(rows::relay_row).collect(),
            None => Vec::new(),
        }
    }

    /// New events per second, lately.
    fn pace(&self, new: u64) -> f64 {
        let now = self.0.clock.now().mono;
        self.0.pace.lock().unwrap_or_else(PoisonError::into_inner).per_second(now, new)
    }

    /// The list of repositories, as pages show it.
    pub(crate) fn listing(&self) -> Listing {
        self.0.listing.clone()
    }

    /// The repositories, the latest active first.
    pub(crate) async fn repositories(&self) -> Result<Arc<Listed>, StoreError> {
        self.0.listing.rows().await
    }

    /// The names under which something waits.
    pub(crate) async fn waiting(&self) -> Vec<WaitingRow> {
        let (turns, now) = (self.turns().await, self.0.clock.now().unix.as_secs());
        let rows = self.0.keeper.ask(move |purgatory| rows::waiting(purgatory, now, &turns)).await;
        rows.unwrap_or_default()
    }

    /// When each name that is hunted for is looked for next.
    async fn turns(&self) -> BTreeMap<Identifier, Turn> {
        match self.0.keeper.hunting() {
            Some(hunting) => hunting.schedule().await,
            None => BTreeMap::new(),
        }
    }

    /// Everything, in Prometheus' text form.
    pub(crate) async fn exposition(&self) -> String {
        let status = self.status().await;
        self.expose(&status);
        if let Some(figures) = self.hunt().await {
            hunt::expose(&self.0.metrics, &figures);
        }
        self.0.metrics.render(&metrics::all())
    }

    async fn purgatory(&self) -> PurgatoryFigures {
        let soon = self.0.clock.now().unix + SOON;
        let asked = self.0.keeper.ask(move |held: &Purgatory| {
            let waiting = [Phase::Waiting, Phase::Shelved].map(|phase| held.wanting(phase));
            (held.counts(), held.expiring(soon), waiting)
        });
        let (counts, expiring, waiting) = asked.await.unwrap_or_default();
        let mut turns = self.turns().await;
        // A turn outlives what it was for when that comes by a push.
        turns.retain(|name, _| waiting.iter().any(|names| names.contains(name)));
        let next = turns.values().filter_map(|turn| turn.next_in).min();
        let in_line = turns.values().filter(|turn| turn.in_line.is_some()).count() as u64;
        let hunt = self.hunt().await.unwrap_or_default();
        let busy = hunt.hosts.iter().filter(|(_, host)| host.waiting > 0);
        let per_minute: u64 = busy.map(|(_, host)| host.per_minute as u64).sum();
        let Counts { announcements, states, proposals, shelved, staged, bytes, staged_bytes, owed } =
            counts;
        self.set(&table::OWED, &[], owed as u64);
        PurgatoryFigures {
            announcements: announcements as u64,
            states: states as u64,
            proposals: proposals as u64,
            shelved: shelved as u64,
            staged: staged as u64,
            bytes,
            staged_bytes,
            hunting: turns.len() as u64,
            hunted: hunt.done,
            in_line,
            per_minute,
            seconds_left: (in_line * 60).checked_div(per_minute),
            next_attempt_in: next.map(|next| next.as_secs()),
            expiring: expiring as u64,
        }
    }

    /// How the hunt stands, in all and with each host.
    async fn hunt(&self) -> Option<HuntFigures> {
        self.0.keeper.hunting()?.figures().await
    }

    /// Counts everything, unless that was done a moment ago.
    async fn counted(&self) -> Result<Counted, StoreError> {
        let mut last = self.0.counted.lock().await;
        let now = self.0.clock.now();
        if let Some((_, counted)) = last.filter(|(at, one)| now.mono - *at < one.fresh_for) {
            return Ok(counted);
        }
        let everything = self.0.store.count(vec![Filter::new()], now.unix);
        let announcements = vec![Filter::new().kind(kinds::ANNOUNCEMENT)];
        let announcements = self.0.store.count(announcements, now.unix);
        let (events, repositories) = (everything.await?, announcements.await?);
        let took = self.0.clock.now().mono - now.mono;
        let fresh_for = took.saturating_mul(COUNT_COST).min(COUNT_EVERY);
        let counted = Counted { events, repositories, fresh_for };
        *last = Some((now.mono, counted));
        Ok(counted)
    }

    /// Measures what is on disk, unless that was done a moment ago.
    async fn measured(&self) -> Measured {
        let mut last = self.0.measured.lock().await;
        let now = self.0.clock.now().mono;
        if let Some((_, measured)) = last.filter(|(at, one)| now - *at < one.fresh_for) {
            return measured;
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
        let fresh_for = took.saturating_mul(COUNT_COST).min(MEASURE_EVERY);
        let measured = Measured { git_bytes, disk_bytes, fresh_for };
        *last = Some((now, measured));
        measured
    }

    /// The addresses of some of the repositories that lack objects.
    fn damaged(&self) -> Vec<String> {
        let damaged = self.0.keeper.damaged();
        self.set(&table::DAMAGED, &[], damaged.len() as u64);
        let service = &self.0.keeper.policy().service;
        let address = |DamagedRepo { door, repo }: DamagedRepo| {
            let path = service.repo_path(&repo);
            let mount = service.mount_path();
            match door {
                Door::Hosted => path,
                Door::Proposals => {
                    format!("{mount}/prs{}", path.strip_prefix(&mount).unwrap_or(&path))
                }
            }
        };
        damaged.into_iter().take(MAX_DAMAGED_NAMED).map(address).collect()
    }

    fn expose(&self, status: &Status) {
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
        self.set(&table::SHELVED, &[], held.shelved);
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

    fn set(&self, metric: &Metric, labels: &[&str], to: u64) {
        self.0.metrics.set(metric, labels, to as f64);
    }
}

fn intake(metrics: &Metrics) -> Intake {
    let of = |outcomes: &[&str]| {
        let sources = ["client", "live", "catch_up", "daily"];
        let series = sources.iter().flat_map(|source| outcomes.iter().map(move |o| [*source, *o]));
        series.filter_map(|labels| metrics.value(&table::EVENTS, &labels)).sum::<f64>() as u64
    };
    Intake {
        stored: of(&["stored"]),
        held: of(&["held"]),
        known: of(&["known", "superseded"]),
        rejected: of(&["rejected"]),
    }
}

/// What the files of the event store take, whichever of them is in use.
fn store_bytes(data_dir: &std::path::Path) -> u64 {
    let files = ["events.db", "events.db-wal", "nostr-sqlite.db", "nostr-lmdb/data.mdb"];
    let sizes = files.iter().filter_map(|file| data_dir.join(file).metadata().ok());
    sizes.map(|file| file.len()).sum()
}

/// The memory that the kernel says we take, where it says so.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    kib.checked_mul(1_024)
}

impl Stands for Overview {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn root(&self) -> &str {
        &self.0.root
    }

    async fn is_ready(&self) -> bool {
        self.is_ready().await
    }

    fn damaged(&self) -> Vec<String> {
        self.damaged()
    }

    async fn status(&self) -> Status {
        self.status().await
    }

    async fn exposition(&self) -> String {
        self.exposition().await
    }
}

impl Answers for Overview {
    async fn answer(&self, question: Question) -> Answer {
        match question {
            Question::Status => Answer::Status(Box::new(self.status().await)),
            Question::Waiting => Answer::Waiting(self.waiting().await),
            Question::Repositories => match self.repositories().await {
                Ok(listed) => Answer::Repositories(listed.rows.clone()),
                Err(error) => Answer::Failed(error.to_string()),
            },
        }
    }
}
