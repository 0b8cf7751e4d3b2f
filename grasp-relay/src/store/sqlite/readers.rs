//! A few threads that read, each with a connection of its own.
//!
//! Every errand is short: long scans are cut into turns and queue again, so that no reader is held by a slow client
//! and no snapshot lives long enough to keep the log from being emptied.

use std::num::NonZeroUsize;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use super::keys::Keys;
use super::ledger::Ledger;
use super::{connect, failure};
use crate::store::StoreError;
use crate::store::rules::Rules;

/// How many errands may wait before callers have to wait for a place to wait.
const QUEUE: usize = 1_024;

/// The way to the readers' threads.
pub(super) struct Readers {
    queue: mpsc::Sender<Order>,
    count: usize,
}

type Errand = Box<dyn FnOnce(&Connection) + Send>;

enum Order {
    Run(Errand),
    Stop(oneshot::Sender<()>),
}

impl Readers {
    pub(super) fn start(
        path: &Path,
        count: NonZeroUsize,
        cache: usize,
    ) -> Result<Self, StoreError> {
        let (queue, orders) = mpsc::channel(QUEUE);
        let orders = Arc::new(Mutex::new(orders));
        for number in 0..count.get() {
            let conn = connect(path, cache)?;
            conn.pragma_update(None, "query_only", true).map_err(failure)?;
            let orders = Arc::clone(&orders);
            thread::Builder::new()
                .name(format!("store-reader-{number}"))
                .spawn(move || work(conn, &orders))
                .map_err(|error| StoreError::Engine(Box::new(error)))?;
        }
        Ok(Self { queue, count: count.get() })
    }

    /// Reads from one snapshot; not at all if the caller has stopped waiting by the time it is its turn.
    pub(super) async fn read<T, R>(
        &self,
        keys: &Arc<Keys>,
        rules: &Arc<Rules>,
        errand: R,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
        R: FnOnce(&Ledger<'_>) -> rusqlite::Result<T> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let (keys, rules) = (Arc::clone(keys), Arc::clone(rules));
        let run = move |conn: &Connection| {
            if !reply.is_closed() {
                let read = snapshot(conn, &keys, &rules, errand);
                let _ = reply.send(read.map_err(failure));
            }
        };
        let sent = self.queue.send(Order::Run(Box::new(run))).await;
        sent.map_err(|_| StoreError::Closed)?;
        answer.await.map_err(|lost| StoreError::Engine(Box::new(lost)))?
    }

    /// Lets the readers finish what is queued, and ends them.
    pub(super) async fn stop(&self) {
        let mut ended = Vec::new();
        for _ in 0..self.count {
            let (done, finished) = oneshot::channel();
            if self.queue.send(Order::Stop(done)).await.is_ok() {
                ended.push(finished);
            }
        }
        for finished in ended {
            // An error means the thread ended without us, which is what was wanted.
            let _ = finished.await;
        }
    }
}

fn snapshot<T>(
    conn: &Connection,
    keys: &Keys,
    rules: &Rules,
    errand: impl FnOnce(&Ledger<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    let tx = conn.unchecked_transaction()?;
    errand(&Ledger::new(&tx, keys, rules))
}

fn work(conn: Connection, orders: &Mutex<mpsc::Receiver<Order>>) {
    loop {
        let order = orders.lock().unwrap_or_else(PoisonError::into_inner).blocking_recv();
        match order {
            Some(Order::Run(errand)) => {
                // A panic is a fault of ours; it costs this errand, whose caller hears of it, and not a reader.
                let _ = panic::catch_unwind(AssertUnwindSafe(|| errand(&conn)));
            }
            Some(Order::Stop(done)) => {
                drop(conn);
                let _ = done.send(());
                return;
            }
            None => return,
        }
    }
}
