//! A server of several nodes on PostgreSQL and S3 beside a server of one process on SQLite, in one run and with default settings.
//!
//! `cargo bench -p grasp-tests --bench nodes`; needs PostgreSQL. Everything runs on this machine and shares its cores.
#![allow(clippy::unwrap_used, reason = "a measurement that fails has no result")]

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use futures_util::{SinkExt as _, StreamExt as _};
use grasp_core::RepoId;
use grasp_relay::Clock;
use grasp_relay::ingest::{Origin, Outcome};
use grasp_relay::instance::{Server, Settings};
use grasp_tests::{Author, Postgres, S3Server, ServerClient, Workdir, http};
use nostr::event::Event;
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

/// Events of the measurement of ingest, and the size of a batch.
const EVENTS: usize = 10_000;
const BATCH_SIZE: usize = 256;

/// Repetitions of short measurements.
const REPETITIONS: usize = 200;

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// A running process.
struct Process {
    server: Server,
    address: SocketAddr,
}

impl Process {
    async fn start(listener: TcpListener, settings: Settings) -> &'static Self {
        let address = listener.local_addr().unwrap();
        let server = Server::open(&settings, Clock::system()).await.unwrap();
        let running: &'static Self = Box::leak(Box::new(Self { server, address }));
        tokio::spawn(running.server.serve(listener, std::future::pending()));
        running
    }

    fn client(&self) -> ServerClient {
        ServerClient::at(self.address)
    }
}

/// A server under measurement: the process that events and pushes go to, and the one that is read from.
struct Subject {
    name: &'static str,
    writer: &'static Process,
    reader: &'static Process,
    author: Author,
    work: Workdir,
    issues: Vec<Event>,
}

impl Subject {
    async fn new(name: &'static str, writer: &'static Process, reader: &'static Process) -> Self {
        let (author, work) = (Author::new().earlier(10_000), Workdir::init().await);
        let service = writer.server.parts().config.service.clone();
        let commit = work.commit_incompressible(200_000).await;
        let events = vec![
            author.announce("x", &service),
            author.state("x", &[("refs/heads/main", &commit)]),
        ];
        writer
            .server
            .parts()
            .ingest
            .ingest(events, Origin::anonymous())
            .await;
        let repo = author.repo("x");
        work.git(&["push", &writer.client().clone_url(&repo), "main"])
            .await
            .expect_ok();
        Self {
            name,
            writer,
            reader,
            author,
            work,
            issues: Vec::new(),
        }
    }

    fn repo(&self) -> RepoId {
        self.author.repo("x")
    }

    /// Stores issues at the writer and returns events per second.
    async fn ingest(&mut self) -> f64 {
        let coordinate = self.repo().to_string();
        let authors: Vec<Author> = (0..100).map(|_| Author::new()).collect();
        let issue =
            |n: usize| authors[n % 100].sign(1621, &format!("issue {n}"), &[&["a", &coordinate]]);
        self.issues = (0..EVENTS).map(issue).collect();
        let start = Instant::now();
        for batch in self.issues.chunks(BATCH_SIZE) {
            let outcomes = self
                .writer
                .server
                .parts()
                .ingest
                .ingest(batch.to_vec(), Origin::anonymous())
                .await;
            assert!(
                outcomes.iter().all(|outcome| *outcome == Outcome::Stored),
                "{outcomes:?}"
            );
        }
        EVENTS as f64 / start.elapsed().as_secs_f64()
    }

