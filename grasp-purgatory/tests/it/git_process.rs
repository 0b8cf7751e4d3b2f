//! Git processes run in a sandbox, and end with the request that started them.

use std::net::Ipv4Addr;
use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::time::Duration;

use grasp_core::resources::{Claimant, ClientNetwork, Shortage};
use grasp_purgatory::git::{Git, GitError, Protocol, Service, Slots, StagingLimits};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};

use crate::git_fixture::{Fixture, MAX_PACK_BYTES, Work, files_below, installed_git, name, noise};

/// Returns the command lines of running processes that use this directory.
fn processes(root: &Path) -> Vec<String> {
    let marker = root.to_str().unwrap().as_bytes();
    let all = std::fs::read_dir("/proc")
        .unwrap()
        .map(|entry| entry.unwrap().path());
    all.filter(|dir| {
        let read = |file: &str| std::fs::read(dir.join(file)).unwrap_or_default();
        let cwd = std::fs::read_link(dir.join("cwd")).unwrap_or_default();
        let about = [
            read("environ"),
            read("cmdline"),
            cwd.into_os_string().into_vec(),
        ]
        .concat();
        about.windows(marker.len()).any(|window| window == marker)
    })
    .map(|dir| {
        String::from_utf8_lossy(&std::fs::read(dir.join("cmdline")).unwrap_or_default())
            .into_owned()
    })
    .collect()
}

/// Waits until a condition is true that depends on the kernel.
async fn eventually(mut holds: impl FnMut() -> bool) {
    let wait = async {
        while !holds() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(20), wait)
        .await
        .expect("in time");
}

#[tokio::test]
async fn a_disconnect_during_a_push_leaves_no_process_and_no_file() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    // The first push creates the directory of this repository.
    drop(
        fixture
            .store
            .repository(&repo)
            .incoming(Claimant::default())
            .await
            .unwrap(),
    );
    let before = files_below(&fixture.root());
    let pack = work.pack(&[work.commit("1")]);
    let incoming = fixture
        .store
        .repository(&repo)
        .incoming(Claimant::default())
        .await
        .unwrap();
    let mut unpacking = incoming
        .unpack(MAX_PACK_BYTES, MAX_PACK_BYTES)
        .await
        .unwrap();
    unpacking.feed(&pack[..pack.len() - 1]).await.unwrap();
    eventually(|| !processes(&fixture.root()).is_empty()).await;
    drop((incoming, unpacking));
    eventually(|| processes(&fixture.root()).is_empty()).await;
    eventually(|| files_below(&fixture.root()) == before).await;
}

#[tokio::test]
async fn a_disconnect_during_a_clone_ends_git_and_its_child_processes() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    work.write("noise", &noise(2_000_000));
    let tip = work.commit("1");
    fixture
        .push(&repo, &work, &[("refs/heads/main", Some(tip))])
        .await
        .unwrap();
    let mut process = fixture
        .store
        .upload_pack(&repo, Protocol::V0, Claimant::default())
        .await
        .unwrap();
    let mut stdin = process.take_stdin().unwrap();
    let mut stdout = process.take_stdout().unwrap();
    let want = format!("want {tip} side-band-64k\n");
    let request = format!("{:04x}{want}00000009done\n", want.len() + 4);
    stdin.write_all(request.as_bytes()).await.unwrap();
    // The pack has begun, and is larger than any pipe: git and its child wait for the reader.
    let mut beginning = [0; 4096];
    stdout.read_exact(&mut beginning).await.unwrap();
    assert!(
        processes(&fixture.root())
            .iter()
            .any(|line| line.contains("pack-objects"))
    );
    drop((process, stdin, stdout));
    eventually(|| processes(&fixture.root()).is_empty()).await;
}

