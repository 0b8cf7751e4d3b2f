//! A sidecar beside relays with the quirks of other software, played by doubles.
//!
//! What they do is documented, or was read in the source: strfry 1.1, nostr-rs-relay 0.10, and relays on khatru such as
//! haven 1.2 (November 2026).

use std::sync::Arc;
use std::time::Duration;

use grasp_core::nostr::event::Event;
use grasp_core::nostr::filter::{Filter, SingleLetterTag};
use grasp_sync::local::{InventoryFailed, SyncedRelay};
use grasp_sync::{Sidecar, Syncer};
use serde_json::{Value, json};

use crate::events::Author;
use crate::local::{Local, TEST_TIMEOUT};
use crate::scripted::{HonestRelay, Quirks};

/// At most 500 events for a filter. A filter that it cannot index is refused by a notice, and never answered. Old and
/// large events are refused.
const STRFRY: Quirks = Quirks {
    max_limit: 500,
    refuse: |req| {
        let is_large = |value: &Value| value.as_str().is_some_and(|text| text.len() > 255);
        let filter = req[2].as_object()?;
        let tags = filter.iter().filter(|(key, _)| key.starts_with('#'));
        let mut values = tags.flat_map(|(_, values)| values.as_array().into_iter().flatten());
        let text = "ERROR: bad req: filter item too large";
        values.any(is_large).then(|| json!(["NOTICE", text]))
    },
    reject: |event| {
        let is_large = event.content.len() > 65_536;
        is_large.then_some("invalid: event too large")
    },
    duplicate: (true, "duplicate: have this event"),
    ..Quirks::NONE
};

/// No limits. Some authors are not on its list.
const NOSTR_RS: Quirks = Quirks {
    reject: |event| {
        let text = "blocked: pubkey is not allowed to publish to this relay";
        event.content.contains("spam").then_some(text)
    },
    duplicate: (true, "duplicate: event already exists"),
    ..Quirks::NONE
};

/// Its store decides on the limit. It greets with a challenge, refuses filters that name nothing, and refuses events
/// without a prefix, or those that it has.
const KHATRU: Quirks = Quirks {
    max_limit: 250,
    greeting: Some(|| json!(["AUTH", "a challenge"])),
    refuse: |req| {
        let filter = req[2].as_object()?;
        let names = |key: &String| !["limit", "since", "until"].contains(&key.as_str());
        let text = "blocked: can't handle empty filters";
        (!filter.keys().any(names)).then(|| json!(["CLOSED", req[1], text]))
    },
    reject: |event| event.content.contains("spam").then_some("no spam here"),
    duplicate: (false, "duplicate: already have this event"),
};

/// Copies a repository with many issues, some of the same second, to a relay with these quirks.
async fn assert_kept_complete(quirks: Quirks) {
    let author = Author::new();
    let repo = author.repo("grasp").to_string();
    let issue = |n: u64| author.issue_at(&repo, &n.to_string(), 1_700_000_000 + n / 40);
    let issues: Vec<Event> = (0..700).map(issue).collect();
    let there = HonestRelay::new(issues.clone());
    let remote = there.start().await;
    there.publish(author.announcement("grasp", &[&remote.url()]));
    let refused = author.issue_at(
        &repo,
        &format!("spam {}", "x".repeat(70_000)),
        1_700_000_000,
    );
    there.publish(refused.clone());
    let here = HonestRelay::quirky(quirks);
    let relay = here.start().await;
    let sidecar = || Arc::new(Sidecar::start(relay.url()));
    let settings = || {
        let mut settings = Local::settings(&[remote.url()]);
        settings.engine.discovery_window = Duration::from_secs(1);
        settings.engine.reply_window = Duration::from_secs(1);
        settings
    };
    let syncer = Syncer::start(sidecar(), settings()).await.unwrap();
    here.until_has(&issues.iter().collect::<Vec<_>>()).await;
    assert!(!here.has(&refused));
    let live = author.issue(&author.repo("grasp"), "live");
    there.publish(live.clone());
    here.until_has(&[&live]).await;
    syncer.stop().await;

    // A second sidecar finds everything there.
    let syncer = Syncer::start(sidecar(), settings()).await.unwrap();
    let waiting = tokio::time::timeout(TEST_TIMEOUT, syncer.until_complete());
    let status = waiting.await.expect("in time");
    let counts = status.relays[&remote.url()].counts;
    assert!(status.is_complete() && counts.stored() == 0, "{counts:?}");
    syncer.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_like_strfry_is_kept_complete() {
    assert_kept_complete(STRFRY).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_like_nostr_rs_relay_is_kept_complete() {
    assert_kept_complete(NOSTR_RS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_like_khatru_is_kept_complete() {
    assert_kept_complete(KHATRU).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filter_that_is_refused_by_a_notice_alone_fails_at_once() {
    let relay = HonestRelay::quirky(STRFRY).start().await;
    let sidecar = Sidecar::start(relay.url());
    let tag = SingleLetterTag::from_char('a').unwrap();
    let filter = |value: String| Filter::new().custom_tag(tag, value);
    // Waiting for an answer would take longer.
    let asked = sidecar.inventory(filter("x".repeat(256)));
    let answered = tokio::time::timeout(Duration::from_secs(5), asked).await;
    assert_eq!(answered, Ok(Err(InventoryFailed::Unreadable)));
    let answered = sidecar.inventory(filter("x".into())).await;
    assert_eq!(answered, Ok(Vec::new()));
}
