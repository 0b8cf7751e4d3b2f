//! Decides which relay is asked for which events. Decides nothing about time, and sends nothing.
//!
//! ```text
//!   our own relay ──IndexChange──▶ ┌───────────┐ ──discovered, retired──▶ connect, disconnect
//!   accepts, holds, drops          │ SyncIndex │
//!                                  └───────────┘
//!                                        │ added   (derive_relay_targets computes the same from scratch)
//!                                        ▼
//!   pending batches ──▶ ┌─────────────────┐ ──items──▶ filters ──▶ pack_requests ──▶ REQ
//!   RelayState      ──▶ │ compute_actions │
//!                       └─────────────────┘
//! ```
//!
//! [`compute_actions`] is the only place that decides on new subscriptions: target − pending − confirmed. The items that
//! it returns become a batch, and are confirmed ([`RelayState::confirm`]) when that is complete.
//!
//! ```
//! use std::collections::{BTreeMap, BTreeSet};
//! use std::time::Duration;
//! use grasp_core::{ServiceIdentity, Version, kinds};
//! use grasp_core::sync::{
//!     UserNeeds, CONFIRMED_RETENTION, FilterHash, History, IndexChange, MAX_PROOFS, MAX_SHARED_VALUE_BYTES, Pairs,
//!     PendingItems, Proof, ProofSet, ProvenItems, RelayState, RelaySyncNeeds, RepoSyncIndex, RequestBudget, RootId,
//!     RootSet, SyncDelta, SyncIndex, SyncLevel, build_announcement_filter, build_layer2_and_layer3_filters,
//!     compute_actions, derive_relay_targets, pack_requests, tagged_one_of_our_repo_event_filters,
//!     tagged_one_of_our_root_event_filters, tagged_with_a_coordinate_filters,
//! };
//! use nostr::event::EventId;
//! use nostr::key::PublicKey;
//! use nostr::nips::nip01::Coordinate;
//! use nostr::types::Timestamp;
//!
//! let us: ServiceIdentity = "us.example".parse()?;
//! let mut index = SyncIndex::new(us.clone(), []);
//! let owner = "79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798";
//! let repo: grasp_core::RepoId = format!("30617:{owner}:x").parse()?;
//! let now = Timestamp::from_secs(1_700_000_000);
//! let announced = IndexChange::Announced {
//!     repo: repo.clone(),
//!     version: Version { created_at: now, id: EventId::from_byte_array([1; 32]) },
//!     relays: vec!["wss://other.example".parse()?],
//!     level: SyncLevel::Full,
//! };
//! let root = RootId::from(EventId::from_byte_array([2; 32]));
//! let author = PublicKey::from_byte_array([3; 32]);
//! let opened = IndexChange::RootAdded { root, repos: vec![repo.clone()], author: Some(author) };
//! let changed: SyncDelta = index.apply([announced, opened]);
//! let relay = changed.discovered.first().expect("a relay to ask").clone();
//!
//! // The target is kept up to date, and equals what follows from the repositories.
//! let target: RelaySyncNeeds = index.target(&relay).expect("it is wanted");
//! let repos: &RepoSyncIndex = index.repos();
//! let derived = derive_relay_targets(repos, &index.authors(), &us, &BTreeSet::new());
//! assert_eq!(derived, BTreeMap::from([(relay, target.clone())]));
//! let roots: &RootSet = &target.root_events;
//! assert!(roots.contains(&root));
//!
//! // The relays of a user are asked for the user's roots, and for nothing else.
//! let home = "wss://home.example".parse()?;
//! index.apply([IndexChange::UserRelays { author, relays: BTreeSet::from([home]) }]);
//! let authors: BTreeMap<PublicKey, UserNeeds> = index.authors();
//! let at_home = authors[&author].relays.first().and_then(|home| index.target(home)).expect("it is wanted");
//! assert!(at_home.root_events.contains(&root) && at_home.repos.is_empty());
//!
//! // What is neither confirmed nor pending is requested, within the limits of the relay.
//! let mut state = RelayState::new(false);
//! state.connecting();
//! state.connected(now);
//! let missing: PendingItems = compute_actions(&target, [], &state).expect("everything is missing");
//! let budget = RequestBudget::default();
//! let filters = build_layer2_and_layer3_filters(&missing, None, &budget);
//! let of_repos = tagged_one_of_our_repo_event_filters([&repo], None, &budget);
//! let of_roots = tagged_one_of_our_root_event_filters([&root], None, &budget);
//! assert_eq!(filters, [of_repos, of_roots].concat());
//! let app = Coordinate { kind: kinds::SOFTWARE, public_key: author, identifier: "app".to_owned() };
//! assert_eq!(tagged_with_a_coordinate_filters([&app], &budget).len(), 3, "a, A, q");
//! assert!(repo.to_string().len() <= MAX_SHARED_VALUE_BYTES, "such values share a filter");
//! assert!(!pack_requests(filters, &budget).is_empty());
//!
//! // Confirmed items are not requested again, unless the relay was away for too long.
//! state.confirm(missing);
//! state.history_ended(History::Complete);
//! assert!(compute_actions(&target, [], &state).is_none());
//! state.disconnected(now);
//! assert!(state.should_clear_state(now + CONFIRMED_RETENTION + Duration::from_secs(1)));
//!
//! // What was fetched completely is proven, by filter and for repositories and roots.
//! let announcements = build_announcement_filter(None);
//! assert!(announcements.kinds.as_ref().is_some_and(|kinds| kinds.contains(&kinds::STATE)));
//! let filter = FilterHash::of(&announcements);
//! let mut proofs = ProofSet::with_capacity(MAX_PROOFS);
//! proofs.add(Proof { filter, since: Timestamp::from_secs(0), until: now, at: now });
//! assert!(proofs.since(&filter, None).is_some());
//! proofs.add_items(&target, now, now);
//! let proven: ProvenItems = proofs.proven_items(&target, now).expect("all of it");
//! assert_eq!(proven.items, target);
//!
//! let mut pairs = Pairs::default();
//! assert!(pairs.insert("a", 1) && pairs.insert("a", 2) && !pairs.insert("a", 1));
//! assert_eq!(pairs.take(&"a"), [1, 2]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod filters;
mod items;
mod members;
mod pairs;
mod proofs;
mod roots;
mod state;
mod threads;
mod user_relays;
mod versions;
mod waiters;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use crate::{RelayUrl, RepoId, ServiceIdentity, Version};
use nostr::key::PublicKey;
use nostr::nips::nip01::Coordinate;