#[tokio::test]
async fn a_process_above_the_limit_waits_until_another_ends() {
    let one = NonZeroUsize::MIN;
    let path = std::env::var_os("PATH").unwrap();
    let git = Git::find(
        &path,
        Slots {
            local_processes: one,
            ..Slots::default()
        },
    )
    .unwrap();
    let first = git
        .command("cat-file")
        .arg("--batch")
        .spawn()
        .await
        .unwrap();
    let waiting = git.command("version").spawn();
    let mut waiting = std::pin::pin!(waiting);
    assert!(timeout(Duration::ZERO, &mut waiting).await.is_err());
    drop(first);
    assert!(waiting.await.is_ok());
}

#[tokio::test]
async fn a_client_network_without_cpu_time_is_refused_while_others_clone() {
    let path = std::env::var_os("PATH").unwrap();
    let slots = Slots {
        client_cpu: Duration::from_millis(400),
        ..Slots::default()
    };
    let git = Git::find(&path, slots).unwrap();
    let fixture = Fixture::with_git(git, StagingLimits::default()).await;
    let repo = fixture.repo("x").await;
    let at = |net| Claimant::at(ClientNetwork::of(Ipv4Addr::new(198, 51, net, 1).into()));
    let ask = async |claimant| {
        let service = (Service::UploadPack, Protocol::V2);
        fixture
            .store
            .advertise(&repo, service, claimant)
            .await?
            .finish()
            .await
            .map(drop)
    };
    // Starting the shell that limits git, and git, takes CPU time.
    let mut asked = 0;
    let refusal = loop {
        asked += 1;
        assert!(asked < 200, "never refused");
        if let Err(error) = ask(at(1)).await {
            break error;
        }
    };
    assert!(asked > 1, "{refusal}");
    assert!(
        matches!(refusal, GitError::Busy(Shortage::Network(_))),
        "{refusal:?}"
    );
    assert_eq!(
        refusal.to_string(),
        "the network 198.51.1.1/32 uses its share; try again later"
    );
    ask(at(2)).await.unwrap();
    ask(at(1).with_authority()).await.unwrap();
}

/// Returns the limits of memory of the processes that serve clients from this directory, in MiB.
#[cfg(target_os = "linux")]
fn memory_limits(root: &Path) -> Vec<u64> {
    let marker = root.to_str().unwrap();
    let mut limits = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap() {
        let dir = entry.unwrap().path();
        let read = |file: &str| std::fs::read_to_string(dir.join(file)).unwrap_or_default();
        let command = read("cmdline");
        if !(command.contains("upload-pack") && command.contains(marker)) {
            continue;
        }
        let text = read("limits");
        let line = text.lines().find(|line| line.starts_with("Max data size"));
        let soft = line.and_then(|line| line.split_whitespace().nth(3));
        limits.extend(soft.map(|bytes| bytes.parse::<u64>().map_or(u64::MAX, |n| n >> 20)));
    }
    limits
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn git_that_serves_a_client_has_a_limit_of_memory() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let tip = work.commit("1");
    fixture
        .push(&repo, &work, &[("refs/heads/main", Some(tip))])
        .await
        .unwrap();
    let serve = async || {
        let claimant = Claimant::default();
        fixture
            .store
            .upload_pack(&repo, Protocol::V2, claimant)
            .await
    };
    let process = serve().await.unwrap();
    // The kernel shows a command line a moment after the command has begun.
    eventually(|| !memory_limits(&fixture.root()).is_empty()).await;
    assert_eq!(memory_limits(&fixture.root()), [24]);
    drop(process);
    eventually(|| processes(&fixture.root()).is_empty()).await;

    fixture.store.note_serving(&repo, "fatal: not our ref");
    drop(serve().await.unwrap());
    eventually(|| processes(&fixture.root()).is_empty()).await;
    let words = "error: git upload-pack: git-pack-objects died with error.";
    fixture.store.note_serving(&repo, words);
    let process = serve().await.unwrap();
    eventually(|| !memory_limits(&fixture.root()).is_empty()).await;
    assert_eq!(memory_limits(&fixture.root()), [24 + 192]);
    drop(process);
}

