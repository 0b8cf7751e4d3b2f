//! TLS by the server itself: git, browsers and relays connect without a proxy.

mod authority;
mod git;
mod pebble;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use self::authority::Authority;
use self::pebble::{Behaviour, Pebble};
use crate::operations::free_address;
use crate::postgres::Postgres;
use crate::support::{Server, command, get};

/// The time after which a test fails. It is longer than two attempts to order on a loaded machine.
const TIMEOUT: Duration = Duration::from_secs(180);

/// The time between two looks at a server.
const RETRY: Duration = Duration::from_millis(200);

const DOMAIN: &str = "git.example.test";

/// A lifetime that no test lives to see the end of.
const LONG: Duration = Duration::from_secs(90 * 24 * 60 * 60);

/// The addresses of a server with TLS.
struct Addresses {
    plain: String,
    tls: String,
    http: String,
}

impl Addresses {
    fn new() -> Self {
        Self {
            plain: free_address(),
            tls: free_address(),
            http: free_address(),
        }
    }

    fn behaviour(&self, lifetime: Duration) -> Behaviour<'_> {
        Behaviour {
            tls: port(&self.tls),
            http: port(&self.http),
            lifetime,
        }
    }

    /// Starts a server that orders its certificate.
    fn start(&self, pebble: &Pebble, dir: &Path, data: &Path, more: &[&str]) -> Server {
        let authority = dir.join("authority.pem");
        let mut settings = vec![
            "--domain",
            DOMAIN,
            "--tls",
            "acme",
            "--tls-directory",
            &pebble.directory,
            "--trusted-roots",
            authority.to_str().unwrap(),
        ];
        settings.extend(more);
        self.start_with(&settings, data)
    }

    fn start_with(&self, settings: &[&str], data: &Path) -> Server {
        let mut all = vec![
            "--listen",
            &self.plain,
            "--tls-listen",
            &self.tls,
            "--tls-http",
            &self.http,
        ];
        all.extend(settings);
        Server::start_with(&all, data)
    }

    /// Requests a page over TLS, and returns whether that worked, and the output of curl.
    fn get(&self, root: &Path, path: &str, more: &[&str]) -> (bool, String) {
        let connect = format!("{DOMAIN}:443:{}", self.tls);
        let url = format!("https://{DOMAIN}{path}");
        let mut arguments = vec![
            "--cacert",
            root.to_str().unwrap(),
            "--connect-to",
            &connect,
            &url,
        ];
        arguments.extend(more);
        curl(&arguments)
    }

    /// Waits until there is a certificate.
    fn wait(&self, root: &Path) {
        let began = Instant::now();
        while !self.get(root, "/health", &[]).0 {
            let health = get(&self.plain, "/health");
            assert!(began.elapsed() < TIMEOUT, "no certificate: {health:?}");
            std::thread::sleep(RETRY);
        }
    }
}

fn port(address: &str) -> &str {
    address.rsplit(':').next().unwrap()
}

/// Runs curl, and returns whether it worked, and its output.
fn curl(arguments: &[&str]) -> (bool, String) {
    let output = Command::new("curl")
        .args(["--silent", "--show-error", "--fail", "--max-time", "10"])
        .args(arguments)
        .output()
        .expect("curl");
    (
        output.status.success(),
        String::from_utf8_lossy(&output.stdout).into_owned(),
    )
}

/// Opens a connection with TLS and HTTP/1.1.
async fn connect(address: &str, root: &Path) -> TlsStream<TcpStream> {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(root).unwrap())
        .unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from(DOMAIN).unwrap();
    TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .unwrap()
}

/// Returns the certificate of a server.
async fn certificate(address: &str, root: &Path) -> Vec<u8> {
    let stream = connect(address, root).await;
    let certificates = stream.get_ref().1.peer_certificates().unwrap();
    certificates[0].to_vec()
}

