//! The driver of one websocket: the only part of a connection that waits.
//!
//! One task owns the socket, the [`Session`] and its running jobs. It writes before it reads on: a client that does
//! not read its answers is not read itself, and live events meet the limits of its queue. Histories are read chunk by
//! chunk, in turn, only as fast as the socket takes them.

mod intake;
mod search;

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::io::ErrorKind;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket};
use futures_util::SinkExt as _;
use futures_util::future::FutureExt as _;
use futures_util::stream::{self, BoxStream, SelectAll, StreamExt as _};
use grasp_core::resources::{Claimant, ClientNetwork, Shortage};
use grasp_core::{Mono, Now};
use grasp_purgatory::resources::{Holding, SharedPool};
use nostr::event::Event;
use nostr::filter::Filter;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, Sleep};
use tokio_tungstenite::tungstenite::Error as WireError;

use self::intake::{Intake, Judged};
use super::codec::{QueryFilters, Reply, Request, SubId, event_prefix};
use super::delivery::{Delivery, LiveAction, MAX_CONCURRENT_READS, Reads, store_failed};
use super::hub::{Hub, HubMessage, Listener, Published};
use super::negentropy::NegentropyPool;
use super::session::{CloseReason, Input, Output, Session, Token};
use crate::clock::Clock;
use crate::ingest::{Answer, Ingest, SharedMeter};
use crate::private::MemberChanges;
use crate::server::{
    Config, MAX_UNFINISHED_BYTES, Parts, ShutdownStage, UnfinishedMessage, shared_pool,
};
use crate::store::{EventStore, StoredEvent};
use crate::web::Listing;

/// Live events written before the socket is flushed.
const MAX_LIVE_BURST: usize = 64;

/// Steps of a connection after which others get their turn: messages that have arrived already, and short answers, are
/// handled without waiting.
const STEPS_PER_TURN: u32 = 8;

/// Frames that are read, if they have arrived already, before a batch of events starts.
const MAX_FRAMES_READ_AHEAD: usize = 64;

/// Bytes of a text that is parsed on the connection's own thread; a longer one would delay other connections.
const MAX_INLINE_TEXT_BYTES: usize = 64 * 1024;

/// Long messages that are parsed at the same time, of all connections together. One address has a quarter of what
/// others leave.
const MAX_LONG_TEXTS: usize = 4;

/// The time that a long text waits to be parsed.
const LONG_TEXT_TIMEOUT: Duration = Duration::from_secs(60);

/// Bytes of events that are queued or in ingest, of all connections together. One address has a quarter of what
/// others leave.
const INTAKE_BYTES: usize = 256 * 1024 * 1024;

/// The divisor of the total for a single IPv4 address: it has half of what its /24 has, which has half of all.
const SHARE_OF_ONE: u64 = 4;

/// The time that the peer may take to answer a close frame.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// The parts that all connections share.
pub(crate) struct ConnectionContext {
    pub(crate) config: Arc<Config>,
    /// The configuration for clients without limits per minute.
    unrated: Arc<Config>,
    pub(crate) clock: Clock,
    hub: Hub,
    /// The repositories that searches find.
    listing: Listing,
    store: Arc<dyn EventStore>,
    ingest: Arc<dyn Ingest>,
    negentropy_pool: NegentropyPool,
    /// Bytes of the filters and recent histories of all connections together.
    filter_bytes: SharedPool,
    reads: SharedPool,
    /// Bytes of unfinished messages.
    unfinished: SharedPool,
    long_texts: SharedPool,
    intake_bytes: SharedPool,
    /// Events per minute, by client network.
    event_rates: SharedMeter,
}

