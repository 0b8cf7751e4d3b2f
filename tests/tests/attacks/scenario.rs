//! A server, honest clients, an attack, and the checks of the result.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use grasp_tests::{Author, Leftovers, eventually};

use crate::attacker::Attacker;
use crate::honest::{HonestClients, Operations};
use crate::server::Server;

/// Repetitions of each honest operation on an idle server.
const IDLE_ROUNDS: usize = 8;

/// Minimum of repetitions during the attack.
const MIN_ATTACK_ROUNDS: usize = 5;

/// Memory that an attack may use, for each process of the server.
const MEMORY_PER_PROCESS: u64 = 256 << 20;

/// Disk that honest traffic beside the attack may add, and more for each push: packs, and the logs of databases.
const HONEST_DISK_BYTES: u64 = 4 << 20;
const HONEST_PUSH_BYTES: u64 = 160 << 10;

/// The bound of the 95th percentile of each honest operation during an attack: a multiple of that of an idle server, or a time
/// that it may always take, for each process of the server. Nodes share the cores that one process has otherwise.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LatencyBound {
    /// The bound of attacks with means that the honest repository has to share.
    Tolerable,
    /// The bound of attacks that keep the cores busy, but could as well use any other name than that of the honest repository.
    AsWithOtherName,
    /// The bound of attacks through the name of the honest repository that leave the cores to others.
    AsIdle,
}

impl LatencyBound {
    fn multiple(self) -> u32 {
        match self {
            Self::Tolerable => 10,
            Self::AsWithOtherName => 3,
            Self::AsIdle => 2,
        }
    }

    fn always_allowed(self) -> Duration {
        match self {
            Self::Tolerable => Duration::from_secs(1),
            Self::AsWithOtherName => Duration::from_millis(300),
            Self::AsIdle => Duration::from_millis(200),
        }
    }
}

/// A server under attack.
pub(crate) struct Scenario {
    pub(crate) server: Server,
    pub(crate) honest: Arc<HonestClients>,
    idle: Operations,
    idle_memory: u64,
}

/// The figures of an attack.
#[derive(Debug)]
pub(crate) struct Report {
    idle: [Duration; 3],
    attacked: [Duration; 3],
    bound: LatencyBound,
    processes: u32,
    /// Peak memory beyond that of the idle server, and its bound.
    memory: u64,
    memory_bound: u64,
    /// Growth of the disk at the end of the attack, and its bound.
    disk: u64,
    disk_bound: u64,
    /// Descriptions of honest operations that failed during the attack.
    failed: Vec<String>,
    /// Descriptions of other failed checks.
    more: Vec<String>,
}

impl Scenario {
    /// Starts a server with default settings and measures it idle.
    pub(crate) async fn start() -> Self {
        Self::with(&[]).await
    }

    /// Does the same with further arguments.
    pub(crate) async fn with(arguments: &[&str]) -> Self {
        let server = Server::start(arguments).await;
        let honest = HonestClients::start(server.client(), Author::new()).await;
        Self::measured(server, honest).await
    }

    /// Starts a private server, whose only member the honest clients are.
    pub(crate) async fn of_member(arguments: &[&str], member: Author) -> Self {
        let server = Server::start(arguments).await;
        let client = server.client().of_member(&member);
        let honest = HonestClients::start(client, member).await;
        Self::measured(server, honest).await
    }

    /// Measures a server that is idle but for honest clients.
    async fn measured(server: Server, honest: HonestClients) -> Self {
        let honest = Arc::new(honest);
        let idle = honest
            .work(IDLE_ROUNDS, &Arc::new(AtomicBool::new(true)))
            .await;
        let idle_memory = server.memory();
        Self {
            server,
            honest,
            idle,
            idle_memory,
        }
    }

    /// Returns an attacker at 127.6.6.`host`.
    pub(crate) fn attacker(&self, host: u8) -> Attacker {
        Attacker::at(self.server.address(), host)
    }

