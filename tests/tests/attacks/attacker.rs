//! Hostile clients in networks of their own.

use std::net::{Ipv4Addr, SocketAddr};

use futures_util::{SinkExt as _, StreamExt as _};
use grasp_tests::{HttpResponse, read_response, request_head};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::{WebSocketStream, client_async};

/// A hostile client. All attackers share a /24 by default; honest clients are in another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attacker {
    from: Ipv4Addr,
    server: SocketAddr,
}

impl Attacker {
    /// Returns a client at 127.6.6.`host`.
    pub(crate) fn at(server: SocketAddr, host: u8) -> Self {
        Self {
            from: Ipv4Addr::new(127, 6, 6, host),
            server,
        }
    }

    /// Returns a client in a /24 of its own.
    pub(crate) fn in_network(server: SocketAddr, network: u8) -> Self {
        Self {
            from: Ipv4Addr::new(127, 66, network, 1),
            server,
        }
    }

    /// Opens a TCP connection.
    pub(crate) async fn connect(&self) -> std::io::Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        socket.bind((self.from, 0).into())?;
        socket.connect(self.server).await
    }

    /// Sends one request with a body, and returns the connection if the server read it all.
    pub(crate) async fn start_post(&self, path: &str, body: &[u8]) -> Option<TcpStream> {
        let length = body.len().to_string();
        let headers = [("Content-Length", length.as_str())];
        let head = request_head(&self.server.to_string(), "POST", path, &headers);
        let mut stream = self.connect().await.ok()?;
        stream
            .write_all(&[head.as_bytes(), body].concat())
            .await
            .ok()?;
        Some(stream)
    }

    /// Sends one request with a body, and reads the response to its end.
    pub(crate) async fn post(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> HttpResponse {
        let length = body.len().to_string();
        let headers = [headers, &[("Content-Length", length.as_str())]].concat();
        let head = request_head(&self.server.to_string(), "POST", path, &headers);
        let mut stream = self.connect().await.expect("the server listens");
        // A server that rejects the request early may close its side.
        let _ = stream.write_all(&[head.as_bytes(), body].concat()).await;
        read_response(&mut stream).await
    }

    /// Sends one request, reads the response to its end, and returns its status; `None` if there is no response.
    pub(crate) async fn status(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Option<u16> {
        let length = body.len().to_string();
        let headers = [headers, &[("Content-Length", length.as_str())]].concat();
        let head = request_head(&self.server.to_string(), method, path, &headers);
        let mut stream = self.connect().await.ok()?;
        // A server that rejects the request early may close its side.
        let _ = stream.write_all(&[head.as_bytes(), body].concat()).await;
        let mut response = Vec::new();
        let _ = stream.read_to_end(&mut response).await;
        let line = String::from_utf8_lossy(response.get(..12)?).into_owned();
        line.strip_prefix("HTTP/1.1 ")?.parse().ok()
    }

    /// Sends the beginning of a request, and returns the connection.
    pub(crate) async fn start_unfinished_post(
        &self,
        path: &str,
        encoding: &str,
        body: &[u8],
    ) -> Option<TcpStream> {
        let length = (body.len() + 1).to_string();
        let headers = [
            ("Content-Length", length.as_str()),
            ("Content-Encoding", encoding),
        ];
        let head = request_head(&self.server.to_string(), "POST", path, &headers);
        let mut stream = self.connect().await.ok()?;
        stream
            .write_all(&[head.as_bytes(), body].concat())
            .await
            .ok()?;
        Some(stream)
    }

    /// Opens a websocket.
    pub(crate) async fn relay(&self) -> Option<Relay> {
        self.relay_for(None).await
    }

    /// Opens a websocket as a proxy does, for a client that `X-Forwarded-For` names.
    pub(crate) async fn relay_for(&self, client: Option<&str>) -> Option<Relay> {
        let mut request = format!("ws://{}/", self.server)
            .into_client_request()
            .ok()?;
        if let Some(client) = client {
            request
                .headers_mut()
                .insert("x-forwarded-for", client.parse().ok()?);
        }
        let stream = self.connect().await.ok()?;
        let (socket, _) = client_async(request, stream).await.ok()?;
        Some(Relay { socket })
    }
}

/// A websocket to the server under attack.
pub(crate) struct Relay {
    pub(crate) socket: WebSocketStream<TcpStream>,
}

impl Relay {
    /// Sends a message without waiting for an answer, and returns whether the connection accepted it.
    pub(crate) async fn send(&mut self, message: &Value) -> bool {
        self.socket
            .send(Message::text(message.to_string()))
            .await
            .is_ok()
    }

    /// Receives the next message; `None` if the connection ended.
    pub(crate) async fn receive(&mut self) -> Option<Value> {
        loop {
            if let Message::Text(text) = self.socket.next().await?.ok()? {
                return serde_json::from_str(&text).ok();
            }
        }
    }
}