/// Sends a request on an open connection, and returns the head of the answer.
async fn request(stream: &mut TlsStream<TcpStream>, path: &str, headers: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {DOMAIN}\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&answer);
        if let Some((head, body)) = text.split_once("\r\n\r\n")
            && body.len() >= body_bytes(head)
        {
            return head.to_owned();
        }
        let bytes = stream.read_buf(&mut answer).await.unwrap();
        assert_ne!(bytes, 0, "the connection was closed");
    }
}

/// Returns the number of bytes that follow a head.
fn body_bytes(head: &str) -> usize {
    let head = head.to_ascii_lowercase();
    match head.split_once("content-length: ") {
        Some((_, rest)) => rest.lines().next().unwrap().parse().unwrap(),
        None => 0,
    }
}

async fn assert_is_served(stream: &mut TlsStream<TcpStream>) {
    let head = request(stream, "/health", "").await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
}

fn unix_now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    now.as_secs()
}

/// Reads the record of orders.
fn orders(data: &Path) -> serde_json::Value {
    let text = std::fs::read_to_string(data.join("tls/orders.json")).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_works_with_a_certificate_by_tls_alpn() {
    let (dir, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let addresses = Addresses::new();
    let Some(pebble) = Pebble::start(dir.path(), &addresses.behaviour(LONG)) else {
        return;
    };
    let server = addresses.start(&pebble, dir.path(), data.path(), &[]);
    let root = dir.path().join("issued.pem");
    addresses.wait(&root);
    let (ok, version) = addresses.get(
        &root,
        "/",
        &[
            "--http2",
            "--output",
            "/dev/null",
            "--write-out",
            "%{http_version}",
        ],
    );
    assert!(ok && version == "2", "{version}");
    let (_, page) = addresses.get(&root, "/", &["--http1.1"]);
    assert!(page.contains(DOMAIN), "{page}");
    let mut stream = connect(&addresses.tls, &root).await;
    let upgraded = request(
        &mut stream,
        "/",
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
    )
    .await;
    assert!(upgraded.starts_with("HTTP/1.1 101"), "{upgraded}");
    let (_, target) = curl(&[
        "--output",
        "/dev/null",
        "--write-out",
        "%{http_code} %{redirect_url}",
        "--header",
        "Host: evil.example",
        &format!("http://{}/a/b?c=d", addresses.http),
    ]);
    assert_eq!(target, format!("308 https://{DOMAIN}/a/b?c=d"));
    let (_, status) = addresses.get(&root, "/status.json", &[]);
    assert!(status.contains("\"certificate_days_left\":89"), "{status}");
    let (_, metrics) = addresses.get(&root, "/metrics", &[]);
    assert!(metrics.contains("grasp_tls_certificate_days_left 89"));
    let orders = orders(data.path());
    assert_eq!(orders["challenge"], "tls_alpn", "{orders}");
    drop(server);
}

#[test]
fn a_restart_serves_the_old_certificate_and_orders_nothing() {
    let (dir, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let addresses = Addresses::new();
    let Some(pebble) = Pebble::start(dir.path(), &addresses.behaviour(LONG)) else {
        return;
    };
    let root = dir.path().join("issued.pem");
    let server = addresses.start(&pebble, dir.path(), data.path(), &[]);
    addresses.wait(&root);
    drop(server);
    let read = |name: &str| std::fs::read_to_string(data.path().join("tls").join(name)).unwrap();
    let before = [read("certificate.pem"), read("account.json")];
    let server = addresses.start(&pebble, dir.path(), data.path(), &[]);
    addresses.wait(&root);
    drop(server);
    assert_eq!([read("certificate.pem"), read("account.json")], before);
    let orders: serde_json::Value = serde_json::from_str(&read("orders.json")).unwrap();
    assert_eq!(orders["issued"].as_array().unwrap().len(), 1, "{orders}");
    assert_eq!(orders["failures"], 0, "{orders}");
}

#[test]
fn http_01_is_tried_if_tls_alpn_fails() {
    let (dir, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let addresses = Addresses::new();
    // Another port than the one that the server listens on.
    let elsewhere = free_address();
    let behaviour = Behaviour {
        tls: port(&elsewhere),
        ..addresses.behaviour(LONG)
    };
    let Some(pebble) = Pebble::start(dir.path(), &behaviour) else {
        return;
    };
    let server = addresses.start(&pebble, dir.path(), data.path(), &[]);
    addresses.wait(&dir.path().join("issued.pem"));
    let orders = orders(data.path());
    assert_eq!(orders["challenge"], "http", "{orders}");
    assert!(!data.path().join("tls/challenge.json").exists());
    drop(server);
}

#[test]
fn the_reason_is_told_if_every_challenge_fails() {
    let (dir, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let addresses = Addresses::new();
    // The authority checks the domain where nobody listens.
    let elsewhere = Addresses::new();
    let Some(pebble) = Pebble::start(dir.path(), &elsewhere.behaviour(LONG)) else {
        return;
    };
    let server = addresses.start(&pebble, dir.path(), data.path(), &[]);
    let began = Instant::now();
    // Both challenges failed, and the next order is minutes away: the record and the reason stay as they are.
    let both_failed = loop {
        let orders = orders(data.path());
        let wait = orders["not_before"].as_u64().unwrap_or_default();
        if orders["failures"] == 2 && wait > unix_now() + 300 && orders["last_failure"].is_string()
        {
            break orders;
        }
        let health = get(&addresses.plain, "/health");
        assert!(began.elapsed() < TIMEOUT, "{health:?} {orders}");
        std::thread::sleep(RETRY);
    };
    let reason = both_failed["last_failure"].as_str().unwrap();
    assert!(reason.contains("could not check the domain"), "{reason}");
    while !get(&addresses.plain, "/health").1.contains(reason) {
        assert!(began.elapsed() < TIMEOUT, "the reason is not told");
        std::thread::sleep(RETRY);
    }
    // Never a certificate of its own making.
    let issued = dir.path().join("issued.pem");
    assert!(!addresses.get(&issued, "/", &["--insecure"]).0);
    let (status, text) = get(&addresses.http, "/");
    assert_eq!(status, 503, "{text}");
    assert!(text.contains("no TLS certificate yet"), "{text}");
    drop(server);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_drops_no_connection() {
    let (dir, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let addresses = Addresses::new();
    let Some(pebble) = Pebble::start(dir.path(), &addresses.behaviour(LONG)) else {
        return;
    };
    let server = addresses.start(&pebble, dir.path(), data.path(), &[]);
    let root = dir.path().join("issued.pem");
    addresses.wait(&root);
    let first = certificate(&addresses.tls, &root).await;
    let mut open = connect(&addresses.tls, &root).await;
    let began = Instant::now();
    // The server has asked when to renew, and writes nothing more until then.
    while orders(data.path())["ask_at"].as_u64().unwrap_or_default() <= unix_now() {
        assert!(began.elapsed() < TIMEOUT, "{}", orders(data.path()));
        tokio::time::sleep(RETRY).await;
    }
    let mut due = orders(data.path());
    due["renew_at"] = 1.into();
    let changed = dir.path().join("orders.json");
    std::fs::write(&changed, due.to_string()).unwrap();
    std::fs::rename(&changed, data.path().join("tls/orders.json")).unwrap();
    while certificate(&addresses.tls, &root).await == first {
        assert_is_served(&mut open).await;
        assert!(began.elapsed() < TIMEOUT, "{}", orders(data.path()));
        tokio::time::sleep(RETRY).await;
    }
    assert_is_served(&mut open).await;
    drop(server);
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_read_again_when_they_change() {
    let (dir, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let addresses = Addresses::new();
    let root = dir.path().join("root.pem");
    let authority = Authority::new(&root);
    let (chain, key) = (dir.path().join("chain.pem"), dir.path().join("key.pem"));
    authority.certify(DOMAIN, &chain, &key);
    let settings = [
        "--domain",
        DOMAIN,
        "--tls",
        "files",
        "--tls-certificate",
        chain.to_str().unwrap(),
        "--tls-key",
        key.to_str().unwrap(),
    ];
    let server = addresses.start_with(&settings, data.path());
    addresses.wait(&root);
    let first = certificate(&addresses.tls, &root).await;
    // A text that is no certificate changes nothing, and is told.
    std::fs::write(&chain, "nonsense").unwrap();
    let began = Instant::now();
    while !get(&addresses.plain, "/status.json")
        .1
        .contains("chain.pem: there is no certificate in it")
    {
        assert!(began.elapsed() < TIMEOUT);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(certificate(&addresses.tls, &root).await, first);
    authority.certify(DOMAIN, &chain, &key);
    while certificate(&addresses.tls, &root).await == first {
        assert!(began.elapsed() < TIMEOUT);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    drop(server);
}

#[test]
fn three_nodes_share_one_certificate_and_any_of_them_answers_the_challenge() {
    let dir = tempfile::tempdir().unwrap();
    let nodes: Vec<_> = (0..3)
        .map(|_| (Addresses::new(), tempfile::tempdir().unwrap()))
        .collect();
    // The ACME server connects to the last node, which is not the writer.
    let Some(pebble) = Pebble::start(dir.path(), &nodes[2].0.behaviour(LONG)) else {
        return;
    };
    let Some(postgres) = Postgres::shared() else {
        return;
    };
    let database = postgres.database();
    let packs = format!("file://{}", dir.path().display());
    let mut servers = Vec::new();
    for (addresses, data) in &nodes {
        let address = format!("http://{}", addresses.plain);
        let more = [
            "--database",
            &database,
            "--packs",
            &packs,
            "--node-address",
            &address,
        ];
        servers.push(addresses.start(&pebble, dir.path(), data.path(), &more));
    }
    let root = dir.path().join("issued.pem");
    for (addresses, data) in &nodes {
        addresses.wait(&root);
        assert!(!data.path().join("tls").exists(), "it is in the database");
    }
    let orders = postgres.sql(&database, "SELECT text FROM tls WHERE item = 'orders'");
    let issued: serde_json::Value = serde_json::from_str(orders.trim()).unwrap();
    assert_eq!(issued["issued"].as_array().unwrap().len(), 1, "{orders}");
    drop(servers);
}

#[test]
fn a_certificate_needs_a_public_name() {
    for domain in [
        "localhost",
        "192.0.2.1",
        "git.example.com:8443",
        "abc.onion",
    ] {
        let output = crate::support::run_to_end(
            command().args(["config", "check", "--tls", "acme", "--domain", domain]),
        );
        assert!(!output.ok && output.err.contains("tls.mode"), "{output:?}");
    }
}

#[test]
fn the_health_check_tells_the_days_left_and_that_a_certificate_is_for_another_domain() {
    let (dir, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let addresses = Addresses::new();
    let root = dir.path().join("root.pem");
    let authority = Authority::new(&root);
    let (chain, key) = (dir.path().join("chain.pem"), dir.path().join("key.pem"));
    let health_with = |name: &str| {
        authority.certify(name, &chain, &key);
        let settings = [
            "--domain",
            DOMAIN,
            "--tls",
            "files",
            "--tls-certificate",
            chain.to_str().unwrap(),
            "--tls-key",
            key.to_str().unwrap(),
        ];
        let server = addresses.start_with(&settings, data.path());
        let began = Instant::now();
        loop {
            let (_, health) = get(&addresses.plain, "/health");
            if !health.contains("there is no TLS certificate") {
                drop(server);
                return health;
            }
            assert!(began.elapsed() < TIMEOUT, "{health}");
        }
    };
    let good = health_with(DOMAIN);
    assert!(good.starts_with("ok; certificate: ") && good.ends_with(" days\n"));
    let other = health_with("other.example.test");
    let expected = format!("degraded: the TLS certificate is not for {DOMAIN}\n");
    assert_eq!(other, expected);
}
