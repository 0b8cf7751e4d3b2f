//! Refs that nobody signed for, by every way there is.

use grasp_core::push::MAX_UPLOADS;
use grasp_tests::Workdir;
use grasp_tests::wire::{CAPABILITIES, ZERO_ID, pkt, push};

use super::{MAIN, Scene};

/// The id of an event that nobody has heard of.
fn unknown(n: usize) -> String {
    format!("refs/nostr/{n:064x}")
}

#[tokio::test]
async fn no_request_moves_a_ref_that_was_not_signed_for() {
    let scene = Scene::new().await;
    let (tip, evil) = (scene.tip.as_str(), scene.work.commit("evil").await);
    let evil = evil.as_str();
    let pack = scene.work.pack(&["main"]).await;
    let known = scene.eve.pull_request(&scene.repo, tip);
    assert!(scene.send(&known).await.0);
    let request = format!("refs/nostr/{}", known.id);
    scene.instance.settle("x").await;
    let flush = b"0000".to_vec();
    let line = |old: &str, new: &str, name: &str, caps: &str| {
        pkt(format!("{old} {new} {name}\0{CAPABILITIES}{caps}"))
    };
    let command = |old, new, name| push(&[(old, new, name)], &pack);
    let attempts: Vec<(&str, Vec<u8>)> = vec![
        ("an update", command(tip, evil, MAIN)),
        ("an update as if it were new", command(ZERO_ID, evil, MAIN)),
        ("a new branch", command(ZERO_ID, evil, "refs/heads/evil")),
        ("a new branch at what is here", command(ZERO_ID, tip, "refs/heads/evil")),
        ("a new tag", command(ZERO_ID, evil, "refs/tags/v1")),
        ("a deletion", command(tip, ZERO_ID, MAIN)),
        ("a pull request as a branch", command(ZERO_ID, evil, "refs/heads/pr/1")),
        ("HEAD below refs", command(ZERO_ID, evil, "refs/HEAD")),
        ("HEAD as a branch", command(ZERO_ID, evil, "refs/heads/HEAD")),
        ("what we keep for ourselves", command(ZERO_ID, evil, "refs/grasp/kept")),
        ("another name for branches", command(ZERO_ID, evil, "refs/Heads/main")),
        ("the tip of somebody's request", command(tip, evil, &request)),
        ("somebody's request deleted", command(tip, ZERO_ID, &request)),
        ("a request in capitals", command(ZERO_ID, evil, &unknown(0xabc).to_uppercase())),
        ("a request of 63 digits", command(ZERO_ID, evil, &unknown(1)[..74])),
        ("below a request", command(ZERO_ID, evil, &format!("{}/x", unknown(1)))),
        ("no commands and a pack", [&flush[..], &pack].concat()),
        (
            "a list behind the first",
            [&flush[..], &line(tip, evil, MAIN, ""), &flush, &pack].concat(),
        ),
        (
            "a certificate before it",
            [pkt(format!("push-cert\0{CAPABILITIES}")), command(tip, evil, MAIN)].concat(),
        ),
        (
            "a shallow line before it",
            [pkt(format!("shallow {tip}")), command(tip, evil, MAIN)].concat(),
        ),
        (
            "all or nothing, with an upload that may come",
            [
                line(tip, evil, MAIN, " atomic"),
                pkt(format!("{ZERO_ID} {evil} {}", unknown(2))),
                flush.clone(),
                pack.clone(),
            ]
            .concat(),
        ),
    ];
    refuses_all(&scene, attempts).await;
    let clone = Workdir::empty();
    clone.git(&["clone", "-q", &scene.url(), "."]).await.expect_ok();
    clone.git(&["fetch", "-q", &scene.url(), evil]).await.expect_refused();
}

/// Sends them one after another, and looks whether any has moved anything.
async fn refuses_all(scene: &Scene, attempts: Vec<(&str, Vec<u8>)>) {
    let before = scene.instance.refs(&scene.repo).await;
    for (what, request) in attempts {
        let answer = scene.instance.post(&scene.repo, "git-receive-pack", &[], &request).await;
        assert_eq!(answer.status, 200, "{what}: {answer:?}");
        assert!(!answer.body.contains("ok refs/"), "{what}: {answer:?}");
        assert_eq!(scene.instance.refs(&scene.repo).await, before, "{what}");
    }
    assert_eq!(scene.instance.until_idle().await.staged, 0);
}

