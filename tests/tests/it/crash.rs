//! `kill -9` at any step: no held, acknowledged or served event is lost or half applied.
//!
//! The server is a process of its own that kills itself: at every step of its journal, which is before and after each
//! write, and at readings of its clock. Purgatory reads the clock for every input and every step that follows from one, so
//! there is a crash point between any two of them.

mod crashing_server;
mod moderation;
mod peers;
mod repair;

use std::collections::BTreeSet;

use grasp_tests::{Author, Leftovers, Workdir};
use nostr::event::Event;

use self::crashing_server::{CrashPoint, CrashingServer};

const MAIN: &str = "refs/heads/main";

/// Number of clock readings at which the server crashes, unless `GRASP_CRASH_POINTS` is set; `all` means every one.
const CRASH_POINTS: u64 = 6;

/// One operation of a client.
enum Operation {
    Publish(Event),
    Push(Vec<String>),
}

/// The operations on one repository: announcement, state, pushes, a pull request, and the deletion of a state.
struct Workload {
    alice: Author,
    work: Workdir,
    commits: [String; 3],
    announcement: Event,
    first: Event,
    second: Event,
    request: Event,
    deletion: Event,
}

/// The events and refs that the server has.
#[derive(Debug)]
struct Observed {
    served: BTreeSet<&'static str>,
    held: BTreeSet<&'static str>,
    refs: BTreeSet<String>,
}

impl Workload {
    async fn on(server: &CrashingServer) -> Self {
        let (alice, bob, work) = (Author::new(), Author::new(), Workdir::init().await);
        let mut commits = Vec::new();
        for text in ["one", "two", "three"] {
            commits.push(work.commit(text).await);
        }
        let commits: [String; 3] = commits.try_into().unwrap();
        let [one, two, three] = &commits;
        let second = alice
            .later(1)
            .state("x", &[(MAIN, two), ("refs/heads/dev", two)]);
        let deletion = alice.later(2).sign(5, "", &[&["e", &second.id.to_hex()]]);
        Self {
            announcement: alice.announce("x", &server.service()),
            first: alice.state("x", &[(MAIN, one)]),
            request: bob.pull_request(&alice.repo("x"), three),
            second,
            deletion,
            commits,
            alice,
            work,
        }
    }

    fn operations(&self) -> Vec<Operation> {
        let [one, two, three] = &self.commits;
        let push = |specs: &[String]| Operation::Push(specs.to_vec());
        vec![
            Operation::Publish(self.announcement.clone()),
            Operation::Publish(self.first.clone()),
            push(&[format!("{one}:{MAIN}")]),
            Operation::Publish(self.second.clone()),
            push(&[format!("{two}:{MAIN}"), format!("{two}:refs/heads/dev")]),
            push(&[format!("{three}:refs/nostr/{}", self.request.id)]),
            Operation::Publish(self.request.clone()),
            Operation::Publish(self.deletion.clone()),
        ]
    }

    /// Executes an operation, and returns whether the server acknowledged it.
    async fn perform(&self, server: &mut CrashingServer, operation: &Operation) -> bool {
        match operation {
            Operation::Publish(event) => server.publish(event).is_some_and(|accepted| accepted),
            Operation::Push(specs) => {
                let url = server.clone_url(&self.alice.repo("x"));
                let specs = specs.iter().map(String::as_str);
                let args: Vec<&str> = ["push", "-q", "--force", &url]
                    .into_iter()
                    .chain(specs)
                    .collect();
                self.work.git(&args).await.ok
            }
        }
    }

