//! The points of GRASP-01: relay, information, CORS, repositories, policy, purgatory, pushes.
//!
//! `docs/reference/conformance.md` maps the points of the checklist to tests; the last test here checks that page.

use grasp_core::MaintainerModel;
use grasp_core::service::npub;
use grasp_tests::{Author, Instance, Workdir};
use nostr::event::Event;
use serde_json::Value;

const MAIN: &str = "refs/heads/main";

async fn accepted(instance: &Instance, event: &Event) -> bool {
    instance.ingest(vec![event.clone()]).await[0]
        .answer()
        .is_accepted
}

/// Publishes an event, and returns whether it is accepted and served at once.
async fn served(instance: &Instance, event: &Event) -> bool {
    accepted(instance, event).await && instance.serves(event).await
}

async fn symref(instance: &Instance, author: &Author) -> String {
    let path = instance.service().repo_path(&author.repo("x"));
    let answer = instance
        .get(&format!("{path}/info/refs?service=git-upload-pack"), &[])
        .await;
    let found = answer
        .body
        .split_whitespace()
        .find_map(|word| word.strip_prefix("symref=HEAD:"));
    found.unwrap_or_default().to_owned()
}

#[tokio::test]
async fn the_information_document_describes_the_server() {
    let instance = Instance::start().await;
    let answer = instance
        .get("/", &[("Accept", "application/nostr+json")])
        .await;
    assert_eq!(
        (answer.status, answer.header("content-type")),
        (200, "application/nostr+json")
    );
    let document: Value = serde_json::from_str(&answer.body).unwrap();
    for key in [
        "name",
        "description",
        "software",
        "version",
        "repo_acceptance_criteria",
    ] {
        assert!(
            document[key]
                .as_str()
                .is_some_and(|text| !text.trim().is_empty()),
            "{key}"
        );
    }
    assert_eq!(
        document["supported_grasps"],
        serde_json::json!(["GRASP-01", "GRASP-02"])
    );
    assert!(document.get("curation").is_none());
}

#[tokio::test]
async fn every_response_has_cors_headers() {
    let instance = Instance::start().await;
    let alice = Author::new();
    accepted(&instance, &alice.announce("x", &instance.service())).await;
    let held = format!(
        "{}/info/refs?service=git-upload-pack",
        instance.service().repo_path(&alice.repo("x"))
    );
    for path in [
        "/",
        "/npub1test/nonexistent.git/info/refs?service=git-upload-pack",
        &held,
    ] {
        let answer = instance.get(path, &[]).await;
        assert_eq!(answer.header("access-control-allow-origin"), "*", "{path}");
        let methods: Vec<_> = answer
            .header("access-control-allow-methods")
            .split(',')
            .map(str::trim)
            .collect();
        assert!(
            methods.contains(&"GET") && methods.contains(&"POST"),
            "{path}"
        );
        assert!(
            answer
                .header("access-control-allow-headers")
                .to_lowercase()
                .contains("content-type")
        );
    }
    for path in [
        "/",
        "/npub1test/test.git/git-upload-pack",
        "/npub1test/test.git/info/refs",
    ] {
        let answer = instance.request("OPTIONS", path).await;
        assert_eq!((answer.status, answer.body.as_str()), (204, ""), "{path}");
        assert_eq!(answer.header("access-control-allow-origin"), "*", "{path}");
        assert!(
            answer
                .header("access-control-allow-methods")
                .contains("POST"),
            "{path}"
        );
        let headers = answer.header("access-control-allow-headers").to_lowercase();
        assert!(headers.contains("content-type"), "{path}");
    }
    // A browser may read the reason of every error.
    let repo = instance.path(&alice.repo("x"));
    let wrong = [
        ("GET", format!("{repo}/HEAD"), 403),
        ("GET", format!("{repo}/info/refs"), 403),
        ("GET", format!("{repo}/config"), 404),
        ("DELETE", repo.clone(), 405),
        ("GET", format!("{repo}/git-upload-pack"), 405),
        ("GET", String::from("/nothing"), 404),
    ];
    for (method, path, status) in wrong {
        let answer = instance.request(method, &path).await;
        let origin = answer.header("access-control-allow-origin");
        assert_eq!((answer.status, origin), (status, "*"), "{method} {path}");
    }
}

