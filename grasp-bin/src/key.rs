//! Keys in files that only their owner can read.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nostr::key::Keys;

use crate::files::create_private_dir;

/// Reads a key, or creates a file with a new one that only its owner can read.
pub(crate) fn load_or_create(path: &Path) -> Result<Keys> {
    load_or_else(path, || tracing::info!(file = %path.display(), "created a key"))
}

/// Reads a key, or creates one and says so on standard error: `grasp push` has no log.
pub(crate) fn load_or_create_for_user(path: &Path) -> Result<Keys> {
    load_or_else(path, || {
        eprintln!("grasp: created your key, {}; keep a copy of it in a safe place", path.display());
    })
}

fn load_or_else(path: &Path, created: impl FnOnce()) -> Result<Keys> {
    match fs::read_to_string(path) {
        Ok(text) => {
            check_permissions(path)?;
            Keys::parse(text.trim())
                .with_context(|| format!("{} does not contain a secret key", path.display()))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let keys = Keys::generate();
            write(path, &keys).with_context(|| format!("could not write {}", path.display()))?;
            created();
            Ok(keys)
        }
        Err(error) => Err(error).with_context(|| format!("could not read {}", path.display())),
    }
}

/// Returns the file of the user's key.
pub(crate) fn user_key_path() -> Result<PathBuf> {
    let var = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = || var("HOME").map(|home| home.join(".local/share"));
    let data = var("XDG_DATA_HOME").or_else(home);
    Ok(data.context("there is no home directory for the key; set --key")?.join("grasp/user.key"))
}

/// Writes a key durably, before anything is signed with it.
fn write(path: &Path, keys: &Keys) -> io::Result<()> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    create_private_dir(dir)?;
    // A crash between creating and filling must not leave an empty key behind.
    let unfinished = path.with_extension("new");
    let mut file = private_file().create(true).truncate(true).open(&unfinished)?;
    writeln!(file, "{}", keys.secret_key().to_secret_hex())?;
    file.sync_all()?;
    fs::rename(&unfinished, path)?;
    File::open(dir)?.sync_all()
}

fn private_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

#[cfg(unix)]
fn check_permissions(path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = fs::metadata(path)?.permissions().mode();
    if mode & 0o077 != 0 {
        bail!("other users can read {}; run: chmod 600 {}", path.display(), path.display());
    }
    Ok(())
}

#[cfg(not(unix))]
fn check_permissions(_: &Path) -> Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_created_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new").join("service.key");
        let made = load_or_create(&path).unwrap();
        assert_eq!(load_or_create(&path).unwrap().public_key(), made.public_key());
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[cfg(unix)]
    #[test]
    fn a_key_that_others_can_read_is_refused() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("service.key");
        load_or_create(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let error = load_or_create(&path).unwrap_err().to_string();
        assert!(error.contains("chmod 600"), "{error}");
    }

    #[test]
    fn a_file_without_a_key_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("service.key");
        private_file().create(true).open(&path).unwrap().write_all(b"something else\n").unwrap();
        assert!(load_or_create(&path).is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "something else\n");
    }
}
