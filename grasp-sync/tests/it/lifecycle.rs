//! The lifecycle of one relay: first connection, quick and late reconnections, the daily pass, retirement.

use grasp_core::Now;
use grasp_core::admission::SyncPath;
use grasp_core::sync::{CONFIRMED_RETENTION, ConnectionStatus, SyncLevel};
use grasp_sync::engine::{
    Config, ConnId, Fault, Frame, Input, Output, RelayFacts, Report, Said, SyncEngine,
};

use crate::setup::{By, HOUR, MINUTE, Setup, Start, by, defaults, secs};
use crate::sim::chance::Chance;
use crate::sim::local::our_url;
use crate::sim::peer::Peer;
use crate::sim::script::{Neg, Quirk, Script};
use crate::sim::world::{relay, repo};
use crate::sim::{START, Sim, event};

fn down(from: u64, to: u64) -> Script {
    Script {
        down_secs: Some((from, to)),
        ..Script::default()
    }
}

#[test]
fn subscribes_before_it_fetches_and_fetches_everything() {
    let mut setup = Setup::announced(defaults(), Script::default(), 20);
    setup.run(secs(10));
    let starts = setup.starts();
    let live = by(&starts, By::Live);
    assert!(live[0].is_layer_one() && live[0].filters[0].limit == Some(0));
    assert!(live[1].filters.iter().all(|filter| filter.limit == Some(0)));
    let first = starts
        .iter()
        .position(|start| start.by != By::Live)
        .unwrap();
    assert!(
        first >= 2,
        "both layers are subscribed before anything is fetched"
    );
    let sessions = by(&starts, By::Neg);
    assert!(sessions.iter().any(|session| session.is_layer_one()));
    assert!(
        sessions
            .iter()
            .all(|session| session.filters[0].since.is_none())
    );
    assert_eq!(setup.status(), Some(ConnectionStatus::Connected));
    assert_eq!(setup.here(), 21);
}

#[test]
fn a_batch_is_confirmed_only_after_everything_delivered_was_judged() {
    let mut setup = Setup::announced(defaults(), Script::default(), 20);
    let confirmed = |report: &Report| matches!(report, Report::BatchConfirmed { .. });
    while setup.count_reports(confirmed) == 0 {
        setup.run(std::time::Duration::from_millis(1));
        assert!(setup.now().since_start() < MINUTE);
    }
    assert_eq!(setup.here(), 21);
}

#[test]
fn events_that_a_relay_lacks_are_reported_with_the_repository() {
    let mut setup = Setup::announced(defaults(), Script::default(), 3);
    let ours = setup.chance_issue_dated(0);
    setup.sim.accept(ours);
    setup.run(MINUTE);
    let repo = setup.repo.clone();
    let is_reported = |report: &Report| matches!(report, Report::Lacking { repo: of, count: 1, .. } if *of == repo);
    assert_eq!(setup.count_reports(is_reported), 1);
}

#[test]
fn live_events_that_a_busy_local_relay_refused_are_fetched_later() {
    let mut setup = Setup::announced(defaults(), Script::default(), 3);
    setup.run(MINUTE);
    setup.sim.local.is_busy = true;
    let issue = setup.publish_issue();
    setup.run(secs(2));
    assert!(!setup.sim.local.stored.contains_key(&issue.id));
    setup.sim.local.is_busy = false;
    setup.run(10 * MINUTE);
    assert!(setup.sim.local.stored.contains_key(&issue.id));
}

#[test]
fn a_new_event_arrives_live_and_its_thread_is_subscribed() {
    let mut setup = Setup::announced(defaults(), Script::default(), 3);
    setup.run(MINUTE).forget();
    let issue = setup.publish_issue();
    setup.run(secs(6));
    assert!(setup.sim.local.stored.contains_key(&issue.id));
    let hex = issue.id.to_hex();
    let starts = setup.starts();
    let live = by(&starts, By::Live);
    let names = |filter: &grasp_core::nostr::filter::Filter| {
        filter
            .generic_tags
            .values()
            .any(|values| values.contains(&hex))
    };
    assert_eq!(
        live.iter()
            .flat_map(|start| &start.filters)
            .filter(|one| names(one))
            .count(),
        3
    );
}

