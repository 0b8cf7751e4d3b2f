//! A relay's NIP-11 document. A relay without one is treated like one that advertises nothing.

use std::time::Duration;

use grasp_core::RelayUrl;
use grasp_core::outbound::{OutboundPolicy, Provenance};
use hyper::Response;
use hyper::body::Bytes;
use serde::Deserialize;
use tokio::time::timeout;

use super::outbound::{Outbound, Roots, Route};
use crate::engine::{Fault, RelayFacts};

/// Time for fetching the document, from the dial to its last byte.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns the facts of the document, or those of a relay that has none.
pub(crate) async fn fetch(relay: &RelayUrl, route: &Route) -> RelayFacts {
    facts_of(route.get(relay)).await.unwrap_or_default()
}

/// Fetches a relay's NIP-11 document under the policy for untrusted addresses; `None` if it has none.
pub async fn relay_information(
    relay: &RelayUrl,
    policy: OutboundPolicy,
    roots: &Roots,
) -> Option<RelayFacts> {
    facts_of(Outbound::new(policy, roots).get(relay, Provenance::Stranger)).await
}

async fn facts_of(get: impl Future<Output = Result<Response<Bytes>, Fault>>) -> Option<RelayFacts> {
    let answer = timeout(FETCH_TIMEOUT, get).await.ok()?.ok()?;
    let document = answer.status().is_success().then(|| answer.into_body())?;
    serde_json::from_slice(&document).map(Document::facts).ok()
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
