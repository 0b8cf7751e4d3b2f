//! Servers that have each other as bootstrap relays.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use grasp_core::{RepoId, ServiceIdentity};
use grasp_tests::{
    Author, Convergence, ServerClient, Settings, Workdir, eventually_async, reserve_address,
};
use nostr::event::Event;

use super::member::Member;

pub(super) const MAIN: &str = "refs/heads/main";

/// Several servers, each of which has all others as bootstrap relays.
pub(super) struct Network {
    pub(super) members: Vec<Member>,
}

impl Network {
    /// Starts servers in this process.
    pub(super) async fn start(count: usize) -> Self {
        Self::with_settings(count, &Settings::default()).await
    }

    /// Starts servers in this process with these settings.
    pub(super) async fn with_settings(count: usize, settings: &Settings) -> Self {
        let mut network = Self::unstarted(count, settings);
        for member in &mut network.members {
            member.start().await;
        }
        network
    }

    /// Starts servers in processes of their own, so that they can be killed.
    pub(super) fn start_processes(count: usize) -> Self {
        let mut network = Self::unstarted(count, &Settings::default());
        network.members.iter_mut().for_each(Member::spawn);
        network
    }

    /// Creates servers that do not run yet.
    pub(super) fn unstarted(count: usize, settings: &Settings) -> Self {
        let addresses: Vec<_> = (0..count).map(|_| address()).collect();
        let member = |own: &SocketAddr| {
            let others = addresses.iter().filter(|other| *other != own);
            Member::new(*own, others.copied().collect(), settings.clone())
        };
        Self {
            members: addresses.iter().map(member).collect(),
        }
    }

    pub(super) fn all(&self) -> Vec<ServerClient> {
        self.members.iter().map(Member::client).collect()
    }

    pub(super) fn at(&self, which: usize) -> ServerClient {
        self.members[which].client()
    }

    pub(super) fn services(&self) -> Vec<ServiceIdentity> {
        self.all().iter().map(ServerClient::service).collect()
    }

    /// Requires that all members serve the same.
    pub(super) fn convergence(&self) -> Convergence {
        Convergence::of(&self.all())
    }

    /// Announces a repository of one commit on all members, publishes and pushes it at one of them.
    pub(super) async fn host(&self, which: usize, owner: &Author, name: &str) -> Hosted {
        let (work, at) = (Workdir::init().await, self.at(which));
        let first = work.commit("first").await;
        let announcement = owner.announce_on(name, &self.services());
        let state = owner.state(name, &[(MAIN, &first)]);
        at.publish_all(&[&announcement, &state]).await;
        let hosted = Hosted {
            repo: owner.repo(name),
            work,
            first,
            announcement,
            state,
        };
        hosted.push(&at, &["main"]).await;
        hosted
    }
}

/// A repository with its first announcement and state.
pub(super) struct Hosted {
    pub(super) repo: RepoId,
    pub(super) work: Workdir,
    pub(super) first: String,
    pub(super) announcement: Event,
    pub(super) state: Event,
}

impl Hosted {
    /// Pushes, which must succeed.
    pub(super) async fn push(&self, to: &ServerClient, specs: &[&str]) {
        assert!(
            self.try_push(to, specs).await,
            "a push of {specs:?} to {}",
            to.relay_url()
        );
    }

    /// Pushes, and returns whether that succeeded.
    pub(super) async fn try_push(&self, to: &ServerClient, specs: &[&str]) -> bool {
        let url = to.clone_url(&self.repo);
        self.work
            .git(&[&["push", "-q", "--force", &url], specs].concat())
            .await
            .ok
    }

    /// Clones from a server until that succeeds, and checks the clone. A failed clone makes the server look for damage.
    pub(super) async fn clone_until_complete(&self, from: &ServerClient) {
        let url = from.clone_url(&self.repo);
        let clone = eventually_async(async || {
            let clone = Workdir::empty();
            clone
                .git(&["clone", "-q", &url, "."])
                .await
                .ok
                .then_some(clone)
        });
        let clone = clone.await;
        clone.git(&["fsck", "--full", "--strict"]).await.expect_ok();
        let tip = self.work.git(&["rev-parse", "main"]).await.expect_ok();
        assert_eq!(clone.git(&["rev-parse", "HEAD"]).await.expect_ok(), tip);
    }

    pub(super) fn signed(&self) -> [&Event; 2] {
        [&self.announcement, &self.state]
    }
}

/// Returns an address on loopback whose host is used only here: it is made of the process id and a number.
fn address() -> SocketAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [.., high, low] = std::process::id().to_be_bytes();
    let host = Ipv4Addr::new(127, high.max(1), low, NEXT.fetch_add(1, Ordering::SeqCst));
    reserve_address(host)
}

/// Allows connections to loopback, and shortens delays.
pub(super) fn with_short_delays(settings: &mut grasp_relay::instance::Settings) {
    settings.outbound.allow_private = true;
    let sync = &mut settings.sync.engine;
    sync.discovery_window = Duration::from_millis(250);
    sync.discovery_quiet = Duration::from_millis(20);
    sync.handshake_gap = Duration::from_millis(10);
    sync.backoff.first = Duration::from_millis(200);
    sync.backoff.cap = Duration::from_secs(1);
    sync.backoff.settle = Duration::ZERO;
    sync.persist_after = Duration::from_millis(50);
    settings.purgatory.user_delay = Duration::from_millis(500);
    settings.hunt.debounce = Duration::from_millis(50);
    settings.purgatory.retry_after = Duration::from_millis(500);
    settings.hunt.backoff.first = Duration::from_millis(300);
    settings.hunt.backoff.cap = Duration::from_secs(1);
    settings.hunt.pull_every = Duration::from_secs(5);
    settings.hunt.per_host.starts = 10_000.try_into().unwrap();
    settings.hunt.guesses_per_minute = 10_000.try_into().unwrap();
}
