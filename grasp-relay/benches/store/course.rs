//! The same course for every database.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use nostr::event::{Event, Kind};
use nostr::filter::{Filter, SingleLetterTag};

use crate::events::World;
use crate::house::{House, Open};
use crate::measure::{Figure, Times, resident, size};
use crate::processor::processor;

/// What is measured, and what we want of our own store.
pub(crate) const ROWS: [(&str, &str); 23] = [
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

/// Events that are handed over at once when a relay is copied.
const BATCH: usize = 5_000;

/// How long everything that is loaded in batches may take one database; others would wait for too long.
const LOADING: Duration = Duration::from_secs(120);

/// Turns that each database gets with each number of writers, and how long one lasts.
const TURNS: usize = 8;
const TURN: Duration = Duration::from_millis(500);

/// The part of the events that is loaded in batches before anything else.
const FOUNDATION: f64 = 0.7;

/// One database on its way.
pub(crate) struct Contender {
    pub(crate) name: &'static str,
    /// One for each row that is behind it.
    pub(crate) figures: Vec<Figure>,
    /// Events left out, because loading them took too long.
    pub(crate) late: usize,
    pub(crate) held: usize,
    house: Arc<dyn House>,
    dir: PathBuf,
    /// The part of the foundation that was loaded.
    loaded: usize,
    loading: Duration,
    grown: f64,
}

pub(crate) async fn run(
    houses: &[(&'static str, Open)],
    dir: &Path,
    world: &World,
) -> Vec<Contender> {
    let mut contenders = Vec::new();
    for (name, open) in houses {
        contenders.push(Contender::open(name, *open, &dir.join(name), world).await);
    }
    let mut events = world.events.as_slice();
    let foundation = split(&mut events, (world.events.len() as f64 * FOUNDATION) as usize);
    for contender in &mut contenders {
        contender.found(foundation).await;
    }
    for writers in [1, 8, 64] {
        let share = split(&mut events, world.events.len() / 10);
        in_turns(&mut contenders, share, writers).await;
    }
    for contender in &mut contenders {
        contender.load(events).await;
        let written = contender.grown;
        contender.read(world).await;
        contender.both(world).await;
        contender.end(written).await;
    }
    contenders
}

fn split<'e>(events: &mut &'e [Arc<Event>], count: usize) -> &'e [Arc<Event>] {
    let (taken, rest) = events.split_at(count.min(events.len()));
    *events = rest;
    taken
}

/// Saves one by one from several tasks, every database for a moment, again and again.
async fn in_turns(contenders: &mut [Contender], share: &[Arc<Event>], writers: usize) {
    let mut tallies: Vec<_> = contenders.iter().map(|_| Tally::default()).collect();
    for _ in 0..TURNS {
        for (contender, tally) in contenders.iter_mut().zip(&mut tallies) {
            let before = resident();
            tally.turn(&contender.house, share, writers).await;
            contender.grown += resident() - before;
        }
    }
    for (contender, tally) in contenders.iter_mut().zip(tallies) {
        let saved = tally.saved as f64;
        contender.note([saved / tally.took.as_secs_f64(), tally.worked * 1e6 / saved]);
        contender.load(&share[tally.saved..]).await;
    }
}

/// What one database did in its turns.
#[derive(Default)]
struct Tally {
    saved: usize,
    took: Duration,
    worked: f64,
}

impl Tally {
    async fn turn(&mut self, house: &Arc<dyn House>, share: &[Arc<Event>], writers: usize) {
        let rest = &share[self.saved..];
        let (start, worked) = (Instant::now(), processor());
        self.saved += saves(house, rest, writers, TURN).await;
        if !rest.is_empty() {
            self.took += start.elapsed();
            self.worked += processor() - worked;
        }
    }
}

/// Saves one by one from several tasks, for a while or until there is nothing left. Says how many.
async fn saves(
    house: &Arc<dyn House>,
    events: &[Arc<Event>],
    writers: usize,
    spell: Duration,
) -> usize {
    let shared: Arc<[Arc<Event>]> = events.into();
    let next = Arc::new(AtomicUsize::new(0));
    let start = Instant::now();
    let tasks = (0..writers).map(|_| {
        let (house, shared, next) = (Arc::clone(house), Arc::clone(&shared), Arc::clone(&next));
        tokio::spawn(async move {
            while start.elapsed() < spell {
                let Some(event) = shared.get(next.fetch_add(1, Ordering::Relaxed)) else {
                    return;
                };
                house.save(vec![Arc::clone(event)]).await;
            }
        })
    });
    join_all(tasks.collect::<Vec<_>>()).await;
    next.load(Ordering::Relaxed).min(events.len())
}

impl Contender {
    async fn open(name: &'static str, open: Open, dir: &Path, world: &World) -> Self {
        fs::create_dir_all(dir).unwrap();
        let before = resident();
        let house = open(dir.to_owned(), world.now).await;
        Self {
            name,
            figures: Vec::new(),
            late: 0,
            held: 0,
            house,
            dir: dir.to_owned(),
            loaded: 0,
            loading: Duration::ZERO,
            grown: resident() - before,
        }
    }

    fn note(&mut self, figures: impl IntoIterator<Item = impl Into<Figure>>) {
        self.figures.extend(figures.into_iter().map(Into::into));
    }

    /// Loads what everything else is measured upon.
    async fn found(&mut self, foundation: &[Arc<Event>]) {
        let (start, worked) = (Instant::now(), processor());
        self.loaded = self.load(foundation).await;
        let (took, worked) = (start.elapsed().as_secs_f64(), processor() - worked);
        let loaded = self.loaded as f64;
        self.note([loaded / took, worked * 1e6 / loaded]);
        println!("{}: {} events in batches took {took:.1} s", self.name, self.loaded);
    }

    /// Saves events in batches, as long as there is time for it. Says how many.
    async fn load(&mut self, events: &[Arc<Event>]) -> usize {
        let before = resident();
        let mut loaded = 0;
        for batch in events.chunks(BATCH) {
            if self.loading > LOADING {
                break;
            }
            let start = Instant::now();
            self.house.save(batch.to_vec()).await;
            self.loading += start.elapsed();
            loaded += batch.len();
        }
        self.grown += resident() - before;
        self.late += events.len() - loaded;
        loaded
    }

    async fn read(&mut self, world: &World) {
        let (before, house) = (resident(), Arc::clone(&self.house));
        let about = |values: &[String]| {
            Filter::new().custom_tags(SingleLetterTag::LOWERCASE_A, values.to_vec())
        };
        let one = |n: usize| about(&world.coordinates[n * 37 % 1_000..][..1]);
        let middle = world.events[self.loaded / 2].created_at;
        let kinds = || {
            let kinds = [1_617, 1_618, 1_621].map(Kind::from_u16);
            Filter::new().kinds(kinds).since(middle).limit(500)
        };
        let issues =
            world.events[..self.loaded].iter().filter(|event| event.kind.as_u16() == 1_621);
        let issues: Vec<_> = issues.map(|event| event.id).collect();
        let by_id = |n: usize| Filter::new().id(issues[n * 7 % issues.len()]);
        let known = Times::of(500, |n| house.query(by_id(n))).await;
        let start = Instant::now();
        let reader = |_| async { drop(Times::of(500, |n| house.query(by_id(n))).await) };
        join_all((0..8).map(reader)).await;
        let rate = 8.0 * 500.0 / start.elapsed().as_secs_f64();
        let single = Times::of(500, |n| house.query(one(n))).await;
        let many = Times::of(20, |_| house.query(about(&world.coordinates).limit(500))).await;
        let recent = Times::of(50, |_| house.query(kinds())).await;
        let worked = processor();
        let all = Times::of(10, |_| house.inventory(Filter::new())).await;
        let worked = (processor() - worked) * 1e3 / all.len() as f64;
        self.note([known.at(0.5), rate.into()]);
        self.note([single.at(0.5), single.at(0.99), many.at(0.5), recent.at(0.5), all.at(0.5)]);
        self.note([worked]);
        // Whoever needs seconds for one value would need minutes for a hundred, and cannot be interrupted.
        let is_quick = single.at(0.5).value.is_some_and(|millis| millis < 500.0);
        self.note([match is_quick {
            true => {
                let some = |n: usize| about(&world.coordinates[n..n + 100]);
                Times::of(20, |n| house.inventory(some(n))).await.at(0.5)
            }
            false => Figure::default(),
        }]);
        self.grown += resident() - before;
    }

    /// Saves while somebody reads everything again and again.
    async fn both(&mut self, world: &World) {
        let before = resident();
        let done = Arc::new(AtomicBool::new(false));
        // A time that all of them can hold.
        let everything = Filter::new().until(world.now).limit(50_000);
        let scan = {
            let (house, done) = (Arc::clone(&self.house), Arc::clone(&done));
            tokio::spawn(async move {
                let (start, mut scans) = (Instant::now(), 0.0);
                while !done.load(Ordering::Relaxed) {
                    assert!(
                        house.query(everything.clone()).await > 0,
                        "there is something to scan"
                    );
                    scans += 1.0;
                }
                scans / start.elapsed().as_secs_f64()
            })
        };
        let start = Instant::now();
        let saved = saves(&self.house, &world.extra, 8, TURN * TURNS as u32).await;
        let rate = saved as f64 / start.elapsed().as_secs_f64();
        done.store(true, Ordering::Relaxed);
        self.note([rate, scan.await.unwrap()]);
        self.grown += resident() - before;
    }

    async fn end(&mut self, written: f64) {
        let before = resident();
        self.held = self.house.inventory(Filter::new()).await;
        self.grown += resident() - before;
        self.house.close().await;
        let held = self.held as f64;
        self.note([held, size(&self.dir) / held, written, self.grown]);
    }
}
