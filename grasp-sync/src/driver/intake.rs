//! The path of events from a socket to the local relay: verified on worker threads, ingested in batches.
//!
//! ```text
//!   connection ──chunks──▶ queue: gather ──▶ verify (threads, shared fairly) ──▶ ingest ──▶ Ingested
//!                 ▲ waits while too many bytes of this connection are queued
//! ```
//!
//! Each connection has a queue of its own, so that a flood from one relay delays that relay only. While one batch is
//! ingested, the next is verified; events that come meanwhile make the batch after that. So batches are small at low
//! load and large at high load, and no event waits for a batch to fill.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use grasp_core::admission::{Origin, Retry, SyncPath};
use grasp_core::nostr::event::{Event, EventId, Kind};
use grasp_core::outbox::Fact;
use grasp_core::{Mono, RelayUrl, RepoId, ServiceIdentity, Verified, kinds};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::Clock;
use crate::engine::{Accepted, Config, ConnId, Input, Judged, Outcome, Row, SubId, index_change};
use crate::local::{News, SyncedRelay, Taken};
use crate::memory::Memory;
use crate::outbox;
use grasp_core::sync::{IndexChange, SyncLevel};

pub(crate) const MAX_BATCH_EVENTS: usize = 512;
/// Chunks that may wait in a queue; bytes are a further limit.
const MAX_QUEUED_CHUNKS: usize = 64;
/// Bytes of one connection's events that may be queued.
const MAX_QUEUED_BYTES: usize = 2 * 1024 * 1024;
/// Batches of one queue that are verified ahead of the one being ingested.
const BATCHES_AHEAD: usize = 2;

/// An event that matches its subscription.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) sub: SubId,
    pub(crate) path: SyncPath,
    pub(crate) event: Event,
}

/// The state that all queues share.
#[derive(Clone)]
pub(crate) struct EventIntake {
    pub(crate) local: Arc<dyn SyncedRelay>,
    pub(crate) recent: Arc<Mutex<RecentEvents>>,
    pub(crate) inputs: mpsc::Sender<Input>,
    pub(crate) clock: Clock,
    permits: Arc<Semaphore>,
}

/// The queue of one connection. Its events are ingested even if the connection ends.
pub(crate) struct IntakeQueue {
    chunks: mpsc::Sender<Chunk>,
    room: Arc<Semaphore>,
}

struct Chunk {
    items: Vec<Item>,
    _room: Vec<OwnedSemaphorePermit>,
}

/// The subscription, path and row of an event, and the result of its verification.
type Checked = ((SubId, SyncPath, Row), CheckResult);

/// The event to be judged, or its outcome if that is known without asking the local relay.
type CheckResult = Result<Verified<Arc<Event>>, Outcome>;

/// A verified event, and the subscription it came under.
type Offered = (SubId, Verified<Arc<Event>>);

