//! Authors take things back, also what only waits.

use std::collections::BTreeSet;

use grasp_core::deletion::DeletionRequest;
use grasp_core::{Identifier, RepoId, Version, kinds};
use nostr::event::{Event, EventId};
use nostr::key::PublicKey;
use nostr::nips::nip01::Coordinate;
use nostr::types::Timestamp;

use super::Purgatory;
use super::entry::{Entry, Why};
use super::output::{Chore, Turn};

impl Purgatory {
    pub(super) fn on_deleted(&mut self, out: &mut Turn, request: &Event) {
        let Ok(DeletionRequest { ids, coordinates }) = DeletionRequest::parse(request) else {
            return;
        };
        let by_id = ids.iter().filter_map(|id| self.ledger.entry(id));
        let by_coordinate = coordinates.iter().flat_map(|coordinate| self.versions(coordinate));
        let targets: BTreeSet<EventId> = by_id
            .chain(by_coordinate.filter(|entry| entry.event.created_at <= request.created_at))
            .filter(|entry| entry.author() == request.pubkey)
            .map(Entry::id)
            .collect();
        self.withdraw_all(out, targets);
    }

    pub(super) fn on_vanished(&mut self, out: &mut Turn, author: PublicKey, until: Timestamp) {
        let theirs = |entry: &&Entry| entry.author() == author && entry.event.created_at <= until;
        let targets: Vec<_> = self.ledger.entries().filter(theirs).map(Entry::id).collect();
        self.withdraw_all(out, targets);
    }

    pub(super) fn on_delisted(&mut self, out: &mut Turn, repo: &RepoId, by: Version) {
        let kept = self.ledger.announcement(repo).filter(|entry| entry.version() < by);
        self.withdraw_all(out, kept.map(Entry::id));
        self.ask(out, &repo.identifier);
    }

    /// What is kept at a coordinate.
    fn versions<'a>(&'a self, coordinate: &Coordinate) -> impl Iterator<Item = &'a Entry> + 'a {
        let (kind, author) = (coordinate.kind, coordinate.public_key);
        let ruled = kind == kinds::ANNOUNCEMENT || kind == kinds::STATE;
        let identifier = Identifier::new(&coordinate.identifier).ok().filter(|_| ruled);
        let ids: Vec<EventId> = identifier
            .iter()
            .flat_map(|identifier| self.ledger.family(identifier))
            .filter(|entry| entry.event.kind == kind && entry.author() == author)
            .map(Entry::id)
            .collect();
        ids.into_iter().filter_map(|id| self.ledger.entry(&id))
    }

    /// Lets go of what an author took back, and of the view that only it asked for.
    pub(super) fn withdraw(&mut self, out: &mut Turn, id: EventId) -> BTreeSet<Identifier> {
        let Some(entry) = self.ledger.entry(&id) else { return BTreeSet::new() };
        let identifiers = entry.identifiers().into_iter().cloned().collect();
        let repo = entry.announcement().map(|announcement| announcement.repo.clone());
        self.forget(out, id, Why::Withdrawn);
        if let Some(repo) = repo {
            self.owe(out, Chore::RemoveView { repo, at_once: true });
        }
        identifiers
    }

    fn withdraw_all(&mut self, out: &mut Turn, ids: impl IntoIterator<Item = EventId>) {
        for id in ids {
            for identifier in self.withdraw(out, id) {
                self.ask(out, &identifier);
            }
        }
    }
}
