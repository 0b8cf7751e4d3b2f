//! Queries of the model: surveys, facts for admission, and permissions.

use std::collections::BTreeSet;
use std::sync::Arc;

use grasp_core::admission::Presence;
use grasp_core::admission::{Facts, KnownAnnouncement, Needs};
use grasp_core::nip34::{Announcement, Proposal, State};
use grasp_core::{Identifier, Namespace, RepoId, Version};
use grasp_purgatory::Survey;
use nostr::event::Event;
use nostr::key::PublicKey;

use crate::model_disk::Refs;
use crate::model_world::World;

impl World {
    pub(crate) fn survey(&self, identifier: &Identifier) -> Survey {
        let (store, git) = (&self.disk.store, &self.disk.git);
        let previous = store.previous_states(identifier);
        let states = self.core.candidates(identifier).into_iter().map(|c| c.state);
        let states = states
            .chain(previous.iter().filter_map(|event| State::parse(event).ok().map(Arc::new)));
        let complete = states.filter(|state| git.has_state(state)).map(|state| state.version.id);
        let proposals = self.core.proposals(identifier).into_iter();
        let arrived =
            proposals.filter(|kept| kept.families.iter().any(|f| git.has_all(f, &[kept.tip])));
        let kept = self.core.held_events(identifier).into_iter();
        let refused = kept.filter(|event| store.is_deleted(event));
        let own = |repo: &RepoId| repo.identifier == *identifier;
        let views = git.views.iter().filter(|(repo, _)| own(repo));
        let refs = views.clone().flat_map(|(_, refs)| refs.keys());
        let shown = refs.filter_map(|name| match name.namespace() {
            Namespace::Nostr(id) => Some(id),
            _ => None,
        });
        Survey {
            announcements: store.announcements(&self.core.scope(identifier)),
            states: store.states(identifier),
            proposals: store.proposals(identifier),
            views: views.map(|(repo, refs)| (repo.clone(), refs.clone())).collect(),
            oldest: self.oldest.clone(),
            strays: shown.filter(|id| !store.contains(id)).collect(),
            complete: complete.chain(arrived.map(|kept| kept.id)).collect(),
            previous: previous.clone(),
            is_vacant: false,
            refused: refused.map(|event| event.id).collect(),
        }
    }

    pub(crate) fn facts(&self, event: &Arc<Event>) -> Facts {
        let store = &self.disk.store;
        let known = match (store.contains(&event.id), self.core.holds(&event.id)) {
            (true, _) => Some(Presence::Stored),
            (false, true) => Some(Presence::Held),
            (false, false) => None,
        };
        let mut facts = Facts {
            known,
            latest: store.version_at(event).map(|stored| Version::of(stored)),
            is_related: self.is_related(event),
            is_over_quota: !self.core.has_room_for(event),
            ..Facts::default()
        };
        if let Some(identifier) = Needs::of(event).identifier {
            facts.announcements = self.known_announcements(&identifier);
        }
        facts
    }

    pub(crate) fn is_related(&self, event: &Event) -> bool {
        let Ok(proposal) = Proposal::parse(event) else { return false };
        let of = proposal.repos.iter().map(|repo| repo.identifier.clone()).collect();
        let stored = self.disk.store.announcements(&of);
        let mut stored = stored.iter().filter_map(|e| Announcement::parse(e).ok());
        stored.any(|announcement| proposal.repos.contains(&announcement.repo))
    }

    /// Returns the stored and held announcements of an identifier.
    pub(crate) fn known_announcements(&self, identifier: &Identifier) -> Vec<KnownAnnouncement> {
        let stored = self.disk.store.announcements(&BTreeSet::from([identifier.clone()]));
        let stored = stored.iter().filter_map(|event| Announcement::parse(event).ok());
        let stored = stored.map(|announcement| KnownAnnouncement {
            announcement: Arc::new(announcement),
            presence: Presence::Stored,
        });
        stored.chain(self.core.announcements(identifier)).collect()
    }

    /// Returns whether a push of this state is allowed: it is signed by a maintainer, and newer than the served one.
    pub(crate) fn may_push(&self, repo: &RepoId, state: &State) -> bool {
        let confirmed = self.confirmed(repo);
        let stored = self.disk.store.states(&repo.identifier);
        let winner = stored.iter().filter(|event| confirmed.contains(&event.pubkey));
        let winner = winner.map(|event| Version::of(event)).max();
        self.disk.git.views.contains_key(repo)
            && confirmed.contains(&state.repo.owner)
            && winner.is_none_or(|winner| state.version > winner)
            && state.tips().is_some()
    }

    /// Returns the maintainers of a repository.
    pub(crate) fn confirmed(&self, repo: &RepoId) -> BTreeSet<PublicKey> {
        let known = self.known_announcements(&repo.identifier);
        let maintainer_lists = grasp_core::maintainers::maintainer_lists(
            known.iter().map(|known| &*known.announcement),
        );
        self.policy.model.maintainers(&repo.owner, &maintainer_lists)
    }

    pub(crate) fn serves(&self, event: &Event) -> bool {
        self.disk.store.contains(&event.id)
    }

    pub(crate) fn view(&self, repo: &RepoId) -> Option<&Refs> {
        self.disk.git.views.get(repo)
    }
}
