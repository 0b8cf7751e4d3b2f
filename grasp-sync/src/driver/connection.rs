//! One connection to a relay over one websocket.
//!
//! ```text
//!   engine ──Frame──▶ ┌────────────┐ ──text──▶ writer ──▶ socket
//!                     │ connection │
//!   engine ◀──Heard── └────────────┘ ◀─────────────────── socket
//!                           └──events──▶ intake queue
//! ```
//!
//! Messages are passed to the engine in order, and at once. Events go to the intake queue, which may be full; then
//! the socket is not read, and the relay has to wait.

mod burst;
mod dial;
mod writer;

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::stream::{SplitStream, StreamExt as _};
use grasp_core::RelayUrl;
use grasp_core::admission::SyncPath;
use grasp_core::nostr::event::{Event, EventBuilder, EventId, FinalizeEvent as _, Kind, Tag};
use grasp_core::nostr::filter::Filter;
use grasp_core::nostr::key::Keys;
use grasp_core::outbound::Provenance;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_tungstenite::tungstenite::{Error as WsError, Message};

use self::burst::Burst;
pub(crate) use self::dial::{Opened, Socket, open};
use self::writer::Writer;
use super::codec::{self, Word};
use super::intake::{Intake, Item, Lane};
use super::limits::Limits;
use super::outbound::Outbound;
use super::task::Task;
use crate::engine::{ConnId, Fault, Frame, Input, Places, Said, SubId};

/// Frames that may wait for the socket; the engine's budget stays far below.
const FRAMES: usize = 1_024;

/// The state that all connections share.
pub(crate) struct World {
    pub(crate) outbound: Outbound,
    pub(crate) keys: Option<Keys>,
    pub(crate) limits: Limits,
    pub(crate) intake: Intake,
    pub(crate) told: mpsc::Sender<Input>,
}

/// The relay to connect to, and the id of the connection.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) relay: RelayUrl,
    pub(crate) conn: ConnId,
    pub(crate) from: Provenance,
}

/// A connection, or an attempt to connect. Ends without a message when dropped.
pub(crate) struct Line {
    frames: mpsc::Sender<Frame>,
    _task: Task,
}

/// The frame could not be queued: the relay does not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stuck;

impl Line {
    /// Starts to connect. The result is an input.
    pub(crate) fn start(world: Arc<World>, call: Call) -> Self {
        let (frames, orders) = mpsc::channel(FRAMES);
        Self { frames, _task: Task::spawn(live(world, call, orders)) }
    }

    pub(crate) fn send(&self, frame: Frame) -> Result<(), Stuck> {
        self.frames.try_send(frame).map_err(|_| Stuck)
    }
}

/// Runs a connection from the dial to its end, which is always reported.
async fn live(world: Arc<World>, call: Call, orders: mpsc::Receiver<Frame>) {
    let told = world.told.clone();
    let (relay, conn) = (call.relay.clone(), call.conn);
    let life = std::panic::AssertUnwindSafe(converse(world, call, orders)).catch_unwind();
    let why = match life.await {
        Ok(Ok(())) => None,
        Ok(Err(why)) => Some(why),
        Err(_) => {
            tracing::error!(%relay, "a connection panicked");
            Some(Fault::Unreachable)
        }
    };
    if let Some(why) = why {
        let _ = told.send(Input::ConnectFailed { relay: relay.clone(), conn, why }).await;
    }
    // Ignored for an attempt that failed.
    let _ = told.send(Input::Disconnected { relay, conn }).await;
}

async fn converse(
    world: Arc<World>,
    call: Call,
    orders: mpsc::Receiver<Frame>,
) -> Result<(), Fault> {
    let opened = open(&world.outbound, &world.limits, &call.relay, call.from).await?;
    let Opened { socket, address, facts } = opened;
    let (sink, stream) = socket.split();
    let lane = world.intake.lane(call.relay.clone(), call.conn);
    let (relay, conn, address) = (call.relay.clone(), call.conn, Some(address));
    let _ = world.told.send(Input::Connected { relay, conn, address, facts }).await;
    let writer = Writer::start(sink, world.limits.write_timeout);
    let talk = Talk {
        world,
        call,
        lane,
        writer,
        subs: BTreeMap::new(),
        challenge: None,
        answer: None,
        burst: Burst::default(),
        silence: Silence::since_now(),
    };
    talk.run(stream, orders).await;
    Ok(())
}

/// The filters and path of one of our subscriptions.
struct Sub {
    filters: Vec<Filter>,
    path: SyncPath,
}

struct Talk {
    world: Arc<World>,
    call: Call,
    lane: Lane,
    writer: Writer,
    subs: BTreeMap<SubId, Sub>,
    challenge: Option<String>,
    /// The id of our answer to it.
    answer: Option<EventId>,
    burst: Burst,
    silence: Silence,
}

/// The reason why a connection ended, for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    /// The engine dropped the handle.
    Dismissed,
    /// The socket ended, or failed.
    Lost,
    /// Nothing was received for too long.
    Silent,
    /// Nothing could be sent for too long.
    Stuck,
}

impl Talk {
    async fn run(mut self, mut stream: SplitStream<Socket>, mut orders: mpsc::Receiver<Frame>) {
        let over = loop {
            if let Err(over) = self.turn(&mut stream, &mut orders).await {
                break over;
            }
        };
        self.flush().await;
        tracing::debug!(relay = %self.call.relay, ?over, "the connection ended");
    }

