//! The authentication of a client (NIP-42), and whether it is a member of a private service (GRASP-08).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use grasp_core::{Mono, RelayUrl, ServiceIdentity};
use nostr::event::{Event, Kind};
use nostr::key::PublicKey;
use nostr::types::Timestamp;

use super::super::codec::Reply;
use super::{CloseReason, Output};
use crate::private::Private;
use crate::server::Config;

/// The difference that the clock of a client may have.
const MAX_CLOCK_DIFFERENCE: Duration = Duration::from_secs(600);

/// The same at a private service.
const MAX_CLOCK_DIFFERENCE_OF_MEMBERS: Duration = Duration::from_secs(120);

/// The time in which a member has to authenticate.
const MEMBER_TIMEOUT: Duration = Duration::from_secs(30);

/// Failed AUTHs after which a private service closes the connection.
const MEMBER_ATTEMPTS: u32 = 3;

#[derive(Debug)]
pub(super) struct Authentication {
    challenge: String,
    was_sent: bool,
    keys: Vec<PublicKey>,
    failures: u32,
    gate: Option<Gate>,
}

/// What a private service compares keys with.
#[derive(Debug)]
struct Gate {
    members: Arc<BTreeSet<PublicKey>>,
    /// The time by which a member has to authenticate.
    until: Mono,
}

impl Authentication {
    pub(super) fn new(now: Mono, challenge: String, private: Option<&Private>) -> Self {
        Self {
            challenge,
            was_sent: false,
            keys: Vec::new(),
            failures: 0,
            gate: private.map(|private| Gate {
                members: private.members.current(),
                until: now + MEMBER_TIMEOUT,
            }),
        }
    }

    /// Returns the keys that the client authenticated as; all are members if the service is private.
    pub(super) fn keys(&self) -> &[PublicKey] {
        &self.keys
    }

    /// Returns whether the client has to prove first that it is a member.
    pub(super) fn is_locked(&self) -> bool {
        self.gate.is_some() && self.keys.is_empty()
    }

    /// Returns the time by which it has to.
    pub(super) fn locked_until(&self) -> Option<Mono> {
        let gate = self.gate.as_ref().filter(|_| self.keys.is_empty());
        gate.map(|gate| gate.until)
    }

    /// Returns the challenge, the first time it is needed.
    pub(super) fn challenge(&mut self) -> Option<Output> {
        let first = !std::mem::replace(&mut self.was_sent, true);
        first.then(|| Output::Send(Reply::Auth(self.challenge.clone())))
    }

    /// Takes the members as they are now, and ends the connection of one that was removed.
    pub(super) fn members_changed(&mut self, members: Arc<BTreeSet<PublicKey>>) -> Option<Output> {
        let gate = self.gate.as_mut()?;
        gate.members = members;
        let was_member = !self.keys.is_empty();
        self.keys.retain(|key| gate.members.contains(key));
        let is_removed = was_member && self.keys.is_empty();
        is_removed.then_some(Output::Close(CloseReason::REMOVED))
    }

    /// Checks one AUTH. A connection may authenticate as several keys.
    pub(super) fn attempt(
        &mut self,
        now: Timestamp,
        event: &Event,
        config: &Config,
    ) -> Vec<Output> {
        let (id, limits) = (event.id, &config.limits);
        let refuse = |reason: String| Output::Send(Reply::refused(id, reason));
        let proven = prove(
            event,
            &self.challenge,
            &config.service,
            self.gate.is_some(),
            now,
        );
        let key = match proven {
            Ok(key) => key,
            Err(reason) => return self.failed(event, reason, limits.auth_failures),
        };
        if self
            .gate
            .as_ref()
            .is_some_and(|gate| !gate.members.contains(&key))
        {
            let refusal = refuse(String::from("restricted: this key is not one of a member"));
            return vec![refusal, Output::Close(CloseReason::NOT_A_MEMBER)];
        }
        if !self.keys.contains(&key) {
            if self.keys.len() >= limits.auth_keys {
                let reason = "rate-limited: too many keys on one connection";
                return vec![refuse(reason.to_owned())];
            }
            self.keys.push(key);
        }
        vec![Output::Send(Reply::Ok {
            id,
            accepted: true,
            message: "".into(),
        })]
    }

    /// Refuses an invalid AUTH, and closes the connection after too many.
    fn failed(&mut self, event: &Event, reason: &str, most: u32) -> Vec<Output> {
        self.failures = self.failures.saturating_add(1);
        let (prefix, most) = match &self.gate {
            Some(_) => ("auth-required", most.min(MEMBER_ATTEMPTS)),
            None => ("invalid", most),
        };
        let refusal = Reply::refused(event.id, format!("{prefix}: {reason}"));
        let mut outputs = vec![Output::Send(refusal)];
        if self.failures >= most {
            outputs.push(Output::Close(CloseReason::TOO_MANY_AUTHS));
        }
        outputs
    }
}

/// Returns the key that an event authenticates, or the reason for which it does not.
pub(super) fn prove(
    event: &Event,
    challenge: &str,
    service: &ServiceIdentity,
    is_private: bool,
    now: Timestamp,
) -> Result<PublicKey, &'static str> {
    let tag = |name| event.tags.iter().find(|tag| tag.kind() == name)?.content();
    let difference = event.created_at.as_secs().abs_diff(now.as_secs());
    let most = match is_private {
        true => MAX_CLOCK_DIFFERENCE_OF_MEMBERS,
        false => MAX_CLOCK_DIFFERENCE,
    };
    let is_own = |url: &str| match is_private {
        true => is_relay_url(service, url),
        false => service.is_own_url(url),
    };
    if event.kind != Kind::Authentication {
        Err("AUTH needs an event of kind 22242")
    } else if tag("challenge") != Some(challenge) {
        Err("the challenge is not that of this connection")
    } else if !tag("relay").is_some_and(is_own) {
        Err("the relay tag does not name this relay")
    } else if difference > most.as_secs() {
        Err("created_at is too far from now")
    } else if event.verify().is_err() {
        Err("bad id or signature")
    } else {
        Ok(event.pubkey)
    }
}

/// Returns whether a URL is the address of this relay, with `ws` or `wss`.
fn is_relay_url(service: &ServiceIdentity, url: &str) -> bool {
    let relay = url.parse::<RelayUrl>();
    relay.is_ok_and(|relay| service.is_relay(&relay))
}
