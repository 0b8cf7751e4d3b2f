//! The hunt at work: many repositories on three git servers, one of which says nothing; and two servers in step.
//!
//! `cargo bench -p grasp-tests --bench hunt`

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use grasp_tests::{GitServer, Instance, Maker, Manner, Workdir};
use nostr::event::Event;

const IDENTIFIERS: usize = 200;
const MAIN: &str = "refs/heads/main";

#[tokio::main]
async fn main() {
    many_repositories().await;
    two_servers().await;
}

/// What the machine is used for meanwhile, at most.
#[derive(Default)]
struct Peaks {
    processes: AtomicUsize,
    kib: AtomicUsize,
    over: AtomicBool,
}

async fn many_repositories() {
    let manners = [Manner::Honest, Manner::Honest, Manner::Silent];
    let mut servers = Vec::new();
    let work = Workdir::init().await;
    let commit = work.commit("first").await;
    for (n, manner) in (1..).zip(manners) {
        let server = GitServer::at(&format!("127.0.0.{n}"), Manner::Honest).await;
        server.host("all", &work).await;
        (0..IDENTIFIERS).for_each(|n| server.alias(&format!("r{n}"), "all"));
        server.behave(manner);
        servers.push(server);
    }
    let instance = Instance::with(|settings| {
        settings.outbound.allow_private = true;
        let per_host = &mut settings.hunt.per_host;
        per_host.at_once = NonZeroUsize::new(16).expect("not zero");
        per_host.starts = NonZeroUsize::new(10_000).expect("not zero");
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
    for n in 0..IDENTIFIERS {
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

    println!("{IDENTIFIERS} repositories, 3 servers, one silent");
    println!("  offered in          {offered:>10.2?}");
    println!("  all released in     {took:>10.2?}   (wanted: 30 s)");
    for server in &servers {
        let (talks, most) = (server.conversations().len(), server.most_open());
        println!("  {:<19} {talks:>6} conversations, {most} questions at once", server.address());
    }
    println!("  git processes       {:>6} at once", peaks.processes.load(Ordering::Relaxed));
    let growth = peaks.kib.load(Ordering::Relaxed).saturating_sub(before) / 1024;
    println!("  memory grew by      {growth:>6} MiB   (wanted: 48; servers of the bench included)");
}

/// One server follows another that it knows as its bootstrap relay alone, at default timings.
async fn two_servers() {
    let a = instance(&[]).await;
    let b = instance(&[&a]).await;
    let alice = Maker::new();
    let work = Workdir::init().await;
    let (mut first, mut update) = (Vec::new(), Vec::new());
    for n in 0..5 {
        let name = format!("r{n}");
        let commit = work.commit(&format!("first of {name}")).await;
        let places = [a.clone_url(&alice.repo(&name)), b.clone_url(&alice.repo(&name))];
        let announcement = announce_at(&alice, &name, &[&a, &b], &places);
        let state = alice.state(&name, &[(MAIN, &commit)]);
        a.take(vec![announcement, state.clone()]).await;
        first.push(pushed(&work, &a, &alice, &name, &b, &state).await);
        let commit = work.commit(&format!("second of {name}")).await;
        let state = alice.later(1).state(&name, &[(MAIN, &commit)]);
        a.take(vec![state.clone()]).await;
        update.push(pushed(&work, &a, &alice, &name, &b, &state).await);
    }
    println!("two servers, from the end of a push to one until the other serves it");
    println!("  a new repository    {first:.2?}   (wanted: 1.0 s)");
    println!("  an update           {update:.2?}   (wanted: 0.8 s)");
}

async fn pushed(
    work: &Workdir,
    to: &Instance,
    owner: &Maker,
    name: &str,
    other: &Instance,
    state: &Event,
) -> Duration {
    work.git(&["push", "-q", &to.clone_url(&owner.repo(name)), "main"]).await.expect_ok();
    let start = Instant::now();
    other.until_serves(state).await;
    start.elapsed()
}

async fn instance(bootstrap: &[&Instance]) -> Instance {
    Instance::with(|settings| {
        settings.outbound.allow_private = true;
        let sync = &mut settings.sync;
        let relays = bootstrap.iter().map(|other| other.relay_url().parse().expect("a relay"));
        sync.engine.bootstrap = relays.collect();
    })
    .await
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

/// How many processes talk to the servers of the bench.
fn conversations() -> usize {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let lines = all.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    let talks = |line: &Vec<u8>| String::from_utf8_lossy(line).contains("http://127.0.0.");
    lines.filter(talks).count()
}

/// The memory of this process, in KiB.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or_default()
}