#[tokio::test]
async fn an_announced_repository_works_before_anything_is_pushed() {
    let instance = Instance::start().await;
    let alice = Author::new();
    accepted(&instance, &alice.announce("x", &instance.service())).await;
    let path = instance.service().repo_path(&alice.repo("x"));
    let answer = instance
        .get(
            &format!("{path}/info/refs?x=1&service=git-upload-pack"),
            &[],
        )
        .await;
    assert_eq!(answer.status, 200);
    assert_eq!(
        answer.header("content-type"),
        "application/x-git-upload-pack-advertisement"
    );
    assert_eq!(answer.header("cache-control"), "no-cache");
    for capability in [
        "allow-tip-sha1-in-want",
        "allow-reachable-sha1-in-want",
        " filter",
        "multi_ack_detailed",
        "side-band-64k",
        "shallow",
        "ofs-delta",
    ] {
        assert!(answer.body.contains(capability), "{capability}");
    }
    let push = instance
        .get(&format!("{path}/info/refs?service=git-receive-pack"), &[])
        .await;
    for capability in [
        "report-status-v2",
        "delete-refs",
        "side-band-64k",
        "atomic",
        "push-options",
        "object-format=sha1",
    ] {
        assert!(push.body.contains(capability), "{capability}");
    }
    assert!(!push.body.contains("push-cert"));
    assert_eq!(instance.get(&path, &[]).await.status, 200);
    let unknown = path.replace("/x.git", "/y.git");
    assert_eq!(instance.get(&unknown, &[]).await.status, 404);
    assert_eq!(instance.get(&format!("{path}/HEAD"), &[]).await.status, 403);
    assert_eq!(instance.request("PUT", &path).await.status, 405);
    assert_eq!(
        instance
            .request("HEAD", &format!("{path}/info/refs?service=git-upload-pack"))
            .await
            .status,
        200
    );

    let url = instance.clone_url(&alice.repo("x"));
    for options in [
        &["clone", "-q"][..],
        &["clone", "-q", "--filter=blob:none"],
        &["clone", "-q", "--depth=1"],
    ] {
        let clone = Workdir::empty();
        clone
            .git(&[options, &[&url, "."]].concat())
            .await
            .expect_ok();
        clone
            .git(&["fetch", "-q", "--filter=tree:0", "origin"])
            .await
            .expect_ok();
    }
    let nowhere = format!("http://{}/invalid/path", instance.service());
    Workdir::empty()
        .git(&["clone", "-q", &nowhere, "."])
        .await
        .expect_refused();
}

#[tokio::test]
async fn a_clone_of_an_empty_repository_starts_on_the_users_default_branch() {
    let instance = Instance::start().await;
    let alice = Author::new();
    accepted(&instance, &alice.announce("x", &instance.service())).await;
    let url = instance.clone_url(&alice.repo("x"));
    for version in ["protocol.version=0", "protocol.version=2"] {
        let clone = Workdir::empty();
        let default = [
            "-c",
            "init.defaultBranch=trunk",
            "-c",
            version,
            "clone",
            "-q",
            &url,
            ".",
        ];
        clone.git(&default).await.expect_ok();
        let head = clone.git(&["symbolic-ref", "HEAD"]).await.expect_ok();
        assert_eq!(head, "refs/heads/trunk", "{version}");
    }
}

