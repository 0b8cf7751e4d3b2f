//! Git for pages: work in slots and on an account of CPU time of its own, so that no page delays a clone or a push.
//!
//! Objects are read by `git cat-file` and not by libgit2, which would inflate what strangers send in this process: the
//! base of a small object may be as large as a push may be. A process has a limit of memory and can be killed.

use std::sync::Arc;
use std::time::Duration;

use grasp_core::resources::Claimant;
use grasp_core::{Oid, RepoId};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{ChildStdin, ChildStdout};

use super::binary::Git;
use super::blocking;
use super::command::GitCommand;
use super::error::GitError;
use super::limits::{CpuAccount, ProcessLimits};
use super::process::GitProcess;
use super::store::RepoStore;
use super::work::thread_time;
use crate::resources::Holding;

/// Time that a page waits for a slot.
const SLOT_WAIT: Duration = Duration::from_secs(10);

/// CPU time that counts for each page beside what is measured.
const CPU_PER_PAGE: Duration = Duration::from_micros(200);

/// Limits of each git process of a page.
const LIMITS: ProcessLimits = ProcessLimits {
    memory: Some(512 * 1024 * 1024),
    file: None,
    cpu: Some(Duration::from_secs(5)),
    stack: None,
};

/// Time within which a git process of a page has to end.
const PROCESS_TIMEOUT: Duration = Duration::from_secs(15);

const CAT_FILE: &str = "cat-file";

/// A page that is being made: the slot that it takes, and the account that all work for it is charged to. Clones are the
/// same page; the slot is free when the last one is dropped.
#[derive(Clone, Debug)]
pub struct PageWork(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    git: Git,
    claimant: Claimant,
    _slot: Holding,
}

impl Git {
    /// Waits for the slot of a page. A network that has used its share of the CPU time for pages is refused.
    pub async fn begin_page(&self, claimant: Claimant) -> Result<PageWork, GitError> {
        let pools = &self.pools;
        let opened = pools.page_cpu.open_with(claimant, CPU_PER_PAGE);
        opened.map_err(GitError::Busy)?;
        let slot = pools.pages.wait(&claimant, 1, SLOT_WAIT).await;
        Ok(PageWork(Arc::new(Inner {
            git: self.clone(),
            claimant,
            _slot: slot.map_err(GitError::Busy)?,
        })))
    }

    /// Returns the number of pages that are made at the same time.
    pub fn page_slots(&self) -> u64 {
        self.pools.pages.bounds().total
    }

    /// Charges a client for work for a page that was done without a slot.
    pub fn charge_page(&self, claimant: Claimant, used: Duration) {
        if let Some(account) = self.pools.page_cpu.account(claimant) {
            account.charge_time(used);
        }
    }

    /// Returns whether pages have used half of the CPU time that they may use.
    pub fn are_pages_under_load(&self) -> bool {
        self.pools.page_cpu.is_half_used()
    }
}

impl PageWork {
    /// Returns the client that the page is for.
    pub fn claimant(&self) -> Claimant {
        self.0.claimant
    }

    pub(super) fn account(&self) -> Option<CpuAccount> {
        self.0.git.pools.page_cpu.account(self.0.claimant)
    }

    /// Charges CPU time that was used for the page elsewhere.
    pub fn charge(&self, used: Duration) {
        if let Some(account) = self.account() {
            account.charge_time(used);
        }
    }

    /// Performs a part of the work on a thread for it, and charges the CPU time that it takes.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, GitError> {
        let page = self.clone();
        blocking(move || {
            let start = thread_time();
            let result = work();
            page.charge(thread_time().saturating_sub(start));
            Ok(result)
        })
        .await
    }
}

/// The kind of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectKind {
    /// A commit.
    Commit,
    /// A directory.
    Tree,
    /// A file.
    Blob,
    /// An annotated tag.
    Tag,
}

/// An object without its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    /// Its id.
    pub oid: Oid,
    /// Its kind.
    pub kind: ObjectKind,
    /// The size of its content in bytes.
    pub bytes: u64,
}

