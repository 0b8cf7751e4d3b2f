//! One websocket's driver: the only place of a connection that waits.
//!
//! One task owns the socket, the session's state and everything that is under way for it. It writes before it reads
//! on: a client that does not read its answers stops being read itself, and what is published meanwhile meets the
//! bounds of its queue. Histories are pulled chunk by chunk, in turn, only as fast as the socket takes them.

mod alarm;
mod intake;
mod orders;
mod writer;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::ws::{Message, Utf8Bytes, WebSocket};
use futures_util::future::BoxFuture;
use futures_util::stream::{AbortHandle, BoxStream, FuturesUnordered, SelectAll, StreamExt as _};
use grasp_core::Now;
use grasp_core::resources::{Claimant, ClientNetwork};
use grasp_purgatory::resources::{Holding, SharedPool};
use tokio::sync::watch;

use self::alarm::Alarm;
use self::intake::{Intake, Judged};
use self::writer::{Fault, Writer};
use super::codec::Request;
use super::completeness::Completeness;
use super::delivery::{Delivery, Live};
use super::hub::{Capacity, Heard, Hub, Listener};
use super::negentropy::{Opened, Snapshot, Workshop};
use super::reads::{ConnectionReads, ReadFailure, Reads};
use super::session::{Ending, Hangup, Input, Output, Reconciled, Rules, Session, Token};
use crate::clock::Clock;
use crate::ingest::Ingest;
use crate::server::{Shares, Stage, UnfinishedMessage, UnfinishedMessages};
use crate::store::{EventStore, StoreError, StoredEvent};

/// Live events written before the socket is flushed.
const LIVE_BURST: usize = 64;

/// Bytes of a text that is read on the connection's own thread; reading a longer one would keep others waiting.
const LONG_TEXT: usize = 64 * 1024;

/// How long a long text waits for its turn to be read.
const READING_TIMEOUT: Duration = Duration::from_secs(60);

/// What all connections share.
pub(crate) struct Shared {
    pub(crate) store: Arc<dyn EventStore>,
    pub(crate) ingest: Arc<dyn Ingest>,
    pub(crate) hub: Hub,
    pub(crate) clock: Clock,
    pub(crate) rules: Arc<Rules>,
    pub(crate) workshop: Workshop,
    /// Bytes of filter text that may still be held for all connections together.
    pub(crate) filter_room: SharedPool,
    pub(crate) reads: Reads,
    pub(crate) unfinished: UnfinishedMessages,
    /// Long texts that are read at once.
    pub(crate) readings: SharedPool,
    /// Bytes of events that were sent and are not judged yet, of all connections together.
    pub(crate) intake_room: SharedPool,
    /// What each address may still send.
    pub(crate) shares: Shares,
}

/// Serves one websocket until either side ends it, or the server does.
pub(crate) async fn run(
    socket: WebSocket,
    shared: Arc<Shared>,
    (network, message): (ClientNetwork, UnfinishedMessage),
    stage: watch::Receiver<Stage>,
    challenge: String,
) {
    let _counted = shared.hub.socket();
    message.begin(&shared.unfinished, network);
    let mut connection = Connection::new(socket, shared, (network, message), stage, challenge);
    let stop = match connection.serve().await {
        Ok(never) => match never {},
        Err(stop) => stop,
    };
    connection.finish(stop).await;
}

