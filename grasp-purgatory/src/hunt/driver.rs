//! The hunter at work: the only place here that waits.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use grasp_core::{Host, Identifier, Mono};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};

use super::{Errand, HostFigures, HuntConfig, Hunter, Input, Output, SyncContext, Trouble, Turn};

/// Identifiers that are looked at in our own store at the same time.
const BRIEFS: usize = 8;

/// Hosts that are asked at the same time what kind of server they are.
const CLASSIFICATIONS: usize = 8;

/// The way to a hunter at work. Cheap to clone; the hunt ends with the last clone.
#[derive(Clone, Debug)]
pub struct Hunting {
    // Without bound, for the hunter never waits between two orders: whatever takes time is a task of its own.
    orders: mpsc::UnboundedSender<Order>,
}

/// The hunt in numbers.
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
enum Order {
    Hunt { identifier: Identifier, after: Option<Duration> },
    Figures(oneshot::Sender<HuntFigures>),
    Schedule(oneshot::Sender<BTreeMap<Identifier, Turn>>),
}

impl Hunting {
    /// Has an identifier hunted for, with a fresh start: after this time, or as soon as a burst of events allows.
    pub fn want(&self, identifier: Identifier, after: Option<Duration>) {
        let _ = self.orders.send(Order::Hunt { identifier, after });
    }

    /// The hunt in numbers. `None` if it is over.
    pub async fn figures(&self) -> Option<HuntFigures> {
        let (reply, figures) = oneshot::channel();
        self.orders.send(Order::Figures(reply)).ok()?;
        figures.await.ok()
    }

    /// When each identifier that is hunted for is looked for next. Empty if the hunt is over.
    pub async fn schedule(&self) -> BTreeMap<Identifier, Turn> {
        let (reply, schedule) = oneshot::channel();
        let _ = self.orders.send(Order::Schedule(reply));
        schedule.await.unwrap_or_default()
    }
}

/// Starts to hunt in this world.
pub fn hunt<C: SyncContext>(config: HuntConfig, context: Arc<C>) -> Hunting {
    let (orders, inbox) = mpsc::unbounded_channel();
    // At most one message for each conversation.
    let (answers, answered) = mpsc::unbounded_channel();
    let work = Work {
        answers,
        answered,
        hunter: Hunter::new(config, context.now()),
        context,
        tasks: JoinSet::new(),
        doing: BTreeMap::new(),
        errands: BTreeMap::new(),
        briefs: Arc::new(Semaphore::new(BRIEFS)),
        classifications: Arc::new(Semaphore::new(CLASSIFICATIONS)),
    };
    tokio::spawn(work.run(inbox));
    Hunting { orders }
}

/// The one owner of the machine.
struct Work<C> {
    hunter: Hunter,
    context: Arc<C>,
    tasks: JoinSet<Input>,
    /// What each task is for, so that one which is given up or breaks has an end too.
    doing: BTreeMap<Id, Doing>,
    errands: BTreeMap<Errand, AbortHandle>,
    briefs: Arc<Semaphore>,
    classifications: Arc<Semaphore>,
    /// Where conversations say that their server has begun to answer.
    answers: mpsc::UnboundedSender<Errand>,
    answered: mpsc::UnboundedReceiver<Errand>,
}

enum Doing {
    Brief(Identifier),
    List(Errand),
    Fetch(Errand),
    Classify(Host),
    Count,
}

impl<C: SyncContext> Work<C> {
    async fn run(mut self, mut inbox: mpsc::UnboundedReceiver<Order>) {
        // The first turn finds out what is to be looked after.
        self.turn(Input::Tick);
        loop {
            let deadline = self.hunter.next_deadline();
            let input = tokio::select! {
                order = inbox.recv() => match order {
                    Some(Order::Hunt { identifier, after }) => Input::Wanted { identifier, after },
                    Some(Order::Figures(reply)) => {
                        let _ = reply.send(self.figures());
                        continue;
                    }
                    Some(Order::Schedule(reply)) => {
                        let _ = reply.send(self.schedule());
                        continue;
                    }
                    None => return,
                },
                Some(ended) = self.tasks.join_next_with_id() => match self.ended(ended) {
                    Some(input) => input,
                    None => continue,
                },
                Some(errand) = self.answered.recv() => Input::Answered { errand },
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
                let (doing, briefs) = (Doing::Brief(identifier.clone()), self.briefs.clone());
                self.start(doing, async move {
                    let _turn = briefs.acquire_owned().await;
                    let wants = context.brief(&identifier, scope).await;
                    Input::Briefed { identifier, wants }
                });
            }
            Output::List { errand, url, wanted, .. } => {
                self.start(Doing::List(errand), async move {
                    let result = context.list(&url, &wanted).await;
                    Input::Listed { errand, result }
                });
            }
            Output::Fetch { errand, identifier, url, oids } => {
                let answers = self.answers.clone();
                self.start(Doing::Fetch(errand), async move {
                    let (answered, mut heard) = oneshot::channel();
                    let mut fetch = pin!(context.fetch(&identifier, &url, &oids, answered));
                    let (got, trouble) = tokio::select! {
                        fetched = &mut fetch => fetched,
                        Ok(()) = &mut heard => {
                            let _ = answers.send(errand);
                            fetch.await
                        }
                    };
                    Input::Fetched { errand, got, trouble }
                });
            }
            Output::Classify { host, relay } => {
                let turns = self.classifications.clone();
                self.start(Doing::Classify(host.clone()), async move {
                    let _turn = turns.acquire_owned().await;
                    let class = context.classify(&relay).await;
                    Input::Classified { host, class }
                });
            }
            Output::Count => self.start(Doing::Count, async move {
                Input::Counted { identifiers: context.identifiers().await }
            }),
            Output::Cancel { errand } => {
                if let Some(task) = self.errands.get(&errand) {
                    task.abort();
                }
            }
            Output::Report(report) => context.report(&report),
        }
    }

    fn start(&mut self, doing: Doing, work: impl Future<Output = Input> + Send + 'static) {
        let task = self.tasks.spawn(work);
        let id = task.id();
        if let Doing::List(errand) | Doing::Fetch(errand) = &doing {
            self.errands.insert(*errand, task);
        }
        self.doing.insert(id, doing);
    }

    /// What the end of a task means, however it came.
    fn ended(&mut self, ended: Result<(Id, Input), JoinError>) -> Option<Input> {
        let (id, outcome) = match ended {
            Ok((id, input)) => (id, Ok(input)),
            Err(error) if error.is_cancelled() => (error.id(), Err(Trouble::Cancelled)),
            Err(error) => (error.id(), Err(Trouble::Ours(error.to_string()))),
        };
        let doing = self.doing.remove(&id)?;
        if let Doing::List(errand) | Doing::Fetch(errand) = &doing {
            self.errands.remove(errand);
        }
        match (outcome, doing) {
            (Ok(input), _) => Some(input),
            (Err(_), Doing::Brief(identifier)) => Some(Input::Briefed { identifier, wants: None }),
            (Err(trouble), Doing::List(errand)) => {
                Some(Input::Listed { errand, result: Err(trouble) })
            }
            (Err(trouble), Doing::Fetch(errand)) => {
                let (got, trouble) = (BTreeSet::new(), Some(trouble));
                Some(Input::Fetched { errand, got, trouble })
            }
            (Err(_), Doing::Classify(host)) => Some(Input::Classified { host, class: None }),
            // The next hour counts again.
            (Err(_), Doing::Count) => None,
        }
    }

    /// As of now, though the machine last looked at the clock a while ago.
    fn schedule(&self) -> BTreeMap<Identifier, Turn> {
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
