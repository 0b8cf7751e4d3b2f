//! `kill -9` at any step: nothing that was held, promised or served is lost or half applied.
//!
//! The server is a process of its own that kills itself: at every step of its journal, which is before and after each
//! write, and at readings of its clock. That is read in every turn of purgatory and in every step that follows from
//! one, so between any two of them lies a point to die at.

mod repair;
mod victim;

use std::collections::BTreeSet;

use grasp_tests::{Author, Leftovers, Workdir};
use nostr::event::Event;

use self::victim::{Death, Victim};

const MAIN: &str = "refs/heads/main";

/// At how many readings of the clock the server dies, unless `GRASP_CRASH_POINTS` says otherwise: `all` for every one.
const POINTS: u64 = 6;

/// One thing that somebody does.
enum Deed {
    Send(Event),
    Push(Vec<String>),
}

/// A repository's life: announced, signed, pushed, moved on, a pull request to it, and a state taken back.
struct Story {
    alice: Author,
    work: Workdir,
    commits: [String; 3],
    announcement: Event,
    first: Event,
    second: Event,
    request: Event,
    deletion: Event,
}

/// What can be seen of the server, apart from its litter.
#[derive(Debug)]
struct Sight {
    served: BTreeSet<&'static str>,
    held: BTreeSet<&'static str>,
    refs: BTreeSet<String>,
}

impl Story {
    async fn on(victim: &Victim) -> Self {
        let (alice, bob, work) = (Author::new(), Author::new(), Workdir::init().await);
        let mut commits = Vec::new();
        for text in ["one", "two", "three"] {
            commits.push(work.commit(text).await);
        }
        let commits: [String; 3] = commits.try_into().unwrap();
        let [one, two, three] = &commits;
        let second = alice.later(1).state("x", &[(MAIN, two), ("refs/heads/dev", two)]);
        let deletion = alice.later(2).sign(5, "", &[&["e", &second.id.to_hex()]]);
        Self {
            announcement: alice.announce("x", &victim.service()),
            first: alice.state("x", &[(MAIN, one)]),
            request: bob.pull_request(&alice.repo("x"), three),
            second,
            deletion,
            commits,
            alice,
            work,
        }
    }

    fn deeds(&self) -> Vec<Deed> {
        let [one, two, three] = &self.commits;
        let push = |specs: &[String]| Deed::Push(specs.to_vec());
        vec![
            Deed::Send(self.announcement.clone()),
            Deed::Send(self.first.clone()),
            push(&[format!("{one}:{MAIN}")]),
            Deed::Send(self.second.clone()),
            push(&[format!("{two}:{MAIN}"), format!("{two}:refs/heads/dev")]),
            push(&[format!("{three}:refs/nostr/{}", self.request.id)]),
            Deed::Send(self.request.clone()),
            Deed::Send(self.deletion.clone()),
        ]
    }

    /// Does one thing; whether the server has promised something by it.
    async fn perform(&self, victim: &mut Victim, deed: &Deed) -> bool {
        match deed {
            Deed::Send(event) => victim.send(event).is_some_and(|accepted| accepted),
            Deed::Push(specs) => {
                let url = victim.clone_url(&self.alice.repo("x"));
                let specs = specs.iter().map(String::as_str);
                let args: Vec<&str> =
                    ["push", "-q", "--force", &url].into_iter().chain(specs).collect();
                self.work.git(&args).await.ok
            }
        }
    }

