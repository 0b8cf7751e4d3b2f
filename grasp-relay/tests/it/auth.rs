//! NIP-42 and NIP-70 over the wire.

use nostr::event::{Event, EventBuilder, FinalizeEvent, Kind, Tag};
use nostr::key::Keys;
use serde_json::json;

use crate::support::Relay;

fn protected(keys: &Keys) -> Event {
    EventBuilder::new(Kind::from(1), "mine")
        .tags([Tag::protected()])
        .finalize(keys)
        .expect("signed")
}

fn auth(keys: &Keys, relay: &Relay, challenge: &str) -> String {
    let event = EventBuilder::new(Kind::Authentication, "")
        .tags([
            Tag::custom("challenge", [challenge.to_owned()]),
            Tag::custom("relay", [format!("ws://{}/", relay.address)]),
        ])
        .finalize(keys)
        .expect("signed");
    format!(r#"["AUTH",{}]"#, event.as_json())
}

#[tokio::test]
async fn a_protected_event_is_accepted_after_its_author_authenticates() {
    let relay = Relay::start().await;
    let (alice, eve) = (Keys::generate(), Keys::generate());
    let mut client = relay.client().await;
    let event = protected(&alice);
    let message = format!(r#"["EVENT",{}]"#, event.as_json());

    let challenge = client.ask(message.clone()).await;
    assert_eq!(challenge[0], "AUTH");
    let challenge = challenge[1].as_str().expect("a challenge").to_owned();
    let refusal = client.next().await;
    assert_eq!((&refusal[0], &refusal[2]), (&json!("OK"), &json!(false)));
    assert!(
        refusal[3]
            .as_str()
            .is_some_and(|why| why.starts_with("auth-required: "))
    );

    // Another key does not suffice, the author's does, and one connection may have both.
    assert_eq!(client.ask(auth(&eve, &relay, &challenge)).await[2], true);
    assert_eq!(client.ask(message.clone()).await[2], false);
    assert_eq!(client.ask(auth(&alice, &relay, &challenge)).await[2], true);
    assert_eq!(
        client.ask(message).await,
        json!(["OK", event.id.to_hex(), true, ""])
    );
}

#[tokio::test]
async fn every_connection_has_its_own_challenge() {
    let relay = Relay::start().await;
    let message = format!(r#"["EVENT",{}]"#, protected(&Keys::generate()).as_json());
    let (mut one, mut two) = (relay.client().await, relay.client().await);
    let (first, second) = (one.ask(message.clone()).await, two.ask(message).await);
    assert_eq!(first[0], "AUTH");
    assert_ne!(first[1], second[1]);
    assert_eq!(one.next().await[0], "OK");
    let foreign = second[1].as_str().expect("a challenge");
    let answer = one.ask(auth(&Keys::generate(), &relay, foreign)).await;
    assert_eq!(answer[2], false);
    assert!(
        answer[3]
            .as_str()
            .is_some_and(|why| why.starts_with("invalid: "))
    );
}
