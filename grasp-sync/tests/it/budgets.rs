//! The limits of what is sent to a relay.

use std::collections::BTreeMap;
use std::time::Duration;

use grasp_core::limits::Health;
use grasp_core::sync::{IndexChange, SyncLevel};
use grasp_core::{Mono, Now, RelayUrl};
use grasp_sync::engine::{
    Accepted, Config, ConnId, Fault, Frame, Input, Output, Report, Request, SyncEngine,
};

use crate::setup::{By, HOUR, MINUTE, Setup, by, defaults, secs, version};
use crate::sim::START;
use crate::sim::chance::Chance;
use crate::sim::peer::Peer;
use crate::sim::script::{Neg, Script};
use crate::sim::world::{relay, repo};

#[test]
fn open_subscriptions_stay_within_the_advertised_limit_and_the_rest_is_polled() {
    // Five hundred roots in filters of ten values make 150 live filters, and five requests fit.
    let script = Script {
        subs: 10,
        ..Script::default()
    };
    let mut config = defaults();
    config.values_per_filter = 10;
    let mut setup = Setup::announced(config, script, 500);
    setup.run(20 * MINUTE);
    assert_eq!(setup.here(), 501);
    assert!(setup.peer().peak_subs <= 10);
    let last = setup.sim.peers[&relay(0)]
        .events
        .values()
        .next()
        .unwrap()
        .id;
    let mut comments = Vec::new();
    for tag in ["E", "e", "q"] {
        let at = setup.sim.now.unix.as_secs();
        let comment = crate::sim::event::comment(&mut setup.chance, at, last, tag);
        setup
            .sim
            .publish_after(Duration::ZERO, &relay(0), comment.clone());
        comments.push(comment.id);
    }
    setup.run(12 * MINUTE);
    assert!(
        comments
            .iter()
            .all(|id| setup.sim.local.stored.contains_key(id))
    );
    assert!(setup.peer().peak_subs <= 10);
}

#[test]
fn unknown_software_gets_sixty_requests_at_once_and_then_two_a_second() {
    // One filter at a time, so that nothing can share a request.
    let script = Script {
        neg: Neg::Disabled,
        latency_ms: (1, 1),
        filters: 1,
        ..Script::default()
    };
    let mut config = defaults();
    config.values_per_filter = 2;
    let mut setup = Setup::announced(config, script, 300);
    setup.run(10 * MINUTE);
    let starts = setup.starts();
    let fetches: Vec<_> = starts.iter().filter(|start| start.by != By::Live).collect();
    assert!(
        fetches.len() > 400,
        "many requests are needed: {}",
        fetches.len()
    );
    for (n, start) in fetches.iter().enumerate() {
        let within = fetches[n..]
            .iter()
            .take_while(|other| other.at - start.at <= MINUTE);
        assert!(within.count() <= 60 + 120 + 1);
    }
}

#[test]
fn high_latency_leaves_no_slot_idle_while_requests_wait() {
    // Half a second each way: one after another, sixty requests would take a minute.
    let script = Script {
        latency_ms: (500, 500),
        software: Some("strfry"),
        filters: 1,
        neg: Neg::Disabled,
        ..Script::default()
    };
    // Ten values in a filter, since the software is known.
    let mut config = defaults();
    config.values_per_filter = 1;
    let mut setup = Setup::announced(config, script, 180);
    setup.run(MINUTE);
    assert_eq!(setup.here(), 181);
    let fetches: Vec<_> = setup
        .starts()
        .into_iter()
        .filter(|one| one.by == By::Page)
        .collect();
    assert!(fetches.len() >= 60, "{}", fetches.len());
    let took = fetches[fetches.len() - 1].at - fetches[0].at;
    assert!(took < secs(20), "five at a time: {took:?}");
}

