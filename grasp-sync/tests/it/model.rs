//! Random inputs, valid and hostile: the invariants hold after each, and the same inputs give the same outputs.

use std::sync::Arc;
use std::time::Duration;

use grasp_core::admission::Retry;
use grasp_core::limits::EoseHint;
use grasp_core::nostr::event::{EventId, Kind};
use grasp_core::nostr::filter::Filter;
use grasp_core::nostr::key::PublicKey;
use grasp_core::nostr::nips::nip01::Coordinate;
use grasp_core::nostr::types::Timestamp;
use grasp_core::sync::{IndexChange, SyncLevel};
use grasp_core::{Mono, Now, RelayUrl, RepoId};
use grasp_sync::engine::{
    Accepted, Config, ConnId, Delivered, Fault, Frame, Input, InventoryFailed, InventoryId, Judged,
    Outcome, Output, RelayFacts, RelayRecord, Row, Said, SubId, SyncEngine, VisitId,
};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

use crate::setup::version;
use crate::sim::world::relay;

/// The next input, chosen among answers to the outputs so far.
#[derive(Clone, Debug)]
enum Step {
    Announce {
        repo: u8,
        relays: Vec<usize>,
        full: bool,
    },
    Root {
        repo: u8,
        root: u8,
    },
    UserRelays {
        author: u8,
        relays: Vec<usize>,
    },
    Visit {
        relay: usize,
        filter: u8,
    },
    EndVisit {
        which: usize,
    },
    Reply {
        reply: u8,
        to: u8,
    },
    Member {
        member: u8,
        of: u8,
    },
    RootRemoved {
        root: u8,
    },
    Retire {
        repo: u8,
    },
    CaughtUp,
    FeedLost,
    /// An event is served, perhaps after it was held.
    Accept {
        event: u8,
        is_uncounted: bool,
    },
    /// Records of now, or of an earlier time, are restored as those of an earlier process.
    Restore {
        which: usize,
    },
    Reoffer {
        which: usize,
        outcome: u8,
    },
    Connect {
        which: usize,
        facts: u8,
    },
    FailToConnect {
        which: usize,
        why: u8,
    },
    Cut {
        which: usize,
    },
    Say {
        which: usize,
        what: u8,
        text: usize,
        rows: Vec<(u16, u8)>,
    },
    Judge {
        which: usize,
        outcome: u8,
    },
    Inventory {
        which: usize,
        rows: Vec<(u16, u8)>,
        fails: bool,
    },
    Wait {
        ms: u32,
    },
    UntilDeadline,
}

const TEXTS: [&str; 20] = [
    "rate-limited: too many queries",
    "rate-limited: too many REQs",
    "ERROR: too many concurrent REQs",
    "rate-limited: too many negentropy subscriptions",
    "blocked: too many query results",
    "closed: idle",
    "PROTOCOL-ERROR",
    "bad msg: negentropy disabled",
    "rate-limited: REQ exceeds max filter count 3",
    "rate-limited: active subscriptions exceed max size 200000 bytes",
    "ERROR: bad req: filter item too large",
    "invalid: Filter 'limit' must be a positive integer, got 0",
    "auth-required: who?",
    "restricted: no",
    "error: live event buffer overflow",
    "error: oops",
    "slow down",
    "hello",
    "",
    "\u{1b}[31mrate-limited:\u{0}",
];

