//! One server, as the binary builds it, on a port of its own.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use grasp_core::admission::Policy;
use grasp_core::{MaintainerModel, RepoId, ServiceIdentity};
use grasp_purgatory::git::{Git, RepoStore, Slots};
use grasp_purgatory::journal::sqlite::Journal;
use grasp_relay::git_http;
use grasp_relay::ingest::{Origin, Pipeline, Verdict};
use grasp_relay::keeper::{Keeper, KeeperParts};
use grasp_relay::nostr::{Hub, RelayInfo};
use grasp_relay::server::{Config, Parts, serve};
use grasp_relay::store::EventStore;
use grasp_relay::store::sqlite::{SqliteOptions, SqliteStore};
use nostr::event::{Event, EventId};
use nostr::filter::Filter;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::{HttpAnswer, Litter, Maker, Settings, Workdir, eventually, http, post};

/// A running server. Dropping it stops it without ceremony; [`Instance::restart`] waits for its end.
pub struct Instance {
    address: SocketAddr,
    settings: Settings,
    parts: Option<Parts>,
    keeper: Option<Keeper>,
    stop: Option<oneshot::Sender<()>>,
    running: JoinHandle<std::io::Result<()>>,
    dir: PathBuf,
    /// Gone with the last who needs it.
    temporary: Option<TempDir>,
}

impl Instance {
    /// Starts a server with default settings.
    pub async fn start() -> Self {
        Self::set(Settings::default()).await
    }

    /// Starts a server with this model of maintainers.
    pub async fn with(model: MaintainerModel) -> Self {
        Self::set(Settings { model, ..Settings::default() }).await
    }

    /// Starts a server with these settings.
    pub async fn set(settings: Settings) -> Self {
        let temporary = tempfile::tempdir().expect("a directory for the test");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port on loopback");
        let instance = Self::run(temporary.path(), listener, settings).await;
        Self { temporary: Some(temporary), ..instance }
    }

    /// Starts a server on an address and in a directory that belong to somebody else.
    pub async fn at(dir: &Path, address: SocketAddr, settings: Settings) -> Self {
        let listener = TcpListener::bind(address).await.expect("the port");
        Self::run(dir, listener, settings).await
    }

    /// Stops the server and starts it again in the same place.
    pub async fn restart(self) -> Self {
        self.restart_after(|_| {}).await
    }

    /// Stops the server, does something to what it left on disk, and starts it again.
    pub async fn restart_after(self, change: impl FnOnce(&Path)) -> Self {
        let (address, settings) = (self.address, self.settings.clone());
        let dir = self.dir.clone();
        let temporary = self.stop().await;
        change(&dir);
        let instance = Self::at(&dir, address, settings).await;
        Self { temporary, ..instance }
    }

    async fn run(dir: &Path, listener: TcpListener, settings: Settings) -> Self {
        let address = listener.local_addr().expect("the port");
        let (parts, keeper) = parts(dir, address, &settings).await;
        let (stop, stopped) = oneshot::channel::<()>();
        let stopping = async {
            let _ = stopped.await;
        };
        let running = tokio::spawn(serve(listener, parts.clone(), stopping));
        Self {
            address,
            settings,
            parts: Some(parts),
            keeper: Some(keeper),
            stop: Some(stop),
            running,
            dir: dir.to_owned(),
            temporary: None,
        }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where repositories are on disk.
    pub fn repositories(&self) -> PathBuf {
        repositories(&self.dir, &self.settings)
    }

    /// What keeps events and git data in step.
    pub fn keeper(&self) -> &Keeper {
        self.keeper.as_ref().expect("a running server")
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
        post(&self.address.to_string(), &path, headers, body).await
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

    /// Where the relay is.
    pub fn relay_url(&self) -> String {
        format!("ws://{}", self.address)
    }

    /// The address that announcements must list.
    pub fn service(&self) -> ServiceIdentity {
        self.parts().config.service.clone()
    }

    /// Asks the server for a page.
    pub async fn get(&self, path: &str, headers: &[(&str, &str)]) -> HttpAnswer {
        http(&self.address.to_string(), "GET", path, headers).await
    }

    /// Asks the server something else.
    pub async fn request(&self, method: &str, path: &str) -> HttpAnswer {
        http(&self.address.to_string(), method, path, &[]).await
    }

    /// Where a repository is cloned from.
    pub fn clone_url(&self, repo: &RepoId) -> String {
        format!("http://{}{}", self.address, self.service().repo_path(repo))
    }

    /// Gives events to the server without a socket.
    pub async fn take(&self, events: Vec<Event>) -> Vec<Verdict> {
        self.parts().ingest.ingest(events, Origin::anonymous()).await
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
        self.keeper().settle(&name).await.expect("a keeper");
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

    /// Stops the server as the binary would, waits for its end, and gives back what it leaves on disk.
    async fn stop(mut self) -> Option<TempDir> {
        drop(self.stop.take());
        let ended = (&mut self.running).await.expect("the server does not panic");
        ended.expect("the server ends well");
        let store = Arc::clone(&self.parts().store);
        (self.parts, self.keeper) = (None, None);
        store.close().await.expect("the store closes");
        self.temporary
    }

    fn parts(&self) -> &Parts {
        self.parts.as_ref().expect("a server that was not stopped")
    }
}

async fn parts(dir: &Path, address: SocketAddr, settings: &Settings) -> (Parts, Keeper) {
    let file = dir.join("events.db");
    let store = SqliteStore::open(&file, SqliteOptions::default()).expect("a store");
    let store: Arc<dyn EventStore> = (settings.store)(Arc::new(store));
    let service: ServiceIdentity = address.to_string().parse().expect("an address");
    let policy = Policy { model: settings.model, ..Policy::new(service.clone()) };
    let (hub, clock) = (Hub::start(), settings.clock.clone());
    let keeper = KeeperParts {
        repos: repos(dir, settings).await,
        store: Arc::clone(&store),
        hub: hub.clone(),
        policy: policy.clone(),
        clock: clock.clone(),
    };
    let (journal, records) = Journal::open(&dir.join("purgatory.db")).expect("a journal");
    let keeper = Keeper::start(keeper, settings.purgatory.clone(), journal, records).await;
    let ingest = Pipeline {
        store: Arc::clone(&store),
        git: Arc::new(keeper.clone()),
        hub: hub.clone(),
        policy,
        clock: clock.clone(),
    };
    let config = Config {
        service,
        info: RelayInfo::default(),
        limits: settings.relay.clone(),
        trusted_proxies: Vec::new(),
        challenge_on_connect: false,
    };
    let ours = || git_http::routes(keeper.clone(), settings.git.clone());
    let extra = settings.extra.clone().unwrap_or_else(ours);
    (Parts { store, ingest: Arc::new(ingest), hub, config, clock, extra }, keeper)
}

async fn repos(dir: &Path, settings: &Settings) -> RepoStore {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let git = match &settings.program {
        Some(program) => Git::at(program.clone(), Slots::default()),
        None => Git::find(&path, Slots::default()),
    };
    let dir = repositories(dir, settings);
    let git = git.expect("git is installed");
    RepoStore::open(&dir, git, settings.staging).await.expect("a place for repositories")
}

fn repositories(dir: &Path, settings: &Settings) -> PathBuf {
    settings.repositories.clone().unwrap_or_else(|| dir.join("git"))
}
