//! Clients that keep their connections, and measure.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Time after which a request has failed.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// A connection on which requests are sent one after the other.
pub(crate) struct Client {
    address: String,
    stream: BufReader<TcpStream>,
}

/// A response.
pub(crate) struct Response {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> String {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.clone()).unwrap_or_default()
    }

    /// Returns the bytes of the body, as they were sent.
    pub(crate) fn bytes(&self) -> usize {
        self.body.len()
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl Client {
    pub(crate) fn connect(address: &str) -> Self {
        let stream = TcpStream::connect(address).expect("a server");
        stream.set_nodelay(true).expect("a socket");
        let set = stream.set_read_timeout(Some(REQUEST_TIMEOUT));
        set.expect("a socket");
        Self {
            address: address.to_owned(),
            stream: BufReader::with_capacity(64 * 1024, stream),
        }
    }

    /// Requests a page, and returns an answer that is no failure.
    pub(crate) fn get(&mut self, path: &str, headers: &str) -> Response {
        let response = self.request(path, headers);
        let is_expected = [200, 304].contains(&response.status);
        assert!(
            is_expected,
            "{path}: {}: {}",
            response.status,
            response.text()
        );
        response
    }

    fn request(&mut self, path: &str, headers: &str) -> Response {
        let address = &self.address;
        let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n{headers}\r\n");
        let sent = self.stream.get_mut().write_all(request.as_bytes());
        sent.expect("a listening server");
        let status = self.line();
        let status = status.split(' ').nth(1).and_then(|text| text.parse().ok());
        let mut headers = Vec::new();
        loop {
            let line = self.line();
            let Some((name, value)) = line.split_once(':') else {
                break;
            };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let mut response = Response {
            status: status.expect("a status"),
            headers,
            body: Vec::new(),
        };
        if response.header("transfer-encoding") == "chunked" {
            self.read_chunks(&mut response.body);
        } else if response.status != 304 {
            let length = response.header("content-length").parse();
            self.read(length.expect("a length"), &mut response.body);
        }
        response
    }

    fn read_chunks(&mut self, body: &mut Vec<u8>) {
        loop {
            let length = usize::from_str_radix(&self.line(), 16).expect("the length of a chunk");
            self.read(length, body);
            self.line();
            if length == 0 {
                return;
            }
        }
    }

    fn read(&mut self, length: usize, body: &mut Vec<u8>) {
        let before = body.len();
        body.resize(before + length, 0);
        let read = self.stream.read_exact(&mut body[before..]);
        read.expect("a whole response");
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("a line");
        line.trim_end().to_owned()
    }
}

/// What clients saw that sent requests as fast as they were answered.
pub(crate) struct Load {
    pub(crate) rate: f64,
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
    /// Answers that the server is busy, which are not counted in the rate.
    pub(crate) refused: usize,
}

/// Lets clients send requests for a time: the path and the headers of each follow from its number.
pub(crate) fn under_load(
    address: &str,
    clients: usize,
    duration: Duration,
    request: impl Fn(usize) -> (String, String) + Sync,
) -> Load {
    let (next, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let start = Instant::now();
    let send = || {
        let (mut client, mut times) = (Client::connect(address), Vec::new());
        while start.elapsed() < duration {
            let (path, headers) = request(next.fetch_add(1, Ordering::Relaxed));
            let begun = Instant::now();
            match client.request(&path, &headers).status {
                200 | 304 => times.push(begun.elapsed()),
                429 | 503 => _ = refused.fetch_add(1, Ordering::Relaxed),
                status => panic!("{path}: {status}"),
            }
        }
        times
    };
    let mut times: Vec<Duration> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..clients).map(|_| scope.spawn(send)).collect();
        let times = threads.into_iter().map(|thread| thread.join());
        times
            .flat_map(|times| times.expect("no client panics"))
            .collect()
    });
    let took = start.elapsed();
    times.sort();
    let at = |hundredth: usize| times.get(times.len() * hundredth / 100).copied();
    Load {
        rate: times.len() as f64 / took.as_secs_f64(),
        p50: at(50).unwrap_or_default(),
        p99: at(99).unwrap_or_default(),
        refused: refused.into_inner(),
    }
}
