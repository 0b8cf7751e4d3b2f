//! TLS of a server: its settings, its listeners, and the task that keeps its certificate.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use grasp_core::outbound::Provenance;
use grasp_sync::driver::Outbound;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use url::Url;

use crate::Clock;
use crate::instance::error::{InstanceError, Result};
use crate::instance::files;
use crate::instance::settings::Settings;
use crate::role::RoleWatch;
use crate::tls::{
    Acme, AcmeClient, CertificateFiles, Certificates, FileTlsStore, TlsStore, keep_files,
};

/// The ACME server that certificates come from, unless another is set: Let's Encrypt.
const DEFAULT_DIRECTORY: &str = "https://acme-v02.api.letsencrypt.org/directory";

/// The ports of `https:` and `http:`.
const HTTPS_PORT: u16 = 443;
const HTTP_PORT: u16 = 80;

/// The directory of account, key and certificate in the data directory.
const TLS_DIR: &str = "tls";

/// Settings of TLS by the server itself.
#[derive(Clone, Debug)]
pub struct TlsSettings {
    /// Where the certificate comes from.
    pub mode: TlsMode,
    /// The address to listen on for TLS; `None` for port 443 of all addresses.
    pub listen: Option<SocketAddr>,
    /// The address that redirects to TLS and answers challenges; `None` for port 80 of all addresses.
    pub http: Option<SocketAddr>,
    /// An address of the operator for the ACME server.
    pub contact: Option<Contact>,
    /// The directory of the ACME server.
    pub directory: Url,
    /// The file with the chain of certificates.
    pub certificate: Option<PathBuf>,
    /// The file with the key.
    pub key: Option<PathBuf>,
}

impl Default for TlsSettings {
    fn default() -> Self {
        Self {
            mode: TlsMode::Off,
            listen: None,
            http: None,
            contact: None,
            directory: Url::parse(DEFAULT_DIRECTORY).expect("the default directory is a URL"),
            certificate: None,
            key: None,
        }
    }
}

/// Where the certificate of a server comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsMode {
    /// A proxy does TLS, or nobody.
    #[default]
    Off,
    /// An ACME server issues it.
    Acme,
    /// It is in files, which somebody else renews.
    Files,
}

/// An address of the operator: `mailto:operator@example.com`, or without the scheme.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contact(String);

impl FromStr for Contact {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let address = text.strip_prefix("mailto:").unwrap_or(text);
        let is_address = address
            .split_once('@')
            .is_some_and(|(name, host)| !name.is_empty() && host.contains('.'));
        if is_address && !address.contains(char::is_whitespace) {
            Ok(Self(format!("mailto:{address}")))
        } else {
            Err("expected an address such as operator@example.com")
        }
    }
}

impl fmt::Display for Contact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TlsSettings {
    /// Returns the addresses to listen on for TLS: the first that the machine has.
    pub(crate) fn tls_addresses(&self) -> Vec<SocketAddr> {
        addresses(self.listen, HTTPS_PORT)
    }

    /// Returns the addresses to listen on for redirects.
    pub(crate) fn http_addresses(&self) -> Vec<SocketAddr> {
        addresses(self.http, HTTP_PORT)
    }
}

/// Returns the address that is set; otherwise all addresses of IPv6 and IPv4, and those of IPv4 for machines without IPv6.
fn addresses(set: Option<SocketAddr>, port: u16) -> Vec<SocketAddr> {
    match set {
        Some(address) => vec![address],
        None => vec![
            (Ipv6Addr::UNSPECIFIED, port).into(),
            (Ipv4Addr::UNSPECIFIED, port).into(),
        ],
    }
}

/// The sockets of TLS, before there is a certificate.
pub struct TlsSockets {
    /// Connections with TLS.
    pub https: TcpListener,
    /// Requests to be redirected to TLS, and challenges, if there is a port for them.
    pub http: Option<TcpListener>,
}

impl TlsSockets {
    /// Listens, if TLS is on. Without port 80 there are neither redirects nor HTTP-01, but TLS-ALPN-01 works: only an
    /// address that is set must be free.
    pub async fn bind(settings: &TlsSettings) -> Result<Option<Self>> {
        if settings.mode == TlsMode::Off {
            return Ok(None);
        }
        let https = bind_first(&settings.tls_addresses())
            .await
            .map_err(|error| listen_error("tls.listen", error))?;
        let http = match bind_first(&settings.http_addresses()).await {
            Ok(listener) => Some(listener),
            Err(error) if settings.http.is_some() => return Err(listen_error("tls.http", error)),
            Err((address, error)) => {
                tracing::warn!(%address, %error, "no redirects to TLS: could not listen");
                None
            }
        };
        Ok(Some(Self { https, http }))
    }
}

