//! The relays of users, from which their own roots are wanted too (GRASP-03), and the authors of roots.

use std::collections::{BTreeMap, BTreeSet};

use nostr::key::PublicKey;

use super::SyncIndex;
use super::items::{SyncLevel, UserNeeds};
use super::pairs::Pairs;
use super::roots::RootId;
use super::state::Before;
use crate::RelayUrl;

/// The relays and the roots of users.
#[derive(Clone, Debug, Default)]
pub(super) struct UserRelays {
    relays: BTreeMap<PublicKey, BTreeSet<RelayUrl>>,
    /// The users who name each relay.
    users: BTreeMap<RelayUrl, BTreeSet<PublicKey>>,
    /// The author of each root, as far as it is known.
    author_of: BTreeMap<RootId, PublicKey>,
    roots: Pairs<PublicKey, RootId>,
}

impl UserRelays {
    /// Returns the relays of all users.
    pub(super) fn relays(&self) -> impl Iterator<Item = &RelayUrl> {
        self.users.keys()
    }

    /// Returns the users who name a relay.
    pub(super) fn users(&self, relay: &RelayUrl) -> impl Iterator<Item = &PublicKey> {
        self.users.get(relay).into_iter().flatten()
    }

    /// Returns the relays of a user; `None` if there are none.
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

    /// Returns the roots of a user.
    pub(super) fn roots_of(&self, author: &PublicKey) -> impl Iterator<Item = &RootId> {
        self.roots.of(author)
    }

    /// Replaces the relays of a user.
    pub(super) fn set_relays(&mut self, author: PublicKey, relays: BTreeSet<RelayUrl>) {
        for relay in self.relays.remove(&author).unwrap_or_default() {
            if let Some(authors) = self.users.get_mut(&relay) {
                authors.remove(&author);
                if authors.is_empty() {
                    self.users.remove(&relay);
                }
            }
        }
        if relays.is_empty() {
            return;
        }
        for relay in &relays {
            self.users.entry(relay.clone()).or_default().insert(author);
        }
        self.relays.insert(author, relays);
    }

    /// Adds a root of a user.
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

    /// Returns the relays and the roots of all users.
    pub(super) fn needs(&self) -> BTreeMap<PublicKey, UserNeeds> {
        let mut needs: BTreeMap<PublicKey, UserNeeds> = BTreeMap::new();
        for (author, relays) in &self.relays {
            needs.entry(*author).or_default().relays = relays.clone();
        }
        for (root, author) in &self.author_of {
            needs.entry(*author).or_default().roots.insert(*root);
        }
        needs
    }
}

impl SyncIndex {
    /// Returns the relays and the roots of users, as far as they are known.
    pub fn authors(&self) -> BTreeMap<PublicKey, UserNeeds> {
        self.user_relays.needs()
    }

    /// Returns the users whose roots are wanted from a relay because they name it.
    pub fn users_of(&self, relay: &RelayUrl) -> impl Iterator<Item = PublicKey> {
        let users = self.user_relays.users(relay).copied();
        users.filter(|user| self.wanted_roots_of(user).next().is_some())
    }

    /// Notes the author of a root that was added, unless there was no room for it.
    pub(super) fn authored(&mut self, root: RootId, author: PublicKey, before: &mut Before) {
        if self.root_repos.of(&root).next().is_none() {
            return;
        }
        for relay in self.user_relays.relays_of(&author).into_iter().flatten() {
            before.relay(self, relay);
        }
        self.user_relays.add_root(author, root);
    }

    /// Replaces the relays of a user.
    pub(super) fn set_user_relays(
        &mut self,
        author: PublicKey,
        mut relays: BTreeSet<RelayUrl>,
        before: &mut Before,
    ) {
        relays.retain(|relay| !self.service.is_own_url(relay.as_str()));
        for root in self.user_relays.roots_of(&author) {
            before.root(self, root);
        }
        for relay in &relays {
            before.relay(self, relay);
        }
        self.user_relays.set_relays(author, relays);
    }

    /// Returns whether a repository that is wanted in full has the root.
    pub(super) fn is_wanted(&self, root: &RootId) -> bool {
        let mut repos = self.root_repos.of(root);
        repos.any(|repo| {
            let needs = self.repos.get(repo);
            needs.is_some_and(|needs| needs.level == SyncLevel::Full)
        })
    }

    pub(super) fn wanted_roots_of(&self, author: &PublicKey) -> impl Iterator<Item = &RootId> {
        let roots = self.user_relays.roots_of(author);
        roots.filter(|root| self.is_wanted(root))
    }

    /// Returns whether a user who names the relay has a root that is wanted.
    pub(super) fn is_named_by_user(&self, relay: &RelayUrl) -> bool {
        self.users_of(relay).next().is_some()
    }
}
