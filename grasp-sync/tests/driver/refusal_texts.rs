//! Relays that refuse requests with various texts.

use std::time::Duration;

use grasp_core::nostr::event::Event;
use serde_json::{Value, json};

use crate::scripted::Scripted;
use crate::trial::{Trial, is_fetch, well_behaved_answers};

/// The consequence of refusing a request that cannot be made smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reaction {
    /// The request is sent in another form, and everything is fetched.
    Retried,
    /// No request is sent for at least a minute.
    Paused,
}

const REASONS: [(&str, Reaction); 17] = [
    ("rate-limited: too many queries", Reaction::Paused),
    ("rate-limited: slow down, please", Reaction::Paused),
    ("rate-limited: too many REQs", Reaction::Retried),
    ("blocked: too many subscriptions", Reaction::Retried),
    (
        "rate-limited: REQ exceeds max filter count 1",
        Reaction::Paused,
    ),
    ("ERROR: bad req: arr too big", Reaction::Paused),
    (
        "rate-limited: active subscriptions exceed max size 400000 bytes",
        Reaction::Retried,
    ),
    ("ERROR: bad req: filter item too large", Reaction::Paused),
    (
        "ERROR: bad req: total filter items too large",
        Reaction::Paused,
    ),
    (
        "unsupported: filter contains unknown elements",
        Reaction::Paused,
    ),
    ("auth-required: members only", Reaction::Paused),
    ("restricted: not a member", Reaction::Paused),
    ("blocked: go away", Reaction::Paused),
    ("pow: 30 bits", Reaction::Paused),
    ("error: database is busy", Reaction::Paused),
    ("computer says no", Reaction::Paused),
    ("", Reaction::Paused),
];

/// Returns whether a request asks for stored events about the repository.
fn is_about_repo(message: &Value) -> bool {
    let filters = message.as_array().into_iter().flatten().skip(2);
    is_fetch(message) && filters.into_iter().any(|filter| !filter["#a"].is_null())
}

fn filters(message: &Value) -> usize {
    message.as_array().map_or(0, |message| message.len() - 2)
}

/// Starts a relay that refuses the first such request with this text, and no other. Where smaller requests may help,
/// it refuses smaller ones too, down to a single filter.
async fn refusing(text: &'static str, reaction: Reaction, stored: Vec<Event>) -> Scripted {
    Scripted::start(move |mut client| {
        let stored = stored.clone();
        async move {
            let mut takes = usize::MAX;
            while let Some(message) = client.next().await {
                let answers = if is_about_repo(&message) && filters(&message) < takes {
                    takes = if reaction == Reaction::Retried {
                        0
                    } else {
                        filters(&message)
                    };
                    vec![json!(["CLOSED", message[1], text])]
                } else {
                    well_behaved_answers(&message, &stored)
                };
                for answer in answers {
                    client.send(answer).await;
                }
            }
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_refusal_has_its_reaction() {
    let mut trial = Trial::new().await;
    let mut relays = Vec::new();
    for (text, reaction) in REASONS {
        let issue = trial.author.issue(&trial.repo, text);
        relays.push((
            text,
            reaction,
            refusing(text, reaction, vec![issue.clone()]).await,
            issue,
        ));
    }
    let bad: Vec<&Scripted> = relays.iter().map(|(_, _, relay, _)| relay).collect();
    let syncer = trial.start_sync(&bad).await;
    let obtainable = relays
        .iter()
        .filter(|(_, reaction, _, _)| *reaction == Reaction::Retried);
    let obtainable: Vec<Event> = obtainable.map(|(_, _, _, issue)| issue.clone()).collect();
    trial.assert_arrive(&obtainable).await;
    for (_, reaction, relay, _) in &mut relays {
        if *reaction == Reaction::Paused {
            relay
                .until(|received| {
                    received
                        .messages
                        .iter()
                        .any(|(_, message)| is_about_repo(message))
                })
                .await;
        }
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    trial.assert_undisturbed(&syncer).await;
    for (text, reaction, relay, issue) in &relays {
        trial.assert_within_limits(relay);
        let received = relay.received();
        let about = received
            .messages
            .iter()
            .map(|(_, message)| message)
            .filter(|message| is_about_repo(message));
        let asked: Vec<usize> = about.map(filters).collect();
        match reaction {
            Reaction::Retried => assert!(asked.len() >= 2, "{text}: {asked:?}"),
            Reaction::Paused => {
                assert!(
                    asked.is_sorted_by(|one, next| one > next),
                    "{text}: {asked:?}"
                );
                assert!(!trial.local.has(issue), "{text}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_refuses_everything_gets_few_requests() {
    let mut trial = Trial::new().await;
    let mut relays = Vec::new();
    for (text, _) in REASONS {
        let refuses = move |message: &Value| match message[0].as_str() {
            Some("REQ") => Some(json!(["CLOSED", message[1], text])),
            Some("NEG-OPEN") => Some(json!(["NEG-ERR", message[1], text])),
            _ => None,
        };
        let relay = Scripted::start(move |mut client| async move {
            while let Some(message) = client.next().await {
                if let Some(answer) = refuses(&message) {
                    // Some refusals have to come more than once.
                    for _ in 0..5 {
                        client.send(answer.clone()).await;
                    }
                }
            }
        });
        relays.push((text, relay.await));
    }
    let bad: Vec<&Scripted> = relays.iter().map(|(_, relay)| relay).collect();
    let syncer = trial.start_sync(&bad).await;
    trial.assert_undisturbed(&syncer).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let settled: Vec<usize> = relays
        .iter()
        .map(|(_, relay)| relay.received().messages.len())
        .collect();
    tokio::time::sleep(Duration::from_secs(2)).await;
    for ((text, relay), before) in relays.iter().zip(settled) {
        let received = relay.received();
        assert!(
            received.messages.len() <= 60,
            "{text}: {} messages",
            received.messages.len()
        );
        assert!(
            received.messages.len() <= before + 8,
            "{text}: requests continue"
        );
        assert_eq!(received.connections, 1, "{text}: the connection is kept");
    }
    trial.assert_undisturbed(&syncer).await;
}
