//! Contributors bring pull requests to places of their own (GRASP-06).

use grasp_core::service::npub;
use grasp_tests::{AdjustableClock, Author, Instance, Leftovers, Workdir};
use nostr::event::Event;

async fn open() -> Instance {
    Instance::with(|settings| settings.policy.contributor_proposals = true).await
}

/// Where somebody's place for pull requests to repositories of this name is.
fn place(instance: &Instance, who: &Author, name: &str) -> String {
    format!("http://{}/prs/{}/{name}.git", instance.address(), npub(&who.key()))
}

/// A pull request that names a place under `clone`.
fn request(by: &Author, to: &Author, name: &str, tip: &str, place: &str) -> Event {
    let to = to.repo(name).to_string();
    by.sign(1618, "please pull", &[&["a", &to], &["c", tip], &["clone", place]])
}

async fn accepted(instance: &Instance, event: &Event) -> bool {
    instance.ingest(vec![event.clone()]).await[0].answer().accepted
}

async fn listed(url: &str) -> String {
    Workdir::empty().git(&["ls-remote", url]).await.expect_ok()
}

#[tokio::test]
async fn without_the_setting_there_is_no_such_place_and_with_it_all_say_so() {
    let (closed, open) = (Instance::start().await, open().await);
    let bob = Author::new();
    let path =
        format!("/prs/{}/audit-probe.git/info/refs?service=git-upload-pack", npub(&bob.key()));
    assert_eq!(closed.get(&path, &[]).await.status, 404);
    assert_eq!(open.get(&path, &[]).await.status, 200);
    let card = [("Accept", "application/nostr+json")];
    assert!(!closed.get("/", &card).await.body.contains("GRASP-06"));
    assert!(open.get("/", &card).await.body.contains("GRASP-06"));
    let tip = "a".repeat(64);
    let event = request(&bob, &bob, "x", &tip, &place(&closed, &bob, "x"));
    assert!(!accepted(&closed, &event).await);
}

#[tokio::test]
async fn every_place_is_an_empty_repository_and_asking_makes_nothing() {
    let (instance, bob) = (open().await, Author::new());
    let url = place(&instance, &bob, "x");
    for version in ["0", "1", "2"] {
        let version = format!("protocol.version={version}");
        let clone = Workdir::empty();
        clone.git(&["-c", &version, "clone", "-q", &url, "."]).await.expect_ok();
        assert_eq!(clone.git(&["-c", &version, "ls-remote", &url]).await.expect_ok(), "");
    }
    let path = url.split_once(&instance.address().to_string()).unwrap().1;
    let push = instance.get(&format!("{path}/info/refs?service=git-receive-pack"), &[]).await;
    assert_eq!(push.status, 200);
    assert!(push.body.contains("report-status"), "{push:?}");
    for path in [path.replace("npub1", "npub2"), path.replace("x.git", "..%2fx.git")] {
        let path = format!("{path}/info/refs?service=git-upload-pack");
        assert_eq!(instance.get(&path, &[]).await.status, 404, "{path}");
    }
    let families = instance.repositories().join("prs/families");
    assert!(grasp_tests::files(&families).is_empty());
}

#[tokio::test]
async fn only_pull_requests_come_in_and_refusals_do_not_sound_like_a_missing_page() {
    let (instance, bob) = (open().await, Author::new());
    let url = place(&instance, &bob, "fresh");
    let work = Workdir::init().await;
    work.commit("first").await;
    for name in ["refs/heads/main", "refs/tags/v1", "refs/nostr/not-a-valid-event-id"] {
        let said = work.git(&["push", &url, &format!("HEAD:{name}")]).await.expect_refused();
        assert!(said.contains("[remote rejected]"), "{said}");
        assert!(!said.contains("not found") && !said.contains("404"), "{said}");
    }
    let unknown = format!("HEAD:refs/nostr/{}", "b".repeat(64));
    work.git(&["push", &url, &unknown]).await.expect_ok();
    assert_eq!(listed(&url).await, "", "nobody has signed for it");
}

