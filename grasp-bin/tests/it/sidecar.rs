//! `grasp sidecar` beside a relay that knows nothing of it: another process, with its own rules.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{Said, Server, command, get, grasp, said};

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(60);

struct Sidecar {
    child: Child,
    watched: String,
}

impl Sidecar {
    fn start(relay: &str, from: &str, data: &Path) -> Self {
        let args = ["sidecar", "--relay", relay, "--bootstrap", from, "--data-dir"];
        // The relay archives what does not list it.
        let listen = ["--sidecar-listen", "127.0.0.1:0", "--sidecar-follow-unlisted"];
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
            let at = line.split_whitespace().find_map(|word| word.strip_prefix("http://"))?;
            at.strip_suffix("/status").map(str::to_owned)
        });
        Self { child, watched: watched.expect("it says where it can be watched") }
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A repository that is hosted at a server.
fn push(server: &Server, home: &Path) {
    let work = home.join("hello");
    std::fs::create_dir_all(&work).unwrap();
    for args in
        [&["init", "-q", "-b", "main"][..], &["commit", "-q", "--allow-empty", "-m", "first"]]
    {
        let who = ["-c", "user.name=alice", "-c", "user.email=alice@example.com"];
        let mut git = Command::new("git");
        assert!(said(git.args(who).args(args).current_dir(&work).env("HOME", home)).ok);
    }
    let push = ["push", "--server", server.host()];
    let pushed = said(command().args(push).current_dir(&work).env("HOME", home));
    assert!(pushed.ok, "{pushed:?}");
}

/// Asks until the answer is the one that is waited for.
fn until(args: &[&str], what: impl Fn(&Said) -> bool) -> Said {
    let began = Instant::now();
    loop {
        let answer = grasp(args);
        if what(&answer) {
            return answer;
        }
        assert!(began.elapsed() < PATIENCE, "{args:?}: {answer:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_relay_that_knows_nothing_of_sync_becomes_complete() {
    let dir = tempfile::tempdir().unwrap();
    let other = Server::start(&dir.path().join("other"));
    push(&other, dir.path());
    // It keeps whatever it is brought, and goes nowhere by itself for events.
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
    let json = until(&status, |said| said.out.contains("\"connected\"")).out;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["beside"], &json["ready"]), (&relay.url.as_str().into(), &true.into()));
    // Announcement and state: waiting for git data there, or served by now.
    let has_some = |said: &Said| {
        let json: Value = serde_json::from_str(&said.out).unwrap();
        let held = |figure: &str| json["purgatory"][figure].as_u64().unwrap();
        held("announcements") + held("states") + json["events"].as_u64().unwrap() >= 2
    };
    until(&["status", "--json", "--data-dir", data.to_str().unwrap()], has_some);

    let text = grasp(&["status", "--data-dir", beside]).out;
    assert!(text.starts_with("sidecar of ws://"), "{text}");
    assert!(!grasp(&["repos", "--data-dir", beside]).ok, "a sidecar hosts nothing");
    assert_eq!(get(&sidecar.watched, "/health").0, 200);
    let (_, metrics) = get(&sidecar.watched, "/metrics");
    assert!(metrics.contains("grasp_sync_relays_connected 1"), "{metrics}");
    let (_, seen) = get(&sidecar.watched, "/status.json");
    assert_eq!(serde_json::from_str::<Value>(&seen).unwrap()["beside"], relay.url.as_str());
    drop(relay);
    assert_eq!(get(&sidecar.watched, "/health").0, 503);
    until(&["status", "--data-dir", beside], |said| said.out.contains("DOES NOT ANSWER"));
    let pid = sidecar.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert!(sidecar.child.wait().unwrap().success());
    assert!(dir.path().join("sidecar/relays.jsonl").metadata().unwrap().len() > 0);
}

#[test]
fn a_sidecar_without_a_relay_says_how_to_name_one() {
    let dir = tempfile::tempdir().unwrap();
    let said = grasp(&["sidecar", "--data-dir", dir.path().to_str().unwrap()]);
    assert!(!said.ok && said.err.contains("--relay ws://"), "{said:?}");
}
