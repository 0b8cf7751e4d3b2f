//! Attacks through the relay: events, filters, connections, negentropy.

use std::time::Duration;

use futures_util::SinkExt as _;
use futures_util::future::join_all;
use grasp_tests::Author;
use nostr::event::Event;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio_tungstenite::tungstenite::Message;

use crate::attacker::{Attacker, Relay};
use crate::attacks;
use crate::scenario::{LatencyBound, Report, Scenario};

attacks![
    many_connections,
    forwarded_addresses_with_ports,
    refused_events_with_many_references,
    events_with_many_tags,
    many_announcements_of_one_name,
    mutual_lists_in_the_plain_model,
    delisting_undone_by_replay,
    wide_filters,
    heavy_queries,
    unfinished_messages,
    deletions_by_new_keys,
    negentropy_sessions,
    vanishing_with_many_events,
    events_that_expire_together,
];

/// Size that the store's log grows to with any writing; it is kept for the next.
pub(crate) const STORE_LOG_BYTES: u64 = 132 << 20;

/// Time that an attacker waits for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// Time for which connections and requests of an attacker stay open.
const HOLD_DURATION: Duration = Duration::from_secs(5);

/// Returns the messages that publish these events, encoded beforehand: the attack must not keep its own process busy.
pub(crate) fn messages(events: &[Event]) -> Vec<String> {
    events
        .iter()
        .map(|event| format!(r#"["EVENT",{}]"#, event.as_json()))
        .collect()
}

/// Sends messages with one event each over one connection, and returns how many were accepted.
pub(crate) async fn publish(attacker: Attacker, messages: Vec<String>) -> usize {
    let Some(mut relay) = attacker.relay().await else {
        return 0;
    };
    let mut sent = 0;
    for message in messages {
        sent += usize::from(relay.socket.send(Message::text(message)).await.is_ok());
    }
    let mut accepted = 0;
    for _ in 0..sent {
        match answer(&mut relay, "OK").await {
            Some(answer) => accepted += usize::from(answer[2] == true),
            None => break,
        }
    }
    accepted
}

/// Does the same with a connection for each batch, all at the same time.
async fn publish_all(attacker: Attacker, batches: Vec<Vec<String>>) -> usize {
    let tasks = batches
        .into_iter()
        .map(|batch| tokio::spawn(publish(attacker, batch)));
    join_all(tasks)
        .await
        .into_iter()
        .map(Result::unwrap_or_default)
        .sum()
}

/// Receives the next message of this type; `None` if the connection ends or on timeout.
async fn answer(relay: &mut Relay, kind: &str) -> Option<Value> {
    let wait = async {
        loop {
            let message = relay.receive().await?;
            if message[0] == kind {
                return Some(message);
            }
        }
    };
    tokio::time::timeout(ANSWER_TIMEOUT, wait)
        .await
        .ok()
        .flatten()
}

fn tags(names: &[Vec<String>]) -> Vec<Vec<&str>> {
    names
        .iter()
        .map(|tag| tag.iter().map(String::as_str).collect())
        .collect()
}

fn sign(by: &Author, kind: u16, content: &str, names: &[Vec<String>]) -> Event {
    let tags = tags(names);
    let tags: Vec<&[&str]> = tags.iter().map(Vec::as_slice).collect();
    by.sign(kind, content, &tags)
}

/// Opens as many connections from one address as the server accepts, and leaves them idle.
async fn many_connections() -> Report {
    let scenario = Scenario::start().await;
    let attacker = scenario.attacker(1);
    let attack = async {
        let mut open = Vec::new();
        for _ in 0..500 {
            if let Some(mut relay) = attacker.relay().await {
                relay.send(&json!(["REQ", "a", { "kinds": [1] }])).await;
                open.push(relay);
            }
        }
    };
    scenario.run(STORE_LOG_BYTES, attack).await
}

/// Opens as many connections as the server accepts for one client behind a proxy that names it with its port. The server
/// trusts the proxy except for its own connections.
async fn forwarded_addresses_with_ports() -> Report {
    let scenario = Scenario::with(&["--trusted-proxies", "127.6.6.1"]).await;
    let proxy = scenario.attacker(1);
    let (mut opened, mut another) = (0, false);
    let attack = async {
        let mut open = Vec::new();
        for port in 0..500 {
            open.extend(
                proxy
                    .relay_for(Some(&format!("198.51.100.7:{}", 4_000 + port)))
                    .await,
            );
        }
        opened = open.len();
        another = proxy.relay_for(Some("203.0.113.9:4711")).await.is_some();
        tokio::time::sleep(HOLD_DURATION).await;
    };
    let bound = 128 * scenario.server.process_count();
    let report = scenario.run(STORE_LOG_BYTES, attack).await;
    report
        .and(
            (1..=bound).contains(&opened),
            format!("one client has {opened} connections"),
        )
        .and(another, "another client of the proxy is rejected")
}

/// Publishes events that name hundreds of unknown events.
async fn refused_events_with_many_references() -> Report {
    let scenario = Scenario::start().await;
    let (attacker, eve) = (scenario.attacker(1), Author::new());
    let owner = scenario.honest.maintainer.key();
    let event = |n: usize| {
        let at = (0..64).map(|m| vec!["a".into(), format!("30617:{owner}:{n}-{m}")]);
        let ids = (0..1_000).map(|m| vec!["e".into(), format!("{:064x}", n << 16 | m)]);
        sign(&eve, 1, &n.to_string(), &at.chain(ids).collect::<Vec<_>>())
    };
    let batch = |batch: usize| (0..40).map(|n| event(batch * 40 + n)).collect::<Vec<_>>();
    let batches = (0..8).map(|n| messages(&batch(n))).collect();
    let attack = async {
        assert_eq!(publish_all(attacker, batches).await, 0);
    };
    scenario.run(STORE_LOG_BYTES, attack).await
}

/// Publishes events about an honest repository with as many tags as fit into an event, each a row of the index if stored.
async fn events_with_many_tags() -> Report {
    let scenario = Scenario::start().await;
    let (attacker, eve) = (scenario.attacker(1), Author::new());
    let repo = scenario.honest.repo().to_string();
    let event = |n: usize, tags: usize| {
        let words = (0..tags).map(|m| vec!["t".into(), format!("{n}-{m}")]);
        let tags: Vec<Vec<String>> = [vec!["a".to_owned(), repo.clone()]]
            .into_iter()
            .chain(words)
            .collect();
        sign(&eve, 1, &n.to_string(), &tags)
    };
    let batch = |batch: usize, tags| {
        messages(
            &(0..40)
                .map(|n| event(batch * 40 + n, tags))
                .collect::<Vec<_>>(),
        )
    };
    let refused = (0..8).map(|n| batch(n, 8_000)).collect();
    let accepted = batch(8, 1_900);
    let attack = async {
        assert_eq!(publish_all(attacker, refused).await, 0);
        assert!(publish(attacker, accepted).await <= 40);
    };
    scenario
        .run(STORE_LOG_BYTES + (40 * 1_900 * 256), attack)
        .await
}

/// Publishes long announcements under the name of an honest repository, by as many keys as one of them names.
async fn many_announcements_of_one_name() -> Report {
    let scenario = Scenario::start().await;
    let (attacker, eve) = (scenario.attacker(1), Author::new());
    let authors: Vec<Author> = (0..160).map(|_| Author::new()).collect();
    let named = authors.iter().map(|author| author.key().to_hex());
    let named: Vec<String> = ["maintainers".to_owned()]
        .into_iter()
        .chain(named)
        .collect();
    let named: Vec<&str> = named.iter().map(String::as_str).collect();
    let name = scenario.honest.name.clone();
    let first = eve.announce_with(&name, &scenario.server.service(), &[&named]);
    let long = "x".repeat(60_000);
    let announce = |by: &Author| by.sign(30617, "", &[&["d", &name], &["description", &long]]);
    let batch = |some: &[Author]| messages(&some.iter().map(announce).collect::<Vec<_>>());
    let batches = authors.chunks(20).map(batch).collect();
    let (first, commit) = (messages(&[first]), "a".repeat(40));
    let state = |by: &Author| by.state(&name, &[("refs/heads/main", &commit)]);
    let states = messages(&authors.iter().take(40).map(state).collect::<Vec<_>>());
    let attack = async {
        assert_eq!(publish(attacker, first).await, 1);
        let accepted = publish_all(attacker, batches).await;
        assert!(
            accepted <= 140,
            "a repository may have 128 maintainers, and {accepted} were accepted from several connections"
        );
        // Each state makes the server read who maintains the repository.
        publish(attacker, states).await;
    };
    scenario
        .run(STORE_LOG_BYTES + (16 << 20), attack)
        .await
        .within(LatencyBound::Tolerable)
}

/// Lets keys list each other under the name of an honest repository, in the model in which a listed key may sign.
async fn mutual_lists_in_the_plain_model() -> Report {
    const KEYS: usize = 127;
    let scenario = Scenario::with(&["--maintainers", "plain"]).await;
    let (attacker, eve) = (scenario.attacker(1), Author::new().earlier(60));
    let authors: Vec<Author> = (0..KEYS).map(|_| Author::new().earlier(60)).collect();
    let keys: Vec<String> = authors.iter().map(|author| author.key().to_hex()).collect();
    let listed = ["maintainers"]
        .into_iter()
        .chain(keys.iter().map(String::as_str));
    let listed: Vec<&str> = listed.collect();
    let name = scenario.honest.name.clone();
    let first = eve.announce_with(&name, &scenario.server.service(), &[&listed]);
    let announce = |by: &Author| by.sign(30617, "", &[&["d", &name], &listed]);
    let batch = |some: &[Author]| messages(&some.iter().map(announce).collect::<Vec<_>>());
    let (first, batches) = (messages(&[first]), authors.chunks(32).map(batch).collect());
    let commit = "a".repeat(40);
    let state = |by: &Author| by.later(1).state(&name, &[("refs/heads/main", &commit)]);
    let states = messages(&authors.iter().take(40).map(state).collect::<Vec<_>>());
    let mut accepted = 0;
    let attack = async {
        assert_eq!(publish(attacker, first).await, 1);
        accepted = publish_all(attacker, batches).await;
        publish(attacker, states).await;
    };
    let report = scenario.run(STORE_LOG_BYTES + (16 << 20), attack).await;
    report.within(LatencyBound::Tolerable).and(
        accepted == KEYS,
        format!("{accepted} of {KEYS} announcements were accepted"),
    )
}

/// Publishes an older announcement again, after its owner removed the server from the list.
async fn delisting_undone_by_replay() -> Report {
    let scenario = Scenario::start().await;
    let (attacker, alice, client) = (
        scenario.attacker(1),
        Author::new().earlier(60),
        scenario.server.client(),
    );
    let old = alice.announce("gone", &scenario.server.service());
    let elsewhere: &[&[&str]] = &[&["d", "gone"], &["clone", "https://b.example/x.git"]];
    let new = alice.later(10).sign(30617, "", elsewhere);
    client.publish_all(&[&old]).await;
    publish(attacker, messages(&[new])).await;
    let mut replayed = 0;
    let attack = async {
        for _ in 0..20 {
            replayed += publish(attacker, messages(std::slice::from_ref(&old))).await;
        }
    };
    let report = scenario.run(STORE_LOG_BYTES, attack).await;
    report.and(
        replayed == 0,
        "an older announcement was accepted after the owner had left",
    )
}

/// Sends requests over one connection, and receives messages for a while.
async fn request_all(attacker: Attacker, requests: Vec<String>) {
    let Some(mut relay) = attacker.relay().await else {
        return;
    };
    for request in requests {
        let _ = relay.socket.send(Message::text(request)).await;
    }
    let receive = async { while relay.receive().await.is_some() {} };
    let _ = tokio::time::timeout(HOLD_DURATION, receive).await;
}

/// Sends requests with a hundred thousand values each.
async fn wide_filters() -> Report {
    let scenario = Scenario::start().await;
    let attacker = scenario.attacker(1);
    let request = |connection: usize, n: usize| {
        let filter = |f: usize| {
            let values: Vec<_> = (0..9_900)
                .map(|v| format!(r#""{connection}-{n}-{f}-{v}""#))
                .collect();
            format!(r##"{{"#t":[{}]}}"##, values.join(","))
        };
        let filters: Vec<_> = (0..10).map(filter).collect();
        format!(r#"["REQ","s{n}",{}]"#, filters.join(","))
    };
    let requests: Vec<Vec<_>> = (0..8)
        .map(|one| (0..5).map(|n| request(one, n)).collect())
        .collect();
    let attack = async {
        join_all(
            requests
                .into_iter()
                .map(|requests| tokio::spawn(request_all(attacker, requests))),
        )
        .await;
    };
    scenario.run(STORE_LOG_BYTES, attack).await
}

/// Asks over many connections, again and again, for what a scan of many events does not find. Each query has few values, as
/// one that is answered at once.
async fn heavy_queries() -> Report {
    const EVENTS: usize = 2_000;
    let scenario = Scenario::start().await;
    let eve = Author::new();
    let names = [vec!["a".into(), scenario.honest.repo().to_string()]];
    let mut batches = Vec::new();
    for batch in 0..8 {
        let mut comments = Vec::new();
        for n in 0..EVENTS / 8 {
            comments.push(sign(&eve, 1111, &format!("{batch} {n}"), &names));
        }
        batches.push(messages(&comments));
    }
    let accepted = publish_all(scenario.attacker(2), batches).await;
    let attacker = scenario.attacker(1);
    let author = eve.key().to_hex();
    let attack = async {
        let mut connections = Vec::new();
        for _ in 0..60 {
            let mut requests = Vec::new();
            for n in 0..100 {
                requests.push(format!(
                    r#"["REQ","s{n}",{{"authors":["{author}"],"kinds":[7777],"limit":10}}]"#
                ));
            }
            connections.push(tokio::spawn(request_all(attacker, requests)));
        }
        join_all(connections).await;
    };
    let report = scenario.run(STORE_LOG_BYTES, attack).await;
    report.and(
        accepted == EVENTS,
        format!("{accepted} events were accepted"),
    )
}

/// Sends messages that lack their last byte.
async fn unfinished_messages() -> Report {
    const LENGTH: usize = 4 << 20;
    let scenario = Scenario::start().await;
    let attacker = scenario.attacker(1);
    let mut frame = vec![0x81, 0xff];
    frame.extend((LENGTH as u64).to_be_bytes());
    frame.resize(frame.len() + 4 + LENGTH - 1, 0);
    let attack = async {
        let begin = async |_: usize| {
            let mut relay = attacker.relay().await?;
            // A server without room for the message closes its side.
            let writing = relay.socket.get_mut().write_all(&frame);
            let _ = tokio::time::timeout(ANSWER_TIMEOUT, writing).await;
            Some(relay)
        };
        let open = join_all((0..120).map(begin)).await;
        tokio::time::sleep(HOLD_DURATION).await;
        drop(open);
    };
    scenario.run(STORE_LOG_BYTES, attack).await
}

/// Publishes deletion requests with many targets, each by an unknown key.
async fn deletions_by_new_keys() -> Report {
    let scenario = Scenario::start().await;
    let attacker = scenario.attacker(1);
    let request = |n: usize| {
        let target = |m: usize| vec!["e".into(), format!("{:064x}", n << 16 | m)];
        sign(
            &Author::new(),
            5,
            "",
            &(0..1_900).map(target).collect::<Vec<_>>(),
        )
    };
    let batch = |batch: usize| (0..30).map(|n| request(batch * 30 + n)).collect::<Vec<_>>();
    let batches = (0..8).map(|n| messages(&batch(n))).collect();
    let attack = async {
        let accepted = publish_all(attacker, batches).await;
        assert!(
            (1..=50).contains(&accepted),
            "there is room for a quarter of a million rows, not for {accepted} requests"
        );
    };
    scenario.run(STORE_LOG_BYTES + (64 << 20), attack).await
}

/// Opens as many negentropy sessions as one address can.
async fn negentropy_sessions() -> Report {
    let scenario = Scenario::start().await;
    let attacker = scenario.attacker(1);
    let attack = async {
        let open = async |_: usize| {
            let mut relay = attacker.relay().await?;
            for n in 0..20 {
                relay
                    .send(&json!(["NEG-OPEN", format!("n{n}"), {}, "6100000200"]))
                    .await;
            }
            for _ in 0..20 {
                answer(&mut relay, "NEG-MSG").await?;
            }
            Some(relay)
        };
        let open = join_all((0..60).map(open)).await;
        tokio::time::sleep(HOLD_DURATION).await;
        drop(open);
    };
    scenario.run(STORE_LOG_BYTES, attack).await
}

/// Lets an author of many events with many tags vanish.
async fn vanishing_with_many_events() -> Report {
    let scenario = Scenario::start().await;
    let (attacker, eve) = (scenario.attacker(1), Author::new().earlier(60));
    let repo = scenario.honest.repo().to_string();
    let comment = |n: usize| {
        let tag = |m: usize| vec!["t".into(), format!("{n}-{m}")];
        let names = [vec!["a".into(), repo.clone()]]
            .into_iter()
            .chain((0..900).map(tag));
        sign(&eve, 1111, &n.to_string(), &names.collect::<Vec<_>>())
    };
    let batch = |batch: usize| (0..50).map(|n| comment(batch * 50 + n)).collect::<Vec<_>>();
    let batches = (0..4).map(|n| messages(&batch(n))).collect();
    let relay = format!("ws://{}/", scenario.server.address());
    let vanish = messages(&[eve.later(30).sign(62, "", &[&["relay", &relay]])]);
    let attack = async {
        assert_eq!(publish_all(attacker, batches).await, 200);
        assert_eq!(publish(attacker, vanish).await, 1);
    };
    scenario.run(STORE_LOG_BYTES + (64 << 20), attack).await
}

/// Publishes many events with many tags, all of which expire in the same second.
async fn events_that_expire_together() -> Report {
    const LEAD_SECONDS: u64 = 12;
    let scenario = Scenario::start().await;
    let (attacker, eve, reader) = (scenario.attacker(1), Author::new(), scenario.attacker(2));
    let (repo, author) = (scenario.honest.repo().to_string(), eve.key().to_hex());
    let end = nostr::types::Timestamp::now().as_secs() + LEAD_SECONDS;
    let comment = |n: usize| {
        let tag = |m: usize| vec!["t".into(), format!("{n}-{m}")];
        let names = [
            vec!["a".into(), repo.clone()],
            vec!["expiration".into(), end.to_string()],
        ];
        let names = names.into_iter().chain((0..900).map(tag));
        sign(&eve, 1111, &n.to_string(), &names.collect::<Vec<_>>())
    };
    let batch = |batch: usize| (0..50).map(|n| comment(batch * 50 + n)).collect::<Vec<_>>();
    let batches = (0..4).map(|n| messages(&batch(n))).collect();
    let count = async || {
        let mut relay = reader.relay().await?;
        relay
            .send(&json!(["COUNT", "c", { "authors": [author] }]))
            .await;
        answer(&mut relay, "COUNT").await?[2]["count"].as_u64()
    };
    let (mut accepted, mut left) = (0, None);
    let attack = async {
        accepted = publish_all(attacker, batches).await;
        let now = nostr::types::Timestamp::now().as_secs();
        tokio::time::sleep(Duration::from_secs(end.saturating_sub(now)) + HOLD_DURATION).await;
        left = count().await;
    };
    let report = scenario.run(STORE_LOG_BYTES + (64 << 20), attack).await;
    report
        .and(accepted == 200, format!("{accepted} events were accepted"))
        .and(
            left == Some(0),
            format!("{left:?} events are served after their expiration"),
        )
}