impl EventIntake {
    pub(crate) fn new(
        local: Arc<dyn SyncedRelay>,
        inputs: mpsc::Sender<Input>,
        clock: Clock,
    ) -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let permits = Arc::new(Semaphore::new(threads));
        Self {
            local,
            recent: Arc::default(),
            inputs,
            clock,
            permits,
        }
    }

    /// Forgets the answers of the local relay, so that every event which comes is offered to it.
    pub(crate) fn forget_answers(&self) {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.answers = Memory::default();
    }

    /// Opens the queue of one connection.
    pub(crate) fn queue(&self, relay: RelayUrl, conn: ConnId) -> IntakeQueue {
        let (chunks, queued) = mpsc::channel(MAX_QUEUED_CHUNKS);
        tokio::spawn(self.clone().run_queue(relay, conn, queued));
        IntakeQueue {
            chunks,
            room: Arc::new(Semaphore::new(MAX_QUEUED_BYTES)),
        }
    }

    async fn run_queue(self, relay: RelayUrl, conn: ConnId, queued: mpsc::Receiver<Chunk>) {
        let batches = stream::unfold(queued, |mut queued| async {
            let batch = gather(&mut queued).await?;
            Some((batch, queued))
        });
        let mut checked = std::pin::pin!(
            batches
                .map(|batch| self.check(batch))
                .buffered(BATCHES_AHEAD)
        );
        while let Some((batch, _room)) = checked.next().await {
            let judging = judging(&batch);
            for (sub, judged) in self.ingest(&relay, batch).await {
                let relay = relay.clone();
                let _ = self
                    .inputs
                    .send(Input::Ingested {
                        relay,
                        conn,
                        sub,
                        judged,
                    })
                    .await;
            }
            self.end_judging(judging).await;
        }
    }

    /// Ends the judgement of these events, now that the engine knows the answers. Tells it of those that the feed brought
    /// meanwhile and that no answer counts.
    async fn end_judging(&self, events: Vec<EventId>) {
        for id in events {
            let is_uncounted = {
                let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
                recent.ended(&id)
            };
            if is_uncounted {
                let accepted = Accepted {
                    event: Some(id),
                    is_uncounted,
                    change: None,
                };
                let _ = self.inputs.send(Input::Accepted(accepted)).await;
            }
        }
    }

    /// Verifies a batch on a blocking thread.
    async fn check(&self, batch: Chunk) -> (Vec<Checked>, Vec<OwnedSemaphorePermit>) {
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        let recent = Arc::clone(&self.recent);
        let Chunk { items, _room: room } = batch;
        let name = |item: Item| ((item.sub, item.path, Row::of(&item.event)), item.event);
        let (names, events): (Vec<_>, Vec<Event>) = items.into_iter().map(name).unzip();
        let checking = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            check_all(events, &recent)
        });
        // Should the verification panic, the events of the batch are fetched again.
        let failed = Err(Outcome::Refused {
            retry: Retry::Soon,
            event: None,
        });
        let results = checking.await.unwrap_or_else(|_| vec![failed; names.len()]);
        (names.into_iter().zip(results).collect(), room)
    }

    /// Offers a batch to the local relay; returns the judgement of each event, by subscription.
    async fn ingest(&self, relay: &RelayUrl, batch: Vec<Checked>) -> BTreeMap<SubId, Vec<Judged>> {
        let mut verified: BTreeMap<SyncPath, Vec<Offered>> = BTreeMap::new();
        let mut answers: BTreeMap<SubId, Vec<Judged>> = BTreeMap::new();
        for ((sub, path, row), result) in batch {
            match result {
                Ok(event) => verified.entry(path).or_default().push((sub, event)),
                Err(outcome) => answers
                    .entry(sub)
                    .or_default()
                    .push(Judged { row, outcome }),
            }
        }
        for (path, events) in verified {
            let origin = Origin::Sync {
                relay: relay.clone(),
                path,
            };
            let offered = events.iter().map(|(_, event)| event.clone()).collect();
            let taken = self.offer(offered, origin).await;
            for ((sub, event), taken) in events.iter().zip(taken) {
                answers.entry(*sub).or_default().push(taken.judged(event));
            }
        }
        answers
    }

    /// Offers events again that the engine kept. They are verified again, since it keeps plain events.
    pub(crate) async fn offer_again(&self, own: &RelayUrl, events: Vec<Arc<Event>>) {
        let events = events.into_iter().map(Arc::unwrap_or_clone).collect();
        self.offer_found(own, events).await;
    }

    /// Verifies events that no connection of the engine brought, and offers them to the local relay. Returns the judgement
    /// of each, once the engine has it.
    pub(crate) async fn offer_found(&self, relay: &RelayUrl, events: Vec<Event>) -> Vec<Judged> {
        let sub = SubId(0);
        let path = SyncPath::CatchUp;
        let items = events
            .into_iter()
            .map(|event| Item { sub, path, event })
            .collect();
        let (checked, _) = self
            .check(Chunk {
                items,
                _room: Vec::new(),
            })
            .await;
        let judging = judging(&checked);
        let judged: Vec<Judged> = self
            .ingest(relay, checked)
            .await
            .into_values()
            .flatten()
            .collect();
        let offered = Input::Reoffered {
            judged: judged.clone(),
        };
        let _ = self.inputs.send(offered).await;
        self.end_judging(judging).await;
        judged
    }

    /// Offers verified events to the local relay, and remembers its answers. Returns one answer for each event in any
    /// case.
    async fn offer(&self, events: Vec<Verified<Arc<Event>>>, origin: Origin) -> Vec<Taken> {
        let ids: Vec<_> = events.iter().map(|event| event.id).collect();
        let local = Arc::clone(&self.local);
        let offered = tokio::spawn(async move { local.ingest(events, origin).await });
        let mut taken = offered.await.unwrap_or_else(|error| {
            tracing::error!(%error, "the local relay failed to ingest events");
            Vec::new()
        });
        taken.resize(ids.len(), Taken::Refused(Retry::Soon));
        let now = self.clock.now().mono;
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        for (id, taken) in ids.into_iter().zip(&taken) {
            recent.judged(now, id, *taken);
        }
        taken
    }
}

