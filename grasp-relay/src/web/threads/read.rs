//! Reads threads from the store.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use bitcoin_hashes::{HashEngine as _, sha256};
use grasp_core::maintainers::{Lookup, MaintainerModel};
use grasp_core::nip34::{Announcement, MaintainerList};
use grasp_core::threads::{Check, Root, Summary, Thread, ThreadScope, checks};
use grasp_core::{Oid, RepoId, kinds};
use nostr::event::{Event, EventId, Kind};
use nostr::filter::{Filter, SingleLetterTag};
use nostr::key::PublicKey;
use nostr::nips::nip01::Coordinate;
use nostr::types::Timestamp;

use super::ThreadKind;
use crate::store::{self, EventStore, Inventory, StoreError};
use crate::web::names::Names;

/// Threads that one list is made from; the newest.
const MAX_ROOTS: usize = 500;

/// Patches that are read to find those that begin a series and are not marked as such; the newest.
const MAX_UNMARKED: usize = 200;

/// Events of one query. The relay limits the events of one root and of one author, so that this is rarely reached.
const MAX_EVENTS: usize = 5_000;

/// Updates of one pull request whose checks are read; the newest.
const MAX_UPDATES: usize = 100;

/// Steps outward in the search for maintainers.
const MAX_STEPS: usize = 16;

/// The kinds by which people who decide about a thread change it.
const DECISIONS: [Kind; 6] = [
    Kind::GitStatusOpen,
    Kind::GitStatusApplied,
    Kind::GitStatusClosed,
    Kind::GitStatusDraft,
    Kind::Label,
    kinds::COVER_NOTE,
];

/// The threads of one list, the newest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct ThreadList {
    pub(crate) rows: Vec<(Root, Summary)>,
    /// There may be more, opened longer ago.
    pub(crate) is_cut: bool,
}

/// Reads threads of one repository as of one time.
pub(crate) struct ThreadReader<'a> {
    store: &'a dyn EventStore,
    now: Timestamp,
    scope: ThreadScope,
}

/// The numbers of threads of one list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) open: u64,
    pub(crate) closed: u64,
    /// There may be more, opened longer ago.
    pub(crate) is_cut: bool,
}

impl ThreadList {
    /// Counts the threads.
    pub(crate) fn counts(&self) -> Counts {
        let open = self
            .rows
            .iter()
            .filter(|(_, it)| it.status().is_open())
            .count();
        Counts {
            open: open as u64,
            closed: (self.rows.len() - open) as u64,
            is_cut: self.is_cut,
        }
    }
}

impl<'a> ThreadReader<'a> {
    /// Reads who maintains a repository at present, by the announcements that are served.
    pub(crate) async fn open(
        store: &'a dyn EventStore,
        now: Timestamp,
        model: MaintainerModel,
        repo: &RepoId,
    ) -> Result<Self, StoreError> {
        let mut read: BTreeMap<PublicKey, Option<MaintainerList>> = BTreeMap::new();
        let mut maintainers = BTreeSet::new();
        for _ in 0..MAX_STEPS {
            let reach = model.reach(&repo.owner, |key| match read.get(key) {
                None => Lookup::Unread,
                Some(None) => Lookup::Absent,
                Some(Some(list)) => Lookup::Read(list),
            });
            maintainers = reach.maintainers;
            if reach.unread.is_empty() {
                break;
            }
            let coordinate = |key: &PublicKey| {
                let coordinate = Coordinate::new(kinds::ANNOUNCEMENT, *key);
                coordinate.identifier(repo.identifier.as_str())
            };
            let asked = reach.unread.iter().map(coordinate).collect();
            read.extend(reach.unread.iter().map(|key| (*key, None)));
            for event in store.heads(asked, now).await? {
                let parsed = Announcement::parse(&event).ok();
                read.insert(event.pubkey, parsed.map(|it| it.maintainer_list));
            }
        }
        Ok(Self {
            store,
            now,
            scope: ThreadScope::new(repo, maintainers),
        })
    }

    /// Returns the repository and its maintainers.
    pub(crate) fn scope(&self) -> &ThreadScope {
        &self.scope
    }

