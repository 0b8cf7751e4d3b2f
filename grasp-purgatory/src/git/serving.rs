//! Git processes that serve clients, within memory of their own.
//!
//! Git takes what it likes: the window in which it looks for deltas, caches of their bases, a record of each object. A
//! few small pushes can make it take a hundred megabytes for a request of some bytes. So it serves with small windows and
//! caches, takes memory for its records from a pool that client networks share, and the kernel holds it to that. What
//! does not fit into a window is sent without a delta.
//!
//! One need is not known beforehand: an object that is stored as a delta of one that the client does not get is put
//! together in memory. A repository in which that failed is served with more from then on.

use std::path::Path;
use std::sync::Arc;

use grasp_core::RepoId;
use grasp_core::resources::Claimant;

use super::advertise::{Protocol, Service};
use super::command::{CLIENT_WAIT, GitCommand};
use super::error::GitError;
use super::limits::ProcessLimits;
use super::process::GitProcess;
use super::store::RepoStore;
use super::{blocking, layout};

const MIB: u64 = 1024 * 1024;

/// Memory for all processes that serve clients, in bytes.
pub(super) const SERVING_MEMORY_BYTES: u64 = 512 * MIB;

/// Memory of a process that serves a client, beside its records of objects: windows, caches, and git itself.
const LEAST_MEMORY: u64 = 24 * MIB;

/// Memory of a process for each object of the repository.
const MEMORY_PER_OBJECT: u64 = 300;

/// Memory for putting objects together, where that is known to be needed: a base and a result of 96 MiB.
const OBJECT_MEMORY: u64 = 192 * MIB;

/// The most that one process takes from the pool. Of a repository that needs more, few clients are served at a time.
const MAX_CLAIM: u64 = SERVING_MEMORY_BYTES / 4;

/// Repositories that are remembered to need more memory.
const MAX_REMEMBERED: usize = 1_000;

/// Bytes of an index for each object: its id, a checksum, and its position.
const INDEX_BYTES_PER_OBJECT: u64 = 28;

/// Settings of a process that serves clients: one thread, and little memory for deltas. Packs have most deltas already,
/// which are sent as they are.
const SETTINGS: [(&str, &str); 5] = [
    ("pack.threads", "1"),
    ("pack.windowMemory", "4m"),
    ("pack.deltaCacheSize", "2m"),
    ("core.deltaBaseCacheLimit", "8m"),
    // Larger ones are sent piece by piece.
    ("core.bigFileThreshold", "1m"),
];

impl RepoStore {
    /// Starts git's answer to `info/refs`, without the line that HTTP puts before it. Nothing is to be fed.
    pub async fn advertise(
        &self,
        repo: &RepoId,
        (service, protocol): (Service, Protocol),
        claimant: Claimant,
    ) -> Result<GitProcess, GitError> {
        let arguments = ["--http-backend-info-refs"];
        let mut process = self
            .serve(repo, (service, protocol), claimant, &arguments)
            .await?;
        drop(process.take_stdin());
        Ok(process)
    }

    /// Starts one round of fetching: the client's request is fed, git's answer read, both at once.
    pub async fn upload_pack(
        &self,
        repo: &RepoId,
        protocol: Protocol,
        claimant: Claimant,
    ) -> Result<GitProcess, GitError> {
        let service = (Service::UploadPack, protocol);
        self.serve(repo, service, claimant, &["--stateless-rpc"])
            .await
    }

    async fn serve(
        &self,
        repo: &RepoId,
        (service, protocol): (Service, Protocol),
        claimant: Claimant,
        arguments: &[&str],
    ) -> Result<GitProcess, GitError> {
        let readable = self.repository(repo).readable().await?;
        let mut command = self
            .serving_command((service, protocol), arguments)
            .arg(readable.path);
        if let Some(in_use) = readable.in_use {
            command = command.keeping(in_use);
        }
        let cpu = ProcessLimits::for_data(&claimant, readable.bytes);
        let memory = self.serving_memory(repo).await?;
        let limits = ProcessLimits {
            memory: Some(memory),
            ..cpu
        };
        let pool = &self.git().pools.serving_memory;
        let holding = pool
            .wait(&claimant, memory.min(MAX_CLAIM), CLIENT_WAIT)
            .await
            .map_err(GitError::Busy)?;
        // Where limits can be set from outside, that spares a shell.
        let at_start = if cfg!(target_os = "linux") {
            cpu
        } else {
            limits
        };
        let process = command
            .settings(SETTINGS)
            .limited(at_start)
            .keeping(Arc::new(holding))
            .claimed_by(claimant)
            .serving_client()
            .spawn()
            .await?;
        // Before it is fed: it has read nothing and started nothing yet.
        process.raise(&limits);
        Ok(process)
    }

    /// Returns the memory that a process may use which serves this repository.
    async fn serving_memory(&self, repo: &RepoId) -> Result<u64, GitError> {
        let packs = self.dir(repo).objects().join("pack");
        let objects = blocking(move || objects_below(&packs)).await?;
        let mut memory = LEAST_MEMORY.saturating_add(MEMORY_PER_OBJECT.saturating_mul(objects));
        if self.needs_object_memory().contains(self.dir(repo).key()) {
            memory = memory.saturating_add(OBJECT_MEMORY);
        }
        Ok(memory)
    }

    /// Notes what git wrote to its standard error when it served this repository. If it failed to make a pack, the next
    /// request gets more memory.
    pub fn note_serving(&self, repo: &RepoId, words: &str) {
        if !words.contains("pack-objects died") {
            return;
        }
        let mut known = self.needs_object_memory();
        if known.len() >= MAX_REMEMBERED {
            known.clear();
        }
        known.insert(self.dir(repo).key().to_owned());
    }

    /// Returns the command that serves a client, without the repository.
    pub(super) fn serving_command(
        &self,
        (service, protocol): (Service, Protocol),
        arguments: &[&str],
    ) -> GitCommand {
        let subcommand = match service {
            Service::UploadPack => "upload-pack",
            Service::ReceivePack => "receive-pack",
        };
        self.git()
            .command(subcommand)
            .args(arguments)
            .protocol(protocol.value())
    }
}

/// Returns the number of objects in these packs, by the sizes of their indexes: never too few.
fn objects_below(packs: &Path) -> Result<u64, GitError> {
    let mut objects = 0;
    for file in layout::list(packs)? {
        if file.extension().is_some_and(|kind| kind == "idx") {
            // A pack that is removed meanwhile is not read.
            let bytes = file.metadata().map_or(0, |index| index.len());
            objects += bytes / INDEX_BYTES_PER_OBJECT;
        }
    }
    Ok(objects)
}
