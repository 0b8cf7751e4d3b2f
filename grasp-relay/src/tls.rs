//! TLS by the server itself: the certificate that is served, where it comes from, and when it is renewed.
//!
//! ```text
//!   files ───────────▶ keep_files ──┐
//!                                   ├──▶ Certificates ──▶ handshakes, redirects, status
//!   ACME server ◀──▶ Acme ──────────┘         │
//!                     │ ▲                     │ challenges
//!                     ▼ │                     ▼
//!                   TlsStore: a directory, or the database that all nodes share
//! ```
//!
//! When to order, renew and back off is decided by the module `schedule`, which is pure. There is never a self-signed
//! certificate: without one, handshakes fail, and plain HTTP answers 503 with the reason.

mod acme;
mod certificate;
mod challenge;
mod files;
mod redirect;
mod schedule;
mod storage;

use std::fmt;
use std::io;
use std::net::Ipv4Addr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use grasp_core::ServiceIdentity;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::server::Acceptor;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{LazyConfigAcceptor, StartHandshake};

pub use self::acme::{Acme, AcmeClient, AcmeClientError, MayOrder};
pub use self::certificate::{Certificate, CertificateError, Validity};
use self::challenge::{ACME_TLS, ChallengeReader};
pub use self::files::{CertificateFiles, keep_files};
pub(crate) use self::redirect::redirect_routes;
pub use self::storage::{FileTlsStore, TlsItem, TlsStore, TlsStoreError};

/// The time that a client may take for its handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The name of HTTP/2 in a handshake.
pub(crate) const HTTP2: &[u8] = b"h2";

/// The protocols that a client can choose from, the preferred one first.
const PROTOCOLS: [&[u8]; 2] = [HTTP2, b"http/1.1"];

/// The certificate that is served, if there is one. Clones share it.
#[derive(Clone)]
pub struct Certificates(Arc<CertificateCell>);

struct CertificateCell {
    /// The host name of the server.
    domain: String,
    state: RwLock<CertificateState>,
    challenges: Option<ChallengeReader>,
}

#[derive(Default)]
struct CertificateState {
    serving: Option<Serving>,
    problem: Option<String>,
}

struct Serving {
    certificate: Arc<Certificate>,
    config: Arc<ServerConfig>,
}

/// What is known about the certificate of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificateStatus {
    /// The time for which the certificate is valid; `None` without one.
    pub validity: Option<Validity>,
    /// The certificate is for the host name of the server.
    pub covers_domain: bool,
    /// The reason why there is none, or why it was not renewed.
    pub problem: Option<String>,
}

impl CertificateStatus {
    /// Returns whether an operator has to act: there is no certificate, it is for other names than that of the server, or
    /// less than a sixth of its lifetime is left.
    pub fn is_degraded(&self, now: u64) -> bool {
        let Some(validity) = self.validity else {
            return true;
        };
        !self.covers_domain || validity.left(now) < validity.lifetime() / 6
    }
}

impl Certificates {
    /// Creates it without a certificate, for a server of this host name whose certificate comes from files.
    pub fn of_files(domain: &str) -> Self {
        Self::with_challenges(domain, None)
    }

    /// Creates it without a certificate, for a server of this host name that gets one by ACME. Challenges are read from
    /// this store, so that any node that shares it answers them.
    pub fn of_store(domain: &str, store: Arc<dyn TlsStore>) -> Self {
        Self::with_challenges(domain, Some(ChallengeReader::new(store)))
    }

    fn with_challenges(domain: &str, challenges: Option<ChallengeReader>) -> Self {
        Self(Arc::new(CertificateCell {
            domain: domain.to_owned(),
            state: RwLock::default(),
            challenges,
        }))
    }

