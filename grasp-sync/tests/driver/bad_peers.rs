//! Relays that end connections badly, too early, too late or never; that flood, send slowly, or close at once.

use std::time::Duration;

use grasp_core::limits::Health;
use grasp_core::nostr::event::Kind;
use grasp_core::nostr::types::Timestamp;
use grasp_core::sync::ConnectionStatus;
use grasp_sync::driver::RelayStatus;
use serde_json::{Value, json};

use crate::events::Author;
use crate::local::Local;
use crate::scripted::Scripted;
use crate::trial::{Trial, events, is_fetch, relay, well_behaved_answers};

fn has_ended(status: &RelayStatus) -> bool {
    status.connection == ConnectionStatus::Connected && status.backlog == 0
}

#[tokio::test(flavor = "multi_thread")]
async fn an_eose_before_its_events_ends_the_page_and_requests_end() {
    let mut trial = Trial::new().await;
    let bad = relay(None, trial.issues(5), |message, stored, _| {
        let mut answers = well_behaved_answers(message, stored);
        answers.rotate_right(usize::from(message[0] == "REQ"));
        answers
    })
    .await;
    let syncer = trial.start_sync(&[&bad]).await;
    Local::until_status(&syncer, &bad.url(), has_ended).await;
    trial.assert_undisturbed(&syncer).await;
    trial.assert_within_limits(&bad);
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_ends_of_a_subscription_change_nothing() {
    let mut trial = Trial::new().await;
    let stored = trial.issues(5);
    let bad = relay(None, stored.clone(), |message, stored, _| {
        let mut answers = well_behaved_answers(message, stored);
        for _ in 0..20 {
            answers.push(json!(["EOSE", message[1]]));
            answers.push(json!(["EOSE", "g999999"]));
            answers.push(json!([
                "NEG-ERR",
                message[1],
                "rate-limited: too many queries"
            ]));
            if is_fetch(message) {
                answers.push(json!([
                    "CLOSED",
                    message[1],
                    "restricted: too late to say so"
                ]));
            }
        }
        answers
    })
    .await;
    let syncer = trial.start_sync(&[&bad]).await;
    trial.assert_arrive(&stored).await;
    Local::until_status(&syncer, &bad.url(), has_ended).await;
    trial.assert_undisturbed(&syncer).await;
    trial.assert_within_limits(&bad);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_eose_events_are_kept_and_the_request_is_closed() {
    let mut trial = Trial::new().await;
    let stored = trial.issues(5);
    let mut bad = relay(None, stored.clone(), |message, stored, _| {
        match message[0].as_str() {
            Some("REQ") => events(message, stored),
            _ => well_behaved_answers(message, stored),
        }
    })
    .await;
    let change = |settings: &mut grasp_sync::driver::Settings| {
        settings.engine.watchdog = Duration::from_millis(300);
    };
    let syncer = trial.start_sync_with(&[&bad], change).await;
    trial.assert_arrive(&stored).await;
    bad.until(|received| received.count("CLOSE") >= 2).await;
    trial.assert_undisturbed(&syncer).await;
    trial.assert_within_limits(&bad);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_notices_does_not_affect_other_relays() {
    let mut trial = Trial::new().await;
    let stored = trial.issues(20);
    let bad = relay(None, stored.clone(), |message, stored, n| {
        let notice = |k: usize| json!(["NOTICE", format!("message {n} of the day, part {k}")]);
        let mut answers: Vec<Value> = (0..2_000).map(notice).collect();
        answers.extend(well_behaved_answers(message, stored));
        answers
    })
    .await;
    let syncer = trial.start_sync(&[&bad]).await;
    trial.assert_arrive(&stored).await;
    trial.assert_undisturbed(&syncer).await;
    trial.assert_within_limits(&bad);
}

#[tokio::test(flavor = "multi_thread")]
async fn endless_pages_are_requested_within_the_rate_limit() {
    let mut trial = Trial::new().await;
    let bad = relay(None, vec![], |message, stored, n| {
        if !is_fetch(message) || message[2]["#a"].is_null() {
            return well_behaved_answers(message, stored);
        }
        // Always older events, and never the same.
        let repo = message[2]["#a"][0].as_str().unwrap();
        let until = message[2]["until"].as_u64().unwrap_or(1_700_000_000);
        let author = Author::new();
        let mut answers: Vec<Value> = (0..60)
            .map(|k| {
                let issue = author.issue_at(repo, &format!("{n} {k}"), until - 1 - k);
                json!(["EVENT", message[1], issue])
            })
            .collect();
        answers.push(json!(["EOSE", message[1]]));
        answers
    })
    .await;
    let syncer = trial.start_sync(&[&bad]).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    trial.assert_undisturbed(&syncer).await;
    trial.assert_within_limits(&bad);
    assert!(bad.received().count("REQ") > 10, "its pages were requested");
}

#[tokio::test(flavor = "multi_thread")]
async fn more_events_in_one_second_than_a_page_holds_are_requested_in_parts() {
    let mut trial = Trial::new().await;
    let other = trial.author.repo("other");
    let mut stored = Vec::new();
    for (n, repo) in [trial.repo.clone(), other]
        .iter()
        .cycle()
        .take(600)
        .enumerate()
    {
        stored.push(
            trial
                .author
                .issue_at(&repo.to_string(), &n.to_string(), 1_690_000_000),
        );
    }
    let bad = relay(None, stored.clone(), |message, stored, _| {
        well_behaved_answers(message, stored)
    })
    .await;
    let _ = trial
        .local
        .publish(&trial.author.announcement("other", &[&bad.url()]));
    let syncer = trial.start_sync(&[&bad]).await;
    trial.assert_arrive(&stored).await;
    trial.assert_undisturbed(&syncer).await;
    trial.assert_within_limits(&bad);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_with_too_many_events_of_a_repository_is_requested_by_kind() {
    let mut trial = Trial::new().await;
    let (at, repo) = (Timestamp::from_secs(1_690_000_000), trial.repo.to_string());
    let sign = |n: usize| {
        let kind = [Kind::GitIssue, Kind::GitPatch, Kind::GitStatusOpen][n % 3];
        trial
            .author
            .sign_at(at, kind, &n.to_string(), &[&["a", &repo]])
    };
    let stored: Vec<_> = (0..900).map(sign).collect();
    let bad = relay(None, stored.clone(), |message, stored, _| {
        well_behaved_answers(message, stored)
    })
    .await;
    let syncer = trial.start_sync(&[&bad]).await;
    trial.assert_arrive(&stored).await;
    trial.assert_undisturbed(&syncer).await;
    trial.assert_within_limits(&bad);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_of_64_megabytes_is_not_read() {
    let mut trial = Trial::new().await;
    let bad = Scripted::start(|mut client| async move {
        client.next().await;
        let text = format!("[\"NOTICE\",\"{}\"]", "x".repeat(64 * 1024 * 1024));
        client.send_text(text).await;
        while client.next().await.is_some() {}
    })
    .await;
    let syncer = trial.start_sync(&[&bad]).await;
    let is_lost = |status: &RelayStatus| status.health != Health::Healthy;
    Local::until_status(&syncer, &bad.url(), is_lost).await;
    trial.assert_undisturbed(&syncer).await;
    assert_eq!(
        bad.received().connections,
        1,
        "it is not dialled again at once"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_sends_slowly_does_not_delay_others() {
    let mut trial = Trial::new().await;
    let stored = trial.issues(3);
    let sent = stored.clone();
    let bad = Scripted::start(move |mut client| {
        let stored = sent.clone();
        async move {
            while let Some(message) = client.next().await {
                for answer in well_behaved_answers(&message, &stored) {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    client.send(answer).await;
                }
            }
        }
    })
    .await;
    let syncer = trial.start_sync(&[&bad]).await;
    trial.assert_undisturbed(&syncer).await;
    trial.assert_arrive(&stored).await;
    trial.assert_within_limits(&bad);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_closes_at_once_is_not_reconnected_in_a_loop() {
    let mut trial = Trial::new().await;
    let mut bad = Scripted::start(|_| async {}).await;
    let syncer = trial.start_sync(&[&bad]).await;
    bad.until(|received| received.connections >= 1).await;
    trial.assert_undisturbed(&syncer).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(
        bad.received().connections,
        1,
        "the pause between two connections is at least five seconds"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_auth_challenges_are_answered_once() {
    let mut trial = Trial::new().await;
    let document = Some(json!({ "name": "challenges everybody" }));
    let mut bad = relay(document, trial.issues(3), |message, _, n| {
        let challenge = json!(["AUTH", format!("challenge {n}")]);
        let again = match message[0].as_str() {
            Some("AUTH") => json!(["OK", message[1]["id"], true, ""]),
            Some("REQ") => json!(["CLOSED", message[1], "auth-required: who are you?"]),
            Some("NEG-OPEN") => json!(["NEG-ERR", message[1], "auth-required: who are you?"]),
            _ => return vec![],
        };
        vec![challenge.clone(), again, challenge]
    })
    .await;
    let keys = trial.author.0.clone();
    let syncer = trial
        .start_sync_with(&[&bad], |settings| settings.keys = Some(keys))
        .await;
    bad.until(|received| received.count("AUTH") >= 1).await;
    trial.assert_undisturbed(&syncer).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let received = bad.received();
    assert_eq!(received.count("AUTH"), 1);
    assert!(
        received.count("REQ") + received.count("NEG-OPEN") <= 16,
        "each request once, and once more after AUTH"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_is_fetched_within_small_limits_of_subscriptions_filters_and_pages() {
    let mut trial = Trial::new().await;
    let mut stored: Vec<_> = (0..350)
        .map(|n| {
            trial.author.issue_at(
                &trial.repo.to_string(),
                &n.to_string(),
                1_690_000_000 + 60 * n,
            )
        })
        .collect();
    let comments: Vec<_> = stored
        .iter()
        .step_by(4)
        .map(|issue| trial.author.comment(issue.id, "so it is"))
        .collect();
    stored.extend(comments);
    let info = json!({ "limitation": { "max_subscriptions": 20 } });
    let bad = relay(Some(info), stored.clone(), |message, stored, _| {
        let filters = message
            .as_array()
            .map_or(0, |message| message.len().saturating_sub(2));
        if message[0] == "REQ" && filters > 3 {
            let text = "rate-limited: REQ exceeds max filter count 3";
            return vec![json!(["CLOSED", message[1], text])];
        }
        let mut message = message.clone();
        for filter in message.as_array_mut().unwrap().iter_mut().skip(2) {
            if filter["limit"].as_u64().is_some_and(|limit| limit > 100) {
                filter["limit"] = json!(100);
            }
        }
        well_behaved_answers(&message, stored)
    })
    .await;
    let syncer = trial.start_sync(&[&bad]).await;
    trial.assert_arrive(&stored).await;
    trial.assert_undisturbed(&syncer).await;
    trial.assert_within_limits(&bad);
}