impl IntakeQueue {
    /// Queues events; waits while too many bytes are queued.
    pub(crate) async fn push(&self, items: Vec<Item>, bytes: usize) {
        let wanted = u32::try_from(bytes.clamp(1, MAX_QUEUED_BYTES)).unwrap_or(u32::MAX);
        let Ok(room) = Arc::clone(&self.room).acquire_many_owned(wanted).await else {
            return;
        };
        let _ = self
            .chunks
            .send(Chunk {
                items,
                _room: vec![room],
            })
            .await;
    }
}

/// Returns the events of a batch that the local relay is to judge.
fn judging(batch: &[Checked]) -> Vec<EventId> {
    batch
        .iter()
        .filter_map(|(_, result)| result.as_ref().ok())
        .map(|event| event.id)
        .collect()
}

/// Waits for a chunk and adds what else is queued, up to a batch.
async fn gather(queued: &mut mpsc::Receiver<Chunk>) -> Option<Chunk> {
    let mut batch = queued.recv().await?;
    while batch.items.len() < MAX_BATCH_EVENTS {
        let Ok(mut more) = queued.try_recv() else {
            break;
        };
        batch.items.append(&mut more.items);
        batch._room.append(&mut more._room);
    }
    Some(batch)
}

fn check_all(events: Vec<Event>, recent: &Mutex<RecentEvents>) -> Vec<CheckResult> {
    let recalled: Vec<_> = {
        let recent = recent.lock().unwrap_or_else(PoisonError::into_inner);
        events
            .iter()
            .map(|event| recent.recall(&event.id))
            .collect()
    };
    let check = |event| Verified::check(Arc::new(event)).map_err(|_| Outcome::Forged);
    let check = |(event, recalled): (_, Option<_>)| recalled.unwrap_or_else(|| check(event));
    let checked: Vec<CheckResult> = events.into_iter().zip(recalled).map(check).collect();
    let mut recent = recent.lock().unwrap_or_else(PoisonError::into_inner);
    checked
        .iter()
        .flatten()
        .for_each(|event| recent.checked(event.clone()));
    checked
}

/// Time for which an answer is remembered. A withdrawn event may come back.
const ANSWER_MEMORY_SECS: u64 = 5 * 60;
const MAX_ANSWERS: usize = 65_536;

/// The events of the last minutes, so that an event which ten relays send is verified once, and counted once; for all
/// connections together. Only verified events count: a forged copy changes nothing.
#[derive(Debug, Default)]
pub(crate) struct RecentEvents {
    judging: HashMap<EventId, Judging>,
    /// [`Taken::Stored`] until the feed has brought the event, then [`Taken::Known`].
    answers: Memory<EventId, Taken, MAX_ANSWERS, ANSWER_MEMORY_SECS>,
}

/// A verified event that the local relay judges at the moment, or whose answer the engine does not know yet.
#[derive(Debug)]
struct Judging {
    event: Verified<Arc<Event>>,
    /// Copies that are being judged, of several relays.
    copies: usize,
    /// True if the feed has brought the event meanwhile. Only the answers tell whether one of these copies was stored, or
    /// that of a client.
    is_accepted: bool,
}

impl RecentEvents {
    /// Returns the event with this id if it was verified and is being judged, or its outcome if copies need not be
    /// looked at.
    fn recall(&self, id: &EventId) -> Option<CheckResult> {
        match self.answers.get(id) {
            Some(Taken::Stored | Taken::Known) => Some(Err(Outcome::Known)),
            Some(Taken::Refused(retry)) => Some(Err(Outcome::Refused {
                retry: *retry,
                event: None,
            })),
            // Another offer of a held event may extend the wait.
            Some(Taken::Held) | None => self.judging.get(id).map(|one| Ok(one.event.clone())),
        }
    }

