//! Threads are read alike from their events in any order, and only by those who decide about them.

use std::collections::BTreeSet;

use grasp_core::RepoId;
use grasp_core::threads::{Comments, Root, Summary, Thread, ThreadScope, checks};
use nostr::event::{Event, EventId};
use proptest::prelude::*;

use crate::events::{event, key, tags};

const MAINTAINER: u8 = 1;
const AUTHOR: u8 = 2;
const ROOT: u8 = 200;

fn scope() -> ThreadScope {
    let repo = RepoId::new(key(MAINTAINER), "x".parse().unwrap());
    ThreadScope::new(&repo, BTreeSet::from([key(MAINTAINER)]))
}

fn owned(values: &[&str]) -> Vec<String> {
    values.iter().map(|value| (*value).to_owned()).collect()
}

fn root(kind: u16) -> Root {
    let address = format!("30617:{}:x", key(MAINTAINER));
    let c = "a".repeat(40);
    let tags = [owned(&["a", &address]), owned(&["c", &c])];
    Root::parse(&scope(), &event(kind, AUTHOR, 5, ROOT, &tags)).unwrap()
}

/// Tags that threads read, whose values often name the root or another event of the thread.
fn thread_tags() -> impl Strategy<Value = Vec<Vec<String>>> {
    let id = prop_oneof![3 => Just(ROOT), 2 => 0u8..20];
    let id = id.prop_map(|n| format!("{n:02x}").repeat(32));
    let marker = prop::sample::select(vec!["", "root", "reply"]);
    let named = (prop::sample::select(vec!["e", "E"]), id, marker)
        .prop_map(|(name, id, marker)| owned(&[name, &id, "", marker]));
    let label = (
        any::<String>(),
        prop::sample::select(vec!["#t", "#subject"]),
    )
        .prop_map(|(value, namespace)| owned(&["l", &value, namespace]));
    let commit = Just(owned(&["c", &"b".repeat(40)]));
    prop::collection::vec(prop_oneof![4 => named, 2 => label, 1 => commit], 0..4)
}

fn thread_event(author: impl Strategy<Value = u8>) -> impl Strategy<Value = Event> {
    let kinds = vec![
        1, 1111, 1622, 1617, 1619, 1624, 1630, 1631, 1632, 1633, 1985, 9842,
    ];
    let kind = prop::sample::select(kinds);
    (kind, author, 0u64..9, 0u8..20, thread_tags())
        .prop_map(|(kind, author, at, id, tags)| event(kind, author, at, id, &tags))
}

/// Returns the events with each id once: an id is the hash of its event.
fn distinct(events: Vec<Event>) -> Vec<Event> {
    let mut seen: BTreeSet<EventId> = BTreeSet::new();
    let mut kept = events;
    kept.retain(|event| seen.insert(event.id));
    kept
}

proptest! {
    #![proptest_config(crate::config(512))]

    #[test]
    fn order_makes_no_difference(
        kind in prop::sample::select(vec![1617u16, 1618, 1621]),
        events in prop::collection::vec(thread_event(1u8..5), 0..16).prop_map(distinct),
        rotation in 0usize..16,
    ) {
        let one = Thread::of(&scope(), root(kind), &events);
        let mut others = events.clone();
        others.reverse();
        others.rotate_left(rotation % events.len().max(1));
        // Repetitions change nothing either.
        others.extend(events);
        prop_assert_eq!(one, Thread::of(&scope(), root(kind), &others));
    }

    #[test]
    fn strangers_only_comment(events in prop::collection::vec(thread_event(3u8..6), 0..16)) {
        let thread = Thread::of(&scope(), root(1618), &events);
        let untouched = Thread::of(&scope(), root(1618), &[]);
        prop_assert_eq!(&thread.summary.title, &untouched.summary.title);
        prop_assert_eq!(&thread.summary.labels, &untouched.summary.labels);
        prop_assert_eq!(thread.summary.change, None);
        prop_assert_eq!(&thread.cover, &None);
        prop_assert_eq!(&thread.tips, &untouched.tips);
        prop_assert_eq!(&thread.patches, &untouched.patches);
    }

    #[test]
    fn every_comment_is_shown_once(events in prop::collection::vec(thread_event(1u8..5), 0..40).prop_map(distinct)) {
        let thread = Thread::of(&scope(), root(1621), &events);
        let ids: BTreeSet<EventId> = thread.comments.shown.iter().map(|it| it.version.id).collect();
        prop_assert_eq!(ids.len(), thread.comments.shown.len());
        prop_assert_eq!(ids.len(), thread.summary.comments);
        prop_assert!(thread.comments.shown.iter().all(|it| it.depth <= Comments::MAX_DEPTH));
    }

    #[test]
    fn hostile_events_are_read_without_panic(
        kind in any::<u16>(), at in any::<u64>(), tags in tags(),
    ) {
        let hostile = event(kind, 3, at, 7, &tags);
        let _ = Root::parse(&scope(), &hostile);
        let _ = Summary::of(&scope(), &root(1621), std::slice::from_ref(&hostile));
        let _ = Thread::of(&scope(), root(1618), std::slice::from_ref(&hostile));
        let _ = checks(&scope(), &"a".repeat(40).parse().unwrap(), &[hostile]);
    }
}
