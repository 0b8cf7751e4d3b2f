//! Nodes of one server, each a process of its own, behind a proxy that sends every connection to the next of them.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use grasp_relay::Clock;
use grasp_relay::instance::{Server, Settings};
use grasp_relay::web::figures::{NodeStatus, Status};
use grasp_tests::{
    Postgres, S3Server, ServerClient, eventually_async, proxy_round_robin, reserve_address,
};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Variables that make a process of this test binary a node, with its settings.
const DIR_VAR: &str = "GRASP_TEST_NODE_DIR";
const ADDRESS_VAR: &str = "GRASP_TEST_NODE_ADDRESS";
const LINK_VAR: &str = "GRASP_TEST_NODE_LINK";
const DOMAIN_VAR: &str = "GRASP_TEST_NODE_DOMAIN";
const DATABASE_VAR: &str = "GRASP_TEST_NODE_DATABASE";
const PACKS_VAR: &str = "GRASP_TEST_NODE_PACKS";

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
    /// The proxy through which other nodes connect to it.
    link: Link,
    process: Option<Child>,
}

/// A proxy to a node, whose connections can be cut.
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
        Self {
            address,
            is_cut,
            passing: tokio::spawn(pass(listener, node, cut)),
        }
    }
}

/// Passes connections to a node, and ends them when the link is cut.
async fn pass(listener: TcpListener, node: SocketAddr, cut: watch::Receiver<bool>) {
    while let Ok((mut client, _)) = listener.accept().await {
        let mut cut = cut.clone();
        tokio::spawn(async move {
            let Ok(mut node) = TcpStream::connect(node).await else {
                return;
            };
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
    /// Starts nodes and waits until one of them is the writer; `None` if PostgreSQL is not installed.
    pub(super) async fn start(count: usize) -> Option<Self> {
        let postgres = Postgres::durable()?;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let domain = listener.local_addr().unwrap();
        let mut nodes = Vec::new();
        for _ in 0..count {
            let address = reserve_address([127, 0, 0, 1]);
            let (dir, link) = (tempfile::tempdir().unwrap(), Link::to(address).await);
            nodes.push(NodeProcess {
                dir,
                address,
                link,
                process: None,
            });
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

    /// Returns a client of the server, through its proxy.
    pub(super) fn client(&self) -> ServerClient {
        ServerClient::at(self.domain)
    }

    /// Returns a client of one node.
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
        let started = &mut self.nodes[node];
        let child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "nodes::group::serves_as_a_node",
                "--ignored",
                "--nocapture",
            ])
            .env(DIR_VAR, started.dir.path())
            .env(ADDRESS_VAR, started.address.to_string())
            .env(LINK_VAR, started.link.address.to_string())
            .env(DOMAIN_VAR, self.domain.to_string())
            .env(DATABASE_VAR, &self.database)
            .env(PACKS_VAR, self.packs.url())
            .envs(self.packs.variables())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        started.process = Some(child.unwrap());
    }

    /// Kills a node by SIGKILL.
    pub(super) fn kill(&mut self, node: usize) {
        let mut child = self.nodes[node].process.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Suspends the process of a node by SIGSTOP.
    pub(super) fn suspend(&self, node: usize) {
        self.nodes[node].signal(Signal::STOP);
    }

    /// Resumes the process of a node.
    pub(super) fn resume(&self, node: usize) {
        self.nodes[node].signal(Signal::CONT);
    }

    pub(super) fn is_running(&self, node: usize) -> bool {
        self.nodes[node].process.is_some()
    }

    /// Returns the name of a node in a status for everybody, once all nodes have reported.
    pub(super) fn node_name(&self, node: usize) -> String {
        let address = |node: &NodeProcess| format!("http://{}", node.link.address);
        let own = address(&self.nodes[node]);
        let before = self.nodes.iter().filter(|node| address(node) < own).count();
        format!("node {}", before + 1)
    }

    /// Cuts or restores the link through which other nodes connect to a node.
    pub(super) fn cut(&self, node: usize, is_cut: bool) {
        self.nodes[node].link.is_cut.send_replace(is_cut);
    }

    /// Returns the status that one node reports.
    pub(super) async fn status(&self, node: usize) -> Option<Status> {
        serde_json::from_str(&self.node(node).get("/status.json").await).ok()
    }

    /// Waits until all running nodes respond and report the same writer, and returns it.
    pub(super) async fn until_ready(&self) -> usize {
        eventually_async(|| async {
            let mut writers = Vec::new();
            for node in (0..self.nodes.len()).filter(|node| self.is_running(*node)) {
                TcpStream::connect(self.nodes[node].address).await.ok()?;
                let status = self.status(node).await.filter(|status| status.ready)?;
                if status.nodes.len() < self.nodes.len() {
                    return None;
                }
                let is_writer = |node: &NodeStatus| node.is_writer && node.is_up;
                writers.push(status.nodes.into_iter().find(is_writer)?.address);
            }
            writers.dedup();
            let [writer] = &writers[..] else { return None };
            (0..self.nodes.len()).find(|node| self.node_name(*node) == *writer)
        })
        .await
    }
}

/// Returns the settings of a node.
pub(super) fn settings(dir: &Path, address: SocketAddr, domain: &str) -> Settings {
    let mut settings = Settings::new(domain.parse().unwrap(), dir);
    settings.node_address = Some(format!("http://{address}").parse().unwrap());
    settings.sync.enabled = false;
    settings
}

/// Runs the process of a node, which ends by a signal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the process of a node, started by other tests"]
async fn serves_as_a_node() {
    let names = [
        DIR_VAR,
        ADDRESS_VAR,
        LINK_VAR,
        DOMAIN_VAR,
        DATABASE_VAR,
        PACKS_VAR,
    ];
    let [dir, address, link, domain, database, packs] =
        names.map(|name| std::env::var(name).unwrap());
    let address: SocketAddr = address.parse().unwrap();
    let mut settings = settings(Path::new(&dir), link.parse().unwrap(), &domain);
    settings.database = Some(database.parse().unwrap());
    settings.packs = Some(packs.parse().unwrap());
    let listener = TcpListener::bind(address).await.unwrap();
    let server = Server::open(&settings, Clock::system()).await.unwrap();
    server
        .serve(listener, std::future::pending())
        .await
        .unwrap();
    tokio::time::sleep(Duration::MAX).await;
}
