//! EVENT messages over the websocket, from verification to a durable acknowledgement.

use std::time::Instant;

use crate::bench_relay::{BenchRelay, Repository, repositories};
use crate::client::Client;
use crate::processor::processor;
use crate::{figures, report};

fn message(event: &nostr::event::Event) -> String {
    format!(r#"["EVENT",{}]"#, event.as_json())
}

/// Clients, and the events that each has sent and that are not acknowledged yet.
const SHAPES: [(usize, usize); 4] = [(8, 64), (1, 500), (64, 1), (1, 1)];

pub(crate) async fn run(events: usize) {
    for (clients, in_flight) in SHAPES {
        // A client that waits for each OK takes long.
        let events = match clients * in_flight {
            1 => events.div_ceil(10),
            _ => events,
        };
        measure(clients, in_flight, events).await;
    }
}

async fn measure(clients: usize, in_flight: usize, events: usize) {
    let relay = BenchRelay::start().await;
    let repositories = repositories(relay.address, events);
    let mut announcer = Client::connect(relay.address).await;
    let announcements = repositories
        .iter()
        .map(|repository| message(&repository.announcement));
    announcer.publish(announcements.collect(), 100).await;
    let shares = shares(&repositories, clients);
    let count: usize = shares.iter().map(Vec::len).sum();
    let mut connected = Vec::new();
    for share in shares {
        connected.push((Client::connect(relay.address).await, share));
    }
    let start = Instant::now();
    let worked = processor();
    let mut tasks = Vec::new();
    for (mut client, share) in connected {
        tasks.push(tokio::spawn(async move {
            client.publish(share, in_flight).await;
        }));
    }
    for task in tasks {
        task.await.expect("no panic");
    }
    report(
        &format!("publish {clients} x {in_flight}"),
        &figures(count, start.elapsed(), processor() - worked),
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