#[test]
fn small_live_filters_are_consolidated_without_losing_events() {
    let mut config = defaults();
    config.consolidation_threshold = 12;
    let mut setup = Setup::announced(config, Script::default(), 0);
    setup.run(MINUTE);
    let mut published = Vec::new();
    for _ in 0..30 {
        published.push(setup.publish_issue());
        setup.run(secs(7));
    }
    let rebuilt = |report: &Report| match report {
        Report::Consolidated { before, after, .. } => before > after,
        _ => false,
    };
    assert!(setup.count_reports(rebuilt) >= 2);
    assert!(
        published
            .iter()
            .all(|issue| setup.sim.local.stored.contains_key(&issue.id))
    );
    let gaps = setup.count_reports(|report| matches!(report, Report::Gap { .. }));
    assert_eq!(gaps, 0);
    // Threads from before the rebuild are still subscribed to.
    setup.forget();
    let at = setup.sim.now.unix.as_secs();
    let comment = crate::sim::event::comment(&mut setup.chance, at, published[0].id, "E");
    setup
        .sim
        .publish_after(Duration::ZERO, &relay(0), comment.clone());
    setup.run(secs(1));
    assert!(setup.sim.local.stored.contains_key(&comment.id));
    assert_eq!(by(&setup.starts(), By::Page).len(), 0, "it came live");
}

/// Releases a thousand repositories with some issues each over a minute; returns the requests by purpose.
fn released_over_a_minute(config: Config, script: Script) -> BTreeMap<Request, usize> {
    let mut setup = Setup::new(config, script, 0);
    setup.announce(&[relay(0)]);
    setup.run(secs(20)).forget();
    let listed = [relay(0), crate::sim::local::our_url()];
    for n in 0..1_000 {
        let repo = repo(&mut setup.chance, &format!("repo-{n}"));
        for _ in 0..3 {
            let issue = crate::sim::event::issue(
                &mut setup.chance,
                START - 999,
                std::slice::from_ref(&repo),
            );
            setup.peer().events.insert(issue.id, issue);
        }
        let announced = crate::sim::event::announcement(&mut setup.chance, &repo, START, &listed);
        setup.sim.accept(announced);
        setup.run(Duration::from_millis(60));
    }
    setup.run(MINUTE);
    assert_eq!(setup.here(), 1 + 1_000 + 3_000);
    let mut requests = BTreeMap::new();
    for report in &setup.sim.reports {
        if let Report::Requested { request, .. } = report {
            *requests.entry(*request).or_default() += 1;
        }
    }
    requests
}

#[test]
fn a_thousand_repositories_released_over_a_minute_share_requests() {
    let grasp = Script {
        is_grasp: true,
        software: Some("grasp-relay"),
        ..Script::default()
    };
    let mut whole = defaults();
    whole.full_sync_above = Some(32 * 1024);
    for (config, script) in [
        (defaults(), Script::default()),
        (
            defaults(),
            Script {
                software: Some("strfry"),
                ..Script::default()
            },
        ),
        (whole, grasp),
    ] {
        let software = script.software;
        let requests = released_over_a_minute(config, script);
        let full_filters = 1_000 / 100;
        let live = requests.get(&Request::Live).copied().unwrap_or_default();
        assert!(live <= 4 * full_filters, "{software:?}: {requests:?}");
        let all: usize = requests.values().sum();
        assert!(all <= 20 * full_filters, "{software:?}: {requests:?}");
    }
}

#[test]
fn at_most_eight_handshakes_at_once_a_quarter_second_apart() {
    let mut now = Setup::new(defaults(), Script::default(), 0).sim.now;
    let bootstrap: Vec<RelayUrl> = (0..40).map(relay).collect();
    let mut config = defaults();
    config.bootstrap = bootstrap;
    let mut engine = SyncEngine::new(now, config);
    // No relay answers, so that all handshakes stay open.
    let mut dials: Vec<(Mono, RelayUrl, ConnId)> = Vec::new();
    let mut note = |now: Now, outputs: Vec<Output>| {
        let connects = outputs.into_iter().filter_map(|output| match output {
            Output::Connect { relay, conn, .. } => Some((now.mono, relay, conn)),
            _ => None,
        });
        dials.extend(connects);
        dials.clone()
    };
    for _ in 0..200 {
        now = now.after(Duration::from_millis(50));
        note(now, engine.handle(now, Input::Tick));
    }
    let dialled = note(now, vec![]);
    assert_eq!(dialled.len(), 8, "after ten seconds");
    assert!(
        dialled
            .windows(2)
            .all(|pair| pair[1].0 - pair[0].0 >= Duration::from_millis(250))
    );
    // The end of one handshake makes room for one.
    let (_, relay, conn) = dialled[3].clone();
    let failed = Input::ConnectFailed {
        relay,
        conn,
        why: Fault::Unreachable,
    };
    note(now, engine.handle(now, failed));
    now = now.after(secs(1));
    assert_eq!(note(now, engine.handle(now, Input::Tick)).len(), 9);
}

