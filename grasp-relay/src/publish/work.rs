//! A working copy, through the installed git.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::io::{Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use grasp_core::Identifier;
use grasp_core::outbound::Provenance;
use nostr::event::Event;
use nostr::key::Keys;
use serde_json::Value;
use tempfile::TempDir;
use tokio::process::Command;

use super::client::{Refused, outbound};
use super::{PushServer, Warn};
use crate::instance::authorization;
use crate::instance::error::{Explain as _, InstanceError, MustAct, Result};
use crate::instance::text::is_control;

/// Changes that git pushes from the working copy itself. Over HTTP git compares each of them with every local ref, so
/// more are pushed from a repository that has none.
const MAX_PLAIN_CHANGES: usize = 256;

/// Branches and tags, and the branch that HEAD names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkRefs {
    /// Object ids by ref name.
    pub tips: BTreeMap<String, String>,
    /// The branch that HEAD names, if it is one of them.
    pub head: Option<String>,
}

impl WorkRefs {
    /// Returns the refspecs that make the branches and tags of a server equal to these.
    fn changes_from(&self, theirs: &BTreeMap<String, String>) -> Vec<String> {
        let set = self
            .tips
            .iter()
            .filter(|(name, oid)| theirs.get(*name) != Some(*oid));
        let gone = theirs.keys().filter(|name| !self.tips.contains_key(*name));
        let set = set.map(|(name, oid)| format!("+{oid}:{name}"));
        set.chain(gone.map(|name| format!(":{name}"))).collect()
    }
}

/// A repository at a server.
pub struct RemoteRepo {
    /// Its URL.
    pub url: String,
    /// The user's key, if the server is only for its members (GRASP-08).
    pub member: Option<Keys>,
}

impl RemoteRepo {
    /// Returns the setting by which git proves that it works for a member, for a minute from now.
    fn settings(&self) -> Result<Vec<(String, String)>> {
        let Some(keys) = &self.member else {
            return Ok(Vec::new());
        };
        let header = format!(
            "Authorization: {}",
            authorization(keys, &self.url.parse()?)?
        );
        Ok(vec![(String::from("http.extraHeader"), header)])
    }
}

/// A working copy.
pub struct Work {
    root: PathBuf,
}

impl Work {
    /// Opens the working copy that contains a directory.
    pub async fn open(directory: &Path) -> Result<Self> {
        let root = git(directory, &["rev-parse", "--show-toplevel"]).await;
        let root = match root {
            Err(error) if error.find::<std::io::Error>().is_none() => {
                return Err(error).or_ask(MustAct::Caller, || "not in a git working copy");
            }
            root => root?,
        };
        Ok(Self { root: root.into() })
    }

    /// Returns the name of its directory as a repository name, if it can be one.
    pub fn name(&self) -> Option<Identifier> {
        self.root.file_name()?.to_str()?.parse().ok()
    }

    /// Returns git's common directory, which all worktrees share.
    pub async fn git_dir(&self) -> Result<PathBuf> {
        let dir = git(&self.root, &["rev-parse", "--git-common-dir"]).await?;
        Ok(self.root.join(dir))
    }

    /// Returns the branches and tags that match one of the patterns; without a pattern, all. A pattern is one of
    /// `git for-each-ref`, with or without `refs/heads/` or `refs/tags/`.
    pub async fn refs(&self, patterns: &[String]) -> Result<WorkRefs> {
        let mut args = vec![
            "for-each-ref".to_owned(),
            FORMAT.to_owned(),
            "--".to_owned(),
        ];
        args.extend(patterns.iter().flat_map(|pattern| full(pattern)));
        if patterns.is_empty() {
            args.extend(["refs/heads".to_owned(), "refs/tags".to_owned()]);
        }
        let listed = git(&self.root, &args).await?;
        let tips: BTreeMap<String, String> = listed
            .lines()
            .filter_map(|line| line.split_once(' '))
            .filter(|(name, _)| name.starts_with("refs/heads/") || name.starts_with("refs/tags/"))
            .map(|(name, oid)| (name.to_owned(), oid.to_owned()))
            .collect();
        if tips.is_empty() && !patterns.is_empty() {
            return Err(InstanceError::caller(format!(
                "no branch and no tag matches --refs {}",
                patterns.join(" --refs ")
            )));
        }
        if tips.is_empty() {
            return Err(InstanceError::caller(
                "there is nothing to push: commit something first",
            ));
        }
        let head = git(&self.root, &["symbolic-ref", "--quiet", "HEAD"])
            .await
            .ok();
        let head = head.filter(|head| tips.contains_key(head));
        Ok(WorkRefs { tips, head })
    }

