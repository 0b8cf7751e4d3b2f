//! Storage of relay records: one line of JSON for each relay, appended.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::thread;

use grasp_core::RelayUrl;
use tokio::sync::{mpsc, oneshot};

use crate::engine::RelayRecord;

/// Stores relay records across restarts. Called from a thread that may block.
pub trait RecordStore: Send + 'static {
    /// Returns all records.
    fn load(&mut self) -> io::Result<Vec<RelayRecord>>;

    /// Saves records, replacing earlier ones of the same relays.
    fn save(&mut self, records: &[RelayRecord]) -> io::Result<()>;
}

/// Stores nothing.
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

/// Outdated lines after which the file is rewritten.
const MAX_OUTDATED_LINES: usize = 1_000;

/// Records above which those of relays that never delivered anything are dropped.
const MAX_RECORDS: usize = 10_000;

/// A file of lines. A newer line of a relay replaces an older one; a line that a crash cut off is skipped.
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
    /// Creates a store in this file; its directory must exist, the file need not.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            file: None,
            known: BTreeMap::new(),
            lines: 0,
        }
    }

    /// Writes all records to a new file, and renames it over the old one.
    fn rewrite(&mut self) -> io::Result<()> {
        self.drop_empty();
        let new = self.path.with_extension("new");
        let mut file = File::create(&new)?;
        file.write_all(&lines(self.known.values())?)?;
        file.sync_all()?;
        fs::rename(&new, &self.path)?;
        sync_dir(&self.path);
        self.lines = self.known.len();
        // Later lines are appended to the new file.
        self.file = None;
        Ok(())
    }

    /// Drops empty records above the limit: any event can name relays.
    fn drop_empty(&mut self) {
        let mut too_many = self.known.len().saturating_sub(MAX_RECORDS);
        self.known.retain(|_, record| {
            let goes = too_many > 0 && record.is_empty();
            too_many -= usize::from(goes);
            !goes
        });
    }

    fn append(&mut self, text: &[u8]) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                let opened = OpenOptions::new()
                    .create(true)
                    .append(true)
                    .open(&self.path)?;
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
        let lines = text
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty());
        let records = lines.filter_map(|line| serde_json::from_slice::<RelayRecord>(line).ok());
        self.known = records
            .map(|record| (record.relay.clone(), record))
            .collect();
        // A line that was cut off must not swallow the next one.
        self.rewrite()?;
        Ok(self.known.values().cloned().collect())
    }

    fn save(&mut self, records: &[RelayRecord]) -> io::Result<()> {
        for record in records {
            self.known.insert(record.relay.clone(), record.clone());
        }
        self.lines = self.lines.saturating_add(records.len());
        if self.lines
            > self
                .known
                .len()
                .saturating_mul(2)
                .saturating_add(MAX_OUTDATED_LINES)
        {
            return self.rewrite();
        }
        let appended = self.append(&lines(records)?);
        if appended.is_err() {
            // Half a line may be in the file, which would swallow the next: the file is rewritten next time.
            self.lines = usize::MAX;
        }
        appended
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

/// Records that may wait; one that does not fit is written with the next change of the same relay.
const RECORD_QUEUE: usize = 1_024;

/// Writes records on a thread of its own, because disks may be slow.
pub(crate) struct RecordWriter {
    queue: mpsc::Sender<Vec<RelayRecord>>,
    done: oneshot::Receiver<()>,
}

impl RecordWriter {
    /// Loads the records, and starts the thread.
    pub(crate) async fn start(
        mut store: Box<dyn RecordStore>,
    ) -> io::Result<(Self, Vec<RelayRecord>)> {
        let (read, loaded) = oneshot::channel();
        let (queue, waiting) = mpsc::channel(RECORD_QUEUE);
        let (ending, done) = oneshot::channel();
        thread::Builder::new()
            .name("grasp-sync-records".into())
            .spawn(move || {
                let _ = read.send(store.load());
                write_all(&mut *store, waiting);
                let _ = ending.send(());
            })?;
        let records = loaded.await.map_err(io::Error::other)??;
        Ok((Self { queue, done }, records))
    }

    pub(crate) fn write(&self, record: RelayRecord) {
        if self.queue.try_send(vec![record]).is_err() {
            tracing::warn!("record queue is full: a relay's record was not written");
        }
    }

    /// Writes these and all earlier records, and ends.
    pub(crate) async fn finish(self, records: Vec<RelayRecord>) {
        let _ = self.queue.send(records).await;
        drop(self.queue);
        let _ = self.done.await;
    }
}

fn write_all(store: &mut dyn RecordStore, mut waiting: mpsc::Receiver<Vec<RelayRecord>>) {
    while let Some(mut records) = waiting.blocking_recv() {
        while let Ok(mut more) = waiting.try_recv() {
            records.append(&mut more);
        }
        if let Err(error) = store.save(&records) {
            tracing::error!(%error, "cannot write relay records; a restart may repeat requests");
        }
    }
}

#[cfg(test)]
mod tests {
    use grasp_core::nostr::filter::Filter;
    use grasp_core::sync::{FilterHash, Proof, ProofSet};

    use super::*;

    fn record(n: usize, bytes: usize) -> RelayRecord {
        let relay = format!("wss://r{n}.example").parse().unwrap();
        RelayRecord {
            retained_bytes: Some(bytes),
            ..RelayRecord::new(relay)
        }
    }

    fn proven() -> ProofSet {
        let mut proofs = ProofSet::with_capacity(1);
        let (filter, since, until, at) =
            (FilterHash::of(&Filter::new()), 0.into(), 9.into(), 9.into());
        proofs.add(Proof {
            filter,
            since,
            until,
            at,
        });
        proofs
    }

    #[test]
    fn the_newest_line_of_each_relay_survives_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("relays.jsonl");
        let mut file = RecordFile::new(&path);
        assert_eq!(file.load().unwrap(), []);
        file.save(&[record(1, 1), record(2, 2)]).unwrap();
        file.save(&[record(1, 3)]).unwrap();
        assert_eq!(
            RecordFile::new(&path).load().unwrap(),
            [record(1, 3), record(2, 2)]
        );
    }

    #[test]
    fn a_truncated_line_loses_only_itself() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("relays.jsonl");
        let mut file = RecordFile::new(&path);
        file.save(&[record(1, 1), record(2, 2)]).unwrap();
        let text = fs::read(&path).unwrap();
        fs::write(&path, &text[..text.len() - 9]).unwrap();
        let mut file = RecordFile::new(&path);
        assert_eq!(file.load().unwrap(), [record(1, 1)]);
        file.save(&[record(3, 3)]).unwrap();
        assert_eq!(
            RecordFile::new(&path).load().unwrap(),
            [record(1, 1), record(3, 3)]
        );
    }

    #[test]
    fn an_incomplete_write_loses_no_later_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("relays.jsonl");
        let mut file = RecordFile::new(&path);
        file.save(&[record(1, 1)]).unwrap();
        // As on a full disk: part of a line is written, and then nothing.
        OpenOptions::new()
            .append(true)
            .open(&path)
            .unwrap()
            .write_all(b"{\"relay\":")
            .unwrap();
        file.file = Some(File::open(&path).unwrap());
        file.save(&[record(2, 2)]).unwrap_err();
        file.save(&[record(3, 3)]).unwrap();
        let all = [record(1, 1), record(2, 2), record(3, 3)];
        assert_eq!(RecordFile::new(&path).load().unwrap(), all);
    }

    #[test]
    fn the_number_of_empty_records_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = RecordFile::new(dir.path().join("relays.jsonl"));
        let made_up: Vec<_> = (0..MAX_RECORDS + 100).map(|n| record(n, 1)).collect();
        let gave = RelayRecord {
            relay: "wss://z.example".parse().unwrap(),
            proofs: proven(),
            ..record(0, 1)
        };
        file.save(&made_up).unwrap();
        file.save(std::slice::from_ref(&gave)).unwrap();
        file.rewrite().unwrap();
        assert_eq!(file.known.len(), MAX_RECORDS);
        assert!(file.known.contains_key(&gave.relay));
    }

    #[test]
    fn rewrites_the_file_when_many_lines_are_outdated() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("relays.jsonl");
        let mut file = RecordFile::new(&path);
        let many: Vec<_> = (0..500).map(|n| record(0, n)).collect();
        for _ in 0..5 {
            file.save(&many).unwrap();
        }
        let lines = fs::read_to_string(&path).unwrap().lines().count();
        assert!(
            lines <= MAX_OUTDATED_LINES + 2,
            "{lines} lines for one relay"
        );
        assert_eq!(RecordFile::new(&path).load().unwrap(), [record(0, 499)]);
    }
}
