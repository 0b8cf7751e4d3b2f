use std::collections::BTreeSet;

use super::*;
use crate::MaintainerModel;
use crate::maintainers::maintainer_lists;
use crate::nip34::Announcement;
use crate::service::npub;
use crate::testing::{Unsigned, key};

const ALICE: u8 = 1;
const BOB: u8 = 2;
const EVE: u8 = 9;
const NOW: Timestamp = Timestamp::from_secs(10_000);
const OID: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

fn policy() -> Policy {
    Policy::new("us.example".parse().unwrap())
}

fn verdict_on(policy: &Policy, event: Unsigned, by: u8, facts: &Facts) -> Verdict {
    let facts = seen_by(policy, by, facts);
    judge(
        policy,
        NOW,
        &Origin::anonymous(),
        Verified::pretend(event.by(key(by))).as_ref(),
        &facts,
    )
}

/// Returns the facts for an author where these announcements are here, of this author and of others.
fn seen_by(policy: &Policy, by: u8, facts: &Facts) -> Facts {
    let author = key(by);
    let mut facts = facts.clone();
    let all = std::mem::take(&mut facts.announcements);
    let lists = maintainer_lists(all.iter().map(|known| &*known.announcement));
    for known in all {
        let repo = known.announcement.repo.clone();
        let is_maintainer = policy
            .model
            .maintainers(&repo.owner, &lists)
            .contains(&author);
        if policy.hosts(&known.announcement) && is_maintainer {
            facts.maintained.push(MaintainedRepo {
                repo: repo.clone(),
                presence: known.presence,
            });
        }
        if repo.owner == author {
            facts.announcements.push(known);
        } else {
            facts.is_listed |= known.announcement.maintainer_list.lists(&author);
        }
    }
    facts
}

/// Returns the origin of a client that is authenticated as these keys.
fn authenticated_as(keys: &[u8]) -> Origin {
    Origin::Client {
        authenticated: keys.iter().map(|n| key(*n)).collect(),
        network: None,
    }
}

/// An announcement of `x` that lists this service, by its author's own path.
fn listing(by: u8) -> Unsigned {
    let clone = format!("https://us.example/{}/x.git", npub(&key(by)));
    Unsigned::kind(30617).tags(&[
        &["d", "x"],
        &["clone", &clone],
        &["relays", "wss://us.example"],
    ])
}

fn elsewhere() -> Unsigned {
    Unsigned::kind(30617).tags(&[
        &["d", "x"],
        &["clone", "https://them.example/x.git"],
        &["relays", "wss://them.example"],
    ])
}

fn naming(event: Unsigned, other: u8) -> Unsigned {
    event.tags(&[&["maintainers", &key(other).to_string()]])
}

fn known(event: Unsigned, by: u8, presence: Presence) -> KnownAnnouncement {
    let announcement = Announcement::parse(&event.by(key(by))).unwrap();
    KnownAnnouncement {
        announcement: Arc::new(announcement),
        presence,
    }
}

fn knowing(announcements: Vec<KnownAnnouncement>) -> Facts {
    Facts {
        announcements,
        ..Facts::default()
    }
}

fn is_malformed(verdict: &Verdict) -> bool {
    matches!(
        verdict,
        Verdict::Done(Outcome::Refused {
            reason: Rejection::Malformed(_),
            ..
        })
    )
}

fn state() -> Unsigned {
    Unsigned::kind(30618).tags(&[&["d", "x"], &["refs/heads/main", OID]])
}

fn repo(owner: u8) -> crate::RepoId {
    crate::RepoId::new(key(owner), "x".parse().unwrap())
}

#[test]
fn a_new_repository_that_lists_us_is_held() {
    let verdict = verdict_on(&policy(), listing(ALICE), ALICE, &Facts::default());
    assert_eq!(verdict, Verdict::Hold(Hold::Announcement));
    let answer = verdict.outcome().answer();
    assert!(answer.is_accepted && answer.message.starts_with("purgatory: "));
}

#[test]
fn an_announcement_that_lists_only_others_is_refused_with_its_urls() {
    let answer = verdict_on(&policy(), elsewhere(), ALICE, &Facts::default())
        .outcome()
        .answer();
    assert!(!answer.is_accepted && answer.message.starts_with("invalid: "));
    assert!(answer.message.contains("https://them.example/x.git"));
    let theirs = listing(BOB); // bob's path under alice's signature
    assert!(
        !verdict_on(&policy(), theirs, ALICE, &Facts::default())
            .outcome()
            .answer()
            .is_accepted
    );
}

