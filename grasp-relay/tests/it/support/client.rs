//! A websocket client that sends text by hand and reads JSON.

use std::net::SocketAddr;

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, client_async};

use super::in_time;

pub(crate) struct Client(WebSocketStream<TcpStream>);

/// The code and reason of a close frame.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CloseReason {
    pub(crate) code: u16,
    pub(crate) reason: String,
}

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        Self::try_connect(address).await.expect("a websocket")
    }

    pub(crate) async fn try_connect(address: SocketAddr) -> Result<Self, Error> {
        let stream = in_time(TcpStream::connect(address))
            .await
            .expect("a connection");
        let (socket, _) = in_time(client_async(format!("ws://{address}/"), stream)).await?;
        Ok(Self(socket))
    }

    /// Connects as a proxy for another client; returns the HTTP status of a refusal.
    pub(crate) async fn forwarded(address: SocketAddr, from: &str) -> Result<Self, u16> {
        let mut request = format!("ws://{address}/")
            .into_client_request()
            .expect("a request");
        request
            .headers_mut()
            .insert("x-forwarded-for", from.parse().expect("a header"));
        let stream = in_time(TcpStream::connect(address))
            .await
            .expect("a connection");
        match in_time(client_async(request, stream)).await {
            Ok((socket, _)) => Ok(Self(socket)),
            Err(Error::Http(response)) => Err(response.status().as_u16()),
            Err(other) => panic!("{other}"),
        }
    }

    pub(crate) async fn send(&mut self, text: impl Into<String>) {
        self.raw(Message::Text(text.into().into())).await;
    }

    pub(crate) async fn raw(&mut self, message: Message) {
        in_time(self.0.send(message)).await.expect("sent");
    }

    /// Sends to a relay that may have closed the connection, and returns whether it worked.
    pub(crate) async fn try_send(&mut self, text: String) -> bool {
        in_time(self.0.send(Message::Text(text.into())))
            .await
            .is_ok()
    }

    /// Returns the next JSON message.
    pub(crate) async fn next(&mut self) -> Value {
        loop {
            match in_time(self.0.next())
                .await
                .expect("open")
                .expect("a frame")
            {
                Message::Text(text) => return serde_json::from_str(&text).expect("JSON"),
                Message::Ping(_) | Message::Pong(_) => {}
                other => panic!("unexpected {other:?}"),
            }
        }
    }

    /// Returns the next frame of any kind.
    pub(crate) async fn frame(&mut self) -> Message {
        in_time(self.0.next())
            .await
            .expect("open")
            .expect("a frame")
    }

    /// Sends a message and returns the next one that arrives.
    pub(crate) async fn ask(&mut self, text: impl Into<String>) -> Value {
        self.send(text).await;
        self.next().await
    }

    /// Opens a subscription and returns the ids of its history, up to EOSE.
    pub(crate) async fn req(&mut self, id: &str, filters: &str) -> Vec<String> {
        self.send(format!(r#"["REQ","{id}",{filters}]"#)).await;
        self.until_eose(id).await
    }

    pub(crate) async fn until_eose(&mut self, id: &str) -> Vec<String> {
        let mut ids = Vec::new();
        loop {
            let message = self.next().await;
            match message[0].as_str() {
                Some("EVENT") if message[1] == id => {
                    ids.push(message[2]["id"].as_str().expect("an id").to_owned());
                }
                Some("EOSE") if message[1] == id => return ids,
                _ => panic!("unexpected {message}"),
            }
        }
    }

    /// Reads on until the relay closes the connection.
    pub(crate) async fn close_reason(&mut self) -> Option<CloseReason> {
        loop {
            match in_time(self.0.next()).await {
                Some(Ok(Message::Close(Some(CloseFrame { code, reason })))) => {
                    // Reading on sends our own close frame.
                    let _ = in_time(self.0.next()).await;
                    return Some(CloseReason {
                        code: code.into(),
                        reason: reason.to_string(),
                    });
                }
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return None,
            }
        }
    }

    pub(crate) const fn from_inner(socket: WebSocketStream<TcpStream>) -> Self {
        Self(socket)
    }

    pub(crate) fn into_inner(self) -> WebSocketStream<TcpStream> {
        self.0
    }
}
