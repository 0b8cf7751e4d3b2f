//! The driver of the hunt: one task that owns its state and starts a task for each repository.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use grasp_core::{Host, Mono, Now, RelayUrl, RepoId};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::{Id, JoinError, JoinSet};

use super::attempt::Hunt;
use super::plan::AddressMemory;
use super::requests::Requests;
use super::schedule::{End, HourlyPull, Schedule, Start};
use super::{HostFigures, HuntConfig, HuntReport, HuntSchedule, Scope, SyncContext};

/// Addresses of which it is remembered what they did not have.
const MAX_ADDRESSES: usize = 4_096;

/// Repositories whose missing objects are read from the store at the same time.
const MAX_CONCURRENT_READS: usize = 8;

/// Hosts that are asked at the same time what kind of server they are.
const MAX_CLASSIFICATIONS: usize = 8;

/// A change of the state, or a question to it.
type HunterCommand = Box<dyn FnOnce(&mut Hunter, Now) + Send>;

/// A handle of a running hunt. Cheap to clone; the hunt ends with the last clone.
#[derive(Clone, Debug)]
pub struct HuntHandle {
    // Unbounded: the driver never waits between two commands, because slow work runs in tasks.
    commands: mpsc::UnboundedSender<HunterCommand>,
}

/// Figures of the hunt.
#[derive(Clone, Debug, Default)]
pub struct HuntFigures {
    /// Requests under way.
    pub in_flight: usize,
    /// Repositories that were hunted for to the end since there was last nothing to hunt for.
    pub done: u64,
    /// Each server that was asked lately.
    pub hosts: Vec<(Host, HostFigures)>,
}

impl HuntHandle {
    /// Hunts for a repository without regard to earlier failures: after this time, or as soon as a burst of events allows.
    pub fn want(&self, repo: RepoId, after: Option<Duration>) {
        let want = move |hunter: &mut Hunter, now: Now| hunter.want(now.mono, &repo, after);
        let _ = self.commands.send(Box::new(want));
    }

    /// Returns the figures of the hunt; `None` if it is over.
    pub async fn figures(&self) -> Option<HuntFigures> {
        self.query(|hunter, _| {
            let hosts = hunter.requests.hosts.figures();
            HuntFigures {
                in_flight: hunter.requests.in_flight(),
                done: hunter.done,
                hosts: hosts.map(|(host, use_)| (host.clone(), use_)).collect(),
            }
        })
        .await
    }

    /// Returns the next attempt of each repository. Empty if the hunt is over.
    pub async fn schedule(&self) -> BTreeMap<RepoId, HuntSchedule> {
        let schedule = self.query(|hunter, now| hunter.schedule_at(now.mono)).await;
        schedule.unwrap_or_default()
    }

    async fn query<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Hunter, Now) -> T + Send + 'static,
    ) -> Option<T> {
        send_question(&self.commands, question).await.ok()
    }
}

/// Calls a function with the state, and returns the channel that receives its result.
fn send_question<T: Send + 'static>(
    commands: &mpsc::UnboundedSender<HunterCommand>,
    question: impl FnOnce(&mut Hunter, Now) -> T + Send + 'static,
) -> oneshot::Receiver<T> {
    let (reply, answer) = oneshot::channel();
    let command = move |hunter: &mut Hunter, now: Now| {
        let _ = reply.send(question(hunter, now));
    };
    let _ = commands.send(Box::new(command));
    answer
}

/// Sends commands of attempts and visits to the owner of the state. They end with it, and do not keep it alive.
#[derive(Clone)]
pub(super) struct HunterSender(mpsc::WeakUnboundedSender<HunterCommand>);

impl HunterSender {
    /// Calls a function with the state, after earlier calls. Does not wait for it.
    pub(super) fn send(&self, command: impl FnOnce(&mut Hunter, Now) + Send + 'static) {
        if let Some(commands) = self.0.upgrade() {
            let _ = commands.send(Box::new(command));
        }
    }

    /// Calls a function with the state, and returns its result.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Hunter, Now) -> T + Send + 'static,
    ) -> T {
        let answer = self
            .0
            .upgrade()
            .map(|commands| send_question(&commands, question));
        if let Some(answer) = answer
            && let Ok(answer) = answer.await
        {
            return answer;
        }
        // The hunt is over, and with it the calling task.
        std::future::pending().await
    }
}

