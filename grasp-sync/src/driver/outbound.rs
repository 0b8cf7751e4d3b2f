//! Outbound connections: every dial of this project is resolved, checked against the policy and made here.
//!
//! ```text
//!   relay URL ──▶ check the name ──▶ resolve once ──▶ check every address ──▶ Route
//!   Route ──▶ TCP to exactly those addresses ──▶ TLS under the URL's own name ──▶ websocket, NIP-11
//! ```
//!
//! Nothing is resolved again between the check and the dial, so no DNS answer can lead elsewhere. Redirects are not
//! followed and proxies of the environment are not used.

use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use grasp_core::nostr::key::PublicKey;
use grasp_core::outbound::{OutboundPolicy, Provenance};
use grasp_core::{CloneUrl, Host, RelayUrl};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, HOST, HeaderValue, USER_AGENT};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::Map;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{self, CertificateError, ClientConfig, RootCertStore};
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::error::ProtocolError;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{self, Error as WsError};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};
use url::Url;

use super::Limits;
use crate::engine::{Fault, Flaw, RelayFacts};

const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const TLS_TIMEOUT: Duration = Duration::from_secs(10);
/// Time from an HTTP request to the last byte of its answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Time from any other HTTP request to the last byte of its answer.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest document that is read.
const MAX_DOCUMENT_BYTES: usize = 256 * 1024;
/// Our name to other servers.
const USER_AGENT_NAME: &str = concat!("grasp-sync/", env!("CARGO_PKG_VERSION"));
/// Addresses of one name that are tried.
const MAX_ADDRESSES: usize = 4;

/// The trusted certificate authorities: the public ones, which are compiled in, and those that the operator adds. No
/// store of the system is used.
///
/// ```
/// # fn load() -> Result<(), Box<dyn std::error::Error>> {
/// use grasp_sync::{Roots, Settings};
///
/// let mut settings = Settings::new("us.example".parse()?);
/// settings.roots = Roots::default().with(&std::fs::read("/etc/grasp/our-authority.pem")?)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Roots(Arc<RootCertStore>);

/// The reason why a text adds no certificate authority.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadRoots {
    /// It is no PEM, or none with certificates.
    #[error("there is no certificate in it; one in PEM begins with -----BEGIN CERTIFICATE-----")]
    NoCertificate,
    /// One of the certificates cannot be read; counted from 1.
    #[error("certificate {number} in it cannot be read: {why}")]
    Unreadable {
        /// The position of the certificate.
        number: usize,
        /// The parser's message.
        why: String,
    },
}

impl Default for Roots {
    fn default() -> Self {
        Self(Arc::new(RootCertStore {
            roots: webpki_roots::TLS_SERVER_ROOTS.to_vec(),
        }))
    }
}

impl Roots {
    /// Adds all certificates of a PEM file. A certificate that cannot be read is an error, since its absence would be
    /// noticed much later.
    pub fn with(mut self, pem: &[u8]) -> Result<Self, BadRoots> {
        let store = Arc::make_mut(&mut self.0);
        let mut number = 0;
        for certificate in CertificateDer::pem_slice_iter(pem) {
            number += 1;
            let unreadable = |why: String| BadRoots::Unreadable { number, why };
            let certificate = certificate.map_err(|error| unreadable(error.to_string()))?;
            store
                .add(certificate)
                .map_err(|error| unreadable(error.to_string()))?;
        }
        if number == 0 {
            Err(BadRoots::NoCertificate)
        } else {
            Ok(self)
        }
    }

    /// Returns a connector that accepts only certificates issued by one of the roots.
    fn connector(&self) -> TlsConnector {
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring has ciphers for every version of TLS")
            .with_root_certificates(Arc::clone(&self.0))
            .with_no_client_auth();
        TlsConnector::from(Arc::new(config))
    }
}

/// A stream of bytes, encrypted or not.
pub(crate) trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// A connection on which nothing has been sent yet.
pub(crate) type Wire = Box<dyn ByteStream>;

/// A websocket to a relay.
pub(crate) type Socket = WebSocketStream<Wire>;

/// Resolves and checks addresses for every dial.
#[derive(Clone)]
pub struct Outbound {
    policy: OutboundPolicy,
    tls: TlsConnector,
}

/// The checked addresses of a relay, to be dialled as they are.
#[derive(Clone)]
pub(crate) struct CheckedRoute {
    addresses: Vec<SocketAddr>,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

impl Outbound {
    /// Creates it with a policy and the trusted certificate authorities.
    pub fn new(policy: OutboundPolicy, roots: &Roots) -> Self {
        Self {
            policy,
            tls: roots.connector(),
        }
    }