impl Object {
    /// Parses a line such as `<id> blob 12`; `None` for an object that is missing, and for any other answer.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let oid = words.next()?.parse().ok()?;
        let kind = match words.next()? {
            "commit" => ObjectKind::Commit,
            "tree" => ObjectKind::Tree,
            "blob" => ObjectKind::Blob,
            "tag" => ObjectKind::Tag,
            _ => return None,
        };
        let bytes = words.next()?.parse().ok()?;
        words.next().is_none().then_some(Self { oid, kind, bytes })
    }
}

/// Reads single objects of a repository, by one process.
#[derive(Debug)]
pub struct ObjectReader {
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    process: GitProcess,
}

impl RepoStore {
    /// Starts to read objects of a repository for a page.
    pub async fn read_objects(
        &self,
        repo: &RepoId,
        page: &PageWork,
    ) -> Result<ObjectReader, GitError> {
        let command = self.page_command(repo, CAT_FILE, page).await?;
        let mut process = command.arg("--batch-command").spawn().await?;
        let streams = (process.take_stdin(), process.take_stdout());
        let (Some(stdin), Some(stdout)) = streams else {
            return Err(GitError::NoView);
        };
        Ok(ObjectReader {
            stdin,
            stdout: BufReader::new(stdout),
            process,
        })
    }

    /// Returns a command that reads a repository for a page.
    async fn page_command(
        &self,
        repo: &RepoId,
        subcommand: &'static str,
        page: &PageWork,
    ) -> Result<GitCommand, GitError> {
        let readable = self.repository(repo).readable().await?;
        let command = self.git().command(subcommand).repository(&readable.path);
        let command = command.limited(LIMITS).working_for(page);
        Ok(match readable.in_use {
            Some(in_use) => command.keeping(in_use),
            None => command,
        })
    }

    /// Runs a command that only reads, for a page. Returns its output, and whether it was cut: at `max_bytes`, or where the
    /// command reached its limit of time after it had printed something.
    pub async fn run_for_page(
        &self,
        repo: &RepoId,
        page: &PageWork,
        subcommand: &'static str,
        arguments: &[&str],
        max_bytes: usize,
    ) -> Result<(Vec<u8>, bool), GitError> {
        let git = self.page_command(repo, subcommand, page).await?;
        let mut process = git.args(arguments).spawn().await?;
        drop(process.take_stdin());
        let mut output = Vec::new();
        let read = async {
            if let Some(stdout) = process.take_stdout() {
                let mut bounded = stdout.take(max_bytes as u64 + 1);
                bounded.read_to_end(&mut output).await?;
            }
            Ok::<_, std::io::Error>(())
        };
        let read = in_time(subcommand, read).await;
        if output.len() > max_bytes {
            output.truncate(max_bytes);
            return Ok((output, true));
        }
        let ended = match read {
            Ok(()) => process.finish().await,
            Err(error) => Err(error),
        };
        match ended {
            Ok(finished) => {
                finished.success(subcommand)?;
                Ok((output, false))
            }
            Err(error) if error.is_too_expensive() && !output.is_empty() => Ok((output, true)),
            Err(error) => Err(error),
        }
    }
}

impl ObjectReader {
    /// Returns what an object is: one by its id, or the one at a path of a commit or tree, as in `<id>:src/main.rs`. `None`
    /// if there is none.
    pub async fn info(&mut self, name: &str) -> Result<Option<Object>, GitError> {
        Ok(Object::parse(&self.ask("info", name).await?))
    }

    /// Returns an object with its content; `None` if there is none, or its content is larger than `max_bytes`.
    pub async fn content(
        &mut self,
        name: &str,
        max_bytes: u64,
    ) -> Result<Option<(Object, Vec<u8>)>, GitError> {
        let Some(object) = self.info(name).await? else {
            return Ok(None);
        };
        if object.bytes > max_bytes {
            return Ok(None);
        }
        // By its id: the name may lead to a missing object of another size.
        let id = object.oid.to_string();
        if Object::parse(&self.ask("contents", &id).await?) != Some(object) {
            return Ok(None);
        }
        let length = usize::try_from(object.bytes).unwrap_or(usize::MAX);
        let mut content = vec![0; length];
        let mut end = [0];
        let stdout = &mut self.stdout;
        let read = async {
            stdout.read_exact(&mut content).await?;
            stdout.read_exact(&mut end).await
        };
        let read = in_time(CAT_FILE, read).await;
        read.map_err(|error| ended_early(Some(error)))?;
        Ok(Some((object, content)))
    }

