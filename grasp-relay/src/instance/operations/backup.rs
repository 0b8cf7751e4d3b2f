//! A consistent copy of a server's data, while it runs or not.
//!
//! The database is copied first, as it is at one moment. Then the packs that the copy names get a second name in the
//! backup: they never change. A running server may replace a pack in between; then the database is copied again, and
//! only packs that are not in the backup yet are looked for.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::{fs, io};

use grasp_core::service::Endpoint;
use grasp_purgatory::database::Database as _;
use grasp_purgatory::git::NamedFiles;
use nostr::types::Timestamp;

use super::{
    DATABASE_REMEDY, LostPacks, Manifest, REPOSITORIES, StoredData, copy, repository_name,
};
use crate::instance::error::{Explain as _, InstanceError, Result};
use crate::instance::files::create_private_dir;
use crate::instance::server::{DATABASE, RELAY_RECORDS};
use crate::instance::settings::Settings;
use crate::store::sqlite::SqliteReader;

/// File of the service's key in a backup.
pub(super) const SERVICE_KEY: &str = "service.key";

/// Times that the database is copied because packs were replaced meanwhile.
const MAX_ATTEMPTS: usize = 10;

/// What a database with its packs has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoredCounts {
    /// Number of repositories.
    pub repositories: u64,
    /// Number of packs.
    pub packs: u64,
}

/// What a backup has.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackedUp {
    /// What was copied.
    pub counts: StoredCounts,
    /// Packs that could not be copied, because the server had lost them before.
    pub lost: LostPacks,
}

/// Copies the data of a server into a new directory.
pub async fn back_up(settings: &Settings, dir: &Path) -> Result<BackedUp> {
    let data = StoredData::of_server(settings)?;
    prepare(dir).with_context(|| format!("could not use {} for a backup", dir.display()))?;
    let backed_up = copy_data(&data, dir).await?;
    let mut files = vec![DATABASE];
    let others = [
        (settings.service_key(), SERVICE_KEY),
        (settings.data_dir.join(RELAY_RECORDS), RELAY_RECORDS),
    ];
    for (from, name) in others {
        if from
            .try_exists()
            .with_context(|| format!("could not read {}", from.display()))?
        {
            copy(&from, &dir.join(name))?;
            files.push(name);
        }
    }
    let lost = backed_up.lost.clone();
    let manifest = Manifest::of(dir, &files, lost, Timestamp::now().as_secs())?;
    manifest.write(dir)?;
    Ok(backed_up)
}

/// Makes an empty directory that only its owner can read.
fn prepare(dir: &Path) -> io::Result<()> {
    create_private_dir(dir)?;
    if fs::read_dir(dir)?.next().is_some() {
        return Err(io::Error::other("it exists and is not empty"));
    }
    fs::set_permissions(dir, fs::Permissions::from_mode(0o700))
}

/// Copies database and packs.
async fn copy_data(data: &StoredData, dir: &Path) -> Result<BackedUp> {
    let file = dir.join(DATABASE);
    for _ in 0..MAX_ATTEMPTS {
        data.database
            .copy_to(&file)
            .context("could not copy the database")?;
        let copy = SqliteReader::open(&file).context("could not open the copy of the database")?;
        if let Some(fault) = copy.integrity_check()?.first() {
            return Err(InstanceError::damage(format!(
                "the database is damaged: {fault}; {DATABASE_REMEDY}"
            )));
        }
        if let Some(lost) = copy_packs(data, &copy, dir).await? {
            let counts = counts(&copy).await?;
            return Ok(BackedUp { counts, lost });
        }
    }
    Err(InstanceError::caller(format!(
        "the server replaced packs {MAX_ATTEMPTS} times meanwhile; try again"
    )))
}

/// Copies the packs that a copy of the database names; `None` if some were replaced meanwhile.
async fn copy_packs(
    data: &StoredData,
    copy: &SqliteReader,
    dir: &Path,
) -> Result<Option<LostPacks>> {
    let mut all_lost = LostPacks::new();
    for files in &data.files {
        let root = match files.endpoint() {
            Endpoint::Repository => dir.join(REPOSITORIES),
            Endpoint::PullRequests => dir.join(REPOSITORIES).join("prs"),
        };
        let named = NamedFiles::read(copy, files.endpoint()).await?;
        let copied = files
            .copy_to(&root, named)
            .await
            .context("could not copy the packs")?;
        let Some(lost) = copied else { return Ok(None) };
        for (repo, packs) in lost {
            all_lost.insert(repository_name(files.endpoint(), &repo), packs);
        }
    }
    Ok(Some(all_lost))
}

/// Returns what a database has.
pub(super) async fn counts(database: &SqliteReader) -> Result<StoredCounts> {
    let mut counts = StoredCounts {
        repositories: 0,
        packs: 0,
    };
    for endpoint in [Endpoint::Repository, Endpoint::PullRequests] {
        counts.repositories += database.repositories(endpoint).await?.len() as u64;
        for packs in database.packs(endpoint).await?.values() {
            counts.packs += packs.len() as u64;
        }
    }
    Ok(counts)
}
