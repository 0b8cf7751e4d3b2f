//! A client that reads no more of an answer than it needs.

use std::net::SocketAddr;

use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{FutureExt as _, SinkExt as _, StreamExt as _};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};
use tokio_tungstenite::{WebSocketStream, client_async};

type Socket = WebSocketStream<TcpStream>;

pub(crate) struct Client {
    writer: SplitSink<Socket, Message>,
    reader: SplitStream<Socket>,
}

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.expect("a connection");
        stream.set_nodelay(true).expect("a socket");
        let (socket, _) = client_async(format!("ws://{address}/"), stream)
            .await
            .expect("a socket");
        let (writer, reader) = socket.split();
        Self { writer, reader }
    }

    pub(crate) async fn send(&mut self, text: String) {
        self.writer
            .send(Message::Text(text.into()))
            .await
            .expect("sent");
    }

    /// Returns the next text message.
    pub(crate) async fn next(&mut self) -> Utf8Bytes {
        loop {
            match self.reader.next().await.expect("open").expect("a frame") {
                Message::Text(text) => return text,
                Message::Close(frame) => panic!("closed: {frame:?}"),
                _ => {}
            }
        }
    }

    /// Reads until a message of this type, and returns the number of messages before it.
    pub(crate) async fn until(&mut self, message_type: &str) -> usize {
        let start = format!("[\"{message_type}\"");
        let mut before = 0;
        while !self.next().await.starts_with(&start) {
            before += 1;
        }
        before
    }

    /// Sends EVENTs and reads their OKs; at most `in_flight` of them are not acknowledged at any time.
    pub(crate) async fn publish(&mut self, messages: Vec<String>, in_flight: usize) {
        let count = messages.len();
        let mut messages = messages.into_iter();
        let mut sent = 0;
        let mut answered = 0;
        while answered < count {
            for message in messages.by_ref().take(answered + in_flight - sent) {
                let message = Message::Text(message.into());
                self.writer.feed(message).await.expect("sent");
                sent += 1;
            }
            self.writer.flush().await.expect("sent");
            let mut answer = Some(self.next().await);
            while let Some(text) = answer {
                assert!(text.contains(",true,"), "{text}");
                answered += 1;
                // What has arrived already is read before more is sent.
                answer = self.next().now_or_never();
            }
        }
    }
}