#[test]
fn pauses_of_a_failing_relay_grow_until_it_is_dead_after_a_day() {
    let script = Script {
        down_secs: Some((0, 1_000_000)),
        ..Script::default()
    };
    let mut setup = Setup::announced(defaults(), script, 0);
    setup.run(5 * 24 * HOUR);
    let dials: Vec<_> = setup
        .sim
        .dials
        .iter()
        .map(|(at, _)| at.since_start())
        .collect();
    let gaps: Vec<u64> = dials
        .windows(2)
        .map(|pair| (pair[1] - pair[0]).as_secs())
        .collect();
    assert_eq!(gaps[..10], [5, 10, 20, 40, 80, 160, 320, 640, 1_280, 2_560]);
    assert!(
        gaps[10..30].iter().all(|gap| (3_600..3_602).contains(gap)),
        "{gaps:?}"
    );
    assert!(gaps.last().unwrap() >= &(24 * 3_600));
    let healths = setup.sim.reports.iter().filter_map(|report| match report {
        Report::Health { health, .. } => Some(*health),
        _ => None,
    });
    let healths: Vec<_> = healths.collect();
    assert_eq!(healths, [Health::Degraded, Health::Dead]);
}

#[test]
fn a_relay_that_drops_every_connection_is_not_dialled_in_a_loop() {
    let script = Script {
        connection_secs: Some((0, 1)),
        ..Script::default()
    };
    let mut setup = Setup::announced(defaults(), script, 0);
    setup.run(HOUR);
    assert!(
        setup.sim.dials.len() <= 12,
        "{} dials in an hour",
        setup.sim.dials.len()
    );
}

#[test]
fn trouble_with_one_relay_delays_no_other() {
    let mut quiet = Setup::new(defaults(), Script::default(), 50);
    quiet.announce(&[relay(0)]);
    quiet.run(secs(20));
    let undisturbed = quiet.here();
    let mut setup = Setup::new(defaults(), Script::default(), 50);
    for n in 1..8 {
        let script = Script {
            latency_ms: (9_000, 30_000),
            neg: Neg::Silent,
            silent_one_in: Some(2),
            ..Script::default()
        };
        setup.sim.peers.insert(relay(n), Peer::new(script, []));
    }
    let all: Vec<_> = (0..8).map(relay).collect();
    setup.announce(&all);
    setup.run(secs(20));
    assert_eq!(setup.here(), undisturbed);
}

#[test]
fn every_subscription_is_closed_or_ended_and_none_twice() {
    let script = Script {
        starts_per_minute: Some(40),
        silent_one_in: Some(7),
        ..Script::default()
    };
    let mut setup = Setup::announced(defaults(), script, 200);
    setup.run(3 * HOUR);
    let mut closes: BTreeMap<String, usize> = BTreeMap::new();
    for (_, _, frame) in &setup.sim.frames {
        if let Frame::Unsubscribe { sub } | Frame::NegClose { sub } = frame {
            *closes.entry(sub.to_string()).or_default() += 1;
        }
    }
    assert!(closes.values().all(|count| *count == 1));
    let (open, max) = setup.sim.engine.slots(&relay(0)).unwrap();
    assert!(
        open <= max && open <= 10,
        "only live subscriptions stay open: {open}"
    );
}

/// Adds held announcements of other owners that list these relays, eight each.
fn announced_by_others(setup: &mut Setup, relays: impl IntoIterator<Item = RelayUrl>) {
    let relays: Vec<_> = relays.into_iter().collect();
    for relays in relays.chunks(8) {
        let repo = repo(&mut setup.chance, "made-up");
        let relays = relays.to_vec();
        let change = IndexChange::Announced {
            repo,
            version: version(),
            relays,
            level: SyncLevel::StateOnly,
        };
        let accepted = Accepted {
            event: None,
            is_uncounted: false,
            change: Some(change),
        };
        setup.sim.handle(Input::Accepted(accepted));
    }
}

