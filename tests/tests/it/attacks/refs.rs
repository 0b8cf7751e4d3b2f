//! Refs without a signed event, pushed in every possible way.

use grasp_core::push::MAX_UPLOADS;
use grasp_tests::Workdir;
use grasp_tests::wire::{CAPABILITIES, ZERO_ID, pkt, push};

use super::{Fixture, MAIN};

/// Returns the ref of a pull request whose event is unknown.
fn unknown(n: usize) -> String {
    format!("refs/nostr/{n:064x}")
}

#[tokio::test]
async fn no_request_moves_a_ref_without_a_signed_event() {
    let fixture = Fixture::new().await;
    let (tip, evil) = (fixture.tip.as_str(), fixture.work.commit("evil").await);
    let evil = evil.as_str();
    let pack = fixture.work.pack(&["main"]).await;
    let known = fixture.eve.pull_request(&fixture.repo, tip);
    assert!(fixture.publish(&known).await.0);
    let request = format!("refs/nostr/{}", known.id);
    fixture.instance.settle("x").await;
    let flush = b"0000".to_vec();
    let line = |old: &str, new: &str, name: &str, caps: &str| {
        pkt(format!("{old} {new} {name}\0{CAPABILITIES}{caps}"))
    };
    let command = |old, new, name| push(&[(old, new, name)], &pack);
    let attempts: Vec<(&str, Vec<u8>)> = vec![
        ("an update", command(tip, evil, MAIN)),
        ("an update as a creation", command(ZERO_ID, evil, MAIN)),
        ("a new branch", command(ZERO_ID, evil, "refs/heads/evil")),
        (
            "a new branch at a served commit",
            command(ZERO_ID, tip, "refs/heads/evil"),
        ),
        ("a new tag", command(ZERO_ID, evil, "refs/tags/v1")),
        ("a deletion", command(tip, ZERO_ID, MAIN)),
        (
            "a pull request as a branch",
            command(ZERO_ID, evil, "refs/heads/pr/1"),
        ),
        ("HEAD below refs", command(ZERO_ID, evil, "refs/HEAD")),
        (
            "HEAD as a branch",
            command(ZERO_ID, evil, "refs/heads/HEAD"),
        ),
        (
            "the refs of the server itself",
            command(ZERO_ID, evil, "refs/grasp/kept"),
        ),
        (
            "another name for branches",
            command(ZERO_ID, evil, "refs/Heads/main"),
        ),
        (
            "another tip of a pull request",
            command(tip, evil, &request),
        ),
        ("a deleted pull request", command(tip, ZERO_ID, &request)),
        (
            "a pull request in capitals",
            command(ZERO_ID, evil, &unknown(0xabc).to_uppercase()),
        ),
        (
            "a pull request of 63 digits",
            command(ZERO_ID, evil, &unknown(1)[..74]),
        ),
        (
            "below a pull request",
            command(ZERO_ID, evil, &format!("{}/x", unknown(1))),
        ),
        ("no commands and a pack", [&flush[..], &pack].concat()),
        (
            "a second command list",
            [&flush[..], &line(tip, evil, MAIN, ""), &flush, &pack].concat(),
        ),
        (
            "a push certificate first",
            [
                pkt(format!("push-cert\0{CAPABILITIES}")),
                command(tip, evil, MAIN),
            ]
            .concat(),
        ),
        (
            "a shallow line first",
            [pkt(format!("shallow {tip}")), command(tip, evil, MAIN)].concat(),
        ),
        (
            "an atomic push with an allowed upload",
            [
                line(tip, evil, MAIN, " atomic"),
                pkt(format!("{ZERO_ID} {evil} {}", unknown(2))),
                flush.clone(),
                pack.clone(),
            ]
            .concat(),
        ),
    ];
    assert_all_refused(&fixture, attempts).await;
    let clone = Workdir::empty();
    clone
        .git(&["clone", "-q", &fixture.url(), "."])
        .await
        .expect_ok();
    clone
        .git(&["fetch", "-q", &fixture.url(), evil])
        .await
        .expect_refused();
}

/// Sends the requests one after another, and checks that none of them moves a ref.
async fn assert_all_refused(fixture: &Fixture, attempts: Vec<(&str, Vec<u8>)>) {
    let before = fixture.instance.refs(&fixture.repo).await;
    for (what, request) in attempts {
        let answer = fixture
            .instance
            .post(&fixture.repo, "git-receive-pack", &[], &request)
            .await;
        assert_eq!(answer.status, 200, "{what}: {answer:?}");
        assert!(!answer.body.contains("ok refs/"), "{what}: {answer:?}");
        assert_eq!(fixture.instance.refs(&fixture.repo).await, before, "{what}");
    }
    assert_eq!(fixture.instance.until_idle().await.staged, 0);
}