fn step() -> impl Strategy<Value = Step> {
    let rows = || prop::collection::vec((any::<u16>(), any::<u8>()), 0..12);
    let text = 0..TEXTS.len();
    let relays = prop::collection::vec(0usize..4, 0..4);
    let user_relays = prop::collection::vec(0usize..6, 0..4);
    prop_oneof![
        2 => (0u8..6, relays, any::<bool>())
            .prop_map(|(repo, relays, full)| Step::Announce { repo, relays, full }),
        3 => (0u8..6, any::<u8>()).prop_map(|(repo, root)| Step::Root { repo, root }),
        2 => (0u8..3, user_relays).prop_map(|(author, relays)| Step::UserRelays { author, relays }),
        2 => (0usize..8, any::<u8>()).prop_map(|(relay, filter)| Step::Visit { relay, filter }),
        1 => (0usize..9).prop_map(|which| Step::EndVisit { which }),
        2 => (any::<u8>(), any::<u8>()).prop_map(|(reply, to)| Step::Reply { reply, to }),
        1 => (any::<u8>(), any::<u8>()).prop_map(|(member, of)| Step::Member { member, of }),
        1 => any::<u8>().prop_map(|root| Step::RootRemoved { root }),
        1 => (0u8..6).prop_map(|repo| Step::Retire { repo }),
        1 => Just(Step::CaughtUp),
        1 => Just(Step::FeedLost),
        2 => (any::<u8>(), any::<bool>())
            .prop_map(|(event, is_uncounted)| Step::Accept { event, is_uncounted }),
        1 => (0usize..9).prop_map(|which| Step::Restore { which }),
        2 => (0usize..9, 0u8..7).prop_map(|(which, outcome)| Step::Reoffer { which, outcome }),
        4 => (0usize..9, any::<u8>()).prop_map(|(which, facts)| Step::Connect { which, facts }),
        1 => (0usize..9, 0u8..5).prop_map(|(which, why)| Step::FailToConnect { which, why }),
        1 => (0usize..9).prop_map(|which| Step::Cut { which }),
        20 => (0usize..60, 0u8..9, text, rows())
            .prop_map(|(which, what, text, rows)| Step::Say { which, what, text, rows }),
        6 => (0usize..30, 0u8..7).prop_map(|(which, outcome)| Step::Judge { which, outcome }),
        6 => (0usize..9, rows(), prop::bool::weighted(0.1))
            .prop_map(|(which, rows, fails)| Step::Inventory { which, rows, fails }),
        4 => (0u32..200_000).prop_map(|ms| Step::Wait { ms }),
        4 => Just(Step::UntilDeadline),
    ]
}

/// The engine, and its outputs that can be answered.
struct Model {
    engine: SyncEngine,
    now: Now,
    dials: Vec<(RelayUrl, ConnId)>,
    conns: Vec<(RelayUrl, ConnId)>,
    subs: Vec<(RelayUrl, ConnId, SubId)>,
    delivered: Vec<(RelayUrl, ConnId, SubId, Vec<Row>)>,
    inventories: Vec<InventoryId>,
    /// Events to be offered again, and records to be written.
    reoffered: Vec<Vec<Row>>,
    records: Vec<RelayRecord>,
    /// Visits that have neither ended nor been ended.
    visits: Vec<VisitId>,
    visits_begun: u64,
    log: Vec<Output>,
}

fn row(at: u16, n: u8) -> Row {
    let at = Timestamp::from_secs(1_699_990_000 + u64::from(at));
    Row {
        at,
        id: EventId::from_byte_array([n; 32]),
    }
}

/// Returns places as if some of the filters matched.
fn delivered(row: Row) -> Delivered {
    let bits = row.at.as_secs() | 1;
    Delivered {
        row,
        places: (0..10).map(|place| bits >> place & 1 == 1).collect(),
    }
}

fn repo(n: u8) -> RepoId {
    RepoId::new(
        PublicKey::from_byte_array([n; 32]),
        format!("repo-{n}").parse().unwrap(),
    )
}

fn member(n: u8) -> Coordinate {
    let public_key = PublicKey::from_byte_array([n; 32]);
    Coordinate {
        kind: Kind::from_u16(32_267),
        public_key,
        identifier: n.to_string(),
    }
}

