//! Malformed packs, packs beyond the limits, and a full disk.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use grasp_core::RepoId;
use grasp_relay::git_http::GitLimits;
use grasp_tests::wire::push;
use grasp_tests::{Author, Instance, Leftovers, Settings, Workdir, write_program};
use nostr::event::Event;

const MAIN: &str = "refs/heads/main";

/// A server with a repository of one commit.
pub(crate) struct Hosted {
    pub(crate) instance: Instance,
    pub(crate) alice: Author,
    pub(crate) repo: RepoId,
    pub(crate) work: Workdir,
    pub(crate) tip: String,
    refs: String,
}

pub(crate) async fn hosted(settings: Settings) -> Hosted {
    hosted_by(Instance::with_settings(settings).await).await
}

async fn hosted_by(instance: Instance) -> Hosted {
    let alice = Author::new();
    let work = instance.host(&alice, "x").await;
    let tip = work.git(&["rev-parse", "main"]).await.expect_ok();
    let repo = alice.repo("x");
    let refs = instance.refs(&repo).await;
    Hosted {
        instance,
        alice,
        repo,
        work,
        tip,
        refs,
    }
}

impl Hosted {
    /// Signs a state with main at a commit that is not here yet.
    async fn sign(&self, seconds: u64, commit: &str) -> Event {
        let state = self.alice.later(seconds).state("x", &[(MAIN, commit)]);
        self.instance.ingest(vec![state.clone()]).await;
        state
    }

    /// Pushes these bytes as the pack of a commit, and returns the report.
    async fn push(&self, commit: &str, pack: &[u8]) -> String {
        let request = push(&[(&self.tip, commit, MAIN)], pack);
        let answer = self
            .instance
            .post(&self.repo, "git-receive-pack", &[], &request)
            .await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.body
    }

    async fn assert_unchanged(&self, state: &Event, after: &str) {
        assert!(!self.instance.serves(state).await, "{after}");
        assert_eq!(self.instance.refs(&self.repo).await, self.refs, "{after}");
        assert_eq!(
            self.instance.until_idle().await,
            Leftovers::default(),
            "{after}"
        );
    }
}

/// Replaces the checksum of a pack by the correct one.
async fn with_checksum(work: &Workdir, mut pack: Vec<u8>) -> Vec<u8> {
    pack.truncate(pack.len() - 20);
    std::fs::write(work.path().join("unsigned"), &pack).unwrap();
    let sum = Command::new("sha1sum")
        .arg(work.path().join("unsigned"))
        .output()
        .unwrap();
    std::fs::remove_file(work.path().join("unsigned")).unwrap();
    let hex = String::from_utf8(sum.stdout).unwrap();
    let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    pack.extend((0..40).step_by(2).map(byte));
    pack
}

#[tokio::test]
async fn a_malformed_pack_changes_nothing() {
    let hosted = hosted(Settings::default()).await;
    let work = &hosted.work;
    let next = work.commit("next").await;
    let state = hosted.sign(1, &next).await;
    let good = work.pack(&["main"]).await;
    let flipped = |at: usize| {
        let mut pack = good.clone();
        pack[at] ^= 0x40;
        pack
    };
    let mut more_objects = good.clone();
    more_objects[11] += 1;
    let mut fewer_objects = good.clone();
    fewer_objects[11] -= 1;
    let mut version = good.clone();
    version[7] = 9;
    let only_commit = work
        .pipe(&["pack-objects", "--stdout", "-q"], next.as_bytes())
        .await;
    let cases = [
        ("no bytes", Vec::new()),
        ("no pack", b"PUCK".to_vec()),
        ("constant bytes", vec![0x55; 10_000]),
        ("another version", version),
        (
            "a corrupt object",
            with_checksum(work, flipped(good.len() / 2)).await,
        ),
        ("a flipped bit", flipped(good.len() / 2)),
        ("a wrong trailer", flipped(good.len() - 1)),
        ("no trailer", good[..good.len() - 20].to_vec()),
        ("half of it", good[..good.len() / 2].to_vec()),
        ("a header alone", good[..12].to_vec()),
        (
            "fewer objects than it says",
            with_checksum(work, more_objects).await,
        ),
        (
            "more objects than it says",
            with_checksum(work, fewer_objects).await,
        ),
        ("a commit without its tree", only_commit),
        ("objects of another commit", work.pack(&[&hosted.tip]).await),
    ];
    for (what, pack) in cases {
        let report = hosted.push(&next, &pack).await;
        assert!(report.contains(&format!("ng {MAIN} ")), "{what}: {report}");
        assert!(!report.contains("the server failed"), "{what}: {report}");
        hosted.assert_unchanged(&state, what).await;
    }
    assert!(
        hosted
            .push(&next, &good)
            .await
            .contains(&format!("ok {MAIN}"))
    );
    assert!(hosted.instance.serves(&state).await);
}