#[test]
fn a_new_announcement_is_stored_for_a_served_repository_and_held_for_a_held_one() {
    let served = knowing(vec![known(listing(ALICE), ALICE, Presence::Stored)]);
    let next = || listing(ALICE).at(2_000).id(2);
    assert_eq!(
        verdict_on(&policy(), next(), ALICE, &served),
        Verdict::Store { is_related: false }
    );
    let held = knowing(vec![known(listing(ALICE), ALICE, Presence::Held)]);
    assert_eq!(
        verdict_on(&policy(), next(), ALICE, &held),
        Verdict::Hold(Hold::Announcement)
    );
}

#[test]
fn a_discovery_announcement_that_lists_us_later_is_held() {
    let facts = knowing(vec![
        known(naming(listing(ALICE), BOB), ALICE, Presence::Stored),
        known(elsewhere(), BOB, Presence::Stored),
    ]);
    let next = listing(BOB).at(2_000).id(2);
    assert_eq!(
        verdict_on(&policy(), next, BOB, &facts),
        Verdict::Hold(Hold::Announcement)
    );
}

#[test]
fn an_older_version_changes_nothing() {
    let facts = knowing(vec![known(
        listing(ALICE).at(2_000),
        ALICE,
        Presence::Stored,
    )]);
    for old in [listing(ALICE).at(1_999).id(2), elsewhere().at(1_999).id(2)] {
        let verdict = verdict_on(&policy(), old, ALICE, &facts);
        assert_eq!(verdict, Verdict::Done(Outcome::Superseded));
        let answer = verdict.outcome().answer();
        assert!(
            !answer.is_accepted && answer.message.starts_with("replaced: "),
            "{answer:?}"
        );
    }
}

#[test]
fn within_one_second_the_lower_id_wins() {
    let facts = knowing(vec![known(listing(ALICE).id(5), ALICE, Presence::Stored)]);
    let lower = verdict_on(&policy(), listing(ALICE).id(4), ALICE, &facts);
    assert_eq!(lower, Verdict::Store { is_related: false });
    let higher = verdict_on(&policy(), listing(ALICE).id(6), ALICE, &facts);
    assert_eq!(higher, Verdict::Done(Outcome::Superseded));
}

#[test]
fn a_listed_maintainer_may_announce_for_discovery() {
    for presence in [Presence::Stored, Presence::Held] {
        let facts = knowing(vec![known(naming(listing(ALICE), BOB), ALICE, presence)]);
        assert_eq!(
            verdict_on(&policy(), elsewhere(), BOB, &facts),
            Verdict::Store { is_related: false }
        );
        assert!(
            !verdict_on(&policy(), elsewhere(), EVE, &facts)
                .outcome()
                .answer()
                .is_accepted
        );
    }
}

#[test]
fn an_announcement_that_no_longer_lists_us_delists_the_repository() {
    let alone = knowing(vec![known(listing(ALICE), ALICE, Presence::Stored)]);
    let delisted = verdict_on(&policy(), elsewhere().at(2_000).id(2), ALICE, &alone);
    assert_eq!(delisted, Verdict::Delist { keep: false });
    assert!(!delisted.outcome().answer().is_accepted);
    let named = knowing(vec![
        known(listing(ALICE), ALICE, Presence::Held),
        known(naming(listing(BOB), ALICE), BOB, Presence::Stored),
    ]);
    let kept = verdict_on(&policy(), elsewhere().at(2_000).id(2), ALICE, &named);
    assert_eq!(kept, Verdict::Delist { keep: true });
    assert!(kept.outcome().answer().is_accepted);
}

#[test]
fn an_archive_hosts_what_does_not_list_it() {
    let mut policy = policy();
    policy.archive.services = vec!["them.example".parse().unwrap()];
    let verdict = verdict_on(&policy, elsewhere(), ALICE, &Facts::default());
    assert_eq!(verdict, Verdict::Hold(Hold::Announcement));
    policy.bans.repos = BTreeSet::from([repo(ALICE)]);
    let banned = verdict_on(&policy, elsewhere(), ALICE, &Facts::default());
    assert_eq!(banned, Verdict::from(Rejection::Banned));
}

