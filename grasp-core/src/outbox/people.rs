//! The users who take part in served repositories, and the threads that they take part in.

use std::collections::{BTreeMap, BTreeSet};

use nostr::event::EventId;
use nostr::key::PublicKey;
use nostr::nips::nip01::Coordinate;
use nostr::types::Timestamp;

use super::waiting::{Descendant, WaitingEvents};
use super::{Fact, Named};
use crate::{RepoId, Version};

/// Maximum number of authors; the last of them only for owners.
const MAX_AUTHORS: usize = 20_000;
/// Authors above which only owners are added.
const MAX_MAINTAINERS: usize = 18_000;
/// Authors above which only owners and listed maintainers are added.
const MAX_PARTICIPANTS: usize = 16_000;
/// Maximum number of threads that only repositories have which are not served.
const MAX_WAITING_THREADS: usize = 100_000;

/// A thread: a root and the events below it. Numbered in the order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadNo(u32);

/// The users who take part in served repositories (GRASP-03): owners and listed maintainers, authors of roots, and
/// authors of events below these. Nobody else.
///
/// An event belongs to one thread, that of the first event it names which is known. [`apply`](Self::apply) returns the
/// users who may have joined, left or changed what they are asked for, so that a change costs nothing for others.
///
/// ```
/// use grasp_core::outbox::{Fact, People};
/// use grasp_core::{RepoId, Version};
/// use nostr::event::EventId;
/// use nostr::types::Timestamp;
///
/// let owner = "79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798";
/// let repo: RepoId = format!("30617:{owner}:grasp").parse()?;
/// let version = Version { created_at: Timestamp::from_secs(7), id: EventId::from_byte_array([7; 32]) };
/// let maintainers = [repo.owner].into();
/// let mut people = People::default();
///
/// let changed = people.apply(Fact::Announced { repo: repo.clone(), version, maintainers });
/// assert!(changed.contains(&repo.owner) && people.is_eligible(&repo.owner));
///
/// people.apply(Fact::Retired { repo: repo.clone() });
/// assert!(!people.is_eligible(&repo.owner));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct People {
    repos: BTreeMap<RepoId, Repo>,
    threads: BTreeMap<ThreadNo, Thread>,
    /// The thread of each root and descendant.
    thread_of: BTreeMap<EventId, ThreadNo>,
    thread_of_coordinate: BTreeMap<Box<Coordinate>, ThreadNo>,
    authors: BTreeMap<PublicKey, Eligibility>,
    waiting: WaitingEvents,
    /// The number of threads without a served repository.
    unserved: usize,
    arrivals: u32,
    changed: BTreeSet<PublicKey>,
}

/// A repository that is served, or that a root names.
#[derive(Clone, Debug, Default)]
struct Repo {
    /// The announcement, if it is served.
    version: Option<Version>,
    maintainers: BTreeSet<PublicKey>,
    threads: BTreeSet<ThreadNo>,
}

#[derive(Clone, Debug)]
struct Thread {
    root: EventId,
    author: PublicKey,
    at: Timestamp,
    repos: Box<[RepoId]>,
    descendants: Vec<(EventId, PublicKey)>,
    /// The coordinates of descendants that have one.
    coordinates: Vec<(EventId, Box<Coordinate>)>,
}

impl Thread {
    fn has_author(&self, author: &PublicKey) -> bool {
        self.author == *author || self.descendants.iter().any(|(_, by)| by == author)
    }

    fn authors(&self) -> BTreeSet<PublicKey> {
        let descendants = self.descendants.iter().map(|(_, author)| *author);
        descendants.chain([self.author]).collect()
    }
}

/// What makes an author eligible.
#[derive(Clone, Debug, Default)]
struct Eligibility {
    /// Threads of served repositories that it takes part in with their dates, sorted; most authors have few.
    threads: Vec<(u32, ThreadNo)>,
    /// Served repositories that it owns or maintains.
    repos: BTreeSet<RepoId>,
}

impl People {
    /// Events below one root by which users take part.
    pub const MAX_DESCENDANTS: usize = 500;
    /// Threads per author that are asked for, the newest.
    pub const MAX_THREADS_PER_AUTHOR: usize = 256;

    /// Applies a fact. Returns the users for whom anything may have changed that decides whether they are asked for, or
    /// by what.
    pub fn apply(&mut self, fact: Fact) -> BTreeSet<PublicKey> {
        match fact {
            Fact::Announced {
                repo,
                version,
                maintainers,
            } => self.announced(repo, version, maintainers),
            Fact::Retired { repo } => self.retired(&repo),
            Fact::Root {
                id,
                author,
                at,
                repos,
            } => self.root_added(id, author, at, repos),
            Fact::Descendant {
                id,
                author,
                coordinate,
                names,
            } => {
                let event = Descendant {
                    id,
                    author,
                    coordinate,
                };
                self.descendant_added(event, names);
            }
            Fact::Removed { id } => self.removed(&id),
        }
        std::mem::take(&mut self.changed)
    }