#[tokio::test]
async fn objects_that_fsck_refuses_are_refused() {
    let hosted = hosted(Settings::default()).await;
    let work = &hosted.work;
    let blob = work.git(&["rev-parse", "main:file"]).await.expect_ok();
    let tree_with = async |name: &[u8]| {
        let oid: Vec<u8> = (0..40)
            .step_by(2)
            .map(|at| u8::from_str_radix(&blob[at..at + 2], 16).unwrap())
            .collect();
        let tree = [b"100644 ", name, b"\0", &oid].concat();
        let args = ["hash-object", "-w", "-t", "tree", "--literally", "--stdin"];
        String::from_utf8(work.pipe(&args, &tree).await)
            .unwrap()
            .trim()
            .to_owned()
    };
    for (seconds, name) in [
        (1, &b".git"[..]),
        (2, b".."),
        (3, b"a/b"),
        (4, b".GIT"),
        (5, b""),
    ] {
        let tree = tree_with(name).await;
        let commit =
            format!("tree {tree}\nauthor a <a@b> 1 +0000\ncommitter a <a@b> 1 +0000\n\nevil\n");
        let args = [
            "hash-object",
            "-w",
            "-t",
            "commit",
            "--literally",
            "--stdin",
        ];
        let commit = work.pipe(&args, commit.as_bytes()).await;
        let commit = String::from_utf8(commit).unwrap().trim().to_owned();
        let state = hosted.sign(seconds, &commit).await;
        let objects = format!("{commit}\n{tree}\n{blob}\n");
        let pack = work
            .pipe(&["pack-objects", "--stdout", "-q"], objects.as_bytes())
            .await;
        let report = hosted.push(&commit, &pack).await;
        assert!(
            report.contains(&format!("ng {MAIN} the pack was refused")),
            "{report}"
        );
        hosted.assert_unchanged(&state, "a malformed object").await;
    }
}

#[tokio::test]
async fn a_pack_beyond_the_size_limit_is_refused() {
    let git = GitLimits {
        push_bytes: 200_000,
        ..GitLimits::default()
    };
    let hosted = hosted(Settings {
        git,
        ..Settings::default()
    })
    .await;
    // The smaller one in one piece, the larger one in chunks after a probe, and beyond what is read before the answer.
    for (seconds, bytes) in [(1, 300_000), (2, 3_000_000)] {
        hosted
            .work
            .git(&["reset", "-q", "--hard", &hosted.tip])
            .await
            .expect_ok();
        let next = hosted.work.commit_incompressible(bytes).await;
        let state = hosted.sign(seconds, &next).await;
        let url = hosted.instance.clone_url(&hosted.repo);
        let error = hosted
            .work
            .git(&["push", &url, "main"])
            .await
            .expect_refused();
        if bytes < 400_000 {
            assert!(
                error.contains("[remote rejected] main -> main (the request body"),
                "{error}"
            );
        }
        hosted.assert_unchanged(&state, "an oversize pack").await;
    }
}

