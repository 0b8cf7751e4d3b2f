//! Calls of administration by key (NIP-86), signed for one server.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bitcoin_hashes::sha256;
use nostr::event::{EventBuilder, FinalizeEvent, Kind, Tag};
use nostr::key::Keys;
use serde_json::{Value, json};

use crate::http::{HttpResponse, post};

/// The content type of calls.
const MANAGEMENT: &str = "application/nostr+json+rpc";

/// A call as it is sent.
#[derive(Clone, Debug)]
pub struct SignedCall {
    /// The value of the `Authorization` header.
    pub authorization: String,
    /// The body.
    pub body: Vec<u8>,
}

impl SignedCall {
    /// Signs a call to the server at an address.
    pub fn new(keys: &Keys, address: &str, method: &str, params: Value) -> Self {
        let body = json!({"method": method, "params": params}).to_string();
        Self::of_body(keys, address, body.into_bytes())
    }

    /// Signs a body.
    pub fn of_body(keys: &Keys, address: &str, body: Vec<u8>) -> Self {
        let payload = sha256::Hash::hash(&body).to_string();
        let url = format!("http://{address}/");
        let tags = [["u", &url], ["method", "POST"], ["payload", &payload]];
        let tags = tags.map(|tag| Tag::parse(tag).expect("a tag"));
        let event = EventBuilder::new(Kind::HttpAuth, "").tags(tags);
        let event = event.finalize(keys).expect("a key can sign");
        let authorization = format!("Nostr {}", STANDARD.encode(event.as_json()));
        Self {
            authorization,
            body,
        }
    }

    /// Returns the headers of the request.
    pub fn headers(&self) -> [(&str, &str); 2] {
        [
            ("Content-Type", MANAGEMENT),
            ("Authorization", &self.authorization),
        ]
    }

    /// Sends the call, and returns the status and the answer.
    pub async fn send(&self, address: &str) -> (u16, Value) {
        let HttpResponse { status, body, .. } =
            post(address, "/", &self.headers(), &self.body).await;
        // Nodes pass answers on in one chunk, which has its length before it.
        let begin = body.find('{').unwrap_or_default();
        let end = body.rfind('}').map_or(body.len(), |end| end + 1);
        let json = body.get(begin..end).unwrap_or_default();
        (status, serde_json::from_str(json).unwrap_or_default())
    }
}
