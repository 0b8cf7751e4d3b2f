//! The relays of authors, from which their own roots are wanted too (GRASP-03), and the authors of roots.

use std::collections::{BTreeMap, BTreeSet};

use nostr::key::PublicKey;

use super::items::AuthorNeeds;
use super::pairs::Pairs;
use super::roots::RootId;
use crate::RelayUrl;

/// The relays and the roots of authors.
#[derive(Clone, Debug, Default)]
pub(super) struct Mail {
    relays: BTreeMap<PublicKey, BTreeSet<RelayUrl>>,
    /// The authors of each relay.
    authors: BTreeMap<RelayUrl, BTreeSet<PublicKey>>,
    /// The author of each root, as far as it is known.
    author_of: BTreeMap<RootId, PublicKey>,
    roots: Pairs<PublicKey, RootId>,
}

impl Mail {
    /// Returns the relays of all authors.
    pub(super) fn relays(&self) -> impl Iterator<Item = &RelayUrl> {
        self.authors.keys()
    }

    /// Returns the authors of a relay.
    pub(super) fn authors(&self, relay: &RelayUrl) -> impl Iterator<Item = &PublicKey> {
        self.authors.get(relay).into_iter().flatten()
    }

    /// Returns the relays of an author; `None` if there are none.
    pub(super) fn relays_of(&self, author: &PublicKey) -> Option<&BTreeSet<RelayUrl>> {
        self.relays.get(author)
    }

    /// Returns the relays of the author of a root; `None` if there are none.
    pub(super) fn relays_for(&self, root: &RootId) -> Option<&BTreeSet<RelayUrl>> {
        if self.relays.is_empty() {
            return None;
        }
        self.relays.get(self.author_of.get(root)?)
    }

    /// Returns the roots of an author.
    pub(super) fn roots_of(&self, author: &PublicKey) -> impl Iterator<Item = &RootId> {
        self.roots.of(author)
    }

    /// Replaces the relays of an author.
    pub(super) fn set_relays(&mut self, author: PublicKey, relays: BTreeSet<RelayUrl>) {
        for relay in self.relays.remove(&author).unwrap_or_default() {
            if let Some(authors) = self.authors.get_mut(&relay) {
                authors.remove(&author);
                if authors.is_empty() {
                    self.authors.remove(&relay);
                }
            }
        }
        if relays.is_empty() {
            return;
        }
        for relay in &relays {
            self.authors
                .entry(relay.clone())
                .or_default()
                .insert(author);
        }
        self.relays.insert(author, relays);
    }

    /// Adds a root of an author.
    pub(super) fn add_root(&mut self, author: PublicKey, root: RootId) {
        self.author_of.insert(root, author);
        self.roots.insert(author, root);
    }

    /// Forgets the author of a root.
    pub(super) fn remove_root(&mut self, root: &RootId) {
        if let Some(author) = self.author_of.remove(root) {
            self.roots.remove(&author, root);
        }
    }

    /// Returns the relays and the roots of all authors.
    pub(super) fn needs(&self) -> BTreeMap<PublicKey, AuthorNeeds> {
        let mut needs: BTreeMap<PublicKey, AuthorNeeds> = BTreeMap::new();
        for (author, relays) in &self.relays {
            needs.entry(*author).or_default().relays = relays.clone();
        }
        for (root, author) in &self.author_of {
            needs.entry(*author).or_default().roots.insert(*root);
        }
        needs
    }
}