#[tokio::test]
async fn a_staged_upload_cannot_be_fetched_by_any_protocol() {
    let fixture = Fixture::new().await;
    // Repositories of another owner, one of the same name and one of another.
    fixture.instance.host(&fixture.eve, "x").await;
    fixture.instance.host(&fixture.eve, "y").await;
    let hidden = fixture.work.commit("staged").await;
    let blob = fixture
        .work
        .git(&["rev-parse", "main:file"])
        .await
        .expect_ok();
    let name = unknown(7);
    fixture
        .work
        .git(&["push", &fixture.url(), &format!("main:{name}")])
        .await
        .expect_ok();
    assert_eq!(fixture.instance.until_idle().await.staged, 1);
    for repo in [
        fixture.repo.clone(),
        fixture.eve.repo("x"),
        fixture.eve.repo("y"),
    ] {
        let url = fixture.instance.clone_url(&repo);
        assert!(!fixture.instance.refs(&repo).await.contains("refs/nostr"));
        for version in ["0", "1", "2"] {
            let clone = Workdir::init().await;
            let protocol = format!("protocol.version={version}");
            for wanted in [&hidden, &blob, &name] {
                let git = ["-c", &protocol, "fetch", "-q", &url, wanted];
                clone.git(&git).await.expect_refused();
            }
        }
        let headers = [("Git-Protocol", "version=2")];
        let v2 = [
            pkt("command=fetch"),
            b"0001".to_vec(),
            pkt(format!("want {hidden}")),
            pkt("done"),
            b"0000".to_vec(),
        ];
        let answer = fixture
            .instance
            .post(&repo, "git-upload-pack", &headers, &v2.concat())
            .await;
        assert!(!answer.body.contains("PACK"), "{answer:?}");
    }
}

#[tokio::test]
async fn malformed_states_set_only_branches_and_tags() {
    let fixture = Fixture::new().await;
    let tip = fixture.tip.as_str();
    let attempts: Vec<Vec<[&str; 2]>> = vec![
        vec![[MAIN, "ref: refs/heads/other"]],
        vec![[MAIN, tip], ["refs/nostr/1", tip]],
        vec![[MAIN, tip], ["refs/grasp/kept", tip]],
        vec![[MAIN, tip], ["HEAD", "ref: refs/grasp/x"]],
        vec![[MAIN, tip], ["HEAD", "ref: ../../config"]],
        vec![
            [MAIN, tip],
            ["HEAD", "ref: refs/heads/main\nref: refs/heads/x"],
        ],
        vec![[MAIN, tip], ["refs/heads/../../config", tip]],
        vec![[MAIN, tip], ["refs/heads/a b", tip]],
        vec![
            [MAIN, tip],
            [MAIN, "dddddddddddddddddddddddddddddddddddddddd"],
        ],
        vec![[MAIN, tip], ["refs/heads/main/sub", tip]],
        vec![[MAIN, &tip[..39]]],
        vec![[MAIN, "0000000000000000000000000000000000000000"]],
    ];
    for (seconds, tags) in (1..).zip(attempts) {
        let mut all = vec![&["d", "x"][..]];
        all.extend(tags.iter().map(|tag| &tag[..]));
        fixture
            .publish(&fixture.alice.later(seconds).sign(30618, "", &all))
            .await;
        fixture.instance.settle("x").await;
        let refs = fixture.instance.refs(&fixture.repo).await;
        let names = refs.lines().filter_map(|line| line.split('\t').nth(1));
        assert!(
            names.clone().all(|name| ["HEAD", MAIN].contains(&name)),
            "{tags:?}: {refs}"
        );
    }
}

#[tokio::test]
async fn uploads_of_one_push_are_limited() {
    let fixture = Fixture::new().await;
    let evil = fixture.work.commit("evil").await;
    let pack = fixture.work.pack(&["main"]).await;
    for count in [MAX_UPLOADS + 1, 5_000] {
        let names: Vec<String> = (0..count).map(unknown).collect();
        let flood: Vec<_> = names
            .iter()
            .map(|name| (ZERO_ID, evil.as_str(), name.as_str()))
            .collect();
        let request = push(&flood, &pack);
        let answer = fixture
            .instance
            .post(&fixture.repo, "git-receive-pack", &[], &request)
            .await;
        assert_eq!(answer.body.matches("ok refs/").count(), MAX_UPLOADS);
        // A report longer than a packet is cut anywhere, also within a line.
        let refused = answer.body.matches("ng refs/").count();
        assert!(refused + 20 > count - MAX_UPLOADS, "{refused} of {count}");
    }
    assert_eq!(fixture.instance.until_idle().await.staged, MAX_UPLOADS);
    fixture.assert_unchanged("a flood of uploads").await;
}
