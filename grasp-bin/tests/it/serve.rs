//! `grasp serve` as a child process: started, queried, stopped and killed.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::{SinkExt, StreamExt};
use grasp_core::service::npub;
use nostr::event::{Event, EventBuilder, FinalizeEvent, Kind, Tag};
use nostr::key::Keys;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use crate::support::{Server, command};

impl Server {
    pub(crate) async fn connect(&self) -> Client {
        let (socket, _) = tokio_tungstenite::connect_async(&self.url).await.unwrap();
        Client { socket }
    }
}

pub(crate) struct Client {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
}

impl Client {
    async fn send(&mut self, message: Value) -> Option<()> {
        self.socket
            .send(Message::text(message.to_string()))
            .await
            .ok()
    }

    /// Receives the next message; `None` once the connection has ended.
    async fn next(&mut self) -> Option<Value> {
        loop {
            if let Message::Text(text) = self.socket.next().await?.ok()? {
                return Some(serde_json::from_str(&text).unwrap());
            }
        }
    }

    /// Publishes an event, and returns whether it was accepted; `None` if the connection ended.
    pub(crate) async fn publish(&mut self, event: &Event) -> Option<bool> {
        let event: Value = serde_json::from_str(&event.as_json()).unwrap();
        self.send(json!(["EVENT", event])).await?;
        let answer = self.next().await?;
        assert_eq!(answer[0], "OK", "{answer}");
        answer[2].as_bool()
    }

    /// Returns which of these ids the server has.
    pub(crate) async fn stored(&mut self, ids: &BTreeSet<String>) -> BTreeSet<String> {
        self.send(json!(["REQ", "s", {"ids": ids, "limit": 5000}]))
            .await
            .unwrap();
        let mut found = BTreeSet::new();
        loop {
            let message = self.next().await.unwrap();
            match message[0].as_str().unwrap() {
                "EVENT" => found.insert(message[2]["id"].as_str().unwrap().to_owned()),
                "EOSE" => return found,
                _ => panic!("{message}"),
            };
        }
    }
}

pub(crate) fn sign(keys: &Keys, kind: u16, content: &str, tags: &[&[&str]]) -> Event {
    let tags = tags
        .iter()
        .map(|tag| Tag::parse(tag.iter().copied()).unwrap());
    EventBuilder::new(Kind::from_u16(kind), content)
        .tags(tags)
        .finalize(keys)
        .unwrap()
}

/// Announces a repository, signs its state and pushes it with the real git, so that it is served.
pub(crate) async fn host_repository(server: &Server, alice: &Keys, work: &Path) -> Event {
    let git = |args: &[&str]| git(work, args);
    git(&["init", "-q", "-b", "main"]);
    git(&["commit", "-q", "--allow-empty", "-m", "first"]);
    let commit = git(&["rev-parse", "HEAD"]);
    let announced = announcement(alice, server.host());
    let state = sign(
        alice,
        30618,
        "",
        &[&["d", "x"], &["refs/heads/main", &commit]],
    );
    let mut client = server.connect().await;
    assert_eq!(client.publish(&announced).await, Some(true));
    assert_eq!(client.publish(&state).await, Some(true));
    let url = format!(
        "http://{}/{}/x.git",
        server.host(),
        npub(&alice.public_key())
    );
    git(&["push", "-q", &url, "main"]);
    announced
}

fn announcement(keys: &Keys, host: &str) -> Event {
    let clone = format!("http://{host}/{}/x.git", npub(&keys.public_key()));
    let relay = format!("ws://{host}");
    sign(
        keys,
        30617,
        "",
        &[&["d", "x"], &["clone", &clone], &["relays", &relay]],
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_events_survive_a_kill() {
    const CLIENTS: usize = 16;
    const MIN_ACKNOWLEDGED: usize = 400;
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path());
    let alice = Keys::generate();
    let work = tempfile::tempdir().unwrap();
    let announced = host_repository(&server, &alice, work.path()).await;

    let a = format!("30617:{}:x", alice.public_key());
    let acknowledged = Arc::new(AtomicUsize::new(0));
    let mut clients = tokio::task::JoinSet::new();
    for number in 0..CLIENTS {
        let mut client = server.connect().await;
        let (keys, a, acknowledged) = (Keys::generate(), a.clone(), Arc::clone(&acknowledged));
        clients.spawn(async move {
            let mut ids = BTreeSet::new();
            for round in 0.. {
                let issue = sign(&keys, 1621, &format!("{number}/{round}"), &[&["a", &a]]);
                match client.publish(&issue).await {
                    Some(accepted) => assert!(accepted),
                    None => break, // killed before the answer
                }
                ids.insert(issue.id.to_hex());
                acknowledged.fetch_add(1, Ordering::Relaxed);
            }
            ids
        });
    }
    while acknowledged.load(Ordering::Relaxed) < MIN_ACKNOWLEDGED {
        tokio::task::yield_now().await;
    }
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    let mut ids = BTreeSet::from([announced.id.to_hex()]);
    ids.extend(clients.join_all().await.into_iter().flatten());
    assert!(ids.len() > MIN_ACKNOWLEDGED);

    let again = Server::start(dir.path());
    let found = again.connect().await.stored(&ids).await;
    assert_eq!(
        ids.difference(&found).count(),
        0,
        "of {} acknowledged",
        ids.len()
    );
}

#[cfg(unix)]
#[tokio::test]
async fn on_sigterm_it_closes_websockets_with_a_reason_and_exits_successfully() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path());
    let mut client = server.connect().await;
    let pid = server.child.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-TERM", &pid])
            .status()
            .unwrap()
            .success()
    );
    let close = client.socket.next().await.unwrap().unwrap();
    assert!(
        matches!(&close, Message::Close(Some(frame)) if !frame.reason.is_empty()),
        "{close:?}"
    );
    drop(client);
    assert!(server.child.wait().unwrap().success());
}

