//! Negentropy over the websocket: equal sets, and sets that differ in one of a hundred.

use std::time::Instant;

use negentropy::{Id, Negentropy, NegentropyStorageVector};
use nostr::event::Event;

use crate::bench_relay::{BenchRelay, repositories};
use crate::client::Client;
use crate::report;

pub(crate) async fn run(items: usize) {
    let relay = BenchRelay::start().await;
    let events: Vec<_> = repositories(relay.address, items)
        .into_iter()
        .flat_map(|repository| repository.issues)
        .collect();
    relay.fill(&events).await;
    for missing_of_hundred in [0, 1] {
        let have: Vec<_> = events
            .iter()
            .enumerate()
            .filter(|(nth, _)| nth % 100 >= missing_of_hundred)
            .collect();
        let storage = storage(have.into_iter().map(|(_, event)| event));
        let mut client = Client::connect(relay.address).await;
        let start = Instant::now();
        let outcome = sync(&mut client, &storage).await;
        let took = start.elapsed();
        assert_eq!(outcome.need, events.len() * missing_of_hundred / 100);
        report(
            &format!(
                "NEG of {} items, {missing_of_hundred} % missing",
                events.len()
            ),
            &format!(
                "{took:>10.2?}   {} rounds   {} bytes out   {} bytes in   {} ids",
                outcome.rounds, outcome.sent, outcome.received, outcome.need
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
    rounds: usize,
    sent: usize,
    received: usize,
    need: usize,
}

async fn sync(client: &mut Client, storage: &NegentropyStorageVector) -> Outcome {
    let mut negentropy = Negentropy::borrowed(storage, 60_000).expect("a frame limit");
    let first = negentropy.initiate().expect("a first message");
    let mut message = format!(r#"["NEG-OPEN","n",{{"kinds":[1621]}},"{}"]"#, hex(&first));
    let mut outcome = Outcome {
        rounds: 0,
        sent: 0,
        received: 0,
        need: 0,
    };
    let (mut have, mut need) = (Vec::new(), Vec::new());
    loop {
        outcome.rounds += 1;
        outcome.sent += message.len();
        client.send(message).await;
        let answer = client.next().await;
        outcome.received += answer.len();
        let bytes = unhex(answer.split('"').nth(5).expect("hex"));
        let next = negentropy.reconcile_with_ids(&bytes, &mut have, &mut need);
        match next.expect("a good answer") {
            Some(next) => message = format!(r#"["NEG-MSG","n","{}"]"#, hex(&next)),
            None => break,
        }
    }
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