#[test]
fn a_chain_of_addressable_members_is_fetched_and_subscribed() {
    let mut setup = Setup::announced(defaults(), Script::default(), 3);
    let at = crate::sim::START - 5_000;
    let repo = setup.repo.to_string();
    let (app, app_is) = crate::sim::event::member(&mut setup.chance, at, 32_267, &repo);
    let (release, release_is) = crate::sim::event::member(&mut setup.chance, at, 30_063, &app_is);
    let (asset, _) = crate::sim::event::member(&mut setup.chance, at, 3_063, &app_is);
    let (note, _) = crate::sim::event::member(&mut setup.chance, at, 1_985, &release_is);
    let chain = [app, release, asset, note];
    for event in &chain {
        setup.peer().events.insert(event.id, event.clone());
    }
    setup.run(2 * MINUTE);
    for event in &chain {
        assert!(
            setup.sim.local.stored.contains_key(&event.id),
            "kind {}",
            event.kind
        );
    }
    // New events arrive live too.
    let now = setup.sim.now.unix.as_secs();
    let (later, _) = crate::sim::event::member(&mut setup.chance, now, 3_063, &app_is);
    setup.forget();
    setup
        .sim
        .publish_after(std::time::Duration::ZERO, &relay(0), later.clone());
    setup.run(secs(1));
    assert!(setup.sim.local.stored.contains_key(&later.id) && setup.starts().is_empty());
}

#[test]
fn a_quick_reconnect_requests_from_fifteen_minutes_before_the_last_connect() {
    let script = Script {
        connection_secs: Some((600, 600)),
        ..Script::default()
    };
    let mut setup = Setup::announced(defaults(), script, 20);
    setup.run(MINUTE);
    let connected = setup.sim.now.unix - MINUTE;
    setup.forget().run(secs(570));
    let starts = setup.starts();
    let mut pages = by(&starts, By::Page);
    pages.retain(|page| page.filters[0].since.is_some());
    // Announcements, three filters of the repository, three of its roots; each layer in one request.
    let first: Vec<_> = pages
        .iter()
        .filter(|page| page.filters[0].until.is_none())
        .collect();
    assert_eq!(first.len(), 3);
    assert_eq!(
        first.iter().map(|page| page.filters.len()).sum::<usize>(),
        7
    );
    for page in &pages {
        let since = page.filters[0].since.unwrap();
        let wanted = connected - CONFIRMED_RETENTION;
        assert!(
            since.as_secs().abs_diff(wanted.as_secs()) <= 2,
            "{since:?} for {wanted:?}"
        );
    }
    // Everything is compared afterwards.
    let caught_up = pages.iter().map(|page| page.at).max();
    let compared = by(&starts, By::Neg);
    assert!(compared.iter().any(|one| one.is_layer_one()));
    assert!(
        compared
            .iter()
            .all(|one| Some(one.at) > caught_up && one.filters[0].since.is_none())
    );
    assert_eq!(setup.status(), Some(ConnectionStatus::Connected));
}

#[test]
fn a_late_reconnect_starts_from_nothing() {
    let script = Script {
        connection_secs: Some((100, 100)),
        ..down(90, 2_000)
    };
    let mut setup = Setup::announced(defaults(), script, 20);
    setup.run(MINUTE).forget();
    setup.peer().script.connection_secs = None;
    setup.run(secs(4_000));
    let starts = setup.starts();
    let sessions = by(&starts, By::Neg);
    assert!(sessions.iter().any(|one| one.is_layer_one()));
    // Confirmed items are not caught up with: repositories and roots are compared from nothing too.
    let fetches = starts
        .iter()
        .filter(|start| matches!(start.by, By::Neg | By::Page));
    let filters: Vec<_> = fetches.flat_map(|start| &start.filters).collect();
    for tag in ["\"#a\"", "\"#e\""] {
        assert!(
            filters.iter().any(|filter| filter.as_json().contains(tag)),
            "{tag}"
        );
    }
    assert!(filters.iter().all(|filter| filter.since.is_none()));
}

