//! The status of a server: counts and measurements of its parts.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use grasp_core::in_step::HostSteps;
use grasp_core::service::Endpoint;
use grasp_core::service::npub;
use grasp_core::{Mono, RepoId, kinds};
use grasp_purgatory::driver::{DamagedRepo, PurgatoryDriver};
use grasp_purgatory::hunt::{HuntFigures, HuntSchedule};
use grasp_purgatory::{Phase, Purgatory};
use nostr::filter::Filter;
use tokio::sync::Mutex;

use crate::in_step::InStep;
use crate::instance::files::{bytes_below, try_to_write};
use crate::instance::metrics;
use crate::instance::server::node::NodeView;
use crate::instance::server::{CommonParts, DATABASE};
use crate::metrics::{Metric, Metrics, table};
use crate::role::{Role, RoleWatch};
use crate::store::StoreError;
use crate::web::figures::{IntakeFigures, PurgatoryFigures, Status, WaitingRow};

/// Limits the age of a count of all events, which scans an index.
const MAX_COUNT_AGE: Duration = Duration::from_secs(60);

/// Limits the age of a count or measurement to this many times its duration: exact in a small store, cheap in a large one.
const MAX_AGE_PER_DURATION: u32 = 100;

/// Limits the age of a measurement of the disk, which visits every file.
const MAX_MEASUREMENT_AGE: Duration = Duration::from_secs(3_600);

/// Interval of attempts to write to the disk and to read from the event store.
const PROBE_INTERVAL: Duration = Duration::from_secs(2);

/// Limits the damaged repositories in the status.
const MAX_DAMAGED_NAMED: usize = 100;

/// Events that expire within this time are counted as expiring.
const EXPIRING_WITHIN: Duration = Duration::from_secs(3_600);

const SECONDS_OF_DAY: u64 = 24 * 60 * 60;

/// Limits the repository names in the list of what waits.
const MAX_WAITING_REPOS: usize = 1_000;

/// The parts of a server that have a status.
pub(super) struct ServerParts {
    pub(super) base: CommonParts,
    roles: RoleWatch,
    nodes: Option<NodeView>,
    /// Bytes of git data that all repositories may have.
    total_quota: u64,
    counts: Mutex<Option<Measured<StoreCounts>>>,
    disk_usage: Mutex<Option<Measured<DiskUsage>>>,
    /// When the disk and the event store were tried last, and whether both worked.
    probed: Mutex<Option<(Mono, bool)>>,
}

/// The number of events and of repositories.
type StoreCounts = (u64, u64);

/// The bytes of git data, and of all data.
type DiskUsage = (u64, u64);

/// A result that is used again for a while.
#[derive(Clone, Copy)]
struct Measured<T> {
    at: Mono,
    fresh_for: Duration,
    value: T,
}

impl ServerParts {
    pub(super) fn new(base: CommonParts, roles: RoleWatch, nodes: Option<NodeView>) -> Self {
        let counts = Mutex::new(None);
        let disk_usage = Mutex::new(None);
        let probed = Mutex::new(None);
        Self {
            total_quota: base.settings.quotas().total_bytes,
            base,
            roles,
            nodes,
            counts,
            disk_usage,
            probed,
        }
    }

    pub(super) async fn status(&self) -> Status {
        let stats = self.base.hub.stats().await;
        let (events, repositories) = self.counts().await.unwrap_or_default();
        let (git_bytes, disk_bytes) = self.disk_usage().await;
        Status {
            events,
            repositories,
            store_bytes: store_bytes(&self.base.settings.data_dir),
            git_bytes,
            disk_bytes,
            git_quota_bytes: Some(self.total_quota).filter(|bytes| *bytes < u64::MAX),
            damaged: self.damaged(),
            certificate_days_left: self.certificate_days_left(),
            certificate_problem: self
                .base
                .certificates
                .as_ref()
                .and_then(|certificates| certificates.status().problem),
            sockets: stats.sockets as u64,
            listeners: stats.listeners as u64,
            subscriptions: stats.subscriptions as u64,
            intake: intake(&self.base.metrics),
            purgatory: self.purgatory_figures().await,
            nodes: self.nodes.as_ref().map(NodeView::rows).unwrap_or_default(),
            ..Status::default()
        }
    }

