//! A person's own clone, worked on with the real git.

use std::path::Path;
use std::process::Stdio;

use tempfile::TempDir;
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
