//! The status of a running server by command line, metrics and page.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::{Server, command, get, grasp, run_to_end};

#[test]
fn the_status_is_printed_for_the_owner_of_the_data_directory() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    let data = dir.path().to_str().unwrap();
    let status = grasp(&["status", "--data-dir", data]);
    assert!(status.ok && status.out.contains("working"), "{status:?}");
    assert!(status.out.contains(server.host()), "{status:?}");
    // The server's own subscriptions are not counted.
    assert!(
        status.out.contains("connections 0, subscriptions 0"),
        "{status:?}"
    );
    let json = grasp(&["status", "--json", "--data-dir", data]);
    let json: Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(
        (&json["ready"], &json["repositories"]),
        (&Value::from(true), &Value::from(0))
    );
    for (command, nothing) in [
        ("repos", "no repository is hosted"),
        ("relays", "no other relay is followed"),
        ("purgatory", "nothing waits for git data"),
    ] {
        let output = grasp(&[command, "--data-dir", data]);
        assert!(output.ok && output.out.contains(nothing), "{output:?}");
    }
}

#[test]
fn a_live_view_continues_after_a_restart_of_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    let mut watch = command()
        .args(["status", "--watch", "--json", "--data-dir"])
        .arg(dir.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut next = || serde_json::from_str::<Value>(&lines.next().unwrap().unwrap()).unwrap();
    let (first, second) = (next(), next());
    assert!(
        first["now"].as_u64() < second["now"].as_u64(),
        "{first} {second}"
    );
    drop(server);
    let mut errors = BufReader::new(watch.stderr.take().unwrap()).lines();
    assert!(errors.next().unwrap().unwrap().starts_with("grasp: "));
    let _again = Server::start(dir.path());
    while next()["started"] == first["started"] {}
    watch.kill().unwrap();
    watch.wait().unwrap();
}

#[test]
fn held_events_are_listed_with_their_next_attempt_expiry_and_clone_urls() {
    let dir = tempfile::tempdir().unwrap();
    let (data, other) = (dir.path().join("data"), dir.path().join("other"));
    let server = Server::start(&data);
    let work = dir.path().join("hello");
    std::fs::create_dir(&work).unwrap();
    for args in [
        &["init", "-q"][..],
        &["commit", "-q", "--allow-empty", "-m", "first"],
    ] {
        let who = [
            "-c",
            "user.name=alice",
            "-c",
            "user.email=alice@example.com",
        ];
        assert!(run_to_end(Command::new("git").args(who).args(args).current_dir(&work)).ok);
    }
    // The other server accepts the events and is then stopped, before the push to it.
    let gone = Server::start(&other);
    let hook = format!("#!/bin/sh\ncase $2 in *{}*) exit 1;; esac\n", gone.host());
    let file = work.join(".git/hooks/pre-push");
    std::fs::write(&file, hook).unwrap();
    assert!(
        Command::new("chmod")
            .arg("+x")
            .arg(&file)
            .status()
            .unwrap()
            .success()
    );
    let push = ["push", "--server", gone.host(), "--server", server.host()];
    let pushed = run_to_end(
        command()
            .args(push)
            .current_dir(&work)
            .env("HOME", dir.path()),
    );
    assert!(!pushed.ok, "{pushed:?}");
    let data = data.to_str().unwrap();
    let rows = grasp(&["purgatory", "--json", "--data-dir", data]).out;
    let rows: Value = serde_json::from_str(&rows).unwrap();
    let row = &rows[0];
    assert_eq!(
        (&row["identifier"], &row["waiting"]),
        (&"hello".into(), &1.into()),
        "{rows}"
    );
    assert!(
        row["expires_in"].as_u64() > Some(60) && row["next_in"].is_u64(),
        "{rows}"
    );
    assert!(
        row["git_servers"][0]
            .as_str()
            .unwrap()
            .contains(gone.host()),
        "{rows}"
    );
    let text = grasp(&["purgatory", "--data-dir", data]).out;
    assert!(
        text.contains("NEXT ATTEMPT") && (text.contains("in 29 min") || text.contains("in 30 min")),
        "{text}"
    );
    let status = grasp(&["status", "--data-dir", data]).out;
    assert!(status.contains("0 of 1, next attempt in "), "{status}");
    assert!(status.contains("expire within an hour"), "{status}");
}

#[cfg(unix)]
#[test]
fn private_files_are_readable_by_their_owner_only() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let _server = Server::start(dir.path());
    for file in ["admin.sock", "service.key"] {
        let mode = std::fs::metadata(dir.path().join(file))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o077, 0, "{file}: {mode:o}");
    }
}

