//! The target scale in virtual time: repositories are announced, held and released one after another, and their
//! issues come from a hundred relays.
//!
//! Events are numbers here: an issue is known by its index in a list, and complete events are made only where the
//! local relay refuses one. The small setup runs with every `cargo test`; the large one by `cargo test --release -p
//! grasp-sync --test it scale -- --ignored --nocapture`.

mod facts;
mod relay;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use grasp_core::admission::Retry;
use grasp_core::nostr::filter::Filter;
use grasp_core::nostr::types::Timestamp;
use grasp_core::sync::{ConnectionStatus, IndexChange, SyncLevel};
use grasp_core::{Mono, Now, RelayUrl};
use grasp_sync::engine::{
    Accepted, Config, ConnId, Delivered, Frame, Input, Judged, Outcome, Output, Report, Request,
    Row, Said, SubId, SyncEngine,
};

use self::facts::{Facts, Item};
use self::relay::{Answer, Relay};
use crate::sim::START;
use crate::sim::chance::Chance;

/// Repositories that the local relay releases in a minute, as fast as one host of the hunt's fast class is asked.
const RELEASED_PER_MINUTE: u64 = 600;

enum InTransit {
    Input(Input),
    Frame(RelayUrl, ConnId, Frame),
    Events(RelayUrl, ConnId, SubId, Vec<(Item, Delivered)>),
    Ingest(RelayUrl, ConnId, SubId, Vec<(Item, Row)>),
    Release,
}

/// The state of the local relay.
struct Local {
    held: Vec<usize>,
    released: Vec<bool>,
    stored: Vec<bool>,
    count: usize,
}

struct World {
    now: Now,
    engine: SyncEngine,
    facts: Facts,
    relays: BTreeMap<RelayUrl, Relay>,
    local: Local,
    in_transit: BTreeMap<(Mono, u64), InTransit>,
    order: u64,
    /// The arrival of the last message on a connection: no message overtakes.
    last_arrivals: BTreeMap<(ConnId, bool), Mono>,
    chance: Chance,
    status: BTreeMap<RelayUrl, ConnectionStatus>,
    requests: BTreeMap<RelayUrl, BTreeMap<Request, usize>>,
    inputs: usize,
    spent: Duration,
    is_releasing: bool,
}

impl World {
    fn new(repos: usize, roots: usize, relays: usize) -> Self {
        let facts = Facts::new(repos, roots, relays);
        let mut config = Config::new("us.example".parse().unwrap());
        config.bootstrap = vec![facts::url(0)];
        config.full_sync_above = Some(32 * 1024);
        let now = Now::new(Mono::from_secs(1), Timestamp::from_secs(START));
        let relays = (0..relays)
            .map(|n| (facts::url(n), Relay::new(n, &facts)))
            .collect();
        let local = Local {
            held: Vec::new(),
            released: vec![false; repos],
            stored: vec![false; roots],
            count: 0,
        };
        let mut world = Self {
            now,
            engine: SyncEngine::new(now, config),
            facts,
            relays,
            local,
            in_transit: BTreeMap::new(),
            order: 0,
            last_arrivals: BTreeMap::new(),
            chance: Chance::seeded(11),
            status: BTreeMap::new(),
            requests: BTreeMap::new(),
            inputs: 0,
            spent: Duration::ZERO,
            is_releasing: false,
        };
        world.handle(Input::FeedCaughtUp);
        world
    }

    fn handle(&mut self, input: Input) {
        let began = Instant::now();
        let outputs = self.engine.handle(self.now, input);
        self.spent += began.elapsed();
        self.inputs += 1;
        outputs.into_iter().for_each(|output| self.perform(output));
    }

    /// Advances time until a condition holds, or to the end.
    fn run_until(&mut self, end: Duration, is_done: impl Fn(&Self) -> bool) -> Duration {
        let end = Mono::ZERO + end;
        while !is_done(self) {
            let next = self.in_transit.first_key_value().map(|((at, _), _)| *at);
            let tick = self.engine.next_deadline().map(|at| at.max(self.now.mono));
            let Some(at) = next.into_iter().chain(tick).min().filter(|at| *at <= end) else {
                break;
            };
            self.now = self.now.after(at - self.now.mono);
            match self
                .in_transit
                .first_entry()
                .filter(|_| next.is_some_and(|next| next <= at))
            {
                Some(entry) => {
                    let in_transit = entry.remove();
                    self.arrive(in_transit);
                }
                None => self.handle(Input::Tick),
            }
        }
        self.now.mono.since_start()
    }

