//! NIP-77 over the wire, with the reference algorithm as the client.

use std::collections::BTreeSet;
use std::time::Duration;

use grasp_relay::nostr::Limits;
use negentropy::{Id, Negentropy, NegentropyStorageVector};
use nostr::event::Event;
use nostr::types::Timestamp;
use serde_json::json;

use crate::support::{Client, Relay, at};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let digits = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("hex");
    (0..text.len()).step_by(2).map(digits).collect()
}

fn storage(events: &[Event]) -> NegentropyStorageVector {
    let mut storage = NegentropyStorageVector::new();
    for event in events {
        let id = Id::from_byte_array(event.id.to_bytes());
        storage
            .insert(event.created_at.as_secs(), id)
            .expect("open");
    }
    storage.seal().expect("sealed once");
    storage
}

/// Events a second apart, signed, newest last.
fn events(count: u64) -> Vec<Event> {
    let now = Timestamp::now().as_secs();
    (0..count)
        .map(|nth| {
            at(
                1,
                &nth.to_string(),
                &[],
                Timestamp::from_secs(now - count + nth),
            )
        })
        .collect()
}

/// Reconciles the client's events with the relay's; returns the ids that the client lacks and those that the relay lacks.
async fn sync(
    client: &mut Client,
    filter: &str,
    have: &[Event],
) -> (BTreeSet<String>, BTreeSet<String>) {
    let storage = storage(have);
    let mut negentropy = Negentropy::borrowed(&storage, 60_000).expect("a frame limit");
    let first = hex(&negentropy.initiate().expect("a first message"));
    let mut answer = client
        .ask(format!(r#"["NEG-OPEN","n",{filter},"{first}"]"#))
        .await;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    loop {
        assert_eq!(
            (&answer[0], &answer[1]),
            (&json!("NEG-MSG"), &json!("n")),
            "{answer}"
        );
        let bytes = unhex(answer[2].as_str().expect("hex"));
        match negentropy
            .reconcile_with_ids(&bytes, &mut ours, &mut theirs)
            .expect("a good answer")
        {
            Some(next) => {
                answer = client
                    .ask(format!(r#"["NEG-MSG","n","{}"]"#, hex(&next)))
                    .await
            }
            None => break,
        }
    }
    client.send(r#"["NEG-CLOSE","n"]"#).await;
    let set = |ids: Vec<Id>| ids.iter().map(|id| hex(&id.to_bytes())).collect();
    (set(theirs), set(ours))
}

#[tokio::test]
async fn both_sides_learn_the_missing_ids_and_the_events_can_be_fetched() {
    let relay = Relay::start().await;
    let all = events(300);
    for event in &all[..250] {
        relay.accept(event).await;
    }
    relay
        .accept(&at(2, "another kind", &[], Timestamp::now()))
        .await;
    let mut client = relay.client().await;
    let (need, have) = sync(&mut client, r#"{"kinds":[1]}"#, &all[100..]).await;
    let ids = |events: &[Event]| {
        events
            .iter()
            .map(|event| event.id.to_hex())
            .collect::<BTreeSet<_>>()
    };
    assert_eq!(need, ids(&all[..100]));
    assert_eq!(have, ids(&all[250..]));
    let list = need
        .iter()
        .map(|id| format!(r#""{id}""#))
        .collect::<Vec<_>>()
        .join(",");
    let found = client
        .req("f", &format!(r#"{{"ids":[{list}],"limit":500}}"#))
        .await;
    assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), need);
}

#[tokio::test]
async fn the_set_is_not_cut_at_the_limits_of_req() {
    let limits = Limits {
        max_limit: 10,
        default_limit: 10,
        ..Limits::default()
    };
    let relay = Relay::limited(limits).await;
    let all = events(50);
    for event in &all {
        relay.accept(event).await;
    }
    let mut client = relay.client().await;
    let (need, _) = sync(&mut client, r#"{"kinds":[1]}"#, &[]).await;
    assert_eq!(need.len(), 50);
    // A limit of the filter selects the newest events.
    let (need, _) = sync(&mut client, r#"{"kinds":[1],"limit":20}"#, &[]).await;
    let newest: BTreeSet<_> = all[30..].iter().map(|event| event.id.to_hex()).collect();
    assert_eq!(need, newest);
}

#[tokio::test]
async fn requests_that_cannot_be_reconciled_are_refused_by_neg_err() {
    let relay = Relay::limited(Limits {
        neg_items: 5,
        neg_sessions: 1,
        ..Limits::default()
    })
    .await;
    for event in events(6) {
        relay.accept(&event).await;
    }
    let mut client = relay.client().await;
    let too_big = client.ask(r#"["NEG-OPEN","n",{},"6100000200"]"#).await;
    assert_eq!(
        too_big,
        json!(["NEG-ERR", "n", "blocked: this query is too big", 5])
    );
    for (message, prefix) in [
        (r#"["NEG-OPEN","n",{"kinds":[7]},"61zz"]"#, "invalid: "),
        (r#"["NEG-OPEN","n",{"kinds":[7]},"610000ff"]"#, "invalid: "),
        (r#"["NEG-OPEN","n",{"kinds":[7]},""]"#, "invalid: "),
        // A truncated number, one too large for any set, and fewer ids than announced.
        (r#"["NEG-OPEN","n",{"kinds":[7]},"61ff"]"#, "invalid: "),
        (
            r#"["NEG-OPEN","n",{"kinds":[7]},"61000002ffffffffffffffffff7f"]"#,
            "invalid: ",
        ),
        (
            r#"["NEG-OPEN","n",{"kinds":[7]},"610000020107"]"#,
            "invalid: ",
        ),
        (r#"["NEG-OPEN","n",{"search":"x"},"61"]"#, "unsupported: "),
        (r#"["NEG-MSG","n","61"]"#, "closed: "),
    ] {
        let answer = client.ask(message).await;
        assert_eq!(
            (&answer[0], &answer[1]),
            (&json!("NEG-ERR"), &json!("n")),
            "{message}"
        );
        assert!(
            answer[2]
                .as_str()
                .is_some_and(|why| why.starts_with(prefix)),
            "{answer}"
        );
    }
    // An unknown version is answered with ours; the session is open and takes the only slot.
    assert_eq!(
        client.ask(r#"["NEG-OPEN","n",{"kinds":[7]},"62"]"#).await,
        json!(["NEG-MSG", "n", "61"])
    );
    let full = client.ask(r#"["NEG-OPEN","m",{"kinds":[7]},"61"]"#).await;
    assert!(
        full[2]
            .as_str()
            .is_some_and(|why| why.starts_with("rate-limited: ")),
        "{full}"
    );
    client.send(r#"["NEG-CLOSE","n"]"#).await;
    assert_eq!(
        client.ask(r#"["NEG-OPEN","m",{"kinds":[7]},"61"]"#).await[0],
        "NEG-MSG"
    );
}

#[tokio::test]
async fn an_idle_session_is_closed_with_its_reason() {
    let limits = Limits {
        neg_idle: Duration::from_millis(50),
        ..Limits::default()
    };
    let relay = Relay::limited(limits).await;
    let mut client = relay.client().await;
    assert_eq!(
        client.ask(r#"["NEG-OPEN","n",{},"61"]"#).await[0],
        "NEG-MSG"
    );
    assert_eq!(
        client.next().await,
        json!(["NEG-ERR", "n", "closed: idle for too long"])
    );
    let gone = client.ask(r#"["NEG-MSG","n","61"]"#).await;
    assert_eq!(gone, json!(["NEG-ERR", "n", "closed: no such session"]));
}

#[tokio::test]
async fn the_items_of_all_sessions_are_bounded() {
    let limits = Limits {
        neg_total_items: 4 * 10,
        ..Limits::default()
    };
    let relay = Relay::limited(limits).await;
    for event in events(6) {
        relay.accept(&event).await;
    }
    let (mut alice, mut bob) = (relay.client().await, relay.client().await);
    let open = r#"["NEG-OPEN","n",{},"6100000200"]"#;
    assert_eq!(alice.ask(open).await[0], "NEG-MSG");
    let full = bob.ask(open).await;
    assert_eq!(full[0], "NEG-ERR");
    assert!(
        full[2]
            .as_str()
            .is_some_and(|why| why.starts_with("rate-limited: ")),
        "{full}"
    );
    // Bob gets the items that Alice's session frees; the answer to her next message shows that it has ended.
    alice.send(r#"["NEG-CLOSE","n"]"#).await;
    alice.ask(r#"["COUNT","c",{}]"#).await;
    assert_eq!(bob.ask(open).await[0], "NEG-MSG");
}

#[tokio::test]
async fn the_bytes_of_queued_messages_are_bounded() {
    let relay = Relay::limited(Limits {
        neg_waiting_bytes: 4 * 1_000,
        ..Limits::default()
    })
    .await;
    let mut client = relay.client().await;
    let long = "00".repeat(2_000);
    let full = client
        .ask(format!(r#"["NEG-OPEN","n",{{}},"61{long}"]"#))
        .await;
    assert_eq!(full[0], "NEG-ERR");
    assert!(
        full[2]
            .as_str()
            .is_some_and(|why| why.starts_with("rate-limited: ")),
        "{full}"
    );
    assert_eq!(
        client.ask(r#"["NEG-OPEN","n",{},"61"]"#).await[0],
        "NEG-MSG"
    );
}