struct Connection {
    shared: Arc<Shared>,
    network: ClientNetwork,
    /// What has come of the next message.
    message: UnfinishedMessage,
    reads: ConnectionReads,
    session: Session,
    writer: Writer,
    listener: Listener,
    stage: watch::Receiver<Stage>,
    alarm: Alarm,
    /// What the session ordered and is not done yet.
    orders: VecDeque<Output>,
    subscriptions: BTreeMap<Token, Subscription>,
    histories: SelectAll<BoxStream<'static, Page>>,
    jobs: FuturesUnordered<BoxFuture<'static, Done>>,
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

/// A piece of some subscription's history.
enum Page {
    Busy(Token),
    Events(Token, Vec<StoredEvent>),
    Failed(Token, StoreError),
    End(Token),
}

/// A COUNT or negentropy message that was worked on.
enum Done {
    Counted(Token, Result<u64, ReadFailure>),
    NegOpened(Token, Opened),
    NegAnswered(Token, Reconciled),
}

/// What the connection woke up for.
enum Turn {
    Frame(Option<Result<Message, axum::Error>>),
    Heard(Heard),
    Page(Page),
    Done(Done),
    Judged(Vec<Judged>),
    Alarm,
    ShuttingDown,
}

/// Why a connection ends.
#[derive(Clone, Copy, Debug)]
enum Stop {
    /// The peer is not there any more, or does not take what we write.
    Gone,
    /// The peer said goodbye.
    Closed,
    Hangup(Hangup),
}

enum Never {}

impl Connection {
    fn new(
        socket: WebSocket,
        shared: Arc<Shared>,
        (network, message): (ClientNetwork, UnfinishedMessage),
        stage: watch::Receiver<Stage>,
        challenge: String,
    ) -> Self {
        let limits = &shared.rules.limits;
        let now = shared.clock.now();
        let capacity =
            Capacity { events: limits.live_queue_events, bytes: limits.live_queue_bytes };
        let session = Session::new(now, shared.rules.clone(), challenge);
        Self {
            alarm: Alarm::set(now.mono, session.next_deadline()),
            session,
            writer: Writer::new(socket, limits.write_timeout, stage.clone()),
            listener: shared.hub.listen(capacity),
            stage,
            orders: VecDeque::new(),
            subscriptions: BTreeMap::new(),
            histories: SelectAll::new(),
            jobs: FuturesUnordered::new(),
            snapshots: BTreeMap::new(),
            intake: Intake::new(limits),
            reads: shared.reads.of_connection(network),
            shared,
            network,
            message,
        }
    }

    async fn serve(&mut self) -> Result<Never, Stop> {
        loop {
            self.writer.flush().await?;
            let turn = self.next_turn().await;
            self.take(turn).await?;
            let origin = || self.session.authenticated();
            self.intake.start(&self.shared.ingest, self.network, origin);
        }
    }

    async fn next_turn(&mut self) -> Turn {
        let alarm = self.alarm.ring(&self.shared.clock, self.session.next_deadline());
        let has_room = self.intake.has_room();
        tokio::select! {
            frame = self.writer.receive(), if has_room => Turn::Frame(frame),
            heard = self.listener.next() => Turn::Heard(heard),
            Some(page) = self.histories.next() => Turn::Page(page),
            Some(done) = self.jobs.next() => Turn::Done(done),
            judged = self.intake.judged() => Turn::Judged(judged),
            () = alarm => Turn::Alarm,
            () = Stage::Draining.reached(&mut self.stage) => Turn::ShuttingDown,
        }
    }

    async fn take(&mut self, turn: Turn) -> Result<(), Stop> {
        let now = self.shared.clock.now();
        match turn {
            Turn::Frame(frame) => self.take_frame(now, frame).await,
            Turn::Heard(heard) => self.take_heard(now, heard).await,
            Turn::Page(page) => self.take_page(now, page).await,
            Turn::Done(done) => self.take_done(now, done).await,
            Turn::Judged(judged) => self.take_judged(now, judged).await,
            Turn::Alarm => self.tell(now, Input::Tick).await,
            Turn::ShuttingDown => Err(Stop::Hangup(Hangup::SHUTDOWN)),
        }
    }

    async fn take_frame(
        &mut self,
        now: Now,
        frame: Option<Result<Message, axum::Error>>,
    ) -> Result<(), Stop> {
        match &frame {
            Some(Ok(Message::Ping(payload) | Message::Pong(payload))) => {
                self.message.leave_out(payload.len());
            }
            _ => self.message.finished(),
        }
        match frame {
            Some(Ok(Message::Text(text))) if text.len() > LONG_TEXT => {
                self.take_long_text(now, text).await
            }
            Some(Ok(Message::Text(text))) => self.tell(now, Input::Text(&text)).await,
            Some(Ok(Message::Binary(_))) => self.tell(now, Input::Binary).await,
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => self.tell(now, Input::Heard).await,
            Some(Ok(Message::Close(_))) => Err(Stop::Closed),
            None => Err(Stop::Gone),
            Some(Err(error)) => Err(match Fault::of(error) {
                Fault::TooBig => Stop::Hangup(Hangup::TOO_BIG),
                Fault::NotUtf8 => Stop::Hangup(Hangup::NOT_UTF8),
                Fault::Protocol => Stop::Hangup(Hangup::PROTOCOL),
                Fault::NoRoom => Stop::Hangup(Hangup::NO_ROOM),
                Fault::TooSlow => Stop::Hangup(Hangup::TOO_SLOW),
                Fault::Gone => Stop::Gone,
            }),
        }
    }

