//! Kinds 1630 to 1633: what became of a proposal.

use std::collections::BTreeSet;

use nostr::event::{Event, EventId};

use super::{repo_refs, tags};
use crate::repo::RepoId;

/// A statement on the life of a patch, pull request or issue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// What is said.
    pub kind: StatusKind,
    /// Which proposal it is said of.
    pub root: EventId,
    /// The repositories it is addressed to.
    pub repos: BTreeSet<RepoId>,
}

/// What became of a proposal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusKind {
    /// 1630: open.
    Open,
    /// 1631: applied, merged or resolved.
    Applied,
    /// 1632: closed.
    Closed,
    /// 1633: a draft.
    Draft,
}

/// Why an event is no status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StatusError {
    /// Another kind.
    #[error("not a status")]
    Kind,
    /// No `e` tag with the id of a proposal.
    #[error("the status names no proposal")]
    NoRoot,
}

impl Status {
    /// Reads a status; of several `e` tags the one marked `root` counts, else the first.
    pub fn parse(event: &Event) -> Result<Self, StatusError> {
        let kind = match event.kind.as_u16() {
            1630 => StatusKind::Open,
            1631 => StatusKind::Applied,
            1632 => StatusKind::Closed,
            1633 => StatusKind::Draft,
            _ => return Err(StatusError::Kind),
        };
        let marked = tags::named(event, "e")
            .find(|tag| tag.as_slice().get(3).map(String::as_str) == Some("root"))
            .and_then(|tag| tag.content());
        let root = marked
            .or_else(|| tags::first(event, "e"))
            .and_then(|id| EventId::from_hex(id).ok())
            .ok_or(StatusError::NoRoot)?;
        Ok(Self { kind, root, repos: repo_refs(event) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Unsigned, key};

    #[test]
    fn the_marked_root_counts_before_the_first() {
        let (a, b) = ("aa".repeat(32), "bb".repeat(32));
        let event = Unsigned::kind(1631)
            .tags(&[&["e", &a, "", "reply"], &["e", &b, "", "root"]])
            .by(key(1));
        let status = Status::parse(&event).unwrap();
        assert_eq!((status.kind, status.root.to_hex()), (StatusKind::Applied, b));
        let plain = Unsigned::kind(1632).tags(&[&["e", &a]]).by(key(1));
        assert_eq!(Status::parse(&plain).unwrap().root.to_hex(), a);
    }

    #[test]
    fn a_status_of_nothing_is_none() {
        assert_eq!(Status::parse(&Unsigned::kind(1630).by(key(1))), Err(StatusError::NoRoot));
        let bad = Unsigned::kind(1633).tags(&[&["e", "x"]]).by(key(1));
        assert_eq!(Status::parse(&bad), Err(StatusError::NoRoot));
        assert_eq!(Status::parse(&Unsigned::kind(1).by(key(1))), Err(StatusError::Kind));
    }
}