#[test]
fn a_state_needs_an_announcement_and_a_maintainer_as_author() {
    let none = verdict_on(&policy(), state(), ALICE, &Facts::default());
    assert_eq!(none, Verdict::from(Rejection::NoAnnouncement));
    assert_eq!(Rejection::NoAnnouncement.retry(), Retry::AfterDependency);
    let facts = knowing(vec![known(listing(ALICE), ALICE, Presence::Held)]);
    // What another owner announces is no announcement of hers.
    let stranger = verdict_on(&policy(), state(), EVE, &facts);
    assert_eq!(stranger, Verdict::from(Rejection::NoAnnouncement));
    let invited = knowing(vec![known(
        naming(listing(ALICE), EVE),
        ALICE,
        Presence::Held,
    )]);
    let verdict = verdict_on(&policy(), state(), EVE, &invited);
    assert_eq!(verdict, Verdict::from(Rejection::NotMaintainer(key(EVE))));
    assert!(
        verdict
            .outcome()
            .answer()
            .message
            .starts_with("restricted: ")
    );
    let owner = verdict_on(&policy(), state(), ALICE, &facts);
    assert_eq!(owner, Verdict::Hold(Hold::State(vec![repo(ALICE)])));
}

#[test]
fn an_invited_key_may_sign_only_in_the_plain_model() {
    let facts = knowing(vec![known(
        naming(listing(ALICE), BOB),
        ALICE,
        Presence::Stored,
    )]);
    let reciprocal = verdict_on(&policy(), state(), BOB, &facts);
    assert_eq!(
        reciprocal,
        Verdict::from(Rejection::NotMaintainer(key(BOB)))
    );
    let plain = Policy {
        model: MaintainerModel::Plain,
        ..policy()
    };
    assert_eq!(
        verdict_on(&plain, state(), BOB, &facts),
        Verdict::Hold(Hold::State(vec![repo(ALICE)]))
    );
}

#[test]
fn a_discovery_announcement_permits_no_states() {
    let facts = knowing(vec![
        known(naming(listing(ALICE), BOB), ALICE, Presence::Stored),
        known(elsewhere(), BOB, Presence::Stored),
    ]);
    let verdict = verdict_on(&policy(), state(), BOB, &facts);
    assert_eq!(verdict, Verdict::from(Rejection::NotMaintainer(key(BOB))));
}

#[test]
fn pull_requests_wait_for_their_tip() {
    let request = || Unsigned::kind(1618).tags(&[&["c", OID]]);
    let facts = Facts {
        is_related: true,
        ..Facts::default()
    };
    assert_eq!(
        verdict_on(&policy(), request(), EVE, &facts),
        Verdict::Hold(Hold::Proposal)
    );
    let unrelated = verdict_on(&policy(), request(), EVE, &Facts::default());
    assert_eq!(unrelated, Verdict::from(Rejection::Unrelated));
    let tipless = verdict_on(&policy(), Unsigned::kind(1618), EVE, &facts);
    assert!(tipless.outcome().answer().message.starts_with("invalid: "));
}

#[test]
fn a_pull_request_at_our_prs_endpoint_needs_no_accepted_repository() {
    let policy = Policy {
        contributor_proposals: true,
        ..policy()
    };
    let a = format!("30617:{}:x", key(ALICE));
    let at = |host: &str, by: u8, name: &str| {
        let clone = format!("https://{host}/prs/{}/{name}.git", npub(&key(by)));
        Unsigned::kind(1618).tags(&[&["c", OID], &["a", &a], &["clone", &clone]])
    };
    let verdict_on = |event| verdict_on(&policy, event, EVE, &Facts::default());
    assert_eq!(
        verdict_on(at("us.example", EVE, "x")),
        Verdict::Hold(Hold::Proposal)
    );
    for other in [
        at("them.example", EVE, "x"),
        at("us.example", BOB, "x"),
        at("us.example", EVE, "y"),
    ] {
        assert_eq!(verdict_on(other), Verdict::from(Rejection::Unrelated));
    }
}

