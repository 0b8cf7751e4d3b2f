//! The invariants of the model: at any moment, and whenever it is idle.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use grasp_core::admission::Presence;
use grasp_core::nip34::{Announcement, Proposal, State};
use grasp_core::{RefName, RepoId, Version, kinds};
use grasp_purgatory::Record;
use nostr::event::{Event, EventId};

use crate::memory_database::Rows;
use crate::model_disk::{Refs, View, declared, hosted, proposal_ref};
use crate::model_world::World;

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
        self.check_proposals();
        self.check_acknowledged();
        self.check_staging();
    }

    /// Asserts the invariants that hold at any moment, such as right after a power cut.
    pub(crate) fn check_always(&self) {
        for (repo, view) in &self.disk.git.views() {
            self.check_signed(repo, view);
        }
        if self.is_settled {
            for repo in self.hosted(Presence::Stored) {
                let view = self.disk.git.view(&hosted(&repo));
                let shown = view.and_then(|view| view.state);
                // An address follows what it is an address of, in a commit of its own.
                if view.is_some_and(|view| view.shows.is_some()) {
                    continue;
                }
                assert!(shown.is_some(), "{repo} is served and shows no state");
            }
        }
    }

    /// Asserts that no ref is shown without an event that signs it, nor without objects in the repository itself. Until
    /// it follows, a repository may show a state of another maintainer that was replaced, or is held again since its
    /// author maintains nothing. One that is withheld shows what it did, to nobody.
    fn check_signed(&self, repo: &RepoId, view: &View) {
        let store = &self.disk.store;
        assert!(
            self.disk.git.has_all(&hosted(repo), view.refs.values()),
            "objects of {repo}"
        );
        let shown = branches_and_tags(&view.refs);
        if !shown.is_empty() {
            let id = view.state.expect("refs are of a state");
            let state = store
                .ever(&id)
                .expect("a state is shown that was never served");
            assert_eq!(declared(&State::parse(state).unwrap()), shown, "{repo}");
            let follows = store.is_replaced(&id) || self.core.contains(&id);
            let is_signed = store.contains(&id) || follows || self.policy.withholds(repo);
            assert!(is_signed, "{repo} shows a state that was taken back");
            assert!(
                view.maintainers.contains(&state.pubkey),
                "{repo} shows a stranger's state"
            );
        }
        let mut proposed = view.refs.keys().filter_map(RefName::event);
        assert!(
            proposed.all(|id| store.contains(&id)),
            "{repo} shows an unsigned tip"
        );
    }

    /// Returns the repositories with a winning announcement of that presence that asks us to host them.
    pub(crate) fn hosted(&self, presence: Presence) -> BTreeSet<RepoId> {
        let stored = self.disk.store.of_kind(kinds::ANNOUNCEMENT).cloned();
        let announced = stored.chain(self.held_events());
        let announced = announced.filter_map(|event| Announcement::parse(&event).ok());
        let mut repos: BTreeSet<RepoId> = announced.map(|announcement| announcement.repo).collect();
        repos.retain(|repo| {
            self.own_announcement(repo)
                .is_some_and(|known| known.presence == presence)
        });
        repos
    }

    /// Returns all held events.
    fn held_events(&self) -> Vec<Arc<Event>> {
        let mut held = Vec::new();
        for record in self.core.records() {
            if let Record::Held { event, .. } = record {
                held.push(event);
            }
        }
        held
    }

    /// Asserts invariant 1: a served repository shows exactly the winning state of its maintainers whose objects it has.
    /// It has those that another repository of the state's author has.
    fn check_served(&self, repo: &RepoId) {
        if let Some(lead) = self.shown_at(repo) {
            return self.check_address(repo, &lead);
        }
        let maintainers = self.maintainers(repo);
        let mut winner: Option<State> = None;
        for of_key in self.named(repo, &maintainers) {
            let Some(event) = self.disk.store.state(&of_key) else {
                continue;
            };
            let state = State::parse(event).unwrap();
            if !self.disk.git.has_state(repo, &state) {
                let mut others = self.maintained_by(&of_key).into_iter();
                let is_elsewhere = others.any(|one| self.disk.git.has_state(&one.repo, &state));
                assert!(!is_elsewhere, "I1: {repo} lacks objects that its peer has");
                continue;
            }
            if winner
                .as_ref()
                .is_none_or(|winner| state.version > winner.version)
            {
                winner = Some(state);
            }
        }
        let winner = winner.expect("a served repository has a state");
        let view = self
            .disk
            .git
            .view(&hosted(repo))
            .expect("a served repository has a view");
        assert_eq!(view.state, Some(winner.version.id), "I1: {repo}");
        assert_eq!(
            branches_and_tags(&view.refs),
            declared(&winner),
            "I1: {repo}"
        );
        assert_eq!(view.maintainers, maintainers, "I1: maintainers of {repo}");
    }

    /// Asserts that a served address has no refs, and that what it is an address of shows a state.
    fn check_address(&self, repo: &RepoId, lead: &RepoId) {
        let view = self
            .disk
            .git
            .view(&hosted(repo))
            .expect("a served address has a view");
        assert_eq!(view.shows, Some(lead.owner), "I1: {repo}");
        assert!(
            view.refs.is_empty() && view.state.is_none(),
            "I1: refs of the address {repo}"
        );
        let shown = self
            .disk
            .git
            .view(&hosted(lead))
            .and_then(|view| view.state);
        assert!(
            shown.is_some(),
            "I1: {repo} is served and {lead} shows nothing"
        );
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
        let served = self.hosted(Presence::Stored);
        for repo in self.disk.git.views().keys() {
            let is_announced = served.contains(repo) || held.contains(repo);
            assert!(is_announced, "{repo} has a view without an announcement");
        }
    }

    /// Asserts invariant 2: nothing is both held and served, and nothing is held that could be served.
    fn check_held(&self) {
        for event in self.held_events() {
            assert!(
                !self.disk.store.is_deleted(&event),
                "kept although its author deleted it"
            );
            assert!(!self.disk.store.contains(&event.id), "I2: {event:?}");
            if let Ok(state) = State::parse(&event) {
                for maintained in self.maintained_by(&state.repo) {
                    let is_here = self.disk.git.has_state(&maintained.repo, &state);
                    assert!(!is_here, "a complete state waits: {}", maintained.repo);
                }
            }
            if event.kind == kinds::PULL_REQUEST {
                let proposal = Proposal::parse(&event).unwrap();
                for repo in self.addressed_by(&proposal) {
                    let is_here = self.disk.git.has_all(&hosted(&repo), [&proposal.tip]);
                    assert!(!is_here, "a complete pull request waits: {repo}");
                }
            }
        }
    }

    /// Asserts that a served pull request has a ref in every served repository that it is addressed to and that has its
    /// objects, or can get them from one that it names.
    fn check_proposals(&self) {
        for event in self.disk.store.of_kind(kinds::PULL_REQUEST) {
            let proposal = Proposal::parse(event).unwrap();
            let named = proposal.repos.iter();
            let is_shown = named
                .into_iter()
                .any(|repo| self.shows(&hosted(repo), &proposal));
            for repo in self.addressed_by(&proposal) {
                let is_here = self.disk.git.has_all(&hosted(&repo), [&proposal.tip]);
                if is_here || is_shown {
                    let shows = self.shows(&hosted(&repo), &proposal);
                    assert!(
                        shows || self.is_full(&repo, event),
                        "{repo} lacks a pull request"
                    );
                }
            }
        }
    }

    /// Returns whether an author has as many pull requests in a repository as allowed.
    fn is_full(&self, repo: &RepoId, event: &Event) -> bool {
        let shown = self.disk.git.proposals(&hosted(repo));
        let shown = shown.iter().filter_map(|id| self.disk.store.ever(id));
        shown.filter(|shown| shown.pubkey == event.pubkey).count() >= 200
    }

    /// Returns the served repositories with a maintainer to whom a pull request is addressed.
    fn addressed_by(&self, proposal: &Proposal) -> Vec<RepoId> {
        let mut addressed = Vec::new();
        for repo in self.hosted(Presence::Stored) {
            if self.shown_at(&repo).is_some() {
                continue;
            }
            let named = self.named(&repo, &self.maintainers(&repo));
            if proposal.repos.iter().any(|one| named.contains(one)) {
                addressed.push(repo);
            }
        }
        addressed
    }

    /// Asserts invariant 3: an acknowledged event is held or served, unless its author deleted or replaced it.
    fn check_acknowledged(&mut self) {
        let acknowledged = std::mem::take(&mut self.acknowledged);
        for (id, event) in acknowledged {
            if self.disk.store.refuses(&event) || self.is_superseded(&event) {
                continue;
            }
            let is_here = self.disk.store.contains(&id) || self.core.contains(&id);
            assert!(is_here, "I3: lost {event:?}");
            self.acknowledged.insert(id, event);
        }
    }

    fn is_superseded(&self, event: &Event) -> bool {
        let version = Version::of(event);
        let announced = Announcement::parse(event).is_ok_and(|new| {
            let held = self.core.announcement(&new.repo);
            held.is_some_and(|known| known.announcement.version > version)
        });
        announced || self.disk.store.has_had_newer(event)
    }

    /// Asserts that every upload has a record, and every record its upload, in staging or taken in already.
    fn check_staging(&self) {
        let mut recorded = BTreeSet::new();
        for record in self.core.records() {
            if let Record::Staged {
                id, tip, target, ..
            } = record
            {
                assert!(
                    self.disk.git.has_upload(&id, tip, &target),
                    "an upload is lost"
                );
                recorded.insert((id, tip, target));
            }
        }
        for (id, staged) in &self.disk.git.staging {
            for (tip, target) in staged {
                let is_recorded = recorded.contains(&(*id, *tip, target.clone()));
                assert!(is_recorded, "staging is accounted for");
            }
        }
    }

    /// Asserts that records, and the rows made of them, restore the same purgatory.
    pub(crate) fn check_journal(&self) {
        let mut rows = Rows::default();
        self.disk
            .journal
            .iter()
            .for_each(|record| rows.apply(record));
        for replayed in [self.replayed(), self.restored(rows.records())] {
            assert_eq!(replayed.records(), self.core.records());
            assert_eq!(replayed.counts(), self.core.counts());
        }
    }

    /// Returns the served events and refs of hosted repositories.
    pub(crate) fn served_content(&self) -> ServedContent {
        let mut content = ServedContent {
            announcements: BTreeSet::new(),
            states: BTreeSet::new(),
            proposals: BTreeSet::new(),
            refs: BTreeMap::new(),
        };
        for repo in self.hosted(Presence::Stored) {
            let store = &self.disk.store;
            content
                .announcements
                .extend(store.announcement(&repo).map(|event| event.id));
            let named = self.named(&repo, &self.maintainers(&repo));
            for of_key in &named {
                content
                    .states
                    .extend(store.state(of_key).map(|event| event.id));
            }
            // A pull request whose repository is no longer served is left out: it would not be admitted again.
            let mut addressed = store.addressed_to(&named);
            addressed.retain(|event| self.is_related(event));
            let ids: BTreeSet<EventId> = addressed.iter().map(|event| event.id).collect();
            // Other refs are left over from earlier maintainers.
            let shown_at = self.shown_at(&repo).unwrap_or_else(|| repo.clone());
            let mut shown = self.view(&shown_at).cloned().unwrap_or_default();
            shown.retain(|name, _| {
                name.is_branch_or_tag() || ids.iter().any(|id| proposal_ref(id) == *name)
            });
            content.proposals.extend(ids);
            content.refs.insert(repo, shown);
        }
        content
    }
}

/// Returns the branches and tags among refs.
fn branches_and_tags(refs: &Refs) -> Refs {
    let selected = refs.iter().filter(|(name, _)| name.is_branch_or_tag());
    selected.map(|(name, oid)| (name.clone(), *oid)).collect()
}
