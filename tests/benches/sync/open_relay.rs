//! A relay that accepts every event: this server without its admission rules.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use axum::Router;
use futures_util::future::BoxFuture;
use grasp_core::admission::{Origin, Outcome, Policy};
use grasp_core::{RelayUrl, ServiceIdentity, Verified};
use grasp_relay::Clock;
use grasp_relay::ingest::Ingest;
use grasp_relay::nostr::{Hub, Limits, LiveInfo, RelayInfo};
use grasp_relay::server::{Config, Parts, serve};
use grasp_relay::store::EventStore;
use grasp_relay::store::sqlite::{SqliteOptions, SqliteStore};
use grasp_relay::web::Listing;
use nostr::event::Event;
use tempfile::TempDir;
use tokio::net::TcpListener;

pub(crate) struct OpenRelay {
    address: SocketAddr,
    ingest: Arc<AcceptAll>,
    _running: Running,
    _data: TempDir,
}

struct Running(tokio::task::JoinHandle<()>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct AcceptAll {
    store: Arc<dyn EventStore>,
    hub: Hub,
    clock: Clock,
}

fn open_store(file: &Path) -> Arc<dyn EventStore> {
    Arc::new(SqliteStore::open(file, SqliteOptions::default()).unwrap())
}

impl OpenRelay {
    pub(crate) async fn start(limits: Limits, events: Vec<Event>) -> Self {
        Self::with_software("grasp", limits, events).await
    }

    /// Starts a relay with this name of its software.
    pub(crate) async fn with_software(software: &str, limits: Limits, events: Vec<Event>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (hub, clock) = (Hub::start(), Clock::system());
        let data = tempfile::tempdir().unwrap();
        let store = open_store(&data.path().join("events.sqlite"));
        let ingest = Arc::new(AcceptAll {
            store: store.clone(),
            hub: hub.clone(),
            clock: clock.clone(),
        });
        let info = RelayInfo {
            software: software.into(),
            ..RelayInfo::default()
        };
        let service: ServiceIdentity = address.to_string().parse().unwrap();
        let config = Config {
            policy: Policy::new(service.clone()).into(),
            service,
            secure: false,
            info: LiveInfo::fixed(info),
            limits,
            trusted_proxies: vec![],
            node_key: None,
            pages: Default::default(),
            private: None,
        };
        let (service, extra) = (config.service.clone(), Router::new());
        let listing = Listing::new(store.clone(), service, clock.clone(), |_| true);
        let parts = Parts {
            store,
            ingest: ingest.clone(),
            hub,
            listing,
            config,
            clock,
            pages: None,
            management: None,
            extra,
        };
        let serving = async move { serve(listener, parts, std::future::pending()).await };
        let running = Running(tokio::spawn(async { serving.await.unwrap() }));
        for chunk in events.chunks(1_000) {
            let chunk = chunk.iter().cloned().map(Arc::new).collect();
            ingest
                .store
                .save(chunk, ingest.clock.now().unix)
                .await
                .unwrap();
        }
        Self {
            address,
            ingest,
            _running: running,
            _data: data,
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn url(&self) -> RelayUrl {
        format!("ws://{}", self.address).parse().unwrap()
    }

    pub(crate) fn service(&self) -> ServiceIdentity {
        self.address.to_string().parse().unwrap()
    }

    pub(crate) async fn publish(&self, event: Event) {
        self.ingest.ingest(vec![event], Origin::anonymous()).await;
    }
}

impl Ingest for AcceptAll {
    fn ingest_verified(
        &self,
        events: Vec<Verified<Arc<Event>>>,
        _: Origin,
    ) -> BoxFuture<'_, Vec<Outcome>> {
        Box::pin(async move {
            let events: Vec<_> = events.into_iter().map(Verified::into_inner).collect();
            let saved = self
                .store
                .save(events.clone(), self.clock.now().unix)
                .await
                .unwrap();
            for event in events {
                self.hub.publish(event).await;
            }
            saved
        })
    }
}
