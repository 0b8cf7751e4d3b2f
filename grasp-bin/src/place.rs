//! Directories that are nobody else's.

use std::fs;
use std::io;
use std::path::Path;

/// Makes a directory that only its owner can look into, unless it is there. One that is there stays as the operator
/// made it.
///
/// What waits for its git data is in there, uploads that nobody has signed for, and the service's key.
pub(crate) fn create_privately(dir: &Path) -> io::Result<()> {
    if let Some(above) = dir.parent().filter(|above| !above.as_os_str().is_empty()) {
        fs::create_dir_all(above)?;
    }
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    match builder.create(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            Err(io::Error::new(error.kind(), "it is there, and no directory"))
        }
        made => made,
    }
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn mode(dir: &Path) -> u32 {
        fs::metadata(dir).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn what_we_make_is_private_and_what_is_there_stays_as_it_is() {
        let temporary = tempfile::tempdir().unwrap();
        let (above, dir) = (temporary.path().join("var"), temporary.path().join("var/grasp"));
        create_privately(&dir).unwrap();
        assert_eq!(mode(&dir), 0o700);
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o750)).unwrap();
        create_privately(&dir).unwrap();
        assert_eq!(mode(&dir), 0o750);
        assert!(above.is_dir());
        fs::write(temporary.path().join("file"), "").unwrap();
        let refused = create_privately(&temporary.path().join("file")).unwrap_err();
        assert!(refused.to_string().contains("no directory"), "{refused}");
    }
}