#[test]
fn an_interrupted_session_is_repeated_in_full() {
    let script = Script {
        latency_ms: (400, 500),
        connection_secs: Some((1, 1)),
        ..Script::default()
    };
    let mut setup = Setup::announced(defaults(), script, 20);
    setup.run(secs(4)).forget();
    setup.run(secs(10));
    let starts = setup.starts();
    let subscribed = by(&starts, By::Live);
    assert!(!subscribed.is_empty(), "connected again");
    let sessions = by(&starts, By::Neg);
    assert!(
        sessions
            .iter()
            .all(|session| session.filters[0].since.is_none())
    );
}

#[test]
fn everything_is_compared_once_a_day() {
    let mut setup = Setup::announced(defaults(), Script::default(), 20);
    setup.run(HOUR).forget();
    setup.run(21 * HOUR);
    assert!(by(&setup.starts(), By::Neg).is_empty());
    // An old event is added without being sent live.
    let old = setup.sim.now.unix.as_secs() - 50_000;
    let repos = [setup.repo.clone()];
    let missed = crate::sim::event::issue(&mut setup.chance, old, &repos);
    setup.peer().events.insert(missed.id, missed.clone());
    setup.run(4 * HOUR);
    let starts = setup.starts();
    let sessions = by(&starts, By::Neg);
    assert!(sessions.iter().any(|session| session.is_layer_one()));
    assert!((secs(23 * 3600)..secs(25 * 3600 + 60)).contains(&sessions[0].at.since_start()));
    assert!(setup.sim.local.stored.contains_key(&missed.id));
    assert_eq!(
        setup.count_reports(|report| matches!(report, Report::Gap { .. })),
        1
    );
}

#[test]
fn a_failed_daily_pass_is_not_repeated_before_the_next_day() {
    let mut setup = Setup::announced(defaults(), Script::default(), 20);
    setup.run(HOUR).forget();
    // From now on it compares nothing and fails with every page.
    setup.peer().script.quirk = |_, frame| match frame {
        Frame::NegOpen { sub, .. } => {
            let text = "error: negentropy disabled".to_owned();
            Quirk::Says(vec![Said::NegErr { sub: *sub, text }])
        }
        Frame::Subscribe {
            sub,
            path: SyncPath::Daily,
            ..
        } => {
            let text = "computer says no".to_owned();
            Quirk::Says(vec![Said::Closed { sub: *sub, text }])
        }
        _ => Quirk::None,
    };
    setup.run(45 * HOUR);
    let starts = setup.starts();
    let fetches = starts.iter().filter(|start| start.by != By::Live).count();
    assert!((4..30).contains(&fetches), "{fetches}");
    assert_eq!(
        setup.status(),
        Some(ConnectionStatus::ConnectedHistoricSyncFailures)
    );
}

#[test]
fn fetching_continues_over_short_connections() {
    // Some ten requests fit into one connection, with half an hour between connections: each would start again.
    let script = Script {
        connection_secs: Some((4, 4)),
        latency_ms: (200, 200),
        page: 60,
        neg: Neg::Disabled,
        ..Script::default()
    };
    let mut config = defaults();
    config.values_per_filter = 20;
    let mut setup = Setup::announced(config, script, 400);
    setup.run(20 * HOUR);
    assert_eq!(setup.here(), 401);
    assert!(setup.sim.conns.len() > 5);
    let connected = |report: &Report| {
        matches!(
            report,
            Report::Status {
                status: ConnectionStatus::Connected,
                ..
            }
        )
    };
    assert!(setup.count_reports(connected) >= 1, "it completes");
}

#[test]
fn live_subscriptions_stay_open_during_the_daily_pass() {
    let mut setup = Setup::announced(defaults(), Script::default(), 20);
    setup.run(HOUR).forget();
    let mut published = Vec::new();
    for _ in 0..(25 * 4) {
        published.push(setup.publish_issue().id);
        setup.run(15 * MINUTE);
    }
    let gap = |report: &Report| matches!(report, Report::Gap { .. });
    assert_eq!(setup.count_reports(gap), 0, "everything came live");
    assert!(
        published
            .iter()
            .all(|id| setup.sim.local.stored.contains_key(id))
    );
}

