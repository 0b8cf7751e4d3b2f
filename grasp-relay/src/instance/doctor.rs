//! Checks what a server needs from its surroundings, and names a remedy for each problem.

mod tls;

use std::fmt;
use std::fs;
use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use axum::body::Bytes;
use axum::http::Response;
use axum::http::header::{ACCESS_CONTROL_ALLOW_ORIGIN, DATE};
use grasp_core::outbound::{OutboundPolicy, Provenance};
use grasp_core::{RelayUrl, ServiceIdentity};
use grasp_purgatory::git::GitVersion;
use grasp_sync::Roots;
use grasp_sync::driver::Outbound;
use grasp_sync::engine::Fault;
use serde_json::Value;

use crate::instance::admin::{AdminRequest, request};
use crate::instance::error::{Result, one_line};
use crate::instance::files;
use crate::instance::settings::Settings;
use crate::publish::is_local;
use crate::web::figures::Status;
use crate::web::format_bytes;

/// The result of one check, as `grasp doctor` prints it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    subject: &'static str,
    state: FindingState,
    detail: String,
    remedy: Option<String>,
}

/// The state of the subject of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FindingState {
    Good,
    Skipped,
    /// The server works, but should be set up differently.
    Warning,
    /// The server does not work.
    Failed,
}

impl Finding {
    fn good(subject: &'static str, detail: impl Into<String>) -> Self {
        Self {
            subject,
            state: FindingState::Good,
            detail: detail.into(),
            remedy: None,
        }
    }

    fn skipped(subject: &'static str, detail: impl Into<String>) -> Self {
        Self {
            state: FindingState::Skipped,
            ..Self::good(subject, detail)
        }
    }

    fn warning(
        subject: &'static str,
        detail: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        let remedy = Some(remedy.into());
        Self {
            state: FindingState::Warning,
            remedy,
            ..Self::good(subject, detail)
        }
    }

    fn failed(subject: &'static str, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            state: FindingState::Failed,
            ..Self::warning(subject, detail, remedy)
        }
    }

    /// Returns whether the server does not work.
    pub fn is_failed(&self) -> bool {
        self.state == FindingState::Failed
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self.state {
            FindingState::Good => "ok",
            FindingState::Skipped => "skipped",
            FindingState::Warning => "warning",
            FindingState::Failed => "FAILED",
        };
        write!(f, "{word:<8} {:<12} {}", self.subject, self.detail)?;
        match &self.remedy {
            Some(remedy) => write!(f, "\n{:<21} → {remedy}", ""),
            None => Ok(()),
        }
    }
}

/// A server as it is, or will be, deployed on this machine.
#[derive(Clone, Debug)]
pub struct Deployment {
    /// The address to listen on.
    pub listen: SocketAddr,
    /// The public address, if one is set.
    pub domain: Option<ServiceIdentity>,
    /// The settings of the server.
    pub settings: Settings,
}

/// Runs the checks that a server must pass before its first start.
pub async fn check_before_start(deployment: &Deployment) -> Vec<Finding> {
    let mut findings = local_findings(deployment);
    findings.extend(tls::local_findings(deployment));
    // Nothing answers at its own address yet.
    findings.extend(tls::network_findings(deployment).await);
    findings
}

/// Runs all checks, those that use the network only with it.
pub async fn check(deployment: &Deployment, with_network: bool) -> Vec<Finding> {
    let mut findings = local_findings(deployment);
    findings.extend(tls::local_findings(deployment));
    if with_network {
        findings.extend(network_findings(deployment).await);
    } else {
        findings.push(Finding::skipped("network", "skipped by --offline"));
    }
    findings
}

/// Bytes of free disk space below which the check fails.
const MIN_FREE_BYTES: u64 = 1 << 30;

/// The time of one durable write above which the disk slows every push and event.
const SLOW_DISK: Duration = Duration::from_millis(50);

/// Open files besides connections: databases, packs, pipes of git.
const OTHER_FILES: u64 = 512;

