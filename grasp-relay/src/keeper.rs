//! Keeps events and git data in step: the driver of purgatory.
//!
//! ```text
//!  ingest, pushes ──Order──▶ ┌───────────────┐ ──records──▶ journal (one write for many turns)
//!  ends of work   ──Input──▶ │ loop: Purgatory│
//!                            └───────┬───────┘ ──Op──▶ a lane per repository name: git, event store, hub
//! ```
//!
//! One task owns the core. What it wants done runs in lanes, one per identifier: in order within a lane, at the same
//! time across lanes, so that a slow repository keeps nobody waiting but itself.

mod at_work;
mod contributors;
mod damage;
mod disk;
mod git;
mod hunt;
mod lane;
mod proposals;
mod rounds;
mod side;
mod survey;
mod task;
mod tidy;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use grasp_core::admission::{Hold, Origin, Policy};
use grasp_core::{Identifier, RepoId};
use grasp_purgatory::git::{GitError, RepoStore};
use grasp_purgatory::hunt::HuntHandle;
use grasp_purgatory::journal::Journal;
use grasp_purgatory::journal::Record;
use grasp_purgatory::{Config, HoldOutcome, Input, Purgatory};
use nostr::event::{Event, EventId};
use tokio::sync::{broadcast, mpsc, oneshot, watch};

pub use self::at_work::AtWork;
use self::at_work::Workers;
use self::damage::Damage;
pub use self::damage::DamagedRepo;
pub(crate) use self::disk::{Addition, DiskBudget};
use self::hunt::World;
pub use self::hunt::{Classify, HuntObserver, HuntParts};
use self::lane::{Hands, Lanes};
use self::rounds::Rounds;
use self::task::{Inbox, Task};
use crate::clock::Clock;
use crate::nostr::Hub;
use crate::store::EventStore;

/// Orders that may wait before callers have to.
const QUEUE: usize = 1_024;

/// What the steps of the journal are traced as: before changes are written down, and after, before anything else is
/// done about them. Whoever wants to see a crash at each of them listens here.
pub const JOURNAL: &str = "grasp::journal";

/// News that may wait for a listener before it has to look for itself.
const NEWS: usize = 1_024;

/// What is about to change about the repositories that we keep, beyond what stored events say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// A repository was announced, and waits for its git data.
    Held(Arc<Event>),
    /// A repository has lost its announcement: it expired, was deleted, or no longer lists us.
    Gone(RepoId),
}

/// What a keeper works with.
#[derive(Clone)]
pub struct KeeperParts {
    /// Repositories on disk.
    pub repos: RepoStore,
    /// The places of contributors for their pull requests, if they may have some (GRASP-06).
    pub contributors: Option<RepoStore>,
    /// Served events.
    pub store: Arc<dyn EventStore>,
    /// Where news are told.
    pub hub: Hub,
    /// The settings of the rulebook.
    pub policy: Policy,
    /// The time.
    pub clock: Clock,
    /// Bytes of git data that the repositories of one name may have together.
    pub repository_bytes: u64,
    /// With what git data is hunted for; without it, data comes by pushes alone.
    pub hunt: Option<HuntParts>,
}

/// The way to the keeper. Cheap to clone; its task ends with the last clone.
#[derive(Clone)]
pub struct Keeper {
    orders: mpsc::Sender<Order>,
    /// The way for questions while orders may have to wait for the disk.
    questions: mpsc::Sender<Question>,
    parts: Arc<KeeperParts>,
    workers: Workers,
    news: broadcast::Sender<News>,
    damage: Damage,
    disk: DiskBudget,
    hunting: Option<HuntHandle>,
    /// Whether the journal took what it was last given.
    writes: watch::Receiver<bool>,
}

/// Why the keeper does not do something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Gone {
    /// The server is stopping.
    #[error("purgatory is closed")]
    Stopping,
    /// Its journal cannot be written at the moment, so that nothing new can be promised.
    #[error("the journal of purgatory cannot be written; is the disk full?")]
    CannotWrite,
}

type Question = Box<dyn FnOnce(&Purgatory) + Send>;