#[test]
fn an_announcement_with_other_relays_changes_the_connections() {
    let mut setup = Setup::announced(defaults(), Script::default(), 5);
    setup
        .sim
        .peers
        .insert(relay(1), Peer::new(Script::default(), []));
    setup.run(MINUTE);
    setup.announce(&[relay(1)]);
    setup.run(MINUTE);
    let retired = Report::Retired { relay: relay(0) };
    assert!(setup.sim.reports.contains(&retired));
    assert!(setup.sim.dials.iter().any(|(_, to)| *to == relay(1)));
    setup.forget();
    setup.publish_issue();
    setup.run(MINUTE);
    assert!(
        setup.starts().is_empty(),
        "nothing is sent to a retired relay"
    );
}

#[test]
fn bootstrap_relays_are_always_dialled_and_never_retired() {
    let mut config = defaults();
    config.bootstrap = vec![relay(0)];
    let mut setup = Setup::announced(config, Script::default(), 5);
    setup.run(MINUTE);
    setup.announce(&[]);
    setup.run(HOUR);
    assert_eq!(
        setup.count_reports(|report| matches!(report, Report::Retired { .. })),
        0
    );
    assert_eq!(setup.status(), Some(ConnectionStatus::Connected));
}

#[test]
fn an_engine_with_bootstrap_relays_has_a_deadline_at_the_start() {
    let now = Setup::new(defaults(), Script::default(), 0).sim.now;
    let mut config = defaults();
    config.bootstrap = vec![relay(0), relay(1)];
    let mut engine = SyncEngine::new(now, config);
    assert!(engine.next_deadline().is_some_and(|at| at <= now.mono));
    let dials = |out: Vec<Output>| {
        out.into_iter()
            .filter(|output| matches!(output, Output::Connect { .. }))
            .count()
    };
    assert_eq!(dials(engine.handle(now, Input::Tick)), 1);
    let next = engine.next_deadline().unwrap();
    assert_eq!((next - now.mono).as_millis(), 250);
    assert_eq!(
        dials(engine.handle(now.after(next - now.mono), Input::Tick)),
        1
    );
}

#[test]
fn our_own_address_is_never_dialled() {
    let mut config = defaults();
    config.bootstrap = vec!["wss://us.example".parse().unwrap()];
    let mut setup = Setup::new(config, Script::default(), 0);
    setup.announce(&[
        "ws://us.example:80".parse().unwrap(),
        "wss://us.example/".parse().unwrap(),
    ]);
    setup.run(HOUR);
    assert_eq!(setup.sim.dials, []);
}

#[test]
fn a_private_service_is_disconnected_for_a_day() {
    for (is_private, can_authenticate) in [(false, true), (true, false)] {
        disconnected_for_a_day(is_private, can_authenticate);
    }
}

fn disconnected_for_a_day(is_private: bool, can_authenticate: bool) {
    let mut config = defaults();
    config.bootstrap = vec![relay(0)];
    config.is_private = is_private;
    config.can_authenticate = can_authenticate;
    let now = Setup::new(defaults(), Script::default(), 0).sim.now;
    let mut engine = SyncEngine::new(now, config);
    let out = engine.handle(now, Input::Tick);
    let conn = out.iter().find_map(|output| match output {
        Output::Connect { conn, .. } => Some(*conn),
        _ => None,
    });
    let mut facts = RelayFacts::default();
    facts.is_private = true;
    let connected = Input::Connected {
        relay: relay(0),
        conn: conn.unwrap(),
        address: None,
        facts,
    };
    let out = engine.handle(now, connected);
    assert!(
        out.iter()
            .any(|output| matches!(output, Output::Disconnect { .. }))
    );
    assert!(
        !out.iter()
            .any(|output| matches!(output, Output::Send { .. }))
    );
    // The report has the reason and the pause of a day.
    let reported = out.iter().find_map(|output| match output {
        Output::Report(Report::ConnectFailed { why, failure, .. }) => {
            Some((*why, failure.retry_in))
        }
        _ => None,
    });
    assert_eq!(reported, Some((Fault::Private, 24 * HOUR)));
    engine.check_invariants();
}

/// An engine with one relay that is dialled by hand.
struct OneRelay {
    engine: SyncEngine,
    now: Now,
    conn: ConnId,
}

