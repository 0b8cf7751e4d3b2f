//! A relay with the real pipeline and a store on disk, and events of generated repositories.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use grasp_core::admission::Policy;
use grasp_core::service::npub;
use grasp_relay::ingest::{Budgets, ListedMaintainers, Pipeline, RelayOnly};
use grasp_relay::metrics::Metrics;
use grasp_relay::nostr::{Hub, Limits, LiveInfo};
use grasp_relay::server::Config;
use grasp_relay::store::EventStore;
use grasp_relay::store::sqlite::{SqliteOptions, SqliteStore};
use grasp_relay::web::Listing;
use grasp_relay::{Clock, Parts};
use nostr::event::{Event, EventBuilder, FinalizeEvent, Kind, Tag};
use nostr::key::Keys;
use nostr::types::Timestamp;
use tokio::net::TcpListener;

/// The number of events of one author and repository.
pub(crate) const EVENTS_PER_REPOSITORY: usize = 100;

pub(crate) struct BenchRelay {
    pub(crate) address: SocketAddr,
    pub(crate) store: Arc<dyn EventStore>,
    pub(crate) hub: Hub,
    _directory: tempfile::TempDir,
}

impl BenchRelay {
    pub(crate) async fn start() -> Self {
        let dir = std::env::var("GRASP_BENCH_DIR");
        let directory = match dir {
            Ok(dir) => tempfile::tempdir_in(dir),
            Err(_) => tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")),
        };
        let directory = directory.expect("a directory");
        let file = directory.path().join("events.db");
        let store = SqliteStore::open(&file, SqliteOptions::default()).expect("a store");
        let store: Arc<dyn EventStore> = Arc::new(store);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let hub = Hub::start();
        let parts = parts(address, store.clone(), hub.clone());
        tokio::spawn(grasp_relay::serve(listener, parts, std::future::pending()));
        Self {
            address,
            store,
            hub,
            _directory: directory,
        }
    }

    /// Saves events in the store without ingest.
    pub(crate) async fn fill(&self, events: &[Event]) {
        for batch in events.chunks(5_000) {
            let batch = batch.iter().cloned().map(Arc::new).collect();
            let _ = self
                .store
                .save(batch, Timestamp::now())
                .await
                .expect("a store");
        }
    }
}

fn parts(address: SocketAddr, store: Arc<dyn EventStore>, hub: Hub) -> Parts {
    let service: grasp_core::ServiceIdentity = address.to_string().parse().expect("an address");
    let clock = Clock::system();
    let pipeline = Pipeline {
        members: None,
        maintainers: ListedMaintainers::default(),
        store: store.clone(),
        git: Arc::new(RelayOnly),
        hub: hub.clone(),
        policy: Policy::new(service.clone()).into(),
        fan_out: Mutex::default(),
        budgets: Budgets::default(),
        clock: clock.clone(),
        metrics: Metrics::default(),
    };
    let limits = Limits {
        messages_per_minute: u32::MAX,
        events_per_minute: u32::MAX,
        queries_per_minute: u32::MAX,
        connections_per_ip: usize::MAX,
        ..Limits::default()
    };
    let listing = Listing::new(store.clone(), service.clone(), clock.clone(), |_| true);
    let config = Config {
        policy: Policy::new(service.clone()).into(),
        service,
        secure: false,
        info: LiveInfo::default(),
        limits,
        trusted_proxies: vec![],
        node_key: None,
        pages: Default::default(),
        private: None,
    };
    let (ingest, extra) = (Arc::new(pipeline), axum::Router::new());
    Parts {
        store,
        ingest,
        hub,
        listing,
        config,
        clock,
        pages: None,
        management: None,
        extra,
    }
}

/// The number of results of checks of one commit.
pub(crate) const RESULTS_PER_COMMIT: usize = 20;

/// Returns results of checks (kind 9842) of commits of these repositories, by one key, and the commits.
pub(crate) fn results(coordinates: &[String], count: usize) -> (Vec<Event>, Vec<String>) {
    let keys = Keys::generate();
    let (mut events, mut commits) = (Vec::new(), Vec::new());
    for nth in 0..count.div_ceil(RESULTS_PER_COMMIT) {
        let commit = format!("{nth:040x}");
        let coordinate = &coordinates[nth % coordinates.len()];
        for check in 0..RESULTS_PER_COMMIT {
            let tags = vec![
                Tag::custom("a", [coordinate.clone()]),
                Tag::custom("c", [commit.clone()]),
            ];
            let text = format!("check {check}");
            events.push(sign(&keys, Kind::from(9842), &text, tags, nth));
        }
        commits.push(commit);
    }
    (events, commits)
}

/// An announcement for a relay, and issues about its repository.
pub(crate) struct Repository {
    pub(crate) announcement: Event,
    pub(crate) coordinate: String,
    pub(crate) issues: Vec<Event>,
}

/// Returns repositories with `issues` issues in total, each about 700 bytes, a second apart.
pub(crate) fn repositories(address: SocketAddr, issues: usize) -> Vec<Repository> {
    let count = issues.div_ceil(EVENTS_PER_REPOSITORY);
    (0..count)
        .map(|nth| repository(address, nth, EVENTS_PER_REPOSITORY.min(issues)))
        .collect()
}

fn repository(address: SocketAddr, nth: usize, issues: usize) -> Repository {
    let keys = Keys::generate();
    let author = npub(&keys.public_key());
    let name = format!("repository-{nth}");
    let coordinate = format!("30617:{}:{name}", keys.public_key());
    let clone = format!("http://{address}/{author}/{name}.git");
    let relay = format!("ws://{address}");
    let announcement = sign(
        &keys,
        Kind::GitRepoAnnouncement,
        "",
        vec![
            Tag::identifier(name),
            Tag::custom("clone", [clone]),
            Tag::custom("relays", [relay]),
        ],
        0,
    );
    let text = "It does not work as it should. ".repeat(10);
    let issue = |age: usize| {
        let tags = vec![
            Tag::custom("a", [coordinate.clone()]),
            Tag::public_key(keys.public_key()),
        ];
        let age = nth * EVENTS_PER_REPOSITORY + age;
        sign(&keys, Kind::GitIssue, &format!("{age} {text}"), tags, age)
    };
    let issues = (0..issues).map(issue).collect();
    Repository {
        announcement,
        coordinate,
        issues,
    }
}

fn sign(keys: &Keys, kind: Kind, content: &str, tags: Vec<Tag>, age: usize) -> Event {
    let at = Timestamp::now().as_secs() - age as u64;
    EventBuilder::new(kind, content)
        .tags(tags)
        .custom_created_at(Timestamp::from_secs(at))
        .finalize(keys)
        .expect("signed")
}
