//! The manifest of a backup. It is written last, so a backup without it is not complete.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::Path;

use anyhow::{Context, Result, bail};
use bitcoin_hashes::{HashEngine as _, sha256};
use grasp_core::Identifier;
use serde::{Deserialize, Serialize};

/// File of the manifest in a backup.
const MANIFEST: &str = "backup.json";

/// The version of the layout of backups.
const VERSION: u32 = 1;

const CHUNK_BYTES: usize = 1024 * 1024;

/// The description of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    version: u32,
    /// Seconds since 1970.
    pub(super) created_at: u64,
    /// The SHA-256 of each file beside the packs, which git checks by itself.
    files: BTreeMap<String, String>,
    /// Packs that the server had lost before, by repository name.
    pub(super) lost: BTreeMap<Identifier, BTreeSet<String>>,
}

impl Manifest {
    /// Describes these files of a backup.
    pub(super) fn of(
        dir: &Path,
        names: &[&str],
        lost: BTreeMap<Identifier, BTreeSet<String>>,
        created_at: u64,
    ) -> Result<Self> {
        let hashed = names.iter().map(|name| Ok(((*name).to_owned(), hash(&dir.join(name))?)));
        Ok(Self { version: VERSION, created_at, files: hashed.collect::<Result<_>>()?, lost })
    }

    /// Reads the manifest of a backup, and checks the files that it describes.
    pub(super) fn load(dir: &Path) -> Result<Self> {
        let path = dir.join(MANIFEST);
        let text = match std::fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                bail!("{} is no complete backup: it has no {MANIFEST}", dir.display())
            }
            text => text.with_context(|| format!("could not read {}", path.display()))?,
        };
        let manifest: Self = serde_json::from_str(&text)
            .with_context(|| format!("{} is damaged or of another version", path.display()))?;
        if manifest.version != VERSION {
            bail!(
                "{} has version {}, this release knows {VERSION}",
                path.display(),
                manifest.version
            );
        }
        for (name, expected) in &manifest.files {
            let file = dir.join(name);
            if hash(&file)? != *expected {
                bail!("{} is damaged: it is not the file that was backed up", file.display());
            }
        }
        Ok(manifest)
    }

    /// Writes the manifest, which completes a backup.
    pub(super) fn write(&self, dir: &Path) -> Result<()> {
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
    pub(super) fn has(&self, name: &str) -> bool {
        self.files.contains_key(name)
    }
}

fn hash(path: &Path) -> Result<String> {
    let read = || -> io::Result<String> {
        let (mut file, mut engine) = (File::open(path)?, sha256::HashEngine::new());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backup_is_complete_with_its_manifest_and_every_change_of_a_file_shows() {
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