#[tokio::test]
async fn a_repository_does_not_grow_beyond_its_quota() {
    let git = GitLimits {
        repository_bytes: 400_000,
        ..GitLimits::default()
    };
    let mut hosted = hosted(Settings {
        git,
        ..Settings::default()
    })
    .await;
    let url = hosted.instance.clone_url(&hosted.repo);
    hosted.tip = hosted.work.commit_incompressible(300_000).await;
    hosted.sign(1, &hosted.tip).await;
    hosted.work.git(&["push", &url, "main"]).await.expect_ok();
    hosted.refs = hosted.instance.refs(&hosted.repo).await;
    let next = hosted.work.commit_incompressible(310_000).await;
    let state = hosted.sign(2, &next).await;
    let error = hosted
        .work
        .git(&["push", &url, "main"])
        .await
        .expect_refused();
    let reason = " of 390.6 KiB here; this push needs ";
    assert!(error.contains(reason), "{error}");
    hosted
        .assert_unchanged(&state, "a pack beyond the quota")
        .await;
    hosted
        .work
        .git(&["reset", "-q", "--hard", &hosted.tip])
        .await
        .expect_ok();
    let small = hosted.work.commit("small").await;
    let state = hosted.sign(3, &small).await;
    hosted.work.git(&["push", &url, "main"]).await.expect_ok();
    assert!(hosted.instance.serves(&state).await);
}

/// Returns a git that can write files of 64 KiB at most, and gets an error instead of a signal.
fn limited_git(dir: &Path) -> PathBuf {
    let path = dir.join("git");
    let script = "#!/bin/bash\ntrap '' XFSZ\nulimit -f 64\nPATH=/usr/local/bin:/usr/bin:/bin\nexec git \"$@\"\n";
    write_program(&path, script);
    path
}

async fn check_full_disk(hosted: Hosted) {
    let next = hosted.work.commit_incompressible(6 << 20).await;
    let state = hosted.sign(1, &next).await;
    let url = hosted.instance.clone_url(&hosted.repo);
    let error = hosted
        .work
        .git(&["push", &url, "main"])
        .await
        .expect_refused();
    assert!(
        error.contains("[remote rejected] main -> main (no space left on disk)"),
        "{error}"
    );
    hosted.assert_unchanged(&state, "a full disk").await;
    // A small push still succeeds.
    hosted
        .work
        .git(&["reset", "-q", "--hard", &hosted.tip])
        .await
        .expect_ok();
    let small = hosted.work.commit("small").await;
    let state = hosted.sign(2, &small).await;
    hosted.work.git(&["push", &url, "main"]).await.expect_ok();
    assert!(hosted.instance.serves(&state).await);
}

#[tokio::test]
async fn a_file_size_limit_while_unpacking_is_reported_as_a_full_disk() {
    let dir = tempfile::tempdir().unwrap();
    let settings = Settings {
        program: Some(limited_git(dir.path())),
        ..Settings::default()
    };
    check_full_disk(hosted(settings).await).await;
}

/// A file system of four megabytes, which is unmounted on drop.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    /// Mounts it; `None` without the permission to.
    fn mount() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", "size=4m", "tmpfs"])
            .arg(dir.path());
        mount
            .output()
            .is_ok_and(|mounted| mounted.status.success())
            .then_some(Self(dir))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).output();
    }
}

#[tokio::test]
async fn a_full_disk_while_unpacking_is_reported_as_such() {
    let Some(disk) = SmallDisk::mount() else {
        // Past what the test harness captures: `.ci/run` counts these lines.
        let reason =
            "no small disk can be mounted here; the test with a limited git covers this case";
        return std::io::stderr()
            .write_all(format!("skipped: {reason}\n").as_bytes())
            .unwrap();
    };
    let settings = Settings {
        repositories: Some(disk.0.path().join("git")),
        ..Settings::default()
    };
    // By default, nine tenths of the disk are the quota, which would refuse the push before it is unpacked.
    let unlimited =
        |settings: &mut grasp_relay::instance::Settings| settings.quota.total_bytes = Some(1 << 30);
    let instance = Instance::with_settings_and(settings, unlimited).await;
    check_full_disk(hosted_by(instance).await).await;
}
