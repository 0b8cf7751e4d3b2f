//! `grasp sidecar` beside a relay that does not sync by itself.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{CommandOutput, Server, command, get, grasp, run_to_end};

/// Time within which a command must report what is waited for.
const STATUS_TIMEOUT: Duration = Duration::from_secs(60);

struct Sidecar {
    child: Child,
    status_host: String,
}

impl Sidecar {
    fn start(relay: &str, from: &str, data: &Path) -> Self {
        let args = [
            "sidecar",
            "--relay",
            relay,
            "--bootstrap",
            from,
            "--data-dir",
        ];
        // The relay archives repositories that do not list it.
        let listen = [
            "--sidecar-listen",
            "127.0.0.1:0",
            "--sidecar-follow-unlisted",
        ];
        let mut child = command()
            .args(args)
            .arg(data)
            .args(listen)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let watched = lines.map_while(Result::ok).find_map(|line| {
            let at = line
                .split_whitespace()
                .find_map(|word| word.strip_prefix("http://"))?;
            at.strip_suffix("/status").map(str::to_owned)
        });
        Self {
            child,
            status_host: watched.expect("the sidecar prints the URL of its status"),
        }
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Pushes a repository to a server.
fn push(server: &Server, home: &Path) {
    let work = home.join("hello");
    std::fs::create_dir_all(&work).unwrap();
    for args in [
        &["init", "-q", "-b", "main"][..],
        &["commit", "-q", "--allow-empty", "-m", "first"],
    ] {
        let who = [
            "-c",
            "user.name=alice",
            "-c",
            "user.email=alice@example.com",
        ];
        let mut git = Command::new("git");
        assert!(
            run_to_end(
                git.args(who)
                    .args(args)
                    .current_dir(&work)
                    .env("HOME", home)
            )
            .ok
        );
    }
    let push = ["push", "--server", server.host()];
    let pushed = run_to_end(command().args(push).current_dir(&work).env("HOME", home));
    assert!(pushed.ok, "{pushed:?}");
}

/// Repeats a command until its output meets a condition.
fn until(args: &[&str], condition: impl Fn(&CommandOutput) -> bool) -> CommandOutput {
    let began = Instant::now();
    loop {
        let answer = grasp(args);
        if condition(&answer) {
            return answer;
        }
        assert!(began.elapsed() < STATUS_TIMEOUT, "{args:?}: {answer:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_relay_without_sync_becomes_complete() {
    let dir = tempfile::tempdir().unwrap();
    let other = Server::start(&dir.path().join("other"));
    push(&other, dir.path());
    // The relay stores every event, and does not sync by itself.
    let settings =
        "allow_private_targets = true\nsync.enabled = false\narchive.everything = true\n";
    let data = dir.path().join("relay");
    std::fs::create_dir(&data).unwrap();
    std::fs::write(data.join("grasp.toml"), settings).unwrap();
    let relay = Server::start(&data);
    let beside = dir.path().join("sidecar");
    let mut sidecar = Sidecar::start(&relay.url, &other.url, &beside);
    let beside = beside.to_str().unwrap();

    let status = ["status", "--json", "--data-dir", beside];
    let json = until(&status, |output| output.out.contains("\"connected\"")).out;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&json["beside"], &json["ready"]),
        (&relay.url.as_str().into(), &true.into())
    );
    // Announcement and state: held until their git data is here, or served by now.
    let has_some = |output: &CommandOutput| {
        let json: Value = serde_json::from_str(&output.out).unwrap();
        let held = |figure: &str| json["purgatory"][figure].as_u64().unwrap();
        held("announcements") + held("states") + json["events"].as_u64().unwrap() >= 2
    };
    until(
        &["status", "--json", "--data-dir", data.to_str().unwrap()],
        has_some,
    );

    let text = grasp(&["status", "--data-dir", beside]).out;
    assert!(text.starts_with("sidecar of ws://"), "{text}");
    assert!(
        !grasp(&["repos", "--data-dir", beside]).ok,
        "a sidecar hosts nothing"
    );
    assert_eq!(get(&sidecar.status_host, "/health").0, 200);
    let (_, metrics) = get(&sidecar.status_host, "/metrics");
    assert!(
        metrics.contains("grasp_sync_relays_connected 1"),
        "{metrics}"
    );
    let (_, seen) = get(&sidecar.status_host, "/status.json");
    assert_eq!(
        serde_json::from_str::<Value>(&seen).unwrap()["beside"],
        relay.url.as_str()
    );
    drop(relay);
    assert_eq!(get(&sidecar.status_host, "/health").0, 503);
    until(&["status", "--data-dir", beside], |output| {
        output.out.contains("DOES NOT ANSWER")
    });
    let pid = sidecar.child.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-TERM", &pid])
            .status()
            .unwrap()
            .success()
    );
    assert!(sidecar.child.wait().unwrap().success());
    assert!(
        dir.path()
            .join("sidecar/relays.jsonl")
            .metadata()
            .unwrap()
            .len()
            > 0
    );
}

#[test]
fn a_sidecar_runs_once_for_cron() {
    let dir = tempfile::tempdir().unwrap();
    let other = Server::start(&dir.path().join("other"));
    push(&other, dir.path());
    let settings =
        "allow_private_targets = true\nsync.enabled = false\narchive.everything = true\n";
    let data = dir.path().join("relay");
    std::fs::create_dir(&data).unwrap();
    std::fs::write(data.join("grasp.toml"), settings).unwrap();
    let relay = Server::start(&data);
    let beside = dir.path().join("sidecar");
    let beside = beside.to_str().unwrap();
    let once = |relay: &str, from: &str| {
        let relays = ["sidecar", "--once", "--relay", relay, "--bootstrap", from];
        let rest = [
            "--sidecar-follow-unlisted",
            "--timeout",
            "20s",
            "--data-dir",
            beside,
        ];
        run_to_end(command().args(relays).args(rest))
    };
    let complete = once(&relay.url, &other.url);
    assert_eq!(complete.code, Some(0), "{complete:?}");
    assert!(
        complete.out.contains("1 of 1 relay complete"),
        "{complete:?}"
    );
    // Nothing listens at port 1.
    let no_other = once(&relay.url, "ws://127.0.0.1:1");
    assert_eq!(no_other.code, Some(2), "{no_other:?}");
    let no_relay = once("ws://127.0.0.1:1", &other.url);
    assert_eq!(no_relay.code, Some(1), "{no_relay:?}");
    assert!(
        no_relay.err.contains("is the relay running?"),
        "{no_relay:?}"
    );
}

#[test]
fn a_sidecar_without_a_relay_names_the_option() {
    let dir = tempfile::tempdir().unwrap();
    let output = grasp(&["sidecar", "--data-dir", dir.path().to_str().unwrap()]);
    assert!(
        !output.ok && output.err.contains("--relay ws://"),
        "{output:?}"
    );
}
