//! Malformed input: a clear answer or a close with a reason, while other clients are served.

use grasp_relay::nostr::Limits;
use nostr::event::Event;
use nostr::key::Keys;
use nostr::types::Timestamp;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio_tungstenite::tungstenite::Message;

use crate::support::{Client, CloseReason, Relay, at, note};

/// Asserts that the connection still works, and that everything before was answered.
async fn assert_works(client: &mut Client) {
    assert_eq!(
        client.ask(r#"["COUNT","works",{"limit":1}]"#).await[1],
        "works"
    );
}

fn prefixed(answer: &Value, index: usize, prefix: &str) -> bool {
    answer[index]
        .as_str()
        .is_some_and(|why| why.starts_with(prefix) && why.len() < 200)
}

#[tokio::test]
async fn malformed_messages_get_a_notice() {
    let relay = Relay::start().await;
    let mut client = relay.client().await;
    let deep = "[".repeat(200_000) + &"]".repeat(200_000);
    let long = format!(r#"["REQ"{}]"#, ",1".repeat(500_000));
    let keys = format!(r#"[{{{}}}]"#, vec![r#""a":1"#; 100_000].join(","));
    for text in [
        "",
        " ",
        "null",
        "{}",
        "[",
        "[]",
        "[[]]",
        r#"["REQ"#,
        "\u{0}",
        r#"["REQ",{}]"#,
        &deep,
        &long,
        &keys,
    ] {
        let answer = client.ask(text).await;
        assert_eq!(answer[0], "NOTICE", "{answer}");
        assert!(prefixed(&answer, 1, "invalid: "), "{answer}");
    }
    assert_works(&mut client).await;
}

#[tokio::test]
async fn filters_of_the_wrong_form_close_their_subscription() {
    let relay = Relay::start().await;
    let mut client = relay.client().await;
    let deep = "[".repeat(100_000) + &"]".repeat(100_000);
    let many_kinds = format!(r#"{{"kinds":[{}]}}"#, vec!["1"; 200_000].join(","));
    let many_values = format!(
        r##"{{"#t":[{}]}}"##,
        (0..200_000)
            .map(|n| format!(r#""{n}""#))
            .collect::<Vec<_>>()
            .join(",")
    );
    let many_filters = vec!["{}"; 100_000].join(",");
    let many_keys = format!(
        "{{{}}}",
        (0..50_000)
            .map(|n| format!(r#""k{n}":1"#))
            .collect::<Vec<_>>()
            .join(",")
    );
    for (filters, prefix) in [
        ("7", "invalid: "),
        ("null", "invalid: "),
        (r#"{"ids":["x"]}"#, "invalid: "),
        (r#"{"kinds":[1.5]}"#, "invalid: "),
        (r#"{"limit":1e99}"#, "invalid: "),
        (r#"{"until":-5}"#, "invalid: "),
        (deep.as_str(), "invalid: "),
        (many_kinds.as_str(), "invalid: "),
        (many_values.as_str(), "invalid: "),
        (many_filters.as_str(), "invalid: "),
        (many_keys.as_str(), "unsupported: "),
        (r#"{"search":"x"}"#, "unsupported: "),
    ] {
        let answer = client.ask(format!(r#"["REQ","s",{filters}]"#)).await;
        assert_eq!(
            (&answer[0], &answer[1]),
            (&json!("CLOSED"), &json!("s")),
            "{answer}"
        );
        assert!(prefixed(&answer, 2, prefix), "{answer}");
    }
    assert_works(&mut client).await;
}

#[tokio::test]
async fn forged_events_are_refused_and_do_not_affect_the_genuine_one() {
    let relay = Relay::start().await;
    let mut client = relay.client().await;
    let genuine = note(1, "genuine");
    let ok = |event: &Event| format!(r#"["EVENT",{}]"#, event.as_json());
    let mut forgeries = vec![
        genuine.clone(),
        genuine.clone(),
        genuine.clone(),
        genuine.clone(),
    ];
    forgeries[0].content = "tampered".into();
    forgeries[1].pubkey = Keys::generate().public_key();
    forgeries[2].sig = note(1, "other").sig;
    forgeries[3].created_at = Timestamp::from_secs(genuine.created_at.as_secs() + 1);
    for forged in &forgeries {
        let answer = client.ask(ok(forged)).await;
        assert_eq!(
            (&answer[0], &answer[1], &answer[2]),
            (&json!("OK"), &json!(genuine.id.to_hex()), &json!(false))
        );
        assert!(prefixed(&answer, 3, "invalid: "), "{answer}");
    }
    assert!(client.req("s", r#"{"kinds":[1]}"#).await.is_empty());
    // The genuine one is accepted, and forged copies are refused after it as before.
    let answers = [client.ask(ok(&genuine)).await, client.next().await];
    assert!(answers.contains(&json!(["OK", genuine.id.to_hex(), true, ""])));
    assert!(answers.iter().any(|answer| answer[0] == "EVENT"));
    for forged in &forgeries {
        assert_eq!(client.ask(ok(forged)).await[2], false);
    }
    let mut zero = note(1, "zero");
    zero.id = nostr::event::EventId::from_byte_array([0; 32]);
    assert_eq!(
        client.ask(ok(&zero)).await,
        json!([
            "OK",
            "0".repeat(64),
            false,
            "invalid: the id or the signature does not verify"
        ])
    );
}

#[tokio::test]
async fn events_from_the_future_and_broken_ones_get_their_ok() {
    let relay = Relay::start().await;
    let mut client = relay.client().await;
    let future = at(
        1,
        "",
        &[],
        Timestamp::from_secs(Timestamp::now().as_secs() + 10_000),
    );
    let answer = client
        .ask(format!(r#"["EVENT",{}]"#, future.as_json()))
        .await;
    assert_eq!(answer[2], false);
    assert!(prefixed(&answer, 3, "invalid: "));
    let id = "ab".repeat(32);
    let tags = vec!["[]"; 80_000].join(",");
    for event in [
        format!(r#"{{"id":"{id}"}}"#),
        format!(r#"{{"id":"{id}","kind":99999999}}"#),
        format!(
            r#"{{"id":"{id}","tags":{}1{}}}"#,
            "[".repeat(5_000),
            "]".repeat(5_000)
        ),
        format!(r#"{{"id":"{id}","tags":[{tags}]}}"#),
        format!(r#"{{"content":"{}","id":"{id}"}}"#, "x".repeat(300_000)),
    ] {
        let answer = client.ask(format!(r#"["EVENT",{event}]"#)).await;
        assert_eq!(
            (&answer[0], &answer[1], &answer[2]),
            (&json!("OK"), &json!(id), &json!(false)),
            "{answer}"
        );
        assert!(prefixed(&answer, 3, "invalid: "), "{answer}");
    }
    assert_works(&mut client).await;
}

#[tokio::test]
async fn binary_frames_get_a_notice() {
    let relay = Relay::start().await;
    let mut client = relay.client().await;
    client.raw(Message::Binary(vec![0xff; 1_000].into())).await;
    let notice = json!(["NOTICE", "invalid: binary frames are not understood"]);
    assert_eq!(client.next().await, notice);
    assert_works(&mut client).await;
}

#[tokio::test]
async fn text_that_is_not_utf8_ends_the_connection_with_a_reason() {
    let relay = Relay::start().await;
    let client = relay.client().await;
    let mut socket = client.into_inner();
    // A masked text frame of two bytes that are no UTF-8.
    let frame = [0x81, 0x82, 0, 0, 0, 0, 0xff, 0xfe];
    socket.get_mut().write_all(&frame).await.expect("sent");
    let mut client = Client::from_inner(socket);
    let end = CloseReason {
        code: 1007,
        reason: "invalid: text must be UTF-8".into(),
    };
    assert_eq!(client.close_reason().await, Some(end));
    assert_works(&mut relay.client().await).await;
}

#[tokio::test]
async fn a_message_over_the_limit_ends_the_connection_with_a_reason() {
    let relay = Relay::limited(Limits {
        message_bytes: 10_000,
        ..Limits::default()
    })
    .await;
    let mut client = relay.client().await;
    client.try_send("x".repeat(20_000)).await;
    let end = CloseReason {
        code: 1009,
        reason: "invalid: message too big".into(),
    };
    assert_eq!(client.close_reason().await, Some(end));
}

#[tokio::test]
async fn a_frame_that_breaks_the_protocol_ends_the_connection() {
    let relay = Relay::start().await;
    let mut socket = relay.client().await.into_inner();
    // Reserved bits and an unknown opcode.
    socket
        .get_mut()
        .write_all(&[0xff, 0x80, 0, 0, 0, 0])
        .await
        .expect("sent");
    let mut client = Client::from_inner(socket);
    let end = client.close_reason().await;
    assert!(end.is_none_or(|end| end.code == 1002));
    assert_works(&mut relay.client().await).await;
}

#[tokio::test]
async fn negentropy_messages_with_absurd_counts_are_refused() {
    let relay = Relay::start().await;
    for nth in 0..100 {
        relay.accept(&note(1, &nth.to_string())).await;
    }
    let mut client = relay.client().await;
    for message in [
        "61000002ffffffffffffffff7f",
        "6101ffffffffffffffff7f",
        "6100000102",
        "61000007",
    ] {
        let answer = client
            .ask(format!(r#"["NEG-OPEN","n",{{}},"{message}"]"#))
            .await;
        assert_eq!(
            answer,
            json!(["NEG-ERR", "n", "invalid: not a negentropy message"]),
            "{message}"
        );
    }
    // Two million ranges of nothing, in one message: answered within the frame limit.
    let ranges = "610100".to_owned() + &"0100".repeat(1_000_000);
    let answer = client
        .ask(format!(r#"["NEG-OPEN","n",{{}},"{ranges}"]"#))
        .await;
    assert!(answer[0] == "NEG-MSG" || answer[0] == "NEG-ERR");
    assert!(
        answer[2]
            .as_str()
            .is_some_and(|text| text.len() <= 1_000_000)
    );
    assert_works(&mut client).await;
}
