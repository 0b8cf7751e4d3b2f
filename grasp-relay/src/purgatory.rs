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

mod damage;
mod disk;
mod hunt;
mod lane;
mod maintenance;
mod refs;
mod survey;
mod task;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use grasp_core::admission::{Acceptance, Hold, Known, Needs, Origin, Policy, Rejection, Verdict};
use grasp_core::deletion::VanishScope;
use grasp_core::nip34::Announcement;
use grasp_core::{Identifier, RepoId, Version, kinds};
use grasp_purgatory::git::{GitError, RepoStore};
use grasp_purgatory::hunt::HuntHandle;
use grasp_purgatory::journal::Journal;
use grasp_purgatory::journal::Record;
use grasp_purgatory::{Config, HoldOutcome, Input, Purgatory};
use nostr::event::{Event, EventId};
use nostr::filter::Filter;
use tokio::sync::{broadcast, mpsc, oneshot, watch};

use self::damage::Damage;
pub use self::damage::DamagedRepo;
pub(crate) use self::disk::{Addition, DiskBudget};
use self::hunt::HuntContext;
pub use self::hunt::{Classify, HuntObserver, HuntParts};
use self::lane::{LaneExecutor, Lanes};
use self::maintenance::MaintenanceSchedule;
use self::refs::ActiveWork;
pub use self::refs::WorkGuard;
use self::task::{Inbox, Task};
use crate::clock::Clock;
use crate::ingest::{GitBackend, GitFacts};
use crate::nostr::Hub;
use crate::store::{self, EventStore, REPOSITORY_KINDS, StoreError};

/// Time that the sender of an event waits to hear whether it is served; then it hears that the event is held.
const DECISION_TIMEOUT: Duration = Duration::from_secs(5);

/// Orders that may wait before callers have to.
const ORDER_QUEUE: usize = 1_024;

/// What the steps of the journal are traced as: before changes are written down, and after, before anything else is
/// done about them. Whoever wants to see a crash at each of them listens here.
pub const JOURNAL: &str = "grasp::journal";

/// RepoChange that may wait for a listener before it has to look for itself.
const CHANGE_QUEUE: usize = 1_024;

/// What is about to change about the repositories that we keep, beyond what stored events say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RepoChange {
    /// A repository was announced, and waits for its git data.
    Held(Arc<Event>),
    /// A repository has lost its announcement: it expired, was deleted, or no longer lists us.
    Removed(RepoId),
}

/// What a driver works with.
#[derive(Clone)]
pub struct PurgatoryParts {
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

/// The way to the driver. Cheap to clone; its task ends with the last clone.
#[derive(Clone)]
pub struct PurgatoryDriver {
    orders: mpsc::Sender<Order>,
    /// The way for questions while orders may have to wait for the disk.
    questions: mpsc::Sender<Question>,
    parts: Arc<PurgatoryParts>,
    active_work: ActiveWork,
    news: broadcast::Sender<RepoChange>,
    damage: Damage,
    disk: DiskBudget,
    hunting: Option<HuntHandle>,
    /// Whether the journal took what it was last given.
    writes: watch::Receiver<bool>,
}

/// Why the driver does not do something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
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
    StartMaintenance,
    /// The time has come for the next errand of the round.
    MaintenanceDue,
    /// All names, if they could be told.
    Listed(Option<VecDeque<Identifier>>),
    /// A repository name was tidied up.
    Maintained(Identifier),
}

/// What can be waited for.
enum Until {
    /// All that has happened under an identifier until now has had its consequences.
    Settled(Identifier),
    /// It is clear what becomes of an event for now.
    Decided(EventId),
    /// No round is under way.
    MaintenanceIdle,
}

/// Who waits.
enum Waiter {
    Caller(oneshot::Sender<()>),
    /// The visit of a maintenance round to a repository name.
    Maintenance(Identifier),
}