impl OneRelay {
    fn dialled(mut config: Config) -> Self {
        config.bootstrap = vec![relay(0)];
        let now = Setup::new(defaults(), Script::default(), 0).sim.now;
        let mut engine = SyncEngine::new(now, config);
        let out = engine.handle(now, Input::Tick);
        let conn = dialled(&out).expect("an attempt to connect");
        Self { engine, now, conn }
    }

    /// Connects to it, with a document that says nothing or without one.
    fn connected(&mut self, has_document: bool) -> Vec<Output> {
        let mut facts = RelayFacts::default();
        facts.has_document = has_document;
        let (relay, conn, address) = (relay(0), self.conn, None);
        let connected = Input::Connected {
            relay,
            conn,
            address,
            facts,
        };
        self.engine.handle(self.now, connected)
    }

    fn hear(&mut self, said: Said) -> Vec<Output> {
        let (relay, conn) = (relay(0), self.conn);
        self.engine
            .handle(self.now, Input::Heard { relay, conn, said })
    }

    /// Fails to connect, waits until it is dialled again, and returns whether a document is needed then.
    fn fail(&mut self, why: Fault) -> bool {
        let (relay, conn) = (relay(0), self.conn);
        let failed = Input::ConnectFailed { relay, conn, why };
        let _ = self.engine.handle(self.now, failed);
        for _ in 0..3_600 {
            self.now = self.now.after(secs(1));
            for output in self.engine.handle(self.now, Input::Tick) {
                if let Output::Connect {
                    conn,
                    needs_document,
                    ..
                } = output
                {
                    self.conn = conn;
                    return needs_document;
                }
            }
        }
        panic!("never dialled again");
    }
}

fn can_authenticate() -> Config {
    let mut config = defaults();
    config.can_authenticate = true;
    config
}

#[test]
fn a_relay_is_dialled_without_its_document_after_two_failures_to_read_it() {
    let mut one = OneRelay::dialled(defaults());
    assert!(one.fail(Fault::NoDocument));
    assert!(one.fail(Fault::Unreachable), "not a failure to read it");
    assert!(!one.fail(Fault::NoDocument));
    let _ = one.connected(false);
    let lost = Input::Disconnected {
        relay: relay(0),
        conn: one.conn,
    };
    let _ = one.engine.handle(one.now, lost);
    assert!(!one.fail(Fault::Unreachable), "it has none");
    let _ = one.connected(true);
    let lost = Input::Disconnected {
        relay: relay(0),
        conn: one.conn,
    };
    let _ = one.engine.handle(one.now, lost);
    assert!(one.fail(Fault::Unreachable), "it has one again");
    one.engine.check_invariants();
}

#[test]
fn a_relay_without_a_document_that_begins_with_a_challenge_counts_as_private() {
    let mut one = OneRelay::dialled(can_authenticate());
    let _ = one.connected(false);
    let out = one.hear(Said::Challenge);
    assert_eq!(frames(&out), []);
    assert!(
        out.iter()
            .any(|output| matches!(output, Output::Disconnect { .. }))
    );
    assert!(out.iter().any(|output| matches!(
        output,
        Output::Report(Report::ConnectFailed { why: Fault::Private, failure, .. })
            if failure.retry_in == 24 * HOUR
    )));
    one.engine.check_invariants();
}

#[test]
fn a_challenge_of_a_relay_with_a_document_or_later_on_makes_nothing_private() {
    let notice = Said::Notice {
        text: "welcome".into(),
    };
    for (has_document, first) in [(true, None), (false, Some(notice))] {
        let mut one = OneRelay::dialled(can_authenticate());
        let _ = one.connected(has_document);
        for said in first.into_iter().chain([Said::Challenge]) {
            let out = one.hear(said);
            assert!(
                !out.iter()
                    .any(|output| matches!(output, Output::Disconnect { .. }))
            );
        }
    }
}

#[test]
fn a_private_service_authenticates_at_a_relay_that_seems_private() {
    let mut config = can_authenticate();
    config.is_private = true;
    let mut one = OneRelay::dialled(config);
    let _ = one.connected(false);
    let out = one.hear(Said::Challenge);
    assert_eq!(frames(&out), [Frame::Authenticate]);
    one.engine.check_invariants();
}

