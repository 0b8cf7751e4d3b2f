//! Directories and files of the server.

use std::fs;
use std::io;
use std::path::Path;

/// Creates a directory that only its owner can read, unless it exists; an existing one keeps its permissions.
///
/// It holds events without their git data, uploads that no state has confirmed, and the service's key.
pub(crate) fn create_private_dir(dir: &Path) -> io::Result<()> {
    if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        fs::create_dir_all(parent)?;
    }
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    match builder.create(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            Err(io::Error::new(error.kind(), "it exists and is not a directory"))
        }
        created => created,
    }
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn mode(dir: &Path) -> u32 {
        fs::metadata(dir).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn new_directories_are_private_and_existing_ones_keep_their_permissions() {
        let temporary = tempfile::tempdir().unwrap();
        let (parent, dir) = (temporary.path().join("var"), temporary.path().join("var/grasp"));
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
}
