//! The driver of one websocket: the only part of a connection that waits.
//!
//! One task owns the socket, the [`Session`] and its running jobs. It writes before it reads on: a client that does
//! not read its answers is not read itself, and live events meet the limits of its queue. Histories are read chunk by
//! chunk, in turn, only as fast as the socket takes them.

mod intake;
mod socket;

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::ws::{Message, Utf8Bytes, WebSocket};
use futures_util::future::BoxFuture;
use futures_util::stream::{
    self, AbortHandle, BoxStream, FuturesUnordered, SelectAll, StreamExt as _,
};
use grasp_core::Now;
use grasp_core::resources::{Claimant, ClientNetwork};
use grasp_purgatory::resources::{Holding, SharedPool};
use nostr::event::Event;
use tokio::sync::watch;

use self::intake::{Intake, Judged};
use self::socket::{DeadlineTimer, Socket};
use super::codec::{QueryFilters, Request, SubId, event_prefix};
use super::delivery::{
    Completeness, ConnectionReadLimiter, Delivery, LiveAction, ReadFailure, ReadLimiter,
    history_filters,
};
use super::hub::{Capacity, Hub, HubMessage, Listener, Published};
use super::negentropy::{NegentropyPool, Opened, Snapshot};
use super::session::{
    CloseReason, EndReason, Input, NegOutcome, Output, Session, SessionConfig, Token,
};
use crate::clock::Clock;
use crate::ingest::{Answer, Ingest};
use crate::server::{EventRates, Stage, UnfinishedMessage, UnfinishedMessages};
use crate::store::{EventStore, StoreError, StoredEvent};

/// Live events written before the socket is flushed.
const MAX_LIVE_BURST: usize = 64;

/// Bytes of a text that is parsed on the connection's own thread; a longer one would delay other connections.
const MAX_INLINE_TEXT_BYTES: usize = 64 * 1024;

/// The time that a long text waits to be parsed.
const LONG_TEXT_TIMEOUT: Duration = Duration::from_secs(60);

/// The parts that all connections share.
pub(crate) struct ConnectionContext {
    pub(crate) store: Arc<dyn EventStore>,
    pub(crate) ingest: Arc<dyn Ingest>,
    pub(crate) hub: Hub,
    pub(crate) clock: Clock,
    pub(crate) config: Arc<SessionConfig>,
    pub(crate) negentropy_pool: NegentropyPool,
    /// Bytes of the filters of all connections together.
    pub(crate) filter_bytes: SharedPool,
    pub(crate) reads: ReadLimiter,
    pub(crate) unfinished: UnfinishedMessages,
    /// Long texts that are parsed at the same time.
    pub(crate) long_texts: SharedPool,
    /// Bytes of events that are queued or in ingest, of all connections together.
    pub(crate) intake_bytes: SharedPool,
    /// The rates of events by client network.
    pub(crate) event_rates: EventRates,
}

/// Serves one websocket until either side or the server closes it.
pub(crate) async fn run(
    socket: WebSocket,
    context: Arc<ConnectionContext>,
    (network, message): (ClientNetwork, UnfinishedMessage),
    stage: watch::Receiver<Stage>,
    challenge: String,
) {
    let _counted = context.hub.socket();
    message.begin(&context.unfinished, network);
    let mut connection = Connection::new(socket, context, (network, message), stage, challenge);
    let Err(stop) = connection.serve().await;
    connection.finish(stop).await;
}

struct Connection {
    context: Arc<ConnectionContext>,
    network: ClientNetwork,
    /// The bytes of the next message that have arrived.
    message: UnfinishedMessage,
    reads: ConnectionReadLimiter,
    session: Session,
    socket: Socket,
    listener: Listener,
    stage: watch::Receiver<Stage>,
    timer: DeadlineTimer,
    /// Outputs of the session that are not performed yet.
    outputs: VecDeque<Output>,
    subscriptions: BTreeMap<Token, Subscription>,
    histories: SelectAll<BoxStream<'static, Page>>,
    jobs: FuturesUnordered<BoxFuture<'static, JobResult>>,
    snapshots: BTreeMap<Token, Arc<Snapshot>>,
    intake: Intake,
}

/// One open REQ.
struct Subscription {
    delivery: Delivery,
    answer: Completeness,
    history: AbortHandle,
    _room: Holding,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.history.abort();
    }
}

/// A part of a subscription's history.
enum Page {
    Busy(Token),
    Events(Token, Vec<StoredEvent>),
    Failed(Token, StoreError),
    End(Token),
}

/// The result of a COUNT or negentropy message.
enum JobResult {
    Counted(Token, Result<u64, ReadFailure>),
    NegOpened(Token, Opened),
    NegAnswered(Token, NegOutcome),
}

