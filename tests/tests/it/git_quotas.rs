//! Quotas of git data: of owners, of repositories, and of the server.

use grasp_core::quota::{Quota, QuotaSubject};
use grasp_core::resources::Claimant;
use grasp_core::service::npub;
use grasp_tests::{Author, Instance, Settings, Workdir};

const MAIN: &str = "refs/heads/main";

/// Signs a commit as the main branch, and pushes it.
async fn push(
    instance: &Instance,
    author: &Author,
    name: &str,
    work: &Workdir,
    seconds: u64,
) -> grasp_tests::GitOutput {
    let tip = work.git(&["rev-parse", "HEAD"]).await.expect_ok();
    let state = author.later(seconds).state(name, &[(MAIN, &tip)]);
    instance.ingest(vec![state]).await;
    let url = instance.clone_url(&author.repo(name));
    work.git(&["push", "-f", &url, "HEAD:main"]).await
}

#[tokio::test]
async fn an_owner_shares_one_quota_among_all_repositories() {
    let instance = Instance::with(|settings| settings.quota.owner_bytes = 500_000).await;
    let (alice, bob) = (Author::new(), Author::new());
    let x = instance.host(&alice, "x").await;
    let y = instance.host(&alice, "y").await;
    let z = instance.host(&bob, "z").await;
    x.commit_incompressible(300_000).await;
    let pushed = push(&instance, &alice, "x", &x, 1).await;
    assert!(pushed.ok && !pushed.err.contains("warning"), "{pushed:?}");
    y.commit_incompressible(310_000).await;
    let before = instance.refs(&alice.repo("y")).await;
    let refused = push(&instance, &alice, "y", &y, 1).await.expect_refused();
    let expected = format!("{} uses 29", npub(&alice.key()));
    assert!(refused.contains(&expected), "{refused}");
    assert!(
        refused.contains("of 488.3 KiB here; this push needs "),
        "{refused}"
    );
    assert_eq!(instance.refs(&alice.repo("y")).await, before);
    // What another owner has does not count.
    z.commit_incompressible(310_000).await;
    push(&instance, &bob, "z", &z, 1).await.expect_ok();

    // The operator gives more, which a restart keeps.
    let quota = instance.purgatory().quota();
    let subject = QuotaSubject::Owner(alice.key());
    quota.set(subject.clone(), Some(650_000)).await.unwrap();
    let pushed = push(&instance, &alice, "y", &y, 2).await;
    assert!(pushed.ok, "{}", pushed.err);
    let warning = format!("remote: warning: {} uses 59", npub(&alice.key()));
    assert!(pushed.err.contains(&warning), "{}", pushed.err);
    let instance = instance.restart().await;
    let quotas = instance.purgatory().quota().quotas();
    assert_eq!(quotas.overrides, [(subject.clone(), 650_000)].into());
    instance
        .purgatory()
        .quota()
        .set(subject, None)
        .await
        .unwrap();
    assert_eq!(
        instance.purgatory().quota().quotas().of_owner(alice.key()),
        500_000
    );
    // Nothing more fits, but what needs no object can be pushed.
    let first = y.git(&["rev-parse", "HEAD~1"]).await.expect_ok();
    y.git(&["reset", "-q", "--hard", &first]).await.expect_ok();
    push(&instance, &alice, "y", &y, 3).await.expect_ok();
}

#[tokio::test]
async fn a_full_server_refuses_pushes_and_serves_clones() {
    let instance = Instance::with(|settings| settings.quota.total_bytes = Some(400_000)).await;
    let (alice, bob) = (Author::new(), Author::new());
    let x = instance.host(&alice, "x").await;
    let y = instance.host(&bob, "y").await;
    x.commit_incompressible(300_000).await;
    push(&instance, &alice, "x", &x, 1).await.expect_ok();
    y.commit_incompressible(200_000).await;
    let refused = push(&instance, &bob, "y", &y, 1).await.expect_refused();
    assert!(refused.contains("this server uses 29"), "{refused}");
    assert!(
        refused.contains("its operator has to make room (quota.total_bytes)"),
        "{refused}"
    );
    let clone = Workdir::empty();
    let url = instance.clone_url(&alice.repo("x"));
    clone.git(&["clone", "-q", &url, "."]).await.expect_ok();
}

#[tokio::test]
async fn pushes_in_progress_count_against_each_other() {
    let instance = Instance::with(|settings| {
        settings.quota.owner_bytes = 1_000;
        settings.git.repository_bytes = 800;
    })
    .await;
    let alice = Author::new();
    let owner = Claimant::default().signed_by(alice.key());
    let quota = instance.purgatory().quota();
    let (x, y) = (alice.repo("x"), alice.repo("y"));
    let mut first = quota.open(&x, owner).await.unwrap();
    let mut second = quota.open(&y, owner).await.unwrap();
    first.grow_to(600).unwrap();
    second.grow_to(400).unwrap();
    second.grow_to(400).unwrap();
    let refused = second.grow_to(401).unwrap_err();
    assert_eq!(refused.quota, Quota::Owner(alice.key()));
    assert_eq!((refused.used, refused.limit), (600, 1_000));
    let refused = second.confirm(500).await.unwrap().unwrap_err();
    assert_eq!((refused.used, refused.needed), (600, 500));
    // A stranger's pull request leaves a quarter to the owner.
    let stranger = Claimant::default().signed_by(Author::new().key());
    assert_eq!(quota.room(&y, &stranger).await.unwrap(), 0);
    drop(first);
    assert_eq!(quota.room(&y, &stranger).await.unwrap(), 200);
    assert_eq!(quota.room(&y, &owner).await.unwrap(), 400);
    second.grow_to(800).unwrap();
    let refused = second.grow_to(801).unwrap_err();
    assert_eq!(refused.quota, Quota::Repository(y));
    drop(second);
    assert_eq!(quota.room(&x, &owner).await.unwrap(), 800);
}

#[tokio::test]
async fn a_quota_of_one_repository_replaces_that_of_the_settings() {
    let git = grasp_relay::git_http::GitLimits {
        repository_bytes: 100_000,
        ..Default::default()
    };
    let settings = Settings {
        git,
        ..Settings::default()
    };
    let instance = Instance::with_settings(settings).await;
    let alice = Author::new();
    let x = instance.host(&alice, "x").await;
    x.commit_incompressible(200_000).await;
    let refused = push(&instance, &alice, "x", &x, 1).await.expect_refused();
    assert!(refused.contains("/x uses "), "{refused}");
    assert!(refused.contains("git.repository_bytes"), "{refused}");
    let subject = QuotaSubject::Repository(alice.repo("x"));
    let quota = instance.purgatory().quota();
    quota.set(subject, Some(300_000)).await.unwrap();
    push(&instance, &alice, "x", &x, 2).await.expect_ok();
}
