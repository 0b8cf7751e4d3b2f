//! A private certificate authority: one setting makes sync and git trust it.

use grasp_tests::{Author, GitServer, Instance, Workdir, eventually};

use crate::hunting::{MAIN, announce, hosted_at, with_short_delays};
use crate::tls_front::{Authority, Front};

#[tokio::test(flavor = "multi_thread")]
async fn events_and_git_data_come_over_tls_signed_by_the_operators_authority() {
    let (authority, alice) = (Authority::new("ours"), Author::new());
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), authority.pem()).unwrap();
    let from = Instance::with(with_short_delays).await;
    let front = Front::start(from.address(), authority.certify("localhost", 4000)).await;
    let name = front.host().parse().unwrap();
    let from = from
        .restart_with(|settings| settings.policy.service = name)
        .await;
    let far = format!("wss://{}", front.host());
    let to = Instance::with(|settings| {
        with_short_delays(settings);
        settings.trusted_roots = Some(file.path().to_owned());
        settings.sync.engine.bootstrap = vec![far.parse().unwrap()];
    })
    .await;

    let repo = alice.repo("x");
    let (here, there) = (
        to.clone_url(&repo),
        format!("https://{}{}", front.host(), from.path(&repo)),
    );
    let tags: [&[&str]; 3] = [
        &["d", "x"],
        &["clone", &here, &there],
        &["relays", &to.relay_url(), &far],
    ];
    let announcement = alice.sign(30617, "", &tags);
    let work = Workdir::init().await;
    let commit = work.commit("first").await;
    let state = alice.state("x", &[(MAIN, &commit)]);
    from.ingest(vec![announcement.clone(), state.clone()]).await;
    work.git(&["push", &from.clone_url(&repo), "main"])
        .await
        .expect_ok();
    to.until_serves(&state).await;
    assert!(to.serves(&announcement).await);
    // Nothing came but over TLS: only the proxy knows the address of the other server.
    assert!(front.connections() >= 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn git_data_is_not_fetched_over_tls_signed_by_an_unknown_authority() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), ours.pem()).unwrap();
    let (server, alice) = (GitServer::start().await, Author::new());
    let front = Front::start(server.address(), theirs.certify("localhost", 4000)).await;
    let instance = Instance::with(|settings| {
        with_short_delays(settings);
        settings.trusted_roots = Some(file.path().to_owned());
    })
    .await;
    let (_work, commit) = hosted_at(&server, "x").await;
    let url = format!("https://{}/x", front.host());
    let announcement = announce(&alice, "x", &instance, &[&url]);
    let state = alice.state("x", &[(MAIN, &commit)]);
    instance
        .ingest_from_relay(vec![announcement, state.clone()])
        .await;
    eventually(|| (front.connections() >= 2).then_some(())).await;
    assert!(server.requests().is_empty() && !instance.serves(&state).await);
}
