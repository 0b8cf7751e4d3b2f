use super::*;
use crate::push::{CommandReader, Progress};
use crate::testing::{Unsigned, key};

const NONE: &str = "0000000000000000000000000000000000000000";
const A: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
const B: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";
const ALICE: u8 = 1;
const EVE: u8 = 9;

fn request(capabilities: &str, commands: &[(&str, &str, &str)]) -> PushRequest {
    let mut bytes = Vec::new();
    for (i, (old, new, name)) in commands.iter().enumerate() {
        let tail = if i == 0 {
            format!("\0{capabilities}")
        } else {
            String::new()
        };
        crate::push::encode_pkt(format!("{old} {new} {name}{tail}").as_bytes(), &mut bytes);
    }
    bytes.extend_from_slice(b"0000");
    match CommandReader::default().feed(&bytes) {
        Ok(Progress::Complete { request, .. }) => request,
        other => panic!("{other:?}"),
    }
}

fn refs(pairs: &[(&str, &str)]) -> BTreeMap<RefName, Oid> {
    pairs
        .iter()
        .map(|(name, oid)| (name.parse().unwrap(), oid.parse().unwrap()))
        .collect()
}

fn state(author: u8, at: u64, presence: Presence, pairs: &[(&str, &str)]) -> Candidate {
    let tags: Vec<Vec<&str>> = pairs.iter().map(|(name, oid)| vec![*name, *oid]).collect();
    let tags: Vec<&[&str]> = tags.iter().map(Vec::as_slice).collect();
    let id = u8::try_from(at).unwrap();
    let event = Unsigned::kind(30618)
        .tags(&[&["d", "x"]])
        .tags(&tags)
        .at(at)
        .id(id)
        .by(key(author));
    Candidate {
        state: Arc::new(State::parse(&event).unwrap()),
        presence,
    }
}

struct Repository {
    refs: BTreeMap<RefName, Oid>,
    candidates: Vec<Candidate>,
    proposals: BTreeMap<EventId, KnownProposal>,
}

impl Repository {
    fn new(pairs: &[(&str, &str)], candidates: Vec<Candidate>) -> Self {
        Self {
            refs: refs(pairs),
            candidates,
            proposals: BTreeMap::new(),
        }
    }

    fn judge(&self, request: &PushRequest) -> PushVerdict {
        authorise(
            request,
            &PushView {
                refs: &self.refs,
                maintainers: &BTreeSet::from([key(ALICE)]),
                candidates: &self.candidates,
                proposals: &self.proposals,
            },
        )
    }

    /// Returns the verdicts as texts.
    fn texts(&self, request: &PushRequest) -> Vec<String> {
        let verdict = self.judge(request);
        let text = |v: &RefVerdict| match v {
            RefVerdict::Refused(why) => why.to_string(),
            other => format!("{other:?}"),
        };
        verdict.refs.iter().map(|(_, v)| text(v)).collect()
    }
}

const MAIN: &str = "refs/heads/main";
const DEV: &str = "refs/heads/dev";

#[test]
fn a_push_that_realises_a_held_state_is_executed() {
    let repo = Repository::new(&[], vec![state(ALICE, 5, Presence::Held, &[(MAIN, A)])]);
    let verdict = repo.judge(&request("", &[(NONE, A, MAIN)]));
    assert!(verdict.is_accepted());
    assert_eq!(verdict.realises, Some(repo.candidates[0].state.version.id));
    assert_eq!(verdict.authorised.unwrap().execute().len(), 1);
}

#[test]
fn a_state_by_another_key_authorises_nothing() {
    let repo = Repository::new(&[], vec![state(EVE, 5, Presence::Held, &[(MAIN, A)])]);
    let texts = repo.texts(&request("", &[(NONE, A, MAIN)]));
    assert_eq!(
        texts,
        ["no state event from a maintainer is waiting for this push"]
    );
}

#[test]
fn without_confirmed_maintainers_nothing_changes() {
    let request = request("", &[(NONE, A, MAIN)]);
    let view = PushView {
        refs: &BTreeMap::new(),
        maintainers: &BTreeSet::new(),
        candidates: &[state(ALICE, 5, Presence::Held, &[(MAIN, A)])],
        proposals: &BTreeMap::new(),
    };
    let verdict = authorise(&request, &view);
    assert_eq!(
        verdict.refs[0].1,
        RefVerdict::Refused(RefRefusal::NoMaintainers)
    );
    assert_eq!(verdict.authorised, None);
}

