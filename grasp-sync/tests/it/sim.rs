//! A simulation in virtual time: one engine, one local relay, and scripted relays.
//!
//! Nothing sleeps, and all randomness comes from a seed. Hours pass in milliseconds.

pub(crate) mod chance;
pub(crate) mod event;
pub(crate) mod local;
pub(crate) mod outbox;
pub(crate) mod peer;
pub(crate) mod script;
pub(crate) mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use grasp_core::admission::SyncPath;
use grasp_core::nostr::event::Event;
use grasp_core::nostr::filter::Filter;
use grasp_core::nostr::types::Timestamp;
use grasp_core::{Mono, Now, RelayUrl};
use grasp_sync::engine::{
    Accepted, Config, ConnId, Delivered, Fault, Frame, Input, Judged, Outcome, Output, RelayRecord,
    Report, Row, Said, SubId, SyncEngine, VisitId, VisitOutcome,
};
use grasp_sync::outbox::{self as machine, Outbox, TaskId};

use self::chance::Chance;
use self::local::Local;
use self::peer::{Peer, Reply};

/// The start of virtual time.
pub(crate) const START: u64 = 1_700_000_000;

/// A message or input in transit.
enum InTransit {
    /// To the engine.
    Input(Input),
    /// To a relay.
    Frame {
        relay: RelayUrl,
        conn: ConnId,
        frame: Frame,
    },
    /// From a relay, with events.
    Events {
        relay: RelayUrl,
        conn: ConnId,
        sub: SubId,
        events: Vec<Event>,
    },
    /// To the local relay.
    Ingest {
        relay: RelayUrl,
        conn: ConnId,
        sub: SubId,
        events: Vec<Event>,
    },
    /// A connection ends.
    Cut { relay: RelayUrl, conn: ConnId },
    /// An event is published at a relay.
    Publish { relay: RelayUrl, event: Box<Event> },
    /// The answer of a relay to a request for relay lists; nothing if it failed.
    Lists {
        id: TaskId,
        events: Option<Vec<Event>>,
    },
}

/// The simulated world.
pub(crate) struct Sim {
    pub(crate) now: Now,
    pub(crate) engine: SyncEngine,
    pub(crate) outbox: Option<Outbox>,
    /// Requests for relay lists, with the number of authors.
    pub(crate) asked_for_lists: Vec<(Mono, RelayUrl, usize)>,
    /// True if the engine's invariants are checked after each input, which takes long in a large world.
    pub(crate) checks_invariants: bool,
    pub(crate) local: Local,
    pub(crate) peers: BTreeMap<RelayUrl, Peer>,
    /// Relays whose events do not verify.
    pub(crate) forgers: BTreeSet<RelayUrl>,
    /// The addresses of relays, where that matters.
    pub(crate) addresses: BTreeMap<RelayUrl, IpAddr>,
    pub(crate) reports: Vec<Report>,
    /// Visits that have ended.
    pub(crate) visited: Vec<(VisitId, VisitOutcome)>,
    /// Everything sent, in order.
    pub(crate) frames: Vec<(Mono, RelayUrl, Frame)>,
    /// Connections requested.
    pub(crate) dials: Vec<(Mono, RelayUrl)>,
    /// Connections made.
    pub(crate) conns: Vec<(RelayUrl, ConnId)>,
    pub(crate) records: BTreeMap<RelayUrl, RelayRecord>,
    pub(crate) chance: Chance,
    config: Config,
    in_transit: BTreeMap<(Mono, u64), InTransit>,
    order: u64,
    /// The arrival of the last message on a connection: no message overtakes.
    last_arrivals: BTreeMap<(ConnId, bool), Mono>,
    /// Relays that rate-limited us, and until when no request may be sent to them.
    paused: BTreeMap<RelayUrl, Mono>,
    /// Requests that were sent and have not ended.
    open: BTreeSet<SubId>,
    /// The filters of each subscription.
    asked: BTreeMap<SubId, Vec<Filter>>,
    ticks_now: (Mono, u32),
}

