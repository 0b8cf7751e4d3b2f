//! A working copy, through the installed git.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use grasp_core::Identifier;
use tokio::process::Command;

/// Branches and tags, and the branch that HEAD names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refs {
    /// Each with the object it is at.
    pub(crate) tips: Vec<(String, String)>,
    /// The branch that HEAD names, if it is one of them.
    pub(crate) head: Option<String>,
}

/// A working copy.
pub(crate) struct Work {
    root: PathBuf,
}

impl Work {
    /// The working copy that a directory is in.
    pub(crate) async fn open(directory: &Path) -> Result<Self> {
        let root = git(directory, &["rev-parse", "--show-toplevel"]).await;
        let root = root.map_err(|error| match error.is::<std::io::Error>() {
            true => error,
            false => error.context("not in a git working copy"),
        });
        Ok(Self { root: root?.into() })
    }

    /// The name of its directory, as one for the repository.
    pub(crate) fn name(&self) -> Option<Identifier> {
        self.root.file_name()?.to_str()?.parse().ok()
    }

    /// What a state of it says.
    pub(crate) async fn refs(&self) -> Result<Refs> {
        let format = "--format=%(refname) %(objectname)";
        let listed = git(&self.root, &["for-each-ref", format, "refs/heads", "refs/tags"]).await?;
        let tips: Vec<(String, String)> = listed
            .lines()
            .filter_map(|line| line.split_once(' '))
            .map(|(name, oid)| (name.to_owned(), oid.to_owned()))
            .collect();
        if tips.is_empty() {
            bail!("there is nothing to push: commit something first");
        }
        let head = git(&self.root, &["symbolic-ref", "--quiet", "HEAD"]).await.ok();
        let head = head.filter(|head| tips.iter().any(|(name, _)| name == head));
        Ok(Refs { tips, head })
    }

    /// Whether a server has this object as a ref.
    pub(crate) async fn remote_has(&self, url: &str, oid: &str) -> bool {
        let listed = git(&self.root, &["ls-remote", url]).await;
        listed.is_ok_and(|listed| listed.lines().any(|line| line.starts_with(oid)))
    }

    /// The branches and tags of a server that are not here, nor in what is here under their name.
    pub(crate) async fn lacks(&self, refs: &Refs, url: &str) -> Result<Vec<String>> {
        let kinds = ["refs/heads/*", "refs/tags/*"];
        let listed = git(&self.root, &["ls-remote", "--refs", url, kinds[0], kinds[1]]).await?;
        let mut lost = Vec::new();
        for (theirs, name) in listed.lines().filter_map(|line| line.split_once('\t')) {
            let ours = refs.tips.iter().find(|(ours, _)| ours == name).map(|(_, oid)| oid.as_str());
            if ours != Some(theirs) && !self.is_behind(theirs, ours, name).await {
                lost.push(name.to_owned());
            }
        }
        Ok(lost)
    }

    /// Whether a branch only goes forward from their object to ours.
    async fn is_behind(&self, theirs: &str, ours: Option<&str>, name: &str) -> bool {
        let Some(ours) = ours.filter(|_| name.starts_with("refs/heads/")) else { return false };
        git(&self.root, &["merge-base", "--is-ancestor", theirs, ours]).await.is_ok()
    }

    /// Makes the branches and tags at a server what they are here.
    pub(crate) async fn push_to(&self, url: &str) -> Result<()> {
        let everything = ["refs/heads/*:refs/heads/*", "refs/tags/*:refs/tags/*"];
        let args = ["push", "--quiet", "--force", "--prune", url, everything[0], everything[1]];
        git(&self.root, &args).await.map(drop)
    }
}

/// What git says; what it says against it is the error.
pub(crate) async fn git(directory: &Path, args: &[&str]) -> Result<String> {
    // Whoever no longer waits for it leaves no git behind.
    let mut command = Command::new("git");
    let output = command.args(args).current_dir(directory).kill_on_drop(true).output().await;
    let output = output.context("could not run git; is it installed, and in PATH?")?;
    if !output.status.success() {
        bail!("git {}: {}", args[0], String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8(output.stdout).context("git does not speak UTF-8")?.trim().to_owned())
}
