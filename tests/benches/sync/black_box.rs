//! What operators feel, seen from client: a relay, a server and whoever uses them are processes of their own, and
//! nothing passes between them but what passes over sockets.

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
use crate::stage::repo_name;

/// Tells a process of this very program to be the relay that has everything, and what its software is called.
const SOURCE: &str = "GRASP_BENCH_SOURCE";
/// The `grasp` to measure; without it this program is one itself.
const PROGRAM: &str = "GRASP_BENCH_PROGRAM";

/// How often is asked whether all is there: often enough for a figure, seldom enough to change none.
const LOOK: Duration = Duration::from_millis(100);
/// When the peers are given up.
const LONGEST: Duration = Duration::from_secs(300);

/// Does what this process was started for, if that is to be a part of the scene.
pub(crate) fn play_a_part() -> bool {
    if std::env::args().nth(1).as_deref() == Some("serve") {
        grasp_bin::run();
        return true;
    }
    let Ok(software) = std::env::var(SOURCE) else { return false };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let lines = std::io::stdin().lines().map_while(Result::ok);
        let events = lines.map(|line| Event::from_json(line).unwrap()).collect();
        let relay = OpenRelay::of(&software, Limits::default(), events).await;
        println!("{}", relay.url());
        std::future::pending::<()>().await;
    });
    true
}

/// A process that says where its relay is.
pub(crate) struct Process {
    child: Child,
    pub(crate) url: String,
}

impl Process {
    fn start(command: &mut Command, input: impl Iterator<Item = String>) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        input.for_each(|line| writeln!(stdin, "{line}").unwrap());
        drop(stdin);
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let url = lines.map_while(Result::ok).find_map(|line| {
            let url = line.split_whitespace().find(|word| word.starts_with("ws://"))?;
            Some(url.trim_end_matches('/').to_owned())
        });
        Self { child, url: url.expect("it says where it is") }
    }

    /// A relay that takes and gives everything.
    pub(crate) fn source(software: &str, events: &[Event]) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        Self::start(command.env(SOURCE, software), events.iter().map(Event::as_json))
    }

    /// A server that is told of a relay.
    pub(crate) fn server(data: &Path, bootstrap: &str) -> Self {
        let program = std::env::var_os(PROGRAM);
        let program = program.unwrap_or_else(|| std::env::current_exe().unwrap().into());
        let args = ["serve", "--listen", "127.0.0.1:0", "--allow-private-targets", "--bootstrap"];
        let mut command = Command::new(program);
        command.args(args).arg(bootstrap).arg("--data-dir").arg(data).stderr(Stdio::null());
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

/// Announces repositories at the server that the source shall keep too, and pushes them.
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

/// A client like any other.
pub(crate) struct Client(WebSocketStream<MaybeTlsStream<TcpStream>>);

impl Client {
    pub(crate) async fn to(server: &Process) -> Self {
        Self(connect_async(&server.url).await.unwrap().0)
    }

    /// Waits until so many events of these kinds are served; whether they were.
    pub(crate) async fn until_counts(&mut self, kinds: &[u16], count: usize) -> bool {
        let began = Instant::now();
        while began.elapsed() < LONGEST {
            self.say(json!(["COUNT", "count", { "kinds": kinds }])).await;
            let answer = self.hear().await;
            if answer[2]["count"].as_u64().unwrap() as usize >= count {
                return true;
            }
            tokio::time::sleep(LOOK).await;
        }
        false
    }

    /// How many of these events it is given when it asks for them.
    pub(crate) async fn is_given(&mut self, events: &[Event]) -> usize {
        let mut given = BTreeSet::new();
        for some in events.chunks(400) {
            let ids: Vec<_> = some.iter().map(|event| event.id.to_hex()).collect();
            self.say(json!(["REQ", "some", { "ids": ids, "limit": ids.len() }])).await;
            loop {
                let said = self.hear().await;
                match said[0].as_str() {
                    Some("EVENT") => _ = given.insert(said[2]["id"].to_string()),
                    Some("EOSE") => break,
                    _ => panic!("{said}"),
                }
            }
        }
        given.len()
    }

    async fn say(&mut self, word: Value) {
        self.0.send(Message::text(word.to_string())).await.unwrap();
    }

    async fn hear(&mut self) -> Value {
        loop {
            if let Message::Text(text) = self.0.next().await.unwrap().unwrap() {
                return serde_json::from_str(&text).unwrap();
            }
        }
    }
}
