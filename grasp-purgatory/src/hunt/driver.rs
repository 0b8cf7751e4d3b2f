//! The driver of the hunter: tasks, timers and commands.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use grasp_core::{CloneUrl, Host, Identifier, Mono, Now, Oid, RelayUrl};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};

use super::{
    Advertisement, HostClass, HostFigures, HuntConfig, HuntReport, HuntSchedule, Hunter, Input,
    Output, RequestId, Scope, Trouble,
};
use crate::purgatory::Want;

/// Identifiers that are looked at in our own store at the same time.
const MAX_BRIEFS: usize = 8;

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
    /// Conversations under way.
    pub in_flight: usize,
    /// Identifiers that were hunted for to the end since there was last nothing to hunt for.
    pub done: u64,
    /// Each server that was asked lately.
    pub hosts: Vec<(Host, HostFigures)>,
}

#[derive(Debug)]
enum Command {
    Hunt { identifier: Identifier, after: Option<Duration> },
    Figures(oneshot::Sender<HuntFigures>),
    Schedule(oneshot::Sender<BTreeMap<Identifier, HuntSchedule>>),
}

impl HuntHandle {
    /// Hunts for an identifier without regard to earlier failures: after this time, or as soon as a burst of events allows.
    pub fn want(&self, identifier: Identifier, after: Option<Duration>) {
        let _ = self.commands.send(Command::Hunt { identifier, after });
    }

    /// Returns the figures of the hunt; `None` if it is over.
    pub async fn figures(&self) -> Option<HuntFigures> {
        let (reply, figures) = oneshot::channel();
        self.commands.send(Command::Figures(reply)).ok()?;
        figures.await.ok()
    }

    /// Returns the next attempt of each identifier. Empty if the hunt is over.
    pub async fn schedule(&self) -> BTreeMap<Identifier, HuntSchedule> {
        let (reply, schedule) = oneshot::channel();
        let _ = self.commands.send(Command::Schedule(reply));
        schedule.await.unwrap_or_default()
    }
}

/// Spawns the driver of a hunter.
pub fn hunt<C: SyncContext>(config: HuntConfig, context: Arc<C>) -> HuntHandle {
    let (commands, inbox) = mpsc::unbounded_channel();
    // At most one message for each request.
    let (answers, answered) = mpsc::unbounded_channel();
    let work = HuntDriver {
        answers,
        answered,
        hunter: Hunter::new(config, context.now()),
        context,
        tasks: JoinSet::new(),
        kinds: BTreeMap::new(),
        request_ids: BTreeMap::new(),
        brief_slots: Arc::new(Semaphore::new(MAX_BRIEFS)),
        classify_slots: Arc::new(Semaphore::new(MAX_CLASSIFICATIONS)),
    };
    tokio::spawn(work.run(inbox));
    HuntHandle { commands }
}

/// The owner of the state machine.
struct HuntDriver<C> {
    hunter: Hunter,
    context: Arc<C>,
    tasks: JoinSet<Input>,
    /// The kind of each task, so that cancelled and failed tasks have an end too.
    kinds: BTreeMap<Id, TaskKind>,
    request_ids: BTreeMap<RequestId, AbortHandle>,
    brief_slots: Arc<Semaphore>,
    classify_slots: Arc<Semaphore>,
    /// Requests whose server has begun to answer.
    answers: mpsc::UnboundedSender<RequestId>,
    answered: mpsc::UnboundedReceiver<RequestId>,
}

enum TaskKind {
    Brief(Identifier),
    List(RequestId),
    Fetch(RequestId),
    Classify(Host),
    Count,
}

impl<C: SyncContext> HuntDriver<C> {
    async fn run(mut self, mut inbox: mpsc::UnboundedReceiver<Command>) {
        // The first tick lists the identifiers of the hourly pull.
        self.turn(Input::Tick);
        loop {
            let deadline = self.hunter.next_deadline();
            let input = tokio::select! {
                command = inbox.recv() => match command {
                    Some(Command::Hunt { identifier, after }) => Input::Wanted { identifier, after },
                    Some(Command::Figures(reply)) => {
                        let _ = reply.send(self.figures());
                        continue;
                    }
                    Some(Command::Schedule(reply)) => {
                        let _ = reply.send(self.schedule());
                        continue;
                    }
                    None => return,
                },
                Some(ended) = self.tasks.join_next_with_id() => match self.ended(ended) {
                    Some(input) => input,
                    None => continue,
                },
                Some(request_id) = self.answered.recv() => Input::Answered { request_id },
                () = until(&*self.context, deadline) => Input::Tick,
            };
            self.turn(input);
        }
    }

    fn turn(&mut self, input: Input) {
        for output in self.hunter.handle(self.context.now(), input) {
            self.perform(output);
        }
    }

