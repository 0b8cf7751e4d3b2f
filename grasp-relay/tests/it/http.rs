//! HTTP without a websocket: the NIP-11 document, the page, CORS, half-sent requests.

use std::net::SocketAddr;
use std::time::Duration;

use axum::routing::get;
use grasp_relay::nostr::{Limits, LiveInfo, RelayInfo};
use grasp_relay::server::NodeKey;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::{Client, Relay, in_time};

/// Sends a request and returns the answer: the head in lower case, and the body.
async fn http(address: SocketAddr, request: &str) -> (String, String) {
    let mut stream = in_time(TcpStream::connect(address))
        .await
        .expect("a connection");
    let request = format!("{request}\r\nHost: x\r\nConnection: close\r\n\r\n");
    in_time(stream.write_all(request.as_bytes()))
        .await
        .expect("sent");
    let mut answer = String::new();
    in_time(stream.read_to_string(&mut answer))
        .await
        .expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    (head.to_lowercase(), body.to_owned())
}

fn assert_cors(head: &str) {
    for line in [
        "access-control-allow-origin: *",
        "access-control-allow-methods: get, post",
        "access-control-allow-headers: content-type, authorization, git-protocol",
        "access-control-expose-headers: www-authenticate",
    ] {
        assert!(head.contains(line), "{head}");
    }
}

#[tokio::test]
async fn the_nip11_document_has_the_limits_in_use() {
    let limits = Limits {
        max_limit: 77,
        default_limit: 33,
        subscriptions: 9,
        ..Limits::default()
    };
    let relay = Relay::limited(limits).await;
    let (head, body) = http(
        relay.address,
        "GET / HTTP/1.1\r\nAccept: text/html, application/nostr+json",
    )
    .await;
    assert!(
        head.starts_with("http/1.1 200") && head.contains("content-type: application/nostr+json")
    );
    assert_cors(&head);
    let document: Value = serde_json::from_str(&body).expect("JSON");
    for key in [
        "name",
        "description",
        "software",
        "version",
        "repo_acceptance_criteria",
    ] {
        assert!(
            document[key]
                .as_str()
                .is_some_and(|text| !text.trim().is_empty()),
            "{key}"
        );
    }
    assert_eq!(document["supported_grasps"][0], "GRASP-01");
    let limitation = &document["limitation"];
    assert_eq!(limitation["max_limit"], 77);
    assert_eq!(limitation["default_limit"], 33);
    assert_eq!(limitation["max_subscriptions"], 9);
    assert_eq!(limitation["max_message_length"], 5 * 1024 * 1024);
    assert_eq!(limitation["max_subid_length"], 64);
    assert_eq!(limitation["restricted_writes"], true);
}

#[tokio::test]
async fn pages_and_404_answers_have_cors_headers() {
    let relay = Relay::with(Limits::default(), |parts| {
        parts.config.info = LiveInfo::fixed(RelayInfo {
            name: "<b>mine</b>".into(),
            ..RelayInfo::default()
        });
    })
    .await;
    let (head, body) = http(relay.address, "GET / HTTP/1.1").await;
    assert!(head.starts_with("http/1.1 200") && head.contains("content-type: text/html"));
    assert!(body.contains("&lt;b&gt;mine&lt;/b&gt;"));
    assert_cors(&head);
    for path in [
        "/nowhere",
        "/npub1test/nonexistent.git/info/refs?service=git-upload-pack",
    ] {
        let (head, _) = http(relay.address, &format!("GET {path} HTTP/1.1")).await;
        assert!(head.starts_with("http/1.1 404"), "{head}");
        assert_cors(&head);
    }
    let (head, _) = http(relay.address, "DELETE / HTTP/1.1").await;
    assert!(head.starts_with("http/1.1 405"), "{head}");
    assert_cors(&head);
}

#[tokio::test]
async fn options_is_204_on_any_path() {
    let relay = Relay::start().await;
    for path in [
        "/",
        "/npub1test/test.git/git-upload-pack",
        "/any/where?x=1",
        "*",
    ] {
        let (head, body) = http(relay.address, &format!("OPTIONS {path} HTTP/1.1")).await;
        assert!(head.starts_with("http/1.1 204"), "{head}");
        assert_cors(&head);
        assert_eq!(body, "");
    }
}

