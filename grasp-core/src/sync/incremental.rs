//! The same targets as from scratch, at the price of each change.

mod delta;
mod members;
mod owners;
mod threads;
mod waiters;
mod waiting;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use nostr::key::PublicKey;
use nostr::nips::nip01::Coordinate;

use self::delta::Before;
pub use self::delta::SyncDelta;
use self::members::Members;
use self::owners::Owners;
use self::threads::Threads;
use self::waiting::WaitingRoots;
use super::index::{RelaySyncNeeds, RepoSyncIndex, RepoSyncNeeds, SyncLevel};
use super::root::RootId;
use crate::{RelayUrl, RepoId, ServiceIdentity};

/// Something our own relay has accepted, held, released or dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IndexChange {
    /// A repository was announced, or announced anew: relays and level replace what was there.
    Announced {
        /// Which one.
        repo: RepoId,
        /// All relays of the announcement; ours among them does no harm.
        relays: BTreeSet<RelayUrl>,
        /// How much of it is wanted.
        level: SyncLevel,
    },
    /// A repository is no longer ours to keep.
    Retired {
        /// Which one.
        repo: RepoId,
    },
    /// A root event was accepted.
    RootAdded {
        /// The event.
        root: RootId,
        /// All repositories that it names.
        repos: Vec<RepoId>,
    },
    /// A reply was accepted. Whatever answers it may name nothing else, so it is asked for as roots are; so many
    /// of a thread, and no more.
    Replied {
        /// The event.
        reply: RootId,
        /// What it answers: roots and replies, in any order of arrival.
        to: Vec<RootId>,
    },
    /// An addressable or replaceable event was accepted that belongs to repositories. What hangs on it may name nothing
    /// but its coordinate, so it is asked for by that; so many of a repository, and no more.
    MemberAdded {
        /// Its coordinate.
        member: Coordinate,
        /// All repositories that it names.
        repos: Vec<RepoId>,
        /// Other addressable and replaceable events that it names, in any order of arrival.
        of: Vec<Coordinate>,
    },
    /// A root event or a reply was deleted, or expired.
    RootRemoved {
        /// The event.
        root: RootId,
    },
}

/// What we want, by repository and by relay, kept in step.
///
/// Its per-relay view is at any moment what [`derive_relay_targets`](super::derive_relay_targets) would say of
/// [`Self::repos`], yet a change costs only what it touches: items × relays per repository. The view holds no
/// roots of its own; they are looked up through the repositories, so that a root wanted from a hundred relays
/// is stored once.
///
/// ```
/// use grasp_core::{RelayUrl, RepoId};
/// use grasp_core::sync::{IndexChange, SyncIndex, SyncLevel};
///
/// let owner = "79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798";
/// let repo: RepoId = format!("30617:{owner}:grasp").parse()?;
/// let relay: RelayUrl = "wss://other.example".parse()?;
/// let mut index = SyncIndex::new("us.example".parse()?, []);
///
/// let announced = |level| IndexChange::Announced {
///     repo: repo.clone(),
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
    own: ServiceIdentity,
    bootstrap: BTreeSet<RelayUrl>,
    repos: RepoSyncIndex,
    /// Who lists a relay. Bootstrap relays stay, listed or not; we are never among them.
    relays: BTreeMap<RelayUrl, BTreeSet<RepoId>>,
    /// Whose root an event is, announced repository or not.
    owners: Owners,
    waiting: WaitingRoots,
    threads: Threads,
    members: Members,
}

impl SyncIndex {
    /// An index of nothing but the bootstrap relays.
    pub fn new(own: ServiceIdentity, bootstrap: impl IntoIterator<Item = RelayUrl>) -> Self {
        let bootstrap: BTreeSet<_> =
            bootstrap.into_iter().filter(|relay| !own.is_us(relay.as_str())).collect();
        Self {
            own,
            relays: bootstrap.iter().map(|relay| (relay.clone(), BTreeSet::new())).collect(),
            bootstrap,
            repos: RepoSyncIndex::new(),
            owners: Owners::default(),
            waiting: WaitingRoots::default(),
            threads: Threads::default(),
            members: Members::default(),
        }
    }

    /// Makes the changes, in order, and tells exactly what they did to the targets as a whole.
    pub fn apply(&mut self, changes: impl IntoIterator<Item = IndexChange>) -> SyncDelta {
        let mut before = Before::default();
        for change in changes {
            self.make(change, &mut before);
        }
        before.compare(self)
    }

    /// Everything wanted, by repository. Our own relay is listed nowhere.
    pub fn repos(&self) -> &RepoSyncIndex {
        &self.repos
    }

    /// The relays that anything is wanted from, and the bootstrap relays.
    pub fn relays(&self) -> impl Iterator<Item = &RelayUrl> {
        self.relays.keys()
    }