impl ConnectionContext {
    pub(crate) fn new(parts: &Parts) -> Self {
        let limits = &parts.config.limits;
        let events = u64::from(limits.events_per_minute_per_ip).saturating_mul(SHARE_OF_ONE);
        Self {
            hub: parts.hub.clone(),
            listing: parts.listing.clone(),
            clock: parts.clock.clone(),
            config: Arc::new(parts.config.clone()),
            unrated: Arc::new(Config {
                limits: limits.without_rates(),
                ..parts.config.clone()
            }),
            store: parts.store.clone(),
            ingest: parts.ingest.clone(),
            negentropy_pool: NegentropyPool::new(limits),
            filter_bytes: shared_pool(limits.total_subscription_bytes),
            reads: shared_pool(MAX_CONCURRENT_READS),
            unfinished: shared_pool(MAX_UNFINISHED_BYTES),
            long_texts: shared_pool(MAX_LONG_TEXTS),
            intake_bytes: shared_pool(INTAKE_BYTES),
            event_rates: SharedMeter::per_minute(events),
        }
    }

    /// Returns whether the limits per minute apply to a client.
    fn is_rated(&self, claimant: &Claimant) -> bool {
        let is_local = |network: ClientNetwork| network.address().is_loopback();
        self.config.limits.limits_loopback || !claimant.network.is_some_and(is_local)
    }
}

/// Serves one websocket until either side or the server closes it.
pub(crate) async fn run(
    socket: WebSocket,
    context: Arc<ConnectionContext>,
    claimant: Claimant,
    message: UnfinishedMessage,
    stage: watch::Receiver<ShutdownStage>,
    challenge: String,
) {
    let _counted = context.hub.socket();
    message.begin(&context.unfinished, claimant);
    let is_rated = context.is_rated(&claimant);
    let config = match is_rated {
        true => &context.config,
        false => &context.unrated,
    };
    let mut connection = Connection {
        session: Session::new(context.clock.now(), config.clone(), challenge),
        is_rated,
        socket,
        listener: context.hub.listen(context.config.limits.live_queue()),
        stage,
        members: MemberChanges::of(context.config.private.as_ref()),
        subscriptions: BTreeMap::new(),
        settling: VecDeque::new(),
        jobs: SelectAll::new(),
        timer: Box::pin(tokio::time::sleep(Duration::ZERO)),
        timer_at: None,
        intake: Intake::new(
            context.ingest.clone(),
            context.intake_bytes.clone(),
            claimant,
        ),
        reads: Reads::new(context.reads.clone(), claimant),
        context,
        claimant,
        message,
    };
    let Err(stop) = connection.serve().await;
    connection.finish(stop).await;
}

struct Connection {
    context: Arc<ConnectionContext>,
    claimant: Claimant,
    /// The bytes of the next message that have arrived.
    message: UnfinishedMessage,
    reads: Reads,
    session: Session,
    /// The limits per minute apply.
    is_rated: bool,
    socket: WebSocket,
    listener: Listener,
    stage: watch::Receiver<ShutdownStage>,
    members: MemberChanges,
    subscriptions: BTreeMap<Token, Subscription>,
    /// Subscriptions that forget their history at a time, in this order.
    settling: VecDeque<(Mono, Token)>,
    /// Histories that are read, COUNTs, and negentropy messages that are answered.
    jobs: SelectAll<BoxStream<'static, JobProgress>>,
    intake: Intake,
    /// Goes off at `timer_at`, which is the next deadline or earlier: most deadlines only move away.
    timer: Pin<Box<Sleep>>,
    timer_at: Option<Mono>,
}

/// One open REQ.
struct Subscription {
    id: SubId,
    delivery: Delivery,
    /// Ends the reading of its history when it is dropped.
    _open: oneshot::Sender<Infallible>,
    /// Bytes of its filters.
    filter_bytes: u64,
    /// The memory of its filters and of its history.
    room: Holding,
}

impl Subscription {
    /// Takes or returns memory for as much history as it remembers.
    fn count_history(&mut self) -> Result<(), Shortage> {
        let history = self.delivery.history_bytes() as u64;
        self.room.resize(self.filter_bytes.saturating_add(history))
    }
}

/// The stored events of a subscription, page by page.
type Pages = BoxStream<'static, Result<Vec<StoredEvent>, &'static str>>;