    /// Reads a long text on a thread that may be busy for long, in its network's turn.
    async fn take_long_text(&mut self, now: Now, text: Utf8Bytes) -> Result<(), Stop> {
        let claimant = Claimant::at(self.network);
        let Ok(turn) = self.shared.readings.wait(&claimant, 1, READING_TIMEOUT).await else {
            return Err(Stop::Hangup(Hangup::NO_ROOM));
        };
        let rules = self.shared.rules.clone();
        let read = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            Request::read(&text, &rules.limits)
        });
        match read.await {
            Ok(request) => self.tell(now, Input::Read(request)).await,
            Err(error) => {
                tracing::error!(%error, "a message could not be read");
                Err(Stop::Gone)
            }
        }
    }

    /// Takes what is there to hear, but not so much that the others wait for long.
    async fn take_heard(&mut self, now: Now, first: Heard) -> Result<(), Stop> {
        self.take_one_heard(now, first).await?;
        for _ in 1..LIVE_BURST {
            let Some(next) = self.listener.try_next() else {
                break;
            };
            self.take_one_heard(now, next).await?;
        }
        Ok(())
    }

    async fn take_one_heard(&mut self, now: Now, heard: Heard) -> Result<(), Stop> {
        match heard {
            Heard::Event { subscription, published } => {
                self.take_live(now, Token(subscription), &published).await
            }
            Heard::Overflow { subscription } => {
                self.tell(now, Input::Ended(Token(subscription), Ending::Overflow)).await
            }
        }
    }

    async fn take_page(&mut self, now: Now, page: Page) -> Result<(), Stop> {
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
                    self.writer.event(&subscription.delivery, &event.json).await?;
                }
                Ok(())
            }
            Page::Busy(token) => self.tell(now, Input::Ended(token, Ending::Busy)).await,
            Page::Failed(token, error) => {
                tracing::error!(%error, "a history could not be read");
                self.tell(now, Input::Ended(token, Ending::StoreFailed)).await
            }
            Page::End(token) => self.catch_up(now, token).await,
        }
    }

    async fn take_done(&mut self, now: Now, done: Done) -> Result<(), Stop> {
        let input = match done {
            Done::Counted(token, Ok(count)) => Input::Counted(token, count),
            Done::Counted(token, Err(ReadFailure::Busy)) => Input::Ended(token, Ending::Busy),
            Done::Counted(token, Err(ReadFailure::Store(error))) => {
                tracing::error!(%error, "a count failed");
                Input::Ended(token, Ending::StoreFailed)
            }
            Done::NegOpened(token, (snapshot, what)) => {
                let wanted = snapshot.filter(|_| self.session.is_reconciling(token));
                self.snapshots.extend(wanted.map(|snapshot| (token, snapshot)));
                Input::Reconciled(token, what)
            }
            Done::NegAnswered(token, what) => Input::Reconciled(token, what),
        };
        self.tell(now, input).await
    }

    async fn take_judged(&mut self, now: Now, judged: Vec<Judged>) -> Result<(), Stop> {
        for (id, answer) in judged {
            self.tell(now, Input::Judged(id, answer)).await?;
        }
        Ok(())
    }

    /// Finishes what was taken in, says goodbye, and gives the other side a moment to say so too.
    async fn finish(mut self, stop: Stop) {
        let now = self.shared.clock.now();
        self.subscriptions.clear();
        self.orders.clear();
        while self.intake.is_busy() {
            let origin = || self.session.authenticated();
            self.intake.start(&self.shared.ingest, self.network, origin);
            let judged = tokio::select! {
                judged = self.intake.judged() => judged,
                () = Stage::Killed.reached(&mut self.stage) => return,
            };
            if matches!(stop, Stop::Hangup(_)) {
                let _ = self.take_judged(now, judged).await;
            }
        }
        match stop {
            Stop::Gone => {}
            Stop::Closed => self.writer.part(None).await,
            Stop::Hangup(hangup) => self.writer.part(Some(hangup)).await,
        }
    }
}
