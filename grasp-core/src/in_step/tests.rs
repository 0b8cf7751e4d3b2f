use super::*;
use crate::testing::key;

const HOUR: Duration = Duration::from_secs(3_600);

fn at(secs: u64) -> Now {
    Now::new(
        Mono::from_secs(secs),
        Timestamp::from_secs(1_000_000 + secs),
    )
}

fn repo(name: &str) -> RepoId {
    RepoId::new(key(1), name.parse().unwrap())
}

fn url(host: &str, name: &str) -> CloneUrl {
    format!("https://{host}.example/{name}.git")
        .parse()
        .unwrap()
}

fn announced(name: &str, hosts: &[&str], changed_at: u64) -> Announced {
    Announced {
        repo: repo(name),
        servers: hosts.iter().map(|host| url(host, name)).collect(),
        changed_at: Timestamp::from_secs(changed_at),
    }
}

fn done(check: &Check, result: CheckResult) -> Input {
    Input::Checked {
        repo: check.repo.clone(),
        server: check.server.clone(),
        result,
    }
}

const EQUAL: CheckResult = CheckResult::Compared { different: 0 };

/// Starts with these repositories.
fn checker(listed: Vec<Announced>) -> Checker {
    let mut checker = Checker::new(CheckPolicy::default());
    let started = checker.handle(at(0), Input::Listed(listed));
    assert!(started.len() <= 1, "not all at once: {started:?}");
    for check in started {
        let _ = checker.handle(at(0), done(&check, CheckResult::NotDone));
    }
    checker
}

#[test]
fn visit_is_answered_at_once_and_the_next_one_after_an_hour() {
    let mut checker = checker(vec![announced("x", &["a"], 1)]);
    let started = checker.handle(at(100), Input::Visited(repo("x")));
    assert_eq!(started.len(), 1);
    let _ = checker.handle(
        at(101),
        done(&started[0], CheckResult::Compared { different: 2 }),
    );
    let step = checker.steps(&repo("x"))[&url("a", "x")];
    assert_eq!(step.refs, RefsStep::Different(2));
    assert_eq!(step.checked_at, Some(at(101).unix));
    assert_eq!(checker.handle(at(102), Input::Visited(repo("x"))), []);
    assert_eq!(checker.next_deadline(), Some(Mono::from_secs(100) + HOUR));
    assert_eq!(checker.handle(at(3_700), Input::Tick).len(), 1);
}

#[test]
fn without_a_reason_a_server_is_asked_once_a_day() {
    let mut checker = checker(vec![announced("x", &["a"], 1)]);
    let mut starts = Vec::new();
    while starts.len() < 4 {
        let next = checker.next_deadline().unwrap();
        let now = at(next.since_start().as_secs() + 1);
        for check in checker.handle(now, Input::Tick) {
            starts.push(now.mono);
            let _ = checker.handle(now, done(&check, EQUAL));
        }
    }
    assert!(starts[0] <= Mono::ZERO + 25 * HOUR, "{starts:?}");
    for pair in starts.windows(2) {
        assert!(pair[1] - pair[0] >= 24 * HOUR, "{starts:?}");
    }
}

#[test]
fn change_is_followed_by_a_check_once_others_had_time_to_follow() {
    let mut checker = checker(vec![announced("x", &["a"], 1)]);
    let _ = checker.handle(at(100), Input::Listed(vec![announced("x", &["a"], 2)]));
    assert!(checker.next_deadline().unwrap() <= Mono::from_secs(400));
    let started = checker.handle(at(400), Input::Tick);
    assert_eq!(started.len(), 1);
    let _ = checker.handle(at(401), done(&started[0], EQUAL));
    let _ = checker.handle(at(402), Input::Listed(vec![announced("x", &["a"], 2)]));
    assert!(
        checker.next_deadline().unwrap() > Mono::from_secs(400 + 3_600),
        "no change"
    );
}

#[test]
fn one_host_is_asked_slowly_and_others_do_not_wait_for_it() {
    let names: Vec<String> = (0..5).map(|n| format!("r{n}")).collect();
    let listed = names.iter().map(|name| announced(name, &["a", "b"], 1));
    let mut checker = checker(listed.collect());
    let mut started = Vec::new();
    for name in &names {
        started.extend(checker.handle(at(50), Input::Visited(repo(name))));
    }
    let hosts: Vec<_> = started.iter().map(|check| check.server.host()).collect();
    assert_eq!(hosts.len(), 2, "{hosts:?}");
    assert_ne!(hosts[0], hosts[1]);
    let of_b = started
        .iter()
        .find(|check| check.server.host().name() == "b.example");
    let b = done(of_b.unwrap(), EQUAL);
    assert_eq!(checker.handle(at(51), b), [], "within the pace");
    let next = checker.handle(at(80), Input::Tick);
    assert_eq!(next.len(), 1, "{next:?}");
    assert_eq!(
        next[0].server.host().name(),
        "b.example",
        "a has not answered"
    );
}

