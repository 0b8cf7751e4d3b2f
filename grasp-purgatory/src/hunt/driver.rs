//! The driver of the hunter: tasks, timers and commands.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use grasp_core::{CloneUrl, Host, Mono, Now, Oid, RelayUrl, RepoId};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};

use super::{
    Advertisement, FetchError, HostClass, HostFigures, HuntConfig, HuntReport, HuntSchedule,
    Hunter, Input, Output, RequestId, Scope,
};
use crate::git::Fetched;
use crate::purgatory::Want;

/// Identifiers that are looked at in our own store at the same time.
const MAX_CONCURRENT_READS: usize = 8;

/// Hosts that are asked at the same time what kind of server they are.
const MAX_CLASSIFICATIONS: usize = 8;

/// A handle of a running hunter. Cheap to clone; the hunt ends with the last clone.
#[derive(Clone, Debug)]
pub struct HuntHandle {
    // Unbounded: the driver never waits between two commands, because slow work runs in tasks.
    commands: mpsc::UnboundedSender<Command>,
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

type Question = Box<dyn FnOnce(&Hunter, Mono) + Send>;

enum Command {
    Tell(Input),
    /// Calls a function with the state of the hunt and the time, though the machine last looked at the clock a while ago.
    Ask(Question),
}

impl HuntHandle {
    /// Hunts for a repository without regard to earlier failures: after this time, or as soon as a burst of events allows.
    pub fn want(&self, repo: RepoId, after: Option<Duration>) {
        let _ = self
            .commands
            .send(Command::Tell(Input::Wanted { repo, after }));
    }

    /// Returns the figures of the hunt; `None` if it is over.
    pub async fn figures(&self) -> Option<HuntFigures> {
        self.ask(|hunter, _| HuntFigures {
            in_flight: hunter.in_flight(),
            done: hunter.done(),
            hosts: hunter
                .hosts()
                .map(|(host, figures)| (host.clone(), figures))
                .collect(),
        })
        .await
    }

    /// Returns the next attempt of each repository. Empty if the hunt is over.
    pub async fn schedule(&self) -> BTreeMap<RepoId, HuntSchedule> {
        let schedule = self.ask(|hunter, now| {
            let schedule = hunter.schedule_at(now);
            schedule.map(|(repo, next)| (repo.clone(), next)).collect()
        });
        schedule.await.unwrap_or_default()
    }

    async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Hunter, Mono) -> T + Send + 'static,
    ) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        let ask = move |hunter: &Hunter, now| _ = reply.send(question(hunter, now));
        self.commands.send(Command::Ask(Box::new(ask))).ok()?;
        answer.await.ok()
    }
}

/// Spawns the driver of a hunter.
pub fn hunt<C: SyncContext>(config: HuntConfig, context: Arc<C>) -> HuntHandle {
    let (commands, inbox) = mpsc::unbounded_channel();
    let driver = HuntDriver {
        hunter: Hunter::new(config, context.now()),
        context,
        tasks: JoinSet::new(),
        running: BTreeMap::new(),
        read_slots: Arc::new(Semaphore::new(MAX_CONCURRENT_READS)),
        classify_slots: Arc::new(Semaphore::new(MAX_CLASSIFICATIONS)),
        commands: commands.downgrade(),
    };
    tokio::spawn(driver.run(inbox));
    HuntHandle { commands }
}

/// The owner of the state machine.
struct HuntDriver<C> {
    hunter: Hunter,
    context: Arc<C>,
    tasks: JoinSet<Input>,
    /// The input for the end of each task, if it panics or is cancelled.
    running: BTreeMap<Id, (AbortHandle, Input)>,
    read_slots: Arc<Semaphore>,
    classify_slots: Arc<Semaphore>,
    commands: mpsc::WeakUnboundedSender<Command>,
}

impl<C: SyncContext> HuntDriver<C> {
    async fn run(mut self, mut inbox: mpsc::UnboundedReceiver<Command>) {
        // The first tick lists the repos of the hourly pull.
        self.handle(Input::Tick);
        loop {
            let deadline = self.hunter.next_deadline();
            let input = tokio::select! {
                command = inbox.recv() => match command {
                    Some(Command::Tell(input)) => input,
                    Some(Command::Ask(question)) => {
                        question(&self.hunter, self.context.now().mono);
                        continue;
                    }
                    None => return,
                },
                Some(ended) = self.tasks.join_next_with_id() => self.ended(ended),
                () = until(&*self.context, deadline) => Input::Tick,
            };
            self.handle(input);
        }
    }

    fn handle(&mut self, input: Input) {
        for output in self.hunter.handle(self.context.now(), input) {
            self.perform(output);
        }
    }

