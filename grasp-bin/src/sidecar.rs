//! `grasp sidecar`: syncs a relay of another kind.

use std::io::Write as _;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use grasp_core::RelayUrl;
use grasp_relay::instance::admin::AdminSocket;
use grasp_relay::instance::text::sync_result;
use grasp_relay::instance::{RelaySidecar, Settings};
use grasp_sync::Syncer;
use tokio::net::TcpListener;

use crate::block_on;
use crate::config::{Config, Loaded};
use crate::signals::{self, Signals};

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
        None => RelaySidecar::service_of(&relay)?,
    };
    let admin = AdminSocket::bind(&config.settings.admin_socket())?;
    let settings = config.settings.reached_at(service);
    let listener = bind_status(config.sidecar_listen).await?;
    let sidecar = RelaySidecar::open(&settings, relay.clone(), once.is_some()).await?;
    let status_address = match &listener {
        Some(listener) => listener.local_addr().ok(),
        None => None,
    };
    print_addresses(&relay, &settings, status_address);
    let admin = sidecar.answer(admin);
    let mut tasks = signals::report_ready();
    if let Some(listener) = listener {
        tasks.spawn(sidecar.serve_status(listener));
    }
    let is_complete = run_to_end(sidecar.syncer(), once, signals).await;
    drop((admin, tasks));
    sidecar.close().await;
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
    let all: Vec<_> = status.relays.keys().cloned().collect();
    let counts = status.relays.values().map(|relay| relay.counts);
    let new = counts.map(|counts| counts.stored() + counts.held).sum();
    print!(
        "{}",
        sync_result(&all, &status.relays, new, began.elapsed())
    );
    status.is_complete() && !is_stopped
}

fn print_addresses(relay: &RelayUrl, settings: &Settings, status: Option<SocketAddr>) {
    let data = settings.data_dir.display();
    let bootstrap = &settings.sync.engine.bootstrap;
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