    /// Returns purgatory; on a node that is not the writer, what to do instead.
    pub(super) fn purgatory(&self) -> Result<PurgatoryDriver, String> {
        match self.roles.current() {
            Role::Writer(writer) => Ok(writer.purgatory),
            Role::Reader {
                writer: Some(writer),
            } => Err(format!("this node is a reader; ask {writer}")),
            Role::Reader { writer: None } => Err("no node is the writer at the moment".into()),
        }
    }

    /// Returns whether the disk can be written, the store and the packs answer, and purgatory, if it is here, answers and
    /// can write its journal.
    pub(super) async fn is_ready(&self) -> bool {
        let store = self.disk_and_store_work().await;
        self.set(&table::STORE_UP, &[], u64::from(store));
        let purgatory = match self.purgatory() {
            Ok(purgatory) => purgatory.can_write() && purgatory.ask(|_| ()).await.is_ok(),
            Err(_) => self.nodes.is_some(),
        };
        self.set(&table::PURGATORY_UP, &[], u64::from(purgatory));
        let packs = match &self.nodes {
            Some(nodes) => nodes.packs_answer(&self.base).await,
            None => true,
        };
        store && purgatory && packs
    }

    /// Tries the disk and the event store, or returns the last result for a while: anybody may ask for it.
    async fn disk_and_store_work(&self) -> bool {
        let mut probed = self.probed.lock().await;
        let now = self.base.host.clock.now().mono;
        if let Some((at, worked)) = *probed {
            if now - at < PROBE_INTERVAL {
                return worked;
            }
        }
        let settings = &self.base.settings;
        let dirs = [settings.data_dir.clone(), settings.repositories()];
        let write = move || dirs.iter().try_for_each(|dir| try_to_write(dir));
        let written = tokio::task::spawn_blocking(write).await;
        let is_written = match written {
            Ok(Err(error)) => {
                tracing::error!(%error, "the disk cannot be written");
                false
            }
            written => written.is_ok(),
        };
        let read = self.base.host.store.probe().await;
        let worked = is_written && read.is_ok();
        if let Err(error) = read {
            let error = crate::instance::error::one_line(&error);
            tracing::error!(error, "the event store does not work");
        }
        *probed = Some((now, worked));
        worked
    }

    pub(super) fn damaged(&self) -> Vec<String> {
        let damaged = self.purgatory().map(|it| it.damaged()).unwrap_or_default();
        self.set(&table::DAMAGED, &[], damaged.len() as u64);
        let service = self.base.host.policy.service();
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
        damaged
            .into_iter()
            .take(MAX_DAMAGED_NAMED)
            .map(address)
            .collect()
    }

    /// Returns the days for which the TLS certificate is valid, if the server does TLS itself.
    pub(super) fn certificate_days_left(&self) -> Option<u64> {
        let certificates = self.base.certificates.as_ref()?;
        let now = self.base.host.clock.now().unix.as_secs();
        let left = certificates
            .status()
            .validity
            .map_or(Duration::ZERO, |validity| validity.left(now));
        Some(left.as_secs() / SECONDS_OF_DAY)
    }

