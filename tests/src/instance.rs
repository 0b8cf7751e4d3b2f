//! One server, as the binary builds it, on a port of its own.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use grasp_bin::Server;
use grasp_core::admission::SyncPath;
use grasp_core::{MaintainerModel, RepoId, ServiceIdentity};
use grasp_purgatory::driver::PurgatoryDriver;
use grasp_relay::ingest::{Origin, Outcome};
use grasp_relay::server::{Parts, serve};
use grasp_relay::{Accepted, Feed};
use nostr::event::{Event, EventId};
use nostr::filter::Filter;
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::nodes::{OtherNodes, are_nodes_wanted};
use crate::{HttpAnswer, Litter, Maker, Settings, Workdir, eventually, http, post};

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A port that stays ours while nobody listens there: whoever is given a free one meanwhile, this process or another,
/// is given another one.
#[derive(Clone)]
struct Place {
    address: SocketAddr,
    _held: Arc<TcpSocket>,
}

impl Place {
    fn claim(address: SocketAddr) -> Self {
        let held = bind(address);
        Self { address: held.local_addr().expect("the port"), _held: Arc::new(held) }
    }

    fn listen(&self) -> TcpListener {
        bind(self.address).listen(1_024).expect("a port that is ours")
    }
}

/// Shares the address with other sockets, of which one may listen.
fn bind(address: SocketAddr) -> TcpSocket {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_reuseaddr(true).expect("a socket that shares");
    socket.bind(address).expect("a port");
    socket
}

/// A running server. Dropping it stops it without ceremony; [`Instance::stop`] waits for its end.
pub struct Instance {
    place: Place,
    /// What the server was built from.
    built: grasp_bin::Settings,
    settings: Settings,
    server: Arc<Server>,
    /// The other nodes, if it has several.
    others: Option<OtherNodes>,
    purgatory: PurgatoryDriver,
    stop: oneshot::Sender<()>,
    running: JoinHandle<()>,
    dir: PathBuf,
    /// Gone with the last who needs it.
    temporary: Option<TempDir>,
}

impl Instance {
    /// Starts a server with default settings.
    pub async fn start() -> Self {
        Self::set(Settings::default()).await
    }

    /// Starts a server with default settings that is always one process.
    pub async fn alone() -> Self {
        Self::set(Settings::one_process()).await
    }

    /// Starts a server with this model of maintainers.
    pub async fn of_model(model: MaintainerModel) -> Self {
        Self::with(|settings| settings.policy.model = model).await
    }

    /// Starts a server whose settings are chosen.
    pub async fn with(choose: impl FnOnce(&mut grasp_bin::Settings)) -> Self {
        Self::begin(Settings::default(), choose).await
    }

    /// Starts a server in these circumstances.
    pub async fn set(settings: Settings) -> Self {
        Self::begin(settings, |_| ()).await
    }

    /// The same, with more of its settings chosen.
    pub async fn set_with(
        settings: Settings,
        choose: impl FnOnce(&mut grasp_bin::Settings),
    ) -> Self {
        Self::begin(settings, choose).await
    }

    async fn begin(settings: Settings, choose: impl FnOnce(&mut grasp_bin::Settings)) -> Self {
        let temporary = tempfile::tempdir().expect("a directory for the test");
        let place = Place::claim(([127, 0, 0, 1], 0).into());
        let mut built = settings.built(temporary.path(), place.address);
        choose(&mut built);
        let instance = Self::run(place, built, settings).await;
        Self { temporary: Some(temporary), ..instance }
    }

    /// Starts a server on an address and in a directory that belong to somebody else.
    pub async fn at(dir: &Path, address: SocketAddr, settings: Settings) -> Self {
        Self::at_with(dir, address, settings, |_| ()).await
    }

