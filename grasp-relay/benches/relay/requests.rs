//! REQs over the websocket, up to EOSE: the issues of one repository, the newest of a kind, and the results of checks of
//! one commit.

use std::time::{Duration, Instant};

use crate::bench_relay::{BenchRelay, RESULTS_PER_COMMIT, repositories, results};
use crate::client::Client;
use crate::processor::processor;
use crate::{figures, report};

/// A REQ that clients repeat with different filters.
struct Row {
    name: &'static str,
    filters: Vec<String>,
    clients: usize,
    /// REQs of all clients together.
    count: usize,
    /// Events of each answer.
    limit: usize,
}

pub(crate) async fn run(events: usize) {
    let relay = BenchRelay::start().await;
    let repositories = repositories(relay.address, events);
    for repository in &repositories {
        relay.fill(&repository.issues).await;
    }
    let mut coordinates = Vec::new();
    for repository in repositories {
        coordinates.push(repository.coordinate);
    }
    for clients in [1, 8, 64] {
        let mut filters = Vec::new();
        for coordinate in &coordinates {
            filters.push(format!(r##"{{"#a":["{coordinate}"],"limit":20}}"##));
        }
        let row = Row {
            name: "REQ #a",
            filters,
            clients,
            count: events.min(20_000),
            limit: 20,
        };
        row.measure(&relay).await;
    }
    for (limit, count) in [(500, 600), (1, 20_000)] {
        let row = Row {
            name: "REQ kinds",
            filters: vec![format!(r#"{{"kinds":[1621],"limit":{limit}}}"#)],
            clients: 1,
            count,
            limit,
        };
        row.measure(&relay).await;
    }
    let (events, commits) = results(&coordinates, events);
    relay.fill(&events).await;
    let limit = RESULTS_PER_COMMIT;
    for clients in [1, 8] {
        let mut filters = Vec::new();
        for commit in &commits {
            filters.push(format!(
                r##"{{"kinds":[9842],"#c":["{commit}"],"limit":{limit}}}"##
            ));
        }
        let row = Row {
            name: "REQ of one commit's checks",
            filters,
            clients,
            count: 8_000,
            limit,
        };
        row.measure(&relay).await;
    }
}

impl Row {
    async fn measure(&self, relay: &BenchRelay) {
        let each = self.count.div_ceil(self.clients);
        let mut connected = Vec::new();
        for _ in 0..self.clients {
            connected.push(Client::connect(relay.address).await);
        }
        let start = Instant::now();
        let worked = processor();
        let mut tasks = Vec::new();
        for (nth, client) in connected.into_iter().enumerate() {
            let asked = ask(client, self.filters.clone(), nth, each, self.limit);
            tasks.push(tokio::spawn(asked));
        }
        let mut times = Vec::new();
        for task in tasks {
            times.extend(task.await.expect("no panic"));
        }
        let took = start.elapsed();
        let worked = processor() - worked;
        times.sort();
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
        let figures = figures(times.len(), took, worked);
        report(
            &format!(
                "{}, limit {}, {} clients",
                self.name, self.limit, self.clients
            ),
            &format!("{figures}   p50 {:.0?}   p99 {:.0?}", at(0.5), at(0.99)),
        );
    }
}

async fn ask(
    mut client: Client,
    filters: Vec<String>,
    nth: usize,
    count: usize,
    limit: usize,
) -> Vec<Duration> {
    let mut times = Vec::with_capacity(count);
    for request in 0..count {
        let filter = &filters[(request * 31 + nth * 7) % filters.len()];
        let start = Instant::now();
        client.send(format!(r#"["REQ","s",{filter}]"#)).await;
        assert_eq!(client.until("EOSE").await, limit);
        times.push(start.elapsed());
    }
    times
}
