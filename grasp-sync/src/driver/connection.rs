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

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{SplitSink, SplitStream, StreamExt as _};
use futures_util::{FutureExt as _, SinkExt as _};
use grasp_core::RelayUrl;
use grasp_core::admission::SyncPath;
use grasp_core::nostr::event::{Event, EventBuilder, EventId, FinalizeEvent as _, Kind, Tag};
use grasp_core::nostr::filter::Filter;
use grasp_core::nostr::key::Keys;
use grasp_core::outbound::Provenance;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_tungstenite::tungstenite::{Error as WsError, Message};

use super::codec::{self, RelayMessage};
use super::intake::{EventIntake, IntakeQueue, Item, MAX_BATCH_EVENTS};
use super::outbound::{Outbound, Socket};
use super::{Task, outbound};
use crate::engine::{ConnId, Delivered, Fault, Frame, Input, Places, RelayFacts, Row, Said, SubId};

/// Frames that may wait for the socket; the engine's budget stays far below.
const FRAME_QUEUE: usize = 1_024;

/// The state that all connections share.
pub(crate) struct Shared {
    pub(crate) outbound: Outbound,
    pub(crate) keys: Option<Keys>,
    pub(crate) limits: Limits,
    pub(crate) intake: EventIntake,
    pub(crate) inputs: mpsc::Sender<Input>,
    /// Private services are dialled, too.
    pub(crate) dials_private: bool,
}

/// The relay to connect to, and the id of the connection.
#[derive(Clone, Debug)]
pub(crate) struct DialTarget {
    pub(crate) relay: RelayUrl,
    pub(crate) conn: ConnId,
    pub(crate) from: Provenance,
    /// It is not connected to while its NIP-11 document cannot be read.
    pub(crate) needs_document: bool,
}

/// A connection, or an attempt to connect. Ends without a message when dropped.
pub(crate) struct Handle {
    frames: mpsc::Sender<Frame>,
    _task: Task,
}

impl Handle {
    /// Starts to connect. The result is an input.
    pub(crate) fn start(shared: Arc<Shared>, target: DialTarget) -> Self {
        let (sender, frames) = mpsc::channel(FRAME_QUEUE);
        Self {
            frames: sender,
            _task: Task::spawn(run(shared, target, frames)),
        }
    }

    /// Queues a frame; returns false if the relay does not read.
    pub(crate) fn send(&self, frame: Frame) -> bool {
        self.frames.try_send(frame).is_ok()
    }
}

/// Runs a connection from the dial to its end, which is always reported.
async fn run(shared: Arc<Shared>, target: DialTarget, frames: mpsc::Receiver<Frame>) {
    let inputs = shared.inputs.clone();
    let relay = target.relay.clone();
    let conn = target.conn;
    let running = connect_and_run(shared, target, frames);
    let why = match std::panic::AssertUnwindSafe(running).catch_unwind().await {
        Ok(Ok(())) => None,
        Ok(Err(why)) => Some(why),
        Err(_) => {
            tracing::error!(%relay, "connection task panicked; reconnecting after backoff");
            Some(Fault::Unreachable)
        }
    };
    if let Some(why) = why {
        let _ = inputs
            .send(Input::ConnectFailed {
                relay: relay.clone(),
                conn,
                why,
            })
            .await;
    }
    // Ignored for an attempt that failed.
    let _ = inputs.send(Input::Disconnected { relay, conn }).await;
}

async fn connect_and_run(
    shared: Arc<Shared>,
    target: DialTarget,
    frames: mpsc::Receiver<Frame>,
) -> Result<(), Fault> {
    let dialled = timeout(shared.limits.handshake_timeout, dial(&shared, &target)).await;
    let Dialled {
        socket,
        address,
        facts,
    } = dialled.unwrap_or(Err(Fault::Unreachable))?;
    let (sink, stream) = socket.split();
    let queue = shared.intake.queue(target.relay.clone(), target.conn);
    let relay = target.relay.clone();
    let conn = target.conn;
    let address = Some(address);
    let _ = shared
        .inputs
        .send(Input::Connected {
            relay,
            conn,
            address,
            facts,
        })
        .await;
    let (writer, waiting) = mpsc::channel(FRAME_QUEUE);
    let _writing = Task::spawn(write(sink, waiting, shared.limits.write_timeout));
    let connection = RelaySocket {
        shared,
        target,
        queue,
        writer,
        subs: BTreeMap::new(),
        challenge: None,
        answer: None,
        buffer: ReceiveBuffer::default(),
        heard_at: Instant::now(),
        is_pinged: false,
    };
    connection.run(stream, frames).await;
    Ok(())
}

/// An open websocket.
struct Dialled {
    socket: Socket,
    /// The address that answered.
    address: IpAddr,
    facts: RelayFacts,
}

