//! What must be true of the world: at any moment, and whenever nothing is under way.

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::admission::Presence;
use grasp_core::nip34::{Announcement, Proposal, State};
use grasp_core::{Oid, RefName, RepoId, Version};
use nostr::event::{Event, EventId};

use crate::memory_database::Rows;
use crate::model_disk::{Refs, declared, proposal_ref};
use crate::model_events::name;
use crate::model_world::World;

/// The names of all repositories in the model.
const NAMES: [&str; 2] = ["x", "y"];

/// What somebody who asks this server gets to see of hosted repositories.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Sight {
    announcements: BTreeSet<EventId>,
    states: BTreeSet<EventId>,
    proposals: BTreeSet<EventId>,
    refs: BTreeMap<RepoId, Refs>,
}

impl World {
    /// Asserts everything that holds whenever nothing is under way.
    pub(crate) fn check(&mut self) {
        for repo in self.hosted(Presence::Stored) {
            self.check_served(&repo);
        }
        self.check_views();
        self.check_nothing_is_served_twice_or_late();
        self.check_promises();
        self.check_staging();
    }

    /// Asserts everything that holds at any moment, such as right after a power cut.
    pub(crate) fn check_moment(&self) {
        for (repo, refs) in &self.disk.git.views {
            self.check_signed(repo, refs);
        }
        if self.is_settled {
            for repo in self.hosted(Presence::Stored) {
                self.check_served(&repo);
            }
        }
    }

    /// No ref is shown without the event that signs it, nor without its objects.
    fn check_signed(&self, repo: &RepoId, refs: &Refs) {
        let (store, tips) = (&self.disk.store, refs.values().copied().collect::<Vec<_>>());
        assert!(self.disk.git.has_all(&repo.identifier, &tips), "objects of {repo}");
        let (shown, states) = (ruled(refs), store.states(&repo.identifier));
        let mut signed = states.iter().map(|event| declared(&State::parse(event).unwrap()));
        assert!(shown.is_empty() || signed.any(|signed| signed == shown), "{repo} {shown:?}");
        let mut proposed = refs.keys().filter_map(RefName::event);
        assert!(proposed.all(|id| store.contains(&id)), "{repo} shows an unsigned tip");
    }

    /// The repositories with a winning announcement of that presence that asks us to host them.
    fn hosted(&self, presence: Presence) -> BTreeSet<RepoId> {
        let mut winners: BTreeMap<RepoId, (Version, bool, Presence)> = BTreeMap::new();
        for known in NAMES.into_iter().flat_map(|n| self.known_announcements(&name(n))) {
            let version = known.announcement.version;
            let hosted = self.policy.hosts(&known.announcement);
            let new = (version, hosted, known.presence);
            let winner = winners.entry(known.announcement.repo).or_insert(new);
            if version > winner.0 {
                *winner = new;
            }
        }
        let hosted = winners.into_iter().filter(|(_, (_, hosted, s))| *hosted && *s == presence);
        hosted.map(|(repo, _)| repo).collect()
    }

    /// The state that a repository shows, among those that are served.
    fn winner(&self, repo: &RepoId) -> Option<State> {
        let confirmed = self.confirmed(repo);
        let stored = self.disk.store.states(&repo.identifier);
        let stored = stored.iter().filter(|event| confirmed.contains(&event.pubkey));
        stored.filter_map(|event| State::parse(event).ok()).max_by_key(|state| state.version)
    }

    /// I1: what is served is exactly what is signed, and all of it is here.
    fn check_served(&self, repo: &RepoId) {
        let winner = self.winner(repo).expect("a served repository has a state");
        let view = self.view(repo).expect("a served repository has a view");
        assert_eq!(ruled(view), declared(&winner), "I1: {repo}");
        let tips: Vec<Oid> = view.values().copied().collect();
        assert!(self.disk.git.has_all(&repo.identifier, &tips), "I1: objects of {repo}");
    }

    /// A view exists exactly where somebody may push, and shows nothing before anything is served.
    fn check_views(&self) {
        let held = self.hosted(Presence::Held);
        for repo in &held {
            let view = self.view(repo);
            assert_eq!(view.is_some(), self.core.has_view(repo), "view of {repo}");
            assert!(view.is_none_or(|refs| ruled(refs).is_empty()), "{repo} shows unsigned refs");
        }
        let announced: BTreeSet<_> =
            self.hosted(Presence::Stored).into_iter().chain(held).collect();
        for repo in self.disk.git.views.keys() {
            assert!(announced.contains(repo), "{repo} has a view that nobody asks for");
        }
    }

    /// I2: nothing is held and served at once; and nothing is held that could be served.
    fn check_nothing_is_served_twice_or_late(&self) {
        let all: BTreeSet<_> = self.hosted(Presence::Stored);
        let all: BTreeSet<_> = all.into_iter().chain(self.hosted(Presence::Held)).collect();
        for identifier in NAMES.map(name) {
            for kept in self.core.held_events(&identifier) {
                assert!(!self.disk.store.is_deleted(&kept), "kept although its author deleted it");
            }
            for known in self.core.announcements(&identifier) {
                let id = known.announcement.version.id;
                assert!(!self.disk.store.contains(&id), "I2: an announcement");
            }
            for held in self.core.candidates(&identifier) {
                assert!(!self.disk.store.contains(&held.state.version.id), "I2: a state");
                let author = held.state.repo.owner;
                let ruled = all.iter().filter(|repo| repo.identifier == identifier);
                let rules = ruled.into_iter().any(|repo| self.confirmed(repo).contains(&author));
                assert!(!(rules && self.disk.git.has_state(&held.state)), "a complete state waits");
            }
            for kept in self.core.proposals(&identifier) {
                assert!(!self.disk.store.contains(&kept.id), "I2: a pull request");
                let mut families = kept.families.iter();
                let here = families.any(|family| self.disk.git.has_all(family, &[kept.tip]));
                let served =
                    self.promised.get(&kept.id).is_some_and(|event| self.is_addressed(event));
                assert!(!(here && served), "a complete pull request waits");
            }
        }
    }

