//! Pushing thousands of refs at once.
//!
//! Over HTTP git compares every ref that it pushes with every ref that it has, which takes seconds for some thousand.
//! A repository without refs that borrows the objects of the working copy has none to compare with.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::TempDir;
use tokio::process::Command;

use super::{git, run};

/// The name under which git finds the server and the refspecs.
const REMOTE: &str = "grasp";

/// Pushes these refspecs, all of which name objects.
pub(super) async fn push(root: &Path, url: &str, changes: &[String]) -> Result<()> {
    let objects = git(root, &["rev-parse", "--git-path", "objects"]).await?;
    let objects = fs::canonicalize(root.join(objects)).context("could not find git's objects")?;
    let dir = tempfile::tempdir().context("could not make a repository to push from")?;
    git(dir.path(), &["init", "--quiet", "--bare", "."]).await?;
    prepare(&dir, &objects, url, changes).context("could not make a repository to push from")?;
    let mut command = Command::new("git");
    command.args(["push", "--quiet", REMOTE]).current_dir(dir.path()).env("GIT_DIR", dir.path());
    for (name, value) in transport_settings(root).await {
        command.env(name, value);
    }
    run(&mut command).await.map(drop)
}

fn prepare(dir: &TempDir, objects: &Path, url: &str, changes: &[String]) -> std::io::Result<()> {
    let alternates = dir.path().join("objects/info/alternates");
    fs::create_dir_all(dir.path().join("objects/info"))?;
    fs::write(alternates, format!("{}\n", objects.display()))?;
    let file: PathBuf = dir.path().join("config");
    let mut config = fs::read_to_string(&file)?;
    let _ = write!(config, "[remote \"{REMOTE}\"]\n\turl = {}\n", quoted(url));
    for change in changes {
        let _ = writeln!(config, "\tpush = {}", quoted(change));
    }
    fs::write(file, config)
}

/// A value as git's configuration is written.
fn quoted(value: &str) -> String {
    format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""))
}

/// What the working copy's own configuration says about talking to servers, as variables for git.
async fn transport_settings(root: &Path) -> Vec<(String, String)> {
    let args = ["config", "--local", "--null", "--get-regexp", "^(http|credential|url)[.]"];
    let said = git(root, &args).await.unwrap_or_default();
    let settings = said.split('\0').filter_map(|one| one.split_once('\n'));
    let first: usize =
        std::env::var("GIT_CONFIG_COUNT").ok().and_then(|count| count.parse().ok()).unwrap_or(0);
    let mut variables = Vec::new();
    let mut next = first;
    for (key, value) in settings {
        variables.push((format!("GIT_CONFIG_KEY_{next}"), key.to_owned()));
        variables.push((format!("GIT_CONFIG_VALUE_{next}"), value.to_owned()));
        next += 1;
    }
    variables.push(("GIT_CONFIG_COUNT".to_owned(), next.to_string()));
    variables
}
