//! `grasp serve`: one server until it is told to stop.

use std::io::Write;

use anyhow::{Context, Result};
use grasp_core::ServiceIdentity;
use grasp_relay::Clock;
use tokio::net::TcpListener;

use crate::cli::Serve;
use crate::server::Server;
use crate::settings::Settings;

/// Runs the server until it is told to stop.
pub(crate) fn run(asked: &Serve) -> Result<()> {
    let runtime = tokio::runtime::Runtime::new().context("could not start the runtime")?;
    runtime.block_on(serve_until_told(asked))
}

async fn serve_until_told(asked: &Serve) -> Result<()> {
    let listener = TcpListener::bind(asked.listen)
        .await
        .with_context(|| format!("could not listen on {}", asked.listen))?;
    let service = identity(asked, &listener)?;
    let settings = settings(asked, service);
    let server = Server::open(&settings, Clock::system()).await?;
    welcome(&settings.service);
    server.serve(listener, told_to_stop()).await?;
    server.close().await?;
    tracing::info!("stopped, everything acknowledged is on disk");
    Ok(())
}

fn settings(asked: &Serve, service: ServiceIdentity) -> Settings {
    let mut settings = Settings::new(service, &asked.data_dir);
    settings.store = asked.store;
    settings.maintainers = asked.maintainers.into();
    settings.outbound.allow_private = asked.allow_private_targets;
    settings.sync = settings.sync.filter(|_| !asked.no_sync);
    if let Some(sync) = &mut settings.sync {
        sync.engine.bootstrap = asked.bootstrap.clone();
    }
    asked.hunting.choose(&mut settings);
    settings.hunt = settings.hunt.filter(|_| !asked.no_sync);
    settings
}

/// The address others know us by: the one that was set, or the one we listen on.
fn identity(asked: &Serve, listener: &TcpListener) -> Result<ServiceIdentity> {
    if let Some(domain) = &asked.domain {
        return Ok(domain.clone());
    }
    let address = listener.local_addr().context("could not learn where we listen")?;
    address.to_string().parse().context("could not make an address of where we listen")
}

/// Tells the operator where everything is. Whether anybody reads it makes no difference.
fn welcome(service: &ServiceIdentity) {
    let text = format!(
        "grasp {} is up\n\
         \x20 relay   ws://{service}\n\
         \x20 page    http://{service}/\n\
         \x20 clone   http://{service}/<npub>/<name>.git\n\
         \x20 stop    Ctrl-C\n",
        env!("CARGO_PKG_VERSION")
    );
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}

/// Resolves when the operator or the system asks us to stop; asked twice, the process ends at once.
async fn told_to_stop() {
    signal().await;
    tracing::info!("stopping; once more to stop at once");
    tokio::spawn(async {
        signal().await;
        std::process::exit(130);
    });
}

#[cfg(unix)]
async fn signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut term) = signal(SignalKind::terminate()) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = term.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
}

#[cfg(not(unix))]
async fn signal() {
    let _ = tokio::signal::ctrl_c().await;
}