/// The refusal of a subscription for which there is no memory.
const NO_ROOM: &str = "rate-limited: this relay holds as many subscriptions as it can";

/// The progress of a job.
enum JobProgress {
    /// A part of a subscription's history.
    Page(Token, Vec<StoredEvent>),
    /// The end of a subscription's history.
    CaughtUp(Token),
    Input(Input),
}

/// The reason for which a connection ends.
#[derive(Clone, Copy, Debug)]
enum Stop {
    /// The peer is unreachable, or does not read.
    Disconnected,
    /// The peer sent a close frame.
    ClosedByPeer,
    Close(CloseReason),
}

impl Stop {
    /// Returns the reaction to an error of the websocket.
    fn on_error(error: axum::Error) -> Self {
        Self::Close(match error.into_inner().downcast_ref::<WireError>() {
            Some(WireError::Capacity(_)) => CloseReason::TOO_BIG,
            Some(WireError::Utf8(_)) => CloseReason::NOT_UTF8,
            Some(WireError::Protocol(_)) => CloseReason::PROTOCOL,
            Some(WireError::Io(error)) if error.kind() == ErrorKind::QuotaExceeded => {
                CloseReason::AT_CAPACITY
            }
            Some(WireError::Io(error)) if error.kind() == ErrorKind::TimedOut => {
                CloseReason::TOO_SLOW
            }
            _ => return Self::Disconnected,
        })
    }
}

impl Connection {
    async fn serve(&mut self) -> Result<Infallible, Stop> {
        self.handle(self.now(), Input::Opened).await?;
        let mut steps = 0;
        loop {
            steps += 1;
            if steps == STEPS_PER_TURN {
                steps = 0;
                tokio::task::yield_now().await;
            }
            let (now, timeout) = (self.now(), self.context.config.limits.write_timeout);
            let flushed = within(self.socket.flush(), timeout, &mut self.stage);
            while_member(flushed, &mut self.members, &mut self.session, now).await?;
            self.step().await?;
            if self.intake.is_ready() {
                self.read_ahead().await?;
            }
            self.intake.start(|| self.session.authenticated());
        }
    }

    /// Waits for something to handle, and handles it.
    async fn step(&mut self) -> Result<(), Stop> {
        let deadline = self.session.next_deadline();
        let deadline = self
            .settling
            .front()
            .map_or(deadline, |(at, _)| deadline.min(*at));
        let left = deadline - self.now().mono;
        if left.is_zero() || self.timer_at.is_none_or(|at| deadline < at) {
            self.timer.as_mut().reset(Instant::now() + left);
            self.timer_at = Some(deadline);
        }
        let has_room = self.intake.has_room();
        tokio::select! {
            members = self.members.next() => self.handle(self.now(), Input::Members(members)).await,
            frame = self.socket.recv(), if has_room => self.on_frame(self.now(), frame).await,
            message = self.listener.next() => self.on_hub_messages(self.now(), message).await,
            Some(progress) = self.jobs.next() => self.on_progress(self.now(), progress).await,
            judged = self.intake.judged() => self.on_judged(self.now(), judged).await,
            () = &mut self.timer => {
                self.timer_at = None;
                let now = self.now();
                if now.mono < deadline {
                    return Ok(());
                }
                self.settle(now.mono);
                self.handle(now, Input::Tick).await
            }
            () = ShutdownStage::Draining.reached(&mut self.stage) => {
                Err(Stop::Close(CloseReason::SHUTTING_DOWN))
            }
        }
    }

    /// Handles the frames that have arrived already, so that the events among them are one batch.
    async fn read_ahead(&mut self) -> Result<(), Stop> {
        for _ in 0..MAX_FRAMES_READ_AHEAD {
            if !self.intake.has_room() {
                break;
            }
            let Some(frame) = self.socket.recv().now_or_never() else {
                break;
            };
            self.on_frame(self.now(), frame).await?;
        }
        Ok(())
    }

