//! A sidecar keeps a relay of another kind complete.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use grasp_core::kinds;
use grasp_core::nostr::event::{Event, Kind};
use grasp_core::nostr::filter::Filter;
use grasp_core::nostr::types::Timestamp;
use grasp_sync::engine::Row;
use grasp_sync::local::{News, SyncedRelay};
use grasp_sync::{Sidecar, Syncer};
use serde_json::json;

use crate::events::Author;
use crate::local::Local;
use crate::scripted::{HonestRelay, Received, Scripted};

/// Two relays, and a sidecar that has copied a repository with an issue and a comment from one to the other.
struct Kept {
    author: Author,
    events: Vec<Event>,
    there: HonestRelay,
    here: HonestRelay,
    syncer: Syncer,
    _relays: [Scripted; 2],
}

impl Kept {
    async fn complete() -> Self {
        let author = Author::new();
        let issue = author.issue(&author.repo("grasp"), "it does not work");
        let comment = author.comment(issue.id, "it does for me");
        let there = HonestRelay::new([issue.clone(), comment.clone()]);
        let remote = there.start().await;
        let announcement = author.announcement("grasp", &[&remote.url()]);
        there.publish(announcement.clone());
        let here = HonestRelay::new([]);
        let relay = here.start().await;
        let sidecar = Arc::new(Sidecar::start(relay.url()));
        let syncer = Syncer::start(sidecar, Local::settings(&[remote.url()]))
            .await
            .unwrap();
        let events = vec![issue, announcement, comment];
        let kept = Self {
            author,
            events,
            there,
            here,
            syncer,
            _relays: [remote, relay],
        };
        kept.until_complete().await;
        kept
    }

