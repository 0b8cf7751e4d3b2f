//! The sync index at the scale it is made for, and at ten times that: figures beside what is wanted of them.
//!
//! `cargo bench -p grasp-core --bench sync`. Times are the quickest of many runs: whatever else the machine does
//! only adds to them. Bytes are counted by the allocator and do not vary.

#![allow(clippy::disallowed_methods, reason = "a bench reads the clock")]

use std::collections::BTreeSet;
use std::hint::black_box;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use grasp_core::sync::{
    AddFilters, IndexChange, PendingSyncIndex, RelayState, RelaySyncIndex, RequestBudget, RootId,
    SyncIndex, SyncLevel, compute_actions, derive_relay_targets, pack_requests,
};
use grasp_core::{RelayUrl, RepoId, ServiceIdentity};
use nostr::event::EventId;
use nostr::key::PublicKey;
use nostr::types::Timestamp;
use peak_alloc::PeakAlloc;

static HEAP: PeakAlloc = PeakAlloc;

const REPOS: usize = 1_000;
const ROOTS_PER_REPO: usize = 50;
const RELAYS: usize = 100;
const RELAYS_PER_REPO: usize = 5;
const BATCH: usize = 10;

fn main() -> ExitCode {
    // `cargo test --all-targets` runs this without the flag, and wants no figures.
    if !std::env::args().any(|arg| arg == "--bench") {
        return ExitCode::SUCCESS;
    }
    let mut report = Report::default();
    if std::env::args().any(|arg| arg == "--prof") {
        let mut index = filled_index(if std::env::args().any(|a| a == "--ten") { 10 * REPOS } else { REPOS });
        let mut relays = connected_relays();
        let acts = compute_actions(
            &derive_relay_targets(index.repos(), &us(), &BTreeSet::new()),
            &PendingSyncIndex::new(),
            &relays,
        );
        confirm(&mut relays, acts);
        let pending = PendingSyncIndex::new();
        let mut best = [Duration::MAX; 4];
        let empty = connected_relays();
        for _ in 0..60 {
            let t0 = Instant::now();
            let targets = derive_relay_targets(index.repos(), &us(), &BTreeSet::new());
            let t1 = Instant::now();
            let a = compute_actions(&targets, &pending, &empty);
            let t2 = Instant::now();
            let b = compute_actions(&targets, &pending, &relays);
            let t3 = Instant::now();
            drop(targets);
            let t4 = Instant::now();
            black_box((a, b));
            for (b, d) in best.iter_mut().zip([t1 - t0, t2 - t1, t3 - t2, t4 - t3]) {
                *b = (*b).min(d);
            }
        }
        println!(
            "derive {:?} all-new {:?} all-conf {:?} drop {:?}",
            best[0], best[1], best[2], best[3]
        );
        let fresh = 1_000_000..1_000_000 + BATCH;
        let changes: Vec<_> = fresh.clone().flat_map(changes_of).collect();
        let undo: Vec<_> = fresh.flat_map(undoing).collect();
        let mut best = [Duration::MAX; 3];
        for _ in 0..2000 {
            let changes = changes.clone();
            let t0 = Instant::now();
            let delta = index.apply(changes);
            let t1 = Instant::now();
            let a = compute_actions(&delta.added, &pending, &relays);
            let t2 = Instant::now();
            index.apply(undo.clone());
            let t3 = Instant::now();
            black_box(a);
            for (b, d) in best.iter_mut().zip([t1 - t0, t2 - t1, t3 - t2]) {
                *b = (*b).min(d);
            }
        }
        println!("{best:?}");
        return ExitCode::SUCCESS;
    }
    println!(
        "target: {REPOS} repositories x {ROOTS_PER_REPO} roots, {RELAYS} relays, {RELAYS_PER_REPO} each"
    );
    let batch_at_target = at_target(&mut report);
    println!("ten times: {} repositories", 10 * REPOS);
    at_ten_times(&mut report, batch_at_target);
    report.verdict()
}