/// The reason for which the connection's task continues.
enum Wakeup {
    Frame(Option<Result<Message, axum::Error>>),
    HubMessage(HubMessage),
    Page(Page),
    JobResult(JobResult),
    Judged(Vec<Judged>),
    DeadlineTimer,
    ShuttingDown,
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

impl Connection {
    fn new(
        socket: WebSocket,
        context: Arc<ConnectionContext>,
        (network, message): (ClientNetwork, UnfinishedMessage),
        stage: watch::Receiver<Stage>,
        challenge: String,
    ) -> Self {
        let limits = &context.config.limits;
        let now = context.clock.now();
        let capacity =
            Capacity { events: limits.live_queue_events, bytes: limits.live_queue_bytes };
        let session = Session::new(now, context.config.clone(), challenge);
        Self {
            timer: DeadlineTimer::new(now.mono, session.next_deadline()),
            session,
            socket: Socket::new(socket, limits.write_timeout, stage.clone()),
            listener: context.hub.listen(capacity),
            stage,
            outputs: VecDeque::new(),
            subscriptions: BTreeMap::new(),
            histories: SelectAll::new(),
            jobs: FuturesUnordered::new(),
            snapshots: BTreeMap::new(),
            intake: Intake::new(limits),
            reads: context.reads.of_connection(network),
            context,
            network,
            message,
        }
    }

    async fn serve(&mut self) -> Result<Infallible, Stop> {
        loop {
            self.socket.flush().await?;
            let wakeup = self.next_wakeup().await;
            self.on_wakeup(wakeup).await?;
            let origin = || self.session.authenticated();
            self.intake.start(&self.context.ingest, self.network, origin);
        }
    }

    async fn next_wakeup(&mut self) -> Wakeup {
        let timer = self.timer.elapsed(&self.context.clock, self.session.next_deadline());
        let has_room = self.intake.has_room();
        tokio::select! {
            frame = self.socket.receive(), if has_room => Wakeup::Frame(frame),
            heard = self.listener.next() => Wakeup::HubMessage(heard),
            Some(page) = self.histories.next() => Wakeup::Page(page),
            Some(done) = self.jobs.next() => Wakeup::JobResult(done),
            judged = self.intake.judged() => Wakeup::Judged(judged),
            () = timer => Wakeup::DeadlineTimer,
            () = Stage::Draining.reached(&mut self.stage) => Wakeup::ShuttingDown,
        }
    }

    async fn on_wakeup(&mut self, wakeup: Wakeup) -> Result<(), Stop> {
        let now = self.context.clock.now();
        match wakeup {
            Wakeup::Frame(frame) => self.on_frame(now, frame).await,
            Wakeup::HubMessage(heard) => self.on_hub_messages(now, heard).await,
            Wakeup::Page(page) => self.on_page(now, page).await,
            Wakeup::JobResult(done) => self.on_job_result(now, done).await,
            Wakeup::Judged(judged) => self.on_judged(now, judged).await,
            Wakeup::DeadlineTimer => self.handle_input(now, Input::Tick).await,
            Wakeup::ShuttingDown => Err(Stop::Close(CloseReason::SHUTTING_DOWN)),
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
        match frame {
            Some(Ok(Message::Text(text))) if text.len() > MAX_INLINE_TEXT_BYTES => {
                self.on_long_text(now, text).await
            }
            Some(Ok(Message::Text(text))) => self.handle_input(now, Input::Text(&text)).await,
            Some(Ok(Message::Binary(_))) => self.handle_input(now, Input::Binary).await,
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => {
                self.handle_input(now, Input::Activity).await
            }
            Some(Ok(Message::Close(_))) => Err(Stop::ClosedByPeer),
            None => Err(Stop::Disconnected),
            Some(Err(error)) => Err(Stop::on_error(error)),
        }
    }

    /// Parses a long text on a blocking thread, within the share of its network.
    async fn on_long_text(&mut self, now: Now, text: Utf8Bytes) -> Result<(), Stop> {
        let claimant = Claimant::at(self.network);
        let Ok(turn) = self.context.long_texts.wait(&claimant, 1, LONG_TEXT_TIMEOUT).await else {
            return Err(Stop::Close(CloseReason::AT_CAPACITY));
        };
        let config = self.context.config.clone();
        let read = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            Request::read(&text, &config.limits)
        });
        match read.await {
            Ok(request) => self.handle_input(now, Input::Read(request)).await,
            Err(error) => {
                tracing::error!(%error, "parsing a message panicked; closing its connection");
                Err(Stop::Disconnected)
            }
        }
    }