#[tokio::test]
async fn partial_and_shallow_clones_of_a_served_repository_work() {
    let instance = Instance::start().await;
    let alice = Author::new();
    instance.host(&alice, "x").await;
    let url = instance.clone_url(&alice.repo("x"));
    for options in [
        &["--filter=blob:none"][..],
        &["--depth=1"],
        &["--filter=tree:0", "--no-checkout"],
    ] {
        let clone = Workdir::empty();
        clone
            .git(&[&["clone", "-q"], options, &[&url, "."]].concat())
            .await
            .expect_ok();
        clone
            .git(&["fetch", "-q", "--filter=tree:0", "origin"])
            .await
            .expect_ok();
    }
}

#[tokio::test]
async fn only_announcements_that_list_this_service_are_hosted() {
    let instance = Instance::start().await;
    let alice = Author::new();
    let us = instance.service();
    let ours = format!("http://{us}/{}/x.git", npub(&alice.key()));
    let relay = format!("ws://{us}");
    let elsewhere = [
        [ours.as_str(), "wss://them.example"],
        ["https://them.example/x.git", relay.as_str()],
        ["https://them.example/x.git", "wss://them.example"],
    ];
    for [clone, relay] in elsewhere {
        let event = alice.sign(
            30617,
            "",
            &[&["d", "x"], &["clone", clone], &["relays", relay]],
        );
        assert!(!accepted(&instance, &event).await && !instance.serves(&event).await);
    }
}

#[tokio::test]
async fn only_events_related_to_stored_ones_are_stored() {
    let instance = Instance::start().await;
    let (alice, bob) = (Author::new(), Author::new());
    instance.host(&alice, "x").await;
    let repo = alice.repo("x").to_string();
    let unknown = format!("30617:{}:x", bob.key());
    let sign = |kind, tags: &[&[&str]]| bob.sign(kind, &format!("{tags:?}"), tags);

    let issue = sign(1621, &[&["a", &repo]]);
    let id = issue.id.to_hex();
    assert!(
        served(&instance, &issue).await,
        "an issue of the repository"
    );
    assert!(
        served(&instance, &sign(1111, &[&["A", &repo, "", "root"]])).await,
        "a comment on it"
    );
    let quote = sign(1, &[&["q", &repo]]);
    assert!(served(&instance, &quote).await, "a note that quotes it");
    assert!(
        served(&instance, &sign(1621, &[&["a", &unknown], &["q", &id]])).await,
        "a quote of an issue"
    );
    assert!(
        served(&instance, &sign(1111, &[&["E", &id], &["e", &id]])).await,
        "a comment on the issue"
    );
    assert!(
        served(&instance, &sign(1, &[&["e", &quote.id.to_hex()]])).await,
        "a reply to the note"
    );

    for name in ["q", "e", "E"] {
        let later = sign(1, &[&["x", name]]);
        assert!(!accepted(&instance, &later).await);
        let referrer = sign(1621, &[&["a", &repo], &[name, &later.id.to_hex()]]);
        assert!(
            served(&instance, &referrer).await && served(&instance, &later).await,
            "named by {name}"
        );
    }
    for unrelated in [
        sign(1621, &[&["a", &unknown]]),
        sign(1, &[]),
        sign(1111, &[&["A", &unknown]]),
    ] {
        assert!(!accepted(&instance, &unrelated).await && !instance.serves(&unrelated).await);
    }
}

#[tokio::test]
async fn states_without_git_data_are_held_and_the_served_state_stays() {
    let instance = Instance::start().await;
    let alice = Author::new();
    let work = instance.host(&alice, "x").await;
    let commit = work.git(&["rev-parse", "main"]).await.expect_ok();
    let served = alice.state("x", &[(MAIN, &commit)]);
    for oid in ["abc123".to_owned(), "deadbeef".repeat(5)] {
        let state = alice.later(1).state("x", &[(MAIN, &oid)]);
        assert!(accepted(&instance, &state).await, "{oid}");
        instance.settle("x").await;
        assert!(!instance.serves(&state).await && instance.serves(&served).await);
    }
}