#[test]
fn unreachable_since_the_first_failure_in_a_row() {
    let mut checker = checker(vec![announced("x", &["a"], 1)]);
    for (when, result, expected) in [
        (
            10_000,
            CheckResult::Failed,
            RefsStep::Unreachable(at(10_000).unix),
        ),
        (
            20_000,
            CheckResult::Failed,
            RefsStep::Unreachable(at(10_000).unix),
        ),
        (
            30_000,
            CheckResult::NotDone,
            RefsStep::Unreachable(at(10_000).unix),
        ),
        (40_000, EQUAL, RefsStep::Equal),
        (
            50_000,
            CheckResult::Failed,
            RefsStep::Unreachable(at(50_000).unix),
        ),
    ] {
        let started = checker.handle(at(when), Input::Visited(repo("x")));
        let _ = checker.handle(at(when), done(&started[0], result));
        assert_eq!(
            checker.steps(&repo("x"))[&url("a", "x")].refs,
            expected,
            "{when}"
        );
    }
}

#[test]
fn host_that_asks_for_less_is_left_alone() {
    let mut checker = checker(vec![announced("x", &["a"], 1), announced("y", &["a"], 1)]);
    let started = checker.handle(at(10), Input::Visited(repo("x")));
    let limited = CheckResult::Limited {
        retry_after: Some(2 * HOUR),
    };
    let _ = checker.handle(at(20), done(&started[0], limited));
    assert_eq!(checker.handle(at(1_000), Input::Visited(repo("y"))), []);
    assert_eq!(checker.handle(at(7_000), Input::Tick), []);
    assert_eq!(checker.handle(at(7_221), Input::Tick).len(), 1);
}

#[test]
fn servers_that_are_no_longer_announced_are_forgotten() {
    let mut checker = checker(vec![announced("x", &["a", "b"], 1)]);
    let started = checker.handle(at(10), Input::Visited(repo("x")));
    assert_eq!(started.len(), 2);
    let _ = checker.handle(at(11), Input::Listed(vec![announced("x", &["b"], 1)]));
    for check in &started {
        let _ = checker.handle(at(12), done(check, EQUAL));
    }
    let steps = checker.steps(&repo("x"));
    assert_eq!(steps.keys().collect::<Vec<_>>(), [&url("b", "x")]);
    assert_eq!(checker.hosts().len(), 1);
    let many = (0..100).map(|n| url(&format!("h{n}"), "x")).collect();
    let flood = Announced {
        servers: many,
        ..announced("x", &[], 1)
    };
    let _ = checker.handle(at(13), Input::Listed(vec![flood]));
    assert_eq!(checker.steps(&repo("x")).len(), MAX_SERVERS);
}

#[test]
fn no_more_than_a_few_run_at_once_and_each_end_starts_another() {
    let hosts: Vec<String> = (0..10).map(|n| format!("h{n}")).collect();
    let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
    let mut checker = checker(vec![announced("x", &hosts, 1)]);
    let started = checker.handle(at(10), Input::Visited(repo("x")));
    assert_eq!(started.len(), 4);
    assert_eq!(checker.next_deadline(), None);
    let next = checker.handle(at(11), done(&started[0], EQUAL));
    assert_eq!(next.len(), 1);
}

#[test]
fn only_branches_and_tags_are_compared() {
    let refs = |given: &[(&str, char)]| {
        let refs = given.iter().map(|(name, digit)| {
            let oid: Oid = digit.to_string().repeat(40).parse().unwrap();
            (name.parse::<RefName>().unwrap(), oid)
        });
        refs.collect::<BTreeMap<_, _>>()
    };
    let nostr = format!("refs/nostr/{}", "a".repeat(64));
    let ours = refs(&[
        ("refs/heads/main", 'a'),
        ("refs/heads/dev", 'a'),
        ("refs/tags/v1", 'b'),
    ]);
    let theirs = refs(&[
        ("refs/heads/main", 'a'),
        ("refs/heads/dev", 'b'),
        ("refs/tags/v2", 'b'),
        (&nostr, 'c'),
    ]);
    assert_eq!(different_refs(&ours, &theirs), 3);
    assert_eq!(different_refs(&ours, &ours), 0);
}
