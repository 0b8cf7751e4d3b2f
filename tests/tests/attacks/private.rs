//! Attacks on the gate of a private service, by those who are no members.

use std::net::SocketAddr;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::future::join_all;
use grasp_core::service::npub;
use grasp_tests::Author;
use nostr::event::Event;
use nostr::types::Timestamp;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::time::{Instant, sleep, timeout};

use crate::attacker::{Attacker, Relay};
use crate::attacks;
use crate::requests::repeat;
use crate::scenario::{Report, Scenario};

attacks![
    floods_of_bad_authorizations,
    floods_of_bad_auth_frames,
    half_open_sockets_at_the_gate,
    strangers_beside_a_member,
];

/// Duration of each attack.
const ATTACK_DURATION: Duration = Duration::from_secs(20);

/// Connections of the address that attacks.
const CONNECTIONS: usize = 60;

/// Pause between two visits of the member in the network of the attacker.
const VISIT_PAUSE: Duration = Duration::from_millis(500);

/// Time within which the server has closed a websocket that did not authenticate, with a margin.
const GATE_TIMEOUT: Duration = Duration::from_secs(45);

/// The last byte of the addresses that attack, and of the member's in the same network.
const EVE: u8 = 1;
const BOB: u8 = 200;

/// What a client of the private server knows, and its only member.
struct Gate {
    member: Author,
    server: SocketAddr,
    relay_url: String,
    /// The path and the canonical root of the honest repository.
    path: String,
    root: String,
}

async fn start() -> (Scenario, Gate) {
    let member = Author::new();
    let key = npub(&member.key());
    let scenario = Scenario::of_member(&["--private", "--members", &key], member.clone()).await;
    let (repo, client) = (scenario.honest.repo(), scenario.server.client());
    let gate = Gate {
        member,
        server: scenario.server.address(),
        relay_url: client.relay_url(),
        path: scenario.server.path(&repo),
        root: client.clone_url(&repo),
    };
    (scenario, gate)
}

/// Runs an attack with honest traffic, and with visits of the member from the network of the attacker.
async fn run(scenario: Scenario, gate: &Gate, attack: impl Future<Output = ()>) -> Report {
    let mut wrong = Vec::new();
    let both = async {
        let (visits, ()) = tokio::join!(gate.visits_of_member(), attack);
        wrong = visits;
    };
    let report = scenario.run(0, both).await;
    let first = wrong.first().cloned().unwrap_or_default();
    report.and(
        wrong.is_empty(),
        format!("{} visits failed: {first}", wrong.len()),
    )
}

impl Gate {
    fn eve(&self) -> Attacker {
        Attacker::at(self.server, EVE)
    }

    fn refs(&self) -> String {
        format!("{}/info/refs?service=git-upload-pack", self.path)
    }

    /// Returns a valid answer to a challenge, by any author.
    fn answer(&self, author: &Author, challenge: &str) -> Event {
        let tags: [&[&str]; 2] = [&["relay", &self.relay_url], &["challenge", challenge]];
        let now = Timestamp::now().as_secs();
        author.at(now).sign(22_242, "", &tags)
    }

    /// Lets the member visit relay and git from the network of the attacker until the attack ends. Returns what went wrong.
    async fn visits_of_member(&self) -> Vec<String> {
        let end = Instant::now() + ATTACK_DURATION;
        let mut wrong = Vec::new();
        while Instant::now() < end {
            if let Err(error) = self.visit().await {
                wrong.push(error);
            }
            sleep(VISIT_PAUSE).await;
        }
        wrong
    }

    async fn visit(&self) -> Result<(), String> {
        let bob = Attacker::at(self.server, BOB);
        let mut relay = bob.relay().await.ok_or("the member got no websocket")?;
        let challenge = challenge(&mut relay).await.ok_or("no challenge")?;
        relay
            .send(&json!(["AUTH", self.answer(&self.member, &challenge)]))
            .await;
        let answer = relay.receive().await.unwrap_or_default();
        if answer[2] != true {
            return Err(format!("the relay did not let the member in: {answer}"));
        }
        let authorization = self.member.authorization(&self.root);
        let headers = [("Authorization", authorization.as_str())];
        match bob.status("GET", &self.refs(), &headers, &[]).await {
            Some(200) => Ok(()),
            status => Err(format!("git did not let the member in: {status:?}")),
        }
    }
}

/// Receives the challenge, which is the first message.
async fn challenge(relay: &mut Relay) -> Option<String> {
    let message = relay.receive().await?;
    if message[0] != "AUTH" {
        return None;
    }
    message[1].as_str().map(str::to_owned)
}

/// Returns an event whose signature is wrong.
fn forged(event: &Event) -> Value {
    let mut forged: Value = serde_json::from_str(&event.as_json()).expect("JSON");
    let signature = event.sig.to_string();
    let other = if signature.starts_with('0') { "1" } else { "0" };
    forged["sig"] = format!("{other}{}", &signature[1..]).into();
    forged
}

