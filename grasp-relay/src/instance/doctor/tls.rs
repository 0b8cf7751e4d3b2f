//! Checks of TLS: the ports, the files, and what DNS says about the domain.

mod caa;

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use grasp_core::ServiceIdentity;
use tokio::net::lookup_host;
use tokio::time::timeout;

use self::caa::Caa;
use super::{Deployment, Finding};
use crate::instance::admin::{AdminRequest, request};
use crate::instance::error::Result;
use crate::instance::server::tls::{TlsMode, TlsSettings};
use crate::tls::Certificate;
use crate::web::figures::Status;

/// The time that the resolver may take.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);

/// The share of its lifetime below which a certificate should have been renewed.
const LEAST_SHARE_LEFT: u32 = 6;

/// Runs all checks of this machine that matter for TLS.
pub(super) fn local_findings(deployment: &Deployment) -> Vec<Finding> {
    let tls = &deployment.settings.tls;
    if tls.mode == TlsMode::Off {
        return Vec::new();
    }
    let mut findings = vec![
        port("TLS port", "tls.listen", &tls.tls_addresses(), deployment),
        port("HTTP port", "tls.http", &tls.http_addresses(), deployment),
    ];
    if let (TlsMode::Files, Some(domain)) = (tls.mode, &deployment.domain) {
        findings.push(files(tls, domain));
    }
    findings
}

/// Checks what DNS says about the domain, and whether public connections can arrive.
pub(super) async fn network_findings(deployment: &Deployment) -> Vec<Finding> {
    let tls = &deployment.settings.tls;
    let (true, Some(domain)) = (tls.mode != TlsMode::Off, &deployment.domain) else {
        return Vec::new();
    };
    let mut findings = vec![dns(domain).await];
    if tls.mode == TlsMode::Acme {
        let directory = tls.directory.host_str().unwrap_or_default();
        findings.push(issuers(caa::resolver(), domain, directory).await);
    }
    findings
}

fn port(
    subject: &'static str,
    key: &'static str,
    addresses: &[SocketAddr],
    deployment: &Deployment,
) -> Finding {
    let mut failure = None;
    for address in addresses {
        match TcpListener::bind(address) {
            Ok(_) => return Finding::good(subject, format!("{address} is free")),
            Err(error) => failure = failure.or(Some((address, error))),
        }
    }
    let Some((address, error)) = failure else {
        return Finding::skipped(subject, "there is no address");
    };
    let status: Result<Status> = request(&deployment.settings.admin_socket(), AdminRequest::Status);
    if status.is_ok_and(|status| status.certificate_days_left.is_some()) {
        return Finding::good(subject, format!("{address} is served"));
    }
    Finding::failed(
        subject,
        format!("could not listen on {address}: {error}"),
        format!(
            "stop the program that does (ss -ltnp 'sport = :{}'), run as a user with CAP_NET_BIND_SERVICE, or set {key}",
            address.port()
        ),
    )
}

fn files(tls: &TlsSettings, domain: &ServiceIdentity) -> Finding {
    let subject = "certificate";
    let (Some(chain), Some(key)) = (&tls.certificate, &tls.key) else {
        return Finding::skipped(subject, "no files are set");
    };
    let remedy = "set tls.certificate and tls.key to PEM files that the server may read";
    let read = fs::read(chain).and_then(|chain| Ok((chain, fs::read(key)?)));
    let (chain_text, key_text) = match read {
        Ok(texts) => texts,
        Err(error) => {
            let detail = format!("{} or {}: {error}", chain.display(), key.display());
            return Finding::failed(subject, detail, remedy);
        }
    };
    let certificate = match Certificate::from_pem(&chain_text, &key_text) {
        Ok(certificate) => certificate,
        Err(error) => {
            return Finding::failed(subject, format!("{}: {error}", chain.display()), remedy);
        }
    };
    if !certificate.covers(domain.host()) {
        return Finding::failed(
            subject,
            format!(
                "{} is for other names than {}",
                chain.display(),
                domain.host()
            ),
            "use a certificate for the domain",
        );
    }
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let validity = certificate.validity();
    let left = validity.left(now.as_secs());
    let detail = format!("valid for {} more days", left.as_secs() / (24 * 60 * 60));
    if left < validity.lifetime() / LEAST_SHARE_LEFT {
        return Finding::warning(subject, detail, "renew it");
    }
    Finding::good(subject, detail)
}