    /// Whether a pull request is addressed to keepers of something that is served.
    fn is_addressed(&self, event: &Event) -> bool {
        let repos = Proposal::parse(event).unwrap().repos;
        self.hosted(Presence::Stored).iter().any(|served| {
            let confirmed = self.confirmed(served);
            let same = repos.iter().filter(|repo| repo.identifier == served.identifier);
            same.into_iter().any(|repo| confirmed.contains(&repo.owner))
        })
    }

    /// I3: what somebody was told is kept is kept or served, unless its author changed their mind.
    fn check_promises(&mut self) {
        let promised = std::mem::take(&mut self.promised);
        for (id, event) in promised {
            if self.disk.store.is_deleted(&event) || self.is_superseded(&event) {
                continue;
            }
            assert!(self.disk.store.contains(&id) || self.is_kept(&event), "I3: lost {event:?}");
            self.promised.insert(id, event);
        }
    }

    fn is_superseded(&self, event: &Event) -> bool {
        let version = Version::of(event);
        let stored = self.disk.store.version_at(event);
        let announced = Announcement::parse(event).is_ok_and(|new| {
            let known = self.core.announcements(&new.repo.identifier);
            let own = known.iter().filter(|k| k.announcement.repo == new.repo);
            own.into_iter().any(|known| known.announcement.version > version)
        });
        announced || stored.is_some_and(|stored| Version::of(stored) > version)
    }

    fn is_kept(&self, event: &Event) -> bool {
        NAMES.map(name).iter().any(|identifier| {
            let id = event.id;
            let announcements = self.core.announcements(identifier);
            announcements.iter().any(|known| known.announcement.version.id == id)
                || self.core.candidates(identifier).iter().any(|c| c.state.version.id == id)
                || self.core.proposals(identifier).iter().any(|kept| kept.id == id)
        })
    }

    fn check_staging(&self) {
        let staged = self.disk.git.staging.iter();
        let staged: BTreeSet<_> =
            staged.flat_map(|(id, tips)| tips.keys().map(|tip| (*id, *tip))).collect();
        assert_eq!(staged, self.core.staged(), "staging is accounted for");
    }

    /// The records amount to what is known, and so do the rows that are left of them.
    pub(crate) fn check_journal(&self) {
        let mut rows = Rows::default();
        self.disk.journal.iter().for_each(|record| rows.apply(record));
        for replayed in [self.replayed(), self.restored(rows.records())] {
            assert_eq!(replayed.snapshot(), self.core.snapshot());
            assert_eq!(replayed.counts(), self.core.counts());
            for identifier in NAMES.map(name) {
                let wants = |core: &grasp_purgatory::Purgatory| core.wants(&identifier, &[]);
                assert_eq!(wants(&replayed), wants(&self.core));
            }
        }
    }

    /// What can be seen of hosted repositories.
    pub(crate) fn sight(&self) -> Sight {
        let served = self.hosted(Presence::Stored);
        let store = &self.disk.store;
        let of_served = |event: &Event| {
            Announcement::parse(event).is_ok_and(|announcement| served.contains(&announcement.repo))
        };
        let mut sight = Sight {
            announcements: BTreeSet::new(),
            states: BTreeSet::new(),
            proposals: BTreeSet::new(),
            refs: served.iter().map(|repo| (repo.clone(), self.shown(repo))).collect(),
        };
        for identifier in NAMES.map(name) {
            let announced = store.announcements(&BTreeSet::from([identifier.clone()]));
            let announced = announced.iter().filter(|event| of_served(event));
            sight.announcements.extend(announced.map(|event| event.id));
            let rules = |event: &Event| {
                let same = served.iter().filter(|repo| repo.identifier == identifier);
                same.into_iter().any(|repo| self.confirmed(repo).contains(&event.pubkey))
            };
            let states = store.states(&identifier);
            sight.states.extend(states.iter().filter(|e| rules(e)).map(|event| event.id));
            let proposals = store.proposals(&identifier);
            // One whose repository is no longer served would not be admitted any more, and stays where it was.
            let related = proposals.iter().filter(|event| self.is_related(event));
            let addressed = related.filter(|event| self.is_addressed(event));
            sight.proposals.extend(addressed.map(|event| event.id));
        }
        sight
    }

    /// What a view shows: what its state says, and the pull requests to its keepers. Other refs are left over from
    /// when they belonged here.
    fn shown(&self, repo: &RepoId) -> Refs {
        let view = self.view(repo).cloned().unwrap_or_default();
        let confirmed = self.confirmed(repo);
        let proposals = self.disk.store.proposals(&repo.identifier);
        let relevant: BTreeSet<RefName> = proposals
            .iter()
            .filter(|event| self.is_related(event))
            .filter(|event| {
                let repos = Proposal::parse(event).unwrap().repos;
                let same = repos.iter().filter(|to| to.identifier == repo.identifier);
                same.into_iter().any(|to| confirmed.contains(&to.owner))
            })
            .map(|event| proposal_ref(&event.id))
            .collect();
        let shown = |name: &RefName| name.is_branch_or_tag() || relevant.contains(name);
        view.into_iter().filter(|(name, _)| shown(name)).collect()
    }
}

/// The branches and tags among some refs.
fn ruled(refs: &Refs) -> Refs {
    let ruled = refs.iter().filter(|(name, _)| name.is_branch_or_tag());
    ruled.map(|(name, oid)| (name.clone(), *oid)).collect()
}
