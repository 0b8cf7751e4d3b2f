//! The same course for every database.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use nostr::event::{Event, Kind};
use nostr::filter::{Filter, SingleLetterTag};
use nostr::types::Timestamp;

use crate::events::World;
use crate::house::{House, Open};
use crate::processor::processor;

/// What is measured, and what we want of our own store.
pub(crate) const ROWS: [(&str, &str); 16] = [
    ("durable saves/s, batches of 5,000", ">= 15,000"),
    ("  processor time per event, µs", ""),
    ("durable saves/s, 1 writer", ""),
    ("durable saves/s, 8 writers", ""),
    ("durable saves/s, 64 writers", ">= 4,000"),
    ("#a, one value: p50 ms", ""),
    ("#a, one value: p99 ms", "<= 2"),
    ("#a, 1,000 values, limit 500: p50 ms", ""),
    ("kinds + since + limit 500: p50 ms", ""),
    ("inventory of all: p50 ms", "<= 60"),
    ("inventory of #a, 100 values: p50 ms", ""),
    ("saves/s while scanning, 8 writers", ""),
    ("scans/s meanwhile", ""),
    ("bytes on disk per event", "<= 2,500"),
    ("RSS growth while writing, MB", ""),
    ("RSS growth at the end, MB", "<= 64"),
];

pub(crate) type Result = [f64; ROWS.len()];

/// Events that are handed over at once when a relay is copied.
const BATCH: usize = 5_000;

/// How long a measurement of saves lasts, unless it runs out of events.
const SPELL: Duration = Duration::from_secs(4);

/// The part of the events that is loaded in batches before anything else.
const FOUNDATION: f64 = 0.7;

pub(crate) async fn run(open: Open, dir: &Path, world: &World) -> Result {
    let before = resident();
    let house = open(dir.to_owned(), world.now).await;
    let mut events = world.events.as_slice();
    let mut figures = Vec::new();

    let foundation = split(&mut events, (world.events.len() as f64 * FOUNDATION) as usize);
    let worked = processor();
    figures.push(batched(&house, foundation).await);
    figures.push((processor() - worked) * 1e6 / foundation.len() as f64);
    for writers in [1, 8, 64] {
        let share = split(&mut events, world.events.len() / 10);
        let (rate, left) = saves(&house, share, writers).await;
        figures.push(rate);
        batched(&house, left).await;
    }
    batched(&house, events).await;
    let written = resident();

    figures.extend(reads(&house, world).await);
    figures.extend(both(&house, world).await);
    let stored = house.inventory(Filter::new()).await;
    let last = resident();
    house.close().await;
    figures.push(size(dir) / stored as f64);
    figures.extend([written - before, last - before]);
    figures.try_into().unwrap()
}

fn split<'e>(events: &mut &'e [Arc<Event>], count: usize) -> &'e [Arc<Event>] {
    let (taken, rest) = events.split_at(count.min(events.len()));
    *events = rest;
    taken
}

async fn batched(house: &Arc<dyn House>, events: &[Arc<Event>]) -> f64 {
    let start = Instant::now();
    for batch in events.chunks(BATCH) {
        house.save(batch.to_vec()).await;
    }
    events.len() as f64 / start.elapsed().as_secs_f64()
}

/// Saves one by one from several tasks for a while. Gives back what was left over.
async fn saves<'e>(
    house: &Arc<dyn House>,
    events: &'e [Arc<Event>],
    writers: usize,
) -> (f64, &'e [Arc<Event>]) {
    let shared: Arc<[Arc<Event>]> = events.into();
    let next = Arc::new(AtomicUsize::new(0));
    let start = Instant::now();
    let tasks = (0..writers).map(|_| {
        let (house, shared, next) = (Arc::clone(house), Arc::clone(&shared), Arc::clone(&next));
        tokio::spawn(async move {
            while start.elapsed() < SPELL {
                let Some(event) = shared.get(next.fetch_add(1, Ordering::Relaxed)) else {
                    return;
                };
                house.save(vec![Arc::clone(event)]).await;
            }
        })
    });
    join_all(tasks.collect::<Vec<_>>()).await;
    let saved = next.load(Ordering::Relaxed).min(events.len());
    (saved as f64 / start.elapsed().as_secs_f64(), &events[saved..])
}

async fn reads(house: &Arc<dyn House>, world: &World) -> Vec<f64> {
    let about = |values: &[String]| {
        Filter::new().custom_tags(SingleLetterTag::LOWERCASE_A, values.to_vec())
    };
    let one = |n: usize| about(&world.coordinates[n * 37 % 1_000..][..1]);
    let middle = world.events[world.events.len() / 2].created_at;
    let kinds = || {
        let kinds = [1_617, 1_618, 1_621].map(Kind::from_u16);
        Filter::new().kinds(kinds).since(middle).limit(500)
    };
    let single = times(500, |n| house.query(one(n))).await;
    let many = times(20, |_| house.query(about(&world.coordinates).limit(500))).await;
    let recent = times(50, |_| house.query(kinds())).await;
    let all = times(10, |_| house.inventory(Filter::new())).await;
    let some = times(20, |n| house.inventory(about(&world.coordinates[n..n + 100]))).await;
    let p = |times: &[f64], part: f64| times[((times.len() - 1) as f64 * part) as usize];
    vec![
        p(&single, 0.5),
        p(&single, 0.99),
        p(&many, 0.5),
        p(&recent, 0.5),
        p(&all, 0.5),
        p(&some, 0.5),
    ]
}

/// How long each of several calls takes, in ascending order of milliseconds; slow ones are not repeated for ever.
async fn times<'h, F>(count: usize, call: impl Fn(usize) -> F) -> Vec<f64>
where
    F: Future<Output = usize> + 'h,
{
    let begin = Instant::now();
    let mut times = Vec::new();
    for n in 0..count {
        let start = Instant::now();
        assert!(call(n).await > 0, "every question has an answer");
        times.push(start.elapsed().as_secs_f64() * 1_000.0);
        if begin.elapsed() > 5 * SPELL {
            break;
        }
    }
    times.sort_by(f64::total_cmp);
    times
}

/// Saves while somebody reads everything again and again.
async fn both(house: &Arc<dyn House>, world: &World) -> [f64; 2] {
    let done = Arc::new(AtomicBool::new(false));
    let scan = {
        let (house, done) = (Arc::clone(house), Arc::clone(&done));
        tokio::spawn(async move {
            let (start, mut scans) = (Instant::now(), 0.0);
            while !done.load(Ordering::Relaxed) {
                house.query(Filter::new().until(Timestamp::max()).limit(50_000)).await;
                scans += 1.0;
            }
            scans / start.elapsed().as_secs_f64()
        })
    };
    let (rate, _) = saves(house, &world.extra, 8).await;
    done.store(true, Ordering::Relaxed);
    [rate, scan.await.unwrap()]
}

/// Bytes really taken from the disk: a database may have made its file longer than it is.
fn size(dir: &Path) -> f64 {
    use std::os::unix::fs::MetadataExt;
    let files = fs::read_dir(dir).unwrap().map(|file| file.unwrap().metadata().unwrap());
    files.map(|file| (file.blocks() * 512) as f64).sum()
}

/// Megabytes of memory this process occupies.
fn resident() -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kilobytes.unwrap_or_default() / 1_024.0
}
