//! `kill -9` in the middle of a ban, a hold, a deletion and their ends: afterwards all of it holds, and its end brings all back.

use std::time::{Duration, Instant};

use grasp_core::RepoId;
use grasp_tests::{Author, Workdir};
use nostr::event::Event;

use super::MAIN;
use super::crashing_server::{CrashPoint, CrashingServer};

/// Crashes of each operation, at readings of the clock: there is one before every step.
const CRASHES: u64 = 4;

/// Time within which stored events follow a decision.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Something that takes a repository out of service, and its end.
#[derive(Clone, Copy, Debug)]
enum Operation {
    Ban,
    Hold,
    Deletion,
}

/// A repository with a thread and a pull request.
struct Fixture {
    server: CrashingServer,
    alice: Author,
    repo: RepoId,
    work: Workdir,
    /// Events that are served as long as the repository is.
    threads: Vec<Event>,
    refs: String,
    /// The number of deletions and announcements so far.
    versions: u64,
}

impl Fixture {
    async fn new() -> Self {
        let mut server = CrashingServer::new();
        assert!(server.start(CrashPoint::Never));
        let (alice, bob, work) = (Author::new(), Author::new(), Workdir::init().await);
        let repo = alice.repo("x");
        let commit = work.commit("first").await;
        let proposed = work.commit("proposed").await;
        let state = alice.state("x", &[(MAIN, &commit)]);
        for event in [&alice.announce("x", &server.service()), &state] {
            assert_eq!(server.publish(event), Some(true));
        }
        let url = server.clone_url(&repo);
        let main = format!("{commit}:{MAIN}");
        work.git(&["push", "-q", &url, &main]).await.expect_ok();
        let issue = bob.issue(&repo, "an issue");
        let root = issue.id.to_hex();
        let comment = bob.sign(1_111, "a comment", &[&["E", &root], &["e", &root]]);
        let request = bob.pull_request(&repo, &proposed);
        for event in [&issue, &comment, &request] {
            assert_eq!(server.publish(event), Some(true));
        }
        let proposal = format!("{proposed}:refs/nostr/{}", request.id);
        work.git(&["push", "-q", &url, &proposal]).await.expect_ok();
        let mut fixture = Self {
            server,
            alice,
            repo,
            work,
            threads: vec![state, issue, comment, request],
            refs: String::new(),
            versions: 0,
        };
        fixture.refs = fixture.listed().await;
        assert!(fixture.refs.contains("refs/nostr/"), "{}", fixture.refs);
        fixture
    }

    /// Returns the refs as git lists them; nothing of a repository that is not served.
    async fn listed(&self) -> String {
        let url = self.server.clone_url(&self.repo);
        self.work.git(&["ls-remote", &url]).await.out
    }

    /// Begins or ends an operation, and returns whether the server acknowledged it.
    fn perform(&mut self, operation: Operation, is_begin: bool) -> bool {
        let line = match (operation, is_begin) {
            (Operation::Ban, true) => format!("ban {}", self.alice.key()),
            (Operation::Ban, false) => format!("unban {}", self.alice.key()),
            (Operation::Hold, true) => format!("hold {}", self.repo),
            (Operation::Hold, false) => format!("restore {}", self.repo),
            (Operation::Deletion, true) => {
                let coordinate = self.repo.to_string();
                let author = self.alice.later(2 * self.versions);
                author.sign(5, "", &[&["a", &coordinate]]).as_json()
            }
            (Operation::Deletion, false) => {
                let author = self.alice.later(2 * self.versions + 1);
                author.announce("x", &self.server.service()).as_json()
            }
        };
        self.server
            .ask(&line)
            .is_some_and(|answer| answer == "true")
    }

    /// Waits until all events are served or none is; returns whether the server still runs.
    fn until_served(&mut self, wanted: bool) -> bool {
        let start = Instant::now();
        while start.elapsed() < TIMEOUT {
            let mut is_done = true;
            for event in &self.threads {
                let Some(answer) = self.server.ask(&event.id.to_hex()) else {
                    return false;
                };
                is_done &= answer.starts_with(&wanted.to_string());
            }
            if is_done {
                return true;
            }
        }
        panic!("the events are not all {wanted} in time");
    }

    /// Crashes the server while it begins or ends an operation, and has the next one go on with it.
    async fn crash_and_continue(&mut self, operation: Operation, is_begin: bool, at: u64) {
        self.versions += 1;
        let is_started = self.server.start(CrashPoint::AtReading(at));
        let is_acknowledged = is_started && self.perform(operation, is_begin);
        if is_acknowledged {
            self.until_served(!is_begin);
        }
        self.server.kill();
        assert!(
            self.server.start(CrashPoint::Never),
            "{operation:?} at {at}"
        );
        if !is_acknowledged {
            assert!(self.perform(operation, is_begin), "{operation:?} at {at}");
        }
        assert!(self.until_served(!is_begin), "{operation:?} at {at}");
        let expected = if is_begin { "" } else { &self.refs };
        let start = Instant::now();
        while self.listed().await != expected {
            assert!(
                start.elapsed() < TIMEOUT,
                "{operation:?} at {at}: {}",
                self.listed().await
            );
        }
        self.server.kill();
    }
}

async fn survives_kills(operation: Operation) {
    let mut fixture = Fixture::new().await;
    // How often the clock is read until all is done.
    fixture.versions += 1;
    let (first, _) = fixture.server.crash_points();
    assert!(fixture.perform(operation, true) && fixture.until_served(false));
    let (last, _) = fixture.server.crash_points();
    assert!(fixture.perform(operation, false) && fixture.until_served(true));
    fixture.server.kill();
    assert!(fixture.server.start(CrashPoint::Never));
    let (start, _) = fixture.server.crash_points();
    fixture.server.kill();
    let readings = (last - first).max(CRASHES);
    for crash in 0..CRASHES {
        let at = start + 1 + readings * crash / CRASHES;
        fixture.crash_and_continue(operation, true, at).await;
        fixture.crash_and_continue(operation, false, at).await;
    }
}

#[tokio::test]
async fn a_ban_survives_a_kill_at_any_step() {
    survives_kills(Operation::Ban).await;
}

#[tokio::test]
async fn a_held_repository_survives_a_kill_at_any_step() {
    survives_kills(Operation::Hold).await;
}

#[tokio::test]
async fn a_deleted_repository_survives_a_kill_at_any_step() {
    survives_kills(Operation::Deletion).await;
}