    /// How many different owners list a relay: one of them alone can name any number of relays, and make none of them
    /// important.
    pub fn owners_of(&self, relay: &RelayUrl) -> usize {
        let mut last = None;
        let listed = self.relays.get(relay).into_iter().flatten();
        listed.filter(|repo| last.replace(repo.owner) != Some(repo.owner)).count()
    }

    /// Returns the owners of the repositories that list a relay and are wanted at this level.
    pub fn owners(&self, relay: &RelayUrl, level: SyncLevel) -> impl Iterator<Item = PublicKey> {
        let listed = self.relays.get(relay).into_iter().flatten();
        let listed = listed
            .filter(move |repo| self.repos.get(*repo).is_some_and(|needs| needs.level == level));
        // Repositories are in the order of their owners.
        let mut last = None;
        let owners = listed.map(|repo| repo.owner);
        owners.filter(move |owner| last.replace(*owner) != Some(*owner))
    }

    /// Whether a repository lists a relay that is wanted in full.
    pub fn is_wanted_in_full_from(&self, relay: &RelayUrl) -> bool {
        let mut listed = self.relays.get(relay).into_iter().flatten();
        listed.any(|repo| self.repos.get(repo).is_some_and(|one| one.level == SyncLevel::Full))
    }

    /// The repositories that a root belongs to, announced or not.
    pub fn repos_of(&self, root: &RootId) -> impl Iterator<Item = &RepoId> {
        self.owners.of(root)
    }

    /// Everything wanted from one relay, written out; `None` if it is no target.
    pub fn target(&self, relay: &RelayUrl) -> Option<RelaySyncNeeds> {
        let listed = self.relays.get(relay)?.iter();
        let entries: Vec<_> = listed.filter_map(|repo| self.repos.get_key_value(repo)).collect();
        let roots = entries.iter().flat_map(|(_, needs)| needs.wanted_roots());
        Some(RelaySyncNeeds {
            root_events: roots.copied().collect(),
            coordinates: self.members_of(&entries),
            repos: entries.into_iter().map(|(repo, needs)| (repo.clone(), needs.level)).collect(),
        })
    }

    /// The coordinates to ask about: none of repositories of which only states are wanted.
    fn members_of(&self, entries: &[(&RepoId, &RepoSyncNeeds)]) -> BTreeSet<Coordinate> {
        let full = entries.iter().filter(|(_, needs)| needs.level == SyncLevel::Full);
        full.flat_map(|(repo, _)| self.members.of(repo)).cloned().collect()
    }

    fn make(&mut self, change: IndexChange, before: &mut Before) {
        match change {
            IndexChange::Announced { repo, relays, level } => {
                self.announced(repo, relays, level, before)
            }
            IndexChange::Retired { repo } => self.retired(&repo, before),
            IndexChange::RootAdded { root, repos } => {
                before.root(self, &root);
                for repo in &repos {
                    self.root_added(root, repo);
                }
                self.join_waiting(root, root, before);
            }
            IndexChange::Replied { reply, to } => match to.iter().find_map(|to| self.thread_of(to))
            {
                Some(root) => self.join(root, reply, before),
                None => self.threads.wait(reply, to),
            },
            IndexChange::MemberAdded { member, repos, of } => {
                self.member_added(member, repos, of, before);
            }
            IndexChange::RootRemoved { root } => {
                before.root(self, &root);
                self.root_removed(&root);
                self.threads.leave(&root);
            }
        }
    }

    fn announced(
        &mut self,
        repo: RepoId,
        mut relays: BTreeSet<RelayUrl>,
        level: SyncLevel,
        before: &mut Before,
    ) {
        relays.retain(|relay| self.is_foreign(relay));
        let said = |needs: &RepoSyncNeeds| needs.level == level && needs.relays == relays;
        if self.repos.get(&repo).is_some_and(said) {
            return;
        }
        before.repo(self, &repo);
        let mut needs = self.repos.remove(&repo).unwrap_or_else(|| RepoSyncNeeds {
            root_events: self.waiting.take(&repo),
            ..RepoSyncNeeds::new(level, [])
        });
        for relay in relays.difference(&needs.relays) {
            self.list(relay, &repo, before);
        }
        for relay in needs.relays.difference(&relays) {
            self.unlist(relay, &repo, before);
        }
        needs.relays = relays;
        needs.level = level;
        self.repos.insert(repo, needs);
    }

    /// Its roots wait for a new announcement: our relay still has them and will not tell us again.
    fn retired(&mut self, repo: &RepoId, before: &mut Before) {
        before.repo(self, repo);
        let Some(needs) = self.repos.remove(repo) else {
            return;
        };
        for relay in &needs.relays {
            self.unlist(relay, repo, before);
        }
        for root in needs.root_events {
            if !self.waiting.add(repo, root) {
                self.owners.remove(&root, repo);
            }
        }
    }