    /// Adds a verified copy that is about to be judged.
    fn checked(&mut self, event: Verified<Arc<Event>>) {
        let id = event.id;
        let judging = Judging {
            event,
            copies: 0,
            is_accepted: false,
        };
        self.judging.entry(id).or_insert(judging).copies += 1;
    }

    /// Adds the answer to an event, unless the next copy is to be judged again.
    fn judged(&mut self, now: Mono, id: EventId, taken: Taken) {
        while self.answers.expire(now).is_some() {}
        if matches!(taken, Taken::Refused(Retry::AfterDependency | Retry::Soon)) {
            return;
        }
        // The copy of another relay was stored, and the feed has yet to bring it.
        if taken == Taken::Known && self.answers.get(&id) == Some(&Taken::Stored) {
            return;
        }
        self.answers.put(now, id, taken);
    }

    /// Ends the judgement of a copy, once the engine knows its answer. Returns true for the last copy of an event that
    /// the feed has brought meanwhile and that no answer counts.
    fn ended(&mut self, id: &EventId) -> bool {
        let Some(judging) = self.judging.get_mut(id) else {
            return false;
        };
        judging.copies -= 1;
        if judging.copies > 0 {
            return false;
        }
        let is_accepted = judging.is_accepted;
        self.judging.remove(id);
        is_accepted && !self.is_counted(id)
    }

    /// Notes that the feed has brought an event. Returns whether no answer counts it: a client sent it, or it was held.
    /// If it is being judged, [`ended`](Self::ended) returns it.
    fn accepted(&mut self, id: &EventId) -> bool {
        if let Some(judging) = self.judging.get_mut(id) {
            judging.is_accepted = true;
            return false;
        }
        !self.is_counted(id)
    }

    /// Returns whether an answer counts the event that the feed has brought; only once, since the event may be removed
    /// and sent again.
    fn is_counted(&mut self, id: &EventId) -> bool {
        match self.answers.get_mut(id) {
            Some(taken) if *taken == Taken::Stored => {
                *taken = Taken::Known;
                true
            }
            _ => false,
        }
    }
}

/// Delay before a feed that ended is started again.
const FEED_RESTART_DELAY: Duration = Duration::from_secs(5);

/// Rule for the repositories of the local relay that are followed.
#[derive(Clone, Debug)]
pub(crate) struct Following {
    /// The relay's address, as announcements name it.
    pub(crate) own: ServiceIdentity,
    /// True if repositories that do not list it are followed too.
    pub(crate) follows_unlisted: bool,
}

impl Following {
    /// Returns the rule that these settings make.
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            own: config.own.clone(),
            follows_unlisted: config.follow_unlisted,
        }
    }

    /// Returns the change that an event makes to what is wanted. An announcement that does not list the relay
    /// withdraws what lesser versions wanted.
    fn change(&self, event: &Event, level: SyncLevel) -> Option<IndexChange> {
        let change = index_change(event, level)?;
        match change {
            IndexChange::Announced {
                repo,
                version,
                relays,
                level,
            } if !self.lists_us(&relays) => {
                tracing::debug!(%repo, "not followed: its announcement does not list this relay");
                Some(IndexChange::Unlisted {
                    repo,
                    version,
                    level,
                })
            }
            change => Some(change),
        }
    }

    /// Returns what the outbox learns from news. Held events take part in nothing yet.
    fn outbox_input(&self, news: &News) -> Option<outbox::Input> {
        let fact = match news {
            News::CaughtUp => return Some(outbox::Input::CaughtUp),
            News::Lost => return Some(outbox::Input::Lost),
            News::Accepted(event) if event.kind == Kind::RelayList => {
                return Some(outbox::Input::Listed(Arc::clone(event)));
            }
            News::Accepted(event) if event.kind == kinds::ANNOUNCEMENT => {
                match self.change(event, SyncLevel::Full) {
                    Some(IndexChange::Unlisted { repo, .. }) => Fact::Retired { repo },
                    _ => Fact::of(event)?,
                }
            }
            News::Accepted(event) => Fact::of(event)?,
            News::Held(_) => return None,
            News::Retired(repo) => Fact::Retired { repo: repo.clone() },
            News::Removed(id) => Fact::Removed { id: *id },
        };
        Some(outbox::Input::Learnt(fact))
    }

    fn lists_us(&self, relays: &[RelayUrl]) -> bool {
        self.follows_unlisted
            || relays
                .iter()
                .any(|relay| self.own.is_own_url(relay.as_str()))
    }
}

