//! `grasp serve`: one server until it is told to stop.

use std::io::{self, Write};
use std::net::SocketAddr;

use anyhow::{Context, Error, Result, anyhow};
use grasp_core::ServiceIdentity;
use grasp_relay::Clock;
use tokio::net::TcpListener;

use crate::admin::AdminSocket;
use crate::config::{Config, Loaded};
use crate::notify;
use crate::server::Server;
use crate::settings::Settings;
use crate::signals::Signals;

/// Runs the server until it is told to stop.
pub(crate) fn run(loaded: Loaded) -> Result<()> {
    loaded.start_log();
    let runtime = tokio::runtime::Runtime::new().context("could not start the runtime")?;
    runtime.block_on(serve_until_told(loaded.config))
}

async fn serve_until_told(config: Config) -> Result<()> {
    let signals = Signals::listen();
    let listener = TcpListener::bind(config.listen)
        .await
        .map_err(|error| not_listening(config.listen, &error))?;
    let service = identity(&config, &listener)?;
    let admin = AdminSocket::claim(&config.admin_socket())?;
    let settings = config.settings.reached_at(service);
    let server = Server::open(&settings, Clock::system()).await?;
    let answering = admin.answer(server.overview().clone());
    welcome(&settings, listener.local_addr().unwrap_or(config.listen));
    let heartbeat = notify::ready();
    server.serve(listener, signals.told_to_stop()).await?;
    drop(answering);
    server.close().await?;
    drop(heartbeat);
    tracing::info!("stopped, everything acknowledged is on disk");
    Ok(())
}

/// Why nobody could be heard at an address, and what to do about it.
fn not_listening(listen: SocketAddr, error: &io::Error) -> Error {
    let why = match error.kind() {
        io::ErrorKind::AddrInUse => "another program does; stop it, or say another --listen",
        io::ErrorKind::AddrNotAvailable => "this machine has no such address; say another --listen",
        io::ErrorKind::PermissionDenied => {
            "ports below 1024 are not for everybody; say another --listen, with a proxy in front"
        }
        _ => return anyhow!("could not listen on {listen}: {error}"),
    };
    anyhow!("could not listen on {listen}: {why}")
}

/// The address others know us by: the one that was set, or the one we listen on.
fn identity(config: &Config, listener: &TcpListener) -> Result<ServiceIdentity> {
    if let Some(domain) = &config.domain {
        return Ok(domain.clone());
    }
    let address = listener.local_addr().context("could not learn where we listen")?;
    if let Some(warning) = goes_nowhere(address) {
        tracing::warn!("{warning}");
    }
    address.to_string().parse().context("could not make an address of where we listen")
}

/// What to say of an address that is every one of this machine's, and none that others could list.
fn goes_nowhere(address: SocketAddr) -> Option<String> {
    address.ip().is_unspecified().then(|| {
        format!(
            "no domain is set: repositories would have to list {address}, which leads nobody here; say --domain"
        )
    })
}

/// Tells the operator where everything is, and what to do next. Whether anybody reads it makes no difference.
fn welcome(settings: &Settings, listen: SocketAddr) {
    let (service, data) = (&settings.service, settings.data_dir.display());
    let tls = if settings.git.secure { "s" } else { "" };
    let text = format!(
        "grasp {} is up\n\
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
    fn to_listen_everywhere_without_a_domain_is_worth_a_warning() {
        let warned = |address: &str| goes_nowhere(address.parse().unwrap()).is_some();
        assert!(warned("0.0.0.0:7334") && warned("[::]:7334"));
        assert!(!warned("127.0.0.1:7334") && !warned("192.0.2.1:7334"));
    }

    #[test]
    fn whoever_cannot_listen_is_told_what_to_do() {
        let said = |kind: io::ErrorKind| {
            not_listening("127.0.0.1:80".parse().unwrap(), &kind.into()).to_string()
        };
        for kind in [
            io::ErrorKind::AddrInUse,
            io::ErrorKind::AddrNotAvailable,
            io::ErrorKind::PermissionDenied,
        ] {
            let said = said(kind);
            assert!(
                said.contains("127.0.0.1:80: ") && said.contains("say another --listen"),
                "{said}"
            );
        }
    }
}
