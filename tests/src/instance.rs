//! One server, as the binary builds it, on a port of its own.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use grasp_core::admission::SyncPath;
use grasp_core::nip34::Announcement;
use grasp_core::{Identifier, MaintainerModel, RepoId, ServiceIdentity};
use grasp_purgatory::driver::PurgatoryDriver;
use grasp_relay::ingest::{Origin, Outcome};
use grasp_relay::instance::Server;
use grasp_relay::server::{Parts, serve};
use grasp_relay::{Accepted, Feed};
use nostr::event::{Event, EventId};
use nostr::filter::Filter;
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::nodes::{OtherNodes, are_nodes_wanted};
use crate::reserved::bind;
use crate::{Author, HttpResponse, Leftovers, Settings, Workdir, eventually, http, post};

/// Time within which an event must be served.
const EVENT_TIMEOUT: Duration = Duration::from_secs(60);

/// A port that stays reserved while no server listens on it: the system gives it to no other socket.
#[derive(Clone)]
struct ReservedPort {
    address: SocketAddr,
    _held: Arc<TcpSocket>,
}

impl ReservedPort {
    async fn reserve(address: SocketAddr) -> Self {
        let held = bind_when_free(address).await;
        Self {
            address: held.local_addr().expect("the port"),
            _held: Arc::new(held),
        }
    }

    async fn listen(&self) -> TcpListener {
        bind_when_free(self.address)
            .await
            .listen(1_024)
            .expect("the reserved port")
    }
}

/// Binds an address as soon as the socket of a server that stopped there is closed. A process that was started at that
/// moment holds a copy of it until it executes its program.
async fn bind_when_free(address: SocketAddr) -> TcpSocket {
    eventually(|| match bind(address) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => None,
        result => Some(result.expect("an address of this machine")),
    })
    .await
}

/// A running server. Dropping it aborts it; [`Instance::stop`] waits for its end.
pub struct Instance {
    port: ReservedPort,
    /// The settings that the server was built from.
    server_settings: grasp_relay::instance::Settings,
    settings: Settings,
    server: Arc<Server>,
    /// The other nodes, if it has several.
    others: Option<OtherNodes>,
    purgatory: PurgatoryDriver,
    stop: oneshot::Sender<()>,
    running: JoinHandle<()>,
    dir: PathBuf,
    /// The directory of the server, if the test did not bring one; removed with its last user.
    temporary: Option<TempDir>,
}

impl Instance {
    /// Starts a server with default settings.
    pub async fn start() -> Self {
        Self::with_settings(Settings::default()).await
    }

    /// Starts a server with default settings that is always one process.
    pub async fn single_process() -> Self {
        Self::with_settings(Settings::one_process()).await
    }

    /// Starts a server with this maintainer model.
    pub async fn with_model(model: MaintainerModel) -> Self {
        Self::with(|settings| settings.policy.model = model).await
    }

    /// Starts a server with changed settings.
    pub async fn with(choose: impl FnOnce(&mut grasp_relay::instance::Settings)) -> Self {
        Self::start_new(Settings::default(), choose).await
    }

    /// Starts a server with the settings of a test.
    pub async fn with_settings(settings: Settings) -> Self {
        Self::start_new(settings, |_| ()).await
    }

    /// Starts a server with the settings of a test and further changes.
    pub async fn with_settings_and(
        settings: Settings,
        choose: impl FnOnce(&mut grasp_relay::instance::Settings),
    ) -> Self {
        Self::start_new(settings, choose).await
    }

    async fn start_new(
        settings: Settings,
        choose: impl FnOnce(&mut grasp_relay::instance::Settings),
    ) -> Self {
        let temporary = tempfile::tempdir().expect("a directory for the test");
        let port = ReservedPort::reserve(([127, 0, 0, 1], 0).into()).await;
        let mut server_settings = settings.server_settings(temporary.path(), port.address);
        choose(&mut server_settings);
        let instance = Self::run(port, server_settings, settings).await;
        Self {
            temporary: Some(temporary),
            ..instance
        }
    }

    /// Starts a server on an address and in a directory that the caller owns.
    pub async fn at(dir: &Path, address: SocketAddr, settings: Settings) -> Self {
        Self::at_with(dir, address, settings, |_| ()).await
    }

    /// Starts such a server with changed settings.
    pub async fn at_with(
        dir: &Path,
        address: SocketAddr,
        settings: Settings,
        choose: impl FnOnce(&mut grasp_relay::instance::Settings),
    ) -> Self {
        let port = ReservedPort::reserve(address).await;
        let mut server_settings = settings.server_settings(dir, port.address);
        choose(&mut server_settings);
        Self::run(port, server_settings, settings).await
    }