    fn now(&self) -> Now {
        self.context.clock.now()
    }

    /// Forgets histories whose events cannot come again live.
    fn settle(&mut self, now: Mono) {
        while let Some((at, token)) = self.settling.front().copied() {
            if at > now {
                break;
            }
            self.settling.pop_front();
            if let Some(subscription) = self.subscriptions.get_mut(&token) {
                subscription.delivery.settle(now);
                // Less is always possible.
                _ = subscription.count_history();
            }
        }
    }

    async fn on_progress(&mut self, now: Now, progress: JobProgress) -> Result<(), Stop> {
        match progress {
            JobProgress::Page(token, events) => self.on_page(now, token, events).await,
            JobProgress::CaughtUp(token) => self.catch_up(now, token).await,
            JobProgress::Input(input) => self.handle(now, input).await,
        }
    }

    async fn on_frame(
        &mut self,
        now: Now,
        frame: Option<Result<Message, axum::Error>>,
    ) -> Result<(), Stop> {
        match &frame {
            Some(Ok(Message::Ping(payload) | Message::Pong(payload))) => {
                self.message.exclude(payload.len());
            }
            _ => self.message.finished(),
        }
        let input = match frame {
            Some(Ok(Message::Text(text))) => Input::Message(self.read(text).await?),
            Some(Ok(Message::Binary(_))) => Input::Message(Err(Reply::notice(
                "invalid: binary frames are not understood",
            ))),
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => Input::Activity,
            Some(Ok(Message::Close(_))) => return Err(Stop::ClosedByPeer),
            Some(Err(error)) => return Err(Stop::on_error(error)),
            None => return Err(Stop::Disconnected),
        };
        self.handle(now, input).await
    }