/// Checks that the domain leads to this machine.
async fn dns(domain: &ServiceIdentity) -> Finding {
    let subject = "DNS";
    let host = domain.host();
    let name = host.trim_start_matches('[').trim_end_matches(']');
    let found = timeout(RESOLVE_TIMEOUT, lookup_host((name, 0))).await;
    let addresses: BTreeSet<IpAddr> = match found {
        Ok(Ok(found)) => found.map(|address| address.ip()).collect(),
        Ok(Err(_)) | Err(_) => BTreeSet::new(),
    };
    if addresses.is_empty() {
        return Finding::failed(
            subject,
            format!("{host} has no address"),
            "create an A record, and an AAAA record if the machine has IPv6, with the address of this machine",
        );
    }
    let shown: Vec<_> = addresses.iter().map(IpAddr::to_string).collect();
    let shown = shown.join(", ");
    let elsewhere: Vec<_> = addresses
        .iter()
        .filter(|address| !is_own(**address))
        .collect();
    if elsewhere.is_empty() {
        return Finding::good(subject, format!("{host} is this machine: {shown}"));
    }
    Finding::warning(
        subject,
        format!("{host} is {shown}, which this machine does not have by itself"),
        "ports 443 and 80 of each of these addresses must lead here: check the records, the router and the provider's firewall",
    )
}

/// Returns whether an address is one of this machine.
fn is_own(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

/// The name by which CAA records allow the ACME server of this host, if it is known.
fn issuer_of(directory: &str) -> Option<&'static str> {
    directory
        .ends_with(".letsencrypt.org")
        .then_some("letsencrypt.org")
}

/// Checks that CAA records allow the ACME server to issue certificates.
async fn issuers(
    resolver: Option<SocketAddr>,
    domain: &ServiceIdentity,
    directory: &str,
) -> Finding {
    let subject = "CAA";
    let Some(resolver) = resolver else {
        return Finding::skipped(subject, "/etc/resolv.conf names no resolver");
    };
    let found = timeout(RESOLVE_TIMEOUT, caa::issuers_of(resolver, domain.host())).await;
    let allowed = match found {
        Ok(Ok(Caa::Anyone)) => {
            return Finding::good(subject, "any authority may issue certificates");
        }
        Ok(Ok(Caa::Only(allowed))) => allowed,
        Ok(Err(error)) => {
            return Finding::skipped(subject, format!("the resolver failed: {error}"));
        }
        Err(_) => return Finding::skipped(subject, "the resolver did not answer"),
    };
    let shown = match allowed.is_empty() {
        true => "nobody".to_owned(),
        false => allowed.join(", "),
    };
    let Some(issuer) = issuer_of(directory) else {
        return Finding::good(subject, format!("only {shown} may issue certificates"));
    };
    if allowed.iter().any(|name| name == issuer) {
        return Finding::good(subject, format!("{issuer} may issue certificates"));
    }
    Finding::failed(
        subject,
        format!("only {shown} may issue certificates for {}", domain.host()),
        format!("add a CAA record: 0 issue \"{issuer}\""),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(dir: &std::path::Path) -> TlsSettings {
        TlsSettings {
            mode: TlsMode::Files,
            certificate: Some(dir.join("chain.pem")),
            key: Some(dir.join("key.pem")),
            ..TlsSettings::default()
        }
    }

    #[test]
    fn the_files_must_be_a_certificate_of_the_domain() {
        let dir = tempfile::tempdir().unwrap();
        let tls = settings(dir.path());
        let domain: ServiceIdentity = "git.example.com".parse().unwrap();
        let missing = files(&tls, &domain);
        assert!(missing.is_failed(), "{missing}");
        let made = rcgen::generate_simple_self_signed(["git.example.com".to_owned()]).unwrap();
        fs::write(dir.path().join("chain.pem"), made.cert.pem()).unwrap();
        fs::write(dir.path().join("key.pem"), made.signing_key.serialize_pem()).unwrap();
        let good = files(&tls, &domain);
        assert!(!good.is_failed(), "{good}");
        let other = files(&tls, &"git.example.org".parse().unwrap());
        assert!(
            other.is_failed() && other.detail.contains("other names"),
            "{other}"
        );
    }

    #[test]
    fn a_taken_port_fails_and_a_free_one_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let mut deployment = crate::instance::doctor::tests::deployed_at(None);
        deployment.settings.data_dir = dir.path().into();
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let check = |it: &Deployment| port("TLS port", "tls.listen", &[address], it);
        let bad = check(&deployment);
        assert!(
            bad.is_failed() && bad.to_string().contains("set tls.listen"),
            "{bad}"
        );
        drop(taken);
        assert!(!check(&deployment).is_failed());
    }

    #[tokio::test]
    async fn a_name_of_this_machine_passes() {
        let own = dns(&"127.0.0.1".parse().unwrap()).await;
        assert!(
            !own.is_failed() && own.detail.contains("is this machine"),
            "{own}"
        );
        let elsewhere = dns(&"192.0.2.1".parse().unwrap()).await;
        assert!(
            elsewhere.detail.contains("does not have by itself"),
            "{elsewhere}"
        );
    }
}
