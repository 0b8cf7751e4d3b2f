//! Kinds 1618 and 1619: pull requests wait for their tip.

use nostr::event::Event;

use super::facts::{Facts, GitData};
use super::policy::Policy;
use super::verdict::{Acceptance, Hold, Rejection, Verdict};
use crate::nip34::Proposal;
use crate::repo::RepoId;

pub(super) fn judge(policy: &Policy, event: &Event, facts: &Facts) -> Verdict {
    let proposal = match Proposal::parse(event) {
        Ok(proposal) => proposal,
        Err(why) => return Verdict::Reject(Rejection::Malformed(why.to_string())),
    };
    if !facts.related && !comes_by_our_own_door(policy, &proposal) {
        return Verdict::Reject(Rejection::Unrelated);
    }
    match facts.git {
        GitData::Complete => Verdict::Accept(Acceptance::Proposal),
        GitData::Missing if facts.over_quota => Verdict::Reject(Rejection::Quota),
        GitData::Missing => Verdict::Hold(Hold::Proposal),
    }
}

/// Whether its commits are to be pushed to our own `/prs/` by its author, for a repository of that name (GRASP-06).
fn comes_by_our_own_door(policy: &Policy, proposal: &Proposal) -> bool {
    policy.contributor_proposals
        && proposal.repos.iter().any(|repo| {
            let place = RepoId::new(proposal.author, repo.identifier.clone());
            proposal.clone.iter().any(|url| policy.service.serves_proposals(url, &place))
        })
}
