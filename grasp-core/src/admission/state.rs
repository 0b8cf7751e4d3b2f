//! Kind 30618: may this author say where the refs are?

use nostr::event::Event;
use nostr::key::PublicKey;

use super::facts::{Facts, Presence};
use super::policy::Policy;
use super::verdict::{Hold, Known, Rejection, Verdict};
use crate::maintainers::{MaintainerSets, maintainer_lists};
use crate::nip34::State;
use crate::repo::RepoId;

pub(super) fn judge(policy: &Policy, event: &Event, facts: &Facts) -> Verdict {
    let state = match State::parse(event) {
        Ok(state) => state,
        Err(why) => return Verdict::Reject(Rejection::Malformed(why.to_string())),
    };
    if facts.latest.is_some_and(|latest| latest > state.version) {
        return Verdict::Known(Known::Superseded);
    }
    if facts.announcements.is_empty() {
        return Verdict::Reject(Rejection::NoAnnouncement);
    }
    let ruled = ruled_by(policy, &event.pubkey, facts);
    if ruled.is_empty() {
        return Verdict::Reject(Rejection::NotMaintainer(event.pubkey));
    }
    // Strangers can fill a name. Whoever may sign for what is served there has room of their own in purgatory.
    if facts.over_quota && !rules_what_is_served(&ruled, facts) {
        return Verdict::Reject(Rejection::Quota);
    }
    Verdict::Hold(Hold::State(ruled))
}

fn rules_what_is_served(ruled: &[RepoId], facts: &Facts) -> bool {
    let served = facts.announcements.iter().filter(|known| known.presence == Presence::Stored);
    served.into_iter().any(|known| ruled.contains(&known.announcement.repo))
}

/// The repositories hosted here for which this author may sign.
fn ruled_by(policy: &Policy, author: &PublicKey, facts: &Facts) -> Vec<RepoId> {
    let known = || facts.announcements.iter().map(|known| &known.announcement);
    let maintainer_lists = maintainer_lists(known());
    let circles = MaintainerSets::new(policy.model, &maintainer_lists);
    let mut repos: Vec<_> = known()
        .filter(|announcement| policy.hosts(announcement))
        .map(|announcement| &announcement.repo)
        .filter(|repo| circles.of(&repo.owner).contains(author))
        .cloned()
        .collect();
    repos.sort();
    repos.dedup();
    repos
}