    /// Returns a text that changes with every event that the list or one of its threads follows from.
    pub(crate) async fn version(&self, kind: ThreadKind) -> Result<String, StoreError> {
        let mut engine = sha256::HashEngine::default();
        for key in self.scope.maintainers() {
            engine.input(key.as_bytes());
        }
        let mut ids = self.root_ids(kind).await?;
        for filter in self.related(&ids) {
            ids.extend(
                self.inventory(filter, MAX_EVENTS)
                    .await?
                    .iter()
                    .map(|(_, id)| *id),
            );
        }
        for id in &ids {
            engine.input(id.as_bytes());
        }
        Ok(hash_of(engine))
    }

    /// Returns a text that changes with every event that the page of a thread follows from.
    pub(crate) async fn thread_version(
        &self,
        id: EventId,
        kind: ThreadKind,
    ) -> Result<String, StoreError> {
        let mut engine = sha256::HashEngine::default();
        for key in self.scope.maintainers() {
            engine.input(key.as_bytes());
        }
        let mut filters = self.related(&[id]);
        filters.push(Filter::new().id(id));
        if kind == ThreadKind::Pulls {
            filters.extend(self.checks_of_thread(id).await?);
        }
        for filter in filters {
            for (_, id) in self.inventory(filter, MAX_EVENTS).await? {
                engine.input(id.as_bytes());
            }
        }
        Ok(hash_of(engine))
    }

    /// Returns what finds the checks of all commits that a pull request has proposed; `None` if it has proposed none.
    async fn checks_of_thread(&self, id: EventId) -> Result<Option<Filter>, StoreError> {
        let updates = Filter::new()
            .kind(kinds::PULL_REQUEST_UPDATE)
            .custom_tag(SingleLetterTag::UPPERCASE_E, id.to_hex());
        let mut commits = BTreeSet::new();
        for filter in [Filter::new().id(id), updates.limit(MAX_UPDATES)] {
            for event in self.events(filter).await? {
                let named = event.tags.iter().find(|tag| tag.kind() == "c");
                commits.extend(named.and_then(|tag| tag.content()?.parse::<Oid>().ok()));
            }
        }
        let names = commits.iter().map(Oid::to_string);
        let checks = Filter::new()
            .kind(kinds::CI_RESULT)
            .custom_tags(SingleLetterTag::LOWERCASE_C, names);
        Ok((!commits.is_empty()).then_some(checks))
    }

    /// Reads the threads of a kind.
    pub(crate) async fn list(&self, kind: ThreadKind) -> Result<ThreadList, StoreError> {
        let (roots, is_cut) = self.roots(kind).await?;
        let ids: Vec<EventId> = roots.iter().map(|root| root.id).collect();
        let mut decisions = Vec::new();
        let authors = roots.iter().map(|root| root.author).collect();
        // Apart, so that the events of authors leave no maintainer out.
        for authors in [self.scope.maintainers().clone(), authors] {
            if ids.is_empty() || authors.is_empty() {
                continue;
            }
            let filter = Filter::new().kinds(DECISIONS).events(ids.clone());
            decisions.extend(
                self.events(filter.authors(authors).limit(MAX_EVENTS))
                    .await?,
            );
        }
        let by_root = by_named(decisions);
        let none = Vec::new();
        let mut rows = Vec::new();
        for root in roots {
            let events = by_root.get(&root.id).unwrap_or(&none);
            let summary = Summary::of(&self.scope, &root, events);
            rows.push((root, summary));
        }
        Ok(ThreadList { rows, is_cut })
    }

    /// Reads one thread; `None` if its root is not served or belongs to another repository.
    pub(crate) async fn thread(
        &self,
        id: EventId,
        kind: ThreadKind,
    ) -> Result<Option<Thread>, StoreError> {
        let kinds = root_kinds(kind);
        let found = self.events(Filter::new().id(id).kinds(kinds)).await?;
        let root = found
            .first()
            .and_then(|event| Root::parse(&self.scope, event));
        let Some(root) = root else {
            return Ok(None);
        };
        let mut events = Vec::new();
        let deciding = self.scope.maintainers();
        for filter in self.related(&[id]) {
            let own = filter.clone().author(root.author).limit(MAX_EVENTS);
            events.extend(self.events(own).await?);
            if !deciding.is_empty() {
                let decided = filter.clone().authors(deciding.clone()).limit(MAX_EVENTS);
                events.extend(self.events(decided).await?);
            }
            events.extend(self.events(filter.limit(MAX_EVENTS)).await?);
        }
        Ok(Some(Thread::of(&self.scope, root, &events)))
    }

