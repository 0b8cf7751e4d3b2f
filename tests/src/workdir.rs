//! A person's own clone, worked on with the real git.

use std::path::Path;
use std::process::Stdio;

use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// A directory with a repository in it.
#[derive(Debug)]
pub struct Workdir {
    dir: TempDir,
}

/// What git did.
#[derive(Clone, Debug)]
pub struct GitOutput {
    /// Whether it succeeded.
    pub ok: bool,
    /// What it wrote to standard output.
    pub out: String,
    /// What it wrote to standard error.
    pub err: String,
}

impl Workdir {
    /// An empty repository whose first branch will be `main`.
    pub async fn init() -> Self {
        let workdir = Self { dir: tempfile::tempdir().expect("a directory for the test") };
        workdir.git(&["init", "-q", "-b", "main"]).await.expect_ok();
        workdir
    }

    /// A directory without a repository, to clone into.
    pub fn empty() -> Self {
        Self { dir: tempfile::tempdir().expect("a directory for the test") }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Runs git here, as a person without any configuration would.
    pub async fn git(&self, args: &[&str]) -> GitOutput {
        let output = Command::new("git")
            .args(["-c", "user.name=alice", "-c", "user.email=alice@example.com"])
            .args(args)
            .current_dir(self.dir.path())
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_TERMINAL_PROMPT", "0")
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .expect("git runs");
        GitOutput {
            ok: output.status.success(),
            out: String::from_utf8_lossy(&output.stdout).trim().to_owned(),
            err: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        }
    }

    /// Runs git here with this input, and says what it wrote.
    pub async fn pipe(&self, args: &[&str], input: &[u8]) -> Vec<u8> {
        let mut child = Command::new("git")
            .args(["-c", "user.name=alice", "-c", "user.email=alice@example.com"])
            .args(args)
            .current_dir(self.dir.path())
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("git runs");
        let mut stdin = child.stdin.take().expect("a way in");
        stdin.write_all(input).await.expect("git reads");
        drop(stdin);
        let output = child.wait_with_output().await.expect("git ends");
        assert!(output.status.success(), "git {args:?}");
        output.stdout
    }

    /// A pack of everything behind these commits, and nothing behind those that begin with `^`.
    pub async fn pack(&self, revisions: &[&str]) -> Vec<u8> {
        let input = revisions.join("\n") + "\n";
        self.pipe(&["pack-objects", "--revs", "--stdout", "-q"], input.as_bytes()).await
    }

    /// Makes a commit that adds this much that cannot be compressed, and says its id.
    pub async fn commit_noise(&self, bytes: usize) -> String {
        let mut seed = bytes as u64 | 1;
        let mut noise = Vec::with_capacity(bytes + 8);
        while noise.len() < bytes {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            noise.extend(seed.to_le_bytes());
        }
        tokio::fs::write(self.dir.path().join("noise"), noise).await.expect("a file is written");
        self.git(&["add", "noise"]).await.expect_ok();
        self.commit("noise").await
    }

    /// Makes a commit that changes one file, and says its id.
    pub async fn commit(&self, text: &str) -> String {
        tokio::fs::write(self.dir.path().join("file"), text).await.expect("a file is written");
        self.git(&["add", "file"]).await.expect_ok();
        self.git(&["commit", "-q", "-m", text]).await.expect_ok();
        self.git(&["rev-parse", "HEAD"]).await.expect_ok()
    }
}

impl GitOutput {
    /// What git wrote, if it succeeded; what it complained of, if it did not.
    #[track_caller]
    pub fn expect_ok(self) -> String {
        assert!(self.ok, "{}", self.err);
        self.out
    }

    /// What git complained of, if it did not succeed.
    #[track_caller]
    pub fn expect_refused(self) -> String {
        assert!(!self.ok, "git succeeded: {}", self.err);
        self.err
    }
}
