//! `kill -9` of one of several servers, at any step of a push, of a release and of sync: nothing is lost, and all converge.

use grasp_tests::{Author, Convergence, Leftovers, Settings, eventually, eventually_async};
use nostr::event::Event;

use super::network::{Hosted, MAIN, Network};
use super::threads::comment;

/// Clock readings after which a server kills itself, one number for each round.
const READINGS_BEFORE_KILL: [u64; 6] = [1, 3, 7, 13, 22, 40];

/// Signs and pushes the next commit at one member, and returns whether both were acknowledged.
async fn publish(network: &Network, at: usize, hosted: &Hosted, state: &Event) -> bool {
    let to = network.at(at);
    to.publish(state).await == Some(Ok(())) && hosted.try_push(&to, &["main"]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_killed_during_a_push_converges() {
    let mut network = Network::start_processes(3);
    let alice = Author::new().earlier(100);
    let hosted = network.host(0, &alice, "x").await;
    network.convergence().serving(hosted.signed()).wait().await;
    for (round, readings) in (1..).zip(READINGS_BEFORE_KILL) {
        let next = hosted.work.commit(&format!("round {round}")).await;
        let state = alice.later(round).state("x", &[(MAIN, &next)]);
        assert!(network.members[0].kill_after(readings));
        let done = publish(&network, 0, &hosted, &state).await;
        network.members[0].kill();
        network.members[0].spawn();
        // An acknowledged push needs no second attempt.
        let is_pushed = done || publish(&network, 0, &hosted, &state).await;
        assert!(is_pushed, "round {round}");
        network
            .convergence()
            .serving([&state])
            .with_refs(&hosted.repo, &[(MAIN, &next)])
            .wait()
            .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_killed_during_an_upload_accepts_it_after_a_restart() {
    let mut network = Network::start_processes(3);
    let alice = Author::new().earlier(100);
    let hosted = network.host(0, &alice, "x").await;
    network.convergence().serving(hosted.signed()).wait().await;
    let next = hosted.work.commit_incompressible(8_000_000).await;
    let state = alice.later(1).state("x", &[(MAIN, &next)]);
    let (to, repositories) = (network.at(0), network.members[0].dir().join("git"));
    to.publish_all(&[&state]).await;
    let kill = async {
        eventually(|| (Leftovers::below(&repositories).incoming > 0).then_some(())).await;
        network.members[0].kill();
    };
    let (pushed, ()) = tokio::join!(hosted.try_push(&to, &["main"]), kill);
    assert!(!pushed, "the server was killed before the end");
    network.members[0].spawn();
    hosted.push(&to, &["main"]).await;
    network
        .convergence()
        .serving([&state])
        .with_refs(&hosted.repo, &[(MAIN, &next)])
        .wait()
        .await;
    assert_eq!(until_idle(&repositories).await, Leftovers::default());
}

/// Returns the leftovers once no operation runs.
async fn until_idle(repositories: &std::path::Path) -> Leftovers {
    eventually(|| {
        let leftovers = Leftovers::below(repositories);
        (leftovers.processes.is_empty() && leftovers.incoming == 0).then_some(leftovers)
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_killed_during_sync_converges() {
    let mut network = Network::start_processes(3);
    let alice = Author::new().earlier(100);
    let hosted = network.host(0, &alice, "x").await;
    network.convergence().serving(hosted.signed()).wait().await;
    for (round, readings) in (1..).zip(READINGS_BEFORE_KILL) {
        let next = hosted.work.commit(&format!("round {round}")).await;
        let state = alice.later(round).state("x", &[(MAIN, &next)]);
        let issue = alice
            .later(round)
            .issue(&hosted.repo, &format!("issue {round}"));
        assert!(network.members[1].kill_after(readings));
        network.at(0).publish_all(&[&issue]).await;
        assert!(publish(&network, 0, &hosted, &state).await, "round {round}");
        until_killed_or_served(&mut network, 1, &state).await;
        network.members[1].kill();
        network.members[1].spawn();
        let convergence = network.convergence().serving([&state, &issue]);
        convergence
            .with_refs(&hosted.repo, &[(MAIN, &next)])
            .wait()
            .await;
    }
}

/// Waits until a member was killed, or serves an event.
async fn until_killed_or_served(network: &mut Network, which: usize, event: &Event) {
    let client = network.at(which);
    let member = std::sync::Mutex::new(&mut network.members[which]);
    eventually_async(|| async {
        let is_running = member.lock().unwrap().is_running();
        let served = client
            .events()
            .await
            .is_some_and(|all| all.contains_key(&event.id));
        (!is_running || served).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_killed_repeatedly_while_it_joins_converges() {
    let mut network = Network::unstarted(3, &Settings::default());
    network.members[0].spawn();
    network.members[1].spawn();
    let early = [network.at(0), network.at(1)];
    let alice = Author::new().earlier(5_000);
    let hosted = network.host(0, &alice, "x").await;
    let mut events = Vec::new();
    for number in 0..60 {
        let issue = alice
            .later(2 * number)
            .issue(&hosted.repo, &format!("issue {number}"));
        events.push(comment(
            &alice.later(2 * number + 1),
            &issue,
            &issue,
            "a comment",
        ));
        events.push(issue);
    }
    events.reverse();
    network.at(1).publish_all(&[&hosted.announcement]).await;
    Convergence::of(&early)
        .serving(hosted.signed())
        .wait()
        .await;
    network
        .at(1)
        .publish_all(&events.iter().collect::<Vec<_>>())
        .await;
    let tip = hosted.work.commit("a contribution").await;
    let proposal = alice.pull_request(&hosted.repo, &tip);
    let name = format!("refs/nostr/{}", proposal.id);
    hosted
        .push(&network.at(0), &[&format!("HEAD:{name}")])
        .await;
    network.at(0).publish_all(&[&proposal]).await;
    Convergence::of(&early)
        .serving(&events)
        .serving([&proposal])
        .wait()
        .await;

    for readings in [4, 12, 30, 60, 100, 150] {
        network.members[2].spawn();
        if network.members[2].kill_after(readings) {
            until_killed_or_served(&mut network, 2, &events[0]).await;
        }
        network.members[2].kill();
    }
    network.members[2].spawn();
    let refs = [(MAIN, hosted.first.as_str()), (&name, &tip)];
    network
        .convergence()
        .serving(&events)
        .with_refs(&hosted.repo, &refs)
        .wait()
        .await;
}
