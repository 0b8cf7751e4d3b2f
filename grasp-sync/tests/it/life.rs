//! The life of one relay: first connection, quick and late reconnections, the daily pass, retirement.

use grasp_core::admission::SyncPath;
use grasp_sync::engine::{Config, Fault, Frame, Input, Output, Report, Said, SyncEngine};
use grasp_sync::index::{ConnectionStatus, RETENTION, SyncLevel};

use crate::sim::peer::Peer;
use crate::sim::script::{Neg, Quirk, Script};
use crate::sim::world::relay;
use crate::stage::{By, HOUR, MINUTE, Stage, by, defaults, secs};

fn down(from: u64, to: u64) -> Script {
    Script { down_secs: Some((from, to)), ..Script::default() }
}

#[test]
fn listens_before_it_fetches_and_fetches_everything() {
    let mut stage = Stage::announced(defaults(), Script::default(), 20);
    stage.run(secs(10));
    let starts = stage.starts();
    let live = by(&starts, By::Live);
    assert!(live[0].is_layer_one() && live[0].filters[0].limit == Some(0));
    assert!(live[1].filters.iter().all(|filter| filter.limit == Some(0)));
    let first = starts.iter().position(|start| start.by != By::Live).unwrap();
    assert!(first >= 2, "both layers are listened to before anything is fetched");
    let sessions = by(&starts, By::Neg);
    assert!(sessions.iter().any(|session| session.is_layer_one()));
    assert!(sessions.iter().all(|session| session.filters[0].since.is_none()));
    assert_eq!(stage.status(), Some(ConnectionStatus::Connected));
    assert_eq!(stage.here(), 21);
}

#[test]
fn a_batch_is_confirmed_only_after_everything_delivered_was_judged() {
    let mut stage = Stage::announced(defaults(), Script::default(), 20);
    let confirmed = |report: &Report| matches!(report, Report::BatchConfirmed { .. });
    while stage.count_reports(confirmed) == 0 {
        stage.run(std::time::Duration::from_millis(1));
        assert!(stage.now().since_start() < MINUTE);
    }
    assert_eq!(stage.here(), 21);
}

#[test]
fn that_a_relay_lacks_events_is_told_with_the_repository() {
    let mut stage = Stage::announced(defaults(), Script::default(), 3);
    let ours = stage.chance_issue_dated(0);
    stage.sim.accept(ours);
    stage.run(MINUTE);
    let repo = stage.repo.clone();
    let is_told = |report: &Report| matches!(report, Report::Lacking { repo: of, count: 1, .. } if *of == repo);
    assert_eq!(stage.count_reports(is_told), 1);
}

#[test]
fn what_comes_live_while_our_relay_can_take_nothing_is_fetched_later() {
    let mut stage = Stage::announced(defaults(), Script::default(), 3);
    stage.run(MINUTE);
    stage.sim.local.is_busy = true;
    let issue = stage.publish_issue();
    stage.run(secs(2));
    assert!(!stage.sim.local.stored.contains_key(&issue.id));
    stage.sim.local.is_busy = false;
    stage.run(10 * MINUTE);
    assert!(stage.sim.local.stored.contains_key(&issue.id));
}

#[test]
fn a_new_event_arrives_live_and_its_thread_is_listened_to() {
    let mut stage = Stage::announced(defaults(), Script::default(), 3);
    stage.run(MINUTE).forget();
    let issue = stage.publish_issue();
    stage.run(secs(6));
    assert!(stage.sim.local.stored.contains_key(&issue.id));
    let hex = issue.id.to_hex();
    let starts = stage.starts();
    let live = by(&starts, By::Live);
    let names = |filter: &grasp_core::nostr::filter::Filter| {
        filter.generic_tags.values().any(|values| values.contains(&hex))
    };
    assert_eq!(live.iter().flat_map(|start| &start.filters).filter(|one| names(one)).count(), 3);
}