    async fn until_complete(&self) {
        self.here
            .until_has(&self.events.iter().collect::<Vec<_>>())
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn any_relay_is_kept_complete_over_its_own_websocket() {
    let kept = Kept::complete().await;
    let later = kept.author.comment(kept.events[0].id, "live");
    kept.there.publish(later.clone());
    kept.here.until_has(&[&later]).await;
    let week_ago = Timestamp::now().as_secs() - 7 * 24 * 60 * 60;
    let repo = kept.author.repo("grasp").to_string();
    let old = kept.author.issue_at(&repo, "imported", week_ago);
    kept.there.publish(old.clone());
    kept.here.until_has(&[&old]).await;
    kept.syncer.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_refuses_limit_zero_is_subscribed_with_limit_one_and_without_since() {
    let author = Author::new();
    let old = author.issue_at(&author.repo("grasp").to_string(), "imported", 1_600_000_000);
    let event = old.clone();
    let relay = Scripted::start(move |mut client| {
        let event = event.clone();
        async move {
            while let Some(message) = client.next().await {
                let is_live = message[2]["limit"] == 1 && message[2]["since"].is_null();
                if message[0] == "REQ" && message[2]["limit"] == 0 {
                    client
                        .send(json!([
                            "CLOSED",
                            message[1],
                            "invalid: limit must be positive"
                        ]))
                        .await;
                } else if message[0] == "REQ" && is_live {
                    client.send(json!(["EOSE", message[1]])).await;
                    client.send(json!(["EVENT", message[1], event])).await;
                } else if message[0] == "REQ" {
                    client.send(json!(["EOSE", message[1]])).await;
                }
            }
        }
    })
    .await;
    let sidecar = Sidecar::start(relay.url());
    let mut feed = sidecar.accepted(&kinds::SELF_SUBSCRIPTION_KINDS);
    while !matches!(feed.next().await.unwrap(), News::Accepted(event) if event.id == old.id) {}
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_lost_its_events_is_filled_again() {
    let kept = Kept::complete().await;
    kept.here.lose_everything();
    kept.until_complete().await;
    kept.syncer.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_states_are_copied_for_a_held_announcement_until_it_is_served() {
    let author = Author::new();
    let issue = author.issue(&author.repo("grasp"), "it does not work");
    let state = author.sign(Kind::RepoState, "", &[&["d", "grasp"]]);
    let there = HonestRelay::new([issue.clone(), state.clone()]);
    let remote = there.start().await;
    let announcement = author.announcement("grasp", &[&remote.url()]);
    there.publish(announcement.clone());
    let here = HonestRelay::holding();
    let relay = here.start().await;

    let sidecar = Arc::new(Sidecar::start(relay.url()));
    let syncer = Syncer::start(sidecar, Local::settings(&[remote.url()]))
        .await
        .unwrap();
    here.until_has(&[&state]).await;
    assert!(!here.has(&announcement) && !here.has(&issue));
    let asked = |received: &Received, kind: u16| {
        received
            .messages
            .iter()
            .any(|(_, message)| message.to_string().contains(&kind.to_string()))
    };
    assert!(
        !asked(&remote.received(), 1621),
        "issues of a held repository are not requested"
    );
    here.publish(announcement);
    here.until_has(&[&issue]).await;
    syncer.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_names_an_addressable_event_of_any_kind_is_copied_after_a_restart() {
    let author = Author::new();
    let repo = author.repo("grasp").to_string();
    let named = |kind: u16, name: &str| format!("{kind}:{}:{name}", author.0.public_key());
    let article = author.sign(Kind::from(30_023), "", &[&["d", "intro"], &["a", &repo]]);
    let page = author.sign(
        Kind::from(30_818),
        "",
        &[&["d", "page"], &["a", &named(30_023, "intro")]],
    );
    let about_page = author.sign(Kind::Comment, "", &[&["a", &named(30_818, "page")]]);
    let there = HonestRelay::new([about_page.clone()]);
    let remote = there.start().await;
    // They are here since an earlier run, which a sidecar without records knows nothing of.
    let announcement = author.announcement("grasp", &[&remote.url()]);
    let here = HonestRelay::new([announcement.clone(), article, page]);
    there.publish(announcement);
    let relay = here.start().await;
    let sidecar = Arc::new(Sidecar::start(relay.url()));
    let mut settings = Local::settings(&[remote.url()]);
    settings.engine.discovery_window = Duration::from_secs(1);
    let syncer = Syncer::start(sidecar, settings).await.unwrap();
    here.until_has(&[&about_page]).await;
    syncer.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_inventory_is_complete_however_the_relay_limits_its_pages() {
    let author = Author::new();
    let at = |second: u64, kind, n: u64| {
        let at = Timestamp::from_secs(1_700_000_000 + second);
        author.sign_at(at, kind, &format!("{n} of {second}"), &[])
    };
    // Many pages, and a second with more events than a page, unless each kind is requested alone.
    let mut events: Vec<_> = (0..120).map(|n| at(n / 3, Kind::Comment, n)).collect();
    events.extend((0..40).map(|n| at(7, Kind::GitIssue, n)));
    events.extend((0..40).map(|n| at(7, Kind::GitPatch, n)));
    let stored = events.clone();
    let relay = Scripted::start(move |mut client| {
        let stored = stored.clone();
        async move {
            while let Some(mut message) = client.next().await {
                if message[0] == "REQ" {
                    message[2]["limit"] = json!(message[2]["limit"].as_u64().unwrap().min(50));
                    client.answer(&message, &stored).await;
                }
            }
        }
    })
    .await;
    let sidecar = Sidecar::start(relay.url());
    let filter = Filter::new().kinds([Kind::Comment, Kind::GitIssue, Kind::GitPatch]);
    for _ in 0..2 {
        let mut rows = sidecar.inventory(filter.clone()).await.unwrap();
        rows.sort();
        let mut wanted: Vec<_> = events.iter().map(Row::of).collect();
        wanted.sort();
        assert_eq!(rows, wanted);
    }
    assert_eq!(
        relay.received().connections,
        1,
        "the connection is used again"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_feed_continues_where_it_ended() {
    let author = Author::new();
    let announcements: Vec<_> = (0..3)
        .map(|n| author.announcement(&n.to_string(), &[]))
        .collect();
    let sent = announcements.clone();
    let relay = Scripted::start(move |mut client| {
        // The second connection finds one more event; the first is cut after its page.
        let stored: Vec<_> = sent[..2 + client.number.min(1)].to_vec();
        async move {
            let mut pages = 0;
            while let Some(message) = client.next().await {
                if message[0] != "REQ" {
                    continue;
                }
                if message[2]["limit"] == 0 {
                    client.answer(&message, &[]).await;
                    continue;
                }
                client.answer(&message, &stored).await;
                pages += 1;
                if client.number == 0 && pages == 4 {
                    return;
                }
            }
        }
    })
    .await;
    let sidecar = Sidecar::start(relay.url());
    let mut feed = sidecar.accepted(&kinds::SELF_SUBSCRIPTION_KINDS);
    let mut delivered = Vec::new();
    let mut caught_up = 0;
    while delivered.len() < 3 {
        match feed.next().await.unwrap() {
            News::Accepted(event) if !delivered.contains(&event.id) => delivered.push(event.id),
            News::CaughtUp => caught_up += 1,
            _ => {}
        }
    }
    assert_eq!(caught_up, 1);
    assert!(
        announcements
            .iter()
            .all(|event| delivered.contains(&event.id))
    );
}