#[test]
fn other_events_must_be_related_to_something_stored() {
    let related = Facts {
        is_related: true,
        ..Facts::default()
    };
    for kind in [1, 1111, 1621, 1617, 1985, 9842] {
        let event = || Unsigned::kind(kind);
        assert_eq!(
            verdict_on(&policy(), event(), EVE, &related),
            Verdict::Store { is_related: true }
        );
        let verdict = verdict_on(&policy(), event(), EVE, &Facts::default());
        assert_eq!(verdict, Verdict::from(Rejection::Unrelated));
    }
    for kind in [5, 62, 10317, 10318] {
        let event = Unsigned::kind(kind).tags(&[&["relay", "ALL_RELAYS"]]);
        let verdict = verdict_on(&policy(), event, EVE, &Facts::default());
        assert_eq!(verdict, Verdict::Store { is_related: true });
    }
    let verdict = verdict_on(&policy(), Unsigned::kind(62), EVE, &Facts::default());
    assert!(
        verdict.outcome().answer().message.starts_with("invalid: "),
        "a vanish request must name a relay"
    );
}

#[test]
fn profiles_are_stored_of_known_authors_only() {
    let related = Facts {
        is_related: true,
        ..Facts::default()
    };
    let known = Facts {
        is_author_known: true,
        ..Facts::default()
    };
    for kind in [0, 10002] {
        let verdict = verdict_on(&policy(), Unsigned::kind(kind), EVE, &related);
        assert_eq!(verdict, Verdict::from(Rejection::UnknownAuthor));
        let message = verdict.outcome().answer().message;
        assert!(
            message.contains("only of authors who own a repository here"),
            "{message}"
        );
        assert!(
            verdict_on(&policy(), Unsigned::kind(kind), EVE, &known)
                .outcome()
                .answer()
                .is_accepted
        );
    }
}

#[test]
fn ephemeral_events_are_passed_on_and_never_taken_from_relays() {
    let related = Facts {
        is_related: true,
        ..Facts::default()
    };
    let event = || Unsigned::kind(29846);
    assert_eq!(
        verdict_on(&policy(), event(), EVE, &related),
        Verdict::Broadcast
    );
    let origin = Origin::Sync {
        relay: "wss://them.example".parse().unwrap(),
        path: SyncPath::Live,
    };
    let event = Verified::pretend(event().by(key(EVE)));
    let verdict = judge(&policy(), NOW, &origin, event.as_ref(), &related);
    assert_eq!(verdict, Verdict::from(Rejection::NeverStored));
}

#[test]
fn the_operators_ephemeral_events_are_passed_on() {
    let operator = Policy {
        operator: Some(key(ALICE)),
        ..policy()
    };
    let verdict_on = |by| verdict_on(&operator, Unsigned::kind(29846), by, &Facts::default());
    assert_eq!(verdict_on(ALICE), Verdict::Broadcast);
    assert_eq!(verdict_on(EVE), Verdict::from(Rejection::Unrelated));
}

#[test]
fn events_of_the_service_itself_need_no_relation() {
    let of_service = Policy {
        service_key: Some(key(ALICE)),
        ..policy()
    };
    for kind in [0, 10_002] {
        let judged = |by| verdict_on(&of_service, Unsigned::kind(kind), by, &Facts::default());
        assert_eq!(judged(ALICE), Verdict::Store { is_related: true });
        assert_eq!(judged(EVE), Verdict::from(Rejection::UnknownAuthor));
    }
}

#[test]
fn a_repost_of_a_protected_event_is_refused_even_from_its_author() {
    let related = Facts {
        is_related: true,
        ..Facts::default()
    };
    let inner = |tags: &[&[&str]]| Unsigned::kind(1).tags(tags).by(key(ALICE)).as_json();
    let origin = authenticated_as(&[ALICE]);
    let repost = |kind, content: &str| {
        let event = Unsigned::kind(kind).content(content).by(key(ALICE));
        judge(
            &policy(),
            NOW,
            &origin,
            Verified::pretend(event).as_ref(),
            &related,
        )
    };
    for kind in [6, 16] {
        let protected = repost(kind, &inner(&[&["t", "x"], &["-"]]));
        assert_eq!(protected, Verdict::from(Rejection::ProtectedRepost));
        for content in [&inner(&[&["t", "-"]]), "", "{"] {
            assert_eq!(
                repost(kind, content),
                Verdict::Store { is_related: true },
                "{content}"
            );
        }
    }
    let quote = repost(1, &inner(&[&["-"]]));
    assert_eq!(quote, Verdict::Store { is_related: true }, "not a repost");
}

