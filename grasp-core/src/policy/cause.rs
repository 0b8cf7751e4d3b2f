//! The causes for which stored events are out of service.

use std::fmt;
use std::str::FromStr;

use nostr::event::EventId;
use nostr::key::PublicKey;

use crate::repo::RepoId;
use crate::text::{ParseError, invalid, parse_event_id, parse_pubkey};

/// The cause for which stored events are out of service. Its text names what it is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HiddenCause {
    /// Their author is banned.
    Author(PublicKey),
    /// The event itself is banned.
    Event(EventId),
    /// The repository that they announce, or whose state they are, is banned, not allowed, or held.
    Repo(RepoId),
    /// The repository that they are about is announced no longer, and nothing else that is served refers to them.
    Unannounced(RepoId),
}

impl fmt::Display for HiddenCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Author(key) => write!(f, "author:{key}"),
            Self::Event(id) => write!(f, "event:{id}"),
            Self::Repo(repo) => write!(f, "repo:{repo}"),
            Self::Unannounced(repo) => write!(f, "unannounced:{repo}"),
        }
    }
}

impl FromStr for HiddenCause {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let cause = match text.split_once(':') {
            Some(("author", key)) => parse_pubkey(key).map(Self::Author),
            Some(("event", id)) => parse_event_id(id).map(Self::Event),
            Some(("repo", repo)) => Some(Self::Repo(repo.parse()?)),
            Some(("unannounced", repo)) => Some(Self::Unannounced(repo.parse()?)),
            _ => None,
        };
        match cause {
            Some(cause) => Ok(cause),
            None => invalid("expected the cause of a hidden event"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_read_as_it_was_written() {
        let key = PublicKey::from_byte_array([7; 32]);
        let repo = RepoId::new(key, "a:b".parse().unwrap());
        let id = EventId::from_byte_array([3; 32]);
        for cause in [
            HiddenCause::Author(key),
            HiddenCause::Event(id),
            HiddenCause::Repo(repo.clone()),
            HiddenCause::Unannounced(repo),
        ] {
            assert_eq!(cause.to_string().parse::<HiddenCause>().unwrap(), cause);
        }
        assert!("author:7".parse::<HiddenCause>().is_err());
    }
}
