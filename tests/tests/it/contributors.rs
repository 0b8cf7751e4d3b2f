//! Pull requests that contributors push to endpoints of their own below `/prs/` (GRASP-06).

use grasp_core::service::npub;
use grasp_tests::{AdjustableClock, Author, Instance, Leftovers, Workdir};
use nostr::event::Event;

async fn start_open() -> Instance {
    Instance::with(|settings| settings.policy.contributor_proposals = true).await
}

/// Returns the URL of a contributor's endpoint for pull requests to repositories of this name.
fn endpoint(instance: &Instance, contributor: &Author, name: &str) -> String {
    format!(
        "http://{}/prs/{}/{name}.git",
        instance.address(),
        npub(&contributor.key())
    )
}

/// Signs a pull request with this URL under `clone`.
fn request(by: &Author, to: &Author, name: &str, tip: &str, url: &str) -> Event {
    let to = to.repo(name).to_string();
    by.sign(
        1618,
        "please pull",
        &[&["a", &to], &["c", tip], &["clone", url]],
    )
}

async fn accepted(instance: &Instance, event: &Event) -> bool {
    instance.ingest(vec![event.clone()]).await[0]
        .answer()
        .is_accepted
}

async fn listed(url: &str) -> String {
    Workdir::empty().git(&["ls-remote", url]).await.expect_ok()
}

#[tokio::test]
async fn the_endpoint_exists_and_is_advertised_only_with_the_setting() {
    let (closed, open) = (Instance::start().await, start_open().await);
    let bob = Author::new();
    let path = format!(
        "/prs/{}/audit-probe.git/info/refs?service=git-upload-pack",
        npub(&bob.key())
    );
    assert_eq!(closed.get(&path, &[]).await.status, 404);
    assert_eq!(open.get(&path, &[]).await.status, 200);
    let document = [("Accept", "application/nostr+json")];
    assert!(!closed.get("/", &document).await.body.contains("GRASP-06"));
    assert!(open.get("/", &document).await.body.contains("GRASP-06"));
    let tip = "a".repeat(64);
    let event = request(&bob, &bob, "x", &tip, &endpoint(&closed, &bob, "x"));
    assert!(!accepted(&closed, &event).await);
}

#[tokio::test]
async fn every_endpoint_is_an_empty_repository_and_reading_it_creates_nothing() {
    let (instance, bob) = (start_open().await, Author::new());
    let url = endpoint(&instance, &bob, "x");
    for version in ["0", "1", "2"] {
        let version = format!("protocol.version={version}");
        let clone = Workdir::empty();
        clone
            .git(&["-c", &version, "clone", "-q", &url, "."])
            .await
            .expect_ok();
        assert_eq!(
            clone
                .git(&["-c", &version, "ls-remote", &url])
                .await
                .expect_ok(),
            ""
        );
    }
    let path = url.split_once(&instance.address().to_string()).unwrap().1;
    let push = instance
        .get(&format!("{path}/info/refs?service=git-receive-pack"), &[])
        .await;
    assert_eq!(push.status, 200);
    assert!(push.body.contains("report-status"), "{push:?}");
    for path in [
        path.replace("npub1", "npub2"),
        path.replace("x.git", "..%2fx.git"),
    ] {
        let path = format!("{path}/info/refs?service=git-upload-pack");
        assert_eq!(instance.get(&path, &[]).await.status, 404, "{path}");
    }
    let repositories = instance.repositories().join("prs/repositories");
    assert!(grasp_tests::files(&repositories).is_empty());
}

#[tokio::test]
async fn only_pull_requests_are_accepted_and_refusals_are_not_reported_as_404() {
    let (instance, bob) = (start_open().await, Author::new());
    let url = endpoint(&instance, &bob, "fresh");
    let work = Workdir::init().await;
    work.commit("first").await;
    for name in [
        "refs/heads/main",
        "refs/tags/v1",
        "refs/nostr/not-a-valid-event-id",
    ] {
        let error = work
            .git(&["push", &url, &format!("HEAD:{name}")])
            .await
            .expect_refused();
        assert!(error.contains("[remote rejected]"), "{error}");
        assert!(
            !error.contains("not found") && !error.contains("404"),
            "{error}"
        );
    }
    let unknown = format!("HEAD:refs/nostr/{}", "b".repeat(64));
    work.git(&["push", &url, &unknown]).await.expect_ok();
    assert_eq!(listed(&url).await, "", "its event is unknown");
}