/// Reads the NIP-11 document, then opens the websocket; both at the same checked addresses. The websocket of a private
/// service (GRASP-08) is not opened, unless this is one too: it is only for its members. A document that cannot be read may be
/// that of one.
async fn dial(shared: &Shared, target: &DialTarget) -> Result<Dialled, Fault> {
    let route = shared.outbound.route(&target.relay, target.from).await?;
    let facts = match outbound::fetch_facts(&target.relay, &route).await {
        Ok(facts) => facts,
        Err(fault) if target.needs_document => return Err(fault),
        Err(_) => RelayFacts::default(),
    };
    if facts.is_private && !shared.dials_private {
        return Err(Fault::Private);
    }
    let (socket, address) = route.upgrade(&target.relay, &shared.limits).await?;
    Ok(Dialled {
        socket,
        address,
        facts,
    })
}

/// The filters and path of one of our subscriptions.
struct Sub {
    filters: Vec<Filter>,
    path: SyncPath,
}

struct RelaySocket {
    shared: Arc<Shared>,
    target: DialTarget,
    queue: IntakeQueue,
    /// The queue of a task of its own: a relay that does not read does not block receiving.
    writer: mpsc::Sender<Message>,
    subs: BTreeMap<SubId, Sub>,
    challenge: Option<String>,
    /// The id of our answer to it.
    answer: Option<EventId>,
    buffer: ReceiveBuffer,
    /// The time of the last message.
    heard_at: Instant,
    /// True if a ping was sent since.
    is_pinged: bool,
}

/// The reason why a connection ended, for the log.
type EndReason = &'static str;

impl RelaySocket {
    async fn run(mut self, mut stream: SplitStream<Socket>, mut frames: mpsc::Receiver<Frame>) {
        let reason = loop {
            if let Err(reason) = self.step(&mut stream, &mut frames).await {
                break reason;
            }
        };
        self.flush().await;
        tracing::debug!(relay = %self.target.relay, reason, "the connection ended");
    }

    /// Sends one frame, or receives what is available.
    async fn step(
        &mut self,
        stream: &mut SplitStream<Socket>,
        frames: &mut mpsc::Receiver<Frame>,
    ) -> Result<(), EndReason> {
        let Limits {
            idle_timeout,
            ping_after,
            ..
        } = self.shared.limits;
        let silent_at = self.heard_at
            + if self.is_pinged {
                idle_timeout
            } else {
                ping_after
            };
        tokio::select! {
            biased;
            frame = frames.recv() => self.send(frame.ok_or("closed by us")?),
            () = self.writer.closed() => Err("it does not read"),
            message = stream.next() => {
                self.receive(message).await?;
                self.receive_ready(stream).await?;
                (self.heard_at, self.is_pinged) = (Instant::now(), false);
                self.flush().await;
                Ok(())
            }
            () = sleep_until(silent_at) => self.ping_or_timeout(),
        }
    }

    /// Sends a ping after the first silence; ends the connection after the second.
    fn ping_or_timeout(&mut self) -> Result<(), EndReason> {
        if std::mem::replace(&mut self.is_pinged, true) {
            return Err("it is silent");
        }
        self.write(Message::Ping(Vec::new().into()))
    }

    /// Receives what else is available, so that many small messages make few large steps.
    async fn receive_ready(&mut self, stream: &mut SplitStream<Socket>) -> Result<(), EndReason> {
        while !self.buffer.is_full() {
            let Some(message) = stream.next().now_or_never() else {
                break;
            };
            self.receive(message).await?;
        }
        Ok(())
    }

    async fn receive(
        &mut self,
        message: Option<Result<Message, WsError>>,
    ) -> Result<(), EndReason> {
        match message {
            Some(Ok(Message::Text(text))) => {
                if let Some(message) = RelayMessage::parse(&text) {
                    self.handle_message(message, text.len()).await;
                }
                Ok(())
            }
            Some(Ok(Message::Close(_)) | Err(_)) | None => Err("lost"),
            Some(Ok(_)) => Ok(()),
        }
    }

    async fn handle_message(&mut self, message: RelayMessage, bytes: usize) {
        let said = match message {
            RelayMessage::Event(sub, event) => return self.delivered(sub, event, bytes),
            RelayMessage::Said(said) => said,
            RelayMessage::Auth(challenge) => {
                self.challenge = Some(challenge);
                Said::Challenge
            }
            RelayMessage::Ok {
                event, accepted, ..
            } if self.answer == Some(event) => Said::Authenticated { accepted },
            RelayMessage::Ok { .. } => return,
        };
        if let Said::Closed { sub, .. } = &said {
            self.subs.remove(sub);
        }
        // An EOSE never overtakes the events before it.
        self.send_rows().await;
        self.send_input(said).await;
    }

