//! Work on the stored data of a server, which may be running: what `grasp check`, `grasp backup`, `grasp restore` and
//! `grasp import` do.
//!
//! These functions read the database and the packs by themselves, so they may write where a confined server cannot, and work the
//! same on a server that is stopped. Only a repair is done by the running server.

mod backup;
mod check;
mod restore;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use bitcoin_hashes::{HashEngine as _, sha256};
use grasp_core::RepoId;
use grasp_core::service::{Endpoint, npub};
use grasp_purgatory::git::{Git, NamedFiles, PackStorage, RepoFiles};
use serde::{Deserialize, Serialize};

pub use self::backup::{BackedUp, StoredCounts, back_up};
pub use self::check::{CheckReport, CheckRequest, check, parse_repository, purge};
pub use self::restore::{Restored, restore};
use crate::instance::error::{Explain as _, InstanceError, Result};
use crate::instance::server::{DATABASE, node};
use crate::instance::settings::Settings;
use crate::store::sqlite::SqliteReader;

/// Directory of the repositories in a backup.
const REPOSITORIES: &str = "git";

/// The remedy for a damaged database.
pub const DATABASE_REMEDY: &str = "stop the server and restore a backup with `grasp restore`, or start with a new \
     --data-dir, into which `grasp sync --once` and pushes bring back what other servers and working copies have";

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
            return Err(InstanceError::caller(format!(
                "the data of this server is in {database} and an object store, which have tools of their own; see \
                 docs/how-to/several-machines.md"
            )));
        }
        let file = settings.data_dir.join(crate::instance::server::DATABASE);
        if !file.exists() {
            return Err(InstanceError::caller(format!(
                "there is no {}; name the data directory with --data-dir",
                file.display()
            )));
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

/// Packs that are lost, by the names of their repositories.
pub type LostPacks = BTreeMap<String, BTreeSet<String>>;

/// Returns the name of a repository in reports.
pub fn repository_name(endpoint: Endpoint, repo: &RepoId) -> String {
    let prefix = match endpoint {
        Endpoint::Repository => "",
        Endpoint::PullRequests => "prs/",
    };
    format!("{prefix}{}/{}", npub(&repo.owner), repo.identifier)
}

/// Copies a file to disk.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let copied = std::fs::copy(from, to).and_then(|_| File::open(to)?.sync_all());
    copied.with_context(|| format!("could not copy {} to {}", from.display(), to.display()))
}

/// File of the manifest in a backup.
const MANIFEST: &str = "backup.json";

/// The version of the layout of backups.
const VERSION: u32 = 1;

const CHUNK_BYTES: usize = 1024 * 1024;

/// The description of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Manifest {
    version: u32,
    /// Seconds since 1970.
    created_at: u64,
    /// The SHA-256 of each file beside the packs, which git checks by itself.
    files: BTreeMap<String, String>,
    /// Packs that the server had lost before.
    lost: LostPacks,
}

impl Manifest {
    /// Describes these files of a backup.
    fn of(dir: &Path, names: &[&str], lost: LostPacks, created_at: u64) -> Result<Self> {
        let hashed = names
            .iter()
            .map(|name| Ok(((*name).to_owned(), hash(&dir.join(name))?)));
        Ok(Self {
            version: VERSION,
            created_at,
            files: hashed.collect::<Result<_>>()?,
            lost,
        })
    }

