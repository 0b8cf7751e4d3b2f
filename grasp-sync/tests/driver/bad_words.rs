//! Relays that refuse in various words.

use std::time::Duration;

use grasp_core::nostr::event::Event;
use serde_json::{Value, json};

use crate::scripted::Scripted;
use crate::trial::{Trial, is_fetch, properly};

/// The consequence of refusing a request that cannot be made smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// It is asked again in another way, and gives all it has.
    Goes,
    /// It is not asked for at least a minute.
    Rests,
}

const REASONS: [(&str, Then); 17] = [
    ("rate-limited: too many queries", Then::Rests),
    ("rate-limited: slow down, please", Then::Rests),
    ("rate-limited: too many REQs", Then::Goes),
    ("blocked: too many subscriptions", Then::Goes),
    ("rate-limited: REQ exceeds max filter count 1", Then::Rests),
    ("ERROR: bad req: arr too big", Then::Rests),
    ("rate-limited: active subscriptions exceed max size 400000 bytes", Then::Goes),
    ("ERROR: bad req: filter item too large", Then::Rests),
    ("ERROR: bad req: total filter items too large", Then::Rests),
    ("unsupported: filter contains unknown elements", Then::Rests),
    ("auth-required: members only", Then::Rests),
    ("restricted: not a member", Then::Rests),
    ("blocked: go away", Then::Rests),
    ("pow: 30 bits", Then::Rests),
    ("error: database is busy", Then::Rests),
    ("computer says no", Then::Rests),
    ("", Then::Rests),
];

/// Returns whether a request asks for stored events about the repository.
fn is_about_repo(said: &Value) -> bool {
    let filters = said.as_array().into_iter().flatten().skip(2);
    is_fetch(said) && filters.into_iter().any(|filter| !filter["#a"].is_null())
}

fn filters(said: &Value) -> usize {
    said.as_array().map_or(0, |said| said.len() - 2)
}

/// Starts a relay that refuses the first such request in these words, and no other. Where smaller requests may help,
/// it refuses smaller ones too, down to a single filter.
async fn refusing(words: &'static str, then: Then, stored: Vec<Event>) -> Scripted {
    Scripted::start(move |mut guest| {
        let stored = stored.clone();
        async move {
            let mut takes = usize::MAX;
            while let Some(said) = guest.next().await {
                let answers = if is_about_repo(&said) && filters(&said) < takes {
                    takes = if then == Then::Goes { 0 } else { filters(&said) };
                    vec![json!(["CLOSED", said[1], words])]
                } else {
                    properly(&said, &stored)
                };
                for word in answers {
                    guest.say(word).await;
                }
            }
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_refusal_is_met_as_it_is_meant() {
    let mut trial = Trial::new().await;
    let mut relays = Vec::new();
    for (words, then) in REASONS {
        let issue = trial.author.issue(&trial.repo, words);
        relays.push((words, then, refusing(words, then, vec![issue.clone()]).await, issue));
    }
    let bad: Vec<&Scripted> = relays.iter().map(|(_, _, relay, _)| relay).collect();
    let syncer = trial.begin(&bad).await;
    let obtainable = relays.iter().filter(|(_, then, _, _)| *then == Then::Goes);
    let obtainable: Vec<Event> = obtainable.map(|(_, _, _, issue)| issue.clone()).collect();
    trial.arrive(&obtainable).await;
    for (_, then, relay, _) in &mut relays {
        if *then == Then::Rests {
            relay.until(|heard| heard.messages.iter().any(|(_, said)| is_about_repo(said))).await;
        }
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    trial.is_undisturbed(&syncer).await;
    for (words, then, relay, issue) in &relays {
        trial.was_polite(relay);
        let heard = relay.heard();
        let about = heard.messages.iter().map(|(_, said)| said).filter(|said| is_about_repo(said));
        let asked: Vec<usize> = about.map(filters).collect();
        match then {
            Then::Goes => assert!(asked.len() >= 2, "{words}: {asked:?}"),
            Then::Rests => {
                assert!(asked.is_sorted_by(|one, next| one > next), "{words}: {asked:?}");
                assert!(!trial.local.has(issue), "{words}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_refuses_everything_is_soon_left_alone() {
    let mut trial = Trial::new().await;
    let mut relays = Vec::new();
    for (words, _) in REASONS {
        let refuses = move |said: &Value| match said[0].as_str() {
            Some("REQ") => Some(json!(["CLOSED", said[1], words])),
            Some("NEG-OPEN") => Some(json!(["NEG-ERR", said[1], words])),
            _ => None,
        };
        let relay = Scripted::start(move |mut guest| async move {
            while let Some(said) = guest.next().await {
                if let Some(word) = refuses(&said) {
                    // Some refusals have to come more than once.
                    for _ in 0..5 {
                        guest.say(word.clone()).await;
                    }
                }
            }
        });
        relays.push((words, relay.await));
    }
    let bad: Vec<&Scripted> = relays.iter().map(|(_, relay)| relay).collect();
    let syncer = trial.begin(&bad).await;
    trial.is_undisturbed(&syncer).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let settled: Vec<usize> =
        relays.iter().map(|(_, relay)| relay.heard().messages.len()).collect();
    tokio::time::sleep(Duration::from_secs(2)).await;
    for ((words, relay), before) in relays.iter().zip(settled) {
        let heard = relay.heard();
        assert!(heard.messages.len() <= 60, "{words}: {} messages", heard.messages.len());
        assert!(heard.messages.len() <= before + 8, "{words}: it goes on");
        assert_eq!(heard.connections, 1, "{words}: the connection is kept");
    }
    trial.is_undisturbed(&syncer).await;
}