#[tokio::test]
async fn a_request_for_an_unknown_repository_waits_for_what_its_author_brings() {
    let (instance, alice, bob) = (open().await, Author::new(), Author::new());
    let url = place(&instance, &bob, "x");
    let synthetic = request(&bob, &alice, "x", &"a".repeat(64), &url);
    assert!(accepted(&instance, &synthetic).await && !instance.serves(&synthetic).await);
    let work = Workdir::init().await;
    let tip = work.commit("work").await;
    for wrong in [
        url.replace(&instance.address().to_string(), "them.example"),
        place(&instance, &alice, "x"),
        place(&instance, &bob, "y"),
        format!("{url}?x"),
    ] {
        assert!(!accepted(&instance, &request(&bob, &alice, "x", &tip, &wrong)).await, "{wrong}");
    }
    let event = request(&bob, &alice, "x", &tip, &url);
    let name = format!("refs/nostr/{}", event.id);
    assert!(accepted(&instance, &event).await && !instance.serves(&event).await);
    work.git(&["push", &url, &format!("{tip}:{name}")]).await.expect_ok();
    assert!(instance.serves(&event).await);
    assert_eq!(listed(&url).await, format!("{tip}\t{name}"));
    let clone = Workdir::init().await;
    clone.git(&["fetch", "-q", &url, &name]).await.expect_ok();
    assert_eq!(clone.git(&["rev-parse", "FETCH_HEAD"]).await.expect_ok(), tip);
    // It is there already, and stays so after a restart.
    work.git(&["push", &url, &format!("{tip}:{name}")]).await.expect_ok();
    let instance = instance.restart().await;
    instance.purgatory().run_maintenance().await.unwrap();
    assert_eq!(listed(&url).await, format!("{tip}\t{name}"));
    assert_eq!(instance.until_idle().await, Leftovers::default());
}

#[tokio::test]
async fn a_request_to_a_hosted_repository_is_mirrored_there_whichever_comes_first() {
    for event_first in [true, false] {
        let (instance, alice, bob) = (open().await, Author::new(), Author::new());
        let work = instance.host(&alice, "x").await;
        let tip = work.commit("work").await;
        let url = place(&instance, &bob, "x");
        let event = request(&bob, &alice, "x", &tip, &url);
        let spec = format!("{tip}:refs/nostr/{}", event.id);
        if event_first {
            assert!(accepted(&instance, &event).await && !instance.serves(&event).await);
            work.git(&["push", &url, &spec]).await.expect_ok();
        } else {
            work.git(&["push", &url, &spec]).await.expect_ok();
            assert!(accepted(&instance, &event).await);
        }
        assert!(instance.serves(&event).await, "event first: {event_first}");
        let shown = format!("{tip}\trefs/nostr/{}", event.id);
        assert!(instance.refs(&alice.repo("x")).await.contains(&shown));
        assert_eq!(listed(&url).await, shown);
    }
}

/// The steps in which ngit brings a pull request: it publishes the event last, other clients in other orders.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    PushToPlace,
    PushToRepository,
    Publish,
}

#[tokio::test]
async fn a_request_that_is_pushed_to_both_places_is_served_by_both_in_every_order() {
    use Step::{Publish, PushToPlace, PushToRepository};
    let orders = [
        [PushToPlace, PushToRepository, Publish],
        [PushToRepository, PushToPlace, Publish],
        [PushToPlace, Publish, PushToRepository],
        [PushToRepository, Publish, PushToPlace],
        [Publish, PushToPlace, PushToRepository],
        [Publish, PushToRepository, PushToPlace],
    ];
    let (instance, alice, bob) = (open().await, Author::new(), Author::new());
    let work = instance.host(&alice, "x").await;
    let repository = instance.clone_url(&alice.repo("x"));
    let place = place(&instance, &bob, "x");
    for order in orders {
        let tip = work.commit(&format!("{order:?}")).await;
        let event = request(&bob, &alice, "x", &tip, &place);
        let spec = format!("{tip}:refs/nostr/{}", event.id);
        for step in order {
            match step {
                PushToPlace => _ = work.git(&["push", &place, &spec]).await.expect_ok(),
                PushToRepository => _ = work.git(&["push", &repository, &spec]).await.expect_ok(),
                Publish => assert!(accepted(&instance, &event).await),
            }
        }
        assert!(instance.serves(&event).await, "{order:?}");
        let shown = format!("{tip}\trefs/nostr/{}", event.id);
        assert!(listed(&repository).await.contains(&shown), "{order:?}");
        assert!(listed(&place).await.contains(&shown), "{order:?}");
    }
    assert_eq!(instance.until_idle().await, Leftovers::default());
}

