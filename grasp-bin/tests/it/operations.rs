//! Checks, repairs, backups and restores of the data of real servers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use nostr::key::Keys;

use crate::commands::{clone_url, git, push, working_copy};
use crate::reserved::reserve_address;
use crate::serve::{host_repository, sign};
use crate::support::{CommandOutput, Server, command, get, grasp, run_to_end};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Returns a free address of loopback. It is the domain, too, so a restored server must be started at the same one.
pub(crate) fn free_address() -> String {
    reserve_address([127, 0, 0, 1]).to_string()
}

fn backup(data: &Path, dir: &Path) -> CommandOutput {
    grasp(&["backup", "--data-dir", text(data), text(dir)])
}

fn restore(dir: &Path, data: &Path) -> CommandOutput {
    grasp(&["restore", "--data-dir", text(data), text(dir)])
}

/// Runs a check, and returns its exit code and its output.
fn check(data: &Path, more: &[&str]) -> (i32, String) {
    let output = command()
        .args(["check", "--data-dir", text(data)])
        .args(more)
        .output()
        .unwrap();
    let printed = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    (output.status.code().unwrap(), printed.concat())
}

/// Returns all files below a directory.
fn files(dir: &Path) -> Vec<PathBuf> {
    let (mut files, mut left) = (Vec::new(), vec![dir.to_owned()]);
    while let Some(dir) = left.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                left.push(path)
            } else {
                files.push(path)
            }
        }
    }
    files.sort();
    files
}

/// Returns the packs of all repositories below a data directory or a backup.
fn packs(data: &Path) -> Vec<PathBuf> {
    let mut packs = files(&data.join("git/repositories"));
    packs.retain(|file| file.extension().is_some_and(|kind| kind == "pack"));
    packs
}

/// Returns all files that must not change: not the index of SQLite's log, which each process creates again.
fn contents(data: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = files(data);
    files.retain(|file| !text(file).ends_with("-shm") && !text(file).ends_with(".sock"));
    files
        .into_iter()
        .map(|file| (file.clone(), std::fs::read(file).unwrap()))
        .collect()
}

/// Changes a byte in the middle of a file, which becomes a file of its own if it was linked.
fn flip(file: &Path) {
    let mut bytes = std::fs::read(file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    std::fs::remove_file(file).unwrap();
    std::fs::write(file, bytes).unwrap();
}

/// Commits a file that does not compress, so that the middle of its pack is content.
pub(crate) fn commit_incompressible(work: &Path, name: &str) {
    let random: String = (0..64)
        .map(|_| Keys::generate().public_key().to_hex())
        .collect();
    std::fs::write(work.join(name), random).unwrap();
    git(work, &["add", "."]);
    git(work, &["commit", "-q", "-m", name]);
}

/// Returns the data directory and the address of a stopped server that hosts a repository with some content.
fn stopped_server(dir: &Path) -> (PathBuf, String) {
    let (data, work, address) = (dir.join("data"), dir.join("hello"), free_address());
    let mut server = Server::start_at(&address, &data);
    working_copy(&work);
    commit_incompressible(&work, "noise");
    assert!(push(&work, dir, &server).ok);
    let pid = server.child.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-TERM", &pid])
            .status()
            .unwrap()
            .success()
    );
    server.child.wait().unwrap();
    (data, address)
}

