//! An adoption as clients see it: relay, server and client are processes of their own, which communicate over sockets only.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use futures_util::{SinkExt as _, StreamExt as _};
use grasp_core::ServiceIdentity;
use grasp_relay::nostr::Limits;
use grasp_tests::{Author, ServerClient, Workdir};
use nostr::event::Event;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

use crate::open_relay::OpenRelay;
use crate::sync_server::repo_name;

/// Variable that makes a process of this program the source relay; its value is the name of the relay's software.
const SOURCE_VAR: &str = "GRASP_BENCH_SOURCE";
/// Variable with the `grasp` program to measure; without it this program is used.
const PROGRAM_VAR: &str = "GRASP_BENCH_PROGRAM";

/// Interval of counts: short enough for the figure, long enough not to change it.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Time after which an adoption has failed.
const ADOPTION_TIMEOUT: Duration = Duration::from_secs(300);

/// Runs the server or the source relay, if this process was started as one of them.
pub(crate) fn run_as_child() -> bool {
    if std::env::args().nth(1).as_deref() == Some("serve") {
        grasp_bin::run();
        return true;
    }
    let Ok(software) = std::env::var(SOURCE_VAR) else {
        return false;
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let lines = std::io::stdin().lines().map_while(Result::ok);
        let events = lines.map(|line| Event::from_json(line).unwrap()).collect();
        let relay = OpenRelay::with_software(&software, Limits::default(), events).await;
        println!("{}", relay.url());
        std::future::pending::<()>().await;
    });
    true
}

/// A process that prints the URL of its relay.
pub(crate) struct Process {
    child: Child,
    pub(crate) url: String,
}

impl Process {
    fn start(command: &mut Command, input: impl Iterator<Item = String>) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        input.for_each(|line| writeln!(stdin, "{line}").unwrap());
        drop(stdin);
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let url = lines.map_while(Result::ok).find_map(|line| {
            let url = line
                .split_whitespace()
                .find(|word| word.starts_with("ws://"))?;
            Some(url.trim_end_matches('/').to_owned())
        });
        Self {
            child,
            url: url.expect("the process prints its URL"),
        }
    }

    /// Starts a relay that accepts every event.
    pub(crate) fn source(software: &str, events: &[Event]) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        Self::start(
            command.env(SOURCE_VAR, software),
            events.iter().map(Event::as_json),
        )
    }

    /// Starts a server with a bootstrap relay.
    pub(crate) fn server(data: &Path, bootstrap: &str) -> Self {
        let program = std::env::var_os(PROGRAM_VAR);
        let program = program.unwrap_or_else(|| std::env::current_exe().unwrap().into());
        let args = [
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--allow-private-targets",
            "--bootstrap",
        ];
        let mut command = Command::new(program);
        command
            .args(args)
            .arg(bootstrap)
            .arg("--data-dir")
            .arg(data)
            .stderr(Stdio::null());
        Self::start(&mut command, std::iter::empty())
    }

    fn service(&self) -> ServiceIdentity {
        self.url.trim_start_matches("ws://").parse().unwrap()
    }

    fn client(&self) -> ServerClient {
        ServerClient::at(self.url.trim_start_matches("ws://").parse().unwrap())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Announces repositories on both servers, and pushes them to one.
pub(crate) async fn adopt(server: &Process, source: &Process, owner: &Author, repos: usize) {
    let (client, work) = (server.client(), Workdir::init().await);
    let commit = work.commit("first").await;
    for name in (0..repos).map(repo_name) {
        let announced = owner.announce_on(&name, &[server.service(), source.service()]);
        let state = owner.state(&name, &[("refs/heads/main", &commit)]);
        client.publish_all(&[&announced, &state]).await;
        let url = client.clone_url(&owner.repo(&name));
        work.git(&["push", &url, "main"]).await.expect_ok();
    }
}

/// A websocket to the server.
pub(crate) struct Client(WebSocketStream<MaybeTlsStream<TcpStream>>);

impl Client {
    pub(crate) async fn to(server: &Process) -> Self {
        Self(connect_async(&server.url).await.unwrap().0)
    }

    /// Waits until this number of events of these kinds is served; returns whether it was before the timeout.
    pub(crate) async fn until_counts(&mut self, kinds: &[u16], count: usize) -> bool {
        let began = Instant::now();
        while began.elapsed() < ADOPTION_TIMEOUT {
            self.send(json!(["COUNT", "count", { "kinds": kinds }]))
                .await;
            let answer = self.receive().await;
            if answer[2]["count"].as_u64().unwrap() as usize >= count {
                return true;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        false
    }

    /// Requests these events and returns how many of them are served.
    pub(crate) async fn count_served(&mut self, events: &[Event]) -> usize {
        let mut served = BTreeSet::new();
        for some in events.chunks(400) {
            let ids: Vec<_> = some.iter().map(|event| event.id.to_hex()).collect();
            self.send(json!(["REQ", "some", { "ids": ids, "limit": ids.len() }]))
                .await;
            loop {
                let message = self.receive().await;
                match message[0].as_str() {
                    Some("EVENT") => _ = served.insert(message[2]["id"].to_string()),
                    Some("EOSE") => break,
                    _ => panic!("{message}"),
                }
            }
        }
        served.len()
    }

    async fn send(&mut self, message: Value) {
        self.0
            .send(Message::text(message.to_string()))
            .await
            .unwrap();
    }

    async fn receive(&mut self) -> Value {
        loop {
            if let Message::Text(text) = self.0.next().await.unwrap().unwrap() {
                return serde_json::from_str(&text).unwrap();
            }
        }
    }
}
