//! HTTP by hand, so that nothing is hidden.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// An answer, as it came.
#[derive(Clone, Debug)]
pub struct HttpAnswer {
    /// The status; 0 if there was no answer.
    pub status: u16,
    /// Header names in lower case, and their values.
    pub headers: Vec<(String, String)>,
    /// The body, as text.
    pub body: String,
}

impl HttpAnswer {
    /// The value of a header; empty if there is none.
    pub fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(n, _)| n == name).map_or("", |(_, value)| value)
    }

    fn parse(answer: &[u8]) -> Self {
        let answer = String::from_utf8_lossy(answer).into_owned();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        let mut lines = head.lines();
        let status = lines.next().and_then(|line| line.split(' ').nth(1)).unwrap_or_default();
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

/// Sends one request without a body, and reads the answer to its end.
pub async fn http(address: &str, method: &str, path: &str, headers: &[(&str, &str)]) -> HttpAnswer {
    exchange(address, head(address, method, path, headers).as_bytes()).await
}

/// Sends one request with a body, and reads the answer to its end.
pub async fn post(address: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> HttpAnswer {
    let length = body.len().to_string();
    let headers = [headers, &[("Content-Length", length.as_str())]].concat();
    let request = [head(address, "POST", path, &headers).as_bytes(), body].concat();
    exchange(address, &request).await
}

/// The head of a request, for whoever sends the rest in their own way.
pub fn head(address: &str, method: &str, path: &str, headers: &[(&str, &str)]) -> String {
    let more: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{more}\r\n")
}

/// Sends bytes and reads what comes back, to the end.
pub async fn exchange(address: &str, request: &[u8]) -> HttpAnswer {
    let mut stream = TcpStream::connect(address).await.expect("a server");
    // A server that has heard enough may close its side.
    let _ = stream.write_all(request).await;
    answer(&mut stream).await
}

/// Reads an answer to the end of the connection.
pub async fn answer(stream: &mut TcpStream) -> HttpAnswer {
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    HttpAnswer::parse(&answer)
}
