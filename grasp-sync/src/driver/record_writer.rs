//! Writes records on a thread of its own, because disks may be slow.

use std::io;
use std::thread;

use tokio::sync::{mpsc, oneshot};

use super::records::RecordStore;
use crate::engine::RelayRecord;

/// Records that may wait; one that does not fit is written with the next change of the same relay.
const RECORD_QUEUE: usize = 1_024;

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
        thread::Builder::new().name("grasp-sync-records".into()).spawn(move || {
            let _ = read.send(store.load());
            write(&mut *store, waiting);
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

fn write(store: &mut dyn RecordStore, mut waiting: mpsc::Receiver<Vec<RelayRecord>>) {
    while let Some(mut records) = waiting.blocking_recv() {
        while let Ok(mut more) = waiting.try_recv() {
            records.append(&mut more);
        }
        if let Err(error) = store.save(&records) {
            tracing::error!(%error, "cannot write relay records; a restart may repeat requests");
        }
    }
}
