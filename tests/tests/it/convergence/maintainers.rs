//! Conflicting states of maintainers: the same state wins on every server.

use grasp_core::MaintainerModel;
use grasp_tests::{Author, Settings, Workdir};
use nostr::event::Event;

use super::network::{MAIN, Network};

/// A repository with two maintainers, each of whom announces it under the same name and lists the other.
struct Shared {
    network: Network,
    alice: Author,
    bob: Author,
    work: Workdir,
    base: String,
}

fn announce(by: &Author, with: Option<&Author>, network: &Network) -> Event {
    let plain = by.announce_on("x", &network.services());
    let mut tags: Vec<Vec<String>> = plain
        .tags
        .iter()
        .map(|tag| tag.as_slice().to_vec())
        .collect();
    if let Some(other) = with {
        tags.push(vec!["maintainers".into(), other.key().to_hex()]);
    }
    let tags: Vec<Vec<&str>> = tags
        .iter()
        .map(|tag| tag.iter().map(String::as_str).collect())
        .collect();
    let tags: Vec<&[&str]> = tags.iter().map(Vec::as_slice).collect();
    by.sign(30617, "", &tags)
}

impl Shared {
    async fn start(model: MaintainerModel) -> Self {
        let network = Network::with_settings(
            3,
            &Settings {
                model,
                ..Settings::default()
            },
        )
        .await;
        let (alice, bob) = (Author::new().earlier(200), Author::new().earlier(200));
        let work = Workdir::init().await;
        let base = work.commit("base").await;
        Self {
            network,
            alice,
            bob,
            work,
            base,
        }
    }

    /// Creates a commit on the common base.
    async fn fork(&self, text: &str) -> String {
        self.work
            .git(&["checkout", "-q", "--detach", &self.base])
            .await
            .expect_ok();
        self.work.commit(text).await
    }

    async fn push(&self, at: usize, owner: &Author, commit: &str) -> bool {
        let url = self.network.at(at).clone_url(&owner.repo("x"));
        let spec = format!("+{commit}:{MAIN}");
        self.work.git(&["push", "-q", &url, &spec]).await.ok
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_states_of_one_second_the_same_wins_on_every_server() {
    let shared = Shared::start(MaintainerModel::default()).await;
    let Shared {
        network,
        alice,
        bob,
        base,
        ..
    } = &shared;
    let (by_alice, by_bob) = (
        announce(alice, Some(bob), network),
        announce(bob, Some(alice), network),
    );
    let state = alice.state("x", &[(MAIN, base)]);
    network
        .at(0)
        .publish_all(&[&by_alice, &by_bob, &state])
        .await;
    assert!(shared.push(0, alice, base).await);
    let (of_alice, of_bob) = (alice.repo("x"), bob.repo("x"));
    let convergence = network.convergence().serving([&by_alice, &by_bob, &state]);
    convergence
        .with_refs(&of_alice, &[(MAIN, base)])
        .with_refs(&of_bob, &[(MAIN, base)])
        .wait()
        .await;

    for round in 1..=3_u64 {
        // Signed in the same second at different servers, each pushed to the server of its state.
        let one = shared.fork(&format!("alice's {round}")).await;
        let two = shared.fork(&format!("bob's {round}")).await;
        let first = alice.later(round).state("x", &[(MAIN, &one)]);
        let second = bob.later(round).state("x", &[(MAIN, &two)]);
        let winner = if first.id < second.id {
            (&first, &one)
        } else {
            (&second, &two)
        };
        let (here, there) = (network.at(1), network.at(2));
        let sent = tokio::join!(here.publish(&first), there.publish(&second));
        assert_eq!(sent, (Some(Ok(())), Some(Ok(()))));
        let pushes = tokio::join!(shared.push(1, alice, &one), shared.push(2, bob, &two));
        let won = if winner.0 == &first {
            pushes.0
        } else {
            pushes.1
        };
        assert!(won, "the winner's push in round {round}: {pushes:?}");
        let convergence = network.convergence().serving([winner.0]);
        let refs = [(MAIN, winner.1.as_str())];
        convergence
            .with_refs(&of_alice, &refs)
            .with_refs(&of_bob, &refs)
            .wait()
            .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listed_maintainer_who_has_not_listed_back_has_no_authority_on_any_server() {
    let shared = Shared::start(MaintainerModel::Reciprocal).await;
    let Shared {
        network,
        alice,
        bob,
        base,
        ..
    } = &shared;
    let invitation = announce(alice, Some(bob), network);
    let state = alice.state("x", &[(MAIN, base)]);
    network.at(0).publish_all(&[&invitation, &state]).await;
    assert!(shared.push(0, alice, base).await);
    let repo = alice.repo("x");
    network
        .convergence()
        .serving([&invitation, &state])
        .with_refs(&repo, &[(MAIN, base)])
        .wait()
        .await;

    // A newer state than the owner's, by a listed key that has not listed back.
    let own = shared.fork("bob's own").await;
    let claim = bob.later(1).state("x", &[(MAIN, &own)]);
    let _ = network.at(1).publish(&claim).await;
    assert!(
        !shared.push(1, alice, &own).await,
        "a one-sided list gives no authority"
    );
    let unchanged = network.convergence().serving([&state]).without([&claim]);
    unchanged.with_refs(&repo, &[(MAIN, base)]).wait().await;

    // The listed key accepts by an announcement of the same name that lists the owner.
    let acceptance = announce(&bob.later(2), Some(alice), network);
    let claim = bob.later(3).state("x", &[(MAIN, &own)]);
    network.at(2).publish_all(&[&acceptance, &claim]).await;
    assert!(shared.push(2, bob, &own).await);
    let convergence = network
        .convergence()
        .serving([&invitation, &acceptance, &claim]);
    let refs = [(MAIN, own.as_str())];
    convergence
        .with_refs(&repo, &refs)
        .with_refs(&bob.repo("x"), &refs)
        .wait()
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_the_plain_model_a_listed_maintainer_has_authority_on_every_server() {
    let shared = Shared::start(MaintainerModel::Plain).await;
    let Shared {
        network,
        alice,
        bob,
        base,
        ..
    } = &shared;
    let announcement = announce(alice, Some(bob), network);
    let state = alice.state("x", &[(MAIN, base)]);
    network.at(0).publish_all(&[&announcement, &state]).await;
    assert!(shared.push(0, alice, base).await);
    let repo = alice.repo("x");
    network
        .convergence()
        .serving([&announcement, &state])
        .with_refs(&repo, &[(MAIN, base)])
        .wait()
        .await;

    let own = shared.fork("bob's own").await;
    let claim = bob.later(1).state("x", &[(MAIN, &own)]);
    network.at(1).publish_all(&[&claim]).await;
    assert!(shared.push(1, alice, &own).await);
    network
        .convergence()
        .serving([&announcement, &claim])
        .with_refs(&repo, &[(MAIN, &own)])
        .wait()
        .await;
}
