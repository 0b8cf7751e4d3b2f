//! Questions that other components ask purgatory.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use grasp_core::admission::{KnownAnnouncement, Presence};
use grasp_core::nip34::{Announcement, Proposal, State};
use grasp_core::push::Candidate;
use grasp_core::resources::Claimant;
use grasp_core::{CloneUrl, Oid, RepoId, ServiceIdentity};
use nostr::event::{Event, EventId};
use nostr::key::PublicKey;
use nostr::types::Timestamp;
use serde::{Deserialize, Serialize};

use super::held::{Content, HeldEvent};
use super::io::{HoldOutcome, Record};
use super::staging::StagedUploads;
use super::{Phase, Purgatory};

/// Addresses that one event makes the hunter visit at a time.
const MAX_ADDRESSES: usize = 32;

/// Addresses at the beginning of a list that are always selected.
const FIRST_ADDRESSES: usize = MAX_ADDRESSES / 2;

/// Addresses at the beginning of a list that are read. Of longer lists, a window that changes with time is read too.
const ADDRESSES_READ: usize = 128;

/// One event in want of objects, and the servers that may have them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "fields are documented where the name does not say it all"
)]
pub struct Want {
    pub id: EventId,
    pub phase: Phase,
    /// The event's tips; other servers have that of a pull request under `refs/nostr/<id>`.
    pub tips: Vec<Oid>,
    /// Git servers that the repository's maintainers name: the author's first, each once, never this one.
    pub trusted: Vec<CloneUrl>,
    /// Git servers that only the author of a pull request names.
    pub untrusted: Vec<CloneUrl>,
}

/// The held events that matter for one repository.
#[derive(Clone, Debug, Default)]
pub struct HeldFor {
    /// States of its maintainers.
    pub states: Vec<Arc<State>>,
    /// Pull requests that are addressed to its maintainers.
    pub proposals: Vec<Proposal>,
    /// These events, and others about the repository.
    pub events: Vec<Arc<Event>>,
}

/// The numbers of held events, uploads and tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counts {
    /// Waiting announcements.
    pub announcements: usize,
    /// Waiting states.
    pub states: usize,
    /// Waiting pull requests and updates.
    pub proposals: usize,
    /// Expired events.
    pub expired: usize,
    /// Uploads that wait for their event.
    pub staged: usize,
    /// Approximate memory of the waiting events.
    pub bytes: u64,
    /// Size of the uploads on disk.
    pub staged_bytes: u64,
    /// Pending cleanup tasks.
    pub pending_tasks: usize,
}

/// Queries of admission.
impl Purgatory {
    /// Returns the records from which [`restore`](Self::restore) makes the same purgatory.
    pub fn records(&self) -> Vec<Record> {
        let held = self.held.iter().cloned().map(|held| {
            let HeldEvent {
                event,
                phase,
                since,
                until,
                ..
            } = held;
            Record::Held {
                event,
                phase,
                since,
                until,
            }
        });
        let staged = self.staging.iter().flat_map(|(id, staged)| {
            let id = *id;
            let until = staged.until;
            let tips = staged.tips.iter();
            let uploads = tips.flat_map(|(tip, targets)| targets.iter().map(move |one| (tip, one)));
            uploads.map(move |(tip, (target, bytes))| Record::Staged {
                id,
                tip: *tip,
                target: target.clone(),
                bytes: *bytes,
                until,
            })
        });
        let tasks = self
            .tasks
            .iter()
            .map(|task| Record::TaskAdded { task: task.clone() });
        held.chain(staged).chain(tasks).collect()
    }

    /// Returns whether an event is known, so that it need not be offered again. Expired states and pull requests are
    /// not: a client that sends one again has a reason.
    pub fn holds(&self, id: &EventId) -> bool {
        let is_known = |held: &HeldEvent| held.is_waiting() || held.announcement().is_some();
        self.held.get(id).is_some_and(is_known)
    }

    /// Returns whether an event is held in any phase.
    pub fn contains(&self, id: &EventId) -> bool {
        self.held.get(id).is_some()
    }

    /// Returns the held announcement of a repository. An expired one counts: a new state renews it.
    pub fn announcement(&self, repo: &RepoId) -> Option<KnownAnnouncement> {
        let announcement = self.held.announcement(repo)?.announcement()?.clone();
        Some(KnownAnnouncement {
            announcement,
            presence: Presence::Held,
        })
    }

