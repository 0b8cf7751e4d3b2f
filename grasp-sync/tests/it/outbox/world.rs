//! The outbox in virtual time, and a log of what it does.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use grasp_core::nostr::event::{Event, EventId, Kind, Signature, Tag};
use grasp_core::nostr::key::PublicKey;
use grasp_core::nostr::types::Timestamp;
use grasp_core::outbox::{Fact, Named};
use grasp_core::{Mono, RelayUrl, RepoId, Version};
use grasp_sync::outbox::{FetchOutcome, Input, Outbox, OutboxConfig, Output, TaskId};

pub(crate) fn key(n: u32) -> PublicKey {
    let mut bytes = [7; 32];
    bytes[..4].copy_from_slice(&n.to_be_bytes());
    PublicKey::from_byte_array(bytes)
}

pub(crate) fn id(n: u32) -> EventId {
    let mut bytes = [1; 32];
    bytes[..4].copy_from_slice(&n.to_be_bytes());
    EventId::from_byte_array(bytes)
}

pub(crate) fn relay(name: &str) -> RelayUrl {
    format!("wss://{name}.example.com").parse().unwrap()
}

pub(crate) fn repo(owner: u32) -> RepoId {
    RepoId::new(key(owner), "x".parse().unwrap())
}

/// Returns the announcement of the repository of an owner.
pub(crate) fn announced(owner: u32) -> Fact {
    Fact::Announced {
        repo: repo(owner),
        version: Version {
            created_at: Timestamp::from_secs(1),
            id: id(0),
        },
        maintainers: [key(owner)].into(),
    }
}

pub(crate) fn root(n: u32, author: u32, owner: u32) -> Fact {
    Fact::Root {
        id: id(n),
        author: key(author),
        at: Timestamp::from_secs(u64::from(n)),
        repos: vec![repo(owner)],
    }
}

pub(crate) fn answer(n: u32, author: u32, to: u32) -> Fact {
    Fact::Descendant {
        id: id(n),
        author: key(author),
        coordinate: None,
        names: vec![Named::Event(id(to))],
    }
}

/// Returns a relay list, in which `<name` is a relay to read from and `>name` one to write to.
pub(crate) fn list(author: u32, at: u64, relays: &[&str]) -> Arc<Event> {
    let urls: Vec<String> = relays
        .iter()
        .map(|name| format!("wss://{}.example.com", name.trim_start_matches(['<', '>'])))
        .collect();
    let marked = relays
        .iter()
        .zip(&urls)
        .map(|(name, url)| match name.as_bytes() {
            [b'<', ..] => vec!["r", url, "read"],
            [b'>', ..] => vec!["r", url, "write"],
            _ => vec!["r", url],
        });
    list_of(author, at, marked)
}

pub(crate) fn list_of<'a>(
    author: u32,
    at: u64,
    tags: impl IntoIterator<Item = Vec<&'a str>>,
) -> Arc<Event> {
    let tags: Vec<Tag> = tags
        .into_iter()
        .map(|tag| Tag::parse(tag).unwrap())
        .collect();
    let id = id(1_000_000 + author * 100 + u32::try_from(at).unwrap());
    let signature = Signature::from_slice(&[0; 64]).unwrap();
    let at = Timestamp::from_secs(at);
    let event = Event::new(id, key(author), at, Kind::RelayList, tags, "", signature);
    Arc::new(event)
}

/// A request for relay lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fetch {
    pub(crate) at: Mono,
    pub(crate) id: TaskId,
    pub(crate) source: RelayUrl,
    pub(crate) authors: Vec<PublicKey>,
    pub(crate) configured: bool,
}

/// A request for history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Visit {
    pub(crate) at: Mono,
    pub(crate) id: TaskId,
    pub(crate) relay: RelayUrl,
    pub(crate) filters: Vec<String>,
}

pub(crate) struct World {
    pub(crate) outbox: Outbox,
    pub(crate) now: Mono,
    pub(crate) fetches: Vec<Fetch>,
    pub(crate) visits: Vec<Visit>,
    pub(crate) follows: Vec<(PublicKey, Vec<RelayUrl>)>,
    pub(crate) ended: Vec<TaskId>,
}