#[tokio::test]
async fn a_request_to_an_unknown_repository_is_held_until_its_author_pushes() {
    let (instance, alice, bob) = (start_open().await, Author::new(), Author::new());
    let url = endpoint(&instance, &bob, "x");
    let synthetic = request(&bob, &alice, "x", &"a".repeat(64), &url);
    assert!(accepted(&instance, &synthetic).await && !instance.serves(&synthetic).await);
    let work = Workdir::init().await;
    let tip = work.commit("work").await;
    for wrong in [
        url.replace(&instance.address().to_string(), "them.example"),
        endpoint(&instance, &alice, "x"),
        endpoint(&instance, &bob, "y"),
        format!("{url}?x"),
    ] {
        assert!(
            !accepted(&instance, &request(&bob, &alice, "x", &tip, &wrong)).await,
            "{wrong}"
        );
    }
    let event = request(&bob, &alice, "x", &tip, &url);
    let name = format!("refs/nostr/{}", event.id);
    assert!(accepted(&instance, &event).await && !instance.serves(&event).await);
    work.git(&["push", &url, &format!("{tip}:{name}")])
        .await
        .expect_ok();
    assert!(instance.serves(&event).await);
    assert_eq!(listed(&url).await, format!("{tip}\t{name}"));
    let clone = Workdir::init().await;
    clone.git(&["fetch", "-q", &url, &name]).await.expect_ok();
    assert_eq!(
        clone.git(&["rev-parse", "FETCH_HEAD"]).await.expect_ok(),
        tip
    );
    // A second push of the same commit is accepted, and the ref survives a restart.
    work.git(&["push", &url, &format!("{tip}:{name}")])
        .await
        .expect_ok();
    let instance = instance.restart().await;
    instance.purgatory().run_maintenance().await.unwrap();
    assert_eq!(listed(&url).await, format!("{tip}\t{name}"));
    assert_eq!(instance.until_idle().await, Leftovers::default());
}

#[tokio::test]
async fn a_request_to_a_hosted_repository_is_served_there_in_either_order() {
    for (event_first, is_related) in [(true, true), (false, true), (true, false), (false, false)] {
        let (instance, alice, bob) = (start_open().await, Author::new(), Author::new());
        let work = instance.host(&alice, "x").await;
        if !is_related {
            // The event names the repository, whatever the history is.
            work.git(&["checkout", "-q", "--orphan", "other"])
                .await
                .expect_ok();
        }
        let tip = work.commit("work").await;
        let url = endpoint(&instance, &bob, "x");
        let event = request(&bob, &alice, "x", &tip, &url);
        let spec = format!("{tip}:refs/nostr/{}", event.id);
        if event_first {
            assert!(accepted(&instance, &event).await && !instance.serves(&event).await);
            work.git(&["push", &url, &spec]).await.expect_ok();
        } else {
            work.git(&["push", &url, &spec]).await.expect_ok();
            assert!(accepted(&instance, &event).await);
        }
        assert!(
            instance.serves(&event).await,
            "event first: {event_first}, shared history: {is_related}"
        );
        let shown = format!("{tip}\trefs/nostr/{}", event.id);
        assert!(instance.refs(&alice.repo("x")).await.contains(&shown));
        assert_eq!(listed(&url).await, shown);
    }
}

/// The steps of publishing a pull request: ngit publishes the event last, other clients in other orders.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    PushToEndpoint,
    PushToRepository,
    Publish,
}

#[tokio::test]
async fn a_request_that_is_pushed_to_both_endpoints_is_served_by_both_in_every_order() {
    use Step::{Publish, PushToEndpoint, PushToRepository};
    let orders = [
        [PushToEndpoint, PushToRepository, Publish],
        [PushToRepository, PushToEndpoint, Publish],
        [PushToEndpoint, Publish, PushToRepository],
        [PushToRepository, Publish, PushToEndpoint],
        [Publish, PushToEndpoint, PushToRepository],
        [Publish, PushToRepository, PushToEndpoint],
    ];
    let (instance, alice, bob) = (start_open().await, Author::new(), Author::new());
    let work = instance.host(&alice, "x").await;
    let repository = instance.clone_url(&alice.repo("x"));
    let own = endpoint(&instance, &bob, "x");
    for order in orders {
        let tip = work.commit(&format!("{order:?}")).await;
        let event = request(&bob, &alice, "x", &tip, &own);
        let spec = format!("{tip}:refs/nostr/{}", event.id);
        for step in order {
            match step {
                PushToEndpoint => _ = work.git(&["push", &own, &spec]).await.expect_ok(),
                PushToRepository => _ = work.git(&["push", &repository, &spec]).await.expect_ok(),
                Publish => assert!(accepted(&instance, &event).await),
            }
        }
        assert!(instance.serves(&event).await, "{order:?}");
        let shown = format!("{tip}\trefs/nostr/{}", event.id);
        assert!(listed(&repository).await.contains(&shown), "{order:?}");
        assert!(listed(&own).await.contains(&shown), "{order:?}");
    }
    assert_eq!(instance.until_idle().await, Leftovers::default());
}

