//! Two servers that keep each other complete.

use grasp_tests::{Instance, Maker, Workdir};

async fn instance(bootstrap: &[&Instance]) -> Instance {
    Instance::with(|settings| {
        let sync = settings.sync.as_mut().unwrap();
        let urls = bootstrap.iter().map(|other| other.relay_url().parse().unwrap());
        sync.engine.bootstrap = urls.collect();
        sync.outbound.allow_private = true;
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_server_has_the_other_gets_stored_and_live() {
    let a = instance(&[]).await;
    let b = instance(&[&a]).await;
    let alice = Maker::new();
    let repo = alice.repo("x");
    let work = Workdir::init().await;
    let commit = work.commit("first").await;
    let announced = alice.announce_on("x", &[a.service(), b.service()]);
    let state = alice.state("x", &[("refs/heads/main", &commit)]);
    a.take(vec![announced.clone(), state.clone()]).await;
    work.git(&["push", &a.clone_url(&repo), "main"]).await.expect_ok();
    let issue = alice.issue(&repo, "it does not work");
    let comment = alice.sign(1111, "it does for me", &[&["E", &issue.id.to_hex()]]);
    a.take(vec![issue.clone(), comment.clone()]).await;
    a.until_serves(&comment).await;

    // The announcement and its state wait there for the git data, which comes by a push.
    let mut news = b.server().keeper().news();
    let holds = |name: &str| {
        let name = name.parse().unwrap();
        b.server().keeper().ask(move |held| !held.candidates(&name).is_empty())
    };
    while !holds("x").await.unwrap() {
        let _ = tokio::time::timeout(std::time::Duration::from_millis(50), news.recv()).await;
    }
    work.git(&["push", &b.clone_url(&repo), "main"]).await.expect_ok();
    for event in [&announced, &state, &issue, &comment] {
        b.until_serves(event).await;
    }

    let live = alice.later(1).issue(&repo, "live");
    a.take(vec![live.clone()]).await;
    b.until_serves(&live).await;

    // And the other way round, for the announcement names them both.
    let back = alice.later(2).issue(&repo, "the other way");
    b.take(vec![back.clone()]).await;
    a.until_serves(&back).await;
    a.stop().await;
    b.stop().await;
}
