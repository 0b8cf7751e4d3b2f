//! A git command line in a sandbox.

use std::any::Any;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use grasp_core::resources::Claimant;
use tokio::process::Command;

use super::binary::{Git, ProcessPool};
use super::error::GitError;
use super::limits::{self, CpuAccount, ProcessLimits};
use super::page::PageWork;
use super::process::{Finished, GitProcess, OutputWatch};
use crate::resources::Holding;

/// Settings of every git process. Given by environment, so that git's own child processes obey them too.
const SETTINGS: &[(&str, &str)] = &[
    ("core.hooksPath", "/dev/null"),
    ("core.fsync", "committed"),
    // Larger objects are not held in memory, nor compared with others.
    ("core.bigFileThreshold", "16m"),
    ("pack.windowMemory", "64m"),
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
    ("credential.helper", ""),
    ("http.followRedirects", "false"),
    // The directories are trusted under any user; only commands that name one find it.
    ("safe.directory", "*"),
    ("safe.bareRepository", "explicit"),
    ("transfer.fsckObjects", "true"),
    ("transfer.hideRefs", "refs/grasp"),
    // Fetched objects arrive as a pack, which moves in one piece.
    ("transfer.unpackLimit", "1"),
    ("uploadpack.allowTipSHA1InWant", "true"),
    ("uploadpack.allowReachableSHA1InWant", "true"),
    ("uploadpack.allowFilter", "true"),
    // Other filters can take any amount of time: `sparse:oid` visits each path of a tree, not each object.
    ("uploadpackfilter.allow", "false"),
    ("uploadpackfilter.blob:none.allow", "true"),
    ("uploadpackfilter.blob:limit.allow", "true"),
    ("uploadpackfilter.tree.allow", "true"),
    ("uploadpackfilter.object:type.allow", "true"),
    // An empty repository names no first branch: the client's `init.defaultBranch` decides.
    ("lsrefs.unborn", "ignore"),
    ("receive.advertiseAtomic", "true"),
    ("receive.advertisePushOptions", "true"),
];

/// Flaws of old but harmless commits and trees that famous histories contain; all others are refused.
pub(super) const FLAWS: [&str; 3] = [
    "badTimezone",
    "missingSpaceBeforeDate",
    "zeroPaddedFilemode",
];

/// Time that a client may wait for a slot before it is told that the server is busy.
pub(super) const CLIENT_WAIT: Duration = Duration::from_secs(60);

/// Time that work without a waiting client may wait for a slot.
const BACKGROUND_WAIT: Duration = Duration::from_secs(15 * 60);

/// A git command line that will run with no hooks, no configuration of the machine or a user, no prompts, a cleared
/// environment, no network unless it talks to other servers, and in a process group of its own.
#[must_use]
#[derive(Debug)]
pub struct GitCommand {
    git: Git,
    name: &'static str,
    pool: ProcessPool,
    claimant: Claimant,
    arguments: Vec<OsString>,
    environment: Vec<(&'static str, OsString)>,
    settings: Vec<(String, String)>,
    limits: ProcessLimits,
    watch: OutputWatch,
    limit: Option<Duration>,
    keep: Vec<Keep>,
    /// The page that it works for, whose slot and account it uses.
    page: Option<PageWork>,
    /// Makes the `Authorization` of its requests when it starts, since that is valid for a minute.
    signer: Option<Signer>,
}

/// Makes the value of an `Authorization` header that is valid from now on.
#[derive(Clone)]
pub struct Signer(Arc<dyn Fn() -> String + Send + Sync>);

impl Signer {
    /// Creates it from a function.
    pub fn new(sign: impl Fn() -> String + Send + Sync + 'static) -> Self {
        Self(Arc::new(sign))
    }
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Signer")
    }
}

/// Something that must outlive the last of the processes.
pub(super) type Keep = Arc<dyn Any + Send + Sync>;