#[test]
fn names_every_difference_from_the_signed_state() {
    let declared = &[
        (MAIN, A),
        ("refs/tags/v1", A),
        ("refs/tags/v2", "abc123"),
        (DEV, B),
    ];
    let repo = Repository::new(
        &[("refs/tags/v1", A)],
        vec![state(ALICE, 5, Presence::Held, declared)],
    );
    let texts = repo.texts(&request(
        "",
        &[
            (NONE, B, MAIN),
            (A, NONE, "refs/tags/v1"),
            (NONE, A, "refs/heads/other"),
            (NONE, A, "refs/tags/v2"),
            (NONE, B, DEV),
            (NONE, A, "refs/heads/pr/mine"),
        ],
    ));
    let expected = [
        "would be at bbbbbbbb but the signed state says aaaaaaaa; a maintainer must sign that first",
        "is still in the signed state; a maintainer must sign that first",
        "is not in the signed state; a maintainer must sign that first",
        "would be at aaaaaaaa but the signed state names no object",
        "other refs differ from the signed state; push all of its changes together",
        "push pull requests to refs/nostr/<event-id>",
    ];
    assert_eq!(texts, expected);
}

#[test]
fn a_ref_that_is_not_pushed_counts_too() {
    let repo = Repository::new(
        &[(DEV, A)],
        vec![state(ALICE, 5, Presence::Held, &[(MAIN, A)])],
    );
    let alone = repo.texts(&request("", &[(NONE, A, MAIN)]));
    assert_eq!(
        alone,
        ["other refs differ from the signed state; push all of its changes together"]
    );
    let whole = repo.judge(&request("", &[(NONE, A, MAIN), (A, NONE, DEV)]));
    assert!(whole.is_accepted());
}

#[test]
fn a_satisfied_ref_needs_no_state() {
    let repo = Repository::new(&[(MAIN, A)], vec![]);
    let verdict = repo.judge(&request("", &[(B, A, MAIN), (A, NONE, DEV)]));
    assert!(verdict.is_accepted());
    assert_eq!(verdict.authorised, None);
    assert_eq!(verdict.realises, None);
}

#[test]
fn lost_refs_of_the_served_state_can_be_pushed_again() {
    let repo = Repository::new(&[], vec![state(ALICE, 5, Presence::Stored, &[(MAIN, A)])]);
    assert!(repo.judge(&request("", &[(NONE, A, MAIN)])).is_accepted());
}

#[test]
fn an_older_held_state_than_the_served_one_authorises_nothing() {
    let served = state(ALICE, 7, Presence::Stored, &[(MAIN, B)]);
    let older = state(ALICE, 5, Presence::Held, &[(MAIN, A)]);
    let repo = Repository::new(&[(MAIN, B)], vec![older, served]);
    assert!(!repo.judge(&request("", &[(B, A, MAIN)])).is_accepted());
}

#[test]
fn any_held_state_newer_than_the_served_one_can_be_pushed() {
    let first = state(ALICE, 5, Presence::Held, &[(MAIN, A)]);
    let second = state(ALICE, 6, Presence::Held, &[(MAIN, B)]);
    let repo = Repository::new(&[], vec![first.clone(), second]);
    let verdict = repo.judge(&request("", &[(NONE, A, MAIN)]));
    assert_eq!(verdict.realises, Some(first.state.version.id));
}

#[test]
fn a_ref_that_changed_meanwhile_refuses_the_whole_state() {
    let repo = Repository::new(
        &[(MAIN, B)],
        vec![state(ALICE, 5, Presence::Held, &[(MAIN, A), (DEV, A)])],
    );
    let texts = repo.texts(&request("", &[(NONE, A, MAIN), (NONE, A, DEV)]));
    let expected = [
        "has moved meanwhile, fetch first",
        "other refs have moved meanwhile, fetch first",
    ];
    assert_eq!(texts, expected);
}

#[test]
fn other_namespaces_are_refused() {
    let repo = Repository::new(&[], vec![state(ALICE, 5, Presence::Held, &[(MAIN, A)])]);
    let texts = repo.texts(&request(
        "",
        &[
            (NONE, A, MAIN),
            (NONE, A, "refs/notes/x"),
            (NONE, A, "refs/nostr/123"),
        ],
    ));
    assert_eq!(texts[0], "Execute");
    assert!(texts[1].starts_with("only branches") && texts[2].starts_with("refs/nostr/ must"));
}

