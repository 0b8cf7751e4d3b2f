//! Packs in a pack storage, which any number of servers read. The directories of repositories are a cache of it.
//!
//! ```text
//! version                                              which layout this is; without it, it is not our pack storage
//! packs/<endpoint>/<repository>/pack-….pack, .idx, .rev    written once, before the commit that names the pack
//! staging/<endpoint>/<repository>/<event>/<tip>/pack-….*   uploads whose event has not been received
//! ```

pub(super) mod cache;
#[cfg(feature = "object-store")]
mod remote;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::future::Future;
use std::io::{self, BufReader, Read};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bitcoin_hashes::{HashEngine, sha1};
pub use cache::PackCache;
use grasp_core::Mono;
use grasp_core::service::Endpoint;
use parking_lot::Mutex;

use super::error::GitError;
use super::layout::{self, RepoDir};

/// Key and content of the object that every pack storage of ours has.
const VERSION: (&str, &[u8]) = ("version", b"grasp packs 2\n");

/// The files of a pack.
pub(super) const KINDS: [&str; 3] = ["pack", "idx", "rev"];

/// Time for which failed requests are repeated.
pub(super) const RETRY_TIMEOUT: Duration = Duration::from_secs(30);

/// The reason why packs could not be stored or read. None contains credentials.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PackStorageError {
    /// The address or a variable of the environment cannot be used.
    #[error("packs cannot be stored there: {0}")]
    Address(String),
    /// The bucket or directory does not exist.
    #[error("the bucket or directory for packs does not exist; create it, or correct the address")]
    NoBucket,
    /// The credentials were refused.
    #[error(
        "the pack storage refused the credentials; check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION"
    )]
    Denied,
    /// The bucket or directory exists and lacks what this server has stored.
    #[error(
        "the pack storage has no packs of this server: its object `version` is missing; correct the address, or restore the bucket"
    )]
    Foreign,
    /// Another version of this program has written it.
    #[error("the pack storage has layout {found:?}, and this version knows only {known:?}")]
    Layout {
        /// The version that it declares.
        found: String,
        /// The known version.
        known: String,
    },
    /// A request failed, as often as it was repeated.
    #[error("the pack storage failed: {0}")]
    Failed(String),
    /// A local file could not be read or written.
    #[error("could not copy a pack from or to the pack storage")]
    File(#[from] std::io::Error),
}

/// A call of a pack storage.
type StorageFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, PackStorageError>> + Send + 'a>>;

/// The operations of a pack storage.
trait Backend: Send + Sync {
    /// Stores the content of a file. It is durable when this returns.
    fn put<'a>(&'a self, key: &'a str, file: &'a Path) -> StorageFuture<'a, ()>;

    /// Writes an object to a new file; returns whether there is such an object.
    fn get<'a>(&'a self, key: &'a str, file: &'a Path) -> StorageFuture<'a, bool>;

    /// Returns those keys below a prefix that ends at a slash which are to be kept, with sizes.
    fn list<'a>(
        &'a self,
        prefix: &'a str,
        keep: &'a (dyn Fn(&str) -> bool + Send + Sync),
    ) -> StorageFuture<'a, BTreeMap<String, u64>>;

    /// Removes an object; that there is none is fine.
    fn delete<'a>(&'a self, key: &'a str) -> StorageFuture<'a, ()>;

    /// Returns a small object.
    fn read<'a>(&'a self, key: &'a str) -> StorageFuture<'a, Option<Vec<u8>>>;

    /// Stores a small object.
    fn write<'a>(&'a self, key: &'a str, content: &'static [u8]) -> StorageFuture<'a, ()>;
}

/// Options of a pack storage that are not part of its address. By default they come from the environment.
#[derive(Clone)]
pub struct PackStorageOptions {
    /// Names and values as in the environment: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_REGION`,
    /// `AWS_ENDPOINT_URL` and their like; `AWS_CA_BUNDLE` names a file of further certificate authorities.
    pub variables: BTreeMap<String, String>,
    /// Time for which failed requests are repeated, and that one request may take.
    pub timeout: Duration,
}

impl Default for PackStorageOptions {
    fn default() -> Self {
        let variables = std::env::vars_os().filter_map(|(name, value)| {
            let name = name
                .into_string()
                .ok()
                .filter(|name| name.starts_with("AWS_"))?;
            Some((name, value.into_string().ok()?))
        });
        Self {
            variables: variables.collect(),
            timeout: RETRY_TIMEOUT,
        }
    }
}

