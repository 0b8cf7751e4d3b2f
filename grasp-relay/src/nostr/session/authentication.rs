//! The challenge of one socket, and whom it has proved to be.

use nostr::event::Event;
use nostr::key::PublicKey;
use nostr::types::Timestamp;

use super::super::auth::Expected;
use super::super::codec::Reply;
use super::{Hangup, Output, Rules};

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

    /// The challenge, the first time somebody needs it.
    pub(super) fn challenge(&mut self) -> Option<Output> {
        let first = !std::mem::replace(&mut self.sent, true);
        first.then(|| Output::Send(Reply::Auth(self.challenge.clone())))
    }

    /// Judges one AUTH. Several keys may be proved one after the other.
    pub(super) fn attempt(&mut self, now: Timestamp, event: &Event, rules: &Rules) -> Vec<Output> {
        let limits = &rules.limits;
        let expected = Expected {
            challenge: &self.challenge,
            service: &rules.service,
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
                    outputs.push(Output::Hangup(Hangup::TOO_MANY_AUTHS));
                }
                outputs
            }
        }
    }
}

fn accepted(event: &Event) -> Output {
    Output::Send(Reply::Ok { id: event.id, accepted: true, message: String::new() })
}