impl Sim {
    pub(crate) fn new(seed: u64, mut config: Config) -> Self {
        config.seed = seed;
        let now = Now::new(Mono::from_secs(1), Timestamp::from_secs(START));
        Self {
            now,
            engine: SyncEngine::new(now, config.clone()),
            config,
            outbox: None,
            asked_for_lists: Vec::new(),
            checks_invariants: true,
            local: Local::default(),
            peers: BTreeMap::new(),
            forgers: BTreeSet::new(),
            addresses: BTreeMap::new(),
            reports: Vec::new(),
            visited: Vec::new(),
            frames: Vec::new(),
            dials: Vec::new(),
            conns: Vec::new(),
            records: BTreeMap::new(),
            chance: Chance::seeded(seed),
            in_transit: BTreeMap::new(),
            order: 0,
            last_arrivals: BTreeMap::new(),
            paused: BTreeMap::new(),
            open: BTreeSet::new(),
            asked: BTreeMap::new(),
            ticks_now: (Mono::ZERO, 0),
        }
    }

    /// Replaces our process by another that has only what was on disk.
    pub(crate) fn crash(&mut self, seed: u64) {
        let mut config = self.config.clone();
        config.seed = seed;
        self.engine = SyncEngine::new(self.now, config);
        self.in_transit
            .retain(|_, in_transit| matches!(in_transit, InTransit::Publish { .. }));
        self.peers.values_mut().for_each(Peer::drop_connections);
        self.open.clear();
        self.asked.clear();
        let records = self.records.values().cloned().collect();
        self.handle(Input::Restored(records));
        for event in self.local.stored.clone().into_values() {
            self.handle(Input::Accepted(accepted(&event, false)));
        }
        self.handle(Input::FeedCaughtUp);
    }

    /// Publishes at the local relay as a client.
    pub(crate) fn accept(&mut self, event: Event) {
        let accepted = self.local.direct(event);
        accepted
            .into_iter()
            .for_each(|one| self.handle(Input::Accepted(one)));
    }

    /// Publishes at a relay, later.
    pub(crate) fn publish_after(&mut self, wait: Duration, relay: &RelayUrl, event: Event) {
        let publish = InTransit::Publish {
            relay: relay.clone(),
            event: Box::new(event),
        };
        self.send(wait, publish);
    }

    pub(crate) fn handle(&mut self, input: Input) {
        self.note_rate_refusal(&input);
        let news = self.outbox_input(&input);
        let outputs = self.engine.handle(self.now, input);
        if self.checks_invariants {
            self.engine.check_invariants();
        }
        outputs.into_iter().for_each(|output| self.perform(output));
        if let Some(news) = news {
            self.tell_outbox(news);
        }
    }

    /// Advances time.
    pub(crate) fn run_for(&mut self, length: Duration) {
        let end = self.now.mono + length;
        loop {
            let next = self.in_transit.first_key_value().map(|((at, _), _)| *at);
            let outbox = self.outbox.as_ref();
            let deadlines = [
                self.engine.next_deadline(),
                outbox.and_then(|outbox| outbox.next_deadline()),
            ];
            let tick = deadlines.into_iter().flatten().min();
            let tick = tick.map(|at| at.max(self.now.mono));
            let soonest = next.into_iter().chain(tick).min();
            let Some(at) = soonest.filter(|at| *at <= end) else {
                break;
            };
            self.now = self.now.after(at - self.now.mono);
            if next.is_some_and(|next| next <= at) {
                let Some((_, in_transit)) = self.in_transit.pop_first() else {
                    break;
                };
                self.arrive(in_transit);
            } else {
                self.count_tick();
                self.handle(Input::Tick);
                self.tell_outbox(machine::Input::Tick);
            }
        }
        self.now = self.now.after(end - self.now.mono);
    }

    /// Panics if the engine asks for a tick repeatedly at the same moment.
    fn count_tick(&mut self) {
        let (at, count) = self.ticks_now;
        self.ticks_now = if at == self.now.mono {
            (at, count + 1)
        } else {
            (self.now.mono, 1)
        };
        assert!(
            self.ticks_now.1 < 50,
            "the deadline {} repeats",
            self.now.mono
        );
    }