impl Model {
    fn new(seed: u64) -> Self {
        let mut config = Config::new("us.example".parse().unwrap());
        config.bootstrap = vec![relay(0)];
        config.seed = seed;
        config.can_authenticate = seed % 2 == 0;
        config.follows_user_relays = true;
        config.consolidation_threshold = 9;
        config.full_sync_above = (seed % 3 != 0).then_some(900);
        let now = Now::new(Mono::from_secs(1), Timestamp::from_secs(1_700_000_000));
        Self {
            engine: SyncEngine::new(now, config),
            now,
            dials: vec![],
            conns: vec![],
            subs: vec![],
            delivered: vec![],
            inventories: vec![],
            reoffered: vec![],
            records: vec![],
            visits: vec![],
            visits_begun: 0,
            log: vec![],
        }
    }

    fn handle(&mut self, input: Input) {
        let outputs = self.engine.handle(self.now, input);
        self.engine.check_invariants();
        for output in &outputs {
            match output {
                Output::Connect { relay, conn, .. } => self.dials.push((relay.clone(), *conn)),
                Output::Send {
                    relay,
                    conn,
                    frame: Frame::Subscribe { sub, .. } | Frame::NegOpen { sub, .. },
                } => self.subs.push((relay.clone(), *conn, *sub)),
                Output::FetchInventory { request, .. } => self.inventories.push(*request),
                Output::Reoffer { events } => {
                    self.reoffered
                        .push(events.iter().map(|event| crate::sim::row(event)).collect());
                }
                Output::Persist(record) => self.records.push((**record).clone()),
                Output::Visited { id, .. } => {
                    let place = self.visits.iter().position(|open| open == id);
                    self.visits.remove(place.expect("a visit ends once"));
                }
                _ => {}
            }
        }
        self.log.extend(outputs);
    }