    /// Reads the results of continuous integration for a commit.
    pub(crate) async fn checks(&self, commit: &Oid) -> Result<Vec<Check>, StoreError> {
        let tag = SingleLetterTag::LOWERCASE_C;
        let filter = Filter::new()
            .kind(kinds::CI_RESULT)
            .custom_tag(tag, commit.to_string());
        let events = self.events(filter.limit(MAX_EVENTS)).await?;
        Ok(checks(&self.scope, commit, &events))
    }

    /// Reads the names that people gave themselves (kind 0).
    pub(crate) async fn names(&self, keys: BTreeSet<PublicKey>) -> Result<Names, StoreError> {
        Names::read(self.store, self.now, keys).await
    }

    /// Returns the events that these names follow from.
    pub(crate) async fn name_sources(
        &self,
        keys: BTreeSet<PublicKey>,
    ) -> Result<Vec<EventId>, StoreError> {
        Names::sources(self.store, self.now, keys).await
    }

    /// Returns the events that may belong to these roots, in filters that each hold all kinds that they are about.
    fn related(&self, roots: &[EventId]) -> Vec<Filter> {
        if roots.is_empty() {
            return Vec::new();
        }
        let lower = DECISIONS
            .into_iter()
            .chain([Kind::TextNote, Kind::GitReply, kinds::PATCH]);
        let upper = [Kind::Comment, kinds::PULL_REQUEST_UPDATE];
        let hex = roots.iter().map(|id| id.to_hex());
        vec![
            Filter::new().kinds(lower).events(roots.to_vec()),
            Filter::new()
                .kinds(upper)
                .custom_tags(SingleLetterTag::UPPERCASE_E, hex),
        ]
    }

    /// Reads the newest roots of a kind, and whether there may be more.
    async fn roots(&self, kind: ThreadKind) -> Result<(Vec<Root>, bool), StoreError> {
        let mut roots: BTreeMap<EventId, Root> = BTreeMap::new();
        let mut is_cut = false;
        for (filter, max) in self.root_filters(kind) {
            let events = self.events(filter.limit(max)).await?;
            // Of other patches there may be any number.
            is_cut |= max == MAX_ROOTS && events.len() >= max;
            let parsed = events.iter().filter_map(|it| Root::parse(&self.scope, it));
            roots.extend(parsed.map(|root| (root.id, root)));
        }
        let mut roots: Vec<Root> = roots.into_values().collect();
        roots.sort_by_key(|root| Reverse(root.version.created_at));
        is_cut |= roots.len() > MAX_ROOTS;
        roots.truncate(MAX_ROOTS);
        Ok((roots, is_cut))
    }

    /// Lists the events that [`roots`](Self::roots) reads, sorted.
    async fn root_ids(&self, kind: ThreadKind) -> Result<Vec<EventId>, StoreError> {
        let mut ids = BTreeSet::new();
        for (filter, max) in self.root_filters(kind) {
            let listed = self.inventory(filter, max).await?;
            let newest = listed.iter().rev().take(max);
            ids.extend(newest.map(|(_, id)| *id));
        }
        Ok(ids.into_iter().collect())
    }

    /// Returns what finds the roots of a kind, and how many of the newest are read. Later patches of series, which can be
    /// very many, take the place of no root that is marked as one.
    fn root_filters(&self, kind: ThreadKind) -> Vec<(Filter, usize)> {
        let names = self.scope.coordinates().iter().map(ToString::to_string);
        let all = Filter::new().custom_tags(SingleLetterTag::LOWERCASE_A, names);
        match kind {
            ThreadKind::Issues => vec![(all.kind(kinds::ISSUE), MAX_ROOTS)],
            ThreadKind::Pulls => {
                let patches = all.clone().kind(kinds::PATCH);
                vec![
                    (all.kind(kinds::PULL_REQUEST), MAX_ROOTS),
                    (patches.clone().hashtag("root"), MAX_ROOTS),
                    (patches, MAX_UNMARKED),
                ]
            }
        }
    }

