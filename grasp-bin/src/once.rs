//! `grasp sync --once`: brings everything that some relays have, and ends.

mod board;

use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use grasp_core::RelayUrl;
use grasp_core::sync::ConnectionStatus;
use grasp_relay::Clock;
use grasp_relay::web::figures::Status;
use grasp_relay::web::{counted, span};
use grasp_sync::driver::RelayStatus;
use nostr::types::Timestamp;

use self::board::Board;
use crate::admin::AdminSocket;
use crate::config::{Config, Loaded};
use crate::rows::in_words;
use crate::server::Server;

/// How often is looked.
const LOOK: Duration = Duration::from_millis(500);

/// How often is told how far it is where nothing can be drawn over.
const TELL: Duration = Duration::from_secs(5);

/// How long newly found repositories are collected. Nobody is waiting for a better moment here.
const WINDOW: Duration = Duration::from_secs(1);

/// The longest rest between two attempts to connect. Whoever asks for everything now waits for it.
const REST: Duration = Duration::from_secs(15);

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
pub(crate) fn run(mut loaded: Loaded, from: Vec<RelayUrl>, patience: Duration) -> Result<Outcome> {
    // Bars and log lines on one screen spoil each other; whoever asks for a log gets it.
    if loaded.is_default("log.filter") {
        let quiet = if std::io::stderr().is_terminal() { "off" } else { "warn" };
        loaded.config.log.filter = quiet.into();
    }
    loaded.start_log();
    let runtime = tokio::runtime::Runtime::new().context("could not start the runtime")?;
    runtime.block_on(bring(loaded.config, from, patience))
}

async fn bring(config: Config, from: Vec<RelayUrl>, patience: Duration) -> Result<Outcome> {
    // A server that runs here syncs by itself, and two must not write to one place.
    let admin = AdminSocket::claim(&config.admin_socket())?;
    let service = match &config.domain {
        Some(domain) => domain.clone(),
        None => config.settings.service.clone(),
    };
    if let Some(us) = from.iter().find(|relay| service.is_us(relay.as_str())) {
        bail!(
            "{us} is this very server by its domain, {service}; nothing can be brought from there"
        );
    }
    let mut settings = config.settings.reached_at(service);
    settings.sync.enabled = true;
    settings.sync.engine.bootstrap.clone_from(&from);
    settings.sync.engine.relays_per_repo = 0;
    settings.sync.engine.discovery_window = WINDOW;
    settings.sync.engine.backoff.cap = REST;
    settings.sync.engine.backoff.dead_retry = REST;
    let server = Server::open(&settings, Clock::system()).await?;
    let answering = admin.answer(server.overview().clone());
    let began = Instant::now();
    let last = follow(&server, &from, patience).await;
    let status = server.overview().status().await;
    drop(answering);
    server.close().await?;
    Ok(sum_up(&last, &from, &status, began.elapsed()))
}

/// What is known of each relay.
type Seen = BTreeMap<RelayUrl, RelayStatus>;

/// Looks until all are done or patience ends.
async fn follow(server: &Server, from: &[RelayUrl], patience: Duration) -> Seen {
    let (began, mut told) = (server.parts().clock.now(), None);
    let mut board = Board::new(from, began.mono);
    loop {
        let seen = match server.syncer() {
            Some(syncer) => syncer.status().await.relays,
            None => Seen::new(),
        };
        let now = server.parts().clock.now();
        let ended = |one: &RelayStatus| {
            is_done(now.unix.as_secs(), one) || is_given_up(began.unix + patience, one)
        };
        let over = from.iter().all(|relay| seen.get(relay).is_some_and(ended))
            || now.mono - began.mono > patience;
        if over || board.is_live() || told.is_none_or(|at: Instant| at.elapsed() > TELL) {
            board.draw(now.mono, &seen);
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

/// Whether a relay is not tried again while anybody waits: its certificate is bad, or it is no relay at all.
fn is_given_up(until: Timestamp, relay: &RelayStatus) -> bool {
    relay.failed.is_some_and(|failed| failed.retry_at > until)
}

fn is_complete(relay: &RelayStatus) -> bool {
    relay.connection == ConnectionStatus::Connected && relay.backlog == 0
}

fn sum_up(seen: &Seen, from: &[RelayUrl], status: &Status, took: Duration) -> Outcome {
    let complete = |relay: &&RelayUrl| seen.get(*relay).is_some_and(is_complete);
    let done = from.iter().filter(complete).count();
    // What was refused at first and taken when something else had come counts too.
    let new = status.intake.stored + status.intake.held;
    println!(
        "{done} of {} complete, {} in {}",
        counted(from.len() as u64, "relay", "relays"),
        counted(new, "new event", "new events"),
        span(took.as_secs())
    );
    for relay in from.iter().filter(|relay| !complete(relay)) {
        println!("  {relay}: {}", seen.get(relay).map_or("not tried yet".into(), why_not));
    }
    if status.purgatory.hunting > 0 {
        println!(
            "{} for git data; `grasp serve` goes on looking for it",
            counted(status.purgatory.hunting, "repository name waits", "repository names wait")
        );
    }
    if done == from.len() { Outcome::Complete } else { Outcome::Incomplete }
}

/// Why a relay did not give everything, in words.
fn why_not(relay: &RelayStatus) -> String {
    if let Some(failed) = relay.failed {
        return in_words(failed.why).into();
    }
    let refusal = relay.last_refusal.as_ref().map(|text| text.as_str().to_owned());
    match (relay.connection, refusal) {
        (ConnectionStatus::ConnectedHistoricSyncFailures, Some(text)) => {
            format!("some of its history could not be had: {text}")
        }
        (ConnectionStatus::ConnectedHistoricSyncFailures, None) => {
            "some of its history could not be had".into()
        }
        (ConnectionStatus::Disconnected | ConnectionStatus::Connecting, _) => {
            "the connection was lost".into()
        }
        _ => "it was not done in time; say --patience to wait longer".into(),
    }
}
