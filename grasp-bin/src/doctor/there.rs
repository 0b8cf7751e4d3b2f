//! What can be seen from outside, and of the outside.

use grasp_sync::Roots;
use serde_json::Value;

use super::Finding;
use crate::config::Config;
use crate::roots;
use crate::wire::{Place, Reply, WireError};

/// Clocks that differ by more make events of one side come from the other's future.
const MOST_SKEW: i64 = 30;

/// How others see us, the relays that the operator named, and what time they say it is.
pub(super) async fn findings(config: &Config) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut clocks = Vec::new();
    let roots = match roots::for_relays(&config.settings) {
        Ok(roots) => roots,
        Err(error) => {
            let remedy = "let trusted_roots name a PEM file that the server may read";
            findings.push(Finding::bad("trusted_roots", format!("{error:#}"), remedy));
            Roots::default()
        }
    };
    match own(config) {
        Some(place) => {
            let seen = place.ask(&roots).await;
            findings.push(as_others_see_us(config, &place, seen));
        }
        None => findings.push(Finding::skipped("own address", "no domain is set")),
    }
    for relay in &config.settings.sync.engine.bootstrap {
        let Some(place) = Place::parse(relay.as_str()) else { continue };
        let seen = place.ask(&roots).await;
        // A clock of our own says nothing about our clock; those of others do.
        clocks.extend(seen.iter().filter_map(|reply| reply.ahead));
        findings.push(bootstrap(relay.as_str(), seen));
    }
    if config.settings.sync.engine.bootstrap.is_empty() {
        findings
            .push(Finding::skipped("outbound", "name a relay with --bootstrap to try DNS and TLS"));
    }
    findings.push(clock(&clocks));
    findings
}

/// Where others find us.
fn own(config: &Config) -> Option<Place> {
    let domain = config.domain.as_ref()?;
    let scheme = if config.settings.git.secure { "https" } else { "http" };
    Place::parse(&format!("{scheme}://{domain}"))
}

fn as_others_see_us(config: &Config, place: &Place, seen: Result<Reply, WireError>) -> Finding {
    let (about, at) = ("own address", format!("{}:{}", place.host, place.port));
    let reply = match seen {
        Ok(reply) => reply,
        Err(error) => return Finding::bad(about, format!("{at}: {error}"), error.remedy()),
    };
    let Ok(card) = serde_json::from_str::<Value>(&reply.body) else {
        return Finding::bad(
            about,
            format!("{at} answers with {} and no NIP-11 document", reply.status),
            "let the proxy pass everything on, the Accept header included",
        );
    };
    if !is_ours(config, &card) {
        return Finding::bad(
            about,
            format!(
                "{at} is another server: {}",
                card["name"].as_str().unwrap_or("without a name")
            ),
            "check the DNS record and the proxy; the key it shows is not the one of this data directory",
        );
    }
    if !reply.shared {
        return Finding::bad(
            about,
            format!("{at} lost its Access-Control-Allow-Origin on the way"),
            "let the proxy pass the header on: web clients need it (GRASP-01)",
        );
    }
    Finding::good(about, format!("{at} shows the NIP-11 document of this server"))
}

/// Whether a card shows the key of this data directory. Before the first start there is none to compare.
fn is_ours(config: &Config, card: &Value) -> bool {
    let Ok(text) = std::fs::read_to_string(config.settings.service_key()) else { return true };
    let Ok(keys) = nostr::key::Keys::parse(text.trim()) else { return true };
    card["self"].as_str() == Some(&keys.public_key().to_hex())
}

fn bootstrap(relay: &str, seen: Result<Reply, WireError>) -> Finding {
    match seen {
        Ok(reply) if reply.status < 400 => Finding::good("outbound", format!("{relay} answers")),
        Ok(reply) => Finding::odd(
            "outbound",
            format!("{relay} answers with {}", reply.status),
            "look at it with a nostr client; perhaps it wants something of its guests",
        ),
        Err(error) => Finding::bad("outbound", format!("{relay}: {error}"), error.remedy()),
    }
}

/// The clock that most others would agree on is the one in the middle.
fn clock(ahead: &[i64]) -> Finding {
    let mut ahead = ahead.to_vec();
    ahead.sort_unstable();
    let Some(middle) = ahead.get(ahead.len() / 2) else {
        return Finding::skipped("clock", "nobody was there to compare with");
    };
    match middle.abs() {
        0..=MOST_SKEW => {
            Finding::good("clock", format!("within {} seconds of others", middle.abs()))
        }
        skew => Finding::bad(
            "clock",
            format!("{skew} seconds {} others", if *middle > 0 { "behind" } else { "ahead of" }),
            "let systemd-timesyncd or chrony set it: signed events are judged by it",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_is_compared_with_the_one_in_the_middle() {
        assert!(!clock(&[]).is_bad());
        assert!(!clock(&[2, -1, 90_000]).is_bad());
        let behind = clock(&[3_600]);
        assert!(behind.is_bad() && behind.to_string().contains("3600 seconds behind"), "{behind}");
    }

    #[test]
    fn a_page_that_is_no_nip11_document_is_not_us() {
        let config =
            Config { domain: Some("git.example.com".parse().unwrap()), ..Config::default() };
        let place = own(&config).unwrap();
        let reply = Reply { status: 200, shared: true, ahead: None, body: "<html>".into() };
        let finding = as_others_see_us(&config, &place, Ok(reply));
        assert!(finding.is_bad() && finding.to_string().contains("Accept header"), "{finding}");
    }

    #[test]
    fn another_key_is_another_server() {
        let dir = tempfile::tempdir().unwrap();
        let mut config =
            Config { domain: Some("git.example.com".parse().unwrap()), ..Config::default() };
        config.settings.data_dir = dir.path().into();
        let keys = crate::key::load_or_create(&config.settings.service_key()).unwrap();
        let place = own(&config).unwrap();
        let seen = |key: String, shared| {
            let body = serde_json::json!({ "name": "x", "self": key }).to_string();
            as_others_see_us(&config, &place, Ok(Reply { status: 200, shared, ahead: None, body }))
        };
        assert!(!seen(keys.public_key().to_hex(), true).is_bad());
        assert!(seen(keys.public_key().to_hex(), false).is_bad());
        assert!(seen("00".repeat(32), true).is_bad());
    }
}
