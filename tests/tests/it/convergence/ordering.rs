//! One history, published to two servers in different orders and in part to only one of them: both converge.

use grasp_core::{RepoId, kinds};
use grasp_tests::{Author, Convergence, ServerClient, Workdir};
use nostr::event::Event;

use super::network::{MAIN, Network};
use super::threads::comment;

const DEV: &str = "refs/heads/dev";

/// Seeds of the histories, unless `GRASP_ORDER_SEED` is set.
const SEEDS: [u64; 4] = [1, 2, 3, 4];

/// A deterministic random generator.
struct Random(u64);

impl Random {
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

/// One operation of a client.
#[derive(Clone, Debug)]
enum Operation {
    Publish(Event),
    /// Pushes refspecs to the repository of one of the owners.
    Push(RepoId, Vec<String>),
}

/// Operations on two repositories of two owners.
struct History {
    work: Workdir,
    operations: Vec<Operation>,
    /// Events that are served in the end.
    served: Vec<Event>,
    /// Events that are deleted or replaced in the end.
    gone: Vec<Event>,
    refs: Vec<(RepoId, Vec<(String, String)>)>,
}

impl History {
    async fn on(network: &Network) -> Self {
        let (alice, bob) = (Author::new().earlier(200), Author::new().earlier(200));
        let (x, y) = (alice.repo("x"), bob.repo("y"));
        let work = Workdir::init().await;
        let one = work.commit("one").await;
        let two = work.commit("two").await;
        let three = work.commit("three").await;
        let tip = work.commit("a contribution").await;
        let deleted_tip = work.commit("a deleted contribution").await;

        let announcements = [
            alice.announce_on("x", &network.services()),
            bob.announce_on("y", &network.services()),
        ];
        let newer = alice.later(9).announce_on("x", &network.services());
        let states = [
            alice.later(1).state("x", &[(MAIN, &one)]),
            alice.later(2).state("x", &[(MAIN, &two), (DEV, &one)]),
            alice.later(3).state("x", &[(MAIN, &three)]),
        ];
        let of_y = bob.later(1).state("y", &[(MAIN, &two)]);
        let proposal = bob.later(4).pull_request(&x, &tip);
        let deleted = bob.later(4).pull_request(&x, &deleted_tip);
        let issue = bob.later(5).issue(&x, "an issue");
        let parent = comment(&alice.later(6), &issue, &issue, "a comment");
        let reply = comment(&bob.later(7), &issue, &parent, "a reply");
        let wrong = alice.later(6).issue(&y, "a deleted issue");
        let like = alice.later(8).sign(7, "+", &[&["e", &issue.id.to_hex()]]);
        let deletions = [
            bob.later(20)
                .sign(5, "", &[&["e", &deleted.id.to_hex()], &["k", "1618"]]),
            alice
                .later(21)
                .sign(5, "", &[&["e", &wrong.id.to_hex()], &["k", "1621"]]),
        ];

        let mut operations: Vec<Operation> = announcements
            .iter()
            .cloned()
            .map(Operation::Publish)
            .collect();
        operations.extend(states.iter().cloned().map(Operation::Publish));
        let more = [
            &newer, &of_y, &proposal, &deleted, &issue, &parent, &reply, &wrong, &like,
        ];
        operations.extend(more.map(|event| Operation::Publish(event.clone())));
        operations.extend(deletions.iter().cloned().map(Operation::Publish));
        let push = |repo: &RepoId, specs: &[String]| Operation::Push(repo.clone(), specs.to_vec());
        operations.push(push(&x, &[format!("+{one}:{MAIN}")]));
        operations.push(push(
            &x,
            &[format!("+{two}:{MAIN}"), format!("+{one}:{DEV}")],
        ));
        operations.push(push(&x, &[format!("+{three}:{MAIN}")]));
        operations.push(push(&y, &[format!("+{two}:{MAIN}")]));
        operations.push(push(&x, &[format!("{tip}:refs/nostr/{}", proposal.id)]));
        operations.push(push(
            &x,
            &[format!("{deleted_tip}:refs/nostr/{}", deleted.id)],
        ));

        let [older, other] = announcements;
        let [first, second, third] = states;
        let refs_of_x = vec![
            (MAIN.to_owned(), three),
            (format!("refs/nostr/{}", proposal.id), tip),
        ];
        Self {
            work,
            operations,
            served: vec![
                newer, other, third, of_y, proposal, issue, parent, reply, like,
            ],
            gone: vec![older, first, second, deleted, wrong],
            refs: vec![(x, refs_of_x), (y, vec![(MAIN.to_owned(), two)])],
        }
    }

