//! The key that the service itself signs with: made once, readable by its owner alone.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::Path;

use anyhow::{Context, Result};
use nostr::key::Keys;

/// Its name in the data directory.
const FILE: &str = "service.key";

/// Reads the key; makes one if there is none yet.
pub(crate) fn load(data_dir: &Path) -> Result<Keys> {
    let path = data_dir.join(FILE);
    match fs::read_to_string(&path) {
        Ok(text) => {
            Keys::parse(text.trim()).with_context(|| format!("no key in {}", path.display()))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let keys = Keys::generate();
            write(&path, &keys).with_context(|| format!("could not write {}", path.display()))?;
            Ok(keys)
        }
        Err(error) => Err(error).with_context(|| format!("could not read {}", path.display())),
    }
}

/// Written beside its place and moved there, so that a crash leaves no half of a key.
fn write(path: &Path, keys: &Keys) -> std::io::Result<()> {
    let beside = path.with_extension("new");
    let mut file = private(&beside)?;
    writeln!(file, "{}", keys.secret_key().to_secret_hex())?;
    file.sync_all()?;
    fs::rename(&beside, path)
}

fn private(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_made_once_and_for_its_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let made = load(dir.path()).unwrap();
        assert_eq!(load(dir.path()).unwrap().public_key(), made.public_key());
        #[cfg(unix)]
        {
            let of_file = fs::metadata(dir.path().join(FILE)).unwrap();
            let mode = std::os::unix::fs::PermissionsExt::mode(&of_file.permissions());
            assert_eq!(mode & 0o777, 0o600);
        }
    }

    #[test]
    fn a_damaged_key_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(FILE), "nonsense").unwrap();
        let error = format!("{:#}", load(dir.path()).unwrap_err());
        assert!(error.contains(FILE), "{error}");
    }
}