    /// The same with chosen settings.
    pub async fn at_with(
        dir: &Path,
        address: SocketAddr,
        settings: Settings,
        choose: impl FnOnce(&mut grasp_bin::Settings),
    ) -> Self {
        let place = Place::claim(address);
        let mut built = settings.built(dir, place.address);
        choose(&mut built);
        Self::run(place, built, settings).await
    }

    /// Stops the server and starts it again in the same place.
    pub async fn restart(self) -> Self {
        self.restart_after(|_| {}).await
    }

    /// The same with other settings.
    pub async fn restart_with(mut self, choose: impl FnOnce(&mut grasp_bin::Settings)) -> Self {
        choose(&mut self.built);
        self.restart().await
    }

    /// Stops the server, does something to what it left on disk, and starts it again.
    pub async fn restart_after(self, change: impl FnOnce(&Path)) -> Self {
        let (place, built, settings) =
            (self.place.clone(), self.built.clone(), self.settings.clone());
        let dir = self.dir.clone();
        let temporary = self.stop().await;
        change(&dir);
        let instance = Self::run(place, built, settings).await;
        Self { temporary, ..instance }
    }

    async fn run(place: Place, mut built: grasp_bin::Settings, settings: Settings) -> Self {
        let listener = place.listen();
        let Settings { store, extra, repositories, .. } = &settings;
        let is_special = store.is_some() || extra.is_some() || repositories.is_some();
        let (server, listener, others) =
            if are_nodes_wanted() && !settings.one_process && !is_special {
                let opened = OtherNodes::start(&mut built, &settings.clock, listener).await;
                (opened.0, opened.1, Some(opened.2))
            } else {
                let store = grasp_bin::open_store(&built).await.expect("a store");
                let store = settings.store.iter().fold(store, |store, wrap| wrap(store));
                let server = Server::open_on(&built, store, settings.clock.clone()).await;
                (Arc::new(server.expect("a server")), listener, None)
            };
        let purgatory = server.roles().purgatory().expect("the writer");
        let mut parts = server.parts().clone();
        if let Some(extra) = &settings.extra {
            parts.extra = extra.clone();
        }
        let (stop, stopped) = oneshot::channel::<()>();
        let running = tokio::spawn(async move {
            let told = async { drop(stopped.await) };
            serve(listener, parts, told).await.expect("the server ends well");
        });
        let dir = built.data_dir.clone();
        let temporary = None;
        Self { place, built, settings, server, others, purgatory, stop, running, dir, temporary }
    }