pub use self::filters::{
    MAX_SHARED_VALUE_BYTES, RequestBudget, build_announcement_filter,
    build_layer2_and_layer3_filters, pack_requests, tagged_one_of_our_repo_event_filters,
    tagged_one_of_our_root_event_filters, tagged_with_a_coordinate_filters,
};

pub use self::proofs::{FilterHash, MAX_PROOFS, Proof, ProofSet, ProvenItems};
use self::state::Before;
pub use self::state::{CONFIRMED_RETENTION, History, RelayState, SyncDelta, compute_actions};
#[doc(no_inline)]
pub use crate::limits::ConnectionStatus;

pub use self::items::{
    PendingItems, RelaySyncNeeds, RepoSyncIndex, RepoSyncNeeds, SyncLevel, UserNeeds,
    derive_relay_targets,
};
use self::members::ThreadMembers;
pub use self::pairs::Pairs;
use self::roots::WaitingRoots;
pub use self::roots::{RootId, RootSet};
use self::threads::Threads;
use self::user_relays::UserRelays;
use self::versions::Versions;

/// A change of the events that our own relay stores or holds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
#[non_exhaustive]
pub enum IndexChange {
    /// A repository was announced. The greatest version replaces relays and level, in whichever order versions come; a
    /// served version replaces every held one.
    Announced {
        repo: RepoId,
        version: Version,
        /// All relays of the announcement, in the author's order; our own is ignored. If there are too many, the first
        /// are followed.
        relays: Vec<RelayUrl>,
        level: SyncLevel,
    },
    /// A version of an announcement that is not to be followed, because it does not list our own relay. It withdraws
    /// what lesser versions wanted.
    Unlisted {
        repo: RepoId,
        version: Version,
        level: SyncLevel,
    },
    /// A repository is no longer stored or held here. Any version may be announced afterwards.
    Retired { repo: RepoId },
    /// A root event was accepted.
    RootAdded {
        root: RootId,
        /// All repositories that it names.
        repos: Vec<RepoId>,
        /// Its author, if it is also wanted from their relays.
        author: Option<PublicKey>,
    },
    /// The relays of a user have changed: the roots of the user are wanted from these, too (GRASP-03). Replies are not.
    UserRelays {
        author: PublicKey,
        /// All of them; our own is ignored.
        relays: BTreeSet<RelayUrl>,
    },
    /// A reply was accepted. Answers to it may name nothing else, so they are requested by its id like those to roots;
    /// the number of replies per thread is limited. It is in the threads of all that it answers.
    Replied {
        reply: RootId,
        /// The roots and replies that it answers, in any order of arrival.
        to: Vec<RootId>,
    },
    /// An addressable or replaceable event of repositories was accepted. Events that refer to it may name only its
    /// coordinate, so they are requested by that; the number per repository is limited.
    MemberAdded {
        member: Coordinate,
        /// All repositories that it names.
        repos: Vec<RepoId>,
        /// Other addressable and replaceable events that it names, in any order of arrival.
        of: Vec<Coordinate>,
    },
    /// A root or reply was deleted or expired. Replies that answer nothing else are not wanted either, until it is
    /// accepted again.
    RootRemoved { root: RootId },
}

