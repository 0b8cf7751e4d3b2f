//! Sync for a relay of another kind, over its websocket.
//!
//! ```text
//!   relay ──REQ: stored and new events──▶ feed ────▶ ┌────────┐
//!                              held events ▲          │        │
//!   relay ◀─EVENT, OK─▶ publisher ──────────┘ ◀─────────│ Syncer │ ⇄ other relays
//!   relay ◀─REQ, page by page─▶ inventory ──▶           └────────┘
//! ```
//!
//! Any relay that speaks NIP-01 will do; its own rules decide what it keeps. Feed, publisher and inventory have a
//! connection each, which is made again when it is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_core::future::BoxFuture;
use futures_core::stream::BoxStream;
use futures_util::{StreamExt as _, stream};
use grasp_core::admission::{Origin, Retry};
use grasp_core::kinds::REPLY_KINDS;
use grasp_core::limits::{BackoffPolicy, PeerText};
use grasp_core::nip34::Announcement;
use grasp_core::nostr::event::{Event, EventId, Kind};
use grasp_core::nostr::filter::{Filter, SingleLetterTag};
use grasp_core::nostr::types::Timestamp;
use grasp_core::outbound::{OutboundPolicy, Provenance};
use grasp_core::{RelayUrl, RepoId, Verified, deletion, kinds};
use tokio::sync::{Mutex, mpsc, oneshot, watch};

use crate::driver::codec::{self, RelayMessage};
use crate::driver::{Client, Limits, Outbound, Roots, Task, Unanswered};
use crate::engine::{InventoryFailed, Row, Said, SubId};
use crate::local::{News, SyncedRelay, Taken};

/// News that may wait for the syncer.
const NEWS_QUEUE: usize = 1_024;
/// Batches that may wait for the relay.
const BATCH_QUEUE: usize = 4;

/// The address of the relay, and the means to connect.
struct RelayAddress {
    relay: RelayUrl,
    outbound: Outbound,
    limits: Limits,
}

impl RelayAddress {
    async fn connect(&self) -> Result<Client, Unanswered> {
        let Self {
            relay,
            outbound,
            limits,
        } = self;
        Client::connect(relay, outbound, limits)
            .await
            .map_err(|fault| {
                tracing::warn!(%relay, "cannot connect to the local relay: {fault}");
                Unanswered::Lost
            })
    }
}

/// A relay of another kind that is kept complete over its websocket.
///
/// ```
/// use std::sync::Arc;
/// use grasp_sync::{Settings, Sidecar, Syncer};
///
/// async fn run() -> Result<Syncer, Box<dyn std::error::Error>> {
///     let relay = Sidecar::start("ws://127.0.0.1:7777".parse()?);
///     // The name that others know that relay by, so that it is never asked for its own events.
///     let mut settings = Settings::new("relay.example.com".parse()?);
///     settings.engine.bootstrap.push("wss://other.example.com".parse()?);
///     Ok(Syncer::start(Arc::new(relay), settings).await?)
/// }
/// ```
pub struct Sidecar {
    remote: Arc<RelayAddress>,
    batches: mpsc::Sender<Publication>,
    /// A connection that the last inventory left open.
    spare: Mutex<Option<Client>>,
    /// Where the publisher sends held announcements: to the latest feed.
    held: watch::Sender<Option<mpsc::Sender<Arc<Event>>>>,
    _publisher: Task,
}

impl Sidecar {
    /// Connects to the relay at this address when there is something to publish.
    ///
    /// The operator configured it, so it may be at any address.
    pub fn start(relay: RelayUrl) -> Self {
        Self::trusting(relay, &Roots::default())
    }

    /// The same, for a relay whose certificate was issued by one of these roots.
    pub fn trusting(relay: RelayUrl, roots: &Roots) -> Self {
        let outbound = Outbound::new(OutboundPolicy::default(), roots);
        let remote = Arc::new(RelayAddress {
            relay,
            outbound,
            limits: Limits::default(),
        });
        let (batches, queued) = mpsc::channel(BATCH_QUEUE);
        let (held, follower) = watch::channel(None);
        let publisher = Task::spawn(publish(Arc::clone(&remote), queued, follower));
        Self {
            remote,
            batches,
            spare: Mutex::default(),
            held,
            _publisher: publisher,
        }
    }

    /// Returns whether a connection to the relay can be made.
    pub async fn is_reachable(&self) -> bool {
        let RelayAddress {
            relay, outbound, ..
        } = &*self.remote;
        match outbound.route(relay, Provenance::Operator).await {
            Ok(route) => route.connect().await.is_ok(),
            Err(_) => false,
        }
    }

