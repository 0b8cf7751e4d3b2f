use super::*;
use SyncLevel::{Full, StateOnly};
use nostr::event::EventId;
use nostr::key::PublicKey;

fn relay(name: &str) -> RelayUrl {
    format!("wss://{name}.example").parse().unwrap()
}

fn repo(n: u8) -> RepoId {
    RepoId::new(PublicKey::from_byte_array([n; 32]), "r".parse().unwrap())
}

fn root(n: u8) -> RootId {
    EventId::from_byte_array([n; 32]).into()
}

fn version(seconds: u64) -> Version {
    Version {
        created_at: nostr::types::Timestamp::from_secs(seconds),
        id: EventId::from_byte_array([0; 32]),
    }
}

fn announced(n: u8, level: SyncLevel, relays: &[&str]) -> IndexChange {
    announced_at(1, n, level, relays)
}

fn announced_at(seconds: u64, n: u8, level: SyncLevel, relays: &[&str]) -> IndexChange {
    IndexChange::Announced {
        repo: repo(n),
        version: version(seconds),
        relays: relays.iter().map(|name| relay(name)).collect(),
        level,
    }
}

fn root_added(n: u8, repos: &[u8]) -> IndexChange {
    IndexChange::RootAdded {
        root: root(n),
        repos: repos.iter().map(|n| repo(*n)).collect(),
        author: None,
    }
}

fn replied(n: u8, to: &[u8]) -> IndexChange {
    IndexChange::Replied {
        reply: root(n),
        to: to.iter().map(|n| root(*n)).collect(),
    }
}

fn index(changes: impl IntoIterator<Item = IndexChange>) -> SyncIndex {
    let mut index = SyncIndex::new("us.example".parse().unwrap(), [relay("boot"), relay("us")]);
    index.apply(changes);
    index
}

fn needs(repos: &[(u8, SyncLevel)], roots: &[u8]) -> RelaySyncNeeds {
    RelaySyncNeeds {
        repos: repos.iter().map(|(n, level)| (repo(*n), *level)).collect(),
        root_events: roots.iter().map(|n| root(*n)).collect(),
        ..RelaySyncNeeds::default()
    }
}

#[test]
fn a_new_announcement_replaces_the_relays() {
    let mut index = index([announced(1, Full, &["a", "b"]), root_added(1, &[1])]);
    let delta = index.apply([announced(1, Full, &["b", "c"])]);
    let all = needs(&[(1, Full)], &[1]);
    assert_eq!(delta.added, [(relay("c"), all.clone())].into());
    assert_eq!(delta.removed, [(relay("a"), all)].into());
    assert_eq!(delta.discovered, [relay("c")].into());
    assert_eq!(delta.retired, [relay("a")].into());
    assert_eq!(index.target(&relay("a")), None);
}

#[test]
fn a_root_stays_until_both_of_its_repositories_are_gone() {
    let mut index = index([
        announced(1, Full, &["a"]),
        announced(2, Full, &["a", "b"]),
        root_added(1, &[1, 2]),
    ]);
    let delta = index.apply([IndexChange::Retired { repo: repo(1) }]);
    assert_eq!(
        delta.removed,
        [(relay("a"), needs(&[(1, Full)], &[]))].into()
    );
    let delta = index.apply([IndexChange::Retired { repo: repo(2) }]);
    assert_eq!(delta.removed[&relay("a")], needs(&[(2, Full)], &[1]));
    assert_eq!(delta.retired, [relay("a"), relay("b")].into());
}

#[test]
fn promotion_adds_the_repository_in_full_with_its_roots() {
    let mut index = index([announced(1, StateOnly, &["a"]), root_added(1, &[1])]);
    assert_eq!(
        index.target(&relay("a")),
        Some(needs(&[(1, StateOnly)], &[]))
    );
    let delta = index.apply([announced(1, Full, &["a"])]);
    assert_eq!(
        delta.added,
        [(relay("a"), needs(&[(1, Full)], &[1]))].into()
    );
    assert!(delta.removed.is_empty() && delta.discovered.is_empty());
    let held_again = [
        IndexChange::Retired { repo: repo(1) },
        announced(1, StateOnly, &["a"]),
    ];
    let delta = index.apply(held_again);
    assert_eq!(
        delta.removed,
        [(relay("a"), needs(&[(1, Full)], &[1]))].into()
    );
    assert!(delta.added.is_empty() && delta.retired.is_empty());
}