/// The receivers of the feed.
pub(crate) struct Followers {
    pub(crate) engine: mpsc::Sender<Input>,
    /// The outbox, if it runs.
    pub(crate) outbox: Option<mpsc::Sender<outbox::Input>>,
}

impl Followers {
    fn kinds(&self) -> &'static [Kind] {
        match &self.outbox {
            Some(_) => &kinds::OUTBOX_KINDS,
            None => &kinds::SELF_SUBSCRIPTION_KINDS,
        }
    }

    /// Passes an input on; false if nobody receives any more.
    async fn send(&self, input: Input) -> bool {
        self.engine.send(input).await.is_ok()
    }

    async fn send_to_outbox(&self, input: Option<outbox::Input>) {
        if let (Some(outbox), Some(input)) = (&self.outbox, input) {
            let _ = outbox.send(input).await;
        }
    }
}

/// Passes the feed to the engine and the outbox, for ever.
pub(crate) async fn follow_feed(
    local: Arc<dyn SyncedRelay>,
    following: Following,
    recent: Arc<Mutex<RecentEvents>>,
    followers: Followers,
) {
    let mut announced = AnnouncedRepos::default();
    loop {
        let mut feed = local.accepted(followers.kinds());
        announced.feed_began(local.tells_held());
        let mut is_live = false;
        while let Some(news) = feed.next().await {
            if news == News::CaughtUp {
                is_live = true;
                for repo in announced.caught_up() {
                    let fact = Fact::Retired { repo: repo.clone() };
                    followers
                        .send_to_outbox(Some(outbox::Input::Learnt(fact)))
                        .await;
                    let retired = changed(IndexChange::Retired { repo });
                    if !followers.send(Input::Accepted(retired)).await {
                        return;
                    }
                }
            }
            if followers.outbox.is_some() {
                let input = following.outbox_input(&news);
                followers.send_to_outbox(input).await;
            }
            let Some(input) = to_input(news, is_live, &following, &recent) else {
                continue;
            };
            announced.note(&input);
            if !followers.send(input).await {
                return;
            }
        }
        tracing::warn!("the local relay's feed ended; restarting it");
        tokio::time::sleep(FEED_RESTART_DELAY).await;
    }
}

/// The repositories that the feed has announced. What is removed while no feed is read is found by comparing the next
/// feed with them.
#[derive(Debug, Default)]
struct AnnouncedRepos {
    current: BTreeSet<RepoId>,
    /// Repositories of the feed before that this one has not announced yet.
    unconfirmed: BTreeSet<RepoId>,
    /// True if held announcements are streamed again by each feed.
    tells_held: bool,
}

impl AnnouncedRepos {
    fn feed_began(&mut self, tells_held: bool) {
        self.tells_held = tells_held;
        self.unconfirmed.append(&mut self.current);
    }

    fn note(&mut self, input: &Input) {
        let Input::Accepted(accepted) = input else {
            return;
        };
        match &accepted.change {
            Some(IndexChange::Announced { repo, level, .. }) => {
                self.unconfirmed.remove(repo);
                if self.tells_held || *level == SyncLevel::Full {
                    self.current.insert(repo.clone());
                }
            }
            Some(IndexChange::Retired { repo }) => {
                self.unconfirmed.remove(repo);
                self.current.remove(repo);
            }
            _ => {}
        }
    }

    /// Returns the repositories that are gone, now that everything stored was streamed again.
    fn caught_up(&mut self) -> BTreeSet<RepoId> {
        std::mem::take(&mut self.unconfirmed)
    }
}

fn to_input(
    news: News,
    is_live: bool,
    following: &Following,
    recent: &Mutex<RecentEvents>,
) -> Option<Input> {
    let accepted = match news {
        News::CaughtUp => return Some(Input::FeedCaughtUp),
        News::Lost => {
            *recent.lock().unwrap_or_else(PoisonError::into_inner) = RecentEvents::default();
            return Some(Input::FeedLost);
        }
        News::Accepted(event) => {
            let mut recent = recent.lock().unwrap_or_else(PoisonError::into_inner);
            let is_uncounted = is_live && recent.accepted(&event.id);
            let change = following.change(&event, SyncLevel::Full);
            Accepted {
                event: Some(event.id),
                is_uncounted,
                change,
            }
        }
        // Nothing that depends on other held events may be asked for.
        News::Held(event) if event.kind != kinds::ANNOUNCEMENT => return None,
        News::Held(event) => changed(following.change(&event, SyncLevel::StateOnly)?),
        News::Retired(repo) => changed(IndexChange::Retired { repo }),
        News::Removed(event) => changed(IndexChange::RootRemoved { root: event.into() }),
    };
    Some(Input::Accepted(accepted))
}

