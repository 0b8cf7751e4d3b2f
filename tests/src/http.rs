//! HTTP requests written byte by byte, so that nothing is hidden.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A response as it was received.
#[derive(Clone, Debug)]
pub struct HttpResponse {
    /// The status; 0 if there was no response.
    pub status: u16,
    /// Header names in lower case, and their values.
    pub headers: Vec<(String, String)>,
    /// The body, as text.
    pub body: String,
}

impl HttpResponse {
    /// Returns the value of a header; empty if there is none.
    pub fn header(&self, name: &str) -> &str {
        self.headers
            .iter()
            .find(|(n, _)| n == name)
            .map_or("", |(_, value)| value)
    }

    fn parse(response: &[u8]) -> Self {
        let response = String::from_utf8_lossy(response).into_owned();
        let (head, body) = response.split_once("\r\n\r\n").unwrap_or((&response, ""));
        let mut lines = head.lines();
        let status = lines
            .next()
            .and_then(|line| line.split(' ').nth(1))
            .unwrap_or_default();
        let header = |line: &str| {
            let (name, value) = line.split_once(':')?;
            Some((name.to_ascii_lowercase(), value.trim().to_owned()))
        };
        Self {
            status: status.parse().unwrap_or_default(),
            headers: lines.filter_map(header).collect(),
            body: body.to_owned(),
        }
    }
}

/// Sends one request without a body, and reads the response to its end.
pub async fn http(
    address: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
) -> HttpResponse {
    exchange(
        address,
        request_head(address, method, path, headers).as_bytes(),
    )
    .await
}

/// Sends one request with a body, and reads the response to its end.
pub async fn post(
    address: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> HttpResponse {
    let length = body.len().to_string();
    let headers = [headers, &[("Content-Length", length.as_str())]].concat();
    let request = [
        request_head(address, "POST", path, &headers).as_bytes(),
        body,
    ]
    .concat();
    exchange(address, &request).await
}

/// Returns the head of a request, for callers that send the body themselves.
pub fn request_head(address: &str, method: &str, path: &str, headers: &[(&str, &str)]) -> String {
    let more: String = headers
        .iter()
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect();
    format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{more}\r\n")
}

/// Sends bytes and reads the response to the end of the connection.
pub async fn exchange(address: &str, request: &[u8]) -> HttpResponse {
    let mut stream = TcpStream::connect(address).await.expect("a server");
    // A server that rejects the request early may close its side.
    let _ = stream.write_all(request).await;
    read_response(&mut stream).await
}

/// Reads a response to the end of the connection.
pub async fn read_response(stream: &mut TcpStream) -> HttpResponse {
    let mut response = Vec::new();
    let _ = stream.read_to_end(&mut response).await;
    HttpResponse::parse(&response)
}