    /// Runs an attack to its end with honest traffic beside it, waits until the server has released all resources, and
    /// reports. `disk_bound` is the disk space that the attack may use for good.
    pub(crate) async fn run(self, disk_bound: u64, attack: impl Future<Output = ()>) -> Report {
        let stop = Arc::new(AtomicBool::new(false));
        let disk_before = self.server.disk();
        let peak = AtomicU64::new(0);
        let sample = async {
            loop {
                peak.fetch_max(self.server.memory(), Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let both = async {
            let attack = async {
                attack.await;
                stop.store(true, Ordering::Relaxed);
            };
            tokio::join!(self.honest.work(MIN_ATTACK_ROUNDS, &stop), attack).0
        };
        let attacked = tokio::select! {
            operations = both => operations,
            () = sample => unreachable!("sampling has no end"),
        };
        for root in self.server.repositories() {
            let is_idle = |left: &Leftovers| left.processes.is_empty() && left.incoming == 0;
            eventually(|| Some(Leftovers::below(&root)).filter(is_idle)).await;
        }
        Report {
            idle: self.idle.p95(),
            attacked: attacked.p95(),
            bound: LatencyBound::Tolerable,
            processes: self.server.process_count() as u32,
            memory: peak
                .load(Ordering::Relaxed)
                .saturating_sub(self.idle_memory),
            memory_bound: MEMORY_PER_PROCESS * self.server.process_count() as u64,
            disk: self.server.disk().saturating_sub(disk_before),
            disk_bound: disk_bound
                + HONEST_DISK_BYTES
                + HONEST_PUSH_BYTES * attacked.push.len() as u64,
            failed: attacked.failures(),
            more: Vec::new(),
        }
    }
}

impl Report {
    /// Adds a check, with the description of its failure.
    pub(crate) fn and(mut self, holds: bool, otherwise: impl Into<String>) -> Self {
        if !holds {
            self.more.push(otherwise.into());
        }
        self
    }

    /// Sets the bound of the times of honest operations during an attack through the name of the honest repository.
    pub(crate) fn within(mut self, bound: LatencyBound) -> Self {
        self.bound = bound;
        self
    }

    /// Adds the check that every honest operation succeeded. Without it a failed one only counts as a slow one.
    pub(crate) fn and_all_succeeded(mut self) -> Self {
        self.more.append(&mut self.failed);
        self
    }

    /// Returns the descriptions of all failed checks.
    pub(crate) fn failures(&self) -> Vec<String> {
        [self.more.clone(), self.slow_operations(), self.exceeded()].concat()
    }

    /// Returns whether only the times of honest operations failed.
    pub(crate) fn is_only_slow(&self) -> bool {
        self.more.is_empty() && self.exceeded().is_empty() && !self.slow_operations().is_empty()
    }

    fn slow_operations(&self) -> Vec<String> {
        let mut slow = Vec::new();
        for (operation, position) in [("push", 0), ("request", 1), ("clone", 2)] {
            let idle = self.idle[position];
            let attacked = self.attacked[position];
            let always_allowed = self.bound.always_allowed() * self.processes;
            if attacked > always_allowed.max(idle * self.bound.multiple()) {
                slow.push(format!("{operation}: p95 {attacked:?}, idle {idle:?}"));
            }
        }
        if !slow.is_empty() {
            slow.extend(self.failed.clone());
        }
        slow
    }

    fn exceeded(&self) -> Vec<String> {
        let mut exceeded = Vec::new();
        if self.memory > self.memory_bound {
            exceeded.push(format!("memory: {} MB beyond idle", self.memory >> 20));
        }
        if self.disk > self.disk_bound {
            exceeded.push(format!(
                "disk: {} bytes, bound {}",
                self.disk, self.disk_bound
            ));
        }
        exceeded
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [push, request, clone] = [0, 1, 2].map(|position| {
            let millis = |times: [Duration; 3]| times[position].as_millis();
            format!("{}→{} ms", millis(self.idle), millis(self.attacked))
        });
        let (memory, disk) = (self.memory >> 20, self.disk >> 10);
        write!(
            f,
            "push {push}, request {request}, clone {clone}, +{memory} MB memory, +{disk} KiB disk"
        )
    }
}