impl std::fmt::Debug for PackStorageOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<_> = self.variables.keys().collect();
        f.debug_struct("PackStorageOptions")
            .field("variables", &names)
            .finish_non_exhaustive()
    }
}

/// A pack storage for packs. Clones share it.
#[derive(Clone)]
pub struct PackStorage {
    backend: Arc<dyn Backend>,
    figures: Arc<Mutex<PackFigures>>,
}

impl std::fmt::Debug for PackStorage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PackStorage").finish_non_exhaustive()
    }
}

impl PackStorage {
    /// Opens `s3://bucket/prefix` or `file:///directory`. Nothing is requested yet.
    #[cfg(feature = "object-store")]
    pub fn open(url: &str, options: &PackStorageOptions) -> Result<Self, PackStorageError> {
        let backend = Arc::new(remote::Remote::open(url, options)?);
        Ok(Self {
            backend,
            figures: Arc::default(),
        })
    }

    /// Checks that the bucket exists and that the credentials work.
    pub async fn probe(&self) -> Result<(), PackStorageError> {
        self.is_ours().await.map(drop)
    }

    /// Returns whether a server of ours has stored something here before.
    pub(super) async fn is_ours(&self) -> Result<bool, PackStorageError> {
        let (key, known) = VERSION;
        match self.count(self.backend.read(key).await)? {
            None => {
                // Some servers do not tell a missing object from a missing bucket.
                self.count(self.backend.list("probe/", &|_| false).await)?;
                Ok(false)
            }
            Some(found) if found == known => Ok(true),
            Some(found) => {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
                Err(PackStorageError::Layout {
                    found: text(&found),
                    known: text(known),
                })
            }
        }
    }

    /// Makes an empty pack storage ours.
    pub(super) async fn claim(&self) -> Result<(), PackStorageError> {
        let (key, content) = VERSION;
        self.count(self.backend.write(key, content).await)
    }

    /// Stores the content of a file.
    pub(super) async fn put(&self, key: &str, file: &Path) -> Result<(), PackStorageError> {
        self.figures.lock().uploading += 1;
        let _uploading = OnDrop(|| self.figures.lock().uploading -= 1);
        self.count(self.backend.put(key, file).await)?;
        self.figures.lock().uploads += 1;
        Ok(())
    }

    /// Stores a pack with its indexes.
    pub(super) async fn put_pack(
        &self,
        pack: &Path,
        key: impl Fn(&Path) -> String,
    ) -> Result<(), PackStorageError> {
        let put = |kind: &'static str| {
            let file = pack.with_extension(kind);
            let key = key(&file);
            async move {
                // A reverse index is made by newer versions of git alone.
                if kind == "rev" && !file.exists() {
                    return Ok(());
                }
                self.put(&key, &file).await
            }
        };
        let [pack, index, reverse] = KINDS.map(put);
        tokio::try_join!(pack, index, reverse)?;
        Ok(())
    }

    /// Writes an object to a new file; returns whether there is such an object.
    ///
    /// A pack storage that was replaced by an empty one is an error: nothing in it is lost.
    pub(super) async fn get(&self, key: &str, file: &Path) -> Result<bool, PackStorageError> {
        if self.count(self.backend.get(key, file).await)? {
            self.figures.lock().downloads += 1;
            return Ok(true);
        }
        if self.is_ours().await? {
            Ok(false)
        } else {
            Err(PackStorageError::Foreign)
        }
    }

    /// Returns the keys below a prefix that ends at a slash, with sizes.
    pub(super) async fn list(
        &self,
        prefix: &str,
    ) -> Result<BTreeMap<String, u64>, PackStorageError> {
        self.list_where(prefix, |_| true).await
    }

    /// The same for some of the keys, of which there may be millions.
    pub(super) async fn list_where(
        &self,
        prefix: &str,
        keep: impl Fn(&str) -> bool + Send + Sync,
    ) -> Result<BTreeMap<String, u64>, PackStorageError> {
        let listed = self.count(self.backend.list(prefix, &keep).await)?;
        if listed.is_empty() && !self.is_ours().await? {
            return Err(PackStorageError::Foreign);
        }
        Ok(listed)
    }

    /// Removes an object; that there is none is fine.
    pub(super) async fn delete(&self, key: &str) -> Result<(), PackStorageError> {
        self.count(self.backend.delete(key).await)
    }

    fn count<T>(&self, result: Result<T, PackStorageError>) -> Result<T, PackStorageError> {
        if result.is_err() {
            self.figures.lock().failures += 1;
        }
        result
    }
}

