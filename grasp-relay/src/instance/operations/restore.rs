//! Checks a backup, and installs it into an empty data directory.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use grasp_purgatory::git::{Examination, PackFault};

use super::backup::{SERVICE_KEY, StoredCounts, counts};
use super::{Manifest, REPOSITORIES, StoredData, copy, repository_name};
use crate::instance::error::{Explain as _, InstanceError, Result};
use crate::instance::files::create_private_dir;
use crate::instance::server::{DATABASE, RELAY_RECORDS};
use crate::instance::settings::Settings;

/// What was restored.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Restored {
    /// What was installed.
    pub counts: StoredCounts,
    /// The faults of the backup that were accepted.
    pub faults: Vec<String>,
}

/// Checks a backup, and installs it as the data of a server, with damaged packs only if those are accepted.
pub async fn restore(settings: &Settings, dir: &Path, accept_damage: bool) -> Result<Restored> {
    for place in [&settings.data_dir, &settings.repositories()] {
        if !is_empty(place)? {
            return Err(InstanceError::caller(format!(
                "{} is not empty; choose another directory with --data-dir",
                place.display()
            )));
        }
    }
    let manifest = Manifest::load(dir)?;
    let git = settings.git().context("could not find a usable git")?;
    let backup = StoredData::open(&dir.join(DATABASE), &dir.join(REPOSITORIES), git)?;
    let faults = check(&backup, &manifest).await?;
    if let (Some(fault), false) = (faults.first(), accept_damage) {
        return Err(InstanceError::damage(format!(
            "the backup is damaged: {fault}; take another one, or accept it with --accept-damage"
        )));
    }
    let installed = install(&backup, &manifest, dir, settings).await;
    installed.with_context(|| {
        let data = settings.data_dir.display();
        format!("the restore is not complete; empty {data} and try again")
    })?;
    let counts = counts(&backup.database).await?;
    Ok(Restored { counts, faults })
}

/// Returns whether a directory is not there or has nothing in it.
fn is_empty(dir: &Path) -> Result<bool> {
    match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        entries => {
            let mut entries =
                entries.with_context(|| format!("could not read {}", dir.display()))?;
            Ok(entries.next().is_none())
        }
    }
}

/// Returns the faults of the packs of a backup, at most one for each repository. Fails if the database has one.
async fn check(backup: &StoredData, manifest: &Manifest) -> Result<Vec<String>> {
    if let Some(fault) = backup.database.integrity_check()?.first() {
        return Err(InstanceError::damage(format!(
            "the backup is damaged: {DATABASE}: {fault}; take another one"
        )));
    }
    let mut faults = Vec::new();
    for files in &backup.files {
        for repo in files.all().await? {
            let name = repository_name(files.endpoint(), &repo);
            let examination = files.examine(&repo).await;
            let examination = examination.with_context(|| format!("could not check {name}"))?;
            faults.extend(fault(&name, &examination, manifest));
        }
    }
    Ok(faults)
}

/// Returns a fault of a repository that its server did not have when it was backed up.
fn fault(repo: &str, found: &Examination, manifest: &Manifest) -> Option<String> {
    let lost = manifest.lost.get(repo);
    let is_new = |name: &String| !lost.is_some_and(|packs| packs.contains(name));
    let fault = found.faults.iter().find_map(|(name, fault)| match fault {
        PackFault::Damaged => Some(format!("{name} cannot be read")),
        PackFault::Lost if is_new(name) => Some(format!("{name} is missing or truncated")),
        PackFault::Lost | PackFault::Unindexed => None,
    });
    fault.map(|fault| format!("{repo}: {fault}"))
}

/// Copies a backup to its place, the database last: without it, nothing is there.
async fn install(
    backup: &StoredData,
    manifest: &Manifest,
    dir: &Path,
    settings: &Settings,
) -> Result<()> {
    let data = &settings.data_dir;
    create_private_dir(data)?;
    let [repositories, _] = &backup.files;
    repositories.install(&settings.repositories()).await?;
    if manifest.has(RELAY_RECORDS) {
        copy(&dir.join(RELAY_RECORDS), &data.join(RELAY_RECORDS))?;
    }
    let key = settings.service_key();
    if manifest.has(SERVICE_KEY) && !key.exists() {
        copy(&dir.join(SERVICE_KEY), &key)?;
    }
    let partial = data.join(format!("{DATABASE}.restored"));
    copy(&dir.join(DATABASE), &partial)?;
    fs::rename(&partial, data.join(DATABASE))?;
    File::open(data)?.sync_all()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    #[test]
    fn only_packs_that_were_lost_before_the_backup_may_be_missing() {
        let dir = tempfile::tempdir().unwrap();
        let lost = BTreeMap::from([("npub1/x".to_owned(), BTreeSet::from(["pack-1".to_owned()]))]);
        let manifest = Manifest::of(dir.path(), &[], lost, 0).unwrap();
        let with = |pack: &str, fault| {
            let faults = BTreeMap::from([(pack.to_owned(), fault)]);
            super::fault(
                "npub1/x",
                &Examination {
                    faults,
                    ..Examination::default()
                },
                &manifest,
            )
        };
        assert_eq!(with("pack-1", PackFault::Lost), None);
        assert_eq!(with("pack-2", PackFault::Unindexed), None);
        assert!(with("pack-2", PackFault::Lost).is_some());
        assert!(with("pack-1", PackFault::Damaged).is_some());
    }
}
