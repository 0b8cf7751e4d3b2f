//! Random users, lists that lie, relays that fail or never answer: the rules hold after each input.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use grasp_core::nostr::event::{Event, EventId};
use grasp_core::nostr::key::PublicKey;
use grasp_core::outbound::OutboundPolicy;
use grasp_core::outbox::{Fact, People, RelayList};
use grasp_core::{Mono, RelayUrl, Version};
use grasp_sync::outbox::{FetchOutcome, Input, TaskId};

use super::world::{World, announced, answer, id, key, list_of, relay, repo, root};
use crate::setup::{MINUTE, secs};
use crate::sim::chance::Chance;

const SEEDS: u64 = 30;
const STEPS: usize = 250;
const AUTHORS: u64 = 12;

/// Addresses in lists; those at the end must never be asked.
const ADDRESSES: [&str; 16] = [
    "wss://a.example.com",
    "wss://b.example.com",
    "wss://c.example.com",
    "wss://d.example.com",
    "wss://e.example.com",
    "wss://f.example.com",
    "wss://g.example.com",
    "wss://index.example.com",
    "wss://us.example.com",
    "wss://us.example.com/below",
    "ws://127.0.0.1",
    "wss://192.168.1.1/inbox",
    "wss://[::1]",
    "wss://x.onion",
    "wss://a.example.com/zulu",
    "no address",
];
const USABLE: usize = 8;

/// The world, and what should follow from what it was told.
struct Model {
    world: World,
    chance: Chance,
    people: People,
    lists: BTreeMap<PublicKey, Event>,
    removed: BTreeSet<EventId>,
    bootstrap: Vec<RelayUrl>,
    followed: BTreeMap<PublicKey, Vec<RelayUrl>>,
    open: BTreeMap<TaskId, RelayUrl>,
    fetching: Option<(TaskId, Mono)>,
    last_fetch: Option<TaskId>,
    first_asked: BTreeMap<RelayUrl, Mono>,
    first_visited: BTreeMap<RelayUrl, Mono>,
    dates: u64,
}

impl Model {
    fn new(seed: u64) -> Self {
        let mut world = World::new(&["index"], &[]);
        world.catch_up();
        Self {
            world,
            chance: Chance::seeded(seed),
            people: People::default(),
            lists: BTreeMap::new(),
            removed: BTreeSet::new(),
            bootstrap: Vec::new(),
            followed: BTreeMap::new(),
            open: BTreeMap::new(),
            fetching: None,
            last_fetch: None,
            first_asked: BTreeMap::new(),
            first_visited: BTreeMap::new(),
            dates: 1,
        }
    }

    fn author(&mut self) -> u32 {
        self.chance.within(1, AUTHORS) as u32
    }

    fn owner(&mut self) -> u32 {
        self.chance.within(1, 3) as u32
    }

    fn step(&mut self) {
        match self.chance.within(0, 19) {
            0..=2 => {
                let owner = self.owner();
                self.learn(announced(owner));
            }
            3 => {
                let owner = self.owner();
                self.learn(Fact::Retired { repo: repo(owner) });
            }
            4..=5 => {
                let n = self.chance.within(100, 120) as u32;
                // An id has one author and one repository for ever.
                self.learn(root(n, n % AUTHORS as u32 + 1, n % 3 + 1));
            }
            6..=8 => {
                let n = self.chance.within(200, 240) as u32;
                self.learn(answer(n, n % AUTHORS as u32 + 1, n / 2));
            }
            9 => self.remove(),
            10..=12 => self.list(),
            13..=14 => self.answer(),
            15..=16 => self.end_visit(),
            17 => {
                let relays = vec![relay("bootstrap")];
                let relays = if self.chance.one_in(2) {
                    relays
                } else {
                    Vec::new()
                };
                self.bootstrap.clone_from(&relays);
                self.world.handle(Input::Bootstrap(relays));
            }
            18 if self.chance.one_in(10) => self.world.handle(Input::Lost),
            _ => {
                let seconds = self.chance.within(1, 400);
                self.run(secs(seconds));
            }
        }
    }

    fn learn(&mut self, fact: Fact) {
        let is_gone = match &fact {
            Fact::Root { id, .. } | Fact::Descendant { id, .. } => self.removed.contains(id),
            _ => false,
        };
        if !is_gone {
            self.people.apply(fact.clone());
            self.world.learn([fact]);
        }
    }

    fn remove(&mut self) {
        let author = key(self.author());
        let event = match self.lists.get(&author) {
            Some(list) if self.chance.one_in(2) => list.id,
            _ => id(self.chance.within(100, 240) as u32),
        };
        self.removed.insert(event);
        self.lists.retain(|_, list| list.id != event);
        self.learn(Fact::Removed { id: event });
    }

    fn list(&mut self) {
        let author = self.author();
        self.dates += 1;
        let at = if self.chance.one_in(5) { 1 } else { self.dates };
        let count = self.chance.within(0, 9);
        let mut tags = Vec::new();
        for _ in 0..count {
            let mut tag = vec!["r", *self.chance.pick(&ADDRESSES)];
            match self.chance.within(0, 2) {
                0 => tag.push("read"),
                1 => tag.push("write"),
                _ => {}
            }
            tags.push(tag);
        }
        let list = list_of(author, at, tags);
        if self.removed.contains(&list.id) {
            return;
        }
        let known = self.lists.get(&key(author)).map(Version::of);
        if known < Some(Version::of(&list)) {
            self.lists.insert(key(author), (*list).clone());
        }
        self.world.list(list);
    }