#[test]
fn an_older_announcement_that_comes_later_changes_nothing() {
    let mut index = index([announced_at(2, 1, Full, &["b"])]);
    let unlisted = |seconds, level| IndexChange::Unlisted {
        repo: repo(1),
        version: version(seconds),
        level,
    };
    let old = [
        announced_at(1, 1, Full, &["a"]),
        announced_at(3, 1, StateOnly, &["c"]),
        unlisted(1, Full),
        unlisted(3, StateOnly),
    ];
    assert_eq!(index.apply(old), SyncDelta::default());
    let delta = index.apply([unlisted(3, Full), announced_at(2, 1, Full, &["b"])]);
    assert_eq!(delta.retired, [relay("b")].into());
    let delta = index.apply([announced_at(4, 1, Full, &["d"])]);
    assert_eq!(delta.discovered, [relay("d")].into());
}

#[test]
fn roots_wait_for_their_repository() {
    let mut index = index([root_added(1, &[1])]);
    assert!(index.repos().is_empty());
    let delta = index.apply([announced(1, Full, &["a"])]);
    assert_eq!(delta.added[&relay("a")], needs(&[(1, Full)], &[1]));
}

#[test]
fn a_repository_that_comes_back_finds_its_roots() {
    let mut index = index([
        announced(1, Full, &["a"]),
        root_added(1, &[1]),
        root_added(2, &[1]),
    ]);
    index.apply([
        IndexChange::Retired { repo: repo(1) },
        IndexChange::RootRemoved { root: root(2) },
    ]);
    let delta = index.apply([announced(1, Full, &["a"])]);
    assert_eq!(delta.added[&relay("a")], needs(&[(1, Full)], &[1]));
}

#[test]
fn changes_undone_within_a_batch_are_not_reported() {
    let mut index = index([announced(1, Full, &["a"]), root_added(1, &[1])]);
    let delta = index.apply([
        IndexChange::Retired { repo: repo(1) },
        announced(2, Full, &["b"]),
        root_added(2, &[1]),
        announced(1, Full, &["a"]),
        IndexChange::Retired { repo: repo(2) },
        IndexChange::RootRemoved { root: root(2) },
    ]);
    assert_eq!(delta, SyncDelta::default());
}

#[test]
fn bootstrap_relays_stay_and_our_own_is_left_out() {
    let mut index = index([]);
    let delta = index.apply([announced(1, Full, &["boot", "us"])]);
    assert_eq!(
        delta.added,
        [(relay("boot"), needs(&[(1, Full)], &[]))].into()
    );
    assert!(delta.discovered.is_empty());
    let delta = index.apply([IndexChange::Retired { repo: repo(1) }]);
    assert!(delta.retired.is_empty());
    assert_eq!(index.relays().collect::<Vec<_>>(), [&relay("boot")]);
}

#[test]
fn bootstrap_relays_can_be_replaced() {
    let mut index = index([announced(1, Full, &["boot", "a"])]);
    let changed = index.set_bootstrap([relay("a"), relay("b"), relay("us")]);
    assert_eq!(changed, [relay("a"), relay("b"), relay("boot")].into());
    let all: Vec<_> = index.relays().cloned().collect();
    assert_eq!(all, [relay("a"), relay("b"), relay("boot")]);
    let delta = index.apply([IndexChange::Retired { repo: repo(1) }]);
    assert_eq!(delta.retired, [relay("boot")].into());
    assert_eq!(index.set_bootstrap([]).len(), 2);
    assert_eq!(index.relays().count(), 0);
}

#[test]
fn a_repeated_announcement_changes_nothing() {
    let changes = [announced(1, Full, &["a", "us"]), root_added(1, &[1, 2])];
    let mut index = index(changes.clone());
    assert_eq!(index.apply(changes), SyncDelta::default());
    let targets = derive_relay_targets(
        index.repos(),
        &index.authors(),
        &"us.example".parse().unwrap(),
        &[relay("boot")].into(),
    );
    assert_eq!(targets[&relay("a")], index.target(&relay("a")).unwrap());
}

