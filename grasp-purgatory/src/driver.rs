//! The driver of purgatory, which serves events and their git data together.
//!
//! ```text
//!  ingest, pushes ──Order──▶ ┌───────────────┐ ──records──▶ database (one write for many turns)
//!  ends of work   ──Input──▶ │ loop: Purgatory│
//!                            └───────┬───────┘ ──Output──▶ a queue per repository: git, database, hub
//! ```
//!
//! One task owns the core. Its outputs are executed by queues, one per repository: in order within a queue, concurrently
//! across queues, so that a slow repository delays no other.

mod damage;
mod disk;
mod hunt;
mod maintenance;
mod policy;
mod queue;
mod quota;
mod reach;
mod refs;
mod survey;
mod task;

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use grasp_core::admission::{Hold, KnownAnnouncement, MaintainedRepo, Origin, Policy, Presence};
use grasp_core::deletion::vanishes_from;
use grasp_core::nip34::{Announcement, Proposal};
use grasp_core::quota::Quotas;
use grasp_core::resources::{Claimant, ClientNetwork};
use grasp_core::service::Endpoint;
use grasp_core::{Now, Oid, RepoId, kinds};
use nostr::event::{Event, EventId};
use nostr::filter::Filter;
use nostr::key::PublicKey;
use nostr::nips::nip01::Coordinate;
use nostr::types::Timestamp;
use parking_lot::Mutex;
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::task::JoinSet;

pub use self::damage::{DamagedRepo, lacks_objects};
pub use self::disk::DiskBudget;
pub use self::hunt::{Classify, HuntObserver, HuntParts};
pub use self::policy::LivePolicy;
use self::queue::{Executor, WorkQueues};
pub use self::quota::{QuotaAccount, Reservation};
use self::task::{Callers, Inbox, Task};
pub use crate::active_work::WorkGuard;
use crate::database::{ADDITIONS_KEPT, DataSource, DatabaseError, DatabaseFuture};
use crate::git::{GitError, RepoStore};
use crate::hunt::HuntHandle;
use crate::purgatory::Record;
use crate::{Config, HoldOutcome, Input, Purgatory, PushTarget, WakeCause};

/// Time that the sender of an event waits to hear whether it is served; then it hears that the event is held.
const DECISION_TIMEOUT: Duration = Duration::from_secs(5);

/// Time that a push waits for other repositories of its maintainers to follow.
const PEERS_TIMEOUT: Duration = Duration::from_secs(5);

/// Repositories of one pull request that are waited for.
const MAX_NAMED: usize = 16;

/// Orders that are queued before senders have to wait.
const ORDER_QUEUE: usize = 1_024;

/// Requests to run maintenance that are queued before senders have to wait.
const MAINTENANCE_QUEUE: usize = 16;

/// Target of trace events before records and releases are written, and after. Crash tests end the process there.
pub const JOURNAL: &str = "grasp::journal";

/// Changes that are queued for a subscriber before it misses some.
const CHANGE_QUEUE: usize = 1_024;

/// The relay that purgatory belongs to: its clock, the events that it serves, and their publication.
pub trait LocalRelay: Send + Sync + 'static {
    /// Reads the clocks.
    fn now(&self) -> Now;

    /// Returns the served events that a filter matches.
    fn events(&self, filter: Filter) -> DatabaseFuture<'_, Vec<Arc<Event>>>;

    /// Returns the number of served events that a filter matches.
    fn count(&self, filter: Filter) -> DatabaseFuture<'_, u64>;

    /// Returns for each filter whether a served event matches it.
    fn exists(&self, filters: Vec<Filter>) -> DatabaseFuture<'_, Vec<bool>>;

    /// Returns the repositories of all served announcements that are hosted by this policy.
    fn hosted(&self, policy: &Policy) -> DatabaseFuture<'_, BTreeSet<RepoId>>;

    /// Returns the served events at these coordinates, in no particular order.
    fn heads(&self, coordinates: Vec<Coordinate>) -> DatabaseFuture<'_, Vec<Arc<Event>>>;

    /// Returns the authors of served announcements that list the owner of a repository under its identifier: up to a
    /// number, the newest first.
    fn listing(&self, repo: RepoId, most: usize) -> DatabaseFuture<'_, Vec<PublicKey>>;

    /// Returns whether an event at a coordinate is served, or is out of service and can be restored.
    fn keeps(&self, coordinate: Coordinate) -> DatabaseFuture<'_, bool>;

    /// Returns those of these events that would not be stored now: deleted, vanished or expired ones.
    fn refused(&self, events: Vec<Arc<Event>>) -> DatabaseFuture<'_, BTreeSet<EventId>>;

    /// Returns the version that was served before the present or last one.
    fn previous(&self, coordinate: Coordinate) -> DatabaseFuture<'_, Option<Event>>;

    /// Publishes an event that was committed to the subscriptions of clients.
    fn publish(&self, event: Arc<Event>) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;

    /// Tells who follows the stored events that a commit removed some without a replacement.
    fn removed(&self, events: BTreeSet<EventId>) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
}