/// A private service that has connected to another one.
struct BetweenPrivate {
    engine: SyncEngine,
    now: Now,
    conn: ConnId,
}

impl BetweenPrivate {
    fn connect() -> Self {
        let mut config = defaults();
        config.bootstrap = vec![relay(0)];
        (config.is_private, config.can_authenticate) = (true, true);
        let now = Setup::new(defaults(), Script::default(), 0).sim.now;
        let mut engine = SyncEngine::new(now, config);
        let out = engine.handle(now, Input::Tick);
        let conn = dialled(&out).expect("an attempt to connect");
        let mut between = Self { engine, now, conn };
        between.connected();
        between
    }

    fn connected(&mut self) {
        let mut facts = RelayFacts::default();
        facts.is_private = true;
        let connected = Input::Connected {
            relay: relay(0),
            conn: self.conn,
            address: None,
            facts,
        };
        let out = self.engine.handle(self.now, connected);
        assert_eq!(frames(&out), [], "nothing before it has let us in");
        assert_eq!(self.hear(Said::Challenge), [Frame::Authenticate]);
    }

    fn lose(&mut self) {
        let (relay, conn) = (relay(0), self.conn);
        let lost = Input::Disconnected { relay, conn };
        let _ = self.engine.handle(self.now, lost);
    }

    /// Waits until it is dialled again, a second at a time.
    fn redial(&mut self) {
        for _ in 0..24 * 3_600 {
            self.now = self.now.after(secs(1));
            if let Some(conn) = dialled(&self.engine.handle(self.now, Input::Tick)) {
                self.conn = conn;
                return self.connected();
            }
        }
        panic!("never dialled again");
    }

    fn hear(&mut self, said: Said) -> Vec<Frame> {
        let (relay, conn) = (relay(0), self.conn);
        let out = self
            .engine
            .handle(self.now, Input::Heard { relay, conn, said });
        frames(&out)
    }
}

fn dialled(out: &[Output]) -> Option<ConnId> {
    out.iter().find_map(|output| match output {
        Output::Connect { conn, .. } => Some(*conn),
        _ => None,
    })
}

fn frames(out: &[Output]) -> Vec<Frame> {
    let frames = out.iter().filter_map(|output| match output {
        Output::Send { frame, .. } => Some(frame.clone()),
        _ => None,
    });
    frames.collect()
}

#[test]
fn a_private_service_syncs_with_another_once_it_is_let_in() {
    let mut between = BetweenPrivate::connect();
    let sent = between.hear(Said::Authenticated { accepted: true });
    assert!(
        sent.iter()
            .any(|frame| matches!(frame, Frame::Subscribe { .. })),
        "{sent:?}"
    );
    between.engine.check_invariants();
}

#[test]
fn a_private_service_that_refuses_us_is_dialled_after_growing_pauses() {
    let mut between = BetweenPrivate::connect();
    let mut pauses = Vec::new();
    for _ in 0..8 {
        let sent = between.hear(Said::Authenticated { accepted: false });
        assert_eq!(sent, [], "nothing to a service that did not let us in");
        let refused_at = between.now;
        between.lose();
        between.redial();
        pauses.push(between.now.mono - refused_at.mono);
    }
    assert!(
        pauses[0] <= secs(10) && pauses[7] > MINUTE * 5,
        "{pauses:?}"
    );
    between.engine.check_invariants();
}

#[test]
fn bootstrap_relays_change_at_run_time_and_keep_their_records() {
    let mut setup = Setup::announced(defaults(), Script::default(), 20);
    setup.run(MINUTE);
    assert_eq!(setup.status(), Some(ConnectionStatus::Connected));
    let is_retired = |report: &Report| matches!(report, Report::Retired { .. });
    // Relay 0 is listed by the repository, so it is followed before and after.
    for bootstrap in [vec![relay(0)], vec![]] {
        setup.forget();
        setup.sim.handle(Input::Bootstrap(bootstrap));
        assert_eq!(setup.count_reports(is_retired), 1);
        setup.run(10 * MINUTE);
        assert_eq!(setup.status(), Some(ConnectionStatus::Connected));
        assert!(by(&setup.starts(), By::Ids).is_empty(), "all of it is here");
    }
    setup
        .sim
        .peers
        .insert(relay(1), Peer::new(Script::default(), []));
    setup.forget();
    setup
        .sim
        .handle(Input::Bootstrap(vec![relay(1), our_url()]));
    setup.run(MINUTE);
    let connected = |report: &Report| matches!(report, Report::Status { relay: of, status: ConnectionStatus::Connected } if *of == relay(1));
    assert_eq!(setup.count_reports(connected), 1);
    setup.sim.handle(Input::Bootstrap(vec![]));
    assert_eq!(setup.count_reports(is_retired), 1);
    setup.sim.engine.check_invariants();
}