    /// Returns whether a ref of a server is at this object.
    pub async fn remote_has(&self, remote: &RemoteRepo, oid: &str) -> bool {
        let listed = self.git_at(remote, &["ls-remote", &remote.url]).await;
        listed.is_ok_and(|listed| listed.lines().any(|line| line.starts_with(oid)))
    }

    /// Returns the branches and tags of a server that would be lost: absent here, or not contained in ours.
    pub async fn lacks(&self, refs: &WorkRefs, remote: &RemoteRepo) -> Result<Vec<String>> {
        let mut lost = Vec::new();
        for (name, theirs) in self.refs_at(remote).await? {
            let ours = refs.tips.get(&name);
            if ours != Some(&theirs) && !self.is_behind(&theirs, ours, &name).await {
                lost.push(name);
            }
        }
        Ok(lost)
    }

    /// Fails if the working copy is a shallow clone and the refs of a server do not show that it has the history below it:
    /// the server would wait for that history after the state is published.
    pub async fn check_history(&self, refs: &WorkRefs, remote: &RemoteRepo) -> Result<()> {
        let Some(file) = self.shallow_file().await? else {
            return Ok(());
        };
        let boundary =
            fs::read_to_string(&file).context("could not read git's list of shallow commits")?;
        // A repository that is not hosted yet has no refs.
        let theirs = self.refs_at(remote).await.unwrap_or_default();
        let mut revisions = String::new();
        for oid in refs.tips.values() {
            let _ = writeln!(revisions, "{oid}");
        }
        for oid in theirs.values() {
            let _ = writeln!(revisions, "^{oid}");
        }
        let mut command = Command::new("git");
        command
            .args(["rev-list", "--ignore-missing", "--stdin"])
            .current_dir(&self.root);
        let new = run(command.stdin(input(&revisions)?)).await?;
        let new: BTreeSet<&str> = new.lines().collect();
        if boundary.lines().any(|oid| new.contains(oid)) {
            return Err(InstanceError::caller(format!(
                "this working copy is a shallow clone, and {} does not show that it has the history below; \
                 run git fetch --unshallow, and push again",
                remote.url
            )));
        }
        Ok(())
    }

    /// Returns the file that lists the commits without parents of a shallow clone.
    async fn shallow_file(&self) -> Result<Option<PathBuf>> {
        let file = git(&self.root, &["rev-parse", "--git-path", "shallow"]).await?;
        let file = self.root.join(file);
        Ok(file.exists().then_some(file))
    }

    /// Returns the branches and tags of a server.
    async fn refs_at(&self, remote: &RemoteRepo) -> Result<BTreeMap<String, String>> {
        let patterns = ["refs/heads/*", "refs/tags/*"];
        let args = ["ls-remote", "--refs", &remote.url, patterns[0], patterns[1]];
        let listed = self.git_at(remote, &args).await?;
        let refs = listed.lines().filter_map(|line| line.split_once('\t'));
        Ok(refs
            .map(|(oid, name)| (name.to_owned(), oid.to_owned()))
            .collect())
    }

    /// Returns whether ours is a fast-forward of their branch.
    async fn is_behind(&self, theirs: &str, ours: Option<&String>, name: &str) -> bool {
        let Some(ours) = ours.filter(|_| name.starts_with("refs/heads/")) else {
            return false;
        };
        git(&self.root, &["merge-base", "--is-ancestor", theirs, ours])
            .await
            .is_ok()
    }