/// Calls a function when it is dropped.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Figures of a pack storage and its cache, counted since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PackFigures {
    /// Requests for a repository whose packs were all on disk.
    pub hits: u64,
    /// Requests for a repository of which packs had to be downloaded first.
    pub misses: u64,
    /// Bytes of repositories on disk.
    pub cached_bytes: u64,
    /// Files that are being uploaded.
    pub uploading: u64,
    /// Files that were uploaded.
    pub uploads: u64,
    /// Files that were downloaded.
    pub downloads: u64,
    /// Requests that failed, however often they were repeated.
    pub failures: u64,
}

/// Returns the name of an endpoint in keys.
fn endpoint_name(endpoint: Endpoint) -> &'static str {
    match endpoint {
        Endpoint::Repository => "repositories",
        Endpoint::PullRequests => "prs",
    }
}

/// Returns the prefix of all packs of an endpoint.
pub(super) fn packs_prefix(endpoint: Endpoint) -> String {
    format!("packs/{}/", endpoint_name(endpoint))
}

/// Returns the prefix of the packs of a repository.
pub(super) fn repo_prefix(endpoint: Endpoint, dir: &RepoDir) -> String {
    format!("{}{}/", packs_prefix(endpoint), dir.key())
}

/// Returns the prefix of all uploads of an endpoint that wait for their event.
pub(super) fn staging_prefix(endpoint: Endpoint) -> String {
    format!("staging/{}/", endpoint_name(endpoint))
}

/// Returns the key of a file of a pack.
pub(super) fn pack_key(endpoint: Endpoint, dir: &RepoDir, file: &Path) -> String {
    format!("{}{}", repo_prefix(endpoint, dir), layout::name(file))
}

/// Time for which an object is kept that nothing names: longer than any clone may last that reads it, and than a change
/// between its upload and its commit.
pub(in crate::git) const RETENTION: Duration = Duration::from_secs(24 * 60 * 60);

/// Objects that are remembered. Those beyond are deleted later.
const MAX_REMEMBERED: usize = 1_000_000;

/// The objects that nothing named when they were last listed, and since when.
#[derive(Debug, Default)]
pub(in crate::git) struct UnnamedObjects(BTreeMap<String, Mono>);

impl UnnamedObjects {
    /// Takes the keys that nothing names now, and returns those of which that was so for the whole retention.
    pub(in crate::git) fn listed(&mut self, now: Mono, keys: BTreeSet<String>) -> Vec<String> {
        self.0.retain(|key, _| keys.contains(key));
        for key in keys {
            if self.0.len() >= MAX_REMEMBERED {
                break;
            }
            self.0.entry(key).or_insert(now);
        }
        let is_due = |since: &Mono| *since + RETENTION <= now;
        self.0
            .iter()
            .filter(|(_, since)| is_due(since))
            .map(|(key, _)| key.clone())
            .collect()
    }

    /// Returns whether nothing was stored under a key since it was found to be unnamed.
    pub(in crate::git) fn contains(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }

    /// Notes that something is stored under a key, or that it was deleted.
    pub(in crate::git) fn forget(&mut self, key: &str) {
        self.0.remove(key);
    }

    pub(in crate::git) fn clear(&mut self) {
        self.0.clear();
    }
}

/// Bytes of a checksum.
const CHECKSUM: usize = 20;

/// Bytes that are read at once.
const WINDOW: usize = 256 * 1024;

/// The state of the files of a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::git) enum Soundness {
    Sound,
    /// The pack is as it was written, its index is missing or damaged.
    Unindexed,
    Damaged,
}

/// Reads a pack and the files beside it, and compares their checksums. A damaged reverse index is removed: git does without.
pub(in crate::git) fn check_pack(pack: &Path, bytes: u64) -> Result<Soundness, GitError> {
    try_check_pack(pack, bytes).map_err(|source| GitError::io("read", pack, source))
}

/// Returns whether a pack ends with the checksum of what comes before it.
pub(in crate::git) fn is_intact(pack: &Path) -> Result<bool, GitError> {
    let checksums = last_checksums(pack).map_err(|source| GitError::io("read", pack, source))?;
    Ok(checksums.is_some())
}

fn try_check_pack(pack: &Path, bytes: u64) -> io::Result<Soundness> {
    if pack.metadata()?.len() != bytes {
        return Ok(Soundness::Damaged);
    }
    let Some((_, checksum)) = last_checksums(pack)? else {
        return Ok(Soundness::Damaged);
    };
    let name = pack
        .file_stem()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    // A pack is named after its content.
    if name.strip_prefix("pack-") != Some(&hex(&checksum)) {
        return Ok(Soundness::Damaged);
    }
    let belongs = |kind: &str| -> io::Result<bool> {
        let file = pack.with_extension(kind);
        Ok(file.exists() && last_checksums(&file)?.is_some_and(|(of_pack, _)| of_pack == checksum))
    };
    let reverse = pack.with_extension("rev");
    if reverse.exists() && !belongs("rev")? {
        std::fs::remove_file(reverse)?;
    }
    Ok(if belongs("idx")? {
        Soundness::Sound
    } else {
        Soundness::Unindexed
    })
}