/// The wanted items by repository and by relay.
///
/// The view by relay always equals [`derive_relay_targets`] of [`Self::repos`] and [`Self::authors`], but a
/// change costs only items × relays of its repository or author. The view stores no roots; they are looked up in the
/// repositories, so that a root wanted from a hundred relays is stored once.
///
/// ```
/// use grasp_core::nostr::event::EventId;
/// use grasp_core::nostr::types::Timestamp;
/// use grasp_core::{RelayUrl, RepoId, Version};
/// use grasp_core::sync::{IndexChange, SyncIndex, SyncLevel};
///
/// let owner = "79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798";
/// let repo: RepoId = format!("30617:{owner}:grasp").parse()?;
/// let relay: RelayUrl = "wss://other.example".parse()?;
/// let mut index = SyncIndex::new("us.example".parse()?, []);
///
/// let id = EventId::from_byte_array([7; 32]);
/// let version = Version { created_at: Timestamp::from_secs(1_800_000_000), id };
/// let announced = |level| IndexChange::Announced {
///     repo: repo.clone(),
///     version,
///     relays: [relay.clone()].into(),
///     level,
/// };
/// let delta = index.apply([announced(SyncLevel::StateOnly)]);
/// assert!(delta.discovered.contains(&relay));
///
/// let delta = index.apply([announced(SyncLevel::Full)]);
/// assert_eq!(delta.added[&relay].repos[&repo], SyncLevel::Full);
///
/// let delta = index.apply([IndexChange::Retired { repo }]);
/// assert!(delta.retired.contains(&relay));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct SyncIndex {
    service: ServiceIdentity,
    bootstrap: BTreeSet<RelayUrl>,
    repos: RepoSyncIndex,
    versions: Versions,
    /// The repositories that list a relay. Includes every bootstrap relay, never our own.
    relays: BTreeMap<RelayUrl, BTreeSet<RepoId>>,
    /// The repositories of each root, announced or not.
    root_repos: Pairs<RootId, RepoId>,
    waiting_roots: WaitingRoots,
    threads: Threads,
    members: ThreadMembers,
    user_relays: UserRelays,
}

impl SyncIndex {
    /// Returns an index with only the bootstrap relays.
    pub fn new(service: ServiceIdentity, bootstrap: impl IntoIterator<Item = RelayUrl>) -> Self {
        let mut index = Self {
            service,
            relays: BTreeMap::new(),
            bootstrap: BTreeSet::new(),
            repos: RepoSyncIndex::new(),
            versions: Versions::default(),
            root_repos: Pairs::default(),
            waiting_roots: WaitingRoots::default(),
            threads: Threads::default(),
            members: ThreadMembers::default(),
            user_relays: UserRelays::default(),
        };
        index.set_bootstrap(bootstrap);
        index
    }

    /// Replaces the bootstrap relays. Returns those that were added or removed; our own relay is left out.
    pub fn set_bootstrap(
        &mut self,
        bootstrap: impl IntoIterator<Item = RelayUrl>,
    ) -> BTreeSet<RelayUrl> {
        let mut new: BTreeSet<RelayUrl> = bootstrap.into_iter().collect();
        new.retain(|relay| !self.service.is_own_url(relay.as_str()));
        let changed: BTreeSet<RelayUrl> =
            new.symmetric_difference(&self.bootstrap).cloned().collect();
        for relay in &new {
            self.relays.entry(relay.clone()).or_default();
        }
        self.relays
            .retain(|relay, repos| !repos.is_empty() || new.contains(relay));
        self.bootstrap = new;
        changed
    }

    /// Applies the changes in order, and returns the exact difference of the targets.
    pub fn apply(&mut self, changes: impl IntoIterator<Item = IndexChange>) -> SyncDelta {
        let mut before = Before::default();
        for change in changes {
            self.apply_change(change, &mut before);
        }
        before.compare(self)
    }

    /// Returns the wanted items by repository. Our own relay is not listed.
    pub fn repos(&self) -> &RepoSyncIndex {
        &self.repos
    }