    /// Stops the server and starts it again on its port and directory.
    pub async fn restart(self) -> Self {
        self.restart_after(|_| {}).await
    }

    /// Restarts the server with changed settings.
    pub async fn restart_with(
        mut self,
        choose: impl FnOnce(&mut grasp_relay::instance::Settings),
    ) -> Self {
        choose(&mut self.server_settings);
        self.restart().await
    }

    /// Stops the server, changes files in its directory, and starts it again.
    pub async fn restart_after(self, change: impl FnOnce(&Path)) -> Self {
        let (port, server_settings, settings) = (
            self.port.clone(),
            self.server_settings.clone(),
            self.settings.clone(),
        );
        let dir = self.dir.clone();
        let temporary = self.stop().await;
        change(&dir);
        let instance = Self::run(port, server_settings, settings).await;
        Self {
            temporary,
            ..instance
        }
    }

    async fn run(
        port: ReservedPort,
        mut server_settings: grasp_relay::instance::Settings,
        settings: Settings,
    ) -> Self {
        let listener = port.listen().await;
        let Settings {
            store,
            extra,
            repositories,
            ..
        } = &settings;
        let is_special = store.is_some() || extra.is_some() || repositories.is_some();
        let (server, listener, others) =
            if are_nodes_wanted() && !settings.one_process && !is_special {
                let opened =
                    OtherNodes::start(&mut server_settings, &settings.clock, listener).await;
                (opened.0, opened.1, Some(opened.2))
            } else {
                let store = grasp_relay::instance::open_store(&server_settings)
                    .await
                    .expect("a store");
                let store = settings.store.iter().fold(store, |store, wrap| wrap(store));
                let server = Server::open_on(&server_settings, store, settings.clock.clone()).await;
                (Arc::new(server.expect("a server")), listener, None)
            };
        let purgatory = server.roles().purgatory().expect("the writer");
        let mut parts = server.parts().clone();
        if let Some(extra) = &settings.extra {
            parts.extra = extra.clone();
        }
        let (stop, stopped) = oneshot::channel::<()>();
        let running = tokio::spawn(async move {
            let stop_requested = async { drop(stopped.await) };
            serve(listener, parts, stop_requested)
                .await
                .expect("the server ends without an error");
        });
        let dir = server_settings.data_dir.clone();
        let temporary = None;
        Self {
            port,
            server_settings,
            settings,
            server,
            others,
            purgatory,
            stop,
            running,
            dir,
            temporary,
        }
    }

    /// Returns the server itself.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Returns the address that the server listens on.
    pub fn address(&self) -> SocketAddr {
        self.port.address
    }

    /// Returns the directory of the repositories.
    pub fn repositories(&self) -> PathBuf {
        self.server_settings.repositories()
    }

    /// Returns the driver of purgatory.
    pub fn purgatory(&self) -> &PurgatoryDriver {
        &self.purgatory
    }

    /// Returns the path of a repository below the root of the service.
    pub fn path(&self, repo: &RepoId) -> String {
        self.service().repo_path(repo)
    }