    /// Resolves a relay's address, and checks it against the policy.
    pub(crate) async fn route(
        &self,
        relay: &RelayUrl,
        from: Provenance,
    ) -> Result<CheckedRoute, Fault> {
        let url = Url::parse(relay.as_str()).map_err(|_| Fault::NoSuchHost)?;
        self.route_to(&url, &relay.host(), relay.is_secure(), from)
            .await
    }

    async fn route_to(
        &self,
        url: &Url,
        host: &Host,
        is_secure: bool,
        from: Provenance,
    ) -> Result<CheckedRoute, Fault> {
        self.policy
            .judge_host(from, host)
            .map_err(|_| Fault::Forbidden)?;
        let port = url.port_or_known_default().ok_or(Fault::NoSuchHost)?;
        let found = resolve(host.name(), port).await?;
        let may = |at: &SocketAddr| self.policy.judge_address(from, at.ip()).is_ok();
        let addresses: Vec<_> = found.into_iter().filter(may).take(MAX_ADDRESSES).collect();
        if addresses.is_empty() {
            return Err(Fault::Forbidden);
        }
        let tls = is_secure.then(|| {
            let name = ServerName::try_from(host.name().to_owned()).map_err(|_| Fault::Tls)?;
            Ok((self.tls.clone(), name))
        });
        Ok(CheckedRoute {
            addresses,
            tls: tls.transpose()?,
        })
    }

    /// Returns a server's answer to a request for its NIP-11 document, whatever its status.
    pub async fn get(&self, relay: &RelayUrl, from: Provenance) -> Result<Response<Bytes>, Fault> {
        self.route(relay, from).await?.get(relay).await
    }

    /// Sends a request to an `http:` or `https:` URL, and returns the answer, whatever its status. Redirects are not
    /// followed.
    pub async fn send(
        &self,
        request: Request<Bytes>,
        from: Provenance,
    ) -> Result<Response<Bytes>, Fault> {
        let address = request.uri().to_string();
        let host = address
            .parse::<CloneUrl>()
            .map_err(|_| Fault::NoSuchHost)?
            .host();
        let url = Url::parse(&address).map_err(|_| Fault::NoSuchHost)?;
        let is_secure = url.scheme() == "https";
        let route = self.route_to(&url, &host, is_secure, from).await?;
        let (wire, _) = route.connect().await?;
        let (mut head, body) = request.into_parts();
        let target = head
            .uri
            .path_and_query()
            .map_or("/", |target| target.as_str());
        head.uri = target.parse().map_err(|_| Fault::Protocol)?;
        let name = HeaderValue::from_str(host.as_str()).map_err(|_| Fault::Protocol)?;
        head.headers.insert(HOST, name);
        let request = Request::from_parts(head, Full::new(body));
        let answer = timeout(SEND_TIMEOUT, exchange(wire, request)).await;
        answer.ok().flatten().ok_or(Fault::Protocol)
    }
}

impl fmt::Debug for Outbound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Outbound").field(&self.policy).finish()
    }
}

impl CheckedRoute {
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

    /// Requests the NIP-11 document.
    pub(crate) async fn get(&self, relay: &RelayUrl) -> Result<Response<Bytes>, Fault> {
        let (wire, _) = self.connect().await?;
        let answer = timeout(ANSWER_TIMEOUT, request(relay, wire)).await;
        answer.ok().flatten().ok_or(Fault::NoDocument)
    }

    /// Opens a websocket, and tells which address answered.
    pub(crate) async fn upgrade(
        &self,
        relay: &RelayUrl,
        limits: &Limits,
    ) -> Result<(Socket, IpAddr), Fault> {
        let (wire, address) = self.connect().await?;
        let mut request = relay
            .as_str()
            .into_client_request()
            .map_err(|_| Fault::Protocol)?;
        request
            .headers_mut()
            .insert(USER_AGENT, HeaderValue::from_static(USER_AGENT_NAME));
        let config = WebSocketConfig::default()
            .read_buffer_size(64 * 1024)
            .max_message_size(Some(limits.message_bytes))
            .max_frame_size(Some(limits.message_bytes));
        let upgraded = client_async_with_config(request, wire, Some(config)).await;
        upgraded
            .map(|(socket, _)| (socket, address))
            .map_err(|error| upgrade_fault(&error))
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

async fn request(relay: &RelayUrl, wire: Wire) -> Option<Response<Bytes>> {
    let url = Url::parse(relay.as_str()).ok()?;
    let target = url.query().map_or(url.path().to_owned(), |query| {
        format!("{}?{query}", url.path())
    });
    let request = Request::get(target)
        .header(HOST, relay.host().as_str())
        .header(ACCEPT, "application/nostr+json")
        .header(USER_AGENT, USER_AGENT_NAME)
        .body(Full::default())
        .ok()?;
    exchange(wire, request).await
}

/// Sends a request on a new connection, and returns the whole answer.
async fn exchange(wire: Wire, request: Request<Full<Bytes>>) -> Option<Response<Bytes>> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(wire)).await.ok()?;
    let mut answering = pin!(async {
        let (head, body) = sender.send_request(request).await.ok()?.into_parts();
        let body = Limited::new(body, MAX_DOCUMENT_BYTES)
            .collect()
            .await
            .ok()?;
        Some(Response::from_parts(head, body.to_bytes()))
    });
    // The connection is driven only until the answer is here. A server that closes it after its answer has answered.
    tokio::select! {
        answer = &mut answering => answer,
        _ = connection => answering.await,
    }
}