#[test]
fn without_a_server_the_status_names_the_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let output = grasp(&["status", "--data-dir", dir.path().to_str().unwrap()]);
    assert!(
        !output.ok && output.err.contains("start one with `grasp serve`"),
        "{output:?}"
    );
    assert!(output.err.contains("there is no "), "{output:?}");
    // A killed server leaves its socket behind.
    drop(Server::start(dir.path()));
    let output = grasp(&["status", "--data-dir", dir.path().to_str().unwrap()]);
    assert!(
        !output.ok && output.err.contains("no process listens on "),
        "{output:?}"
    );
}

#[test]
fn a_data_directory_can_be_used_by_one_server_only() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().to_str().unwrap();
    let _first = Server::start(dir.path());
    let second = grasp(&["serve", "--listen", "127.0.0.1:0", "--data-dir", data]);
    assert!(
        !second.ok && second.err.contains("another server is running"),
        "{second:?}"
    );
    assert!(
        second.err.contains("choose another --data-dir"),
        "{second:?}"
    );
}

#[test]
fn a_file_is_refused_as_data_directory() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let args = [
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--data-dir",
        file.to_str().unwrap(),
    ];
    let output = grasp(&args);
    assert!(
        !output.ok && output.err.contains("it exists and is not a directory"),
        "{output:?}"
    );
}

#[test]
fn a_server_starts_after_another_was_killed_in_its_data_directory() {
    let dir = tempfile::tempdir().unwrap();
    drop(Server::start(dir.path()));
    assert!(dir.path().join("admin.sock").exists());
    let _next = Server::start(dir.path());
    assert!(grasp(&["status", "--data-dir", dir.path().to_str().unwrap()]).ok);
}

#[test]
fn health_status_and_metrics_are_served() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    assert_eq!(get(server.host(), "/health"), (200, "ok\n".into()));
    let (status, page) = get(server.host(), "/status");
    assert!(status == 200 && page.contains("This server is"), "{page}");
    let (_, json) = get(server.host(), "/status.json");
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap()["ready"], true);
    let (_, landing) = get(server.host(), "/");
    assert!(landing.contains("None yet."), "{landing}");
}

#[test]
fn the_metrics_are_exactly_the_documented_ones() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    let (_, text) = get(server.host(), "/metrics");
    let served = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let served: Vec<_> = served
        .map(|line| line.split(' ').next().unwrap().to_owned())
        .collect();
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/metrics.md");
    let docs = std::fs::read_to_string(docs).unwrap();
    let rows = docs
        .lines()
        .filter_map(|line| line.strip_prefix("| `grasp_"));
    let documented: Vec<_> = rows
        .map(|row| format!("grasp_{}", row.split('`').next().unwrap()))
        .collect();
    assert!(documented.len() > 30);
    assert_eq!(served, documented);
    for value in [
        "grasp_store_up 1\n",
        "grasp_purgatory_up 1\n",
        "grasp_sync_relays_tracked 0\n",
    ] {
        assert!(text.contains(value), "{value}{text}");
    }
}

#[test]
fn metrics_can_be_disabled() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("grasp.toml"), "metrics = false\n").unwrap();
    let server = Server::start(dir.path());
    assert_eq!(get(server.host(), "/metrics").0, 404);
}

#[test]
fn no_test_asks_the_relays_of_users_though_its_domain_is_public() {
    let output = grasp(&["config", "print", "--domain", "git.example.com"]);
    let mut lines = output.out.lines();
    assert!(
        lines.any(|line| line.contains("outbox = \"off\"")),
        "{output:?}"
    );
}

#[test]
fn settings_are_checked_and_printed_with_their_source() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("grasp.toml");
    std::fs::write(&file, "purgatory.hold_for = '20m'\n[relay]\nnonsense = 1\n").unwrap();
    let file = file.to_str().unwrap();
    let output = grasp(&["config", "check", "--config", file]);
    assert!(
        !output.ok && output.err.contains("grasp.toml:3: relay.nonsense"),
        "{output:?}"
    );
    std::fs::write(file, "purgatory.hold_for = '20m'\n").unwrap();
    assert!(grasp(&["config", "check", "--config", file]).ok);
    let output = grasp(&[
        "config",
        "print",
        "--config",
        file,
        "--listen",
        "127.0.0.1:1",
    ]);
    let lines: Vec<_> = output.out.lines().collect();
    assert!(
        lines
            .iter()
            .any(|line| line.contains("hold_for = \"20m\"") && line.contains("grasp.toml:1"))
    );
    assert!(
        lines
            .iter()
            .any(|line| line.contains("127.0.0.1:1") && line.ends_with("# --listen"))
    );
}