    fn change(&mut self, change: IndexChange) {
        let accepted = Accepted {
            event: None,
            is_uncounted: false,
            change: Some(change),
        };
        self.handle(Input::Accepted(accepted));
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Announce {
                repo: n,
                relays,
                full,
            } => {
                let relays = relays.into_iter().map(relay).collect();
                let level = if full {
                    SyncLevel::Full
                } else {
                    SyncLevel::StateOnly
                };
                self.change(IndexChange::Announced {
                    repo: repo(n),
                    version: version(),
                    relays,
                    level,
                });
            }
            Step::Root { repo: n, root } => {
                let root = EventId::from_byte_array([root; 32]).into();
                let repos = vec![repo(n), repo(n / 2)];
                let author = Some(PublicKey::from_byte_array([n % 3; 32]));
                self.change(IndexChange::RootAdded {
                    root,
                    repos,
                    author,
                });
            }
            Step::UserRelays { author, relays } => {
                let author = PublicKey::from_byte_array([author; 32]);
                let relays = relays.into_iter().map(relay).collect();
                self.change(IndexChange::UserRelays { author, relays });
            }
            Step::Visit { relay: n, filter } => {
                let id = VisitId(self.visits_begun);
                self.visits_begun += 1;
                self.visits.push(id);
                let root = EventId::from_byte_array([filter; 32]);
                let filters = match filter {
                    0 => vec![],
                    1 => vec![Filter::new()],
                    _ => vec![
                        Filter::new().event(root),
                        Filter::new().coordinate(&member(filter)),
                    ],
                };
                let relay = relay(n);
                self.handle(Input::Visit { relay, id, filters });
            }
            Step::EndVisit { which } => {
                if let Some(id) = pick(&self.visits, which) {
                    self.visits.retain(|open| *open != id);
                    self.handle(Input::EndVisit { id });
                }
            }
            Step::Reply { reply, to } => {
                let [reply, to] = [reply, to].map(|n| EventId::from_byte_array([n; 32]).into());
                self.change(IndexChange::Replied {
                    reply,
                    to: vec![to],
                });
            }
            Step::Member { member: n, of } => {
                let repos = if of < 60 { vec![repo(of % 6)] } else { vec![] };
                self.change(IndexChange::MemberAdded {
                    member: member(n),
                    repos,
                    of: vec![member(of)],
                });
            }
            Step::RootRemoved { root } => {
                let root = EventId::from_byte_array([root; 32]).into();
                self.change(IndexChange::RootRemoved { root });
            }
            Step::Retire { repo: n } => self.change(IndexChange::Retired { repo: repo(n) }),
            Step::CaughtUp => self.handle(Input::FeedCaughtUp),
            Step::FeedLost => self.handle(Input::FeedLost),
            Step::Accept {
                event,
                is_uncounted,
            } => {
                let event = Some(EventId::from_byte_array([event; 32]));
                self.handle(Input::Accepted(Accepted {
                    event,
                    is_uncounted,
                    change: None,
                }));
            }
            Step::Restore { which } => {
                let known = self.engine.records(self.now);
                let old = pick(&self.records, which);
                self.handle(Input::Restored(old.map_or(known, |record| vec![record])));
            }
            Step::Reoffer { which, outcome } => self.reoffer(which, outcome),
            Step::Connect { which, facts } => self.connect(which, facts),
            Step::FailToConnect { which, why } => self.fail_to_connect(which, why),
            Step::Cut { which } => {
                if let Some((relay, conn)) = pick(&self.conns, which) {
                    self.handle(Input::Disconnected { relay, conn });
                }
            }
            Step::Say {
                which,
                what,
                text,
                rows,
            } => self.say(which, what, TEXTS[text], rows),
            Step::Judge { which, outcome } => self.judge(which, outcome),
            Step::Inventory { which, rows, fails } => self.inventory(which, rows, fails),
            Step::Wait { ms } => {
                self.now = self.now.after(Duration::from_millis(u64::from(ms)));
                self.handle(Input::Tick);
            }
            Step::UntilDeadline => self.until_deadline(),
        }
    }

    fn connect(&mut self, which: usize, chosen: u8) {
        let Some((relay, conn)) = pick(&self.dials, which) else {
            return;
        };
        let mut facts = RelayFacts::default();
        facts.has_document = chosen % 2 == 0;
        facts.software = (chosen % 3 == 0).then(|| "strfry".into());
        facts.max_subscriptions = (chosen % 2 == 0).then_some(usize::from(chosen));
        facts.max_limit = (chosen % 5 == 0).then_some(usize::from(chosen));
        facts.max_message_length = (chosen % 7 == 0).then_some(usize::from(chosen) * 1_000);
        facts.is_grasp = chosen % 4 < 2;
        facts.is_private = chosen == 255;
        self.conns.push((relay.clone(), conn));
        self.handle(Input::Connected {
            relay,
            conn,
            address: None,
            facts,
        });
    }

    fn fail_to_connect(&mut self, which: usize, why: u8) {
        let Some((relay, conn)) = pick(&self.dials, which) else {
            return;
        };
        let faults = [
            Fault::Unreachable,
            Fault::NoSuchHost,
            Fault::Tls,
            Fault::Protocol,
            Fault::Forbidden,
        ];
        self.handle(Input::ConnectFailed {
            relay,
            conn,
            why: faults[usize::from(why)],
        });
    }

    fn say(&mut self, which: usize, what: u8, text: &str, rows: Vec<(u16, u8)>) {
        let Some((relay, conn, sub)) = pick(&self.subs, which) else {
            return;
        };
        let text = text.to_owned();
        let rows: Vec<Row> = rows.into_iter().map(|(at, n)| row(at, n)).collect();
        let said = match what {
            0 | 1 => {
                let hints = [None, Some(EoseHint::Finish), Some(EoseHint::More)];
                Said::Eose {
                    sub,
                    hint: hints[rows.len() % 3],
                }
            }
            2 | 3 => {
                self.delivered
                    .push((relay.clone(), conn, sub, rows.clone()));
                Said::Delivered {
                    sub,
                    rows: rows.into_iter().map(delivered).collect(),
                }
            }
            4 => Said::Closed { sub, text },
            5 => Said::NegErr { sub, text },
            6 => Said::Notice { text },
            7 => Said::NegMsg {
                sub,
                message: message(&rows),
            },
            _ if rows.len() % 2 == 0 => Said::Challenge,
            _ => Said::Authenticated {
                accepted: rows.len() > 5,
            },
        };
        self.handle(Input::Heard { relay, conn, said });
    }

    fn judge(&mut self, which: usize, outcome: u8) {
        if self.delivered.is_empty() {
            return;
        }
        let place = which % self.delivered.len();
        let (relay, conn, sub, rows) = self.delivered.remove(place);
        let judged = judged(rows, which, outcome);
        self.handle(Input::Ingested {
            relay,
            conn,
            sub,
            judged,
        });
    }

    /// Judges events that were offered again, or one that never was.
    fn reoffer(&mut self, which: usize, outcome: u8) {
        let rows = pick(&self.reoffered, which).unwrap_or_else(|| vec![row(7, which as u8)]);
        self.handle(Input::Reoffered {
            judged: judged(rows, which, outcome),
        });
    }

    fn inventory(&mut self, which: usize, rows: Vec<(u16, u8)>, fails: bool) {
        let Some(request) = pick(&self.inventories, which) else {
            return;
        };
        let rows = rows.into_iter().map(|(at, n)| row(at, n)).collect();
        let items = if fails {
            Err(InventoryFailed::Unreadable)
        } else {
            Ok(rows)
        };
        self.handle(Input::Inventory { request, items });
    }

    /// Advances to the next deadline; there must be one that makes progress.
    fn until_deadline(&mut self) {
        if let Some(at) = self.engine.next_deadline() {
            self.now = self.now.after(at - self.now.mono);
            self.handle(Input::Tick);
            let next = self.engine.next_deadline();
            assert!(
                next.is_none_or(|next| next > self.now.mono),
                "a deadline repeats"
            );
        }
    }
}

