//! Converged means equal (I10): the same events and the same refs, everywhere.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use grasp_core::deletion::{DeletionRequest, coordinate};
use grasp_core::{RepoId, kinds};
use nostr::event::{Event, EventId};

use crate::Outside;

/// Far longer than it takes on a machine that has nothing else to do.
const PATIENCE: Duration = Duration::from_secs(120);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(50);

/// All that a server serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sight {
    /// Every event.
    pub events: BTreeMap<EventId, Event>,
    /// Every repository that somebody has announced, as git lists it.
    pub refs: BTreeMap<RepoId, Option<String>>,
}

impl Sight {
    fn repos(&self) -> BTreeSet<RepoId> {
        let announced = self.events.values().filter(|event| event.kind == kinds::ANNOUNCEMENT);
        let repo = |event: &Event| {
            let name = event.tags.identifier()?.parse().ok()?;
            Some(RepoId::new(event.pubkey, name))
        };
        announced.filter_map(repo).collect()
    }

    fn without_uploads(&self, refs: &str) -> String {
        let waits = |line: &&str| {
            let id = line.split_once("refs/nostr/").and_then(|(_, id)| EventId::from_hex(id).ok());
            id.is_some_and(|id| !self.events.contains_key(&id))
        };
        refs.lines().filter(|line| !waits(line)).collect::<Vec<_>>().join("\n")
    }

    /// Branches, tags and proposals of a repository with what they point to, as `object name`.
    pub fn refs_of(&self, repo: &RepoId) -> BTreeSet<String> {
        let listed = self.refs.get(repo).cloned().flatten().unwrap_or_default();
        let lines =
            listed.lines().filter(|line| line.contains("\trefs/") && !line.ends_with("^{}"));
        lines.map(|line| line.replace('\t', " ")).collect()
    }
}

/// What servers shall come to: the same, and this.
#[derive(Clone, Debug)]
pub struct Equal {
    members: Vec<Outside>,
    served: Vec<Event>,
    gone: Vec<Event>,
    refs: BTreeMap<RepoId, Option<BTreeSet<String>>>,
    old_deletions: bool,
    uploads: bool,
}

impl Equal {
    /// These servers shall serve the same.
    pub fn among(members: &[Outside]) -> Self {
        let members = members.to_vec();
        let (served, gone, refs) = (Vec::new(), Vec::new(), BTreeMap::new());
        Self { members, served, gone, refs, old_deletions: true, uploads: true }
    }

    /// But for requests to delete what nobody has any more.
    ///
    /// A server that never had it does not ask for them: nothing that it knows is named by them. Should it come to
    /// have it from somewhere, it asks for what names it, and is told.
    #[must_use]
    pub fn but_for_old_deletions(mut self) -> Self {
        self.old_deletions = false;
        self
    }

    /// But for uploads that wait for their event, which are nobody's but the server's that they were pushed to.
    #[must_use]
    pub fn but_for_uploads(mut self) -> Self {
        self.uploads = false;
        self
    }