    /// Returns the authors of held announcements that list the owner of a repository under its identifier.
    pub fn listing(&self, repo: &RepoId) -> BTreeSet<PublicKey> {
        self.held.listing(repo)
    }

    /// Returns whether an event could be held that is about nothing served yet.
    pub fn has_room_for(&self, event: &Arc<Event>) -> bool {
        let new = HeldEvent::new(event.clone(), Phase::Waiting, self.now.unix, self.now.unix);
        let check = |new| self.held.check(&self.config, &new, Presence::Held);
        new.map(check) != Some(Err(HoldOutcome::Full))
    }

    /// Returns the held states of these maintainers of a repository, each of which a push may realise.
    pub fn candidates(&self, repo: &RepoId, maintainers: &BTreeSet<PublicKey>) -> Vec<Candidate> {
        let states = self.held_for(repo, maintainers).states.into_iter();
        states
            .map(|state| Candidate {
                state,
                presence: Presence::Held,
            })
            .collect()
    }

    /// Returns the held events that matter for a repository with these maintainers.
    pub fn held_for(&self, repo: &RepoId, maintainers: &BTreeSet<PublicKey>) -> HeldFor {
        let mut found: BTreeMap<EventId, &HeldEvent> = BTreeMap::new();
        for key in maintainers {
            let of_key = RepoId::new(*key, repo.identifier.clone());
            found.extend(self.held.of(&of_key).map(|held| (held.id(), held)));
        }
        let mut held_for = HeldFor::default();
        for held in found.values() {
            held_for.states.extend(held.state().cloned());
            held_for.proposals.extend(held.proposal().cloned());
        }
        found.extend(self.held.of(repo).map(|held| (held.id(), held)));
        held_for.events = found.into_values().map(|held| held.event.clone()).collect();
        held_for
    }

    /// Returns the tips of all held states and pull requests that matter for a repository with these maintainers.
    pub fn wanted_tips(&self, repo: &RepoId, maintainers: &BTreeSet<PublicKey>) -> BTreeSet<Oid> {
        let held = self.held_for(repo, maintainers);
        let mut tips: BTreeSet<Oid> = held.proposals.iter().map(|proposal| proposal.tip).collect();
        for state in held.states {
            tips.extend(state.tips().into_iter().flatten());
        }
        tips
    }

    /// Returns the tip of a held pull request.
    pub fn tip_of(&self, id: &EventId) -> Option<Oid> {
        self.proposal(id).map(|proposal| proposal.tip)
    }

    /// Returns a held pull request.
    pub fn proposal(&self, id: &EventId) -> Option<&Proposal> {
        self.held.get(id)?.proposal()
    }

    /// Returns whether a waiting announcement asks for the view of a repository.
    pub fn has_view(&self, repo: &RepoId) -> bool {
        self.held.has_view(repo)
    }

    /// Returns whether an upload is accounted for: it waits in staging, or its event is held.
    pub fn keeps_upload(&self, id: &EventId, tip: &Oid) -> bool {
        let staged = self.staging.of(id);
        staged.is_some_and(|staged| staged.tips.contains_key(tip)) || self.tip_of(id) == Some(*tip)
    }

    /// Returns whether a state of a repository's owner, or a pull request that was pushed to the owner's repository for
    /// pull requests, is held. Others only name it.
    pub fn has_other_than_named(&self, repo: &RepoId) -> bool {
        self.held.of(repo).any(|held| held.author() == repo.owner)
    }

    /// Returns whether any event is held about a repository.
    pub fn has_held(&self, repo: &RepoId) -> bool {
        self.held.of(repo).next().is_some()
    }

    /// Returns the waiting announcement of a repository.
    pub fn held_announcement(&self, repo: &RepoId) -> Option<Arc<Event>> {
        let held = self
            .held
            .announcement(repo)
            .filter(|held| held.is_waiting());
        held.map(|held| held.event.clone())
    }

    /// Returns every waiting announcement.
    pub fn held_announcements(&self) -> Vec<Arc<Event>> {
        let waiting = |held: &&HeldEvent| held.is_waiting() && held.announcement().is_some();
        self.held
            .iter()
            .filter(waiting)
            .map(|held| held.event.clone())
            .collect()
    }