    /// Starts what takes time.
    fn perform(&mut self, output: Output) {
        let context = Arc::clone(&self.context);
        match output {
            Output::ReadWants { repo, scope } => {
                let slots = self.read_slots.clone();
                let failure = Input::WantsRead {
                    repo: repo.clone(),
                    wants: None,
                };
                self.start(failure, async move {
                    let _slot = slots.acquire_owned().await;
                    let wants = context.wants(&repo, scope).await;
                    Input::WantsRead { repo, wants }
                });
            }
            Output::List {
                request_id,
                url,
                wanted,
                ..
            } => {
                self.start(ended(request_id, FetchError::Cancelled), async move {
                    match context.list(&url, &wanted).await {
                        Ok(advertised) => Input::Listed {
                            request_id,
                            advertised,
                        },
                        Err(error) => ended(request_id, error),
                    }
                });
            }
            Output::Fetch {
                request_id,
                repo,
                url,
                oids,
            } => {
                let commands = self.commands.clone();
                self.start(ended(request_id, FetchError::Cancelled), async move {
                    let (answered, answer) = oneshot::channel();
                    let note = async {
                        if let (Ok(()), Some(commands)) = (answer.await, commands.upgrade()) {
                            let _ = commands.send(Command::Tell(Input::Answered { request_id }));
                        }
                    };
                    let fetch = context.fetch(&repo, &url, &oids, answered);
                    let (Fetched { got, error, .. }, ()) = tokio::join!(fetch, note);
                    Input::Ended {
                        request_id,
                        got,
                        error,
                    }
                });
            }
            Output::Classify { host, relay } => {
                let slots = self.classify_slots.clone();
                let failure = Input::Classified {
                    host: host.clone(),
                    class: None,
                };
                self.start(failure, async move {
                    let _slot = slots.acquire_owned().await;
                    let class = context.classify(&relay).await;
                    Input::Classified { host, class }
                });
            }
            // After a failure the next hour lists again.
            Output::ListRepos => self.start(Input::Tick, async move {
                Input::ReposListed {
                    repos: context.repos().await,
                }
            }),
            Output::Cancel {
                request_id: cancelled,
            } => {
                let is_cancelled = |failure: &Input| matches!(failure, Input::Ended { request_id, .. } if *request_id == cancelled);
                let mut tasks = self.running.values();
                if let Some((task, _)) = tasks.find(|(_, failure)| is_cancelled(failure)) {
                    task.abort();
                }
            }
            Output::Report(report) => context.report(&report),
        }
    }

    fn start(&mut self, failure: Input, work: impl Future<Output = Input> + Send + 'static) {
        let task = self.tasks.spawn(work);
        self.running.insert(task.id(), (task, failure));
    }

    /// Returns the input for the end of a task, also of a failed one.
    fn ended(&mut self, task: Result<(Id, Input), JoinError>) -> Input {
        let id = task.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
        let failure = self.running.remove(&id).map(|(_, failure)| failure);
        match (task, failure) {
            (Ok((_, input)), _) => input,
            (Err(error), Some(Input::Ended { request_id, .. })) if error.is_panic() => {
                ended(request_id, FetchError::Internal(error.to_string()))
            }
            (Err(_), failure) => failure.unwrap_or(Input::Tick),
        }
    }
}

fn ended(request_id: RequestId, error: FetchError) -> Input {
    Input::Ended {
        request_id,
        got: BTreeSet::new(),
        error: Some(error),
    }
}

/// Sleeps until a point of the clock; for ever without one.
async fn until(context: &impl SyncContext, deadline: Option<Mono>) {
    match deadline {
        Some(deadline) => tokio::time::sleep(deadline - context.now().mono).await,
        None => std::future::pending().await,
    }
}

/// The surroundings of a hunter: events, repositories and other servers.
///
/// The relay implements it with its purgatory driver and sandboxed git; tests implement it with a script.
pub trait SyncContext: Send + Sync + 'static {
    /// The time.
    fn now(&self) -> Now;

    /// Returns the missing objects of a repository and the servers that may have them; `None` if they cannot be read now.
    fn wants(&self, repo: &RepoId, scope: Scope) -> impl Future<Output = Option<Vec<Want>>> + Send;

    /// Returns which of these objects a server advertises.
    fn list(
        &self,
        url: &CloneUrl,
        wanted: &BTreeSet<Oid>,
    ) -> impl Future<Output = Result<Advertisement, FetchError>> + Send;

    /// The kind of git server that has this relay; `None` if it does not say.
    fn classify(&self, relay: &RelayUrl) -> impl Future<Output = Option<HostClass>> + Send;

    /// Fetches objects with their whole history, and publishes them to purgatory. Reports on `answered` that the server
    /// has begun to answer. Dropped when it is cancelled.
    fn fetch(
        &self,
        repo: &RepoId,
        url: &CloneUrl,
        oids: &BTreeSet<Oid>,
        answered: oneshot::Sender<()>,
    ) -> impl Future<Output = Fetched> + Send;

    /// Returns every repository that is to be hunted for every hour.
    fn repos(&self) -> impl Future<Output = BTreeSet<RepoId>> + Send;

    /// Hears what is worth counting or logging.
    fn report(&self, report: &HuntReport);
}
