//! Convergence of servers (I10): all of them serve the same events and the same refs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use grasp_core::deletion::{DeletionRequest, coordinate};
use grasp_core::{RepoId, kinds};
use nostr::event::{Event, EventId};

use crate::ServerClient;

/// Time for servers to converge, far longer than an idle machine needs.
const CONVERGENCE_TIMEOUT: Duration = Duration::from_secs(120);
/// Pause between two snapshots.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(50);

/// All that one server serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Every event by its id.
    pub events: BTreeMap<EventId, Event>,
    /// Every announced repository, as `git ls-remote` lists it; `None` where there is no such repository.
    pub refs: BTreeMap<RepoId, Option<String>>,
}

impl Snapshot {
    fn repos(&self) -> BTreeSet<RepoId> {
        let announced = self
            .events
            .values()
            .filter(|event| event.kind == kinds::ANNOUNCEMENT);
        let repo = |event: &Event| {
            let name = event.tags.identifier()?.parse().ok()?;
            Some(RepoId::new(event.pubkey, name))
        };
        announced.filter_map(repo).collect()
    }

    fn without_staged_uploads(&self, refs: &str) -> String {
        let is_upload = |line: &&str| {
            let id = line
                .split_once("refs/nostr/")
                .and_then(|(_, id)| EventId::from_hex(id).ok());
            id.is_some_and(|id| !self.events.contains_key(&id))
        };
        refs.lines()
            .filter(|line| !is_upload(line))
            .collect::<Vec<_>>()
            .join("\n")
    }

    /// Returns the branches, tags and proposals of a repository, each as `object name`.
    pub fn refs_of(&self, repo: &RepoId) -> BTreeSet<String> {
        let listed = self.refs.get(repo).cloned().flatten().unwrap_or_default();
        let lines = listed
            .lines()
            .filter(|line| line.contains("\trefs/") && !line.ends_with("^{}"));
        lines.map(|line| line.replace('\t', " ")).collect()
    }
}

/// The condition that servers serve the same, and content that they must or must not serve.
#[derive(Clone, Debug)]
pub struct Convergence {
    members: Vec<ServerClient>,
    served: Vec<Event>,
    gone: Vec<Event>,
    refs: BTreeMap<RepoId, Option<BTreeSet<String>>>,
    old_deletions: bool,
    orphaned_replies: bool,
    uploads: bool,
}

impl Convergence {
    /// Requires that these servers serve the same.
    pub fn of(members: &[ServerClient]) -> Self {
        let members = members.to_vec();
        let (served, gone, refs) = (Vec::new(), Vec::new(), BTreeMap::new());
        Self {
            members,
            served,
            gone,
            refs,
            old_deletions: true,
            orphaned_replies: true,
            uploads: true,
        }
    }

    /// Ignores deletion requests whose targets no server has any more.
    ///
    /// A server that never had a target does not request them: they name nothing that it knows. If it receives the target
    /// later, it requests what names it, and so the deletion too.
    #[must_use]
    pub fn ignoring_old_deletions(mut self) -> Self {
        self.old_deletions = false;
        self
    }

    /// Ignores comments and reactions whose targets no server has any more.
    ///
    /// A reply that arrives after the deletion of its root is refused; servers that stored it in time still serve it.
    #[must_use]
    pub fn ignoring_orphaned_replies(mut self) -> Self {
        self.orphaned_replies = false;
        self
    }

    /// Ignores uploads that wait for their event: only the server that they were pushed to has them.
    #[must_use]
    pub fn ignoring_staged_uploads(mut self) -> Self {
        self.uploads = false;
        self
    }