    /// Serves this certificate from the next handshake on. Open connections keep theirs.
    fn install(&self, certificate: Certificate) {
        let mut config = certificate.server_config();
        config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).into();
        let mut state = self.0.state.write().unwrap_or_else(PoisonError::into_inner);
        state.serving = Some(Serving {
            certificate: Arc::new(certificate),
            config: Arc::new(config),
        });
        state.problem = None;
    }

    /// Records why there is no certificate, or no new one.
    fn set_problem(&self, problem: Option<String>) {
        let mut state = self.0.state.write().unwrap_or_else(PoisonError::into_inner);
        state.problem = problem;
    }

    /// Returns the certificate that is served.
    pub fn current(&self) -> Option<Arc<Certificate>> {
        let state = self.0.state.read().unwrap_or_else(PoisonError::into_inner);
        Some(Arc::clone(&state.serving.as_ref()?.certificate))
    }

    /// Returns what is known about the certificate.
    pub fn status(&self) -> CertificateStatus {
        let state = self.0.state.read().unwrap_or_else(PoisonError::into_inner);
        let certificate = state.serving.as_ref().map(|serving| &serving.certificate);
        CertificateStatus {
            validity: certificate.map(|certificate| certificate.validity()),
            covers_domain: certificate.is_some_and(|it| it.covers(&self.0.domain)),
            problem: state.problem.clone(),
        }
    }

    fn config(&self) -> Option<Arc<ServerConfig>> {
        let state = self.0.state.read().unwrap_or_else(PoisonError::into_inner);
        Some(Arc::clone(&state.serving.as_ref()?.config))
    }

    /// Performs the handshake of a connection; `None` if the connection was a challenge (TLS-ALPN-01) and is over.
    pub(crate) async fn accept<S>(&self, stream: S) -> io::Result<Option<TlsStream<S>>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        tokio::time::timeout(HANDSHAKE_TIMEOUT, self.handshake(stream)).await?
    }

    async fn handshake<S>(&self, stream: S) -> io::Result<Option<TlsStream<S>>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let started = LazyConfigAcceptor::new(Acceptor::default(), stream).await?;
        if asks_for_challenge(&started) {
            let name = started.client_hello().server_name().map(str::to_owned);
            let config = self.challenge_config(name).await?;
            let mut stream = started.into_stream(config).await?;
            stream.shutdown().await?;
            return Ok(None);
        }
        let config = self
            .config()
            .ok_or_else(|| io::Error::other("there is no certificate"))?;
        Ok(Some(started.into_stream(config).await?))
    }

    async fn challenge_config(&self, name: Option<String>) -> io::Result<Arc<ServerConfig>> {
        let pending = match (&self.0.challenges, name) {
            (Some(challenges), Some(name)) => challenges.of_domain(&name).await,
            _ => None,
        };
        let pending = pending.ok_or_else(|| io::Error::other("no challenge is pending"))?;
        pending
            .server_config()
            .map(Arc::new)
            .map_err(io::Error::other)
    }

    /// Returns the answer to an HTTP-01 challenge, if it is pending.
    async fn answer(&self, token: &str) -> Option<String> {
        self.0.challenges.as_ref()?.answer(token).await
    }
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Certificates").field(&self.status()).finish()
    }
}

fn asks_for_challenge<S: AsyncRead + AsyncWrite + Unpin>(started: &StartHandshake<S>) -> bool {
    let hello = started.client_hello();
    hello
        .alpn()
        .is_some_and(|mut protocols| protocols.any(|protocol| protocol == ACME_TLS))
}

/// Returns whether a public certificate can be ordered for a server: for a domain name of the public DNS.
pub fn can_be_ordered(service: &ServiceIdentity) -> bool {
    let name = service.host();
    let is_address = name.starts_with('[') || name.parse::<Ipv4Addr>().is_ok();
    name.contains('.') && !name.ends_with(".onion") && !is_address
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    fn status(not_after: u64) -> CertificateStatus {
        let validity = Validity {
            not_before: 0,
            not_after,
        };
        CertificateStatus {
            validity: Some(validity),
            covers_domain: true,
            problem: None,
        }
    }

    #[test]
    fn a_certificate_needs_looking_after_below_a_sixth_of_its_lifetime() {
        assert!(!status(600).is_degraded(500));
        assert!(status(600).is_degraded(501));
        assert!(CertificateStatus::default().is_degraded(0), "there is none");
        let of_another = CertificateStatus {
            covers_domain: false,
            ..status(600)
        };
        assert!(of_another.is_degraded(0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_says_nothing_is_left_after_ten_seconds() {
        let certificates = Certificates::of_files("git.example.com");
        let (_silent, stream) = tokio::io::duplex(64);
        let began = Instant::now();
        let failure = certificates.accept(stream).await.err().unwrap();
        assert_eq!(failure.kind(), io::ErrorKind::TimedOut);
        assert_eq!(began.elapsed(), Duration::from_secs(10));
    }
}