fn judged(rows: Vec<Row>, which: usize, outcome: u8) -> Vec<Judged> {
    let outcome = match outcome {
        0 | 1 => Outcome::Stored,
        2 => Outcome::Known,
        3 => Outcome::Forged,
        4 => Outcome::Refused {
            retry: Retry::Soon,
            event: None,
        },
        5 => Outcome::Held,
        // The event need not be the one that was judged.
        _ => {
            let event = crate::sim::event::comment(
                &mut crate::sim::chance::Chance::seeded(which as u64),
                1_700_000_000,
                EventId::from_byte_array([which as u8; 32]),
                "E",
            );
            let event = Some(Arc::new(event));
            Outcome::Refused {
                retry: Retry::AfterDependency,
                event,
            }
        }
    };
    rows.into_iter()
        .map(|row| Judged {
            row,
            outcome: outcome.clone(),
        })
        .collect()
}

/// Returns a NIP-77 message that may or may not be well-formed.
fn message(rows: &[Row]) -> Vec<u8> {
    let mut message = vec![0x61];
    if rows.len() % 3 != 0 {
        message.extend([0, 0, 2, rows.len() as u8]);
        rows.iter()
            .for_each(|row| message.extend(row.id.as_bytes()));
    }
    message
}

fn pick<T: Clone>(from: &[T], which: usize) -> Option<T> {
    // The latest are the likeliest to matter.
    let place = from.len().checked_sub(1 + which % from.len().max(1))?;
    from.get(place).cloned()
}

/// Runs other cases each time, as many as `PROPTEST_CASES` says. A failure is printed, shrunk, with its inputs; its
/// seed is kept in a file and tried first from then on.
fn config() -> ProptestConfig {
    let asked = ProptestConfig::default();
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() {
        asked.cases
    } else {
        300
    };
    let kept = FileFailurePersistence::Direct("tests/it/model.regressions");
    ProptestConfig {
        cases,
        failure_persistence: Some(Box::new(kept)),
        ..asked
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn invariants_hold_after_every_step_and_runs_are_repeatable(
        seed in any::<u64>(),
        steps in prop::collection::vec(step(), 1..150),
    ) {
        let mut one = Model::new(seed);
        steps.iter().cloned().for_each(|step| one.take(step));
        let mut two = Model::new(seed);
        steps.into_iter().for_each(|step| two.take(step));
        prop_assert_eq!(one.log, two.log);
    }
}
