//! Attacks by relays that are followed.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::{SinkExt as _, StreamExt as _};
use grasp_tests::{Author, Workdir};
use nostr::event::Event;
use nostr::filter::{Filter, MatchEventOptions};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use crate::attacks;
use crate::scene::{Report, Scene};

attacks![forged_events, relays_of_one_owner, relays_of_many_owners];

/// Forged events that a flood repeats.
const FORGED: usize = 500;

/// A relay that follows no rules, on every address of loopback at once.
pub(crate) struct Hostile {
    port: u16,
    seen: Arc<Seen>,
    accepting: JoinHandle<()>,
}

/// What happened to its websockets.
#[derive(Default)]
struct Seen {
    opened: AtomicUsize,
    open: AtomicUsize,
    /// Milliseconds that ended ones lasted, together.
    lasted: AtomicU64,
}

impl Hostile {
    /// Starts a relay that answers each request with all of these events again and again if it `floods`, and otherwise
    /// with those that match, and EOSE.
    pub(crate) async fn start(events: Vec<String>, floods: bool) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let (seen, events) = (Arc::<Seen>::default(), Arc::new(events));
        let counts = Arc::clone(&seen);
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (counts, events) = (Arc::clone(&counts), Arc::clone(&events));
                tokio::spawn(async move {
                    // A request for the information document fails here, as it may.
                    let Ok(socket) = tokio_tungstenite::accept_async(stream).await else { return };
                    counts.opened.fetch_add(1, Ordering::Relaxed);
                    counts.open.fetch_add(1, Ordering::Relaxed);
                    let began = Instant::now();
                    serve(socket, &events, floods).await;
                    counts.open.fetch_sub(1, Ordering::Relaxed);
                    let lasted = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
                    counts.lasted.fetch_add(lasted, Ordering::Relaxed);
                });
            }
        });
        Self { port, seen, accepting }
    }

    /// Returns its address by one of its names.
    pub(crate) fn url(&self, network: u8, host: u8) -> String {
        format!("ws://127.{network}.6.{host}:{}", self.port)
    }

    fn open(&self) -> usize {
        self.seen.open.load(Ordering::Relaxed)
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn serve(mut socket: WebSocketStream<TcpStream>, events: &[String], floods: bool) {
    while let Some(Ok(message)) = socket.next().await {
        let Message::Text(text) = message else { continue };
        let asked: Value = serde_json::from_str(&text).unwrap_or_default();
        let answer = match asked[0].as_str() {
            Some("REQ") if floods => {
                for event in events.iter().cycle() {
                    let text = format!(r#"["EVENT",{},{event}]"#, asked[1]);
                    if socket.send(Message::text(text)).await.is_err() {
                        return;
                    }
                }
                return;
            }
            Some("REQ") => {
                for event in events.iter().filter(|event| is_asked_for(event, &asked)) {
                    let text = format!(r#"["EVENT",{},{event}]"#, asked[1]);
                    if socket.send(Message::text(text)).await.is_err() {
                        return;
                    }
                }
                json!(["EOSE", asked[1]])
            }
            Some("NEG-OPEN") => json!(["NEG-ERR", asked[1], "blocked: no"]),
            _ => continue,
        };
        if socket.send(Message::text(answer.to_string())).await.is_err() {
            return;
        }
    }
}

/// Whether an event matches a filter of a request.
fn is_asked_for(event: &str, request: &Value) -> bool {
    let event: Event = serde_json::from_str(event).expect("an event");
    let filters = request.as_array().into_iter().flatten().skip(2);
    let mut filters =
        filters.filter_map(|json| serde_json::from_value::<Filter>(json.clone()).ok());
    filters.any(|filter| filter.match_event(&event, MatchEventOptions::new()))
}

/// Announcements whose ids are right and whose signatures are not, so that each costs a full check.
fn forged() -> Vec<String> {
    let author = Author::new();
    let signed = |n: usize| author.sign(30617, "", &[&["d", &n.to_string()]]);
    let json = |n: usize| serde_json::to_value(signed(n)).expect("an event");
    (0..FORGED)
        .map(|n| {
            let mut event = json(n);
            event["sig"] = json(n + 1)["sig"].clone();
            event.to_string()
        })
        .collect()
}

/// Announces a repository at the server that lists other relays too.
async fn announce(scene: &Scene, author: &Author, name: &str, relays: &[String]) {
    let listed: Vec<&str> =
        ["relays"].into_iter().chain(relays.iter().map(String::as_str)).collect();
    let event = author.announce_with(name, &scene.server.service(), &[&listed]);
    scene.server.client().publish_all(&[&event]).await;
}

/// The same, with a commit, so that the repository is served.
async fn serve_repository(scene: &Scene, author: &Author, name: &str, relays: &[String]) {
    let (work, client) = (Workdir::init().await, scene.server.client());
    let commit = work.commit("first").await;
    announce(scene, author, name, relays).await;
    client.publish_all(&[&author.state(name, &[("refs/heads/main", &commit)])]).await;
    let url = client.clone_url(&author.repo(name));
    work.git(&["push", "-q", &url, "main"]).await.expect_ok();
}

/// A relay that a stranger's repository names sends forged events as fast as they are read.
async fn forged_events() -> Report {
    const LASTS: Duration = Duration::from_secs(20);
    let scene = Scene::start().await;
    let hostile = Hostile::start(forged(), true).await;
    announce(&scene, &Author::new(), "flood", &[hostile.url(6, 1)]).await;
    let seen = Arc::clone(&hostile.seen);
    let report = scene.during(1 << 20, tokio::time::sleep(LASTS)).await;
    let opened = seen.opened.load(Ordering::Relaxed);
    let lasted = Duration::from_millis(seen.lasted.load(Ordering::Relaxed));
    report
        .and(opened > 0, "the relay was never connected to")
        .and(opened <= 5, format!("connected to {opened} times"))
        .and(hostile.open() == 0 || opened > 1, "it stayed connected")
        .and(lasted < LASTS / 2, format!("connected for {lasted:?}"))
}

/// Settings with few connections, so that they are taken in seconds.
const FEW_CONNECTIONS: [&str; 2] = ["--sync-connections", "32"];

/// An owner's repository names more relays than there are connections; another maintainer's relay is followed all the same.
async fn relays_of_one_owner() -> Report {
    let scene = Scene::with(&FEW_CONNECTIONS).await;
    let hostile = Hostile::start(Vec::new(), false).await;
    let relays: Vec<_> = (1..=60).map(|host| hostile.url(host, 1)).collect();
    serve_repository(&scene, &Author::new(), "crowd", &relays).await;
    crowded(scene, hostile, 8).await
}

/// Many owners' repositories name relays that are all in one network.
async fn relays_of_many_owners() -> Report {
    let scene = Scene::with(&FEW_CONNECTIONS).await;
    let hostile = Hostile::start(Vec::new(), false).await;
    for owner in 0..12 {
        let relays: Vec<_> = (1..=5).map(|n| hostile.url(6, owner * 5 + n)).collect();
        serve_repository(&scene, &Author::new(), "crowd", &relays).await;
    }
    // Half of what is free, and before the repositories were served half of the strangers' half.
    crowded(scene, hostile, 24).await
}

/// Lets the crowd take what it gets, and then an honest maintainer name a relay, which must be connected to.
async fn crowded(scene: Scene, hostile: Hostile, most: usize) -> Report {
    let honest = Hostile::start(Vec::new(), false).await;
    let url = format!("ws://{}", SocketAddr::from((Ipv4Addr::LOCALHOST, honest.port)));
    let event = Author::new().announce_with("calm", &scene.server.service(), &[&["relays", &url]]);
    let client = scene.server.client();
    let (mut taken, mut connected) = (0, 0);
    let attack = async {
        tokio::time::sleep(Duration::from_secs(15)).await;
        client.publish_all(&[&event]).await;
        tokio::time::sleep(Duration::from_secs(8)).await;
        (taken, connected) = (hostile.open(), honest.open());
    };
    let report = scene.during(1 << 20, attack).await;
    report
        .and(taken > 0, "the crowd was never connected to")
        .and(taken <= most, format!("{taken} connections are the crowd's"))
        .and(connected == 1, "the honest maintainer's relay is not connected to")
}
