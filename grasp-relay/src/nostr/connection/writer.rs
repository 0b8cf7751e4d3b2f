//! The socket: what goes out, with a bound on how long it may take, and what comes in.

use std::io::ErrorKind;
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, WebSocket};
use futures_util::SinkExt as _;
use tokio::sync::watch;
use tokio_tungstenite::tungstenite::Error as WireError;

use super::super::delivery::Delivery;
use super::super::session::Hangup;
use super::Stop;
use crate::server::Stage;

/// How long the other side may take to answer our close frame.
const FAREWELL: Duration = Duration::from_secs(2);

pub(super) struct Writer {
    socket: WebSocket,
    timeout: Duration,
    stage: watch::Receiver<Stage>,
}

/// What is wrong with what came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    TooBig,
    NotUtf8,
    Protocol,
    /// There is no room for a message as long as this one.
    NoRoom,
    /// The message took too long.
    TooSlow,
    Gone,
}

impl Fault {
    pub(super) fn of(error: axum::Error) -> Self {
        match error.into_inner().downcast_ref::<WireError>() {
            Some(WireError::Capacity(_)) => Self::TooBig,
            Some(WireError::Utf8(_)) => Self::NotUtf8,
            Some(WireError::Protocol(_)) => Self::Protocol,
            Some(WireError::Io(error)) if error.kind() == ErrorKind::QuotaExceeded => Self::NoRoom,
            Some(WireError::Io(error)) if error.kind() == ErrorKind::TimedOut => Self::TooSlow,
            _ => Self::Gone,
        }
    }
}

impl Writer {
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
        unless_stuck(socket.flush(), *timeout, stage).await
    }

    /// Closes the websocket, with a reason if it is we who close it, and waits a moment for the other side.
    pub(super) async fn part(&mut self, hangup: Option<Hangup>) {
        let farewell = async {
            if let Some(Hangup { code, reason }) = hangup {
                let frame = CloseFrame { code, reason: reason.into() };
                self.socket.send(Message::Close(Some(frame))).await?;
            }
            while self.socket.recv().await.is_some_and(|frame| frame.is_ok()) {}
            Ok(())
        };
        let _ = unless_stuck(farewell, FAREWELL, &mut self.stage).await;
    }

    async fn feed(&mut self, message: Message) -> Result<(), Stop> {
        let Self { socket, timeout, stage } = self;
        unless_stuck(socket.feed(message), *timeout, stage).await
    }
}

/// Waits for a write, but neither for ever nor beyond the server's own end.
async fn unless_stuck(
    write: impl Future<Output = Result<(), axum::Error>>,
    timeout: Duration,
    stage: &mut watch::Receiver<Stage>,
) -> Result<(), Stop> {
    tokio::select! {
        biased;
        written = tokio::time::timeout(timeout, write) => match written {
            Ok(Ok(())) => Ok(()),
            _ => Err(Stop::Gone),
        },
        () = Stage::Killed.reached(stage) => Err(Stop::Gone),
    }
}