/// Clones from a restored server. The branch is at its tip of the start of the backup, or at a later push.
fn check_clone(dir: &Path, url: &str, work: &Path, before: &str) {
    let clone = dir.join("clone");
    git(dir, &["clone", "-q", url, text(&clone)]);
    git(&clone, &["fsck", "--strict", "--no-dangling"]);
    let tip = before.split_whitespace().next().unwrap();
    git(&clone, &["merge-base", "--is-ancestor", tip, "HEAD"]);
    git(
        work,
        &[
            "merge-base",
            "--is-ancestor",
            &git(&clone, &["rev-parse", "HEAD"]),
            "main",
        ],
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_backup_of_a_running_server_has_every_event_acknowledged_before_it() {
    const MIN_ACKNOWLEDGED: usize = 40;
    let dir = tempfile::tempdir().unwrap();
    let (data, copy, restored) = (
        dir.path().join("data"),
        dir.path().join("copy"),
        dir.path().join("restored"),
    );
    let address = free_address();
    let server = Arc::new(Server::start_at(&address, &data));
    let alice = Keys::generate();
    let hosted_work = tempfile::tempdir().unwrap();
    host_repository(&server, &alice, hosted_work.path()).await;
    let work = dir.path().join("hello");
    working_copy(&work);
    let url = clone_url(&push(&work, dir.path(), &server));

    let (stop, pushed) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicUsize::new(0)),
    );
    let pushing = {
        let (stop, pushed) = (Arc::clone(&stop), Arc::clone(&pushed));
        let (server, work, home) = (Arc::clone(&server), work.clone(), dir.path().to_owned());
        std::thread::spawn(move || {
            while !stop.load(Ordering::SeqCst) {
                commit_incompressible(&work, &format!("file {}", pushed.load(Ordering::SeqCst)));
                assert!(push(&work, &home, &server).ok);
                pushed.fetch_add(1, Ordering::SeqCst);
            }
        })
    };
    let acknowledged = Arc::new(std::sync::Mutex::new(BTreeSet::new()));
    let publishing = {
        let (stop, acknowledged) = (Arc::clone(&stop), Arc::clone(&acknowledged));
        let (mut client, a) = (
            server.connect().await,
            format!("30617:{}:x", alice.public_key()),
        );
        tokio::spawn(async move {
            let keys = Keys::generate();
            for number in 0.. {
                if stop.load(Ordering::SeqCst) {
                    break;
                }
                let issue = sign(&keys, 1621, &number.to_string(), &[&["a", &a]]);
                assert_eq!(client.publish(&issue).await, Some(true));
                acknowledged.lock().unwrap().insert(issue.id.to_hex());
            }
        })
    };
    while acknowledged.lock().unwrap().len() < MIN_ACKNOWLEDGED || pushed.load(Ordering::SeqCst) < 2
    {
        tokio::task::yield_now().await;
    }
    let (before, tip) = (
        acknowledged.lock().unwrap().clone(),
        git(&work, &["ls-remote", &url, "main"]),
    );
    let made = backup(&data, &copy);
    stop.store(true, Ordering::SeqCst);
    publishing.await.unwrap();
    pushing.join().unwrap();
    assert!(
        made.ok
            && made
                .out
                .starts_with("backed up the database, 2 repositories"),
        "{made:?}"
    );
    drop(Arc::into_inner(server).unwrap());

    let installed = restore(&copy, &restored);
    assert!(installed.ok, "{installed:?}");
    let again = Server::start_at(&address, &restored);
    let found = again.connect().await.stored(&before).await;
    assert_eq!(
        before.difference(&found).count(),
        0,
        "of {} acknowledged",
        before.len()
    );
    check_clone(dir.path(), &url, &work, &tip);
    let (code, printed) = check(&restored, &[]);
    assert_eq!(code, 0, "{printed}");
}

#[test]
fn a_restored_server_serves_the_same_refs_with_the_same_key() {
    use std::os::unix::fs::PermissionsExt as _;

    let dir = tempfile::tempdir().unwrap();
    let (data, copy, restored) = (
        dir.path().join("data"),
        dir.path().join("copy"),
        dir.path().join("new/data"),
    );
    let address = free_address();
    let server = Server::start_at(&address, &data);
    let work = dir.path().join("hello");
    working_copy(&work);
    commit_incompressible(&work, "noise");
    git(&work, &["tag", "--no-sign", "v1"]);
    let url = clone_url(&push(&work, dir.path(), &server));
    let refs = git(dir.path(), &["ls-remote", &url]);
    assert!(backup(&data, &copy).ok);
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(
        (mode(&copy), mode(&copy.join("service.key"))),
        (0o700, 0o600)
    );
    let again = backup(&data, &copy);
    assert!(!again.ok && again.err.contains("not empty"), "{again:?}");
    // Changes after the backup do not change the backup.
    git(&work, &["tag", "--no-sign", "v2"]);
    assert!(push(&work, dir.path(), &server).ok);
    drop(server);
    let before = contents(&copy);
    let occupied = restore(&copy, &data);
    assert!(
        !occupied.ok && occupied.err.contains("is not empty"),
        "{occupied:?}"
    );
    assert!(restore(&copy, &restored).ok);
    assert_eq!(mode(&restored), 0o700);
    let key = |data: &Path| std::fs::read(data.join("service.key")).unwrap();
    assert_eq!(key(&data), key(&restored));
    let _server = Server::start_at(&address, &restored);
    assert_eq!(git(dir.path(), &["ls-remote", &url]), refs);
    assert!(contents(&copy) == before, "the backup is unchanged");
}