    async fn list_rows(&self, filter: Filter) -> Result<Vec<Row>, Unanswered> {
        let spare = self.spare.lock().await.take();
        if let Some(client) = spare {
            // The spare connection may have been lost since, which says nothing about the relay.
            if let Ok(rows) = self.list_rows_over(client, filter.clone()).await {
                return Ok(rows);
            }
        }
        self.list_rows_over(self.remote.connect().await?, filter)
            .await
    }

    /// Lists over this connection, and keeps it if it works.
    async fn list_rows_over(
        &self,
        mut client: Client,
        filter: Filter,
    ) -> Result<Vec<Row>, Unanswered> {
        let mut rows = Vec::new();
        let mut reading = client.read(filter);
        while let Some(page) = reading.next().await? {
            rows.extend(page.iter().map(Row::of));
        }
        rows.sort_unstable();
        rows.dedup();
        *self.spare.lock().await = Some(client);
        Ok(rows)
    }
}

impl SyncedRelay for Sidecar {
    /// Streams everything of these kinds but replies and reactions: the relay may have many that belong to no repository
    /// of ours.
    fn accepted(&self, kinds: &[Kind]) -> BoxStream<'static, News> {
        let (sender, news) = mpsc::channel(NEWS_QUEUE);
        let ours = kinds
            .iter()
            .copied()
            .filter(|kind| !REPLY_KINDS.contains(kind) && *kind != Kind::Reaction)
            .collect();
        let (held, held_events) = mpsc::channel(NEWS_QUEUE);
        self.held.send_replace(Some(held));
        let task = Task::spawn(follow(Arc::clone(&self.remote), ours, held_events, sender));
        stream::unfold((news, task), |(mut news, task)| async {
            let next = news.recv().await?;
            Some((next, (news, task)))
        })
        .boxed()
    }

    /// Returns `false`: held events are known only from the relay's answers to offers.
    fn tells_held(&self) -> bool {
        false
    }

    fn ingest(&self, events: Vec<Verified<Arc<Event>>>, _: Origin) -> BoxFuture<'_, Vec<Taken>> {
        Box::pin(async move {
            let failed = vec![Taken::Refused(Retry::Soon); events.len()];
            let (reply, taken) = oneshot::channel();
            let _ = self.batches.send(Publication { events, reply }).await;
            taken.await.unwrap_or(failed)
        })
    }

    fn inventory(&self, filter: Filter) -> BoxFuture<'_, Result<Vec<Row>, InventoryFailed>> {
        Box::pin(async move {
            self.list_rows(filter).await.map_err(|error| {
                tracing::warn!(%error, "cannot list the events of the local relay");
                InventoryFailed::Unreadable
            })
        })
    }
}

/// Delays before a lost connection is made again.
const RECONNECT: BackoffPolicy = BackoffPolicy {
    first: Duration::from_secs(1),
    cap: Duration::from_secs(60),
    ..BackoffPolicy::RELAY
};
/// Time before a loss that is read again: clocks differ, and events may be late.
const OVERLAP: Duration = Duration::from_secs(15 * 60);

/// Coordinates that one request for members names.
const COORDINATES_AT_ONCE: usize = 50;
/// Coordinates whose members are read: those of repositories, and of members themselves.
const MAX_COORDINATES: usize = 100_000;

async fn follow(
    remote: Arc<RelayAddress>,
    kinds: Vec<Kind>,
    held_events: mpsc::Receiver<Arc<Event>>,
    news_sender: mpsc::Sender<News>,
) {
    let served = BTreeSet::new();
    let mut follower = Follower {
        kinds,
        news_sender,
        held_events,
        served,
        since: None,
        has_caught_up: false,
    };
    let mut failures = 0;
    while !follower.news_sender.is_closed() {
        match remote.connect().await {
            Ok(mut client) => {
                if std::mem::take(&mut failures) > 0 {
                    tracing::info!("connected to the local relay again");
                }
                let Err(error) = follower.listen(&mut client).await;
                tracing::warn!(%error, "the feed of the local relay ended; connecting again");
            }
            Err(_) => failures += 1,
        }
        tokio::time::sleep(RECONNECT.delay_after(failures)).await;
    }
}