/// Returns the fault of a failed handshake. A server with an error, or one that asks to retry, is there and may come
/// back.
fn upgrade_fault(error: &tungstenite::Error) -> Fault {
    match error {
        WsError::Http(answer) => match answer.status() {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT => Fault::Unreachable,
            status if status.is_server_error() => Fault::Unreachable,
            _ => Fault::Protocol,
        },
        WsError::Io(_) | WsError::ConnectionClosed | WsError::AlreadyClosed => Fault::Unreachable,
        WsError::Protocol(ProtocolError::HandshakeIncomplete) => Fault::Unreachable,
        _ => Fault::Protocol,
    }
}

/// Distinguishes a name that does not exist from a resolver that did not answer. The system reports it only as text.
fn resolve_fault(error: &io::Error) -> Fault {
    let text = error.to_string();
    let is_missing = [
        "not known",
        "No address associated",
        "does not resolve",
        "No such host",
    ];
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
    let rustls::Error::InvalidCertificate(why) = said else {
        return Fault::Tls;
    };
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

/// The fault in words for an operator, with the setting that may help.
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unreachable => "it cannot be reached",
            Self::NoSuchHost => "its host name does not exist",
            Self::Certificate(Flaw::Untrusted) => {
                "its certificate is not signed by a trusted authority (see trusted_roots)"
            }
            Self::Certificate(Flaw::OtherName) => "its certificate is for another host name",
            Self::Certificate(Flaw::OutOfDate) => {
                "its certificate has expired or is not valid yet, or a clock is wrong"
            }
            Self::Certificate(Flaw::Invalid) => "its certificate is not valid",
            Self::Tls => "its TLS version or ciphers are not supported",
            Self::Protocol => "it does not answer as a relay does",
            Self::Private => "it is only for its members (GRASP-08)",
            Self::NoDocument => "its information document (NIP-11) cannot be read",
            Self::Forbidden => "its address is private (see allow_private_targets)",
        })
    }
}

/// Returns what the document of a relay says, or nothing for a relay that answers without one. Fails if there is no answer, or
/// that of a server in trouble.
pub(crate) async fn fetch_facts(
    relay: &RelayUrl,
    route: &CheckedRoute,
) -> Result<RelayFacts, Fault> {
    let answer = route.get(relay).await?;
    let status = answer.status();
    let comes_later = status.is_server_error()
        || [StatusCode::TOO_MANY_REQUESTS, StatusCode::REQUEST_TIMEOUT].contains(&status);
    if comes_later {
        return Err(Fault::NoDocument);
    }
    let document = status.is_success().then(|| answer.into_body());
    Ok(document
        .and_then(|text| facts_in(&text))
        .unwrap_or_default())
}

/// Time for fetching the document, from the dial to its last byte.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);

/// Fetches a relay's NIP-11 document under the policy for untrusted addresses; `None` if it has none.
pub async fn relay_information(
    relay: &RelayUrl,
    policy: OutboundPolicy,
    roots: &Roots,
) -> Option<RelayFacts> {
    let outbound = Outbound::new(policy, roots);
    let fetched = timeout(FETCH_TIMEOUT, outbound.get(relay, Provenance::Event)).await;
    let answer = fetched.ok()?.ok()?;
    let document = answer.status().is_success().then(|| answer.into_body())?;
    facts_in(&document)
}

fn facts_in(document: &[u8]) -> Option<RelayFacts> {
    // A list would be read as the values of the fields in order.
    let object: Map<String, serde_json::Value> = serde_json::from_slice(document).ok()?;
    serde_json::from_value(object.into())
        .map(RelayDocumentPart::facts)
        .ok()
}

/// The part of the document that matters here. Values of an unexpected type count as missing.
#[derive(Default, Deserialize)]
#[serde(default)]
struct RelayDocumentPart {
    software: serde_json::Value,
    version: serde_json::Value,
    pubkey: serde_json::Value,
    limitation: serde_json::Value,
    supported_grasps: serde_json::Value,
}