    /// Sends one frame, or receives what is available.
    async fn turn(
        &mut self,
        stream: &mut SplitStream<Socket>,
        orders: &mut mpsc::Receiver<Frame>,
    ) -> Result<(), Over> {
        tokio::select! {
            biased;
            frame = orders.recv() => self.say(frame.ok_or(Over::Dismissed)?),
            () = self.writer.ended() => Err(Over::Stuck),
            message = stream.next() => {
                self.hear(message).await?;
                self.hear_more(stream).await?;
                self.silence = Silence::since_now();
                self.flush().await;
                Ok(())
            }
            () = self.silence.grows(&self.world.limits) => self.wonder(),
        }
    }

    /// Sends a ping after the first silence; ends the connection after the second.
    fn wonder(&mut self) -> Result<(), Over> {
        if std::mem::replace(&mut self.silence.is_asked, true) {
            return Err(Over::Silent);
        }
        self.writer.send(Message::Ping(Vec::new().into())).map_err(|_| Over::Stuck)
    }

    /// Receives what else is available, so that many small messages make few large steps.
    async fn hear_more(&mut self, stream: &mut SplitStream<Socket>) -> Result<(), Over> {
        while !self.burst.is_full() {
            let Some(message) = stream.next().now_or_never() else { break };
            self.hear(message).await?;
        }
        Ok(())
    }

    async fn hear(&mut self, message: Option<Result<Message, WsError>>) -> Result<(), Over> {
        match message {
            Some(Ok(Message::Text(text))) => {
                if let Some(word) = Word::read(&text) {
                    self.heard(word, text.len()).await;
                }
                Ok(())
            }
            Some(Ok(Message::Close(_)) | Err(_)) | None => Err(Over::Lost),
            Some(Ok(_)) => Ok(()),
        }
    }

    async fn heard(&mut self, word: Word, bytes: usize) {
        let said = match word {
            Word::Event(sub, event) => return self.delivered(sub, event, bytes),
            Word::Eose(sub, hint) => Said::Eose { sub, hint },
            Word::Closed(sub, text) => {
                self.subs.remove(&sub);
                Said::Closed { sub, text }
            }
            Word::Notice(text) => Said::Notice { text },
            Word::NegMsg(sub, message) => Said::NegMsg { sub, message },
            Word::NegErr(sub, text) => Said::NegErr { sub, text },
            Word::Auth(challenge) => {
                self.challenge = Some(challenge);
                Said::Challenge
            }
            Word::Ok { event, accepted, .. } if self.answer == Some(event) => {
                Said::Authenticated { accepted }
            }
            Word::Ok { .. } => return,
        };
        // An EOSE never overtakes the events before it.
        self.tell_rows().await;
        self.tell(said).await;
    }

    /// Buffers an event that matches its subscription; drops any other.
    fn delivered(&mut self, sub: SubId, event: Event, bytes: usize) {
        let Some(asked) = self.subs.get(&sub) else { return };
        let places = Places::of(&asked.filters, &event);
        if !places.is_empty() {
            self.burst.add(Item { sub, path: asked.path, event }, places, bytes);
        }
    }

    async fn tell_rows(&mut self) {
        for (sub, rows) in self.burst.take_rows() {
            self.tell(Said::Delivered { sub, rows }).await;
        }
    }

    async fn tell(&self, said: Said) {
        let (relay, conn) = (self.call.relay.clone(), self.call.conn);
        let _ = self.world.told.send(Input::Heard { relay, conn, said }).await;
    }

    /// Reports the events received, and hands them over.
    async fn flush(&mut self) {
        self.tell_rows().await;
        let (items, bytes) = self.burst.take_items();
        if !items.is_empty() {
            self.lane.push(items, bytes).await;
        }
    }

    fn say(&mut self, frame: Frame) -> Result<(), Over> {
        let text = match frame {
            Frame::Subscribe { sub, filters, path } => {
                let text = codec::req(sub, &filters);
                self.subs.insert(sub, Sub { filters, path });
                text
            }
            Frame::Unsubscribe { sub } => {
                self.subs.remove(&sub);
                codec::close(sub)
            }
            Frame::NegOpen { sub, filter, message } => codec::neg_open(sub, &filter, &message),
            Frame::NegMsg { sub, message } => codec::neg_msg(sub, &message),
            Frame::NegClose { sub } => codec::neg_close(sub),
            Frame::Authenticate => match self.authentication() {
                Some(event) => {
                    self.answer = Some(event.id);
                    codec::auth(&event)
                }
                None => return Ok(()),
            },
        };
        self.writer.send(Message::text(text)).map_err(|_| Over::Stuck)
    }

    /// Returns the event that authenticates us to this relay (NIP-42). A challenge is answered once.
    fn authentication(&mut self) -> Option<Event> {
        let (keys, challenge) = (self.world.keys.as_ref()?, self.challenge.take()?);
        let tags = [["relay", self.call.relay.as_str()], ["challenge", &challenge]];
        let tags = tags.into_iter().filter_map(|tag| Tag::parse(tag).ok());
        EventBuilder::new(Kind::Authentication, "").tags(tags).finalize(keys).ok()
    }
}

/// The time since the last message.
struct Silence {
    since: Instant,
    /// True if a ping was sent.
    is_asked: bool,
}

impl Silence {
    fn since_now() -> Self {
        Self { since: Instant::now(), is_asked: false }
    }

    /// Waits until it is time for a ping, or for the end.
    async fn grows(&self, limits: &Limits) {
        let wait = if self.is_asked { limits.idle_timeout } else { limits.ping_after };
        sleep_until(self.since + wait).await;
    }
}