#[tokio::test]
async fn a_deleted_state_authorises_nothing() {
    let instance = Instance::start().await;
    let alice = Author::new();
    let work = instance.host(&alice, "x").await;
    let url = instance.clone_url(&alice.repo("x"));
    let commit = work.commit("second").await;
    for by_coordinate in [false, true] {
        let delay = if by_coordinate { 20 } else { 10 };
        let state = alice.later(delay).state("x", &[(MAIN, &commit)]);
        assert!(accepted(&instance, &state).await);
        let coordinate = format!("30618:{}:x", alice.key());
        let id = state.id.to_hex();
        let target: &[&str] = if by_coordinate {
            &["a", &coordinate]
        } else {
            &["e", &id]
        };
        let deletion = alice
            .later(delay + 1)
            .sign(5, "", &[target, &["k", "30618"]]);
        assert!(accepted(&instance, &deletion).await);
        instance.settle("x").await;
        work.git(&["push", "--force", &url, "main"])
            .await
            .expect_refused();
    }
}

#[tokio::test]
async fn the_deleted_state_of_a_new_maintainer_authorises_nothing() {
    let instance = Instance::with_model(MaintainerModel::Plain).await;
    let (alice, bob) = (Author::new(), Author::new());
    let work = instance.host(&alice, "x").await;
    let bobs = bob.key().to_string();
    let with_bob = [&["maintainers", bobs.as_str()][..]];
    let replaced = alice
        .later(1)
        .announce_with("x", &instance.service(), &with_bob);
    assert!(
        served(&instance, &replaced).await,
        "a replacement is served at once"
    );
    let commit = work.commit("bob's").await;
    let state = bob.later(2).state("x", &[(MAIN, &commit)]);
    assert!(accepted(&instance, &state).await && !instance.serves(&state).await);
    let coordinate = format!("30618:{bobs}:x");
    assert!(accepted(&instance, &bob.later(3).sign(5, "", &[&["a", &coordinate]])).await);
    instance.settle("x").await;
    let url = instance.clone_url(&alice.repo("x"));
    work.git(&["push", "--force", &url, "main"])
        .await
        .expect_refused();
}

#[tokio::test]
async fn a_state_of_an_unlisted_author_authorises_nothing() {
    for model in [MaintainerModel::Reciprocal, MaintainerModel::Plain] {
        let instance = Instance::with_model(model).await;
        let (alice, eve) = (Author::new(), Author::new());
        let work = instance.host(&alice, "x").await;
        let commit = work.commit("eve's").await;
        let state = eve.later(1).state("x", &[(MAIN, &commit)]);
        assert!(!accepted(&instance, &state).await);
        let url = instance.clone_url(&alice.repo("x"));
        work.git(&["push", "--force", &url, "main"])
            .await
            .expect_refused();
        assert!(!instance.serves(&state).await);
    }
}

#[tokio::test]
async fn refs_of_pull_requests_follow_their_events() {
    let instance = Instance::start().await;
    let (alice, bob) = (Author::new(), Author::new());
    let work = instance.host(&alice, "x").await;
    let (url, repo) = (instance.clone_url(&alice.repo("x")), alice.repo("x"));
    work.git(&["push", &url, "main:refs/nostr/123"])
        .await
        .expect_refused();

    let right = work.commit("right").await;
    let wrong = work.commit("wrong").await;
    let request = bob.pull_request(&repo, &right);
    let name = format!("refs/nostr/{}", request.id);
    work.git(&["push", &url, &format!("{wrong}:{name}")])
        .await
        .expect_ok();
    assert!(accepted(&instance, &request).await);
    instance.settle("x").await;
    assert!(
        !work
            .git(&["ls-remote", &url])
            .await
            .expect_ok()
            .contains(&name)
    );
    assert!(!instance.serves(&request).await);
    work.git(&["push", "--force", &url, &format!("{wrong}:{name}")])
        .await
        .expect_refused();
    work.git(&["push", &url, &format!("{right}:{name}")])
        .await
        .expect_ok();
    assert!(instance.serves(&request).await);
    assert!(
        !accepted(&instance, &bob.sign(1618, "", &[&["a", &repo.to_string()]])).await,
        "no commit"
    );
}

