//! Checks over the network.

use grasp_sync::Roots;
use serde_json::Value;

use super::Finding;
use crate::config::Config;
use crate::trusted_roots;
use crate::wire::{Place, Reply, WireError};

/// Seconds that clocks may differ; with more, events of one side are dated ahead of the other's clock.
const MAX_CLOCK_SKEW_SECS: i64 = 30;

/// Checks the server's public address, the bootstrap relays and the clock.
pub(super) async fn findings(config: &Config) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut clocks = Vec::new();
    let roots = match trusted_roots::for_relays(&config.settings) {
        Ok(roots) => roots,
        Err(error) => {
            let remedy = "set trusted_roots to a PEM file that the server may read";
            findings.push(Finding::failed("trusted_roots", format!("{error:#}"), remedy));
            Roots::default()
        }
    };
    match public_address(config) {
        Some(place) => {
            let reply = place.ask(&roots).await;
            findings.push(check_own(config, &place, reply));
        }
        None => findings.push(Finding::skipped("own address", "no domain is set")),
    }
    for relay in &config.settings.sync.engine.bootstrap {
        let Some(place) = Place::parse(relay.as_str()) else { continue };
        let reply = place.ask(&roots).await;
        // Only these: at the public address, the server's own clock answers.
        clocks.extend(reply.iter().filter_map(|reply| reply.ahead));
        findings.push(check_bootstrap(relay.as_str(), reply));
    }
    if config.settings.sync.engine.bootstrap.is_empty() {
        findings
            .push(Finding::skipped("outbound", "set --bootstrap to a relay to check DNS and TLS"));
    }
    findings.push(check_clock(&clocks));
    findings
}

/// Returns the server's public address.
fn public_address(config: &Config) -> Option<Place> {
    let domain = config.domain.as_ref()?;
    let scheme = if config.settings.git.secure { "https" } else { "http" };
    Place::parse(&format!("{scheme}://{domain}"))
}

fn check_own(config: &Config, place: &Place, reply: Result<Reply, WireError>) -> Finding {
    let (subject, address) = ("own address", format!("{}:{}", place.host, place.port));
    let reply = match reply {
        Ok(reply) => reply,
        Err(error) => {
            return Finding::failed(subject, format!("{address}: {error}"), error.remedy());
        }
    };
    let Ok(document) = serde_json::from_str::<Value>(&reply.body) else {
        return Finding::failed(
            subject,
            format!("{address} answers with status {} and no NIP-11 document", reply.status),
            "make the proxy forward every request with its Accept header",
        );
    };
    if !has_our_key(config, &document) {
        return Finding::failed(
            subject,
            format!(
                "{address} is another server: {}",
                document["name"].as_str().unwrap_or("without a name")
            ),
            "check the DNS record and the proxy; its key is not the one of this data directory",
        );
    }
    if !reply.shared {
        return Finding::failed(
            subject,
            format!("{address} answers without Access-Control-Allow-Origin"),
            "make the proxy forward that header: web clients need it (GRASP-01)",
        );
    }
    Finding::good(subject, format!("{address} shows the NIP-11 document of this server"))
}

/// Returns whether a NIP-11 document has the key of this data directory. Before the first start there is none, and any
/// key will do.
fn has_our_key(config: &Config, document: &Value) -> bool {
    let Ok(text) = std::fs::read_to_string(config.settings.service_key()) else { return true };
    let Ok(keys) = nostr::key::Keys::parse(text.trim()) else { return true };
    document["self"].as_str() == Some(&keys.public_key().to_hex())
}

fn check_bootstrap(relay: &str, reply: Result<Reply, WireError>) -> Finding {
    match reply {
        Ok(reply) if reply.status < 400 => Finding::good("outbound", format!("{relay} answers")),
        Ok(reply) => Finding::warning(
            "outbound",
            format!("{relay} answers with status {}", reply.status),
            "connect with a nostr client; the relay may require something of its clients",
        ),
        Err(error) => Finding::failed("outbound", format!("{relay}: {error}"), error.remedy()),
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
        0..=MAX_CLOCK_SKEW_SECS => {
            Finding::good("clock", format!("within {} seconds of others", median.abs()))
        }
        skew => Finding::failed(
            "clock",
            format!("{skew} seconds {} others", if *median > 0 { "behind" } else { "ahead of" }),
            "synchronize it with systemd-timesyncd or chrony: the dates of events are checked against it",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let config =
            Config { domain: Some("git.example.com".parse().unwrap()), ..Config::default() };
        let place = public_address(&config).unwrap();
        let reply = Reply { status: 200, shared: true, ahead: None, body: "<html>".into() };
        let finding = check_own(&config, &place, Ok(reply));
        assert!(finding.is_failed() && finding.to_string().contains("Accept header"), "{finding}");
    }

    #[test]
    fn an_address_with_another_key_fails_the_check() {
        let dir = tempfile::tempdir().unwrap();
        let mut config =
            Config { domain: Some("git.example.com".parse().unwrap()), ..Config::default() };
        config.settings.data_dir = dir.path().into();
        let keys = crate::key::load_or_create(&config.settings.service_key()).unwrap();
        let place = public_address(&config).unwrap();
        let check = |key: String, shared| {
            let body = serde_json::json!({ "name": "x", "self": key }).to_string();
            let reply = Reply { status: 200, shared, ahead: None, body };
            check_own(&config, &place, Ok(reply))
        };
        assert!(!check(keys.public_key().to_hex(), true).is_failed());
        assert!(check(keys.public_key().to_hex(), false).is_failed());
        assert!(check("00".repeat(32), true).is_failed());
    }
}
