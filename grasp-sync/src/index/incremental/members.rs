//! Addressable and replaceable events of repositories, by coordinate.

use std::collections::{BTreeMap, BTreeSet};

use nostr::key::PublicKey;
use nostr::nips::nip01::Coordinate;

use super::waiters::Waiters;
use grasp_core::RepoId;

/// Maximum number of coordinates per repository.
pub(super) const MAX_PER_REPO: usize = 500;
/// Maximum number of repositories per coordinate.
const MAX_REPOS_PER_MEMBER: usize = 8;
/// Maximum number of coordinates, those of repositories that are not announced included.
const MAX_MEMBERS: usize = 50_000;
/// Maximum number of coordinates that wait for a member that they name. Beyond it, the author with most loses one.
const MAX_WAITING: usize = 10_000;

/// The coordinates of each repository, announced or not.
#[derive(Clone, Debug)]
pub(super) struct Members {
    repos: BTreeMap<Coordinate, BTreeSet<RepoId>>,
    by_repo: BTreeMap<RepoId, BTreeSet<Coordinate>>,
    /// Coordinates by the coordinate that they name and that is not a member yet, grouped by author.
    waiting: Waiters<Coordinate, Coordinate, PublicKey>,
}

impl Default for Members {
    fn default() -> Self {
        let (repos, by_repo) = (BTreeMap::new(), BTreeMap::new());
        Self { repos, by_repo, waiting: Waiters::new(MAX_WAITING) }
    }
}

impl Members {
    /// Returns whether a coordinate is a member of any repository.
    pub(super) fn contains(&self, member: &Coordinate) -> bool {
        self.repos.contains_key(member)
    }

    pub(super) fn repos_of(&self, member: &Coordinate) -> impl Iterator<Item = &RepoId> {
        self.repos.get(member).into_iter().flatten()
    }

    pub(super) fn of(&self, repo: &RepoId) -> impl Iterator<Item = &Coordinate> {
        self.by_repo.get(repo).into_iter().flatten()
    }

    /// Adds a member to a repository; `false` if it was a member, or a limit is reached.
    pub(super) fn add(&mut self, member: &Coordinate, repo: &RepoId) -> bool {
        let is_known = self.contains(member);
        let of_repo = self.by_repo.get(repo).map_or(0, BTreeSet::len);
        let of_member = self.repos.get(member).map_or(0, BTreeSet::len);
        let is_full = of_repo >= MAX_PER_REPO || of_member >= MAX_REPOS_PER_MEMBER;
        if is_full || (!is_known && self.repos.len() >= MAX_MEMBERS) {
            return false;
        }
        self.by_repo.entry(repo.clone()).or_default().insert(member.clone());
        self.repos.entry(member.clone()).or_default().insert(repo.clone())
    }

    /// Keeps a coordinate until the one that it names becomes a member.
    pub(super) fn wait(&mut self, named: Coordinate, by: Coordinate) {
        self.waiting.add(by.public_key, named, by);
    }

    /// Removes and returns the coordinates that wait for a member.
    pub(super) fn take_waiting(&mut self, member: &Coordinate) -> BTreeSet<Coordinate> {
        self.waiting.take(member)
    }
}