#[test]
fn a_chain_of_addressable_members_is_fetched_and_listened_to() {
    let mut stage = Stage::announced(defaults(), Script::default(), 3);
    let at = crate::sim::START - 5_000;
    let repo = stage.repo.to_string();
    let (app, app_is) = crate::sim::event::member(&mut stage.chance, at, 32_267, &repo);
    let (release, release_is) = crate::sim::event::member(&mut stage.chance, at, 30_063, &app_is);
    let (asset, _) = crate::sim::event::member(&mut stage.chance, at, 3_063, &app_is);
    let (note, _) = crate::sim::event::member(&mut stage.chance, at, 1_985, &release_is);
    let chain = [app, release, asset, note];
    for event in &chain {
        stage.peer().events.insert(event.id, event.clone());
    }
    stage.run(2 * MINUTE);
    for event in &chain {
        assert!(stage.sim.local.stored.contains_key(&event.id), "kind {}", event.kind);
    }
    // New events arrive live too.
    let now = stage.sim.now.unix.as_secs();
    let (later, _) = crate::sim::event::member(&mut stage.chance, now, 3_063, &app_is);
    stage.forget();
    stage.sim.publish_after(std::time::Duration::ZERO, &relay(0), later.clone());
    stage.run(secs(1));
    assert!(stage.sim.local.stored.contains_key(&later.id) && stage.starts().is_empty());
}

#[test]
fn a_quick_return_asks_from_a_quarter_of_an_hour_before_the_last_connect() {
    let script = Script { life_secs: Some((600, 600)), ..Script::default() };
    let mut stage = Stage::announced(defaults(), script, 20);
    stage.run(MINUTE);
    let connected = stage.sim.now.unix - MINUTE;
    stage.forget().run(secs(570));
    let starts = stage.starts();
    let pages = by(&starts, By::Page);
    // Announcements, three filters of the repository, three of its roots; each layer in one request.
    let first: Vec<_> = pages.iter().filter(|page| page.filters[0].until.is_none()).collect();
    assert_eq!(first.len(), 3);
    assert_eq!(first.iter().map(|page| page.filters.len()).sum::<usize>(), 7);
    for page in &pages {
        let since = page.filters[0].since.unwrap();
        let wanted = connected - RETENTION;
        assert!(since.as_secs().abs_diff(wanted.as_secs()) <= 2, "{since:?} for {wanted:?}");
    }
    assert!(by(&starts, By::Neg).is_empty());
    assert_eq!(stage.status(), Some(ConnectionStatus::Connected));
}

#[test]
fn a_late_return_starts_from_nothing() {
    let script = Script { life_secs: Some((100, 100)), ..down(90, 2_000) };
    let mut stage = Stage::announced(defaults(), script, 20);
    stage.run(MINUTE).forget();
    stage.peer().script.life_secs = None;
    stage.run(secs(4_000));
    let starts = stage.starts();
    let sessions = by(&starts, By::Neg);
    assert!(sessions.iter().any(|one| one.is_layer_one()));
    // Confirmed items are not caught up with: repositories and roots are compared from nothing too.
    let fetches = starts.iter().filter(|start| matches!(start.by, By::Neg | By::Page));
    let filters: Vec<_> = fetches.flat_map(|start| &start.filters).collect();
    for tag in ["\"#a\"", "\"#e\""] {
        assert!(filters.iter().any(|filter| filter.as_json().contains(tag)), "{tag}");
    }
    assert!(filters.iter().all(|filter| filter.since.is_none()));
}

#[test]
fn a_session_cut_short_is_repeated_in_full() {
    let script = Script { latency_ms: (400, 500), life_secs: Some((1, 1)), ..Script::default() };
    let mut stage = Stage::announced(defaults(), script, 20);
    stage.run(secs(4)).forget();
    stage.run(secs(10));
    let starts = stage.starts();
    let listened = by(&starts, By::Live);
    assert!(!listened.is_empty(), "connected again");
    let sessions = by(&starts, By::Neg);
    assert!(sessions.iter().all(|session| session.filters[0].since.is_none()));
}

