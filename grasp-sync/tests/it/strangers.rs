//! Messages about subscriptions that were never opened, or have ended, change nothing.

use grasp_core::RelayUrl;
use grasp_sync::engine::{Frame, Input, Output, Said, SubId};

use crate::sim::script::Script;
use crate::sim::world::relay;
use crate::stage::{HOUR, MINUTE, Stage, defaults, secs};

fn storm(sub: SubId) -> Vec<Said> {
    let texts = [
        "rate-limited: too many queries",
        "blocked: go away",
        "restricted: members only",
        "auth-required: who?",
        "invalid: nonsense",
        "error: shutting down",
        "",
    ];
    let mut storm = vec![Said::Eose { sub, hint: None }, Said::NegMsg { sub, message: vec![0x61] }];
    storm.push(Said::Delivered { sub, rows: vec![] });
    for text in texts {
        storm.push(Said::Closed { sub, text: text.into() });
        storm.push(Said::NegErr { sub, text: text.into() });
    }
    storm
}

#[test]
fn foreign_and_finished_subscriptions_are_nobody() {
    let mut stage = Stage::announced(defaults(), Script::default(), 20);
    stage.run(MINUTE);
    let conn = stage.sim.conns[0].1;
    let finished: Vec<SubId> = stage
        .sim
        .frames
        .iter()
        .filter_map(|(_, _, frame)| match frame {
            Frame::Unsubscribe { sub } | Frame::NegClose { sub } => Some(*sub),
            _ => None,
        })
        .collect();
    let foreign = SubId::parse("g999999").unwrap();
    stage.forget();
    for sub in finished.into_iter().chain([foreign]) {
        for said in storm(sub) {
            let out = stage
                .sim
                .engine
                .handle(stage.sim.now, Input::Heard { relay: relay(0), conn, said });
            assert_eq!(out, []);
            stage.sim.engine.check_invariants();
        }
    }
    let issue = stage.publish_issue();
    stage.run(secs(5));
    assert!(stage.sim.local.stored.contains_key(&issue.id), "it still listens");
}

#[test]
fn answers_of_an_earlier_connection_are_late() {
    let script = Script { life_secs: Some((100, 100)), ..Script::default() };
    let mut stage = Stage::announced(defaults(), script, 20);
    stage.run(3 * MINUTE);
    let old = stage.sim.conns[0].1;
    assert!(stage.sim.conns.len() >= 2);
    let live = stage.live_subs();
    for sub in live {
        for said in storm(sub) {
            let heard = Input::Heard { relay: relay(0), conn: old, said };
            assert_eq!(stage.sim.engine.handle(stage.sim.now, heard), []);
        }
    }
    let lost = Input::Disconnected { relay: relay(0), conn: old };
    assert_eq!(stage.sim.engine.handle(stage.sim.now, lost), []);
}

#[test]
fn a_connection_nobody_asked_for_is_ended() {
    let mut stage = Stage::announced(defaults(), Script::default(), 0);
    stage.run(MINUTE);
    let conn = stage.sim.conns[0].1;
    let unknown: RelayUrl = "wss://unknown.example".parse().unwrap();
    for url in [unknown, relay(0)] {
        let facts = Default::default();
        let connected = Input::Connected { relay: url.clone(), conn, address: None, facts };
        let out = stage.sim.engine.handle(stage.sim.now, connected);
        assert_eq!(out, [Output::Disconnect { relay: url, conn }]);
    }
}

#[test]
fn a_flood_of_notices_is_told_of_once_and_stops_nothing() {
    let mut stage = Stage::announced(defaults(), Script::default(), 20);
    stage.run(MINUTE).forget();
    let conn = stage.sim.conns[0].1;
    for n in 0..2_000 {
        let text = format!("hello {n}");
        stage.hear(conn, Said::Notice { text });
    }
    assert!(stage.sim.reports.len() <= 1);
    stage.publish_issue();
    stage.run(HOUR);
    assert_eq!(stage.here(), 22);
}
