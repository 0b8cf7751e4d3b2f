//! One history, told to two servers in different orders and in part to only one of them: both end equal.

use grasp_core::{RepoId, kinds};
use grasp_tests::{Author, Convergence, ServerClient, Workdir};
use nostr::event::Event;

use super::net::{MAIN, Net};
use super::threads::comment;

const DEV: &str = "refs/heads/dev";

/// The histories that are told, unless `GRASP_ORDER_SEED` names one.
const SEEDS: [u64; 4] = [1, 2, 3, 4];

/// Chance, the same for the same seed.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

/// One thing that somebody does.
#[derive(Clone, Debug)]
enum Deed {
    Send(Event),
    /// To the repository of one of the owners.
    Push(RepoId, Vec<String>),
}

/// Everything that happens to two repositories of one name, one owner's and the other maintainer's.
struct History {
    work: Workdir,
    deeds: Vec<Deed>,
    /// What is left of it in the end.
    stays: Vec<Event>,
    goes: Vec<Event>,
    refs: Vec<(RepoId, Vec<(String, String)>)>,
}

impl History {
    async fn on(net: &Net) -> Self {
        let (alice, bob) = (Author::new().earlier(200), Author::new().earlier(200));
        let (x, y) = (alice.repo("x"), bob.repo("y"));
        let work = Workdir::init().await;
        let one = work.commit("one").await;
        let two = work.commit("two").await;
        let three = work.commit("three").await;
        let tip = work.commit("a contribution").await;
        let taken_tip = work.commit("another, taken back").await;

        let announcements =
            [alice.announce_on("x", &net.services()), bob.announce_on("y", &net.services())];
        let newer = alice.later(9).announce_on("x", &net.services());
        let states = [
            alice.later(1).state("x", &[(MAIN, &one)]),
            alice.later(2).state("x", &[(MAIN, &two), (DEV, &one)]),
            alice.later(3).state("x", &[(MAIN, &three)]),
        ];
        let of_y = bob.later(1).state("y", &[(MAIN, &two)]);
        let proposal = bob.later(4).pull_request(&x, &tip);
        let taken = bob.later(4).pull_request(&x, &taken_tip);
        let issue = bob.later(5).issue(&x, "an issue");
        let said = comment(&alice.later(6), &issue, &issue, "a comment");
        let reply = comment(&bob.later(7), &issue, &said, "a reply");
        let wrong = alice.later(6).issue(&y, "in the wrong place");
        let liked = alice.later(8).sign(7, "+", &[&["e", &issue.id.to_hex()]]);
        let deletions = [
            bob.later(20).sign(5, "", &[&["e", &taken.id.to_hex()], &["k", "1618"]]),
            alice.later(21).sign(5, "", &[&["e", &wrong.id.to_hex()], &["k", "1621"]]),
        ];

        let mut deeds: Vec<Deed> = announcements.iter().cloned().map(Deed::Send).collect();
        deeds.extend(states.iter().cloned().map(Deed::Send));
        let more = [&newer, &of_y, &proposal, &taken, &issue, &said, &reply, &wrong, &liked];
        deeds.extend(more.map(|event| Deed::Send(event.clone())));
        deeds.extend(deletions.iter().cloned().map(Deed::Send));
        let push = |repo: &RepoId, specs: &[String]| Deed::Push(repo.clone(), specs.to_vec());
        deeds.push(push(&x, &[format!("+{one}:{MAIN}")]));
        deeds.push(push(&x, &[format!("+{two}:{MAIN}"), format!("+{one}:{DEV}")]));
        deeds.push(push(&x, &[format!("+{three}:{MAIN}")]));
        deeds.push(push(&y, &[format!("+{two}:{MAIN}")]));
        deeds.push(push(&x, &[format!("{tip}:refs/nostr/{}", proposal.id)]));
        deeds.push(push(&x, &[format!("{taken_tip}:refs/nostr/{}", taken.id)]));

        let [older, other] = announcements;
        let [first, second, third] = states;
        let refs_of_x =
            vec![(MAIN.to_owned(), three), (format!("refs/nostr/{}", proposal.id), tip)];
        Self {
            work,
            deeds,
            stays: vec![newer, other, third, of_y, proposal, issue, said, reply, liked],
            goes: vec![older, first, second, taken, wrong],
            refs: vec![(x, refs_of_x), (y, vec![(MAIN.to_owned(), two)])],
        }
    }