#[test]
fn invented_relays_do_not_delay_relays_that_several_owners_list() {
    let mut setup = Setup::new(defaults(), Script::default(), 0);
    // They sort before all others, and none of them answers.
    for n in 0..20 {
        let made_up = (0..60).map(|m| format!("wss://0-{n}-{m}.example").parse().unwrap());
        announced_by_others(&mut setup, made_up);
    }
    setup.run(secs(30));
    setup.announce(&[relay(0)]);
    announced_by_others(&mut setup, [relay(0)]);
    let before = setup.sim.dials.len();
    setup.run(secs(60));
    let position = setup.sim.dials[before..]
        .iter()
        .position(|(_, to)| *to == relay(0));
    assert!(
        position.is_some_and(|position| position < 120),
        "{position:?}"
    );
}

#[test]
fn connections_are_bounded_in_total_and_per_host() {
    let mut config = defaults();
    config.connections = 10;
    config.connections_per_host = 3;
    let mut setup = Setup::new(config, Script::default(), 0);
    let paths = (0..20).map(|n| format!("wss://real.example/{n}").parse().unwrap());
    let names = (0..40).map(|n| format!("wss://z{n}.example").parse().unwrap());
    let all: Vec<RelayUrl> = paths.chain(names).collect();
    for url in &all {
        setup
            .sim
            .peers
            .insert(url.clone(), Peer::new(Script::default(), []));
    }
    announced_by_others(&mut setup, all);
    setup.run(5 * MINUTE);
    let dialled = |setup: &Setup| {
        setup
            .sim
            .dials
            .iter()
            .map(|(_, to)| to.clone())
            .collect::<Vec<_>>()
    };
    let first = dialled(&setup);
    assert_eq!(
        first.len(),
        5,
        "half is left for repositories that are served: {first:?}"
    );
    let at_one_host = first.iter().filter(|to| to.host().name() == "real.example");
    assert_eq!(at_one_host.count(), 3);
    let served: Vec<RelayUrl> = (0..20)
        .map(|n| format!("wss://s{n}.example").parse().unwrap())
        .collect();
    for url in &served {
        setup
            .sim
            .peers
            .insert(url.clone(), Peer::new(Script::default(), []));
    }
    setup.announce(&served[..10]);
    let other = repo(&mut setup.chance, "other");
    let relays = served[10..].to_vec();
    let change = IndexChange::Announced {
        repo: other,
        version: version(),
        relays,
        level: SyncLevel::Full,
    };
    let accepted = Accepted {
        event: None,
        is_uncounted: false,
        change: Some(change),
    };
    setup.sim.handle(Input::Accepted(accepted));
    setup.run(5 * MINUTE);
    let then = dialled(&setup);
    assert_eq!(then.len(), 10);
    assert!(then[5..].iter().all(|to| served.contains(to)), "{then:?}");
}

#[test]
fn relays_of_held_repositories_leave_room_for_those_of_served_ones() {
    let mut chance = Chance::seeded(1);
    let mut now = Now {
        mono: Mono::from_secs(1),
        unix: START.into(),
    };
    let mut engine = SyncEngine::new(now, defaults());
    let mut announce = |name: &str, relays: Vec<RelayUrl>, level| {
        let repo = repo(&mut chance, name);
        let relays = relays.into_iter().collect();
        IndexChange::Announced {
            repo,
            version: version(),
            relays,
            level,
        }
    };
    let mut tell = |change: IndexChange| {
        let accepted = Accepted {
            event: None,
            is_uncounted: false,
            change: Some(change),
        };
        let _ = engine.handle(now, Input::Accepted(accepted));
        now = now.after(secs(6));
        let _ = engine.handle(now, Input::Tick);
        engine.wanted().count()
    };
    let made_up = |n: usize| (n * 8..n * 8 + 8).map(relay).collect::<Vec<_>>();
    let held: Vec<_> = (0..700)
        .map(|n| announce(&format!("held-{n}"), made_up(n), SyncLevel::StateOnly))
        .collect();
    let followed = held
        .iter()
        .map(|change| tell(change.clone()))
        .last()
        .unwrap();
    assert_eq!(followed, 5_000);
    let served = announce("served", vec![relay(1_000_000)], SyncLevel::Full);
    assert_eq!(tell(served.clone()), 5_001);
    let IndexChange::Announced { repo, .. } = held[0].clone() else {
        panic!()
    };
    assert_eq!(
        tell(IndexChange::Retired { repo }),
        5_001,
        "another relay takes the free slot"
    );
}