/// The state of the hunt: the schedule of attempts, the limits of requests, and what servers did not have.
pub(super) struct Hunter {
    pub(super) schedule: Schedule,
    pull: HourlyPull,
    pub(super) requests: Requests,
    pub(super) memory: AddressMemory,
    /// The tasks of repositories, each with the channel that begins its attempts.
    hunts: BTreeMap<RepoId, mpsc::UnboundedSender<Scope>>,
    /// Repositories that were hunted for to the end since there was last nothing to hunt for.
    done: u64,
}

impl Hunter {
    fn want(&mut self, now: Mono, repo: &RepoId, after: Option<Duration>) {
        if self.schedule.is_empty() {
            self.done = 0;
        }
        self.schedule.enqueue(now, repo, after);
    }

    fn next_deadline(&self) -> Mono {
        let attempt = self.schedule.next_deadline();
        let request = self.requests.next_deadline();
        let pull = self.pull.next_deadline();
        attempt.into_iter().chain(request).fold(pull, Mono::min)
    }

    /// Returns the next attempt of each repository, counted from now.
    fn schedule_at(&self, now: Mono) -> BTreeMap<RepoId, HuntSchedule> {
        let positions = self.requests.hosts.positions();
        let mut schedule = BTreeMap::new();
        for (repo, attempts, next) in self.schedule.iter() {
            let next = HuntSchedule {
                attempts,
                next_in: next.map(|at| at - now),
                position: positions.get(repo).copied(),
            };
            schedule.insert(repo.clone(), next);
        }
        schedule
    }

    /// Ends an attempt, or notes that slow visits have brought everything after its end.
    pub(super) fn end_attempt(&mut self, now: Mono, repo: &RepoId, end: End) -> Option<HuntReport> {
        if !self.schedule.is_running(repo) && !self.schedule.waits_for_hosts(repo) {
            if end == End::Satisfied {
                // Since then something may be wanted that this hunt never knew of.
                self.schedule.satisfied(now, repo);
            }
            return None;
        }
        let end = match end {
            End::Needless => self.schedule.needless(repo),
            end => end,
        };
        let next = self.schedule.ended(now, repo, end);
        let repo = repo.clone();
        let report = match end {
            End::Satisfied if next.is_none() => HuntReport::Complete { repo },
            End::Needless if next.is_none() => HuntReport::Needless { repo },
            _ => {
                return Some(HuntReport::Incomplete {
                    attempts: self.schedule.attempts(&repo),
                    next: next.map(|next| next - now),
                    repo,
                });
            }
        };
        self.done += 1;
        Some(report)
    }

    /// Ends the task of a repository that visits no server, unless its next attempt has begun.
    pub(super) fn rest(&mut self, repo: &RepoId) {
        if !self.schedule.is_running(repo) {
            self.hunts.remove(repo);
        }
    }
}

/// Spawns the driver of a hunt.
pub fn hunt<C: SyncContext>(config: HuntConfig, context: Arc<C>) -> HuntHandle {
    let (commands, inbox) = mpsc::unbounded_channel();
    let sender = HunterSender(commands.downgrade());
    let hunter = Hunter {
        schedule: Schedule::new(&config),
        pull: HourlyPull::new(config.pull_every, context.now().mono),
        requests: Requests::new(&config, sender.clone()),
        memory: AddressMemory::new(MAX_ADDRESSES),
        hunts: BTreeMap::new(),
        done: 0,
    };
    let shared = HuntShared {
        context,
        config,
        hunter: sender,
        reads: Semaphore::new(MAX_CONCURRENT_READS),
        classifications: Semaphore::new(MAX_CLASSIFICATIONS),
    };
    let driver = HuntDriver {
        hunter,
        shared: Arc::new(shared),
        tasks: JoinSet::new(),
        repos: BTreeMap::new(),
    };
    tokio::spawn(driver.run(inbox));
    HuntHandle { commands }
}

