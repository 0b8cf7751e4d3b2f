//! Issues that name their repository, and comments that name only their issue.

use std::time::Duration;

use grasp_core::admission::SyncPath;
use grasp_core::nostr::filter::Filter;
use grasp_sync::engine::{Frame, Input};

use crate::sim::chance::Chance;
use crate::sim::local::our_url;
use crate::sim::peer::Peer;
use crate::sim::script::{Neg, Script};
use crate::sim::world::{config, relay, repo};
use crate::sim::{START, Sim, event};

/// Sets up a relay with this many issues over twenty repositories, and a comment on each; we know the repositories.
fn world(issues: usize, script: Script) -> Sim {
    let mut chance = Chance::seeded(7);
    let mut sim = Sim::new(7, config());
    let repos: Vec<_> = (0..20)
        .map(|n| repo(&mut chance, &format!("repo-{n}")))
        .collect();
    let mut events = Vec::new();
    for n in 0..issues {
        let at = START - 10_000_000 + n as u64;
        let issue = event::issue(&mut chance, at, &repos[n % 20..=n % 20]);
        events.push(event::comment(&mut chance, at + 60, issue.id, "E"));
        events.push(issue);
    }
    sim.peers.insert(relay(0), Peer::new(script, events));
    sim.handle(Input::FeedCaughtUp);
    for repo in &repos {
        let announced = event::announcement(&mut chance, repo, START - 5, &[our_url(), relay(0)]);
        sim.accept(announced);
    }
    sim
}

/// Returns the time until everything is here, to the tenth of a second.
fn time_until_complete(sim: &mut Sim, events: usize) -> Duration {
    let begin = sim.now.mono;
    while sim.local.stored.len() < events {
        sim.run_for(Duration::from_millis(100));
        assert!(
            sim.now.mono - begin < Duration::from_secs(3_600),
            "{} here",
            sim.local.stored.len()
        );
    }
    sim.now.mono - begin
}

/// Returns the script of a near relay of this software, with or without NIP-77.
fn near(software: Option<&'static str>, neg: Neg) -> Script {
    Script {
        neg,
        latency_ms: (5, 5),
        software,
        ..Script::default()
    }
}

#[test]
fn both_levels_are_synced_within_a_second_from_any_relay() {
    for software in [None, Some("strfry"), Some("grasp-relay")] {
        for neg in [Neg::Speaks, Neg::Disabled] {
            let mut sim = world(1_000, near(software, neg));
            let took = time_until_complete(&mut sim, 2_020);
            assert!(
                took <= Duration::from_secs(1),
                "{software:?} {neg:?}: {took:?}"
            );
        }
    }
}

#[test]
fn twenty_thousand_events_fit_into_the_requests_of_one_burst() {
    let mut sim = world(10_000, near(None, Neg::Speaks));
    let took = time_until_complete(&mut sim, 20_020);
    assert!(took <= Duration::from_secs(2), "{took:?}");
    let is_charged = |frame: &Frame| match frame {
        Frame::Subscribe { path, .. } => *path != SyncPath::Live,
        Frame::NegOpen { .. } | Frame::NegMsg { .. } => true,
        _ => false,
    };
    let charged = sim
        .frames
        .iter()
        .filter(|(_, _, frame)| is_charged(frame))
        .count();
    assert!(charged <= 60, "{charged} requests");
    assert!(sim.peers[&relay(0)].requests <= 100);
}

#[test]
fn histories_share_requests_and_keep_their_own_cursors() {
    let script = Script {
        page: 60,
        ..near(None, Neg::Disabled)
    };
    let mut sim = world(1_000, script);
    time_until_complete(&mut sim, 2_020);
    let requests = sim.frames.iter().filter_map(|(_, _, frame)| match frame {
        Frame::Subscribe {
            filters,
            path: SyncPath::CatchUp,
            ..
        } => Some(filters),
        _ => None,
    });
    let shared: Vec<_> = requests.filter(|filters| filters.len() > 1).collect();
    assert!(shared.len() > 10, "{}", shared.len());
    assert!(shared.iter().all(|filters| filters.len() <= 10));
    let apart =
        |filters: &&&Vec<Filter>| filters.windows(2).any(|two| two[0].until != two[1].until);
    assert!(shared.iter().filter(apart).count() > 5);
}
