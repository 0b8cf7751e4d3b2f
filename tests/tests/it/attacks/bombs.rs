//! Small things that become large.

use grasp_relay::git_http::GitLimits;
use grasp_tests::wire::{ZERO_ID, push};
use grasp_tests::{Leftovers, Settings};

use super::{MAIN, Scene};

const MIB: usize = 1024 * 1024;

/// A commit whose message is this long, of one letter, as a pack with what is behind it.
async fn bomb(scene: &Scene, bytes: usize) -> (String, Vec<u8>) {
    let tree = scene.work.git(&["rev-parse", "main^{tree}"]).await.expect_ok();
    let mut commit =
        format!("tree {tree}\nauthor a <a@b> 1 +0000\ncommitter a <a@b> 1 +0000\n\n").into_bytes();
    commit.resize(commit.len() + bytes, b'x');
    let args = ["hash-object", "-w", "-t", "commit", "--stdin"];
    let commit = String::from_utf8(scene.work.pipe(&args, &commit).await).unwrap();
    let pack = scene.work.pack(&[commit.trim()]).await;
    (commit.trim().to_owned(), pack)
}

#[tokio::test]
async fn a_pack_that_takes_much_memory_to_unpack_is_refused_from_everybody() {
    let git = GitLimits { push_memory: 96 << 20, ..GitLimits::default() };
    let scene = Scene::set(Settings { git, ..Settings::default() }).await;
    let (commit, pack) = bomb(&scene, 200 * MIB).await;
    assert!(pack.len() < MIB, "it is small as long as it is sent");
    let upload = format!("refs/nostr/{:064x}", 1);
    let state = scene.alice.later(1).state("x", &[(MAIN, &commit)]);
    assert!(scene.send(&state).await.0);
    for (old, name) in [(ZERO_ID, upload.as_str()), (&scene.tip, MAIN)] {
        let request = push(&[(old, &commit, name)], &pack);
        let answer = scene.instance.post(&scene.repo, "git-receive-pack", &[], &request).await;
        assert!(answer.body.contains(&format!("ng {name} ")), "{answer:?}");
        assert!(answer.body.contains("too much memory"), "{answer:?}");
        assert_eq!(scene.instance.until_idle().await, Leftovers::default());
    }
    scene.is_untouched("a bomb").await;
    // What is ordinary still fits.
    let next = scene.work.commit("next").await;
    assert!(scene.send(&scene.alice.later(2).state("x", &[(MAIN, &next)])).await.0);
    scene.work.git(&["push", &scene.url(), "main"]).await.expect_ok();
}

#[tokio::test]
async fn an_upload_that_nobody_signed_for_may_be_no_larger_than_what_may_wait() {
    let mut settings = Settings::default();
    settings.staging.bytes_per_event = 100_000;
    let scene = Scene::set(settings).await;
    let large = scene.work.commit_incompressible(300_000).await;
    let name = format!("refs/nostr/{:064x}", 1);
    let said = scene.work.git(&["push", &scene.url(), &format!("{large}:{name}")]).await;
    let said = said.expect_refused();
    assert!(said.contains("[remote rejected]"), "{said}");
    assert_eq!(scene.instance.until_idle().await, Leftovers::default());
    // The same is welcome once it is signed for.
    assert!(scene.send(&scene.alice.later(1).state("x", &[(MAIN, &large)])).await.0);
    scene.work.git(&["push", &scene.url(), &format!("{large}:{MAIN}")]).await.expect_ok();
}

#[tokio::test]
async fn events_of_any_shape_are_answered() {
    let scene = Scene::new().await;
    let coordinate = scene.repo.to_string();
    let long = "x".repeat(200_000);
    let many: Vec<[&str; 2]> = (0..20_000).map(|_| ["t", "x"]).collect();
    let many: Vec<&[&str]> = many.iter().map(|tag| &tag[..]).collect();
    let ids: Vec<String> = (0..3_000).map(|n| format!("{n:064x}")).collect();
    let names: Vec<[&str; 2]> = ids.iter().map(|id| ["e", id.as_str()]).collect();
    let names: Vec<&[&str]> = names.iter().map(|tag| &tag[..]).collect();
    let wide: Vec<&str> =
        std::iter::once("maintainers").chain(ids.iter().map(String::as_str)).collect();
    let eve = &scene.eve;
    for (what, event) in [
        ("a long tag", eve.sign(1621, "", &[&["a", &coordinate], &["t", &long]])),
        ("a long name of a tag", eve.sign(1621, "", &[&["a", &coordinate], &[&long, "x"]])),
        ("many tags", eve.sign(1621, "", &[&[&["a", &coordinate][..]][..], &many].concat())),
        ("many references", eve.sign(1, "", &names)),
        ("a long reference", eve.sign(1, "", &[&["a", &format!("30617:{}:{long}", eve.key())]])),
        ("a long name", eve.announce_with("y", &scene.instance.service(), &[&["d", &long]])),
        ("many maintainers", eve.announce_with("z", &scene.instance.service(), &[&wide])),
        ("a long ref", eve.sign(30618, "", &[&["d", "x"], &[&format!("refs/heads/{long}"), "1"]])),
        ("an end in no time", eve.sign(1, "", &[&["a", &coordinate], &["expiration", "-1"]])),
        ("an absurd end", eve.sign(1, "", &[&["a", &coordinate], &["expiration", &long]])),
        ("empty tags", eve.sign(1, "", &[&["a", ""], &["e", ""], &["d", ""], &["expiration", ""]])),
        ("control characters", eve.sign(1, "\u{0}\u{1b}[2J", &[&["a", &coordinate]])),
    ] {
        let (accepted, said) = scene.send(&event).await;
        assert!(!said.starts_with("error: "), "{what}: {accepted} {said}");
        assert!(said.len() < 1_000 && !said.chars().any(char::is_control), "{what}: {said}");
    }
    scene.is_untouched("odd events").await;
}
