//! The repositories that are pushed and cloned.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use grasp_core::ServiceIdentity;
use grasp_tests::wire::pkt;
use grasp_tests::{Author, request_head};

use crate::server::{Kind, Server};

const MAIN: &str = "refs/heads/main";

/// Runs git without any configuration of a user or system, and returns its output.
fn git(dir: &Path, args: &[&str]) -> String {
    let output = Command::new("git")
        .args([
            "-c",
            "user.name=alice",
            "-c",
            "user.email=alice@example.com",
            "-c",
            "gc.auto=0",
        ])
        .args(args)
        .current_dir(dir)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .stdin(Stdio::null())
        .output()
        .expect("git runs");
    assert!(
        output.status.success(),
        "{args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Creates a repository of this name, and returns its path below the server.
fn create_repo(server: &Server, alice: &Author, name: &str) -> String {
    match server.kind {
        Kind::Grasp => {
            let service: ServiceIdentity = server.address.parse().expect("an address");
            server.publish(&alice.announce(name, &service));
            service.repo_path(&alice.repo(name))
        }
        Kind::Backend => {
            let path = server.root.join(format!("{name}.git"));
            git(
                &server.root,
                &["init", "-q", "--bare", path.to_str().expect("a path")],
            );
            git(&path, &["config", "http.receivepack", "true"]);
            git(&path, &["config", "receive.fsckObjects", "true"]);
            // A pack stays a pack, as in grasp: large loose objects would be compressed again for every client.
            git(&path, &["config", "receive.unpackLimit", "1"]);
            format!("/{name}.git")
        }
    }
}

/// Publishes the state that permits a push, where one is needed.
fn sign(server: &Server, alice: &Author, name: &str, commit: &str) {
    if server.kind == Kind::Grasp {
        server.publish(&alice.state(name, &[(MAIN, commit)]));
    }
}

/// A repository of a few files, and its working directory.
pub(crate) struct SmallRepo {
    alice: Author,
    dir: PathBuf,
    path: String,
    url: String,
}

impl SmallRepo {
    pub(crate) fn host(server: &Server, dir: &Path) -> Self {
        let dir = dir.join(format!("small-{:?}", server.kind));
        std::fs::create_dir_all(dir.join("work")).expect("a directory");
        let (work, alice) = (dir.join("work"), Author::new());
        git(&work, &["init", "-q", "-b", "main"]);
        for n in 0..30 {
            std::fs::write(work.join(format!("{n}")), format!("file {n}\n").repeat(50))
                .expect("a file");
            git(&work, &["add", "."]);
            git(&work, &["commit", "-q", "-m", &format!("commit {n}")]);
        }
        let path = create_repo(server, &alice, "small");
        sign(server, &alice, "small", &git(&work, &["rev-parse", "main"]));
        let url = format!("http://{}{path}", server.address);
        git(&work, &["push", "-q", &url, "main"]);
        git(&dir, &["clone", "-q", &url, "fetching"]);
        Self {
            alice,
            dir,
            path,
            url,
        }
    }

    /// Prepares a commit to be pushed.
    pub(crate) fn prepare_push(&mut self, server: &Server, round: usize) {
        let work = self.dir.join("work");
        std::fs::write(work.join("0"), format!("round {round}\n")).expect("a file");
        git(&work, &["commit", "-q", "-a", "-m", "more"]);
        self.alice = self.alice.later(1);
        sign(
            server,
            &self.alice,
            "small",
            &git(&work, &["rev-parse", "main"]),
        );
    }

    pub(crate) fn push(&self) {
        git(&self.dir.join("work"), &["push", "-q", &self.url, "main"]);
    }

    pub(crate) fn clone_again(&self, round: usize) {
        git(
            &self.dir,
            &[
                "clone",
                "-q",
                "--bare",
                &self.url,
                &format!("clone-{round}"),
            ],
        );
    }

    pub(crate) fn fetch_nothing(&self) {
        git(&self.dir.join("fetching"), &["fetch", "-q"]);
    }

    /// Returns the path of the repository below the server.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Returns the commit of the main branch that was pushed last.
    pub(crate) fn tip(&self) -> String {
        git(&self.dir.join("work"), &["rev-parse", "main"])
    }
}

/// A repository of large files that cannot be compressed.
pub(crate) struct LargeRepo {
    dir: PathBuf,
    tip: String,
    bytes: u64,
}

impl LargeRepo {
    pub(crate) fn create(dir: &Path, megabytes: usize) -> Self {
        let dir = dir.join("big");
        std::fs::create_dir_all(&dir).expect("a directory");
        git(&dir, &["init", "-q", "-b", "main"]);
        // Random bytes cannot be compressed; trying costs only the client's time.
        for (key, value) in [
            ("core.compression", "0"),
            ("pack.compression", "0"),
            ("pack.window", "0"),
        ] {
            git(&dir, &["config", key, value]);
        }
        let mut seed = 88_172_645_463_325_252_u64;
        for n in 0..megabytes.div_ceil(10) {
            let mut random = Vec::with_capacity(10_000_000);
            while random.len() < 10_000_000 {
                seed ^= seed << 13;
                seed ^= seed >> 7;
                seed ^= seed << 17;
                random.extend_from_slice(&seed.to_le_bytes());
            }
            std::fs::write(dir.join(format!("{n}")), random).expect("a file");
        }
        git(&dir, &["add", "."]);
        git(&dir, &["commit", "-q", "-m", "big"]);
        git(&dir, &["repack", "-q", "-a", "-d"]);
        let tip = git(&dir, &["rev-parse", "main"]);
        Self {
            dir,
            tip,
            bytes: megabytes as u64 * 1_000_000,
        }
    }

    /// Pushes to this number of new repositories at the same time.
    pub(crate) fn push(&self, server: &Server, at_once: usize) {
        let alice = Author::new();
        std::thread::scope(|scope| {
            for n in 0..at_once {
                let (alice, name) = (&alice, format!("big-{at_once}-{n}"));
                scope.spawn(move || {
                    let path = create_repo(server, alice, &name);
                    sign(server, alice, &name, &self.tip);
                    let url = format!("http://{}{path}", server.address);
                    git(&self.dir, &["push", "-q", &url, "main"]);
                    if n == 0 {
                        std::fs::write(self.dir.join(format!("{:?}", server.kind)), path)
                            .expect("a file");
                    }
                });
            }
        });
    }

    /// Reads this number of whole clones at the same time, and discards them.
    pub(crate) fn read(&self, server: &Server, at_once: usize) {
        let path =
            std::fs::read_to_string(self.dir.join(format!("{:?}", server.kind))).expect("a file");
        let want = pkt(format!(
            "want {} side-band-64k ofs-delta no-progress\n",
            self.tip
        ));
        let body = [want, b"0000".to_vec(), pkt("done\n")].concat();
        let length = body.len().to_string();
        let headers = [
            ("Content-Length", length.as_str()),
            ("Content-Type", "application/x-git-upload-pack-request"),
        ];
        let head = request_head(
            &server.address,
            "POST",
            &format!("{path}/git-upload-pack"),
            &headers,
        );
        let request = [head.as_bytes(), &body].concat();
        std::thread::scope(|scope| {
            for _ in 0..at_once {
                scope.spawn(|| assert!(drain(&server.address, &request) > self.bytes));
            }
        });
    }
}

/// Sends a request and counts the bytes of the response.
fn drain(address: &str, request: &[u8]) -> u64 {
    let mut stream = TcpStream::connect(address).expect("a server");
    stream.write_all(request).expect("a request");
    let (mut buffer, mut count) = (vec![0; 256 * 1024], 0);
    loop {
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return count,
            Ok(read) => count += read as u64,
        }
    }
}
