//! Issues that name their repository, and comments that name nothing but their issue.

use std::time::Duration;

use grasp_sync::engine::Input;

use crate::sim::chance::Chance;
use crate::sim::local::our_url;
use crate::sim::peer::Peer;
use crate::sim::script::{Neg, Script};
use crate::sim::world::{config, relay, repo};
use crate::sim::{START, Sim, event};

/// A relay with so many issues over twenty repositories, and a comment on each; we know the repositories.
fn world(issues: usize, script: Script) -> Sim {
    let mut chance = Chance::seeded(7);
    let mut sim = Sim::new(7, config());
    let repos: Vec<_> = (0..20).map(|n| repo(&mut chance, &format!("repo-{n}"))).collect();
    let mut events = Vec::new();
    for n in 0..issues {
        let at = START - 10_000_000 + n as u64;
        let issue = event::issue(&mut chance, at, &repos[n % 20..=n % 20]);
        events.push(event::comment(&mut chance, at + 60, issue.id, "E"));
        events.push(issue);
    }
    sim.peers.insert(relay(0), Peer::new(script, events));
    sim.tell(Input::FeedCaughtUp);
    for repo in &repos {
        let announced = event::announcement(&mut chance, repo, START - 5, &[our_url(), relay(0)]);
        sim.accept(announced);
    }
    sim
}

/// How long until everything is here, to the tenth of a second.
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

fn near(neg: Neg) -> Script {
    Script { neg, latency_ms: (1, 2), software: Some("grasp-relay"), ..Script::default() }
}

#[test]
fn both_levels_are_here_within_seconds() {
    let mut sim = world(1_000, near(Neg::Speaks));
    let took = time_until_complete(&mut sim, 2_020);
    assert!(took <= Duration::from_secs(2), "{took:?}");
}

#[test]
fn both_levels_are_here_soon_by_pages_too() {
    let mut sim = world(1_000, near(Neg::Disabled));
    let took = time_until_complete(&mut sim, 2_020);
    assert!(took <= Duration::from_secs(5), "{took:?}");
}

#[test]
#[ignore = "debug"]
fn measure() {
    for software in [None, Some("strfry"), Some("grasp-relay")] {
        for neg in [Neg::Speaks, Neg::Disabled] {
            let script = Script { neg, latency_ms: (5, 5), software, ..Script::default() };
            let mut sim = world(10_000, script);
            let begin = std::time::Instant::now();
            let took = time_until_complete(&mut sim, 20_020);
            let requests = sim.peers[&relay(0)].requests;
            let mut kinds = std::collections::BTreeMap::new();
            for (_, _, f) in &sim.frames {
                let k = match f {
                    grasp_sync::engine::Frame::Subscribe { filters, path, .. } => {
                        if filters[0].ids.is_some() {
                            "ids".to_string()
                        } else {
                            format!("{path:?}")
                        }
                    }
                    grasp_sync::engine::Frame::NegOpen { .. } => "neg".into(),
                    grasp_sync::engine::Frame::NegMsg { .. } => "negmsg".into(),
                    _ => continue,
                };
                *kinds.entry(k).or_insert(0) += 1;
            }
            println!(
                "{software:?} {neg:?}: {took:?}, {requests} requests {kinds:?}, real {:?}",
                begin.elapsed()
            );
        }
    }
}
