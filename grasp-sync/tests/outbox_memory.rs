//! The memory of the outbox at scale, in a program of its own: other tests would allocate meanwhile.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use grasp_core::nostr::event::{Event, EventId, Kind, Signature, Tag};
use grasp_core::nostr::key::PublicKey;
use grasp_core::nostr::types::Timestamp;
use grasp_core::outbox::{Fact, Named};
use grasp_core::{Mono, RepoId, Version};
use grasp_sync::outbox::{FetchOutcome, Input, Outbox, OutboxConfig, Output};
use peak_alloc::PeakAlloc;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

const AUTHORS: u64 = 10_000;
const REPOS: u64 = 1_000;
/// Threads that each author takes part in.
const THREADS: u64 = 3;

/// Returns bytes that are spread like those of keys and ids.
fn spread(n: u64) -> [u8; 32] {
    let mut bytes = [0; 32];
    for (at, chunk) in (0u64..).zip(bytes.chunks_exact_mut(8)) {
        let mixed = (n + at).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31);
        chunk.copy_from_slice(&mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9).to_be_bytes());
    }
    bytes
}

fn key(n: u64) -> PublicKey {
    PublicKey::from_byte_array(spread(n))
}

fn id(n: u64) -> EventId {
    EventId::from_byte_array(spread(1_000_000 + n))
}

fn repo(n: u64) -> RepoId {
    RepoId::new(key(n), format!("repository-{n}").parse().unwrap())
}

/// Returns what is stored of an author: a list of four relays, one thread and two answers.
fn facts(n: u64) -> Vec<Fact> {
    let mut facts = vec![Fact::Root {
        id: id(n),
        author: key(n),
        at: Timestamp::from_secs(n),
        repos: vec![repo(n % REPOS)],
    }];
    for answer in 1..THREADS {
        facts.push(Fact::Descendant {
            id: id(answer * AUTHORS + n),
            author: key(n),
            coordinate: None,
            names: vec![Named::Event(id((n * 7 + answer) % AUTHORS))],
        });
    }
    facts
}

fn list(n: u64) -> Arc<Event> {
    let relays = [n % 7, 100 + n % 50, 1_000 + n % 1_000, 10_000 + n];
    let urls = relays.map(|relay| format!("wss://relay-{relay}.example.com"));
    let tags: Vec<Tag> = urls
        .iter()
        .map(|url| Tag::parse(["r", url]).unwrap())
        .collect();
    let signature = Signature::from_slice(&[0; 64]).unwrap();
    let at = Timestamp::from_secs(1);
    let list = id(4 * AUTHORS + n);
    Arc::new(Event::new(
        list,
        key(n),
        at,
        Kind::RelayList,
        tags,
        "",
        signature,
    ))
}

#[test]
fn ten_thousand_authors_take_less_than_20_mb() {
    let before = ALLOCATOR.current_usage();
    let mut config = OutboxConfig::new("us.example.com".parse().unwrap());
    config.index_relays = vec!["wss://index.example.com".parse().unwrap()];
    let mut outbox = Outbox::new(config);
    let mut now = Mono::ZERO;
    for n in 0..REPOS {
        let announced = Fact::Announced {
            repo: repo(n),
            version: Version {
                created_at: Timestamp::from_secs(1),
                id: id(n),
            },
            maintainers: [key(n)].into(),
        };
        assert!(outbox.handle(now, Input::Learnt(announced)).is_empty());
    }
    for n in 0..AUTHORS {
        for fact in facts(n) {
            assert!(outbox.handle(now, Input::Learnt(fact)).is_empty());
        }
        assert!(outbox.handle(now, Input::Listed(list(n))).is_empty());
    }
    drop(outbox.handle(now, Input::CaughtUp));
    assert_eq!(outbox.stats().authors, AUTHORS as usize);
    // Two hours of requests and history.
    let mut waiting = Vec::new();
    while let Some(deadline) = outbox
        .next_deadline()
        .filter(|at| *at < Mono::from_secs(7_200))
    {
        now = now.max(deadline);
        let input = waiting.pop().unwrap_or(Input::Tick);
        for output in outbox.handle(now, input) {
            match output {
                Output::Fetch { id, authors, .. } => waiting.push(Input::Fetched {
                    id,
                    outcome: FetchOutcome::Complete {
                        found: authors.iter().copied().collect(),
                        accepted: authors.into_iter().collect(),
                    },
                }),
                Output::Visit { id, .. } => waiting.push(Input::Visited {
                    id,
                    is_complete: true,
                }),
                Output::EndVisit { .. } | Output::Follow { .. } => {}
            }
        }
    }
    drop(waiting);
    let bytes = ALLOCATOR.current_usage() - before;
    println!("{} KB", bytes / 1024);
    assert!(bytes <= 20 * 1024 * 1024, "{bytes} bytes");
}