    /// Executes an operation at one server, and returns whether it was accepted or is obsolete.
    async fn perform(&self, at: &ServerClient, operation: &Operation) -> bool {
        match operation {
            Operation::Publish(event) => match at.publish(event).await.unwrap() {
                Ok(()) => true,
                Err(reason) => self.gone.contains(event) && !reason.starts_with("error"),
            },
            Operation::Push(repo, specs) => {
                let url = at.clone_url(repo);
                let mut specs = specs.clone();
                // A state lists all branches: the push deletes those that are not in it.
                let listed = at.refs(repo).await.unwrap_or_default();
                let branches = listed
                    .lines()
                    .filter_map(|line| line.split_once("\trefs/heads/"));
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

    /// Executes the operations of one server in their order. Refused ones are repeated after all others, three times in all;
    /// returns those that are refused in the end.
    async fn execute(&self, at: &ServerClient, mut operations: Vec<Operation>) -> Vec<Operation> {
        for _ in 0..3 {
            let mut refused = Vec::new();
            for operation in operations {
                if !self.perform(at, &operation).await {
                    refused.push(operation);
                }
            }
            operations = refused;
        }
        operations
    }
}

/// Distributes operations to the servers in random orders. Each goes to one server at least, and some go to both. Proposals
/// always go to both, because only the event of a staged upload can release it.
fn distribute(operations: &[Operation], random: &mut Random) -> [Vec<Operation>; 2] {
    let mut parts = [Vec::new(), Vec::new()];
    for operation in operations {
        let is_proposal =
            matches!(operation, Operation::Publish(event) if event.kind == kinds::PULL_REQUEST);
        let skipped = if is_proposal { 2 } else { random.below(3) };
        for (which, part) in parts.iter_mut().enumerate() {
            if skipped != which {
                part.push(operation.clone());
            }
        }
    }
    parts.iter_mut().for_each(|part| random.shuffle(part));
    parts
}

async fn check_order(seed: u64) {
    println!("GRASP_ORDER_SEED={seed}");
    let network = Network::start(2).await;
    let history = History::on(&network).await;
    let [one, two] = distribute(&history.operations, &mut Random(seed));
    let (a, b) = (network.at(0), network.at(1));
    let (one, two) = tokio::join!(history.execute(&a, one), history.execute(&b, two));
    // Refused operations are repeated at the other server: each may have a part of what they depend on.
    let (two, one) = tokio::join!(history.execute(&a, two), history.execute(&b, one));
    tokio::join!(history.execute(&a, one), history.execute(&b, two));
    let mut convergence = Convergence::of(&[a, b])
        .ignoring_staged_uploads()
        .ignoring_old_deletions()
        .serving(&history.served)
        .without(&history.gone);
    for (repo, refs) in &history.refs {
        let refs: Vec<(&str, &str)> = refs
            .iter()
            .map(|(name, commit)| (name.as_str(), commit.as_str()))
            .collect();
        convergence = convergence.with_refs(repo, &refs);
    }
    convergence.wait().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_order_of_operations_does_not_change_the_result() {
    let seeds = match std::env::var("GRASP_ORDER_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => SEEDS.to_vec(),
    };
    for seed in seeds {
        check_order(seed).await;
    }
}
