//! One server, as the binary builds it, on a port of its own.

use std::net::SocketAddr;
use std::sync::Arc;

use grasp_core::ServiceIdentity;
use grasp_core::admission::Policy;
use grasp_relay::Clock;
use grasp_relay::ingest::{Origin, Pipeline, RelayOnly, Verdict};
use grasp_relay::nostr::{Hub, Limits, RelayInfo};
use grasp_relay::server::{Config, Parts, serve};
use grasp_relay::store::EventStore;
use grasp_relay::store::sqlite::{SqliteOptions, SqliteStore};
use nostr::event::Event;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A running server. Dropping it stops it without ceremony; [`Instance::stop`] waits for its end.
pub struct Instance {
    address: SocketAddr,
    parts: Parts,
    stop: Option<oneshot::Sender<()>>,
    running: JoinHandle<std::io::Result<()>>,
    _dir: TempDir,
}

impl Instance {
    /// Starts a server with default limits.
    pub async fn start() -> Self {
        Self::with(Limits::default()).await
    }

    /// Starts a server with these limits.
    pub async fn with(limits: Limits) -> Self {
        let dir = tempfile::tempdir().expect("a directory for the test");
        let file = dir.path().join("events.db");
        let store = SqliteStore::open(&file, SqliteOptions::default()).expect("an empty store");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port on loopback");
        let address = listener.local_addr().expect("the port");
        let parts = parts(Arc::new(store), address, limits);
        let (stop, stopped) = oneshot::channel::<()>();
        let stopping = async {
            let _ = stopped.await;
        };
        let running = tokio::spawn(serve(listener, parts.clone(), stopping));
        Self { address, parts, stop: Some(stop), running, _dir: dir }
    }

    /// Where the relay is.
    pub fn relay_url(&self) -> String {
        format!("ws://{}", self.address)
    }

    /// The address that announcements must list.
    pub fn service(&self) -> ServiceIdentity {
        self.parts.config.service.clone()
    }

    /// Gives events to the server without a socket.
    pub async fn take(&self, events: Vec<Event>) -> Vec<Verdict> {
        self.parts.ingest.ingest(events, Origin::anonymous()).await
    }

    /// Stops the server as the binary would, and waits for its end.
    pub async fn stop(mut self) {
        drop(self.stop.take());
        let ended = (&mut self.running).await.expect("the server does not panic");
        ended.expect("the server ends well");
        self.parts.store.close().await.expect("the store closes");
    }
}

fn parts(store: Arc<dyn EventStore>, address: SocketAddr, limits: Limits) -> Parts {
    let service: ServiceIdentity = address.to_string().parse().expect("an address");
    let (hub, clock) = (Hub::start(), Clock::system());
    let ingest = Pipeline {
        store: Arc::clone(&store),
        git: Arc::new(RelayOnly),
        hub: hub.clone(),
        policy: Policy::new(service.clone()),
        clock: clock.clone(),
    };
    let config = Config {
        service,
        info: RelayInfo::default(),
        limits,
        trusted_proxies: Vec::new(),
        challenge_on_connect: false,
    };
    Parts { store, ingest: Arc::new(ingest), hub, config, clock, extra: Default::default() }
}
