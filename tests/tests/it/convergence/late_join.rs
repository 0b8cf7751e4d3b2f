//! A server that joins late gets everything from its bootstrap relay, and then connects to the others too.

use grasp_tests::{Author, Convergence, Settings};

use super::network::{MAIN, Network};
use super::threads::comment;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fourth_server_with_one_bootstrap_relay_converges_with_all() {
    let mut network = Network::unstarted(4, &Settings::default());
    let first_three = [0, 1, 2].map(|which| network.members[which].address());
    for which in 0..3 {
        network.members[which].set_bootstrap(&first_three);
        network.members[which].start().await;
    }
    network.members[3].set_bootstrap(&first_three[..1]);
    let early = [network.at(0), network.at(1), network.at(2)];

    // The announcements name all four servers, one of which does not run yet.
    let (alice, bob) = (Author::new().earlier(3_000), Author::new().earlier(2_000));
    let x = network.host(0, &alice, "x").await;
    let y = network.host(1, &bob, "y").await;
    // A server accepts events about the repositories that it serves.
    Convergence::of(&early)
        .serving(x.signed())
        .serving(y.signed())
        .wait()
        .await;
    let tip = x.work.commit("a contribution").await;
    let proposal = bob.later(1).pull_request(&x.repo, &tip);
    x.push(
        &network.at(2),
        &[&format!("HEAD:refs/nostr/{}", proposal.id)],
    )
    .await;
    network.at(2).publish_all(&[&proposal]).await;
    let issue = alice.later(2).issue(&y.repo, "an issue");
    let reply = comment(&bob.later(3), &issue, &issue, "an answer");
    let nested = comment(&alice.later(4), &issue, &reply, "another");
    let deleted = alice.later(5).issue(&x.repo, "a deleted issue");
    let deletion = alice.later(6).sign(5, "", &[&["e", &deleted.id.to_hex()]]);
    network
        .at(1)
        .publish_all(&[&issue, &reply, &nested, &deleted, &deletion])
        .await;
    let events = [&proposal, &issue, &reply, &nested, &deletion];
    Convergence::of(&early)
        .serving(events)
        .serving(x.signed())
        .serving(y.signed())
        .wait()
        .await;

    network.members[3].start().await;
    let pr = format!("refs/nostr/{}", proposal.id);
    let convergence = network
        .convergence()
        .ignoring_old_deletions()
        .serving(events[..4].to_vec())
        .without([&deleted]);
    let convergence = convergence.with_refs(&y.repo, &[(MAIN, &y.first)]);
    convergence
        .with_refs(&x.repo, &[(MAIN, &x.first), (&pr, &tip)])
        .wait()
        .await;

    // The announcements name the other servers: events of the fourth reach all, and those of others reach it.
    let last = bob.later(7).issue(&y.repo, "from the fourth");
    network.at(3).publish_all(&[&last]).await;
    let first = alice.later(8).issue(&y.repo, "to the fourth");
    network.at(2).publish_all(&[&first]).await;
    network
        .convergence()
        .ignoring_old_deletions()
        .serving([&last, &first])
        .wait()
        .await;
}
