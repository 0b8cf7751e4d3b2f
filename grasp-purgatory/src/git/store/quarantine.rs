//! A directory for objects that no view can read yet.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::git::command::Keep;
use crate::git::error::GitError;
use crate::git::layout;

/// An object directory of its own. It is removed when the last holder is gone, processes included.
#[derive(Clone, Debug)]
pub(in crate::git) struct Quarantine {
    dir: Arc<Dir>,
}

#[derive(Debug)]
struct Dir {
    path: PathBuf,
}

impl Quarantine {
    pub(super) fn create(path: PathBuf) -> Result<Self, GitError> {
        layout::create_dir(&path.join("pack"))?;
        Ok(Self { dir: Arc::new(Dir { path }) })
    }

    pub(in crate::git) fn objects(&self) -> PathBuf {
        self.dir.path.clone()
    }

    /// Keeps the directory for as long as the answer lives.
    pub(in crate::git) fn kept(&self) -> Keep {
        self.dir.clone()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let path = std::mem::take(&mut self.path);
        // What could not be removed now goes at the next start.
        let remove = move || _ = layout::remove(&path);
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => _ = runtime.spawn_blocking(remove),
            Err(_) => remove(),
        }
    }
}

/// Moves all objects from one object directory to another, which may be read meanwhile.
///
/// An index is moved after its pack, for git takes a pack to be there when its index is.
pub(super) fn move_objects(from: &Path, to: &Path) -> Result<(), GitError> {
    let mut directories = layout::list(from)?;
    directories.retain(|path| path.is_dir() && layout::name(path) != "info");
    for directory in directories {
        let target = to.join(layout::name(&directory));
        layout::create_dir(&target)?;
        let mut files = layout::list(&directory)?;
        files.retain(|path| !layout::name(path).starts_with("tmp_"));
        files.sort_by_key(|path| path.extension().is_some_and(|kind| kind == "idx"));
        for file in files.iter().filter(|file| !is_of_empty_pack(file)) {
            let target = target.join(layout::name(file));
            if !target.exists() {
                layout::rename(file, &target)?;
            }
        }
        layout::sync(&target)?;
    }
    layout::sync(to)
}

/// Returns whether this file belongs to a pack without objects: a header and a checksum.
fn is_of_empty_pack(file: &Path) -> bool {
    const EMPTY: u64 = 12 + 20;
    let pack = file.with_extension("pack");
    pack.metadata().is_ok_and(|metadata| metadata.len() <= EMPTY)
}