/// Requests the refs with authorizations of strangers, forged ones of the member, and nonsense.
async fn floods_of_bad_authorizations() -> Report {
    let (scenario, gate) = start().await;
    let of_member = gate.member.at(Timestamp::now().as_secs()).sign(
        27_235,
        "",
        &[&["u", &gate.root], &["method", "GET"]],
    );
    let of_nobody = STANDARD.encode(forged(&of_member).to_string());
    let bad = [
        Author::new().authorization(&gate.root),
        format!("Nostr {of_nobody}"),
        "Nostr !".to_owned(),
        "Basic eDp5".to_owned(),
    ];
    let refs = gate.refs();
    let mut answers = Vec::new();
    let attack = async {
        let requests = (0..CONNECTIONS).map(async |n| {
            let headers = [("Authorization", bad[n % bad.len()].as_str())];
            repeat(gate.eve(), "GET", &refs, &headers, &[]).await
        });
        answers = join_all(requests).await.concat();
    };
    let report = run(scenario, &gate, attack).await;
    let is_expected = |status: &u16| [401, 429, 503].contains(status);
    report
        .and(answers.iter().all(is_expected), "a stranger was let in")
        .and(answers.contains(&401), "no authorization was judged")
}

/// Answers challenges by forged events, with another challenge, and with no event at all, and returns at once.
async fn floods_of_bad_auth_frames() -> Report {
    let (scenario, gate) = start().await;
    let end = Instant::now() + ATTACK_DURATION;
    let mut let_in = 0;
    let attack = async {
        let sockets = (0..CONNECTIONS).map(async |_| {
            let mut let_in = 0;
            while Instant::now() < end {
                let Some(mut relay) = gate.eve().relay().await else {
                    sleep(Duration::from_millis(20)).await;
                    continue;
                };
                let Some(challenge) = challenge(&mut relay).await else {
                    continue;
                };
                let genuine = gate.answer(&gate.member, &challenge);
                let of_other = gate.answer(&gate.member, "another");
                for frame in [
                    json!(["AUTH", forged(&genuine)]),
                    json!(["AUTH", of_other]),
                    json!(["AUTH", "nothing"]),
                ] {
                    relay.send(&frame).await;
                }
                while let Some(answer) = relay.receive().await {
                    let_in += usize::from(answer[2] == true);
                }
            }
            let_in
        });
        let_in = join_all(sockets).await.into_iter().sum();
    };
    let report = run(scenario, &gate, attack).await;
    report.and(let_in == 0, "a stranger was let in")
}

/// Opens websockets that never answer the challenge, and requests that never end.
async fn half_open_sockets_at_the_gate() -> Report {
    let (scenario, gate) = start().await;
    let mut left = 0;
    let attack = async {
        let silent = (0..CONNECTIONS).map(async |_| {
            let mut relay = gate.eve().relay().await?;
            let ended = async { while relay.receive().await.is_some() {} };
            timeout(GATE_TIMEOUT, ended).await.err()
        });
        let unfinished = (0..CONNECTIONS).map(async |_| {
            let mut stream = gate.eve().connect().await.ok()?;
            let head = b"GET / HTTP/1.1\r\nUpgrade: websocket\r\n";
            stream.write_all(head).await.ok()?;
            sleep(ATTACK_DURATION).await;
            Some(())
        });
        let (silent, _) = tokio::join!(join_all(silent), join_all(unfinished));
        left = silent.into_iter().flatten().count();
    };
    let report = run(scenario, &gate, attack).await;
    report.and(left == 0, format!("{left} silent websockets are open"))
}

/// Authenticates with valid events of ever new keys, from many networks.
async fn strangers_beside_a_member() -> Report {
    const NETWORKS: u8 = 20;
    let (scenario, gate) = start().await;
    let end = Instant::now() + ATTACK_DURATION;
    let mut answers: Vec<Value> = Vec::new();
    let attack = async {
        let strangers = (0..NETWORKS).map(async |network| {
            let attacker = Attacker::in_network(gate.server, network);
            let mut answers = Vec::new();
            while Instant::now() < end {
                sleep(Duration::from_millis(20)).await;
                let Some(mut relay) = attacker.relay().await else {
                    continue;
                };
                let Some(challenge) = challenge(&mut relay).await else {
                    continue;
                };
                let answer = gate.answer(&Author::new(), &challenge);
                relay.send(&json!(["AUTH", answer])).await;
                answers.extend(relay.receive().await);
            }
            answers
        });
        answers = join_all(strangers).await.concat();
    };
    let report = run(scenario, &gate, attack).await;
    report
        .and(!answers.is_empty(), "no stranger was answered")
        .and(
            answers.iter().all(|answer| answer[2] != true),
            "a stranger was let in",
        )
}
