//! Cost of the engine at scale: memory, time for each input, and runs when idle.
//!
//! A thousand repositories with fifty thousand roots on a hundred relays that have nothing and answer at once.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    reason = "a benchmark that panics has failed"
)]

use std::time::{Duration, Instant};

use grasp_core::nostr::event::EventId;
use grasp_core::nostr::key::PublicKey;
use grasp_core::nostr::types::Timestamp;
use grasp_core::sync::{IndexChange, SyncLevel};
use grasp_core::{Mono, Now, RelayUrl, RepoId, Version};
use grasp_sync::engine::{
    Accepted, Config, ConnId, Frame, Input, Output, RelayFacts, Report, Said, SyncEngine,
};
use peak_alloc::PeakAlloc;

const RELAYS: usize = 100;
const REPOS: usize = 1_000;
const ROOTS: usize = 50_000;
const MAX_MEGABYTES: f32 = 64.0;

#[global_allocator]
static COUNTED: PeakAlloc = PeakAlloc;

/// An engine whose outputs are answered at once.
struct BenchEngine {
    engine: SyncEngine,
    now: Now,
    inputs: Vec<Input>,
    confirmed: usize,
    handled: u32,
    spent: Duration,
    longest: Duration,
}

impl BenchEngine {
    fn new() -> Self {
        let now = Now::new(Mono::from_secs(1), Timestamp::from_secs(1_700_000_000));
        let config = Config::new("us.example".parse().unwrap());
        Self {
            engine: SyncEngine::new(now, config),
            now,
            inputs: vec![],
            confirmed: 0,
            handled: 0,
            spent: Duration::ZERO,
            longest: Duration::ZERO,
        }
    }

    fn handle(&mut self, input: Input) {
        let begin = Instant::now();
        let outputs = self.engine.handle(self.now, input);
        let took = begin.elapsed();
        self.spent += took;
        self.longest = self.longest.max(took);
        self.handled += 1;
        outputs
            .into_iter()
            .for_each(|output| self.answer_output(output));
    }

    fn change(&mut self, change: IndexChange) {
        self.handle(Input::Accepted(Accepted {
            event: None,
            is_uncounted: false,
            change: Some(change),
        }));
    }

    fn answer_output(&mut self, output: Output) {
        match output {
            Output::Connect { relay, conn, .. } => {
                let software = Some("grasp-relay".to_owned());
                let mut facts = RelayFacts::default();
                facts.software = software;
                self.inputs.push(Input::Connected {
                    relay,
                    conn,
                    address: None,
                    facts,
                });
            }
            Output::Send { relay, conn, frame } => self.answer_frame(relay, conn, frame),
            Output::FetchInventory { request, .. } => {
                self.inputs.push(Input::Inventory {
                    request,
                    items: Ok(vec![]),
                });
            }
            Output::Report(Report::BatchConfirmed { roots, .. }) => self.confirmed += roots,
            _ => {}
        }
    }

    fn answer_frame(&mut self, relay: RelayUrl, conn: ConnId, frame: Frame) {
        let said = match frame {
            Frame::Subscribe { sub, .. } => Said::Eose { sub, hint: None },
            Frame::NegOpen { sub, .. } => Said::NegMsg {
                sub,
                message: vec![0x61],
            },
            _ => return,
        };
        self.inputs.push(Input::Heard { relay, conn, said });
    }

    fn run_for(&mut self, length: Duration) {
        let end = self.now.mono + length;
        loop {
            while let Some(input) = self.inputs.pop() {
                self.handle(input);
            }
            let Some(at) = self.engine.next_deadline().filter(|at| *at <= end) else {
                break;
            };
            self.now = self.now.after(at - self.now.mono);
            self.handle(Input::Tick);
        }
        self.now = self.now.after(end - self.now.mono);
    }

    /// Takes the inputs since the last call.
    fn take_counts(&mut self) -> (u32, Duration, Duration) {
        let counts = (self.handled, self.spent, self.longest);
        (self.handled, self.spent, self.longest) = (0, Duration::ZERO, Duration::ZERO);
        counts
    }
}

/// Returns bytes like those of a hash, the same on every run.
fn bytes(n: usize) -> [u8; 32] {
    let mut word = n as u64 + 1;
    let mut bytes = [0; 32];
    for chunk in bytes.chunks_mut(8) {
        word = (word ^ (word >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 32)).wrapping_mul(0x94d0_49bb_1331_11eb);
        chunk.copy_from_slice(&word.to_be_bytes());
    }
    bytes
}

fn announce_everything(bench: &mut BenchEngine) {
    let relay = |n: usize| {
        format!("wss://r{}.example", n % RELAYS)
            .parse::<RelayUrl>()
            .unwrap()
    };
    let repo = |n: usize| {
        let owner = PublicKey::from_byte_array(bytes(n));
        RepoId::new(owner, format!("repo-{n}").parse().unwrap())
    };
    for n in 0..REPOS {
        // Three relays each, as is usual.
        let relays = [n, n * 7 + 1, n * 13 + 2].map(relay).into();
        bench.change(IndexChange::Announced {
            repo: repo(n),
            version: Version {
                created_at: Timestamp::from_secs(1),
                id: EventId::from_byte_array([0; 32]),
            },
            relays,
            level: SyncLevel::Full,
        });
    }
    for n in 0..ROOTS {
        let root = EventId::from_byte_array(bytes(REPOS + n)).into();
        bench.change(IndexChange::RootAdded {
            root,
            repos: vec![repo(n % REPOS)],
            author: None,
        });
    }
    bench.handle(Input::FeedCaughtUp);
}

fn main() {
    let mut bench = BenchEngine::new();
    announce_everything(&mut bench);
    bench.run_for(Duration::from_secs(5 * 60));
    let (held, peak) = (COUNTED.current_usage_as_mb(), COUNTED.peak_usage_as_mb());
    assert!(
        bench.confirmed >= 2 * ROOTS,
        "only {} roots confirmed",
        bench.confirmed
    );
    let (inputs, spent, longest) = bench.take_counts();
    println!("{REPOS} repositories, {ROOTS} roots, {RELAYS} relays: {held:.1} MB");
    println!("peak: {peak:.1} MB (allowed: {MAX_MEGABYTES})");
    println!(
        "until complete: {inputs} inputs, {:?} each, the longest {longest:?}",
        spent / inputs
    );

    bench.run_for(Duration::from_secs(60 * 60));
    let (inputs, spent, _) = bench.take_counts();
    println!("an idle hour: {inputs} inputs in {spent:?}");

    let records = bench.engine.records(bench.now);
    let proofs: usize = records
        .iter()
        .map(|record| record.proofs.iter().count())
        .sum();
    println!("on disk: {} records with {proofs} proofs", records.len());
    assert!(peak <= MAX_MEGABYTES, "{peak} MB");
}
