//! A sidecar beside relays with the quirks of other software, played by doubles.
//!
//! What they do is documented, or was read in the source: strfry 1.1, nostr-rs-relay 0.10, and relays on khatru such as
//! haven 1.2 (November 2026).

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use grasp_core::nostr::event::{Event, Kind};
use grasp_core::nostr::filter::{Filter, SingleLetterTag};
use grasp_core::nostr::types::Timestamp;
use grasp_core::{RepoId, kinds};
use grasp_sync::local::{InventoryFailed, News, SyncedRelay};
use grasp_sync::{Sidecar, Syncer};
use serde_json::{Value, json};

use crate::events::Author;
use crate::local::{Local, TEST_TIMEOUT};
use crate::scripted::{HonestRelay, Quirks};

/// At most 500 events for a filter, and 20 subscriptions. A filter that it cannot index and a subscription too many are refused
/// by a notice, and never answered. Its reasons begin with `ERROR: `. Large, old and future events are refused, and large tags.
const STRFRY: Quirks = Quirks {
    max_limit: 500,
    max_subs: (20, "ERROR: too many concurrent REQs"),
    refuse: |req| strfry_refuses(req).map(|text| json!(["NOTICE", text])),
    reject: |event| {
        const YEAR: u64 = 365 * 24 * 60 * 60;
        let (at, now) = (event.created_at.as_secs(), Timestamp::now().as_secs());
        let mut values = event.tags.iter().flat_map(|tag| tag.as_slice());
        if json!(event).to_string().len() > 65_536 {
            return Some("invalid: event too large");
        }
        if at < now - 3 * YEAR || at > now + 900 {
            return Some("invalid: created_at too early or too late");
        }
        if event.tags.len() > 2_000 || values.any(|value| value.len() > 1_024) {
            return Some("invalid: tag val too large");
        }
        None
    },
    duplicate: (true, "duplicate: have this event"),
    ..Quirks::NONE
};

/// Returns how strfry refuses a REQ, if it does.
fn strfry_refuses(req: &Value) -> Option<&'static str> {
    if req[1].as_str()?.len() > 64 {
        return Some("ERROR: bad req: subscription id too long");
    }
    for filter in req.as_array()?.iter().skip(2) {
        let mut names = 0;
        for (key, values) in filter.as_object()? {
            let known = ["ids", "authors", "kinds", "since", "until", "limit"];
            names += usize::from(key.starts_with('#'));
            if !key.starts_with('#') && !known.contains(&key.as_str()) {
                return Some("ERROR: bad req: unrecognised filter item");
            }
            let mut bytes = 0;
            let texts = values.as_array().into_iter().flatten();
            for text in texts.filter_map(Value::as_str) {
                let is_id = ["ids", "authors", "#e", "#p"].contains(&key.as_str());
                let is_hex = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
                bytes += if is_id { 32 } else { text.len() };
                if text.len() > 255 {
                    return Some("ERROR: bad req: filter item too large");
                }
                if is_id && !is_hex {
                    return Some("ERROR: bad req: filter item too small");
                }
            }
            if bytes > 65_535 {
                return Some("ERROR: bad req: total filter items too large");
            }
        }
        if names > 3 {
            return Some("ERROR: bad req: too many tags in filter");
        }
    }
    None
}

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
        let text = "blocked: can't handle empty filters";
        names_nothing(req).then(|| json!(["CLOSED", req[1], text]))
    },
    reject: |event| event.content.contains("spam").then_some("no spam here"),
    duplicate: (false, "duplicate: already have this event"),
    ..Quirks::NONE
};

/// Returns whether the first filter of a REQ has neither kinds nor anything else that events are indexed by.
fn names_nothing(req: &Value) -> bool {
    let names = |key: &String| !["limit", "since", "until"].contains(&key.as_str());
    let filter = req[2].as_object();
    filter.is_some_and(|filter| !filter.keys().any(names))
}

/// Returns events of a repository that some relays refuse: large or unwanted, old, and with a large tag.
fn odd_events(author: &Author, repo: &RepoId) -> [Event; 3] {
    let address = repo.to_string();
    let large = format!("spam {}", "x".repeat(70_000));
    let [a, t] = [["a", &address], ["t", &large[..2_000]]];
    [
        author.issue(repo, &large),
        author.issue_at(&address, "old", 1_500_000_000),
        author.sign(Kind::GitIssue, "with a large tag", &[&a, &t]),
    ]
}

/// Copies a repository with many issues, some of the same second, to a relay with these quirks.
async fn assert_kept_complete(quirks: Quirks) {
    let author = Author::new();
    let repo = author.repo("grasp");
    let since = Timestamp::now().as_secs() - 100_000;
    let issue = |n: u64| author.issue_at(&repo.to_string(), &n.to_string(), since + n / 40);
    let mut issues: Vec<Event> = (0..700).map(issue).collect();
    let there = HonestRelay::new(issues.clone());
    let remote = there.start().await;
    there.publish(author.announcement("grasp", &[&remote.url()]));
    let mut refused = Vec::new();
    for event in odd_events(&author, &repo) {
        there.publish(event.clone());
        match (quirks.reject)(&event) {
            Some(_) => refused.push(event),
            None => issues.push(event),
        }
    }
    assert!(!refused.is_empty());
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
    assert!(!refused.iter().any(|event| here.has(event)));
    let live = author.issue(&repo, "live");
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

#[tokio::test(flavor = "multi_thread")]
async fn a_live_subscription_that_is_refused_by_a_notice_alone_is_made_with_another_filter() {
    let quirks = Quirks {
        refuse: |req| {
            let text = "ERROR: bad req: filter must specify kinds";
            names_nothing(req).then(|| json!(["NOTICE", text]))
        },
        ..STRFRY
    };
    let here = HonestRelay::quirky(quirks);
    let relay = here.start().await;
    let sidecar = Sidecar::start(relay.url());
    let mut feed = sidecar.accepted(&kinds::SELF_SUBSCRIPTION_KINDS);
    assert_eq!(feed.next().await, Some(News::CaughtUp));
    let author = Author::new();
    let issue = author.issue(&author.repo("grasp"), "live");
    here.publish(issue.clone());
    assert_eq!(feed.next().await, Some(News::Accepted(Arc::new(issue))));
    assert_eq!(relay.received().connections, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_subscription_is_left_open_but_the_live_one() {
    // One is live, and one reads. A third is never answered.
    let quirks = Quirks {
        max_subs: (2, "ERROR: too many concurrent REQs"),
        ..STRFRY
    };
    let here = HonestRelay::quirky(quirks);
    let author = Author::new();
    here.publish(author.announcement("grasp", &[]));
    let relay = here.start().await;
    let sidecar = Sidecar::start(relay.url());
    let mut feed = sidecar.accepted(&kinds::SELF_SUBSCRIPTION_KINDS);
    while feed.next().await != Some(News::CaughtUp) {}
    for _ in 0..30 {
        let listed = sidecar.inventory(Filter::new().kind(Kind::GitRepoAnnouncement));
        assert_eq!(listed.await.map(|rows| rows.len()), Ok(1));
    }
    assert_eq!(relay.received().connections, 2);
}