    /// Pushes, so that the branches and tags of a server equal these.
    pub async fn push_to(&self, remote: &RemoteRepo, refs: &WorkRefs, warn: Warn) -> Result<()> {
        let changes = refs.changes_from(&self.refs_at(remote).await?);
        match changes.len() {
            0 => Ok(()),
            1..=MAX_PLAIN_CHANGES => {
                let args = ["push", "--quiet", &remote.url]
                    .map(str::to_owned)
                    .into_iter()
                    .chain(changes);
                let mut command = Command::new("git");
                command.args(args).current_dir(&self.root);
                run_push(command.envs(variables(remote.settings()?)), warn).await
            }
            _ => push_many(self, remote, &changes, warn).await,
        }
    }

    /// Runs git for a server.
    async fn git_at(&self, remote: &RemoteRepo, args: &[impl AsRef<OsStr>]) -> Result<String> {
        let mut command = Command::new("git");
        command.args(args).current_dir(&self.root);
        run(command.envs(variables(remote.settings()?))).await
    }
}

const FORMAT: &str = "--format=%(refname) %(objectname)";

/// Returns the full patterns of a short one.
fn full(pattern: &str) -> Vec<String> {
    match pattern.starts_with("refs/") {
        true => vec![pattern.to_owned()],
        false => ["refs/heads", "refs/tags"]
            .map(|kind| format!("{kind}/{pattern}"))
            .into(),
    }
}

/// Runs git and returns its standard output; its standard error is the error.
pub async fn git(directory: &Path, args: &[impl AsRef<OsStr>]) -> Result<String> {
    run(Command::new("git").args(args).current_dir(directory)).await
}

/// Returns a text as the standard input of a process.
fn input(text: &str) -> Result<Stdio> {
    let mut file = tempfile::tempfile().context("could not write a temporary file")?;
    file.write_all(text.as_bytes())
        .and_then(|()| file.rewind())?;
    Ok(file.into())
}

/// Runs a push, and passes on the warnings of the server.
async fn run_push(command: &mut Command, warn: Warn) -> Result<()> {
    let output = output(command).await?;
    for line in String::from_utf8_lossy(&output.stderr).lines() {
        if let Some(warning) = line.strip_prefix("remote: warning: ") {
            warn(&warning.trim_end().replace(is_control, "?"));
        }
    }
    Ok(())
}

async fn run(command: &mut Command) -> Result<String> {
    let output = output(command).await?;
    Ok(String::from_utf8(output.stdout)
        .context("the output of git is not UTF-8")?
        .trim()
        .to_owned())
}

/// Runs git to its end; its standard error is the error.
async fn output(command: &mut Command) -> Result<Output> {
    // A future that is dropped leaves no git process behind.
    let output = command.kill_on_drop(true).output().await;
    let output = output.context("could not run git; is it installed, and in PATH?")?;
    if !output.status.success() {
        let subcommand = command.as_std().get_args().next().unwrap_or_default();
        let message = String::from_utf8_lossy(&output.stderr);
        return Err(InstanceError::machine(format!(
            "git {}: {}",
            subcommand.to_string_lossy(),
            message.trim()
        )));
    }
    Ok(output)
}

/// The name under which git finds the server and the refspecs.
const REMOTE: &str = "grasp";

