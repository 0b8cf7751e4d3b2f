//! A third-party nostr client, nostr-relay-pool, and the relay.

use std::collections::HashSet;
use std::time::Duration;

use grasp_tests::{Author, Instance, Workdir};
use nostr_relay_pool::prelude::{
    Event, Filter, Kind, Relay, RelayNotification, RelayOptions, RelayPool, ReqExitPolicy,
    SubscribeOptions, SyncDirection, SyncOptions,
};

/// Time within which the relay must respond, also on a busy machine.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

async fn connect(instance: &Instance) -> (RelayPool, Relay) {
    let pool = RelayPool::new();
    let url = instance.relay_url();
    pool.add_relay(&url, RelayOptions::default()).await.unwrap();
    pool.try_connect_relay(&url, RESPONSE_TIMEOUT)
        .await
        .unwrap();
    let relay = pool.relay(&url).await.unwrap();
    (pool, relay)
}

/// Converts an event to the type of the other library, by its JSON.
fn theirs(event: &nostr::event::Event) -> Event {
    use nostr_relay_pool::prelude::JsonUtil;
    Event::from_json(event.as_json()).unwrap()
}

#[tokio::test]
async fn publishes_and_fetches_what_it_published() {
    let instance = Instance::start().await;
    let (_pool, relay) = connect(&instance).await;
    let alice = Author::new();
    instance.host(&alice, "x").await;
    let issue = theirs(&alice.issue(&alice.repo("x"), "it does not build"));
    relay.send_event(&issue).await.unwrap();

    let filter = Filter::new().kind(Kind::GitIssue).author(issue.pubkey);
    let found = relay
        .fetch_events(filter.clone(), RESPONSE_TIMEOUT, ReqExitPolicy::ExitOnEOSE)
        .await
        .unwrap();
    assert_eq!(found.to_vec(), [issue]);
    assert_eq!(
        relay.count_events(filter, RESPONSE_TIMEOUT).await.unwrap(),
        1
    );
}

#[tokio::test]
async fn gets_the_reason_of_a_refusal() {
    let instance = Instance::start().await;
    let (_pool, relay) = connect(&instance).await;
    let note = theirs(&Author::new().sign(1, "an unrelated note", &[]));
    let refused = relay.send_event(&note).await.unwrap_err().to_string();
    assert!(refused.contains("restricted: "), "{refused}");
}

#[tokio::test]
async fn receives_live_events_of_other_clients() {
    let instance = Instance::start().await;
    let alice = Author::new();
    instance.host(&alice, "x").await;
    let (_listening, listener) = connect(&instance).await;
    let mut notifications = listener.notifications();
    let filter = Filter::new().kind(Kind::GitIssue);
    let subscription = listener
        .subscribe(filter, SubscribeOptions::default())
        .await
        .unwrap();

    let (_writing, writer) = connect(&instance).await;
    let issue = theirs(&alice.issue(&alice.repo("x"), "live"));
    writer.send_event(&issue).await.unwrap();
    let event = tokio::time::timeout(RESPONSE_TIMEOUT, async {
        loop {
            if let RelayNotification::Event {
                subscription_id,
                event,
            } = notifications.recv().await.unwrap()
            {
                assert_eq!(subscription_id, subscription);
                return *event;
            }
        }
    });
    assert_eq!(event.await.unwrap(), issue);
}

#[tokio::test]
async fn reconciles_and_ends_with_the_same_set() {
    let instance = Instance::start().await;
    let alice = Author::new();
    let repo = alice.repo("x");
    let issues: Vec<_> = (0..700)
        .map(|n| alice.later(n % 50).issue(&repo, &n.to_string()))
        .collect();
    instance.host(&alice, "x").await;
    let outcomes = instance.ingest(issues.clone()).await;
    assert!(outcomes.iter().all(|outcome| outcome.answer().is_accepted));

    let (_pool, relay) = connect(&instance).await;
    let filter = Filter::new().kind(Kind::GitIssue);
    let item = |event: &nostr::event::Event| (theirs(event).id, theirs(event).created_at);
    // The client has some of them, and one that the relay has not.
    let own = alice.issue(&repo, "only here");
    let mut has: Vec<_> = issues[..300].iter().chain([&own]).map(item).collect();
    let down = SyncOptions::new().direction(SyncDirection::Down);
    let synced = relay
        .sync_with_items(filter.clone(), has.clone(), &down)
        .await
        .unwrap();
    let missing: HashSet<_> = issues[300..].iter().map(|issue| theirs(issue).id).collect();
    assert!(
        synced.received == missing,
        "{} of {}",
        synced.received.len(),
        missing.len()
    );
    assert!(synced.local == HashSet::from([theirs(&own).id]));

    has.extend(issues[300..].iter().map(item));
    let again = relay.sync_with_items(filter, has, &down).await.unwrap();
    assert!(again.remote.is_empty() && again.received.is_empty());
}