#[test]
fn replies_are_wanted_from_the_relays_of_their_root_in_any_order() {
    let changes = [
        announced(1, Full, &["a"]),
        root_added(1, &[1]),
        replied(2, &[1]),
        replied(3, &[2]),
        replied(4, &[9]),
    ];
    for order in [
        [0, 1, 2, 3, 4],
        [4, 3, 2, 1, 0],
        [3, 1, 0, 2, 4],
        [2, 0, 3, 1, 4],
    ] {
        let index = index(order.map(|n| changes[n].clone()));
        let wanted = index.target(&relay("a"));
        assert_eq!(wanted, Some(needs(&[(1, Full)], &[1, 2, 3])), "{order:?}");
    }
}

#[test]
fn a_removed_reply_makes_room_for_another() {
    let mut index = index([announced(1, Full, &["a"]), root_added(0, &[1])]);
    let many = |n: u16| {
        let mut bytes = [1; 32];
        bytes[..2].copy_from_slice(&n.to_be_bytes());
        RootId::from(EventId::from_byte_array(bytes))
    };
    let reply = |n| IndexChange::Replied {
        reply: many(n),
        to: vec![root(0)],
    };
    index.apply((0..600).map(reply));
    let wanted = index.target(&relay("a")).unwrap().root_events;
    assert_eq!(
        wanted.len(),
        501,
        "the root, and as many replies as are followed"
    );
    let delta = index.apply([IndexChange::RootRemoved { root: many(7) }]);
    assert_eq!(delta.removed[&relay("a")].root_events, [many(7)].into());
    let delta = index.apply([reply(599)]);
    assert_eq!(delta.added[&relay("a")].root_events, [many(599)].into());
}

fn member(kind: u16, name: &str) -> Coordinate {
    let (kind, public_key) = (nostr::event::Kind::from_u16(kind), repo(9).owner);
    Coordinate {
        kind,
        public_key,
        identifier: name.into(),
    }
}

fn member_added(member: &Coordinate, repos: &[u8], of: &[&Coordinate]) -> IndexChange {
    IndexChange::MemberAdded {
        member: member.clone(),
        repos: repos.iter().map(|n| repo(*n)).collect(),
        of: of.iter().map(|named| (*named).clone()).collect(),
    }
}

fn coordinates(index: &SyncIndex, of: &str) -> Vec<Coordinate> {
    index
        .target(&relay(of))
        .unwrap_or_default()
        .coordinates
        .into_iter()
        .collect()
}

#[test]
fn coordinates_that_never_come_keep_no_others_from_waiting() {
    let mut index = index([announced(1, Full, &["a"])]);
    let (app, release) = (member(32_267, "app"), member(30_063, "app@1"));
    for n in 0..20_000 {
        let other = Coordinate {
            public_key: repo(7).owner,
            ..member(30_063, &n.to_string())
        };
        let nothing = member(32_267, &format!("nothing {n}"));
        index.apply([member_added(&other, &[], &[&nothing])]);
    }
    index.apply([
        member_added(&release, &[], &[&app]),
        member_added(&app, &[1], &[]),
    ]);
    assert_eq!(coordinates(&index, "a"), [release, app]);
}

#[test]
fn replies_to_unknown_events_keep_no_others_from_waiting() {
    let mut index = index([announced(1, Full, &["a"])]);
    let made_up = |n: u32| {
        let mut bytes = [9; 32];
        bytes[..4].copy_from_slice(&n.to_be_bytes());
        RootId::from(EventId::from_byte_array(bytes))
    };
    for n in 0..60_000 {
        let to = vec![made_up(100_000 + n)];
        index.apply([IndexChange::Replied {
            reply: made_up(n),
            to,
        }]);
    }
    index.apply([replied(2, &[1]), root_added(1, &[1])]);
    assert_eq!(
        index.target(&relay("a")),
        Some(needs(&[(1, Full)], &[1, 2]))
    );
}

