//! Attacks by relays that the server syncs with.

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
use crate::scenario::{Report, Scenario};

attacks![
    forged_events,
    relays_of_one_owner,
    relays_of_many_owners,
    relay_lists_of_many_users,
];

/// Forged events that a flood repeats.
const FORGED_EVENTS: usize = 500;

/// A relay that ignores the protocol's rules, on every address of loopback.
pub(crate) struct HostileRelay {
    port: u16,
    stats: Arc<ConnectionStats>,
    accepting: JoinHandle<()>,
}

/// Counts of its websockets.
#[derive(Default)]
struct ConnectionStats {
    opened: AtomicUsize,
    open: AtomicUsize,
    /// Milliseconds that closed websockets were open, in total.
    lasted: AtomicU64,
}

impl HostileRelay {
    /// Starts a relay that answers each request with all of these events again and again if it `floods`, and otherwise
    /// with those that match, and EOSE.
    pub(crate) async fn start(events: Vec<String>, floods: bool) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))
            .await
            .expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let (stats, events) = (Arc::<ConnectionStats>::default(), Arc::new(events));
        let counts = Arc::clone(&stats);
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (counts, events) = (Arc::clone(&counts), Arc::clone(&events));
                tokio::spawn(async move {
                    let Some(stream) = grasp_tests::without_document(stream).await else {
                        return;
                    };
                    let Ok(socket) = tokio_tungstenite::accept_async(stream).await else {
                        return;
                    };
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
        Self {
            port,
            stats,
            accepting,
        }
    }

    /// Returns its URL on one of its addresses.
    pub(crate) fn url(&self, network: u8, host: u8) -> String {
        format!("ws://127.{network}.6.{host}:{}", self.port)
    }

    fn open(&self) -> usize {
        self.stats.open.load(Ordering::Relaxed)
    }
}

