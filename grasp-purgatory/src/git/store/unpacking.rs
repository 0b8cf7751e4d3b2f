//! A pack that is being unpacked, within bounds that grow with what was sent.
//!
//! A few bytes can say "a gigabyte of nothing", in one object or as deltas of each other. So git begins with little
//! memory and CPU time, and gets more with each MiB that comes. All pushes together take memory from one pool.
//!
//! Git resolves deltas, which is what takes memory, once it has the checksum at the end of the pack. So the checksum is
//! held back until there is memory for that: a client that sends slowly keeps little of it from others.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use grasp_core::resources::{Claimant, Shortage};
use parking_lot::Mutex;
use tokio::io::AsyncWriteExt;
use tokio::process::ChildStdin;

use crate::git::check::Objects;
use crate::git::command::{FLAWS, GitCommand, Keep};
use crate::git::error::{GitError, says_disk_full};
use crate::git::layout;
use crate::git::limits::ProcessLimits;
use crate::git::process::{Finished, GitProcess};
use crate::resources::{Holding, SharedPool};

const MIB: u64 = 1024 * 1024;

/// Files that git may write independent of the limit of received data.
const LEAST_FILE: u64 = 64 * MIB;

/// Memory for receiving a pack without authority: git needs some for itself, and for one object at a time.
const RECEIVING_MEMORY: u64 = 24 * MIB;

/// Memory for resolving the deltas of a pack of any size without authority: two objects of the largest size that git
/// deltifies for us, and what git needs for itself.
const LEAST_MEMORY: u64 = 64 * MIB;

/// The same for a maintainer's pack.
const RECEIVING_MEMORY_WITH_AUTHORITY: u64 = 128 * MIB;
const LEAST_MEMORY_WITH_AUTHORITY: u64 = 192 * MIB;

/// Memory for each byte that was sent. The smallest objects take eight times their size while they are indexed.
const MEMORY_PER_BYTE: u64 = 16;

/// Bytes that are fed at once: more than a pipe holds, so that git has its first limits before they are raised.
const WRITE_CHUNK_BYTES: usize = 256 * 1024;

/// Bytes of the checksum at the end of a pack.
const CHECKSUM: usize = 20;

/// Time that a push may wait for memory that others use.
const UNPACK_MEMORY_TIMEOUT: Duration = Duration::from_secs(60);

/// A pack being unpacked. Dropping it stops git, and forgets what came.
#[derive(Debug)]
pub struct Unpacking {
    pack: Option<ChildStdin>,
    process: Option<GitProcess>,
    /// The last bytes that came, which may be the checksum.
    tail: Vec<u8>,
    max_bytes: u64,
    budget: Budget,
}

/// Returns git's limits for the data received so far.
#[derive(Debug)]
struct Budget {
    claimant: Claimant,
    sent: u64,
    max_memory: u64,
    pool: SharedPool,
    memory: Arc<Mutex<Vec<Holding>>>,
    /// Set while the pool had less than the push may have.
    shortage: Option<Shortage>,
}

impl Budget {
    /// Notes bytes that are about to be fed. Returns new limits whenever another MiB is reached.
    fn grow(&mut self, bytes: usize) -> Option<ProcessLimits> {
        let before = self.sent;
        self.sent += bytes as u64;
        if before / MIB == self.sent / MIB {
            return None;
        }
        self.resize(self.memory_for(receiving_memory(&self.claimant)));
        Some(self.limits())
    }

    /// Waits for the memory that resolving deltas takes at least, and takes as much more as there is.
    async fn complete(&mut self) -> Result<ProcessLimits, GitError> {
        let least = least_memory(&self.claimant).min(self.max_memory);
        self.resize(self.memory_for(least));
        if self.held() < least {
            // Pushes that waited for more and kept what they had would wait for each other.
            self.memory.lock().clear();
            self.take(least).await?;
            self.resize(self.memory_for(least));
        }
        Ok(self.limits())
    }