impl GitCommand {
    pub(super) fn new(git: &Git, name: &'static str) -> Self {
        Self {
            git: git.clone(),
            name,
            pool: ProcessPool::Local,
            claimant: Claimant::server(),
            arguments: Vec::new(),
            environment: Vec::new(),
            settings: Vec::new(),
            limits: ProcessLimits::default(),
            watch: OutputWatch::default(),
            limit: None,
            keep: Vec::new(),
            page: None,
            signer: None,
        }
    }

    /// Sends this `Authorization` to the server. It is in the environment of git, which other users cannot read.
    pub(super) fn authorized_by(mut self, signer: Option<Signer>) -> Self {
        self.signer = signer;
        self
    }

    /// Adds an argument.
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.arguments.push(argument.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    pub fn args<A: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments
            .extend(arguments.into_iter().map(|a| a.as_ref().to_owned()));
        self
    }

    /// Adds a setting.
    pub fn setting(self, key: &str, value: &str) -> Self {
        self.settings([(key, value)])
    }

    /// Adds settings.
    pub(super) fn settings<K: Into<String>, V: Into<String>>(
        mut self,
        settings: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        self.settings.extend(
            settings
                .into_iter()
                .map(|(key, value)| (key.into(), value.into())),
        );
        self
    }

    /// Stops it after this long.
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Works in this repository.
    pub(super) fn repository(self, path: &Path) -> Self {
        self.env("GIT_DIR", path)
    }

    /// Writes new objects here.
    pub(super) fn writing_objects(self, path: &Path) -> Self {
        self.env("GIT_OBJECT_DIRECTORY", path)
    }

    /// Also reads objects from here.
    pub(super) fn reading_objects(self, path: &Path) -> Self {
        self.env("GIT_ALTERNATE_OBJECT_DIRECTORIES", quoted(path))
    }

    /// Also reads objects from all of these.
    pub(super) fn reading_all(self, paths: &[&Path]) -> Self {
        let mut all = OsString::new();
        for path in paths {
            if !all.is_empty() {
                all.push(":");
            }
            all.push(quoted(path));
        }
        self.env("GIT_ALTERNATE_OBJECT_DIRECTORIES", all)
    }

    /// Speaks this version of the protocol.
    pub(super) fn protocol(self, value: &'static str) -> Self {
        self.env("GIT_PROTOCOL", value)
    }

    /// Takes its slot on the account of this claimant; otherwise it is the server's own work.
    pub(super) fn claimed_by(mut self, claimant: Claimant) -> Self {
        self.claimant = claimant;
        self
    }

    /// Serves a client, and takes one of the slots for that.
    pub(super) fn serving_client(mut self) -> Self {
        self.pool = ProcessPool::Client;
        self
    }

    /// Works for a page, in the slot of the page and on its account.
    pub(super) fn working_for(mut self, page: &PageWork) -> Self {
        self.page = Some(page.clone());
        self.claimant = page.claimant();
        self
    }

    /// Talks to other servers by HTTP, and takes one of the slots for that. Its error output has the headers of answers.
    pub(super) fn talking_to_servers(mut self) -> Self {
        self.pool = ProcessPool::Remote;
        self.env("GIT_TRACE_CURL", "2")
            .env("GIT_TRACE_CURL_NO_DATA", "1")
    }