    /// Handles queued hub messages, up to a limit so that other work is not delayed.
    async fn on_hub_messages(&mut self, now: Now, first: HubMessage) -> Result<(), Stop> {
        self.on_one_hub_message(now, first).await?;
        for _ in 1..MAX_LIVE_BURST {
            let Some(next) = self.listener.try_next() else {
                break;
            };
            self.on_one_hub_message(now, next).await?;
        }
        Ok(())
    }

    async fn on_one_hub_message(&mut self, now: Now, heard: HubMessage) -> Result<(), Stop> {
        match heard {
            HubMessage::Event { subscription, published } => {
                self.on_live_event(now, Token(subscription), &published).await
            }
            HubMessage::Overflow { subscription } => {
                self.handle_input(now, Input::Ended(Token(subscription), EndReason::Overflow)).await
            }
        }
    }

    async fn on_page(&mut self, now: Now, page: Page) -> Result<(), Stop> {
        match page {
            Page::Events(token, events) => {
                for event in events {
                    let Some(subscription) = self.subscriptions.get_mut(&token) else {
                        break;
                    };
                    if !subscription.answer.admit() {
                        break;
                    }
                    subscription.delivery.stored(&event.id);
                    self.socket.event(&subscription.delivery, &event.json).await?;
                }
                Ok(())
            }
            Page::Busy(token) => self.handle_input(now, Input::Ended(token, EndReason::Busy)).await,
            Page::Failed(token, error) => {
                tracing::error!(%error, "the event store failed to read the history of a subscription");
                self.handle_input(now, Input::Ended(token, EndReason::StoreFailed)).await
            }
            Page::End(token) => self.catch_up(now, token).await,
        }
    }

    async fn on_job_result(&mut self, now: Now, done: JobResult) -> Result<(), Stop> {
        let input = match done {
            JobResult::Counted(token, Ok(count)) => Input::Counted(token, count),
            JobResult::Counted(token, Err(ReadFailure::Busy)) => {
                Input::Ended(token, EndReason::Busy)
            }
            JobResult::Counted(token, Err(ReadFailure::Store(error))) => {
                tracing::error!(%error, "the event store failed to count");
                Input::Ended(token, EndReason::StoreFailed)
            }
            JobResult::NegOpened(token, (snapshot, what)) => {
                let wanted = snapshot.filter(|_| self.session.has_neg_session(token));
                self.snapshots.extend(wanted.map(|snapshot| (token, snapshot)));
                Input::NegOutcome(token, what)
            }
            JobResult::NegAnswered(token, what) => Input::NegOutcome(token, what),
        };
        self.handle_input(now, input).await
    }

    async fn on_judged(&mut self, now: Now, judged: Vec<Judged>) -> Result<(), Stop> {
        for (id, answer) in judged {
            self.handle_input(now, Input::Judged(id, answer)).await?;
        }
        Ok(())
    }

    /// Finishes running batches, sends a close frame, and waits briefly for the peer's.
    async fn finish(mut self, stop: Stop) {
        let now = self.context.clock.now();
        self.subscriptions.clear();
        self.outputs.clear();
        while self.intake.is_busy() {
            let origin = || self.session.authenticated();
            self.intake.start(&self.context.ingest, self.network, origin);
            let judged = tokio::select! {
                judged = self.intake.judged() => judged,
                () = Stage::Killed.reached(&mut self.stage) => return,
            };
            if matches!(stop, Stop::Close(_)) {
                let _ = self.on_judged(now, judged).await;
            }
        }
        match stop {
            Stop::Disconnected => {}
            Stop::ClosedByPeer => self.socket.close(None).await,
            Stop::Close(reason) => self.socket.close(Some(reason)).await,
        }
    }

    /// Passes an input to the session and performs its outputs.
    async fn handle_input(&mut self, now: Now, input: Input<'_>) -> Result<(), Stop> {
        self.outputs.extend(self.session.handle(now, input));
        while let Some(output) = self.outputs.pop_front() {
            self.perform(now, output).await?;
        }
        Ok(())
    }

    async fn perform(&mut self, now: Now, output: Output) -> Result<(), Stop> {
        match output {
            Output::Send(reply) => self.socket.text(reply.to_json()).await?,
            Output::Ping => self.socket.ping().await?,
            Output::Ingest(event) => self.ingest(now, *event),
            Output::Subscribe { token, id, query } => {
                self.subscribe(now, token, &id, query).await?
            }
            Output::Unsubscribe(token) => self.unsubscribe(token).await,
            Output::Count { token, query } => self.count(now, token, query),
            Output::OpenNeg { token, filter, message } => {
                let (store, negentropy_pool) =
                    (self.context.store.clone(), self.context.negentropy_pool.clone());
                let open = negentropy_pool.open(self.network, store, *filter, now.unix, message);
                self.jobs.push(Box::pin(async move { JobResult::NegOpened(token, open.await) }));
            }
            Output::AnswerNeg { token, message } => self.answer_neg(token, message),
            Output::DropNeg(token) => {
                self.snapshots.remove(&token);
            }
            Output::Close(reason) => return Err(Stop::Close(reason)),
        }
        Ok(())
    }