#[tokio::test]
async fn a_push_to_the_repository_does_not_appear_at_the_contributors_endpoint() {
    let (instance, alice, bob) = (start_open().await, Author::new(), Author::new());
    let work = instance.host(&alice, "x").await;
    let tip = work.commit("work").await;
    let url = endpoint(&instance, &bob, "x");
    let event = request(&bob, &alice, "x", &tip, &url);
    assert!(accepted(&instance, &event).await);
    let owners = instance.clone_url(&alice.repo("x"));
    work.git(&["push", &owners, &format!("{tip}:refs/nostr/{}", event.id)])
        .await
        .expect_ok();
    assert!(instance.serves(&event).await);
    assert_eq!(listed(&url).await, "");
    // Its author may push it there later.
    work.git(&["push", &url, &format!("{tip}:refs/nostr/{}", event.id)])
        .await
        .expect_ok();
    assert_eq!(
        listed(&url).await,
        format!("{tip}\trefs/nostr/{}", event.id)
    );
}

#[tokio::test]
async fn commits_and_endpoints_that_the_author_did_not_sign_are_refused() {
    let (instance, alice, bob, eve) = (
        start_open().await,
        Author::new(),
        Author::new(),
        Author::new(),
    );
    let work = instance.host(&alice, "x").await;
    let (right, wrong) = (work.commit("right").await, work.commit("wrong").await);
    let url = endpoint(&instance, &bob, "x");
    let event = request(&bob, &alice, "x", &right, &url);
    let name = format!("refs/nostr/{}", event.id);
    // Another contributor pushes the commit to their own endpoint before the event is known.
    let eves = endpoint(&instance, &eve, "x");
    work.git(&["push", &eves, &format!("{right}:{name}")])
        .await
        .expect_ok();
    assert!(accepted(&instance, &event).await && !instance.serves(&event).await);
    for (url, tip) in [(&url, &wrong), (&eves, &right)] {
        work.git(&["push", url, &format!("{tip}:{name}")])
            .await
            .expect_refused();
        assert_eq!(listed(url).await, "");
        assert!(!instance.serves(&event).await);
    }
    work.git(&["push", &url, &format!("{right}:{name}")])
        .await
        .expect_ok();
    assert!(instance.serves(&event).await);
}

#[tokio::test]
async fn an_endpoint_is_removed_with_its_last_pull_request_and_expired_uploads() {
    let time = AdjustableClock::default();
    let instance = Instance::with_settings_and(time.settings(), |settings| {
        settings.policy.contributor_proposals = true
    })
    .await;
    let (alice, bob) = (Author::new(), Author::new());
    let work = Workdir::init().await;
    let tip = work.commit("work").await;
    let url = endpoint(&instance, &bob, "x");
    let repositories = instance.repositories().join("prs/repositories");
    let event = request(&bob, &alice, "x", &tip, &url);
    assert!(accepted(&instance, &event).await);
    work.git(&["push", &url, &format!("{tip}:refs/nostr/{}", event.id)])
        .await
        .expect_ok();
    assert!(instance.serves(&event).await && !grasp_tests::files(&repositories).is_empty());
    let deletion = bob.later(1).sign(5, "", &[&["e", &event.id.to_hex()]]);
    assert!(accepted(&instance, &deletion).await);
    instance.settle("x").await;
    grasp_tests::eventually(|| grasp_tests::files(&repositories).is_empty().then_some(())).await;
    assert_eq!(listed(&url).await, "");

    work.git(&[
        "push",
        &url,
        &format!("{tip}:refs/nostr/{}", "b".repeat(64)),
    ])
    .await
    .expect_ok();
    assert!(!grasp_tests::files(&repositories).is_empty());
    time.advance(21 * 60);
    instance.settle("another").await;
    grasp_tests::eventually(|| grasp_tests::files(&repositories).is_empty().then_some(())).await;
}

#[tokio::test]
async fn a_repository_takes_pull_requests_by_pushes_up_to_a_limit_and_says_so() {
    let instance = Instance::with(|settings| {
        settings.policy.contributor_proposals = true;
        settings.git.pushed_proposals = 2;
    })
    .await;
    let (alice, bob) = (Author::new(), Author::new());
    let url = endpoint(&instance, &bob, "x");
    let work = instance.host(&alice, "x").await;
    let hosted = instance.clone_url(&alice.repo("x"));
    let mut pushed = Vec::new();
    for n in 0..3 {
        let tip = work.commit(&format!("work {n}")).await;
        let event = request(&bob.later(n), &alice, "x", &tip, &url);
        assert!(accepted(&instance, &event).await);
        pushed.push(format!("{tip}:refs/nostr/{}", event.id));
        // It is stored with a ref at the repository that it is for.
        work.git(&["push", &hosted, &pushed[pushed.len() - 1]])
            .await
            .expect_ok();
    }
    assert_eq!(listed(&url).await, "");
    work.git(&["push", &url, &pushed[0]]).await.expect_ok();
    // Of one push, those that fit.
    let error = work
        .git(&["push", &url, &pushed[1], &pushed[2]])
        .await
        .expect_refused();
    let too_many = "the repository has as many pull requests as this server allows";
    assert_eq!(error.matches(too_many).count(), 1, "{error}");
    assert_eq!(listed(&url).await.lines().count(), 2);
}