    fn answer(&mut self) {
        let Some(fetch) = self.world.fetches.last().cloned() else {
            return;
        };
        let outcome = if self.chance.one_in(3) {
            FetchOutcome::Failed
        } else {
            let found: BTreeSet<_> = fetch.authors.iter().copied().collect();
            let accepted = found.clone();
            FetchOutcome::Complete { found, accepted }
        };
        let id = fetch.id;
        if self.fetching.is_some_and(|(open, _)| open == id) {
            self.fetching = None;
        }
        self.world.handle(Input::Fetched { id, outcome });
    }

    fn end_visit(&mut self) {
        let open: Vec<TaskId> = self.open.keys().copied().collect();
        if open.is_empty() {
            return;
        }
        let id = *self.chance.pick(&open);
        self.open.remove(&id);
        let is_complete = !self.chance.one_in(3);
        self.world.handle(Input::Visited { id, is_complete });
    }

    /// Lets time pass, and checks after each deadline.
    fn run(&mut self, length: Duration) {
        let end = self.world.now + length;
        while let Some(deadline) = self.world.outbox.next_deadline().filter(|at| *at <= end) {
            self.world.now = deadline;
            self.world.handle(Input::Tick);
            self.check();
        }
        self.world.now = end;
    }

    fn relay_list(&self, author: &PublicKey) -> Option<RelayList> {
        let list = self.lists.get(author)?;
        let own = "us.example.com".parse().unwrap();
        // The operator's relays are public ones here, so that they need no exemption.
        let operator = BTreeSet::new();
        Some(RelayList::parse(
            list,
            &own,
            OutboundPolicy::default(),
            &operator,
        ))
    }

    fn check(&mut self) {
        self.check_fetches();
        self.check_visits();
        for (author, relays) in self.world.follows.drain(..) {
            self.followed.insert(author, relays);
        }
        let mut history = BTreeSet::new();
        for n in 1..=AUTHORS as u32 {
            let author = key(n);
            let list = self.relay_list(&author).unwrap_or_default();
            let is_followed = self.people.has_root(&author);
            let mut live = if is_followed {
                list.read.clone()
            } else {
                Vec::new()
            };
            live.sort();
            let followed = self.followed.get(&author).cloned().unwrap_or_default();
            assert_eq!(followed, live, "author {n}");
            if self.people.threads_of(&author).next().is_some() {
                history.extend(list.of_participant().cloned());
            }
            if self.people.maintained_by(&author).next().is_some() {
                history.extend(list.read.iter().cloned());
            }
        }
        let stats = self.world.outbox.stats();
        assert_eq!(stats.relays, history.len());
        assert_eq!(stats.workers, self.open.len());
        assert!(self.open.values().all(|relay| history.contains(relay)));
        let deadline = self.world.outbox.next_deadline();
        assert!(deadline.is_none_or(|at| at > self.world.now));
        assert!(deadline.is_some() || self.people.is_empty());
    }

    fn check_fetches(&mut self) {
        let Some(fetch) = self.world.fetches.last() else {
            return;
        };
        if self.last_fetch < Some(fetch.id) {
            let fetch = fetch.clone();
            self.last_fetch = Some(fetch.id);
            let is_over = self
                .fetching
                .is_none_or(|(_, at)| fetch.at - at >= secs(30));
            assert!(is_over, "two requests at the same time");
            self.fetching = Some((fetch.id, fetch.at));
            assert!(
                fetch
                    .authors
                    .iter()
                    .all(|author| self.people.is_eligible(author))
            );
            let is_configured =
                fetch.source == relay("index") || self.bootstrap.contains(&fetch.source);
            assert_eq!(fetch.configured, is_configured);
            assert!(
                is_configured || is_usable(&fetch.source),
                "{}",
                fetch.source
            );
            self.first_asked.entry(fetch.source).or_insert(fetch.at);
            check_pace(&self.first_asked);
        }
    }

    fn check_visits(&mut self) {
        for id in self.world.ended.drain(..) {
            self.open.remove(&id);
        }
        for visit in self.world.visits.drain(..) {
            assert!(is_usable(&visit.relay), "{}", visit.relay);
            assert!(!visit.filters.is_empty());
            let twice = self.open.values().any(|relay| *relay == visit.relay);
            assert!(!twice, "two visits of {}", visit.relay);
            self.open.insert(visit.id, visit.relay.clone());
            self.first_visited.entry(visit.relay).or_insert(visit.at);
            check_pace(&self.first_visited);
        }
    }
}

fn is_usable(relay: &RelayUrl) -> bool {
    ADDRESSES[..USABLE].contains(&relay.as_str())
}

/// Checks that one relay is new in each pass: of three, the last is so a pass after the first.
fn check_pace(first: &BTreeMap<RelayUrl, Mono>) {
    let mut times: Vec<Mono> = first.values().copied().collect();
    times.sort();
    assert!(
        times.windows(3).all(|three| three[2] - three[0] >= MINUTE),
        "{times:?}"
    );
}

#[test]
fn the_rules_hold_after_each_input() {
    for seed in 0..SEEDS {
        let mut model = Model::new(seed);
        for _ in 0..STEPS {
            model.step();
            model.check();
        }
        assert!(!model.first_asked.is_empty(), "seed {seed}");
    }
}