#[test]
fn everything_is_compared_anew_once_a_day() {
    let mut stage = Stage::announced(defaults(), Script::default(), 20);
    stage.run(HOUR).forget();
    stage.run(21 * HOUR);
    assert!(by(&stage.starts(), By::Neg).is_empty());
    // An old event is added without being sent live.
    let old = stage.sim.now.unix.as_secs() - 50_000;
    let repos = [stage.repo.clone()];
    let missed = crate::sim::event::issue(&mut stage.chance, old, &repos);
    stage.peer().events.insert(missed.id, missed.clone());
    stage.run(4 * HOUR);
    let starts = stage.starts();
    let sessions = by(&starts, By::Neg);
    assert!(sessions.iter().any(|session| session.is_layer_one()));
    assert!((secs(23 * 3600)..secs(25 * 3600 + 60)).contains(&sessions[0].at.since_start()));
    assert!(stage.sim.local.stored.contains_key(&missed.id));
    assert_eq!(stage.count_reports(|report| matches!(report, Report::Gap { .. })), 1);
}

#[test]
fn a_daily_pass_that_cannot_succeed_is_not_made_again_before_the_next_day() {
    let mut stage = Stage::announced(defaults(), Script::default(), 20);
    stage.run(HOUR).forget();
    // From now on it compares nothing and fails with every page.
    stage.peer().script.quirk = |_, frame| match frame {
        Frame::NegOpen { sub, .. } => {
            let text = "error: negentropy disabled".to_owned();
            Quirk::Says(vec![Said::NegErr { sub: *sub, text }])
        }
        Frame::Subscribe { sub, path: SyncPath::Daily, .. } => {
            let text = "computer says no".to_owned();
            Quirk::Says(vec![Said::Closed { sub: *sub, text }])
        }
        _ => Quirk::None,
    };
    stage.run(45 * HOUR);
    let starts = stage.starts();
    let fetches = starts.iter().filter(|start| start.by != By::Live).count();
    assert!((4..30).contains(&fetches), "{fetches}");
    assert_eq!(stage.status(), Some(ConnectionStatus::ConnectedHistoricSyncFailures));
}

#[test]
fn a_relay_that_ends_every_connection_is_fetched_in_instalments() {
    // Some ten requests fit into one connection, with half an hour between connections: each would start again.
    let script = Script {
        life_secs: Some((4, 4)),
        latency_ms: (200, 200),
        page: 60,
        neg: Neg::Disabled,
        ..Script::default()
    };
    let config = Config { values_per_filter: 20, ..defaults() };
    let mut stage = Stage::announced(config, script, 400);
    stage.run(20 * HOUR);
    assert_eq!(stage.here(), 401);
    assert!(stage.sim.conns.len() > 5);
    let connected = |report: &Report| {
        matches!(report, Report::Status { status: ConnectionStatus::Connected, .. })
    };
    assert!(stage.count_reports(connected) >= 1, "it comes to an end");
}

#[test]
fn nobody_stops_listening_for_the_daily_pass() {
    let mut stage = Stage::announced(defaults(), Script::default(), 20);
    stage.run(HOUR).forget();
    let mut published = Vec::new();
    for _ in 0..(25 * 4) {
        published.push(stage.publish_issue().id);
        stage.run(15 * MINUTE);
    }
    let gap = |report: &Report| matches!(report, Report::Gap { .. });
    assert_eq!(stage.count_reports(gap), 0, "everything came live");
    assert!(published.iter().all(|id| stage.sim.local.stored.contains_key(id)));
}

#[test]
fn an_announcement_that_moves_takes_its_relays_along() {
    let mut stage = Stage::announced(defaults(), Script::default(), 5);
    stage.sim.peers.insert(relay(1), Peer::new(Script::default(), []));
    stage.run(MINUTE);
    stage.announce(&[relay(1)]);
    stage.run(MINUTE);
    let retired = Report::Retired { relay: relay(0) };
    assert!(stage.sim.reports.contains(&retired));
    assert!(stage.sim.dials.iter().any(|(_, to)| *to == relay(1)));
    stage.forget();
    stage.publish_issue();
    stage.run(MINUTE);
    assert!(stage.starts().is_empty(), "nothing is said to a relay that nobody needs");
}

