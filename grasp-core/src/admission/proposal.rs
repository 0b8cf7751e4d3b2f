//! Kinds 1618 and 1619: pull requests wait for their tip.

use nostr::event::Event;

use super::facts::Facts;
use super::policy::Policy;
use super::verdict::{Hold, Rejection, Verdict};
use crate::nip34::Proposal;

pub(super) fn judge(policy: &Policy, event: &Event, facts: &Facts) -> Verdict {
    let proposal = match Proposal::parse(event) {
        Ok(proposal) => proposal,
        Err(why) => return Verdict::Reject(Rejection::Malformed(why.to_string())),
    };
    // One that its author brings to a place of their own here needs no repository (GRASP-06).
    if !facts.related && policy.own_urls(&proposal).next().is_none() {
        return Verdict::Reject(Rejection::Unrelated);
    }
    if facts.over_quota {
        return Verdict::Reject(Rejection::Quota);
    }
    Verdict::Hold(Hold::Proposal)
}