    /// Sends a POST request to a path below a repository.
    pub async fn post(
        &self,
        repo: &RepoId,
        subpath: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> HttpResponse {
        let path = format!("{}/{subpath}", self.path(repo));
        post(&self.port.address.to_string(), &path, headers, body).await
    }

    /// Returns the refs that clients see, as `git ls-remote` lists them.
    pub async fn refs(&self, repo: &RepoId) -> String {
        Workdir::empty()
            .git(&["ls-remote", &self.clone_url(repo)])
            .await
            .expect_ok()
    }

    /// Returns the temporary files and processes of the repositories, which only exist during operations.
    pub fn leftovers(&self) -> Leftovers {
        Leftovers::below(&self.repositories())
    }

    /// Waits until no operation runs, and returns what is left then.
    pub async fn until_idle(&self) -> Leftovers {
        self.leftovers_when(|leftovers| leftovers.processes.is_empty() && leftovers.incoming == 0)
            .await
    }

    /// Waits until the leftovers meet a condition.
    pub async fn leftovers_when(&self, wanted: impl Fn(&Leftovers) -> bool) -> Leftovers {
        let root = self.repositories();
        eventually(|| Some(Leftovers::below(&root)).filter(|leftovers| wanted(leftovers))).await
    }

    /// Returns the data directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the URL of the relay.
    pub fn relay_url(&self) -> String {
        format!("ws://{}", self.port.address)
    }

    /// Returns the service that announcements must list.
    pub fn service(&self) -> ServiceIdentity {
        self.parts().config.service.clone()
    }

    /// Sends a GET request.
    pub async fn get(&self, path: &str, headers: &[(&str, &str)]) -> HttpResponse {
        http(&self.port.address.to_string(), "GET", path, headers).await
    }

    /// Sends a request of another method.
    pub async fn request(&self, method: &str, path: &str) -> HttpResponse {
        http(&self.port.address.to_string(), method, path, &[]).await
    }

    /// Returns the URL that a repository is cloned from.
    pub fn clone_url(&self, repo: &RepoId) -> String {
        format!(
            "http://{}{}",
            self.port.address,
            self.service().repo_path(repo)
        )
    }

    /// Gives events to the server as from a client, without a socket.
    pub async fn ingest(&self, events: Vec<Event>) -> Vec<Outcome> {
        self.parts()
            .ingest
            .ingest(events, Origin::anonymous())
            .await
    }

    /// Gives events to the server as from another relay.
    pub async fn ingest_from_relay(&self, events: Vec<Event>) -> Vec<Outcome> {
        let relay = "wss://relay.example.com".parse().expect("a relay");
        self.parts()
            .ingest
            .ingest(
                events,
                Origin::Sync {
                    relay,
                    path: SyncPath::Live,
                },
            )
            .await
    }

    /// Waits until an event is served and returns the time that it took.
    pub async fn serves_within(&self, limit: Duration, event: &Event) -> Duration {
        let start = Instant::now();
        while !self.serves(event).await {
            assert!(start.elapsed() < limit, "not served within {limit:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        start.elapsed()
    }

    /// Announces a repository of one commit, signs its state and pushes it.
    pub async fn host(&self, owner: &Author, name: &str) -> Workdir {
        let work = Workdir::init().await;
        let commit = work.commit("first").await;
        let state = owner.state(name, &[("refs/heads/main", &commit)]);
        self.ingest(vec![owner.announce(name, &self.service()), state])
            .await;
        work.git(&["push", &self.clone_url(&owner.repo(name)), "main"])
            .await
            .expect_ok();
        work
    }

    /// Waits until purgatory has processed all inputs about the repositories of an identifier.
    pub async fn settle(&self, name: &str) {
        let name: Identifier = name.parse().expect("an identifier");
        let purgatory = self.purgatory();
        let mut repos = purgatory.repos().all().await.expect("a store");
        if let Some(contributors) = purgatory.contributors() {
            repos.extend(contributors.all().await.expect("a store"));
        }
        let held = purgatory
            .ask(|held| held.held_announcements())
            .await
            .expect("a purgatory");
        for event in held {
            repos.extend(Announcement::parse(&event).map(|announcement| announcement.repo));
        }
        repos.retain(|repo| repo.identifier == name);
        for repo in repos {
            purgatory.settle(&repo).await.expect("a purgatory");
        }
    }

    /// Returns whether an event is served.
    pub async fn serves(&self, event: &Event) -> bool {
        self.serves_id(event.id).await
    }

    /// Returns whether an event of this id is served.
    pub async fn serves_id(&self, id: EventId) -> bool {
        let filters = vec![vec![Filter::new().id(id)]];
        let now = self.parts().clock.now().unix;
        self.parts()
            .store
            .exists(filters, now)
            .await
            .expect("the store responds")[0]
    }

    /// Waits until an event is served.
    pub async fn until_serves(&self, event: &Event) {
        let Parts {
            store, hub, clock, ..
        } = self.parts();
        let feed = Feed::new(Arc::clone(store), hub.clone(), clock.clone());
        let mut accepted = feed.accepted(&[event.kind]);
        let arrives = async {
            while let Some(news) = accepted.next().await {
                if matches!(news, Accepted::Event(one) if one.id == event.id) {
                    return;
                }
            }
        };
        tokio::time::timeout(EVENT_TIMEOUT, arrives)
            .await
            .expect("the event is served in time");
    }

    /// Stops the server as the binary would, waits for its end, and returns its directory.
    pub async fn stop(self) -> Option<TempDir> {
        let Self {
            server,
            others,
            purgatory,
            stop,
            running,
            temporary,
            ..
        } = self;
        if let Some(others) = others {
            others.stop().await;
        }
        drop((stop, purgatory));
        running.await.expect("the server does not panic");
        let server = Arc::into_inner(server).expect("the last reference to the server");
        server.close().await.expect("the server closes");
        temporary
    }

    fn parts(&self) -> &Parts {
        self.server.parts()
    }
}