#[tokio::test]
async fn what_is_pushed_to_a_repository_does_not_show_at_a_contributors_place() {
    let (instance, alice, bob) = (open().await, Author::new(), Author::new());
    let work = instance.host(&alice, "x").await;
    let tip = work.commit("work").await;
    let url = place(&instance, &bob, "x");
    let event = request(&bob, &alice, "x", &tip, &url);
    assert!(accepted(&instance, &event).await);
    let owners = instance.clone_url(&alice.repo("x"));
    work.git(&["push", &owners, &format!("{tip}:refs/nostr/{}", event.id)]).await.expect_ok();
    assert!(instance.serves(&event).await);
    assert_eq!(listed(&url).await, "");
    // Its author may bring it there later.
    work.git(&["push", &url, &format!("{tip}:refs/nostr/{}", event.id)]).await.expect_ok();
    assert_eq!(listed(&url).await, format!("{tip}\trefs/nostr/{}", event.id));
}

#[tokio::test]
async fn what_its_author_did_not_sign_for_this_place_does_not_come_in() {
    let (instance, alice, bob, eve) = (open().await, Author::new(), Author::new(), Author::new());
    let work = instance.host(&alice, "x").await;
    let (right, wrong) = (work.commit("right").await, work.commit("wrong").await);
    let url = place(&instance, &bob, "x");
    let event = request(&bob, &alice, "x", &right, &url);
    let name = format!("refs/nostr/{}", event.id);
    // Somebody else brings it to their own place before anybody has seen it.
    let eves = place(&instance, &eve, "x");
    work.git(&["push", &eves, &format!("{right}:{name}")]).await.expect_ok();
    assert!(accepted(&instance, &event).await && !instance.serves(&event).await);
    for (url, tip) in [(&url, &wrong), (&eves, &right)] {
        work.git(&["push", url, &format!("{tip}:{name}")]).await.expect_refused();
        assert_eq!(listed(url).await, "");
        assert!(!instance.serves(&event).await);
    }
    work.git(&["push", &url, &format!("{right}:{name}")]).await.expect_ok();
    assert!(instance.serves(&event).await);
}

#[tokio::test]
async fn a_place_goes_with_its_last_pull_request_and_with_what_nobody_signed() {
    let time = AdjustableClock::default();
    let instance = Instance::with_settings_and(time.settings(), |settings| {
        settings.policy.contributor_proposals = true
    })
    .await;
    let (alice, bob) = (Author::new(), Author::new());
    let work = Workdir::init().await;
    let tip = work.commit("work").await;
    let url = place(&instance, &bob, "x");
    let families = instance.repositories().join("prs/families");
    let event = request(&bob, &alice, "x", &tip, &url);
    assert!(accepted(&instance, &event).await);
    work.git(&["push", &url, &format!("{tip}:refs/nostr/{}", event.id)]).await.expect_ok();
    assert!(instance.serves(&event).await && !grasp_tests::files(&families).is_empty());
    let deletion = bob.later(1).sign(5, "", &[&["e", &event.id.to_hex()]]);
    assert!(accepted(&instance, &deletion).await);
    instance.settle("x").await;
    grasp_tests::eventually(|| grasp_tests::files(&families).is_empty().then_some(())).await;
    assert_eq!(listed(&url).await, "");

    work.git(&["push", &url, &format!("{tip}:refs/nostr/{}", "b".repeat(64))]).await.expect_ok();
    assert!(!grasp_tests::files(&families).is_empty());
    time.advance(21 * 60);
    instance.settle("another").await;
    grasp_tests::eventually(|| grasp_tests::files(&families).is_empty().then_some(())).await;
}