#[tokio::test]
async fn listed_maintainers_sign_without_listing_back_in_the_plain_model() {
    let instance = Instance::with_model(MaintainerModel::Plain).await;
    let (alice, bob, carol) = (Author::new(), Author::new(), Author::new());
    let url = instance.clone_url(&alice.repo("x"));
    let bobs = bob.key().to_string();
    let work = Workdir::init().await;
    let commit = work.commit("alice").await;
    let announcement = alice.announce_with("x", &instance.service(), &[&["maintainers", &bobs]]);
    instance
        .ingest(vec![announcement, alice.state("x", &[(MAIN, &commit)])])
        .await;
    work.git(&["push", &url, "main"]).await.expect_ok();

    // Bob has no announcement, only a state.
    let commit = work.commit("bob").await;
    let state = bob.later(1).state("x", &[(MAIN, &commit)]);
    assert!(accepted(&instance, &state).await);
    work.git(&["push", "--force", &url, "main"])
        .await
        .expect_ok();
    assert!(instance.serves(&state).await);

    // Bob lists carol in an announcement without this service; carol's announcement and state are valid too.
    let carols = carol.key().to_string();
    let elsewhere = |author: &Author, more: &[&[&str]]| {
        let tags: [&[&str]; 3] = [
            &["d", "x"],
            &["clone", "https://them.example/x"],
            &["relays", "wss://them.example"],
        ];
        author.sign(30617, "", &[&tags, more].concat())
    };
    assert!(served(&instance, &elsewhere(&bob, &[&["maintainers", &carols]])).await);
    assert!(served(&instance, &elsewhere(&carol, &[])).await);
    let commit = work.commit("carol").await;
    assert!(accepted(&instance, &carol.later(2).state("x", &[(MAIN, &commit)])).await);
    work.git(&["push", "--force", &url, "main"])
        .await
        .expect_ok();
}

#[tokio::test]
async fn head_follows_the_signed_state() {
    let instance = Instance::start().await;
    let alice = Author::new();
    let work = instance.host(&alice, "x").await;
    let commit = work.git(&["rev-parse", "main"]).await.expect_ok();
    assert_eq!(symref(&instance, &alice).await, MAIN);

    let tags: &[&[&str]] = &[
        &["d", "x"],
        &["refs/heads/develop", &commit],
        &["HEAD", "refs/heads/develop"],
    ];
    assert!(accepted(&instance, &alice.later(1).sign(30618, "", tags)).await);
    instance.settle("x").await;
    assert_eq!(symref(&instance, &alice).await, "refs/heads/develop");

    let next = work.commit("next").await;
    let tags: &[&[&str]] = &[
        &["d", "x"],
        &["refs/heads/develop", &commit],
        &["refs/heads/develop1", &next],
        &["HEAD", "ref: refs/heads/develop1"],
    ];
    assert!(accepted(&instance, &alice.later(2).sign(30618, "", tags)).await);
    assert_eq!(symref(&instance, &alice).await, "refs/heads/develop");
    let url = instance.clone_url(&alice.repo("x"));
    work.git(&["push", &url, "main:refs/heads/develop1"])
        .await
        .expect_ok();
    assert_eq!(symref(&instance, &alice).await, "refs/heads/develop1");
}

