//! `grasp sync --once`: fetches everything that some relays have, and ends.

use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use grasp_core::RelayUrl;
use grasp_core::sync::ConnectionStatus;
use grasp_relay::Clock;
use grasp_relay::web::figures::Status;
use grasp_relay::web::{format_count, format_duration};
use grasp_sync::driver::RelayStatus;
use indicatif::{MultiProgress, ProgressBar, ProgressFinish, ProgressStyle};
use nostr::types::Timestamp;

use crate::admin::AdminSocket;
use crate::block_on;
use crate::config::{Config, Loaded};
use crate::outbox::OutboxMode;
use crate::server::Server;

const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Interval between two lists of progress where bars cannot be drawn.
const PRINT_INTERVAL: Duration = Duration::from_secs(5);

/// Time in which newly found repositories are collected into one batch: short, because the user waits.
pub(crate) const DISCOVERY_WINDOW: Duration = Duration::from_secs(1);

/// Limits the backoff between two attempts to connect: short, because the user waits.
const MAX_BACKOFF: Duration = Duration::from_secs(15);

/// Time that a relay must be complete before it counts as done: its events may lead to more requests.
const DONE_AFTER: Duration = Duration::from_secs(4);

/// Fetches everything that these relays have into the store of this configuration. Returns whether all of it is here.
pub(crate) fn run(mut loaded: Loaded, from: Vec<RelayUrl>, limit: Duration) -> Result<bool> {
    // Log lines would break the progress bars on a screen, so by default there are none.
    if loaded.is_default("log.filter") {
        let filter = if std::io::stderr().is_terminal() {
            "off"
        } else {
            "warn"
        };
        loaded.config.log.filter = filter.into();
    }
    loaded.start_log();
    block_on(sync_from(loaded.config, from, limit))
}

async fn sync_from(config: Config, from: Vec<RelayUrl>, limit: Duration) -> Result<bool> {
    // Fails if a server runs: it syncs by itself, and only one process may write to the data directory.
    let admin = AdminSocket::bind(&config.admin_socket())?;
    let service = match &config.domain {
        Some(domain) => domain.clone(),
        None => config.settings.policy.service.clone(),
    };
    if let Some(relay) = from.iter().find(|relay| service.is_own_url(relay.as_str())) {
        bail!("{relay} is this server itself by its domain, {service}; choose another --from");
    }
    let mut settings = config.settings.reached_at(service);
    settings.sync.enabled = true;
    // Only the named relays are asked.
    settings.sync.outbox.mode = OutboxMode::Off;
    settings.sync.engine.bootstrap.clone_from(&from);
    settings.sync.engine.relays_per_repo = 0;
    settings.sync.engine.discovery_window = DISCOVERY_WINDOW;
    settings.sync.engine.backoff.cap = MAX_BACKOFF;
    settings.sync.engine.backoff.dead_retry = MAX_BACKOFF;
    let server = Server::open(&settings, Clock::system()).await?;
    server.until_writer().await?;
    let admin = admin.serve(server.overview().clone(), Some(server.management().clone()));
    let began = Instant::now();
    let relays = wait_until_done(&server, &from, limit).await;
    let status = server.overview().status().await;
    drop(admin);
    server.close().await?;
    Ok(print_result(&relays, &from, &status, began.elapsed()))
}

type Statuses = BTreeMap<RelayUrl, RelayStatus>;