enum Order {
    Tell(Input),
    Hold {
        event: Arc<Event>,
        hold: Hold,
        origin: Origin,
        reply: oneshot::Sender<HoldOutcome>,
    },
    Ask(Question),
    Wait {
        until: Until,
        reply: oneshot::Sender<()>,
    },
    /// Begins a round, unless one is under way.
    Round,
    /// The time has come for the next errand of the round.
    Walk,
    /// All names, if they could be told.
    Listed(Option<VecDeque<Identifier>>),
    /// A repository name was tidied up.
    Tidied(Identifier),
}

/// What can be waited for.
enum Until {
    /// All that has happened under an identifier until now has had its consequences.
    Settled(Identifier),
    /// It is clear what becomes of an event for now.
    Decided(EventId),
    /// No round is under way.
    Rested,
}

/// Who waits.
enum Waiter {
    Caller(oneshot::Sender<()>),
    /// The visit of a maintenance round to a repository name.
    Round(Identifier),
}

impl Keeper {
    /// Takes up where the records of the journal end, and starts to work.
    pub async fn start(
        parts: KeeperParts,
        config: Config,
        journal: Journal,
        records: Vec<Record>,
    ) -> Self {
        let now = parts.clock.now();
        let purgatory = Purgatory::restore(config, parts.policy.clone(), records, now);
        for repos in std::iter::once(&parts.repos).chain(&parts.contributors) {
            forget_strays(repos, &purgatory).await;
        }
        let parts = Arc::new(parts);
        let (orders, inbox) = mpsc::channel(QUEUE);
        let (questions, asked) = mpsc::channel(QUEUE);
        let workers = Workers::default();
        let news = broadcast::Sender::new(NEWS);
        let damage = Damage::default();
        let disk = DiskBudget::new(parts.repository_bytes);
        let shared = (workers.clone(), damage.clone(), disk.clone());
        let hands = Hands::new(Arc::clone(&parts), shared, orders.downgrade());
        let hunt = parts.hunt.clone();
        let hunting = hunt.map(|hunt| World::hunt(hunt, hands.clone(), orders.downgrade()));
        let (written, writes) = watch::channel(true);
        let keeper = Self {
            orders,
            questions,
            parts: Arc::clone(&parts),
            workers,
            news: news.clone(),
            damage,
            disk,
            hunting: hunting.clone(),
            writes,
        };
        let task = Task {
            purgatory,
            journal: Some(journal),
            lanes: Lanes::new(hands),
            hunting,
            answers: BTreeMap::new(),
            waiters: Vec::new(),
            rounds: Rounds::new(now.mono),
            clock: parts.clock.clone(),
            news,
            writes: written,
        };
        keeper.tell(Input::Started).await;
        tokio::spawn(task.run(Inbox { orders: inbox, questions: asked }));
        keeper
    }

    /// Repositories on disk.
    pub fn repos(&self) -> &RepoStore {
        &self.parts.repos
    }

    /// The places of contributors for their pull requests, if they may have some.
    pub fn contributors(&self) -> Option<&RepoStore> {
        self.parts.contributors.as_ref()
    }

    /// Removes a contributor's place that nothing is at, unless somebody is at work there.
    pub(crate) async fn vacate(&self, place: &RepoId) -> Result<(), GitError> {
        match &self.parts.contributors {
            Some(repos) => contributors::vacate(repos, &self.workers, &place.identifier).await,
            None => Ok(()),
        }
    }

    /// Served events.
    pub fn store(&self) -> &Arc<dyn EventStore> {
        &self.parts.store
    }

    /// The hunt for git data, if there is one.
    pub fn hunting(&self) -> Option<&HuntHandle> {
        self.hunting.as_ref()
    }

    /// The settings of the rulebook.
    pub fn policy(&self) -> &Policy {
        &self.parts.policy
    }

    /// Bounds on the git data that parties add in a day.
    pub(crate) fn disk(&self) -> &DiskBudget {
        &self.disk
    }

    /// The time.
    pub fn clock(&self) -> &Clock {
        &self.parts.clock
    }

    /// Says that somebody is at work on a repository: its view stays as long as the answer is kept.
    pub fn at_work(&self, repo: &RepoId) -> AtWork {
        self.workers.begin(repo)
    }

    /// Tells purgatory what happened.
    pub async fn tell(&self, input: Input) {
        let _ = self.orders.send(Order::Tell(input)).await;
    }

    /// News from now on. Who falls behind, or begins, asks for [`Purgatory::held_announcements`] after that.
    pub fn news(&self) -> broadcast::Receiver<News> {
        self.news.subscribe()
    }

