//! Authentication of clients (NIP-42).

use std::time::Duration;

use grasp_core::ServiceIdentity;
use nostr::event::{Event, Kind};
use nostr::key::PublicKey;
use nostr::types::Timestamp;

use super::codec::Reply;
use super::session::{CloseReason, Output, SessionConfig};

/// The difference that the clock of a client may have.
const MAX_CLOCK_DIFFERENCE: Duration = Duration::from_secs(600);

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
        let (id, limits) = (event.id, &config.limits);
        let refuse = |reason| Output::Send(Reply::refused(id, reason));
        match prove(event, &self.challenge, &config.service, now) {
            Ok(key) if !self.keys.contains(&key) && self.keys.len() >= limits.auth_keys => {
                vec![refuse("rate-limited: too many keys on one connection")]
            }
            Ok(key) => {
                if !self.keys.contains(&key) {
                    self.keys.push(key);
                }
                vec![Output::Send(Reply::Ok { id, accepted: true, message: "".into() })]
            }
            Err(reason) => {
                self.failures = self.failures.saturating_add(1);
                let close = self.failures >= limits.auth_failures;
                let close = close.then_some(Output::Close(CloseReason::TOO_MANY_AUTHS));
                [refuse(reason)].into_iter().chain(close).collect()
            }
        }
    }
}

/// Returns the key that an event authenticates, or the reason for which it does not.
fn prove(
    event: &Event,
    challenge: &str,
    service: &ServiceIdentity,
    now: Timestamp,
) -> Result<PublicKey, &'static str> {
    let tag = |name| event.tags.iter().find(|tag| tag.kind() == name)?.content();
    let difference = event.created_at.as_secs().abs_diff(now.as_secs());
    if event.kind != Kind::Authentication {
        Err("invalid: AUTH needs an event of kind 22242")
    } else if tag("challenge") != Some(challenge) {
        Err("invalid: the challenge is not that of this connection")
    } else if !tag("relay").is_some_and(|url| service.is_own_url(url)) {
        Err("invalid: the relay tag does not name this relay")
    } else if difference > MAX_CLOCK_DIFFERENCE.as_secs() {
        Err("invalid: created_at is too far from now")
    } else if event.verify().is_err() {
        Err("invalid: bad id or signature")
    } else {
        Ok(event.pubkey)
    }
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

    fn proven(event: &Event) -> Result<PublicKey, &'static str> {
        let service = "grasp.example:7334/git".parse().expect("an address");
        prove(event, "c", &service, Timestamp::from_secs(NOW))
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
            assert_eq!(proven(&event), Ok(event.pubkey), "{url}");
        }
    }

    #[test]
    fn anything_else_proves_nothing() {
        let kind = Kind::Authentication;
        let us = "ws://grasp.example:7334/git";
        for (event, fault) in [
            (auth(Kind::from(1), "c", us, NOW), "kind 22242"),
            (auth(kind, "d", us, NOW), "challenge"),
            (auth(kind, "c", "ws://grasp.example/git", NOW), "relay tag"),
            (auth(kind, "c", "ws://grasp.example:7334/gitx", NOW), "relay tag"),
            (auth(kind, "c", "ws://evil.org/grasp.example:7334/git", NOW), "relay tag"),
            (auth(kind, "c", us, NOW + 601), "created_at"),
            (auth(kind, "c", us, NOW - 601), "created_at"),
        ] {
            assert!(proven(&event).is_err_and(|reason| reason.contains(fault)), "{fault}");
        }
        let mut forged = auth(kind, "c", us, NOW);
        forged.pubkey = Keys::generate().public_key();
        assert_eq!(proven(&forged), Err("invalid: bad id or signature"));
    }
}