struct Follower {
    kinds: Vec<Kind>,
    news_sender: mpsc::Sender<News>,
    /// Announcements that the relay accepted and does not serve.
    held_events: mpsc::Receiver<Arc<Event>>,
    /// Repositories whose announcement it serves.
    served: BTreeSet<RepoId>,
    /// Everything older has been streamed.
    since: Option<Timestamp>,
    has_caught_up: bool,
}

impl Follower {
    /// Subscribes first and reads afterwards, so that no event is missed in between.
    async fn listen(
        &mut self,
        client: &mut Client,
    ) -> Result<std::convert::Infallible, Unanswered> {
        let began = Timestamp::now();
        let mut filters = self.live_filters().into_iter();
        let mut live = subscribe_to_first(client, &mut filters).await?;
        self.read(client).await?;
        self.read_members(client).await?;
        match std::mem::replace(&mut self.has_caught_up, true) {
            false => self.news(News::CaughtUp).await?,
            true => self.check_for_losses(client).await?,
        }
        self.since = Some(began - OVERLAP);
        loop {
            let message = tokio::select! {
                message = client.receive() => message?,
                Some(event) = self.held_events.recv() => {
                    self.held(event).await?;
                    continue;
                }
            };
            match message {
                RelayMessage::Event(sub, event) if sub == live => {
                    self.accepted(event).await?;
                    self.since = Some(Timestamp::now() - OVERLAP);
                }
                RelayMessage::Said(Said::Closed { sub, text }) if sub == live => {
                    tracing::debug!(text, "the local relay ended the live subscription");
                    live = subscribe_to_first(client, &mut filters).await?;
                    self.read(client).await?;
                }
                _ => {}
            }
        }
    }

    /// Returns the filters to subscribe to, one after another until the relay accepts one: some relays want a
    /// specific filter, and some refuse a limit of zero. None has a `since`, which relays apply to new events too.
    fn live_filters(&self) -> [Filter; 3] {
        let narrow = Filter::new().kinds(self.kinds.iter().copied());
        [
            Filter::new().limit(0),
            narrow.clone().limit(0),
            narrow.limit(1),
        ]
    }

    /// Streams what is stored.
    async fn read(&mut self, client: &mut Client) -> Result<(), Unanswered> {
        let mut filter = Filter::new().kinds(self.kinds.iter().copied());
        filter.since = self.since;
        let mut reading = client.read(filter);
        while let Some(page) = reading.next().await? {
            for event in page {
                self.accepted(event).await?;
            }
        }
        Ok(())
    }

    /// Streams stored addressable events of any kind that name a repository, and those that name one of these: other events
    /// may name only them. A relay that refuses to be asked for that has them streamed when they come.
    async fn read_members(&mut self, client: &mut Client) -> Result<(), Unanswered> {
        let mut filter = Filter::new().kinds(members_beside(&self.kinds));
        filter.since = self.since;
        let mut named: BTreeSet<String> = self.served.iter().map(RepoId::to_string).collect();
        let mut waiting: Vec<String> = named.iter().cloned().collect();
        while !waiting.is_empty() {
            let rest = waiting.split_off(waiting.len().min(COORDINATES_AT_ONCE));
            let some = std::mem::replace(&mut waiting, rest);
            let mut reading = client.read(
                filter
                    .clone()
                    .custom_tags(SingleLetterTag::LOWERCASE_A, some),
            );
            loop {
                let page = match reading.next().await {
                    Ok(Some(page)) => page,
                    Ok(None) => break,
                    Err(Unanswered::Closed(text)) => {
                        tracing::debug!(text, "the local relay does not list addressable events");
                        return Ok(());
                    }
                    Err(error) => return Err(error),
                };
                for event in page {
                    let coordinate = deletion::coordinate(&event).map(|one| one.to_string());
                    if let Some(coordinate) = coordinate.filter(|_| named.len() < MAX_COORDINATES) {
                        if named.insert(coordinate.clone()) {
                            waiting.push(coordinate);
                        }
                    }
                    self.news(News::Accepted(Arc::new(event))).await?;
                }
            }
        }
        Ok(())
    }

