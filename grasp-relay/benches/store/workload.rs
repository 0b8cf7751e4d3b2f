//! The workload, which is the same for every database.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use nostr::event::{Event, Kind};
use nostr::filter::{Filter, SingleLetterTag};

use crate::databases::{BenchDatabase, Open};
use crate::events::{Dataset, built_commit};
use crate::measure::{Figure, Times, resident, size};
use crate::processor::processor;

/// The rows of the table: what is measured, and the target of our own store.
pub(crate) const ROWS: [(&str, &str); 25] = [
    ("durable saves/s, batches of 5,000", ">= 15,000"),
    ("  processor time per event, µs", ""),
    ("durable saves/s, 1 writer", ""),
    ("  processor time per event, µs", ""),
    ("durable saves/s, 8 writers", ""),
    ("  processor time per event, µs", ""),
    ("durable saves/s, 64 writers", ">= 4,000"),
    ("  processor time per event, µs", ""),
    ("one id: p50 ms", ""),
    ("one id, 8 readers: queries/s", ""),
    ("#a, one value: p50 ms", ""),
    ("#a, one value: p99 ms", "<= 2"),
    ("#c, one value: p50 ms", ""),
    ("#c, one value: p99 ms", "<= 2"),
    ("#a, 1,000 values, limit 500: p50 ms", ""),
    ("kinds + since + limit 500: p50 ms", ""),
    ("inventory of all: p50 ms", "<= 60"),
    ("  processor time, ms", ""),
    ("inventory of #a, 100 values: p50 ms", ""),
    ("saves/s while scanning, 8 writers", ""),
    ("scans/s meanwhile", ""),
    ("events held at the end", ""),
    ("bytes on disk per event", "<= 2,500"),
    ("RSS growth while writing, MB", ""),
    ("RSS growth at the end, MB", "<= 64"),
];

/// Events per batch when a relay is copied.
const BATCH_EVENTS: usize = 5_000;

/// Limits the time that one database may spend on loading in batches.
const MAX_LOADING_TIME: Duration = Duration::from_secs(120);

/// The rounds of each database with each number of writers, and the duration of one.
const ROUNDS: usize = 8;
const ROUND_DURATION: Duration = Duration::from_millis(500);

/// The part of the events that is loaded in batches first.
const INITIAL_PART: f64 = 0.7;

/// One database and its results.
pub(crate) struct Candidate {
    pub(crate) name: &'static str,
    /// One for each row that was measured.
    pub(crate) figures: Vec<Figure>,
    /// Events left out, because loading them took too long.
    pub(crate) late: usize,
    pub(crate) held: usize,
    database: Arc<dyn BenchDatabase>,
    dir: PathBuf,
    /// The number of initial events that were loaded.
    loaded: usize,
    loading: Duration,
    grown: f64,
}

pub(crate) async fn run(
    databases: &[(&'static str, Open)],
    dir: &Path,
    dataset: &Dataset,
) -> Vec<Candidate> {
    let mut candidates = Vec::new();
    for (name, open) in databases {
        candidates.push(Candidate::open(name, *open, &dir.join(name), dataset).await);
    }
    let mut events = dataset.events.as_slice();
    let initial = split(
        &mut events,
        (dataset.events.len() as f64 * INITIAL_PART) as usize,
    );
    for candidate in &mut candidates {
        candidate.load_initial(initial).await;
    }
    for writers in [1, 8, 64] {
        let share = split(&mut events, dataset.events.len() / 10);
        save_in_rounds(&mut candidates, share, writers).await;
    }
    for candidate in &mut candidates {
        candidate.load(events).await;
        let written = candidate.grown;
        candidate.read(dataset).await;
        candidate.save_while_scanning(dataset).await;
        candidate.end(written).await;
    }
    candidates
}

fn split<'e>(events: &mut &'e [Arc<Event>], count: usize) -> &'e [Arc<Event>] {
    let (taken, rest) = events.split_at(count.min(events.len()));
    *events = rest;
    taken
}

