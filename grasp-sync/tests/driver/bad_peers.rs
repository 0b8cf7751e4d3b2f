//! Relays that end connections badly, too early, too late or never; that flood, send slowly, or close at once.

use std::time::Duration;

use grasp_core::limits::Health;
use grasp_core::nostr::event::Kind;
use grasp_core::nostr::types::Timestamp;
use grasp_sync::driver::RelayStatus;
use grasp_sync::index::ConnectionStatus;
use serde_json::{Value, json};

use crate::events::Author;
use crate::local::Local;
use crate::scripted::Scripted;
use crate::trial::{Trial, events, is_fetch, properly, relay};

fn has_ended(status: &RelayStatus) -> bool {
    status.connection == ConnectionStatus::Connected && status.backlog == 0
}

#[tokio::test(flavor = "multi_thread")]
async fn an_eose_before_its_events_ends_the_page_and_nothing_is_asked_for_ever() {
    let mut trial = Trial::new().await;
    let bad = relay(None, trial.issues(5), |said, stored, _| {
        let mut words = properly(said, stored);
        words.rotate_right(usize::from(said[0] == "REQ"));
        words
    })
    .await;
    let syncer = trial.begin(&[&bad]).await;
    Local::until_status(&syncer, &bad.url(), has_ended).await;
    trial.is_undisturbed(&syncer).await;
    trial.was_polite(&bad);
}

