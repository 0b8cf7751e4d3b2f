//! What we say to a client.

use std::borrow::Cow;
use std::fmt::Display;

use grasp_core::neg;
use nostr::event::EventId;
use serde::Serialize;

use grasp_core::limits::EoseHint;

use super::SubId;

/// One message to a client, other than EVENT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Ok {
        id: EventId,
        accepted: bool,
        message: String,
    },
    Eose(SubId, EoseHint),
    Closed(SubId, Cow<'static, str>),
    Notice(String),
    Count(SubId, u64),
    Auth(String),
    NegMsg(SubId, Vec<u8>),
    /// The last element is the largest set that would be served, where that is the reason.
    NegErr(SubId, Cow<'static, str>, Option<usize>),
}

impl Reply {
    pub(crate) fn notice(reason: impl Display) -> Self {
        Self::Notice(reason.to_string())
    }

    pub(crate) fn refused(id: EventId, reason: impl Into<String>) -> Self {
        Self::Ok { id, accepted: false, message: reason.into() }
    }

    pub(crate) fn closed(id: &SubId, reason: impl Into<Cow<'static, str>>) -> Self {
        Self::Closed(id.clone(), reason.into())
    }

    pub(crate) fn neg_err(id: &SubId, reason: impl Into<Cow<'static, str>>) -> Self {
        Self::NegErr(id.clone(), reason.into(), None)
    }

    /// Whether it asks the client to authenticate.
    pub(crate) fn wants_auth(&self) -> bool {
        let reason: &str = match self {
            Self::Ok { message, .. } => message,
            Self::Closed(_, reason) | Self::NegErr(_, reason, _) => reason,
            _ => "",
        };
        reason.starts_with("auth-required:")
    }

    /// The message as it goes on the wire.
    pub(crate) fn to_json(&self) -> String {
        match self {
            Self::Ok { id, accepted, message } => json(&("OK", id, accepted, message)),
            Self::Eose(id, hint) => json(&("EOSE", id.as_str(), [hint.as_str()])),
            Self::Closed(id, reason) => json(&("CLOSED", id.as_str(), reason)),
            Self::Notice(text) => json(&("NOTICE", text)),
            Self::Count(id, count) => {
                json(&("COUNT", id.as_str(), serde_json::json!({ "count": count })))
            }
            Self::Auth(challenge) => json(&("AUTH", challenge)),
            Self::NegMsg(id, message) => neg_msg(id, message),
            Self::NegErr(id, reason, None) => json(&("NEG-ERR", id.as_str(), reason)),
            Self::NegErr(id, reason, Some(most)) => json(&("NEG-ERR", id.as_str(), reason, most)),
        }
    }
}

/// What stands before the event in an EVENT message; a `]` closes it.
pub(crate) fn event_prefix(id: &SubId) -> String {
    format!(r#"["EVENT",{},"#, json(&id.as_str()))
}

fn neg_msg(id: &SubId, message: &[u8]) -> String {
    format!(r#"["NEG-MSG",{},"{}"]"#, json(&id.as_str()), neg::to_hex(message))
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("strings, numbers and ids always have a JSON form")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subscription_ids_are_escaped_wherever_they_stand() {
        let id = SubId::of("a\"]\n");
        for text in [
            Reply::Eose(id.clone(), EoseHint::Finish).to_json(),
            Reply::NegMsg(id.clone(), vec![0x61]).to_json(),
            event_prefix(&id) + "{}]",
        ] {
            let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            assert_eq!(value[1], "a\"]\n", "{text}");
        }
    }

    #[test]
    fn a_refusal_for_size_says_what_would_be_served() {
        let reply = Reply::NegErr(SubId::of("n"), "blocked: this query is too big".into(), Some(7));
        assert_eq!(reply.to_json(), r#"["NEG-ERR","n","blocked: this query is too big",7]"#);
    }
}