#[tokio::test]
async fn finds_a_complete_repository_by_id_and_author_and_nothing_else() {
    let instance = Instance::start().await;
    let alice = Author::new();
    let (_pool, relay) = connect(&instance).await;
    let announcement = theirs(&alice.announce("x", &instance.service()));
    relay.send_event(&announcement).await.unwrap();
    let work = Workdir::init().await;
    let commit = work.commit("first").await;
    instance
        .ingest(vec![alice.state("x", &[("refs/heads/main", &commit)])])
        .await;
    work.git(&["push", "-q", &instance.clone_url(&alice.repo("x")), "main"])
        .await
        .expect_ok();
    let fetch = async |filter: Filter| {
        let found = relay
            .fetch_events(filter, RESPONSE_TIMEOUT, ReqExitPolicy::ExitOnEOSE)
            .await;
        found.unwrap().to_vec()
    };
    let kind = Filter::new().kind(Kind::GitRepoAnnouncement);
    let by_id = kind.clone().id(announcement.id);
    let by_author = kind.clone().author(announcement.pubkey);
    let by_name = by_author.clone().identifier("x");
    for filter in [by_id, by_author, by_name] {
        let found = fetch(filter.clone()).await;
        assert_eq!(found, std::slice::from_ref(&announcement), "{filter:?}");
    }
    assert!(
        fetch(Filter::new().kind(Kind::TextNote).limit(1))
            .await
            .is_empty()
    );
}

#[tokio::test]
async fn receives_held_events_only_after_their_release() {
    let instance = Instance::start().await;
    let alice = Author::new();
    let (_pool, relay) = connect(&instance).await;
    let work = Workdir::init().await;
    let commit = work.commit("first").await;
    let held = [
        alice.announce("x", &instance.service()),
        alice.state("x", &[("refs/heads/main", &commit)]),
    ];
    let kinds = [Kind::GitRepoAnnouncement, Kind::RepoState];
    let all = Filter::new().kinds(kinds).author(theirs(&held[0]).pubkey);
    let mut notifications = relay.notifications();
    relay
        .subscribe(all.clone(), SubscribeOptions::default())
        .await
        .unwrap();
    for event in &held {
        relay.send_event(&theirs(event)).await.unwrap();
    }
    // By subscription, count, reconciliation and id.
    let down = SyncOptions::new().direction(SyncDirection::Down);
    let found = relay
        .fetch_events(all.clone(), RESPONSE_TIMEOUT, ReqExitPolicy::ExitOnEOSE)
        .await;
    assert!(found.unwrap().is_empty());
    assert_eq!(
        relay
            .count_events(all.clone(), RESPONSE_TIMEOUT)
            .await
            .unwrap(),
        0
    );
    let synced = relay
        .sync_with_items(all.clone(), Vec::new(), &down)
        .await
        .unwrap();
    assert!(synced.remote.is_empty() && synced.received.is_empty());
    let ids = Filter::new().ids(held.iter().map(|event| theirs(event).id));
    let found = relay
        .fetch_events(ids, RESPONSE_TIMEOUT, ReqExitPolicy::ExitOnEOSE)
        .await;
    assert!(found.unwrap().is_empty());

    // Live events must come after this push: an event that was sent before it would come first.
    work.git(&["push", "-q", &instance.clone_url(&alice.repo("x")), "main"])
        .await
        .expect_ok();
    assert_eq!(
        relay
            .count_events(all.clone(), RESPONSE_TIMEOUT)
            .await
            .unwrap(),
        2
    );
    let live = tokio::time::timeout(RESPONSE_TIMEOUT, async {
        let mut live = HashSet::new();
        while live.len() < 2 {
            if let RelayNotification::Event { event, .. } = notifications.recv().await.unwrap() {
                assert!(
                    instance
                        .serves_id(held.iter().find(|e| theirs(e).id == event.id).unwrap().id)
                        .await
                );
                live.insert(event.id);
            }
        }
        live
    });
    assert_eq!(
        live.await.unwrap(),
        held.iter().map(|event| theirs(event).id).collect()
    );
    let synced = relay.sync_with_items(all, Vec::new(), &down).await.unwrap();
    assert_eq!(synced.remote.len(), 2);
}