fn at_target(report: &mut Report) -> Duration {
    let before = HEAP.current_usage();
    let mut index = filled_index(REPOS);
    let held = HEAP.current_usage() - before;
    report.bytes("index memory", held, Some(12_000_000));

    let (us, none) = (us(), BTreeSet::new());
    let mut relays = connected_relays();
    let pending = PendingSyncIndex::new();
    let whole = || {
        let targets = derive_relay_targets(index.repos(), &us, &none);
        compute_actions(&targets, &pending, &relays)
    };
    let wanted = Some(Duration::from_millis(25));
    report.time(
        "full derive + compute, all new",
        quickest(21, whole),
        wanted,
    );

    let actions = whole();
    build_filters(report, &actions);
    confirm(&mut relays, actions);
    let both = HEAP.current_usage() - before;
    report.bytes("index + everything confirmed at every relay", both, None);
    let whole = || {
        let targets = derive_relay_targets(index.repos(), &us, &none);
        compute_actions(&targets, &pending, &relays)
    };
    report.time(
        "full derive + compute, all confirmed",
        quickest(21, whole),
        wanted,
    );

    let relay = relay(0);
    let one = || index.target(&relay);
    report.time("target of one relay, written out", quickest(101, one), None);

    let took = batch(&mut index, &relays);
    report.time(
        "incremental batch of 10 new repositories",
        took,
        Some(Duration::from_millis(1)),
    );
    took
}

fn at_ten_times(report: &mut Report, batch_at_target: Duration) {
    let before = HEAP.current_usage();
    let mut index = filled_index(10 * REPOS);
    report.bytes("index memory", HEAP.current_usage() - before, None);

    let mut relays = connected_relays();
    let (us, none, pending) = (us(), BTreeSet::new(), PendingSyncIndex::new());
    let whole = || {
        let targets = derive_relay_targets(index.repos(), &us, &none);
        compute_actions(&targets, &pending, &relays)
    };
    report.time("full derive + compute, all new", quickest(3, whole), None);
    let actions = whole();
    confirm(&mut relays, actions);
    let took = batch(&mut index, &relays);
    report.time(
        "incremental batch of 10 new repositories",
        took,
        Some(2 * batch_at_target),
    );
}

/// One batch of new repositories with all their roots, to the last decision, over a fully synced world.
fn batch(index: &mut SyncIndex, relays: &RelaySyncIndex) -> Duration {
    let pending = PendingSyncIndex::new();
    let fresh = 1_000_000..1_000_000 + BATCH;
    let changes: Vec<_> = fresh.clone().flat_map(changes_of).collect();
    let undo: Vec<_> = fresh.flat_map(undoing).collect();
    let timed = |_| {
        let changes = changes.clone();
        let start = Instant::now();
        let delta = index.apply(changes);
        let actions = compute_actions(&delta.added, &pending, relays);
        let took = start.elapsed();
        let asked: usize = actions.iter().map(|a| a.items.root_events.len()).sum();
        assert_eq!(asked, BATCH * ROOTS_PER_REPO * RELAYS_PER_REPO);
        index.apply(undo.clone());
        took
    };
    (0..201).map(timed).min().unwrap_or_default()
}

fn build_filters(report: &mut Report, actions: &[AddFilters]) {
    let budget =
        RequestBudget::default().with_values_per_filter(RequestBudget::MAX_VALUES_PER_FILTER);
    for (name, budget) in [
        ("100 a filter", RequestBudget::default()),
        ("by bytes", budget),
    ] {
        let build = || -> Vec<_> { actions.iter().map(|a| a.filters(None, &budget)).collect() };
        let built = build();
        let values: usize = built
            .iter()
            .flatten()
            .flat_map(|filter| filter.generic_tags.values().map(BTreeSet::len))
            .sum();
        let took = quickest(11, build);
        report.rate(
            &format!("filter building, {name}"),
            values,
            took,
            Some(1_000_000.0),
        );
        let filters: usize = built.iter().map(Vec::len).sum();
        let pack = || -> usize {
            built
                .iter()
                .map(|f| pack_requests(f.clone(), &budget).len())
                .sum()
        };
        let requests = pack();
        println!("    {filters} filters in {requests} requests for {RELAYS} relays");
        report.rate(
            &format!("packing into requests, {name}"),
            values,
            quickest(5, pack),
            None,
        );
    }
}

fn us() -> ServiceIdentity {
    "us.example".parse().expect("a good address")
}

fn relay(n: usize) -> RelayUrl {
    format!("wss://relay-{n}.example")
        .parse()
        .expect("a good URL")
}

