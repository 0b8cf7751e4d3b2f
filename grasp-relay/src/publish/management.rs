//! Calls to a relay of any software, signed by a key (NIP-86, NIP-98).

use axum::body::Bytes;
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{self, StatusCode};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bitcoin_hashes::sha256;
use grasp_core::outbound::Provenance;
use nostr::event::{EventBuilder, FinalizeEvent as _, Kind, Tag};
use nostr::key::Keys;
use serde::Deserialize;
use serde_json::Value;

use super::client;
use crate::instance::error::{Explain as _, InstanceError, Result};
use crate::management::rules::Request;
use crate::publish::PushServer;

/// The answer to a call.
#[derive(Default, Deserialize)]
#[serde(default)]
struct CallAnswer {
    result: Value,
    error: Option<String>,
}

/// Makes a call, and returns its result.
pub async fn call(server: &PushServer, keys: &Keys, call: &Request) -> Result<Value> {
    let scheme = match server.secure {
        true => "https",
        false => "http",
    };
    let url = format!("{scheme}://{}/", server.service);
    let body = Bytes::from(serde_json::to_vec(call)?);
    let request = http::Request::post(&url)
        .header(CONTENT_TYPE, Request::CONTENT_TYPE)
        .header(AUTHORIZATION, authorization(keys, &url, &body)?)
        .body(body)?;
    let sent = client::outbound()?
        .send(request, Provenance::Operator)
        .await;
    let answer =
        sent.map_err(|fault| InstanceError::other_server(format!("{}: {fault}", server.service)))?;
    let read: CallAnswer = serde_json::from_slice(answer.body()).unwrap_or_default();
    if let Some(error) = read.error {
        return Err(InstanceError::other_server(format!(
            "{} refused it: {error}",
            server.service
        )));
    }
    match answer.status() {
        StatusCode::OK => Ok(read.result),
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => Err(InstanceError::other_server(
            format!("{} cannot be administrated by key (NIP-86)", server.service),
        )),
        status => Err(InstanceError::other_server(format!(
            "{} answered {status}",
            server.service
        ))),
    }
}

/// Returns the value of the `Authorization` header for one call.
fn authorization(keys: &Keys, url: &str, body: &[u8]) -> Result<String> {
    let payload = sha256::Hash::hash(body).to_string();
    let event = EventBuilder::new(Kind::HttpAuth, "")
        .tag(Tag::parse(["u", url])?)
        .tag(Tag::parse(["method", "POST"])?)
        .tag(Tag::parse(["payload", &payload])?)
        .finalize(keys)
        .context("could not sign the call")?;
    Ok(format!("Nostr {}", STANDARD.encode(event.as_json())))
}

#[cfg(test)]
mod tests {
    use grasp_core::http_auth::{HttpAuthRule, judge_header};
    use nostr::types::Timestamp;

    use super::*;

    #[test]
    fn a_call_is_authorized_for_its_address_and_body() {
        let keys = Keys::generate();
        let service = "git.example/m".parse().unwrap();
        let header = authorization(&keys, "https://git.example/m/", b"{}").unwrap();
        let judge = |body| {
            let rule = HttpAuthRule::management(&service, body);
            judge_header(&header, &rule, Timestamp::now())
        };
        assert_eq!(judge(b"{}").unwrap().author, keys.public_key());
        assert!(judge(b"[]").is_err());
    }
}