/// Waits until all relays are done or the time limit is reached, and shows the progress.
async fn wait_until_done(server: &Server, from: &[RelayUrl], limit: Duration) -> Statuses {
    let (began, mut shown_at) = (server.parts().clock.now(), None);
    let bars = ProgressBars::new(from);
    loop {
        let relays = match server.syncer().await {
            Some(syncer) => syncer.status().await.relays,
            None => Statuses::new(),
        };
        let now = server.parts().clock.now();
        let has_ended =
            |one: &RelayStatus| is_done(now.unix, one) || is_given_up(began.unix + limit, one);
        let all_ended = from
            .iter()
            .all(|relay| relays.get(relay).is_some_and(has_ended))
            || now.mono - began.mono > limit;
        let is_due = shown_at.is_none_or(|at: Instant| at.elapsed() > PRINT_INTERVAL);
        if all_ended || bars.are_drawn() || is_due {
            bars.show(&relays);
            shown_at = Some(Instant::now());
        }
        if all_ended {
            return relays;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Returns whether no more events are expected from a relay.
fn is_done(now: Timestamp, relay: &RelayStatus) -> bool {
    let is_synced = relay.connection == ConnectionStatus::Connected
        || relay.connection == ConnectionStatus::ConnectedHistoricSyncFailures;
    is_synced && relay.backlog == 0 && relay.since + DONE_AFTER < now
}

/// Returns whether the next attempt to connect is after the time limit: its certificate is bad, or it is not a relay.
fn is_given_up(limit: Timestamp, relay: &RelayStatus) -> bool {
    relay.failed.is_some_and(|failed| failed.retry_at > limit)
}

fn is_complete(relay: &RelayStatus) -> bool {
    relay.connection == ConnectionStatus::Connected && relay.backlog == 0
}

fn print_result(relays: &Statuses, from: &[RelayUrl], status: &Status, took: Duration) -> bool {
    let complete = |relay: &&RelayUrl| relays.get(*relay).is_some_and(is_complete);
    let done = from.iter().filter(complete).count();
    // Of the whole server: an event that was refused at first and stored later counts too.
    let new = status.intake.stored + status.intake.held;
    println!(
        "{done} of {} complete, {} in {}",
        format_count(from.len() as u64, "relay", "relays"),
        format_count(new, "new event", "new events"),
        format_duration(took.as_secs())
    );
    for relay in from.iter().filter(|relay| !complete(relay)) {
        let reason = relays
            .get(relay)
            .map_or("no attempt to connect yet".into(), reason_incomplete);
        println!("  {relay}: {reason}");
    }
    if status.purgatory.hunting > 0 {
        println!(
            "{} for git data; `grasp serve` continues to look for it",
            format_count(
                status.purgatory.hunting,
                "repository name waits",
                "repository names wait"
            )
        );
    }
    done == from.len()
}

/// Explains why a relay is incomplete.
pub(crate) fn reason_incomplete(relay: &RelayStatus) -> String {
    if let Some(failed) = relay.failed {
        return failed.why.to_string();
    }
    let refusal = relay
        .last_refusal
        .as_ref()
        .map(|text| text.as_str().to_owned());
    match (relay.connection, refusal) {
        (ConnectionStatus::ConnectedHistoricSyncFailures, Some(text)) => {
            format!("some of its history could not be fetched: {text}")
        }
        (ConnectionStatus::ConnectedHistoricSyncFailures, None) => {
            "some of its history could not be fetched".into()
        }
        (ConnectionStatus::Disconnected | ConnectionStatus::Connecting, _) => {
            "the connection was lost".into()
        }
        _ => "it was not complete within the time limit; set --timeout to wait longer".into(),
    }
}

/// A progress bar for each relay on a terminal; elsewhere a line for each.
struct ProgressBars {
    bars: MultiProgress,
    relays: Vec<(RelayUrl, ProgressBar)>,
}

impl ProgressBars {
    fn new(relays: &[RelayUrl]) -> Self {
        let bars = MultiProgress::new();
        let width = relays
            .iter()
            .map(|relay| relay.as_str().len())
            .max()
            .unwrap_or(0);
        let style = ProgressStyle::with_template("{prefix}  [{bar:24}] {percent:>3}% {msg}")
            .expect("the template is valid")
            .progress_chars("##.");
        let bar = |relay: &RelayUrl| {
            let bar = ProgressBar::new(1)
                .with_style(style.clone())
                .with_prefix(format!("{:<width$}", relay.as_str()))
                .with_finish(ProgressFinish::Abandon);
            (relay.clone(), bars.add(bar))
        };
        let relays = relays.iter().map(bar).collect();
        Self { bars, relays }
    }

    /// Returns whether bars are drawn, rather than lines printed.
    fn are_drawn(&self) -> bool {
        !self.bars.is_hidden()
    }

    fn show(&self, statuses: &Statuses) {
        for (relay, bar) in &self.relays {
            let text = match statuses.get(relay) {
                Some(status) => {
                    let fetched = status.counts.judged();
                    // A length of 0 would be drawn as 100 %.
                    bar.set_length((fetched + missing(status)).max(1));
                    bar.set_position(fetched);
                    progress_text(status, bar.per_sec())
                }
                None => "no attempt to connect yet".into(),
            };
            if bar.is_hidden() {
                eprintln!("{}  {text}", bar.prefix());
            }
            bar.set_message(text);
        }
    }
}

/// Returns the number of events that are known to be missing.
fn missing(relay: &RelayStatus) -> u64 {
    relay.wanted.max(relay.backlog)
}

fn progress_text(relay: &RelayStatus, per_second: f64) -> String {
    let (fetched, missing) = (relay.counts.judged(), missing(relay));
    let new = relay.counts.stored() + relay.counts.held;
    let state = match relay.connection {
        ConnectionStatus::Disconnected => "not connected",
        ConnectionStatus::Connecting => "connecting",
        ConnectionStatus::Syncing => {
            let known = fetched + missing;
            let left = match missing {
                0 => "asking for more".into(),
                // Unknown while pages are read.
                _ if per_second < 0.1 => "time left unknown".into(),
                _ => {
                    let seconds = (missing as f64 / per_second).ceil() as u64;
                    format!("{} left", format_duration(seconds))
                }
            };
            return format!(
                "{fetched} of {known} known events, {new} new, {per_second:.0}/s, {left}"
            );
        }
        ConnectionStatus::Connected => "complete",
        ConnectionStatus::ConnectedHistoricSyncFailures => "incomplete",
    };
    format!("{fetched} events, {new} new, {state}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relay(connection: ConnectionStatus, fetched: u64, wanted: u64) -> RelayStatus {
        let mut status = RelayStatus::default();
        status.connection = connection;
        status.counts.live = 5;
        status.counts.known = fetched - 5;
        status.wanted = wanted;
        status
    }

    #[test]
    fn progress_shows_fetched_events_rate_and_time_left() {
        let syncing = |fetched, wanted| relay(ConnectionStatus::Syncing, fetched, wanted);
        assert_eq!(
            progress_text(&syncing(250, 750), 50.0),
            "250 of 1000 known events, 5 new, 50/s, 15 seconds left"
        );
        assert!(progress_text(&syncing(5, 0), 0.0).ends_with("asking for more"));
        assert!(progress_text(&syncing(10, 90), 0.0).ends_with("time left unknown"));
    }

    #[test]
    fn a_complete_relay_is_shown_as_complete() {
        let done = relay(ConnectionStatus::Connected, 8, 0);
        assert_eq!(progress_text(&done, 1.0), "8 events, 5 new, complete");
    }
}
