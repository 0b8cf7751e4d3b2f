//! Kinds 1617, 1618, 1619 and 1621: what people propose to a repository, and where threads begin.

use std::collections::BTreeSet;

use nostr::event::{Event, EventId};
use nostr::key::PublicKey;

use super::{repo_refs, tags};
use crate::kinds;
use crate::repo::{CloneUrl, Oid, RepoId};

/// A patch, a pull request, its update or an issue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// Its id.
    pub id: EventId,
    /// Who proposes.
    pub author: PublicKey,
    /// What it is.
    pub kind: ProposalKind,
    /// Every repository it is addressed to.
    pub repos: BTreeSet<RepoId>,
    /// Where the author says its commits can be had; under the author's control, so trusted last.
    pub clone: Vec<CloneUrl>,
}

/// What is proposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProposalKind {
    /// A patch by mail, whole in its content.
    Patch,
    /// A pull request for the commit at its tip.
    PullRequest {
        /// The commit.
        tip: Oid,
    },
    /// A new tip for an earlier pull request.
    PullRequestUpdate {
        /// The commit.
        tip: Oid,
        /// The pull request it updates, where it names one.
        of: Option<EventId>,
    },
    /// An issue.
    Issue,
}

/// Why an event proposes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposalError {
    /// Another kind.
    #[error("not a patch, pull request or issue")]
    Kind,
    /// A pull request that names no commit.
    #[error("the pull request has no c tag with a commit id")]
    NoTip,
}

impl Proposal {
    /// Reads a patch, pull request, update or issue.
    pub fn parse(event: &Event) -> Result<Self, ProposalError> {
        let kind = match event.kind {
            kind if kind == kinds::PATCH => ProposalKind::Patch,
            kind if kind == kinds::ISSUE => ProposalKind::Issue,
            kind if kind == kinds::PULL_REQUEST => ProposalKind::PullRequest { tip: tip(event)? },
            kind if kind == kinds::PULL_REQUEST_UPDATE => ProposalKind::PullRequestUpdate {
                tip: tip(event)?,
                of: tags::first(event, "E").and_then(|id| EventId::from_hex(id).ok()),
            },
            _ => return Err(ProposalError::Kind),
        };
        let clone = tags::all_values(event, "clone").filter_map(|url| url.parse().ok()).collect();
        Ok(Self { id: event.id, author: event.pubkey, kind, repos: repo_refs(event), clone })
    }

    /// The commit whose arrival makes the proposal servable; patches and issues wait for nothing.
    pub fn tip(&self) -> Option<Oid> {
        match self.kind {
            ProposalKind::PullRequest { tip } | ProposalKind::PullRequestUpdate { tip, .. } => {
                Some(tip)
            }
            ProposalKind::Patch | ProposalKind::Issue => None,
        }
    }
}

fn tip(event: &Event) -> Result<Oid, ProposalError> {
    let value = tags::first(event, "c").ok_or(ProposalError::NoTip)?;
    value.parse().map_err(|_| ProposalError::NoTip)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Unsigned, key};

    #[test]
    fn a_pull_request_needs_a_commit_of_either_hash() {
        let with = |c: &str| {
            Proposal::parse(&Unsigned::kind(1618).tags(&[&["c", c]]).by(key(1))).map(|p| p.tip())
        };
        assert!(matches!(with(&"a".repeat(40)), Ok(Some(Oid::Sha1(_)))));
        assert!(matches!(with(&"a".repeat(64)), Ok(Some(Oid::Sha256(_)))));
        assert_eq!(with("abc"), Err(ProposalError::NoTip));
        assert_eq!(Proposal::parse(&Unsigned::kind(1618).by(key(1))), Err(ProposalError::NoTip));
        assert_eq!(Proposal::parse(&Unsigned::kind(1619).by(key(1))), Err(ProposalError::NoTip));
    }

    #[test]
    fn an_update_names_the_pull_request_it_updates() {
        let (id, c) = ("ab".repeat(32), "a".repeat(40));
        let event = Unsigned::kind(1619).tags(&[&["E", &id], &["c", &c]]).by(key(1));
        let kind = Proposal::parse(&event).unwrap().kind;
        let of = Some(EventId::from_hex(&id).unwrap());
        assert_eq!(kind, ProposalKind::PullRequestUpdate { tip: c.parse().unwrap(), of });
    }

    #[test]
    fn issues_and_patches_wait_for_no_commit() {
        for kind in [1617, 1621] {
            assert_eq!(Proposal::parse(&Unsigned::kind(kind).by(key(1))).unwrap().tip(), None);
        }
        assert_eq!(Proposal::parse(&Unsigned::kind(1).by(key(1))), Err(ProposalError::Kind));
    }

    #[test]
    fn every_repository_it_is_addressed_to_counts() {
        let a = format!("30617:{}:a", key(1));
        let b = format!("30617:{}:b:c", key(2));
        let state = format!("30618:{}:a", key(1));
        let tags: &[&[&str]] =
            &[&["a", &a], &["a", &b], &["a", &state], &["a", "x"], &["a"], &["A", "y"]];
        let repos = Proposal::parse(&Unsigned::kind(1621).tags(tags).by(key(3))).unwrap().repos;
        assert_eq!(repos, BTreeSet::from([a.parse().unwrap(), b.parse().unwrap()]));
    }
}
