//! `grasp serve`: runs a server until a signal stops it.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use grasp_relay::Clock;
use grasp_relay::instance::admin::AdminSocket;
use grasp_relay::instance::{Server, Settings, TlsSockets, listen, public_address};
use grasp_relay::server::{Listeners, TlsListeners};
use tokio::net::TcpListener;

use crate::block_on;
use crate::config::{Config, Loaded};
use crate::signals::{self, Signals};

/// Runs a server until a signal stops it.
pub(crate) fn run(loaded: Loaded) -> Result<()> {
    loaded.start_log();
    let mut config = loaded.config.clone();
    config.settings.fixed_texts = loaded.fixed_texts();
    block_on(serve_until_stopped(config))
}

async fn serve_until_stopped(config: Config) -> Result<()> {
    let signals = Signals::listen();
    let listener = listen(config.listen).await?;
    let tls = TlsSockets::bind(&config.settings.tls).await?;
    let service = public_address(config.domain.as_ref(), &listener)?;
    let admin = AdminSocket::bind(&config.settings.admin_socket())?;
    let mut settings = config.settings.reached_at(service);
    settings.pages.renderer = own_program();
    let server = Server::open(&settings, Clock::system()).await?;
    let admin = admin.serve(&server);
    print_addresses(&settings, &listening_text(&listener, tls.as_ref()));
    let mut listeners = Listeners::from(listener);
    if let (Some(TlsSockets { https, http }), Some(certificates)) = (tls, server.certificates()) {
        listeners = listeners.with_tls(TlsListeners {
            https,
            http,
            certificates: certificates.clone(),
        });
    }
    let heartbeat = signals::report_ready();
    server.serve(listeners, signals.stop_requested()).await?;
    drop(admin);
    server.close().await?;
    drop(heartbeat);
    tracing::info!("stopped; everything acknowledged is on disk");
    Ok(())
}

/// Returns the addresses that the server listens on, for its operator.
fn listening_text(plain: &TcpListener, tls: Option<&TlsSockets>) -> String {
    let mut text = address_text(plain);
    if let Some(tls) = tls {
        text = format!("{} (TLS), {text}", address_text(&tls.https));
        if let Some(http) = &tls.http {
            text = format!("{text}, {} (redirects to TLS)", address_text(http));
        }
    }
    text
}

fn address_text(listener: &TcpListener) -> String {
    match listener.local_addr() {
        Ok(address) => address.to_string(),
        Err(_) => "an unknown address".into(),
    }
}

/// Returns this program, to be started again for work that needs a process of its own.
fn own_program() -> Option<PathBuf> {
    // Works, too, when a newer version has taken the place of the file.
    let running = PathBuf::from("/proc/self/exe");
    match running.exists() {
        true => Some(running),
        false => std::env::current_exe().ok(),
    }
}

/// Prints the addresses of the server and the next steps. A closed output is no error.
fn print_addresses(settings: &Settings, listen: &str) {
    let service = &settings.policy.service;
    let data = settings.data_dir.display();
    let tls = if settings.git.secure { "s" } else { "" };
    let text = format!(
        "grasp {} is running\n\
         \x20 listen  {listen}\n\
         \x20 relay   ws{tls}://{service}\n\
         \x20 page    http{tls}://{service}/\n\
         \x20 clone   http{tls}://{service}/<npub>/<name>.git\n\
         \x20 data    {data}\n\
         \x20 next    in a working copy: grasp push --server http{tls}://{service}\n\
         \x20 watch   grasp status --watch --data-dir {data}\n\
         \x20 stop    Ctrl-C\n",
        env!("CARGO_PKG_VERSION"),
    );
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}
