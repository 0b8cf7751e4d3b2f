//! The address that a server listens on, and the public one.

use std::io;
use std::net::SocketAddr;

use grasp_core::ServiceIdentity;
use tokio::net::TcpListener;

use super::error::{Explain as _, InstanceError, Result};

/// Listens on an address. An error names a remedy.
pub async fn listen(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .map_err(|error| listen_error(address, &error))
}

/// Explains why the server cannot listen on an address, and what to do.
fn listen_error(listen: SocketAddr, error: &io::Error) -> InstanceError {
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
        _ => return InstanceError::machine(format!("could not listen on {listen}: {error}")),
    };
    InstanceError::operator(format!("could not listen on {listen}: {why}"))
}

/// Returns the public address: the one that is set, or the one that the server listens on.
pub fn public_address(
    domain: Option<&ServiceIdentity>,
    listener: &TcpListener,
) -> Result<ServiceIdentity> {
    if let Some(domain) = domain {
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