#[test]
fn authentication_events_are_never_stored() {
    let operator = Policy {
        operator: Some(key(ALICE)),
        ..policy()
    };
    for kind in [22242, 27235] {
        let verdict = verdict_on(&operator, Unsigned::kind(kind), ALICE, &Facts::default());
        assert_eq!(verdict, Verdict::from(Rejection::NeverStored));
    }
    let note = verdict_on(&operator, Unsigned::kind(1), ALICE, &Facts::default());
    assert_eq!(note, Verdict::Store { is_related: true });
}

#[test]
fn events_from_the_future_and_expired_events_are_refused() {
    let related = Facts {
        is_related: true,
        ..Facts::default()
    };
    let at = |seconds| verdict_on(&policy(), Unsigned::kind(1).at(seconds), EVE, &related);
    assert_eq!(at(10_901), Verdict::from(Rejection::TooFarAhead));
    assert_eq!(at(10_900), Verdict::Store { is_related: true });
    let ending = |seconds: &str| {
        verdict_on(
            &policy(),
            Unsigned::kind(1).tags(&[&["expiration", seconds]]),
            EVE,
            &related,
        )
    };
    assert_eq!(ending("10000"), Verdict::from(Rejection::Expired));
    assert_eq!(ending("10001"), Verdict::Store { is_related: true });
}

#[test]
fn a_protected_event_is_accepted_only_from_its_author() {
    let related = Facts {
        is_related: true,
        ..Facts::default()
    };
    let event = Verified::pretend(Unsigned::kind(1).tags(&[&["-"]]).by(key(ALICE)));
    let from = |origin: Origin| judge(&policy(), NOW, &origin, event.as_ref(), &related);
    let answer = from(Origin::anonymous()).outcome().answer();
    assert!(!answer.is_accepted && answer.message.starts_with("auth-required: "));
    let other = authenticated_as(&[EVE]);
    assert_eq!(from(other), Verdict::from(Rejection::Protected));
    let author = authenticated_as(&[EVE, ALICE]);
    assert_eq!(from(author), Verdict::Store { is_related: true });
    let relay = Origin::Sync {
        relay: "wss://x.example".parse().unwrap(),
        path: SyncPath::Daily,
    };
    assert_eq!(from(relay), Verdict::from(Rejection::Protected));
}

#[test]
fn deleted_and_vanished_events_are_refused_with_the_reason() {
    for (why, text) in [
        (Rejection::Deleted, "invalid: this event is deleted"),
        (
            Rejection::Vanished,
            "invalid: this pubkey has requested to vanish",
        ),
    ] {
        let answer = Outcome::from(why).answer();
        assert_eq!((answer.is_accepted, answer.message.as_ref()), (false, text));
    }
}

#[test]
fn a_known_event_is_a_duplicate() {
    for (presence, text) in [
        (Presence::Stored, "duplicate: already have this event"),
        (Presence::Held, "duplicate: in purgatory"),
    ] {
        let facts = Facts {
            known: Some(presence),
            ..Facts::default()
        };
        let answer = verdict_on(&policy(), Unsigned::kind(1), EVE, &facts)
            .outcome()
            .answer();
        assert_eq!((answer.is_accepted, answer.message.as_ref()), (true, text));
    }
}

#[test]
fn a_ban_applies_to_known_and_related_events() {
    let mut policy = policy();
    policy.bans.authors = BTreeSet::from([key(EVE)]);
    let facts = Facts {
        is_related: true,
        known: Some(Presence::Stored),
        ..Facts::default()
    };
    let answer = verdict_on(&policy, Unsigned::kind(1), EVE, &facts)
        .outcome()
        .answer();
    assert!(!answer.is_accepted && answer.message.starts_with("blocked: "));
}

#[test]
fn the_quota_counts_only_announcements_that_list_us_and_exempts_the_operator() {
    let mut policy = Policy {
        repositories_per_author: 1,
        ..policy()
    };
    policy.archive.everything = true;
    let of = |event, by| (*known(event, by, Presence::Stored).announcement).clone();
    let others = [of(elsewhere(), ALICE), of(listing(BOB), BOB)];
    assert!(policy.hosts(&others[0]) && !policy.repository_quota_reached(&key(ALICE), &others));
    assert!(policy.repository_quota_reached(&key(BOB), &others));
    assert!(policy.repository_quota_reached(&key(ALICE), &[of(listing(ALICE), ALICE)]));
    policy.operator = Some(key(ALICE));
    assert!(!policy.repository_quota_reached(&key(ALICE), &[of(listing(ALICE), ALICE)]));
}

