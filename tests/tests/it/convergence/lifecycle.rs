//! The lifecycle of a repository on three servers: every change at one of them reaches all.

use grasp_tests::Author;

use super::network::{MAIN, Network};

const DEV: &str = "refs/heads/dev";
const LIGHT: &str = "refs/tags/light";
const ANNOTATED: &str = "refs/tags/annotated";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_push_to_one_server_is_served_by_all() {
    let (network, alice) = (Network::start(3).await, Author::new().earlier(100));
    let hosted = network.host(0, &alice, "x").await;
    let (repo, work, one) = (&hosted.repo, &hosted.work, hosted.first.as_str());
    network
        .convergence()
        .serving(hosted.signed())
        .with_refs(repo, &[(MAIN, one)])
        .wait()
        .await;

    // An update and a new branch, at the second server.
    let two = work.commit("second").await;
    let state = alice.later(1).state("x", &[(MAIN, &two), (DEV, one)]);
    network.at(1).publish_all(&[&state]).await;
    hosted
        .push(&network.at(1), &["main", &format!("{one}:{DEV}")])
        .await;
    let convergence = network
        .convergence()
        .serving([&state])
        .without([&hosted.state]);
    convergence
        .with_refs(repo, &[(MAIN, &two), (DEV, one)])
        .wait()
        .await;

    // A deleted branch, a lightweight and an annotated tag, at the third server.
    work.git(&["tag", "light"]).await.expect_ok();
    work.git(&["tag", "-a", "annotated", "-m", "a release"])
        .await
        .expect_ok();
    let annotated = work.git(&["rev-parse", ANNOTATED]).await.expect_ok();
    assert_ne!(annotated, two, "an annotated tag is an object of its own");
    let refs = [(MAIN, two.as_str()), (LIGHT, &two), (ANNOTATED, &annotated)];
    let state = alice.later(2).state("x", &refs);
    network.at(2).publish_all(&[&state]).await;
    hosted
        .push(&network.at(2), &[&format!(":{DEV}"), LIGHT, ANNOTATED])
        .await;
    let snapshot = network
        .convergence()
        .serving([&state])
        .with_refs(repo, &refs)
        .wait()
        .await;
    let listed = snapshot.refs[repo].as_ref().unwrap();
    assert!(
        listed.contains(&format!("{two}\t{ANNOTATED}^{{}}")),
        "{listed}"
    );

    // Rewritten history.
    work.git(&["checkout", "-q", "--orphan", "next"])
        .await
        .expect_ok();
    let three = work.commit("a new root").await;
    let refs = [(MAIN, three.as_str()), (ANNOTATED, &annotated)];
    let state = alice.later(3).state("x", &refs);
    network.at(0).publish_all(&[&state]).await;
    hosted
        .push(
            &network.at(0),
            &[&format!("+next:{MAIN}"), &format!(":{LIGHT}")],
        )
        .await;
    network
        .convergence()
        .serving([&state])
        .with_refs(repo, &refs)
        .wait()
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repository_deleted_at_one_server_is_gone_from_all() {
    let (network, alice) = (Network::start(3).await, Author::new().earlier(100));
    let (kept, gone) = (
        network.host(0, &alice, "kept").await,
        network.host(1, &alice, "gone").await,
    );
    network
        .convergence()
        .serving(kept.signed())
        .serving(gone.signed())
        .wait()
        .await;

    // Deleted by its owner, at a server that it was not pushed to.
    let coordinate = gone.repo.to_string();
    let deletion = alice.later(5).sign(5, "", &[&["a", &coordinate]]);
    network.at(2).publish_all(&[&deletion]).await;
    let convergence = network
        .convergence()
        .serving(kept.signed())
        .serving([&deletion]);
    let convergence = convergence.without([&gone.announcement]);
    convergence
        .without_repo(&gone.repo)
        .with_refs(&kept.repo, &[(MAIN, &kept.first)])
        .wait()
        .await;
}