/// Saves one by one from several tasks, in rounds that alternate between the databases.
async fn save_in_rounds(candidates: &mut [Candidate], share: &[Arc<Event>], writers: usize) {
    let mut tallies: Vec<_> = candidates.iter().map(|_| Tally::default()).collect();
    for _ in 0..ROUNDS {
        for (candidate, tally) in candidates.iter_mut().zip(&mut tallies) {
            let before = resident();
            tally.run_round(&candidate.database, share, writers).await;
            candidate.grown += resident() - before;
        }
    }
    for (candidate, tally) in candidates.iter_mut().zip(tallies) {
        let saved = tally.saved as f64;
        candidate.note([saved / tally.took.as_secs_f64(), tally.worked * 1e6 / saved]);
        candidate.load(&share[tally.saved..]).await;
    }
}

/// The work of one database in its rounds.
#[derive(Default)]
struct Tally {
    saved: usize,
    took: Duration,
    worked: f64,
}

impl Tally {
    async fn run_round(
        &mut self,
        database: &Arc<dyn BenchDatabase>,
        share: &[Arc<Event>],
        writers: usize,
    ) {
        let rest = &share[self.saved..];
        let (start, worked) = (Instant::now(), processor());
        self.saved += saves(database, rest, writers, ROUND_DURATION).await;
        if !rest.is_empty() {
            self.took += start.elapsed();
            self.worked += processor() - worked;
        }
    }
}

/// Saves one by one from several tasks, for a time or until none is left. Returns the number of saved events.
async fn saves(
    database: &Arc<dyn BenchDatabase>,
    events: &[Arc<Event>],
    writers: usize,
    duration: Duration,
) -> usize {
    let shared: Arc<[Arc<Event>]> = events.into();
    let next = Arc::new(AtomicUsize::new(0));
    let start = Instant::now();
    let tasks = (0..writers).map(|_| {
        let (database, shared, next) =
            (Arc::clone(database), Arc::clone(&shared), Arc::clone(&next));
        tokio::spawn(async move {
            while start.elapsed() < duration {
                let Some(event) = shared.get(next.fetch_add(1, Ordering::Relaxed)) else {
                    return;
                };
                database.save(vec![Arc::clone(event)]).await;
            }
        })
    });
    join_all(tasks.collect::<Vec<_>>()).await;
    next.load(Ordering::Relaxed).min(events.len())
}

impl Candidate {
    async fn open(name: &'static str, open: Open, dir: &Path, dataset: &Dataset) -> Self {
        fs::create_dir_all(dir).unwrap();
        let before = resident();
        let database = open(dir.to_owned(), dataset.now).await;
        Self {
            name,
            figures: Vec::new(),
            late: 0,
            held: 0,
            database,
            dir: dir.to_owned(),
            loaded: 0,
            loading: Duration::ZERO,
            grown: resident() - before,
        }
    }

    fn note(&mut self, figures: impl IntoIterator<Item = impl Into<Figure>>) {
        self.figures.extend(figures.into_iter().map(Into::into));
    }

    /// Loads the events that the other measurements work with.
    async fn load_initial(&mut self, initial: &[Arc<Event>]) {
        let (start, worked) = (Instant::now(), processor());
        self.loaded = self.load(initial).await;
        let (took, worked) = (start.elapsed().as_secs_f64(), processor() - worked);
        let loaded = self.loaded as f64;
        self.note([loaded / took, worked * 1e6 / loaded]);
        println!(
            "{}: {} events in batches took {took:.1} s",
            self.name, self.loaded
        );
    }

    /// Saves events in batches within the time limit. Returns the number of saved events.
    async fn load(&mut self, events: &[Arc<Event>]) -> usize {
        let before = resident();
        let mut loaded = 0;
        for batch in events.chunks(BATCH_EVENTS) {
            if self.loading > MAX_LOADING_TIME {
                break;
            }
            let start = Instant::now();
            self.database.save(batch.to_vec()).await;
            self.loading += start.elapsed();
            loaded += batch.len();
        }
        self.grown += resident() - before;
        self.late += events.len() - loaded;
        loaded
    }

