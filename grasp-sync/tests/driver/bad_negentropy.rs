//! Relays with faulty NIP-77: malformed messages, absurd counts, events that they do not have.

use std::time::Duration;

use grasp_core::nostr::event::{Event, EventId};
use negentropy::{Id, Negentropy, NegentropyStorageVector};
use serde_json::{Value, json};

use crate::scripted::filters;
use crate::trial::{Trial, relay, well_behaved_answers};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let digits = text
        .as_bytes()
        .chunks(2)
        .map(|two| std::str::from_utf8(two).unwrap());
    digits
        .map(|two| u8::from_str_radix(two, 16).unwrap())
        .collect()
}

/// Returns an honest first answer to NEG-OPEN, from a set that also has these ids.
fn compare(message: &Value, stored: &[Event], phantoms: &[EventId]) -> Value {
    let mut open = message.clone();
    open.as_array_mut().unwrap().pop();
    let filter = filters(&open).remove(0);
    let mut storage = NegentropyStorageVector::new();
    for event in stored
        .iter()
        .filter(|event| filter.match_event(event, Default::default()))
    {
        let id = Id::from_byte_array(*event.id.as_bytes());
        storage.insert(event.created_at.as_secs(), id).unwrap();
    }
    for id in phantoms {
        storage
            .insert(1_690_000_000, Id::from_byte_array(*id.as_bytes()))
            .unwrap();
    }
    storage.seal().unwrap();
    let mut peer = Negentropy::owned(storage, 60_000).unwrap();
    let answer = peer
        .reconcile(&unhex(message[3].as_str().unwrap()))
        .unwrap();
    json!(["NEG-MSG", message[1], hex(&answer)])
}

/// Returns the NIP-11 document of software with which sets are compared even when we have nothing.
fn info() -> Option<Value> {
    Some(json!({ "software": "strfry", "version": "1" }))
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_that_are_offered_and_never_served_are_requested_rarely_and_hide_nothing() {
    let mut trial = Trial::new().await;
    let stored = trial.issues(5);
    let mut bad = relay(info(), stored.clone(), |message, stored, _| {
        match message[0].as_str() {
            Some("NEG-OPEN") => {
                let phantoms: Vec<_> = (0..9).map(|n| EventId::from_byte_array([n; 32])).collect();
                vec![compare(message, stored, &phantoms)]
            }
            _ => well_behaved_answers(message, stored),
        }
    })
    .await;
    let syncer = trial.start_sync(&[&bad]).await;
    trial.assert_arrive(&stored).await;
    bad.until(|received| {
        received
            .messages
            .iter()
            .any(|(_, message)| !message[2]["ids"].is_null())
    })
    .await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let received = bad.received();
    let phantom = json!(EventId::from_byte_array([3; 32]).to_hex());
    let asks = |message: &Value| {
        message[2]["ids"]
            .as_array()
            .is_some_and(|ids| ids.contains(&phantom))
    };
    let asked = received
        .messages
        .iter()
        .filter(|(_, message)| asks(message))
        .count();
    assert_eq!(
        asked, 1,
        "the pause between two requests is at least half a minute"
    );
    trial.assert_undisturbed(&syncer).await;
    trial.assert_within_limits(&bad);
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_negentropy_messages_lead_to_pages() {
    // A varint of many bytes, a list that claims 2^62 ids, no hex at all, and a text that is much too long.
    const MALFORMED_MESSAGES: [&str; 5] = [
        "61ffffffffffffffffffffffffff7f",
        "6100000285ffffffffffffff7f",
        "xyz",
        "",
        "00",
    ];
    let mut trial = Trial::new().await;
    let mut relays = Vec::new();
    let mut all = Vec::new();
    for n in 0..=MALFORMED_MESSAGES.len() {
        let issue = trial.author.issue(&trial.repo, &format!("of relay {n}"));
        all.push(issue.clone());
        relays.push(crate::scripted::Scripted::with_info(
            info(),
            move |mut client| {
                let stored = vec![issue.clone()];
                async move {
                    while let Some(message) = client.next().await {
                        let long = || "ab".repeat(900_000);
                        let answers = match message[0].as_str() {
                            Some("NEG-OPEN" | "NEG-MSG") => {
                                let text = MALFORMED_MESSAGES
                                    .get(n)
                                    .map_or_else(long, |text| (*text).to_owned());
                                vec![json!(["NEG-MSG", message[1], text])]
                            }
                            _ => well_behaved_answers(&message, &stored),
                        };
                        for answer in answers {
                            client.send(answer).await;
                        }
                    }
                }
            },
        ));
    }
    let mut bad = Vec::new();
    for relay in relays {
        bad.push(relay.await);
    }
    let bad: Vec<_> = bad.iter().collect();
    let syncer = trial.start_sync(&bad).await;
    trial.assert_arrive(&all).await;
    trial.assert_undisturbed(&syncer).await;
    bad.iter()
        .for_each(|relay| trial.assert_within_limits(relay));
}
