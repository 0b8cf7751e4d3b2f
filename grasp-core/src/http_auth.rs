//! Authorization of HTTP requests by signed events (NIP-98).
//!
//! ```
//! use grasp_core::http_auth::{
//!     HttpAuth, HttpAuthRefusal, HttpAuthRule, MAX_HEADER_BYTES, PayloadRule, UrlRule, judge_event, judge_header,
//!     parse_header,
//! };
//! use nostr::event::{EventBuilder, FinalizeEvent, Kind, Tag};
//! use nostr::key::Keys;
//!
//! let service = "grasp.example".parse()?;
//! let rule = HttpAuthRule::management(&service, b"{}");
//! assert!(matches!((rule.url, rule.payload), (UrlRule::Service(_), PayloadRule::Required(_))));
//!
//! // A request to a repository is authorized by an event about its address.
//! let alice = Keys::generate();
//! let root = "https://grasp.example/npub1x/a.git";
//! let event = EventBuilder::new(Kind::HttpAuth, "")
//!     .tags([Tag::parse(["u", root])?, Tag::parse(["method", "GET"])?])
//!     .finalize(&alice)?;
//! let auth: HttpAuth = judge_event(&event, &HttpAuthRule::git(root), event.created_at)?;
//! assert_eq!(auth.author, alice.public_key());
//! let refused: HttpAuthRefusal = judge_event(&event, &rule, event.created_at).unwrap_err();
//! assert_ne!(refused, HttpAuthRefusal::NotNostr);
//!
//! // The header has it as base64. It is read before its signature is checked, which costs more.
//! let refused = judge_header("Bearer x", &rule, event.created_at).unwrap_err();
//! assert_eq!(refused.to_string(), "the Authorization header is not `Nostr` and base64");
//! assert!(parse_header(&"x".repeat(MAX_HEADER_BYTES + 1)).is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bitcoin_hashes::sha256;
use nostr::event::{Event, EventId, Kind};
use nostr::key::PublicKey;
use nostr::types::Timestamp;

use crate::event::Verified;
use crate::service::ServiceIdentity;
use crate::text::hex_bytes;

/// Maximum length of the value of an `Authorization` header.
pub const MAX_HEADER_BYTES: usize = 8 * 1024;

/// What an authorization must say to be valid for a request.
#[derive(Clone, Debug)]
pub struct HttpAuthRule<'a> {
    /// The value of the `method` tag.
    pub method: &'static str,
    /// The addresses that the `u` tag may name.
    pub url: UrlRule<'a>,
    /// Whether the `payload` tag is compared with the body.
    pub payload: PayloadRule,
    /// The greatest age of the event.
    pub max_age: Duration,
    /// How far in the future the event may be dated, since clocks differ.
    pub max_ahead: Duration,
}

/// The addresses that an authorization may name.
#[derive(Clone, Copy, Debug)]
pub enum UrlRule<'a> {
    /// The address of this service by its parsed parts: http, https, ws or wss, with or without a final slash.
    Service(&'a ServiceIdentity),
    /// This text, byte for byte.
    Exactly(&'a str),
}

/// Whether an authorization must name the hash of the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadRule {
    /// The `payload` tag must be this SHA-256.
    Required([u8; 32]),
    /// The `payload` tag means nothing.
    Ignored,
}

/// A valid authorization.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpAuth {
    /// The key that signed it.
    pub author: PublicKey,
    /// Its id, by which a repetition is noticed.
    pub id: EventId,
    /// The first second at which it is no longer valid. Until then its id has to be remembered, if it may be used once.
    pub expires_at: Timestamp,
}

/// The reason for which an authorization is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the texts say it")]
pub enum HttpAuthRefusal {
    #[error("the Authorization header is not `Nostr` and base64")]
    NotNostr,
    #[error("the authorization is not a nostr event")]
    NotAnEvent,
    #[error("the id or the signature of the authorization does not verify")]
    Forged,
    #[error("the authorization is not an event of kind 27235")]
    Kind,
    #[error("the authorization is too old; check the clock of your computer")]
    TooOld,
    #[error("the authorization is dated in the future; check the clock of your computer")]
    TooFarAhead,
    #[error("the authorization needs exactly one tag `u`, with the address of this service")]
    Url,
    #[error("the authorization needs exactly one tag `method`, with the method of the request")]
    Method,
    #[error(
        "the authorization needs exactly one tag `payload`, with the SHA-256 of the body in hex"
    )]
    Payload,
}