#[test]
fn a_stopped_server_is_backed_up_and_a_damaged_backup_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (data, _) = stopped_server(dir.path());
    let before = contents(&data);
    let fresh = |name: &str| {
        let copy = dir.path().join(name);
        let made = backup(&data, &copy);
        assert!(made.ok, "{made:?}");
        copy
    };
    let refused = |copy: &Path, reason: &str| {
        let target = dir.path().join("target");
        let refused = restore(copy, &target);
        assert!(
            !refused.ok && refused.err.contains(reason),
            "{reason}: {refused:?}"
        );
        assert!(!target.exists(), "{reason}");
    };
    let flipped = fresh("flipped");
    flip(&packs(&flipped)[0]);
    refused(&flipped, "cannot be read");
    let anyway = dir.path().join("anyway");
    let accepted = grasp(&[
        "restore",
        "--accept-damage",
        "--data-dir",
        text(&anyway),
        text(&flipped),
    ]);
    assert!(
        accepted.ok && accepted.out.contains("/hello: "),
        "{accepted:?}"
    );
    assert_eq!(check(&anyway, &[]).0, 1);
    let deleted = fresh("deleted");
    std::fs::remove_file(&packs(&deleted)[0]).unwrap();
    refused(&deleted, "is missing or truncated");
    let database = fresh("database");
    flip(&database.join("grasp.db"));
    refused(&database, "is not the file that was backed up");
    let interrupted = fresh("interrupted");
    std::fs::remove_file(interrupted.join("backup.json")).unwrap();
    refused(&interrupted, "no complete backup");
    assert!(
        contents(&data) == before,
        "a backup does not change the data directory"
    );
    let sound = restore(&fresh("sound"), &dir.path().join("target"));
    assert!(
        sound.ok && sound.out.contains("1 repository and "),
        "{sound:?}"
    );
}

#[test]
fn a_check_takes_a_relative_data_directory() {
    let dir = tempfile::tempdir().unwrap();
    let (data, _) = stopped_server(dir.path());
    let name = text(data.file_name().unwrap().as_ref());
    let checked = run_to_end(
        command()
            .args(["check", "--data-dir", name])
            .current_dir(dir.path()),
    );
    assert!(
        checked.ok && checked.out.contains("nothing is missing"),
        "{checked:?}"
    );
}

