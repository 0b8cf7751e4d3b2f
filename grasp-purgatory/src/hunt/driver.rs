//! The hunter at work: the only place here that waits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use grasp_core::{Host, Identifier, Mono};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};

use super::{Errand, HostFigures, HuntConfig, Hunter, Input, Output, SyncContext, Trouble, Turn};

/// Identifiers that are looked at in our own store at the same time.
const BRIEFS: usize = 8;

/// The way to a hunter at work. Cheap to clone; the hunt ends with the last clone.
#[derive(Clone, Debug)]
pub struct Hunting {
    // Without bound, for the hunter never waits between two orders: whatever takes time is a task of its own.
    orders: mpsc::UnboundedSender<Order>,
}

#[derive(Debug)]
enum Order {
    Hunt { identifier: Identifier, after: Duration },
    Figures(oneshot::Sender<(usize, Vec<(Host, HostFigures)>)>),
    Schedule(oneshot::Sender<BTreeMap<Identifier, Turn>>),
}

impl Hunting {
    /// Has an identifier hunted for, with a fresh start.
    pub fn want(&self, identifier: Identifier, after: Duration) {
        let _ = self.orders.send(Order::Hunt { identifier, after });
    }

    /// How many conversations are under way, and how things stand with each server asked lately. `None` if the hunt is
    /// over.
    pub async fn figures(&self) -> Option<(usize, Vec<(Host, HostFigures)>)> {
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
    let work = Work {
        hunter: Hunter::new(config, context.now()),
        context,
        tasks: JoinSet::new(),
        doing: BTreeMap::new(),
        errands: BTreeMap::new(),
        briefs: Arc::new(Semaphore::new(BRIEFS)),
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
}

enum Doing {
    Brief(Identifier),
    List(Errand),
    Fetch(Errand),
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
                self.start(Doing::Fetch(errand), async move {
                    let (got, trouble) = context.fetch(&identifier, &url, &oids).await;
                    Input::Fetched { errand, got, trouble }
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
            // The next hour counts again.
            (Err(_), Doing::Count) => None,
        }
    }

    /// As of now, though the machine last looked at the clock a while ago.
    fn schedule(&self) -> BTreeMap<Identifier, Turn> {
        let turns = self.hunter.schedule_at(self.context.now().mono);
        turns.map(|(identifier, turn)| (identifier.clone(), turn)).collect()
    }

    fn figures(&self) -> (usize, Vec<(Host, HostFigures)>) {
        let hosts = self.hunter.hosts().map(|(host, figures)| (host.clone(), figures));
        (self.hunter.in_flight(), hosts.collect())
    }
}

/// Sleeps until a point of the clock; for ever without one.
async fn until(context: &impl SyncContext, deadline: Option<Mono>) {
    match deadline {
        Some(deadline) => tokio::time::sleep(deadline - context.now().mono).await,
        None => std::future::pending().await,
    }
}
