//! Kind 30617: may this repository live here?

use nostr::event::Event;

use super::facts::{Facts, KnownAnnouncement, Presence};
use super::fan_out::size;
use super::policy::Policy;
use super::verdict::{Acceptance, Hold, Known, Rejection, Verdict};
use crate::nip34::Announcement;

/// Announcements of one name, and bytes of them, that may be here. All of them are read whenever somebody pushes to that
/// name or signs a state for it, and anybody may announce under any name.
const MAX_PER_NAME: Room = Room { count: 2_048, bytes: 2 * 1024 * 1024 };

/// What of that is kept for the owners of repositories that are served under the name, and those whom they invite.
const RESERVED_PER_NAME: Room = Room { count: 512, bytes: 512 * 1024 };

/// An announcement this small may always take the place of an earlier one.
const SMALL: usize = 4 * 1024;

/// Room for announcements of one name.
struct Room {
    count: usize,
    bytes: usize,
}

pub(super) fn judge(policy: &Policy, event: &Event, facts: &Facts) -> Verdict {
    let new = match Announcement::parse(event) {
        Ok(announcement) => announcement,
        Err(why) => return Verdict::Reject(Rejection::Malformed(why.to_string())),
    };
    if size(event) > Announcement::MAX_EVENT_BYTES as u64 {
        let why = format!("an announcement may have {} bytes", Announcement::MAX_EVENT_BYTES);
        return Verdict::Reject(Rejection::Malformed(why));
    }
    if policy.bans.repos.contains(&new.repo) {
        return Verdict::Reject(Rejection::Banned);
    }
    let own = || facts.announcements.iter().filter(|known| known.announcement.repo == new.repo);
    let wins = |version| version > new.version;
    if facts.latest.is_some_and(wins) || own().any(|known| wins(known.announcement.version)) {
        return Verdict::Known(Known::Superseded);
    }
    let hosted = |known: &KnownAnnouncement| policy.hosts(&known.announcement);
    let has_room = has_room(policy, &new, event, facts);
    match (policy.hosts(&new), own().any(hosted)) {
        // The gate is a property of the repository: served data may get a new announcement at once, but neither a
        // held one nor one that was only known for discovery may be served without data.
        (true, _) if !has_room => Verdict::Reject(Rejection::Quota),
        (true, _) if own().any(|known| known.presence == Presence::Stored && hosted(known)) => {
            Verdict::Accept(Acceptance::Replacement)
        }
        (true, _) if facts.over_quota => Verdict::Reject(Rejection::Quota),
        (true, _) => Verdict::Hold(Hold::Announcement),
        (false, true) => Verdict::Delist { keep: has_room && is_named_by_another(&new, facts) },
        (false, false) if is_named_by_another(&new, facts) || own().next().is_some() => {
            match has_room {
                true => Verdict::Accept(Acceptance::Discovery),
                false => Verdict::Reject(Rejection::Quota),
            }
        }
        (false, false) => Verdict::Reject(not_listed(&new)),
    }
}

/// Whether there is room for an announcement among those of its name.
fn has_room(policy: &Policy, new: &Announcement, event: &Event, facts: &Facts) -> bool {
    let owner = &new.repo.owner;
    let is_own = |known: &KnownAnnouncement| known.announcement.repo == new.repo;
    let is_known = facts.announcements.iter().any(is_own);
    let is_served = |known: &&KnownAnnouncement| {
        known.presence == Presence::Stored && policy.hosts(&known.announcement)
    };
    let mut served = facts.announcements.iter().filter(is_served);
    let Room { mut count, mut bytes } = MAX_PER_NAME;
    if !served.any(|known| is_own(known) || known.announcement.maintainer_list.lists(owner)) {
        count -= RESERVED_PER_NAME.count;
        bytes -= RESERVED_PER_NAME.bytes;
    }
    let size = usize::try_from(size(event)).unwrap_or(usize::MAX);
    let is_small = size <= SMALL;
    (is_known || facts.announcements.len() < count)
        && (is_small || facts.announcement_bytes.saturating_add(size) <= bytes)
}

/// Whether another announcement of the same identifier names the author. An invitation is enough: this very
/// announcement may be its acceptance.
fn is_named_by_another(new: &Announcement, facts: &Facts) -> bool {
    facts.announcements.iter().any(|known| {
        known.announcement.repo != new.repo
            && known.announcement.maintainer_list.lists(&new.repo.owner)
    })
}

fn not_listed(new: &Announcement) -> Rejection {
    let clone = new.clone.iter().map(ToString::to_string).chain(new.clone_unusable.iter().cloned());
    let relays =
        new.relays.iter().map(ToString::to_string).chain(new.relays_unusable.iter().cloned());
    Rejection::NotListed { clone: clone.collect(), relays: relays.collect() }
}
