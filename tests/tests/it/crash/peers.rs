//! Two maintainers, each with a repository: after a kill at any step of a push to one, both show the same.

use std::collections::BTreeSet;

use grasp_tests::{Author, Workdir};
use nostr::event::Event;

use super::MAIN;
use super::crashing_server::{CrashPoint, CrashingServer};

struct Fixture {
    server: CrashingServer,
    alice: Author,
    bob: Author,
    work: Workdir,
    events: Vec<Event>,
    commits: [String; 2],
}

impl Fixture {
    async fn new() -> Self {
        let server = CrashingServer::new();
        let alice = Author::new();
        let bob = Author::new();
        let work = Workdir::init().await;
        let commits = [work.commit("one").await, work.commit("two").await];
        let on = server.service();
        let alice_key = alice.key().to_hex();
        let bob_key = bob.key().to_hex();
        let events = vec![
            alice.announce_with("x", &on, &[&["maintainers", &bob_key]]),
            bob.announce_with("x", &on, &[&["maintainers", &alice_key]]),
            alice.state("x", &[(MAIN, &commits[0])]),
            bob.later(1).state("x", &[(MAIN, &commits[1])]),
        ];
        Self {
            server,
            alice,
            bob,
            work,
            events,
            commits,
        }
    }

    async fn push(&self, to: &Author, commit: &str) -> bool {
        let url = self.server.clone_url(&to.repo("x"));
        self.work
            .git(&["push", "-q", "--force", &url, &format!("{commit}:{MAIN}")])
            .await
            .ok
    }

    /// Publishes everything and pushes both states, the second one to the repository of the other maintainer. Ends when
    /// something fails.
    async fn perform(&mut self) -> Option<()> {
        for event in &self.events.clone()[..3] {
            self.server.publish(event)?;
        }
        self.push(&self.alice, &self.commits[0])
            .await
            .then_some(())?;
        self.server.publish(&self.events[3].clone())?;
        self.push(&self.alice, &self.commits[1]).await.then_some(())
    }

    async fn refs(&self, owner: &Author) -> BTreeSet<String> {
        let url = self.server.clone_url(&owner.repo("x"));
        let listed = self.work.git(&["ls-remote", &url, MAIN]).await.out;
        listed.lines().map(|line| line.replace('\t', " ")).collect()
    }
}

async fn crash_and_check(at: CrashPoint) {
    let mut fixture = Fixture::new().await;
    if fixture.server.start(at) {
        fixture.perform().await;
    }
    fixture.server.kill();
    assert!(
        fixture.server.start(CrashPoint::Never),
        "the server starts after a crash {at:?}"
    );
    fixture.server.run_maintenance();
    let at_alice = fixture.refs(&fixture.alice).await;
    assert_eq!(at_alice, fixture.refs(&fixture.bob).await, "after {at:?}");

    // What is left is done, and both end with the last state. A push of what is served already has nothing to do.
    for event in fixture.events.clone() {
        fixture.server.publish(&event).unwrap();
    }
    fixture.push(&fixture.bob, &fixture.commits[1]).await;
    fixture.server.run_maintenance();
    let expected = BTreeSet::from([format!("{} {MAIN}", fixture.commits[1])]);
    for owner in [&fixture.alice, &fixture.bob] {
        assert_eq!(fixture.refs(owner).await, expected, "after {at:?}");
    }
}

#[tokio::test]
async fn repositories_of_two_maintainers_agree_after_a_kill_at_every_journal_step() {
    let mut fixture = Fixture::new().await;
    assert!(fixture.server.start(CrashPoint::Never));
    fixture.perform().await.unwrap();
    let (_, steps) = fixture.server.crash_points();
    fixture.server.kill();
    assert!(
        steps >= 12,
        "{steps}: each event, push and follower is written"
    );
    for step in 1..=steps {
        crash_and_check(CrashPoint::AtStep(step)).await;
    }
}
