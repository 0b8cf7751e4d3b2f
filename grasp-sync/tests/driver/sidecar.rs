//! A relay of another kind, kept complete by a sidecar.

use std::sync::Arc;

use futures_util::StreamExt as _;
use grasp_core::kinds;
use grasp_core::nostr::event::{Event, Kind};
use grasp_core::nostr::filter::Filter;
use grasp_core::nostr::types::Timestamp;
use grasp_sync::engine::Row;
use grasp_sync::local::{LocalRelay, News};
use grasp_sync::{Sidecar, Syncer};
use serde_json::json;

use crate::events::Author;
use crate::local::Local;
use crate::scripted::{Heard, Honest, Scripted};

/// Copies a repository with an issue and a comment on it from one relay to another.
struct Kept {
    author: Author,
    events: Vec<Event>,
    there: Honest,
    here: Honest,
    syncer: Syncer,
    _relays: [Scripted; 2],
}

impl Kept {
    async fn complete() -> Self {
        let author = Author::new();
        let issue = author.issue(&author.repo("grasp"), "it does not work");
        let comment = author.comment(issue.id, "it does for me");
        let there = Honest::new([issue.clone(), comment.clone()]);
        let remote = there.start().await;
        let announcement = author.announcement("grasp", &[&remote.url()]);
        there.publish(announcement.clone());
        let here = Honest::new([]);
        let relay = here.start().await;
        let sidecar = Arc::new(Sidecar::start(relay.url()));
        let syncer = Syncer::start(sidecar, Local::settings(&[remote.url()])).await.unwrap();
        let events = vec![issue, announcement, comment];
        let kept = Self { author, events, there, here, syncer, _relays: [remote, relay] };
        kept.until_complete().await;
        kept
    }

    async fn until_complete(&self) {
        self.here.until_has(&self.events.iter().collect::<Vec<_>>()).await;
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
async fn a_relay_that_takes_no_limit_of_zero_is_followed_with_one_and_whatever_the_date() {
    let author = Author::new();
    let old = author.issue_at(&author.repo("grasp").to_string(), "imported", 1_600_000_000);
    let event = old.clone();
    let relay = Scripted::start(move |mut guest| {
        let event = event.clone();
        async move {
            while let Some(said) = guest.next().await {
                let is_standing = said[2]["limit"] == 1 && said[2]["since"].is_null();
                if said[0] == "REQ" && said[2]["limit"] == 0 {
                    guest.say(json!(["CLOSED", said[1], "invalid: limit must be positive"])).await;
                } else if said[0] == "REQ" && is_standing {
                    guest.say(json!(["EOSE", said[1]])).await;
                    guest.say(json!(["EVENT", said[1], event])).await;
                } else if said[0] == "REQ" {
                    guest.say(json!(["EOSE", said[1]])).await;
                }
            }
        }
    })
    .await;
    let sidecar = Sidecar::start(relay.url());
    let mut feed = sidecar.accepted(&kinds::SELF_SUBSCRIPTION_KINDS);
    while !matches!(feed.next().await.unwrap(), News::Accepted(told) if told.id == old.id) {}
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_comes_back_emptied_is_filled_again() {
    let kept = Kept::complete().await;
    kept.here.lose_everything();
    kept.until_complete().await;
    kept.syncer.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_an_announcement_that_waits_there_only_states_are_brought_until_it_is_served() {
    let author = Author::new();
    let issue = author.issue(&author.repo("grasp"), "it does not work");
    let state = author.sign(Kind::RepoState, "", &[&["d", "grasp"]]);
    let there = Honest::new([issue.clone(), state.clone()]);
    let remote = there.start().await;
    let announcement = author.announcement("grasp", &[&remote.url()]);
    there.publish(announcement.clone());
    let here = Honest::holding();
    let relay = here.start().await;

    let sidecar = Arc::new(Sidecar::start(relay.url()));
    let syncer = Syncer::start(sidecar, Local::settings(&[remote.url()])).await.unwrap();
    here.until_has(&[&state]).await;
    assert!(!here.has(&announcement) && !here.has(&issue));
    let asked = |heard: &Heard, kind: u16| {
        heard.messages.iter().any(|(_, said)| said.to_string().contains(&kind.to_string()))
    };
    assert!(!asked(&remote.heard(), 1621), "nobody asks for issues of what waits");
    here.publish(announcement);
    here.until_has(&[&issue]).await;
    syncer.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_inventory_is_everything_however_the_relay_cuts_it() {
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
    let relay = Scripted::start(move |mut guest| {
        let stored = stored.clone();
        async move {
            while let Some(mut said) = guest.next().await {
                if said[0] == "REQ" {
                    said[2]["limit"] = json!(said[2]["limit"].as_u64().unwrap().min(50));
                    guest.answer(&said, &stored).await;
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
    assert_eq!(relay.heard().connections, 1, "the connection is used again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_feed_goes_on_where_it_was_lost() {
    let author = Author::new();
    let announcements: Vec<_> = (0..3).map(|n| author.announcement(&n.to_string(), &[])).collect();
    let sent = announcements.clone();
    let relay = Scripted::start(move |mut guest| {
        // The second connection finds one more event; the first is cut after its page.
        let stored: Vec<_> = sent[..2 + guest.number.min(1)].to_vec();
        async move {
            let mut pages = 0;
            while let Some(said) = guest.next().await {
                if said[0] != "REQ" || said[2]["limit"] == 0 {
                    continue;
                }
                guest.answer(&said, &stored).await;
                pages += 1;
                if guest.number == 0 && pages == 3 {
                    return;
                }
            }
        }
    })
    .await;
    let sidecar = Sidecar::start(relay.url());
    let mut feed = sidecar.accepted(&kinds::SELF_SUBSCRIPTION_KINDS);
    let mut told = Vec::new();
    let mut caught_up = 0;
    while told.len() < 3 {
        match feed.next().await.unwrap() {
            News::Accepted(event) if !told.contains(&event.id) => told.push(event.id),
            News::CaughtUp => caught_up += 1,
            _ => {}
        }
    }
    assert_eq!(caught_up, 1);
    assert!(announcements.iter().all(|event| told.contains(&event.id)));
}
