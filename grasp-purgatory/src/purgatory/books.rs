//! Who has how much waiting here.

use std::collections::BTreeMap;

use grasp_core::Identifier;
use grasp_core::admission::Presence;
use nostr::key::PublicKey;

use super::config::{Bound, Config};
use super::entry::{Entry, Phase};

/// Whether something more may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Room {
    /// It may.
    Free,
    /// A bound is reached; the sender should try again later.
    Full,
}

/// A number of things and their size together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) count: usize,
    pub(super) bytes: u64,
}

impl Usage {
    pub(super) fn plus(self, bytes: u64) -> Self {
        Self { count: self.count + 1, bytes: self.bytes.saturating_add(bytes) }
    }

    pub(super) fn minus(self, bytes: u64) -> Self {
        Self { count: self.count.saturating_sub(1), bytes: self.bytes.saturating_sub(bytes) }
    }

    pub(super) fn is_within(self, bound: Bound) -> bool {
        self.count <= bound.count && self.bytes <= bound.bytes
    }
}

/// What waits, by author, by identifier and in all; and what is shelved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Books {
    authors: BTreeMap<PublicKey, Usage>,
    identifiers: BTreeMap<Identifier, Usage>,
    waiting: Usage,
    shelved: Usage,
}

impl Books {
    pub(super) fn enter(&mut self, entry: &Entry) {
        if entry.phase == Phase::Shelved {
            self.shelved = self.shelved.plus(entry.bytes);
            return;
        }
        self.waiting = self.waiting.plus(entry.bytes);
        let of_author = self.authors.entry(entry.author()).or_default();
        *of_author = of_author.plus(entry.bytes);
        for identifier in entry.identifiers() {
            let of_identifier = self.identifiers.entry(identifier.clone()).or_default();
            *of_identifier = of_identifier.plus(entry.bytes);
        }
    }

    pub(super) fn strike(&mut self, entry: &Entry) {
        if entry.phase == Phase::Shelved {
            self.shelved = self.shelved.minus(entry.bytes);
            return;
        }
        self.waiting = self.waiting.minus(entry.bytes);
        lessen(&mut self.authors, &entry.author(), entry.bytes);
        for identifier in entry.identifiers() {
            lessen(&mut self.identifiers, identifier, entry.bytes);
        }
    }

    /// Whether an entry is within the bounds of its author and its names once the one that it takes the place of is
    /// gone.
    ///
    /// Anybody may announce under any name, and so fill it. What is signed for a repository that is served is not
    /// counted against its name.
    pub(super) fn room(
        &self,
        config: &Config,
        new: &Entry,
        displaced: Option<&Entry>,
        presence: Presence,
    ) -> Room {
        let freed = displaced.filter(|entry| entry.phase == Phase::Waiting);
        let after = |usage: Usage| {
            let usage = freed.map_or(usage, |entry| usage.minus(entry.bytes));
            usage.plus(new.bytes)
        };
        let of_author = self.authors.get(&new.author()).copied().unwrap_or_default();
        let of_identifier =
            |name: &Identifier| self.identifiers.get(name).copied().unwrap_or_default();
        let fits_name =
            |name: &Identifier| after(of_identifier(name)).is_within(config.per_identifier);
        let fits_names =
            presence == Presence::Stored || new.identifiers().into_iter().all(fits_name);
        let fits = fits_names && after(of_author).is_within(config.per_author);
        if fits { Room::Free } else { Room::Full }
    }

    pub(super) fn waiting(&self) -> Usage {
        self.waiting
    }

    pub(super) fn shelved(&self) -> Usage {
        self.shelved
    }
}

/// Takes one thing off an account, and closes the account with its last thing.
fn lessen<K: Ord>(accounts: &mut BTreeMap<K, Usage>, key: &K, bytes: u64) {
    if let Some(usage) = accounts.get_mut(key) {
        *usage = usage.minus(bytes);
        if usage.count == 0 {
            accounts.remove(key);
        }
    }
}