/// Runs all checks of this machine.
fn local_findings(deployment: &Deployment) -> Vec<Finding> {
    let data = &deployment.settings.data_dir;
    vec![
        git(deployment),
        port(deployment),
        domain(deployment),
        targets(deployment),
        disk(data),
        free_space(data),
        files(deployment),
    ]
}

fn git(deployment: &Deployment) -> Finding {
    match deployment.settings.git() {
        Ok(git) => Finding::good("git", format!("version {}", git.version())),
        Err(error) => {
            let remedy = format!(
                "install git {} or newer and have it first in PATH",
                GitVersion::OLDEST
            );
            Finding::failed("git", error.to_string(), remedy)
        }
    }
}

fn port(deployment: &Deployment) -> Finding {
    let listen = deployment.listen;
    match TcpListener::bind(listen) {
        Ok(_) => Finding::good("port", format!("{listen} is free")),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => port_in_use(deployment),
        Err(error) => Finding::failed(
            "port",
            format!("could not listen on {listen}: {error}"),
            "choose another address with --listen; ports below 1024 need CAP_NET_BIND_SERVICE",
        ),
    }
}

fn port_in_use(deployment: &Deployment) -> Finding {
    let listen = deployment.listen;
    let port = deployment.listen.port();
    let status: Result<Status> = request(&deployment.settings.admin_socket(), AdminRequest::Status);
    match status {
        Ok(status) => Finding::good("port", format!("{listen} is served, as {}", status.service)),
        Err(_) => Finding::failed(
            "port",
            format!("{listen} is taken by a program that does not serve this data directory"),
            format!("find that program (ss -ltnp 'sport = :{port}'), or choose another port"),
        ),
    }
}

fn domain(deployment: &Deployment) -> Finding {
    let Some(domain) = &deployment.domain else {
        return Finding::warning(
            "domain",
            format!(
                "none is set, so the server is known as {}",
                deployment.listen
            ),
            "set --domain to the public address; announcements must list that one",
        );
    };
    if !deployment.settings.git.secure && !is_local(domain) {
        return Finding::warning(
            "domain",
            format!("{domain}, shown as http:// and ws://"),
            "set tls.mode, or git.secure = true once a proxy serves it over TLS; browsers and many clients require it",
        );
    }
    Finding::good("domain", domain.to_string())
}

fn targets(deployment: &Deployment) -> Finding {
    let public = deployment
        .domain
        .as_ref()
        .is_some_and(|domain| !is_local(domain));
    if deployment.settings.outbound.allow_private && public {
        return Finding::warning(
            "targets",
            "events can make this public server connect to private addresses",
            "remove allow_private_targets unless this is a test network",
        );
    }
    if deployment.settings.outbound.allow_private {
        return Finding::good(
            "targets",
            "private addresses are allowed, for a test network",
        );
    }
    Finding::good(
        "targets",
        "events cannot make this server connect to private addresses",
    )
}

/// Measures a durable write of a file, which it removes again.
fn disk(data: &Path) -> Finding {
    let began = Instant::now();
    let probe = nearest_existing(data).join(".doctor");
    let written = fs::File::create(&probe).and_then(|mut file| {
        file.write_all(b"grasp")?;
        file.sync_all()
    });
    let took = began.elapsed();
    let _ = fs::remove_file(&probe);
    match written {
        Ok(()) if took > SLOW_DISK => Finding::warning(
            "disk",
            format!(
                "{} takes {} ms for one durable write",
                data.display(),
                took.as_millis()
            ),
            "put the data directory on a faster disk",
        ),
        Ok(()) => Finding::good(
            "disk",
            format!(
                "{} takes a durable write in {} ms",
                data.display(),
                took.as_millis()
            ),
        ),
        Err(error) => Finding::failed(
            "disk",
            format!("{} cannot be written to: {error}", data.display()),
            "give it to the user that the server runs as, or choose another with --data-dir",
        ),
    }
}