impl<'a> HttpAuthRule<'a> {
    /// Returns the rule for managing a service (NIP-86): `POST` with the hash of the body.
    pub fn management(service: &'a ServiceIdentity, body: &[u8]) -> Self {
        Self {
            method: "POST",
            url: UrlRule::Service(service),
            payload: PayloadRule::Required(sha256::hash(body).to_byte_array()),
            max_age: Duration::from_secs(60),
            max_ahead: Duration::from_secs(30),
        }
    }

    /// Returns the rule for git at a private service (GRASP-08): always `GET`, for the address of the repository. One
    /// authorization is valid for all requests of a clone or push, which is why the body does not count.
    pub fn git(repository: &'a str) -> Self {
        Self {
            method: "GET",
            url: UrlRule::Exactly(repository),
            payload: PayloadRule::Ignored,
            max_age: Duration::from_secs(60),
            max_ahead: Duration::from_secs(60),
        }
    }
}

impl UrlRule<'_> {
    fn matches(self, url: &str) -> bool {
        match self {
            Self::Service(service) => service.is_service_url(url),
            Self::Exactly(expected) => url == expected,
        }
    }
}

/// Judges the value of an `Authorization` header: its form, its signature, and whether it is valid for the request.
pub fn judge_header(
    header: &str,
    rule: &HttpAuthRule<'_>,
    now: Timestamp,
) -> Result<HttpAuth, HttpAuthRefusal> {
    let event = parse_header(header)?;
    let auth = judge_event(&event, rule, now)?;
    // Last, because it costs the most.
    Verified::check(event).map_err(|_| HttpAuthRefusal::Forged)?;
    Ok(auth)
}

/// Returns the event in the value of an `Authorization` header, unverified.
pub fn parse_header(header: &str) -> Result<Event, HttpAuthRefusal> {
    if header.len() > MAX_HEADER_BYTES {
        return Err(HttpAuthRefusal::NotNostr);
    }
    let Some((scheme, encoded)) = header.split_once(' ') else {
        return Err(HttpAuthRefusal::NotNostr);
    };
    if !scheme.eq_ignore_ascii_case("nostr") {
        return Err(HttpAuthRefusal::NotNostr);
    }
    let json = STANDARD
        .decode(encoded.trim())
        .map_err(|_| HttpAuthRefusal::NotNostr)?;
    Event::from_json(json).map_err(|_| HttpAuthRefusal::NotAnEvent)
}

/// Judges whether an event authorizes a request. Its signature is not checked.
pub fn judge_event(
    event: &Event,
    rule: &HttpAuthRule<'_>,
    now: Timestamp,
) -> Result<HttpAuth, HttpAuthRefusal> {
    if event.kind != Kind::HttpAuth {
        return Err(HttpAuthRefusal::Kind);
    }
    let created_at = event.created_at.as_secs();
    let expires_at = created_at.saturating_add(rule.max_age.as_secs() + 1);
    if expires_at <= now.as_secs() {
        return Err(HttpAuthRefusal::TooOld);
    }
    if created_at > now.as_secs().saturating_add(rule.max_ahead.as_secs()) {
        return Err(HttpAuthRefusal::TooFarAhead);
    }
    if !only_value(event, "u").is_some_and(|url| rule.url.matches(url)) {
        return Err(HttpAuthRefusal::Url);
    }
    if only_value(event, "method") != Some(rule.method) {
        return Err(HttpAuthRefusal::Method);
    }
    if let PayloadRule::Required(hash) = rule.payload
        && only_value(event, "payload").and_then(hex_bytes) != Some(hash)
    {
        return Err(HttpAuthRefusal::Payload);
    }
    Ok(HttpAuth {
        author: event.pubkey,
        id: event.id,
        expires_at: Timestamp::from_secs(expires_at),
    })
}

/// Returns the value of the only tag of that name; `None` if there are several, or if it has other than two elements.
fn only_value<'a>(event: &'a Event, name: &str) -> Option<&'a str> {
    let mut named = event
        .tags
        .iter()
        .map(|tag| tag.as_slice())
        .filter(|tag| tag.first().is_some_and(|first| first == name));
    let (Some([_, value]), None) = (named.next(), named.next()) else {
        return None;
    };
    Some(value)
}

#[cfg(test)]
mod tests;
