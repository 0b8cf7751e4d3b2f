//! `grasp sync --once`: brings everything that some relays have, and ends.

use std::collections::BTreeMap;
use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use grasp_core::RelayUrl;
use grasp_core::sync::ConnectionStatus;
use grasp_relay::Clock;
use grasp_relay::web::span;
use grasp_sync::driver::RelayStatus;

use crate::admin::AdminSocket;
use crate::config::Config;
use crate::server::Server;

/// How often is looked.
const LOOK: Duration = Duration::from_millis(500);

/// How often is told how far it is where nothing can be drawn over.
const TELL: Duration = Duration::from_secs(5);

/// How long newly found repositories are collected. Nobody is waiting for a better moment here.
const WINDOW: Duration = Duration::from_secs(1);

/// How long a relay must have been complete to be taken for it: what it brought may lead to more questions.
const SETTLED: u64 = 4;

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Everything that the relays have is here.
    Complete,
    /// Some of it could not be had.
    Incomplete,
}

/// Brings everything that these relays have into the store of this configuration.
pub(crate) fn run(config: Config, from: Vec<RelayUrl>, patience: Duration) -> Result<Outcome> {
    config.log.start();
    let runtime = tokio::runtime::Runtime::new().context("could not start the runtime")?;
    runtime.block_on(bring(config, from, patience))
}

async fn bring(config: Config, from: Vec<RelayUrl>, patience: Duration) -> Result<Outcome> {
    // A server that runs here syncs by itself, and two must not write to one place.
    let admin = AdminSocket::claim(&config.admin_socket())?;
    let service = match &config.domain {
        Some(domain) => domain.clone(),
        None => config.settings.service.clone(),
    };
    let mut settings = config.settings.reached_at(service);
    settings.sync.enabled = true;
    settings.sync.engine.bootstrap.clone_from(&from);
    settings.sync.engine.relays_per_repo = 0;
    settings.sync.engine.discovery_window = WINDOW;
    let server = Server::open(&settings, Clock::system()).await?;
    let answering = admin.answer(server.overview().clone());
    let began = Instant::now();
    let last = follow(&server, &from, patience).await;
    let waiting = server.overview().status().await.purgatory.hunting;
    drop(answering);
    server.close().await?;
    Ok(sum_up(&last, &from, waiting, began.elapsed()))
}

/// What is known of each relay.
type Seen = BTreeMap<RelayUrl, RelayStatus>;

/// Looks until all are done or patience ends.
async fn follow(server: &Server, from: &[RelayUrl], patience: Duration) -> Seen {
    let (began, mut told) = (Instant::now(), None);
    let mut board = Board::default();
    loop {
        let seen = match server.syncer() {
            Some(syncer) => syncer.status().await.relays,
            None => Seen::new(),
        };
        let now = server.parts().clock.now().unix.as_secs();
        let done = from.iter().all(|relay| seen.get(relay).is_some_and(|one| is_done(now, one)));
        let over = done || began.elapsed() > patience;
        if over || board.is_live() || told.is_none_or(|at: Instant| at.elapsed() > TELL) {
            board.draw(&seen, from, began.elapsed());
            told = Some(Instant::now());
        }
        if over {
            return seen;
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Whether nothing more is to be expected of a relay.
fn is_done(now: u64, relay: &RelayStatus) -> bool {
    let stands = relay.connection == ConnectionStatus::Connected
        || relay.connection == ConnectionStatus::ConnectedHistoricSyncFailures;
    stands && relay.backlog == 0 && relay.since.as_secs() + SETTLED < now
}

fn sum_up(seen: &Seen, from: &[RelayUrl], waiting: u64, took: Duration) -> Outcome {
    let complete = |relay: &RelayUrl| {
        seen.get(relay)
            .is_some_and(|one| one.connection == ConnectionStatus::Connected && one.backlog == 0)
    };
    let done = from.iter().filter(|relay| complete(relay)).count();
    let new: u64 = seen.values().map(|one| one.counts.stored() + one.counts.held).sum();
    println!(
        "{done} of {} relays complete, {new} new events in {}",
        from.len(),
        span(took.as_secs())
    );
    for relay in from.iter().filter(|relay| !complete(relay)) {
        let refusal = seen.get(relay).and_then(|one| one.last_refusal.as_ref());
        println!(
            "  {relay} is not{}",
            refusal.map_or_else(String::new, |text| format!(": {}", text.as_str()))
        );
    }
    if waiting > 0 {
        println!(
            "{waiting} repository names wait for git data; `grasp serve` goes on looking for it"
        );
    }
    if done == from.len() { Outcome::Complete } else { Outcome::Incomplete }
}

/// The state of each relay on standard error, drawn over where that is possible.
#[derive(Default)]
struct Board {
    lines: usize,
}

impl Board {
    fn is_live(&self) -> bool {
        std::io::stderr().is_terminal()
    }

    fn draw(&mut self, seen: &Seen, from: &[RelayUrl], took: Duration) {
        let mut text = String::new();
        if self.is_live() && self.lines > 0 {
            text.push_str(&format!("\x1b[{}A\x1b[J", self.lines));
        }
        for relay in from {
            text.push_str(&line(relay, seen.get(relay), took));
        }
        self.lines = from.len();
        let _ = std::io::stderr().write_all(text.as_bytes());
    }
}

fn line(relay: &RelayUrl, seen: Option<&RelayStatus>, took: Duration) -> String {
    let Some(seen) = seen else { return format!("{relay}  not tried yet\n") };
    let counts = &seen.counts;
    let fetched = counts.stored() + counts.held + counts.known + counts.refused + counts.forged;
    let rate = fetched as f64 / took.as_secs_f64().max(0.1);
    let state = match seen.connection {
        ConnectionStatus::Disconnected => "disconnected",
        ConnectionStatus::Connecting => "connecting",
        ConnectionStatus::Syncing => "fetching",
        ConnectionStatus::Connected => "complete",
        ConnectionStatus::ConnectedHistoricSyncFailures => "incomplete",
    };
    let new = counts.stored() + counts.held;
    format!(
        "{relay}  {state}  {fetched} fetched, {new} new, {} to judge, {rate:.0}/s\n",
        seen.backlog
    )
}