    /// Returns why an operator has to look after the TLS certificate, if that is so.
    pub(super) fn certificate_trouble(&self) -> Option<String> {
        let status = self.base.certificates.as_ref()?.status();
        let now = self.base.host.clock.now().unix.as_secs();
        if !status.is_degraded(now) {
            return None;
        }
        let what = match status.validity {
            None => "there is no TLS certificate".to_owned(),
            Some(_) if !status.covers_domain => {
                let domain = self.base.host.policy.service().host();
                format!("the TLS certificate is not for {domain}")
            }
            Some(validity) => {
                let days = validity.left(now).as_secs() / SECONDS_OF_DAY;
                format!("the TLS certificate is valid for {days} more days only")
            }
        };
        Some(match status.problem {
            Some(problem) => format!("{what}: {}", problem.replace('\n', " ")),
            None => what,
        })
    }

    /// Returns the repositories whose events wait for git data.
    pub(super) async fn waiting(&self) -> Result<Vec<WaitingRow>, String> {
        let purgatory = self.purgatory()?;
        let turns = turns(&purgatory).await;
        let now = self.base.host.clock.now().unix.as_secs();
        let rows = purgatory
            .ask(move |purgatory| waiting_rows(purgatory, now, &turns))
            .await;
        Ok(rows.unwrap_or_default())
    }

    async fn purgatory_figures(&self) -> PurgatoryFigures {
        let Ok(purgatory) = self.purgatory() else {
            return PurgatoryFigures::default();
        };
        let soon = self.base.host.clock.now().unix + EXPIRING_WITHIN;
        let figures = purgatory.ask(move |held: &Purgatory| {
            let waiting = [Phase::Waiting, Phase::Expired].map(|phase| held.wanting(phase));
            (held.counts(), held.expiring(soon), waiting)
        });
        let (counts, expiring, waiting) = figures.await.unwrap_or_default();
        let mut turns = turns(&purgatory).await;
        // The hunt keeps the turn of a repository whose git data came by a push.
        turns.retain(|repo, _| waiting.iter().any(|repos| repos.contains(repo)));
        let next = turns.values().filter_map(|turn| turn.next_in).min();
        let queued = turns
            .values()
            .filter(|turn| turn.position.is_some())
            .count() as u64;
        let hunt = self.hunt().await.unwrap_or_default();
        let busy = hunt.hosts.iter().filter(|(_, host)| host.waiting > 0);
        let per_minute: u64 = busy.map(|(_, host)| host.per_minute as u64).sum();
        PurgatoryFigures {
            counts,
            hunting: turns.len() as u64,
            fetched: hunt.done,
            queued,
            per_minute,
            seconds_left: (queued * 60).checked_div(per_minute),
            next_attempt_in: next.map(|next| next.as_secs()),
            expiring: expiring as u64,
        }
    }

    /// Returns the number of repository names whose git data is hunted for.
    pub(super) async fn hunted(&self) -> u64 {
        match self.purgatory() {
            Ok(purgatory) => turns(&purgatory).await.len() as u64,
            Err(_) => 0,
        }
    }

    /// Returns the figures of the hunt, in total and by host.
    pub(super) async fn hunt(&self) -> Option<HuntFigures> {
        self.purgatory().ok()?.hunting()?.figures().await
    }

    /// Counts all events and repositories, or returns the last counts while they are fresh.
    async fn counts(&self) -> Result<StoreCounts, StoreError> {
        let count = async {
            let now = self.base.host.clock.now().unix;
            let everything = self.base.host.store.count(vec![Filter::new()], now);
            let announcements = vec![Filter::new().kind(kinds::ANNOUNCEMENT)];
            let announcements = self.base.host.store.count(announcements, now);
            Ok((everything.await?, announcements.await?))
        };
        self.fresh(&self.counts, MAX_COUNT_AGE, count).await
    }

    /// Measures the disk, or returns the last measurement while it is fresh.
    async fn disk_usage(&self) -> DiskUsage {
        let settings = &self.base.settings;
        let data = settings.data_dir.clone();
        let git = settings.repositories();
        let measure = move || {
            let all = bytes_below(&data);
            let git_bytes = bytes_below(&git);
            (
                git_bytes,
                if git.starts_with(&data) {
                    all
                } else {
                    all + git_bytes
                },
            )
        };
        let measure = async { tokio::task::spawn_blocking(measure).await };
        self.fresh(&self.disk_usage, MAX_MEASUREMENT_AGE, measure)
            .await
            .unwrap_or_default()
    }