#[tokio::test]
async fn an_upload_that_nobody_signed_for_can_be_read_nowhere_by_no_protocol() {
    let scene = Scene::new().await;
    // A view of the same name, and one of another, whose owner would like to see it.
    scene.instance.host(&scene.eve, "x").await;
    scene.instance.host(&scene.eve, "y").await;
    let hidden = scene.work.commit("not yours").await;
    let blob = scene.work.git(&["rev-parse", "main:file"]).await.expect_ok();
    let name = unknown(7);
    scene.work.git(&["push", &scene.url(), &format!("main:{name}")]).await.expect_ok();
    assert_eq!(scene.instance.until_idle().await.staged, 1);
    for repo in [scene.repo.clone(), scene.eve.repo("x"), scene.eve.repo("y")] {
        let url = scene.instance.clone_url(&repo);
        assert!(!scene.instance.refs(&repo).await.contains("refs/nostr"));
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
        let answer = scene.instance.post(&repo, "git-upload-pack", &headers, &v2.concat()).await;
        assert!(!answer.body.contains("PACK"), "{answer:?}");
    }
}

#[tokio::test]
async fn states_that_trick_with_symbols_set_nothing_but_branches_and_tags() {
    let scene = Scene::new().await;
    let tip = scene.tip.as_str();
    let attempts: Vec<Vec<[&str; 2]>> = vec![
        vec![[MAIN, "ref: refs/heads/other"]],
        vec![[MAIN, tip], ["refs/nostr/1", tip]],
        vec![[MAIN, tip], ["refs/grasp/kept", tip]],
        vec![[MAIN, tip], ["HEAD", "ref: refs/grasp/x"]],
        vec![[MAIN, tip], ["HEAD", "ref: ../../config"]],
        vec![[MAIN, tip], ["HEAD", "ref: refs/heads/main\nref: refs/heads/x"]],
        vec![[MAIN, tip], ["refs/heads/../../config", tip]],
        vec![[MAIN, tip], ["refs/heads/a b", tip]],
        vec![[MAIN, tip], [MAIN, "dddddddddddddddddddddddddddddddddddddddd"]],
        vec![[MAIN, tip], ["refs/heads/main/sub", tip]],
        vec![[MAIN, &tip[..39]]],
        vec![[MAIN, "0000000000000000000000000000000000000000"]],
    ];
    for (seconds, tags) in (1..).zip(attempts) {
        let mut all = vec![&["d", "x"][..]];
        all.extend(tags.iter().map(|tag| &tag[..]));
        scene.send(&scene.alice.later(seconds).sign(30618, "", &all)).await;
        scene.instance.settle("x").await;
        let refs = scene.instance.refs(&scene.repo).await;
        let names = refs.lines().filter_map(|line| line.split('\t').nth(1));
        assert!(names.clone().all(|name| ["HEAD", MAIN].contains(&name)), "{tags:?}: {refs}");
    }
}

#[tokio::test]
async fn of_a_flood_of_uploads_in_one_push_a_few_are_kept() {
    let scene = Scene::new().await;
    let evil = scene.work.commit("evil").await;
    let pack = scene.work.pack(&["main"]).await;
    for count in [MAX_UPLOADS + 1, 5_000] {
        let names: Vec<String> = (0..count).map(unknown).collect();
        let flood: Vec<_> =
            names.iter().map(|name| (ZERO_ID, evil.as_str(), name.as_str())).collect();
        let request = push(&flood, &pack);
        let answer = scene.instance.post(&scene.repo, "git-receive-pack", &[], &request).await;
        assert_eq!(answer.body.matches("ok refs/").count(), MAX_UPLOADS);
        // A report longer than a packet is cut anywhere, also within a line.
        let refused = answer.body.matches("ng refs/").count();
        assert!(refused + 20 > count - MAX_UPLOADS, "{refused} of {count}");
    }
    assert_eq!(scene.instance.until_idle().await.staged, MAX_UPLOADS);
    scene.is_untouched("a flood of uploads").await;
}