    /// Returns the number of eligible authors.
    pub fn len(&self) -> usize {
        self.authors.len()
    }

    /// Returns whether nobody is eligible.
    pub fn is_empty(&self) -> bool {
        self.authors.is_empty()
    }

    /// Returns whether a user takes part in a served repository.
    pub fn is_eligible(&self, author: &PublicKey) -> bool {
        self.authors.contains_key(author)
    }

    /// Returns whether a user has begun a thread of a served repository.
    pub fn has_root(&self, author: &PublicKey) -> bool {
        let threads = self.authors.get(author).into_iter();
        let mut threads = threads.flat_map(|author| author.threads.iter().rev());
        threads.any(|(_, number)| {
            let thread = self.threads.get(number);
            thread.is_some_and(|thread| thread.author == *author)
        })
    }

    /// Returns the newest threads that a user takes part in, up to [`Self::MAX_THREADS_PER_AUTHOR`].
    pub fn threads_of(&self, author: &PublicKey) -> impl Iterator<Item = ThreadNo> {
        let threads = self.authors.get(author).into_iter();
        let threads = threads.flat_map(|author| author.threads.iter().rev());
        threads
            .take(Self::MAX_THREADS_PER_AUTHOR)
            .map(|(_, number)| *number)
    }

    /// Returns the served repositories that a user owns or maintains.
    pub fn maintained_by(&self, author: &PublicKey) -> impl Iterator<Item = &RepoId> {
        let repos = self.authors.get(author).into_iter();
        repos.flat_map(|author| &author.repos)
    }

    /// Returns the threads of a repository after this one, in the order of their numbers.
    pub fn threads_of_repo(
        &self,
        repo: &RepoId,
        after: Option<ThreadNo>,
    ) -> impl Iterator<Item = ThreadNo> {
        let from = after.map_or(0, |after| after.0.saturating_add(1));
        let repo = self.repos.get(repo).into_iter();
        repo.flat_map(move |repo| repo.threads.range(ThreadNo(from)..))
            .copied()
    }

    /// Returns the root of a thread.
    pub fn root(&self, thread: ThreadNo) -> Option<EventId> {
        self.threads.get(&thread).map(|thread| thread.root)
    }

    /// Returns the events below the root of a thread.
    pub fn descendants(&self, thread: ThreadNo) -> impl Iterator<Item = EventId> {
        let thread = self.threads.get(&thread).into_iter();
        thread.flat_map(|thread| thread.descendants.iter().map(|(id, _)| *id))
    }

    /// Returns the coordinates of events below the root of a thread.
    pub fn coordinates(&self, thread: ThreadNo) -> impl Iterator<Item = &Coordinate> {
        let thread = self.threads.get(&thread).into_iter();
        thread.flat_map(|thread| thread.coordinates.iter().map(|(_, at)| &**at))
    }

    fn announced(&mut self, repo: RepoId, version: Version, maintainers: BTreeSet<PublicKey>) {
        let known = self.repos.entry(repo.clone()).or_default();
        if known.version >= Some(version) {
            return;
        }
        let was_served = known.version.replace(version).is_some();
        let before = std::mem::replace(&mut known.maintainers, maintainers.clone());
        for author in before.difference(&maintainers) {
            self.stop_maintaining(author, &repo);
        }
        for author in maintainers.difference(&before) {
            self.start_maintaining(*author, &repo);
        }
        if !was_served {
            for number in self.threads_in(&repo) {
                if self.served_repos(number) == 1 {
                    self.unserved = self.unserved.saturating_sub(1);
                    self.join_all(number);
                }
            }
        }
    }

    fn retired(&mut self, repo: &RepoId) {
        let Some(known) = self.repos.get_mut(repo) else {
            return;
        };
        if known.version.take().is_none() {
            return;
        }
        for author in std::mem::take(&mut known.maintainers) {
            self.stop_maintaining(&author, repo);
        }
        for number in self.threads_in(repo) {
            if self.served_repos(number) == 0 {
                self.unserved += 1;
                self.leave_all(number);
            }
        }
        self.forget_if_unused(repo);
    }