/// Returns the last two checksums of a file; `None` if the very last is not that of what is before it.
fn last_checksums(file: &Path) -> io::Result<Option<([u8; CHECKSUM], [u8; CHECKSUM])>> {
    let mut file = BufReader::with_capacity(WINDOW, File::open(file)?);
    let mut engine = sha1::Hash::engine();
    let (mut tail, mut buffer) = (Vec::new(), vec![0; WINDOW]);
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        tail.extend_from_slice(buffer.get(..read).unwrap_or_default());
        // The last two checksums are held back; they are not known before the end.
        let rest = tail.split_off(tail.len().saturating_sub(2 * CHECKSUM));
        engine.input(&tail);
        tail = rest;
    }
    let [before, last] = [tail.first_chunk().copied(), tail.last_chunk().copied()];
    let (Some(before), Some(last), true) = (before, last, tail.len() == 2 * CHECKSUM) else {
        return Ok(None);
    };
    engine.input(&before);
    Ok((sha1::Hash::from_engine(engine).to_byte_array() == last).then_some((before, last)))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(keys: &[&str]) -> BTreeSet<String> {
        keys.iter().map(|key| (*key).to_owned()).collect()
    }

    #[test]
    fn an_object_is_due_only_after_the_retention() {
        let (mut unnamed, start) = (UnnamedObjects::default(), Mono::from_secs(5));
        assert!(unnamed.listed(start, keys(&["a"])).is_empty());
        let almost = start + RETENTION - Duration::from_secs(1);
        assert!(unnamed.listed(almost, keys(&["a", "b"])).is_empty());
        assert_eq!(unnamed.listed(start + RETENTION, keys(&["a", "b"])), ["a"]);
    }

    #[test]
    fn the_retention_begins_again_when_an_object_is_named_or_stored() {
        let (mut unnamed, start) = (UnnamedObjects::default(), Mono::from_secs(5));
        assert!(unnamed.listed(start, keys(&["a", "b"])).is_empty());
        assert!(unnamed.listed(start, keys(&["b"])).is_empty());
        unnamed.forget("b");
        assert!(!unnamed.contains("b"));
        assert!(
            unnamed
                .listed(start + RETENTION, keys(&["a", "b"]))
                .is_empty()
        );
        assert_eq!(
            unnamed.listed(start + RETENTION * 2, keys(&["a", "b"])),
            ["a", "b"]
        );
    }

    fn with_checksum(mut content: Vec<u8>) -> (Vec<u8>, [u8; CHECKSUM]) {
        let checksum = sha1::Hash::hash(&content).to_byte_array();
        content.extend(checksum);
        (content, checksum)
    }

    #[test]
    fn tells_damaged_from_unindexed_packs() {
        let dir = tempfile::tempdir().unwrap();
        let (pack, checksum) = with_checksum(vec![7; WINDOW + 5]);
        let (index, _) = with_checksum([&[1; 100][..], &checksum].concat());
        let file = dir.path().join(format!("pack-{}.pack", hex(&checksum)));
        let bytes = pack.len() as u64;
        std::fs::write(&file, &pack).unwrap();
        let found = || check_pack(&file, bytes).unwrap();
        assert_eq!(found(), Soundness::Unindexed);
        std::fs::write(file.with_extension("rev"), b"nothing").unwrap();
        std::fs::write(file.with_extension("idx"), &index).unwrap();
        assert_eq!(found(), Soundness::Sound);
        assert!(!file.with_extension("rev").exists());
        std::fs::write(file.with_extension("idx"), &index[1..]).unwrap();
        assert_eq!(found(), Soundness::Unindexed);
        assert_eq!(check_pack(&file, bytes + 1).unwrap(), Soundness::Damaged);
        let mut flipped = pack.clone();
        flipped[1_000] ^= 1;
        std::fs::write(&file, &flipped).unwrap();
        assert_eq!(found(), Soundness::Damaged);
        let other = dir.path().join("pack-1234.pack");
        std::fs::write(&other, &pack).unwrap();
        assert_eq!(
            check_pack(&other, bytes).unwrap(),
            Soundness::Damaged,
            "another pack's name"
        );
    }
}
