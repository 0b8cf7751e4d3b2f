//! One server, as the binary builds it, on a port of its own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use grasp_bin::{Server, Settings};
use grasp_core::{MaintainerModel, RepoId, ServiceIdentity};
use grasp_relay::ingest::{Origin, Verdict};
use grasp_relay::server::Parts;
use grasp_relay::{Accepted, Clock, Feed};
use nostr::event::Event;
use nostr::filter::Filter;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::{HttpAnswer, Maker, Workdir, http};

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running server. Dropping it stops it without ceremony; [`Instance::stop`] waits for its end.
pub struct Instance {
    address: SocketAddr,
    settings: Settings,
    server: Arc<Server>,
    stop: oneshot::Sender<()>,
    running: JoinHandle<()>,
    dir: TempDir,
}

impl Instance {
    /// Starts a server with default settings.
    pub async fn start() -> Self {
        Self::with(|_| ()).await
    }

    /// Starts a server with some settings of its own.
    pub async fn with(choose: impl FnOnce(&mut Settings)) -> Self {
        let dir = tempfile::tempdir().expect("a directory for the test");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port on loopback");
        let address = listener.local_addr().expect("the port");
        let service = address.to_string().parse().expect("an address");
        let mut settings = Settings::new(service, dir.path());
        choose(&mut settings);
        Self::run(dir, listener, settings).await
    }

    /// Starts a server with this model of maintainers.
    pub async fn of_model(model: MaintainerModel) -> Self {
        Self::with(|settings| settings.maintainers = model).await
    }

    /// Stops the server and starts it again in the same place.
    pub async fn restart(self) -> Self {
        self.restart_with(|_| ()).await
    }

    /// The same with other settings.
    pub async fn restart_with(self, choose: impl FnOnce(&mut Settings)) -> Self {
        let (address, mut settings) = (self.address, self.settings.clone());
        choose(&mut settings);
        let dir = self.stop().await;
        let listener = TcpListener::bind(address).await.expect("the port that was ours");
        Self::run(dir, listener, settings).await
    }

    async fn run(dir: TempDir, listener: TcpListener, settings: Settings) -> Self {
        let address = listener.local_addr().expect("the port");
        let server = Server::open(&settings, Clock::system()).await.expect("a server");
        let server = Arc::new(server);
        let (stop, stopped) = oneshot::channel::<()>();
        let running = tokio::spawn({
            let server = Arc::clone(&server);
            async move {
                let told = async { drop(stopped.await) };
                server.serve(listener, told).await.expect("the server ends well");
            }
        });
        Self { address, settings, server, stop, running, dir }
    }

    /// The server itself.
    pub fn server(&self) -> &Server {
        &self.server
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
        self.server.keeper().settle(&name).await.expect("a keeper");
    }

    /// Whether an event is served.
    pub async fn serves(&self, event: &Event) -> bool {
        let question = vec![vec![Filter::new().id(event.id)]];
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
    pub async fn stop(self) -> TempDir {
        let Self { server, stop, running, dir, .. } = self;
        drop(stop);
        running.await.expect("the server does not panic");
        let server = Arc::into_inner(server).expect("nobody else has the server");
        server.close().await.expect("the server closes");
        dir
    }

    fn parts(&self) -> &Parts {
        self.server.parts()
    }
}