    /// Whether what is brought can be written down; not as long as the disk is full.
    pub fn can_write(&self) -> bool {
        *self.writes.borrow()
    }

    /// Turns away who would have to wait for the disk, at the endpoint or as soon as it is full.
    async fn unless_full<T>(&self, work: impl Future<Output = Result<T, Gone>>) -> Result<T, Gone> {
        if !self.can_write() {
            return Err(Gone::CannotWrite);
        }
        tokio::select! {
            biased;
            done = work => done.map_err(|_| self.why_full()),
            () = self.full() => Err(self.why_full()),
        }
    }

    /// Waits until nobody is left who would answer.
    async fn ended(&self) {
        let mut writes = self.writes.clone();
        while writes.changed().await.is_ok() {}
    }

    /// Waits until the journal cannot be written, or nobody is left who would.
    async fn full(&self) {
        _ = self.writes.clone().wait_for(|writes| !writes).await;
    }

    /// Tells apart a journal that cannot be written from one that nobody writes any more.
    fn why_full(&self) -> Gone {
        if self.can_write() { Gone::Stopping } else { Gone::CannotWrite }
    }

    /// Asks purgatory something, between two turns.
    pub async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Purgatory) -> T + Send + 'static,
    ) -> Result<T, Gone> {
        let (reply, answer) = oneshot::channel();
        let once = Arc::new(Mutex::new(Some((question, reply))));
        let ask = || -> Question {
            let once = Arc::clone(&once);
            Box::new(move |purgatory| {
                let asked = once.lock().unwrap_or_else(PoisonError::into_inner).take();
                let _ = asked.map(|(question, reply)| reply.send(question(purgatory)));
            })
        };
        // After all that was said before it; but not behind what has to wait for the disk.
        let in_turn = async {
            self.orders.send(Order::Ask(ask())).await.map_err(|_| Gone::Stopping)?;
            std::future::pending().await
        };
        let aside = async {
            self.full().await;
            self.questions.send(ask()).await.map_err(|_| Gone::Stopping)?;
            std::future::pending().await
        };
        tokio::select! {
            biased;
            answer = answer => answer.map_err(|_| Gone::Stopping),
            gone = aside => gone,
            gone = in_turn => gone,
            () = self.ended() => Err(Gone::Stopping),
        }
    }

    /// Says that something changed under an identifier, and waits until everything that follows from it is done. What
    /// changes there later does not prolong that.
    pub async fn settle(&self, identifier: &Identifier) -> Result<(), Gone> {
        self.tell(Input::Changed { identifier: identifier.clone() }).await;
        self.wait(Until::Settled(identifier.clone())).await
    }

    /// Looks after every repository name now, and waits until that is done. It is done now and then in any case.
    ///
    /// Views and refs are compared with what is stored, what was kept for long enough is forgotten, and many packs
    /// become few.
    pub async fn make_round(&self) -> Result<(), Gone> {
        self.wait(Until::Rested).await?;
        self.orders.send(Order::Round).await.map_err(|_| Gone::Stopping)?;
        self.wait(Until::Rested).await
    }

    async fn wait(&self, until: Until) -> Result<(), Gone> {
        let (reply, over) = oneshot::channel();
        self.unless_full(async {
            self.orders.send(Order::Wait { until, reply }).await.map_err(|_| Gone::Stopping)?;
            over.await.map_err(|_| Gone::Stopping)
        })
        .await
    }

    /// Holds an event; resolves once it is written down and its view exists.
    async fn hold(
        &self,
        event: Arc<Event>,
        hold: Hold,
        origin: Origin,
    ) -> Result<HoldOutcome, Gone> {
        let (reply, kept) = oneshot::channel();
        let order = Order::Hold { event, hold, origin, reply };
        self.unless_full(async {
            self.orders.send(order).await.map_err(|_| Gone::Stopping)?;
            kept.await.map_err(|_| Gone::Stopping)
        })
        .await
    }
}

/// Drops uploads that an earlier run took in and did not live to write down.
async fn forget_strays(repos: &RepoStore, purgatory: &Purgatory) {
    match repos.forget_staged_but(purgatory.staged()).await {
        Ok(0) => {}
        Ok(gone) => tracing::info!(gone, "dropped uploads that were never accounted for"),
        Err(error) => tracing::warn!(%error, "could not look through staging"),
    }
}
