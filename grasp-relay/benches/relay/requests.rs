//! REQs over the websocket: the issues of one repository, up to EOSE.

use std::time::{Duration, Instant};

use crate::bench_relay::{BenchRelay, repositories};
use crate::client::Client;
use crate::{per_second, report};

/// The number of REQs of each client.
const REQS_PER_CLIENT: usize = 1_000;

pub(crate) async fn run(events: usize) {
    let relay = BenchRelay::start().await;
    let repositories = repositories(relay.address, events);
    for repository in &repositories {
        relay.fill(&repository.issues).await;
    }
    let coordinates: Vec<_> = repositories
        .into_iter()
        .map(|repository| repository.coordinate)
        .collect();
    for (clients, limit) in [(1, 1), (1, 20), (10, 1), (10, 20)] {
        let start = Instant::now();
        let mut tasks = Vec::new();
        for nth in 0..clients {
            let client = Client::connect(relay.address).await;
            tasks.push(tokio::spawn(ask(client, coordinates.clone(), nth, limit)));
        }
        let mut times = Vec::new();
        for task in tasks {
            times.extend(task.await.expect("no panic"));
        }
        let took = start.elapsed();
        times.sort();
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
        report(
            &format!("REQ of one repository, {clients} clients, limit {limit}"),
            &format!(
                "{}   p50 {:?}   p99 {:?}",
                per_second(times.len(), took),
                at(0.5),
                at(0.99)
            ),
        );
    }
}

async fn ask(
    mut client: Client,
    coordinates: Vec<String>,
    nth: usize,
    limit: usize,
) -> Vec<Duration> {
    let mut times = Vec::with_capacity(REQS_PER_CLIENT);
    for request in 0..REQS_PER_CLIENT {
        let coordinate = &coordinates[(request * 31 + nth * 7) % coordinates.len()];
        let start = Instant::now();
        client
            .send(format!(
                r##"["REQ","s",{{"#a":["{coordinate}"],"limit":{limit}}}]"##
            ))
            .await;
        assert_eq!(client.until("EOSE").await, limit);
        times.push(start.elapsed());
    }
    times
}