impl Drop for HostileRelay {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn serve(mut socket: WebSocketStream<TcpStream>, events: &[String], floods: bool) {
    while let Some(Ok(message)) = socket.next().await {
        let Message::Text(text) = message else {
            continue;
        };
        let request: Value = serde_json::from_str(&text).unwrap_or_default();
        let answer = match request[0].as_str() {
            Some("REQ") if floods => {
                for event in events.iter().cycle() {
                    let text = format!(r#"["EVENT",{},{event}]"#, request[1]);
                    if socket.send(Message::text(text)).await.is_err() {
                        return;
                    }
                }
                return;
            }
            Some("REQ") => {
                for event in events
                    .iter()
                    .filter(|event| matches_request(event, &request))
                {
                    let text = format!(r#"["EVENT",{},{event}]"#, request[1]);
                    if socket.send(Message::text(text)).await.is_err() {
                        return;
                    }
                }
                json!(["EOSE", request[1]])
            }
            Some("NEG-OPEN") => json!(["NEG-ERR", request[1], "blocked: no"]),
            _ => continue,
        };
        if socket
            .send(Message::text(answer.to_string()))
            .await
            .is_err()
        {
            return;
        }
    }
}

/// Returns whether an event matches a filter of a request.
fn matches_request(event: &str, request: &Value) -> bool {
    let event: Event = serde_json::from_str(event).expect("an event");
    let filters = request.as_array().into_iter().flatten().skip(2);
    let mut filters =
        filters.filter_map(|json| serde_json::from_value::<Filter>(json.clone()).ok());
    filters.any(|filter| filter.match_event(&event, MatchEventOptions::new()))
}

/// Returns announcements with valid ids and invalid signatures, so that each costs a full check.
fn forged() -> Vec<String> {
    let author = Author::new();
    let signed = |n: usize| author.sign(30617, "", &[&["d", &n.to_string()]]);
    let json = |n: usize| serde_json::to_value(signed(n)).expect("an event");
    (0..FORGED_EVENTS)
        .map(|n| {
            let mut event = json(n);
            event["sig"] = json(n + 1)["sig"].clone();
            event.to_string()
        })
        .collect()
}

/// Announces a repository on the server that lists other relays too.
async fn announce(scenario: &Scenario, author: &Author, name: &str, relays: &[String]) {
    let listed: Vec<&str> = ["relays"]
        .into_iter()
        .chain(relays.iter().map(String::as_str))
        .collect();
    let event = author.announce_with(name, &scenario.server.service(), &[&listed]);
    scenario.server.client().publish_all(&[&event]).await;
}

/// Does the same with a commit, so that the repository is served.
async fn serve_repository(scenario: &Scenario, author: &Author, name: &str, relays: &[String]) {
    let (work, client) = (Workdir::init().await, scenario.server.client());
    let commit = work.commit("first").await;
    announce(scenario, author, name, relays).await;
    client
        .publish_all(&[&author.state(name, &[("refs/heads/main", &commit)])])
        .await;
    let url = client.clone_url(&author.repo(name));
    work.git(&["push", "-q", &url, "main"]).await.expect_ok();
}

/// A relay that an unknown owner's repository names sends forged events as fast as they are read.
async fn forged_events() -> Report {
    const ATTACK_DURATION: Duration = Duration::from_secs(20);
    let scenario = Scenario::start().await;
    let hostile = HostileRelay::start(forged(), true).await;
    announce(&scenario, &Author::new(), "flood", &[hostile.url(6, 1)]).await;
    let stats = Arc::clone(&hostile.stats);
    let report = scenario
        .run(1 << 20, tokio::time::sleep(ATTACK_DURATION))
        .await;
    let opened = stats.opened.load(Ordering::Relaxed);
    let lasted = Duration::from_millis(stats.lasted.load(Ordering::Relaxed));
    report
        .and(opened > 0, "the relay was never connected to")
        .and(opened <= 5, format!("connected to {opened} times"))
        .and(
            hostile.open() == 0 || opened > 1,
            "the relay stayed connected",
        )
        .and(
            lasted < ATTACK_DURATION / 2,
            format!("connected for {lasted:?}"),
        )
}

/// Setting with few connections, so that they are in use within seconds.
const FEW_CONNECTIONS: [&str; 2] = ["--sync-connections", "32"];

/// One owner's repository names more relays than there are connections; another maintainer's relay is still connected to.
async fn relays_of_one_owner() -> Report {
    let scenario = Scenario::with(&FEW_CONNECTIONS).await;
    let hostile = HostileRelay::start(Vec::new(), false).await;
    let relays: Vec<_> = (1..=60).map(|host| hostile.url(host, 1)).collect();
    serve_repository(&scenario, &Author::new(), "hostile", &relays).await;
    check_shares(scenario, hostile, 8).await
}

/// Many owners' repositories name relays that are all in one network.
async fn relays_of_many_owners() -> Report {
    let scenario = Scenario::with(&FEW_CONNECTIONS).await;
    let hostile = HostileRelay::start(Vec::new(), false).await;
    for owner in 0..12 {
        let relays: Vec<_> = (1..=5).map(|n| hostile.url(6, owner * 5 + n)).collect();
        serve_repository(&scenario, &Author::new(), "hostile", &relays).await;
    }
    // Half of the free connections, and before the repositories were served half of the share of unknown owners.
    check_shares(scenario, hostile, 24).await
}

/// Many users with an issue each name relays of a stranger in their relay lists.
async fn relay_lists_of_many_users() -> Report {
    const USERS: u8 = 60;
    let hostile = HostileRelay::start(Vec::new(), false).await;
    let index = hostile.url(6, 1);
    let outbox = ["--sync-outbox", "on", "--sync-index-relays", &index];
    let scenario = Scenario::with(&[&FEW_CONNECTIONS[..], &outbox].concat()).await;
    let owner = Author::new();
    serve_repository(&scenario, &owner, "hostile", &[]).await;
    let client = scenario.server.client();
    for user in 0..USERS {
        let author = Author::new();
        let issue = author.issue(&owner.repo("hostile"), "read me");
        let urls = [1, 2, 3, 4].map(|host| format!("{}/{user}", hostile.url(10 + user, host)));
        let tags = urls.each_ref().map(|url| ["r", url.as_str()]);
        let tags = tags.each_ref().map(<[&str; 2]>::as_slice);
        let list = author.sign(10_002, "", &tags);
        client.publish_all(&[&issue, &list]).await;
    }
    // A quarter of the connections, an eighth for their history, and one for relay lists.
    check_shares(scenario, hostile, 8 + 4 + 1).await
}

/// Waits until the hostile relays have their connections, and checks that an honest maintainer's relay is connected to.
async fn check_shares(scenario: Scenario, hostile: HostileRelay, max: usize) -> Report {
    let honest = HostileRelay::start(Vec::new(), false).await;
    let url = format!(
        "ws://{}",
        SocketAddr::from((Ipv4Addr::LOCALHOST, honest.port))
    );
    let event =
        Author::new().announce_with("honest", &scenario.server.service(), &[&["relays", &url]]);
    let client = scenario.server.client();
    let (mut taken, mut connected) = (0, 0);
    let attack = async {
        tokio::time::sleep(Duration::from_secs(15)).await;
        client.publish_all(&[&event]).await;
        tokio::time::sleep(Duration::from_secs(8)).await;
        (taken, connected) = (hostile.open(), honest.open());
    };
    let report = scenario.run(1 << 20, attack).await;
    report
        .and(taken > 0, "the hostile relays were never connected to")
        .and(
            taken <= max,
            format!("hostile relays have {taken} connections"),
        )
        .and(
            connected == 1,
            "the honest maintainer's relay is not connected to",
        )
}