    /// Returns the last result, or another one if that is too old for the time that it took.
    async fn fresh<T: Copy, E>(
        &self,
        last: &Mutex<Option<Measured<T>>>,
        max_age: Duration,
        measure: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let mut last = last.lock().await;
        let at = self.base.host.clock.now().mono;
        if let Some(known) = last.filter(|known| at - known.at < known.fresh_for) {
            return Ok(known.value);
        }
        let value = measure.await?;
        let took = self.base.host.clock.now().mono - at;
        let fresh_for = took.saturating_mul(MAX_AGE_PER_DURATION).min(max_age);
        *last = Some(Measured {
            at,
            fresh_for,
            value,
        });
        Ok(value)
    }

    pub(super) fn set_gauges(&self, status: &Status) {
        let held = &status.purgatory.counts;
        self.set(&table::STORED, &[], status.events);
        self.set(&table::REPOSITORIES, &[], status.repositories);
        self.set(&table::STORE_BYTES, &[], status.store_bytes);
        self.set(&table::GIT_BYTES, &[], status.git_bytes);
        self.set(&table::DISK_BYTES, &[], status.disk_bytes);
        self.set(&table::SOCKETS, &[], status.sockets);
        if let Some(days) = status.certificate_days_left {
            self.set(&table::CERTIFICATE_DAYS, &[], days);
        }
        self.set(&table::LISTENERS, &[], status.listeners);
        self.set(&table::SUBSCRIPTIONS, &[], status.subscriptions);
        self.set(&table::HELD, &["announcement"], held.announcements as u64);
        self.set(&table::HELD, &["state"], held.states as u64);
        self.set(&table::HELD, &["proposal"], held.proposals as u64);
        self.set(&table::HELD_BYTES, &[], held.bytes);
        self.set(&table::EXPIRED, &[], held.expired as u64);
        self.set(&table::STAGED, &[], held.staged as u64);
        self.set(&table::STAGED_BYTES, &[], held.staged_bytes);
        self.set(&table::PENDING_CLEANUP, &[], held.pending_tasks as u64);
        self.set(&metrics::HUNT_QUEUE, &[], status.purgatory.hunting);
        self.set_comparisons();
        self.set(&table::IS_WRITER, &[], u64::from(self.purgatory().is_ok()));
        if let Some(nodes) = &self.nodes {
            self.set_node_metrics(nodes);
        }
        if let Some(memory) = resident_bytes() {
            self.set(&table::MEMORY, &[], memory);
        }
        if let Ok(files) = std::fs::read_dir("/proc/self/fd") {
            self.set(&table::FILES, &[], files.count() as u64);
        }
    }

    fn set_comparisons(&self) {
        let mut sum = HostSteps::default();
        let hosts = self.base.in_step.as_ref().map(InStep::hosts);
        for steps in hosts.unwrap_or_default().into_values() {
            sum.equal += steps.equal;
            sum.different += steps.different;
            sum.unreachable += steps.unreachable;
            sum.unknown += steps.unknown;
        }
        self.set(&table::COMPARED, &["equal"], sum.equal as u64);
        self.set(&table::COMPARED, &["different"], sum.different as u64);
        self.set(&table::COMPARED, &["unreachable"], sum.unreachable as u64);
        self.set(&table::COMPARED, &["unknown"], sum.unknown as u64);
    }

    fn set_node_metrics(&self, nodes: &NodeView) {
        let figures = self.base.pack_figures();
        self.set(&table::FEED_LAG, &[], nodes.own_lag());
        self.set(&table::PACK_CACHE_BYTES, &[], figures.cached_bytes);
        self.set(&table::PACK_CACHE_READS, &["hit"], figures.hits);
        self.set(&table::PACK_CACHE_READS, &["miss"], figures.misses);
        self.set(&table::PACK_UPLOADING, &[], figures.uploading);
        self.set(&table::PACK_FAILURES, &[], figures.failures);
    }

