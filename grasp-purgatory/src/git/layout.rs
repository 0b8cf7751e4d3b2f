//! The layout on disk. No name that a client chose is part of a path.
//!
//! ```text
//! <root>/version                                 which layout this is
//! <root>/lock                                    held while a server works here
//! <root>/repositories/<2 hex>/<62 hex>/          one per repository, by the hash of its id; a bare repository
//!     repository                                 the id, for people
//!     objects/                                   its objects
//!     packed-refs                                refs/proven/…: tips whose whole history is here
//! <root>/staging/<64 hex>/<event id>/<tip>/      objects whose event has not been received
//! <root>/views/<64 hex>/<number>/                a bare repository for git to read: the refs at a generation
//! <root>/incoming/<n>/                           what is being received or removed
//! <root>/workbench/                              an empty repository
//!     detached/                                  another one, with a HEAD
//! ```
//!
//! Packs are named by the database, all else is a cache of it or being received: `views`, `incoming` and `workbench` are
//! made anew at start.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bitcoin_hashes::sha256;
use grasp_core::{Oid, RepoId};
use nostr::event::EventId;

use super::CHANGES;
use super::error::GitError;
use super::refs::Refs;
use crate::database::Generation;

/// Contents of `<root>/version`.
pub(super) const VERSION: &str = "grasp repositories 3\n";

/// The config of every repository of ours. Precious: `git gc` by hand must not delete what clients read.
const CONFIG: &str = "\
[core]
\trepositoryformatversion = 1
\tfilemode = true
\tbare = true
\tlogallrefupdates = false
[extensions]
\tpreciousObjects = true
[gc]
\tauto = 0
";

/// Age up to which the directory of an earlier generation may have been given to a process that has not read it yet.
const VIEW_IN_USE: Duration = Duration::from_secs(15 * 60);

/// HEAD of a repository without refs.
const FIRST_HEAD: &str = "ref: refs/heads/main\n";

/// HEAD at the empty tree, which git knows without its object.
const DETACHED_HEAD: &str = "4b825dc642cb6eb9a060e54bf8d69288fbee4904\n";

/// The root directory and what is at its top.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    root: Arc<Path>,
}

impl Layout {
    pub(super) fn new(root: &Path) -> Self {
        Self { root: root.into() }
    }

    pub(super) fn version(&self) -> PathBuf {
        self.root.join("version")
    }

    pub(super) fn lock(&self) -> PathBuf {
        self.root.join("lock")
    }

    pub(super) fn repositories(&self) -> PathBuf {
        self.root.join("repositories")
    }

    pub(super) fn staging(&self) -> PathBuf {
        self.root.join("staging")
    }

    pub(super) fn incoming(&self) -> PathBuf {
        self.root.join("incoming")
    }

    pub(super) fn views(&self) -> PathBuf {
        self.root.join("views")
    }

    /// A repository without refs and objects, for work on the objects of others that precious ones do not allow.
    pub(super) fn workbench(&self) -> PathBuf {
        self.root.join("workbench")
    }

    /// A repository in which git has something to advertise: its HEAD. Before version 2.41 `git upload-pack` does not
    /// tell its capabilities in an empty one.
    pub(super) fn detached(&self) -> PathBuf {
        self.workbench().join("detached")
    }

    pub(super) fn create_workbench(&self) -> Result<(), GitError> {
        let path = self.workbench();
        remove(&path)?;
        create_repository(&path)?;
        write(
            &path.join("config"),
            b"[core]\n\trepositoryformatversion = 0\n\tbare = true\n",
        )?;
        create_repository(&self.detached())?;
        write(&self.detached().join("HEAD"), DETACHED_HEAD.as_bytes())
    }

    /// Makes the workbench anew if it is not whole.
    pub(super) fn restore_workbench(&self) -> Result<(), GitError> {
        let path = self.workbench();
        let is_whole = ["HEAD", "config", "refs", "objects", "detached/HEAD"]
            .iter()
            .all(|it| path.join(it).exists());
        if is_whole {
            Ok(())
        } else {
            self.create_workbench()
        }
    }

    pub(super) fn dir(&self, repo: &RepoId) -> RepoDir {
        let key = sha256::Hash::hash(repo.to_string().as_bytes()).to_string();
        self.dir_of_key(key)
    }

    /// The repository of a key that this module has made.
    pub(super) fn dir_of_key(&self, key: String) -> RepoDir {
        let (shard, rest) = key.split_at_checked(2).unwrap_or((&key, ""));
        let path = self.repositories().join(shard).join(rest);
        RepoDir {
            layout: self.clone(),
            key: key.as_str().into(),
            path: path.into(),
        }
    }
}

/// The directory of a repository.
#[derive(Clone, Debug)]
pub(super) struct RepoDir {
    layout: Layout,
    key: Arc<str>,
    path: Arc<Path>,
}