    /// Checks whether the relay came back with less: emptied, or from an older copy.
    async fn check_for_losses(&mut self, client: &mut Client) -> Result<(), Unanswered> {
        let mut there = BTreeSet::new();
        let mut reading = client.read(Filter::new().kind(kinds::ANNOUNCEMENT));
        while let Some(page) = reading.next().await? {
            let announcements = page
                .iter()
                .filter_map(|event| Announcement::parse(event).ok());
            there.extend(announcements.map(|announcement| announcement.repo));
        }
        let gone: Vec<RepoId> = self.served.difference(&there).cloned().collect();
        if gone.is_empty() {
            return Ok(());
        }
        tracing::warn!(
            repositories = gone.len(),
            "the local relay lost repositories; comparing everything again"
        );
        for repo in gone {
            self.served.remove(&repo);
            self.news(News::Retired(repo)).await?;
        }
        self.news(News::Lost).await
    }

    async fn accepted(&mut self, event: Event) -> Result<(), Unanswered> {
        if let Ok(announcement) = Announcement::parse(&event) {
            self.served.insert(announcement.repo);
        }
        self.news(News::Accepted(Arc::new(event))).await
    }

    /// Streams a held announcement, unless the repository is served: then it is wanted completely already.
    async fn held(&self, event: Arc<Event>) -> Result<(), Unanswered> {
        let repo = Announcement::parse(&event).map(|announcement| announcement.repo);
        match repo {
            Ok(repo) if !self.served.contains(&repo) => self.news(News::Held(event)).await,
            _ => Ok(()),
        }
    }

    async fn news(&self, news: News) -> Result<(), Unanswered> {
        self.news_sender
            .send(news)
            .await
            .map_err(|_| Unanswered::Lost)
    }
}

/// Subscribes to the first of these filters that the relay accepts.
async fn subscribe_to_first(
    client: &mut Client,
    filters: impl Iterator<Item = Filter>,
) -> Result<SubId, Unanswered> {
    let mut refusal = Unanswered::Lost;
    for filter in filters {
        match client.subscribe_live(&filter).await {
            Err(refused @ Unanswered::Closed(_)) => refusal = refused,
            answered => return answered,
        }
    }
    tracing::warn!(%refusal, "the local relay refuses every live subscription");
    Err(refusal)
}

/// Returns the addressable kinds beside these. States are addressable too, and nothing names them.
fn members_beside(known: &[Kind]) -> Vec<Kind> {
    let mut others = Vec::new();
    for kind in (30_000..40_000).map(Kind::from_u16) {
        if kind != kinds::STATE && !known.contains(&kind) {
            others.push(kind);
        }
    }
    others
}

/// Events that may be sent before the relay has answered the first of them.
const MAX_UNANSWERED: usize = 64;

/// Events to be published, and the receiver of the answers.
struct Publication {
    events: Vec<Verified<Arc<Event>>>,
    reply: oneshot::Sender<Vec<Taken>>,
}

async fn publish(
    remote: Arc<RelayAddress>,
    mut batches: mpsc::Receiver<Publication>,
    held: watch::Receiver<Option<mpsc::Sender<Arc<Event>>>>,
) {
    let mut client: Option<Client> = None;
    let mut logged = LoggedRefusals::default();
    while let Some(Publication { events, reply }) = batches.recv().await {
        if client.is_none() {
            client = remote.connect().await.ok();
        }
        let mut answers = BTreeMap::new();
        if let Some(connected) = &mut client {
            if offer(connected, &events, &mut answers, &mut logged)
                .await
                .is_err()
            {
                client = None;
            }
        }
        let taken = |event: &Verified<Arc<Event>>| {
            answers
                .get(&event.id)
                .map_or(Taken::Refused(Retry::Soon), |one| one.taken)
        };
        let _ = reply.send(events.iter().map(taken).collect());
        // The feed brings what the relay serves, but not what it holds.
        let Some(follower) = held.borrow().clone() else {
            continue;
        };
        let is_held = |event: &&Verified<Arc<Event>>| {
            event.kind == kinds::ANNOUNCEMENT
                && answers.get(&event.id).is_some_and(|one| one.is_held)
        };
        for event in events.iter().filter(is_held) {
            let _ = follower.send(Arc::clone(event)).await;
        }
    }
}

/// The relay's answer to an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct EventAnswer {
    taken: Taken,
    /// True if it is held there until its git data arrives.
    is_held: bool,
}

