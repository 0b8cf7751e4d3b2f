//! The hunt at work: many repositories on three git servers, one of which says nothing; and two servers in step.
//!
//! `cargo bench -p grasp-tests --bench hunt` runs both; `-- many` or `-- two` chooses. `GRASP_BENCH_IDENTIFIERS` (200)
//! and `GRASP_BENCH_ROUNDS` (5) set their sizes.

#[path = "hunt/two.rs"]
mod two;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use grasp_tests::{GitServer, Instance, Maker, Manner, Workdir};
use nostr::event::Event;

const MAIN: &str = "refs/heads/main";

/// Conversations with one host at once: the default, raised for loopback.
const AT_ONCE: usize = 16;

/// Conversations with one host in a minute: raised likewise.
const PER_MINUTE: usize = 10_000;

#[tokio::main]
async fn main() {
    let chosen: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let is_chosen = |name: &str| chosen.is_empty() || chosen.iter().any(|part| part == name);
    if is_chosen("many") {
        many_repositories(number("GRASP_BENCH_IDENTIFIERS", 200)).await;
    }
    if is_chosen("two") {
        two::two_servers(number("GRASP_BENCH_ROUNDS", 5)).await;
    }
}

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// What the machine is used for meanwhile, at most.
#[derive(Default)]
struct Peaks {
    processes: AtomicUsize,
    kib: AtomicUsize,
    over: AtomicBool,
}

async fn many_repositories(identifiers: usize) {
    let manners = [Manner::Honest, Manner::Honest, Manner::Silent];
    let mut servers = Vec::new();
    let work = Workdir::init().await;
    let commit = work.commit("first").await;
    for (n, manner) in (1..).zip(manners) {
        let server = GitServer::at(&format!("127.0.0.{n}"), Manner::Honest).await;
        server.host("all", &work).await;
        (0..identifiers).for_each(|n| server.alias(&format!("r{n}"), "all"));
        server.behave(manner);
        servers.push(server);
    }
    let instance = Instance::with(|settings| {
        settings.outbound.allow_private = true;
        let per_host = &mut settings.hunt.per_host;
        per_host.at_once = NonZeroUsize::new(AT_ONCE).expect("not zero");
        per_host.starts = NonZeroUsize::new(PER_MINUTE).expect("not zero");
    })
    .await;

    let alice = Maker::new();
    let mut states: BTreeMap<usize, Event> = BTreeMap::new();
    let before = resident();
    let peaks = Arc::new(Peaks::default());
    let watch = std::thread::spawn({
        let peaks = Arc::clone(&peaks);
        move || watch(&peaks)
    });
    let start = Instant::now();
    for n in 0..identifiers {
        let name = format!("r{n}");
        // Each of them comes first for a third of the repositories.
        let places: Vec<String> = (0..3).map(|place| servers[(n + place) % 3].url(&name)).collect();
        let state = alice.state(&name, &[(MAIN, &commit)]);
        instance.sync(vec![announce(&alice, &name, &instance, &places), state.clone()]).await;
        states.insert(n, state);
    }
    let offered = start.elapsed();
    for state in states.values() {
        instance.until_serves(state).await;
    }
    let took = start.elapsed();
    peaks.over.store(true, Ordering::Relaxed);
    watch.join().expect("watching does not panic");

    println!("{identifiers} repositories, 3 servers, one silent");
    println!("  offered in          {offered:>10.2?}");
    println!("  all released in     {took:>10.2?}   (wanted: 30 s)");
    for server in &servers {
        let (talks, most) = (server.conversations().len(), server.most_open());
        println!(
            "  {:<19} {talks:>6} conversations, {most} at once   (allowed: {PER_MINUTE} a minute, {AT_ONCE})",
            server.address()
        );
    }
    println!("  git processes       {:>6} at once", peaks.processes.load(Ordering::Relaxed));
    let growth = peaks.kib.load(Ordering::Relaxed).saturating_sub(before) / 1024;
    println!("  memory grew by      {growth:>6} MiB   (wanted: 48; servers of the bench included)");
}

fn announce(owner: &Maker, name: &str, on: &Instance, places: &[String]) -> Event {
    let ours = on.clone_url(&owner.repo(name));
    let places: Vec<String> = [ours].into_iter().chain(places.iter().cloned()).collect();
    announce_at(owner, name, &[on], &places)
}

fn announce_at(owner: &Maker, name: &str, on: &[&Instance], places: &[String]) -> Event {
    let relays: Vec<String> = on.iter().map(|instance| instance.relay_url()).collect();
    let list = |word, values: &[String]| {
        [word].into_iter().map(str::to_owned).chain(values.iter().cloned()).collect::<Vec<_>>()
    };
    let (clone, relays) = (list("clone", places), list("relays", &relays));
    let clone: Vec<&str> = clone.iter().map(String::as_str).collect();
    let relays: Vec<&str> = relays.iter().map(String::as_str).collect();
    owner.sign(30617, "", &[&["d", name], &clone, &relays])
}

/// Looks at processes and memory until it is told to stop.
fn watch(peaks: &Peaks) {
    while !peaks.over.load(Ordering::Relaxed) {
        peaks.processes.fetch_max(conversations(), Ordering::Relaxed);
        peaks.kib.fetch_max(resident(), Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// How many processes talk to the servers of the bench: those that we started for it, and what they started.
fn conversations() -> usize {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let line = |group: u32| std::fs::read(format!("/proc/{group}/cmdline")).unwrap_or_default();
    let groups = all.filter_map(|entry| {
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
        fields.get(2)?.parse::<u32>().ok()
    });
    let talks = |line: Vec<u8>| String::from_utf8_lossy(&line).contains("http://127.0.0.");
    groups.filter(|group| is_child(*group) && talks(line(*group))).count()
}

/// Whether a process is one that we started.
fn is_child(id: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1));
    parent.is_some_and(|parent| parent == std::process::id().to_string())
}

/// The memory of this process, in KiB.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or_default()
}