/// Spreads numbers over 32 bytes so that neighbours end up far apart, as hashes do.
fn spread(n: usize) -> [u8; 32] {
    let mut state = n as u64;
    let mut bytes = [0; 32];
    for part in bytes.chunks_exact_mut(8) {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        part.copy_from_slice(&(mixed ^ (mixed >> 31)).to_be_bytes());
    }
    bytes
}

fn repo(n: usize) -> RepoId {
    let identifier = format!("repository-{n}").parse().expect("a good name");
    RepoId::new(PublicKey::from_byte_array(spread(n)), identifier)
}

fn root(repo: usize, n: usize) -> RootId {
    EventId::from_byte_array(spread(repo * ROOTS_PER_REPO + n)).into()
}

fn changes_of(n: usize) -> impl Iterator<Item = IndexChange> {
    let others = (0..RELAYS_PER_REPO).map(|i| relay((n * 7 + i * 19) % RELAYS));
    let ours = "wss://us.example".parse().expect("a good URL");
    let announced = IndexChange::Announced {
        repo: repo(n),
        relays: others.chain([ours]).collect(),
        level: SyncLevel::Full,
    };
    let repos = vec![repo(n)];
    let roots = (0..ROOTS_PER_REPO).map(move |i| IndexChange::RootAdded {
        root: root(n, i),
        repos: repos.clone(),
    });
    [announced].into_iter().chain(roots)
}

fn undoing(n: usize) -> impl Iterator<Item = IndexChange> {
    let roots = (0..ROOTS_PER_REPO).map(move |i| IndexChange::RootRemoved { root: root(n, i) });
    roots.chain([IndexChange::Retired { repo: repo(n) }])
}

fn filled_index(repos: usize) -> SyncIndex {
    let mut index = SyncIndex::new(us(), []);
    // The canonical spelling of a relay is shared, as it is when one announcement after the other is parsed
    // through a cache; names of repositories are not.
    for n in 0..repos {
        index.apply(changes_of(n));
    }
    index
}

fn connected_relays() -> RelaySyncIndex {
    (0..RELAYS)
        .map(|n| {
            let mut state = RelayState::new(false);
            let _ = state.connected(Timestamp::from_secs(1_700_000_000));
            (relay(n), state)
        })
        .collect()
}

fn confirm(relays: &mut RelaySyncIndex, actions: Vec<AddFilters>) {
    for AddFilters { relay, items } in actions {
        relays
            .entry(relay)
            .or_insert_with(|| RelayState::new(false))
            .confirm(items);
    }
}

/// The shortest of so many runs; dropping the result is not counted.
fn quickest<T>(runs: usize, mut work: impl FnMut() -> T) -> Duration {
    let timed = |_| {
        let start = Instant::now();
        let result = black_box(work());
        let took = start.elapsed();
        drop(result);
        took
    };
    (0..runs).map(timed).min().unwrap_or_default()
}

/// Prints figures and remembers whether any missed what is wanted.
#[derive(Default)]
struct Report {
    missed: usize,
}

impl Report {
    fn time(&mut self, what: &str, took: Duration, wanted: Option<Duration>) {
        let met = wanted.map(|most| (took <= most, format!("<= {most:.2?}")));
        self.line(what, format!("{took:.3?}"), met);
    }

    fn bytes(&mut self, what: &str, held: usize, wanted: Option<usize>) {
        let mb = |bytes| bytes as f64 / 1e6;
        let met = wanted.map(|most| (held <= most, format!("<= {:.0} MB", mb(most))));
        self.line(what, format!("{:.2} MB", mb(held)), met);
    }

    fn rate(&mut self, what: &str, values: usize, took: Duration, wanted: Option<f64>) {
        let rate = values as f64 / took.as_secs_f64();
        let met = wanted.map(|least| (rate >= least, format!(">= {:.1} M/s", least / 1e6)));
        self.line(
            what,
            format!("{:.2} M values/s ({values})", rate / 1e6),
            met,
        );
    }

    fn line(&mut self, what: &str, figure: String, wanted: Option<(bool, String)>) {
        let verdict = match wanted {
            None => String::new(),
            Some((true, wanted)) => format!("wanted {wanted}: met"),
            Some((false, wanted)) => {
                self.missed += 1;
                format!("wanted {wanted}: MISSED")
            }
        };
        println!("  {what:<45} {figure:>26}  {verdict}");
    }

    fn verdict(self) -> ExitCode {
        println!("{} missed", self.missed);
        ExitCode::from(u8::from(self.missed > 0))
    }
}
