//! Authentication of clients (NIP-42).

use std::time::Duration;

use grasp_core::ServiceIdentity;
use nostr::event::{Event, Kind};
use nostr::key::PublicKey;
use nostr::types::Timestamp;

use super::codec::Reply;
use super::session::{CloseReason, Output, SessionConfig};

#[derive(Debug)]
pub(super) struct Authentication {
    challenge: String,
    sent: bool,
    keys: Vec<PublicKey>,
    failures: u32,
}

impl Authentication {
    pub(super) const fn new(challenge: String) -> Self {
        Self { challenge, sent: false, keys: Vec::new(), failures: 0 }
    }

    pub(super) fn keys(&self) -> &[PublicKey] {
        &self.keys
    }

    /// Returns the challenge, the first time it is needed.
    pub(super) fn challenge(&mut self) -> Option<Output> {
        let first = !std::mem::replace(&mut self.sent, true);
        first.then(|| Output::Send(Reply::Auth(self.challenge.clone())))
    }

    /// Checks one AUTH. A connection may authenticate as several keys.
    pub(super) fn attempt(
        &mut self,
        now: Timestamp,
        event: &Event,
        config: &SessionConfig,
    ) -> Vec<Output> {
        let limits = &config.limits;
        let expected = Expected {
            challenge: &self.challenge,
            service: &config.service,
            now,
            window: limits.auth_window,
        };
        match expected.prove(event) {
            Ok(key) if self.keys.contains(&key) => vec![accepted(event)],
            Ok(_) if self.keys.len() >= limits.auth_keys => {
                let reason = "rate-limited: too many keys on one connection";
                vec![Output::Send(Reply::refused(event.id, reason))]
            }
            Ok(key) => {
                self.keys.push(key);
                vec![accepted(event)]
            }
            Err(fault) => {
                self.failures = self.failures.saturating_add(1);
                let mut outputs = vec![Output::Send(Reply::refused(event.id, fault.to_string()))];
                if self.failures >= limits.auth_failures {
                    outputs.push(Output::Close(CloseReason::TOO_MANY_AUTHS));
                }
                outputs
            }
        }
    }
}

fn accepted(event: &Event) -> Output {
    Output::Send(Reply::Ok { id: event.id, accepted: true, message: String::new() })
}

/// The values that an AUTH event must match.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expected<'a> {
    pub(crate) challenge: &'a str,
    pub(crate) service: &'a ServiceIdentity,
    pub(crate) now: Timestamp,
    pub(crate) window: Duration,
}

/// The reason for which an AUTH is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AuthFault {
    #[error("invalid: AUTH needs an event of kind 22242")]
    Kind,
    #[error("invalid: the challenge is not that of this connection")]
    Challenge,
    #[error("invalid: the relay tag does not name this relay")]
    Relay,
    #[error("invalid: created_at is too far from now")]
    Time,
    #[error("invalid: bad id or signature")]
    Signature,
}

impl Expected<'_> {
    /// Returns the key that this event authenticates.
    pub(crate) fn prove(&self, event: &Event) -> Result<PublicKey, AuthFault> {
        if event.kind != Kind::Authentication {
            return Err(AuthFault::Kind);
        }
        if tag(event, "challenge") != Some(self.challenge) {
            return Err(AuthFault::Challenge);
        }
        if !tag(event, "relay").is_some_and(|url| self.service.is_own_url(url)) {
            return Err(AuthFault::Relay);
        }
        let off = event.created_at.as_secs().abs_diff(self.now.as_secs());
        if off > self.window.as_secs() {
            return Err(AuthFault::Time);
        }
        event.verify().map_err(|_| AuthFault::Signature)?;
        Ok(event.pubkey)
    }
}

fn tag<'a>(event: &'a Event, name: &str) -> Option<&'a str> {
    let mut tags = event.tags.iter();
    tags.find(|tag| tag.kind() == name)?.content()
}

#[cfg(test)]
mod tests {
    use nostr::event::{EventBuilder, FinalizeEvent, Tag};
    use nostr::key::Keys;

    use super::*;

    const NOW: u64 = 1_700_000_000;

    fn auth(kind: Kind, challenge: &str, relay: &str, at: u64) -> Event {
        EventBuilder::new(kind, "")
            .tags([Tag::custom("challenge", [challenge]), Tag::custom("relay", [relay])])
            .custom_created_at(Timestamp::from_secs(at))
            .finalize(&Keys::generate())
            .expect("signed")
    }

    fn prove(event: &Event) -> Result<PublicKey, AuthFault> {
        Expected {
            challenge: "c",
            service: &"grasp.example:7334/git".parse().expect("an address"),
            now: Timestamp::from_secs(NOW),
            window: Duration::from_secs(600),
        }
        .prove(event)
    }

    #[test]
    fn proves_the_key_that_signed_our_challenge_for_our_address() {
        let kind = Kind::Authentication;
        for (url, at) in [
            ("ws://grasp.example:7334/git", NOW),
            ("wss://GRASP.example.:7334/git/", NOW + 600),
            ("wss://grasp.example:7334//git", NOW - 600),
        ] {
            let event = auth(kind, "c", url, at);
            assert_eq!(prove(&event), Ok(event.pubkey), "{url}");
        }
    }

    #[test]
    fn anything_else_proves_nothing() {
        let kind = Kind::Authentication;
        let us = "ws://grasp.example:7334/git";
        for (event, fault) in [
            (auth(Kind::from(1), "c", us, NOW), AuthFault::Kind),
            (auth(kind, "d", us, NOW), AuthFault::Challenge),
            (auth(kind, "c", "ws://grasp.example/git", NOW), AuthFault::Relay),
            (auth(kind, "c", "ws://grasp.example:7334/gitx", NOW), AuthFault::Relay),
            (auth(kind, "c", "ws://evil.org/grasp.example:7334/git", NOW), AuthFault::Relay),
            (auth(kind, "c", us, NOW + 601), AuthFault::Time),
            (auth(kind, "c", us, NOW - 601), AuthFault::Time),
        ] {
            assert_eq!(prove(&event), Err(fault));
        }
        let mut forged = auth(kind, "c", us, NOW);
        forged.pubkey = Keys::generate().public_key();
        assert_eq!(prove(&forged), Err(AuthFault::Signature));
    }
}
