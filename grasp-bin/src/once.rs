//! `grasp sync --once`: fetches everything that some relays have, and ends.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use anyhow::Result;
use grasp_core::RelayUrl;
use grasp_relay::instance::admin::AdminSocket;
use grasp_relay::instance::text::{missing_events, progress_text, sync_result};
use grasp_relay::instance::{RelayStatuses, SyncOnce};
use grasp_relay::web::figures::Status;
use grasp_relay::web::format_count;
use grasp_sync::driver::RelayStatus;
use indicatif::{MultiProgress, ProgressBar, ProgressFinish, ProgressStyle};

use crate::block_on;
use crate::config::{Config, Loaded};

const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Interval between two lists of progress where bars cannot be drawn.
const PRINT_INTERVAL: Duration = Duration::from_secs(5);

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
    let admin = AdminSocket::bind(&config.settings.admin_socket())?;
    let service = match &config.domain {
        Some(domain) => domain.clone(),
        None => config.settings.policy.service.clone(),
    };
    let settings = config.settings.reached_at(service);
    let sync = SyncOnce::start(&settings, &from, limit).await?;
    let admin = admin.serve(sync.server());
    let began = Instant::now();
    let relays = wait_until_done(&sync, &from).await;
    drop(admin);
    let status = sync.close().await?;
    Ok(print_result(&relays, &from, &status, began.elapsed()))
}

/// Waits until all relays are done or the time limit is reached, and shows the progress.
async fn wait_until_done(sync: &SyncOnce, from: &[RelayUrl]) -> RelayStatuses {
    let mut shown_at: Option<Instant> = None;
    let bars = ProgressBars::new(from);
    loop {
        let relays = sync.relays().await;
        let has_ended = sync.has_ended(&relays);
        let is_due = shown_at.is_none_or(|at| at.elapsed() > PRINT_INTERVAL);
        if has_ended || bars.are_drawn() || is_due {
            bars.show(&relays);
            shown_at = Some(Instant::now());
        }
        if has_ended {
            return relays;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

fn print_result(
    relays: &RelayStatuses,
    from: &[RelayUrl],
    status: &Status,
    took: Duration,
) -> bool {
    // Of the whole server: an event that was refused at first and stored later counts too.
    let new = status.intake.stored + status.intake.held;
    print!("{}", sync_result(from, relays, new, took));
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
    let is_complete = |relay| relays.get(relay).is_some_and(RelayStatus::is_complete);
    from.iter().all(is_complete)
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

    fn show(&self, statuses: &RelayStatuses) {
        for (relay, bar) in &self.relays {
            let text = match statuses.get(relay) {
                Some(status) => {
                    let fetched = status.counts.judged();
                    // A length of 0 would be drawn as 100 %.
                    bar.set_length((fetched + missing_events(status)).max(1));
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
