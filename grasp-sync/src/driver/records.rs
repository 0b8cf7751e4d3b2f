//! What outlives the process: one line of JSON for each relay, appended.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use grasp_core::RelayUrl;

use crate::engine::RelayRecord;

/// Keeps what is known about relays across restarts. Called from a thread that may wait.
pub trait RecordStore: Send + 'static {
    /// Everything that was kept.
    fn load(&mut self) -> io::Result<Vec<RelayRecord>>;

    /// Keeps these, in place of what was kept for the same relays.
    fn save(&mut self, records: &[RelayRecord]) -> io::Result<()>;
}

/// Keeps nothing: every start is a first one.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoRecords;

impl RecordStore for NoRecords {
    fn load(&mut self) -> io::Result<Vec<RelayRecord>> {
        Ok(Vec::new())
    }

    fn save(&mut self, _: &[RelayRecord]) -> io::Result<()> {
        Ok(())
    }
}

/// Lines beyond those in use after which the file is written anew.
const SLACK: usize = 1_000;

/// A file of lines. A newer line of a relay replaces an older one; a line that a crash cut off is passed over.
///
/// ```
/// use grasp_sync::driver::{RecordFile, RecordStore};
///
/// # let dir = tempfile::tempdir()?;
/// let mut records = RecordFile::new(dir.path().join("relays.jsonl"));
/// assert!(records.load()?.is_empty());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct RecordFile {
    path: PathBuf,
    file: Option<File>,
    known: BTreeMap<RelayUrl, RelayRecord>,
    lines: usize,
}

impl RecordFile {
    /// A file at this path; its directory must exist, the file need not.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), file: None, known: BTreeMap::new(), lines: 0 }
    }

    /// Writes everything anew beside the old file, and puts it in its place.
    fn rewrite(&mut self) -> io::Result<()> {
        let new = self.path.with_extension("new");
        let mut file = File::create(&new)?;
        file.write_all(&lines(self.known.values())?)?;
        file.sync_all()?;
        fs::rename(&new, &self.path)?;
        sync_dir(&self.path);
        self.lines = self.known.len();
        // What is appended from now on goes to the new file.
        self.file = None;
        Ok(())
    }

    fn append(&mut self, text: &[u8]) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                let opened = OpenOptions::new().create(true).append(true).open(&self.path)?;
                self.file.insert(opened)
            }
        };
        file.write_all(text)?;
        file.sync_data()
    }
}

impl RecordStore for RecordFile {
    fn load(&mut self) -> io::Result<Vec<RelayRecord>> {
        let text = match fs::read(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let records = lines.filter_map(|line| serde_json::from_slice::<RelayRecord>(line).ok());
        self.known = records.map(|record| (record.relay.clone(), record)).collect();
        // A line that was cut off must not swallow the next one.
        self.rewrite()?;
        Ok(self.known.values().cloned().collect())
    }

    fn save(&mut self, records: &[RelayRecord]) -> io::Result<()> {
        for record in records {
            self.known.insert(record.relay.clone(), record.clone());
        }
        self.lines = self.lines.saturating_add(records.len());
        if self.lines > self.known.len().saturating_mul(2).saturating_add(SLACK) {
            return self.rewrite();
        }
        self.append(&lines(records)?)
    }
}

fn lines<'a>(records: impl IntoIterator<Item = &'a RelayRecord>) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    for record in records {
        serde_json::to_writer(&mut text, record)?;
        text.push(b'\n');
    }
    Ok(text)
}

/// Makes the new name durable, where directories can be synced.
fn sync_dir(path: &Path) {
    if let Some(Ok(dir)) = path.parent().map(File::open) {
        let _ = dir.sync_all();
    }
}

#[cfg(test)]
mod tests {
    use grasp_core::sync::CoverageSet;

    use super::*;

    fn record(n: usize, bytes: usize) -> RelayRecord {
        RelayRecord {
            relay: format!("wss://r{n}.example").parse().unwrap(),
            backoff: None,
            quarantined_until: None,
            paused_until: None,
            parked: Vec::new(),
            full_pass_at: None,
            retained_bytes: Some(bytes),
            coverage: CoverageSet::with_capacity(1),
        }
    }

    #[test]
    fn the_newest_line_of_each_relay_survives_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("relays.jsonl");
        let mut file = RecordFile::new(&path);
        assert_eq!(file.load().unwrap(), []);
        file.save(&[record(1, 1), record(2, 2)]).unwrap();
        file.save(&[record(1, 3)]).unwrap();
        assert_eq!(RecordFile::new(&path).load().unwrap(), [record(1, 3), record(2, 2)]);
    }

    #[test]
    fn a_line_that_was_cut_off_costs_only_itself() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("relays.jsonl");
        let mut file = RecordFile::new(&path);
        file.save(&[record(1, 1), record(2, 2)]).unwrap();
        let text = fs::read(&path).unwrap();
        fs::write(&path, &text[..text.len() - 9]).unwrap();
        let mut file = RecordFile::new(&path);
        assert_eq!(file.load().unwrap(), [record(1, 1)]);
        file.save(&[record(3, 3)]).unwrap();
        assert_eq!(RecordFile::new(&path).load().unwrap(), [record(1, 1), record(3, 3)]);
    }

    #[test]
    fn the_file_does_not_grow_for_ever() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("relays.jsonl");
        let mut file = RecordFile::new(&path);
        let many: Vec<_> = (0..500).map(|n| record(0, n)).collect();
        for _ in 0..5 {
            file.save(&many).unwrap();
        }
        let lines = fs::read_to_string(&path).unwrap().lines().count();
        assert!(lines <= SLACK + 2, "{lines} lines for one relay");
        assert_eq!(RecordFile::new(&path).load().unwrap(), [record(0, 499)]);
    }
}