/// Pushes refspecs that name objects.
///
/// Over HTTP git compares every ref that it pushes with every ref that it has, which takes seconds for some thousand.
/// A repository without refs that borrows the objects of the working copy has none to compare with.
async fn push_many(work: &Work, remote: &RemoteRepo, changes: &[String], warn: Warn) -> Result<()> {
    let root = work.root.as_path();
    let objects = git(root, &["rev-parse", "--git-path", "objects"]).await?;
    let objects = fs::canonicalize(root.join(objects)).context("could not find git's objects")?;
    let dir = tempfile::tempdir().context("could not make a repository to push from")?;
    git(dir.path(), &["init", "--quiet", "--bare", "."]).await?;
    prepare(&dir, &objects, &remote.url, changes)
        .context("could not make a repository to push from")?;
    if let Some(shallow) = work.shallow_file().await? {
        fs::copy(shallow, dir.path().join("shallow"))?;
    }
    let mut command = Command::new("git");
    command
        .args(["push", "--quiet", REMOTE])
        .current_dir(dir.path())
        .env("GIT_DIR", dir.path());
    let mut settings = transport_settings(root).await;
    settings.extend(remote.settings()?);
    run_push(command.envs(variables(settings)), warn).await
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

/// Returns a value as git's configuration files write it.
fn quoted(value: &str) -> String {
    format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Returns the working copy's settings for HTTP, credentials and URLs.
async fn transport_settings(root: &Path) -> Vec<(String, String)> {
    let args = [
        "config",
        "--local",
        "--null",
        "--get-regexp",
        "^(http|credential|url)[.]",
    ];
    let listed = git(root, &args).await.unwrap_or_default();
    let settings = listed.split('\0').filter_map(|one| one.split_once('\n'));
    settings
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

/// Returns settings as environment variables for git, after those that the user's environment has. Other users cannot read
/// them there.
fn variables(settings: Vec<(String, String)>) -> Vec<(String, String)> {
    if settings.is_empty() {
        return Vec::new();
    }
    let mut next: usize = std::env::var("GIT_CONFIG_COUNT")
        .ok()
        .and_then(|count| count.parse().ok())
        .unwrap_or(0);
    let mut variables = Vec::new();
    for (key, value) in settings {
        variables.push((format!("GIT_CONFIG_KEY_{next}"), key));
        variables.push((format!("GIT_CONFIG_VALUE_{next}"), value));
        next += 1;
    }
    variables.push(("GIT_CONFIG_COUNT".to_owned(), next.to_string()));
    variables
}

/// Every relay accepts states up to this size.
const SMALL_STATE_BYTES: usize = 32 * 1024;

/// A server's limit on the size of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    Bytes(usize),
    Tags(usize),
}

/// The size of a state.
struct Size {
    refs: usize,
    bytes: usize,
    tags: usize,
}

impl Size {
    fn of(state: &Event, refs: &WorkRefs) -> Self {
        let refs = refs.tips.len().max(1);
        let bytes = state.as_json().len();
        Self {
            refs,
            bytes,
            tags: state.tags.len(),
        }
    }

    /// Estimates the number of refs that a server accepts.
    fn refs_within(&self, limit: Limit) -> usize {
        match limit {
            Limit::Bytes(bytes) => bytes / (self.bytes / self.refs).max(1),
            Limit::Tags(tags) => tags.saturating_sub(self.tags - self.refs.min(self.tags)),
        }
    }

    fn exceeds(&self, limit: Limit) -> bool {
        match limit {
            // The event stands in a message with a few more bytes.
            Limit::Bytes(bytes) => self.bytes + 16 > bytes,
            Limit::Tags(tags) => self.tags > tags,
        }
    }

    fn too_many(&self, server: &PushServer, limit: Limit) -> InstanceError {
        InstanceError::caller(format!(
            "{} refs are too many for {}, which takes about {} in one state; choose some with --refs, as in \
             --refs 'refs/heads/*' --refs 'refs/tags/v2.*'",
            self.refs,
            server.service,
            self.refs_within(limit)
        ))
    }
}

/// Fails if the information document of a server says that a state is too large for it. Not every relay says so, and
/// some close the connection at a message that is too large.
pub(super) async fn check(server: &PushServer, state: &Event, refs: &WorkRefs) -> Result<()> {
    let size = Size::of(state, refs);
    if size.bytes <= SMALL_STATE_BYTES {
        return Ok(());
    }
    let document = outbound()?
        .get(&server.relay()?, Provenance::Operator)
        .await;
    let Ok(document) = document else {
        return Ok(());
    };
    match limits(document.body())
        .into_iter()
        .find(|limit| size.exceeds(*limit))
    {
        Some(limit) => Err(size.too_many(server, limit)),
        None => Ok(()),
    }
}

/// Returns the limits on events in an information document (NIP-11).
fn limits(document: &[u8]) -> Vec<Limit> {
    let document: Value = serde_json::from_slice(document).unwrap_or_default();
    let number = |name: &str| usize::try_from(document["limitation"][name].as_u64()?).ok();
    let bytes = number("max_message_length").map(Limit::Bytes);
    bytes
        .into_iter()
        .chain(number("max_event_tags").map(Limit::Tags))
        .collect()
}

/// Adds to an error that the state may be too large for the server.
pub(super) fn explain(
    error: InstanceError,
    server: &PushServer,
    state: &Event,
    refs: &WorkRefs,
) -> InstanceError {
    let size = Size::of(state, refs);
    let limit = error
        .find::<Refused>()
        .and_then(|refused| largest(&refused.message));
    match limit {
        Some(limit) => size.too_many(server, limit),
        None if size.bytes <= SMALL_STATE_BYTES => error,
        None => error.explained(format!(
            "{} did not take the state of {} refs ({} bytes); if that is too large for it, choose some with --refs",
            server.service, size.refs, size.bytes
        )),
    }
}

/// Returns the limit that a refusal names: `invalid: event larger than 1048576 bytes`, `invalid: event too large: 99 > 65536`.
fn largest(message: &str) -> Option<Limit> {
    let (_, rest) = message
        .split_once("larger than ")
        .or_else(|| message.rsplit_once("> "))?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok().map(Limit::Bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_is_pushed_and_what_is_gone_is_deleted() {
        let refs = |list: &[(&str, &str)]| {
            list.iter()
                .map(|(name, oid)| (format!("refs/{name}"), oid.to_string()))
                .collect()
        };
        let tips = refs(&[("heads/main", "2"), ("heads/same", "1"), ("tags/new", "3")]);
        let theirs = refs(&[("heads/main", "1"), ("heads/same", "1"), ("tags/old", "9")]);
        let changes = WorkRefs { tips, head: None }.changes_from(&theirs);
        let expected = ["+2:refs/heads/main", "+3:refs/tags/new", ":refs/tags/old"];
        assert_eq!(changes, expected);
    }

    #[test]
    fn limits_are_read_where_relays_tell_them() {
        let document = br#"{"limitation":{"max_message_length":131072,"max_event_tags":2000}}"#;
        assert_eq!(
            limits(document),
            [Limit::Bytes(131_072), Limit::Tags(2_000)]
        );
        assert_eq!(limits(b"<html>"), []);
        let said = "invalid: event larger than 1048576 bytes";
        assert_eq!(largest(said), Some(Limit::Bytes(1_048_576)));
        assert_eq!(
            largest("invalid: event too large: 99999 > 65536"),
            Some(Limit::Bytes(65_536))
        );
        assert_eq!(largest("blocked: no"), None);
    }

    #[test]
    fn a_state_that_is_too_large_is_told_in_refs() {
        let size = Size {
            refs: 5_000,
            bytes: 350_000,
            tags: 5_002,
        };
        assert!(size.exceeds(Limit::Bytes(262_144)) && !size.exceeds(Limit::Bytes(1 << 20)));
        assert!(size.exceeds(Limit::Tags(2_000)) && !size.exceeds(Limit::Tags(5_002)));
        assert_eq!(size.refs_within(Limit::Bytes(262_144)), 3_744);
        assert_eq!(size.refs_within(Limit::Tags(2_000)), 1_998);
        let server: PushServer = "git.example.com".parse().unwrap();
        let text = size.too_many(&server, Limit::Bytes(262_144)).to_string();
        assert!(
            text.starts_with("5000 refs are too many for git.example.com, which takes about 3744"),
            "{text}"
        );
        assert!(text.contains("--refs"), "{text}");
    }
}
