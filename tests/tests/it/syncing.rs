//! Two servers that keep each other complete.

use grasp_tests::{Instance, Maker, Outside, Workdir};

async fn instance(bootstrap: &[&Instance]) -> Instance {
    Instance::with(|settings| {
        let sync = &mut settings.sync;
        let urls = bootstrap.iter().map(|other| other.relay_url().parse().unwrap());
        sync.engine.bootstrap = urls.collect();
        settings.outbound.allow_private = true;
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

/// A working copy of one commit and this many annotated tags, each an object of its own, without any ref: git is then
/// quick to push them. The tags with their objects, and the commit.
async fn tagged(count: usize) -> (Workdir, Vec<(String, String)>) {
    let work = Workdir::init().await;
    let who = "alice <alice@example.com> 1700000000 +0000";
    let mut stream = format!("commit refs/heads/main\ncommitter {who}\ndata 5\nfirst\n");
    for n in 0..count {
        stream += &format!("tag v{n}\nfrom refs/heads/main\ntagger {who}\ndata 3\ntag\n");
    }
    work.pipe(&["fast-import", "--quiet"], stream.as_bytes()).await;
    let listed = work.git(&["for-each-ref", "--format=%(refname) %(objectname)"]).await.expect_ok();
    let refs = listed.lines().map(|line| line.split_once(' ').unwrap());
    let refs = refs.map(|(name, oid)| (name.to_owned(), oid.to_owned())).collect();
    work.git(&["pack-refs", "--all"]).await.expect_ok();
    std::fs::remove_file(work.path().join(".git/packed-refs")).unwrap();
    (work, refs)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repository_of_5000_tags_is_hosted_synced_and_hunted() {
    let a = instance(&[]).await;
    let b = instance(&[&a]).await;
    let alice = Maker::new();
    let repo = alice.repo("x");
    let (work, refs) = tagged(5_000).await;
    let named: Vec<_> = refs.iter().map(|(name, oid)| (name.as_str(), oid.as_str())).collect();
    let state = alice.state("x", &named);
    assert!(state.as_json().len() > 300 * 1024);
    let announced = alice.announce_on("x", &[a.service(), b.service()]);
    Outside::at(a.address()).send(&[&announced, &state]).await;
    let specs: Vec<_> = refs.iter().map(|(name, oid)| format!("{oid}:{name}")).collect();
    let url = a.clone_url(&repo);
    let push = ["push", "-q", &url].into_iter().chain(specs.iter().map(String::as_str));
    work.git(&push.collect::<Vec<_>>()).await.expect_ok();
    a.until_serves(&state).await;
    b.until_serves(&state).await;
    let listed = a.refs(&repo).await;
    assert_eq!(listed.lines().filter(|line| line.contains("refs/tags/")).count(), 10_000);
    assert_eq!(b.refs(&repo).await, listed);
    a.stop().await;
    b.stop().await;
}
