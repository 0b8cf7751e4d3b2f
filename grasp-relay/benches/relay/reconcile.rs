//! Negentropy over the websocket: equal sets, by kind and of all events, and sets that differ in one of a hundred.

use std::time::{Duration, Instant};

use negentropy::{Id, Negentropy, NegentropyStorageVector};
use nostr::event::Event;

use crate::bench_relay::{BenchRelay, repositories};
use crate::client::Client;
use crate::processor::processor;
use crate::report;

/// Sessions per row, of which the median is shown.
const SESSIONS: usize = 21;

pub(crate) async fn run(items: usize) {
    let relay = BenchRelay::start().await;
    let events: Vec<_> = repositories(relay.address, items)
        .into_iter()
        .flat_map(|repository| repository.issues)
        .collect();
    relay.fill(&events).await;
    let by_kind = r#"{"kinds":[1621]}"#;
    for (name, filter, missing_of_hundred) in [
        ("1 % missing", by_kind, 1),
        ("equal by kind", by_kind, 0),
        ("equal {}", "{}", 0),
    ] {
        let have = events.iter().enumerate();
        let have = have.filter(|(nth, _)| nth % 100 >= missing_of_hundred);
        let storage = storage(have.map(|(_, event)| event));
        let mut client = Client::connect(relay.address).await;
        let worked = processor();
        let mut outcomes = Vec::new();
        for _ in 0..SESSIONS {
            let outcome = sync(&mut client, &storage, filter).await;
            assert_eq!(outcome.need, events.len() * missing_of_hundred / 100);
            outcomes.push(outcome);
        }
        let worked = (processor() - worked) * 1e3 / SESSIONS as f64;
        outcomes.sort_by_key(|outcome| outcome.waited);
        let outcome = &outcomes[SESSIONS / 2];
        report(
            &format!("NEG of {} items, {name}", events.len()),
            &format!(
                "{:>8.2?} for answers   {worked:.1} ms CPU   {} rounds   {} bytes out   {} bytes in",
                outcome.waited, outcome.rounds, outcome.sent, outcome.received
            ),
        );
    }
}

fn storage<'a>(events: impl Iterator<Item = &'a Event>) -> NegentropyStorageVector {
    let mut storage = NegentropyStorageVector::new();
    for event in events {
        let id = Id::from_byte_array(event.id.to_bytes());
        storage
            .insert(event.created_at.as_secs(), id)
            .expect("open");
    }
    storage.seal().expect("sealed once");
    storage
}

struct Outcome {
    /// The time until the answers came, without the client's own work.
    waited: Duration,
    rounds: usize,
    sent: usize,
    received: usize,
    need: usize,
}

async fn sync(client: &mut Client, storage: &NegentropyStorageVector, filter: &str) -> Outcome {
    let mut negentropy = Negentropy::borrowed(storage, 60_000).expect("a frame limit");
    let first = negentropy.initiate().expect("a first message");
    let mut message = format!(r#"["NEG-OPEN","n",{filter},"{}"]"#, hex(&first));
    let mut outcome = Outcome {
        waited: Duration::ZERO,
        rounds: 0,
        sent: 0,
        received: 0,
        need: 0,
    };
    let (mut have, mut need) = (Vec::new(), Vec::new());
    loop {
        outcome.rounds += 1;
        outcome.sent += message.len();
        let start = Instant::now();
        client.send(message).await;
        let answer = client.next().await;
        outcome.waited += start.elapsed();
        outcome.received += answer.len();
        let bytes = unhex(answer.split('"').nth(5).expect("hex"));
        let next = negentropy.reconcile_with_ids(&bytes, &mut have, &mut need);
        match next.expect("a good answer") {
            Some(next) => message = format!(r#"["NEG-MSG","n","{}"]"#, hex(&next)),
            None => break,
        }
    }
    client.send(r#"["NEG-CLOSE","n"]"#.into()).await;
    need.sort();
    need.dedup();
    outcome.need = need.len();
    outcome
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let digits = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("hex");
    (0..text.len()).step_by(2).map(digits).collect()
}