impl PurgatoryDriver {
    /// Takes up where the records of the journal end, and starts to work.
    pub async fn start(
        parts: PurgatoryParts,
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
        let (orders, inbox) = mpsc::channel(ORDER_QUEUE);
        let (questions, asked) = mpsc::channel(ORDER_QUEUE);
        let active_work = ActiveWork::default();
        let news = broadcast::Sender::new(CHANGE_QUEUE);
        let damage = Damage::default();
        let disk = DiskBudget::new(parts.repository_bytes);
        let shared = (active_work.clone(), damage.clone(), disk.clone());
        let executor = LaneExecutor::new(Arc::clone(&parts), shared, orders.downgrade());
        let hunt = parts.hunt.clone();
        let hunting =
            hunt.map(|hunt| HuntContext::hunt(hunt, executor.clone(), orders.downgrade()));
        let (written, writes) = watch::channel(true);
        let driver = Self {
            orders,
            questions,
            parts: Arc::clone(&parts),
            active_work,
            news: news.clone(),
            damage,
            disk,
            hunting: hunting.clone(),
            writes,
        };
        let task = Task {
            purgatory,
            journal: Some(journal),
            lanes: Lanes::new(executor),
            hunting,
            answers: BTreeMap::new(),
            waiters: Vec::new(),
            maintenance: MaintenanceSchedule::new(now.mono),
            clock: parts.clock.clone(),
            news,
            writes: written,
        };
        driver.tell(Input::Started).await;
        tokio::spawn(task.run(Inbox { orders: inbox, questions: asked }));
        driver
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
    pub(crate) async fn remove_empty(&self, place: &RepoId) -> Result<(), GitError> {
        match &self.parts.contributors {
            Some(repos) => refs::remove_empty(repos, &self.active_work, &place.identifier).await,
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
    pub fn begin_work(&self, repo: &RepoId) -> WorkGuard {
        self.active_work.begin(repo)
    }

    /// Tells purgatory what happened.
    pub async fn tell(&self, input: Input) {
        let _ = self.orders.send(Order::Tell(input)).await;
    }

    /// RepoChange from now on. Who falls behind, or begins, asks for [`Purgatory::held_announcements`] after that.
    pub fn news(&self) -> broadcast::Receiver<RepoChange> {
        self.news.subscribe()
    }

    /// Whether what is brought can be written down; not as long as the disk is full.
    pub fn can_write(&self) -> bool {
        *self.writes.borrow()
    }

    /// Turns away who would have to wait for the disk, at the endpoint or as soon as it is full.
    async fn unless_full<T>(
        &self,
        work: impl Future<Output = Result<T, Unavailable>>,
    ) -> Result<T, Unavailable> {
        if !self.can_write() {
            return Err(Unavailable::CannotWrite);
        }
        tokio::select! {
            biased;
            done = work => done.map_err(|_| self.why_full()),
            () = self.full() => Err(self.why_full()),
        }
    }

    /// Waits until the task has ended.
    async fn ended(&self) {
        let mut writes = self.writes.clone();
        while writes.changed().await.is_ok() {}
    }

    /// Waits until the journal cannot be written, or nobody is left who would.
    async fn full(&self) {
        _ = self.writes.clone().wait_for(|writes| !writes).await;
    }

    /// Tells apart a journal that cannot be written from one that nobody writes any more.
    fn why_full(&self) -> Unavailable {
        if self.can_write() { Unavailable::Stopping } else { Unavailable::CannotWrite }
    }

    /// Asks purgatory something, between two turns.
    pub async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Purgatory) -> T + Send + 'static,
    ) -> Result<T, Unavailable> {
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
            self.orders.send(Order::Ask(ask())).await.map_err(|_| Unavailable::Stopping)?;
            std::future::pending().await
        };
        let aside = async {
            self.full().await;
            self.questions.send(ask()).await.map_err(|_| Unavailable::Stopping)?;
            std::future::pending().await
        };
        tokio::select! {
            biased;
            answer = answer => answer.map_err(|_| Unavailable::Stopping),
            gone = aside => gone,
            gone = in_turn => gone,
            () = self.ended() => Err(Unavailable::Stopping),
        }
    }