    fn root_added(&mut self, id: EventId, author: PublicKey, at: Timestamp, repos: Vec<RepoId>) {
        let is_served = repos.iter().any(|repo| self.is_served(repo));
        if self.thread_of.contains_key(&id) || (!is_served && self.unserved >= MAX_WAITING_THREADS)
        {
            return;
        }
        self.waiting.remove(&id);
        let number = ThreadNo(self.arrivals);
        self.arrivals = self.arrivals.saturating_add(1);
        for repo in &repos {
            let repo = self.repos.entry(repo.clone()).or_default();
            repo.threads.insert(number);
        }
        // Those of the index, whose texts are shared.
        let repos = repos
            .iter()
            .filter_map(|repo| self.repos.get_key_value(repo));
        let repos = repos.map(|(repo, _)| repo.clone()).collect();
        self.thread_of.insert(id, number);
        let thread = Thread {
            root: id,
            author,
            at,
            repos,
            descendants: Vec::new(),
            coordinates: Vec::new(),
        };
        self.threads.insert(number, thread);
        if is_served {
            self.join(author, number, at);
        } else {
            self.unserved += 1;
        }
        self.add_waiting(number, vec![Named::Event(id)]);
    }

    fn descendant_added(&mut self, event: Descendant, names: Vec<Named>) {
        if self.thread_of.contains_key(&event.id) {
            return;
        }
        match names.iter().find_map(|name| self.thread_of(name)) {
            Some(number) => self.attach(number, event),
            None => self.waiting.add(event, names),
        }
    }

    fn thread_of(&self, name: &Named) -> Option<ThreadNo> {
        match name {
            Named::Event(id) => self.thread_of.get(id).copied(),
            Named::Coordinate(at) => self.thread_of_coordinate.get(at).copied(),
        }
    }

    /// Adds an event to a thread, and those that wait for it.
    fn attach(&mut self, number: ThreadNo, event: Descendant) {
        let id = event.id;
        let coordinate = event.coordinate.clone();
        if self.attach_one(number, event) {
            let coordinate = coordinate.map(Named::Coordinate);
            let names = coordinate.into_iter().chain([Named::Event(id)]);
            self.add_waiting(number, names.collect());
        }
    }

    /// Adds the events that wait for these names, and those that wait for them.
    fn add_waiting(&mut self, number: ThreadNo, mut names: Vec<Named>) {
        while let Some(name) = names.pop() {
            for event in self.waiting.take_for(&name) {
                let id = event.id;
                let coordinate = event.coordinate.clone();
                if self.attach_one(number, event) {
                    names.push(Named::Event(id));
                    names.extend(coordinate.map(Named::Coordinate));
                }
            }
        }
    }

    /// Adds an event to a thread; false if that has too many.
    fn attach_one(&mut self, number: ThreadNo, event: Descendant) -> bool {
        let Some(thread) = self.threads.get_mut(&number) else {
            return false;
        };
        if thread.descendants.len() >= Self::MAX_DESCENDANTS {
            return false;
        }
        // Most threads are short.
        thread.descendants.reserve_exact(1);
        thread.descendants.push((event.id, event.author));
        let at = thread.at;
        self.thread_of.insert(event.id, number);
        if let Some(coordinate) = event.coordinate {
            // Two versions may be here for a moment; that which arrives last is the newer one.
            thread.coordinates.push((event.id, coordinate.clone()));
            self.thread_of_coordinate.insert(coordinate, number);
        }
        if self.served_repos(number) > 0 {
            self.join(event.author, number, at);
        }
        true
    }

    fn removed(&mut self, id: &EventId) {
        self.waiting.remove(id);
        let Some(number) = self.thread_of.remove(id) else {
            return;
        };
        let Some(thread) = self.threads.get_mut(&number) else {
            return;
        };
        if thread.root == *id {
            return self.remove_thread(number);
        }
        let Some(at) = thread.descendants.iter().position(|(one, _)| one == id) else {
            return;
        };
        let (_, author) = thread.descendants.remove(at);
        let is_its = |(one, _): &(EventId, Box<Coordinate>)| one == id;
        let coordinate = thread.coordinates.iter().position(is_its);
        if let Some(coordinate) = coordinate.map(|at| thread.coordinates.remove(at).1) {
            if !thread.coordinates.iter().any(|(_, one)| *one == coordinate) {
                self.forget_coordinate(&coordinate, number);
            }
        }
        if !self.has_author(number, &author) {
            self.leave(&author, number);
        }
    }

    fn has_author(&self, number: ThreadNo, author: &PublicKey) -> bool {
        let thread = self.threads.get(&number);
        thread.is_some_and(|thread| thread.has_author(author))
    }