#[test]
fn bootstrap_relays_are_dialled_unasked_and_never_retired() {
    let config = Config { bootstrap: vec![relay(0)], ..defaults() };
    let mut stage = Stage::announced(config, Script::default(), 5);
    stage.run(MINUTE);
    stage.announce(&[]);
    stage.run(HOUR);
    assert_eq!(stage.count_reports(|report| matches!(report, Report::Retired { .. })), 0);
    assert_eq!(stage.status(), Some(ConnectionStatus::Connected));
}

#[test]
fn an_engine_with_bootstrap_relays_wants_a_turn_before_anything_has_happened() {
    let now = Stage::new(defaults(), Script::default(), 0).sim.now;
    let mut engine =
        SyncEngine::new(now, Config { bootstrap: vec![relay(0), relay(1)], ..defaults() });
    assert!(engine.next_deadline().is_some_and(|at| at <= now.mono));
    let dials = |out: Vec<Output>| {
        out.into_iter().filter(|output| matches!(output, Output::Connect { .. })).count()
    };
    assert_eq!(dials(engine.handle(now, Input::Tick)), 1);
    let next = engine.next_deadline().unwrap();
    assert_eq!((next - now.mono).as_millis(), 250);
    assert_eq!(dials(engine.handle(now.after(next - now.mono), Input::Tick)), 1);
}

#[test]
fn we_are_never_dialled_ourselves() {
    let mut config = defaults();
    config.bootstrap = vec!["wss://us.example".parse().unwrap()];
    let mut stage = Stage::new(config, Script::default(), 0);
    stage.announce(&["ws://us.example:80".parse().unwrap(), "wss://us.example/".parse().unwrap()]);
    stage.run(HOUR);
    assert_eq!(stage.sim.dials, []);
}

#[test]
fn a_private_service_is_left_alone() {
    let mut config = defaults();
    config.bootstrap = vec![relay(0)];
    let now = Stage::new(defaults(), Script::default(), 0).sim.now;
    let mut engine = SyncEngine::new(now, config);
    let out = engine.handle(now, Input::Tick);
    let conn = out.iter().find_map(|output| match output {
        Output::Connect { conn, .. } => Some(*conn),
        _ => None,
    });
    let facts = grasp_sync::engine::RelayFacts { is_private: true, ..Default::default() };
    let connected = Input::Connected { relay: relay(0), conn: conn.unwrap(), address: None, facts };
    let out = engine.handle(now, connected);
    assert!(out.iter().any(|output| matches!(output, Output::Disconnect { .. })));
    assert!(!out.iter().any(|output| matches!(output, Output::Send { .. })));
    // The operator is told the reason, and that it is for a day.
    let told = out.iter().find_map(|output| match output {
        Output::Report(Report::ConnectFailed { why, failure, .. }) => {
            Some((*why, failure.retry_in))
        }
        _ => None,
    });
    assert_eq!(told, Some((Fault::Private, 24 * HOUR)));
    engine.check_invariants();
}

#[test]
fn a_held_repository_is_asked_for_its_states_until_it_is_promoted() {
    let mut stage = Stage::new(defaults(), Script::default(), 10);
    stage.want(SyncLevel::StateOnly);
    stage.run(MINUTE);
    let starts = stage.starts();
    let items: Vec<_> = starts.iter().filter(|start| !start.is_layer_one()).collect();
    assert!(!items.is_empty());
    let is_state = |filter: &grasp_core::nostr::filter::Filter| {
        filter.as_json().contains(r#""kinds":[30618]"#) && filter.as_json().contains("#d")
    };
    assert!(items.iter().flat_map(|start| &start.filters).all(is_state));
    stage.forget().want(SyncLevel::Full);
    stage.run(MINUTE);
    let starts = stage.starts();
    let wide = starts.iter().flat_map(|start| &start.filters);
    assert!(wide.filter(|filter| filter.as_json().contains("#a")).count() >= 2, "live and history");
}