    /// Reads the manifest of a backup, and checks the files that it describes.
    fn load(dir: &Path) -> Result<Self> {
        let path = dir.join(MANIFEST);
        let text = match std::fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(InstanceError::damage(format!(
                    "{} is no complete backup: it has no {MANIFEST}",
                    dir.display()
                )));
            }
            text => text.with_context(|| format!("could not read {}", path.display()))?,
        };
        let manifest: Self = serde_json::from_str(&text)
            .with_context(|| format!("{} is damaged or of another version", path.display()))?;
        if manifest.version != VERSION {
            return Err(InstanceError::caller(format!(
                "{} has version {}, this release knows {VERSION}",
                path.display(),
                manifest.version
            )));
        }
        for (name, expected) in &manifest.files {
            let file = dir.join(name);
            if hash(&file)? != *expected {
                return Err(InstanceError::damage(format!(
                    "{} is damaged: it is not the file that was backed up",
                    file.display()
                )));
            }
        }
        Ok(manifest)
    }

    /// Writes the manifest, which completes a backup.
    fn write(&self, dir: &Path) -> Result<()> {
        let path = dir.join(MANIFEST);
        let write = || {
            let mut file = File::create(&path)?;
            file.write_all(serde_json::to_string_pretty(self)?.as_bytes())?;
            file.sync_all()?;
            File::open(dir)?.sync_all()
        };
        write().with_context(|| format!("could not write {}", path.display()))
    }

    /// Returns whether a file is part of the backup.
    fn has(&self, name: &str) -> bool {
        self.files.contains_key(name)
    }
}

fn hash(path: &Path) -> Result<String> {
    let read = || -> io::Result<String> {
        let mut file = File::open(path)?;
        let mut engine = sha256::HashEngine::new();
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            match file.read(&mut chunk)? {
                0 => return Ok(sha256::Hash::from_engine(engine).to_string()),
                length => engine.input(chunk.get(..length).unwrap_or_default()),
            }
        }
    };
    read().with_context(|| format!("could not read {}", path.display()))
}

/// What an import has copied.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Imported {
    /// Number of events.
    pub events: u64,
    /// Number of repositories.
    pub repositories: u64,
    /// Number of packs.
    pub packs: u64,
    /// Packs that were not on disk.
    pub lost: LostPacks,
}

/// Copies the data of a stopped server to the database and the object store of several nodes. Packs come first: what the
/// database names is there.
pub async fn import(settings: &Settings, dir: &Path) -> Result<Imported> {
    let packs = settings.packs.as_ref().ok_or_else(|| {
        InstanceError::operator(
            "import needs the settings of the nodes: set database, packs, node_address and domain",
        )
    })?;
    let file = dir.join(DATABASE);
    if !file.exists() {
        return Err(InstanceError::caller(format!(
            "there is no {}; name the data directory of a single server",
            file.display()
        )));
    }
    if UnixStream::connect(dir.join("admin.sock")).is_ok() {
        return Err(InstanceError::caller(format!(
            "a server uses {}; stop it first",
            dir.display()
        )));
    }
    let git = settings.git().context("could not find a usable git")?;
    let data = StoredData::open(&file, &dir.join(REPOSITORIES), git)?;
    let storage = PackStorage::open(packs.as_str(), &settings.pack_storage)
        .with_context(|| format!("could not use {packs}"))?;
    let mut lost = LostPacks::new();
    for files in &data.files {
        let named = NamedFiles::read(&*data.database, files.endpoint()).await?;
        let stored = files.store_in(&storage, &named).await;
        let stored = stored.with_context(|| format!("could not copy packs to {packs}"))?;
        for (repo, packs) in stored {
            lost.insert(repository_name(files.endpoint(), &repo), packs);
        }
    }
    let store = node::connect(settings).await?;
    let imported = store.import(&file).await;
    let imported = imported.context("could not import the database")?;
    Ok(Imported {
        events: imported.events,
        repositories: imported.repositories,
        packs: imported.packs,
        lost,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backup_needs_its_manifest_and_every_changed_file_is_detected() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "content").unwrap();
        let missing = Manifest::load(dir.path()).unwrap_err().to_string();
        assert!(missing.contains("no complete backup"), "{missing}");
        let manifest = Manifest::of(dir.path(), &["file"], BTreeMap::new(), 7).unwrap();
        manifest.write(dir.path()).unwrap();
        assert_eq!(Manifest::load(dir.path()).unwrap(), manifest);
        std::fs::write(&file, "Content").unwrap();
        let damaged = Manifest::load(dir.path()).unwrap_err().to_string();
        assert!(damaged.contains("is damaged"), "{damaged}");
    }
}
