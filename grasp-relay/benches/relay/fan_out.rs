//! Live events: the cost of publishing, and the speed of delivery.

use std::sync::Arc;
use std::time::{Duration, Instant};

use grasp_relay::nostr::Hub;
use grasp_relay::nostr::hub::{Capacity, HubMessage, Listener};
use nostr::event::Event;
use nostr::filter::{Filter, SingleLetterTag};

use crate::bench_relay::{BenchRelay, repositories};
use crate::client::Client;
use crate::{per_second, report};

/// Limits the sockets, so that one process can hold both ends of each.
const MAX_SOCKETS: usize = 1_000;

/// Measures one publish without other subscriptions, and with `idle` subscriptions to other repositories.
pub(crate) async fn publish_cost(idle: usize) {
    let address = "127.0.0.1:1".parse().expect("an address");
    let repositories = repositories(address, 2_000);
    let events: Vec<_> = repositories
        .iter()
        .flat_map(|repository| &repository.issues)
        .cloned()
        .map(Arc::new)
        .collect();
    let mut alone = Duration::MAX;
    let mut with_idle = Duration::MAX;
    for _ in 0..5 {
        alone = alone.min(cost(&events, 0).await);
        with_idle = with_idle.min(cost(&events, idle).await);
    }
    let each = |took: Duration| took / u32::try_from(events.len()).expect("not that many");
    report(
        "publish with no other subscription",
        &format!("{:>10.2?} each", each(alone)),
    );
    report(
        &format!("publish with {idle} on other repositories"),
        &format!(
            "{:>10.2?} each   {:.2} x",
            each(with_idle),
            with_idle.as_secs_f64() / alone.as_secs_f64()
        ),
    );
}

async fn cost(events: &[Arc<Event>], idle: usize) -> Duration {
    let hub = Hub::start();
    let idle_listener = hub.listen(Capacity {
        events: 1,
        bytes: 1,
    });
    for nth in 0..idle as u64 {
        let coordinate = format!("30617:{nth:064x}:somewhere-else");
        let filter = Filter::new()
            .kinds([nostr::event::Kind::GitIssue, nostr::event::Kind::GitPatch])
            .custom_tag(SingleLetterTag::LOWERCASE_A, coordinate);
        idle_listener.subscribe(nth, vec![filter].into()).await;
    }
    let mut listener = hub.listen(Capacity {
        events: events.len(),
        bytes: usize::MAX,
    });
    listener
        .subscribe(
            1,
            vec![Filter::new().kind(nostr::event::Kind::GitIssue)].into(),
        )
        .await;
    hub.stats().await;
    let start = Instant::now();
    for event in events {
        hub.publish(event.clone()).await;
    }
    drain(&mut listener, events.len()).await;
    start.elapsed()
}

async fn drain(listener: &mut Listener, count: usize) {
    for _ in 0..count {
        assert!(matches!(listener.next().await, HubMessage::Event { .. }));
    }
}

/// Measures the delivery to one, a hundred and `max` subscribers.
pub(crate) async fn run(max: usize) {
    for subscribers in [1, 100, max] {
        let events = (200_000 / subscribers).clamp(20, 2_000);
        fan_out(subscribers, events).await;
    }
}

async fn fan_out(subscribers: usize, events: usize) {
    let relay = BenchRelay::start().await;
    let sockets = subscribers.min(MAX_SOCKETS);
    let each = subscribers / sockets;
    let mut clients = Vec::new();
    for _ in 0..sockets {
        let mut client = Client::connect(relay.address).await;
        for nth in 0..each {
            client
                .send(format!(r#"["REQ","{nth}",{{"kinds":[1621],"limit":0}}]"#))
                .await;
            client.until("EOSE").await;
        }
        clients.push(client);
    }
    let published: Vec<_> = repositories(relay.address, events)
        .into_iter()
        .flat_map(|repository| repository.issues)
        .map(Arc::new)
        .take(events)
        .collect();
    let start = Instant::now();
    let expected = published.len() * each;
    let reading: Vec<_> = clients
        .into_iter()
        .map(|mut client| {
            tokio::spawn(async move {
                for _ in 0..expected {
                    assert!(client.next().await.starts_with("[\"EVENT\""));
                }
            })
        })
        .collect();
    for event in &published {
        relay.hub.publish(event.clone()).await;
    }
    for reader in reading {
        reader.await.expect("no panic");
    }
    let took = start.elapsed();
    let deliveries = published.len() * each * sockets;
    report(
        &format!("fan-out to {subscribers} subscribers on {sockets} sockets"),
        &format!(
            "{} deliveries   {:.2?} per event",
            per_second(deliveries, took),
            took / u32::try_from(published.len()).expect("not that many")
        ),
    );
}
