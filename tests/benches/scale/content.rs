//! Repositories and issues about them.

use futures_util::{StreamExt as _, stream};
use grasp_core::RepoId;
use grasp_tests::{Author, Workdir};
use nostr::event::Event;
use nostr::types::Timestamp;

use crate::connection::Connection;
use crate::server::Server;

pub(crate) const MAIN: &str = "refs/heads/main";

/// Repositories of one owner.
const REPOS_PER_OWNER: usize = 20;

/// Pushes at the same time.
const CONCURRENT_PUSHES: usize = 4;

/// Repositories of one commit each, and their owners.
pub(crate) struct Content {
    pub(crate) repos: Vec<RepoId>,
    owners: Vec<Author>,
    work: Workdir,
    commits: Vec<String>,
}

impl Content {
    /// Creates this number of repositories, each with a commit of its own.
    pub(crate) async fn new(count: usize) -> Self {
        let owners: Vec<Author> = (0..count.div_ceil(REPOS_PER_OWNER))
            .map(|_| Author::new())
            .collect();
        let work = Workdir::init().await;
        let (mut repos, mut commits) = (Vec::new(), Vec::new());
        for n in 0..count {
            repos.push(owners[n / REPOS_PER_OWNER].repo(&format!("r{n}")));
            commits.push(work.commit(&format!("first of r{n}")).await);
        }
        Self {
            repos,
            owners,
            work,
            commits,
        }
    }

    /// Announces every repository with these clone URLs, signs its state and pushes it to a server.
    pub(crate) async fn publish(&self, to: &Server, relays: &[&str], clone_urls: CloneUrls<'_>) {
        let mut connection = Connection::connect(&to.address).await;
        connection
            .publish(&self.announcements(relays, clone_urls))
            .await;
        connection.publish(&self.states()).await;
        self.push(to).await;
    }

    pub(crate) fn announcements(&self, relays: &[&str], clone_urls: CloneUrls<'_>) -> Vec<Event> {
        let relays: Vec<String> = relays
            .iter()
            .map(|address| format!("ws://{address}"))
            .collect();
        let announce = |(n, repo): (usize, &RepoId)| {
            let clone_urls = clone_urls(n, repo);
            let clone: Vec<_> = ["clone"]
                .into_iter()
                .chain(clone_urls.iter().map(String::as_str))
                .collect();
            let relays: Vec<_> = ["relays"]
                .into_iter()
                .chain(relays.iter().map(String::as_str))
                .collect();
            self.owner(n).sign(
                30617,
                "",
                &[&["d", repo.identifier.as_str()], &clone, &relays],
            )
        };
        self.repos.iter().enumerate().map(announce).collect()
    }

    pub(crate) fn states(&self) -> Vec<Event> {
        let state = |(n, repo): (usize, &RepoId)| {
            self.owner(n)
                .state(repo.identifier.as_str(), &[(MAIN, &self.commits[n])])
        };
        self.repos.iter().enumerate().map(state).collect()
    }

    async fn push(&self, to: &Server) {
        let pushes = self.repos.iter().zip(&self.commits).map(|(repo, commit)| {
            let (url, refs) = (to.clone_url(repo), format!("{commit}:{MAIN}"));
            async move {
                self.work
                    .git(&["push", "-q", &url, &refs])
                    .await
                    .expect_ok()
            }
        });
        stream::iter(pushes)
            .buffer_unordered(CONCURRENT_PUSHES)
            .collect::<Vec<_>>()
            .await;
    }

    /// Signs issues about the repositories in turn, dated over this number of days up to yesterday.
    pub(crate) fn issues(&self, count: usize, over_days: u64) -> Vec<Event> {
        const DAY: u64 = 24 * 60 * 60;
        let authors: Vec<Author> = (0..100).map(|_| Author::new()).collect();
        let newest = Timestamp::now().as_secs() - DAY;
        let issue = |n: usize| {
            let age = (n as u64).wrapping_mul(2_654_435_761) % (over_days * DAY).max(1);
            let repo = &self.repos[n % self.repos.len()];
            authors[n % authors.len()]
                .at(newest - age)
                .issue(repo, &format!("issue {n}"))
        };
        (0..count).map(issue).collect()
    }

    /// Returns whether a server has the commit of a repository.
    pub(crate) async fn is_served(&self, by: &Server, n: usize) -> bool {
        let listed = self
            .work
            .git(&["ls-remote", &by.clone_url(&self.repos[n]), MAIN])
            .await;
        listed.ok && listed.out.starts_with(&self.commits[n])
    }

    pub(crate) fn work(&self) -> &Workdir {
        &self.work
    }

    fn owner(&self, n: usize) -> &Author {
        &self.owners[n / REPOS_PER_OWNER]
    }
}

/// Returns the clone URLs of each repository, by its number.
pub(crate) type CloneUrls<'a> = &'a dyn Fn(usize, &RepoId) -> Vec<String>;
