//! Kind 30617: may this repository live here?

use nostr::event::Event;

use super::facts::{Facts, KnownAnnouncement};
use super::policy::Policy;
use super::verdict::{Acceptance, Hold, Known, Rejection, Verdict};
use crate::nip34::Announcement;
use crate::push::Standing;

pub(super) fn judge(policy: &Policy, event: &Event, facts: &Facts) -> Verdict {
    let new = match Announcement::parse(event) {
        Ok(announcement) => announcement,
        Err(why) => return Verdict::Reject(Rejection::Malformed(why.to_string())),
    };
    if policy.bans.repos.contains(&new.repo) {
        return Verdict::Reject(Rejection::Banned);
    }
    let own = || facts.announcements.iter().filter(|known| known.announcement.repo == new.repo);
    if own().any(|known| known.announcement.version > new.version) {
        return Verdict::Known(Known::Superseded);
    }
    let hosted = |known: &KnownAnnouncement| policy.hosts(&known.announcement);
    match (policy.hosts(&new), own().any(hosted)) {
        // The gate is a property of the repository: served data may get a new announcement at once, but neither a
        // held one nor one that was only known for discovery may be served without data.
        (true, _) if own().any(|known| known.standing == Standing::Stored && hosted(known)) => {
            Verdict::Accept(Acceptance::Replacement)
        }
        (true, _) if facts.over_quota => Verdict::Reject(Rejection::Quota),
        (true, _) => Verdict::Hold(Hold::Announcement),
        (false, true) => Verdict::Delist { keep: is_named_by_another(&new, facts) },
        (false, false) if is_named_by_another(&new, facts) || own().next().is_some() => {
            Verdict::Accept(Acceptance::Discovery)
        }
        (false, false) => Verdict::Reject(not_listed(&new)),
    }
}

/// Whether another announcement of the same identifier names the author. An invitation is enough: this very
/// announcement may be its acceptance.
fn is_named_by_another(new: &Announcement, facts: &Facts) -> bool {
    facts.announcements.iter().any(|known| {
        known.announcement.repo != new.repo && known.announcement.roster.lists(&new.repo.owner)
    })
}

fn not_listed(new: &Announcement) -> Rejection {
    let clone = new.clone.iter().map(ToString::to_string).chain(new.clone_unusable.iter().cloned());
    let relays =
        new.relays.iter().map(ToString::to_string).chain(new.relays_unusable.iter().cloned());
    Rejection::NotListed { clone: clone.collect(), relays: relays.collect() }
}
