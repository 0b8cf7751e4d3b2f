//! Random histories: the file must answer like the list in memory, step by step, and after every reopening.

use std::sync::Arc;

use grasp_relay::store::EventStore;
use grasp_relay::store::sqlite::{Integrity, SqliteOptions, SqliteStore};
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

const POOL: usize = 40;
const AUTHORS: [Author; 3] = [Author(1), Author(2), Author(3)];
const KINDS: [u16; 9] = [1, 1621, 5, 62, 10_002, 30_023, 30_617, 30_618, 20_001];
const NAMES: [&str; 2] = ["x", "y"];

/// What happens to the stores.
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

/// An event to be written into the pool; targets are places in the pool.
#[derive(Clone, Debug)]
struct Sketch {
    author: Author,
    kind: u16,
    age: u64,
    identifier: Option<&'static str>,
    words: Vec<&'static str>,
    end: Option<u64>,
    targets: Vec<usize>,
    coordinates: Vec<(Author, u16, &'static str)>,
    relay: Option<&'static str>,
}

fn sketch() -> impl Strategy<Value = Sketch> {
    let kind = prop_oneof![
        3 => select(&KINDS[..]),
        2 => Just(5),
        1 => Just(62),
        2 => select(&[30_617, 30_618][..]),
    ];
    let coordinate = (select(&AUTHORS[..]), select(&KINDS[4..8]), select(&NAMES[..]));
    let relay = select(&["ALL_RELAYS", "wss://us.example", "wss://elsewhere.example"][..]);
    (
        (select(&AUTHORS[..]), kind, 0..12u64),
        option::of(select(&NAMES[..])),
        subsequence(vec!["x", "y", "z"], 0..=2),
        option::weighted(0.2, 0..8u64),
        vec(0..POOL, 0..4),
        vec(coordinate, 0..2),
        option::of(relay),
    )
        .prop_map(
            |((author, kind, age), identifier, words, end, targets, coordinates, relay)| Sketch {
                author,
                kind,
                age,
                identifier,
                words,
                end,
                targets,
                coordinates,
                relay,
            },
        )
}

/// Scatters ids, so that their order says nothing about the order of arrival.
fn scattered(place: usize) -> u64 {
    (place as u64 * 17 + 5) % 97
}

fn draw(place: usize, sketch: &Sketch) -> Arc<Event> {
    let mut draft = sketch.author.writes(sketch.kind).at(NOW - sketch.age).id(scattered(place));
    for (name, value) in [("d", sketch.identifier), ("relay", sketch.relay)] {
        draft = value.into_iter().fold(draft, |draft, value| draft.tag(name, value));
    }
    for word in &sketch.words {
        draft = draft.tag("t", word).tag(if *word == "x" { "T" } else { "r" }, word);
    }
    if let Some(end) = sketch.end {
        draft = draft.tag("expiration", NOW + end);
    }
    if sketch.kind == 5 {
        for target in &sketch.targets {
            draft = draft.tag("e", id(scattered(*target)));
        }
        for (author, kind, identifier) in &sketch.coordinates {
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
            option::weighted(0.15, vec(0..POOL, 0..20)),
            option::weighted(0.3, subsequence(AUTHORS.to_vec(), 0..=3)),
        ),
        option::weighted(0.4, subsequence(KINDS.to_vec(), 0..=5)),
        (
            option::weighted(0.4, words()),
            option::weighted(0.2, words()),
            option::weighted(0.1, words()),
        ),
        (option::weighted(0.3, 0..14u64), option::weighted(0.3, 0..14u64)),
        (option::weighted(0.3, 0..6usize), optional(0.02)),
    )
        .prop_map(
            move |((ids, authors), kinds, (t, r, upper), (since, until), (limit, search))| {
                let mut filter = Filter {
                    ids: ids.map(|ids| ids.into_iter().map(|place| id(scattered(place))).collect()),
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
    let waits = [1, 2, 5, DAY, 2 * DAY, 29 * DAY, 30 * DAY, 150 * DAY, 210 * DAY];
    prop_oneof![
        8 => vec(0..POOL, 1..8).prop_map(Step::Save),
        2 => (0..POOL).prop_map(Step::Refusal),
        1 => vec(0..POOL, 1..3).prop_map(Step::Remove),
        2 => select(waits.to_vec()).prop_map(Step::Wait),
        1 => Just(Step::Sweep),
        1 => Just(Step::Reopen),
        6 => vec(filter(), 1..4).prop_map(Step::Ask),
    ]
}

/// Where a store keeps its events while it is closed.
trait Place {
    type Store: EventStore;

    async fn open(&self) -> Self::Store;
    async fn close(&self, store: Self::Store);
    /// Checks that indexes and events agree.
    async fn check(&self, store: Self::Store);
}

/// A SQLite file.
struct Directory(tempfile::TempDir);

impl Place for Directory {
    type Store = SqliteStore;

    async fn open(&self) -> SqliteStore {
        let options = SqliteOptions { rules: rules(), ..SqliteOptions::default() };
        SqliteStore::open(&self.0.path().join("events.db"), options).unwrap()
    }

    async fn close(&self, store: SqliteStore) {
        store.close().await.unwrap();
    }

    async fn check(&self, store: SqliteStore) {
        assert_eq!(store.integrity_check().await.unwrap(), Integrity::Sound);
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

    impl super::Place for Address {
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

/// The same question to both stores.
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
    same!(*file, *list, |store| find_at(store, filters.to_vec(), now).await);
    same!(*file, *list, |store| store.count(filters.to_vec(), time(now)).await.unwrap());
    for filter in filters {
        for max in [3, usize::MAX] {
            same!(*file, *list, |store| store
                .inventory(filter.clone(), time(now), max)
                .await
                .unwrap());
        }
    }
    for (author, kind) in AUTHORS.iter().flat_map(|author| [(author, 30_617), (author, 30_618)]) {
        for identifier in ["", "x", "y"] {
            let coordinate =
                Coordinate::new(Kind::from_u16(kind), author.key()).identifier(identifier);
            same!(*file, *list, |store| store.superseded(coordinate.clone()).await.unwrap());
        }
    }
}

async fn live(place: impl Place, pool: &[Arc<Event>], steps: Vec<Step>) {
    let (mut file, list) = (place.open().await, MemoryStore::new(rules()));
    let mut now = NOW;
    let events =
        |places: &[usize]| places.iter().map(|place| Arc::clone(&pool[*place])).collect::<Vec<_>>();
    for step in steps {
        match step {
            Step::Save(places) => {
                same!(file, list, |store| store.save(events(&places), time(now)).await.unwrap())
            }
            Step::Refusal(place) => {
                same!(file, list, |store| store
                    .refusal(Arc::clone(&pool[place]), time(now))
                    .await
                    .unwrap());
            }
            Step::Remove(places) => {
                let ids = || events(&places).iter().map(|event| event.id).collect();
                same!(file, list, |store| store.remove(ids()).await.unwrap());
            }
            Step::Wait(length) => now += length,
            Step::Sweep => same!(file, list, |store| store.sweep(time(now)).await.unwrap()),
            Step::Reopen => {
                place.close(file).await;
                file = place.open().await;
            }
            Step::Ask(filters) => agree(&file, &list, &filters, now).await,
        }
    }
    agree(&file, &list, &[Filter::new()], now).await;
    place.check(file).await;
}

fn pool(sketches: &[Sketch]) -> Vec<Arc<Event>> {
    sketches.iter().enumerate().map(|(place, sketch)| draw(place, sketch)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn any_history_leaves_the_file_like_the_list(
        sketches in vec(sketch(), POOL),
        steps in vec(step(), 1..60),
    ) {
        let dir = tempfile::tempdir().unwrap();
        block_on(live(Directory(dir), &pool(&sketches), steps));
    }
}

#[cfg(feature = "postgres")]
proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn any_history_leaves_the_database_like_the_list(
        sketches in vec(sketch(), POOL),
        steps in vec(step(), 1..60),
    ) {
        if let Some(server) = crate::support::postgres::Postgres::shared() {
            let place = postgres::Address(server, server.database());
            block_on(live(place, &pool(&sketches), steps));
        }
    }
}