/// A change of the hosted repositories that no stored event shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RepoNews {
    /// The announcement of a repository is held until its git data is here.
    Held(Arc<Event>),
    /// A repository has lost its announcement: it expired, was deleted, or no longer lists this server.
    Removed(RepoId),
}

/// The parts of the server that the driver uses.
#[derive(Clone)]
pub struct PurgatoryParts {
    /// Repositories on disk.
    pub repos: RepoStore,
    /// Repositories of contributors for their pull requests, if enabled (GRASP-06).
    pub contributors: Option<RepoStore>,
    /// The relay that purgatory belongs to.
    pub relay: Arc<dyn LocalRelay>,
    /// The settings of admission.
    pub policy: LivePolicy,
    /// Bytes of git data that repositories, owners and the server may have.
    pub quotas: Quotas,
    /// The parts of the hunt; without them, git data comes by pushes alone.
    pub hunt: Option<HuntParts>,
}

impl PurgatoryParts {
    /// Returns the stores of both endpoints.
    fn stores(&self) -> impl Iterator<Item = &RepoStore> {
        std::iter::once(&self.repos).chain(&self.contributors)
    }

    /// Returns the store of an endpoint, if that is enabled.
    fn store_of(&self, endpoint: Endpoint) -> Option<&RepoStore> {
        self.stores().find(|store| store.endpoint() == endpoint)
    }
}

/// The handle of the driver's task. Cheap to clone; the task ends with the last clone.
#[derive(Clone)]
pub struct PurgatoryDriver {
    orders: mpsc::Sender<Order>,
    /// Questions that are answered while orders wait for the disk.
    questions: mpsc::Sender<Question>,
    executor: Executor,
    news: broadcast::Sender<RepoNews>,
    hunting: Option<HuntHandle>,
    /// Requests to run maintenance now.
    maintenance: mpsc::Sender<oneshot::Sender<()>>,
    /// `false` while records cannot be written.
    writes: watch::Receiver<bool>,
}

/// The driver takes no orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// The server is stopping.
    #[error("purgatory is closed")]
    Stopping,
    /// The database cannot be written, so that nothing new can be promised.
    #[error("the database cannot be written; is the disk full?")]
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
        /// Is told what became of a held event.
        decided: Option<oneshot::Sender<HoldOutcome>>,
    },
    Ask(Question),
    /// Reports a change at a repository, and waits until its outputs were executed.
    Settle {
        repo: RepoId,
        events: BTreeSet<EventId>,
        reply: oneshot::Sender<Outcomes>,
    },
    /// Reports an upload, and waits whether it is kept.
    Stage {
        upload: Upload,
        reply: oneshot::Sender<bool>,
    },
    /// Maintains a repository, and reports the end of that.
    Maintain {
        repo: RepoId,
        done: oneshot::Sender<()>,
    },
}

/// What became of the events of a push. Those are missing that a failure left undecided.
pub type Outcomes = BTreeMap<EventId, HoldOutcome>;

/// A tip that a push left in staging for an event that has not been received.
#[derive(Clone, Debug)]
pub struct Upload {
    /// The event.
    pub id: EventId,
    /// The tip.
    pub tip: Oid,
    /// The repository that it was pushed to.
    pub target: PushTarget,
    /// The size of its objects.
    pub bytes: u64,
    /// The network of the client.
    pub network: Option<ClientNetwork>,
}

impl From<Upload> for Input {
    fn from(upload: Upload) -> Self {
        Self::PushStaged {
            id: upload.id,
            tip: upload.tip,
            target: upload.target,
            bytes: upload.bytes,
            network: upload.network,
        }
    }
}