#[test]
fn a_check_finds_damage_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (data, _) = stopped_server(dir.path());
    let (code, printed) = check(&data, &[]);
    assert_eq!(code, 0, "{printed}");
    assert!(
        printed.contains("1 repository and ") && printed.contains("nothing is missing"),
        "{printed}"
    );
    let pack = packs(&data).remove(0);
    let (name, whole) = (
        pack.file_stem().unwrap().to_str().unwrap(),
        std::fs::read(&pack).unwrap(),
    );

    flip(&pack);
    let before = contents(&data);
    let (code, printed) = check(&data, &[]);
    assert_eq!(code, 1, "{printed}");
    assert!(
        printed.contains("/hello: ") && printed.contains(&format!("damaged: {name}")),
        "{printed}"
    );
    assert!(contents(&data) == before, "a flipped byte");

    std::fs::remove_file(&pack).unwrap();
    let before = contents(&data);
    let (code, printed) = check(&data, &[]);
    assert_eq!(code, 1, "{printed}");
    assert!(
        printed.contains("objects of its history are missing"),
        "{printed}"
    );
    assert!(
        printed.contains(&format!("missing or truncated: {name}")),
        "{printed}"
    );
    assert!(contents(&data) == before, "a deleted pack");
    let made = backup(&data, &dir.path().join("copy"));
    assert!(
        !made.ok && made.out.contains("/hello: 1 pack could not be copied"),
        "{made:?}"
    );
    assert!(restore(&dir.path().join("copy"), &dir.path().join("restored")).ok);

    std::fs::write(&pack, whole).unwrap();
    let owner = printed
        .lines()
        .find_map(|line| line.strip_prefix("damaged: "))
        .unwrap();
    let owner = owner.split(": ").next().unwrap();
    assert_eq!(check(&data, &[owner]).0, 0);
    let (code, printed) = check(&data, &[&owner.replace("hello", "other")]);
    assert!(
        code == 1 && printed.contains("there is no repository"),
        "{printed}"
    );
    let (code, printed) = check(&data, &["--json"]);
    let report: serde_json::Value = serde_json::from_str(&printed).unwrap();
    assert_eq!((code, &report["repositories"]), (0, &serde_json::json!(1)));
}

#[test]
fn a_check_of_a_killed_server_does_not_change_its_log() {
    let dir = tempfile::tempdir().unwrap();
    let (data, work) = (dir.path().join("data"), dir.path().join("hello"));
    let server = Server::start(&data);
    working_copy(&work);
    assert!(push(&work, dir.path(), &server).ok);
    assert_eq!(check(&data, &[]).0, 0, "while the server runs");
    drop(server);
    let before = contents(&data);
    assert!(before.keys().any(|file| text(file).ends_with("-wal")));
    let (code, printed) = check(&data, &[]);
    assert_eq!(code, 0, "{printed}");
    assert!(contents(&data) == before);
}

#[test]
fn a_repair_without_a_server_keeps_readable_objects() {
    let dir = tempfile::tempdir().unwrap();
    let (data, _) = stopped_server(dir.path());
    flip(&packs(&data)[0]);
    let (code, printed) = check(&data, &["--repair"]);
    assert_eq!(code, 1, "{printed}");
    assert!(printed.contains("start the server"), "{printed}");
    // The commits are readable; the content of a file is not.
    let (code, printed) = check(&data, &[]);
    assert!(
        code == 1 && printed.contains("objects of its history are missing"),
        "{printed}"
    );
}

#[test]
fn a_repair_fetches_missing_objects_from_another_server() {
    let dir = tempfile::tempdir().unwrap();
    let [first, second] = ["first", "second"].map(|name| {
        let settings = ["--listen", "127.0.0.1:0", "--allow-private-targets"];
        Server::start_with(&settings, &dir.path().join(name))
    });
    let (data, work) = (dir.path().join("first"), dir.path().join("hello"));
    working_copy(&work);
    commit_incompressible(&work, "noise");
    let args = ["push", "--server", first.host(), "--server", second.host()];
    let pushed = run_to_end(
        command()
            .args(args)
            .current_dir(&work)
            .env("HOME", dir.path())
            .env_remove("XDG_DATA_HOME"),
    );
    let url = clone_url(&pushed);
    let url = url.replace(second.host(), first.host());
    flip(&packs(&data)[0]);
    let (code, printed) = check(&data, &["--repair"]);
    assert_eq!(code, 0, "{printed}");
    assert!(printed.starts_with("repaired: npub1"), "{printed}");
    for pack in packs(&data) {
        std::fs::remove_file(pack).unwrap();
    }
    assert_eq!(check(&data, &[]).0, 1);
    let (code, printed) = check(&data, &["--repair"]);
    assert_eq!(code, 0, "{printed}");
    let clone = dir.path().join("clone");
    git(dir.path(), &["clone", "-q", &url, text(&clone)]);
    git(&clone, &["fsck", "--strict"]);
}