    fn events(&self) -> [(&'static str, &Event); 4] {
        [
            ("announcement", &self.announcement),
            ("first", &self.first),
            ("second", &self.second),
            ("request", &self.request),
        ]
    }

    async fn observe(&self, server: &mut CrashingServer) -> Observed {
        let mut observed = Observed {
            served: BTreeSet::new(),
            held: BTreeSet::new(),
            refs: BTreeSet::new(),
        };
        for (name, event) in self.events() {
            let (served, held) = server.status(event);
            observed.served.extend(served.then_some(name));
            observed.held.extend(held.then_some(name));
        }
        let listed = self
            .work
            .git(&["ls-remote", &server.clone_url(&self.alice.repo("x"))])
            .await;
        let refs = listed.out.lines().filter(|line| !line.ends_with("HEAD"));
        observed.refs = refs.map(|line| line.replace('\t', " ")).collect();
        observed
    }

    /// Returns the refs that belong to the served events.
    fn refs_of(&self, served: &BTreeSet<&str>) -> BTreeSet<String> {
        let [one, two, three] = &self.commits;
        let mut refs = BTreeSet::new();
        if served.contains("first") {
            refs.insert(format!("{one} {MAIN}"));
        }
        if served.contains("second") {
            refs.extend([format!("{two} {MAIN}"), format!("{two} refs/heads/dev")]);
        }
        if served.contains("request") {
            refs.insert(format!("{three} refs/nostr/{}", self.request.id));
        }
        refs
    }

    /// I1: a served state is exactly the refs served.
    fn assert_refs_match_served_state(&self, observed: &Observed, at: CrashPoint) {
        assert_eq!(
            observed.refs,
            self.refs_of(&observed.served),
            "I1 {at:?}: {observed:?}"
        );
        let states = ["first", "second"]
            .iter()
            .filter(|name| observed.served.contains(*name))
            .count();
        assert!(states <= 1, "{at:?}: {observed:?}");
        assert_eq!(
            observed.served.contains("announcement"),
            states == 1,
            "{at:?}: {observed:?}"
        );
    }

    /// I2: nothing held is served.
    fn assert_nothing_held_is_served(&self, observed: &Observed, at: CrashPoint) {
        assert!(
            observed.served.is_disjoint(&observed.held),
            "I2 {at:?}: {observed:?}"
        );
    }

    /// I3: acknowledged events are served or held, unless their author deleted or replaced them.
    fn assert_acknowledged_is_kept(
        &self,
        observed: &Observed,
        acknowledged: usize,
        at: CrashPoint,
    ) {
        let here = |name| observed.served.contains(name) || observed.held.contains(name);
        let replaced = observed.served.contains("second");
        let expected = [
            (1, here("announcement")),
            (2, here("first") || replaced),
            (3, observed.served.contains("first") || replaced),
            (4, here("second") || observed.served.contains("first")),
            (
                5,
                replaced || (observed.served.contains("first") && !here("second")),
            ),
            (7, here("request")),
            (8, observed.served.contains("first") && !here("second")),
        ];
        for (operations, holds) in expected {
            assert!(
                acknowledged < operations || holds,
                "I3 {at:?}, {acknowledged} operations acknowledged: {observed:?}"
            );
        }
    }
}

/// Executes the workload on a server that crashes at one point, and checks everything after its restart.
async fn crash_and_check(at: CrashPoint) {
    let mut server = CrashingServer::new();
    let workload = Workload::on(&server).await;
    let operations = workload.operations();
    let mut acknowledged = 0;
    if server.start(at) {
        for operation in &operations {
            if !workload.perform(&mut server, operation).await {
                break;
            }
            acknowledged += 1;
        }
    }
    server.kill();

    assert!(
        server.start(CrashPoint::Never),
        "the server starts after a crash {at:?}"
    );
    server.run_maintenance();
    let observed = workload.observe(&mut server).await;
    workload.assert_refs_match_served_state(&observed, at);
    workload.assert_nothing_held_is_served(&observed, at);
    workload.assert_acknowledged_is_kept(&observed, acknowledged, at);

    // The remaining operations succeed, and the result is that of a run without a crash.
    for (position, operation) in operations.iter().enumerate().skip(acknowledged) {
        let done = workload.perform(&mut server, operation).await;
        // If the operation took effect before the crash, its state may have lost to a later one: only the end counts.
        assert!(
            done || position == acknowledged,
            "operation {position} after a crash {at:?}"
        );
    }
    server.run_maintenance();
    let observed = workload.observe(&mut server).await;
    assert_eq!(
        observed.served,
        BTreeSet::from(["announcement", "first", "request"]),
        "after {at:?}"
    );
    workload.assert_refs_match_served_state(&observed, at);
    let leftovers = grasp_tests::eventually(|| {
        Some(Leftovers::below(&server.repositories()))
            .filter(|l| l.processes.is_empty() && l.staged == 0)
    });
    assert_eq!(leftovers.await, Leftovers::default(), "after {at:?}");
}

/// Executes the workload without a crash, and returns the numbers of clock readings and journal steps.
async fn crash_points() -> (u64, u64) {
    let mut server = CrashingServer::new();
    let workload = Workload::on(&server).await;
    assert!(server.start(CrashPoint::Never));
    for operation in workload.operations() {
        assert!(workload.perform(&mut server, &operation).await);
    }
    server.crash_points()
}

#[tokio::test]
async fn held_acknowledged_and_served_events_survive_a_kill_at_every_journal_step() {
    let (_, steps) = crash_points().await;
    assert!(
        steps >= 2 * 8,
        "{steps}: each operation is written, with a step before and one after"
    );
    for step in 1..=steps {
        crash_and_check(CrashPoint::AtStep(step)).await;
    }
}

#[tokio::test]
async fn held_acknowledged_and_served_events_survive_a_kill_at_clock_readings() {
    let (readings, _) = crash_points().await;
    let points = match std::env::var("GRASP_CRASH_POINTS").ok().as_deref() {
        Some("all") => readings,
        Some(number) => number.parse().unwrap(),
        None => CRASH_POINTS,
    };
    for point in 0..points {
        crash_and_check(CrashPoint::AtReading(1 + point * readings / points)).await;
    }
}
