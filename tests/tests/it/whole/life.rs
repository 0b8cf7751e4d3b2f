//! A repository's life at three servers: whatever happens at one of them happens at all.

use grasp_tests::Author;

use super::net::{MAIN, Net};

const DEV: &str = "refs/heads/dev";
const LIGHT: &str = "refs/tags/light";
const TOLD: &str = "refs/tags/told";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_pushed_to_one_server_is_served_by_all() {
    let (net, alice) = (Net::of(3).await, Author::new().earlier(100));
    let hosted = net.host(0, &alice, "x").await;
    let (repo, work, one) = (&hosted.repo, &hosted.work, hosted.first.as_str());
    net.equal().serving(hosted.signed()).with_refs(repo, &[(MAIN, one)]).wait().await;

    // An update and a new branch, at another server.
    let two = work.commit("second").await;
    let state = alice.later(1).state("x", &[(MAIN, &two), (DEV, one)]);
    net.at(1).publish_all(&[&state]).await;
    hosted.push(&net.at(1), &["main", &format!("{one}:{DEV}")]).await;
    let equal = net.equal().serving([&state]).without([&hosted.state]);
    equal.with_refs(repo, &[(MAIN, &two), (DEV, one)]).wait().await;

    // A branch is deleted and two tags are made, one of them with words, at the third.
    work.git(&["tag", "light"]).await.expect_ok();
    work.git(&["tag", "-a", "told", "-m", "a release"]).await.expect_ok();
    let told = work.git(&["rev-parse", TOLD]).await.expect_ok();
    assert_ne!(told, two, "a tag is an object of its own");
    let refs = [(MAIN, two.as_str()), (LIGHT, &two), (TOLD, &told)];
    let state = alice.later(2).state("x", &refs);
    net.at(2).publish_all(&[&state]).await;
    hosted.push(&net.at(2), &[&format!(":{DEV}"), LIGHT, TOLD]).await;
    let sight = net.equal().serving([&state]).with_refs(repo, &refs).wait().await;
    let listed = sight.refs[repo].as_ref().unwrap();
    assert!(listed.contains(&format!("{two}\t{TOLD}^{{}}")), "{listed}");

    // History is rewritten, and HEAD moves.
    work.git(&["checkout", "-q", "--orphan", "next"]).await.expect_ok();
    let three = work.commit("from nothing").await;
    let refs = [(MAIN, three.as_str()), (TOLD, &told)];
    let state = alice.later(3).state("x", &refs);
    net.at(0).publish_all(&[&state]).await;
    hosted.push(&net.at(0), &[&format!("+next:{MAIN}"), &format!(":{LIGHT}")]).await;
    net.equal().serving([&state]).with_refs(repo, &refs).wait().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repository_that_is_taken_back_at_one_server_is_gone_from_all() {
    let (net, alice) = (Net::of(3).await, Author::new().earlier(100));
    let (kept, gone) = (net.host(0, &alice, "kept").await, net.host(1, &alice, "gone").await);
    net.equal().serving(kept.signed()).serving(gone.signed()).wait().await;

    // Deleted by its owner, at a server that it was not pushed to.
    let coordinate = gone.repo.to_string();
    let deletion = alice.later(5).sign(5, "", &[&["a", &coordinate]]);
    net.at(2).publish_all(&[&deletion]).await;
    let equal = net.equal().serving(kept.signed()).serving([&deletion]);
    let equal = equal.without([&gone.announcement]);
    equal.without_repo(&gone.repo).with_refs(&kept.repo, &[(MAIN, &kept.first)]).wait().await;
}
