//! `grasp sidecar`: syncs a relay of another kind.

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use grasp_core::{RelayUrl, ServiceIdentity};
use grasp_relay::metrics::Metrics;
use grasp_relay::web::{self, format_count, format_duration};
use grasp_sync::{Sidecar, Syncer, driver};
use tokio::net::TcpListener;

use crate::admin::AdminSocket;
use crate::config::{Config, Loaded};
use crate::once::{DISCOVERY_WINDOW, reason_incomplete};
use crate::outbox::OutboxMode;
use crate::overview::Overview;
use crate::server::start_sync;
use crate::settings::Settings;
use crate::signals::{self, Signals};
use crate::{block_on, files, http};

/// Runs a sidecar until a signal stops it, or once within a time limit. Returns whether everything is there, if it ran
/// once.
pub(crate) fn run(loaded: Loaded, relay: Option<RelayUrl>, once: Option<Duration>) -> Result<bool> {
    loaded.start_log();
    let config = loaded.config;
    let Some(relay) = relay.or_else(|| config.sidecar_relay.clone()) else {
        bail!("no relay is set; set --relay ws://…, or sidecar.relay in the settings");
    };
    if !config.settings.sync.enabled {
        bail!("a sidecar only syncs, and sync.enabled is false; remove that setting");
    }
    block_on(sync_until_stopped(config, relay, once))
}

async fn sync_until_stopped(
    config: Config,
    relay: RelayUrl,
    once: Option<Duration>,
) -> Result<bool> {
    let signals = Signals::listen();
    let service = match &config.domain {
        Some(domain) => domain.clone(),
        None => service_of(&relay)?,
    };
    let admin = AdminSocket::bind(&config.admin_socket())?;
    let mut settings = config.settings.reached_at(service);
    settings.pages.branding.icon = files::page_icon(&settings)?;
    // A full comparison needs a relay that stores nothing but repositories; this one may store anything.
    settings.sync.engine.full_sync_above = None;
    let keys = files::service_key(&settings.service_key())?;
    let roots = files::roots_for_relays(&settings)?;
    let local = Arc::new(Sidecar::trusting(relay.clone(), &roots));
    if once.is_some() {
        // The relays of users are asked over hours.
        settings.sync.outbox.mode = OutboxMode::Off;
        // Short, because a user or a cron job waits.
        settings.sync.engine.discovery_window = DISCOVERY_WINDOW;
        settings.sync.engine.reply_window = DISCOVERY_WINDOW;
        if !local.is_reachable().await {
            bail!("could not connect to {relay}; is the relay running?");
        }
    }
    let listener = bind_status(config.sidecar_listen).await?;
    let metrics = Metrics::default();
    let overview = Overview::of_sidecar(
        &settings,
        relay.clone(),
        Arc::clone(&local),
        metrics.clone(),
    );
    let syncer = start_sync(
        &settings,
        local,
        driver::Clock::system(),
        keys,
        metrics,
        false,
    )
    .await?;
    let syncer = syncer.context("sync did not start")?;
    overview.set_syncer(Some(Arc::clone(&syncer)));
    let status_address = listener
        .as_ref()
        .and_then(|listener| listener.local_addr().ok());
    print_addresses(&relay, &settings, status_address);
    let admin = admin.serve(overview.clone(), None);
    let assets = web::assets(overview.frame());
    let routes = http::routes(overview, settings.metrics).merge(assets);
    let mut tasks = signals::report_ready();
    if let Some(listener) = listener {
        tasks.spawn(http::serve_status(listener, routes));
    }
    let is_complete = run_to_end(&syncer, once, signals).await;
    drop((admin, tasks));
    syncer.stop().await;
    tracing::info!("stopped; what is known about relays is on disk");
    Ok(is_complete)
}

/// Listens at the address of the status pages, if there is one.
async fn bind_status(at: Option<SocketAddr>) -> Result<Option<TcpListener>> {
    let Some(at) = at else { return Ok(None) };
    let listener = TcpListener::bind(at).await;
    let listener = listener.with_context(|| format!("could not listen on {at}"))?;
    Ok(Some(listener))
}

/// Waits for a signal, or for the end of a run within a time limit. Returns whether everything is there, if it ran once.
async fn run_to_end(syncer: &Syncer, once: Option<Duration>, signals: Signals) -> bool {
    let Some(limit) = once else {
        signals.stop_requested().await;
        return true;
    };
    sync_once(syncer, limit, signals).await
}

/// Waits until nothing more is expected soon, for a limited time, and prints the result. Returns whether everything is
/// there.
async fn sync_once(syncer: &Syncer, limit: Duration, signals: Signals) -> bool {
    let began = Instant::now();
    let mut is_stopped = false;
    tokio::select! {
        _ = tokio::time::timeout(limit, syncer.until_complete()) => {}
        () = signals.stop_requested() => is_stopped = true,
    }
    let status = syncer.status().await;
    print_result(&status, began.elapsed());
    status.is_complete() && !is_stopped
}

fn print_result(status: &driver::Status, took: Duration) {
    let relays = status.relays.len();
    let complete = status.relays.values().filter(|relay| relay.is_complete());
    let counts = status.relays.values().map(|relay| relay.counts);
    let new: u64 = counts.map(|counts| counts.stored() + counts.held).sum();
    println!(
        "{} of {} complete, {} in {}",
        complete.count(),
        format_count(relays as u64, "relay", "relays"),
        format_count(new, "new event", "new events"),
        format_duration(took.as_secs())
    );
    for (relay, status) in &status.relays {
        if !status.is_complete() {
            println!("  {relay}: {}", reason_incomplete(status));
        }
    }
}

/// Returns the public address of a relay if none is set: the one that it is connected to.
fn service_of(relay: &RelayUrl) -> Result<ServiceIdentity> {
    let (_, name) = relay
        .as_str()
        .split_once("://")
        .context("not the address of a relay")?;
    name.trim_end_matches('/')
        .parse()
        .context("could not derive the domain from the relay's address; set --domain")
}

fn print_addresses(relay: &RelayUrl, settings: &Settings, status: Option<SocketAddr>) {
    let (data, bootstrap) = (settings.data_dir.display(), &settings.sync.engine.bootstrap);
    let text = format!(
        "grasp {} syncs a relay\n\
         \x20 relay   {}\n\
         \x20 domain  {} (the address in announcements; --domain changes it)\n\
         \x20 from    the relays that announcements name{}\n\
         \x20 data    {data}\n\
         \x20 watch   grasp status --watch --data-dir {data}\n\
         {}\
         \x20 stop    Ctrl-C\n",
        env!("CARGO_PKG_VERSION"),
        relay,
        settings.policy.service,
        bootstrap
            .iter()
            .map(|url| format!(", {url}"))
            .collect::<String>(),
        status.map_or_else(String::new, |at| format!("  status  http://{at}/status\n")),
    );
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_is_the_address_of_the_relay() {
        let name = |url: &str| service_of(&url.parse().unwrap()).unwrap().to_string();
        assert_eq!(name("ws://127.0.0.1:7777"), "127.0.0.1:7777");
        assert_eq!(name("wss://relay.example.com/"), "relay.example.com");
        assert_eq!(
            name("wss://relay.example.com/inbox"),
            "relay.example.com/inbox"
        );
    }
}