#[tokio::test]
async fn big_pushes_and_push_options_and_compressed_fetches_work() {
    let instance = Instance::start().await;
    let alice = Author::new();
    let work = instance.host(&alice, "x").await;
    let url = instance.clone_url(&alice.repo("x"));
    // More than git's buffer, so that git probes with a flush packet and then sends chunks.
    let mut random = String::new();
    let mut seed = 7u64;
    while random.len() < 3_000_000 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        random.push_str(&format!("{seed:x}"));
    }
    std::fs::write(work.path().join("random"), random).unwrap();
    work.git(&["add", "random"]).await.expect_ok();
    let commit = work.commit("random").await;
    assert!(accepted(&instance, &alice.later(1).state("x", &[(MAIN, &commit)])).await);
    work.git(&["push", "-o", "ci.skip", &url, "main"])
        .await
        .expect_ok();
    let clone = Workdir::empty();
    clone.git(&["clone", "-q", &url, "."]).await.expect_ok();
    assert_eq!(clone.git(&["rev-parse", "HEAD"]).await.expect_ok(), commit);
}

/// Checks that every point of the checklist has its row, and that every test that a row names exists.
#[test]
fn each_point_of_the_checklist_names_its_tests() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let read = |path: &str| std::fs::read_to_string(format!("{root}/{path}")).unwrap();
    let table = read("docs/reference/conformance.md");
    let rows = table.lines().filter(|line| line.starts_with("| A"));
    let mut next = 1;
    for row in rows {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let (from, to) = cells[1].split_once('–').unwrap_or((cells[1], cells[1]));
        let number = |text: &str| text.trim_start_matches('A').parse::<u32>().unwrap();
        assert_eq!(number(from), next, "{row}");
        next = number(to) + 1;
        let tests: Vec<&str> = cells[3].split('`').skip(1).step_by(2).collect();
        assert!(!tests.is_empty(), "{row}");
        for test in tests {
            let (module, name) = test.rsplit_once("::").unwrap();
            let file = match module.strip_prefix("relay::") {
                Some(module) => format!("grasp-relay/tests/it/{module}.rs"),
                None => format!("tests/tests/it/{module}.rs"),
            };
            assert!(read(&file).contains(&format!("fn {name}()")), "{test}");
        }
    }
    assert_eq!(next, 77, "A1 to A76");
}

/// The tables of rules that this project numbers: the letter of their numbers, and the last one.
const RULES: [(char, usize); 3] = [('P', 11), ('O', 15), ('S', 3)];

#[test]
fn each_rule_names_its_tests() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let read = |path: &str| std::fs::read_to_string(format!("{root}/{path}")).unwrap();
    let table = read("docs/reference/conformance.md");
    for (letter, last) in RULES {
        let is_of_table = |line: &&str| {
            line.strip_prefix("| ")
                .and_then(|rest| rest.strip_prefix(letter))
                .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        };
        let rows: Vec<&str> = table.lines().filter(is_of_table).collect();
        assert_eq!(rows.len(), last, "{letter}");
        for (number, row) in (1..).zip(rows) {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            assert_eq!(cells[1], format!("{letter}{number}"));
            let tests: Vec<&str> = cells[3].split('`').skip(1).step_by(2).collect();
            assert!(!tests.is_empty(), "{row}");
            for test in tests {
                let (module, name) = test.rsplit_once("::").unwrap();
                let file = read(&file_of(module));
                assert!(file.contains(&format!("fn {name}()")), "{test}");
            }
        }
    }
}

/// Returns the file of the tests that a rule names.
fn file_of(module: &str) -> String {
    let (place, module) = module.split_once("::").unwrap_or((module, ""));
    match place {
        "core" => format!("grasp-core/src/{module}.rs"),
        "gate" => "grasp-relay/src/server/gate.rs".to_owned(),
        "git" => format!("grasp-purgatory/src/git/{module}.rs"),
        "relay" => format!("grasp-relay/tests/it/{module}.rs"),
        "server" => format!("grasp-relay/src/instance/{module}.rs"),
        "session" => format!("grasp-relay/src/nostr/session/{module}.rs"),
        "sync" => format!("grasp-sync/tests/{module}.rs"),
        module => format!("tests/tests/it/{module}.rs"),
    }
}