    /// Waits for memory.
    async fn take(&self, amount: u64) -> Result<(), GitError> {
        let holding = self
            .pool
            .wait(&self.claimant, amount, UNPACK_MEMORY_TIMEOUT)
            .await;
        self.memory.lock().push(holding.map_err(GitError::Busy)?);
        Ok(())
    }

    /// Returns the memory for what was sent, beside what any pack gets.
    fn memory_for(&self, least: u64) -> u64 {
        let for_bytes = self.sent.saturating_mul(MEMORY_PER_BYTE);
        least.saturating_add(for_bytes).min(self.max_memory)
    }

    /// Takes so much memory in all, or stays with what it has.
    fn resize(&mut self, wanted: u64) {
        let more = wanted.saturating_sub(self.held());
        let resized = match self.memory.lock().first_mut() {
            Some(first) if more > 0 => first.resize(first.amount() + more),
            _ => Ok(()),
        };
        self.shortage = resized.err();
    }

    fn limits(&self) -> ProcessLimits {
        let cpu = ProcessLimits::for_data(&self.claimant, self.sent);
        ProcessLimits {
            memory: Some(self.held()),
            ..cpu
        }
    }

    fn held(&self) -> u64 {
        self.memory.lock().iter().map(Holding::amount).sum()
    }
}

fn receiving_memory(claimant: &Claimant) -> u64 {
    if claimant.has_authority {
        RECEIVING_MEMORY_WITH_AUTHORITY
    } else {
        RECEIVING_MEMORY
    }
}

fn least_memory(claimant: &Claimant) -> u64 {
    if claimant.has_authority {
        LEAST_MEMORY_WITH_AUTHORITY
    } else {
        LEAST_MEMORY
    }
}

impl Unpacking {
    /// Starts git. What a thin pack leans on is written with it, so files may become larger than what came.
    pub(super) async fn start(
        objects: &Objects,
        max_bytes: u64,
        max_memory: u64,
    ) -> Result<Self, GitError> {
        let claimant = objects.claimant;
        let pool = objects.git.pools.unpack_memory.clone();
        let receiving = receiving_memory(&claimant).min(max_memory);
        let memory = Arc::default();
        let budget = Budget {
            claimant,
            sent: 0,
            max_memory,
            pool,
            memory,
            shortage: None,
        };
        let file = Some(max_bytes.saturating_mul(2).max(LEAST_FILE));
        // Where limits cannot be raised later they are as high as they may become.
        let limits = if cfg!(target_os = "linux") {
            ProcessLimits {
                memory: Some(receiving),
                file,
                ..budget.limits()
            }
        } else {
            let cpu = ProcessLimits::for_data(&claimant, max_bytes);
            ProcessLimits {
                memory: Some(max_memory),
                file,
                ..cpu
            }
        };
        let mut process = objects
            .command("index-pack")
            .args(["--stdin", "--fix-thin"])
            .arg(format!(
                "--strict={}",
                FLAWS.map(|flaw| format!("{flaw}=ignore")).join(",")
            ))
            .arg(format!("--max-input-size={max_bytes}"))
            .setting("pack.threads", "2")
            .setting("core.deltaBaseCacheLimit", "8m")
            // Larger files are not held in memory while they are received.
            .setting("core.bigFileThreshold", "4m")
            .limited(limits)
            .keeping(budget.memory.clone())
            .serving_client()
            .spawn()
            .await?;
        // A process slot first, then memory: a push that waits for one holds none of the other.
        budget.take(receiving).await?;
        let pack = process.take_stdin();
        Ok(Self {
            pack,
            process: Some(process),
            tail: Vec::new(),
            max_bytes,
            budget,
        })
    }