    /// Queues an event for ingest, unless its network exceeds its rate or share of memory.
    fn ingest(&mut self, now: Now, event: Event) {
        let claimant = Claimant::at(self.network);
        let taken = match self.context.event_rates.take(self.network, now.mono) {
            true => self.intake.push(event, &self.context.intake_bytes, &claimant),
            false => Err(event.id),
        };
        if let Err(id) = taken {
            let message = "rate-limited: too many events from this address".into();
            let answer = Answer { accepted: false, message };
            self.outputs.extend(self.session.handle(now, Input::Judged(id, answer)));
        }
    }

    /// Subscribes to live events first and reads history then, so that there is no gap.
    async fn subscribe(
        &mut self,
        now: Now,
        token: Token,
        id: &SubId,
        query: QueryFilters,
    ) -> Result<(), Stop> {
        let Some(room) = self.reserve_filter_bytes(now, token, query.weight()) else {
            return Ok(());
        };
        let limits = &self.context.config.limits;
        let mut wanted = history_filters(&query.filters, limits);
        let answer = Completeness::begin(&query.filters, &mut wanted);
        let delivery = Delivery::new(event_prefix(id), limits);
        let (history, registration) = AbortHandle::new_pair();
        self.subscriptions.insert(token, Subscription { delivery, answer, history, _room: room });
        self.listener.subscribe(token.0, query.filters.into()).await;
        if wanted.is_empty() {
            return self.catch_up(now, token).await;
        }
        let pages = self.reads.paged(self.context.store.query(wanted, now.unix));
        let pages = pages.map(move |chunk| match chunk {
            Ok(events) => Page::Events(token, events),
            Err(ReadFailure::Busy) => Page::Busy(token),
            Err(ReadFailure::Store(error)) => Page::Failed(token, error),
        });
        let pages = pages.chain(stream::iter([Page::End(token)]));
        self.histories.push(stream::Abortable::new(pages, registration).boxed());
        Ok(())
    }

    fn count(&mut self, now: Now, token: Token, query: QueryFilters) {
        let Some(room) = self.reserve_filter_bytes(now, token, query.weight()) else {
            return;
        };
        let (store, reads, unix) = (self.context.store.clone(), self.reads.clone(), now.unix);
        self.jobs.push(Box::pin(async move {
            let _room = room;
            let Some(_turn) = reads.acquire().await else {
                return JobResult::Counted(token, Err(ReadFailure::Busy));
            };
            let counted = store.count(query.filters, unix).await;
            JobResult::Counted(token, counted.map_err(ReadFailure::Store))
        }));
    }

    /// Reserves memory for filters; if there is none, the subscription ends.
    fn reserve_filter_bytes(&mut self, now: Now, token: Token, bytes: usize) -> Option<Holding> {
        let claimant = Claimant::at(self.network);
        let room = self.context.filter_bytes.try_take(&claimant, bytes as u64).ok();
        if room.is_none() {
            self.outputs
                .extend(self.session.handle(now, Input::Ended(token, EndReason::AtCapacity)));
        }
        room
    }

    async fn unsubscribe(&mut self, token: Token) {
        if self.subscriptions.remove(&token).is_some() {
            self.listener.unsubscribe(token.0).await;
        }
    }

    /// Ends a history: EOSE, then the events that were published meanwhile.
    async fn catch_up(&mut self, now: Now, token: Token) -> Result<(), Stop> {
        let Some(subscription) = self.subscriptions.get_mut(&token) else {
            return Ok(());
        };
        let early = subscription.delivery.caught_up(now.mono, &self.context.config.limits);
        let hint = subscription.answer.hint();
        for output in self.session.handle(now, Input::CaughtUp(token, hint)) {
            if let Output::Send(reply) = output {
                self.socket.text(reply.to_json()).await?;
            }
        }
        for published in early {
            self.socket.event(&subscription.delivery, &published.json).await?;
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
                self.socket.event(&subscription.delivery, &published.json).await?;
                Ok(())
            }
            LiveAction::Defer | LiveAction::Skip => Ok(()),
            LiveAction::Overflow => {
                self.handle_input(now, Input::Ended(token, EndReason::Overflow)).await
            }
        }
    }

    fn answer_neg(&mut self, token: Token, message: Vec<u8>) {
        if let Some(snapshot) = self.snapshots.get(&token).cloned() {
            let answer =
                self.context.negentropy_pool.clone().answer(self.network, snapshot, message);
            self.jobs.push(Box::pin(async move { JobResult::NegAnswered(token, answer.await) }));
        }
    }
}