    /// Buffers an event that matches its subscription; drops any other.
    fn delivered(&mut self, sub: SubId, event: Event, bytes: usize) {
        let Some(asked) = self.subs.get(&sub) else {
            return;
        };
        let places = Places::of(&asked.filters, &event);
        if !places.is_empty() {
            self.buffer.add(
                Item {
                    sub,
                    path: asked.path,
                    event,
                },
                places,
                bytes,
            );
        }
    }

    async fn send_rows(&mut self) {
        for (sub, rows) in std::mem::take(&mut self.buffer.rows) {
            self.send_input(Said::Delivered { sub, rows }).await;
        }
    }

    async fn send_input(&self, said: Said) {
        let relay = self.target.relay.clone();
        let conn = self.target.conn;
        let _ = self
            .shared
            .inputs
            .send(Input::Heard { relay, conn, said })
            .await;
    }

    /// Reports the events received, and hands them over.
    async fn flush(&mut self) {
        self.send_rows().await;
        let ReceiveBuffer { items, bytes, .. } = std::mem::take(&mut self.buffer);
        if !items.is_empty() {
            self.queue.push(items, bytes).await;
        }
    }

    fn send(&mut self, frame: Frame) -> Result<(), EndReason> {
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
            Frame::NegOpen {
                sub,
                filter,
                message,
            } => codec::neg_open(sub, &filter, &message),
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
        self.write(Message::text(text))
    }

    fn write(&self, message: Message) -> Result<(), EndReason> {
        self.writer
            .try_send(message)
            .map_err(|_| "it does not read")
    }

    /// Returns the event that authenticates us to this relay (NIP-42). A challenge is answered once.
    fn authentication(&mut self) -> Option<Event> {
        let keys = self.shared.keys.as_ref()?;
        let challenge = self.challenge.take()?;
        authentication(&self.target.relay, &challenge, keys)
    }
}

/// Returns the event that answers a challenge of a relay (NIP-42).
pub(super) fn authentication(relay: &RelayUrl, challenge: &str, keys: &Keys) -> Option<Event> {
    let tags = [["relay", relay.as_str()], ["challenge", challenge]];
    let tags = tags.into_iter().filter_map(|tag| Tag::parse(tag).ok());
    EventBuilder::new(Kind::Authentication, "")
        .tags(tags)
        .finalize(keys)
        .ok()
}

/// Sends what is queued, until the relay does not read for too long.
async fn write(
    mut sink: SplitSink<Socket, Message>,
    mut waiting: mpsc::Receiver<Message>,
    write_timeout: Duration,
) {
    while let Some(message) = waiting.recv().await {
        let sent = async {
            sink.feed(message).await?;
            while let Ok(message) = waiting.try_recv() {
                sink.feed(message).await?;
            }
            sink.flush().await
        };
        if !matches!(timeout(write_timeout, sent).await, Ok(Ok(()))) {
            return;
        }
    }
}

/// Limits of one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The longest message that is read, in bytes; a longer one ends the connection. Default: 2 MiB.
    ///
    /// Events are far smaller; messages of set reconciliation may reach one megabyte.
    pub message_bytes: usize,
    /// Time for making a connection, from the name to the websocket. Default: 20 seconds.
    pub handshake_timeout: Duration,
    /// Silence after which a ping is sent. Default: 45 seconds.
    pub ping_after: Duration,
    /// Silence after which the connection is lost; no message may take longer to arrive. Default: 2 minutes.
    pub idle_timeout: Duration,
    /// Time for which the relay may not read what it is sent. Default: 30 seconds.
    pub write_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            message_bytes: 2 * 1024 * 1024,
            handshake_timeout: Duration::from_secs(20),
            ping_after: Duration::from_secs(45),
            idle_timeout: Duration::from_secs(120),
            write_timeout: Duration::from_secs(30),
        }
    }
}

/// Bytes after which received events are handed over.
const MAX_BUFFERED_BYTES: usize = 512 * 1024;

/// Received events that were not handed over yet, and those that were not reported to the engine.
#[derive(Default)]
struct ReceiveBuffer {
    /// In the order in which they came.
    rows: Vec<(SubId, Vec<Delivered>)>,
    items: Vec<Item>,
    bytes: usize,
}

impl ReceiveBuffer {
    fn add(&mut self, item: Item, places: Places, bytes: usize) {
        let row = Delivered {
            row: Row::of(&item.event),
            places,
        };
        match self.rows.last_mut() {
            Some((sub, rows)) if *sub == item.sub => rows.push(row),
            _ => self.rows.push((item.sub, vec![row])),
        }
        self.items.push(item);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    fn is_full(&self) -> bool {
        self.items.len() >= MAX_BATCH_EVENTS || self.bytes >= MAX_BUFFERED_BYTES
    }
}
