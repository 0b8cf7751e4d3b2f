//! A relay on a loopback port, and a client that sends raw messages.

#[path = "support/client.rs"]
mod client;
#[path = "support/ingest.rs"]
mod ingest;
#[path = "support/memory_store.rs"]
pub(crate) mod memory_store;
#[cfg(feature = "postgres")]
#[allow(unreachable_pub, reason = "shared with the tests of whole instances")]
#[path = "../../../tests/src/postgres.rs"]
pub(crate) mod postgres;
#[cfg(feature = "postgres")]
#[allow(unreachable_pub, reason = "shared with the tests of whole instances")]
#[path = "../../../tests/src/reserved.rs"]
mod reserved;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use grasp_core::admission::Policy;
use grasp_relay::nostr::{Hub, Limits, LiveInfo};
use grasp_relay::server::{Config, Listeners};
use grasp_relay::store::EventStore;
use grasp_relay::web::Listing;
use grasp_relay::{Clock, Parts};
use nostr::event::{Event, EventBuilder, EventId, FinalizeEvent, Kind, Tag};
use nostr::key::Keys;
use nostr::types::Timestamp;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub(crate) use self::client::{Client, CloseReason};

use self::ingest::BlockableIngest;
use self::memory_store::MemoryStore;

/// The time after which a test fails.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// A running relay.
pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    pub(crate) hub: Hub,
    pub(crate) ingest: Arc<BlockableIngest>,
    stop: Option<oneshot::Sender<()>>,
    server: JoinHandle<std::io::Result<()>>,
}

impl Relay {
    pub(crate) async fn start() -> Self {
        Self::limited(Limits::default()).await
    }

    pub(crate) async fn limited(limits: Limits) -> Self {
        Self::with(limits, |_| {}).await
    }

    pub(crate) async fn with(limits: Limits, adjust: impl FnOnce(&mut Parts)) -> Self {
        Self::on(Arc::new(MemoryStore::default()), limits, adjust).await
    }

    /// Starts a relay on this store.
    pub(crate) async fn on(
        store: Arc<dyn EventStore>,
        limits: Limits,
        adjust: impl FnOnce(&mut Parts),
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        Self::at(address, listener, store, limits, adjust).await
    }

    /// Starts a relay with these listeners, of which the plain one is at this address.
    pub(crate) async fn at(
        address: SocketAddr,
        listeners: impl Into<Listeners>,
        store: Arc<dyn EventStore>,
        limits: Limits,
        adjust: impl FnOnce(&mut Parts),
    ) -> Self {
        let hub = Hub::start();
        let ingest = Arc::new(BlockableIngest::new(store.clone(), hub.clone()));
        let service: grasp_core::ServiceIdentity = address.to_string().parse().expect("an address");
        let clock = Clock::system();
        let listing = Listing::new(store.clone(), service.clone(), clock.clone(), |_| true);
        let mut parts = Parts {
            store: store.clone(),
            ingest: ingest.clone(),
            hub: hub.clone(),
            listing,
            config: Config {
                policy: Policy::new(service.clone()).into(),
                service,
                secure: false,
                info: LiveInfo::default(),
                limits,
                trusted_proxies: vec![],
                node_key: None,
                pages: Default::default(),
                private: None,
            },
            clock,
            pages: None,
            management: None,
            extra: axum::Router::new(),
        };
        adjust(&mut parts);
        let (stop, stopped) = oneshot::channel::<()>();
        let listeners = listeners.into();
        let server = tokio::spawn(grasp_relay::serve(listeners, parts, async {
            let _ = stopped.await;
        }));
        Self {
            address,
            hub,
            ingest,
            stop: Some(stop),
            server,
        }
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect(self.address).await
    }

    /// Stores and publishes an event.
    pub(crate) async fn accept(&self, event: &Event) {
        self.ingest.admit(vec![Arc::new(event.clone())]).await;
    }

    /// Asks the server to end.
    pub(crate) fn stop(&mut self) {
        let _ = self.stop.take().expect("stopped once").send(());
    }

    /// Waits for the server's end.
    pub(crate) async fn ended(self) {
        in_time(self.server)
            .await
            .expect("no panic")
            .expect("a clean end");
    }
}

/// Awaits a future, and panics after [`TEST_TIMEOUT`].
pub(crate) async fn in_time<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(TEST_TIMEOUT, future)
        .await
        .expect("in time")
}

/// An event of a kind with a text, signed by a fresh key now.
pub(crate) fn note(kind: u16, content: &str) -> Event {
    tagged(kind, content, &[])
}

pub(crate) fn tagged(kind: u16, content: &str, tags: &[[&str; 2]]) -> Event {
    at(kind, content, tags, Timestamp::now())
}

pub(crate) fn at(kind: u16, content: &str, tags: &[[&str; 2]], when: Timestamp) -> Event {
    EventBuilder::new(Kind::from(kind), content)
        .tags(
            tags.iter()
                .map(|[name, value]| Tag::custom(*name, [*value])),
        )
        .custom_created_at(when)
        .finalize(&Keys::generate())
        .expect("signed")
}

/// Returns unsigned events, for tests that fill the store and in which only the size matters.
pub(crate) fn bulk(kind: u16, count: u32, content_bytes: usize) -> Vec<Event> {
    let pattern = note(kind, &"x".repeat(content_bytes));
    let numbered = |nth: u32| {
        let mut event = pattern.clone();
        let mut id = event.id.to_bytes();
        id[..4].copy_from_slice(&nth.to_be_bytes());
        event.id = EventId::from_byte_array(id);
        event
    };
    (0..count).map(numbered).collect()
}
