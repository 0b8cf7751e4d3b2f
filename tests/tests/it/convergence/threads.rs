//! Threads about a repository and proposals for it, published at any server.

use std::time::Duration;

use grasp_core::RepoId;
use grasp_tests::{Author, ServerClient, Settings, Workdir};
use nostr::event::Event;

use super::network::{MAIN, Network};

/// Signs a comment that names only its parent, and neither the root nor the repository.
fn reply_to(by: &Author, to: &Event, text: &str) -> Event {
    by.sign(
        1111,
        text,
        &[&["e", &to.id.to_hex()], &["p", &to.pubkey.to_hex()]],
    )
}

/// Signs a comment by NIP-22: the root in uppercase tags, the parent in lowercase ones.
pub(super) fn comment(by: &Author, on: &Event, to: &Event, text: &str) -> Event {
    let (root, parent) = (on.id.to_hex(), to.id.to_hex());
    let (kind, of) = (on.kind.to_string(), to.kind.to_string());
    by.sign(
        1111,
        text,
        &[&["E", &root], &["K", &kind], &["e", &parent], &["k", &of]],
    )
}

fn reaction(by: &Author, to: &Event) -> Event {
    by.sign(
        7,
        "+",
        &[&["e", &to.id.to_hex()], &["p", &to.pubkey.to_hex()]],
    )
}