    /// Returns every upload that waits for its event. Other data in staging at a start was never accounted for.
    pub fn staged(&self) -> BTreeSet<(EventId, Oid)> {
        let staged = self.staging.iter();
        staged
            .flat_map(|(id, uploads)| uploads.tips.keys().map(|tip| (*id, *tip)))
            .collect()
    }

    /// Returns the claimant of objects that a repository hunts for, and whether a pull request wants them. States come
    /// first; `None` if no held event wants them.
    pub fn wanted_for(&self, repo: &RepoId, oids: &BTreeSet<Oid>) -> Option<(Claimant, bool)> {
        let mut wanting: Vec<&HeldEvent> = Vec::new();
        for held in self.wanted.of(repo).filter_map(|id| self.held.get(&id)) {
            let is_wanting = match &held.content {
                Content::Announcement(_) => false,
                Content::State(state) => state
                    .tips()
                    .is_some_and(|tips| tips.iter().any(|oid| oids.contains(oid))),
                Content::Proposal(proposal) => oids.contains(&proposal.tip),
            };
            if is_wanting {
                wanting.push(held);
            }
        }
        let held = wanting
            .into_iter()
            .min_by_key(|held| held.proposal().is_some())?;
        let claimant = Claimant::default().signed_by(held.author());
        let has_authority = self.held.has_authority(&held.id());
        let claimant = if has_authority {
            claimant.with_authority()
        } else {
            claimant
        };
        Some((claimant, held.proposal().is_some()))
    }

    /// Returns every repository that hunts for an event of a phase.
    pub fn wanting(&self, phase: Phase) -> BTreeSet<RepoId> {
        let mut wanting = BTreeSet::new();
        for repo in self.wanted.repos() {
            let mut held = self.wanted.of(repo).filter_map(|id| self.held.get(&id));
            if held.any(|held| held.phase == phase) {
                wanting.insert(repo.clone());
            }
        }
        wanting
    }

    /// Returns the events whose objects a repository lacks, and the servers that may have them. `announcements` are
    /// those of its maintainers, and of the owners that its pull requests name.
    pub fn wants(&self, repo: &RepoId, announcements: &[Arc<Announcement>]) -> Vec<Want> {
        let held = self.wanted.of(repo).filter_map(|id| self.held.get(&id));
        let mut wants: Vec<Want> = Vec::new();
        for held in held {
            let (owners, tips, clone) = match &held.content {
                Content::Announcement(_) => continue,
                Content::State(state) => {
                    let Some(tips) = state.tips() else { continue };
                    (BTreeSet::from([held.author()]), tips, &[][..])
                }
                Content::Proposal(proposal) => {
                    let owners = proposal.repos.iter().map(|repo| repo.owner).collect();
                    (owners, vec![proposal.tip], &proposal.clone[..])
                }
            };
            let mut want = self.want_of(held.id(), tips, &owners, announcements, clone);
            want.phase = held.phase;
            wants.push(want);
        }
        let served = self.wanted.served(repo);
        if let Some((state, tips)) = served.and_then(|state| Some((state, state.tips()?))) {
            let owners = BTreeSet::from([state.repo.owner]);
            wants.push(self.want_of(state.version.id, tips, &owners, announcements, &[]));
        }
        wants
    }

    /// Returns a want with the addresses that its owners announce, then those of the other maintainers.
    pub fn want_of(
        &self,
        id: EventId,
        tips: Vec<Oid>,
        owners: &BTreeSet<PublicKey>,
        announcements: &[Arc<Announcement>],
        untrusted: &[CloneUrl],
    ) -> Want {
        let is_own = |announcement: &&Arc<Announcement>| owners.contains(&announcement.repo.owner);
        let own = announcements.iter().filter(is_own);
        let others = announcements
            .iter()
            .filter(|announcement| !is_own(announcement));
        let service = &self.policy.service;
        let now = self.now.unix;
        let trusted = select_addresses(own.chain(others).flat_map(|a| &a.clone), service, now);
        let mut untrusted = select_addresses(untrusted.iter(), service, now);
        untrusted.retain(|url| !trusted.contains(url));
        Want {
            id,
            phase: Phase::Waiting,
            tips,
            trusted,
            untrusted,
        }
    }

