//! `kill -9` of one server among several, at any step of a push, of a release and of sync: nothing is lost, and all
//! end equal.

use grasp_tests::{Author, Convergence, Leftovers, Settings, eventually, eventually_async};
use nostr::event::Event;

use super::net::{Hosted, MAIN, Net};
use super::threads::comment;

/// How many readings of its clock a server lives on, one number for each time that it is killed.
const LIVES: [u64; 6] = [1, 3, 7, 13, 22, 40];

/// Somebody signs and pushes the next commit at one member, as often as it takes.
async fn publish(net: &Net, at: usize, hosted: &Hosted, state: &Event) -> bool {
    let to = net.at(at);
    to.publish(state).await == Some(Ok(())) && hosted.try_push(&to, &["main"]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_dies_while_it_is_pushed_to_has_it_all_in_the_end() {
    let mut net = Net::of_processes(3);
    let alice = Author::new().earlier(100);
    let hosted = net.host(0, &alice, "x").await;
    net.equal().serving(hosted.signed()).wait().await;
    for (round, lives) in (1..).zip(LIVES) {
        let next = hosted.work.commit(&format!("round {round}")).await;
        let state = alice.later(round).state("x", &[(MAIN, &next)]);
        assert!(net.members[0].arm(lives));
        let done = publish(&net, 0, &hosted, &state).await;
        net.members[0].kill();
        net.members[0].spawn();
        // What was acknowledged needs no second try.
        let again = done || publish(&net, 0, &hosted, &state).await;
        assert!(again, "round {round}");
        net.equal().serving([&state]).with_refs(&hosted.repo, &[(MAIN, &next)]).wait().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_dies_in_the_middle_of_an_upload_takes_it_the_next_time() {
    let mut net = Net::of_processes(3);
    let alice = Author::new().earlier(100);
    let hosted = net.host(0, &alice, "x").await;
    net.equal().serving(hosted.signed()).wait().await;
    let next = hosted.work.commit_incompressible(8_000_000).await;
    let state = alice.later(1).state("x", &[(MAIN, &next)]);
    let (to, repositories) = (net.at(0), net.members[0].dir().join("git"));
    to.publish_all(&[&state]).await;
    let die = async {
        eventually(|| (Leftovers::below(&repositories).incoming > 0).then_some(())).await;
        net.members[0].kill();
    };
    let (pushed, ()) = tokio::join!(hosted.try_push(&to, &["main"]), die);
    assert!(!pushed, "it died before the end");
    net.members[0].spawn();
    hosted.push(&to, &["main"]).await;
    net.equal().serving([&state]).with_refs(&hosted.repo, &[(MAIN, &next)]).wait().await;
    assert_eq!(eventually_clean(&repositories).await, Leftovers::default());
}

/// What lies about once nobody is at work.
async fn eventually_clean(repositories: &std::path::Path) -> Leftovers {
    eventually(|| {
        let litter = Leftovers::below(repositories);
        (litter.processes.is_empty() && litter.incoming == 0).then_some(litter)
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_dies_while_it_takes_over_from_another_has_it_all_in_the_end() {
    let mut net = Net::of_processes(3);
    let alice = Author::new().earlier(100);
    let hosted = net.host(0, &alice, "x").await;
    net.equal().serving(hosted.signed()).wait().await;
    for (round, lives) in (1..).zip(LIVES) {
        let next = hosted.work.commit(&format!("round {round}")).await;
        let state = alice.later(round).state("x", &[(MAIN, &next)]);
        let issue = alice.later(round).issue(&hosted.repo, &format!("issue {round}"));
        assert!(net.members[1].arm(lives));
        net.at(0).publish_all(&[&issue]).await;
        assert!(publish(&net, 0, &hosted, &state).await, "round {round}");
        wait_for_death_or(&mut net, 1, &state).await;
        net.members[1].kill();
        net.members[1].spawn();
        let equal = net.equal().serving([&state, &issue]);
        equal.with_refs(&hosted.repo, &[(MAIN, &next)]).wait().await;
    }
}

/// Waits until a member is dead, or serves an event.
async fn wait_for_death_or(net: &mut Net, which: usize, event: &Event) {
    let client = net.at(which);
    let member = std::sync::Mutex::new(&mut net.members[which]);
    eventually_async(|| async {
        let lives = member.lock().unwrap().lives();
        let served = client.events().await.is_some_and(|all| all.contains_key(&event.id));
        (!lives || served).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_dies_again_and_again_while_it_joins_is_complete_in_the_end() {
    let mut net = Net::planned(3, &Settings::default());
    net.members[0].spawn();
    net.members[1].spawn();
    let early = [net.at(0), net.at(1)];
    let alice = Author::new().earlier(5_000);
    let hosted = net.host(0, &alice, "x").await;
    let mut said = Vec::new();
    for number in 0..60 {
        let issue = alice.later(2 * number).issue(&hosted.repo, &format!("issue {number}"));
        said.push(comment(&alice.later(2 * number + 1), &issue, &issue, "a comment"));
        said.push(issue);
    }
    said.reverse();
    net.at(1).publish_all(&[&hosted.announcement]).await;
    Convergence::of(&early).serving(hosted.signed()).wait().await;
    net.at(1).publish_all(&said.iter().collect::<Vec<_>>()).await;
    let tip = hosted.work.commit("a contribution").await;
    let proposal = alice.pull_request(&hosted.repo, &tip);
    let name = format!("refs/nostr/{}", proposal.id);
    hosted.push(&net.at(0), &[&format!("HEAD:{name}")]).await;
    net.at(0).publish_all(&[&proposal]).await;
    Convergence::of(&early).serving(&said).serving([&proposal]).wait().await;

    for lives in [4, 12, 30, 60, 100, 150] {
        net.members[2].spawn();
        if net.members[2].arm(lives) {
            wait_for_death_or(&mut net, 2, &said[0]).await;
        }
        net.members[2].kill();
    }
    net.members[2].spawn();
    let refs = [(MAIN, hosted.first.as_str()), (&name, &tip)];
    net.equal().serving(&said).with_refs(&hosted.repo, &refs).wait().await;
}