#[test]
fn a_damaged_database_is_reported_with_the_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let (data, _) = stopped_server(dir.path());
    let file = data.join("grasp.db");
    let mut bytes = std::fs::read(&file).unwrap();
    // Every page but the first.
    bytes[4_096..].fill(0xa5);
    std::fs::write(&file, bytes).unwrap();
    let (code, printed) = check(&data, &[]);
    assert_eq!(code, 1, "{printed}");
    assert!(
        printed.contains("the database is damaged") && printed.contains("grasp restore"),
        "{printed}"
    );
    let serve = grasp(&[
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--data-dir",
        text(&data),
    ]);
    assert!(
        !serve.ok && serve.err.contains("the database is damaged"),
        "{serve:?}"
    );
    assert!(
        serve.err.contains("grasp restore") && serve.err.contains("grasp sync --once"),
        "{serve:?}"
    );
    let made = backup(&data, &dir.path().join("copy"));
    assert!(
        !made.ok && made.err.contains("the database is damaged"),
        "{made:?}"
    );
}

#[test]
fn health_fails_while_objects_are_missing_if_the_setting_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let (data, address) = stopped_server(dir.path());
    std::fs::remove_file(&packs(&data)[0]).unwrap();
    for (setting, status) in [("false", 200), ("true", 503)] {
        let setting = format!("--fail-health-when-degraded={setting}");
        let server = Server::start_with(&["--listen", &address, &setting], &data);
        let found = loop {
            let (status, body) = get(server.host(), "/health");
            if body.starts_with("degraded: ") {
                break status;
            }
            std::thread::yield_now();
        };
        assert_eq!(found, status);
    }
}

/// Changes the signature of the newest event in the file of a stopped server, and returns the event's id.
fn forge_one(data: &Path) -> String {
    let file = data.join("grasp.db");
    let mut bytes = std::fs::read(&file).unwrap();
    let is_signature = |at: usize| bytes[at..].starts_with(b"\"sig\":\"");
    let at = (0..bytes.len()).rev().find(|at| is_signature(*at)).unwrap();
    let is_id = |at: usize| bytes[at..].starts_with(b"\"id\":\"");
    let id = (0..at).rev().find(|at| is_id(*at)).unwrap();
    let id = String::from_utf8(bytes[id + 6..id + 70].to_vec()).unwrap();
    let signature = bytes[at + 7..at + 135].to_vec();
    let forged = match signature[0] {
        b'0' => b'1',
        _ => b'0',
    };
    // Pages that the database no longer uses may have copies of the event.
    for at in 0..bytes.len() - signature.len() {
        if bytes[at..].starts_with(&signature) {
            bytes[at] = forged;
        }
    }
    std::fs::write(file, bytes).unwrap();
    id
}

#[test]
fn events_that_do_not_verify_are_named_and_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let (data, address) = stopped_server(dir.path());
    let (code, text) = check(&data, &[]);
    assert!(code == 0 && text.contains("2 events"), "{text}");
    let id = forge_one(&data);
    let (code, text) = check(&data, &[]);
    assert_eq!(code, 1, "{text}");
    let expected = format!("invalid event: {id}: its id or its signature does not verify");
    assert!(
        text.contains(&expected) && text.contains("--drop-invalid"),
        "{text}"
    );
    let (code, text) = check(&data, &["--json"]);
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (code, &report["invalid_events"][0]["id"]),
        (1, &id.as_str().into())
    );
    // A running server would not learn of it.
    let mut server = Server::start_at(&address, &data);
    let (code, text) = check(&data, &["--drop-invalid"]);
    assert!(
        code == 1 && text.contains("only while the server is stopped"),
        "{text}"
    );
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    let (code, text) = check(&data, &["--drop-invalid"]);
    assert!(
        code == 0 && text.contains(&format!("dropped event: {id}")),
        "{text}"
    );
    let (code, text) = check(&data, &[]);
    assert!(code == 0 && text.contains("1 event"), "{text}");
}