    /// Requires these events.
    #[must_use]
    pub fn serving<'a>(mut self, events: impl IntoIterator<Item = &'a Event>) -> Self {
        self.served.extend(events.into_iter().cloned());
        self
    }

    /// Requires that none of these events is served.
    #[must_use]
    pub fn without<'a>(mut self, events: impl IntoIterator<Item = &'a Event>) -> Self {
        self.gone.extend(events.into_iter().cloned());
        self
    }

    /// Requires exactly these refs of a repository, each `(name, object)`.
    #[must_use]
    pub fn with_refs(mut self, repo: &RepoId, refs: &[(&str, &str)]) -> Self {
        let refs = refs
            .iter()
            .map(|(name, object)| format!("{object} {name}"))
            .collect();
        self.refs.insert(repo.clone(), Some(refs));
        self
    }

    /// Requires that this repository does not exist.
    #[must_use]
    pub fn without_repo(mut self, repo: &RepoId) -> Self {
        self.refs.insert(repo.clone(), None);
        self
    }

    /// Waits until the condition holds and returns what all servers serve then; panics with the differences on timeout.
    pub async fn wait(self) -> Snapshot {
        match self.within(CONVERGENCE_TIMEOUT).await {
            Ok(snapshot) => snapshot,
            Err(wrong) => panic!("not converged within {CONVERGENCE_TIMEOUT:?}:\n{wrong}"),
        }
    }

    /// Waits until the condition holds; returns the differences, a line each, on timeout.
    pub async fn within(self, timeout: Duration) -> Result<Snapshot, String> {
        let start = Instant::now();
        loop {
            let snapshots = self.take_snapshots().await;
            let wrong = self.differences(&snapshots);
            if wrong.is_empty() {
                return Ok(snapshots.into_iter().next().unwrap_or_default());
            }
            if start.elapsed() > timeout {
                return Err(wrong);
            }
            tokio::time::sleep(SAMPLE_INTERVAL).await;
        }
    }

    async fn take_snapshots(&self) -> Vec<Snapshot> {
        let mut snapshots = Vec::new();
        for member in &self.members {
            let events = member.events().await.unwrap_or_default();
            snapshots.push(Snapshot {
                events,
                refs: BTreeMap::new(),
            });
        }
        let mut repos: BTreeSet<RepoId> = self.refs.keys().cloned().collect();
        repos.extend(snapshots.iter().flat_map(Snapshot::repos));
        for (member, snapshot) in self.members.iter().zip(&mut snapshots) {
            for repo in &repos {
                let refs = member.refs(repo).await;
                let refs = if self.uploads {
                    refs
                } else {
                    refs.map(|refs| snapshot.without_staged_uploads(&refs))
                };
                snapshot.refs.insert(repo.clone(), refs);
            }
        }
        snapshots
    }

    /// Returns the differences from the condition, a line each; empty if it holds.
    fn differences(&self, snapshots: &[Snapshot]) -> String {
        let mut wrong = String::new();
        let all: BTreeMap<_, _> = snapshots
            .iter()
            .flat_map(|snapshot| &snapshot.events)
            .collect();
        for (id, event) in all {
            let has: Vec<bool> = snapshots
                .iter()
                .map(|s| s.events.contains_key(id))
                .collect();
            let counts = || {
                (self.old_deletions || !is_old_deletion(event, snapshots))
                    && (self.orphaned_replies || !is_orphaned_reply(event, snapshots))
            };
            if has.contains(&false) && counts() {
                let _ = writeln!(wrong, "{} is served by {has:?}", describe(event));
            }
        }
        let first = snapshots.first().cloned().unwrap_or_default();
        for repo in first.refs.keys() {
            let refs: Vec<_> = snapshots
                .iter()
                .map(|snapshot| &snapshot.refs[repo])
                .collect();
            if refs.iter().any(|one| *one != refs[0]) {
                let _ = writeln!(wrong, "the refs of {repo} are {refs:#?}");
            }
        }
        self.check_content(&first, &mut wrong);
        wrong
    }

    fn check_content(&self, first: &Snapshot, wrong: &mut String) {
        for event in self
            .served
            .iter()
            .filter(|event| !first.events.contains_key(&event.id))
        {
            let _ = writeln!(wrong, "{} is missing", describe(event));
        }
        for event in self
            .gone
            .iter()
            .filter(|event| first.events.contains_key(&event.id))
        {
            let _ = writeln!(wrong, "{} is still served", describe(event));
        }
        for (repo, wanted) in &self.refs {
            let has = first
                .refs
                .get(repo)
                .and_then(Option::as_ref)
                .map(|_| first.refs_of(repo));
            if has != *wanted {
                let _ = writeln!(wrong, "the refs of {repo} are {has:#?}, not {wanted:#?}");
            }
        }
    }
}

/// Returns whether this is a deletion request none of whose targets is served by any server.
fn is_old_deletion(event: &Event, snapshots: &[Snapshot]) -> bool {
    let request = (event.kind == kinds::DELETION).then(|| DeletionRequest::parse(event).ok());
    let Some(DeletionRequest { ids, coordinates }) = request.flatten() else {
        return false;
    };
    let names = |event: &Event| {
        let coordinate = coordinate(event);
        ids.contains(&event.id) || coordinate.is_some_and(|one| coordinates.contains(&one))
    };
    !snapshots
        .iter()
        .flat_map(|snapshot| snapshot.events.values())
        .any(names)
}

/// Returns whether this is a comment or reaction none of whose targets is served by any server.
fn is_orphaned_reply(event: &Event, snapshots: &[Snapshot]) -> bool {
    let targets = event
        .tags
        .iter()
        .filter(|tag| matches!(tag.kind(), "e" | "E"));
    let targets: Vec<_> = targets
        .filter_map(|tag| EventId::from_hex(tag.content()?).ok())
        .collect();
    let is_served = |id: &EventId| snapshots.iter().any(|one| one.events.contains_key(id));
    event.kind != kinds::DELETION && !targets.is_empty() && !targets.iter().any(is_served)
}

fn describe(event: &Event) -> String {
    let content: String = event.content.chars().take(40).collect();
    let (id, author) = (event.id.to_hex(), event.pubkey.to_hex());
    let (id, author) = (
        id.get(..8).unwrap_or_default(),
        author.get(..8).unwrap_or_default(),
    );
    format!("kind {} {id} of {author} ({content})", event.kind)
}