    /// The server itself.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.place.address
    }

    /// Where repositories are on disk.
    pub fn repositories(&self) -> PathBuf {
        self.built.repositories()
    }

    /// What keeps events and git data in step.
    pub fn purgatory(&self) -> &PurgatoryDriver {
        &self.purgatory
    }

    /// Where an owner's repository is below the root of the service.
    pub fn path(&self, repo: &RepoId) -> String {
        self.service().repo_path(repo)
    }

    /// Sends something to a place below a repository.
    pub async fn post(
        &self,
        repo: &RepoId,
        place: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> HttpAnswer {
        let path = format!("{}/{place}", self.path(repo));
        post(&self.place.address.to_string(), &path, headers, body).await
    }

    /// The refs that clients see, as `git ls-remote` lists them.
    pub async fn refs(&self, repo: &RepoId) -> String {
        Workdir::empty().git(&["ls-remote", &self.clone_url(repo)]).await.expect_ok()
    }

    /// What is lying about that only belongs there while somebody is at work.
    pub fn litter(&self) -> Litter {
        Litter::below(&self.repositories())
    }

    /// Waits until nobody is at work any more, and says what is lying about then.
    pub async fn quiet(&self) -> Litter {
        self.litter_once(|litter| litter.processes.is_empty() && litter.incoming == 0).await
    }

    /// Waits until what is lying about is as wanted.
    pub async fn litter_once(&self, wanted: impl Fn(&Litter) -> bool) -> Litter {
        let root = self.repositories();
        eventually(|| Some(Litter::below(&root)).filter(|litter| wanted(litter))).await
    }

    /// Where everything is kept.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where the relay is.
    pub fn relay_url(&self) -> String {
        format!("ws://{}", self.place.address)
    }

    /// The address that announcements must list.
    pub fn service(&self) -> ServiceIdentity {
        self.parts().config.service.clone()
    }

    /// Asks the server for a page.
    pub async fn get(&self, path: &str, headers: &[(&str, &str)]) -> HttpAnswer {
        http(&self.place.address.to_string(), "GET", path, headers).await
    }

    /// Asks the server something else.
    pub async fn request(&self, method: &str, path: &str) -> HttpAnswer {
        http(&self.place.address.to_string(), method, path, &[]).await
    }

    /// Where a repository is cloned from.
    pub fn clone_url(&self, repo: &RepoId) -> String {
        format!("http://{}{}", self.place.address, self.service().repo_path(repo))
    }

    /// Gives events to the server without a socket.
    pub async fn take(&self, events: Vec<Event>) -> Vec<Outcome> {
        self.parts().ingest.ingest(events, Origin::anonymous()).await
    }

    /// Gives events to the server as if another relay had brought them.
    pub async fn sync(&self, events: Vec<Event>) -> Vec<Outcome> {
        let relay = "wss://relay.example.com".parse().expect("a relay");
        self.parts().ingest.ingest(events, Origin::Sync { relay, path: SyncPath::Live }).await
    }

    /// Waits until an event is served; for how long that took.
    pub async fn serves_within(&self, limit: Duration, event: &Event) -> Duration {
        let start = Instant::now();
        while !self.serves(event).await {
            assert!(start.elapsed() < limit, "not served within {limit:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        start.elapsed()
    }

    /// Has a repository of one commit announced, signed and pushed.
    pub async fn host(&self, owner: &Maker, name: &str) -> Workdir {
        let work = Workdir::init().await;
        let commit = work.commit("first").await;
        let state = owner.state(name, &[("refs/heads/main", &commit)]);
        self.take(vec![owner.announce(name, &self.service()), state]).await;
        work.git(&["push", &self.clone_url(&owner.repo(name)), "main"]).await.expect_ok();
        work
    }

    /// Waits until everything that was told about a repository name has had its consequences.
    pub async fn settle(&self, name: &str) {
        let name = name.parse().expect("a legal name");
        self.purgatory().settle(&name).await.expect("a purgatory");
    }

    /// Whether an event is served.
    pub async fn serves(&self, event: &Event) -> bool {
        self.serves_id(event.id).await
    }

    /// Whether an event of this id is served.
    pub async fn serves_id(&self, id: EventId) -> bool {
        let question = vec![vec![Filter::new().id(id)]];
        let now = self.parts().clock.now().unix;
        self.parts().store.exists(question, now).await.expect("the store answers")[0]
    }

    /// Waits until an event is served.
    pub async fn until_serves(&self, event: &Event) {
        let Parts { store, hub, clock, .. } = self.parts();
        let feed = Feed::new(Arc::clone(store), hub.clone(), clock.clone());
        let mut accepted = feed.accepted(&[event.kind]);
        let arrives = async {
            while let Some(news) = accepted.next().await {
                if matches!(news, Accepted::Event(one) if one.id == event.id) {
                    return;
                }
            }
        };
        tokio::time::timeout(PATIENCE, arrives).await.expect("the event arrives in time");
    }

    /// Stops the server as the binary would, waits for its end, and gives back what it leaves on disk.
    pub async fn stop(self) -> Option<TempDir> {
        let Self { server, others, purgatory, stop, running, temporary, .. } = self;
        if let Some(others) = others {
            others.stop().await;
        }
        drop((stop, purgatory));
        running.await.expect("the server does not panic");
        let server = Arc::into_inner(server).expect("nobody else has the server");
        server.close().await.expect("the server closes");
        temporary
    }

    fn parts(&self) -> &Parts {
        self.server.parts()
    }
}
