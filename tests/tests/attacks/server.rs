//! The server under attack, as a process.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use grasp_core::{RepoId, ServiceIdentity};
use grasp_tests::{
    Author, Postgres, S3Server, ServerClient, are_nodes_wanted, eventually_async, files,
    proxy_round_robin, reserve_address,
};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// Nodes of a server that has several.
const NODES_PER_SERVER: usize = 3;

/// A server with default settings in a process of its own, or in three with `GRASP_TEST_NODES=1`. Dropping it kills it.
pub(crate) struct Server {
    address: SocketAddr,
    children: Vec<Child>,
    dir: TempDir,
    arguments: Vec<String>,
    nodes: Option<Nodes>,
}

/// The parts that the nodes of a server share.
struct Nodes {
    database: String,
    packs: S3Server,
    addresses: Vec<SocketAddr>,
    proxy: JoinHandle<()>,
}

impl Nodes {
    /// Starts the shared parts, and the proxy that clients connect to.
    async fn start() -> (Self, SocketAddr) {
        let database = Postgres::shared()
            .expect("PostgreSQL is installed")
            .database();
        let addresses: Vec<SocketAddr> = (0..NODES_PER_SERVER)
            .map(|_| reserve_address([127, 0, 0, 1]))
            .collect();
        let front = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let domain = front.local_addr().expect("its address");
        let proxy = tokio::spawn(proxy_round_robin(front, addresses.clone()));
        (
            Self {
                database,
                packs: S3Server::start().await,
                addresses,
                proxy,
            },
            domain,
        )
    }

    fn run(
        &self,
        number: usize,
        domain: SocketAddr,
        (dir, arguments): (&Path, &[String]),
    ) -> Child {
        let address = self.addresses[number];
        let (listen, domain) = (address.to_string(), domain.to_string());
        let (node, packs) = (format!("http://{address}"), self.packs.url());
        let shared = ["--database", &self.database, "--packs", &packs];
        let own = ["--node-address", &node, "--domain", &domain];
        let mut command = command(dir, &listen, arguments);
        command.args(shared).args(own).envs(self.packs.variables());
        run(command).0
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        self.proxy.abort();
    }
}

impl Server {
    /// Starts a server; `arguments` follow those of every server here.
    pub(crate) async fn start(arguments: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let arguments: Vec<String> = arguments.iter().map(|word| (*word).to_owned()).collect();
        let (nodes, address) = match are_nodes_wanted() {
            true => {
                let (nodes, address) = Nodes::start().await;
                (Some(nodes), address)
            }
            false => (None, ([127, 0, 0, 1], 0).into()),
        };
        let mut server = Self {
            address,
            children: Vec::new(),
            dir,
            arguments,
            nodes,
        };
        server.run();
        server
    }

    fn run(&mut self) {
        let Some(nodes) = &self.nodes else {
            let dir = self.data().remove(0);
            let command = command(&dir, &self.address.to_string(), &self.arguments);
            let (child, address) = run(command);
            (self.children, self.address) = (vec![child], address);
            return;
        };
        let start = |(number, dir): (usize, &PathBuf)| {
            nodes.run(number, self.address, (dir, &self.arguments))
        };
        self.children = self.data().iter().enumerate().map(start).collect();
    }

    fn kill(&mut self) {
        for mut child in self.children.drain(..) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Kills the server and starts it again at the same address. With several nodes, one has to become the writer.
    pub(crate) async fn restart(&mut self) {
        self.kill();
        self.run();
        let note = Author::new().sign(1, "unrelated", &[]);
        eventually_async(|| async {
            let refused = self.client().publish(&note).await?.err()?;
            (!refused.starts_with("error:")).then_some(())
        })
        .await;
    }

    /// Returns the number of processes, each of which applies the limits of a client network.
    pub(crate) fn process_count(&self) -> usize {
        self.children.len()
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns a client of the server.
    pub(crate) fn client(&self) -> ServerClient {
        ServerClient::at(self.address)
    }

    pub(crate) fn service(&self) -> ServiceIdentity {
        self.client().service()
    }

    /// Returns the path of a repository below the server's root.
    pub(crate) fn path(&self, repo: &RepoId) -> String {
        self.service().repo_path(repo)
    }

    /// Returns the data directories of the processes.
    fn data(&self) -> Vec<PathBuf> {
        let count = self.nodes.as_ref().map_or(1, |nodes| nodes.addresses.len());
        (0..count)
            .map(|number| self.dir.path().join(format!("data{number}")))
            .collect()
    }

    /// Returns the directories of repositories.
    pub(crate) fn repositories(&self) -> Vec<PathBuf> {
        self.data().into_iter().map(|dir| dir.join("git")).collect()
    }

    /// Returns the memory in bytes of the server and all its descendants; shared pages count once.
    pub(crate) fn memory(&self) -> u64 {
        let of = |id: &u32| {
            let path = format!("/proc/{id}/smaps_rollup");
            let text = std::fs::read_to_string(path).unwrap_or_default();
            let share = text.lines().find_map(|line| line.strip_prefix("Pss:"));
            let kib = share.and_then(|share| share.split_whitespace().next()?.parse::<u64>().ok());
            kib.unwrap_or(0) << 10
        };
        self.processes().iter().map(of).sum()
    }

    /// Returns the bytes in the files of the data directories.
    pub(crate) fn disk(&self) -> u64 {
        let length = |path: PathBuf| std::fs::metadata(path).map_or(0, |file| file.len());
        self.data()
            .iter()
            .flat_map(|dir| files(dir))
            .map(length)
            .sum()
    }

    /// Returns the ids of the server's processes and their descendants.
    fn processes(&self) -> Vec<u32> {
        let mut found: Vec<u32> = self.children.iter().map(Child::id).collect();
        let mut next = 0;
        while let Some(id) = found.get(next).copied() {
            found.extend(children_of(id));
            next += 1;
        }
        found
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns the command of a server with this data directory. Its log is beside that.
fn command(dir: &Path, listen: &str, arguments: &[String]) -> Command {
    let log = std::fs::File::create(dir.with_extension("log")).expect("a log");
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command
        .args([
            "serve",
            "--listen",
            listen,
            "--allow-private-targets",
            "--data-dir",
        ])
        .arg(dir)
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(log);
    command
}

/// Runs the command, and reads the address that it prints.
fn run(mut command: Command) -> (Child, SocketAddr) {
    let mut child = command.spawn().expect("a server");
    let lines = BufReader::new(child.stdout.take().expect("a piped stdout")).lines();
    let address = lines.map_while(Result::ok).find_map(|line| {
        let word = line
            .split_whitespace()
            .find_map(|word| word.strip_prefix("ws://"))?;
        word.trim_end_matches('/').parse().ok()
    });
    (child, address.expect("a server prints its address"))
}

/// Returns the processes that any thread of process `id` started.
fn children_of(id: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(Path::new("/proc").join(id.to_string()).join("task"));
    let lists = tasks
        .into_iter()
        .flatten()
        .flatten()
        .map(|task| task.path().join("children"));
    let texts = lists.map(|list| std::fs::read_to_string(list).unwrap_or_default());
    let ids = |text: String| {
        text.split(' ')
            .filter_map(|id| id.parse().ok())
            .collect::<Vec<_>>()
    };
    texts.flat_map(ids).collect()
}