#[test]
fn a_full_purgatory_refuses_except_for_served_repositories() {
    let mut facts = knowing(vec![known(listing(ALICE), ALICE, Presence::Held)]);
    facts.is_over_quota = true;
    assert_eq!(
        verdict_on(&policy(), state(), ALICE, &facts),
        Verdict::from(Rejection::Quota)
    );
    assert_eq!(
        verdict_on(&policy(), listing(BOB), BOB, &facts),
        Verdict::from(Rejection::Quota)
    );
    let mut facts = knowing(vec![known(listing(ALICE), ALICE, Presence::Stored)]);
    facts.is_over_quota = true;
    let verdict = verdict_on(&policy(), state(), ALICE, &facts);
    assert!(matches!(verdict, Verdict::Hold(Hold::State(_))));
    let request = Unsigned::kind(1618).tags(&[&["c", OID]]);
    let facts = Facts {
        is_related: true,
        is_over_quota: true,
        ..Facts::default()
    };
    assert_eq!(
        verdict_on(&policy(), request, EVE, &facts),
        Verdict::from(Rejection::Quota)
    );
}

#[test]
fn an_author_with_too_many_repositories_may_only_replace_announcements() {
    let mut facts = Facts {
        is_repository_quota_reached: true,
        ..Facts::default()
    };
    // The quota is the reason even if purgatory is full too: waiting does not help.
    for is_full in [false, true] {
        facts.is_over_quota = is_full;
        let refused = Verdict::from(Rejection::RepositoryQuota);
        assert_eq!(
            verdict_on(&policy(), listing(ALICE), ALICE, &facts),
            refused
        );
    }
    facts.announcements = vec![known(listing(ALICE), ALICE, Presence::Stored)];
    let replaced = Verdict::Store { is_related: false };
    assert_eq!(
        verdict_on(&policy(), listing(ALICE).at(2_000).id(2), ALICE, &facts),
        replaced
    );
}

#[test]
fn each_quota_is_named_and_may_be_retried() {
    for (why, text) in [
        (
            Rejection::RepositoryQuota,
            "rate-limited: this author has as many repositories as this server hosts for one author",
        ),
        (
            Rejection::Quota,
            "rate-limited: too many events wait for git data, try again later",
        ),
    ] {
        assert_eq!((why.retry(), why.to_string().as_str()), (Retry::Soon, text));
    }
}

#[test]
fn messages_with_urls_are_short_and_without_control_characters() {
    let many: Vec<String> = (0..100)
        .map(|n| format!("htree://{}\u{1b}\n{n}", "x".repeat(500)))
        .collect();
    let why = Rejection::NotListed {
        clone: many.clone(),
        relays: Vec::new(),
    };
    let message = Outcome::from(why).answer().message;
    assert!(
        message.len() < 500 && !message.chars().any(char::is_control),
        "{message}"
    );
    assert!(message.ends_with("and 97 more; relays: none"));
}

#[test]
fn the_refusal_names_addresses_that_cannot_be_used() {
    let event = Unsigned::kind(30617).tags(&[
        &["d", "x"],
        &["clone", "https://a.example/x", "ssh://git@a.example/x"],
        &["relays", "nonsense"],
    ]);
    let clone = ["https://a.example/x", "ssh://git@a.example/x"]
        .map(str::to_owned)
        .to_vec();
    let why = Rejection::NotListed {
        clone,
        relays: vec!["nonsense".to_owned()],
    };
    assert_eq!(
        verdict_on(&policy(), event, EVE, &Facts::default()),
        Verdict::from(why)
    );
}

#[test]
fn an_announcement_is_bounded_in_bytes() {
    let long = |bytes: usize| listing(ALICE).tags(&[&["description", &"x".repeat(bytes)]]);
    let held = Verdict::Hold(Hold::Announcement);
    assert_eq!(
        verdict_on(&policy(), long(60_000), ALICE, &Facts::default()),
        held
    );
    let verdict = verdict_on(&policy(), long(64 * 1024), ALICE, &Facts::default());
    assert!(is_malformed(&verdict));
    let message = verdict.outcome().answer().message;
    assert_eq!(
        message,
        "invalid: an announcement may have at most 65536 bytes"
    );
}

