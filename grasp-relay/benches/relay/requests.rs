//! REQs over the websocket, up to EOSE: the issues of one repository, and the results of checks of one commit.

use std::time::{Duration, Instant};

use crate::bench_relay::{BenchRelay, RESULTS_PER_COMMIT, repositories, results};
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
        let filters = coordinates
            .iter()
            .map(|coordinate| format!(r##"{{"#a":["{coordinate}"],"limit":{limit}}}"##));
        let name = "REQ of one repository";
        measure(&relay, name, filters.collect(), clients, limit).await;
    }
    let (events, commits) = results(&coordinates, events);
    relay.fill(&events).await;
    let found = RESULTS_PER_COMMIT;
    for clients in [1, 10] {
        let filters = commits
            .iter()
            .map(|commit| format!(r##"{{"kinds":[9842],"#c":["{commit}"],"limit":{found}}}"##));
        let name = "REQ of one commit's checks";
        measure(&relay, name, filters.collect(), clients, found).await;
    }
}

async fn measure(
    relay: &BenchRelay,
    name: &str,
    filters: Vec<String>,
    clients: usize,
    limit: usize,
) {
    let start = Instant::now();
    let mut tasks = Vec::new();
    for nth in 0..clients {
        let client = Client::connect(relay.address).await;
        tasks.push(tokio::spawn(ask(client, filters.clone(), nth, limit)));
    }
    let mut times = Vec::new();
    for task in tasks {
        times.extend(task.await.expect("no panic"));
    }
    let took = start.elapsed();
    times.sort();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    report(
        &format!("{name}, {clients} clients, limit {limit}"),
        &format!(
            "{}   p50 {:?}   p99 {:?}",
            per_second(times.len(), took),
            at(0.5),
            at(0.99)
        ),
    );
}

async fn ask(mut client: Client, filters: Vec<String>, nth: usize, limit: usize) -> Vec<Duration> {
    let mut times = Vec::with_capacity(REQS_PER_CLIENT);
    for request in 0..REQS_PER_CLIENT {
        let filter = &filters[(request * 31 + nth * 7) % filters.len()];
        let start = Instant::now();
        client.send(format!(r#"["REQ","s",{filter}]"#)).await;
        assert_eq!(client.until("EOSE").await, limit);
        times.push(start.elapsed());
    }
    times
}
