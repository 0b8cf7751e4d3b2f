//! `grasp check`, `grasp backup`, `grasp restore` and `grasp import`: commands for the stored data of a server, which may be running.
//!
//! They read the database and the packs by themselves, so they may write where a confined server cannot, and work the
//! same on a server that is stopped. Only a repair is done by the running server.

pub(crate) mod backup;
pub(crate) mod check;
pub(crate) mod import;
mod manifest;
pub(crate) mod restore;

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Error, Result, bail};
use grasp_core::RepoId;
use grasp_core::service::{Endpoint, npub};
use grasp_purgatory::git::{Git, RepoFiles};
use grasp_relay::store::sqlite::{self, SqliteReader};

use crate::settings::Settings;

/// Directory of the repositories in a backup.
const REPOSITORIES: &str = "git";

/// The remedy for a damaged database.
pub(crate) const DATABASE_REMEDY: &str = "stop the server and restore a backup with `grasp restore`, or start with a new \
     --data-dir, into which `grasp sync --once` and pushes bring back what other servers and working copies have";

/// Returns the remedy for an error that a damaged database has caused.
pub(crate) fn database_remedy(error: &Error) -> Option<&'static str> {
    let is_damage = error.chain().any(sqlite::is_damage);
    is_damage.then_some(DATABASE_REMEDY)
}

/// The database and the repositories of a server, open for reading.
struct StoredData {
    database: Arc<SqliteReader>,
    /// The repositories of both endpoints.
    files: [RepoFiles; 2],
}

impl StoredData {
    /// Opens the data of a server.
    fn of_server(settings: &Settings) -> Result<Self> {
        if let Some(database) = &settings.database {
            bail!(
                "the data of this server is in {database} and an object store, which have tools of their own; see \
                 docs/how-to/several-machines.md"
            );
        }
        let file = settings.data_dir.join(crate::server::DATABASE);
        if !file.exists() {
            bail!("there is no {}; name the data directory with --data-dir", file.display());
        }
        let git = settings.git().context("could not find a usable git")?;
        Self::open(&file, &settings.repositories(), git)
    }

    fn open(database: &Path, repositories: &Path, git: Git) -> Result<Self> {
        let opened = SqliteReader::open(database);
        let database =
            Arc::new(opened.with_context(|| format!("could not open {}", database.display()))?);
        let files = [
            (repositories.to_owned(), Endpoint::Repository),
            (repositories.join("prs"), Endpoint::PullRequests),
        ];
        let files = files.map(|(root, endpoint)| {
            RepoFiles::new(&root, endpoint, git.clone(), Arc::clone(&database) as _)
        });
        Ok(Self { database, files })
    }
}

/// Returns the name of a repository in reports.
fn repository_name(endpoint: Endpoint, repo: &RepoId) -> String {
    let prefix = match endpoint {
        Endpoint::Repository => "",
        Endpoint::PullRequests => "prs/",
    };
    format!("{prefix}{}/{}", npub(&repo.owner), repo.identifier)
}

/// Runs a command that waits for files and processes.
fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.context("could not start the runtime")?.block_on(work)
}
