//! What people say about a repository, and what they propose for it, wherever they say it.

use std::time::Duration;

use grasp_core::RepoId;
use grasp_tests::{Author, ServerClient, Settings, Workdir};
use nostr::event::Event;

use super::net::{MAIN, Net};

/// A comment that names only what it answers, and neither the thread nor the repository.
fn answer(by: &Author, to: &Event, text: &str) -> Event {
    by.sign(1111, text, &[&["e", &to.id.to_hex()], &["p", &to.pubkey.to_hex()]])
}

/// A comment as the protocol wants it: the thread in capitals, what it answers in small letters.
pub(super) fn comment(by: &Author, on: &Event, to: &Event, text: &str) -> Event {
    let (root, parent) = (on.id.to_hex(), to.id.to_hex());
    let (kind, of) = (on.kind.to_string(), to.kind.to_string());
    by.sign(1111, text, &[&["E", &root], &["K", &kind], &["e", &parent], &["k", &of]])
}

fn reaction(by: &Author, to: &Event) -> Event {
    by.sign(7, "+", &[&["e", &to.id.to_hex()], &["p", &to.pubkey.to_hex()]])
}

/// Fetches a proposal from a server, as a reviewer would.
async fn fetched(from: &ServerClient, repo: &RepoId, proposal: &Event) -> String {
    let work = Workdir::init().await;
    let name = format!("refs/nostr/{}", proposal.id);
    work.git(&["fetch", "-q", &from.clone_url(repo), &name]).await.expect_ok();
    work.git(&["rev-parse", "FETCH_HEAD"]).await.expect_ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pull_request_that_is_pushed_to_one_server_can_be_fetched_from_all() {
    let (net, alice) = (Net::of(3).await, Author::new().earlier(100));
    let bob = Author::new().earlier(90);
    let hosted = net.host(0, &alice, "x").await;
    let (repo, work) = (&hosted.repo, &hosted.work);
    net.equal().serving(hosted.signed()).wait().await;

    // Git first, and the event after it.
    work.git(&["checkout", "-q", "--detach"]).await.expect_ok();
    let tip = work.commit("a contribution").await;
    let proposal = bob.pull_request(repo, &tip);
    hosted.push(&net.at(1), &[&format!("HEAD:refs/nostr/{}", proposal.id)]).await;
    net.at(1).publish_all(&[&proposal]).await;
    // The event first, and git after it.
    let other_tip = work.commit("another contribution").await;
    let other = bob.later(1).pull_request(repo, &other_tip);
    net.at(2).publish_all(&[&other]).await;
    hosted.push(&net.at(2), &[&format!("HEAD:refs/nostr/{}", other.id)]).await;

    let (one, two) = (format!("refs/nostr/{}", proposal.id), format!("refs/nostr/{}", other.id));
    let refs = [(MAIN, hosted.first.as_str()), (&one, &tip), (&two, &other_tip)];
    net.equal().serving([&proposal, &other]).with_refs(repo, &refs).wait().await;
    for member in net.all() {
        assert_eq!(fetched(&member, repo, &proposal).await, tip);
        assert_eq!(fetched(&member, repo, &other).await, other_tip);
    }

    // A new version of it, at the third server.
    let newer_tip = work.commit("after review").await;
    let (pr, coordinate) = (proposal.id.to_hex(), repo.to_string());
    let tags: [&[&str]; 4] =
        [&["a", &coordinate], &["E", &pr], &["P", &bob.key().to_hex()], &["c", &newer_tip]];
    let update = bob.later(2).sign(1619, "", &tags);
    net.at(0).publish_all(&[&update]).await;
    hosted.push(&net.at(0), &[&format!("HEAD:refs/nostr/{}", update.id)]).await;
    net.equal().serving([&update]).wait().await;
    for member in net.all() {
        assert_eq!(fetched(&member, repo, &update).await, newer_tip);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn threads_are_complete_everywhere_wherever_people_write() {
    let (net, alice) = (Net::of(3).await, Author::new().earlier(100));
    let (bob, carol) = (Author::new().earlier(90), Author::new().earlier(80));
    let hosted = net.host(0, &alice, "x").await;
    net.equal().serving(hosted.signed()).wait().await;

    let issue = bob.issue(&hosted.repo, "it does not work");
    net.at(0).publish_all(&[&issue]).await;
    net.equal().serving([&issue]).wait().await;
    let said = comment(&carol, &issue, &issue, "it does for me");
    let liked = reaction(&alice.later(20), &issue);
    net.at(1).publish_all(&[&said, &liked]).await;
    net.equal().serving([&said, &liked]).wait().await;
    let reply = comment(&bob.later(15), &issue, &said, "not for me");
    net.at(2).publish_all(&[&reply]).await;

    // A whole thread at once, at a server that none of it has been told before.
    let second = carol.later(30).issue(&hosted.repo, "another thing");
    let one = comment(&alice.later(31), &second, &second, "one");
    let two = comment(&bob.later(32), &second, &one, "two");
    let three = comment(&carol.later(33), &second, &two, "three");
    let status = alice.later(34).sign(1632, "", &[&["e", &second.id.to_hex(), "", "root"]]);
    let label = alice.later(35).sign(1985, "", &[&["e", &second.id.to_hex()], &["l", "bug", "t"]]);
    net.at(2).publish_all(&[&second, &one, &two, &three, &status, &label]).await;
    net.equal().serving([&reply, &second, &one, &two, &three, &status, &label]).wait().await;

    // Somebody takes back an issue of theirs, at a server that it did not begin at.
    let deletion = carol.later(40).sign(5, "", &[&["e", &second.id.to_hex()]]);
    net.at(1).publish_all(&[&deletion]).await;
    net.equal().serving([&issue, &said, &reply, &deletion]).without([&second]).wait().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_names_only_what_it_answers_is_complete_everywhere_too() {
    let settings = Settings { reply_window: Duration::from_secs(1), ..Settings::default() };
    let (net, alice) = (Net::set(3, &settings).await, Author::new().earlier(100));
    let (bob, carol) = (Author::new().earlier(90), Author::new().earlier(80));
    let hosted = net.host(0, &alice, "x").await;
    net.equal().serving(hosted.signed()).wait().await;

    // Each at another server than what it answers.
    let issue = bob.issue(&hosted.repo, "it does not work");
    net.at(0).publish_all(&[&issue]).await;
    net.equal().serving([&issue]).wait().await;
    let mut last = issue.clone();
    for depth in 1..=5_u64 {
        let reply = answer(&bob.later(10 + depth), &last, &format!("depth {depth}"));
        let liked = reaction(&carol.later(10 + depth), &reply);
        net.at((depth % 3) as usize).publish_all(&[&reply, &liked]).await;
        net.equal().serving([&reply, &liked]).wait().await;
        last = reply;
    }

    // A whole thread at once.
    let second = carol.later(30).issue(&hosted.repo, "another thing");
    let one = answer(&alice.later(31), &second, "one");
    let two = answer(&bob.later(32), &one, "two");
    let three = answer(&carol.later(33), &two, "three");
    net.at(2).publish_all(&[&second, &one, &two, &three]).await;
    net.equal().serving([&second, &one, &two, &three]).wait().await;

    // Somebody takes back what they said in the middle of it.
    let deletion = bob.later(40).sign(5, "", &[&["e", &two.id.to_hex()]]);
    net.at(1).publish_all(&[&deletion]).await;
    net.equal().serving([&second, &one, &deletion]).without([&two]).wait().await;
}
