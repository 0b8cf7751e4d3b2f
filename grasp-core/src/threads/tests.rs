use super::*;
use crate::testing::{Unsigned, key};

const AUTHOR: u8 = 1;
const MAINTAINER: u8 = 2;
const STRANGER: u8 = 3;

fn repo() -> RepoId {
    RepoId::new(key(MAINTAINER), "x".parse().unwrap())
}

fn scope() -> ThreadScope {
    ThreadScope::new(&repo(), BTreeSet::from([key(MAINTAINER)]))
}

fn address() -> String {
    format!("30617:{}:x", key(MAINTAINER))
}

/// Returns the id that events made with this number have.
fn id(n: u8) -> String {
    format!("{n:02x}").repeat(32)
}

fn issue() -> Root {
    let event = Unsigned::kind(1621)
        .id(100)
        .tags(&[&["a", &address()], &["subject", "First"], &["t", "bug"]])
        .by(key(AUTHOR));
    Root::parse(&scope(), &event).unwrap()
}

/// Makes an event of this kind about the issue.
fn about(kind: u16, n: u8, by: u8, tags: &[&[&str]]) -> Event {
    Unsigned::kind(kind)
        .id(n)
        .at(u64::from(n))
        .tags(&[&["e", &id(100), "", "root"]])
        .tags(tags)
        .content("text")
        .by(key(by))
}

fn status_of(events: &[Event]) -> Status {
    Summary::of(&scope(), &issue(), events).status()
}

#[test]
fn newest_status_of_author_or_maintainer_counts() {
    let closed = about(1632, 1, AUTHOR, &[]);
    let applied = about(1631, 2, MAINTAINER, &[]);
    let draft = about(1633, 3, STRANGER, &[]);
    assert_eq!(status_of(&[]), Status::Open);
    assert_eq!(status_of(std::slice::from_ref(&closed)), Status::Closed);
    assert_eq!(
        status_of(&[closed, applied.clone(), draft.clone()]),
        Status::Applied
    );
    assert_eq!(status_of(&[draft]), Status::Open, "a stranger");
    let other = Unsigned::kind(1632)
        .tags(&[&["e", &id(101), "", "root"], &["e", &id(100), "", "reply"]])
        .by(key(AUTHOR));
    assert_eq!(status_of(&[other]), Status::Open, "of another thread");
}

#[test]
fn strangers_neither_label_nor_rename() {
    let labels: &[&[&str]] = &[&["l", "urgent", "#t"], &["l", "Renamed", "#subject"]];
    let ours = Summary::of(&scope(), &issue(), &[about(1985, 1, MAINTAINER, labels)]);
    assert_eq!(ours.title, "Renamed");
    assert_eq!(ours.labels, BTreeSet::from(["bug".into(), "urgent".into()]));
    let theirs = Summary::of(&scope(), &issue(), &[about(1985, 1, STRANGER, labels)]);
    assert_eq!(theirs.title, "First");
    assert_eq!(theirs.labels, BTreeSet::from(["bug".into()]));
}

#[test]
fn issue_of_another_repository_is_no_root() {
    let other = format!("30617:{}:y", key(MAINTAINER));
    let event = Unsigned::kind(1621).tags(&[&["a", &other]]).by(key(AUTHOR));
    assert_eq!(Root::parse(&scope(), &event), None);
    let none = Unsigned::kind(1621).by(key(AUTHOR));
    assert_eq!(Root::parse(&scope(), &none), None);
}

#[test]
fn subject_of_a_patch_is_unfolded_without_its_brackets() {
    let mail = "From 0 Mon\nFrom: A <a@b>\nSubject: [PATCH v2 1/2] fix [x]\n the rest\nDate: now\n\nSubject: no\n";
    let event = Unsigned::kind(1617)
        .tags(&[&["a", &address()], &["t", "root"]])
        .content(mail)
        .by(key(AUTHOR));
    let root = Root::parse(&scope(), &event).unwrap();
    assert_eq!(root.title, "fix [x] the rest");
    assert!(root.labels.is_empty(), "{:?}", root.labels);
    let second = Unsigned::kind(1617)
        .tags(&[&["a", &address()], &["e", &id(1), "", "root"]])
        .by(key(AUTHOR));
    assert_eq!(Root::parse(&scope(), &second), None);
}

#[test]
fn titles_are_one_line_without_control_of_direction() {
    let line = line_of(" a\n\tb\u{202e}c\u{7} ");
    assert_eq!(line.as_deref(), Some("a bc"));
    assert_eq!(line_of("\u{202e}\n"), None);
    let long = line_of(&"é".repeat(10_000)).unwrap();
    assert_eq!(long.chars().count(), MAX_TITLE_CHARS + 1);
}