fn changed(change: IndexChange) -> Accepted {
    Accepted {
        event: None,
        is_uncounted: false,
        change: Some(change),
    }
}

#[cfg(test)]
mod orders;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use grasp_core::Version;
    use grasp_core::nostr::event::{EventBuilder, FinalizeEvent as _, Kind, Tag};
    use grasp_core::nostr::key::Keys;

    use super::*;

    const ANSWER_MEMORY: Duration = Duration::from_secs(ANSWER_MEMORY_SECS);

    fn event() -> Verified<Arc<Event>> {
        let event = EventBuilder::new(Kind::GitIssue, "")
            .finalize(&Keys::generate())
            .unwrap();
        Verified::check(Arc::new(event)).unwrap()
    }

    fn repo(name: &str) -> RepoId {
        let owner = "79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798";
        format!("30617:{owner}:{name}").parse().unwrap()
    }

    fn announced(name: &str, level: SyncLevel) -> Input {
        Input::Accepted(changed(IndexChange::Announced {
            repo: repo(name),
            version: Version {
                created_at: 1.into(),
                id: EventId::from_byte_array([0; 32]),
            },
            relays: Vec::new(),
            level,
        }))
    }

    #[test]
    fn repositories_that_a_new_feed_does_not_stream_are_retired() {
        for (tells_held, gone) in [(true, vec!["b", "held"]), (false, vec!["b"])] {
            let mut repos = AnnouncedRepos::default();
            repos.feed_began(tells_held);
            for name in ["a", "b", "c"] {
                repos.note(&announced(name, SyncLevel::Full));
            }
            repos.note(&announced("held", SyncLevel::StateOnly));
            let retired = IndexChange::Retired { repo: repo("c") };
            repos.note(&Input::Accepted(changed(retired)));
            assert!(repos.caught_up().is_empty());
            repos.feed_began(tells_held);
            repos.note(&announced("a", SyncLevel::Full));
            let gone: BTreeSet<RepoId> = gone.into_iter().map(repo).collect();
            assert_eq!(repos.caught_up(), gone);
        }
    }

    #[test]
    fn copies_of_a_verified_event_are_not_verified_again() {
        let (mut recent, event) = (RecentEvents::default(), event());
        assert!(recent.recall(&event.id).is_none());
        recent.checked(event.clone());
        assert!(matches!(recent.recall(&event.id), Some(Ok(known)) if known == event));
        recent.judged(Mono::ZERO, event.id, Taken::Stored);
        assert!(matches!(
            recent.recall(&event.id),
            Some(Err(Outcome::Known))
        ));
    }

    #[test]
    fn events_that_may_be_accepted_later_are_judged_again() {
        for taken in [Taken::Refused(Retry::AfterDependency), Taken::Held] {
            let (mut recent, event) = (RecentEvents::default(), event());
            recent.checked(event.clone());
            recent.judged(Mono::ZERO, event.id, taken);
            recent.ended(&event.id);
            assert!(recent.recall(&event.id).is_none());
        }
    }

    /// Returns how often an event is counted that these copies are offered of, and that the feed brings once: after so
    /// many of the answers.
    fn counted(answers: &[Taken], feed_after: usize) -> usize {
        let mut recent = RecentEvents::default();
        let event = event();
        for _ in answers {
            recent.checked(event.clone());
        }
        let mut counted = 0;
        for (n, taken) in answers.iter().enumerate() {
            if n == feed_after {
                counted += usize::from(recent.accepted(&event.id));
            }
            recent.judged(Mono::ZERO, event.id, *taken);
            counted += usize::from(*taken == Taken::Stored);
            counted += usize::from(recent.ended(&event.id));
        }
        if feed_after == answers.len() {
            counted += usize::from(recent.accepted(&event.id));
        }
        assert!(recent.judging.is_empty());
        counted
    }

    #[test]
    fn every_accepted_event_is_counted_once() {
        use Taken::{Held, Known, Stored};
        let cases: [&[Taken]; 10] = [
            &[],
            &[Stored],
            &[Held],
            &[Known],
            &[Stored, Known],
            &[Known, Stored],
            &[Held, Known],
            &[Known, Held],
            &[Known, Known],
            &[Taken::Refused(Retry::Soon)],
        ];
        for answers in cases {
            for feed_after in 0..=answers.len() {
                assert_eq!(
                    counted(answers, feed_after),
                    1,
                    "{answers:?}, feed: {feed_after}"
                );
            }
        }
    }

    #[test]
    fn an_event_that_was_removed_and_sent_again_is_counted_again() {
        let mut recent = RecentEvents::default();
        let event = event();
        recent.checked(event.clone());
        recent.judged(Mono::ZERO, event.id, Taken::Stored);
        assert!(!recent.ended(&event.id));
        assert!(!recent.accepted(&event.id));
        assert!(recent.accepted(&event.id));
    }

    #[test]
    fn answers_are_forgotten_in_time_and_in_number() {
        let id = |n: u64| {
            let mut id = [0; 32];
            id[..8].copy_from_slice(&n.to_be_bytes());
            EventId::from_byte_array(id)
        };
        let mut recent = RecentEvents::default();
        recent.judged(Mono::ZERO, id(0), Taken::Stored);
        recent.judged(Mono::ZERO + ANSWER_MEMORY / 2, id(1), Taken::Stored);
        assert!(recent.recall(&id(0)).is_some());
        recent.judged(Mono::ZERO + ANSWER_MEMORY, id(2), Taken::Stored);
        assert!(recent.recall(&id(0)).is_none() && recent.recall(&id(1)).is_some());
        for n in 0..2 * MAX_ANSWERS as u64 {
            recent.judged(Mono::ZERO + ANSWER_MEMORY, id(n), Taken::Stored);
        }
        assert_eq!(recent.answers.len(), MAX_ANSWERS);
    }

    #[test]
    fn follows_only_repositories_that_list_the_relay_by_default() {
        let keys = Keys::generate();
        let announced = |relays: &[&str]| {
            let relays = ["relays"]
                .iter()
                .chain(relays)
                .map(|text| (*text).to_owned());
            let tags = [Tag::identifier("x"), Tag::parse(relays).unwrap()];
            EventBuilder::new(kinds::ANNOUNCEMENT, "")
                .tags(tags)
                .finalize(&keys)
                .unwrap()
        };
        let both = announced(&["wss://other.example", "wss://us.example/"]);
        let other = announced(&["wss://other.example"]);
        let change = |follows_unlisted, news| {
            let following = Following {
                own: "us.example".parse().unwrap(),
                follows_unlisted,
            };
            match to_input(news, true, &following, &Mutex::default()) {
                Some(Input::Accepted(accepted)) => accepted.change.unwrap(),
                other => panic!("{other:?}"),
            }
        };
        let outbox_input = |follows_unlisted, news| {
            let following = Following {
                own: "us.example".parse().unwrap(),
                follows_unlisted,
            };
            following.outbox_input(&news)
        };
        for (event, follows_unlisted, is_served) in [
            (&both, false, true),
            (&other, false, false),
            (&other, true, true),
        ] {
            let news = News::Accepted(Arc::new(event.clone()));
            let Some(outbox::Input::Learnt(fact)) = outbox_input(follows_unlisted, news) else {
                panic!()
            };
            assert_eq!(matches!(fact, Fact::Announced { .. }), is_served);
        }
        let held = News::Held(Arc::new(both.clone()));
        assert!(outbox_input(false, held).is_none());
        for news in [News::Accepted, News::Held] {
            let listed = change(false, news(Arc::new(both.clone())));
            assert!(matches!(listed, IndexChange::Announced { .. }));
            let unlisted = change(false, news(Arc::new(other.clone())));
            assert!(
                matches!(unlisted, IndexChange::Unlisted { .. }),
                "what was followed is left"
            );
            let unlisted = change(true, news(Arc::new(other.clone())));
            assert!(matches!(unlisted, IndexChange::Announced { .. }));
        }
    }
}
