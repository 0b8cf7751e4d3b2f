//! Maintainers who do not agree: whoever wins, wins everywhere.

use grasp_core::MaintainerModel;
use grasp_tests::{Author, Settings, Workdir};
use nostr::event::Event;

use super::net::{MAIN, Net};

/// A repository with two maintainers, each of whom announces it under the same name and names the other.
struct Shared {
    net: Net,
    alice: Author,
    bob: Author,
    work: Workdir,
    base: String,
}

fn announce(by: &Author, with: Option<&Author>, net: &Net) -> Event {
    let plain = by.announce_on("x", &net.services());
    let mut tags: Vec<Vec<String>> = plain.tags.iter().map(|tag| tag.as_slice().to_vec()).collect();
    if let Some(other) = with {
        tags.push(vec!["maintainers".into(), other.key().to_hex()]);
    }
    let tags: Vec<Vec<&str>> =
        tags.iter().map(|tag| tag.iter().map(String::as_str).collect()).collect();
    let tags: Vec<&[&str]> = tags.iter().map(Vec::as_slice).collect();
    by.sign(30617, "", &tags)
}

impl Shared {
    async fn begin(model: MaintainerModel) -> Self {
        let net = Net::set(3, &Settings { model, ..Settings::default() }).await;
        let (alice, bob) = (Author::new().earlier(200), Author::new().earlier(200));
        let work = Workdir::init().await;
        let base = work.commit("base").await;
        Self { net, alice, bob, work, base }
    }

    /// A commit of somebody's own on the common base.
    async fn fork(&self, text: &str) -> String {
        self.work.git(&["checkout", "-q", "--detach", &self.base]).await.expect_ok();
        self.work.commit(text).await
    }

    async fn push(&self, at: usize, owner: &Author, commit: &str) -> bool {
        let url = self.net.at(at).clone_url(&owner.repo("x"));
        let spec = format!("+{commit}:{MAIN}");
        self.work.git(&["push", "-q", &url, &spec]).await.ok
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_states_of_one_second_the_same_wins_everywhere() {
    let shared = Shared::begin(MaintainerModel::default()).await;
    let Shared { net, alice, bob, base, .. } = &shared;
    let (by_alice, by_bob) = (announce(alice, Some(bob), net), announce(bob, Some(alice), net));
    let state = alice.state("x", &[(MAIN, base)]);
    net.at(0).publish_all(&[&by_alice, &by_bob, &state]).await;
    assert!(shared.push(0, alice, base).await);
    let (of_alice, of_bob) = (alice.repo("x"), bob.repo("x"));
    let equal = net.equal().serving([&by_alice, &by_bob, &state]);
    equal.with_refs(&of_alice, &[(MAIN, base)]).with_refs(&of_bob, &[(MAIN, base)]).wait().await;

    for round in 1..=3_u64 {
        // At the same second, at different servers, and each pushed to where it was signed.
        let one = shared.fork(&format!("alice's {round}")).await;
        let two = shared.fork(&format!("bob's {round}")).await;
        let first = alice.later(round).state("x", &[(MAIN, &one)]);
        let second = bob.later(round).state("x", &[(MAIN, &two)]);
        let winner = if first.id < second.id { (&first, &one) } else { (&second, &two) };
        let (here, there) = (net.at(1), net.at(2));
        let sent = tokio::join!(here.publish(&first), there.publish(&second));
        assert_eq!(sent, (Some(Ok(())), Some(Ok(()))));
        let pushes = tokio::join!(shared.push(1, alice, &one), shared.push(2, bob, &two));
        let won = if winner.0 == &first { pushes.0 } else { pushes.1 };
        assert!(won, "the winner's push in round {round}: {pushes:?}");
        let equal = net.equal().serving([winner.0]);
        let refs = [(MAIN, winner.1.as_str())];
        equal.with_refs(&of_alice, &refs).with_refs(&of_bob, &refs).wait().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_invited_and_has_not_accepted_rules_nowhere() {
    let shared = Shared::begin(MaintainerModel::Reciprocal).await;
    let Shared { net, alice, bob, base, .. } = &shared;
    let invitation = announce(alice, Some(bob), net);
    let state = alice.state("x", &[(MAIN, base)]);
    net.at(0).publish_all(&[&invitation, &state]).await;
    assert!(shared.push(0, alice, base).await);
    let repo = alice.repo("x");
    net.equal().serving([&invitation, &state]).with_refs(&repo, &[(MAIN, base)]).wait().await;

    // Newer than the owner's, by one who has only been invited.
    let own = shared.fork("bob's own").await;
    let claim = bob.later(1).state("x", &[(MAIN, &own)]);
    let _ = net.at(1).publish(&claim).await;
    assert!(!shared.push(1, alice, &own).await, "an invitation is no authority");
    let sight = net.equal().serving([&state]).without([&claim]);
    sight.with_refs(&repo, &[(MAIN, base)]).wait().await;

    // By announcing the same with the owner among the maintainers, the invitation is accepted.
    let acceptance = announce(&bob.later(2), Some(alice), net);
    let claim = bob.later(3).state("x", &[(MAIN, &own)]);
    net.at(2).publish_all(&[&acceptance, &claim]).await;
    assert!(shared.push(2, bob, &own).await);
    let equal = net.equal().serving([&invitation, &acceptance, &claim]);
    let refs = [(MAIN, own.as_str())];
    equal.with_refs(&repo, &refs).with_refs(&bob.repo("x"), &refs).wait().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_the_plain_model_who_is_named_rules_everywhere() {
    let shared = Shared::begin(MaintainerModel::Plain).await;
    let Shared { net, alice, bob, base, .. } = &shared;
    let announcement = announce(alice, Some(bob), net);
    let state = alice.state("x", &[(MAIN, base)]);
    net.at(0).publish_all(&[&announcement, &state]).await;
    assert!(shared.push(0, alice, base).await);
    let repo = alice.repo("x");
    net.equal().serving([&announcement, &state]).with_refs(&repo, &[(MAIN, base)]).wait().await;

    let own = shared.fork("bob's own").await;
    let claim = bob.later(1).state("x", &[(MAIN, &own)]);
    net.at(1).publish_all(&[&claim]).await;
    assert!(shared.push(1, alice, &own).await);
    net.equal().serving([&announcement, &claim]).with_refs(&repo, &[(MAIN, &own)]).wait().await;
}
