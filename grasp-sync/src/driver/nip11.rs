//! Fetches a relay's NIP-11 document. A relay without one is treated like one that advertises nothing.

use std::pin::pin;
use std::time::Duration;

use grasp_core::RelayUrl;
use grasp_core::outbound::{OutboundPolicy, Provenance};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, HOST, USER_AGENT};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::time::timeout;
use url::Url;

use super::outbound::{Outbound, Route};
use super::roots::Roots;
use crate::engine::RelayFacts;

/// Time for fetching the document, from the dial to its last byte.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest document that is read.
const MAX_DOCUMENT_BYTES: usize = 256 * 1024;
/// Our name to other servers.
pub(crate) const USER_AGENT_NAME: &str = concat!("grasp-sync/", env!("CARGO_PKG_VERSION"));

/// Returns the facts of the document, or those of a relay that has none.
pub(crate) async fn fetch(relay: &RelayUrl, route: &Route) -> RelayFacts {
    let fetched = timeout(FETCH_TIMEOUT, try_fetch(relay, route)).await;
    let document = fetched.ok().flatten().unwrap_or_default();
    serde_json::from_slice(&document).map(Document::facts).unwrap_or_default()
}

/// Fetches a relay's NIP-11 document under the policy for untrusted addresses; `None` if it has none.
pub async fn relay_information(
    relay: &RelayUrl,
    policy: OutboundPolicy,
    roots: &Roots,
) -> Option<RelayFacts> {
    let outbound = Outbound::new(policy, roots);
    let fetch = async {
        let route = outbound.route(relay, Provenance::Stranger).await.ok()?;
        try_fetch(relay, &route).await
    };
    let document = timeout(FETCH_TIMEOUT, fetch).await.ok().flatten()?;
    serde_json::from_slice(&document).map(Document::facts).ok()
}

async fn try_fetch(relay: &RelayUrl, route: &Route) -> Option<Vec<u8>> {
    let (wire, _) = route.connect().await.ok()?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(wire)).await.ok()?;
    // The connection is driven only until the answer is here. A server that closes it after its answer has answered.
    let mut asking = pin!(ask(relay, &mut sender));
    tokio::select! {
        document = &mut asking => document,
        _ = connection => asking.await,
    }
}

async fn ask(relay: &RelayUrl, to: &mut http1::SendRequest<Empty<Bytes>>) -> Option<Vec<u8>> {
    let url = Url::parse(relay.as_str()).ok()?;
    let target =
        url.query().map_or(url.path().to_owned(), |query| format!("{}?{query}", url.path()));
    let request = Request::get(target)
        .header(HOST, relay.host().as_str())
        .header(ACCEPT, "application/nostr+json")
        .header(USER_AGENT, USER_AGENT_NAME)
        .body(Empty::new())
        .ok()?;
    let answer = to.send_request(request).await.ok()?;
    if !answer.status().is_success() {
        return None;
    }
    let body = Limited::new(answer.into_body(), MAX_DOCUMENT_BYTES).collect().await.ok()?;
    Some(body.to_bytes().into())
}

/// The part of the document that matters here. Values of an unexpected type count as missing.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Document {
    software: serde_json::Value,
    version: serde_json::Value,
    limitation: serde_json::Value,
    supported_grasps: serde_json::Value,
}

impl Document {
    fn facts(self) -> RelayFacts {
        let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
        let limit = |name| self.limitation.get(name)?.as_u64()?.try_into().ok();
        let grasps = self.supported_grasps.as_array().into_iter().flatten();
        let supports = |name| grasps.clone().any(|grasp| grasp.as_str() == Some(name));
        RelayFacts {
            software: text(&self.software),
            version: text(&self.version),
            max_subscriptions: limit("max_subscriptions"),
            max_limit: limit("max_limit"),
            max_message_length: limit("max_message_length"),
            is_grasp: supports("GRASP-01") || supports("GRASP-02"),
            is_private: supports("GRASP-08"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(json: &str) -> RelayFacts {
        serde_json::from_str(json).map(Document::facts).unwrap_or_default()
    }

    #[test]
    fn reads_the_relevant_fields() {
        let read = facts(
            r#"{"name":"x","software":"grasp","version":"0.1.0","supported_grasps":["GRASP-01"],
                "limitation":{"max_subscriptions":20,"max_limit":500,"max_message_length":65536,"auth_required":false}}"#,
        );
        let wanted = RelayFacts {
            software: Some("grasp".into()),
            version: Some("0.1.0".into()),
            max_subscriptions: Some(20),
            max_limit: Some(500),
            max_message_length: Some(65_536),
            is_grasp: true,
            is_private: false,
        };
        assert_eq!(read, wanted);
        assert!(facts(r#"{"supported_grasps":["GRASP-01","GRASP-08"]}"#).is_private);
    }

    #[test]
    fn malformed_documents_count_as_missing() {
        for json in [
            "",
            "[]",
            "<html>",
            r#"{"software":5,"limitation":[1],"supported_grasps":"GRASP-08"}"#,
            r#"{"limitation":{"max_limit":-1,"max_subscriptions":"20","max_message_length":1e99}}"#,
        ] {
            assert_eq!(facts(json), RelayFacts::default(), "{json}");
        }
    }

    #[tokio::test]
    async fn the_answer_of_a_server_that_closes_after_it_is_read() {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let relay = format!("ws://{}", listener.local_addr().unwrap()).parse().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let _ = stream.read(&mut [0; 4096]).await;
                let body = r#"{"supported_grasps":["GRASP-01"]}"#;
                let answer = format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                    body.len()
                );
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        let policy = OutboundPolicy { allow_private: true };
        for _ in 0..50 {
            let facts = relay_information(&relay, policy, &Roots::default()).await;
            assert!(facts.is_some_and(|facts| facts.is_grasp));
        }
    }
}
