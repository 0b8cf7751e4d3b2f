//! Pull requests and their updates (kinds 1618 and 1619).

use std::collections::BTreeSet;

use nostr::event::{Event, EventId};
use nostr::key::PublicKey;

use super::{repo_refs, tags};
use crate::kinds;
use crate::repo::{CloneUrl, Oid, RepoId};
use crate::text::{ParseError, invalid};

/// A pull request, or an update with a new tip.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Proposal {
    pub id: EventId,
    pub author: PublicKey,
    /// The commit that must be here before the event is served.
    pub tip: Oid,
    /// Every repository that it is addressed to.
    pub repos: BTreeSet<RepoId>,
    /// Git servers with the commits according to the author, so tried last.
    pub clone: Vec<CloneUrl>,
}

impl Proposal {
    /// Parses a pull request or an update.
    pub fn parse(event: &Event) -> Result<Self, ParseError> {
        if event.kind != kinds::PULL_REQUEST && event.kind != kinds::PULL_REQUEST_UPDATE {
            return invalid("not a pull request");
        }
        let Some(tip) = tags::first(event, "c").and_then(|value| value.parse().ok()) else {
            return invalid("the pull request has no c tag with a commit id");
        };
        Ok(Self {
            id: event.id,
            author: event.pubkey,
            tip,
            repos: repo_refs(event),
            clone: tags::all_values(event, "clone").filter_map(|url| url.parse().ok()).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Unsigned, key};

    #[test]
    fn a_pull_request_needs_a_commit_of_either_hash() {
        let with = |c: &str| {
            Proposal::parse(&Unsigned::kind(1618).tags(&[&["c", c]]).by(key(1))).map(|p| p.tip)
        };
        assert!(matches!(with(&"a".repeat(40)), Ok(Oid::Sha1(_))));
        assert!(matches!(with(&"a".repeat(64)), Ok(Oid::Sha256(_))));
        let tipless = "the pull request has no c tag with a commit id";
        assert_eq!(with("abc"), invalid(tipless));
        assert_eq!(Proposal::parse(&Unsigned::kind(1618).by(key(1))), invalid(tipless));
        assert_eq!(Proposal::parse(&Unsigned::kind(1619).by(key(1))), invalid(tipless));
    }

    #[test]
    fn refuses_issues_and_patches() {
        for kind in [1, 1617, 1621] {
            let event = Unsigned::kind(kind).tags(&[&["c", &"a".repeat(40)]]).by(key(1));
            assert_eq!(Proposal::parse(&event), invalid("not a pull request"));
        }
    }

    #[test]
    fn reads_every_repository_that_it_is_addressed_to() {
        let a = format!("30617:{}:a", key(1));
        let b = format!("30617:{}:b:c", key(2));
        let state = format!("30618:{}:a", key(1));
        let c = "a".repeat(40);
        let tags: &[&[&str]] =
            &[&["a", &a], &["a", &b], &["a", &state], &["a", "x"], &["a"], &["A", "y"], &["c", &c]];
        let repos = Proposal::parse(&Unsigned::kind(1619).tags(tags).by(key(3))).unwrap().repos;
        assert_eq!(repos, BTreeSet::from([a.parse().unwrap(), b.parse().unwrap()]));
    }
}
