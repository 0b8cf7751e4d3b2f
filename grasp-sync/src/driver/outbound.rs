//! Outbound connections: every dial of this crate is resolved, checked against the policy and made here.
//!
//! ```text
//!   relay URL ──▶ check the name ──▶ resolve once ──▶ check every address ──▶ Route
//!   Route ──▶ TCP to exactly those addresses ──▶ TLS under the URL's own name ──▶ websocket, NIP-11
//! ```
//!
//! Nothing is resolved again between the check and the dial, so no DNS answer can lead elsewhere. Redirects are not
//! followed and proxies of the environment are not used.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use grasp_core::RelayUrl;
use grasp_core::outbound::{OutboundPolicy, Provenance};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{self, CertificateError};
use url::Url;

use super::roots::Roots;
use crate::engine::{Fault, Flaw};

const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const TLS_TIMEOUT: Duration = Duration::from_secs(10);
/// Addresses of one name that are tried.
const MAX_ADDRESSES: usize = 4;

/// A stream of bytes, encrypted or not.
pub(crate) trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// A connection on which nothing has been sent yet.
pub(crate) type Wire = Box<dyn ByteStream>;

/// Resolves and checks addresses for every dial.
#[derive(Clone)]
pub(crate) struct Outbound {
    policy: OutboundPolicy,
    tls: TlsConnector,
}

/// The checked addresses of a relay, to be dialled as they are.
#[derive(Clone)]
pub(crate) struct Route {
    addresses: Vec<SocketAddr>,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

impl Outbound {
    /// Creates it with a policy and the trusted certificate authorities.
    pub(crate) fn new(policy: OutboundPolicy, roots: &Roots) -> Self {
        Self { policy, tls: roots.connector() }
    }

    /// Resolves a relay's address, and checks it against the policy.
    pub(crate) async fn route(&self, relay: &RelayUrl, from: Provenance) -> Result<Route, Fault> {
        let host = relay.host();
        self.policy.judge_host(from, &host).map_err(|_| Fault::Forbidden)?;
        let port = Url::parse(relay.as_str()).ok().and_then(|url| url.port_or_known_default());
        let port = port.ok_or(Fault::NoSuchHost)?;
        let found = resolve(host.name(), port).await?;
        let may = |at: &SocketAddr| self.policy.judge_address(from, at.ip()).is_ok();
        let addresses: Vec<_> = found.into_iter().filter(may).take(MAX_ADDRESSES).collect();
        if addresses.is_empty() {
            return Err(Fault::Forbidden);
        }
        let tls = relay.is_secure().then(|| {
            let name = ServerName::try_from(host.name().to_owned()).map_err(|_| Fault::Tls)?;
            Ok((self.tls.clone(), name))
        });
        Ok(Route { addresses, tls: tls.transpose()? })
    }
}

impl Route {
    /// Connects to the first of the addresses that answers, and tells which that is.
    pub(crate) async fn connect(&self) -> Result<(Wire, IpAddr), Fault> {
        let (stream, address) = self.reach().await.ok_or(Fault::Unreachable)?;
        // Requests are small and answers are waited for.
        let _ = stream.set_nodelay(true);
        let Some((tls, name)) = &self.tls else {
            return Ok((Box::new(stream), address));
        };
        match timeout(TLS_TIMEOUT, tls.connect(name.clone(), stream)).await {
            Ok(Ok(stream)) => Ok((Box::new(stream), address)),
            Ok(Err(error)) => Err(tls_fault(&error)),
            Err(_) => Err(Fault::Unreachable),
        }
    }

    async fn reach(&self) -> Option<(TcpStream, IpAddr)> {
        for address in &self.addresses {
            if let Ok(Ok(stream)) = timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
                return Some((stream, address.ip()));
            }
        }
        None
    }
}

async fn resolve(name: &str, port: u16) -> Result<Vec<SocketAddr>, Fault> {
    if let Ok(address) = name.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    match timeout(RESOLVE_TIMEOUT, lookup_host((name, port))).await {
        Ok(Ok(found)) => Ok(found.collect()),
        Ok(Err(error)) => Err(resolve_fault(&error)),
        Err(_) => Err(Fault::Unreachable),
    }
}

/// Distinguishes a name that does not exist from a resolver that did not answer. The system reports it only as text.
fn resolve_fault(error: &io::Error) -> Fault {
    let text = error.to_string();
    let is_missing = ["not known", "No address associated", "does not resolve", "No such host"];
    match is_missing.iter().any(|words| text.contains(words)) {
        true => Fault::NoSuchHost,
        false => Fault::Unreachable,
    }
}

/// Distinguishes a bad certificate from a failed handshake, and both from a lost connection.
fn tls_fault(error: &io::Error) -> Fault {
    let Some(said) = error.get_ref().and_then(|inner| inner.downcast_ref()) else {
        return Fault::Unreachable;
    };
    let rustls::Error::InvalidCertificate(why) = said else { return Fault::Tls };
    Fault::Certificate(match why {
        CertificateError::UnknownIssuer => Flaw::Untrusted,
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            Flaw::OtherName
        }
        CertificateError::Expired
        | CertificateError::ExpiredContext { .. }
        | CertificateError::NotValidYet
        | CertificateError::NotValidYetContext { .. } => Flaw::OutOfDate,
        _ => Flaw::Invalid,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn route(url: &str, from: Provenance) -> Result<Vec<SocketAddr>, Fault> {
        let outbound = Outbound::new(OutboundPolicy::default(), &Roots::default());
        let route = outbound.route(&url.parse().unwrap(), from).await?;
        Ok(route.addresses)
    }

    #[tokio::test]
    async fn untrusted_names_lead_to_no_private_address() {
        for url in ["ws://127.0.0.1:1", "wss://[::1]", "ws://localhost", "ws://10.0.0.1/x"] {
            assert_eq!(route(url, Provenance::Stranger).await, Err(Fault::Forbidden), "{url}");
        }
    }

    #[tokio::test]
    async fn operator_names_may_be_private_and_default_ports_apply() {
        let to = |text: &str| Ok(vec![text.parse().unwrap()]);
        for (url, address) in [
            ("ws://127.0.0.1:7334", "127.0.0.1:7334"),
            ("ws://127.0.0.1", "127.0.0.1:80"),
            ("wss://[::1]", "[::1]:443"),
        ] {
            assert_eq!(route(url, Provenance::Operator).await, to(address), "{url}");
        }
    }

    #[test]
    fn a_silent_resolver_is_not_a_missing_name() {
        let said = |text: &str| resolve_fault(&io::Error::other(text));
        let prefix = "failed to lookup address information:";
        assert_eq!(said(&format!("{prefix} Name or service not known")), Fault::NoSuchHost);
        assert_eq!(
            said(&format!("{prefix} Temporary failure in name resolution")),
            Fault::Unreachable
        );
    }
}