    /// Starts what takes time.
    fn perform(&mut self, output: Output) {
        let context = Arc::clone(&self.context);
        match output {
            Output::Brief { identifier, scope } => {
                let (kinds, brief_slots) =
                    (TaskKind::Brief(identifier.clone()), self.brief_slots.clone());
                self.start(kinds, async move {
                    let _turn = brief_slots.acquire_owned().await;
                    let wants = context.brief(&identifier, scope).await;
                    Input::Briefed { identifier, wants }
                });
            }
            Output::List { request_id, url, wanted, .. } => {
                self.start(TaskKind::List(request_id), async move {
                    let result = context.list(&url, &wanted).await;
                    Input::Listed { request_id, result }
                });
            }
            Output::Fetch { request_id, identifier, url, oids } => {
                let answers = self.answers.clone();
                self.start(TaskKind::Fetch(request_id), async move {
                    let (answered, mut heard) = oneshot::channel();
                    let mut fetch = pin!(context.fetch(&identifier, &url, &oids, answered));
                    let (got, trouble) = tokio::select! {
                        fetched = &mut fetch => fetched,
                        Ok(()) = &mut heard => {
                            let _ = answers.send(request_id);
                            fetch.await
                        }
                    };
                    Input::Fetched { request_id, got, trouble }
                });
            }
            Output::Classify { host, relay } => {
                let turns = self.classify_slots.clone();
                self.start(TaskKind::Classify(host.clone()), async move {
                    let _turn = turns.acquire_owned().await;
                    let class = context.classify(&relay).await;
                    Input::Classified { host, class }
                });
            }
            Output::Count => self.start(TaskKind::Count, async move {
                Input::Counted { identifiers: context.identifiers().await }
            }),
            Output::Cancel { request_id } => {
                if let Some(task) = self.request_ids.get(&request_id) {
                    task.abort();
                }
            }
            Output::Report(report) => context.report(&report),
        }
    }

    fn start(&mut self, kinds: TaskKind, work: impl Future<Output = Input> + Send + 'static) {
        let task = self.tasks.spawn(work);
        let id = task.id();
        if let TaskKind::List(request_id) | TaskKind::Fetch(request_id) = &kinds {
            self.request_ids.insert(*request_id, task);
        }
        self.kinds.insert(id, kinds);
    }

    /// Returns the input for the end of a task, also of a failed one.
    fn ended(&mut self, ended: Result<(Id, Input), JoinError>) -> Option<Input> {
        let (id, outcome) = match ended {
            Ok((id, input)) => (id, Ok(input)),
            Err(error) if error.is_cancelled() => (error.id(), Err(Trouble::Cancelled)),
            Err(error) => (error.id(), Err(Trouble::Ours(error.to_string()))),
        };
        let kinds = self.kinds.remove(&id)?;
        if let TaskKind::List(request_id) | TaskKind::Fetch(request_id) = &kinds {
            self.request_ids.remove(request_id);
        }
        match (outcome, kinds) {
            (Ok(input), _) => Some(input),
            (Err(_), TaskKind::Brief(identifier)) => {
                Some(Input::Briefed { identifier, wants: None })
            }
            (Err(trouble), TaskKind::List(request_id)) => {
                Some(Input::Listed { request_id, result: Err(trouble) })
            }
            (Err(trouble), TaskKind::Fetch(request_id)) => {
                let (got, trouble) = (BTreeSet::new(), Some(trouble));
                Some(Input::Fetched { request_id, got, trouble })
            }
            (Err(_), TaskKind::Classify(host)) => Some(Input::Classified { host, class: None }),
            // The next hour counts again.
            (Err(_), TaskKind::Count) => None,
        }
    }

    /// As of now, though the machine last looked at the clock a while ago.
    fn schedule(&self) -> BTreeMap<Identifier, HuntSchedule> {
        let turns = self.hunter.schedule_at(self.context.now().mono);
        turns.map(|(identifier, turn)| (identifier.clone(), turn)).collect()
    }

    fn figures(&self) -> HuntFigures {
        let hosts = self.hunter.hosts().map(|(host, figures)| (host.clone(), figures));
        HuntFigures {
            in_flight: self.hunter.in_flight(),
            done: self.hunter.done(),
            hosts: hosts.collect(),
        }
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

    /// Returns the missing objects of an identifier and the servers that may have them; `None` if they cannot be read now.
    fn brief(
        &self,
        identifier: &Identifier,
        scope: Scope,
    ) -> impl Future<Output = Option<Vec<Want>>> + Send;

    /// Returns which of these objects a server advertises.
    fn list(
        &self,
        url: &CloneUrl,
        wanted: &BTreeSet<Oid>,
    ) -> impl Future<Output = Result<Advertisement, Trouble>> + Send;

    /// The kind of git server that has this relay; `None` if it does not say.
    fn classify(&self, relay: &RelayUrl) -> impl Future<Output = Option<HostClass>> + Send;

    /// Fetches objects with their whole history, and publishes them to purgatory. Reports on `answered` that the server
    /// has begun to answer; returns which objects are here now, and what went wrong with the others. Dropped when it
    /// is given up.
    fn fetch(
        &self,
        identifier: &Identifier,
        url: &CloneUrl,
        oids: &BTreeSet<Oid>,
        answered: oneshot::Sender<()>,
    ) -> impl Future<Output = (BTreeSet<Oid>, Option<Trouble>)> + Send;

    /// Every identifier that is to be looked after every hour.
    fn identifiers(&self) -> impl Future<Output = BTreeSet<Identifier>> + Send;

    /// Hears what is worth counting or logging.
    fn report(&self, report: &HuntReport);
}
