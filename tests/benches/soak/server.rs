//! The command as a process, told to stop or killed and started again at the same address.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use grasp_core::{RepoId, ServiceIdentity};
use rustix::process::{Pid, Signal, kill_process};

pub(crate) struct Server {
    pub(crate) address: String,
    pub(crate) data: PathBuf,
    bootstrap: Vec<String>,
    child: Child,
}

impl Server {
    /// Three of which the second and third are told of the first.
    pub(crate) fn three(dir: &Path) -> [Self; 3] {
        let first = Self::start("127.0.0.1:0", dir.join("0"), Vec::new());
        let others = [1, 2].map(|n| {
            let known = vec![format!("ws://{}", first.address)];
            Self::start("127.0.0.1:0", dir.join(n.to_string()), known)
        });
        let [second, third] = others;
        [first, second, third]
    }

    fn start(listen: &str, data: PathBuf, bootstrap: Vec<String>) -> Self {
        std::fs::create_dir_all(&data).expect("a directory");
        let log = std::fs::File::options().create(true).append(true).open(data.join("log"));
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["serve", "--listen", listen, "--allow-private-targets", "--data-dir"])
            .arg(&data)
            .args(bootstrap.iter().flat_map(|url| ["--bootstrap", url]))
            .env_remove("GRASP_SOAK_MINUTES")
            .env_remove("GRASP_SOAK_CSV")
            .stdout(Stdio::piped())
            .stderr(log.expect("a log"))
            .spawn()
            .expect("a server");
        let lines = BufReader::new(child.stdout.take().expect("a way out")).lines();
        let address = lines.map_while(Result::ok).find_map(|line| {
            let word = line.split_whitespace().find_map(|word| word.strip_prefix("ws://"))?;
            Some(word.trim_end_matches('/').to_owned())
        });
        Self { address: address.expect("a server says where it is"), data, bootstrap, child }
    }

    /// Stops it, politely or not, and starts it again.
    pub(crate) fn again(&mut self, politely: bool) {
        let signal = if politely { Signal::TERM } else { Signal::KILL };
        kill_process(Pid::from_child(&self.child), signal).expect("a living server");
        let _ = self.child.wait();
        let next = Self::start(&self.address, self.data.clone(), self.bootstrap.clone());
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