/// Sends events ahead of their answers. Events without an answer when the connection is lost are offered again.
async fn offer(
    client: &mut Client,
    events: &[Verified<Arc<Event>>],
    answers: &mut BTreeMap<EventId, EventAnswer>,
    logged: &mut LoggedRefusals,
) -> Result<(), Unanswered> {
    let mut unsent = events.iter();
    let mut unanswered = BTreeSet::new();
    loop {
        while unanswered.len() < MAX_UNANSWERED {
            let Some(event) = unsent.next() else { break };
            client.send(codec::event(event)).await?;
            unanswered.insert(event.id);
        }
        if unanswered.is_empty() {
            return Ok(());
        }
        if let RelayMessage::Ok {
            event,
            accepted,
            text,
        } = client.receive_answer().await?
        {
            if unanswered.remove(&event) {
                let answer = read(accepted, &text);
                if matches!(answer.taken, Taken::Refused(_)) {
                    logged.refused(event, &text);
                }
                answers.insert(event, answer);
            }
        }
    }
}

/// The prefixes of refusals that were logged as warnings.
#[derive(Default)]
struct LoggedRefusals(BTreeSet<String>);

const MAX_LOGGED: usize = 16;

impl LoggedRefusals {
    /// Logs the first refusal of each prefix as a warning, and further ones for debugging.
    fn refused(&mut self, event: EventId, text: &str) {
        let is_new = self.is_new_prefix(text);
        let text = PeerText::new(text);
        let text = text.as_str();
        if is_new {
            tracing::warn!(%event, text, "the local relay refused an event; more with this prefix are logged at debug level");
        } else {
            tracing::debug!(%event, text, "the local relay refused an event");
        }
    }

    fn is_new_prefix(&mut self, text: &str) -> bool {
        let prefix = text.split(':').next().unwrap_or_default();
        self.0.len() < MAX_LOGGED && self.0.insert(PeerText::new(prefix).as_str().to_owned())
    }
}

/// Reads an OK.
///
/// A refusal counts as being for want of a dependency unless it says otherwise: relays put all sorts of policy into
/// one prefix, and the event is then only remembered a little longer than needed.
fn read(accepted: bool, text: &str) -> EventAnswer {
    let (prefix, rest) = text.split_once(':').unwrap_or_default();
    let prefix = prefix.trim();
    let is_held = rest.trim() == "in purgatory";
    let taken = match (accepted, prefix) {
        (_, "duplicate" | "replaced") => Taken::Known,
        (true, "purgatory") => Taken::Held,
        (true, _) => Taken::Stored,
        (false, "rate-limited" | "error") => Taken::Refused(Retry::Soon),
        (false, "pow" | "deleted") => Taken::Refused(Retry::Never),
        (false, _) => Taken::Refused(Retry::AfterDependency),
    };
    EventAnswer {
        taken,
        is_held: accepted && (is_held || taken == Taken::Held),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_answers_of_relays() {
        for (accepted, text, taken) in [
            (true, "", Taken::Stored),
            (true, "duplicate: already have this event", Taken::Known),
            (
                true,
                "purgatory: won't be served until git data arrives",
                Taken::Held,
            ),
            (false, "duplicate: have this event", Taken::Known),
            (false, "replaced: have newer event", Taken::Known),
            (
                false,
                "deleted: user requested deletion",
                Taken::Refused(Retry::Never),
            ),
            (
                false,
                "rate-limited: slow down",
                Taken::Refused(Retry::Soon),
            ),
            (
                false,
                "error: could not connect to the database",
                Taken::Refused(Retry::Soon),
            ),
            (
                false,
                "blocked: not on the list",
                Taken::Refused(Retry::AfterDependency),
            ),
            (
                false,
                "invalid: no announcement",
                Taken::Refused(Retry::AfterDependency),
            ),
            (false, "no", Taken::Refused(Retry::AfterDependency)),
        ] {
            assert_eq!(read(accepted, text).taken, taken, "{accepted} {text:?}");
        }
    }

    #[test]
    fn each_prefix_is_logged_once_up_to_a_limit() {
        let mut logged = LoggedRefusals::default();
        let news = ["blocked: a", "blocked: b", "no"].map(|text| logged.is_new_prefix(text));
        assert_eq!(news, [true, false, true]);
        let more = (0..100)
            .filter(|n| logged.is_new_prefix(&format!("sort {n}: x")))
            .count();
        assert_eq!(more, MAX_LOGGED - 2);
    }

    #[test]
    fn held_answers_are_recognized() {
        for (accepted, text, is_held) in [
            (
                true,
                "purgatory: won't be served until git data arrives",
                true,
            ),
            (true, "duplicate: in purgatory", true),
            (true, "duplicate: already have this event", false),
            (false, "duplicate: in purgatory", false),
            (true, "", false),
        ] {
            assert_eq!(read(accepted, text).is_held, is_held, "{accepted} {text:?}");
        }
    }
}
