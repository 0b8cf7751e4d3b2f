//! Random histories: a store must answer like the one in memory, at every step and after every reopening.

use std::sync::Arc;

use grasp_core::RepoId;
use grasp_relay::store::EventStore;
use grasp_relay::store::sqlite::{SqliteOptions, SqliteStore};
use nostr::event::{Event, Kind};
use nostr::filter::{Filter, SingleLetterTag};
use nostr::nips::nip01::Coordinate;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use crate::store_contract::{block_on, rules};
use crate::store_events::*;
use crate::support::memory_store::MemoryStore;

const POOL_EVENTS: usize = 40;
const AUTHORS: [Author; 3] = [Author(1), Author(2), Author(3)];
const KINDS: [u16; 9] = [1, 1621, 5, 62, 10_002, 30_023, 30_617, 30_618, 20_001];
const NAMES: [&str; 2] = ["x", "y"];

/// One operation on both stores.
#[derive(Clone, Debug)]
enum Step {
    Save(Vec<usize>),
    Refusal(usize),
    Remove(Vec<usize>),
    Wait(u64),
    Sweep,
    Reopen,
    Ask(Vec<Filter>),
}

/// A description of an event of the pool; targets are indexes in the pool.
#[derive(Clone, Debug)]
struct EventPlan {
    author: Author,
    kind: u16,
    age: u64,
    identifier: Option<&'static str>,
    words: Vec<&'static str>,
    end: Option<u64>,
    targets: Vec<usize>,
    coordinates: Vec<(Author, u16, &'static str)>,
    relay: Option<&'static str>,
    maintainers: Vec<Author>,
}

fn event_plan() -> impl Strategy<Value = EventPlan> {
    let kind = prop_oneof![
        3 => select(&KINDS[..]),
        2 => Just(5),
        1 => Just(62),
        2 => select(&[30_617, 30_618][..]),
    ];
    let coordinate = (
        select(&AUTHORS[..]),
        select(&KINDS[4..8]),
        select(&NAMES[..]),
    );
    let relay = select(&["ALL_RELAYS", "wss://us.example", "wss://elsewhere.example"][..]);
    (
        (select(&AUTHORS[..]), kind, 0..12u64),
        option::of(select(&NAMES[..])),
        subsequence(vec!["x", "y", "z"], 0..=2),
        option::weighted(0.2, 0..8u64),
        vec(0..POOL_EVENTS, 0..4),
        vec(coordinate, 0..2),
        (option::of(relay), subsequence(AUTHORS.to_vec(), 0..=3)),
    )
        .prop_map(
            |(
                (author, kind, age),
                identifier,
                words,
                end,
                targets,
                coordinates,
                (relay, maintainers),
            )| EventPlan {
                author,
                kind,
                age,
                identifier,
                words,
                end,
                targets,
                coordinates,
                relay,
                maintainers,
            },
        )
}

/// Scatters ids, so that their order is independent of the order of arrival.
fn scattered(index: usize) -> u64 {
    (index as u64 * 17 + 5) % 97
}

fn build(index: usize, event_plan: &EventPlan) -> Arc<Event> {
    let mut draft = event_plan
        .author
        .writes(event_plan.kind)
        .at(NOW - event_plan.age)
        .id(scattered(index));
    for (name, value) in [("d", event_plan.identifier), ("relay", event_plan.relay)] {
        draft = value
            .into_iter()
            .fold(draft, |draft, value| draft.tag(name, value));
    }
    for word in &event_plan.words {
        draft = draft
            .tag("t", word)
            .tag(if *word == "x" { "T" } else { "r" }, word);
    }
    for maintainer in &event_plan.maintainers {
        draft = draft.tag("maintainers", maintainer.key());
    }
    if let Some(end) = event_plan.end {
        draft = draft.tag("expiration", NOW + end);
    }
    if event_plan.kind == 5 {
        for target in &event_plan.targets {
            draft = draft.tag("e", id(scattered(*target)));
        }
        for (author, kind, identifier) in &event_plan.coordinates {
            let identifier = if *kind < 30_000 { "" } else { identifier };
            draft = draft.tag("a", format!("{kind}:{}:{identifier}", author.key()));
        }
    }
    draft.done()
}

fn filter() -> impl Strategy<Value = Filter> {
    let tag = |name: char| SingleLetterTag::from_char(name).unwrap();
    let words = || subsequence(vec!["x", "y", "z"], 0..=3);
    let optional = |weight| option::weighted(weight, Just(()));
    (
        (
            option::weighted(0.15, vec(0..POOL_EVENTS, 0..20)),
            option::weighted(0.3, subsequence(AUTHORS.to_vec(), 0..=3)),
        ),
        option::weighted(0.4, subsequence(KINDS.to_vec(), 0..=5)),
        (
            option::weighted(0.4, words()),
            option::weighted(0.2, words()),
            option::weighted(0.1, words()),
        ),
        (
            option::weighted(0.3, 0..14u64),
            option::weighted(0.3, 0..14u64),
        ),
        (option::weighted(0.3, 0..6usize), optional(0.02)),
    )
        .prop_map(
            move |((ids, authors), kinds, (t, r, upper), (since, until), (limit, search))| {
                let mut filter = Filter {
                    ids: ids.map(|ids| ids.into_iter().map(|index| id(scattered(index))).collect()),
                    authors: authors.map(|authors| authors.into_iter().map(Author::key).collect()),
                    kinds: kinds.map(|kinds| kinds.into_iter().map(Kind::from_u16).collect()),
                    since: since.map(|age| time(NOW - age)),
                    until: until.map(|age| time(NOW - age)),
                    limit,
                    search: search.map(|()| "text".to_owned()),
                    ..Filter::new()
                };
                for (name, values) in [('t', t), ('r', r), ('T', upper)] {
                    if let Some(values) = values {
                        filter = filter.custom_tags(tag(name), values);
                    }
                }
                filter
            },
        )
}

fn step() -> impl Strategy<Value = Step> {
    let waits = [
        1,
        2,
        5,
        DAY,
        2 * DAY,
        29 * DAY,
        30 * DAY,
        150 * DAY,
        210 * DAY,
    ];
    prop_oneof![
        8 => vec(0..POOL_EVENTS, 1..8).prop_map(Step::Save),
        2 => (0..POOL_EVENTS).prop_map(Step::Refusal),
        1 => vec(0..POOL_EVENTS, 1..3).prop_map(Step::Remove),
        2 => select(waits.to_vec()).prop_map(Step::Wait),
        1 => Just(Step::Sweep),
        1 => Just(Step::Reopen),
        6 => vec(filter(), 1..4).prop_map(Step::Ask),
    ]
}

/// The storage of a store, from which it can be reopened.
trait Storage {
    type Store: EventStore;