#[test]
fn a_chain_of_members_is_followed_in_any_order_of_arrival() {
    let (app, release) = (member(32_267, "app"), member(30_063, "app@1"));
    let changes = [
        announced(1, Full, &["a"]),
        member_added(&app, &[1], &[]),
        member_added(&release, &[], &[&app]),
    ];
    for order in [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ] {
        let index = index(order.map(|n: usize| changes[n].clone()));
        assert_eq!(
            coordinates(&index, "a"),
            [release.clone(), app.clone()],
            "{order:?}"
        );
    }
}

#[test]
fn members_are_wanted_from_the_relays_of_full_repositories() {
    let app = member(32_267, "app");
    let mut index = index([
        announced(1, StateOnly, &["a"]),
        member_added(&app, &[1], &[]),
    ]);
    assert!(coordinates(&index, "a").is_empty());
    let delta = index.apply([announced(1, Full, &["a", "b"])]);
    for name in ["a", "b"] {
        assert_eq!(delta.added[&relay(name)].coordinates, [app.clone()].into());
    }
    let delta = index.apply([announced(1, Full, &["b"])]);
    assert_eq!(delta.removed[&relay("a")].coordinates, [app.clone()].into());
    assert!(delta.added.is_empty());
    let delta = index.apply([IndexChange::Retired { repo: repo(1) }]);
    assert_eq!(delta.removed[&relay("b")].coordinates, [app].into());
}

#[test]
fn members_that_name_each_other_end_and_are_limited() {
    let (one, other) = (member(30_023, "one"), member(30_023, "other"));
    let mut index = index([
        announced(1, Full, &["a"]),
        member_added(&one, &[], &[&other]),
        member_added(&other, &[1], &[&one]),
    ]);
    assert_eq!(coordinates(&index, "a"), [one, other]);
    let many = 0..2 * super::members::MAX_PER_REPO;
    let many = many.map(|n| member_added(&member(30_023, &n.to_string()), &[1], &[]));
    let _ = index.apply(many);
    assert_eq!(coordinates(&index, "a").len(), super::members::MAX_PER_REPO);
}

fn author(n: u8) -> PublicKey {
    PublicKey::from_byte_array([n; 32])
}

fn authored(n: u8, repos: &[u8], by: u8) -> IndexChange {
    IndexChange::RootAdded {
        root: root(n),
        repos: repos.iter().map(|n| repo(*n)).collect(),
        author: Some(author(by)),
    }
}

fn user_relays(by: u8, relays: &[&str]) -> IndexChange {
    IndexChange::UserRelays {
        author: author(by),
        relays: relays.iter().map(|name| relay(name)).collect(),
    }
}

#[test]
fn roots_but_no_replies_are_wanted_from_the_relays_of_their_author() {
    let mut index = index([
        announced(1, Full, &["a"]),
        authored(1, &[1], 7),
        authored(2, &[1], 8),
        replied(3, &[1]),
    ]);
    let delta = index.apply([user_relays(7, &["home", "us"])]);
    assert_eq!(delta.discovered, [relay("home")].into());
    assert_eq!(delta.added, [(relay("home"), needs(&[], &[1]))].into());
    assert!(delta.removed.is_empty() && delta.retired.is_empty());
    assert!(index.is_target(&relay("home")) && !index.is_listed(&relay("home")));
    assert_eq!(
        index.users_of(&relay("home")).collect::<Vec<_>>(),
        [author(7)]
    );
    assert_eq!(index.owners_of(&relay("home")), 0);
}

#[test]
fn a_replaced_list_of_an_author_is_in_force_at_once() {
    let mut index = index([
        announced(1, Full, &["a"]),
        authored(1, &[1], 7),
        authored(2, &[1], 8),
        user_relays(7, &["x", "y"]),
        user_relays(8, &["y"]),
    ]);
    let delta = index.apply([user_relays(7, &["z", "a"])]);
    assert_eq!(delta.discovered, [relay("z")].into());
    assert_eq!(delta.retired, [relay("x")].into());
    let one = needs(&[], &[1]);
    let left = [(relay("x"), one.clone()), (relay("y"), one.clone())];
    assert_eq!(delta.removed, left.into());
    assert_eq!(
        delta.added,
        [(relay("z"), one)].into(),
        "it is wanted from a already"
    );
    assert_eq!(index.target(&relay("y")), Some(needs(&[], &[2])));
    let delta = index.apply([user_relays(7, &[])]);
    assert_eq!(delta.retired, [relay("z")].into());
}

