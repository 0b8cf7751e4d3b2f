//! A working directory, used with the real git.

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

/// The result of a git command.
#[derive(Clone, Debug)]
pub struct GitOutput {
    /// Whether the command succeeded.
    pub ok: bool,
    /// Standard output, trimmed.
    pub out: String,
    /// Standard error, trimmed.
    pub err: String,
}

impl Workdir {
    /// Creates an empty repository whose first branch will be `main`.
    pub async fn init() -> Self {
        let workdir = Self {
            dir: tempfile::tempdir().expect("a directory for the test"),
        };
        workdir.git(&["init", "-q", "-b", "main"]).await.expect_ok();
        workdir
    }

    /// Creates a directory without a repository, to clone into.
    pub fn empty() -> Self {
        Self {
            dir: tempfile::tempdir().expect("a directory for the test"),
        }
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Runs git here without any configuration of a user or system.
    pub async fn git(&self, args: &[&str]) -> GitOutput {
        let output = Command::new("git")
            .args([
                "-c",
                "user.name=alice",
                "-c",
                "user.email=alice@example.com",
            ])
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

    /// Runs git here with this input, and returns its output.
    pub async fn pipe(&self, args: &[&str], input: &[u8]) -> Vec<u8> {
        let mut child = Command::new("git")
            .args([
                "-c",
                "user.name=alice",
                "-c",
                "user.email=alice@example.com",
            ])
            .args(args)
            .current_dir(self.dir.path())
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("git runs");
        let mut stdin = child.stdin.take().expect("a piped stdin");
        stdin.write_all(input).await.expect("git reads");
        drop(stdin);
        let output = child.wait_with_output().await.expect("git ends");
        assert!(output.status.success(), "git {args:?}");
        output.stdout
    }

    /// Returns a pack of everything reachable from these commits, and not from those with `^`.
    pub async fn pack(&self, revisions: &[&str]) -> Vec<u8> {
        let input = revisions.join("\n") + "\n";
        self.pipe(
            &["pack-objects", "--revs", "--stdout", "-q"],
            input.as_bytes(),
        )
        .await
    }

    /// Commits a file of this size that cannot be compressed, and returns the id.
    pub async fn commit_incompressible(&self, bytes: usize) -> String {
        let mut seed = bytes as u64 | 1;
        let mut noise = Vec::with_capacity(bytes + 8);
        while noise.len() < bytes {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            noise.extend(seed.to_le_bytes());
        }
        tokio::fs::write(self.dir.path().join("noise"), noise)
            .await
            .expect("a file is written");
        self.git(&["add", "noise"]).await.expect_ok();
        self.commit("noise").await
    }

    /// Commits a change of one file, and returns the id.
    pub async fn commit(&self, text: &str) -> String {
        tokio::fs::write(self.dir.path().join("file"), text)
            .await
            .expect("a file is written");
        self.git(&["add", "file"]).await.expect_ok();
        self.git(&["commit", "-q", "-m", text]).await.expect_ok();
        self.git(&["rev-parse", "HEAD"]).await.expect_ok()
    }
}

impl GitOutput {
    /// Returns the output of a command that must have succeeded.
    #[track_caller]
    pub fn expect_ok(self) -> String {
        assert!(self.ok, "{}", self.err);
        self.out
    }

    /// Returns the errors of a command that must have failed.
    #[track_caller]
    pub fn expect_refused(self) -> String {
        assert!(!self.ok, "git succeeded: {}", self.err);
        self.err
    }
}

/// Writes a program, by a process of its own: a child that another test starts meanwhile would inherit the open file, and a
/// program that is open for writing cannot be executed.
pub fn write_program(path: &Path, script: &str) {
    let write = "printf %s \"$1\" > \"$0\" && chmod 755 \"$0\"";
    let mut shell = std::process::Command::new("/bin/sh");
    let written = shell.args(["-c", write]).arg(path).arg(script).status();
    assert!(written.expect("a shell").success(), "{}", path.display());
}