impl World {
    pub(crate) fn new(index: &[&str], fallback: &[&str]) -> Self {
        let mut config = OutboxConfig::new("us.example.com".parse().unwrap());
        config.index_relays = index.iter().map(|name| relay(name)).collect();
        config.fallback_relays = fallback.iter().map(|name| relay(name)).collect();
        Self::with(config)
    }

    pub(crate) fn with(config: OutboxConfig) -> Self {
        Self {
            outbox: Outbox::new(config),
            now: Mono::from_secs(10),
            fetches: Vec::new(),
            visits: Vec::new(),
            follows: Vec::new(),
            ended: Vec::new(),
        }
    }

    pub(crate) fn learn(&mut self, facts: impl IntoIterator<Item = Fact>) -> &mut Self {
        for fact in facts {
            self.handle(Input::Learnt(fact));
        }
        self
    }

    pub(crate) fn list(&mut self, list: Arc<Event>) -> &mut Self {
        self.handle(Input::Listed(list));
        self
    }

    pub(crate) fn catch_up(&mut self) -> &mut Self {
        self.handle(Input::CaughtUp);
        self
    }

    pub(crate) fn handle(&mut self, input: Input) {
        let at = self.now;
        for output in self.outbox.handle(at, input) {
            match output {
                Output::Fetch {
                    id,
                    source,
                    authors,
                    configured,
                } => self.fetches.push(Fetch {
                    at,
                    id,
                    source,
                    authors,
                    configured,
                }),
                Output::Visit { id, relay, filters } => {
                    let filters = filters.iter().map(|filter| filter.as_json()).collect();
                    self.visits.push(Visit {
                        at,
                        id,
                        relay,
                        filters,
                    });
                }
                Output::EndVisit { id } => self.ended.push(id),
                Output::Follow { author, relays } => {
                    self.follows.push((author, relays.into_iter().collect()));
                }
            }
        }
    }

    /// Lets this time pass, with a tick at each deadline.
    pub(crate) fn run(&mut self, length: Duration) -> &mut Self {
        let end = self.now + length;
        while let Some(deadline) = self.outbox.next_deadline().filter(|at| *at <= end) {
            assert!(deadline > self.now, "a deadline that has passed is not met");
            self.now = deadline;
            self.handle(Input::Tick);
        }
        self.now = end;
        self
    }

    /// Answers the last request: the relay has the lists of these authors, which are accepted or not.
    pub(crate) fn found(&mut self, found: &[u32], accepted: &[u32]) -> &mut Self {
        let keys =
            |numbers: &[u32]| -> BTreeSet<PublicKey> { numbers.iter().map(|n| key(*n)).collect() };
        let outcome = FetchOutcome::Complete {
            found: keys(found),
            accepted: keys(accepted),
        };
        self.answer(outcome)
    }

    pub(crate) fn failed(&mut self) -> &mut Self {
        self.answer(FetchOutcome::Failed)
    }

    fn answer(&mut self, outcome: FetchOutcome) -> &mut Self {
        let id = self.fetches.last().unwrap().id;
        self.handle(Input::Fetched { id, outcome });
        self
    }

    /// Ends the last visit.
    pub(crate) fn visited(&mut self, is_complete: bool) -> &mut Self {
        let id = self.visits.last().unwrap().id;
        self.handle(Input::Visited { id, is_complete });
        self
    }

    /// Returns the relays that were asked for lists, in order.
    pub(crate) fn sources(&self) -> Vec<RelayUrl> {
        self.fetches
            .iter()
            .map(|fetch| fetch.source.clone())
            .collect()
    }

    /// Returns the relays that were asked for history, in order.
    pub(crate) fn visited_relays(&self) -> Vec<RelayUrl> {
        self.visits
            .iter()
            .map(|visit| visit.relay.clone())
            .collect()
    }

    /// Returns the time since the start, in seconds, of each request for lists.
    pub(crate) fn times(&self) -> Vec<u64> {
        let times = self.fetches.iter().map(|fetch| fetch.at);
        times
            .map(|at| (at - Mono::from_secs(10)).as_secs())
            .collect()
    }
}
