//! Messages about subscriptions that were never opened, or have ended, change nothing.

use grasp_core::RelayUrl;
use grasp_sync::engine::{Frame, Input, Output, Said, SubId};

use crate::setup::{HOUR, MINUTE, Setup, defaults, secs};
use crate::sim::script::Script;
use crate::sim::world::relay;

fn messages_about(sub: SubId) -> Vec<Said> {
    let texts = [
        "rate-limited: too many queries",
        "blocked: go away",
        "restricted: members only",
        "auth-required: who?",
        "invalid: nonsense",
        "error: shutting down",
        "",
    ];
    let mut messages = vec![
        Said::Eose { sub, hint: None },
        Said::NegMsg {
            sub,
            message: vec![0x61],
        },
    ];
    messages.push(Said::Delivered { sub, rows: vec![] });
    for text in texts {
        messages.push(Said::Closed {
            sub,
            text: text.into(),
        });
        messages.push(Said::NegErr {
            sub,
            text: text.into(),
        });
    }
    messages
}

#[test]
fn messages_about_foreign_and_finished_subscriptions_change_nothing() {
    let mut setup = Setup::announced(defaults(), Script::default(), 20);
    setup.run(MINUTE);
    let conn = setup.sim.conns[0].1;
    let finished: Vec<SubId> = setup
        .sim
        .frames
        .iter()
        .filter_map(|(_, _, frame)| match frame {
            Frame::Unsubscribe { sub } | Frame::NegClose { sub } => Some(*sub),
            _ => None,
        })
        .collect();
    let foreign = SubId::parse("g999999").unwrap();
    setup.forget();
    for sub in finished.into_iter().chain([foreign]) {
        for said in messages_about(sub) {
            let out = setup.sim.engine.handle(
                setup.sim.now,
                Input::Heard {
                    relay: relay(0),
                    conn,
                    said,
                },
            );
            assert_eq!(out, []);
            setup.sim.engine.check_invariants();
        }
    }
    let issue = setup.publish_issue();
    setup.run(secs(5));
    assert!(
        setup.sim.local.stored.contains_key(&issue.id),
        "the live subscription still works"
    );
}

#[test]
fn messages_of_an_earlier_connection_are_ignored() {
    let script = Script {
        connection_secs: Some((100, 100)),
        ..Script::default()
    };
    let mut setup = Setup::announced(defaults(), script, 20);
    setup.run(3 * MINUTE);
    let old = setup.sim.conns[0].1;
    assert!(setup.sim.conns.len() >= 2);
    let live = setup.live_subs();
    for sub in live {
        for said in messages_about(sub) {
            let heard = Input::Heard {
                relay: relay(0),
                conn: old,
                said,
            };
            assert_eq!(setup.sim.engine.handle(setup.sim.now, heard), []);
        }
    }
    let lost = Input::Disconnected {
        relay: relay(0),
        conn: old,
    };
    assert_eq!(setup.sim.engine.handle(setup.sim.now, lost), []);
}

#[test]
fn an_unrequested_connection_is_closed() {
    let mut setup = Setup::announced(defaults(), Script::default(), 0);
    setup.run(MINUTE);
    let conn = setup.sim.conns[0].1;
    let unknown: RelayUrl = "wss://unknown.example".parse().unwrap();
    for url in [unknown, relay(0)] {
        let facts = Default::default();
        let connected = Input::Connected {
            relay: url.clone(),
            conn,
            address: None,
            facts,
        };
        let out = setup.sim.engine.handle(setup.sim.now, connected);
        assert_eq!(out, [Output::Disconnect { relay: url, conn }]);
    }
}

#[test]
fn a_flood_of_notices_is_reported_once_and_stops_nothing() {
    let mut setup = Setup::announced(defaults(), Script::default(), 20);
    setup.run(MINUTE).forget();
    let conn = setup.sim.conns[0].1;
    for n in 0..2_000 {
        let text = format!("hello {n}");
        setup.receive(conn, Said::Notice { text });
    }
    assert!(setup.sim.reports.len() <= 1);
    setup.publish_issue();
    setup.run(HOUR);
    assert_eq!(setup.here(), 22);
}
