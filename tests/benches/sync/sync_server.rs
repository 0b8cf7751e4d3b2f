//! The server under measurement, and threads about its repositories.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use grasp_core::sync::ConnectionStatus;
use grasp_core::{RelayUrl, ServiceIdentity};
use grasp_relay::ingest::Origin;
use grasp_relay::server::Parts;
use grasp_relay::{Accepted, Feed};
use grasp_tests::{Author, Instance, Workdir};
use nostr::event::{Event, EventBuilder, FinalizeEvent, Kind, Tag};
use nostr::filter::Filter;
use nostr::key::Keys;
use nostr::types::Timestamp;

/// Authors of the events: one author alone would reach the limits of a repository.
const AUTHORS: usize = 100;

/// Issues about repositories, and comments that name only their issue.
pub(crate) struct Threads {
    pub(crate) owner: Author,
    issues: Vec<Event>,
    comments: Vec<Event>,
}

impl Threads {
    pub(crate) fn make(repos: usize, issues: usize, comments: usize) -> Self {
        Self::make_for(&Author::new(), repos, issues, comments)
    }

    pub(crate) fn make_for(owner: &Author, repos: usize, issues: usize, comments: usize) -> Self {
        let repos: Vec<_> = (0..repos)
            .map(|n| owner.repo(&repo_name(n)).to_string())
            .collect();
        let issue = |n: usize| (Kind::GitIssue, vec!["a", repos[n % repos.len()].as_str()]);
        let issues = sign_all(issues, issue);
        let ids: Vec<_> = issues.iter().map(|issue| issue.id.to_hex()).collect();
        let comment = |n: usize| (Kind::Comment, vec!["E", ids[n % ids.len()].as_str()]);
        let comments = sign_all(comments, comment);
        Self {
            owner: owner.clone(),
            issues,
            comments,
        }
    }

    pub(crate) fn events(&self) -> Vec<Event> {
        self.issues.iter().chain(&self.comments).cloned().collect()
    }
}

pub(crate) fn repo_name(n: usize) -> String {
    format!("repo-{n}")
}

/// Signs on two threads, each event a second older than the one before.
fn sign_all<'a>(count: usize, about: impl Fn(usize) -> (Kind, Vec<&'a str>) + Sync) -> Vec<Event> {
    let authors: Vec<Keys> = (0..AUTHORS).map(|_| Keys::generate()).collect();
    let now = Timestamp::now().as_secs();
    let sign = |n: usize| {
        let (kind, tag) = about(n);
        let text =
            format!("{n}: the program does not do what its manual describes in this chapter");
        let builder = EventBuilder::new(kind, text).tag(Tag::parse(tag).unwrap());
        builder
            .custom_created_at(Timestamp::from_secs(now - n as u64))
            .finalize(&authors[n % AUTHORS])
            .unwrap()
    };
    let half = count / 2;
    std::thread::scope(|scope| {
        let first = scope.spawn(|| (0..half).map(sign).collect::<Vec<_>>());
        let second: Vec<_> = (half..count).map(sign).collect();
        first.join().unwrap().into_iter().chain(second).collect()
    })
}

/// A server that syncs on demand.
pub(crate) struct SyncServer {
    instance: Option<Instance>,
}

impl SyncServer {
    /// Starts a server without any data and without sync.
    pub(crate) async fn empty() -> Self {
        let instance = Instance::with(|settings| settings.sync.enabled = false).await;
        Self {
            instance: Some(instance),
        }
    }

    /// Starts a server that has these repositories with their git data, and no other events.
    pub(crate) async fn with_repos(owner: &Author, repos: usize, other: ServiceIdentity) -> Self {
        let mut server = Self::empty().await;
        server.adopt(owner, repos, other).await;
        server
    }

    /// Announces repositories on both servers, and pushes them here.
    pub(crate) async fn adopt(&mut self, owner: &Author, repos: usize, other: ServiceIdentity) {
        let instance = self.instance();
        let work = Workdir::init().await;
        let commit = work.commit("first").await;
        for name in (0..repos).map(repo_name) {
            let services = [instance.service(), other.clone()];
            let announced = owner.announce_on(&name, &services);
            let state = owner.state(&name, &[("refs/heads/main", &commit)]);
            instance.ingest(vec![announced, state]).await;
            let url = instance.clone_url(&owner.repo(&name));
            work.git(&["push", &url, "main"]).await.expect_ok();
        }
    }

    /// Restarts the server with sync enabled.
    pub(crate) async fn start_sync(&mut self, from: &RelayUrl) {
        let instance = self.instance.take().unwrap();
        let from = from.clone();
        let instance = instance.restart_with(|settings| {
            settings.sync.enabled = true;
            settings.sync.engine.bootstrap = vec![from];
            settings.outbound.allow_private = true;
        });
        self.instance = Some(instance.await);
    }

    pub(crate) async fn ingest(&self, events: Vec<Event>) {
        for chunk in events.chunks(1_000) {
            let ingest = &self.parts().ingest;
            ingest.ingest(chunk.to_vec(), Origin::anonymous()).await;
        }
    }

    pub(crate) async fn until_has(&self, count: usize) {
        let Parts { store, clock, .. } = self.parts();
        let kinds = [Kind::GitIssue, Kind::Comment];
        let filter = Filter::new().kinds(kinds);
        loop {
            let found = store
                .count(vec![filter.clone()], clock.now().unix)
                .await
                .unwrap();
            if found as usize >= count {
                return;
            }
            // A count takes as long as storing some hundred events: the fewer are missing, the shorter the pause.
            let missing = count - found as usize;
            let pause = Duration::from_micros(missing as u64 * 20);
            tokio::time::sleep(pause.clamp(Duration::from_millis(5), Duration::from_secs(1))).await;
        }
    }

    pub(crate) async fn until_synced(&self, relay: &RelayUrl) {
        let syncer = self.instance().server().syncer().await.unwrap();
        loop {
            let status = syncer.status().await;
            let synced = status.relays.get(relay).map(|relay| relay.connection);
            if synced == Some(ConnectionStatus::Connected) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Returns a waiter for an event that is not served yet.
    pub(crate) async fn wait_for(&self, event: &Event) -> EventWaiter {
        let Parts {
            store, hub, clock, ..
        } = self.parts();
        let feed = Feed::new(Arc::clone(store), hub.clone(), clock.clone());
        let mut feed = feed.accepted(&[Kind::GitIssue]);
        while !matches!(feed.next().await, Some(Accepted::CaughtUp)) {}
        EventWaiter {
            event: event.clone(),
            feed,
        }
    }

    pub(crate) async fn end(self) {
        self.instance.unwrap().stop().await;
    }

    fn parts(&self) -> &Parts {
        self.instance().server().parts()
    }

    fn instance(&self) -> &Instance {
        self.instance.as_ref().unwrap()
    }
}

/// Waits for one event.
pub(crate) struct EventWaiter {
    event: Event,
    feed: BoxStream<'static, Accepted>,
}

impl EventWaiter {
    pub(crate) async fn served(&mut self) {
        while let Some(accepted) = self.feed.next().await {
            if matches!(accepted, Accepted::Event(event) if event.id == self.event.id) {
                return;
            }
        }
    }
}