#[test]
fn an_atomic_push_is_all_or_nothing() {
    let repo = Repository::new(&[], vec![state(ALICE, 5, Presence::Held, &[(MAIN, A)])]);
    let commands = [(NONE, A, MAIN), (NONE, A, "refs/notes/x")];
    let verdict = repo.judge(&request("atomic", &commands));
    assert_eq!(verdict.refs[0].1, RefVerdict::Refused(RefRefusal::Atomic));
    assert_eq!((verdict.authorised, verdict.realises), (None, None));
}

#[test]
fn a_pull_request_tip_must_match_its_event() {
    let event = EventId::from_slice(&[7; 32]).unwrap();
    let name = RefName::nostr(event).to_string();
    let mut repo = Repository::new(&[], vec![]);
    let mut text = |known, old: &str, new: &str| {
        repo.proposals = BTreeMap::from([(event, known)]);
        repo.texts(&request("", &[(old, new, &name)])).remove(0)
    };
    let tip = KnownProposal::Tip(Presence::Held, A.parse().unwrap());
    assert_eq!(text(tip, NONE, A), "Execute");
    assert_eq!(text(tip, NONE, B), "its event names commit aaaaaaaa");
    assert_eq!(
        text(tip, A, NONE),
        "pull requests are removed by deleting their event"
    );
    assert_eq!(text(KnownProposal::Unknown, NONE, B), "Stage");
    assert_eq!(
        text(KnownProposal::Unavailable, NONE, A),
        "could not look up its event, try again"
    );
}

#[test]
fn refused_commands_are_not_executed() {
    let repo = Repository::new(&[], vec![state(ALICE, 5, Presence::Held, &[(MAIN, A)])]);
    let verdict = repo.judge(&request("", &[(NONE, A, MAIN), (NONE, A, "refs/notes/x")]));
    let executed = verdict.authorised.unwrap();
    assert_eq!(executed.execute().len(), 1);
    assert_eq!(executed.execute()[0].name.as_str(), MAIN);
}

fn oid(digit: &str) -> Oid {
    digit.repeat(40).parse().unwrap()
}

fn id() -> EventId {
    "b".repeat(64).parse().unwrap()
}

/// Returns the verdict on one command at a contributor's endpoint.
fn judged(old: &str, new: &str, name: &str, known: KnownProposal) -> RefVerdict {
    let request = request("", &[(&old.repeat(40), &new.repeat(40), name)]);
    let known = BTreeMap::from([(id(), known)]);
    authorise_contribution(&request, &BTreeMap::new(), &known).refs[0]
        .1
        .clone()
}

#[test]
fn accepts_only_commits_that_the_contributor_signed() {
    let name = format!("refs/nostr/{}", id());
    let ours = |presence| KnownProposal::Tip(presence, oid("a"));
    let refused = RefVerdict::Refused;
    let cases = [
        ("a", ours(Presence::Held), RefVerdict::Stage),
        ("a", ours(Presence::Stored), RefVerdict::Execute),
        (
            "c",
            ours(Presence::Held),
            refused(RefRefusal::WrongTip { wanted: oid("a") }),
        ),
        (
            "c",
            ours(Presence::Stored),
            refused(RefRefusal::WrongTip { wanted: oid("a") }),
        ),
        ("a", KnownProposal::Unknown, RefVerdict::Stage),
        (
            "a",
            KnownProposal::Foreign,
            refused(RefRefusal::ForeignProposal),
        ),
        (
            "a",
            KnownProposal::Unavailable,
            refused(RefRefusal::Unknowable),
        ),
        (
            "0",
            ours(Presence::Stored),
            refused(RefRefusal::PullRequestDelete),
        ),
    ];
    for (new, known, expected) in cases {
        let old = if new == "0" { "a" } else { "0" };
        assert_eq!(judged(old, new, &name, known), expected, "{new} {known:?}");
    }
}

#[test]
fn refuses_other_refs_without_sounding_like_a_missing_repository() {
    for name in [
        "refs/heads/main",
        "refs/tags/v1",
        "refs/other/x",
        "refs/nostr/not-an-id",
    ] {
        let RefVerdict::Refused(why) = judged("0", "a", name, KnownProposal::Unknown) else {
            panic!("{name}");
        };
        let texts = why.to_string();
        assert!(
            !texts.contains("not found") && !texts.contains("404"),
            "{texts}"
        );
    }
}