    /// Says that something changed under an identifier, and waits until everything that follows from it is done. What
    /// changes there later does not prolong that.
    pub async fn settle(&self, identifier: &Identifier) -> Result<(), Unavailable> {
        self.tell(Input::Changed { identifier: identifier.clone() }).await;
        self.wait(Until::Settled(identifier.clone())).await
    }

    /// Looks after every repository name now, and waits until that is done. It is done now and then in any case.
    ///
    /// Views and refs are compared with what is stored, what was kept for long enough is forgotten, and many packs
    /// become few.
    pub async fn run_maintenance(&self) -> Result<(), Unavailable> {
        self.wait(Until::MaintenanceIdle).await?;
        self.orders.send(Order::StartMaintenance).await.map_err(|_| Unavailable::Stopping)?;
        self.wait(Until::MaintenanceIdle).await
    }

    async fn wait(&self, until: Until) -> Result<(), Unavailable> {
        let (reply, over) = oneshot::channel();
        self.unless_full(async {
            self.orders
                .send(Order::Wait { until, reply })
                .await
                .map_err(|_| Unavailable::Stopping)?;
            over.await.map_err(|_| Unavailable::Stopping)
        })
        .await
    }

    /// Holds an event; resolves once it is written down and its view exists.
    async fn hold(
        &self,
        event: Arc<Event>,
        hold: Hold,
        origin: Origin,
    ) -> Result<HoldOutcome, Unavailable> {
        let (reply, kept) = oneshot::channel();
        let order = Order::Hold { event, hold, origin, reply };
        self.unless_full(async {
            self.orders.send(order).await.map_err(|_| Unavailable::Stopping)?;
            kept.await.map_err(|_| Unavailable::Stopping)
        })
        .await
    }
}

impl From<Unavailable> for StoreError {
    fn from(unavailable: Unavailable) -> Self {
        match unavailable {
            Unavailable::Stopping => Self::Closed,
            Unavailable::CannotWrite => Self::Journal(unavailable),
        }
    }
}

impl GitBackend for PurgatoryDriver {
    fn facts(&self, event: Arc<Event>) -> BoxFuture<'_, Result<GitFacts, StoreError>> {
        Box::pin(async move {
            if !waits_for_git(&event) {
                return Ok(GitFacts::default());
            }
            let repository_quota_reached = self.repository_quota_reached(&event).await?;
            let identifier = Needs::of(&event).identifier;
            let facts = move |purgatory: &grasp_purgatory::Purgatory| GitFacts {
                is_held: purgatory.holds(&event.id),
                announcements: identifier.iter().flat_map(|i| purgatory.announcements(i)).collect(),
                over_quota: repository_quota_reached || !purgatory.has_room_for(&event),
            };
            Ok(self.ask(facts).await?)
        })
    }

    fn hold(
        &self,
        event: Arc<Event>,
        hold: Hold,
        origin: Origin,
    ) -> BoxFuture<'_, Result<Verdict, StoreError>> {
        Box::pin(async move {
            let (id, waits) = (event.id, !origin.is_sync());
            Ok(match Self::hold(self, event, hold.clone(), origin).await? {
                HoldOutcome::Held if waits => self.outcome(id, hold).await?,
                HoldOutcome::Held => Verdict::Hold(hold),
                HoldOutcome::Superseded => Verdict::Known(Known::Superseded),
                HoldOutcome::Full => Verdict::Reject(Rejection::Quota),
                HoldOutcome::Unreadable => Verdict::Accept(Acceptance::Promoted),
            })
        })
    }

    fn stored(&self, event: Arc<Event>) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if let Some(input) = self.consequence(event) {
                self.tell(input).await;
            }
        })
    }

    fn affected(&self, names: BTreeSet<Identifier>) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            for identifier in self.with_git_data(names).await {
                self.tell(Input::Changed { identifier }).await;
            }
        })
    }

    fn delisted(&self, repo: RepoId, by: Version) -> BoxFuture<'_, ()> {
        Box::pin(self.tell(Input::Delisted { repo, by }))
    }
}