    /// Hands the next bytes of the pack to git. An error says what git thinks of those before.
    pub async fn feed(&mut self, bytes: &[u8]) -> Result<(), GitError> {
        let mut all = std::mem::take(&mut self.tail);
        all.extend_from_slice(bytes);
        self.tail = all.split_off(all.len().saturating_sub(CHECKSUM));
        self.write(&all).await
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), GitError> {
        let mut fed = true;
        for piece in bytes.chunks(WRITE_CHUNK_BYTES) {
            if let (Some(limits), Some(process)) = (self.budget.grow(piece.len()), &self.process) {
                process.raise(&limits);
            }
            fed = match &mut self.pack {
                Some(pack) => pack.write_all(piece).await.is_ok(),
                None => false,
            };
            if !fed {
                break;
            }
        }
        if fed {
            return Ok(());
        }
        // Git reads no further only if it has found fault, or if bytes follow the pack.
        self.end().await?;
        Err(GitError::BadPack(String::from(
            "bytes after the end of the pack",
        )))
    }

    /// Says that the pack is complete, and waits for git's opinion.
    pub async fn finish(mut self) -> Result<(), GitError> {
        let limits = self.budget.complete().await?;
        if let Some(process) = &self.process {
            process.raise(&limits);
        }
        let tail = std::mem::take(&mut self.tail);
        self.write(&tail).await?;
        self.end().await
    }

    async fn end(&mut self) -> Result<(), GitError> {
        self.pack = None;
        let Some(process) = self.process.take() else {
            return Err(GitError::BadPack(String::from("it was refused before")));
        };
        let finished = process.run(Vec::new()).await?;
        if finished.status.success() {
            return Ok(());
        }
        Err(self.refusal(&finished.words))
    }

    /// Returns the reason why git refused the pack.
    fn refusal(&self, words: &str) -> GitError {
        if says_disk_full(words) {
            return GitError::DiskFull;
        }
        if words.contains("exceeds maximum allowed size") {
            return GitError::TooLarge {
                limit: self.max_bytes,
            };
        }
        // An object that one of the pack names is neither in it nor in the repository.
        if words.contains("did not receive expected object") {
            return GitError::Incomplete { count: 1 };
        }
        if words.contains("ut of memory") {
            let too_much = String::from(
                "it takes too much memory to unpack for its size; repack with \
                 `git -c core.bigFileThreshold=16m repack -adF` and push again",
            );
            return self
                .budget
                .shortage
                .map_or(GitError::BadPack(too_much), GitError::Busy);
        }
        let is_fault = |line: &&str| line.starts_with("error:") || line.starts_with("fatal:");
        let fault = words.lines().find(is_fault).or(words.lines().next());
        let fault = fault.unwrap_or("git gave no reason");
        GitError::BadPack(
            fault
                .chars()
                .filter(|c| !c.is_control())
                .take(200)
                .collect(),
        )
    }
}

/// An object directory of its own. It is removed when the last holder is gone, processes included.
#[derive(Clone, Debug)]
pub(in crate::git) struct Quarantine {
    dir: Arc<Dir>,
}

#[derive(Debug)]
struct Dir {
    path: PathBuf,
}

impl Quarantine {
    pub(super) fn create(path: PathBuf) -> Result<Self, GitError> {
        layout::create_dir(&path.join("pack"))?;
        Ok(Self {
            dir: Arc::new(Dir { path }),
        })
    }

    pub(in crate::git) fn objects(&self) -> PathBuf {
        self.dir.path.clone()
    }

    /// Runs a command that packs objects into this directory.
    pub(super) async fn fill(
        &self,
        command: GitCommand,
        input: Vec<u8>,
    ) -> Result<Finished, GitError> {
        let command = command.args(["--non-empty", "--delta-base-offset", "-q"]);
        command
            .arg(self.objects().join("pack/pack"))
            .keeping(self.kept())
            .run(input)
            .await
    }

    /// Keeps the directory for as long as the answer lives.
    pub(in crate::git) fn kept(&self) -> Keep {
        self.dir.clone()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let path = std::mem::take(&mut self.path);
        // What could not be removed now goes at the next start.
        let remove = move || _ = layout::remove(&path);
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => _ = runtime.spawn_blocking(remove),
            Err(_) => remove(),
        }
    }
}