    async fn events(&self, filter: Filter) -> Result<Vec<Event>, StoreError> {
        store::events(self.store, filter, self.now).await
    }

    /// Lists what a filter matches, the oldest first; if that is very much, the newest `max`.
    async fn inventory(
        &self,
        filter: Filter,
        max: usize,
    ) -> Result<Vec<(Timestamp, EventId)>, StoreError> {
        let limited = filter.clone().limit(max);
        match self.store.inventory(filter, self.now, MAX_EVENTS).await? {
            Inventory::Complete(items) => Ok(items),
            Inventory::TooMany => {
                let newest = self.events(limited).await?;
                let items = newest.iter().rev();
                Ok(items.map(|event| (event.created_at, event.id)).collect())
            }
        }
    }
}

/// Returns the kinds of the roots of one list.
fn root_kinds(kind: ThreadKind) -> Vec<Kind> {
    match kind {
        ThreadKind::Issues => vec![kinds::ISSUE],
        ThreadKind::Pulls => vec![kinds::PATCH, kinds::PULL_REQUEST],
    }
}

/// Sorts events by the events that they name.
fn by_named(events: Vec<Event>) -> BTreeMap<EventId, Vec<Event>> {
    let mut by_root: BTreeMap<EventId, Vec<Event>> = BTreeMap::new();
    for event in events {
        let named = event.tags.iter().filter(|tag| tag.kind() == "e");
        let named = named.filter_map(|tag| EventId::from_hex(tag.content()?).ok());
        let named: BTreeSet<EventId> = named.collect();
        for id in named {
            by_root.entry(id).or_default().push(event.clone());
        }
    }
    by_root
}

fn hash_of(engine: sha256::HashEngine) -> String {
    let hash = engine.finalize().to_string();
    hash.get(..24).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nostr::event::{Signature, Tag};

    use super::*;
    use crate::store::sqlite::{SqliteOptions, SqliteStore};

    /// Returns a patch without a valid signature.
    fn patch(n: usize, repo: &RepoId, tags: &[[&str; 2]]) -> Arc<Event> {
        let id = EventId::from_byte_array(std::array::from_fn(|at| n.to_be_bytes()[at % 8]));
        let address = repo.to_string();
        let about = ["a", address.as_str()];
        let tags = tags.iter().chain([&about]);
        let tags: Vec<Tag> = tags.map(|tag| Tag::parse(*tag).unwrap()).collect();
        let author = PublicKey::from_byte_array([1; 32]);
        let at = Timestamp::from_secs(n as u64);
        let signature = Signature::from_slice(&[0; 64]).unwrap();
        Arc::new(Event::new(
            id,
            author,
            at,
            kinds::PATCH,
            tags,
            "",
            signature,
        ))
    }

    #[tokio::test]
    async fn later_patches_of_a_series_displace_no_root() {
        let dir = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&dir.path().join("events.db"), SqliteOptions::default());
        let store = store.unwrap();
        let repo = RepoId::new(PublicKey::from_byte_array([1; 32]), "x".parse().unwrap());
        let root = patch(1, &repo, &[["t", "root"]]);
        let first = root.id.to_hex();
        let later = (2..=MAX_ROOTS + 2).map(|n| patch(n, &repo, &[["e", &first]]));
        let unmarked = patch(MAX_ROOTS + 3, &repo, &[]);
        let events = [root.clone(), unmarked.clone()].into_iter().chain(later);
        let now = Timestamp::from_secs(10_000);
        store.save(events.collect(), now).await.unwrap();
        let model = MaintainerModel::default();
        let reader = ThreadReader::open(&store, now, model, &repo).await.unwrap();
        let list = reader.list(ThreadKind::Pulls).await.unwrap();
        let listed: Vec<_> = list.rows.iter().map(|(root, _)| root.id).collect();
        assert_eq!(listed, [unmarked.id, root.id]);
        let counts = Counts {
            open: 2,
            ..Counts::default()
        };
        assert_eq!(list.counts(), counts);
    }
}
