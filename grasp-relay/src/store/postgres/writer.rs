//! The writer task, which commits queued writes in groups, as long as this process holds the lease.
//!
//! Everything that was queued while the last transaction was written goes into the next one. Callers get their result
//! after the commit; if it fails, or if its answer is lost, all of them get the error, and nothing is tried again.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use deadpool_postgres::{Object, Pool};
use nostr::event::Event;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::PostgresEngine;
use super::connect::pool_failure;
use super::tables::PostgresTables;
use super::values::{get, rows};
use crate::store::changes::Wanted;
use crate::store::changes::{Changes, refs_removal};
use crate::store::git::views_signed_by;
use crate::store::group::{
    self, CommitGroup, HeavyShare, LastCommit, QUEUE_CAPACITY, WriteTask, WriterCommand,
};
use crate::store::keys::Keys;
use crate::store::rules::Removal;
use crate::store::{StoreError, StoreRules, failure};

/// The time for which a transaction is begun again while the database cannot be reached.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(5);

/// The time before the first new attempt, and at most.
const MIN_BACKOFF: Duration = Duration::from_millis(50);
const MAX_BACKOFF: Duration = Duration::from_millis(800);

/// A handle to the writer task.
pub(super) struct PostgresWriter {
    queue: mpsc::Sender<Command>,
    epoch: Arc<AtomicU64>,
}

type Command = WriterCommand<Queued>;

/// Work for one transaction, with the epoch in which it was asked for and the rows that it needs.
struct Queued {
    epoch: u64,
    wanted: Wanted,
    task: Box<dyn WriteTask<PostgresEngine>>,
}

impl PostgresWriter {
    pub(super) fn start(
        pool: Pool,
        keys: Arc<RwLock<Arc<Keys>>>,
        rules: Arc<StoreRules>,
        epoch: Arc<AtomicU64>,
    ) -> Self {
        let (queue, commands) = mpsc::channel(QUEUE_CAPACITY);
        let task = WriterTask {
            pool,
            keys,
            rules,
            epoch: Arc::clone(&epoch),
        };
        tokio::spawn(task.work(commands));
        Self { queue, epoch }
    }

