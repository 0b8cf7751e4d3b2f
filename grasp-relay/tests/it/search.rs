//! Searches for repositories (NIP-50) over the wire.

use nostr::event::Event;
use serde_json::json;

use crate::support::{Client, Relay, note, tagged};

fn announcement(name: &str, description: &str, topic: &str) -> Event {
    let tags = [
        ["d", name],
        ["name", name],
        ["description", description],
        ["t", topic],
    ];
    tagged(30617, "", &tags)
}

/// Returns the names of the repositories that a search finds.
async fn found(client: &mut Client, filter: &str) -> Vec<String> {
    client.send(format!(r#"["REQ","s",{filter}]"#)).await;
    let mut names = Vec::new();
    loop {
        let message = client.next().await;
        match message[0].as_str() {
            Some("EVENT") => {
                let name = message[2]["tags"][0][1].as_str().expect("an identifier");
                names.push(name.to_owned());
            }
            Some("EOSE") => break,
            _ => panic!("{message}"),
        }
    }
    client.send(r#"["CLOSE","s"]"#).await;
    names.sort();
    names
}

#[tokio::test]
async fn a_search_finds_repositories_by_each_of_their_texts() {
    let relay = Relay::start().await;
    let alpha = announcement("alpha", "a relay in Rust", "nostr");
    for event in [
        alpha.clone(),
        announcement("beta", "Übersetzungen", "text"),
        tagged(1621, "alpha, a relay in Rust", &[["d", "alpha"]]),
    ] {
        relay.accept(&event).await;
    }
    let mut client = relay.client().await;
    let owner = grasp_core::service::npub(&alpha.pubkey);
    for (words, expected) in [
        ("ALPHA", vec!["alpha"]),
        ("rust relay", vec!["alpha"]),
        ("nostr", vec!["alpha"]),
        ("übersetzungen", vec!["beta"]),
        ("beta include:spam", vec!["beta"]),
        (&owner, vec!["alpha"]),
        ("rust beta", vec![]),
        ("", vec!["alpha", "beta"]),
    ] {
        let filter = json!({ "kinds": [30617], "search": words }).to_string();
        assert_eq!(found(&mut client, &filter).await, expected, "{words}");
    }
    let of_author = |author: &str| {
        json!({ "kinds": [30617], "search": "a", "authors": [author], "limit": 1 }).to_string()
    };
    assert_eq!(
        found(&mut client, &of_author(&alpha.pubkey.to_hex())).await,
        ["alpha"]
    );
    let nobody = of_author(&note(1, "").pubkey.to_hex());
    assert!(found(&mut client, &nobody).await.is_empty());
}

#[tokio::test]
async fn a_search_finds_what_is_stored_and_other_filters_stay_live() {
    let relay = Relay::start().await;
    let mut client = relay.client().await;
    let filters = r#"{"kinds":[30617],"search":"alpha"},{"kinds":[1]}"#;
    assert!(client.req("s", filters).await.is_empty());
    relay.accept(&announcement("alpha", "", "")).await;
    let live = note(1, "live");
    relay.accept(&live).await;
    assert_eq!(client.next().await[2]["id"], live.id.to_hex());
}

#[tokio::test]
async fn searches_for_anything_else_are_refused_with_the_reason() {
    let relay = Relay::start().await;
    let mut client = relay.client().await;
    for (text, start) in [
        (r#"["REQ","s",{"search":"x"}]"#, json!(["CLOSED", "s"])),
        (
            r#"["REQ","s",{"kinds":[1],"search":"x"}]"#,
            json!(["CLOSED", "s"]),
        ),
        (
            r#"["REQ","s",{"kinds":[1,30617],"search":"x"}]"#,
            json!(["CLOSED", "s"]),
        ),
        (
            r#"["COUNT","s",{"kinds":[30617],"search":"x"}]"#,
            json!(["CLOSED", "s"]),
        ),
        (
            r#"["NEG-OPEN","s",{"kinds":[30617],"search":"x"},"61"]"#,
            json!(["NEG-ERR", "s"]),
        ),
    ] {
        let answer = client.ask(text).await;
        assert_eq!(json!([answer[0], answer[1]]), start, "{text}");
        assert!(
            answer[2]
                .as_str()
                .expect("a reason")
                .starts_with("unsupported: "),
            "{answer}"
        );
    }
    let two = r#"["REQ","s",{"kinds":[30617],"search":"x"},{"kinds":[30617],"search":"y"}]"#;
    assert!(
        client.ask(two).await[2]
            .as_str()
            .expect("a reason")
            .starts_with("invalid: ")
    );
    let number = r#"["REQ","s",{"kinds":[30617],"search":1}]"#;
    assert!(
        client.ask(number).await[2]
            .as_str()
            .expect("a reason")
            .starts_with("invalid: ")
    );
}
