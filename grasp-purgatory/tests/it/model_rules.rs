//! The invariants of the model: at any moment, and whenever it is idle.

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::admission::Presence;
use grasp_core::nip34::{Announcement, Proposal, State};
use grasp_core::{Oid, RefName, RepoId, Version};
use grasp_purgatory::{Config, Purgatory};
use nostr::event::{Event, EventId};

use crate::memory_database::Rows;
use crate::model_disk::{Refs, declared, proposal_ref};
use crate::model_events::name;
use crate::model_world::World;

/// The names of all repositories in the model.
const NAMES: [&str; 2] = ["x", "y"];

/// The events and refs that the server shows of hosted repositories.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ServedContent {
    announcements: BTreeSet<EventId>,
    states: BTreeSet<EventId>,
    proposals: BTreeSet<EventId>,
    refs: BTreeMap<RepoId, Refs>,
}

impl World {
    /// Asserts the invariants that hold whenever the model is idle.
    pub(crate) fn check(&mut self) {
        for repo in self.hosted(Presence::Stored) {
            self.check_served(&repo);
        }
        self.check_views();
        self.check_held();
        self.check_acknowledged();
        self.check_staging();
    }

    /// Asserts the invariants that hold at any moment, such as right after a power cut.
    pub(crate) fn check_always(&self) {
        for (repo, refs) in &self.disk.git.views {
            self.check_signed(repo, refs);
        }
        if self.is_settled {
            for repo in self.hosted(Presence::Stored) {
                self.check_served(&repo);
            }
        }
    }