    /// Returns the relays from which anything is wanted, and the bootstrap relays.
    pub fn relays(&self) -> impl Iterator<Item = &RelayUrl> {
        let named = self
            .user_relays
            .relays()
            .filter(|relay| !self.is_listed(relay));
        self.relays
            .keys()
            .chain(named.filter(|relay| self.is_named_by_user(relay)))
    }

    /// Returns whether anything is wanted from a relay, or it is a bootstrap relay.
    pub fn is_target(&self, relay: &RelayUrl) -> bool {
        self.is_listed(relay) || self.is_named_by_user(relay)
    }

    /// Returns whether a repository lists a relay, or it is a bootstrap relay. Of any other target only roots are wanted.
    pub fn is_listed(&self, relay: &RelayUrl) -> bool {
        self.relays.contains_key(relay)
    }

    /// Returns the number of different owners that list a relay. A single owner can name any number of relays, so this
    /// measures a relay's importance.
    pub fn owners_of(&self, relay: &RelayUrl) -> usize {
        self.owners(relay, None).count()
    }

    /// Returns the owners of the repositories that list a relay and are wanted at this level, or at any.
    pub fn owners(
        &self,
        relay: &RelayUrl,
        level: Option<SyncLevel>,
    ) -> impl Iterator<Item = PublicKey> {
        let is_it = move |one: &RepoSyncNeeds| level.is_none_or(|level| one.level == level);
        let listed = self.relays.get(relay).into_iter().flatten();
        let listed = listed.filter(move |repo| self.repos.get(*repo).is_some_and(is_it));
        // Repositories are in the order of their owners.
        let mut last = None;
        let owners = listed.map(|repo| repo.owner);
        owners.filter(move |owner| last.replace(*owner) != Some(*owner))
    }

    /// Returns whether a repository that is wanted in full lists the relay.
    pub fn is_wanted_in_full_from(&self, relay: &RelayUrl) -> bool {
        self.owners(relay, Some(SyncLevel::Full)).next().is_some()
    }

    /// Returns the repositories of a root, announced or not.
    pub fn repos_of(&self, root: &RootId) -> impl Iterator<Item = &RepoId> {
        self.root_repos.of(root)
    }

    /// Returns all items wanted from one relay; `None` if it is not a target.
    pub fn target(&self, relay: &RelayUrl) -> Option<RelaySyncNeeds> {
        if !self.is_target(relay) {
            return None;
        }
        let listed = self.relays.get(relay).into_iter().flatten();
        let entries: Vec<_> = listed
            .filter_map(|repo| self.repos.get_key_value(repo))
            .collect();
        // Coordinates are requested only of repositories that are wanted in full.
        let full = entries
            .iter()
            .filter(|(_, needs)| needs.level == SyncLevel::Full);
        let coordinates = full
            .flat_map(|(repo, _)| self.members.of(repo))
            .cloned()
            .collect();
        let mut needs = RelaySyncNeeds {
            coordinates,
            ..RelaySyncNeeds::of(&entries)
        };
        let users = self.user_relays.users(relay);
        let roots = users.flat_map(|user| self.wanted_roots_of(user));
        needs.root_events.include(&roots.copied().collect());
        Some(needs)
    }

    fn apply_change(&mut self, change: IndexChange, before: &mut Before) {
        match change {
            IndexChange::Announced {
                repo,
                version,
                relays,
                level,
            } => {
                if self.versions.follow(&repo, (level, version)) {
                    self.announced(repo, relays.into_iter().collect(), level, before);
                }
            }
            IndexChange::Unlisted {
                repo,
                version,
                level,
            } => {
                if self.versions.withdraw(&repo, (level, version)) {
                    self.retired(&repo, before);
                }
            }
            IndexChange::Retired { repo } => {
                self.versions.forget(&repo);
                self.retired(&repo, before);
            }
            IndexChange::RootAdded {
                root,
                repos,
                author,
            } => {
                if self.threads.is_reply(&root) {
                    // It is both, and more is asked for of a root.
                    self.root_removed(&root, before);
                }
                before.root(self, &root);
                let mut is_any_new = false;
                for repo in &repos {
                    is_any_new |= self.root_added(root, repo);
                }
                if let Some(author) = author {
                    self.authored(root, author, before);
                }
                if is_any_new {
                    self.join_replies(&root, before);
                }
            }
            IndexChange::UserRelays { author, relays } => {
                self.set_user_relays(author, relays, before);
            }
            IndexChange::Replied { reply, to } => self.replied(reply, to, before),
            IndexChange::MemberAdded { member, repos, of } => {
                self.member_added(member, repos, of, before);
            }
            IndexChange::RootRemoved { root } => self.root_removed(&root, before),
        }
    }