    fn arrive(&mut self, in_transit: InTransit) {
        match in_transit {
            InTransit::Input(input) => self.handle(input),
            InTransit::Frame { relay, conn, frame } => self.receive_frame(&relay, conn, frame),
            InTransit::Events {
                relay,
                conn,
                sub,
                events,
            } => {
                let rows = self.delivered(sub, &events);
                let said = Said::Delivered { sub, rows };
                self.handle(Input::Heard {
                    relay: relay.clone(),
                    conn,
                    said,
                });
                let wait = Duration::from_millis(self.chance.within(1, 40));
                self.send(
                    wait,
                    InTransit::Ingest {
                        relay,
                        conn,
                        sub,
                        events,
                    },
                );
            }
            InTransit::Ingest {
                relay,
                conn,
                sub,
                events,
            } => {
                let (judged, accepted) = match self.forgers.contains(&relay) {
                    true => (events.iter().map(forged).collect(), Vec::new()),
                    false => self.local.ingest(events),
                };
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
            InTransit::Cut { relay, conn } => {
                if self
                    .peers
                    .get_mut(&relay)
                    .is_some_and(|peer| peer.cut(conn))
                {
                    self.handle(Input::Disconnected { relay, conn });
                }
            }
            InTransit::Lists { id, events } => self.receive_lists(id, events),
            InTransit::Publish { relay, event } => {
                let Some(peer) = self.peers.get_mut(&relay) else {
                    return;
                };
                let live = peer.publish(*event);
                live.into_iter()
                    .for_each(|(conn, reply)| self.answer(&relay, conn, reply));
            }
        }
    }

    /// Verifies and ingests received events, as a driver does.
    fn delivered(&self, sub: SubId, events: &[Event]) -> Vec<Delivered> {
        let filters = self.asked.get(&sub).map(Vec::as_slice).unwrap_or_default();
        let places = |event| {
            filters
                .iter()
                .map(|filter| local::matches(filter, event))
                .collect()
        };
        events
            .iter()
            .map(|event| Delivered {
                row: row(event),
                places: places(event),
            })
            .collect()
    }

    fn receive_frame(&mut self, relay: &RelayUrl, conn: ConnId, frame: Frame) {
        let Some(peer) = self.peers.get_mut(relay) else {
            return;
        };
        let answers = peer.receive(self.now.mono, conn, frame, &mut self.chance);
        answers
            .into_iter()
            .for_each(|reply| self.answer(relay, conn, reply));
    }

    fn answer(&mut self, relay: &RelayUrl, conn: ConnId, reply: Reply) {
        let relay = relay.clone();
        let in_transit = match reply {
            Reply::Said(said) => InTransit::Input(Input::Heard {
                relay: relay.clone(),
                conn,
                said,
            }),
            Reply::Events(sub, events) => InTransit::Events {
                relay: relay.clone(),
                conn,
                sub,
                events,
            },
        };
        self.wire(&relay, conn, true, in_transit);
    }

    fn perform(&mut self, output: Output) {
        match output {
            Output::Connect { relay, conn, .. } => self.connect(relay, conn),
            Output::Disconnect { relay, conn } => {
                self.peers.get_mut(&relay).map(|peer| peer.cut(conn));
            }
            Output::Send { relay, conn, frame } => {
                self.check_pause(&relay, &frame);
                check_live_request(&frame);
                if let Frame::Subscribe { sub, filters, .. } = &frame {
                    self.asked.insert(*sub, filters.clone());
                }
                self.frames
                    .push((self.now.mono, relay.clone(), frame.clone()));
                self.wire(
                    &relay.clone(),
                    conn,
                    false,
                    InTransit::Frame { relay, conn, frame },
                );
            }
            Output::FetchInventory { request, filter } => {
                let items = self.local.inventory(&filter);
                let wait = Duration::from_millis(self.chance.within(1, 20));
                self.send(wait, InTransit::Input(Input::Inventory { request, items }));
            }
            Output::Reoffer { events } => {
                let events = events.into_iter().map(|event| (*event).clone()).collect();
                let (judged, accepted) = self.local.ingest(events);
                self.send(
                    Duration::ZERO,
                    InTransit::Input(Input::Reoffered { judged }),
                );
                for one in accepted {
                    self.send(Duration::ZERO, InTransit::Input(Input::Accepted(one)));
                }
            }
            Output::Persist(record) => _ = self.records.insert(record.relay.clone(), *record),
            Output::Visited { id, outcome } => {
                self.visited.push((id, outcome));
                self.tell_outbox(machine::Input::Visited {
                    id: TaskId(id.0),
                    is_complete: outcome == VisitOutcome::Complete,
                });
            }
            Output::Report(report) => self.reports.push(report),
        }
    }

    fn connect(&mut self, relay: RelayUrl, conn: ConnId) {
        self.dials.push((self.now.mono, relay.clone()));
        let wait = Duration::from_millis(self.chance.within(1, 300));
        let facts = self.peers.get_mut(&relay).and_then(|peer| {
            let is_up = peer.script.is_up(self.now.mono);
            is_up.then(|| peer.connect(conn))
        });
        let Some(facts) = facts else {
            let failed = Input::ConnectFailed {
                relay,
                conn,
                why: Fault::Unreachable,
            };
            return self.send(wait, InTransit::Input(failed));
        };
        self.conns.push((relay.clone(), conn));
        let address = self.addresses.get(&relay).copied();
        let connected = Input::Connected {
            relay: relay.clone(),
            conn,
            address,
            facts,
        };
        self.send(wait, InTransit::Input(connected));
        let life = self
            .peers
            .get(&relay)
            .and_then(|peer| peer.script.connection_duration(&mut self.chance));
        if let Some(life) = life {
            self.send(wait + life, InTransit::Cut { relay, conn });
        }
    }

    /// Puts a message on a connection, behind those on it already.
    fn wire(&mut self, relay: &RelayUrl, conn: ConnId, to_us: bool, in_transit: InTransit) {
        let (min, max) = self
            .peers
            .get(relay)
            .map_or((1, 2), |peer| peer.script.latency_ms);
        let at = self.now.mono + Duration::from_millis(self.chance.within(min, max));
        let last = self.last_arrivals.entry((conn, to_us)).or_insert(at);
        *last = at.max(*last);
        let at = *last;
        self.send(at - self.now.mono, in_transit);
    }

    fn send(&mut self, wait: Duration, in_transit: InTransit) {
        self.order += 1;
        self.in_transit
            .insert((self.now.mono + wait, self.order), in_transit);
    }

    /// Notes a pause after a rate limit, unless it was about a request that ended long ago.
    fn note_rate_refusal(&mut self, input: &Input) {
        let Input::Heard { relay, conn, said } = input else {
            return;
        };
        let (Said::Closed { sub, text } | Said::NegErr { sub, text }) = said else {
            return;
        };
        let stands = self
            .peers
            .get(relay)
            .is_some_and(|peer| peer.is_connected(*conn));
        if stands && self.open.remove(sub) && text.starts_with("rate-limited: too many queries") {
            let until = self.now.mono + Duration::from_secs(65);
            self.paused.entry(relay.clone()).or_insert(until);
        }
    }

    fn check_pause(&mut self, relay: &RelayUrl, frame: &Frame) {
        let now = self.now.mono;
        self.paused.retain(|_, until| *until > now);
        match frame {
            Frame::Subscribe { sub, .. } | Frame::NegOpen { sub, .. } => {
                assert!(
                    !self.paused.contains_key(relay),
                    "a request to {relay} during its pause"
                );
                self.open.insert(*sub);
            }
            Frame::Unsubscribe { sub } | Frame::NegClose { sub } => _ = self.open.remove(sub),
            Frame::NegMsg { .. } | Frame::Authenticate => {}
        }
    }
}

/// Asserts that a live request has no `since`, which a relay applies to new events too.
fn check_live_request(frame: &Frame) {
    if let Frame::Subscribe {
        filters,
        path: SyncPath::Live,
        ..
    } = frame
    {
        assert!(
            filters.iter().all(|filter| filter.since.is_none()),
            "{frame:?}"
        );
        assert!(
            filters
                .iter()
                .all(|filter| filter.limit.is_some_and(|limit| limit < 2))
        );
    }
}

fn forged(event: &Event) -> Judged {
    Judged {
        row: row(event),
        outcome: Outcome::Forged,
    }
}

pub(crate) fn row(event: &Event) -> Row {
    Row {
        at: event.created_at,
        id: event.id,
    }
}

/// Returns the feed's input for an event.
pub(crate) fn accepted(event: &Event, is_uncounted: bool) -> Accepted {
    let change = grasp_sync::engine::index_change(event, grasp_core::sync::SyncLevel::Full);
    Accepted {
        event: Some(event.id),
        is_uncounted,
        change,
    }
}
