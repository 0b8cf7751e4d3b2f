//! What is kept, changed by records alone.
//!
//! Nothing else changes a [`Ledger`], so replaying the records that a run wrote gives the ledger of that run.

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::{Identifier, RepoId};
use nostr::event::EventId;
use nostr::key::PublicKey;
use nostr::types::Timestamp;

use super::books::Books;
use super::entry::{Entry, Phase};
use super::output::Chore;
use super::staging::{Staging, Upload};
use crate::journal::Record;

/// Everything that is kept and owed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ledger {
    entries: BTreeMap<EventId, Entry>,
    by_identifier: BTreeMap<Identifier, BTreeSet<EventId>>,
    /// Entries by the end of their phase.
    deadlines: BTreeMap<Phase, BTreeSet<(Timestamp, EventId)>>,
    staging: Staging,
    owed: BTreeSet<Chore>,
    books: Books,
}

impl Ledger {
    /// Makes one change. Events that cannot be read are none that could ever be released, and are passed over.
    pub(super) fn apply(&mut self, record: &Record) {
        match record {
            Record::Held { event, phase, until } => {
                self.take(&event.id);
                if let Some(entry) = Entry::new(event.clone(), *phase, *until) {
                    self.insert(entry);
                }
            }
            Record::Moved { id, phase, until } => {
                if let Some(entry) = self.take(id) {
                    self.insert(Entry { phase: *phase, until: *until, ..entry });
                }
            }
            Record::Gone { id, .. } => _ = self.take(id),
            Record::Staged { id, tip, door, bytes, until } => {
                let upload = Upload { door: door.clone(), bytes: *bytes };
                self.staging.add(*id, *tip, upload, *until);
            }
            Record::Unstaged { id, keep } => self.staging.drop_but(id, *keep),
            Record::Owed { chore } => _ = self.owed.insert(chore.clone()),
            Record::Settled { chore } => _ = self.owed.remove(chore),
        }
    }

    /// The records that lead from nothing to here.
    pub(super) fn snapshot(&self) -> Vec<Record> {
        let held = self.entries.values().map(|entry| Record::Held {
            event: entry.event.clone(),
            phase: entry.phase,
            until: entry.until,
        });
        let staged = self.staging.iter().flat_map(|(id, placeholder)| {
            placeholder.tips.iter().map(|(tip, upload)| Record::Staged {
                id: *id,
                tip: *tip,
                door: upload.door.clone(),
                bytes: upload.bytes,
                until: placeholder.until,
            })
        });
        let owed = self.owed.iter().map(|chore| Record::Owed { chore: chore.clone() });
        held.chain(staged).chain(owed).collect()
    }

    pub(super) fn entry(&self, id: &EventId) -> Option<&Entry> {
        self.entries.get(id)
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }

    /// Everything that is kept under an identifier.
    pub(super) fn family(&self, identifier: &Identifier) -> impl Iterator<Item = &Entry> {
        let ids = self.by_identifier.get(identifier).into_iter().flatten();
        ids.filter_map(|id| self.entries.get(id))
    }

    /// The announcement that is kept for a repository.
    pub(super) fn announcement(&self, repo: &RepoId) -> Option<&Entry> {
        let announces = |entry: &&Entry| entry.announcement().is_some_and(|a| a.repo == *repo);
        self.family(&repo.identifier).find(announces)
    }

    /// The states of one author that are kept under an identifier.
    pub(super) fn states_by(
        &self,
        identifier: &Identifier,
        author: PublicKey,
    ) -> impl Iterator<Item = &Entry> {
        self.family(identifier)
            .filter(move |entry| entry.author() == author && entry.state().is_some())
    }

    pub(super) fn identifiers(&self) -> impl Iterator<Item = &Identifier> {
        self.by_identifier.keys()
    }

    /// The entries of a phase with its end, the next to end first.
    pub(super) fn deadlines(&self, phase: Phase) -> impl Iterator<Item = (Timestamp, &Entry)> {
        let ends = self.deadlines.get(&phase).into_iter().flatten();
        ends.filter_map(|(until, id)| Some((*until, self.entries.get(id)?)))
    }

    pub(super) fn staging(&self) -> &Staging {
        &self.staging
    }

    pub(super) fn owed(&self) -> &BTreeSet<Chore> {
        &self.owed
    }

    pub(super) fn books(&self) -> &Books {
        &self.books
    }

    fn insert(&mut self, entry: Entry) {
        let id = entry.id();
        self.books.enter(&entry);
        self.deadlines.entry(entry.phase).or_default().insert((entry.until, id));
        for identifier in entry.identifiers() {
            self.by_identifier.entry(identifier.clone()).or_default().insert(id);
        }
        self.entries.insert(id, entry);
    }

    fn take(&mut self, id: &EventId) -> Option<Entry> {
        let entry = self.entries.remove(id)?;
        self.books.strike(&entry);
        remove_from(&mut self.deadlines, &entry.phase, &(entry.until, *id));
        for identifier in entry.identifiers() {
            remove_from(&mut self.by_identifier, identifier, id);
        }
        Some(entry)
    }
}

/// Removes a value from the set under a key, and the set with its last value.
fn remove_from<K: Ord, V: Ord>(index: &mut BTreeMap<K, BTreeSet<V>>, key: &K, value: &V) {
    if let Some(values) = index.get_mut(key) {
        values.remove(value);
        if values.is_empty() {
            index.remove(key);
        }
    }
}