async fn bind_first(addresses: &[SocketAddr]) -> Result<TcpListener, (SocketAddr, io::Error)> {
    let mut last = None;
    for address in addresses {
        match TcpListener::bind(address).await {
            Ok(listener) => return Ok(listener),
            Err(error) => last = last.or(Some((*address, error))),
        }
    }
    Err(last.unwrap_or_else(|| {
        let none = SocketAddr::from((Ipv4Addr::UNSPECIFIED, HTTPS_PORT));
        (none, io::ErrorKind::AddrNotAvailable.into())
    }))
}

/// Explains why the server cannot listen for TLS, and what to do.
fn listen_error(key: &str, (address, error): (SocketAddr, io::Error)) -> InstanceError {
    let remedy = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "ports below 1024 need a privilege: run it by its unit, or give it CAP_NET_BIND_SERVICE"
        }
        io::ErrorKind::AddrInUse => "another program does; stop it, or choose another address with",
        _ => "choose another address with",
    };
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            InstanceError::operator(format!("could not listen on {address}: {remedy}"))
        }
        io::ErrorKind::AddrInUse => {
            InstanceError::operator(format!("could not listen on {address}: {remedy} {key}"))
        }
        _ => InstanceError::operator(format!(
            "could not listen on {address}: {error}; {remedy} {key}"
        )),
    }
}

/// Where account and certificate are kept: in the database that nodes share, or in the data directory.
fn store(settings: &Settings, shared: Option<Arc<dyn TlsStore>>) -> Arc<dyn TlsStore> {
    shared.unwrap_or_else(|| Arc::new(FileTlsStore::new(settings.data_dir.join(TLS_DIR))))
}

/// Returns the certificate of a server, which is there once the keeper has found it; `None` without TLS.
pub(super) fn certificates(
    settings: &Settings,
    shared: Option<Arc<dyn TlsStore>>,
) -> Option<Certificates> {
    let domain = settings.policy.service.host();
    match settings.tls.mode {
        TlsMode::Off => None,
        TlsMode::Files => Some(Certificates::of_files(domain)),
        TlsMode::Acme => Some(Certificates::of_store(domain, store(settings, shared))),
    }
}

/// Starts to keep a certificate. The task ends when the set is dropped.
pub(super) fn keep(
    settings: &Settings,
    certificates: Option<Certificates>,
    shared: Option<Arc<dyn TlsStore>>,
    roles: RoleWatch,
    clock: Clock,
) -> Result<JoinSet<()>> {
    let mut keeper = JoinSet::new();
    let (tls, Some(certificates)) = (&settings.tls, certificates) else {
        return Ok(keeper);
    };
    match tls.mode {
        TlsMode::Off => {}
        TlsMode::Files => {
            let files = CertificateFiles {
                certificate: tls
                    .certificate
                    .clone()
                    .ok_or_else(|| InstanceError::operator("tls.certificate is not set"))?,
                key: tls
                    .key
                    .clone()
                    .ok_or_else(|| InstanceError::operator("tls.key is not set"))?,
            };
            keeper.spawn(keep_files(certificates, files));
        }
        TlsMode::Acme => {
            let acme = Acme {
                domain: settings.policy.service.host().to_owned(),
                directory: tls.directory.to_string(),
                contact: tls.contact.as_ref().map(Contact::to_string),
                store: store(settings, shared),
                client: acme_client(settings)?,
                may_order: Arc::new(move || roles.writer().is_some()),
                clock,
            };
            keeper.spawn(acme.keep(certificates));
        }
    }
    Ok(keeper)
}

/// Returns the HTTP client of ACME, which resolves, connects and trusts as sync does. The operator chose the server.
fn acme_client(settings: &Settings) -> Result<AcmeClient> {
    let outbound = Outbound::new(settings.outbound, &files::roots_for_relays(settings)?);
    Ok(Arc::new(move |request| {
        let outbound = outbound.clone();
        Box::pin(async move {
            let host = request.uri().host().unwrap_or_default().to_owned();
            outbound
                .send(request, Provenance::Operator)
                .await
                .map_err(|fault| format!("{host}: {fault}").into())
        })
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contacts_are_mail_addresses() {
        for text in ["operator@example.com", "mailto:operator@example.com"] {
            let contact: Contact = text.parse().unwrap();
            assert_eq!(contact.to_string(), "mailto:operator@example.com");
        }
        for bad in [
            "",
            "operator",
            "@example.com",
            "a b@example.com",
            "operator@host",
        ] {
            assert!(bad.parse::<Contact>().is_err(), "{bad}");
        }
    }
}
