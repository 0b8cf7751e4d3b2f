//! `grasp serve`: one server until it is told to stop.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result};
use grasp_core::ServiceIdentity;
use grasp_relay::Clock;
use tokio::net::TcpListener;

use crate::admin::AdminSocket;
use crate::config::{Config, Loaded};
use crate::notify::{self, Stage};
use crate::server::Server;
use crate::settings::Settings;

/// Runs the server until it is told to stop.
pub(crate) fn run(loaded: Loaded) -> Result<()> {
    loaded.config.log.start();
    if let Some(file) = &loaded.file {
        tracing::info!(file = %file.display(), "read the settings");
    }
    for name in &loaded.strangers {
        tracing::warn!(name, "a variable that looks like a setting and is none");
    }
    let runtime = tokio::runtime::Runtime::new().context("could not start the runtime")?;
    runtime.block_on(serve_until_told(loaded.config))
}

async fn serve_until_told(config: Config) -> Result<()> {
    let listener = TcpListener::bind(config.listen)
        .await
        .with_context(|| format!("could not listen on {}", config.listen))?;
    let service = identity(&config, &listener)?;
    let admin = AdminSocket::claim(&config.admin_socket())?;
    let settings = config.settings.reached_at(service);
    let server = Server::open(&settings, Clock::system()).await?;
    let answering = admin.answer(server.overview().clone());
    welcome(&settings);
    notify::tell(Stage::Ready);
    let watchdog = notify::watchdog().map(|pause| tokio::spawn(say_that_we_are_there(pause)));
    server.serve(listener, told_to_stop()).await?;
    drop(answering);
    server.close().await?;
    if let Some(watchdog) = watchdog {
        watchdog.abort();
    }
    tracing::info!("stopped, everything acknowledged is on disk");
    Ok(())
}

async fn say_that_we_are_there(pause: Duration) {
    let mut ticks = tokio::time::interval(pause);
    loop {
        ticks.tick().await;
        notify::tell(Stage::Alive);
    }
}

/// The address others know us by: the one that was set, or the one we listen on.
fn identity(config: &Config, listener: &TcpListener) -> Result<ServiceIdentity> {
    if let Some(domain) = &config.domain {
        return Ok(domain.clone());
    }
    let address = listener.local_addr().context("could not learn where we listen")?;
    address.to_string().parse().context("could not make an address of where we listen")
}

/// Tells the operator where everything is, and what to do next. Whether anybody reads it makes no difference.
fn welcome(settings: &Settings) {
    let service = &settings.service;
    let tls = if settings.git.secure { "s" } else { "" };
    let text = format!(
        "grasp {} is up\n\
         \x20 relay   ws{tls}://{service}\n\
         \x20 page    http{tls}://{service}/\n\
         \x20 clone   http{tls}://{service}/<npub>/<name>.git\n\
         \x20 data    {}\n\
         \x20 next    announce a repository with these addresses, sign its state, push it; the page says how\n\
         \x20 watch   grasp status --watch --data-dir {}\n\
         \x20 stop    Ctrl-C\n",
        env!("CARGO_PKG_VERSION"),
        settings.data_dir.display(),
        settings.data_dir.display(),
    );
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}

/// Resolves when the operator or the system asks us to stop; asked twice, the process ends at once.
async fn told_to_stop() {
    signal().await;
    notify::tell(Stage::Stopping);
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