    /// Removes a coordinate, unless a later version belongs to another thread.
    fn forget_coordinate(&mut self, at: &Coordinate, number: ThreadNo) {
        if self.thread_of_coordinate.get(at) == Some(&number) {
            self.thread_of_coordinate.remove(at);
        }
    }

    fn remove_thread(&mut self, number: ThreadNo) {
        if self.served_repos(number) == 0 {
            self.unserved = self.unserved.saturating_sub(1);
        }
        self.leave_all(number);
        let Some(thread) = self.threads.remove(&number) else {
            return;
        };
        for (id, _) in thread.descendants {
            self.thread_of.remove(&id);
        }
        for (_, at) in thread.coordinates {
            self.forget_coordinate(&at, number);
        }
        for repo in &thread.repos {
            if let Some(known) = self.repos.get_mut(repo) {
                known.threads.remove(&number);
            }
            self.forget_if_unused(repo);
        }
    }

    fn is_served(&self, repo: &RepoId) -> bool {
        let repo = self.repos.get(repo);
        repo.is_some_and(|repo| repo.version.is_some())
    }

    /// Returns the number of served repositories that a thread belongs to.
    fn served_repos(&self, number: ThreadNo) -> usize {
        let thread = self.threads.get(&number).into_iter();
        let repos = thread.flat_map(|thread| &thread.repos);
        repos.filter(|repo| self.is_served(repo)).count()
    }

    fn threads_in(&self, repo: &RepoId) -> Vec<ThreadNo> {
        self.threads_of_repo(repo, None).collect()
    }

    fn forget_if_unused(&mut self, repo: &RepoId) {
        let known = self.repos.get(repo);
        if known.is_some_and(|known| known.version.is_none() && known.threads.is_empty()) {
            self.repos.remove(repo);
        }
    }

    fn join_all(&mut self, number: ThreadNo) {
        let Some(thread) = self.threads.get(&number) else {
            return;
        };
        let at = thread.at;
        for author in thread.authors() {
            self.join(author, number, at);
        }
    }

    fn leave_all(&mut self, number: ThreadNo) {
        let thread = self.threads.get(&number);
        for author in thread.map(Thread::authors).unwrap_or_default() {
            self.leave(&author, number);
        }
    }

    /// Lets an author take part in a thread of a served repository.
    fn join(&mut self, author: PublicKey, number: ThreadNo, at: Timestamp) {
        if self.authors.len() >= MAX_PARTICIPANTS && !self.authors.contains_key(&author) {
            return;
        }
        let begins = self.begins(&author, number);
        let threads = &mut self.authors.entry(author).or_default().threads;
        let Err(position) = threads.binary_search(&(date(at), number)) else {
            return;
        };
        let is_first = threads.is_empty();
        threads.insert(position, (date(at), number));
        if is_first || begins {
            self.changed.insert(author);
        }
    }

    fn leave(&mut self, author: &PublicKey, number: ThreadNo) {
        let at = self.threads.get(&number).map(|thread| thread.at);
        let begins = self.begins(author, number);
        let Some((known, at)) = self.authors.get_mut(author).zip(at) else {
            return;
        };
        let Ok(position) = known.threads.binary_search(&(date(at), number)) else {
            return;
        };
        known.threads.remove(position);
        let was_last = known.threads.is_empty();
        if was_last && known.repos.is_empty() {
            self.authors.remove(author);
        }
        if was_last || begins {
            self.changed.insert(*author);
        }
    }

    fn begins(&self, author: &PublicKey, number: ThreadNo) -> bool {
        let thread = self.threads.get(&number);
        thread.is_some_and(|thread| thread.author == *author)
    }

    fn start_maintaining(&mut self, author: PublicKey, repo: &RepoId) {
        // An owner comes in where others' announcements have filled the rest.
        let most = if repo.owner == author {
            MAX_AUTHORS
        } else {
            MAX_MAINTAINERS
        };
        if self.authors.len() >= most && !self.authors.contains_key(&author) {
            return;
        }
        let known = self.authors.entry(author).or_default();
        known.repos.insert(repo.clone());
        self.changed.insert(author);
    }

    fn stop_maintaining(&mut self, author: &PublicKey, repo: &RepoId) {
        let Some(known) = self.authors.get_mut(author) else {
            return;
        };
        known.repos.remove(repo);
        if known.threads.is_empty() && known.repos.is_empty() {
            self.authors.remove(author);
        }
        self.changed.insert(*author);
    }
}

/// Returns a date in few bytes; the order is what matters.
fn date(at: Timestamp) -> u32 {
    u32::try_from(at.as_secs()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
