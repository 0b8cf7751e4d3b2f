//! `grasp backup`: a consistent copy of a server's data, while it runs or not.
//!
//! The database is copied first, as it is at one moment. Then the packs that the copy names get a second name in the
//! backup: they never change. A running server may replace a pack in between; then the database is copied again, and
//! only packs that are not in the backup yet are looked for.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::ExitCode;
use std::{fs, io};

use anyhow::{Context, Result, bail};
use grasp_core::service::Endpoint;
use grasp_purgatory::database::Database as _;
use grasp_purgatory::git::NamedFiles;
use grasp_relay::store::sqlite::SqliteReader;
use grasp_relay::web::format_count;
use nostr::types::Timestamp;

use super::{
    DATABASE_REMEDY, LostPacks, Manifest, REPOSITORIES, StoredData, copy, repository_name,
};
use crate::block_on;
use crate::config::Config;
use crate::files::create_private_dir;
use crate::server::{DATABASE, RELAY_RECORDS};

/// File of the service's key in a backup.
pub(super) const SERVICE_KEY: &str = "service.key";

/// Times that the database is copied because packs were replaced meanwhile.
const MAX_ATTEMPTS: usize = 10;

/// Copies the data of a server into a new directory. The exit code says whether everything was there to be copied.
pub(crate) fn run(config: &Config, dir: &Path) -> Result<ExitCode> {
    let data = StoredData::of_server(&config.settings)?;
    prepare(dir).with_context(|| format!("could not use {} for a backup", dir.display()))?;
    let (lost, summary) = block_on(copy_data(&data, dir))?;
    let mut files = vec![DATABASE];
    let others = [
        (config.settings.service_key(), SERVICE_KEY),
        (config.settings.data_dir.join(RELAY_RECORDS), RELAY_RECORDS),
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
    let manifest = Manifest::of(dir, &files, lost, Timestamp::now().as_secs())?;
    manifest.write(dir)?;
    println!("backed up {summary} to {}", dir.display());
    for (repo, packs) in &manifest.lost {
        let packs = format_count(packs.len() as u64, "pack", "packs");
        println!(
            "damaged: {repo}: {packs} could not be copied; `grasp check --repair` fetches what is missing"
        );
    }
    Ok(if manifest.lost.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Makes an empty directory that only its owner can read.
fn prepare(dir: &Path) -> io::Result<()> {
    create_private_dir(dir)?;
    if fs::read_dir(dir)?.next().is_some() {
        return Err(io::Error::other("it exists and is not empty"));
    }
    fs::set_permissions(dir, fs::Permissions::from_mode(0o700))
}

/// Copies database and packs, and returns the packs that are lost, and a summary.
async fn copy_data(data: &StoredData, dir: &Path) -> Result<(LostPacks, String)> {
    let file = dir.join(DATABASE);
    for _ in 0..MAX_ATTEMPTS {
        data.database
            .copy_to(&file)
            .context("could not copy the database")?;
        let copy = SqliteReader::open(&file).context("could not open the copy of the database")?;
        if let Some(fault) = copy.integrity_check()?.first() {
            bail!("the database is damaged: {fault}; {DATABASE_REMEDY}");
        }
        if let Some(lost) = copy_packs(data, &copy, dir).await? {
            return Ok((lost, summary(&copy).await?));
        }
    }
    bail!("the server replaced packs {MAX_ATTEMPTS} times meanwhile; try again")
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

/// Returns what a database has, in words.
pub(super) async fn summary(database: &SqliteReader) -> Result<String> {
    let (mut repositories, mut packs) = (0, 0);
    for endpoint in [Endpoint::Repository, Endpoint::PullRequests] {
        repositories += database.repositories(endpoint).await?.len();
        packs += database
            .packs(endpoint)
            .await?
            .values()
            .map(BTreeSet::len)
            .sum::<usize>();
    }
    let repositories = format_count(repositories as u64, "repository", "repositories");
    let packs = format_count(packs as u64, "pack", "packs");
    Ok(format!("the database, {repositories} and {packs}"))
}
