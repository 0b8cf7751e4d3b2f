//! Who is hosted under one identifier, and who may sign for whom.

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::admission::{Policy, Presence};
use grasp_core::maintainers::{MaintainerSets, maintainer_lists};
use grasp_core::nip34::{Announcement, Proposal};
use grasp_core::{Identifier, RepoId};
use nostr::event::EventId;
use nostr::key::PublicKey;

/// The repositories of one identifier that are hosted here, by everybody's current words.
///
/// Stored and kept announcements count alike, each author's winning version; nothing is remembered from before.
pub(super) struct Family {
    pub(super) places: BTreeMap<RepoId, Place>,
}

/// One hosted repository.
pub(super) struct Place {
    /// The announcement that asks for it.
    pub(super) announced_by: EventId,
    /// Whether that announcement is served.
    pub(super) presence: Presence,
    /// Who may sign for it.
    pub(super) confirmed: BTreeSet<PublicKey>,
}

impl Family {
    /// Reads the announcements of one identifier.
    pub(super) fn new<'a>(
        policy: &Policy,
        known: impl IntoIterator<Item = (&'a Announcement, Presence)>,
    ) -> Self {
        let winners = winners(known);
        let maintainer_lists =
            maintainer_lists(winners.values().map(|(announcement, _)| *announcement));
        let circles = MaintainerSets::new(policy.model, &maintainer_lists);
        let hosted = winners.values().filter(|(announcement, _)| policy.hosts(announcement));
        let places = hosted
            .map(|(announcement, presence)| {
                let place = Place {
                    announced_by: announcement.version.id,
                    presence: *presence,
                    confirmed: circles.of(&announcement.repo.owner),
                };
                (announcement.repo.clone(), place)
            })
            .collect();
        Self { places }
    }

    /// Whether an author may sign for anything that is hosted here.
    pub(super) fn is_ruled_by(&self, author: &PublicKey) -> bool {
        self.places.values().any(|place| place.confirmed.contains(author))
    }

    /// The repositories whose maintainers a pull request is addressed to.
    pub(super) fn addressed_by<'a>(
        &'a self,
        identifier: &'a Identifier,
        proposal: &'a Proposal,
    ) -> impl Iterator<Item = (&'a RepoId, &'a Place)> + 'a {
        let named = proposal.repos.iter().filter(|repo| repo.identifier == *identifier);
        let named: BTreeSet<_> = named.map(|repo| repo.owner).collect();
        self.places.iter().filter(move |(_, place)| !place.confirmed.is_disjoint(&named))
    }
}

/// Each author's winning announcement; one that is stored and kept at once counts as stored.
fn winners<'a>(
    known: impl IntoIterator<Item = (&'a Announcement, Presence)>,
) -> BTreeMap<PublicKey, (&'a Announcement, Presence)> {
    let mut winners: BTreeMap<PublicKey, (&Announcement, Presence)> = BTreeMap::new();
    for (announcement, presence) in known {
        let rank = |(announcement, presence): &(&Announcement, Presence)| {
            (announcement.version, *presence == Presence::Stored)
        };
        let new = (announcement, presence);
        let winner = winners.entry(announcement.repo.owner).or_insert(new);
        if rank(&new) > rank(winner) {
            *winner = new;
        }
    }
    winners
}