    fn named(&self) -> [(&'static str, &Event); 4] {
        [
            ("announcement", &self.announcement),
            ("first", &self.first),
            ("second", &self.second),
            ("request", &self.request),
        ]
    }

    async fn look(&self, victim: &mut Victim) -> Sight {
        let mut sight =
            Sight { served: BTreeSet::new(), held: BTreeSet::new(), refs: BTreeSet::new() };
        for (name, event) in self.named() {
            let (served, held) = victim.ask(event);
            sight.served.extend(served.then_some(name));
            sight.held.extend(held.then_some(name));
        }
        let listed = self.work.git(&["ls-remote", &victim.clone_url(&self.alice.repo("x"))]).await;
        let refs = listed.out.lines().filter(|line| !line.ends_with("HEAD"));
        sight.refs = refs.map(|line| line.replace('\t', " ")).collect();
        sight
    }

    /// The refs that must be there for what is served.
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
    fn check_that_refs_are_those_of_the_served_state(&self, sight: &Sight, at: Death) {
        assert_eq!(sight.refs, self.refs_of(&sight.served), "I1 {at:?}: {sight:?}");
        let states = ["first", "second"].iter().filter(|name| sight.served.contains(*name)).count();
        assert!(states <= 1, "{at:?}: {sight:?}");
        assert_eq!(sight.served.contains("announcement"), states == 1, "{at:?}: {sight:?}");
    }

    /// I2: nothing held is served.
    fn check_that_nothing_held_is_served(&self, sight: &Sight, at: Death) {
        assert!(sight.served.is_disjoint(&sight.held), "I2 {at:?}: {sight:?}");
    }

    /// I3: what was acknowledged is there, unless its author changed their mind.
    fn check_that_promises_are_kept(&self, sight: &Sight, kept: usize, at: Death) {
        let here = |name| sight.served.contains(name) || sight.held.contains(name);
        let replaced = sight.served.contains("second");
        let promised = [
            (1, here("announcement")),
            (2, here("first") || replaced),
            (3, sight.served.contains("first") || replaced),
            (4, here("second") || sight.served.contains("first")),
            (5, replaced || (sight.served.contains("first") && !here("second"))),
            (7, here("request")),
            (8, sight.served.contains("first") && !here("second")),
        ];
        for (deeds, holds) in promised {
            assert!(kept < deeds || holds, "I3 {at:?}, {kept} deeds done: {sight:?}");
        }
    }
}

/// Lives through the story with a server that dies at one point, and looks at everything after its restart.
async fn live_through(at: Death) {
    let mut victim = Victim::new();
    let story = Story::on(&victim).await;
    let deeds = story.deeds();
    let mut kept = 0;
    if victim.start(at) {
        for deed in &deeds {
            if !story.perform(&mut victim, deed).await {
                break;
            }
            kept += 1;
        }
    }
    victim.kill();

    assert!(victim.start(Death::Never), "it starts after dying {at:?}");
    victim.run_maintenance();
    let sight = story.look(&mut victim).await;
    story.check_that_refs_are_those_of_the_served_state(&sight, at);
    story.check_that_nothing_held_is_served(&sight, at);
    story.check_that_promises_are_kept(&sight, kept, at);

    // What was left to do can be done, and ends as it always does.
    for (position, deed) in deeds.iter().enumerate().skip(kept) {
        let done = story.perform(&mut victim, deed).await;
        // If the last thing did happen, its state may have lost to a later one: of that only the end counts.
        assert!(done || position == kept, "deed {position} after dying {at:?}");
    }
    victim.run_maintenance();
    let sight = story.look(&mut victim).await;
    assert_eq!(sight.served, BTreeSet::from(["announcement", "first", "request"]), "after {at:?}");
    story.check_that_refs_are_those_of_the_served_state(&sight, at);
    let litter = grasp_tests::eventually(|| {
        Some(Leftovers::below(&victim.repositories()))
            .filter(|l| l.processes.is_empty() && l.staged == 0)
    });
    assert_eq!(litter.await, Leftovers::default(), "after {at:?}");
}

/// Tells the whole story to a server that lives, which says how many points to die at there are.
async fn points() -> (u64, u64) {
    let mut victim = Victim::new();
    let story = Story::on(&victim).await;
    assert!(victim.start(Death::Never));
    for deed in story.deeds() {
        assert!(story.perform(&mut victim, &deed).await);
    }
    victim.points()
}

#[tokio::test]
async fn nothing_held_promised_or_served_is_lost_to_kill_9_at_any_step_of_the_journal() {
    let (_, steps) = points().await;
    assert!(steps >= 2 * 8, "{steps}: each deed is written down, with a step before and one after");
    for step in 1..=steps {
        live_through(Death::AtStep(step)).await;
    }
}

#[tokio::test]
async fn nothing_held_promised_or_served_is_lost_to_kill_9_in_between() {
    let (readings, _) = points().await;
    let points = match std::env::var("GRASP_CRASH_POINTS").ok().as_deref() {
        Some("all") => readings,
        Some(number) => number.parse().unwrap(),
        None => POINTS,
    };
    for point in 0..points {
        live_through(Death::AtReading(1 + point * readings / points)).await;
    }
}