    async fn open(&self) -> Self::Store;
    async fn close(&self, store: Self::Store);
    /// Checks that indexes and events agree.
    async fn check(&self, store: Self::Store);
}

/// A SQLite file.
struct Directory(tempfile::TempDir);

impl Storage for Directory {
    type Store = SqliteStore;

    async fn open(&self) -> SqliteStore {
        let options = SqliteOptions {
            rules: rules(),
            ..SqliteOptions::default()
        };
        SqliteStore::open(&self.0.path().join("events.db"), options).unwrap()
    }

    async fn close(&self, store: SqliteStore) {
        store.close().await.unwrap();
    }

    async fn check(&self, store: SqliteStore) {
        assert_eq!(store.integrity_check().await.unwrap(), [""; 0]);
    }
}

#[cfg(feature = "postgres")]
mod postgres {
    use grasp_relay::store::EventStore as _;
    use grasp_relay::store::postgres::PostgresStore;

    use crate::store_postgres::{check_indexes, open};
    use crate::support::postgres::Postgres;

    /// The address of a PostgreSQL database.
    pub(super) struct Address(pub(super) &'static Postgres, pub(super) String);

    impl super::Storage for Address {
        type Store = PostgresStore;

        async fn open(&self) -> PostgresStore {
            open(&self.1).await
        }

        async fn close(&self, store: PostgresStore) {
            store.release_lease().await.unwrap();
            store.close().await.unwrap();
        }

        async fn check(&self, store: PostgresStore) {
            self.close(store).await;
            check_indexes(self.0, &self.1);
        }
    }
}

/// Asserts that both stores give the same answer.
macro_rules! same {
    ($file:expr, $list:expr, |$store:ident| $ask:expr) => {{
        let file = {
            let $store: &dyn EventStore = &$file;
            $ask
        };
        let list = {
            let $store: &dyn EventStore = &$list;
            $ask
        };
        assert_eq!(file, list);
    }};
}

async fn agree(file: &impl EventStore, list: &MemoryStore, filters: &[Filter], now: u64) {
    same!(*file, *list, |store| find_at(store, filters.to_vec(), now)
        .await);
    same!(*file, *list, |store| store
        .count(filters.to_vec(), time(now))
        .await
        .unwrap());
    for filter in filters {
        for max in [3, usize::MAX] {
            same!(*file, *list, |store| store
                .inventory(filter.clone(), time(now), max)
                .await
                .unwrap());
        }
    }
    for (author, kind) in AUTHORS
        .iter()
        .flat_map(|author| [(author, 30_617), (author, 30_618)])
    {
        for identifier in ["", "x", "y"] {
            let coordinate =
                Coordinate::new(Kind::from_u16(kind), author.key()).identifier(identifier);
            same!(*file, *list, |store| store
                .superseded(coordinate.clone())
                .await
                .unwrap());
            same!(*file, *list, |store| store
                .heads(vec![coordinate.clone()], time(now))
                .await
                .unwrap());
        }
    }
    for (author, name) in AUTHORS
        .iter()
        .flat_map(|author| NAMES.map(|name| (author, name)))
    {
        let repo = RepoId::new(author.key(), name.parse().unwrap());
        for most in [1, usize::MAX] {
            same!(*file, *list, |store| store
                .listing(repo.clone(), most)
                .await
                .unwrap());
        }
    }
}

async fn run(storage: impl Storage, pool: &[Arc<Event>], steps: Vec<Step>) {
    let (mut file, list) = (storage.open().await, MemoryStore::new(rules()));
    let mut now = NOW;
    let events = |indexes: &[usize]| {
        indexes
            .iter()
            .map(|index| Arc::clone(&pool[*index]))
            .collect::<Vec<_>>()
    };
    for step in steps {
        match step {
            Step::Save(indexes) => {
                same!(file, list, |store| store
                    .save(events(&indexes), time(now))
                    .await
                    .unwrap())
            }
            Step::Refusal(index) => {
                same!(file, list, |store| store
                    .refusal(Arc::clone(&pool[index]), time(now))
                    .await
                    .unwrap());
            }
            Step::Remove(indexes) => {
                let ids = || events(&indexes).iter().map(|event| event.id).collect();
                same!(file, list, |store| store.remove(ids()).await.unwrap());
            }
            Step::Wait(length) => now += length,
            Step::Sweep => same!(file, list, |store| store.sweep(time(now)).await.unwrap()),
            Step::Reopen => {
                storage.close(file).await;
                file = storage.open().await;
            }
            Step::Ask(filters) => agree(&file, &list, &filters, now).await,
        }
    }
    agree(&file, &list, &[Filter::new()], now).await;
    storage.check(file).await;
}

fn pool(event_plans: &[EventPlan]) -> Vec<Arc<Event>> {
    event_plans
        .iter()
        .enumerate()
        .map(|(index, event_plan)| build(index, event_plan))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn the_sqlite_store_answers_like_the_memory_store_after_any_history(
        event_plans in vec(event_plan(), POOL_EVENTS),
        steps in vec(step(), 1..60),
    ) {
        let dir = tempfile::tempdir().unwrap();
        block_on(run(Directory(dir), &pool(&event_plans), steps));
    }
}

#[cfg(feature = "postgres")]
proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn the_postgres_store_answers_like_the_memory_store_after_any_history(
        event_plans in vec(event_plan(), POOL_EVENTS),
        steps in vec(step(), 1..60),
    ) {
        if let Some(server) = crate::support::postgres::Postgres::shared() {
            let storage = postgres::Address(server, server.database());
            block_on(run(storage, &pool(&event_plans), steps));
        }
    }
}