impl PurgatoryDriver {
    /// Those of these names that there is git data of. An event may name hundreds that nobody ever announced.
    async fn with_git_data(&self, names: BTreeSet<Identifier>) -> BTreeSet<Identifier> {
        let mut found = BTreeSet::new();
        for store in std::iter::once(self.repos()).chain(self.contributors()) {
            match store.existing(names.clone()).await {
                Ok(some) => found.extend(some),
                Err(error) => {
                    tracing::warn!(%error, "could not tell which repositories exist");
                    return names;
                }
            }
        }
        found
    }

    /// What has become of an event that was taken in just now. If its data was here, it is served by the time that
    /// its sender hears of it.
    async fn outcome(&self, id: EventId, hold: Hold) -> Result<Verdict, StoreError> {
        if tokio::time::timeout(DECISION_TIMEOUT, self.wait(Until::Decided(id))).await.is_err() {
            return Ok(Verdict::Hold(hold));
        }
        let is_held = self.ask(move |purgatory| purgatory.holds(&id)).await?;
        if is_held {
            return Ok(Verdict::Hold(hold));
        }
        let now = self.clock().now().unix;
        let stored = self.store().exists(vec![vec![Filter::new().id(id)]], now).await?;
        // What is neither here nor there lost to a newer version, or its author took it back.
        Ok(match stored.contains(&true) {
            true => Verdict::Accept(Acceptance::Released),
            false => Verdict::Known(Known::Superseded),
        })
    }

    /// Whether somebody who announces a repository here is served as many as one may be.
    async fn repository_quota_reached(&self, event: &Event) -> Result<bool, StoreError> {
        let (policy, now) = (self.policy(), self.clock().now().unix);
        let asks = event.kind == kinds::ANNOUNCEMENT
            && Announcement::parse(event).is_ok_and(|new| new.lists(&policy.service));
        if !asks {
            return Ok(false);
        }
        let theirs = Filter::new().kind(kinds::ANNOUNCEMENT).author(event.pubkey);
        let known = self.store().count(vec![theirs.clone()], now).await?;
        if usize::try_from(known).is_ok_and(|known| known < policy.repositories_per_author) {
            return Ok(false);
        }
        let theirs = store::events(&**self.store(), theirs, now).await?;
        let announcements: Vec<_> = theirs.iter().flat_map(Announcement::parse).collect();
        Ok(policy.repository_quota_reached(&event.pubkey, &announcements))
    }

    /// What a stored event means for what waits.
    fn consequence(&self, event: Arc<Event>) -> Option<Input> {
        if event.kind == kinds::ANNOUNCEMENT {
            let identifier: Identifier = Announcement::parse(&event).ok()?.repo.identifier;
            return Some(Input::Changed { identifier });
        }
        if event.kind == kinds::DELETION {
            return Some(Input::Deleted { request: event });
        }
        let vanishes = self.is_vanish_request(&event);
        vanishes.then(|| Input::Vanished { author: event.pubkey, until: event.created_at })
    }

    /// Whether its author asks us to forget them.
    fn is_vanish_request(&self, event: &Event) -> bool {
        let us = Some(&self.policy().service);
        event.kind == kinds::VANISH && VanishScope::parse(event).includes(us)
    }
}

/// Whether an event of this kind may have to wait for git data.
fn waits_for_git(event: &Event) -> bool {
    REPOSITORY_KINDS.contains(&event.kind)
}

/// Drops uploads that an earlier run took in and did not live to write down.
async fn forget_strays(repos: &RepoStore, purgatory: &Purgatory) {
    match repos.forget_staged_but(purgatory.staged()).await {
        Ok(0) => {}
        Ok(gone) => tracing::info!(gone, "dropped uploads that were never accounted for"),
        Err(error) => tracing::warn!(%error, "could not look through staging"),
    }
}
