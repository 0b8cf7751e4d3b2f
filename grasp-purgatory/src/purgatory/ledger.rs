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
use super::output::{Chore, Thing};
use super::staging::Staging;
use crate::journal::Record;

/// Everything that is kept and owed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ledger {
    entries: BTreeMap<EventId, Entry>,
    by_identifier: BTreeMap<Identifier, BTreeSet<EventId>>,
    /// Entries by the end of their phase.
    deadlines: BTreeMap<Phase, BTreeSet<(Timestamp, EventId)>>,
    staging: Staging,
    /// Chores by what they are about, one for each thing.
    owed: BTreeMap<Thing, Chore>,
    books: Books,
}

impl Ledger {
    /// Makes one change. Events that cannot be read are none that could ever be released, and are passed over.
    pub(super) fn apply(&mut self, record: &Record) {
        match record {
            Record::Held { event, phase, since, until } => {
                self.take(&event.id);
                if let Some(entry) = Entry::new(event.clone(), *phase, *since, *until) {
                    self.insert(entry);
                }
            }
            Record::Moved { id, phase, until } => {
                if let Some(entry) = self.take(id) {
                    self.insert(Entry { phase: *phase, until: *until, ..entry });
                }
            }
            Record::Gone { id, .. } => _ = self.take(id),
            Record::Staged { id, tip, target, bytes, until } => {
                self.staging.add(*id, *tip, (target.clone(), *bytes), *until);
            }
            Record::Unstaged { id, keep } => self.staging.drop_but(id, *keep),
            Record::Owed { chore } => _ = self.owed.insert(chore.thing(), chore.clone()),
            Record::Settled { chore } if self.owes(chore) => _ = self.owed.remove(&chore.thing()),
            Record::Settled { .. } => {}
        }
    }

    /// The records that lead from nothing to here.
    pub(super) fn snapshot(&self) -> Vec<Record> {
        let held = self.entries.values().map(|entry| Record::Held {
            event: entry.event.clone(),
            phase: entry.phase,
            since: entry.since,
            until: entry.until,
        });
        let staged = self.staging.iter().flat_map(|(id, placeholder)| {
            let uploads = placeholder.tips.iter();
            let uploads =
                uploads.flat_map(|(tip, targets)| targets.iter().map(move |one| (tip, one)));
            uploads.map(|(tip, (target, bytes))| Record::Staged {
                id: *id,
                tip: *tip,
                target: target.clone(),
                bytes: *bytes,
                until: placeholder.until,
            })
        });
        let owed = self.owed.values().map(|chore| Record::Owed { chore: chore.clone() });
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

    pub(super) fn owed(&self) -> impl ExactSizeIterator<Item = &Chore> {
        self.owed.values()
    }

    /// The chore that is owed to a thing.
    pub(super) fn owed_to(&self, thing: &Thing) -> Option<&Chore> {
        self.owed.get(thing)
    }

    /// Whether this very chore is owed.
    pub(super) fn owes(&self, chore: &Chore) -> bool {
        self.owed_to(&chore.thing()) == Some(chore)
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use grasp_core::Oid;
    use nostr::event::{Event, Kind, Signature, Tag};
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::purgatory::{PushTarget, Why};

    /// One of a few events: announcements, states and pull requests of few authors under few names.
    fn event(n: u8) -> Arc<Event> {
        let author = PublicKey::from_byte_array([n % 3 + 1; 32]);
        let name = if n.is_multiple_of(2) { "x" } else { "y" };
        let to = |name| format!("30617:{author}:{name}");
        let (kind, tags) = match n % 4 {
            0 | 1 => (30617 + u16::from(n % 8 / 4), vec![vec!["d".to_owned(), name.to_owned()]]),
            _ => {
                let tip = vec!["c".to_owned(), "a".repeat(40)];
                (1618, vec![vec!["a".to_owned(), to("x")], vec!["a".to_owned(), to(name)], tip])
            }
        };
        let id = EventId::from_slice(&[n; 32]).unwrap();
        let at = Timestamp::from_secs(u64::from(n));
        let tags = tags.into_iter().map(|tag| Tag::parse(tag).unwrap());
        let signature = Signature::from_slice(&[0; 64]).unwrap();
        Arc::new(Event::new(id, author, at, Kind::from_u16(kind), tags, "", signature))
    }

    fn record() -> impl Strategy<Value = Record> {
        let id = || (0..16u8).prop_map(|n| event(n).id);
        let phase = prop_oneof![Just(Phase::Waiting), Just(Phase::Shelved)];
        let until = (0..5u64).prop_map(Timestamp::from_secs);
        let oid = (0..3u8).prop_map(|n| Oid::Sha1([n; 20]));
        let repo_of = |n| RepoId::new(PublicKey::from_byte_array([n; 32]), "x".parse().unwrap());
        let repo = move || repo_of(1);
        let target = (1..3u8).prop_flat_map(move |n| {
            prop_oneof![
                Just(PushTarget::Repository(repo_of(n))),
                Just(PushTarget::Contributor(repo_of(n)))
            ]
        });
        let chore = prop_oneof![
            Just(Chore::CreateView { repo: repo() }),
            Just(Chore::RemoveView { repo: repo(), at_once: false }),
            Just(Chore::RemoveView { repo: repo(), at_once: true }),
        ];
        prop_oneof![
            4 => (0..16u8, phase.clone(), until.clone())
                .prop_map(|(n, phase, until)| Record::Held {
                    event: event(n),
                    phase,
                    since: until,
                    until,
                }),
            3 => (id(), phase, until.clone())
                .prop_map(|(id, phase, until)| Record::Moved { id, phase, until }),
            2 => id().prop_map(|id| Record::Gone { id, why: Why::Served }),
            2 => (id(), oid.clone(), target, 0..9u64, until).prop_map(
                |(id, tip, target, bytes, until)| Record::Staged { id, tip, target, bytes, until },
            ),
            1 => (id(), proptest::option::of(oid))
                .prop_map(|(id, keep)| Record::Unstaged { id, keep }),
            1 => chore.clone().prop_map(|chore| Record::Owed { chore }),
            1 => chore.prop_map(|chore| Record::Settled { chore }),
        ]
    }

    fn replay(records: &[Record]) -> Ledger {
        let mut ledger = Ledger::default();
        records.iter().for_each(|record| ledger.apply(record));
        ledger
    }

    proptest! {
        #[test]
        fn a_snapshot_leads_to_the_same_ledger_with_all_its_accounts(
            records in vec(record(), 0..60),
        ) {
            let ledger = replay(&records);
            prop_assert_eq!(replay(&ledger.snapshot()), ledger);
        }

        #[test]
        fn everything_that_comes_and_goes_leaves_nothing(records in vec(record(), 0..60)) {
            let mut ledger = replay(&records);
            for n in 0..16 {
                ledger.apply(&Record::Gone { id: event(n).id, why: Why::Withdrawn });
                ledger.apply(&Record::Unstaged { id: event(n).id, keep: None });
            }
            for chore in ledger.owed().cloned().collect::<Vec<_>>() {
                ledger.apply(&Record::Settled { chore });
            }
            prop_assert_eq!(ledger, Ledger::default());
        }
    }
}
