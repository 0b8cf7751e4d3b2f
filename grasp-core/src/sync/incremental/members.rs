//! Addressable and replaceable events that belong to repositories, by coordinate.

use std::collections::{BTreeMap, BTreeSet};

use nostr::key::PublicKey;
use nostr::nips::nip01::Coordinate;

use super::waiters::Waiters;
use crate::RepoId;

/// Coordinates followed for one repository; as many as replies of one thread.
pub(super) const MAX_PER_REPO: usize = 500;
/// Repositories that one coordinate is followed for.
const MAX_REPOS: usize = 8;
/// Coordinates in all, those of repositories that nobody has announced included.
const MAX_MEMBERS: usize = 50_000;
/// Coordinates that may wait for the member they name. Of more, those of the author that has most give way.
const MAX_WAITING: usize = 10_000;

/// Which coordinates belong to which repository, announced or not.
#[derive(Clone, Debug)]
pub(super) struct Members {
    repos: BTreeMap<Coordinate, BTreeSet<RepoId>>,
    by_repo: BTreeMap<RepoId, BTreeSet<Coordinate>>,
    /// What names a coordinate that is no member yet, by the author of what names it.
    waiting: Waiters<Coordinate, Coordinate, PublicKey>,
}

impl Default for Members {
    fn default() -> Self {
        let (repos, by_repo) = (BTreeMap::new(), BTreeMap::new());
        Self { repos, by_repo, waiting: Waiters::new(MAX_WAITING) }
    }
}

impl Members {
    /// Whether a coordinate is a member of any repository.
    pub(super) fn contains(&self, member: &Coordinate) -> bool {
        self.repos.contains_key(member)
    }

    pub(super) fn repos_of(&self, member: &Coordinate) -> impl Iterator<Item = &RepoId> {
        self.repos.get(member).into_iter().flatten()
    }

    pub(super) fn of(&self, repo: &RepoId) -> impl Iterator<Item = &Coordinate> {
        self.by_repo.get(repo).into_iter().flatten()
    }

    /// Adds a member of a repository; `false` if it was one already, or there is no room.
    pub(super) fn add(&mut self, member: &Coordinate, repo: &RepoId) -> bool {
        let is_known = self.contains(member);
        let of_repo = self.by_repo.get(repo).map_or(0, BTreeSet::len);
        let of_member = self.repos.get(member).map_or(0, BTreeSet::len);
        let is_full = of_repo >= MAX_PER_REPO || of_member >= MAX_REPOS;
        if is_full || (!is_known && self.repos.len() >= MAX_MEMBERS) {
            return false;
        }
        self.by_repo.entry(repo.clone()).or_default().insert(member.clone());
        self.repos.entry(member.clone()).or_default().insert(repo.clone())
    }

    /// Notes that one names another that is no member yet.
    pub(super) fn wait(&mut self, named: Coordinate, by: Coordinate) {
        self.waiting.add(by.public_key, named, by);
    }

    /// Hands over what waited for a member.
    pub(super) fn take_waiting(&mut self, member: &Coordinate) -> BTreeSet<Coordinate> {
        self.waiting.take(member)
    }
}
