//! The server under attack, as a process.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use grasp_core::{RepoId, ServiceIdentity};
use grasp_tests::{Outside, files};
use tempfile::TempDir;

/// A server with default settings in a process of its own. Dropping it kills it.
pub(crate) struct Server {
    address: SocketAddr,
    child: Child,
    dir: TempDir,
    arguments: Vec<String>,
}

impl Server {
    /// Starts a server; `arguments` come after those that every server here has.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let arguments: Vec<String> = arguments.iter().map(|word| (*word).to_owned()).collect();
        let (child, address) = run(dir.path(), "127.0.0.1:0", &arguments);
        Self { address, child, dir, arguments }
    }

    /// Kills the server and starts it again at the same address.
    pub(crate) fn restart(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let listen = self.address.to_string();
        (self.child, self.address) = run(self.dir.path(), &listen, &self.arguments);
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The server as any client sees it.
    pub(crate) fn outside(&self) -> Outside {
        Outside::at(self.address)
    }

    pub(crate) fn service(&self) -> ServiceIdentity {
        self.outside().service()
    }

    /// Path of a repository below the server's root.
    pub(crate) fn path(&self, repo: &RepoId) -> String {
        self.service().repo_path(repo)
    }

    /// Directory with everything that the server stores.
    pub(crate) fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// Bytes of memory that the server and all processes below it take; what several share counts once.
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

    /// Bytes in the files of the data directory.
    pub(crate) fn disk(&self) -> u64 {
        let length = |path: PathBuf| std::fs::metadata(path).map_or(0, |file| file.len());
        files(&self.data()).into_iter().map(length).sum()
    }

    /// The server and its descendants.
    fn processes(&self) -> Vec<u32> {
        let mut found = vec![self.child.id()];
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
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the command below a directory, and reads the address that it prints.
fn run(dir: &Path, listen: &str, arguments: &[String]) -> (Child, SocketAddr) {
    let log = std::fs::File::create(dir.join("log")).expect("a log");
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["serve", "--listen", listen, "--allow-private-targets", "--data-dir"])
        .arg(dir.join("data"))
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .expect("a server");
    let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    let address = lines.map_while(Result::ok).find_map(|line| {
        let word = line.split_whitespace().find_map(|word| word.strip_prefix("ws://"))?;
        word.trim_end_matches('/').parse().ok()
    });
    (child, address.expect("a server prints its address"))
}

/// Processes whose parent is `id`, whichever of its threads started them.
fn children_of(id: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(Path::new("/proc").join(id.to_string()).join("task"));
    let lists = tasks.into_iter().flatten().flatten().map(|task| task.path().join("children"));
    let texts = lists.map(|list| std::fs::read_to_string(list).unwrap_or_default());
    let ids = |text: String| text.split(' ').filter_map(|id| id.parse().ok()).collect::<Vec<_>>();
    texts.flat_map(ids).collect()
}