/// Returns the data directory or its nearest parent that exists. The check does not create it: the server does, with
/// private permissions.
fn nearest_existing(data: &Path) -> &Path {
    let there = data.ancestors().find(|dir| dir.exists());
    there.unwrap_or(Path::new("."))
}

fn free_space(data: &Path) -> Finding {
    let Ok(stats) = rustix::fs::statvfs(nearest_existing(data)) else {
        return Finding::skipped("free space", "the file system does not report it");
    };
    let free = stats.f_bavail.saturating_mul(stats.f_frsize);
    let detail = format_bytes(free);
    match free {
        0..MIN_FREE_BYTES => Finding::failed(
            "free space",
            detail,
            "delete files, or choose another --data-dir",
        ),
        _ if stats.f_bavail < stats.f_blocks / 20 => Finding::warning(
            "free space",
            format!("{detail}, less than 5 %"),
            "delete files soon",
        ),
        _ => Finding::good("free space", detail),
    }
}

fn files(deployment: &Deployment) -> Finding {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let needed = deployment.settings.relay.tcp_connections as u64 + OTHER_FILES;
    match limit.current {
        Some(allowed) if allowed < needed => Finding::warning(
            "files",
            format!("{allowed} may be open; {needed} are needed for connections and files"),
            format!("set LimitNOFILE={needed} in the unit, or ulimit -n {needed} in the shell"),
        ),
        Some(allowed) => Finding::good("files", format!("{allowed} may be open")),
        None => Finding::good("files", "any number may be open"),
    }
}

/// Seconds that clocks may differ; with more, events of one side are dated ahead of the other's clock.
const MAX_CLOCK_SKEW_SECS: i64 = 30;

/// A server's answer to a request for its NIP-11 document.
type Answer = Result<Response<Bytes>, Fault>;

/// Checks the server's public address, the bootstrap relays and the clock.
async fn network_findings(deployment: &Deployment) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut clocks = Vec::new();
    let roots = files::roots_for_relays(&deployment.settings).unwrap_or_else(|error| {
        let remedy = "set trusted_roots to a PEM file that the server may read";
        findings.push(Finding::failed("trusted_roots", one_line(&error), remedy));
        Roots::default()
    });
    let outbound = Outbound::new(OutboundPolicy::default(), &roots);
    findings.push(match public_address(deployment) {
        Some(relay) => check_own(
            deployment,
            &relay,
            outbound.get(&relay, Provenance::Operator).await,
        ),
        None => Finding::skipped("own address", "no domain is set"),
    });
    for relay in &deployment.settings.sync.engine.bootstrap {
        let answer = outbound.get(relay, Provenance::Operator).await;
        // Only these: at the public address, the server's own clock answers.
        let dates = answer
            .iter()
            .filter_map(|answer| answer.headers().get(DATE)?.to_str().ok());
        clocks.extend(dates.filter_map(seconds_ahead));
        findings.push(check_bootstrap(relay, answer));
    }
    if deployment.settings.sync.engine.bootstrap.is_empty() {
        findings.push(Finding::skipped(
            "outbound",
            "set --bootstrap to a relay to check DNS and TLS",
        ));
    }
    findings.extend(tls::network_findings(deployment).await);
    findings.push(check_clock(&clocks));
    findings
}

/// Returns the server's public address.
fn public_address(deployment: &Deployment) -> Option<RelayUrl> {
    deployment
        .domain
        .as_ref()?
        .relay_url(deployment.settings.git.secure)
        .ok()
}

/// Reports that there was no answer, with a remedy for the operator.
fn unanswered(subject: &'static str, relay: &RelayUrl, fault: Fault) -> Finding {
    let remedy = match fault {
        Fault::NoSuchHost => "check /etc/resolv.conf and the spelling",
        Fault::Unreachable => "check the firewall, the proxy and whether the server runs",
        Fault::Certificate(_) | Fault::Tls => {
            "check the certificate, its chain and this machine's clock"
        }
        _ => "check which program serves that address",
    };
    Finding::failed(subject, format!("{relay}: {fault}"), remedy)
}