#[tokio::test]
async fn one_network_leaves_memory_of_git_that_serves_clients_to_others() {
    let path = std::env::var_os("PATH").unwrap();
    let slots = Slots {
        client_processes: NonZeroUsize::new(1_000).unwrap(),
        ..Slots::default()
    };
    let git = Git::find(&path, slots).unwrap();
    let fixture = Fixture::with_git(git, StagingLimits::default()).await;
    let repo = fixture.repo("x").await;
    let at = |net| Claimant::at(ClientNetwork::of(Ipv4Addr::new(198, 51, net, 1).into()));
    let serve = async |claimant| {
        let serving = fixture.store.upload_pack(&repo, Protocol::V2, claimant);
        timeout(Duration::from_millis(500), serving).await
    };
    let mut served = Vec::new();
    while let Ok(process) = serve(at(1)).await {
        served.push(process.unwrap());
        assert!(served.len() < 30, "never refused");
    }
    assert_eq!(served.len(), 5, "a quarter of 512 MiB, at 24 MiB each");
    let other = serve(at(2)).await.expect("in time").unwrap();
    served.pop();
    let next = serve(at(1)).await.expect("in time").unwrap();
    drop((other, next));
}

#[tokio::test]
async fn a_command_that_takes_too_long_is_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    assert!(
        std::process::Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    // Nothing is ever written into it.
    let endless = installed_git()
        .command("config")
        .arg("--file")
        .arg(&pipe)
        .arg("--list");
    let limited = endless
        .limit(Duration::from_millis(20))
        .run(Vec::new())
        .await;
    assert!(
        matches!(limited, Err(GitError::Timeout { .. })),
        "{limited:?}"
    );
    eventually(|| processes(dir.path()).is_empty()).await;
}

#[tokio::test]
async fn the_sandbox_has_no_user_no_hooks_and_no_network() {
    let git = installed_git();
    let listed = git
        .command("config")
        .args(["--list", "--show-scope"])
        .run(Vec::new())
        .await;
    let listed = String::from_utf8(listed.unwrap().stdout).unwrap();
    assert!(
        listed.lines().all(|line| line.starts_with("command\t")),
        "{listed}"
    );
    assert!(listed.contains("core.hookspath=/dev/null"), "{listed}");
    let work = Work::new();
    work.commit("1");
    let url = format!("file://{}", work.dir.path().display());
    let fetched = git
        .command("ls-remote")
        .arg(url)
        .run(Vec::new())
        .await
        .unwrap();
    assert!(
        !fetched.status.success() && fetched.words.contains("not allowed"),
        "{fetched:?}"
    );
}

#[tokio::test]
async fn hooks_in_a_view_are_not_run() {
    use std::os::unix::fs::PermissionsExt;

    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let tip = work.commit("1");
    fixture
        .push(&repo, &work, &[("refs/heads/first", Some(tip))])
        .await
        .unwrap();
    let trace = fixture.dir.path().join("ran");
    let workbench = fixture.root().join("workbench");
    for dir in [
        fixture.view(&repo).await,
        fixture.repo_dir(&repo),
        workbench,
    ] {
        let hooks = dir.join("hooks");
        std::fs::create_dir(&hooks).unwrap();
        for hook in [
            "pre-receive",
            "update",
            "post-update",
            "reference-transaction",
            "post-receive",
        ] {
            let path = hooks.join(hook);
            std::fs::write(&path, format!("#!/bin/sh\necho x >> {}\n", trace.display())).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
    }
    fixture.fetch_v2(&repo, &[tip]).await;
    let tip = work.commit("2");
    fixture
        .push(&repo, &work, &[("refs/heads/main", Some(tip))])
        .await
        .unwrap();
    assert_eq!(
        fixture.store.refs(&repo).await.unwrap()[&name("refs/heads/main")],
        tip
    );
    assert!(!trace.exists());
}
