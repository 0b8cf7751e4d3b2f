//! A git server of the tests: correct by git's own CGI program, or faulty in one of many ways.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::task::JoinHandle;

use crate::Workdir;

/// The behaviour of a server.
#[derive(Clone, Debug)]
pub enum Behaviour {
    /// Responds as git does.
    Correct,
    /// Accepts every request and never responds.
    Unresponsive,
    /// Advertises correctly, and never responds to a fetch.
    UnresponsiveToFetch,
    /// Responds correctly, one byte every 100 ms.
    SlowBytes,
    /// Redirects every request.
    Redirects(String),
    /// Responds 429 with this `Retry-After` in seconds.
    RateLimited(u64),
    /// Advertises refs without end.
    EndlessRefs,
    /// Advertises this number of refs, and has no objects.
    ManyRefs(u64),
    /// Advertises this object, which it does not have.
    AdvertisesMissing(String),
    /// Sends packs with damaged bytes.
    DamagedPack,
    /// Sends packs with this object count in their header, and does not end the response.
    WrongObjectCount(u32),
}

/// A running git server, stopped when it is dropped.
#[derive(Debug)]
pub struct GitServer {
    address: SocketAddr,
    root: TempDir,
    shared: Arc<Mutex<Shared>>,
    running: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    behaviour: Behaviour,
    requests: Vec<ReceivedRequest>,
    open: usize,
    max_open: usize,
}

/// A request that the server received.
#[derive(Clone, Debug)]
pub struct ReceivedRequest {
    /// The time of its arrival.
    pub at: Instant,
    /// The path and the query string.
    pub target: String,
}

struct Request {
    method: String,
    target: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl GitServer {
    /// Starts a correct server.
    pub async fn start() -> Self {
        Self::at("127.0.0.1", Behaviour::Correct).await
    }

    /// Starts a server on an address, with a behaviour.
    pub async fn at(ip: &str, behaviour: Behaviour) -> Self {
        let listener = TcpListener::bind((ip, 0))
            .await
            .expect("a port on loopback");
        let root = tempfile::tempdir().expect("a directory for the test");
        let shared = Shared {
            behaviour,
            requests: Vec::new(),
            open: 0,
            max_open: 0,
        };
        let shared = Arc::new(Mutex::new(shared));
        let address = listener.local_addr().expect("the port");
        let running = tokio::spawn(accept(listener, root.path().to_owned(), shared.clone()));
        Self {
            address,
            root,
            shared,
            running,
        }
    }

    /// Returns the URL that a repository is cloned from.
    pub fn url(&self, name: &str) -> String {
        format!("http://{}/{name}.git", self.address)
    }

    /// Returns the address that the server listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Mirrors a working directory into a repository, which is created if it does not exist.
    pub async fn host(&self, name: &str, work: &Workdir) {
        let path = self.path(name);
        if !path.is_dir() {
            work.git(&["init", "-q", "--bare", &path.to_string_lossy()])
                .await
                .expect_ok();
        }
        let to = path.to_string_lossy().into_owned();
        work.git(&["push", "-q", "--mirror", &to]).await.expect_ok();
    }

    /// Serves a repository under another name too.
    pub fn alias(&self, name: &str, of: &str) {
        std::os::unix::fs::symlink(self.path(of), self.path(name)).expect("a link");
    }

    /// Returns the directory of a repository.
    pub fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(format!("{name}.git"))
    }

    /// Changes the behaviour from now on.
    pub fn set_behaviour(&self, behaviour: Behaviour) {
        lock(&self.shared).behaviour = behaviour;
    }

    /// Returns every HTTP request so far.
    pub fn requests(&self) -> Vec<ReceivedRequest> {
        lock(&self.shared).requests.clone()
    }

    /// Returns the start of every request as limits count it, a run of git: each begins with `info/refs`.
    pub fn git_requests(&self) -> Vec<Instant> {
        let starts = self
            .requests()
            .into_iter()
            .filter(|one| one.target.contains("/info/refs"));
        starts.map(|request| request.at).collect()
    }

    /// Returns the highest number of requests that were open at the same time.
    pub fn max_open(&self) -> usize {
        lock(&self.shared).max_open
    }
}

