//! The sending half of a socket, in a task of its own: a relay that does not read does not block receiving.

use std::time::Duration;

use futures_util::SinkExt as _;
use futures_util::stream::SplitSink;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;

use super::dial::Socket;
use super::{FRAME_QUEUE, NotSent};
use crate::driver::task::Task;

pub(super) struct Writer {
    queue: mpsc::Sender<Message>,
    _task: Task,
}

impl Writer {
    pub(super) fn start(sink: SplitSink<Socket, Message>, write_timeout: Duration) -> Self {
        let (queue, waiting) = mpsc::channel(FRAME_QUEUE);
        Self { queue, _task: Task::spawn(write(sink, waiting, write_timeout)) }
    }

    pub(super) fn send(&self, message: Message) -> Result<(), NotSent> {
        self.queue.try_send(message).map_err(|_| NotSent)
    }

    /// Resolves when nothing can be sent any more.
    pub(super) async fn ended(&self) {
        self.queue.closed().await;
    }
}

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
