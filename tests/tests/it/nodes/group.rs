//! Nodes of one server, each a process of its own, behind a proxy that sends every connection to the next of them.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use grasp_bin::{Server, Settings};
use grasp_relay::Clock;
use grasp_relay::web::figures::{NodeStatus, Status};
use grasp_tests::{Postgres, S3Server, ServerClient, eventually_async, proxy_round_robin};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Tells a process of this very binary to be a node, and which.
const DIR: &str = "GRASP_TEST_NODE_DIR";
const ADDRESS: &str = "GRASP_TEST_NODE_ADDRESS";
const LINK: &str = "GRASP_TEST_NODE_LINK";
const DOMAIN: &str = "GRASP_TEST_NODE_DOMAIN";
const DATABASE: &str = "GRASP_TEST_NODE_DATABASE";
const PACKS: &str = "GRASP_TEST_NODE_PACKS";

/// The nodes of one server.
pub(super) struct Group {
    postgres: Postgres,
    database: String,
    packs: S3Server,
    nodes: Vec<NodeProcess>,
    domain: SocketAddr,
    proxy: JoinHandle<()>,
}

struct NodeProcess {
    dir: TempDir,
    address: SocketAddr,
    /// The way on which other nodes reach it.
    link: Link,
    process: Option<Child>,
}

/// A way to a node that can be cut.
struct Link {
    address: SocketAddr,
    is_cut: watch::Sender<bool>,
    passing: JoinHandle<()>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.passing.abort();
    }
}

impl Link {
    async fn to(node: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (is_cut, cut) = watch::channel(false);
        Self { address, is_cut, passing: tokio::spawn(pass(listener, node, cut)) }
    }
}

/// Passes connections to a node, and ends them when the way is cut.
async fn pass(listener: TcpListener, node: SocketAddr, cut: watch::Receiver<bool>) {
    while let Ok((mut client, _)) = listener.accept().await {
        let mut cut = cut.clone();
        tokio::spawn(async move {
            let Ok(mut node) = TcpStream::connect(node).await else { return };
            tokio::select! {
                _ = tokio::io::copy_bidirectional(&mut client, &mut node) => {}
                _ = cut.wait_for(|is_cut| *is_cut) => {}
            }
        });
    }
}

impl NodeProcess {
    fn signal(&self, signal: Signal) {
        let child = self.process.as_ref().unwrap();
        kill_process(Pid::from_child(child), signal).unwrap();
    }
}

impl Drop for NodeProcess {
    fn drop(&mut self) {
        if let Some(mut child) = self.process.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.proxy.abort();
    }
}

impl Group {
    /// Starts nodes and waits until one of them writes; `None` if PostgreSQL is not installed.
    pub(super) async fn start(count: usize) -> Option<Self> {
        let postgres = Postgres::durable()?;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let domain = listener.local_addr().unwrap();
        let mut nodes = Vec::new();
        for _ in 0..count {
            let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            let (dir, link) = (tempfile::tempdir().unwrap(), Link::to(address).await);
            nodes.push(NodeProcess { dir, address, link, process: None });
        }
        let addresses: Vec<SocketAddr> = nodes.iter().map(|node| node.address).collect();
        let mut group = Self {
            database: postgres.database(),
            postgres,
            packs: S3Server::start().await,
            nodes,
            domain,
            proxy: tokio::spawn(proxy_round_robin(listener, addresses)),
        };
        (0..count).for_each(|node| group.restart(node));
        group.until_ready().await;
        Some(group)
    }

    /// The server, through its proxy.
    pub(super) fn client(&self) -> ServerClient {
        ServerClient::at(self.domain)
    }

    /// One node.
    pub(super) fn node(&self, node: usize) -> ServerClient {
        ServerClient::at(self.nodes[node].address)
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn all(&self) -> Vec<ServerClient> {
        (0..self.nodes.len()).map(|node| self.node(node)).collect()
    }

    pub(super) fn packs(&self) -> &S3Server {
        &self.packs
    }

    pub(super) fn postgres(&self) -> &Postgres {
        &self.postgres
    }

    /// Starts a node that does not run.
    pub(super) fn restart(&mut self, node: usize) {
        let it = &mut self.nodes[node];
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "nodes::group::serves_as_a_node", "--ignored", "--nocapture"])
            .env(DIR, it.dir.path())
            .env(ADDRESS, it.address.to_string())
            .env(LINK, it.link.address.to_string())
            .env(DOMAIN, self.domain.to_string())
            .env(DATABASE, &self.database)
            .env(PACKS, self.packs.url())
            .envs(self.packs.variables())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        it.process = Some(child.unwrap());
    }

    /// Kills a node at once.
    pub(super) fn kill(&mut self, node: usize) {
        let mut child = self.nodes[node].process.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Stops a node in the middle of whatever it does.
    pub(super) fn freeze(&self, node: usize) {
        self.nodes[node].signal(Signal::STOP);
    }

    /// Lets it go on.
    pub(super) fn thaw(&self, node: usize) {
        self.nodes[node].signal(Signal::CONT);
    }

    pub(super) fn is_running(&self, node: usize) -> bool {
        self.nodes[node].process.is_some()
    }

    /// The address of a node as the other nodes know it.
    pub(super) fn node_address(&self, node: usize) -> String {
        format!("http://{}", self.nodes[node].link.address)
    }

    /// Cuts the way on which other nodes reach a node, or mends it.
    pub(super) fn cut(&self, node: usize, is_cut: bool) {
        self.nodes[node].link.is_cut.send_replace(is_cut);
    }

    /// The nodes as one of them sees them.
    pub(super) async fn status(&self, node: usize) -> Option<Status> {
        serde_json::from_str(&self.node(node).get("/status.json").await).ok()
    }

    /// Waits until all nodes that run answer and agree on one writer, and returns it.
    pub(super) async fn until_ready(&self) -> usize {
        eventually_async(|| async {
            let mut writers = Vec::new();
            for node in (0..self.nodes.len()).filter(|node| self.is_running(*node)) {
                TcpStream::connect(self.nodes[node].address).await.ok()?;
                let status = self.status(node).await.filter(|status| status.ready)?;
                let is_writer = |node: &NodeStatus| node.is_writer && node.is_up;
                writers.push(status.nodes.into_iter().find(is_writer)?.address);
            }
            writers.dedup();
            let [writer] = &writers[..] else { return None };
            (0..self.nodes.len()).find(|node| self.node_address(*node) == *writer)
        })
        .await
    }
}

/// The settings of a node.
pub(super) fn settings(dir: &Path, address: SocketAddr, domain: &str) -> Settings {
    let mut settings = Settings::new(domain.parse().unwrap(), dir);
    settings.node_address = Some(format!("http://{address}").parse().unwrap());
    settings.sync.enabled = false;
    settings
}

/// The process of a node, which ends by a signal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by others"]
async fn serves_as_a_node() {
    let [dir, address, link, domain, database, packs] =
        [DIR, ADDRESS, LINK, DOMAIN, DATABASE, PACKS].map(|name| std::env::var(name).unwrap());
    let address: SocketAddr = address.parse().unwrap();
    let mut settings = settings(Path::new(&dir), link.parse().unwrap(), &domain);
    settings.database = Some(database.parse().unwrap());
    settings.packs = Some(packs.parse().unwrap());
    let listener = TcpListener::bind(address).await.unwrap();
    let server = Server::open(&settings, Clock::system()).await.unwrap();
    server.serve(listener, std::future::pending()).await.unwrap();
    tokio::time::sleep(Duration::MAX).await;
}