    /// Each of its processes uses no more than this.
    pub(super) fn limited(mut self, limits: ProcessLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Watches its error output for answers of servers, and for packs.
    pub(super) fn watched(mut self, watch: OutputWatch) -> Self {
        self.watch = watch;
        self.env("GIT_TRACE", "2")
    }

    /// Keeps something until the last process of this command is gone.
    pub(super) fn keeping(mut self, keep: Keep) -> Self {
        self.keep.push(keep);
        self
    }

    fn env(mut self, key: &'static str, value: impl Into<OsString>) -> Self {
        self.environment.push((key, value.into()));
        self
    }

    /// Waits for a slot, then starts.
    pub async fn spawn(mut self) -> Result<GitProcess, GitError> {
        if let Some(page) = self.page.take() {
            let cpu = page.account();
            self.keep.push(Arc::new(page));
            return self.start(None, cpu);
        }
        let longest_wait = match self.pool {
            ProcessPool::Client => CLIENT_WAIT,
            ProcessPool::Local | ProcessPool::Remote => BACKGROUND_WAIT,
        };
        let slots = self.git.processes(self.pool);
        let slot = slots
            .wait(&self.claimant, 1, longest_wait)
            .await
            .map_err(GitError::Busy)?;
        let cpu = self
            .git
            .pools
            .client_cpu
            .open(self.claimant)
            .map_err(GitError::Busy)?;
        self.start(Some(slot), cpu)
    }

    fn start(
        mut self,
        slot: Option<Holding>,
        cpu: Option<CpuAccount>,
    ) -> Result<GitProcess, GitError> {
        if let Some(Signer(sign)) = self.signer.take() {
            let header = format!("Authorization: {}", sign());
            self.settings.push(("http.extraHeader".into(), header));
        }
        let spawned = self.to_command().spawn();
        let child = spawned.map_err(|source| GitError::Spawn {
            command: self.name,
            source,
        })?;
        self.limits.apply(&child);
        if !self.claimant.has_authority {
            limits::give_way(&child);
        }
        Ok(GitProcess::new(
            self.name,
            child,
            self.watch,
            (slot, cpu),
            self.keep,
        ))
    }

    /// Runs to the end with this input, and returns a bounded part of the output.
    pub async fn run(self, input: Vec<u8>) -> Result<Finished, GitError> {
        let command = self.name;
        let limit = self.limit;
        let process = self.spawn().await?;
        let Some(after) = limit else {
            return process.run(input).await;
        };
        // Dropping the process at the deadline kills it and all its children.
        let ran = tokio::time::timeout(after, process.run(input)).await;
        ran.unwrap_or(Err(GitError::Timeout { command, after }))
    }

    fn to_command(&self) -> Command {
        let protocols = if self.pool == ProcessPool::Remote {
            "http:https"
        } else {
            ""
        };
        let mut command = self.limits.command(self.git.program());
        command
            .arg(self.name)
            .args(&self.arguments)
            .env_clear()
            .env(
                "PATH",
                self.git.program().parent().unwrap_or(Path::new("/usr/bin")),
            )
            // Nothing can lie below this.
            .env("HOME", "/dev/null")
            .env("LC_ALL", "C")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_ATTR_NOSYSTEM", "1")
            .env("GIT_TERMINAL_PROMPT", "0")
            .env("GIT_ALLOW_PROTOCOL", protocols)
            .envs(self.environment.iter().map(|(key, value)| (*key, value)))
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true);
        let own = self
            .settings
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str()));
        let settings: Vec<_> = SETTINGS.iter().copied().chain(own).collect();
        command.env("GIT_CONFIG_COUNT", settings.len().to_string());
        for (position, (key, value)) in settings.into_iter().enumerate() {
            command.env(format!("GIT_CONFIG_KEY_{position}"), key);
            command.env(format!("GIT_CONFIG_VALUE_{position}"), value);
        }
        command
    }
}

/// A path as git reads it in a list of paths: quoted, so that a colon in it divides nothing.
fn quoted(path: &Path) -> OsString {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};

    let mut bytes = vec![b'"'];
    for byte in path.as_os_str().as_bytes() {
        if matches!(byte, b'"' | b'\\') {
            bytes.push(b'\\');
        }
        bytes.push(*byte);
    }
    bytes.push(b'"');
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::git::Slots;

    #[tokio::test]
    async fn each_process_gets_an_authorization_of_its_own() {
        let path = std::env::var_os("PATH").unwrap();
        let git = Git::find(&path, Slots::default()).unwrap();
        let made = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&made);
        let signer =
            Signer::new(move || format!("Nostr {}", counted.fetch_add(1, Ordering::SeqCst)));
        for n in 0..2 {
            let command = git.command("config").args(["--get", "http.extraHeader"]);
            let command = command.authorized_by(Some(signer.clone()));
            assert_eq!(
                made.load(Ordering::SeqCst),
                n,
                "made when the process starts"
            );
            let finished = command.run(Vec::new()).await.unwrap();
            let said = String::from_utf8(finished.stdout).unwrap();
            assert_eq!(said.trim(), format!("Authorization: Nostr {n}"));
        }
    }
}
