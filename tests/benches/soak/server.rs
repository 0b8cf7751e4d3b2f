//! A server as a process, which is stopped or killed and started again at the same address.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use grasp_core::{RepoId, ServiceIdentity};
use rustix::process::{Pid, Signal, kill_process};

/// Variable with the `grasp` to measure; otherwise this program itself acts as the server.
const PROGRAM_VAR: &str = "GRASP_BENCH_PROGRAM";

pub(crate) struct Server {
    /// The address that clients use.
    pub(crate) address: String,
    listen: String,
    pub(crate) data: PathBuf,
    arguments: Vec<String>,
    child: Child,
}

impl Server {
    /// Starts a server with default settings except for private targets, on a free port, with these bootstrap relays.
    pub(crate) fn with_bootstrap(dir: &Path, relays: &[&str]) -> Self {
        let arguments = relays
            .iter()
            .flat_map(|url| ["--bootstrap".to_owned(), (*url).to_owned()]);
        Self::start("127.0.0.1:0", dir.to_owned(), arguments.collect())
    }

    pub(crate) fn start(listen: &str, data: PathBuf, arguments: Vec<String>) -> Self {
        std::fs::create_dir_all(&data).expect("a directory");
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(data.join("log"));
        let this = || std::env::current_exe().expect("this program");
        let program = std::env::var_os(PROGRAM_VAR).map_or_else(this, PathBuf::from);
        let mut child = Command::new(program)
            .args([
                "serve",
                "--listen",
                listen,
                "--allow-private-targets",
                "--data-dir",
            ])
            .arg(&data)
            .args(&arguments)
            .env_remove("GRASP_SOAK_MINUTES")
            .env_remove("GRASP_SOAK_CSV")
            .env_remove("GRASP_SOAK_RATE")
            .stdout(Stdio::piped())
            .stderr(log.expect("a log"))
            .spawn()
            .expect("a server");
        let lines = BufReader::new(child.stdout.take().expect("a piped stdout")).lines();
        let address = lines.map_while(Result::ok).find_map(|line| {
            let word = line
                .split_whitespace()
                .find_map(|word| word.strip_prefix("ws://"))?;
            Some(word.trim_end_matches('/').to_owned())
        });
        let address = address.expect("the server prints its address");
        let listen = if listen.ends_with(":0") {
            address.clone()
        } else {
            listen.to_owned()
        };
        Self {
            address,
            listen,
            data,
            arguments,
            child,
        }
    }

    /// Stops the server by SIGTERM or SIGKILL, and starts it again.
    pub(crate) fn restart(&mut self, is_graceful: bool) {
        let signal = if is_graceful {
            Signal::TERM
        } else {
            Signal::KILL
        };
        kill_process(Pid::from_child(&self.child), signal).expect("a running server");
        let _ = self.child.wait();
        let next = Self::start(&self.listen, self.data.clone(), self.arguments.clone());
        *self = next;
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn service(&self) -> ServiceIdentity {
        self.address.parse().expect("an address")
    }

    pub(crate) fn clone_url(&self, repo: &RepoId) -> String {
        format!("http://{}{}", self.address, self.service().repo_path(repo))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