    /// And among it these events.
    #[must_use]
    pub fn serving<'a>(mut self, events: impl IntoIterator<Item = &'a Event>) -> Self {
        self.served.extend(events.into_iter().cloned());
        self
    }

    /// And none of these.
    #[must_use]
    pub fn without<'a>(mut self, events: impl IntoIterator<Item = &'a Event>) -> Self {
        self.gone.extend(events.into_iter().cloned());
        self
    }

    /// And exactly these refs of a repository, each `(name, object)`.
    #[must_use]
    pub fn with_refs(mut self, repo: &RepoId, refs: &[(&str, &str)]) -> Self {
        let refs = refs.iter().map(|(name, object)| format!("{object} {name}")).collect();
        self.refs.insert(repo.clone(), Some(refs));
        self
    }

    /// And no such repository.
    #[must_use]
    pub fn without_repo(mut self, repo: &RepoId) -> Self {
        self.refs.insert(repo.clone(), None);
        self
    }

    /// Waits until it is so, and says what all of them serve then; tells what is different if that takes too long.
    pub async fn wait(self) -> Sight {
        match self.within(PATIENCE).await {
            Ok(sight) => sight,
            Err(wrong) => panic!("not equal within {PATIENCE:?}:\n{wrong}"),
        }
    }

    /// Waits so long at most; what is different then, a line for each.
    pub async fn within(self, patience: Duration) -> Result<Sight, String> {
        let start = Instant::now();
        loop {
            let sights = self.look().await;
            let wrong = self.differences(&sights);
            if wrong.is_empty() {
                return Ok(sights.into_iter().next().unwrap_or_default());
            }
            if start.elapsed() > patience {
                return Err(wrong);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn look(&self) -> Vec<Sight> {
        let mut sights = Vec::new();
        for member in &self.members {
            let events = member.events().await.unwrap_or_default();
            sights.push(Sight { events, refs: BTreeMap::new() });
        }
        let mut repos: BTreeSet<RepoId> = self.refs.keys().cloned().collect();
        repos.extend(sights.iter().flat_map(Sight::repos));
        for (member, sight) in self.members.iter().zip(&mut sights) {
            for repo in &repos {
                let refs = member.refs(repo).await;
                let refs =
                    if self.uploads { refs } else { refs.map(|refs| sight.without_uploads(&refs)) };
                sight.refs.insert(repo.clone(), refs);
            }
        }
        sights
    }

    /// What is not as it shall be, a line for each; empty if all is well.
    fn differences(&self, sights: &[Sight]) -> String {
        let mut wrong = String::new();
        let all: BTreeMap<_, _> = sights.iter().flat_map(|sight| &sight.events).collect();
        for (id, event) in all {
            let has: Vec<bool> = sights.iter().map(|s| s.events.contains_key(id)).collect();
            let counts = || self.old_deletions || !is_old_deletion(event, sights);
            if has.contains(&false) && counts() {
                let _ = writeln!(wrong, "{} is served by {has:?}", named(event));
            }
        }
        let first = sights.first().cloned().unwrap_or_default();
        for repo in first.refs.keys() {
            let refs: Vec<_> = sights.iter().map(|sight| &sight.refs[repo]).collect();
            if refs.iter().any(|one| *one != refs[0]) {
                let _ = writeln!(wrong, "the refs of {repo} are {refs:#?}");
            }
        }
        self.unmet(&first, &mut wrong);
        wrong
    }

    fn unmet(&self, first: &Sight, wrong: &mut String) {
        for event in self.served.iter().filter(|event| !first.events.contains_key(&event.id)) {
            let _ = writeln!(wrong, "{} is missing", named(event));
        }
        for event in self.gone.iter().filter(|event| first.events.contains_key(&event.id)) {
            let _ = writeln!(wrong, "{} is still there", named(event));
        }
        for (repo, wanted) in &self.refs {
            let has = first.refs.get(repo).and_then(Option::as_ref).map(|_| first.refs_of(repo));
            if has != *wanted {
                let _ = writeln!(wrong, "the refs of {repo} are {has:#?}, not {wanted:#?}");
            }
        }
    }
}

/// Whether this is a request to delete, and nothing that it names is served anywhere.
fn is_old_deletion(event: &Event, sights: &[Sight]) -> bool {
    let request = (event.kind == kinds::DELETION).then(|| DeletionRequest::parse(event).ok());
    let Some(DeletionRequest { ids, coordinates }) = request.flatten() else { return false };
    let names = |event: &Event| {
        let coordinate = coordinate(event);
        ids.contains(&event.id) || coordinate.is_some_and(|one| coordinates.contains(&one))
    };
    !sights.iter().flat_map(|sight| sight.events.values()).any(names)
}

fn named(event: &Event) -> String {
    let content: String = event.content.chars().take(40).collect();
    let (id, author) = (event.id.to_hex(), event.pubkey.to_hex());
    let (id, author) = (id.get(..8).unwrap_or_default(), author.get(..8).unwrap_or_default());
    format!("kind {} {id} of {author} ({content})", event.kind)
}