fn check_own(deployment: &Deployment, relay: &RelayUrl, answer: Answer) -> Finding {
    let subject = "own address";
    let address = relay.host().as_str().to_owned();
    let answer = match answer {
        Ok(answer) => answer,
        Err(fault) => return unanswered(subject, relay, fault),
    };
    let Ok(document) = serde_json::from_slice::<Value>(answer.body()) else {
        let status = answer.status().as_u16();
        return Finding::failed(
            subject,
            format!("{address} answers with status {status} and no NIP-11 document"),
            "make the proxy forward every request with its Accept header",
        );
    };
    if !has_our_key(deployment, &document) {
        let name = document["name"].as_str().unwrap_or("without a name");
        return Finding::failed(
            subject,
            format!("{address} is another server: {name}"),
            "check the DNS record and the proxy; its key is not the one of this data directory",
        );
    }
    if answer
        .headers()
        .get(ACCESS_CONTROL_ALLOW_ORIGIN)
        .is_none_or(|origin| origin != "*")
    {
        return Finding::failed(
            subject,
            format!("{address} answers without Access-Control-Allow-Origin"),
            "make the proxy forward that header: web clients need it (GRASP-01)",
        );
    }
    Finding::good(
        subject,
        format!("{address} shows the NIP-11 document of this server"),
    )
}

/// Returns whether a NIP-11 document has the key of this data directory. Before the first start there is none, and any
/// key will do.
fn has_our_key(deployment: &Deployment, document: &Value) -> bool {
    let Ok(text) = std::fs::read_to_string(deployment.settings.service_key()) else {
        return true;
    };
    let Ok(keys) = nostr::key::Keys::parse(text.trim()) else {
        return true;
    };
    document["self"].as_str() == Some(&keys.public_key().to_hex())
}

fn check_bootstrap(relay: &RelayUrl, answer: Answer) -> Finding {
    match answer.map(|answer| answer.status()) {
        Ok(status) if status.as_u16() < 400 => {
            Finding::good("outbound", format!("{relay} answers"))
        }
        Ok(status) => Finding::warning(
            "outbound",
            format!("{relay} answers with status {}", status.as_u16()),
            "connect with a nostr client; the relay may require something of its clients",
        ),
        Err(fault) => unanswered("outbound", relay, fault),
    }
}

/// Compares the clock with the median of the others.
fn check_clock(ahead: &[i64]) -> Finding {
    let mut ahead = ahead.to_vec();
    ahead.sort_unstable();
    let Some(median) = ahead.get(ahead.len() / 2) else {
        return Finding::skipped("clock", "no relay answered to compare it with");
    };
    match median.abs() {
        0..=MAX_CLOCK_SKEW_SECS => Finding::good(
            "clock",
            format!("within {} seconds of others", median.abs()),
        ),
        skew => Finding::failed(
            "clock",
            format!(
                "{skew} seconds {} others",
                if *median > 0 { "behind" } else { "ahead of" }
            ),
            "synchronize it with systemd-timesyncd or chrony: the dates of events are checked against it",
        ),
    }
}