    /// Returns the next time at which a waiting event about a repository expires.
    pub fn expires(&self, repo: &RepoId) -> Option<Timestamp> {
        self.hunted(repo).map(|held| held.until).min()
    }

    /// Returns the number of waiting events that expire by then.
    pub fn expiring(&self, by: Timestamp) -> usize {
        self.held
            .deadlines(Phase::Waiting)
            .take_while(|(end, _)| *end <= by)
            .count()
    }

    /// Returns the numbers of held events, uploads and tasks.
    pub fn counts(&self) -> Counts {
        let uploads = || self.staging.iter().map(|(_, staged)| staged);
        let mut counts = Counts {
            expired: self.held.expired().count,
            staged: uploads().map(StagedUploads::count).sum(),
            staged_bytes: uploads().map(StagedUploads::bytes).sum(),
            pending_tasks: self.tasks.iter().len(),
            ..Counts::default()
        };
        for held in self.held.iter().filter(|held| held.is_waiting()) {
            counts.bytes = counts.bytes.saturating_add(held.bytes);
            *match held.content {
                Content::Announcement(_) => &mut counts.announcements,
                Content::State(_) => &mut counts.states,
                Content::Proposal(_) => &mut counts.proposals,
            } += 1;
        }
        counts
    }
}

/// Selects addresses of git servers, each once and never this service's own.
///
/// Of a list that is longer than the limit, selects its beginning and each time another window of the rest: ten
/// thousand addresses cost no more than a few, and none of them is left out for ever.
pub fn select_addresses<'a>(
    urls: impl Iterator<Item = &'a CloneUrl> + Clone,
    service: &ServiceIdentity,
    now: Timestamp,
) -> Vec<CloneUrl> {
    let mut seen = BTreeSet::new();
    let beyond = urls.clone().skip(ADDRESSES_READ).count();
    let window = urls
        .clone()
        .skip(ADDRESSES_READ + draw(now, beyond))
        .take(MAX_ADDRESSES);
    let mut selected: Vec<_> = urls
        .take(ADDRESSES_READ)
        .chain(window)
        .filter(|url| seen.insert(*url))
        .collect();
    if selected.len() > MAX_ADDRESSES {
        let mut rest = selected.split_off(FIRST_ADDRESSES);
        let first = draw(now, rest.len());
        rest.rotate_left(first);
        selected.extend(rest.into_iter().take(MAX_ADDRESSES - FIRST_ADDRESSES));
    }
    selected.retain(|url| !service.is_own_url(url.as_str()));
    selected.into_iter().cloned().collect()
}

/// Returns a number below this one, another every second.
fn draw(now: Timestamp, below: usize) -> usize {
    let mut hasher = DefaultHasher::new();
    (now.as_secs(), below).hash(&mut hasher);
    let drawn = hasher
        .finish()
        .checked_rem(below as u64)
        .unwrap_or_default();
    usize::try_from(drawn).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service() -> ServiceIdentity {
        "git.example.com".parse().unwrap()
    }

    fn urls(count: usize) -> Vec<CloneUrl> {
        (0..count)
            .map(|n| format!("https://h{n}.example.com/x").parse().unwrap())
            .collect()
    }

    fn at(urls: &[CloneUrl], second: u64) -> Vec<CloneUrl> {
        select_addresses(urls.iter(), &service(), Timestamp::from_secs(second))
    }

    #[test]
    fn a_short_list_is_taken_whole_in_its_order_each_once_and_without_ourselves() {
        let urls = urls(20);
        let us: CloneUrl = "https://git.example.com/x/y.git".parse().unwrap();
        let twice: Vec<_> = urls.iter().chain([&us]).chain(&urls).cloned().collect();
        assert_eq!(at(&twice, 7), urls);
    }

    #[test]
    fn the_part_of_a_long_list_is_bounded_and_covers_all_of_it_in_the_end() {
        for count in [33, 100, 128, 129, 1_000] {
            let urls = urls(count);
            let mut seen = BTreeSet::new();
            for second in 0..2_000 {
                let addresses = at(&urls, second * 120);
                assert_eq!(addresses.len(), MAX_ADDRESSES);
                assert_eq!(addresses[..FIRST_ADDRESSES], urls[..FIRST_ADDRESSES]);
                seen.extend(addresses);
            }
            assert!(seen.len() * 100 >= count * 95, "{} of {count}", seen.len());
        }
    }
}
