//! Small uploads and events that become large.

use grasp_relay::git_http::GitLimits;
use grasp_tests::wire::{ZERO_ID, push};
use grasp_tests::{Leftovers, Settings};

use super::{Fixture, MAIN};

const MIB: usize = 1024 * 1024;

/// Returns a commit with a message of this length, of one letter, and a pack of it.
async fn bomb(fixture: &Fixture, bytes: usize) -> (String, Vec<u8>) {
    let tree = fixture
        .work
        .git(&["rev-parse", "main^{tree}"])
        .await
        .expect_ok();
    let mut commit =
        format!("tree {tree}\nauthor a <a@b> 1 +0000\ncommitter a <a@b> 1 +0000\n\n").into_bytes();
    commit.resize(commit.len() + bytes, b'x');
    let args = ["hash-object", "-w", "-t", "commit", "--stdin"];
    let commit = String::from_utf8(fixture.work.pipe(&args, &commit).await).unwrap();
    let pack = fixture.work.pack(&[commit.trim()]).await;
    (commit.trim().to_owned(), pack)
}

#[tokio::test]
async fn a_pack_that_takes_much_memory_to_unpack_is_refused_from_every_client() {
    let git = GitLimits {
        push_memory: 96 << 20,
        ..GitLimits::default()
    };
    let fixture = Fixture::with_settings(Settings {
        git,
        ..Settings::default()
    })
    .await;
    let (commit, pack) = bomb(&fixture, 200 * MIB).await;
    assert!(pack.len() < MIB, "the pack is small");
    let upload = format!("refs/nostr/{:064x}", 1);
    let state = fixture.alice.later(1).state("x", &[(MAIN, &commit)]);
    assert!(fixture.publish(&state).await.0);
    for (old, name) in [(ZERO_ID, upload.as_str()), (&fixture.tip, MAIN)] {
        let request = push(&[(old, &commit, name)], &pack);
        let answer = fixture
            .instance
            .post(&fixture.repo, "git-receive-pack", &[], &request)
            .await;
        assert!(answer.body.contains(&format!("ng {name} ")), "{answer:?}");
        assert!(answer.body.contains("too much memory"), "{answer:?}");
        assert_eq!(fixture.instance.until_idle().await, Leftovers::default());
    }
    fixture.assert_unchanged("a bomb").await;
    // Ordinary pushes are still accepted.
    let next = fixture.work.commit("next").await;
    assert!(
        fixture
            .publish(&fixture.alice.later(2).state("x", &[(MAIN, &next)]))
            .await
            .0
    );
    fixture
        .work
        .git(&["push", &fixture.url(), "main"])
        .await
        .expect_ok();
}

#[tokio::test]
async fn an_unsigned_upload_is_limited_by_the_staging_quota_of_an_event() {
    let mut settings = Settings::default();
    settings.staging.bytes_per_event = 100_000;
    let fixture = Fixture::with_settings(settings).await;
    let large = fixture.work.commit_incompressible(300_000).await;
    let name = format!("refs/nostr/{:064x}", 1);
    let pushed = fixture
        .work
        .git(&["push", &fixture.url(), &format!("{large}:{name}")])
        .await;
    let error = pushed.expect_refused();
    assert!(error.contains("[remote rejected]"), "{error}");
    assert_eq!(fixture.instance.until_idle().await, Leftovers::default());
    // The same is accepted with a signed state.
    assert!(
        fixture
            .publish(&fixture.alice.later(1).state("x", &[(MAIN, &large)]))
            .await
            .0
    );
    fixture
        .work
        .git(&["push", &fixture.url(), &format!("{large}:{MAIN}")])
        .await
        .expect_ok();
}

#[tokio::test]
async fn malformed_and_oversized_events_get_a_plain_answer() {
    let fixture = Fixture::new().await;
    let coordinate = fixture.repo.to_string();
    let long = "x".repeat(200_000);
    let many: Vec<[&str; 2]> = (0..20_000).map(|_| ["t", "x"]).collect();
    let many: Vec<&[&str]> = many.iter().map(|tag| &tag[..]).collect();
    let ids: Vec<String> = (0..3_000).map(|n| format!("{n:064x}")).collect();
    let names: Vec<[&str; 2]> = ids.iter().map(|id| ["e", id.as_str()]).collect();
    let names: Vec<&[&str]> = names.iter().map(|tag| &tag[..]).collect();
    let wide: Vec<&str> = std::iter::once("maintainers")
        .chain(ids.iter().map(String::as_str))
        .collect();
    let eve = &fixture.eve;
    for (what, event) in [
        (
            "a long tag",
            eve.sign(1621, "", &[&["a", &coordinate], &["t", &long]]),
        ),
        (
            "a long tag name",
            eve.sign(1621, "", &[&["a", &coordinate], &[&long, "x"]]),
        ),
        (
            "many tags",
            eve.sign(1621, "", &[&[&["a", &coordinate][..]][..], &many].concat()),
        ),
        ("many references", eve.sign(1, "", &names)),
        (
            "a long reference",
            eve.sign(1, "", &[&["a", &format!("30617:{}:{long}", eve.key())]]),
        ),
        (
            "a long name",
            eve.announce_with("y", &fixture.instance.service(), &[&["d", &long]]),
        ),
        (
            "many maintainers",
            eve.announce_with("z", &fixture.instance.service(), &[&wide]),
        ),
        (
            "a long ref",
            eve.sign(
                30618,
                "",
                &[&["d", "x"], &[&format!("refs/heads/{long}"), "1"]],
            ),
        ),
        (
            "a negative expiration",
            eve.sign(1, "", &[&["a", &coordinate], &["expiration", "-1"]]),
        ),
        (
            "a malformed expiration",
            eve.sign(1, "", &[&["a", &coordinate], &["expiration", &long]]),
        ),
        (
            "empty tags",
            eve.sign(
                1,
                "",
                &[&["a", ""], &["e", ""], &["d", ""], &["expiration", ""]],
            ),
        ),
        (
            "control characters",
            eve.sign(1, "\u{0}\u{1b}[2J", &[&["a", &coordinate]]),
        ),
    ] {
        let (accepted, message) = fixture.publish(&event).await;
        assert!(
            !message.starts_with("error: "),
            "{what}: {accepted} {message}"
        );
        let is_plain = message.len() < 1_000 && !message.chars().any(char::is_control);
        assert!(is_plain, "{what}: {message}");
    }
    fixture.assert_unchanged("odd events").await;
}