    /// Does one thing at one server; whether the server took it, or has nothing to do with it any more.
    async fn perform(&self, at: &ServerClient, deed: &Deed) -> bool {
        match deed {
            Deed::Send(event) => match at.publish(event).await.unwrap() {
                Ok(()) => true,
                Err(why) => self.goes.contains(event) && !why.starts_with("error"),
            },
            Deed::Push(repo, specs) => {
                let url = at.clone_url(repo);
                let mut specs = specs.clone();
                // A state is all branches: others than those that are pushed go with the same push.
                let listed = at.refs(repo).await.unwrap_or_default();
                let branches = listed.lines().filter_map(|line| line.split_once("\trefs/heads/"));
                let names = branches.map(|(_, name)| format!(":refs/heads/{name}"));
                let is_of_state = specs.iter().any(|spec| spec.contains(":refs/heads/"));
                let others: Vec<_> = names
                    .filter(|name| is_of_state && !specs.iter().any(|spec| spec.ends_with(name)))
                    .collect();
                specs.extend(others);
                let specs = specs.iter().map(String::as_str);
                let args: Vec<&str> = ["push", "-q", &url].into_iter().chain(specs).collect();
                self.work.git(&args).await.ok
            }
        }
    }

    /// Tells one server its part, in its order. What is refused is told again after everything else, a few times;
    /// what is left then is the answer.
    async fn tell(&self, at: &ServerClient, mut deeds: Vec<Deed>) -> Vec<Deed> {
        for _ in 0..3 {
            let mut refused = Vec::new();
            for deed in deeds {
                if !self.perform(at, &deed).await {
                    refused.push(deed);
                }
            }
            deeds = refused;
        }
        deeds
    }
}

/// Everything is told to one server at least, and some of it to both: so is what has its git data under its own name,
/// for an upload waits out of sight, where nobody but its own event finds it.
fn dealt(deeds: &[Deed], chance: &mut Chance) -> [Vec<Deed>; 2] {
    let mut parts = [Vec::new(), Vec::new()];
    for deed in deeds {
        let is_proposal = matches!(deed, Deed::Send(event) if event.kind == kinds::PULL_REQUEST);
        let who = if is_proposal { 2 } else { chance.below(3) };
        for (which, part) in parts.iter_mut().enumerate() {
            if who != which {
                part.push(deed.clone());
            }
        }
    }
    parts.iter_mut().for_each(|part| chance.shuffle(part));
    parts
}

async fn orders_make_no_difference(seed: u64) {
    println!("GRASP_ORDER_SEED={seed}");
    let net = Net::of(2).await;
    let history = History::on(&net).await;
    let [one, two] = dealt(&history.deeds, &mut Chance(seed));
    let (a, b) = (net.at(0), net.at(1));
    let (one, two) = tokio::join!(history.tell(&a, one), history.tell(&b, two));
    // Whoever is refused at one server tries the other: half of what is needed may be here, and half there.
    let (two, one) = tokio::join!(history.tell(&a, two), history.tell(&b, one));
    tokio::join!(history.tell(&a, one), history.tell(&b, two));
    let mut equal = Convergence::of(&[a, b])
        .ignoring_staged_uploads()
        .ignoring_old_deletions()
        .serving(&history.stays)
        .without(&history.goes);
    for (repo, refs) in &history.refs {
        let refs: Vec<(&str, &str)> =
            refs.iter().map(|(name, commit)| (name.as_str(), commit.as_str())).collect();
        equal = equal.with_refs(repo, &refs);
    }
    equal.wait().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_order_of_a_history_makes_no_difference() {
    let seeds = match std::env::var("GRASP_ORDER_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => SEEDS.to_vec(),
    };
    for seed in seeds {
        orders_make_no_difference(seed).await;
    }
}