    /// Sends queries over one websocket and returns queries per second.
    async fn queries(&self, filter: impl Fn(usize) -> String) -> f64 {
        let mut socket = connect(self.reader).await;
        let start = Instant::now();
        for n in 0..REPETITIONS * 5 {
            let request = format!(r#"["REQ","q",{}]"#, filter(n));
            socket.send(Message::text(request)).await.unwrap();
            while !receive(&mut socket).await.starts_with(r#"["EOSE""#) {}
        }
        (REPETITIONS * 5) as f64 / start.elapsed().as_secs_f64()
    }

    async fn by_id(&self) -> f64 {
        self.queries(|n| format!(r#"{{"ids":["{}"]}}"#, self.issues[n * 7 % EVENTS].id))
            .await
    }

    async fn by_repository(&self) -> f64 {
        let coordinate = self.repo().to_string();
        self.queries(|_| format!(r##"{{"#a":["{coordinate}"],"limit":20}}"##))
            .await
    }

    /// Returns the 99th percentile of the time from sending an event to receiving it at the reader.
    async fn live(&self) -> Duration {
        let (mut sender, mut listener) = (connect(self.writer).await, connect(self.reader).await);
        listener
            .send(Message::text(
                r#"["REQ","live",{"kinds":[1621],"limit":1}]"#,
            ))
            .await
            .unwrap();
        while !receive(&mut listener).await.starts_with(r#"["EOSE""#) {}
        let (coordinate, mut times) = (self.repo().to_string(), Vec::new());
        for n in 0..REPETITIONS {
            let issue = self
                .author
                .sign(1621, &format!("live {n}"), &[&["a", &coordinate]]);
            let start = Instant::now();
            let text = format!(r#"["EVENT",{}]"#, issue.as_json());
            sender.send(Message::text(text)).await.unwrap();
            while !receive(&mut listener).await.contains(&issue.id.to_hex()) {}
            times.push(start.elapsed());
            while !receive(&mut sender).await.starts_with(r#"["OK""#) {}
        }
        times.sort();
        times[REPETITIONS * 99 / 100]
    }

    /// Returns the median time of small pushes through the reader.
    async fn push(&self) -> Duration {
        let (url, mut times) = (self.reader.client().clone_url(&self.repo()), Vec::new());
        for n in 1..=20 {
            let commit = self.work.commit(&format!("{n}")).await;
            let state = self
                .author
                .later(n)
                .state("x", &[("refs/heads/main", &commit)]);
            let ingest = &self.writer.server.parts().ingest;
            ingest.ingest(vec![state], Origin::anonymous()).await;
            let start = Instant::now();
            self.work
                .git(&["push", "-q", &url, "main"])
                .await
                .expect_ok();
            times.push(start.elapsed());
        }
        median(times)
    }

    /// Returns the median time of clones from the reader, whose cache is warm.
    async fn clone(&self) -> Duration {
        let url = self.reader.client().clone_url(&self.repo());
        Workdir::empty()
            .git(&["clone", "-q", &url, "."])
            .await
            .expect_ok();
        let mut times = Vec::new();
        for _ in 0..20 {
            let to = Workdir::empty();
            let start = Instant::now();
            to.git(&["clone", "-q", &url, "."]).await.expect_ok();
            times.push(start.elapsed());
        }
        median(times)
    }

    /// Returns the median time of `info/refs` at the reader.
    async fn info_refs(&self) -> Duration {
        let path = self.reader.client().service().repo_path(&self.repo());
        let path = format!("{path}/info/refs?service=git-upload-pack");
        let mut times = Vec::new();
        for _ in 0..REPETITIONS {
            let start = Instant::now();
            let response = http(&self.reader.address.to_string(), "GET", &path, &[]).await;
            assert_eq!(response.status, 200);
            times.push(start.elapsed());
        }
        median(times)
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

async fn connect(to: &Process) -> Socket {
    connect_async(to.client().relay_url()).await.unwrap().0
}

async fn receive(socket: &mut Socket) -> String {
    loop {
        if let Message::Text(text) = socket.next().await.unwrap().unwrap() {
            return text.to_string();
        }
    }
}

async fn bind() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

fn settings(dir: &Path, domain: SocketAddr) -> Settings {
    Settings::new(domain.to_string().parse().unwrap(), dir)
}

/// Starts three nodes of one server; the first of them is the writer.
async fn nodes(dir: &Path, database: &str, packs: &S3Server) -> Vec<&'static Process> {
    let mut nodes = Vec::new();
    let mut domain = None;
    for n in 0..3 {
        let (listener, address) = bind().await;
        let mut settings = settings(
            &dir.join(format!("node{n}")),
            *domain.get_or_insert(address),
        );
        settings.database = Some(database.parse().unwrap());
        settings.packs = Some(packs.url().parse().unwrap());
        settings.pack_storage.variables = packs.variables();
        settings.node_address = Some(format!("http://{address}").parse().unwrap());
        let node = Process::start(listener, settings).await;
        if n == 0 {
            assert!(
                node.server
                    .roles()
                    .until_writer(Duration::from_secs(10))
                    .await
            );
        }
        nodes.push(node);
    }
    nodes
}

fn print(what: &str, target: &str, one: f64, three: f64) {
    println!(
        "| {what} | {one:.2} | {three:.2} | {:.2} × | {target} |",
        three / one
    );
}

#[tokio::main]
async fn main() {
    if !std::env::args().any(|argument| argument == "--bench") {
        return; // `cargo test --benches` only checks that it builds
    }
    let Some(postgres) = Postgres::durable() else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let (listener, address) = bind().await;
    let single = Process::start(listener, settings(&dir.path().join("single"), address)).await;
    let packs = S3Server::start().await;
    let database = postgres.database();
    let group = nodes(dir.path(), &database, &packs).await;
    let mut one = Subject::new("one process, SQLite", single, single).await;
    let mut three = Subject::new("three nodes, PostgreSQL and S3", group[0], group[1]).await;
    println!(
        "| | {} | {} | ratio | wanted |\n|---|--:|--:|--:|--:|",
        one.name, three.name
    );
    let size = || -> f64 {
        let sql = "SELECT pg_database_size(current_database())";
        postgres.sql(&database, sql).parse().unwrap()
    };
    let before = size();
    let (a, b) = (one.ingest().await, three.ingest().await);
    let bytes = (size() - before) / EVENTS as f64;
    print("ingest at the writer, events/s", "≥ 0.35 ×", a, b);
    print(
        "REQ by id, per second",
        "≥ 0.5 ×",
        one.by_id().await,
        three.by_id().await,
    );
    let (a, b) = (one.by_repository().await, three.by_repository().await);
    print("REQ by `#a`, limit 20, per second", "≥ 0.5 ×", a, b);
    let millis = |time: Duration| time.as_secs_f64() * 1e3;
    let (a, b) = (millis(one.live().await), millis(three.live().await));
    print("live event at another node, p99 ms", "≤ 50 ms", a, b);
    let (a, b) = (millis(one.push().await), millis(three.push().await));
    print("small push through another node, p50 ms", "≤ 1.5 ×", a, b);
    let (a, b) = (millis(one.clone().await), millis(three.clone().await));
    print(
        "clone from a warm cache, p50 ms",
        "≥ 0.9 × of the speed",
        a,
        b,
    );
    let (a, b) = (
        millis(one.info_refs().await),
        millis(three.info_refs().await),
    );
    print("`info/refs`, new connection, p50 ms", "≤ 3 ms", a, b);
    println!("\nPostgreSQL: {bytes:.0} bytes on disk for each event of the first row");
    drop((postgres, packs));
    std::process::exit(0);
}
