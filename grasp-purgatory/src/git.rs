//! Git on disk: repositories, each with objects of its own, and refs that move all or none.
//!
//! It knows nothing of events: permissions were judged before, by [`grasp_core::push`] and purgatory.
//!
//! ```text
//!                     ┌── repository ──────────────────────────┐
//!  pack ─▶ Incoming ──┼─promote─▶ objects ◀── read by ── refs ─┼─▶ upload_pack ─▶ client
//!            │        └──────▲──────────────────────▲──────────┘
//!            └─stage─▶ staging                       plan, apply, move_refs
//!                             └──promote_staged
//! ```
//!
//! - Any object of a repository can be asked for by its id, as protocol v2 has it, so what must not be read yet lies
//!   elsewhere. Repositories share no objects: what another one needs is copied.
//! - **Incoming** objects are kept apart until they are complete. Receiving holds no lock: a slow sender delays no one.
//! - Refs move **all or none**, for readers and across crashes, and only to tips whose whole history is here.
//! - Git's own programs do what touches packs, in a sandbox ([`GitCommand`]); libgit2 reads refs and looks for objects.
//!
//! A push is `incoming` → `unpack` → `check`, all without a lock; then `lock`, judge on [`RepoGuard::refs`] and
//! [`RepoGuard::take_push`]; refs move with the events that sign them. `git receive-pack` is asked for its
//! advertisement only: it cannot turn a branch `a` into `a/b` in one transaction, would hold the lock for as long as the
//! client sends, and could not keep apart what one pack brings for a signed branch and for an unsigned pull request.
//!
//! ```
//! use std::error::Error;
//! use std::path::Path;
//! use std::sync::Arc;
//!
//! use grasp_core::RepoId;
//! use grasp_core::resources::Claimant;
//! use grasp_core::service::Endpoint;
//! use grasp_purgatory::database::Database;
//! use grasp_purgatory::git::{Git, Protocol, RepoStore, Service, Slots, StagingLimits};
//! use tokio::io::AsyncReadExt;
//!
//! async fn serve(root: &Path, database: Arc<dyn Database>) -> Result<(), Box<dyn Error>> {
//!     let path = std::env::var_os("PATH").unwrap_or_default();
//!     let git = Git::find(&path, Slots::default())?;
//!     let (endpoint, limits) = (Endpoint::Repository, StagingLimits::default());
//!     let store = RepoStore::open(root, endpoint, git, limits, database, None).await?;
//!
//!     let owner = "79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798";
//!     let repo: RepoId = format!("30617:{owner}:my repo 🦀").parse()?;
//!     store.lock(&repo).await?.create_view().await?;
//!     assert!(store.refs(&repo).await?.is_empty());
//!
//!     let service = (Service::UploadPack, Protocol::V0);
//!     let mut process = store.advertise(&repo, service, Claimant::default()).await?;
//!     let mut answer = String::new();
//!     if let Some(mut output) = process.take_stdout() {
//!         output.read_to_string(&mut answer).await?;
//!     }
//!     assert!(answer.contains("capabilities^{}"));
//!     assert!(process.finish().await?.status.success());
//!     Ok(())
//! }
//! ```

mod advertise;
mod binary;
mod cache;
mod chains;
mod check;
mod command;
mod error;
mod fetch;
mod layout;
mod limits;
mod packs;
mod page;
mod process;
mod refs;
mod serving;
mod store;
mod work;

/// The target of traces before each change on disk and around each commit of git data, at which tests stop the server.
pub const CHANGES: &str = "grasp::disk";

pub use advertise::{Protocol, RefList, Service};
pub use binary::{Git, GitVersion, Slots};
pub use check::Completeness;
pub use command::{GitCommand, Signer};
pub use error::{BinaryError, GitError};
pub use fetch::{Authorize, FetchLimits, Fetched, Fetcher};
pub use packs::{PackCache, PackFigures, PackStorage, PackStorageError, PackStorageOptions};
pub use page::{Object, ObjectKind, ObjectPieces, ObjectReader, PageWork};
pub use process::{Finished, GitProcess};
pub use refs::{RETIRED_REFS_RETENTION, RefTarget, Refs, Target};

pub use store::{
    CopySource, Examination, Incoming, Inspection, Keep, LostPacks, NamedFiles, PackFault,
    RepoFiles, RepoGuard, RepoStore, Repository, StagingLimits, Turn, Unpacking, WantedRefs,
};

/// Runs blocking disk work on a thread for it.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, GitError> + Send + 'static,
) -> Result<T, GitError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => Err(GitError::Stopping),
    }
}