    fn arrive(&mut self, in_transit: InTransit) {
        match in_transit {
            InTransit::Input(input) => self.handle(input),
            InTransit::Frame(url, conn, frame) => {
                let Some(relay) = self.relays.get_mut(&url) else {
                    return;
                };
                for answer in relay.receive(&self.facts, frame) {
                    let in_transit = match answer {
                        Answer::Said(said) => InTransit::Input(Input::Heard {
                            relay: url.clone(),
                            conn,
                            said,
                        }),
                        Answer::Events(sub, events) => {
                            InTransit::Events(url.clone(), conn, sub, events)
                        }
                    };
                    self.wire(conn, true, in_transit);
                }
            }
            InTransit::Events(relay, conn, sub, events) => {
                let rows = events.iter().map(|(_, delivered)| *delivered).collect();
                let said = Said::Delivered { sub, rows };
                self.handle(Input::Heard {
                    relay: relay.clone(),
                    conn,
                    said,
                });
                let events = events
                    .into_iter()
                    .map(|(item, one)| (item, one.row))
                    .collect();
                self.send(
                    Duration::from_millis(10),
                    InTransit::Ingest(relay, conn, sub, events),
                );
            }
            InTransit::Ingest(relay, conn, sub, events) => self.ingest(relay, conn, sub, events),
            InTransit::Release => self.release(),
        }
    }

    /// Judges received events as the local relay.
    fn ingest(&mut self, relay: RelayUrl, conn: ConnId, sub: SubId, events: Vec<(Item, Row)>) {
        let (mut judged, mut accepted) = (Vec::new(), Vec::new());
        for (item, row) in events {
            let outcome = self.judge(item, &mut accepted);
            judged.push(Judged { row, outcome });
        }
        self.handle(Input::Ingested {
            relay,
            conn,
            sub,
            judged,
        });
        accepted
            .into_iter()
            .for_each(|one| self.handle(Input::Accepted(one)));
    }

    fn judge(&mut self, item: Item, accepted: &mut Vec<Accepted>) -> Outcome {
        match item {
            Item::Repo(n) if self.local.released[n] => Outcome::Known,
            Item::Repo(n) => {
                if !self.local.held.contains(&n) {
                    self.local.held.push(n);
                    let change = Some(self.facts.announced(n, SyncLevel::StateOnly));
                    accepted.push(Accepted {
                        event: None,
                        is_uncounted: false,
                        change,
                    });
                    if !std::mem::replace(&mut self.is_releasing, true) {
                        self.send(Duration::from_secs(1), InTransit::Release);
                    }
                }
                Outcome::Held
            }
            Item::Root(n) if self.local.stored[n] => Outcome::Known,
            Item::Root(n) if self.local.released[self.facts.repo_of(n)] => {
                self.local.stored[n] = true;
                self.local.count += 1;
                let repos = vec![self.facts.repo(self.facts.repo_of(n)).clone()];
                let id = self.facts.row(Item::Root(n)).id;
                let change = Some(IndexChange::RootAdded {
                    root: id.into(),
                    repos,
                    author: None,
                });
                accepted.push(Accepted {
                    event: Some(id),
                    is_uncounted: false,
                    change,
                });
                Outcome::Stored
            }
            Item::Root(n) => {
                let event = Some(Arc::new(self.facts.issue(n)));
                Outcome::Refused {
                    retry: Retry::AfterDependency,
                    event,
                }
            }
        }
    }

    /// Releases one more repository, as if its git data had arrived.
    fn release(&mut self) {
        self.is_releasing = !self.local.held.is_empty();
        if !self.is_releasing {
            return;
        }
        let n = self.local.held.remove(0);
        self.local.released[n] = true;
        let change = Some(self.facts.announced(n, SyncLevel::Full));
        let event = Some(self.facts.row(Item::Repo(n)).id);
        self.handle(Input::Accepted(Accepted {
            event,
            is_uncounted: false,
            change,
        }));
        let wait = Duration::from_millis(60_000 / RELEASED_PER_MINUTE);
        self.send(wait, InTransit::Release);
    }

    fn perform(&mut self, output: Output) {
        match output {
            Output::Connect { relay, conn, .. } => {
                let facts = self
                    .relays
                    .get_mut(&relay)
                    .map(|there| there.connect(conn))
                    .unwrap();
                let input = Input::Connected {
                    relay,
                    conn,
                    address: None,
                    facts,
                };
                self.send(Duration::from_millis(100), InTransit::Input(input));
            }
            Output::Send { relay, conn, frame } => {
                self.wire(conn, false, InTransit::Frame(relay, conn, frame));
            }
            Output::FetchInventory { request, filter } => {
                let items = Ok(self.inventory(&filter));
                let input = Input::Inventory { request, items };
                self.send(Duration::from_millis(20), InTransit::Input(input));
            }
            Output::Reoffer { events } => self.reoffer(events),
            Output::Report(Report::Requested { relay, request }) => {
                *self
                    .requests
                    .entry(relay)
                    .or_default()
                    .entry(request)
                    .or_default() += 1;
            }
            Output::Report(Report::Status { relay, status }) => {
                self.status.insert(relay, status);
            }
            Output::Report(_)
            | Output::Persist(_)
            | Output::Visited { .. }
            | Output::Disconnect { .. } => {}
        }
    }

