//! Files of the server: private directories, keys, and trusted certificate authorities.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use grasp_sync::Roots;
use nostr::key::Keys;
use tempfile::NamedTempFile;

use crate::instance::error::{Explain as _, InstanceError, MustAct, Result};
use crate::instance::settings::Settings;
use crate::web::Icon;

/// Creates a directory that only its owner can read, unless it exists; an existing one keeps its permissions.
///
/// It holds events without their git data, uploads that no state has confirmed, and the service's key.
pub(crate) fn create_private_dir(dir: &Path) -> io::Result<()> {
    if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        fs::create_dir_all(parent)?;
    }
    match fs::DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(io::Error::new(
            error.kind(),
            "it exists and is not a directory",
        )),
        created => created,
    }
}

/// Bytes of a file that is written to learn whether there is space: more than a small event or a list of refs takes.
const PROBE_BYTES: usize = 64 * 1024;

/// Writes a file without a name to a directory, which is gone when this returns.
pub(crate) fn try_to_write(dir: &Path) -> io::Result<()> {
    tempfile::tempfile_in(dir)?.write_all(&[0; PROBE_BYTES])
}

/// Returns the bytes of all files below a directory. Files that cannot be read, or disappear meanwhile, count as 0.
pub(crate) fn bytes_below(dir: &Path) -> u64 {
    let mut bytes = 0;
    let mut unread = vec![dir.to_owned()];
    while let Some(dir) = unread.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(found) if found.is_dir() => unread.push(entry.path()),
                Ok(found) if found.is_file() => bytes += found.len(),
                _ => {}
            }
        }
    }
    bytes
}

/// Reads the icon of pages, if one is set.
pub(crate) fn page_icon(settings: &Settings) -> Result<Option<Icon>> {
    let Some(path) = &settings.page_icon else {
        return Ok(None);
    };
    let bytes = fs::read(path);
    let bytes = bytes.or_ask(MustAct::Operator, || {
        format!("could not read pages.icon, {}", path.display())
    })?;
    let icon = Icon::new(bytes);
    let icon = icon.or_ask(MustAct::Operator, || {
        format!("pages.icon cannot be {}", path.display())
    })?;
    Ok(Some(icon))
}

/// Reads the service's key, or creates a file with a new one that only its owner can read.
pub(crate) fn service_key(path: &Path) -> Result<Keys> {
    let (keys, is_new) = load_or_create(path)?;
    if is_new {
        tracing::info!(file = %path.display(), "created a key");
    }
    Ok(keys)
}

/// Returns the key in a file, and whether it was created: a new one, which only its owner can read.
pub fn load_or_create(path: &Path) -> Result<(Keys, bool)> {
    match fs::read_to_string(path) {
        Ok(text) => {
            check_permissions(path)?;
            let keys = Keys::parse(text.trim()).or_ask(MustAct::Operator, || {
                format!("{} does not contain a secret key", path.display())
            })?;
            Ok((keys, false))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let keys = Keys::generate();
            write_key(path, &keys)
                .with_context(|| format!("could not write {}", path.display()))?;
            Ok((keys, true))
        }
        Err(error) => Err(error).with_context(|| format!("could not read {}", path.display())),
    }
}

/// Writes a key durably, before anything is signed with it. A crash leaves the whole key behind, or none.
fn write_key(path: &Path, keys: &Keys) -> io::Result<()> {
    let dir = path
        .parent()
        .filter(|dir| !dir.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    create_private_dir(dir)?;
    // Only its owner can read a temporary file.
    let mut file = NamedTempFile::new_in(dir)?;
    writeln!(file, "{}", keys.secret_key().to_secret_hex())?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    File::open(dir)?.sync_all()
}

fn check_permissions(path: &Path) -> Result<()> {
    let mode = fs::metadata(path)?.permissions().mode();
    if mode & 0o077 != 0 {
        return Err(InstanceError::operator(format!(
            "other users can read {}; run: chmod 600 {}",
            path.display(),
            path.display()
        )));
    }
    Ok(())
}

/// Files with the public authorities on common systems; the first that exists is used.
const SYSTEM_BUNDLES: [&str; 6] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
    "/usr/local/share/certs/ca-root-nss.crt",
];

/// Returns the authorities that sync trusts.
pub(crate) fn roots_for_relays(settings: &Settings) -> Result<Roots> {
    match &settings.trusted_roots {
        Some(file) => roots_with(file).or_ask(MustAct::Operator, || "could not use trusted_roots"),
        None => Ok(Roots::default()),
    }
}

/// Returns the public authorities and those of a file.
pub(crate) fn roots_with(file: &Path) -> Result<Roots> {
    Roots::default()
        .with(&read_roots(file)?)
        .with_context(|| format!("{}", file.display()))
}

/// Writes the file of authorities that git trusts if the operator adds some: git takes one file, so it also has those
/// of the system.
pub(crate) fn roots_for_git(settings: &Settings) -> Result<Option<PathBuf>> {
    let Some(file) = &settings.trusted_roots else {
        return Ok(None);
    };
    let system = SYSTEM_BUNDLES.iter().find_map(|file| fs::read(file).ok());
    if system.is_none() {
        tracing::warn!(
            "no file with the public certificate authorities was found; git trusts only those of trusted_roots"
        );
    }
    let mut all = read_roots(file)?;
    all.push(b'\n');
    all.extend(system.unwrap_or_default());
    let list = settings.data_dir.join("roots.pem");
    fs::write(&list, all).with_context(|| format!("could not write {}", list.display()))?;
    let list = fs::canonicalize(&list).with_context(|| format!("{}", list.display()))?;
    Ok(Some(list))
}

fn read_roots(file: &Path) -> Result<Vec<u8>> {
    fs::read(file).with_context(|| format!("could not read the authorities in {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(dir: &Path) -> u32 {
        fs::metadata(dir).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn new_directories_are_private_and_existing_ones_keep_their_permissions() {
        let temporary = tempfile::tempdir().unwrap();
        let (parent, dir) = (
            temporary.path().join("var"),
            temporary.path().join("var/grasp"),
        );
        create_private_dir(&dir).unwrap();
        assert_eq!(mode(&dir), 0o700);
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o750)).unwrap();
        create_private_dir(&dir).unwrap();
        assert_eq!(mode(&dir), 0o750);
        assert!(parent.is_dir());
        fs::write(temporary.path().join("file"), "").unwrap();
        let error = create_private_dir(&temporary.path().join("file")).unwrap_err();
        assert!(error.to_string().contains("not a directory"), "{error}");
    }

    #[test]
    fn files_in_subdirectories_count_and_links_do_not() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("a/b")).unwrap();
        fs::write(dir.path().join("one"), [0; 10]).unwrap();
        fs::write(dir.path().join("a/b/two"), [0; 5]).unwrap();
        std::os::unix::fs::symlink(dir.path(), dir.path().join("a/link")).unwrap();
        assert_eq!(bytes_below(dir.path()), 15);
        assert_eq!(bytes_below(&dir.path().join("nothing")), 0);
    }

    #[test]
    fn a_key_is_created_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new").join("service.key");
        let made = service_key(&path).unwrap();
        assert_eq!(service_key(&path).unwrap().public_key(), made.public_key());
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn a_key_that_others_can_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("service.key");
        service_key(&path).unwrap();
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let error = service_key(&path).unwrap_err().to_string();
        assert!(error.contains("chmod 600"), "{error}");
    }

    #[test]
    fn a_file_without_a_key_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("service.key");
        fs::write(&path, "something else\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(service_key(&path).is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "something else\n");
    }
}