#[test]
fn the_number_of_tags_is_bounded_except_refs_of_a_state() {
    let related = Facts {
        is_related: true,
        ..Facts::default()
    };
    let tagged = |kind: u16, name: &str, count: usize| {
        let tags: Vec<[String; 2]> = (0..count)
            .map(|n| [name.to_owned(), n.to_string()])
            .collect();
        let tags: Vec<Vec<&str>> = tags
            .iter()
            .map(|tag| tag.iter().map(String::as_str).collect())
            .collect();
        let tags: Vec<&[&str]> = tags.iter().map(Vec::as_slice).collect();
        verdict_on(&policy(), Unsigned::kind(kind).tags(&tags), ALICE, &related)
    };
    assert_eq!(tagged(1, "t", 2_000), Verdict::Store { is_related: true });
    for (kind, name) in [(1, "t"), (1, "name"), (5, "e"), (30618, "t")] {
        assert!(is_malformed(&tagged(kind, name, 2_001)), "{kind} {name}");
    }
    let refs: Vec<String> = (0..10_000).map(|n| format!("refs/heads/{n}")).collect();
    let refs: Vec<[&str; 2]> = refs.iter().map(|name| [name.as_str(), OID]).collect();
    let refs: Vec<&[&str]> = refs.iter().map(|tag| &tag[..]).collect();
    let facts = knowing(vec![known(listing(ALICE), ALICE, Presence::Stored)]);
    let verdict = verdict_on(&policy(), state().tags(&refs), ALICE, &facts);
    assert_eq!(verdict, Verdict::Hold(Hold::State(vec![repo(ALICE)])));
}

#[test]
fn names_events_and_kinds_are_refused_but_those_of_repositories() {
    let mut banned = policy();
    banned.bans.names = BTreeSet::from([repo(ALICE).identifier]);
    let verdict = verdict_on(&banned, listing(ALICE), ALICE, &Facts::default());
    assert_eq!(verdict, Verdict::from(Rejection::Banned));
    let mut banned = policy();
    banned.bans.kinds = BTreeSet::from([kinds::ANNOUNCEMENT, Kind::TextNote]);
    let verdict = verdict_on(&banned, listing(ALICE), ALICE, &Facts::default());
    assert_eq!(verdict, Verdict::Hold(Hold::Announcement));
    assert!(banned.refuses(Kind::TextNote) && !banned.refuses(kinds::VANISH));
}

#[test]
fn an_allow_list_refuses_what_it_lacks_but_what_maintainer_sets_need() {
    let mut policy = policy();
    policy.allowed.only = true;
    let verdict_of =
        |policy: &Policy, facts: &Facts| verdict_on(policy, listing(ALICE), ALICE, facts);
    let refused = verdict_of(&policy, &Facts::default());
    assert_eq!(refused, Verdict::from(Rejection::NotAllowed));
    let listed = Facts {
        is_listed: true,
        ..Facts::default()
    };
    let kept = verdict_of(&policy, &listed);
    assert_eq!(kept, Verdict::Store { is_related: false });
    policy.allowed.repos.insert(repo(ALICE));
    let hosted = verdict_of(&policy, &Facts::default());
    assert_eq!(hosted, Verdict::Hold(Hold::Announcement));
    policy.held.insert(repo(ALICE));
    let held = verdict_of(&policy, &Facts::default());
    assert_eq!(held, Verdict::from(Rejection::Withheld));
    assert!(!held.outcome().answer().is_accepted);
}

#[test]
fn a_banned_author_may_still_delete_and_vanish() {
    let mut policy = policy();
    policy.bans.authors = BTreeSet::from([key(EVE)]);
    let deletion = Unsigned::kind(5).tags(&[&["e", &"a".repeat(64)]]);
    let verdict = verdict_on(&policy, deletion, EVE, &Facts::default());
    assert_eq!(verdict, Verdict::Obey);
    assert!(verdict.outcome().answer().is_accepted);
    let vanish = Unsigned::kind(62).tags(&[&["relay", "ALL_RELAYS"]]);
    let verdict = verdict_on(&policy, vanish, EVE, &Facts::default());
    assert!(matches!(verdict, Verdict::Store { .. }), "{verdict:?}");
}