#[test]
fn an_address_in_use_is_named_with_the_remedy() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let dir = tempfile::tempdir().unwrap();
    let mut child = command()
        .args(["serve", "--listen", &address, "--data-dir"])
        .arg(dir.path())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut output)
        .unwrap();
    assert!(!child.wait().unwrap().success());
    assert!(
        output.contains(&address) && output.contains("with --listen"),
        "{output}"
    );
}

/// Runs git in a directory, and returns its output.
fn git(dir: &Path, args: &[&str]) -> String {
    let output = Command::new("git")
        .args([
            "-c",
            "user.name=alice",
            "-c",
            "user.email=alice@example.com",
        ])
        .args(args)
        .current_dir(dir)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[tokio::test]
async fn an_onion_service_hosts_repositories_that_list_its_address() {
    const ONION: &str = "2gzyxa5ihm7nsggfxnu52rck2vv4rvmdlkiu3zzui5du4xyclen53wid.onion";
    let dir = tempfile::tempdir().unwrap();
    let listen = crate::operations::free_address();
    let settings = [
        "--listen",
        &listen,
        "--domain",
        ONION,
        "--trusted-proxies",
        "127.0.0.1",
    ];
    let server = Server::start_with(&settings, dir.path());
    assert_eq!(server.url, format!("ws://{ONION}"));
    let socket = tokio_tungstenite::connect_async(format!("ws://{listen}")).await;
    let mut client = Client {
        socket: socket.unwrap().0,
    };
    let alice = Keys::generate();
    let accepted = client.publish(&announcement(&alice, ONION)).await;
    assert_eq!(accepted, Some(true));
    let elsewhere = announcement(&Keys::generate(), "other.example");
    assert_eq!(client.publish(&elsewhere).await, Some(false));

    // The server stands in for tor: git hands it requests for the onion address, as to any proxy.
    let proxy = format!("http.proxy=http://{listen}");
    let url = format!("http://{ONION}/{}/x.git", npub(&alice.public_key()));
    let work = tempfile::tempdir().unwrap();
    git(work.path(), &["init", "-q", "-b", "main"]);
    git(
        work.path(),
        &["commit", "-q", "--allow-empty", "-m", "first"],
    );
    let commit = git(work.path(), &["rev-parse", "HEAD"]);
    let tags: [&[&str]; 2] = [&["d", "x"], &["refs/heads/main", &commit]];
    let state = sign(&alice, 30618, "", &tags);
    assert_eq!(client.publish(&state).await, Some(true));
    git(work.path(), &["-c", &proxy, "push", "-q", &url, "main"]);
    let copy = tempfile::tempdir().unwrap();
    git(copy.path(), &["-c", &proxy, "clone", "-q", &url, "."]);
    assert_eq!(git(copy.path(), &["rev-parse", "HEAD"]), commit);
}

#[test]
#[cfg(target_env = "gnu")]
fn the_arenas_of_glibc_are_bounded_unless_the_user_sets_them() {
    let environment = |set: Option<&str>| {
        let dir = tempfile::tempdir().unwrap();
        let mut command = crate::support::command();
        command
            .env_remove("MALLOC_ARENA_MAX")
            .env_remove("GLIBC_TUNABLES");
        command.envs(set.map(|value| ("MALLOC_ARENA_MAX", value)));
        let server = Server::start_by(command, &["--listen", "127.0.0.1:0"], dir.path());
        // The same process: systemd and shells know it by its id.
        let environment = std::fs::read(format!("/proc/{}/environ", server.child.id())).unwrap();
        let name = std::fs::read_to_string(format!("/proc/{}/comm", server.child.id())).unwrap();
        assert_eq!(name.trim(), "grasp");
        String::from_utf8_lossy(&environment).into_owned()
    };
    assert!(environment(None).contains("MALLOC_ARENA_MAX=2"));
    assert!(environment(Some("5")).contains("MALLOC_ARENA_MAX=5"));
}