/// What the tasks of a hunt share.
pub(super) struct HuntShared<C> {
    pub(super) context: Arc<C>,
    pub(super) config: HuntConfig,
    pub(super) hunter: HunterSender,
    /// Slots for reading what is missing.
    pub(super) reads: Semaphore,
    classifications: Semaphore,
}

/// The owner of the state.
struct HuntDriver<C> {
    hunter: Hunter,
    shared: Arc<HuntShared<C>>,
    tasks: JoinSet<()>,
    /// The repository of each task that hunts for one.
    repos: BTreeMap<Id, RepoId>,
}

impl<C: SyncContext> HuntDriver<C> {
    async fn run(mut self, mut inbox: mpsc::UnboundedReceiver<HunterCommand>) {
        loop {
            self.advance();
            let pause = self.hunter.next_deadline() - self.now().mono;
            tokio::select! {
                biased;
                command = inbox.recv() => match command {
                    Some(command) => command(&mut self.hunter, self.shared.context.now()),
                    None => return,
                },
                Some(ended) = self.tasks.join_next_with_id() => self.ended(ended),
                () = tokio::time::sleep(pause) => {}
            }
            while let Ok(command) = inbox.try_recv() {
                command(&mut self.hunter, self.shared.context.now());
            }
        }
    }

    fn now(&self) -> Now {
        self.shared.context.now()
    }

    /// Starts everything that is due.
    fn advance(&mut self) {
        let now = self.now().mono;
        if self.hunter.pull.must_list(now) {
            self.tasks.spawn(list_repos(self.shared.clone()));
        }
        for repo in self.hunter.pull.due(now) {
            self.hunter.schedule.pull(now, &repo);
        }
        for start in self.hunter.schedule.start(now) {
            self.start(start);
        }
        self.hunter.requests.advance(now);
        for (host, relay) in std::mem::take(&mut self.hunter.requests.unclassified) {
            self.tasks.spawn(classify(self.shared.clone(), host, relay));
        }
    }

    /// Begins an attempt: in the task of its repository, if that still visits servers.
    fn start(&mut self, start: Start) {
        let Start {
            repo,
            scope,
            attempt,
        } = start;
        self.shared.context.report(&HuntReport::Started {
            repo: repo.clone(),
            attempt,
        });
        if let Some(hunt) = self.hunter.hunts.get(&repo) {
            let _ = hunt.send(scope);
            return;
        }
        let (attempts, inbox) = mpsc::unbounded_channel();
        let _ = attempts.send(scope);
        let hunt = Hunt::new(self.shared.clone(), repo.clone());
        let task = self.tasks.spawn(hunt.run(inbox));
        self.repos.insert(task.id(), repo.clone());
        self.hunter.hunts.insert(repo, attempts);
    }

    /// Handles the end of a task. An attempt that panicked has failed.
    fn ended(&mut self, ended: Result<(Id, ()), JoinError>) {
        let (id, has_failed) = match ended {
            Ok((id, ())) => (id, false),
            Err(error) => (error.id(), true),
        };
        let Some(repo) = self.repos.remove(&id) else {
            return;
        };
        if has_failed {
            self.hunter.hunts.remove(&repo);
            let now = self.now().mono;
            if let Some(report) = self.hunter.end_attempt(now, &repo, End::Wanting) {
                self.shared.context.report(&report);
            }
        }
    }
}

/// Lists the repositories of the hourly pull. After a failure the next hour lists again.
async fn list_repos<C: SyncContext>(shared: Arc<HuntShared<C>>) {
    let repos = shared.context.repos().await;
    shared
        .hunter
        .send(move |hunter, now| hunter.pull.listed(now, repos));
}

/// Finds out what kind of git server a host is.
async fn classify<C: SyncContext>(shared: Arc<HuntShared<C>>, host: Host, relay: RelayUrl) {
    let _slot = shared.classifications.acquire().await;
    let Some(class) = shared.context.classify(&relay).await else {
        return;
    };
    shared.context.report(&HuntReport::Classified {
        host: host.clone(),
        class,
    });
    shared.hunter.send(move |hunter, now| {
        let requests = &mut hunter.requests;
        let permits = requests.hosts.classified(now.mono, &host, class);
        requests.grant(now.mono, permits);
    });
}