impl RepoDir {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(super) fn key(&self) -> &str {
        &self.key
    }

    pub(super) fn objects(&self) -> PathBuf {
        self.path.join("objects")
    }

    /// The file of a pack.
    pub(super) fn pack(&self, name: &str) -> PathBuf {
        self.path.join(format!("objects/pack/{name}.pack"))
    }

    pub(super) fn proofs(&self) -> PathBuf {
        self.path.join("packed-refs")
    }

    /// The directories of views for git to read.
    pub(super) fn views(&self) -> PathBuf {
        self.layout.views().join(&*self.key)
    }

    fn view(&self, generation: Generation) -> PathBuf {
        self.views().join(generation.0.to_string())
    }

    pub(super) fn staging(&self) -> PathBuf {
        self.layout.staging().join(&*self.key)
    }

    pub(super) fn staged(&self, event: &EventId) -> PathBuf {
        self.staging().join(event.to_hex())
    }

    pub(super) fn staged_tip(&self, event: &EventId, tip: &Oid) -> PathBuf {
        self.staged(event).join(tip.to_string())
    }

    /// Makes the repository, or the parts of it that are not there. `scratch` must not exist and lie on the same disk.
    pub(super) fn create(&self, repo: &RepoId, scratch: &Path) -> Result<(), GitError> {
        if self.path.is_dir() {
            return create_repository(&self.path);
        }
        create_repository(scratch)?;
        create_dir(&scratch.join("objects/pack"))?;
        sync(&scratch.join("objects"))?;
        write(&scratch.join("repository"), repo.to_string().as_bytes())?;
        create_dir(self.path.parent().unwrap_or(&self.layout.root))?;
        match rename(scratch, &self.path) {
            // Another request was faster.
            Err(_) if self.path.is_dir() => return remove(scratch),
            renamed => renamed?,
        }
        // Packs are put into it that must not be lost with a name on the way to them.
        self.path.ancestors().take(3).try_for_each(sync)
    }

    /// Returns a directory in which git reads these refs, made unless it is there. Old directories of earlier
    /// generations are removed.
    pub(super) fn cached_view(
        &self,
        refs: &Refs,
        generation: Generation,
        scratch: &Path,
    ) -> Result<PathBuf, GitError> {
        let path = self.view(generation);
        if path.is_dir() {
            return Ok(path);
        }
        create_dir(&scratch.join("refs"))?;
        write(
            &scratch.join("HEAD"),
            format!("ref: {}\n", refs.head).as_bytes(),
        )?;
        write(&scratch.join("packed-refs"), refs.encode().as_bytes())?;
        create_dir(&scratch.join("objects/info"))?;
        let objects = format!("../../../../repositories/{}/objects\n", self.key_path());
        write(&scratch.join("objects/info/alternates"), objects.as_bytes())?;
        create_dir(&self.views())?;
        self.remove_earlier_views(generation)?;
        match rename(scratch, &path) {
            Err(_) if path.is_dir() => remove(scratch)?,
            renamed => renamed?,
        }
        Ok(path)
    }

    /// Removes the directories of views that are not whole.
    pub(super) fn remove_broken_views(&self) -> Result<(), GitError> {
        const PARTS: [&str; 4] = ["HEAD", "packed-refs", "refs", "objects/info/alternates"];
        for view in list(&self.views())? {
            if !PARTS.iter().all(|part| view.join(part).exists()) {
                remove(&view)?;
            }
        }
        Ok(())
    }

    fn remove_earlier_views(&self, now: Generation) -> Result<(), GitError> {
        for view in list(&self.views())? {
            let is_earlier = name(&view)
                .parse()
                .is_ok_and(|generation: u64| generation < now.0);
            let modified = fs::metadata(&view).and_then(|metadata| metadata.modified());
            let age = modified.ok().and_then(|modified| modified.elapsed().ok());
            if is_earlier && age.is_some_and(|age| age > VIEW_IN_USE) {
                remove(&view)?;
            }
        }
        Ok(())
    }

    /// Returns the path below the directory of all repositories.
    fn key_path(&self) -> String {
        let (shard, rest) = self.key.split_at_checked(2).unwrap_or((&self.key, ""));
        format!("{shard}/{rest}")
    }
}

/// Makes a bare repository, or the parts of it that are not there.
fn create_repository(path: &Path) -> Result<(), GitError> {
    for dir in ["refs", "objects"] {
        create_dir(&path.join(dir))?;
    }
    for (file, content) in [("HEAD", FIRST_HEAD), ("config", CONFIG)] {
        if !path.join(file).exists() {
            write(&path.join(file), content.as_bytes())?;
        }
    }
    Ok(())
}

