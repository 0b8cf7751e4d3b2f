//! The end of a repository: what depended on it goes with it, and all of it comes back if its owner announces it again.

use std::collections::BTreeMap;

use grasp_core::RepoId;
use grasp_relay::store::Inventory;
use grasp_tests::{Author, Instance, ServerClient, Workdir, eventually_async};
use nostr::event::{Event, EventId};
use nostr::filter::Filter;
use nostr::types::Timestamp;
use serde_json::json;

/// A repository with a thread of each kind, and a pull request that has a ref.
struct Hosted {
    instance: Instance,
    alice: Author,
    repo: RepoId,
    threads: Vec<Event>,
}

impl Hosted {
    async fn start() -> Self {
        let instance = Instance::start().await;
        let (alice, bob) = (Author::new(), Author::new());
        let work = instance.host(&alice, "x").await;
        let repo = alice.repo("x");
        let issue = bob.issue(&repo, "an issue");
        let proposed = work.commit("proposed").await;
        let request = bob.pull_request(&repo, &proposed);
        let root = issue.id.to_hex();
        let comment = alice.sign(1_111, "a comment", &[&["E", &root], &["e", &root]]);
        let comment_id = comment.id.to_hex();
        let threads = vec![
            bob.sign(7, "+", &[&["e", &comment_id]]),
            alice.sign(1_632, "closed", &[&["e", &root]]),
            issue,
            request.clone(),
            comment,
        ];
        for event in threads.iter().rev() {
            instance.ingest(vec![event.clone()]).await;
        }
        let url = instance.clone_url(&repo);
        let proposal = format!("{proposed}:refs/nostr/{}", request.id);
        work.git(&["push", &url, &proposal]).await.expect_ok();
        // What was refused because it came before what it names.
        instance.ingest(threads.clone()).await;
        Self {
            instance,
            alice,
            repo,
            threads,
        }
    }

    fn client(&self) -> ServerClient {
        ServerClient::at(self.instance.address())
    }

    async fn served(&self) -> BTreeMap<EventId, Event> {
        let filter = json!({ "kinds": [1_621, 1_618, 1_111, 7, 1_632, 30_618] });
        self.client().matching(&filter).await.unwrap()
    }

    /// Returns the numbers of events that COUNT and NEG have.
    async fn counted(&self) -> (u64, usize) {
        let store = &self.instance.server().parts().store;
        let filter = Filter::new().kinds([1_621, 1_618, 1_111, 7, 1_632, 30_618].map(Into::into));
        let now = Timestamp::now();
        let count = store.count(vec![filter.clone()], now).await.unwrap();
        match store.inventory(filter, now, 1_000).await.unwrap() {
            Inventory::Complete(items) => (count, items.len()),
            Inventory::TooMany => panic!("more than 1,000"),
        }
    }

    /// Deletes the announcement, and waits until nothing of the repository is served.
    async fn delete(&self) {
        let coordinate = self.repo.to_string();
        let deletion = self.alice.later(1).sign(5, "", &[&["a", &coordinate]]);
        self.instance.ingest(vec![deletion]).await;
        eventually_async(|| async {
            let is_gone =
                self.served().await.is_empty() && self.client().refs(&self.repo).await.is_none();
            is_gone.then_some(())
        })
        .await;
    }

    async fn announce_again(&self) {
        let again = self.alice.later(2).announce("x", &self.instance.service());
        self.instance.ingest(vec![again]).await;
    }
}

#[tokio::test]
async fn a_deleted_repository_takes_what_depends_on_it_along_and_brings_it_back() {
    let hosted = Hosted::start().await;
    let before = hosted.served().await;
    for event in &hosted.threads {
        assert!(before.contains_key(&event.id), "{event:?}");
    }
    assert_eq!(before.len(), hosted.threads.len() + 1, "and the state");
    let refs = hosted.client().refs(&hosted.repo).await.unwrap();
    assert!(refs.contains("refs/nostr/"), "{refs}");
    let path = hosted.instance.path(&hosted.repo);
    let counted = hosted.counted().await;

    hosted.delete().await;
    assert_eq!(hosted.counted().await, (0, 0));
    assert_eq!(hosted.instance.get(&path, &[]).await.status, 404);
    for event in &hosted.threads {
        let outcomes = hosted.instance.ingest(vec![event.clone()]).await;
        assert!(!outcomes[0].answer().is_accepted, "{outcomes:?}");
    }
    hosted.instance.settle("x").await;
    hosted.instance.purgatory().run_maintenance().await.unwrap();

    hosted.announce_again().await;
    eventually_async(|| async { (hosted.served().await == before).then_some(()) }).await;
    eventually_async(|| async {
        let now = hosted.client().refs(&hosted.repo).await;
        (now.as_deref() == Some(refs.as_str())).then_some(())
    })
    .await;
    assert_eq!(hosted.counted().await, counted);
    assert_eq!(hosted.instance.get(&path, &[]).await.status, 200);
    let url = hosted.instance.clone_url(&hosted.repo);
    let spec = "refs/nostr/*:refs/nostr/*";
    let work = Workdir::init().await;
    work.git(&["fetch", "-q", &url, spec]).await.expect_ok();
}

#[tokio::test]
async fn what_depends_on_a_repository_that_vanished_goes_and_its_git_data_is_removed() {
    let hosted = Hosted::start().await;
    let vanish = hosted
        .alice
        .later(1)
        .sign(62, "", &[&["relay", "ALL_RELAYS"]]);
    hosted.instance.ingest(vec![vanish]).await;
    // A reaction to a comment of hers, which vanished, is connected with nothing.
    let is_thread = |event: &Event| event.kind.as_u16() != 7;
    eventually_async(|| async {
        let served = hosted.served().await;
        (!served.values().any(is_thread)).then_some(())
    })
    .await;
    eventually_async(|| async {
        let row = hosted
            .instance
            .purgatory()
            .repos()
            .row(&hosted.repo)
            .await
            .unwrap();
        (row.view.is_none() && row.packs.is_empty()).then_some(())
    })
    .await;
}