#[test]
fn a_relay_of_an_author_is_a_target_while_a_root_of_theirs_is_wanted() {
    let home = relay("home");
    let mut index = index([user_relays(7, &["home"]), announced(1, StateOnly, &["a"])]);
    let is_target = |index: &SyncIndex| index.relays().any(|relay| *relay == home);
    let delta = index.apply([authored(1, &[1], 7)]);
    assert_eq!(delta, SyncDelta::default(), "the repository is held");
    let delta = index.apply([announced(1, Full, &["a"])]);
    assert!(delta.discovered.contains(&home) && is_target(&index));
    let delta = index.apply([IndexChange::Retired { repo: repo(1) }]);
    assert!(delta.retired.contains(&home) && !is_target(&index));
    let delta = index.apply([announced(1, Full, &[])]);
    assert!(delta.discovered.contains(&home) && is_target(&index));
    let delta = index.apply([IndexChange::RootRemoved { root: root(1) }]);
    assert!(delta.retired.contains(&home) && !is_target(&index));
    assert!(index.authors()[&author(7)].roots.is_empty());
}

#[test]
fn a_reply_that_was_removed_before_its_root_comes_is_not_wanted() {
    let removed = IndexChange::RootRemoved { root: root(2) };
    let index = index([
        announced(1, Full, &["a"]),
        replied(2, &[1]),
        replied(3, &[2]),
        removed,
        root_added(1, &[1]),
    ]);
    let wanted = index.target(&relay("a"));
    assert_eq!(wanted, Some(needs(&[(1, Full)], &[1])));
}

#[test]
fn a_reply_to_two_threads_is_wanted_until_both_are_removed() {
    let mut index = index([
        announced(1, Full, &["a"]),
        announced(2, Full, &["b"]),
        replied(4, &[3]),
        root_added(1, &[1]),
        replied(3, &[1, 2]),
        root_added(2, &[2]),
    ]);
    for (name, n) in [("a", 1), ("b", 2)] {
        let wanted = index.target(&relay(name));
        assert_eq!(wanted, Some(needs(&[(n, Full)], &[n, 3, 4])));
    }
    index.apply([IndexChange::RootRemoved { root: root(1) }]);
    assert_eq!(
        index.target(&relay("a")),
        Some(needs(&[(1, Full)], &[])),
        "as after a restart"
    );
    let of_two = needs(&[(2, Full)], &[2, 3, 4]);
    assert_eq!(index.target(&relay("b")), Some(of_two.clone()));
    let delta = index.apply([IndexChange::RootRemoved { root: root(2) }]);
    assert_eq!(delta.removed, [(relay("b"), needs(&[], &[2, 3, 4]))].into());
    index.apply([root_added(2, &[2])]);
    assert_eq!(index.target(&relay("b")), Some(of_two));
}

#[test]
fn a_member_passes_on_the_repositories_that_it_gets_later() {
    let (app, release, notes) = (
        member(32_267, "app"),
        member(30_063, "app@1"),
        member(30_023, "notes"),
    );
    let index = index([
        announced(1, Full, &["a"]),
        announced(2, Full, &["b"]),
        member_added(&release, &[2], &[&app]),
        member_added(&notes, &[], &[&release]),
        member_added(&app, &[1], &[]),
    ]);
    assert_eq!(
        coordinates(&index, "a"),
        [notes.clone(), release.clone(), app]
    );
    assert_eq!(coordinates(&index, "b"), [notes, release]);
}

#[test]
fn removed_threads_leave_nothing_behind() {
    let mut index = index([
        announced(1, Full, &["a"]),
        root_added(1, &[1]),
        replied(2, &[1]),
        replied(3, &[2, 1]),
        replied(4, &[9]),
    ]);
    for n in [1, 2, 3, 4] {
        index.apply([IndexChange::RootRemoved { root: root(n) }]);
    }
    assert!(index.threads.is_empty());
}
