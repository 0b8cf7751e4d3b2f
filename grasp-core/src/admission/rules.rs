//! Rules for each kind of event.

use nostr::event::Event;
use nostr::key::PublicKey;

use super::facts::{Facts, KnownAnnouncement, Origin, Presence};
use super::fan_out::size;
use super::policy::Policy;
use super::verdict::{Acceptance, Hold, Known, Rejection, Verdict};
use crate::kinds;
use crate::maintainers::{MaintainerSets, maintainer_lists};
use crate::nip34::{Announcement, Proposal, State};
use crate::repo::RepoId;
use crate::version::Version;

/// Limits the announcements of one name, and their bytes: any author may announce under any name, and each push and
/// each state of that name reads all of them.
const MAX_PER_NAME: AnnouncementLimit = AnnouncementLimit { count: 2_048, bytes: 2 * 1024 * 1024 };

/// The part of it that is reserved for owners of repositories served under the name, and for those they list.
const RESERVED_PER_NAME: AnnouncementLimit = AnnouncementLimit { count: 512, bytes: 512 * 1024 };

/// Size up to which an announcement is not counted in bytes.
const SMALL_ANNOUNCEMENT_BYTES: usize = 4 * 1024;

struct AnnouncementLimit {
    count: usize,
    bytes: usize,
}

/// Judges an announcement (kind 30617).
pub(super) fn judge_announcement(policy: &Policy, event: &Event, facts: &Facts) -> Verdict {
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
        // A served repository gets a new announcement at once; one that is held, or was known for discovery only,
        // is not served without data.
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

/// Returns whether an announcement is within the limits of its name.
fn has_room(policy: &Policy, new: &Announcement, event: &Event, facts: &Facts) -> bool {
    let owner = &new.repo.owner;
    let is_own = |known: &KnownAnnouncement| known.announcement.repo == new.repo;
    let is_known = facts.announcements.iter().any(is_own);
    let is_served = |known: &&KnownAnnouncement| {
        known.presence == Presence::Stored && policy.hosts(&known.announcement)
    };
    let mut served = facts.announcements.iter().filter(is_served);
    let AnnouncementLimit { mut count, mut bytes } = MAX_PER_NAME;
    if !served.any(|known| is_own(known) || known.announcement.maintainer_list.lists(owner)) {
        count -= RESERVED_PER_NAME.count;
        bytes -= RESERVED_PER_NAME.bytes;
    }
    let size = usize::try_from(size(event)).unwrap_or(usize::MAX);
    let is_small = size <= SMALL_ANNOUNCEMENT_BYTES;
    (is_known || facts.announcements.len() < count)
        && (is_small || facts.announcement_bytes.saturating_add(size) <= bytes)
}

/// Returns whether another announcement of the same identifier lists the author. Being listed is enough: this
/// announcement may be the one that lists back.
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

/// Judges a state (kind 30618) by the maintainer sets of the repositories of its name that are hosted here.
pub(super) fn judge_state(policy: &Policy, event: &Event, facts: &Facts) -> Verdict {
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
    let repos = signable_repos(policy, &event.pubkey, facts);
    if repos.is_empty() {
        return Verdict::Reject(Rejection::NotMaintainer(event.pubkey));
    }
    // Strangers can fill a name; maintainers of what is served there have a share of purgatory of their own.
    if facts.over_quota && !signs_for_served(&repos, facts) {
        return Verdict::Reject(Rejection::Quota);
    }
    Verdict::Hold(Hold::State(repos))
}

fn signs_for_served(repos: &[RepoId], facts: &Facts) -> bool {
    let served = facts.announcements.iter().filter(|known| known.presence == Presence::Stored);
    served.into_iter().any(|known| repos.contains(&known.announcement.repo))
}

/// Returns the repositories hosted here whose states the author may sign.
fn signable_repos(policy: &Policy, author: &PublicKey, facts: &Facts) -> Vec<RepoId> {
    let known = || facts.announcements.iter().map(|known| &known.announcement);
    let maintainer_lists = maintainer_lists(known());
    let sets = MaintainerSets::new(policy.model, &maintainer_lists);
    let mut repos: Vec<_> = known()
        .filter(|announcement| policy.hosts(announcement))
        .map(|announcement| &announcement.repo)
        .filter(|repo| sets.of(&repo.owner).contains(author))
        .cloned()
        .collect();
    repos.sort();
    repos.dedup();
    repos
}

/// Judges a pull request (kinds 1618 and 1619), which waits for its tip.
pub(super) fn judge_proposal(policy: &Policy, event: &Event, facts: &Facts) -> Verdict {
    let proposal = match Proposal::parse(event) {
        Ok(proposal) => proposal,
        Err(why) => return Verdict::Reject(Rejection::Malformed(why.to_string())),
    };
    // A pull request that names its author's own endpoint here needs no repository (GRASP-06).
    if !facts.related && policy.own_urls(&proposal).next().is_none() {
        return Verdict::Reject(Rejection::Unrelated);
    }
    if facts.over_quota {
        return Verdict::Reject(Rejection::Quota);
    }
    Verdict::Hold(Hold::Proposal)
}

/// Judges an event of any other kind, which is stored if it is related to something stored.
pub(super) fn judge_other(
    policy: &Policy,
    origin: &Origin,
    event: &Event,
    facts: &Facts,
) -> Verdict {
    if facts.latest.is_some_and(|latest| latest > Version::of(event)) {
        return Verdict::Known(Known::Superseded);
    }
    if event.kind == kinds::VANISH && !event.tags.iter().any(|tag| tag.kind() == "relay") {
        return Verdict::Reject(Rejection::Malformed("it names no relay".to_owned()));
    }
    if event.kind.is_ephemeral() {
        return match origin {
            // Ephemeral events are for those that listen now; a copy from another relay is late.
            Origin::Sync { .. } => Verdict::Reject(Rejection::NeverStored),
            Origin::Client { .. } => unless_unrelated(policy, event, facts, Verdict::Broadcast),
        };
    }
    unless_unrelated(policy, event, facts, Verdict::Accept(Acceptance::Related))
}

/// Returns `verdict` if the event is related or needs no relation, a refusal otherwise.
fn unless_unrelated(policy: &Policy, event: &Event, facts: &Facts, verdict: Verdict) -> Verdict {
    if is_unconditional(policy, event) {
        return verdict;
    }
    let is_profile = kinds::PROFILE_KINDS.contains(&event.kind);
    match (is_profile, facts) {
        (true, Facts { author_known: true, .. }) | (false, Facts { related: true, .. }) => verdict,
        (true, _) => Verdict::Reject(Rejection::UnknownAuthor),
        (false, _) => Verdict::Reject(Rejection::Unrelated),
    }
}

/// Returns whether the event is accepted without being related: deletions, whether or not their target is here, lists
/// of GRASP servers, and events of the operator.
fn is_unconditional(policy: &Policy, event: &Event) -> bool {
    kinds::UNCONDITIONAL_KINDS.contains(&event.kind) || policy.operator == Some(event.pubkey)
}
