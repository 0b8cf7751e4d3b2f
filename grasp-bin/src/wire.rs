//! One HTTP request to a server, with an error for each step: resolve, connect, TLS, request.

use std::time::{Duration, SystemTime};

use axum::body::{Body, to_bytes};
use grasp_sync::Roots;
use hyper::Request;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, DATE, HOST};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;

/// Limits the time of each step.
const STEP_TIMEOUT: Duration = Duration::from_secs(5);

const MAX_BODY_BYTES: usize = 256 * 1024;

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) host: String,
    pub(crate) port: u16,
    /// Uses TLS.
    pub(crate) secure: bool,
    pub(crate) path: String,
}

/// A connection before its first request.
pub(crate) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// The response to a request.
pub(crate) struct Reply {
    pub(crate) status: u16,
    /// Web pages of any origin may read it.
    pub(crate) shared: bool,
    /// Seconds that the server's clock is ahead of ours.
    pub(crate) ahead: Option<i64>,
    pub(crate) body: String,
}

/// The step that failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WireError {
    #[error("its name cannot be resolved: {0}")]
    Name(String),
    #[error("it cannot be connected to: {0}")]
    Connect(String),
    #[error("TLS failed: {0}")]
    Tls(String),
    #[error("it does not answer an HTTP request: {0}")]
    Http(String),
}

impl WireError {
    /// Returns a remedy for the operator.
    pub(crate) fn remedy(&self) -> &'static str {
        match self {
            Self::Name(_) => "check /etc/resolv.conf and the spelling",
            Self::Connect(_) => "check the firewall, the proxy and whether the server runs",
            Self::Tls(_) => "check the certificate, its chain and this machine's clock",
            Self::Http(_) => "check which program serves that address",
        }
    }
}

impl Place {
    /// Parses a `ws://`, `wss://`, `http://` or `https://` address.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (scheme, rest) = text.split_once("://")?;
        let secure = matches!(scheme, "wss" | "https");
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let numbered = authority.rsplit_once(':').filter(|(_, port)| !port.ends_with(']'));
        let (host, port) = match numbered {
            Some((host, port)) => (host, port.parse().ok()?),
            None => (authority, if secure { 443 } else { 80 }),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        (!host.is_empty()).then(|| Self { host, port, secure, path: format!("/{path}") })
    }

    /// Connects; a certificate must be signed by one of the trusted roots.
    pub(crate) async fn connect(&self, roots: &Roots) -> Result<Stream, WireError> {
        let address = (self.host.as_str(), self.port);
        let found = within(lookup_host(address)).await.map_err(WireError::Name)?;
        let addresses: Vec<_> = found.collect();
        let stream =
            within(TcpStream::connect(&addresses[..])).await.map_err(WireError::Connect)?;
        if !self.secure {
            return Ok(Stream::Plain(stream));
        }
        let name = ServerName::try_from(self.host.clone());
        let name = name.map_err(|error| WireError::Tls(error.to_string()))?;
        let stream =
            within(roots.connector().connect(name, stream)).await.map_err(WireError::Tls)?;
        Ok(Stream::Tls(Box::new(stream)))
    }

    /// Requests the NIP-11 document.
    pub(crate) async fn ask(&self, roots: &Roots) -> Result<Reply, WireError> {
        match self.connect(roots).await? {
            Stream::Plain(stream) => within(self.request(stream)).await,
            Stream::Tls(stream) => within(self.request(*stream)).await,
        }
        .map_err(WireError::Http)
    }

    async fn request(
        &self,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    ) -> anyhow::Result<Reply> {
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let request = Request::get(&self.path)
            .header(HOST, format!("{}:{}", self.host, self.port))
            .header(ACCEPT, "application/nostr+json")
            .body(Body::empty())?;
        let response = sender.send_request(request).await?;
        let header = |name: &str| response.headers().get(name)?.to_str().ok();
        let (status, shared) =
            (response.status().as_u16(), header("access-control-allow-origin") == Some("*"));
        let ahead = header(DATE.as_str()).and_then(seconds_ahead);
        let body = to_bytes(Body::new(response.into_body()), MAX_BODY_BYTES).await?;
        let body = String::from_utf8_lossy(&body).into_owned();
        Ok(Reply { status, shared, ahead, body })
    }
}

/// Runs a step with a timeout; returns the reason if it fails.
async fn within<T, E: std::fmt::Display>(
    step: impl Future<Output = Result<T, E>>,
) -> Result<T, String> {
    match timeout(STEP_TIMEOUT, step).await {
        Ok(done) => done.map_err(|error| error.to_string()),
        Err(_) => Err(format!("timed out after {} seconds", STEP_TIMEOUT.as_secs())),
    }
}

/// Returns the seconds that an HTTP date is ahead of our clock.
fn seconds_ahead(date: &str) -> Option<i64> {
    let (theirs, ours) = (httpdate::parse_http_date(date).ok()?, SystemTime::now());
    let seconds = |length: Duration| i64::try_from(length.as_secs()).ok();
    match theirs.duration_since(ours) {
        Ok(ahead) => seconds(ahead),
        Err(behind) => seconds(behind.duration()).map(|behind| -behind),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed() {
        let place = |text| Place::parse(text).map(|p| (p.host, p.port, p.secure, p.path));
        assert_eq!(place("wss://a.example"), Some(("a.example".into(), 443, true, "/".into())));
        assert_eq!(
            place("ws://a.example:7/x/y"),
            Some(("a.example".into(), 7, false, "/x/y".into()))
        );
        assert_eq!(place("http://[::1]:80/"), Some(("::1".into(), 80, false, "/".into())));
        assert_eq!(place("https://[::1]"), Some(("::1".into(), 443, true, "/".into())));
        assert_eq!(place("nothing"), None);
    }

    #[test]
    fn http_dates_are_compared_with_our_clock() {
        let now = SystemTime::now();
        let ahead = |date: SystemTime| seconds_ahead(&httpdate::fmt_http_date(date)).unwrap();
        assert!((3_590..=3_600).contains(&ahead(now + Duration::from_secs(3_600))));
        assert!((-3_610..=-3_600).contains(&ahead(now - Duration::from_secs(3_600))));
        for nonsense in ["yesterday", "Sun, 06 Nov 9223372036854775807 08:49:37 GMT", ""] {
            assert_eq!(seconds_ahead(nonsense), None);
        }
    }
}