#[tokio::test]
async fn a_malformed_upgrade_is_refused_with_a_reason() {
    let relay = Relay::start().await;
    let request =
        "GET / HTTP/1.1\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 12\r\nSec-WebSocket-Key: x";
    let (head, body) = http(relay.address, request).await;
    assert!(head.starts_with("http/1.1 4"), "{head}");
    assert_cors(&head);
    assert!(!body.is_empty());
}

#[tokio::test]
async fn a_websocket_is_opened_only_at_the_mount_path() {
    for (mount, at, elsewhere) in [
        (
            "",
            &["/"][..],
            ["/more", "/nowhere", "/npub1test/test.git", "/git"],
        ),
        (
            "/git",
            &["/git", "/git/"],
            ["/", "/git/more", "/git/nowhere", "/more"],
        ),
    ] {
        let relay = Relay::with(Limits::default(), |parts| {
            parts.config.service = format!("grasp.example{mount}").parse().expect("an address");
            parts.extra = axum::Router::new()
                .route("/more", get(|| async { "more" }))
                .fallback(|| async { "anything" });
        })
        .await;
        let upgrade = async |path: &str| {
            let mut stream = in_time(TcpStream::connect(relay.address))
                .await
                .expect("connected");
            let request = format!(
                "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: WebSocket\r\n\
                 Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
            );
            in_time(stream.write_all(request.as_bytes()))
                .await
                .expect("sent");
            let mut answer = [0; 12];
            in_time(stream.read_exact(&mut answer))
                .await
                .expect("an answer");
            String::from_utf8_lossy(&answer).into_owned()
        };
        for path in at {
            assert_eq!(upgrade(path).await, "HTTP/1.1 101", "{path}");
        }
        for path in elsewhere {
            assert_eq!(upgrade(path).await, "HTTP/1.1 404", "{path}");
        }
    }
}

#[tokio::test]
async fn other_routes_share_the_port_the_mount_and_the_headers() {
    let relay = Relay::with(Limits::default(), |parts| {
        parts.config.service = "grasp.example/git".parse().expect("an address");
        parts.extra = axum::Router::new().route("/more", get(|| async { "more" }));
    })
    .await;
    let (head, body) = http(relay.address, "GET /git/more HTTP/1.1").await;
    assert_eq!(body, "more");
    assert_cors(&head);
    for path in ["/git", "/git/"] {
        let document = http(
            relay.address,
            &format!("GET {path} HTTP/1.1\r\nAccept: application/nostr+json"),
        )
        .await;
        assert!(
            document.0.starts_with("http/1.1 200"),
            "{path}: {}",
            document.0
        );
    }
    assert!(
        http(relay.address, "GET / HTTP/1.1")
            .await
            .0
            .starts_with("http/1.1 404")
    );
}