#[test]
fn a_full_pass_begins_at_once_if_it_is_asked_for() {
    let mut setup = Setup::announced(defaults(), Script::default(), 20);
    setup.run(HOUR).forget();
    setup.sim.handle(Input::SyncNow { relay: relay(0) });
    assert_eq!(setup.status(), Some(ConnectionStatus::Syncing));
    setup.run(MINUTE);
    assert_eq!(setup.status(), Some(ConnectionStatus::Connected));
    assert!(!by(&setup.starts(), By::Neg).is_empty());
    setup.forget().run(10 * HOUR);
    assert!(by(&setup.starts(), By::Neg).is_empty(), "once");
}

#[test]
fn a_relay_that_failed_is_dialled_at_once_if_it_is_asked_for() {
    let mut setup = Setup::announced(defaults(), down(0, 3_000), 20);
    setup.run(50 * MINUTE);
    assert_eq!(setup.here(), 1);
    setup.sim.handle(Input::SyncNow { relay: relay(0) });
    setup.run(secs(5));
    assert_eq!(setup.here(), 21);
}

#[test]
fn only_states_of_a_held_repository_are_requested_until_it_is_served() {
    let mut setup = Setup::new(defaults(), Script::default(), 10);
    setup.want(SyncLevel::StateOnly);
    setup.run(MINUTE);
    let starts = setup.starts();
    let items: Vec<_> = starts
        .iter()
        .filter(|start| !start.is_layer_one())
        .collect();
    assert!(!items.is_empty());
    let is_state = |filter: &grasp_core::nostr::filter::Filter| {
        filter.as_json().contains(r#""kinds":[30618]"#) && filter.as_json().contains("#d")
    };
    assert!(items.iter().flat_map(|start| &start.filters).all(is_state));
    setup.forget().want(SyncLevel::Full);
    setup.run(MINUTE);
    let starts = setup.starts();
    let wide = starts.iter().flat_map(|start| &start.filters);
    assert!(
        wide.filter(|filter| filter.as_json().contains("#a"))
            .count()
            >= 2,
        "live and history"
    );
}

#[test]
fn repositories_that_the_feed_brings_after_a_start_are_compared_and_new_ones_are_paged() {
    for (is_new, wanted) in [(false, By::Neg), (true, By::Page)] {
        let mut config = defaults();
        config.bootstrap = vec![relay(0)];
        let mut chance = Chance::seeded(3);
        let mut sim = Sim::new(3, config);
        let script = Script {
            software: Some("strfry"),
            ..Script::default()
        };
        sim.peers.insert(relay(0), Peer::new(script, Vec::new()));
        if is_new {
            sim.handle(Input::FeedCaughtUp);
        }
        // Connected before the feed brings the announcement.
        sim.run_for(secs(10));
        sim.frames.clear();
        let repo = repo(&mut chance, "grasp");
        let listed = [our_url(), relay(0)];
        sim.accept(event::announcement(&mut chance, &repo, START - 5, &listed));
        if !is_new {
            sim.handle(Input::FeedCaughtUp);
        }
        sim.run_for(secs(10));
        let starts = Setup { sim, repo, chance }.starts();
        let is_fetch = |start: &&Start| start.by != By::Live;
        let methods: Vec<By> = starts
            .iter()
            .filter(is_fetch)
            .map(|start| start.by)
            .collect();
        assert!(
            !methods.is_empty() && methods.iter().all(|by| *by == wanted),
            "{methods:?}"
        );
    }
}