    /// Parses a text: a long one on a blocking thread, within the share of its network.
    async fn read(&mut self, text: Utf8Bytes) -> Result<Result<Request, Reply>, Stop> {
        let config = self.context.config.clone();
        if text.len() <= MAX_INLINE_TEXT_BYTES {
            return Ok(Request::read(&text, &config.limits));
        }
        let permit = self
            .context
            .long_texts
            .wait(&self.claimant, 1, LONG_TEXT_TIMEOUT)
            .await;
        let permit = permit.map_err(|_| Stop::Close(CloseReason::AT_CAPACITY))?;
        let read = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            Request::read(&text, &config.limits)
        });
        read.await.map_err(|error| {
            tracing::error!(%error, "parsing a message panicked; closing its connection");
            Stop::Disconnected
        })
    }

    /// Handles queued hub messages, up to a limit so that other work is not delayed.
    async fn on_hub_messages(&mut self, now: Now, first: HubMessage) -> Result<(), Stop> {
        let mut next = Some(first);
        for _ in 0..MAX_LIVE_BURST {
            match next.take().or_else(|| self.listener.try_next()) {
                Some(HubMessage::Event {
                    subscription,
                    published,
                }) => {
                    self.on_live_event(now, Token(subscription), &published)
                        .await?;
                }
                Some(HubMessage::Subscribed { subscription }) => {
                    self.catch_up(now, Token(subscription)).await?;
                }
                Some(HubMessage::Overflow { subscription }) => {
                    self.on_overflow(now, Token(subscription)).await?;
                }
                // Clients are not told of removals.
                Some(HubMessage::Removed(_)) => {}
                None => break,
            }
        }
        Ok(())
    }

    async fn on_live_event(
        &mut self,
        now: Now,
        token: Token,
        published: &Arc<Published>,
    ) -> Result<(), Stop> {
        let Some(subscription) = self.subscriptions.get_mut(&token) else {
            return Ok(());
        };
        match subscription.delivery.live(now.mono, published) {
            LiveAction::Send => {
                let frame = subscription.delivery.frame(&published.json);
                self.send(frame).await
            }
            LiveAction::Defer | LiveAction::Skip => Ok(()),
            LiveAction::Overflow => self.on_overflow(now, token).await,
        }
    }

    /// Ends a subscription whose live events were too many.
    async fn on_overflow(&mut self, now: Now, token: Token) -> Result<(), Stop> {
        let Some(Subscription { id, .. }) = self.subscriptions.get(&token) else {
            return Ok(());
        };
        let reason = "error: live event buffer overflow, ask again from the last event seen";
        let reply = Reply::closed(id, reason);
        self.handle(now, Input::Reply(token, reply)).await
    }

    async fn on_page(
        &mut self,
        now: Now,
        token: Token,
        events: Vec<StoredEvent>,
    ) -> Result<(), Stop> {
        for event in events {
            let Some(Subscription { delivery, .. }) = self.subscriptions.get_mut(&token) else {
                break;
            };
            if delivery.stored(&event.id) {
                let frame = delivery.frame(&event.json);
                self.send(frame).await?;
            }
        }
        let Some(subscription) = self.subscriptions.get_mut(&token) else {
            return Ok(());
        };
        if subscription.count_history().is_ok() {
            return Ok(());
        }
        let reply = Reply::closed(&subscription.id, NO_ROOM);
        self.handle(now, Input::Reply(token, reply)).await
    }

    /// Ends a history: EOSE, then the events that were published meanwhile.
    async fn catch_up(&mut self, now: Now, token: Token) -> Result<(), Stop> {
        let Some(Subscription { id, delivery, .. }) = self.subscriptions.get_mut(&token) else {
            return Ok(());
        };
        let (hint, early) = delivery.caught_up(now.mono);
        self.settling
            .extend(delivery.settles_at().map(|at| (at, token)));
        let eose = Reply::Eose(id.clone(), hint);
        self.send(eose.to_json()).await?;
        for published in early {
            self.on_live_event(now, token, &published).await?;
        }
        Ok(())
    }

    async fn on_judged(&mut self, now: Now, judged: Vec<Judged>) -> Result<(), Stop> {
        for (id, answer) in judged {
            self.handle(now, Input::Judged(id, answer)).await?;
        }
        Ok(())
    }

    /// Finishes running batches, sends a close frame, and waits briefly for the peer's.
    async fn finish(mut self, stop: Stop) {
        let now = self.now();
        self.subscriptions.clear();
        while self.intake.is_busy() {
            self.intake.start(|| self.session.authenticated());
            let judged = tokio::select! {
                judged = self.intake.judged() => judged,
                () = ShutdownStage::Killed.reached(&mut self.stage) => return,
            };
            if matches!(stop, Stop::Close(reason) if reason != CloseReason::REMOVED) {
                let _ = self.on_judged(now, judged).await;
            }
        }
        let closing = async {
            match stop {
                Stop::Disconnected => return Ok(()),
                Stop::ClosedByPeer => {}
                Stop::Close(CloseReason(code, reason)) => {
                    let frame = CloseFrame {
                        code,
                        reason: reason.into(),
                    };
                    self.socket.send(Message::Close(Some(frame))).await?;
                }
            }
            while self.socket.recv().await.is_some_and(|frame| frame.is_ok()) {}
            Ok(())
        };
        let _ = within(closing, CLOSE_TIMEOUT, &mut self.stage).await;
    }

    /// Passes an input to the session and performs its outputs.
    async fn handle(&mut self, now: Now, input: Input) -> Result<(), Stop> {
        self.check_membership(now)?;
        let mut outputs = VecDeque::from(self.session.handle(now, input));
        while let Some(output) = outputs.pop_front() {
            if let Some(input) = self.perform(now, output).await? {
                outputs.extend(self.session.handle(now, input));
            }
        }
        Ok(())
    }

    /// Performs an output; returns what it leads to at once.
    async fn perform(&mut self, now: Now, output: Output) -> Result<Option<Input>, Stop> {
        let refused = |token| move |reply| Input::Reply(token, reply);
        match output {
            Output::Send(reply) => self.send(reply.to_json()).await?,
            Output::Ping => self.send(Message::Ping(Default::default())).await?,
            Output::Ingest(event) => return Ok(self.ingest(now, *event)),
            Output::Subscribe(token, id, query) => {
                let subscribed = self.subscribe(now, token, id, query).await;
                return Ok(subscribed.err().map(refused(token)));
            }
            Output::Unsubscribe(token) => {
                if self.subscriptions.remove(&token).is_some() {
                    self.listener.unsubscribe(token.0).await;
                }
            }
            Output::Count(token, id, query) => {
                return Ok(self.count(now, token, id, query).err().map(refused(token)));
            }
            Output::OpenNeg(token, id, filter, message) => {
                let (context, claimant) = (self.context.clone(), self.claimant);
                self.start(async move {
                    let ConnectionContext {
                        negentropy_pool,
                        store,
                        ..
                    } = &*context;
                    let opened = negentropy_pool
                        .open(&claimant, &**store, now.unix, &id, *filter, message)
                        .await;
                    match opened {
                        Ok((snapshot, reply)) => Input::NegOpened(token, snapshot, reply),
                        Err(refusal) => Input::Reply(token, refusal),
                    }
                });
            }
            Output::AnswerNeg(token, id, message) => {
                let Some(snapshot) = self.session.snapshot(&id) else {
                    return Ok(None);
                };
                let (context, claimant) = (self.context.clone(), self.claimant);
                self.start(async move {
                    let pool = &context.negentropy_pool;
                    Input::Reply(token, pool.answer(&claimant, &id, snapshot, message).await)
                });
            }
            Output::Close(reason) => return Err(Stop::Close(reason)),
        }
        Ok(None)
    }

    /// Starts a job that ends with an input.
    fn start(&mut self, job: impl Future<Output = Input> + Send + 'static) {
        self.jobs
            .push(stream::once(job.map(JobProgress::Input)).boxed());
    }

    /// Queues an event for ingest, unless its network exceeds its rate or share of memory.
    fn ingest(&mut self, now: Now, event: Event) -> Option<Input> {
        let id = event.id;
        let is_paid = !self.is_rated || self.context.event_rates.spend(now.mono, &self.claimant, 1);
        let is_queued = is_paid && self.intake.push(event);
        let message = "rate-limited: too many events from this address";
        (!is_queued).then(|| {
            Input::Judged(
                id,
                Answer {
                    is_accepted: false,
                    message: message.into(),
                },
            )
        })
    }

    /// Subscribes to live events first and reads history then, so that there is no gap.
    ///
    /// Without history, EOSE follows all live events that were published before: a client that ends an older
    /// subscription at this EOSE misses none of them.
    async fn subscribe(
        &mut self,
        now: Now,
        token: Token,
        id: SubId,
        query: QueryFilters,
    ) -> Result<(), Reply> {
        let room = self.reserve_filter_bytes(&id, &query)?;
        let limits = &self.context.config.limits;
        let has_search = query.searches() > 0;
        let (delivery, wanted) = Delivery::begin(event_prefix(&id), &query.filters, limits);
        let (open, closed) = oneshot::channel();
        // A search is for what is stored.
        let mut live = query.filters;
        live.retain(|filter| filter.search.is_none());
        if wanted.is_empty() {
            self.listener
                .subscribe_confirmed(token.0, live.into())
                .await;
        } else {
            self.listener.subscribe(token.0, live.into()).await;
            let pages = match has_search {
                true => self.found(now, wanted),
                false => self.read_history(now, wanted),
            };
            let refused = id.clone();
            let pages = pages.map(move |page| match page {
                Ok(events) => JobProgress::Page(token, events),
                Err(reason) => {
                    JobProgress::Input(Input::Reply(token, Reply::closed(&refused, reason)))
                }
            });
            let history = pages.chain(stream::iter([JobProgress::CaughtUp(token)]));
            self.jobs.push(history.take_until(closed).boxed());
        }
        let filter_bytes = room.amount();
        let subscription = Subscription {
            id,
            delivery,
            _open: open,
            filter_bytes,
            room,
        };
        self.subscriptions.insert(token, subscription);
        Ok(())
    }

    /// Reads the stored events of filters.
    fn read_history(&self, now: Now, wanted: Vec<Filter>) -> Pages {
        let pages = self.context.store.query(wanted, now.unix);
        self.reads.paged(pages).boxed()
    }

    /// Reads the stored events of filters with a search.
    fn found(&self, now: Now, wanted: Vec<Filter>) -> Pages {
        let (context, reads) = (self.context.clone(), self.reads.clone());
        let found = async move {
            match search::resolve(&context.listing, &reads, wanted).await {
                Ok(filters) => reads.paged(context.store.query(filters, now.unix)).boxed(),
                Err(reason) => stream::iter([Err(reason)]).boxed(),
            }
        };
        stream::once(found).flatten().boxed()
    }

    fn count(
        &mut self,
        now: Now,
        token: Token,
        id: SubId,
        query: QueryFilters,
    ) -> Result<(), Reply> {
        let room = self.reserve_filter_bytes(&id, &query)?;
        let (store, reads) = (self.context.store.clone(), self.reads.clone());
        self.start(async move {
            let _room = room;
            let counted = match reads.acquire().await {
                Ok(_permit) => store
                    .count(query.filters, now.unix)
                    .await
                    .map_err(|e| store_failed(&e)),
                Err(busy) => Err(busy),
            };
            let closed = |reason| Reply::closed(&id, reason);
            let reply = counted.map_or_else(closed, |count| Reply::Count(id.clone(), count));
            Input::Reply(token, reply)
        });
        Ok(())
    }

    /// Reserves memory for the filters of a query.
    fn reserve_filter_bytes(&self, id: &SubId, query: &QueryFilters) -> Result<Holding, Reply> {
        let room = self
            .context
            .filter_bytes
            .try_take(&self.claimant, query.weight() as u64);
        room.map_err(|_| Reply::closed(id, NO_ROOM))
    }

    async fn send(&mut self, message: impl Into<Message>) -> Result<(), Stop> {
        let (now, timeout) = (self.now(), self.context.config.limits.write_timeout);
        self.check_membership(now)?;
        let written = within(self.socket.feed(message.into()), timeout, &mut self.stage);
        while_member(written, &mut self.members, &mut self.session, now).await
    }

    /// Ends the connection if its member was removed since the last frame.
    fn check_membership(&mut self, now: Now) -> Result<(), Stop> {
        match self.members.latest() {
            Some(members) => stop_of(&self.session.handle(now, Input::Members(members))),
            None => Ok(()),
        }
    }
}