    fn root_added(&mut self, root: RootId, repo: &RepoId) {
        match self.repos.range_mut(repo..=repo).next() {
            // The name in the index is shared; the one that came with the root would be one more copy.
            Some((known, needs)) => {
                needs.root_events.insert(root);
                self.owners.add(root, known.clone());
            }
            None if self.waiting.add(repo, root) => self.owners.add(root, repo.clone()),
            None => {}
        }
    }

    fn root_removed(&mut self, root: &RootId) {
        for repo in self.owners.take(root) {
            match self.repos.get_mut(&repo) {
                Some(needs) => _ = needs.root_events.remove(root),
                None => self.waiting.remove(&repo, root),
            }
        }
    }

    /// The root of the thread that an event is in, if it is one of ours.
    fn thread_of(&self, event: &RootId) -> Option<RootId> {
        let is_root = || self.owners.of(event).next().map(|_| *event);
        self.threads.root_of(event).or_else(is_root)
    }

    /// A reply is wanted from wherever the root of its thread is.
    fn join(&mut self, root: RootId, reply: RootId, before: &mut Before) {
        let reply = reply.as_reply();
        if self.thread_of(&reply).is_some() || !self.threads.join(root, reply) {
            return;
        }
        before.root(self, &reply);
        let repos: Vec<RepoId> = self.owners.of(&root).cloned().collect();
        for repo in &repos {
            self.root_added(reply, repo);
        }
        self.join_waiting(root, reply, before);
    }

    /// What answered an event before it was told of follows it into its thread.
    fn join_waiting(&mut self, root: RootId, to: RootId, before: &mut Before) {
        let mut open = self.threads.take_waiting(&to);
        while let Some(reply) = open.pop_first() {
            if self.thread_of(&root).is_some() {
                self.join(root, reply, before);
            }
        }
    }

    /// A member belongs to the repositories that it names, and to those of the members that it names.
    fn member_added(
        &mut self,
        member: Coordinate,
        mut repos: Vec<RepoId>,
        of: Vec<Coordinate>,
        before: &mut Before,
    ) {
        for named in of {
            match self.members.contains(&named) {
                true => repos.extend(self.members.repos_of(&named).cloned()),
                false => self.members.wait(named, member.clone()),
            }
        }
        let mut open = vec![(member, repos)];
        while let Some((member, repos)) = open.pop() {
            before.member(self, &member);
            // What is known already hands nothing on, so that two that name each other come to an end.
            let new = repos.into_iter().filter(|repo| self.members.add(&member, repo));
            let new: Vec<RepoId> = new.collect();
            if !new.is_empty() {
                let waiting = self.members.take_waiting(&member).into_iter();
                open.extend(waiting.map(|by| (by, new.clone())));
            }
        }
    }

    fn list(&mut self, relay: &RelayUrl, repo: &RepoId, before: &mut Before) {
        before.relay(self, relay);
        let listed = self.relays.entry(relay.clone()).or_default();
        listed.insert(repo.clone());
    }

    fn unlist(&mut self, relay: &RelayUrl, repo: &RepoId, before: &mut Before) {
        before.relay(self, relay);
        let Some(listed) = self.relays.get_mut(relay) else {
            return;
        };
        listed.remove(repo);
        if listed.is_empty() && !self.bootstrap.contains(relay) {
            self.relays.remove(relay);
        }
    }

    /// A relay in the view is known not to be us, which spares parsing its address again.
    fn is_foreign(&self, relay: &RelayUrl) -> bool {
        self.relays.contains_key(relay) || !self.own.is_us(relay.as_str())
    }

    /// The roots of a repository, announced or not.
    fn roots_of(&self, repo: &RepoId) -> impl Iterator<Item = &RootId> {
        let announced = self.repos.get(repo).map(|needs| &needs.root_events);
        announced.or_else(|| self.waiting.of(repo)).into_iter().flatten()
    }

    /// The relays that a root is wanted from.
    fn wanted_from(&self, root: &RootId) -> Cow<'_, BTreeSet<RelayUrl>> {
        self.relays_of(self.owners.of(root))
    }

    /// The relays that what hangs on a coordinate is wanted from.
    fn member_wanted_from(&self, member: &Coordinate) -> Cow<'_, BTreeSet<RelayUrl>> {
        self.relays_of(self.members.repos_of(member))
    }

    /// The relays of these repositories, as far as they are wanted in full.
    fn relays_of<'a>(
        &'a self,
        repos: impl Iterator<Item = &'a RepoId>,
    ) -> Cow<'a, BTreeSet<RelayUrl>> {
        let owners = repos.filter_map(|repo| self.repos.get(repo));
        let mut wanting = owners.filter(|needs| needs.level == SyncLevel::Full);
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