    /// Starts to read a large object in pieces. Returns its first bytes with the rest.
    pub async fn pieces(mut self, object: &Object) -> Result<(Vec<u8>, ObjectPieces), GitError> {
        let id = object.oid.to_string();
        if Object::parse(&self.ask("contents", &id).await?) != Some(*object) {
            return Err(ended_early(None));
        }
        let mut pieces = ObjectPieces {
            left: object.bytes,
            reader: self,
        };
        let first = pieces.next().await?.unwrap_or_default();
        Ok((first, pieces))
    }

    /// Asks for an object, and returns the line of the answer. A name with a line feed names nothing.
    async fn ask(&mut self, what: &str, name: &str) -> Result<String, GitError> {
        if name.contains('\n') {
            return Ok(String::new());
        }
        let request = format!("{what} {name}\n");
        let mut answer = Vec::new();
        let stdin = &mut self.stdin;
        let stdout = &mut self.stdout;
        let exchange = async {
            stdin.write_all(request.as_bytes()).await?;
            stdin.flush().await?;
            // The answer repeats the name of an object that is missing.
            let mut bounded = stdout.take(request.len() as u64 + 256);
            bounded.read_until(b'\n', &mut answer).await
        };
        let read = in_time(CAT_FILE, exchange).await;
        if answer.is_empty() {
            return Err(ended_early(read.err()));
        }
        Ok(String::from_utf8_lossy(&answer).trim_end().to_owned())
    }

    /// Ends the process, so that its CPU time is charged.
    pub async fn finish(self) -> Result<(), GitError> {
        drop(self.stdin);
        self.process.finish().await?;
        Ok(())
    }
}

/// The rest of a large object.
#[derive(Debug)]
pub struct ObjectPieces {
    reader: ObjectReader,
    left: u64,
}

impl ObjectPieces {
    /// Returns the next piece, of up to 16 KiB; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, GitError> {
        const PIECE: u64 = 16 * 1024;
        let length = usize::try_from(self.left.min(PIECE)).unwrap_or(0);
        if length == 0 {
            return Ok(None);
        }
        let mut piece = vec![0; length];
        let read = in_time(CAT_FILE, self.reader.stdout.read_exact(&mut piece)).await;
        read.map_err(|error| ended_early(Some(error)))?;
        self.left -= length as u64;
        Ok(Some(piece))
    }

    /// Ends the process, so that its CPU time is charged.
    pub async fn finish(self) -> Result<(), GitError> {
        self.reader.finish().await
    }
}

/// Returns why a process that reads objects gave no answer. It ends early only at a limit of memory or CPU time.
fn ended_early(error: Option<GitError>) -> GitError {
    match error {
        Some(error @ GitError::Timeout { .. }) => error,
        _ => GitError::TooExpensive { command: CAT_FILE },
    }
}

/// Waits for the output of a process, for as long as a page may take.
async fn in_time<T>(
    command: &'static str,
    read: impl Future<Output = std::io::Result<T>>,
) -> Result<T, GitError> {
    let after = PROCESS_TIMEOUT;
    let read = tokio::time::timeout(after, read).await;
    let read = read.map_err(|_| GitError::Timeout { command, after })?;
    read.map_err(|source| GitError::Spawn { command, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_cat_file_are_parsed_whole() {
        let id = "a".repeat(40);
        let parsed = Object::parse(&format!("{id} blob 12"));
        let expected = Object {
            oid: id.parse().unwrap(),
            kind: ObjectKind::Blob,
            bytes: 12,
        };
        assert_eq!(parsed, Some(expected));
        for answer in ["", "x missing", "aa:x blob 12 missing", "a blob 1"] {
            assert_eq!(Object::parse(answer), None, "{answer}");
        }
        assert_eq!(Object::parse(&format!("{id} blob 12 missing")), None);
    }
}
