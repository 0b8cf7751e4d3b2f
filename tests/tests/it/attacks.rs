//! Attacks by clients, each with the state that must hold after it.

mod authority;
mod bombs;
mod floods;
mod forgery;
mod leaks;
mod purgatory;
mod refs;

use std::time::{Duration, Instant};

use grasp_core::RepoId;
use grasp_tests::{Author, Instance, Settings, Workdir};
use nostr::event::Event;

pub(crate) const MAIN: &str = "refs/heads/main";

/// A served repository of alice, and an attacker, eve.
pub(crate) struct Fixture {
    pub(crate) instance: Instance,
    pub(crate) alice: Author,
    pub(crate) eve: Author,
    pub(crate) repo: RepoId,
    pub(crate) work: Workdir,
    pub(crate) tip: String,
    refs: String,
}

impl Fixture {
    pub(crate) async fn new() -> Self {
        Self::on(Instance::start().await).await
    }

    pub(crate) async fn with_settings(settings: Settings) -> Self {
        Self::on(Instance::with_settings(settings).await).await
    }

    pub(crate) async fn on(instance: Instance) -> Self {
        let (alice, eve) = (Author::new(), Author::new());
        let work = instance.host(&alice, "x").await;
        let tip = work.git(&["rev-parse", "main"]).await.expect_ok();
        let repo = alice.repo("x");
        let refs = instance.refs(&repo).await;
        Self {
            instance,
            alice,
            eve,
            repo,
            work,
            tip,
            refs,
        }
    }

    /// Publishes an event; returns whether it was accepted, and the message.
    pub(crate) async fn publish(&self, event: &Event) -> (bool, String) {
        let answer = self.instance.ingest(vec![event.clone()]).await[0].answer();
        (answer.is_accepted, answer.message.into_owned())
    }

    /// Returns the id of the announcement of alice's repository.
    pub(crate) async fn announcement_id(&self) -> String {
        let filter = nostr::filter::Filter::new().kind(grasp_core::kinds::ANNOUNCEMENT);
        let found = self
            .instance
            .purgatory()
            .relay()
            .events(filter.author(self.alice.key()));
        found.await.unwrap()[0].id.to_hex()
    }

    /// Asserts that alice's refs are as at the start, after all events are processed.
    pub(crate) async fn assert_unchanged(&self, after: &str) {
        self.instance.settle("x").await;
        assert_eq!(self.instance.refs(&self.repo).await, self.refs, "{after}");
    }

    /// Waits until alice's repository is no longer served, without any further event about it.
    pub(crate) async fn until_gone(&self) {
        let (path, start) = (self.instance.path(&self.repo), Instant::now());
        while self.instance.get(&path, &[]).await.status != 404 {
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "the repository is still served"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Returns the URL of alice's repository.
    pub(crate) fn url(&self) -> String {
        self.instance.clone_url(&self.repo)
    }
}
