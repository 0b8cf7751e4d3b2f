//! EVENT messages over the websocket, from verification to a durable acknowledgement.

use std::time::Instant;

use crate::bench_relay::{BenchRelay, Repository, repositories};
use crate::client::Client;
use crate::processor::processor;
use crate::{per_second, report};

fn message(event: &nostr::event::Event) -> String {
    format!(r#"["EVENT",{}]"#, event.as_json())
}

pub(crate) async fn run(events: usize) {
    for clients in [1, 10] {
        let relay = BenchRelay::start().await;
        let repositories = repositories(relay.address, events);
        let mut announcer = Client::connect(relay.address).await;
        let announcements = repositories
            .iter()
            .map(|repository| message(&repository.announcement));
        announcer.publish(announcements.collect()).await;
        let shares = shares(&repositories, clients);
        let count: usize = shares.iter().map(Vec::len).sum();
        let (start, worked) = (Instant::now(), processor());
        let mut tasks = Vec::new();
        for share in shares {
            let mut client = Client::connect(relay.address).await;
            tasks.push(tokio::spawn(async move { client.publish(share).await }));
        }
        for task in tasks {
            task.await.expect("no panic");
        }
        let rate = per_second(count, start.elapsed());
        let work = (processor() - worked) * 1e6 / count as f64;
        report(
            &format!("ingest, {clients} clients, {count} events"),
            &format!("{rate}   {work:.0} µs of processor time each, including the client's"),
        );
    }
    one_by_one().await;
}

/// Measures a client that waits for each OK before it sends the next event, so that each takes an fsync.
async fn one_by_one() {
    let relay = BenchRelay::start().await;
    let repositories = repositories(relay.address, 500);
    let mut client = Client::connect(relay.address).await;
    for repository in &repositories {
        client
            .publish(vec![message(&repository.announcement)])
            .await;
    }
    let start = Instant::now();
    let mut count = 0;
    for event in repositories
        .iter()
        .flat_map(|repository| &repository.issues)
    {
        client.publish(vec![message(event)]).await;
        count += 1;
    }
    report(
        "ingest, 1 client that waits for each OK",
        &per_second(count, start.elapsed()),
    );
}

/// Divides the issues of all repositories among clients.
fn shares(repositories: &[Repository], clients: usize) -> Vec<Vec<String>> {
    let mut shares = vec![Vec::new(); clients];
    let issues = repositories
        .iter()
        .flat_map(|repository| &repository.issues);
    for (nth, issue) in issues.enumerate() {
        shares[nth % clients].push(message(issue));
    }
    shares
}