impl Drop for GitServer {
    fn drop(&mut self) {
        self.running.abort();
    }
}

fn lock(shared: &Mutex<Shared>) -> std::sync::MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn accept(listener: TcpListener, root: PathBuf, shared: Arc<Mutex<Shared>>) {
    while let Ok((stream, _)) = listener.accept().await {
        let (root, shared) = (root.clone(), shared.clone());
        tokio::spawn(async move {
            {
                let mut shared = lock(&shared);
                shared.open += 1;
                shared.max_open = shared.max_open.max(shared.open);
            }
            let _ = serve(stream, root, &shared).await;
            lock(&shared).open -= 1;
        });
    }
}

async fn serve(
    mut stream: TcpStream,
    root: PathBuf,
    shared: &Mutex<Shared>,
) -> std::io::Result<()> {
    let Some(request) = read_request(&mut stream).await? else {
        return Ok(());
    };
    let behaviour = {
        let mut shared = lock(shared);
        shared.requests.push(ReceivedRequest {
            at: Instant::now(),
            target: request.target.clone(),
        });
        shared.behaviour.clone()
    };
    let is_fetch = contains(&request.body, b"command=fetch");
    match behaviour {
        Behaviour::Unresponsive => wait_for_close(&mut stream).await,
        Behaviour::UnresponsiveToFetch if is_fetch => wait_for_close(&mut stream).await,
        Behaviour::Correct | Behaviour::UnresponsiveToFetch => {
            stream.write_all(&git_response(root, request).await).await
        }
        Behaviour::SlowBytes => {
            for byte in git_response(root, request).await {
                stream.write_all(&[byte]).await?;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Ok(())
        }
        Behaviour::Redirects(to) => {
            let location = format!("Location: {to}{}\r\n", request.target);
            stream
                .write_all(&response("302 Found", &location, b""))
                .await
        }
        Behaviour::RateLimited(seconds) => {
            let retry = format!("Retry-After: {seconds}\r\n");
            stream
                .write_all(&response("429 Too Many Requests", &retry, b""))
                .await
        }
        Behaviour::EndlessRefs => advertise(&mut stream, u64::MAX).await,
        Behaviour::ManyRefs(refs) => advertise(&mut stream, refs).await,
        Behaviour::AdvertisesMissing(oid) if !is_fetch => {
            stream
                .write_all(&response(
                    "200 OK",
                    ADVERTISEMENT_TYPE,
                    &advertise_one(&oid),
                ))
                .await
        }
        Behaviour::DamagedPack => {
            let mut bytes = git_response(root, request).await;
            if is_fetch {
                // Within the last object, before the checksum of the pack.
                let from = bytes.len().saturating_sub(40);
                bytes
                    .iter_mut()
                    .skip(from)
                    .take(8)
                    .for_each(|byte| *byte ^= 0x55);
            }
            stream.write_all(&bytes).await
        }
        Behaviour::WrongObjectCount(objects) if is_fetch => {
            let mut bytes = git_response(root, request).await;
            if let Some(pack) = bytes
                .windows(8)
                .position(|eight| eight == b"PACK\0\0\0\x02")
            {
                bytes.splice(pack + 8..pack + 12, objects.to_be_bytes());
                bytes.truncate(bytes.len() - b"0000".len());
            }
            stream.write_all(&bytes).await?;
            wait_for_close(&mut stream).await
        }
        Behaviour::AdvertisesMissing(_) | Behaviour::WrongObjectCount(_) => {
            stream.write_all(&git_response(root, request).await).await
        }
    }
}

const ADVERTISEMENT_TYPE: &str = "Content-Type: application/x-git-upload-pack-advertisement\r\n";

async fn wait_for_close(stream: &mut TcpStream) -> std::io::Result<()> {
    let mut rest = [0; 64];
    while stream.read(&mut rest).await? > 0 {}
    Ok(())
}

/// Sends an advertisement of protocol version 0 with this number of refs.
async fn advertise(stream: &mut TcpStream, refs: u64) -> std::io::Result<()> {
    let head = format!("HTTP/1.1 200 OK\r\n{ADVERTISEMENT_TYPE}Connection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    stream
        .write_all(b"001e# service=git-upload-pack\n0000")
        .await?;
    let mut lines = String::new();
    for number in 0..refs {
        let capabilities = if number == 0 { "\0agent=long" } else { "" };
        let line = format!("{:040x} refs/heads/{number}{capabilities}\n", number + 1);
        lines += &packet(&line);
        if number % 1_000 == 0 {
            stream
                .write_all(std::mem::take(&mut lines).as_bytes())
                .await?;
        }
        // An endless list repeats itself: generating it must not take the processor from the server under test.
        if refs == u64::MAX && number == 999 {
            loop {
                stream.write_all(lines.as_bytes()).await?;
            }
        }
    }
    stream.write_all(lines.as_bytes()).await?;
    stream.write_all(b"0000").await
}

/// Returns an advertisement of protocol version 0 with one ref.
fn advertise_one(oid: &str) -> Vec<u8> {
    let line = format!("{oid} refs/heads/main\0agent=test\n");
    format!("001e# service=git-upload-pack\n0000{}0000", packet(&line)).into_bytes()
}

fn packet(line: &str) -> String {
    format!("{:04x}{line}", line.len() + 4)
}

fn response(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    [head.as_bytes(), body].concat()
}

/// Returns the response of git's own server.
async fn git_response(root: PathBuf, request: Request) -> Vec<u8> {
    let header = |name: &str| {
        let found = request.headers.iter().find(|(other, _)| other == name);
        found.map(|(_, value)| value.clone()).unwrap_or_default()
    };
    let (path, query) = request
        .target
        .split_once('?')
        .unwrap_or((&request.target, ""));
    let mut child = Command::new("git")
        .arg("http-backend")
        .env("GIT_PROJECT_ROOT", root)
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("PATH_INFO", path)
        .env("QUERY_STRING", query)
        .env("REQUEST_METHOD", &request.method)
        .env("CONTENT_TYPE", header("content-type"))
        .env("CONTENT_LENGTH", request.body.len().to_string())
        .env("HTTP_CONTENT_ENCODING", header("content-encoding"))
        .env("GIT_PROTOCOL", header("git-protocol"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("git runs");
    let mut stdin = child.stdin.take().expect("a piped stdin");
    let feed = async move { drop(stdin.write_all(&request.body).await) };
    let (output, ()) = tokio::join!(child.wait_with_output(), feed);
    let output = output.expect("git ends").stdout;
    let end = output
        .windows(4)
        .position(|four| four == b"\r\n\r\n")
        .unwrap_or(output.len());
    let (head, body) = output.split_at(end);
    let head = String::from_utf8_lossy(head);
    let status = head.lines().find_map(|line| line.strip_prefix("Status: "));
    let headers: String = head
        .lines()
        .filter(|line| !line.starts_with("Status: "))
        .map(|line| format!("{line}\r\n"))
        .collect();
    response(
        status.unwrap_or("200 OK"),
        &headers,
        body.get(4..).unwrap_or_default(),
    )
}

/// Reads one request with its body; `None` if the client closes first.
async fn read_request(stream: &mut TcpStream) -> std::io::Result<Option<Request>> {
    let mut bytes = Vec::new();
    let mut chunk = [0; 4096];
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break end + 4;
        }
        match stream.read(&mut chunk).await? {
            0 => return Ok(None),
            count => bytes.extend_from_slice(&chunk[..count]),
        }
    };
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let mut lines = head.lines();
    let mut words = lines
        .next()
        .unwrap_or_default()
        .split(' ')
        .map(str::to_owned);
    let (method, target) = (
        words.next().unwrap_or_default(),
        words.next().unwrap_or_default(),
    );
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let length: usize = length
        .and_then(|(_, value)| value.parse().ok())
        .unwrap_or_default();
    let mut body = bytes.split_off(end);
    while body.len() < length {
        match stream.read(&mut chunk).await? {
            0 => return Ok(None),
            count => body.extend_from_slice(&chunk[..count]),
        }
    }
    Ok(Some(Request {
        method,
        target,
        headers,
        body,
    }))
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}