    /// Asserts that no ref is shown without the event that signs it, nor without its objects.
    fn check_signed(&self, repo: &RepoId, refs: &Refs) {
        let (store, tips) = (&self.disk.store, refs.values().copied().collect::<Vec<_>>());
        assert!(self.disk.git.has_all(&repo.identifier, &tips), "objects of {repo}");
        let (shown, states) = (branches_and_tags(refs), store.states(&repo.identifier));
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
            let winner = winners.entry(known.announcement.repo.clone()).or_insert(new);
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

    /// Asserts invariant 1: served refs are exactly the signed ones, and their objects are here.
    fn check_served(&self, repo: &RepoId) {
        let winner = self.winner(repo).expect("a served repository has a state");
        let view = self.view(repo).expect("a served repository has a view");
        let is_limited = self.config.refs_per_identifier < Config::default().refs_per_identifier;
        if is_limited && branches_and_tags(view).is_empty() {
            return;
        }
        assert_eq!(branches_and_tags(view), declared(&winner), "I1: {repo}");
        let tips: Vec<Oid> = view.values().copied().collect();
        assert!(self.disk.git.has_all(&repo.identifier, &tips), "I1: objects of {repo}");
    }

    /// Asserts that a view exists exactly where a push is allowed, and shows no refs before its repository is served.
    fn check_views(&self) {
        let held = self.hosted(Presence::Held);
        for repo in &held {
            let view = self.view(repo);
            assert_eq!(view.is_some(), self.core.has_view(repo), "view of {repo}");
            assert!(
                view.is_none_or(|refs| branches_and_tags(refs).is_empty()),
                "{repo} shows unsigned refs"
            );
        }
        let announced: BTreeSet<_> =
            self.hosted(Presence::Stored).into_iter().chain(held).collect();
        for repo in self.disk.git.views.keys() {
            assert!(announced.contains(repo), "{repo} has a view without an announcement");
        }
    }

    /// Asserts invariant 2: nothing is both held and served, and nothing is held that could be served.
    fn check_held(&self) {
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
                let repos = all.iter().filter(|repo| repo.identifier == identifier);
                let may_sign = repos.into_iter().any(|repo| self.confirmed(repo).contains(&author));
                assert!(
                    !(may_sign && self.disk.git.has_state(&held.state)),
                    "a complete state waits"
                );
            }
            for kept in self.core.proposals(&identifier) {
                assert!(!self.disk.store.contains(&kept.id), "I2: a pull request");
                let mut families = kept.families.iter();
                let here = families.any(|family| self.disk.git.has_all(family, &[kept.tip]));
                let served =
                    self.acknowledged.get(&kept.id).is_some_and(|event| self.is_addressed(event));
                assert!(!(here && served), "a complete pull request waits");
            }
        }
    }

    /// Returns whether a pull request is addressed to maintainers of a served repository.
    fn is_addressed(&self, event: &Event) -> bool {
        let repos = Proposal::parse(event).unwrap().repos;
        self.hosted(Presence::Stored).iter().any(|served| {
            let confirmed = self.confirmed(served);
            let same = repos.iter().filter(|repo| repo.identifier == served.identifier);
            same.into_iter().any(|repo| confirmed.contains(&repo.owner))
        })
    }

    /// Asserts invariant 3: an acknowledged event is held or served, unless its author deleted or replaced it.
    fn check_acknowledged(&mut self) {
        let acknowledged = std::mem::take(&mut self.acknowledged);
        for (id, event) in acknowledged {
            if self.disk.store.is_deleted(&event) || self.is_superseded(&event) {
                continue;
            }
            assert!(self.disk.store.contains(&id) || self.is_kept(&event), "I3: lost {event:?}");
            self.acknowledged.insert(id, event);
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

    /// Asserts that records, and the rows made of them, restore the same purgatory.
    pub(crate) fn check_journal(&self) {
        let mut rows = Rows::default();
        self.disk.journal.iter().for_each(|record| rows.apply(record));
        for replayed in [self.replayed(), self.restored(rows.records())] {
            assert_eq!(replayed.records(), self.core.records());
            assert_eq!(replayed.counts(), self.core.counts());
            for identifier in NAMES.map(name) {
                let wants = |core: &Purgatory| core.wants(&identifier, &[]);
                assert_eq!(wants(&replayed), wants(&self.core));
            }
        }
    }

    /// Returns the served events and refs of hosted repositories.
    pub(crate) fn served_content(&self) -> ServedContent {
        let served = self.hosted(Presence::Stored);
        let store = &self.disk.store;
        let of_served = |event: &Event| {
            Announcement::parse(event).is_ok_and(|announcement| served.contains(&announcement.repo))
        };
        let mut served_content = ServedContent {
            announcements: BTreeSet::new(),
            states: BTreeSet::new(),
            proposals: BTreeSet::new(),
            refs: served.iter().map(|repo| (repo.clone(), self.shown(repo))).collect(),
        };
        for identifier in NAMES.map(name) {
            let announced = store.announcements(&BTreeSet::from([identifier.clone()]));
            let announced = announced.iter().filter(|event| of_served(event));
            served_content.announcements.extend(announced.map(|event| event.id));
            let may_sign = |event: &Event| {
                let same = served.iter().filter(|repo| repo.identifier == identifier);
                same.into_iter().any(|repo| self.confirmed(repo).contains(&event.pubkey))
            };
            let states = store.states(&identifier);
            served_content
                .states
                .extend(states.iter().filter(|e| may_sign(e)).map(|event| event.id));
            let proposals = store.proposals(&identifier);
            // A pull request whose repository is no longer served is left out: it would not be admitted again.
            let related = proposals.iter().filter(|event| self.is_related(event));
            let addressed = related.filter(|event| self.is_addressed(event));
            served_content.proposals.extend(addressed.map(|event| event.id));
        }
        served_content
    }

    /// Returns the refs of a view that its state declares, and those of pull requests to its maintainers. Other refs are
    /// left over from earlier maintainers.
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

/// Returns the branches and tags among refs.
fn branches_and_tags(refs: &Refs) -> Refs {
    let selected = refs.iter().filter(|(name, _)| name.is_branch_or_tag());
    selected.map(|(name, oid)| (name.clone(), *oid)).collect()
}