impl RelayDocumentPart {
    fn facts(self) -> RelayFacts {
        let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
        let limit = |name| self.limitation.get(name)?.as_u64()?.try_into().ok();
        let grasps = self.supported_grasps.as_array().into_iter().flatten();
        let supports = |name| grasps.clone().any(|grasp| grasp.as_str() == Some(name));
        RelayFacts {
            has_document: true,
            software: text(&self.software),
            version: text(&self.version),
            max_subscriptions: limit("max_subscriptions"),
            max_limit: limit("max_limit"),
            max_message_length: limit("max_message_length"),
            is_grasp: supports("GRASP-01") || supports("GRASP-02"),
            is_private: supports("GRASP-08"),
            pubkey: self
                .pubkey
                .as_str()
                .and_then(|key| PublicKey::from_hex(key).ok()),
        }
    }
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
        for url in [
            "ws://127.0.0.1:1",
            "wss://[::1]",
            "ws://localhost",
            "ws://10.0.0.1/x",
        ] {
            assert_eq!(
                route(url, Provenance::Event).await,
                Err(Fault::Forbidden),
                "{url}"
            );
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
        assert_eq!(
            said(&format!("{prefix} Name or service not known")),
            Fault::NoSuchHost
        );
        assert_eq!(
            said(&format!("{prefix} Temporary failure in name resolution")),
            Fault::Unreachable
        );
    }

    #[test]
    fn rejects_pem_without_certificates() {
        let with = |pem: &str| Roots::default().with(pem.as_bytes()).err();
        assert_eq!(with(""), Some(BadRoots::NoCertificate));
        assert_eq!(with("a key, perhaps"), Some(BadRoots::NoCertificate));
        let nonsense = "-----BEGIN CERTIFICATE-----\nbm9uc2Vuc2U=\n-----END CERTIFICATE-----\n";
        assert!(matches!(
            with(nonsense),
            Some(BadRoots::Unreadable { number: 1, .. })
        ));
        let broken = "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n";
        assert!(matches!(
            with(broken),
            Some(BadRoots::Unreadable { number: 1, .. })
        ));
    }

    fn facts(json: &str) -> RelayFacts {
        facts_in(json.as_bytes()).unwrap_or_default()
    }

    #[test]
    fn reads_the_relevant_fields() {
        let read = facts(
            r#"{"name":"x","software":"grasp","version":"0.1.0","supported_grasps":["GRASP-01"],
                "limitation":{"max_subscriptions":20,"max_limit":500,"max_message_length":65536,"auth_required":false}}"#,
        );
        let wanted = RelayFacts {
            has_document: true,
            software: Some("grasp".into()),
            version: Some("0.1.0".into()),
            max_subscriptions: Some(20),
            max_limit: Some(500),
            max_message_length: Some(65_536),
            is_grasp: true,
            is_private: false,
            pubkey: None,
        };
        assert_eq!(read, wanted);
        assert!(facts(r#"{"supported_grasps":["GRASP-01","GRASP-08"]}"#).is_private);
        let key = "79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798";
        let of_key = facts(&format!(r#"{{"pubkey":"{key}"}}"#));
        assert_eq!(of_key.pubkey.map(|key| key.to_hex()).as_deref(), Some(key));
        assert_eq!(facts(r#"{"pubkey":"npub1x"}"#).pubkey, None);
    }

    #[test]
    fn malformed_documents_and_values_count_as_missing() {
        for text in ["", "[]", "<html>"] {
            assert_eq!(facts(text), RelayFacts::default(), "{text}");
        }
        let empty = facts("{}");
        assert!(empty.has_document);
        for text in [
            r#"{"software":5,"limitation":[1],"supported_grasps":"GRASP-08"}"#,
            r#"{"limitation":{"max_limit":-1,"max_subscriptions":"20","max_message_length":1e99}}"#,
        ] {
            assert_eq!(facts(text), empty, "{text}");
        }
    }

    #[tokio::test]
    async fn the_answer_of_a_server_that_closes_after_it_is_read() {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let relay = format!("ws://{}", listener.local_addr().unwrap())
            .parse()
            .unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let _ = stream.read(&mut [0; 4096]).await;
                let body = r#"{"supported_grasps":["GRASP-01"]}"#;
                let answer = format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                    body.len()
                );
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        let policy = OutboundPolicy::everywhere();
        for _ in 0..50 {
            let facts = relay_information(&relay, policy, &Roots::default()).await;
            assert!(facts.is_some_and(|facts| facts.is_grasp));
        }
    }
}