    fn reoffer(&mut self, events: Vec<Arc<grasp_core::nostr::event::Event>>) {
        let (mut judged, mut accepted) = (Vec::new(), Vec::new());
        for event in events {
            let Some(item) = self.facts.find(&event.id) else {
                continue;
            };
            let outcome = self.judge(item, &mut accepted);
            judged.push(Judged {
                row: self.facts.row(item),
                outcome,
            });
        }
        self.send(
            Duration::ZERO,
            InTransit::Input(Input::Reoffered { judged }),
        );
        for one in accepted {
            self.send(Duration::ZERO, InTransit::Input(Input::Accepted(one)));
        }
    }

    fn inventory(&self, filter: &Filter) -> Vec<Row> {
        let is_here = |item: &Item| match *item {
            Item::Repo(n) => self.local.released[n],
            Item::Root(n) => self.local.stored[n],
        };
        let all = self.facts.matching(filter, |_| true);
        all.into_iter()
            .filter(is_here)
            .map(|item| self.facts.row(item))
            .collect()
    }

    fn wire(&mut self, conn: ConnId, to_us: bool, in_transit: InTransit) {
        let at = self.now.mono + Duration::from_millis(self.chance.within(20, 80));
        let last = self.last_arrivals.entry((conn, to_us)).or_insert(at);
        *last = at.max(*last);
        let wait = *last - self.now.mono;
        self.send(wait, in_transit);
    }

    fn send(&mut self, wait: Duration, in_transit: InTransit) {
        self.order += 1;
        self.in_transit
            .insert((self.now.mono + wait, self.order), in_transit);
    }

    /// Publishes an issue that is two years old at each relay.
    fn publish_old(&mut self) -> Vec<usize> {
        let urls: Vec<RelayUrl> = (0..self.relays.len()).map(facts::url).collect();
        let mut published = Vec::new();
        for url in urls {
            let Some(relay) = self.relays.get_mut(&url) else {
                continue;
            };
            let Some(repo) = relay.repos.first().copied() else {
                continue;
            };
            let root = self.facts.add_root(repo, START - 2 * 365 * 24 * 60 * 60);
            self.local.stored.push(false);
            let heard = relay.publish(&self.facts, root);
            let conn = self.conn_of(&url);
            for (sub, delivered) in heard {
                let events = vec![(Item::Root(root), delivered)];
                self.wire(
                    conn,
                    true,
                    InTransit::Events(url.clone(), conn, sub, events),
                );
            }
            published.push(root);
        }
        published
    }

    /// Returns the connection to a relay; each relay has one here, which never ends.
    fn conn_of(&self, url: &RelayUrl) -> ConnId {
        self.relays[url].conn.unwrap()
    }

    fn report(&self, took: Duration) {
        let sum = |request| {
            let counts = self.requests.values();
            counts
                .filter_map(|counts| counts.get(&request))
                .sum::<usize>()
        };
        println!(
            "{} repositories, {} roots, {} relays: all here after {took:.1?} of virtual time; \
             {} inputs, {:.1?} in the engine, {:.1} µs each; REQ live {}, page {}, ids {}, NEG-OPEN {}",
            self.local.released.len(),
            self.local.stored.len(),
            self.relays.len(),
            self.inputs,
            self.spent,
            self.spent.as_secs_f64() * 1e6 / self.inputs as f64,
            sum(Request::Live),
            sum(Request::Page),
            sum(Request::Ids),
            sum(Request::Compare),
        );
    }
}

/// Runs a setup of this size until all events are here, then publishes old events, and expects them to arrive.
fn run(repos: usize, roots: usize, relays: usize) {
    let mut world = World::new(repos, roots, relays);
    let releases = Duration::from_secs(repos as u64 * 60 / RELEASED_PER_MINUTE);
    let end = releases + Duration::from_secs(120);
    let took = world.run_until(end, |world| world.local.count == roots);
    world.report(took);
    assert_eq!(world.local.count, roots, "after {took:?}");
    // Half of them are not proven before the last threads have been requested.
    let is_complete = |world: &World| {
        let complete = |status: &&ConnectionStatus| **status == ConnectionStatus::Connected;
        world.status.values().filter(complete).count() == relays
    };
    let calm = world.run_until(end + Duration::from_secs(900), is_complete);
    assert!(is_complete(&world), "{calm:?}: {:?}", world.status);
    let published = world.publish_old();
    assert_eq!(published.len(), relays);
    let all = roots + published.len();
    let until = world.now.mono.since_start() + Duration::from_secs(5);
    world.run_until(until, |world| world.local.count == all);
    let missing: Vec<usize> = (0..relays)
        .filter(|n| !world.local.stored[published[*n]])
        .collect();
    assert_eq!(
        missing,
        Vec::<usize>::new(),
        "old events arrive live from every relay"
    );
    println!("complete after {calm:.1?}; one old event at each relay arrived live");
}

#[test]
fn a_thousand_repositories_are_synced_as_fast_as_they_are_released() {
    run(1_000, 50_000, 100);
}

#[test]
#[ignore = "takes minutes without optimisation"]
fn ten_thousand_repositories_and_half_a_million_roots_over_a_hundred_relays() {
    run(10_000, 500_000, 100);
}
