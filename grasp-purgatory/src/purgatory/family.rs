//! Who is hosted under one identifier, and who may sign for whom.

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::admission::{Policy, Standing};
use grasp_core::maintainers::{Circles, rosters};
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
    pub(super) standing: Standing,
    /// Who may sign for it.
    pub(super) confirmed: BTreeSet<PublicKey>,
}

impl Family {
    /// Reads the announcements of one identifier.
    pub(super) fn new<'a>(
        policy: &Policy,
        known: impl IntoIterator<Item = (&'a Announcement, Standing)>,
    ) -> Self {
        let winners = winners(known);
        let rosters = rosters(winners.values().map(|(announcement, _)| *announcement));
        let circles = Circles::new(policy.model, &rosters);
        let hosted = winners.values().filter(|(announcement, _)| policy.hosts(announcement));
        let places = hosted
            .map(|(announcement, standing)| {
                let place = Place {
                    announced_by: announcement.version.id,
                    standing: *standing,
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
    known: impl IntoIterator<Item = (&'a Announcement, Standing)>,
) -> BTreeMap<PublicKey, (&'a Announcement, Standing)> {
    let mut winners: BTreeMap<PublicKey, (&Announcement, Standing)> = BTreeMap::new();
    for (announcement, standing) in known {
        let rank = |(announcement, standing): &(&Announcement, Standing)| {
            (announcement.version, *standing == Standing::Stored)
        };
        let new = (announcement, standing);
        let winner = winners.entry(announcement.repo.owner).or_insert(new);
        if rank(&new) > rank(winner) {
            *winner = new;
        }
    }
    winners
}
