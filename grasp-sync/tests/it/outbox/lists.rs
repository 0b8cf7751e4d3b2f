//! What relay lists lead to: live requests for threads, and fallback relays.

use grasp_core::RelayUrl;
use grasp_core::outbox::Fact;
use grasp_sync::outbox::OutboxConfig;

use super::world::{World, announced, answer, key, list, list_of, relay, repo, root};
use crate::setup::{HOUR, MINUTE};

#[test]
fn threads_are_followed_where_their_author_reads() {
    let mut world = World::new(&[], &[]);
    world.learn([announced(1), root(20, 2, 1), answer(30, 3, 20)]);
    for author in 1..=3 {
        world.list(list(author, 1, &["<in", ">out", "both"]));
    }
    world.catch_up();
    let relays = vec![relay("both"), relay("in")];
    assert_eq!(
        world.follows,
        [(key(2), relays)],
        "not those of owners and commenters"
    );
}

#[test]
fn a_replaced_list_counts_at_once_and_an_older_one_never() {
    let mut world = World::new(&[], &[]);
    world
        .learn([announced(1), root(20, 2, 1)])
        .list(list(2, 5, &["a", "b"]))
        .catch_up();
    world.follows.clear();
    world.list(list(2, 6, &["b", "c"])).list(list(2, 4, &["d"]));
    assert_eq!(world.follows, [(key(2), vec![relay("b"), relay("c")])]);
}

#[test]
fn an_author_without_roots_or_list_is_no_longer_followed() {
    let mut world = World::new(&[], &[]);
    world.learn([announced(1)]).catch_up();
    let first = list(2, 1, &["a"]);
    world.list(first.clone()).learn([root(20, 2, 1)]);
    let follow = (key(2), vec![relay("a")]);
    let leave = (key(2), Vec::new());
    assert_eq!(world.follows.last(), Some(&follow));
    world.learn([Fact::Removed { id: first.id }]);
    assert_eq!(world.follows.last(), Some(&leave));
    world
        .list(list(2, 2, &["a"]))
        .learn([Fact::Retired { repo: repo(1) }]);
    assert_eq!(world.follows[2..], [follow, leave]);
}

#[test]
fn lists_that_lie_lead_to_nothing() {
    let mut world = World::new(&[], &[]);
    world.learn([announced(1), root(20, 1, 1)]).catch_up();
    let lies = [
        "wss://us.example.com",
        "ws://us.example.com/below",
        "ws://127.0.0.1",
        "wss://10.0.0.7",
        "wss://[fd00::1]",
        "wss://router.local",
        "wss://x.onion",
        "wss://a.example.com/alpha-bravo",
    ];
    world.list(list_of(1, 1, lies.iter().map(|url| vec!["r", *url])));
    world.run(HOUR);
    assert!(world.fetches.is_empty() && world.follows.is_empty() && world.visits.is_empty());
}

#[test]
fn of_a_list_of_ten_thousand_relays_four_are_used() {
    let mut world = World::new(&[], &[]);
    world.learn([announced(1), root(20, 1, 1)]).catch_up();
    let urls: Vec<String> = (0..10_000)
        .map(|n| format!("wss://{n}.example.com"))
        .collect();
    world.list(list_of(
        1,
        1,
        urls.iter().map(|url| vec!["r", url.as_str()]),
    ));
    world.run(HOUR);
    let mut asked: Vec<RelayUrl> = world.sources();
    asked.extend(world.visited_relays());
    asked.sort();
    asked.dedup();
    assert_eq!(asked.len(), 4);
    assert_eq!(world.follows[0].1.len(), 4);
}

#[test]
fn fallback_relays_serve_after_an_index_relay_knows_no_list() {
    let mut world = World::new(&["index"], &["fallback"]);
    world
        .learn([announced(1), root(20, 2, 1)])
        .catch_up()
        .run(MINUTE);
    assert!(
        world.follows.is_empty() && world.visits.is_empty(),
        "no answer says nothing"
    );
    world.run(5 * MINUTE).found(&[], &[]);
    assert_eq!(world.follows, [(key(2), vec![relay("fallback")])]);
    assert_eq!(world.visited_relays(), [relay("fallback")]);
    world.follows.clear();
    world.list(list(2, 1, &["a"]));
    assert_eq!(world.follows, [(key(2), vec![relay("a")])]);
}

#[test]
fn a_list_that_was_found_and_refused_leads_to_fallback_relays() {
    let mut world = World::new(&["index"], &["fallback"]);
    world
        .learn([announced(1), root(20, 2, 1), root(21, 3, 1)])
        .catch_up();
    world.found(&[1, 2, 3], &[1, 3]);
    assert_eq!(world.follows, [(key(2), vec![relay("fallback")])]);
}

#[test]
fn other_relays_than_index_relays_do_not_lead_to_fallback_relays() {
    let mut config = OutboxConfig::new("us.example.com".parse().unwrap());
    config.bootstrap = vec![relay("bootstrap")];
    config.fallback_relays = vec![relay("fallback")];
    let mut world = World::with(config);
    world
        .learn([announced(1), root(20, 2, 1)])
        .catch_up()
        .found(&[], &[]);
    assert!(world.follows.is_empty());
}
