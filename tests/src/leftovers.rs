//! Processes and temporary files that operations must not leave behind.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The processes and temporary files below a directory of repositories.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leftovers {
    /// Command lines of processes that name the directory.
    pub processes: Vec<String>,
    /// Directories into which something is being received.
    pub incoming: usize,
    /// Ref transactions that are decided and not finished.
    pub journal: usize,
    /// Uploads that wait for their event.
    pub staged: usize,
    /// Lock files and temporary files anywhere below.
    pub stray: BTreeSet<PathBuf>,
}

impl Leftovers {
    /// Collects what is below a directory.
    pub fn below(root: &Path) -> Self {
        let entries = |name: &str| std::fs::read_dir(root.join(name)).map_or(0, Iterator::count);
        let mut stray = BTreeSet::new();
        find_strays(&root.join("repositories"), &mut stray);
        let staged = files(&root.join("staging"));
        let staged: BTreeSet<_> = staged.iter().filter_map(|file| tip(root, file)).collect();
        Self {
            processes: processes(root),
            incoming: entries("incoming"),
            journal: entries("journal"),
            staged: staged.len(),
            stray,
        }
    }
}

/// Returns the directory of the tip that a staged file belongs to: family, event, tip.
fn tip(root: &Path, file: &Path) -> Option<PathBuf> {
    let inside = file.strip_prefix(root.join("staging")).ok()?;
    Some(inside.components().take(3).collect())
}

/// Returns all files below a directory.
pub fn files(root: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(root) else {
        return Vec::new();
    };
    let paths = entries.flatten().map(|entry| entry.path());
    paths
        .flat_map(|path| {
            if path.is_dir() {
                files(&path)
            } else {
                vec![path]
            }
        })
        .collect()
}

fn find_strays(root: &Path, stray: &mut BTreeSet<PathBuf>) {
    let name = |path: &Path| {
        path.file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned()
    };
    let is_stray = |path: &PathBuf| {
        let name = name(path);
        name.ends_with(".lock") || name.starts_with("tmp_") || name.ends_with(".keep")
    };
    stray.extend(files(root).into_iter().filter(is_stray));
}

/// Returns the running processes whose arguments or environment name a directory.
fn processes(root: &Path) -> Vec<String> {
    let marker = root.as_os_str().as_bytes();
    let Ok(all) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for dir in all.flatten().map(|entry| entry.path()) {
        let read = |file: &str| std::fs::read(dir.join(file)).unwrap_or_default();
        let (arguments, environment) = (read("cmdline"), read("environ"));
        let names = |text: &[u8]| text.windows(marker.len()).any(|window| window == marker);
        let own = dir
            .file_name()
            .is_some_and(|pid| *pid == *std::process::id().to_string());
        if !own && (names(&arguments) || names(&environment)) {
            found.push(String::from_utf8_lossy(&arguments).replace('\0', " "));
        }
    }
    found
}

/// Polls until `probe` returns a value, for a minute at most.
pub async fn eventually<T>(mut probe: impl FnMut() -> Option<T>) -> T {
    eventually_async(|| std::future::ready(probe())).await
}

/// Does the same with a probe that waits.
pub async fn eventually_async<T, F: Future<Output = Option<T>>>(mut probe: impl FnMut() -> F) -> T {
    let wait = async {
        loop {
            match probe().await {
                Some(found) => return found,
                None => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), wait)
        .await
        .expect("in time")
}