    fn announced(
        &mut self,
        repo: RepoId,
        mut relays: BTreeSet<RelayUrl>,
        level: SyncLevel,
        before: &mut Before,
    ) {
        // A relay in the view is known not to be our own, which saves parsing its address.
        let is_own = |relay: &RelayUrl| self.service.is_own_url(relay.as_str());
        relays.retain(|relay| self.relays.contains_key(relay) || !is_own(relay));
        let is_unchanged = |needs: &RepoSyncNeeds| needs.level == level && needs.relays == relays;
        if self.repos.get(&repo).is_some_and(is_unchanged) {
            return;
        }
        before.repo(self, &repo);
        let mut needs = self.repos.remove(&repo).unwrap_or_else(|| RepoSyncNeeds {
            root_events: self.waiting_roots.0.take(&repo).into_iter().collect(),
            ..RepoSyncNeeds::new(level, [])
        });
        for relay in relays.difference(&needs.relays) {
            before.relay(self, relay);
            self.relays
                .entry(relay.clone())
                .or_default()
                .insert(repo.clone());
        }
        for relay in needs.relays.difference(&relays) {
            self.remove_listing(relay, &repo, before);
        }
        needs.relays = relays;
        needs.level = level;
        self.repos.insert(repo, needs);
    }

    /// Removes a repository. Its roots are kept for a new announcement: our relay still has them and does not report
    /// them again.
    fn retired(&mut self, repo: &RepoId, before: &mut Before) {
        before.repo(self, repo);
        let Some(needs) = self.repos.remove(repo) else {
            return;
        };
        for relay in &needs.relays {
            self.remove_listing(relay, repo, before);
        }
        for root in needs.root_events {
            if !self.waiting_roots.add(repo, root) {
                self.root_repos.remove(&root, repo);
                if self.root_repos.of(&root).next().is_none() {
                    self.root_removed(&root, before);
                }
            }
        }
    }

    /// Adds a root or reply to a repository, announced or not; returns whether it is new there.
    fn root_added(&mut self, root: RootId, repo: &RepoId) -> bool {
        if let Some((known, needs)) = self.repos.range_mut(repo..=repo).next() {
            needs.root_events.insert(root);
            // Clones the id in the index, which is shared; the id that came with the root would be one more copy.
            return self.root_repos.insert(root, known.clone());
        }
        self.waiting_roots.add(repo, root) && self.root_repos.insert(root, repo.clone())
    }

    fn remove_listing(&mut self, relay: &RelayUrl, repo: &RepoId, before: &mut Before) {
        before.relay(self, relay);
        let Some(listed) = self.relays.get_mut(relay) else {
            return;
        };
        listed.remove(repo);
        if listed.is_empty() && !self.bootstrap.contains(relay) {
            self.relays.remove(relay);
        }
    }

    /// Returns the roots of a repository, announced or not.
    fn roots_of(&self, repo: &RepoId) -> impl Iterator<Item = &RootId> {
        let announced = self
            .repos
            .get(repo)
            .into_iter()
            .flat_map(|needs| &needs.root_events);
        announced.chain(self.waiting_roots.0.of(repo))
    }

    /// Returns the relays from which a root is wanted: those of its repositories, and those of its author.
    fn wanted_from(&self, root: &RootId) -> Cow<'_, BTreeSet<RelayUrl>> {
        let mut relays = self.relays_of(self.root_repos.of(root));
        let of_author = self
            .user_relays
            .relays_for(root)
            .filter(|_| self.is_wanted(root));
        if let Some(of_author) = of_author {
            relays.to_mut().extend(of_author.iter().cloned());
        }
        relays
    }

    /// Returns the relays from which events that refer to a coordinate are wanted.
    fn member_wanted_from(&self, member: &Coordinate) -> Cow<'_, BTreeSet<RelayUrl>> {
        self.relays_of(self.members.repos_of(member))
    }

    /// Returns the relays of those repositories that are wanted in full.
    fn relays_of<'a>(
        &'a self,
        repos: impl Iterator<Item = &'a RepoId>,
    ) -> Cow<'a, BTreeSet<RelayUrl>> {
        let needs = repos.filter_map(|repo| self.repos.get(repo));
        let mut wanting = needs.filter(|needs| needs.level == SyncLevel::Full);
        let Some(first) = wanting.next() else {
            return Cow::default();
        };
        let mut relays = Cow::Borrowed(&first.relays);
        for needs in wanting {
            relays.to_mut().extend(needs.relays.iter().cloned());
        }
        relays
    }
}

#[cfg(test)]
mod tests;