    fn set(&self, metric: &Metric, labels: &[&str], value: u64) {
        self.base.metrics.set(metric, labels, value as f64);
    }
}

/// Returns the next attempt for each repository that is hunted for.
async fn turns(purgatory: &PurgatoryDriver) -> BTreeMap<RepoId, HuntSchedule> {
    match purgatory.hunting() {
        Some(hunting) => hunting.schedule().await,
        None => BTreeMap::new(),
    }
}

pub(super) fn intake(metrics: &Metrics) -> IntakeFigures {
    let of = |outcomes: &[&str]| {
        let sources = ["client", "live", "catch_up", "daily"];
        let series = sources
            .iter()
            .flat_map(|source| outcomes.iter().map(move |o| [*source, *o]));
        series
            .filter_map(|labels| metrics.value(&table::EVENTS, &labels))
            .sum::<f64>() as u64
    };
    IntakeFigures {
        stored: of(&["stored"]),
        held: of(&["held"]),
        known: of(&["duplicate", "superseded"]),
        rejected: of(&["refused"]),
    }
}

/// Returns the bytes of the database's files.
fn store_bytes(data_dir: &Path) -> u64 {
    let files = [DATABASE.to_owned(), format!("{DATABASE}-wal")];
    let sizes = files
        .iter()
        .filter_map(|file| data_dir.join(file).metadata().ok());
    sizes.map(|file| file.len()).sum()
}

/// Returns the resident memory of this process (Linux).
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    kib.checked_mul(1_024)
}

/// Returns the repositories whose events wait for git data.
fn waiting_rows(
    purgatory: &Purgatory,
    now: u64,
    turns: &BTreeMap<RepoId, HuntSchedule>,
) -> Vec<WaitingRow> {
    let mut repos = purgatory.wanting(Phase::Waiting);
    repos.extend(purgatory.wanting(Phase::Expired));
    let repos = repos.iter().take(MAX_WAITING_REPOS);
    repos
        .map(|repo| waiting_row(purgatory, now, repo, turns.get(repo)))
        .collect()
}

/// Returns the row of one repository. Git servers that only stored announcements name are left out, to save a query.
fn waiting_row(
    purgatory: &Purgatory,
    now: u64,
    repo: &RepoId,
    turn: Option<&HuntSchedule>,
) -> WaitingRow {
    let held = purgatory.announcement(repo).map(|known| known.announcement);
    let wants = purgatory.wants(repo, held.as_slice());
    let waiting = wants
        .iter()
        .filter(|want| want.phase == Phase::Waiting)
        .count();
    let named = wants
        .iter()
        .flat_map(|want| want.trusted.iter().chain(&want.untrusted));
    let git_servers: BTreeSet<String> = named.map(ToString::to_string).collect();
    WaitingRow {
        owner: npub(&repo.owner),
        identifier: repo.identifier.to_string(),
        waiting: waiting as u64,
        expired: (wants.len() - waiting) as u64,
        tips: wants.iter().map(|want| want.tips.len() as u64).sum(),
        attempts: turn.map_or(0, |turn| turn.attempts.into()),
        next_in: turn
            .and_then(|turn| turn.next_in)
            .map(|next| next.as_secs()),
        position: turn
            .and_then(|turn| turn.position)
            .map(|line| line.position as u64),
        wait_seconds: turn
            .and_then(|turn| turn.position)
            .map(|line| line.wait.as_secs()),
        expires_in: purgatory
            .expires(repo)
            .map(|end| end.as_secs().saturating_sub(now)),
        git_servers: git_servers.into_iter().collect(),
    }
}