impl PurgatoryDriver {
    /// Restores purgatory from the records of an earlier run, and starts the task.
    pub async fn start(parts: PurgatoryParts, config: Config, records: Vec<Record>) -> Self {
        let now = parts.relay.now();
        let purgatory = Purgatory::restore(config, parts.policy.now(), records, now);
        for repos in parts.stores() {
            remove_unrecorded_uploads(repos, &purgatory).await;
        }
        let (orders, inbox) = mpsc::channel(ORDER_QUEUE);
        let (questions, asked) = mpsc::channel(ORDER_QUEUE);
        let news = broadcast::Sender::new(CHANGE_QUEUE);
        let hunt = parts.hunt.clone();
        let policy = parts.policy.clone();
        let executor = Executor::new(parts, orders.downgrade());
        let since = Timestamp::from_secs(now.unix.as_secs().saturating_sub(ADDITIONS_KEPT));
        match executor.parts.repos.database().additions(since).await {
            Ok(additions) => executor.disk.restore(now, &additions),
            Err(error) => {
                tracing::error!(%error, "could not read what was added to the disk in the last day");
            }
        }
        if let Err(error) = executor.quota.restore().await {
            tracing::error!(%error, "could not read the quotas that the operator gave");
        }
        let hunting = hunt.map(|hunt| hunt.start(executor.clone(), orders.downgrade()));
        let (maintenance, requests) = mpsc::channel(MAINTENANCE_QUEUE);
        let maintained = executor.clone().run_maintenance(requests);
        let (written, writes) = watch::channel(true);
        let driver = Self {
            orders,
            questions,
            executor: executor.clone(),
            news: news.clone(),
            hunting: hunting.clone(),
            maintenance,
            writes,
        };
        let task = Task {
            purgatory,
            queues: WorkQueues::new(executor),
            hunting,
            callers: Callers::default(),
            news,
            writes: written,
        };
        driver.tell(Input::Started).await;
        tokio::spawn(task.run(Inbox {
            orders: inbox,
            questions: asked,
            policy,
        }));
        tokio::spawn(maintained);
        driver
    }

    /// Returns the repositories on disk.
    pub fn repos(&self) -> &RepoStore {
        &self.executor.parts.repos
    }

    /// Returns the repositories of contributors, if enabled.
    pub fn contributors(&self) -> Option<&RepoStore> {
        self.executor.parts.contributors.as_ref()
    }

    /// Removes a contributor's repository without refs, unless work on it is in progress.
    pub async fn remove_empty(&self, place: &RepoId) -> Result<(), GitError> {
        match &self.executor.parts.contributors {
            Some(repos) => refs::remove_empty(repos, &self.executor.active_work, place).await,
            None => Ok(()),
        }
    }

    /// Returns the relay that purgatory belongs to.
    pub fn relay(&self) -> &Arc<dyn LocalRelay> {
        &self.executor.parts.relay
    }

    /// Returns the handle of the hunt, if it is enabled.
    pub fn hunting(&self) -> Option<&HuntHandle> {
        self.hunting.as_ref()
    }

    /// The settings of admission.
    pub fn policy(&self) -> &LivePolicy {
        &self.executor.parts.policy
    }

    /// Returns the quotas of git data that is kept.
    pub fn quota(&self) -> &QuotaAccount {
        &self.executor.quota
    }

    /// Counts the bytes that a claimant has pushed to a repository.
    pub fn charge_push(&self, repo: &RepoId, claimant: &Claimant, bytes: u64) {
        let now = self.relay().now();
        self.disk()
            .charge(now, repo, claimant, (DataSource::Pushed, bytes));
        self.quota().added(bytes);
    }

    /// Returns the limits of git data that parties add in a day.
    pub fn disk(&self) -> &DiskBudget {
        &self.executor.disk
    }

    /// Keeps the view of a repository until the guard is dropped.
    pub fn begin_work(&self, repo: &RepoId) -> WorkGuard {
        self.executor.active_work.begin(repo)
    }

    /// Sends an input to purgatory.
    pub async fn tell(&self, input: Input) {
        let _ = self.orders.send(Order::Tell(input)).await;
    }