#[test]
fn tips_are_ordered_and_strangers_propose_none() {
    let a = "a".repeat(40);
    let b = "b".repeat(40);
    let pull = Unsigned::kind(1618)
        .id(100)
        .at(1)
        .tags(&[
            &["a", &address()],
            &["c", &a],
            &["merge-base", &b],
            &["b", "main"],
        ])
        .by(key(AUTHOR));
    let root = Root::parse(&scope(), &pull).unwrap();
    let update = |n: u8, by: u8, c: &str| {
        Unsigned::kind(1619)
            .id(n)
            .at(u64::from(n))
            .tags(&[&["E", &id(100)], &["c", c]])
            .by(key(by))
    };
    let events = [
        update(9, STRANGER, &a),
        update(5, AUTHOR, &b),
        update(4, AUTHOR, &a),
    ];
    let thread = Thread::of(&scope(), root, &events);
    let commits: Vec<_> = thread
        .tips
        .iter()
        .map(|tip| tip.commit.to_string())
        .collect();
    assert_eq!(commits, [a.clone(), a, b.clone()]);
    assert_eq!(thread.tips[0].merge_base, Some(b.parse().unwrap()));
    assert_eq!(thread.root.target.as_deref(), Some("main"));
}

fn depths(events: &[Event]) -> Vec<(u64, usize)> {
    let thread = Thread::of(&scope(), issue(), events);
    let shown = thread.comments.shown.iter();
    shown
        .map(|comment| (comment.version.created_at.as_secs(), comment.depth))
        .collect()
}

#[test]
fn replies_follow_their_comment_down_to_a_bounded_depth() {
    let reply = |n: u8, to: u8| {
        Unsigned::kind(1111)
            .id(n)
            .at(u64::from(n))
            .tags(&[&["E", &id(100)], &["e", &id(to)]])
            .by(key(STRANGER))
    };
    let events = [
        reply(9, 100),
        reply(1, 100),
        reply(2, 1),
        reply(3, 2),
        reply(4, 3),
        reply(5, 4),
        reply(8, 77),
    ];
    let expected = [(1, 0), (2, 1), (3, 2), (4, 3), (5, 3), (8, 0), (9, 0)];
    assert_eq!(depths(&events), expected);
    let circle = [reply(1, 2), reply(2, 1)];
    assert_eq!(depths(&circle), [(1, 0), (2, 1)]);
    let own = [reply(1, 1)];
    assert_eq!(depths(&own), [(1, 0)]);
}

#[test]
fn old_kinds_of_comments_are_read() {
    let old = about(1622, 1, STRANGER, &[]);
    let note = about(1, 2, STRANGER, &[&["e", &id(1), "", "reply"]]);
    let other = Unsigned::kind(1)
        .id(3)
        .tags(&[&["e", &id(101)]])
        .by(key(AUTHOR));
    assert_eq!(depths(&[other, note, old]), [(1, 0), (2, 1)]);
}

#[test]
fn a_flood_hides_no_older_comment_and_none_of_a_maintainer() {
    let mut events = Vec::new();
    for n in 0..700u64 {
        let event = Unsigned::kind(1111).at(1_000 + n).tags(&[&["E", &id(100)]]);
        let mut event = event.by(key(STRANGER));
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&n.to_be_bytes());
        event.id = EventId::from_slice(&bytes).unwrap();
        events.push(event);
    }
    events.push(about(1111, 1, STRANGER, &[]));
    let late = Unsigned::kind(1111)
        .id(2)
        .at(9_999)
        .tags(&[&["E", &id(100)]]);
    events.push(late.by(key(MAINTAINER)));
    let comments = Thread::of(&scope(), issue(), &events).comments;
    assert_eq!((comments.shown.len(), comments.omitted), (500, 202));
    assert_eq!(comments.shown[0].version.created_at.as_secs(), 1);
    assert_eq!(comments.shown[499].author, key(MAINTAINER));
    assert_eq!(Summary::of(&scope(), &issue(), &events).comments, 702);
}

#[test]
fn newest_cover_note_of_those_who_decide_is_shown() {
    let events = [
        about(1624, 1, AUTHOR, &[]),
        about(1624, 2, MAINTAINER, &[]),
        about(1624, 3, STRANGER, &[]),
    ];
    let cover = Thread::of(&scope(), issue(), &events).cover.unwrap();
    assert_eq!(cover.author, key(MAINTAINER));
}

#[test]
fn checks_of_another_commit_or_repository_are_ignored() {
    let (c, d) = ("c".repeat(40), "d".repeat(40));
    let check = |n: u8, by: u8, commit: &str, result: &str| {
        Unsigned::kind(9842)
            .id(n)
            .at(u64::from(n))
            .tags(&[
                &["a", &address()],
                &["c", commit],
                &["name", "test"],
                &["conclusion", result],
            ])
            .by(key(by))
    };
    let elsewhere = Unsigned::kind(9842).tags(&[&["c", &c]]).by(key(MAINTAINER));
    let events = [
        check(1, MAINTAINER, &c, "failure"),
        check(2, MAINTAINER, &c, "success"),
        check(3, STRANGER, &c, "failure"),
        check(4, MAINTAINER, &d, "failure"),
        elsewhere,
    ];
    let found = checks(&scope(), &c.parse().unwrap(), &events);
    let found: Vec<_> = found
        .iter()
        .map(|check| (check.by, check.outcome))
        .collect();
    let expected = [
        (key(MAINTAINER), CheckOutcome::Passed),
        (key(STRANGER), CheckOutcome::Failed),
    ];
    assert_eq!(found, expected);
}