/// Returns the seconds that an HTTP date is ahead of our clock.
fn seconds_ahead(date: &str) -> Option<i64> {
    let theirs = httpdate::parse_http_date(date).ok()?;
    let ours = SystemTime::now();
    let seconds = |length: Duration| i64::try_from(length.as_secs()).ok();
    match theirs.duration_since(ours) {
        Ok(ahead) => seconds(ahead),
        Err(behind) => seconds(behind.duration()).map(|behind| -behind),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a server with the default settings and this public address.
    pub(super) fn deployed_at(domain: Option<&str>) -> Deployment {
        let listen: SocketAddr = "127.0.0.1:7334".parse().unwrap();
        let service = listen.to_string().parse().unwrap();
        Deployment {
            listen,
            domain: domain.map(|domain| domain.parse().unwrap()),
            settings: Settings::new(service, "data"),
        }
    }

    #[test]
    fn a_port_that_is_in_use_fails_the_check() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let dir = tempfile::tempdir().unwrap();
        let mut deployment = deployed_at(None);
        deployment.listen = taken.local_addr().unwrap();
        deployment.settings.data_dir = dir.path().into();
        let finding = port(&deployment);
        assert!(
            finding.is_failed() && finding.detail.contains(&deployment.listen.to_string()),
            "{finding}"
        );
    }

    #[test]
    fn a_directory_that_cannot_be_written_to_fails_the_check() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let finding = disk(&file.join("data"));
        assert!(
            finding.is_failed() && finding.detail.contains("file/data"),
            "{finding}"
        );
        assert!(!disk(dir.path()).is_failed() && !disk(&dir.path().join("not/yet")).is_failed());
        assert!(
            !free_space(&dir.path().join("not/yet"))
                .detail
                .contains("does not report")
        );
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_public_server_that_may_connect_to_private_addresses_is_warned_about() {
        let mut deployment = deployed_at(Some("git.example.com"));
        assert_eq!(targets(&deployment).state, FindingState::Good);
        deployment.settings.outbound.allow_private = true;
        assert!(matches!(targets(&deployment).state, FindingState::Warning));
        deployment.domain = Some("127.0.0.1:7334".parse().unwrap());
        assert_eq!(targets(&deployment).state, FindingState::Good);
    }

    #[test]
    fn the_clock_is_compared_with_the_median() {
        assert!(!check_clock(&[]).is_failed());
        assert!(!check_clock(&[2, -1, 90_000]).is_failed());
        let behind = check_clock(&[3_600]);
        assert!(
            behind.is_failed() && behind.to_string().contains("3600 seconds behind"),
            "{behind}"
        );
    }

    #[test]
    fn an_address_without_a_nip11_document_fails_the_check() {
        let deployment = deployed_at(Some("git.example.com"));
        let relay = public_address(&deployment).unwrap();
        let finding = check_own(&deployment, &relay, Ok(Response::new("<html>".into())));
        assert!(
            finding.is_failed() && finding.to_string().contains("Accept header"),
            "{finding}"
        );
    }

    #[test]
    fn an_address_with_another_key_fails_the_check() {
        let dir = tempfile::tempdir().unwrap();
        let mut deployment = deployed_at(Some("git.example.com"));
        deployment.settings.data_dir = dir.path().into();
        let keys = crate::instance::files::service_key(&deployment.settings.service_key()).unwrap();
        let relay = public_address(&deployment).unwrap();
        let check = |key: String, is_shared: bool| {
            let body = serde_json::json!({ "name": "x", "self": key }).to_string();
            let origin = if is_shared {
                "*"
            } else {
                "https://example.com"
            };
            let answer = Response::builder().header(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            check_own(&deployment, &relay, Ok(answer.body(body.into()).unwrap()))
        };
        assert!(!check(keys.public_key().to_hex(), true).is_failed());
        assert!(check(keys.public_key().to_hex(), false).is_failed());
        assert!(check("00".repeat(32), true).is_failed());
    }

    #[test]
    fn http_dates_are_compared_with_our_clock() {
        let now = SystemTime::now();
        let ahead = |date: SystemTime| seconds_ahead(&httpdate::fmt_http_date(date)).unwrap();
        assert!((3_590..=3_600).contains(&ahead(now + Duration::from_secs(3_600))));
        assert!((-3_610..=-3_600).contains(&ahead(now - Duration::from_secs(3_600))));
        for nonsense in [
            "yesterday",
            "Sun, 06 Nov 9223372036854775807 08:49:37 GMT",
            "",
        ] {
            assert_eq!(seconds_ahead(nonsense), None);
        }
    }
}
