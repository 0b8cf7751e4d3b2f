//! A disk that is full for a while: new events are refused, acknowledged ones are kept, and free space ends it.
#![cfg(target_os = "linux")]

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::commands::{clone_url, git, push, working_copy};
use crate::support::{Server, command, get, skipped};

/// Limits the size of files from now on: as on a full disk, writes beyond it fail.
fn limit_files(server: &Server, bytes: &str) -> bool {
    let (pid, limit) = (server.child.id().to_string(), format!("--fsize={bytes}:"));
    let set = Command::new("prlimit")
        .args(["--pid", &pid, &limit])
        .status();
    set.is_ok_and(|status| status.success())
}

/// Starts a server that gets an error for such a write, instead of a signal.
fn start(data: &Path) -> Server {
    let grasp = command();
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "trap '' XFSZ; exec \"$@\"", "sh"])
        .arg(grasp.get_program());
    for (name, value) in grasp.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    Server::start_by(shell, &["--listen", "127.0.0.1:0"], data)
}

#[test]
fn a_full_disk_refuses_events_until_there_is_space() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(&dir.path().join("data"));
    let work = |name: &str| dir.path().join(name);
    ["first", "second", "third"]
        .iter()
        .for_each(|name| working_copy(&work(name)));
    assert!(push(&work("first"), dir.path(), &server).ok);
    if !limit_files(&server, "1024") {
        return skipped("prlimit is not installed");
    }
    let refused = push(&work("second"), dir.path(), &server);
    assert!(
        !refused.ok && refused.err.contains("could not be stored, try again"),
        "{refused:?}"
    );
    assert_eq!(get(server.host(), "/health"), (503, "not ready\n".into()));
    assert!(
        get(server.host(), "/").1.contains("first"),
        "stored events are served"
    );
    assert!(limit_files(&server, "unlimited"));
    while get(server.host(), "/health").0 != 200 {}
    for name in ["second", "third"] {
        let pushed = push(&work(name), dir.path(), &server);
        assert!(pushed.ok, "{pushed:?}");
    }
}

#[test]
fn a_full_disk_is_reported_before_anything_is_written_and_clones_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(&dir.path().join("data"));
    let work = dir.path().join("first");
    working_copy(&work);
    let url = clone_url(&push(&work, dir.path(), &server));
    git(&work, &["commit", "-q", "--allow-empty", "-m", "second"]);
    assert!(
        push(&work, dir.path(), &server).ok,
        "nobody has read these refs yet"
    );
    if !limit_files(&server, "0") {
        return skipped("prlimit is not installed");
    }
    for version in ["0", "2"] {
        let copy = dir.path().join(version);
        let protocol = format!("protocol.version={version}");
        git(
            dir.path(),
            &["-c", &protocol, "clone", "-q", &url, copy.to_str().unwrap()],
        );
        assert_eq!(
            git(&copy, &["rev-parse", "HEAD"]),
            git(&work, &["rev-parse", "HEAD"])
        );
    }
    assert_eq!(get(server.host(), "/health"), (503, "not ready\n".into()));
    assert!(limit_files(&server, "unlimited"));
    while get(server.host(), "/health").0 != 200 {}
}

#[test]
fn a_damaged_database_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let mut server = start(&data);
    let work = dir.path().join("first");
    working_copy(&work);
    assert!(push(&work, dir.path(), &server).ok);
    // A server that stops moves all pages from its log to the file.
    let pid = server.child.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-TERM", &pid])
            .status()
            .unwrap()
            .success()
    );
    server.child.wait().unwrap();
    let server = start(&data);
    // The work of a start, and a connection to the database that has read nothing yet, would find the damage, too.
    std::thread::sleep(Duration::from_secs(2));
    for _ in 0..100 {
        assert_eq!(get(server.host(), "/health"), (200, "ok\n".into()));
        assert_eq!(get(server.host(), "/").0, 200);
    }
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(data.join("grasp.db"))
        .unwrap();
    let length = usize::try_from(file.metadata().unwrap().len()).unwrap();
    // The first page, which names the tables, stays.
    std::os::unix::fs::FileExt::write_all_at(&file, &vec![0xa5; length - 4_096], 4_096).unwrap();
    let began = Instant::now();
    while get(server.host(), "/health") != (503, "not ready\n".into()) {
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "{:?}",
            get(server.host(), "/health")
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}
