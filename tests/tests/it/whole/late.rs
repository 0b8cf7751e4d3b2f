//! A server that comes late has everything from whomever it knows, and then knows the others too.

use grasp_tests::{Author, Convergence, Settings};

use super::net::{MAIN, Net};
use super::threads::comment;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fourth_server_that_knows_one_ends_equal_to_all() {
    let mut net = Net::planned(4, &Settings::default());
    let knows_all = [0, 1, 2].map(|which| net.members[which].address());
    for which in 0..3 {
        net.members[which].know_only(&knows_all);
        net.members[which].start().await;
    }
    net.members[3].know_only(&knows_all[..1]);
    let early = [net.at(0), net.at(1), net.at(2)];

    // Announced on all four, of whom one is not there yet.
    let (alice, bob) = (Author::new().earlier(3_000), Author::new().earlier(2_000));
    let x = net.host(0, &alice, "x").await;
    let y = net.host(1, &bob, "y").await;
    // Events about a repository are taken where it is served.
    Convergence::of(&early).serving(x.signed()).serving(y.signed()).wait().await;
    let tip = x.work.commit("a contribution").await;
    let proposal = bob.later(1).pull_request(&x.repo, &tip);
    x.push(&net.at(2), &[&format!("HEAD:refs/nostr/{}", proposal.id)]).await;
    net.at(2).publish_all(&[&proposal]).await;
    let issue = alice.later(2).issue(&y.repo, "an issue");
    let reply = comment(&bob.later(3), &issue, &issue, "an answer");
    let nested = comment(&alice.later(4), &issue, &reply, "another");
    let taken_back = alice.later(5).issue(&x.repo, "never mind");
    let deletion = alice.later(6).sign(5, "", &[&["e", &taken_back.id.to_hex()]]);
    net.at(1).publish_all(&[&issue, &reply, &nested, &taken_back, &deletion]).await;
    let said = [&proposal, &issue, &reply, &nested, &deletion];
    Convergence::of(&early).serving(said).serving(x.signed()).serving(y.signed()).wait().await;

    net.members[3].start().await;
    let pr = format!("refs/nostr/{}", proposal.id);
    let equal =
        net.equal().ignoring_old_deletions().serving(said[..4].to_vec()).without([&taken_back]);
    let equal = equal.with_refs(&y.repo, &[(MAIN, &y.first)]);
    equal.with_refs(&x.repo, &[(MAIN, &x.first), (&pr, &tip)]).wait().await;

    // It hears of the others by the announcements, and they of it: what is said there reaches all.
    let last = bob.later(7).issue(&y.repo, "from the fourth");
    net.at(3).publish_all(&[&last]).await;
    let first = alice.later(8).issue(&y.repo, "to the fourth");
    net.at(2).publish_all(&[&first]).await;
    net.equal().ignoring_old_deletions().serving([&last, &first]).wait().await;
}