/// Fetches a proposal from a server, and returns its tip.
async fn fetched(from: &ServerClient, repo: &RepoId, proposal: &Event) -> String {
    let work = Workdir::init().await;
    let name = format!("refs/nostr/{}", proposal.id);
    work.git(&["fetch", "-q", &from.clone_url(repo), &name])
        .await
        .expect_ok();
    work.git(&["rev-parse", "FETCH_HEAD"]).await.expect_ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pull_request_pushed_to_one_server_can_be_fetched_from_all() {
    let (network, alice) = (Network::start(3).await, Author::new().earlier(100));
    let bob = Author::new().earlier(90);
    let hosted = network.host(0, &alice, "x").await;
    let (repo, work) = (&hosted.repo, &hosted.work);
    network.convergence().serving(hosted.signed()).wait().await;

    // Git data before the event.
    work.git(&["checkout", "-q", "--detach"]).await.expect_ok();
    let tip = work.commit("a contribution").await;
    let proposal = bob.pull_request(repo, &tip);
    hosted
        .push(
            &network.at(1),
            &[&format!("HEAD:refs/nostr/{}", proposal.id)],
        )
        .await;
    network.at(1).publish_all(&[&proposal]).await;
    // The event before its git data.
    let other_tip = work.commit("another contribution").await;
    let other = bob.later(1).pull_request(repo, &other_tip);
    network.at(2).publish_all(&[&other]).await;
    hosted
        .push(&network.at(2), &[&format!("HEAD:refs/nostr/{}", other.id)])
        .await;

    let (one, two) = (
        format!("refs/nostr/{}", proposal.id),
        format!("refs/nostr/{}", other.id),
    );
    let refs = [
        (MAIN, hosted.first.as_str()),
        (&one, &tip),
        (&two, &other_tip),
    ];
    network
        .convergence()
        .serving([&proposal, &other])
        .with_refs(repo, &refs)
        .wait()
        .await;
    for member in network.all() {
        assert_eq!(fetched(&member, repo, &proposal).await, tip);
        assert_eq!(fetched(&member, repo, &other).await, other_tip);
    }

    // An update of the pull request, at the first server.
    let newer_tip = work.commit("after review").await;
    let (pr, coordinate) = (proposal.id.to_hex(), repo.to_string());
    let tags: [&[&str]; 4] = [
        &["a", &coordinate],
        &["E", &pr],
        &["P", &bob.key().to_hex()],
        &["c", &newer_tip],
    ];
    let update = bob.later(2).sign(1619, "", &tags);
    network.at(0).publish_all(&[&update]).await;
    hosted
        .push(&network.at(0), &[&format!("HEAD:refs/nostr/{}", update.id)])
        .await;
    network.convergence().serving([&update]).wait().await;
    for member in network.all() {
        assert_eq!(fetched(&member, repo, &update).await, newer_tip);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn threads_are_complete_on_every_server() {
    let (network, alice) = (Network::start(3).await, Author::new().earlier(100));
    let (bob, carol) = (Author::new().earlier(90), Author::new().earlier(80));
    let hosted = network.host(0, &alice, "x").await;
    network.convergence().serving(hosted.signed()).wait().await;

    let issue = bob.issue(&hosted.repo, "an issue");
    network.at(0).publish_all(&[&issue]).await;
    network.convergence().serving([&issue]).wait().await;
    let first = comment(&carol, &issue, &issue, "a comment");
    let reaction = reaction(&alice.later(20), &issue);
    network.at(1).publish_all(&[&first, &reaction]).await;
    network
        .convergence()
        .serving([&first, &reaction])
        .wait()
        .await;
    let reply = comment(&bob.later(15), &issue, &first, "a reply");
    network.at(2).publish_all(&[&reply]).await;

    // A whole thread at once, at a server that has none of it.
    let second = carol.later(30).issue(&hosted.repo, "another issue");
    let one = comment(&alice.later(31), &second, &second, "one");
    let two = comment(&bob.later(32), &second, &one, "two");
    let three = comment(&carol.later(33), &second, &two, "three");
    let status = alice
        .later(34)
        .sign(1632, "", &[&["e", &second.id.to_hex(), "", "root"]]);
    let label = alice
        .later(35)
        .sign(1985, "", &[&["e", &second.id.to_hex()], &["l", "bug", "t"]]);
    network
        .at(2)
        .publish_all(&[&second, &one, &two, &three, &status, &label])
        .await;
    network
        .convergence()
        .serving([&reply, &second, &one, &two, &three, &status, &label])
        .wait()
        .await;

    // An author deletes an issue, at another server than the one where it was published.
    let deletion = carol.later(40).sign(5, "", &[&["e", &second.id.to_hex()]]);
    network.at(1).publish_all(&[&deletion]).await;
    network
        .convergence()
        .serving([&issue, &first, &reply, &deletion])
        .without([&second])
        .wait()
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn comments_that_name_only_their_parent_reach_every_server() {
    let settings = Settings {
        reply_window: Duration::from_secs(1),
        ..Settings::default()
    };
    let (network, alice) = (
        Network::with_settings(3, &settings).await,
        Author::new().earlier(100),
    );
    let (bob, carol) = (Author::new().earlier(90), Author::new().earlier(80));
    let hosted = network.host(0, &alice, "x").await;
    network.convergence().serving(hosted.signed()).wait().await;

    // Each at another server than its parent.
    let issue = bob.issue(&hosted.repo, "an issue");
    network.at(0).publish_all(&[&issue]).await;
    network.convergence().serving([&issue]).wait().await;
    let mut last = issue.clone();
    for depth in 1..=5_u64 {
        let reply = reply_to(&bob.later(10 + depth), &last, &format!("depth {depth}"));
        let reaction = reaction(&carol.later(10 + depth), &reply);
        network
            .at((depth % 3) as usize)
            .publish_all(&[&reply, &reaction])
            .await;
        network
            .convergence()
            .serving([&reply, &reaction])
            .wait()
            .await;
        last = reply;
    }

    // A whole thread at once.
    let second = carol.later(30).issue(&hosted.repo, "another issue");
    let one = reply_to(&alice.later(31), &second, "one");
    let two = reply_to(&bob.later(32), &one, "two");
    let three = reply_to(&carol.later(33), &two, "three");
    network
        .at(2)
        .publish_all(&[&second, &one, &two, &three])
        .await;
    network
        .convergence()
        .serving([&second, &one, &two, &three])
        .wait()
        .await;

    // An author deletes a comment in the middle of the thread.
    let deletion = bob.later(40).sign(5, "", &[&["e", &two.id.to_hex()]]);
    network.at(1).publish_all(&[&deletion]).await;
    network
        .convergence()
        .serving([&second, &one, &deletion])
        .without([&two])
        .wait()
        .await;
}