#[tokio::test]
async fn half_sent_requests_are_dropped_and_do_not_block_other_clients() {
    let limits = Limits {
        header_timeout: Duration::from_secs(1),
        ..Limits::default()
    };
    let relay = Relay::limited(limits).await;
    let mut half_open = Vec::new();
    for _ in 0..50 {
        let mut stream = in_time(TcpStream::connect(relay.address))
            .await
            .expect("a connection");
        in_time(stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nUpgr"))
            .await
            .expect("sent");
        half_open.push(stream);
    }
    let mut client = relay.client().await;
    assert_eq!(client.ask(r#"["COUNT","c",{}]"#).await[0], "COUNT");
    for mut stream in half_open {
        let mut rest = Vec::new();
        // The connection ends, with or without an answer.
        let _ = in_time(stream.read_to_end(&mut rest)).await;
    }
    assert_eq!(client.ask(r#"["COUNT","c",{}]"#).await[0], "COUNT");
}

#[tokio::test]
async fn a_huge_head_is_refused() {
    let relay = Relay::start().await;
    let mut stream = in_time(TcpStream::connect(relay.address))
        .await
        .expect("a connection");
    let head = format!(
        "GET / HTTP/1.1\r\nHost: x\r\nX-Big: {}\r\n\r\n",
        "x".repeat(100_000)
    );
    let _ = in_time(stream.write_all(head.as_bytes())).await;
    let mut answer = vec![0; 12];
    in_time(stream.read_exact(&mut answer))
        .await
        .expect("an answer");
    assert_eq!(String::from_utf8_lossy(&answer), "HTTP/1.1 431");
}

#[tokio::test]
async fn connections_per_address_are_bounded() {
    let relay = Relay::limited(Limits {
        connections_per_ip: 2,
        ..Limits::default()
    })
    .await;
    let first = relay.client().await;
    let mut second = relay.client().await;
    let (head, _) = http(relay.address, "GET / HTTP/1.1").await;
    assert!(head.starts_with("http/1.1 429"), "{head}");
    assert_eq!(second.ask(r#"["COUNT","c",{}]"#).await[0], "COUNT");
    drop(first);
    // The slot is free once the relay has seen the end.
    in_time(async { while Client::try_connect(relay.address).await.is_err() {} }).await;
}

#[tokio::test]
async fn connections_of_nodes_are_not_counted_as_those_of_a_client() {
    let limits = Limits {
        connections_per_ip: 2,
        ..Limits::default()
    };
    let relay = Relay::with(limits, |parts| {
        parts.config.node_key = Some(NodeKey::new([7; 32]));
    })
    .await;
    let (node_key, wrong_key) = ("07".repeat(32), "08".repeat(32));
    let mut nodes = Vec::new();
    for _ in 0..10 {
        let (stream, status) = ask_with_key(relay.address, &node_key).await;
        assert_eq!(status, "200");
        nodes.push(stream);
    }
    let (_first, status) = ask_with_key(relay.address, &wrong_key).await;
    assert_eq!(status, "200");
    let (_second, status) = ask_with_key(relay.address, &wrong_key).await;
    assert_eq!(status, "200");
    assert_eq!(ask_with_key(relay.address, &wrong_key).await.1, "429");
}

/// Opens a connection, sends a request with a node key, and returns the connection, which stays open, and the status.
async fn ask_with_key(relay: SocketAddr, key: &str) -> (TcpStream, String) {
    let mut stream = in_time(TcpStream::connect(relay))
        .await
        .expect("a connection");
    let head = format!("GET / HTTP/1.1\r\nHost: x\r\nGrasp-Node-Key: {key}\r\n\r\n");
    in_time(stream.write_all(head.as_bytes()))
        .await
        .expect("sent");
    let mut answer = vec![0; 12];
    in_time(stream.read_exact(&mut answer))
        .await
        .expect("an answer");
    let status = String::from_utf8_lossy(&answer[9..]).into_owned();
    (stream, status)
}

#[tokio::test]
async fn behind_a_trusted_proxy_the_forwarded_address_is_counted() {
    let limits = Limits {
        connections_per_ip: 1,
        ..Limits::default()
    };
    let relay = Relay::with(limits, |parts| {
        parts.config.trusted_proxies = vec!["127.0.0.0/8".parse().expect("a range")];
    })
    .await;
    let open = |from: &'static str| Client::forwarded(relay.address, from);
    let _first = open("1.1.1.1").await.expect("a free slot");
    let _other = open("2.2.2.2").await.expect("a free slot");
    assert_eq!(open("1.1.1.1").await.err(), Some(429));
    // Addresses before the last hop are not trusted.
    assert_eq!(open("9.9.9.9, 2.2.2.2").await.err(), Some(429));
}

#[tokio::test]
async fn a_websocket_above_the_connection_limit_is_refused_with_503() {
    let relay = Relay::limited(Limits {
        connections: 1,
        ..Limits::default()
    })
    .await;
    let _only = relay.client().await;
    assert_eq!(Client::forwarded(relay.address, "").await.err(), Some(503));
}