    /// Subscribes to changes from now on. A subscriber that begins or missed some reads
    /// [`Purgatory::held_announcements`] after that.
    pub fn news(&self) -> broadcast::Receiver<RepoNews> {
        self.news.subscribe()
    }

    /// Returns whether records can be written; not while the disk is full.
    pub fn can_write(&self) -> bool {
        *self.writes.borrow()
    }

    /// Fails instead of waiting for the disk, at once or as soon as it is full.
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

    /// Waits until records cannot be written, or the task has ended.
    async fn full(&self) {
        _ = self.writes.clone().wait_for(|writes| !writes).await;
    }

    /// Tells a database that cannot be written from a task that has ended.
    fn why_full(&self) -> Unavailable {
        if self.can_write() {
            Unavailable::Stopping
        } else {
            Unavailable::CannotWrite
        }
    }

    /// Calls a function with the state of purgatory, between two turns.
    pub async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Purgatory) -> T + Send + 'static,
    ) -> Result<T, Unavailable> {
        let (reply, answer) = oneshot::channel();
        let once = Arc::new(Mutex::new(Some((question, reply))));
        let ask = || -> Question {
            let once = Arc::clone(&once);
            Box::new(move |purgatory| {
                let asked = once.lock().take();
                let _ = asked.map(|(question, reply)| reply.send(question(purgatory)));
            })
        };
        // After all orders before it, but not after those that wait for the disk.
        let in_turn = async {
            self.orders
                .send(Order::Ask(ask()))
                .await
                .map_err(|_| Unavailable::Stopping)?;
            std::future::pending().await
        };
        let aside = async {
            self.full().await;
            self.questions
                .send(ask())
                .await
                .map_err(|_| Unavailable::Stopping)?;
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

    /// Reports a change at a repository, and waits until its outputs were executed. Later changes do not prolong that.
    pub async fn settle(&self, repo: &RepoId) -> Result<(), Unavailable> {
        self.settle_events(repo, &BTreeSet::new()).await.map(drop)
    }

    /// Does so, and returns what became of these events.
    async fn settle_events(
        &self,
        repo: &RepoId,
        events: &BTreeSet<EventId>,
    ) -> Result<Outcomes, Unavailable> {
        let (repo, events) = (repo.clone(), events.clone());
        self.answered(|reply| Order::Settle {
            repo,
            events,
            reply,
        })
        .await
    }

    /// Reports an upload to staging, and returns whether it is kept until its event can be served.
    pub async fn stage(&self, upload: Upload) -> Result<bool, Unavailable> {
        self.answered(|reply| Order::Stage { upload, reply }).await
    }

    /// Reports that a push has brought the objects of a state and of pull requests to a repository, and waits until they
    /// are served: the state by the repository of its author first, then here, then by the other repositories of the
    /// maintainers. Those are waited for no longer than a few seconds; they follow in any case. Returns what became of
    /// these events here.
    pub async fn settle_push(
        &self,
        repo: &RepoId,
        author: Option<PublicKey>,
        events: &BTreeSet<EventId>,
    ) -> Result<Outcomes, Unavailable> {
        let mut outcomes = self.settle_events(repo, events).await?;
        let Some(author) = author else {
            return Ok(outcomes);
        };
        let peers = match self.peers(repo, &author).await {
            Ok(peers) => peers,
            Err(error) => {
                tracing::warn!(%error, %repo, "could not read which repositories follow a push");
                return Ok(outcomes);
            }
        };
        let own = RepoId::new(author, repo.identifier.clone());
        if peers.contains(&own) {
            self.settle(&own).await?;
            outcomes = self.settle_events(repo, events).await?;
        }
        self.settle_followers(peers.into_iter().filter(|peer| *peer != own))
            .await;
        Ok(outcomes)
    }

    /// Waits until repositories have followed another one, for a few seconds at most.
    async fn settle_followers(&self, repos: impl IntoIterator<Item = RepoId>) {
        let mut settling = JoinSet::new();
        for repo in repos {
            let driver = self.clone();
            settling.spawn(async move { driver.settle(&repo).await });
        }
        let settled = async { while settling.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(PEERS_TIMEOUT, settled).await;
        settling.detach_all();
    }

    /// Waits until the repositories that served pull requests are addressed to show them, for a few seconds at most.
    pub async fn settle_proposals(&self, ids: BTreeSet<EventId>) {
        if ids.is_empty() {
            return;
        }
        let served = match self.relay().events(Filter::new().ids(ids)).await {
            Ok(served) => served,
            Err(error) => {
                tracing::warn!(%error, "could not read pull requests that were served");
                return;
            }
        };
        let mut named = BTreeSet::new();
        for event in served {
            if let Ok(proposal) = Proposal::parse(&event) {
                named.extend(proposal.repos.into_iter().take(MAX_NAMED));
            }
        }
        let mut hosted = Vec::new();
        for repo in named {
            if let Ok(Some(repo)) = self.repos().resolve(&repo).await {
                hosted.push(repo);
            }
        }
        self.settle_followers(hosted).await;
    }

    /// Returns the hosted repositories of a repository's other maintainers that this author maintains too.
    async fn peers(&self, repo: &RepoId, author: &PublicKey) -> Result<Vec<RepoId>, GitError> {
        let mut reader = self.executor.reach_reader(&repo.identifier);
        let maintainers = reader.reach(&repo.owner).await?.maintainers;
        let mut peers = Vec::new();
        for key in maintainers {
            if key == repo.owner || !reader.is_hosted(&key) {
                continue;
            }
            let reach = reader.reach(&key).await?;
            if reach.maintainers.contains(author) && reader.shown_by(&key, &reach).is_none() {
                peers.push(RepoId::new(key, repo.identifier.clone()));
            }
        }
        Ok(peers)
    }

    /// Returns the announcement of a repository, and its maintainers.
    pub async fn maintainers(
        &self,
        repo: &RepoId,
    ) -> Result<(Option<KnownAnnouncement>, BTreeSet<PublicKey>), GitError> {
        let mut reader = self.executor.reach_reader(&repo.identifier);
        let maintainers = reader.reach(&repo.owner).await?.maintainers;
        Ok((
            reader.get(&repo.owner).map(|known| known.known.clone()),
            maintainers,
        ))
    }

    /// Returns the announcements of a repository that are here, stored and held.
    pub async fn announcements(&self, repo: &RepoId) -> Result<Vec<KnownAnnouncement>, GitError> {
        let mut reader = self.executor.reach_reader(&repo.identifier);
        reader.read([repo.owner]).await?;
        let Some(known) = reader.get(&repo.owner) else {
            return Ok(Vec::new());
        };
        let mut announcements = vec![known.known.clone()];
        if let (Presence::Held, Some(stored)) = (known.known.presence, &known.stored) {
            if let Ok(announcement) = Announcement::parse(stored) {
                let announcement = Arc::new(announcement);
                announcements.push(KnownAnnouncement {
                    announcement,
                    presence: Presence::Stored,
                });
            }
        }
        Ok(announcements)
    }

    /// Returns the hosted repositories of an identifier that an author maintains.
    pub async fn maintained_by(&self, repo: &RepoId) -> Result<Vec<MaintainedRepo>, GitError> {
        self.executor
            .reach_reader(&repo.identifier)
            .maintained_by(&repo.owner)
            .await
    }

    /// Returns whether an announcement of a repository, which lists these keys, matters for who maintains a hosted one of
    /// another owner.
    pub async fn is_listed(
        &self,
        repo: &RepoId,
        listed: &BTreeSet<PublicKey>,
    ) -> Result<bool, GitError> {
        self.executor
            .reach_reader(&repo.identifier)
            .is_in_reach(&repo.owner, listed)
            .await
    }

    /// Runs maintenance of every repository now, and waits for its end. It also runs by schedule.
    ///
    /// Views and refs are compared with the store, retired data whose time is over is removed, and packs are repacked.
    pub async fn run_maintenance(&self) -> Result<(), Unavailable> {
        let (reply, over) = oneshot::channel();
        self.unless_full(async {
            self.maintenance
                .send(reply)
                .await
                .map_err(|_| Unavailable::Stopping)?;
            over.await.map_err(|_| Unavailable::Stopping)
        })
        .await
    }

    /// Sends an order, and waits for its answer.
    async fn answered<T>(
        &self,
        order: impl FnOnce(oneshot::Sender<T>) -> Order,
    ) -> Result<T, Unavailable> {
        let (reply, answer) = oneshot::channel();
        let order = order(reply);
        self.unless_full(async {
            self.orders
                .send(order)
                .await
                .map_err(|_| Unavailable::Stopping)?;
            answer.await.map_err(|_| Unavailable::Stopping)
        })
        .await
    }

    /// Holds an event; resolves once its record is written and its view exists. The sender of an event from a client is
    /// told what became of it: if its data is here, it is served before that.
    pub async fn hold(
        &self,
        event: Arc<Event>,
        hold: Hold,
        origin: Origin,
    ) -> Result<HoldOutcome, Unavailable> {
        let (decided, decision) = oneshot::channel();
        let decided = (!origin.is_sync()).then_some(decided);
        let is_awaited = decided.is_some();
        let outcome = self
            .answered(|reply| Order::Hold {
                event,
                hold,
                origin,
                reply,
                decided,
            })
            .await?;
        if outcome != HoldOutcome::Held || !is_awaited {
            return Ok(outcome);
        }
        let decided = async { decision.await.map_err(|_| Unavailable::Stopping) };
        match tokio::time::timeout(DECISION_TIMEOUT, self.unless_full(decided)).await {
            Ok(outcome) => outcome,
            Err(_) => Ok(HoldOutcome::Held),
        }
    }

    /// Handles that an event was stored.
    pub async fn stored(&self, event: Arc<Event>) {
        let Some(input) = self.input_of_stored(event) else {
            return;
        };
        if let Input::Changed { repo } = &input {
            self.executor.wake(repo, WakeCause::Announcement).await;
        }
        let vanished = match &input {
            Input::Vanished { author, .. } => Some(*author),
            _ => None,
        };
        self.tell(input).await;
        if let Some(author) = vanished {
            let executor = self.executor.clone();
            tokio::spawn(async move { executor.remove_unserved(author).await });
        }
    }

    /// Handles that events of these repositories were taken out of service.
    pub async fn affected(&self, repos: BTreeSet<RepoId>) {
        self.executor.wake_affected(repos.clone()).await;
        let executor = self.executor.clone();
        tokio::spawn(async move { executor.collect_affected(repos).await });
    }

    /// Returns whether the author of an announcement has as many repositories here as allowed.
    pub async fn repository_quota_reached(&self, event: &Event) -> Result<bool, DatabaseError> {
        let policy = self.policy().now();
        let asks = event.kind == kinds::ANNOUNCEMENT
            && Announcement::parse(event).is_ok_and(|new| new.lists(&policy.service));
        if !asks {
            return Ok(false);
        }
        let theirs = Filter::new().kind(kinds::ANNOUNCEMENT).author(event.pubkey);
        let known = self.relay().count(theirs.clone()).await?;
        if usize::try_from(known).is_ok_and(|known| known < policy.repositories_per_author) {
            return Ok(false);
        }
        let theirs = self.relay().events(theirs).await?;
        let announcements: Vec<_> = theirs
            .iter()
            .flat_map(|it| Announcement::parse(it))
            .collect();
        Ok(policy.repository_quota_reached(&event.pubkey, &announcements))
    }

    /// Returns the input for purgatory that follows from a stored event.
    fn input_of_stored(&self, event: Arc<Event>) -> Option<Input> {
        if event.kind == kinds::ANNOUNCEMENT {
            return Some(Input::Changed {
                repo: Announcement::parse(&event).ok()?.repo,
            });
        }
        if self.policy().now().archive.ignores_deletions {
            return None;
        }
        if event.kind == kinds::DELETION {
            return Some(Input::Deleted { request: event });
        }
        let vanishes = self.is_vanish_request(&event);
        vanishes.then(|| Input::Vanished {
            author: event.pubkey,
            until: event.created_at,
        })
    }

    /// Returns whether an event is a request to vanish from this server (NIP-62).
    fn is_vanish_request(&self, event: &Event) -> bool {
        let us = Some(self.policy().service());
        event.kind == kinds::VANISH && vanishes_from(event, us)
    }
}

/// Removes uploads of an earlier run that have no record.
async fn remove_unrecorded_uploads(repos: &RepoStore, purgatory: &Purgatory) {
    match repos.forget_staged_but(purgatory.staged()).await {
        Ok(0) => {}
        Ok(gone) => tracing::info!(gone, "removed uploads without a record"),
        Err(error) => tracing::warn!(%error, "could not read staged uploads"),
    }
}