#[tokio::test(flavor = "multi_thread")]
async fn ends_that_are_said_again_and_again_change_nothing() {
    let mut trial = Trial::new().await;
    let stored = trial.issues(5);
    let bad = relay(None, stored.clone(), |said, stored, _| {
        let mut words = properly(said, stored);
        for _ in 0..20 {
            words.push(json!(["EOSE", said[1]]));
            words.push(json!(["EOSE", "g999999"]));
            words.push(json!(["NEG-ERR", said[1], "rate-limited: too many queries"]));
            if is_fetch(said) {
                words.push(json!(["CLOSED", said[1], "restricted: too late to say so"]));
            }
        }
        words
    })
    .await;
    let syncer = trial.begin(&[&bad]).await;
    trial.arrive(&stored).await;
    Local::until_status(&syncer, &bad.url(), has_ended).await;
    trial.is_undisturbed(&syncer).await;
    trial.was_polite(&bad);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_eose_what_came_is_kept_and_the_request_closed() {
    let mut trial = Trial::new().await;
    let stored = trial.issues(5);
    let mut bad = relay(None, stored.clone(), |said, stored, _| match said[0].as_str() {
        Some("REQ") => events(said, stored),
        _ => properly(said, stored),
    })
    .await;
    let change = |settings: &mut grasp_sync::driver::Settings| {
        settings.engine.watchdog = Duration::from_millis(300);
    };
    let syncer = trial.begin_with(&[&bad], change).await;
    trial.arrive(&stored).await;
    bad.until(|heard| heard.count("CLOSE") >= 2).await;
    trial.is_undisturbed(&syncer).await;
    trial.was_polite(&bad);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_notices_drowns_nobody() {
    let mut trial = Trial::new().await;
    let stored = trial.issues(20);
    let bad = relay(None, stored.clone(), |said, stored, n| {
        let notice = |k: usize| json!(["NOTICE", format!("message {n} of the day, part {k}")]);
        let mut words: Vec<Value> = (0..2_000).map(notice).collect();
        words.extend(properly(said, stored));
        words
    })
    .await;
    let syncer = trial.begin(&[&bad]).await;
    trial.arrive(&stored).await;
    trial.is_undisturbed(&syncer).await;
    trial.was_polite(&bad);
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_without_end_are_asked_for_no_faster_than_others() {
    let mut trial = Trial::new().await;
    let bad = relay(None, vec![], |said, stored, n| {
        if !is_fetch(said) || said[2]["#a"].is_null() {
            return properly(said, stored);
        }
        // Always older events, and never the same.
        let repo = said[2]["#a"][0].as_str().unwrap();
        let until = said[2]["until"].as_u64().unwrap_or(1_700_000_000);
        let author = Author::new();
        let mut words: Vec<Value> = (0..60)
            .map(|k| {
                let issue = author.issue_at(repo, &format!("{n} {k}"), until - 1 - k);
                json!(["EVENT", said[1], issue])
            })
            .collect();
        words.push(json!(["EOSE", said[1]]));
        words
    })
    .await;
    let syncer = trial.begin(&[&bad]).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    trial.is_undisturbed(&syncer).await;
    trial.was_polite(&bad);
    assert!(bad.heard().count("REQ") > 10, "it was believed");
}

#[tokio::test(flavor = "multi_thread")]
async fn more_events_in_one_second_than_a_page_holds_are_asked_for_in_parts() {
    let mut trial = Trial::new().await;
    let other = trial.author.repo("other");
    let mut stored = Vec::new();
    for (n, repo) in [trial.repo.clone(), other].iter().cycle().take(600).enumerate() {
        stored.push(trial.author.issue_at(&repo.to_string(), &n.to_string(), 1_690_000_000));
    }
    let bad = relay(None, stored.clone(), |said, stored, _| properly(said, stored)).await;
    let _ = trial.local.publish(&trial.author.announcement("other", &[&bad.url()]));
    let syncer = trial.begin(&[&bad]).await;
    trial.arrive(&stored).await;
    trial.is_undisturbed(&syncer).await;
    trial.was_polite(&bad);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_too_full_for_one_repository_is_asked_for_by_kind() {
    let mut trial = Trial::new().await;
    let (at, repo) = (Timestamp::from_secs(1_690_000_000), trial.repo.to_string());
    let sign = |n: usize| {
        let kind = [Kind::GitIssue, Kind::GitPatch, Kind::GitStatusOpen][n % 3];
        trial.author.sign_at(at, kind, &n.to_string(), &[&["a", &repo]])
    };
    let stored: Vec<_> = (0..900).map(sign).collect();
    let bad = relay(None, stored.clone(), |said, stored, _| properly(said, stored)).await;
    let syncer = trial.begin(&[&bad]).await;
    trial.arrive(&stored).await;
    trial.is_undisturbed(&syncer).await;
    trial.was_polite(&bad);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_of_64_megabytes_is_not_read() {
    let mut trial = Trial::new().await;
    let bad = Scripted::start(|mut guest| async move {
        guest.next().await;
        let text = format!("[\"NOTICE\",\"{}\"]", "x".repeat(64 * 1024 * 1024));
        guest.say_text(text).await;
        while guest.next().await.is_some() {}
    })
    .await;
    let syncer = trial.begin(&[&bad]).await;
    let is_lost = |status: &RelayStatus| status.health != Health::Healthy;
    Local::until_status(&syncer, &bad.url(), is_lost).await;
    trial.is_undisturbed(&syncer).await;
    assert_eq!(bad.heard().connections, 1, "it is not dialled again at once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_drips_delays_nobody() {
    let mut trial = Trial::new().await;
    let stored = trial.issues(3);
    let dripped = stored.clone();
    let bad = Scripted::start(move |mut guest| {
        let stored = dripped.clone();
        async move {
            while let Some(said) = guest.next().await {
                for word in properly(&said, &stored) {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    guest.say(word).await;
                }
            }
        }
    })
    .await;
    let syncer = trial.begin(&[&bad]).await;
    trial.is_undisturbed(&syncer).await;
    trial.arrive(&stored).await;
    trial.was_polite(&bad);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_door_that_is_slammed_is_not_knocked_at_in_a_loop() {
    let mut trial = Trial::new().await;
    let mut bad = Scripted::start(|_| async {}).await;
    let syncer = trial.begin(&[&bad]).await;
    bad.until(|heard| heard.connections >= 1).await;
    trial.is_undisturbed(&syncer).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(bad.heard().connections, 1, "five seconds are the least between two");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_asks_who_we_are_without_end_is_told_once() {
    let mut trial = Trial::new().await;
    let mut bad = relay(None, trial.issues(3), |said, _, n| {
        let challenge = json!(["AUTH", format!("challenge {n}")]);
        let again = match said[0].as_str() {
            Some("AUTH") => json!(["OK", said[1]["id"], true, ""]),
            Some("REQ") => json!(["CLOSED", said[1], "auth-required: who are you?"]),
            Some("NEG-OPEN") => json!(["NEG-ERR", said[1], "auth-required: who are you?"]),
            _ => return vec![],
        };
        vec![challenge.clone(), again, challenge]
    })
    .await;
    let keys = trial.author.0.clone();
    let syncer = trial.begin_with(&[&bad], |settings| settings.keys = Some(keys)).await;
    bad.until(|heard| heard.count("AUTH") >= 1).await;
    trial.is_undisturbed(&syncer).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let heard = bad.heard();
    assert_eq!(heard.count("AUTH"), 1);
    assert!(heard.count("REQ") + heard.count("NEG-OPEN") <= 16, "each once, and once more");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_of_few_subscriptions_few_filters_and_short_pages_gives_all_it_has() {
    let mut trial = Trial::new().await;
    let mut stored: Vec<_> = (0..350)
        .map(|n| {
            trial.author.issue_at(&trial.repo.to_string(), &n.to_string(), 1_690_000_000 + 60 * n)
        })
        .collect();
    let comments: Vec<_> =
        stored.iter().step_by(4).map(|issue| trial.author.comment(issue.id, "so it is")).collect();
    stored.extend(comments);
    let card = json!({ "limitation": { "max_subscriptions": 20 } });
    let bad = relay(Some(card), stored.clone(), |said, stored, _| {
        let filters = said.as_array().map_or(0, |said| said.len().saturating_sub(2));
        if said[0] == "REQ" && filters > 3 {
            let text = "rate-limited: REQ exceeds max filter count 3";
            return vec![json!(["CLOSED", said[1], text])];
        }
        let mut said = said.clone();
        for filter in said.as_array_mut().unwrap().iter_mut().skip(2) {
            if filter["limit"].as_u64().is_some_and(|limit| limit > 100) {
                filter["limit"] = json!(100);
            }
        }
        properly(&said, stored)
    })
    .await;
    let syncer = trial.begin(&[&bad]).await;
    trial.arrive(&stored).await;
    trial.is_undisturbed(&syncer).await;
    trial.was_polite(&bad);
}
