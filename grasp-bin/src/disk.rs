//! How much a server keeps on disk.

use std::fs;
use std::path::Path;

/// The bytes of all files below a directory. What cannot be read, or goes away meanwhile, counts for nothing.
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
    use super::*;

    #[test]
    fn all_files_below_count_and_links_do_not() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("a/b")).unwrap();
        fs::write(dir.path().join("one"), [0; 10]).unwrap();
        fs::write(dir.path().join("a/b/two"), [0; 5]).unwrap();
        std::os::unix::fs::symlink(dir.path(), dir.path().join("a/round")).unwrap();
        assert_eq!(bytes_below(dir.path()), 15);
        assert_eq!(bytes_below(&dir.path().join("nothing")), 0);
    }
}
