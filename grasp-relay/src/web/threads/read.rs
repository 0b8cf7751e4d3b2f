//! Reads threads from the store.

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

/// Events of one query. The relay limits the events of one root and of one author, so that this is rarely reached.
const MAX_EVENTS: usize = 5_000;

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
        let roots = self.inventory(self.roots_filter(kind), MAX_ROOTS).await?;
        let mut ids: Vec<EventId> = roots.iter().map(|(_, id)| *id).collect();
        ids.sort();
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
    pub(crate) async fn thread_version(&self, id: EventId) -> Result<String, StoreError> {
        let mut engine = sha256::HashEngine::default();
        for key in self.scope.maintainers() {
            engine.input(key.as_bytes());
        }
        let mut filters = self.related(&[id]);
        filters.push(Filter::new().id(id));
        for filter in filters {
            for (_, id) in self.inventory(filter, MAX_EVENTS).await? {
                engine.input(id.as_bytes());
            }
        }
        Ok(hash_of(engine))
    }

    /// Reads the threads of a kind.
    pub(crate) async fn list(&self, kind: ThreadKind) -> Result<ThreadList, StoreError> {
        let filter = self.roots_filter(kind).limit(MAX_ROOTS);
        let events = self.events(filter).await?;
        let is_cut = events.len() >= MAX_ROOTS;
        let roots = events
            .iter()
            .filter_map(|event| Root::parse(&self.scope, event));
        let roots: Vec<Root> = roots.collect();
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

    fn roots_filter(&self, kind: ThreadKind) -> Filter {
        let names = self.scope.coordinates().iter().map(|repo| repo.to_string());
        let tag = SingleLetterTag::LOWERCASE_A;
        Filter::new()
            .kinds(root_kinds(kind))
            .custom_tags(tag, names)
    }

    async fn events(&self, filter: Filter) -> Result<Vec<Event>, StoreError> {
        store::events(self.store, filter, self.now).await
    }

    /// Lists what a filter matches; if that is more than `max`, by their number.
    async fn inventory(
        &self,
        filter: Filter,
        max: usize,
    ) -> Result<Vec<(Timestamp, EventId)>, StoreError> {
        let limited = filter.clone().limit(max);
        match self.store.inventory(filter, self.now, max).await? {
            Inventory::Complete(items) => Ok(items),
            Inventory::TooMany => {
                let newest = self.events(limited).await?;
                Ok(newest
                    .iter()
                    .map(|event| (event.created_at, event.id))
                    .collect())
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