/// Tells tests that something is about to change on disk.
fn trace(change: &str, path: &Path) {
    tracing::trace!(target: CHANGES, change, path = %path.display());
}

pub(super) fn create_dir(path: &Path) -> Result<(), GitError> {
    if path.is_dir() {
        return Ok(());
    }
    trace("create", path);
    fs::create_dir_all(path).map_err(|source| GitError::io("create", path, source))
}

pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<(), GitError> {
    trace("write", path);
    fs::write(path, bytes).map_err(|source| GitError::io("write", path, source))
}

pub(super) fn rename(from: &Path, to: &Path) -> Result<(), GitError> {
    trace("rename", from);
    fs::rename(from, to).map_err(|source| GitError::io("rename", from, source))
}

/// Writes a file whose content is on disk when this returns; its name is so after [`sync`] of its directory.
pub(super) fn write_synced(path: &Path, bytes: &[u8]) -> Result<(), GitError> {
    trace("write", path);
    let written = File::create(path).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    written.map_err(|source| GitError::io("write", path, source))
}

/// Puts the content of a file, or the names in a directory, on disk.
pub(super) fn sync(path: &Path) -> Result<(), GitError> {
    trace("sync", path);
    let synced = File::open(path).and_then(|file| file.sync_all());
    synced.map_err(|source| GitError::io("sync", path, source))
}

/// Puts everything below a directory on disk.
pub(super) fn sync_tree(path: &Path) -> Result<(), GitError> {
    if path.is_dir() {
        list(path)?.iter().try_for_each(|below| sync_tree(below))?;
    }
    sync(path)
}

/// Copies everything below a directory to below another one, each file by this function.
pub(super) fn copy_tree(
    from: &Path,
    to: &Path,
    copy: fn(&Path, &Path) -> io::Result<()>,
) -> Result<(), GitError> {
    create_dir(to)?;
    for path in list(from)? {
        let target = to.join(name(&path));
        if path.is_dir() {
            copy_tree(&path, &target, copy)?;
        } else {
            trace("copy", &path);
            copy(&path, &target).map_err(|source| GitError::io("copy", path, source))?;
        }
    }
    Ok(())
}

/// Removes a file or a whole directory; that it is not there is fine.
pub(super) fn remove(path: &Path) -> Result<(), GitError> {
    let metadata = fs::symlink_metadata(path);
    if metadata.is_ok() {
        trace("remove", path);
    }
    let removed = match metadata {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(GitError::io("remove", path, error))
        }
        _ => Ok(()),
    }
}

/// The paths in a directory in order of name; none if it is not there.
pub(super) fn list(path: &Path) -> Result<Vec<PathBuf>, GitError> {
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|source| GitError::io("list", path, source))?,
    };
    let paths: io::Result<Vec<_>> = entries.map(|entry| Ok(entry?.path())).collect();
    let mut paths = paths.map_err(|source| GitError::io("list", path, source))?;
    paths.sort();
    Ok(paths)
}

/// The last part of a path that is plain text, as all of ours are.
pub(super) fn name(path: &Path) -> &str {
    path.file_name().and_then(OsStr::to_str).unwrap_or_default()
}

/// Returns the size of the files below a directory. Files that are removed meanwhile have none.
pub(super) fn size(path: &Path) -> Result<u64, GitError> {
    let mut total = 0_u64;
    let mut waiting = vec![path.to_owned()];
    while let Some(next) = waiting.pop() {
        let metadata = match fs::symlink_metadata(&next) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && next != path => continue,
            metadata => metadata.map_err(|source| GitError::io("measure", &next, source))?,
        };
        if metadata.is_dir() {
            waiting.extend(list(&next)?);
        } else {
            total = total.saturating_add(metadata.len());
        }
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use nostr::key::PublicKey;

    use super::*;

    fn path_of(owner: u8, identifier: &str) -> PathBuf {
        let owner = PublicKey::from_byte_array([owner; 32]);
        let repo = RepoId::new(owner, identifier.parse().unwrap());
        Layout::new(Path::new("/r")).dir(&repo).path().to_owned()
    }

    #[test]
    fn a_repository_lies_at_the_hash_of_its_id() {
        let expected =
            "/r/repositories/45/214238944bde8683302f26d44d61bb39b34116541f020d65a977e0022855ba";
        assert_eq!(path_of(1, "abc"), Path::new(expected));
    }

    #[test]
    fn identifiers_that_differ_only_in_case_have_different_paths() {
        let [lower, upper] =
            ["repo", "Repo"].map(|text| path_of(1, text).to_str().unwrap().to_lowercase());
        assert_ne!(lower, upper);
    }

    #[test]
    fn two_owners_of_one_identifier_have_different_paths() {
        assert_ne!(path_of(1, "repo"), path_of(2, "repo"));
    }
}
