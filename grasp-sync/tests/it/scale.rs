//! How much the engine needs when there is much to do.

use std::time::{Duration, Instant};

use grasp_core::nostr::event::EventId;
use grasp_core::nostr::key::PublicKey;
use grasp_core::nostr::types::Timestamp;
use grasp_core::sync::{IndexChange, SyncLevel};
use grasp_core::{Mono, Now, RepoId};
use grasp_sync::engine::{
    Accepted, Config, ConnId, Frame, Input, Output, RelayFacts, Report, Said, SyncEngine,
};

use crate::sim::chance::Chance;
use crate::sim::world::relay;

/// An engine whose every wish is granted at once: relays have nothing, and neither have we.
struct Easy {
    engine: SyncEngine,
    now: Now,
    inputs: Vec<Input>,
    confirmed: usize,
    handled: usize,
    spent: Duration,
}

impl Easy {
    fn new() -> Self {
        let now = Now::new(Mono::from_secs(1), Timestamp::from_secs(1_700_000_000));
        let config = Config::new("us.example".parse().unwrap());
        let engine = SyncEngine::new(now, config);
        Self { engine, now, inputs: vec![], confirmed: 0, handled: 0, spent: Duration::ZERO }
    }

    fn tell(&mut self, input: Input) {
        let begin = Instant::now();
        let outputs = self.engine.handle(self.now, input);
        self.spent += begin.elapsed();
        self.handled += 1;
        outputs.into_iter().for_each(|output| self.grant(output));
    }

    fn grant(&mut self, output: Output) {
        match output {
            Output::Connect { relay, conn, .. } => {
                let software = Some("grasp-relay".to_owned());
                let facts = RelayFacts { software, ..RelayFacts::default() };
                self.inputs.push(Input::Connected { relay, conn, facts });
            }
            Output::Send { relay, conn, frame } => self.answer(relay, conn, frame),
            Output::FetchInventory { request, .. } => {
                self.inputs.push(Input::Inventory { request, items: Ok(vec![]) });
            }
            Output::Report(Report::BatchConfirmed { roots, .. }) => self.confirmed += roots,
            _ => {}
        }
    }

    fn answer(&mut self, relay: grasp_core::RelayUrl, conn: ConnId, frame: Frame) {
        let said = match frame {
            Frame::Subscribe { sub, .. } => Said::Eose { sub },
            Frame::NegOpen { sub, .. } => Said::NegMsg { sub, message: vec![0x61] },
            _ => return,
        };
        self.inputs.push(Input::Heard { relay, conn, said });
    }

    fn run_for(&mut self, length: Duration) {
        let end = self.now.mono + length;
        loop {
            while let Some(input) = self.inputs.pop() {
                self.tell(input);
            }
            let Some(at) = self.engine.next_deadline().filter(|at| *at <= end) else { break };
            self.now = self.now.after(at - self.now.mono);
            self.tell(Input::Tick);
        }
        self.now = self.now.after(end - self.now.mono);
    }
}

/// Resident memory of this process, in kilobytes.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
#[ignore = "measures this process: run it alone"]
fn a_thousand_repositories_with_fifty_thousand_roots_on_a_hundred_relays_fit() {
    const REPOS: usize = 1_000;
    const ROOTS: usize = 50_000;
    let mut easy = Easy::new();
    let mut chance = Chance::seeded(1);
    let before = resident();
    let repos: Vec<RepoId> = (0..REPOS)
        .map(|n| {
            let owner = PublicKey::from_byte_array(chance.bytes());
            RepoId::new(owner, format!("repo-{n}").parse().unwrap())
        })
        .collect();
    let told =
        |change| Input::Accepted(Accepted { event: None, direct: false, change: Some(change) });
    for (n, repo) in repos.iter().enumerate() {
        // Three relays each, as is usual.
        let relays = [n % 100, (n * 7 + 1) % 100, (n * 13 + 2) % 100].map(relay).into();
        easy.tell(told(IndexChange::Announced {
            repo: repo.clone(),
            relays,
            level: SyncLevel::Full,
        }));
    }
    for n in 0..ROOTS {
        let root = EventId::from_byte_array(chance.bytes()).into();
        let repos = vec![repos[n % REPOS].clone()];
        easy.tell(told(IndexChange::RootAdded { root, repos }));
    }
    easy.tell(Input::FeedCaughtUp);
    easy.run_for(Duration::from_secs(5 * 60));
    let grown = (resident() - before) / 1_024;
    println!(
        "{grown} MB, {} roots confirmed, {} inputs in {:?}",
        easy.confirmed, easy.handled, easy.spent
    );
    easy.engine.check_invariants();
    assert!(easy.confirmed >= 2 * ROOTS);
    let (handled, spent) = (easy.handled, easy.spent);
    easy.run_for(Duration::from_secs(60 * 60));
    println!("an idle hour: {} inputs in {:?}", easy.handled - handled, easy.spent - spent);
    assert!(grown <= 64, "{grown} MB");
}