    /// Performs work in the next transaction, with the rows that it wants, and returns its result once that is
    /// durable.
    pub(super) async fn perform<T, W>(
        &self,
        rows: usize,
        wanted: Wanted,
        work: W,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
        W: FnOnce(&PostgresTables<'_>) -> Result<T, StoreError> + Send + 'static,
    {
        let (task, answer) = group::task::<PostgresEngine, _, _>(work);
        let queued = Queued {
            epoch: self.epoch()?,
            wanted,
            task,
        };
        let sent = self.queue.send(WriterCommand::Perform(rows, queued)).await;
        sent.map_err(|_| StoreError::Closed)?;
        answer.received().await
    }

    /// Queues work without waiting for it; drops it if the queue is full or this process does not write.
    pub(super) fn try_perform<W>(&self, wanted: Wanted, work: W)
    where
        W: FnOnce(&PostgresTables<'_>) -> Result<(), StoreError> + Send + 'static,
    {
        let (task, _) = group::task::<PostgresEngine, _, _>(work);
        if let Ok(epoch) = self.epoch() {
            // A full queue means that there are more important things to write.
            let queued = Queued {
                epoch,
                wanted,
                task,
            };
            let _ = self.queue.try_send(WriterCommand::Perform(1, queued));
        }
    }

    fn epoch(&self) -> Result<u64, StoreError> {
        match self.epoch.load(Ordering::SeqCst) {
            0 => Err(StoreError::Fenced),
            epoch => Ok(epoch),
        }
    }

    /// Finishes queued writes and ends the task.
    pub(super) async fn stop(&self) {
        group::stop(&self.queue).await;
    }
}

/// The state of the writer task.
struct WriterTask {
    pool: Pool,
    keys: Arc<RwLock<Arc<Keys>>>,
    rules: Arc<StoreRules>,
    epoch: Arc<AtomicU64>,
}

impl WriterTask {
    async fn work(self, mut commands: mpsc::Receiver<Command>) {
        let mut last = LastCommit::default();
        // Heavy tasks for later transactions.
        let mut heavy = VecDeque::new();
        let mut heavy_share = HeavyShare::default();
        let mut stopped = None;
        loop {
            let mut group = CommitGroup::default();
            if heavy.is_empty() {
                let Some(first) = commands.recv().await else {
                    break;
                };
                group.take(first, &mut commands, &mut heavy);
            }
            group.gather(&mut commands, &mut heavy);
            let pause = last.pause(group.tasks.len() + heavy.len());
            if !pause.is_zero() {
                sleep(pause).await;
                group.gather(&mut commands, &mut heavy);
            }
            let is_alone = group.tasks.is_empty();
            group.take_heavy(&mut heavy, heavy_share.next(is_alone));
            let callers = group.tasks.len();
            let start = Instant::now();
            self.commit(group.tasks).await;
            let callers = callers + heavy.len() + commands.len();
            last = LastCommit {
                callers,
                took: start.elapsed(),
            };
            stopped = stopped.or(group.stopped);
        }
        if let Some(done) = stopped {
            let _ = done.send(());
        }
    }

    async fn commit(&self, group: Vec<Queued>) {
        let epoch = self.epoch.load(Ordering::SeqCst);
        let (mut group, outdated): (Vec<_>, Vec<_>) =
            group.into_iter().partition(|queued| queued.epoch == epoch);
        let fenced = Err(Arc::new(StoreError::Fenced));
        outdated
            .into_iter()
            .for_each(|queued| queued.task.resolve(&fenced));
        let ended = match group.is_empty() {
            true => Ok(()),
            false => self.transact(epoch, &mut group).await.map_err(Arc::new),
        };
        if let Err(error) = &ended {
            let cause = std::error::Error::source(&**error).map(ToString::to_string);
            tracing::error!(%error, cause, waiting = group.len(), "the event store could not commit");
        }
        for queued in group {
            queued.task.resolve(&ended);
        }
    }

    async fn transact(&self, epoch: u64, group: &mut [Queued]) -> Result<(), StoreError> {
        let keys = match self.keys.read() {
            Ok(keys) => Arc::clone(&keys),
            Err(_) => return Err(StoreError::Closed),
        };
        let mut wanted = Wanted::default();
        group
            .iter_mut()
            .for_each(|queued| wanted.add(std::mem::take(&mut queued.wanted)));
        let (client, mut tables) = self.begin(epoch, &keys, &wanted).await?;
        let ended = write(&client, &mut tables, group).await;
        if ended.is_err() {
            // Closing the connection ends the transaction, whatever has become of it.
            drop(Object::take(client));
        }
        ended
    }

    /// Begins a transaction in which the rows are loaded. Nothing is written yet, so it may be tried again.
    async fn begin<'k>(
        &'k self,
        epoch: u64,
        keys: &'k Keys,
        wanted: &Wanted,
    ) -> Result<(Object, PostgresTables<'k>), StoreError> {
        let start = Instant::now();
        let mut backoff = MIN_BACKOFF;
        loop {
            let error = match self.try_begin(epoch, keys, wanted).await {
                Ok(begun) => return Ok(begun),
                Err(error @ (StoreError::Closed | StoreError::Fenced)) => return Err(error),
                Err(error) => error,
            };
            if start.elapsed() + backoff > BEGIN_TIMEOUT {
                return Err(error);
            }
            sleep(backoff).await;
            backoff = (backoff * 2).min(MAX_BACKOFF);
        }
    }

    async fn try_begin<'k>(
        &'k self,
        epoch: u64,
        keys: &'k Keys,
        wanted: &Wanted,
    ) -> Result<(Object, PostgresTables<'k>), StoreError> {
        let client = self.pool.get().await.map_err(pool_failure)?;
        let mut tables = PostgresTables::new(keys, &self.rules);
        let begun = async {
            let (begun, fence, loaded) = tokio::join!(
                client.batch_execute("BEGIN"),
                fence(&client),
                tables.load(&client, wanted)
            );
            begun.map_err(failure)?;
            let fence = fence?;
            if fence.epoch != epoch {
                // It may hold another lease by now.
                let _ = self
                    .epoch
                    .compare_exchange(epoch, 0, Ordering::SeqCst, Ordering::SeqCst);
                return Err(StoreError::Fenced);
            }
            loaded?;
            tables.set_last(fence.last_seq, fence.last_generation, fence.has_hidden);
            tables.load_due(&client, wanted).await
        };
        match begun.await {
            Ok(()) => Ok((client, tables)),
            Err(error) => {
                drop(Object::take(client));
                Err(error)
            }
        }
    }
}

/// The lease as a transaction finds it, and the last numbers that were given.
struct Fence {
    epoch: u64,
    last_seq: i64,
    last_generation: i64,
    has_hidden: bool,
}

/// Locks the lease, so that nobody takes it until the transaction has ended.
async fn fence(client: &Object) -> Result<Fence, StoreError> {
    let sql = "SELECT l.epoch, c.last_seq, g.last, EXISTS (SELECT 1 FROM hidden) FROM lease l, counters c, generations g
        FOR SHARE OF l";
    let statement = client.prepare_cached(sql).await.map_err(failure)?;
    let row = client.query_one(&statement, &[]).await.map_err(failure)?;
    let epoch: i64 = get(&row, 0)?;
    Ok(Fence {
        epoch: epoch.unsigned_abs(),
        last_seq: get(&row, 1)?,
        last_generation: get(&row, 2)?,
        has_hidden: get(&row, 3)?,
    })
}

async fn write(
    client: &Object,
    tables: &mut PostgresTables<'_>,
    group: &mut [Queued],
) -> Result<(), StoreError> {
    for queued in group {
        queued.task.perform(tables)?;
        for (event, removal) in tables.take_refs_of() {
            remove_refs(client, tables, &event, removal).await?;
        }
    }
    tables.commit(client).await
}

/// Removes the refs that an event signed for, which was removed.
async fn remove_refs(
    client: &Object,
    tables: &mut PostgresTables<'_>,
    event: &Event,
    removal: Removal,
) -> Result<(), StoreError> {
    let Some(query) = views_signed_by(event) else {
        return Ok(());
    };
    tables.flush_statements(client).await?;
    for signed in rows(client, query).await? {
        if let Some(change) = refs_removal(event, signed, removal) {
            tables.change_repo(&change)?;
        }
    }
    Ok(())
}
