//! The websocket with a timeout for each write, and the timer of a connection.

use std::io::ErrorKind;
use std::pin::Pin;
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, WebSocket};
use futures_util::SinkExt as _;
use grasp_core::Mono;
use tokio::sync::watch;
use tokio::time::{Instant, Sleep, sleep};
use tokio_tungstenite::tungstenite::Error as WireError;

use super::super::delivery::Delivery;
use super::super::session::CloseReason;
use super::Stop;
use crate::clock::Clock;
use crate::server::Stage;

/// The time that the peer may take to answer a close frame.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) struct Socket {
    socket: WebSocket,
    timeout: Duration,
    stage: watch::Receiver<Stage>,
}

impl Stop {
    /// Returns the reaction to an error of the websocket.
    pub(super) fn on_error(error: axum::Error) -> Self {
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

impl Socket {
    pub(super) const fn new(
        socket: WebSocket,
        timeout: Duration,
        stage: watch::Receiver<Stage>,
    ) -> Self {
        Self { socket, timeout, stage }
    }

    pub(super) async fn receive(&mut self) -> Option<Result<Message, axum::Error>> {
        self.socket.recv().await
    }

    pub(super) async fn text(&mut self, text: String) -> Result<(), Stop> {
        self.feed(Message::Text(text.into())).await
    }

    pub(super) async fn event(&mut self, delivery: &Delivery, json: &str) -> Result<(), Stop> {
        self.text(delivery.frame(json)).await
    }

    pub(super) async fn ping(&mut self) -> Result<(), Stop> {
        self.feed(Message::Ping(Default::default())).await
    }

    pub(super) async fn flush(&mut self) -> Result<(), Stop> {
        let Self { socket, timeout, stage } = self;
        within(socket.flush(), *timeout, stage).await
    }

    /// Closes the websocket, with a reason if this side closes it, and waits briefly for the peer.
    pub(super) async fn close(&mut self, reason: Option<CloseReason>) {
        let closing = async {
            if let Some(CloseReason { code, reason }) = reason {
                let frame = CloseFrame { code, reason: reason.into() };
                self.socket.send(Message::Close(Some(frame))).await?;
            }
            while self.socket.recv().await.is_some_and(|frame| frame.is_ok()) {}
            Ok(())
        };
        let _ = within(closing, CLOSE_TIMEOUT, &mut self.stage).await;
    }

    async fn feed(&mut self, message: Message) -> Result<(), Stop> {
        let Self { socket, timeout, stage } = self;
        within(socket.feed(message), *timeout, stage).await
    }
}

/// Waits for a write until the timeout, or until the server is killed.
async fn within(
    write: impl Future<Output = Result<(), axum::Error>>,
    timeout: Duration,
    stage: &mut watch::Receiver<Stage>,
) -> Result<(), Stop> {
    tokio::select! {
        biased;
        written = tokio::time::timeout(timeout, write) => match written {
            Ok(Ok(())) => Ok(()),
            _ => Err(Stop::Disconnected),
        },
        () = Stage::Killed.reached(stage) => Err(Stop::Disconnected),
    }
}

/// Elapses at the session's next deadline.
///
/// The deadline moves later with every frame; the timer is not reset then, but checks the deadline when it fires.
pub(super) struct DeadlineTimer {
    sleep: Pin<Box<Sleep>>,
    set_for: Mono,
}

impl DeadlineTimer {
    pub(super) fn new(now: Mono, deadline: Mono) -> Self {
        Self { sleep: Box::pin(sleep(deadline - now)), set_for: deadline }
    }

    /// Waits until the deadline has passed.
    pub(super) async fn elapsed(&mut self, clock: &Clock, deadline: Mono) {
        if deadline < self.set_for {
            self.reset(clock.now().mono, deadline);
        }
        loop {
            self.sleep.as_mut().await;
            let now = clock.now().mono;
            if deadline <= now {
                return;
            }
            self.reset(now, deadline);
        }
    }

    fn reset(&mut self, now: Mono, deadline: Mono) {
        self.sleep.as_mut().reset(Instant::now() + (deadline - now));
        self.set_for = deadline;
    }
}
