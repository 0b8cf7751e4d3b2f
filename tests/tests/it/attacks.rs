//! What an attacker would try, tried: each with what must not have happened after it.

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

/// A served repository of alice's, and somebody who wishes her ill.
pub(crate) struct Scene {
    pub(crate) instance: Instance,
    pub(crate) alice: Author,
    pub(crate) eve: Author,
    pub(crate) repo: RepoId,
    pub(crate) work: Workdir,
    pub(crate) tip: String,
    refs: String,
}

impl Scene {
    pub(crate) async fn new() -> Self {
        Self::on(Instance::start().await).await
    }

    pub(crate) async fn set(settings: Settings) -> Self {
        Self::on(Instance::with_settings(settings).await).await
    }

    pub(crate) async fn on(instance: Instance) -> Self {
        let (alice, eve) = (Author::new(), Author::new());
        let work = instance.host(&alice, "x").await;
        let tip = work.git(&["rev-parse", "main"]).await.expect_ok();
        let repo = alice.repo("x");
        let refs = instance.refs(&repo).await;
        Self { instance, alice, eve, repo, work, tip, refs }
    }

    /// Gives an event to the server; whether it was accepted, and what was said.
    pub(crate) async fn send(&self, event: &Event) -> (bool, String) {
        let answer = self.instance.ingest(vec![event.clone()]).await[0].answer();
        (answer.accepted, answer.message.into_owned())
    }

    /// The id of the event that announces alice's repository.
    pub(crate) async fn announcement_id(&self) -> String {
        let filter = nostr::filter::Filter::new().kind(grasp_core::kinds::ANNOUNCEMENT);
        let found = self.instance.purgatory().relay().events(filter.author(self.alice.key()));
        found.await.unwrap()[0].id.to_hex()
    }

    /// Alice's refs are as they were, whatever follows from what was sent.
    pub(crate) async fn is_untouched(&self, after: &str) {
        self.instance.settle("x").await;
        assert_eq!(self.instance.refs(&self.repo).await, self.refs, "{after}");
    }

    /// Alice's repository goes out of service, without anybody giving it another thought.
    pub(crate) async fn is_gone(&self) {
        let (path, start) = (self.instance.path(&self.repo), Instant::now());
        while self.instance.get(&path, &[]).await.status != 404 {
            assert!(start.elapsed() < Duration::from_secs(60), "it is still served");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Where alice's repository is pushed to.
    pub(crate) fn url(&self) -> String {
        self.instance.clone_url(&self.repo)
    }
}
