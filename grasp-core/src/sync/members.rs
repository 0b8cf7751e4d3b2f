//! The coordinates of each repository, and those that came before what they name.

use std::collections::{BTreeMap, BTreeSet};

use nostr::key::PublicKey;
use nostr::nips::nip01::Coordinate;

use super::SyncIndex;
use super::pairs::Pairs;
use super::state::Before;
use super::waiters::Waiters;
use crate::RepoId;

/// Maximum number of coordinates per repository.
pub(super) const MAX_PER_REPO: usize = 500;
/// Maximum number of repositories per coordinate.
const MAX_REPOS_PER_MEMBER: usize = 8;
/// Maximum number of coordinates, those of repositories that are not announced included.
const MAX_MEMBERS: usize = 50_000;
/// Maximum number of coordinates that wait for a member that they name. Beyond it, the author with most loses one.
const MAX_WAITING_MEMBERS: usize = 10_000;
/// Maximum number of pairs of a member and a coordinate that names it. Beyond it, a coordinate does not get the
/// repositories that the member gets later.
const MAX_NAMED: usize = 50_000;

/// The coordinates of each repository, announced or not.
#[derive(Clone, Debug, Default)]
pub(super) struct ThreadMembers {
    repos: BTreeMap<Coordinate, BTreeSet<RepoId>>,
    by_repo: BTreeMap<RepoId, BTreeSet<Coordinate>>,
    /// Coordinates by the member that they name.
    named_by: Pairs<Coordinate, Coordinate>,
    /// Coordinates by the coordinate that they name and that is not a member yet, grouped by author.
    waiting: Waiters<Coordinate, Coordinate, PublicKey, MAX_WAITING_MEMBERS>,
}

impl ThreadMembers {
    pub(super) fn repos_of(&self, member: &Coordinate) -> impl Iterator<Item = &RepoId> {
        self.repos.get(member).into_iter().flatten()
    }

    pub(super) fn of(&self, repo: &RepoId) -> impl Iterator<Item = &Coordinate> {
        self.by_repo.get(repo).into_iter().flatten()
    }

    /// Returns whether a coordinate is a member of any repository.
    fn contains(&self, member: &Coordinate) -> bool {
        self.repos.contains_key(member)
    }

    /// Returns whether a coordinate can be added to a repository: it is no member, and no limit is reached.
    fn can_add(&self, member: &Coordinate, repo: &RepoId) -> bool {
        let of_repo = self.by_repo.get(repo);
        let of_member = self.repos.get(member);
        of_repo.map_or(0, BTreeSet::len) < MAX_PER_REPO
            && of_member.map_or(0, BTreeSet::len) < MAX_REPOS_PER_MEMBER
            && (of_member.is_some() || self.repos.len() < MAX_MEMBERS)
            && of_member.is_none_or(|repos| !repos.contains(repo))
    }

    fn add(&mut self, member: &Coordinate, repo: &RepoId) {
        let of_repo = self.by_repo.entry(repo.clone()).or_default();
        of_repo.insert(member.clone());
        let of_member = self.repos.entry(member.clone()).or_default();
        of_member.insert(repo.clone());
    }

    /// Notes that a coordinate names a member.
    fn link(&mut self, named: &Coordinate, by: &Coordinate) {
        if self.named_by.len() < MAX_NAMED {
            self.named_by.insert(named.clone(), by.clone());
        }
    }
}

impl SyncIndex {
    /// Adds a member to the repositories that it names, and to those of the members that it names.
    pub(super) fn member_added(
        &mut self,
        member: Coordinate,
        mut repos: Vec<RepoId>,
        of: Vec<Coordinate>,
        before: &mut Before,
    ) {
        for named in of {
            if self.members.contains(&named) {
                repos.extend(self.members.repos_of(&named).cloned());
                self.members.link(&named, &member);
            } else {
                let author = member.public_key;
                self.members.waiting.add(author, named, member.clone());
            }
        }
        let mut open = vec![(member, repos)];
        while let Some((member, repos)) = open.pop() {
            let new = self.add_to_repos(&member, repos, before);
            // What is in no more repositories than before passes nothing on, so that members that name each other end this.
            if new.is_empty() {
                continue;
            }
            let named_by = self.members.named_by.of(&member);
            open.extend(named_by.map(|by| (by.clone(), new.clone())));
            for by in self.members.waiting.take(&member) {
                self.members.link(&member, &by);
                open.push((by, new.clone()));
            }
        }
    }

    /// Adds a member to repositories; returns those that are new.
    fn add_to_repos(
        &mut self,
        member: &Coordinate,
        repos: Vec<RepoId>,
        before: &mut Before,
    ) -> Vec<RepoId> {
        let mut new = Vec::new();
        for repo in repos {
            if self.members.can_add(member, &repo) {
                before.member(self, member);
                self.members.add(member, &repo);
                new.push(repo);
            }
        }
        new
    }
}
