//! Relays that only authors name: asked for their roots, and for nothing else.

use std::time::Duration;

use grasp_core::nostr::event::Event;
use grasp_core::nostr::key::PublicKey;
use grasp_core::sync::IndexChange;
use grasp_sync::engine::{Config, Frame, Report};

use crate::setup::{By, HOUR, MINUTE, Setup, Start, by, defaults, secs};
use crate::sim::event;
use crate::sim::peer::Peer;
use crate::sim::script::Script;
use crate::sim::world::relay;

fn config() -> Config {
    let mut config = defaults();
    config.follows_user_relays = true;
    config.full_sync_above = Some(100);
    config
}

/// Sets up the repository with three issues, which are here, and relay 1, which answers.
fn setup(script: Script) -> (Setup, Vec<Event>) {
    let mut setup = Setup::announced(config(), Script::default(), 3);
    setup.sim.peers.insert(relay(1), Peer::new(script, []));
    setup.run(MINUTE);
    let stored = setup.sim.local.stored.values();
    let issues: Vec<Event> = stored
        .filter(|one| one.kind != grasp_core::kinds::ANNOUNCEMENT)
        .cloned()
        .collect();
    assert_eq!(issues.len(), 3);
    (setup, issues)
}

fn tell_relays(setup: &mut Setup, author: PublicKey, relays: &[usize]) {
    let relays = relays.iter().map(|n| relay(*n)).collect();
    setup.tell(IndexChange::UserRelays { author, relays });
}

/// Publishes a comment on an issue at relay 1.
fn comment(setup: &mut Setup, issue: &Event) -> Event {
    let at = setup.sim.now.unix.as_secs();
    let comment = event::comment(&mut setup.chance, at, issue.id, "E");
    setup
        .sim
        .publish_after(Duration::ZERO, &relay(1), comment.clone());
    comment
}

fn names_only(starts: &[Start], issue: &Event) -> bool {
    let hex = issue.id.to_hex();
    let mut filters = starts
        .iter()
        .filter(|one| one.by != By::Ids)
        .flat_map(|one| &one.filters);
    filters.all(|filter| {
        let mut values = filter.generic_tags.values().flatten();
        !filter.generic_tags.is_empty() && values.all(|value| *value == hex)
    })
}

#[test]
fn a_relay_of_an_author_is_asked_for_their_roots_and_nothing_else() {
    let (mut setup, issues) = setup(Script {
        is_grasp: true,
        connection_secs: Some((2 * 60, 60 * 60)),
        ..Script::default()
    });
    let before = comment(&mut setup, &issues[0]);
    let foreign = comment(&mut setup, &issues[1]);
    setup.run(secs(5));
    tell_relays(&mut setup, issues[0].pubkey, &[1]);
    setup.run(MINUTE);
    assert!(setup.has(&before) && !setup.has(&foreign));
    let live = comment(&mut setup, &issues[0]);
    setup.run(secs(1));
    assert!(setup.has(&live));
    // Reconnections, the comparisons that follow them, and daily passes.
    setup.run(50 * HOUR);
    let starts = setup.starts_at(&relay(1));
    assert!(setup.dials_of(&relay(1)) > 10);
    for kind in [By::Live, By::Page, By::Neg] {
        assert!(!by(&starts, kind).is_empty(), "{kind:?}");
    }
    assert!(names_only(&starts, &issues[0]));
    let lacks =
        |report: &Report| matches!(report, Report::Lacking { relay: at, .. } if *at == relay(1));
    assert_eq!(setup.count_reports(lacks), 0, "it need not have our events");
}

#[test]
fn nothing_is_followed_for_authors_unless_that_is_set() {
    let mut setup = Setup::announced(defaults(), Script::default(), 3);
    setup.run(MINUTE);
    let stored: Vec<Event> = setup.sim.local.stored.values().cloned().collect();
    for one in stored {
        tell_relays(&mut setup, one.pubkey, &[1]);
    }
    setup.run(MINUTE);
    assert_eq!(setup.dials_of(&relay(1)), 0);
}

#[test]
fn a_relay_of_an_author_that_a_repository_comes_to_list_is_asked_for_everything() {
    let (mut setup, issues) = setup(Script::default());
    tell_relays(&mut setup, issues[0].pubkey, &[1]);
    setup.run(HOUR);
    let layer_one = |setup: &Setup| {
        let starts = setup.starts_at(&relay(1));
        starts.iter().filter(|one| one.is_layer_one()).count()
    };
    assert_eq!((setup.dials_of(&relay(1)), layer_one(&setup)), (1, 0));
    let foreign = comment(&mut setup, &issues[1]);
    setup.announce(&[relay(0), relay(1)]);
    setup.run(MINUTE);
    assert_eq!(setup.dials_of(&relay(1)), 2);
    let asked = layer_one(&setup);
    assert!(asked >= 2, "live and stored announcements");
    assert!(setup.has(&foreign));
    let starts = setup.starts_at(&relay(1));
    let is_whole = |one: &&Start| one.is_layer_one() && one.by != By::Live;
    let compared = starts.iter().find(is_whole).unwrap();
    assert_eq!(compared.filters[0].since, None, "all announcements");
    // And back.
    setup.announce(&[relay(0)]);
    setup.run(MINUTE);
    assert!(setup.is_connected(&relay(1)));
    assert_eq!((setup.dials_of(&relay(1)), layer_one(&setup)), (3, asked));
    let live = comment(&mut setup, &issues[0]);
    setup.run(secs(1));
    assert!(setup.has(&live));
}

#[test]
fn a_replaced_list_is_in_force_at_once_and_open_subscriptions_drain() {
    let (mut setup, issues) = setup(Script::default());
    let peer = Peer::new(Script::default(), []);
    setup.sim.peers.insert(relay(2), peer);
    tell_relays(&mut setup, issues[0].pubkey, &[1]);
    tell_relays(&mut setup, issues[1].pubkey, &[1]);
    setup.run(MINUTE).forget();
    tell_relays(&mut setup, issues[0].pubkey, &[2]);
    setup.run(secs(10));
    assert!(setup.is_connected(&relay(1)) && setup.is_connected(&relay(2)));
    assert!(names_only(&setup.starts_at(&relay(2)), &issues[0]));
    let is_close = |frame: &Frame| matches!(frame, Frame::Unsubscribe { .. });
    let mut sent = setup.sim.frames.iter().filter(|(_, to, _)| *to == relay(1));
    assert!(!sent.any(|(_, _, frame)| is_close(frame)), "it drains");
    let late = comment(&mut setup, &issues[0]);
    setup.run(secs(1));
    assert!(setup.has(&late), "what still comes is taken");
    // Not asked for any more after the next connection.
    setup.forget();
    tell_relays(&mut setup, issues[1].pubkey, &[]);
    setup.run(secs(10));
    assert!(!setup.is_connected(&relay(1)), "no author names it");
}