/// Returns the end of the connection, if a change of the members leads to it.
fn stop_of(outputs: &[Output]) -> Result<(), Stop> {
    match outputs {
        [Output::Close(reason)] => Err(Stop::Close(*reason)),
        _ => Ok(()),
    }
}

/// Waits for a write, at most until the member is removed: a client that does not read is disconnected, too.
async fn while_member(
    write: impl Future<Output = Result<(), Stop>>,
    members: &mut MemberChanges,
    session: &mut Session,
    now: Now,
) -> Result<(), Stop> {
    tokio::pin!(write);
    loop {
        tokio::select! {
            biased;
            members = members.next() => stop_of(&session.handle(now, Input::Members(members)))?,
            written = &mut write => return written,
        }
    }
}

/// Waits for a write until the timeout, or until the server is killed.
async fn within(
    write: impl Future<Output = Result<(), axum::Error>>,
    timeout: Duration,
    stage: &mut watch::Receiver<ShutdownStage>,
) -> Result<(), Stop> {
    tokio::select! {
        biased;
        written = tokio::time::timeout(timeout, write) => match written {
            Ok(Ok(())) => Ok(()),
            _ => Err(Stop::Disconnected),
        },
        () = ShutdownStage::Killed.reached(stage) => Err(Stop::Disconnected),
    }
}
