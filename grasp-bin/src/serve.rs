//! `grasp serve`: runs a server until a signal stops it.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, Error, Result, anyhow};
use grasp_core::ServiceIdentity;
use grasp_relay::Clock;
use grasp_relay::server::{Listeners, TlsListeners};
use tokio::net::TcpListener;

use crate::admin::AdminSocket;
use crate::block_on;
use crate::config::{Config, Loaded};
use crate::files;
use crate::server::Server;
use crate::server::tls::TlsSockets;
use crate::settings::Settings;
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
    let listener = TcpListener::bind(config.listen)
        .await
        .map_err(|error| listen_error(config.listen, &error))?;
    let tls = TlsSockets::bind(&config.settings.tls).await?;
    let service = public_address(&config, &listener)?;
    let admin = AdminSocket::bind(&config.admin_socket())?;
    let mut settings = config.settings.reached_at(service);
    settings.pages.renderer = own_program();
    settings.pages.branding.icon = files::page_icon(&settings)?;
    let server = Server::open(&settings, Clock::system()).await?;
    let admin = admin.serve(server.overview().clone(), Some(server.management().clone()));
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

/// Explains why the server cannot listen on an address, and what to do.
fn listen_error(listen: SocketAddr, error: &io::Error) -> Error {
    let why = match error.kind() {
        io::ErrorKind::AddrInUse => {
            "another program does; stop it, or choose another address with --listen"
        }
        io::ErrorKind::AddrNotAvailable => {
            "this machine does not have that address; choose another with --listen"
        }
        io::ErrorKind::PermissionDenied => {
            "ports below 1024 need a privilege; choose another with --listen, behind a proxy"
        }
        _ => return anyhow!("could not listen on {listen}: {error}"),
    };
    anyhow!("could not listen on {listen}: {why}")
}

/// Returns the public address: the one that is set, or the one that the server listens on.
fn public_address(config: &Config, listener: &TcpListener) -> Result<ServiceIdentity> {
    if let Some(domain) = &config.domain {
        return Ok(domain.clone());
    }
    let address = listener
        .local_addr()
        .context("could not read the address of the listener")?;
    if let Some(warning) = unspecified_address_warning(address) {
        tracing::warn!("{warning}");
    }
    address
        .to_string()
        .parse()
        .context("the address of the listener is not usable as --domain")
}

/// Warns about an address that means all addresses of the machine, and that no client can connect to.
fn unspecified_address_warning(address: SocketAddr) -> Option<String> {
    address.ip().is_unspecified().then(|| {
        format!(
            "no domain is set: announcements would have to list {address}, which no client can connect to; set --domain"
        )
    })
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
    let (service, data) = (&settings.policy.service, settings.data_dir.display());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listening_on_all_addresses_without_a_domain_is_warned_about() {
        let warned =
            |address: &str| unspecified_address_warning(address.parse().unwrap()).is_some();
        assert!(warned("0.0.0.0:7334") && warned("[::]:7334"));
        assert!(!warned("127.0.0.1:7334") && !warned("192.0.2.1:7334"));
    }

    #[test]
    fn listen_errors_name_a_remedy() {
        let error_text = |kind: io::ErrorKind| {
            listen_error("127.0.0.1:80".parse().unwrap(), &kind.into()).to_string()
        };
        for kind in [
            io::ErrorKind::AddrInUse,
            io::ErrorKind::AddrNotAvailable,
            io::ErrorKind::PermissionDenied,
        ] {
            let text = error_text(kind);
            assert!(
                text.contains("127.0.0.1:80: ") && text.contains("with --listen"),
                "{text}"
            );
        }
    }
}
