//! Kinds 1618 and 1619: pull requests wait for their tip.

use nostr::event::Event;

use super::facts::{Facts, GitData};
use super::policy::Policy;
use super::verdict::{Acceptance, Hold, Rejection, Verdict};
use crate::nip34::Proposal;

pub(super) fn judge(policy: &Policy, event: &Event, facts: &Facts) -> Verdict {
    let proposal = match Proposal::parse(event) {
        Ok(proposal) => proposal,
        Err(why) => return Verdict::Reject(Rejection::Malformed(why.to_string())),
    };
    // One that its author brings to a place of their own here needs no repository (GRASP-06).
    if !facts.related && policy.own_places(&proposal).next().is_none() {
        return Verdict::Reject(Rejection::Unrelated);
    }
    match facts.git {
        GitData::Complete => Verdict::Accept(Acceptance::Proposal),
        GitData::Missing if facts.over_quota => Verdict::Reject(Rejection::Quota),
        GitData::Missing => Verdict::Hold(Hold::Proposal),
    }
}
