//! Relays that compare sets badly: malformed messages, absurd counts, events that they do not have.

use std::time::Duration;

use grasp_core::nostr::event::{Event, EventId};
use negentropy::{Id, Negentropy, NegentropyStorageVector};
use serde_json::{Value, json};

use crate::scripted::filters;
use crate::trial::{Trial, properly, relay};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks(2).map(|two| std::str::from_utf8(two).unwrap());
    digits.map(|two| u8::from_str_radix(two, 16).unwrap()).collect()
}

/// Returns an honest first answer to NEG-OPEN, from a set that also has these ids.
fn compare(said: &Value, stored: &[Event], phantoms: &[EventId]) -> Value {
    let mut open = said.clone();
    open.as_array_mut().unwrap().pop();
    let filter = filters(&open).remove(0);
    let mut storage = NegentropyStorageVector::new();
    for event in stored.iter().filter(|event| filter.match_event(event, Default::default())) {
        let id = Id::from_byte_array(*event.id.as_bytes());
        storage.insert(event.created_at.as_secs(), id).unwrap();
    }
    for id in phantoms {
        storage.insert(1_690_000_000, Id::from_byte_array(*id.as_bytes())).unwrap();
    }
    storage.seal().unwrap();
    let mut peer = Negentropy::owned(storage, 60_000).unwrap();
    let answer = peer.reconcile(&unhex(said[3].as_str().unwrap())).unwrap();
    json!(["NEG-MSG", said[1], hex(&answer)])
}

/// Software with which sets are compared even when we have nothing.
fn card() -> Option<Value> {
    Some(json!({ "software": "strfry", "version": "1" }))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_offered_and_never_served_is_asked_for_rarely_and_hides_nothing() {
    let mut trial = Trial::new().await;
    let stored = trial.issues(5);
    let mut bad = relay(card(), stored.clone(), |said, stored, _| match said[0].as_str() {
        Some("NEG-OPEN") => {
            let phantoms: Vec<_> = (0..9).map(|n| EventId::from_byte_array([n; 32])).collect();
            vec![compare(said, stored, &phantoms)]
        }
        _ => properly(said, stored),
    })
    .await;
    let syncer = trial.begin(&[&bad]).await;
    trial.arrive(&stored).await;
    bad.until(|heard| heard.messages.iter().any(|(_, said)| !said[2]["ids"].is_null())).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let heard = bad.heard();
    let phantom = json!(EventId::from_byte_array([3; 32]).to_hex());
    let asks = |said: &Value| said[2]["ids"].as_array().is_some_and(|ids| ids.contains(&phantom));
    let asked = heard.messages.iter().filter(|(_, said)| asks(said)).count();
    assert_eq!(asked, 1, "half a minute is the least between two");
    trial.is_undisturbed(&syncer).await;
    trial.was_polite(&bad);
}

#[tokio::test(flavor = "multi_thread")]
async fn nonsense_about_sets_leads_to_pages() {
    // A varint of many bytes, a list that claims 2^62 ids, no hex at all, and a text that is much too long.
    const NONSENSE: [&str; 5] =
        ["61ffffffffffffffffffffffffff7f", "6100000285ffffffffffffff7f", "xyz", "", "00"];
    let mut trial = Trial::new().await;
    let mut relays = Vec::new();
    let mut all = Vec::new();
    for n in 0..=NONSENSE.len() {
        let issue = trial.author.issue(&trial.repo, &format!("behind nonsense {n}"));
        all.push(issue.clone());
        relays.push(crate::scripted::Scripted::with_card(card(), move |mut guest| {
            let stored = vec![issue.clone()];
            async move {
                while let Some(said) = guest.next().await {
                    let long = || "ab".repeat(900_000);
                    let answers = match said[0].as_str() {
                        Some("NEG-OPEN" | "NEG-MSG") => {
                            let text = NONSENSE.get(n).map_or_else(long, |text| (*text).to_owned());
                            vec![json!(["NEG-MSG", said[1], text])]
                        }
                        _ => properly(&said, &stored),
                    };
                    for word in answers {
                        guest.say(word).await;
                    }
                }
            }
        }));
    }
    let mut bad = Vec::new();
    for relay in relays {
        bad.push(relay.await);
    }
    let bad: Vec<_> = bad.iter().collect();
    let syncer = trial.begin(&bad).await;
    trial.arrive(&all).await;
    trial.is_undisturbed(&syncer).await;
    bad.iter().for_each(|relay| trial.was_polite(relay));
}
