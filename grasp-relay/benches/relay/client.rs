//! A client that reads no more of an answer than it needs.

use std::net::SocketAddr;

use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
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

    /// Sends EVENTs without waiting, and reads as many OKs meanwhile.
    pub(crate) async fn publish(&mut self, messages: Vec<String>) {
        let count = messages.len();
        let Self { writer, reader } = self;
        let sending = async {
            for message in messages {
                writer
                    .feed(Message::Text(message.into()))
                    .await
                    .expect("sent");
            }
            writer.flush().await.expect("sent");
        };
        let reading = async {
            for _ in 0..count {
                let answer = reader.next().await.expect("open").expect("a frame");
                let answer = answer.into_text().expect("text");
                assert!(answer.contains(",true,"), "{answer}");
            }
        };
        tokio::join!(sending, reading);
    }
}