    async fn read(&mut self, dataset: &Dataset) {
        let (before, database) = (resident(), Arc::clone(&self.database));
        let about = |values: &[String]| {
            Filter::new().custom_tags(SingleLetterTag::LOWERCASE_A, values.to_vec())
        };
        let one = |n: usize| about(&dataset.coordinates[n * 37 % 1_000..][..1]);
        let built = |n: usize| {
            let commit = built_commit(n * 37);
            Filter::new().custom_tag(SingleLetterTag::LOWERCASE_C, commit)
        };
        let middle = dataset.events[self.loaded / 2].created_at;
        let kinds = || {
            let kinds = [1_617, 1_618, 1_621].map(Kind::from_u16);
            Filter::new().kinds(kinds).since(middle).limit(500)
        };
        let issues = dataset.events[..self.loaded]
            .iter()
            .filter(|event| event.kind.as_u16() == 1_621);
        let issues: Vec<_> = issues.map(|event| event.id).collect();
        let by_id = |n: usize| Filter::new().id(issues[n * 7 % issues.len()]);
        let known = Times::of(500, |n| database.query(by_id(n))).await;
        let start = Instant::now();
        let reader = |_| async { drop(Times::of(500, |n| database.query(by_id(n))).await) };
        join_all((0..8).map(reader)).await;
        let rate = 8.0 * 500.0 / start.elapsed().as_secs_f64();
        let single = Times::of(500, |n| database.query(one(n))).await;
        // A database that needs seconds for one value takes minutes for this, and cannot be interrupted.
        let is_quick = single.at(0.5).value.is_some_and(|millis| millis < 500.0);
        let results = if is_quick {
            let times = Times::of(500, |n| database.query(built(n))).await;
            [times.at(0.5), times.at(0.99)]
        } else {
            [Figure::default(), Figure::default()]
        };
        let many = Times::of(20, |_| {
            database.query(about(&dataset.coordinates).limit(500))
        })
        .await;
        let recent = Times::of(50, |_| database.query(kinds())).await;
        let worked = processor();
        let all = Times::of(10, |_| database.inventory(Filter::new())).await;
        let worked = (processor() - worked) * 1e3 / all.len() as f64;
        self.note([known.at(0.5), rate.into()]);
        self.note([single.at(0.5), single.at(0.99)]);
        self.note(results);
        self.note([many.at(0.5), recent.at(0.5), all.at(0.5)]);
        self.note([worked]);
        self.note([match is_quick {
            true => {
                let some = |n: usize| about(&dataset.coordinates[n..n + 100]);
                Times::of(20, |n| database.inventory(some(n))).await.at(0.5)
            }
            false => Figure::default(),
        }]);
        self.grown += resident() - before;
    }

    /// Saves while another task scans all events repeatedly.
    async fn save_while_scanning(&mut self, dataset: &Dataset) {
        let before = resident();
        let done = Arc::new(AtomicBool::new(false));
        // A time that all databases can represent.
        let everything = Filter::new().until(dataset.now).limit(50_000);
        let scan = {
            let (database, done) = (Arc::clone(&self.database), Arc::clone(&done));
            tokio::spawn(async move {
                let (start, mut scans) = (Instant::now(), 0.0);
                while !done.load(Ordering::Relaxed) {
                    assert!(
                        database.query(everything.clone()).await > 0,
                        "the scan found nothing"
                    );
                    scans += 1.0;
                }
                scans / start.elapsed().as_secs_f64()
            })
        };
        let start = Instant::now();
        let saved = saves(
            &self.database,
            &dataset.extra,
            8,
            ROUND_DURATION * ROUNDS as u32,
        )
        .await;
        let rate = saved as f64 / start.elapsed().as_secs_f64();
        done.store(true, Ordering::Relaxed);
        self.note([rate, scan.await.unwrap()]);
        self.grown += resident() - before;
    }

    async fn end(&mut self, written: f64) {
        let before = resident();
        self.held = self.database.inventory(Filter::new()).await;
        self.grown += resident() - before;
        self.database.close().await;
        let held = self.held as f64;
        self.note([held, size(&self.dir) / held, written, self.grown]);
    }
}
