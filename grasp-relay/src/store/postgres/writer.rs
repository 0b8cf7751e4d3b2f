//! The writer task, which commits queued writes in groups, as long as this process holds the lease.
//!
//! Everything that was queued while the last transaction was written goes into the next one. Callers get their result
//! after the commit; if it fails, or if its answer is lost, all of them get the error, and nothing is tried again.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use deadpool_postgres::{Object, Pool};
use grasp_core::service::Endpoint;
use grasp_purgatory::database::FamilyChange;
use nostr::event::Event;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep};

use super::connect::{failure, pool_failure};
use super::git;
use super::tables::{PostgresTables, Wanted};
use super::values::get;
use crate::store::changes::{Changes, number, refs_removal};
use crate::store::group::{self, CommitGroup, LastCommit, QUEUE_CAPACITY, WriterCommand};
use crate::store::keys::Keys;
use crate::store::{StoreError, StoreRules, repository_names};

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

type Command = WriterCommand<Box<dyn PostgresTask>>;

/// Work for one transaction.
trait PostgresTask: Send {
    /// Returns the epoch in which it was asked for.
    fn epoch(&self) -> u64;
    /// Adds the rows that it needs.
    fn want(&self, keys: &Keys, wanted: &mut Wanted);
    fn perform(&mut self, tables: &PostgresTables<'_>) -> Result<(), StoreError>;
    /// Sends the result of the transaction to the caller.
    fn resolve(self: Box<Self>, ended: &Result<(), Arc<StoreError>>);
}

/// An error that several callers get.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct Shared(Arc<StoreError>);

impl PostgresWriter {
    pub(super) fn start(
        pool: Pool,
        keys: Arc<RwLock<Arc<Keys>>>,
        rules: Arc<StoreRules>,
        epoch: Arc<AtomicU64>,
    ) -> Self {
        let (queue, commands) = mpsc::channel(QUEUE_CAPACITY);
        let task = WriterTask { pool, keys, rules, epoch: Arc::clone(&epoch) };
        tokio::spawn(task.work(commands));
        Self { queue, epoch }
    }

    /// Performs work in the next transaction, with the rows that it wants, and returns its result once that is
    /// durable.
    pub(super) async fn perform<T, N, W>(
        &self,
        rows: usize,
        needs: N,
        work: W,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
        N: Fn(&Keys, &mut Wanted) + Send + 'static,
        W: FnOnce(&PostgresTables<'_>) -> Result<T, StoreError> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let sent = self.queue.send(self.command(rows, needs, work, reply)?).await;
        sent.map_err(|_| StoreError::Closed)?;
        answer.await.map_err(|_| StoreError::Closed)?
    }

    /// Queues work without waiting for it; drops it if the queue is full or this process does not write.
    pub(super) fn try_perform<N, W>(&self, needs: N, work: W)
    where
        N: Fn(&Keys, &mut Wanted) + Send + 'static,
        W: FnOnce(&PostgresTables<'_>) -> Result<(), StoreError> + Send + 'static,
    {
        let (reply, _) = oneshot::channel();
        if let Ok(command) = self.command(1, needs, work, reply) {
            // A full queue means that there are more important things to write.
            let _ = self.queue.try_send(command);
        }
    }

    fn command<T, N, W>(
        &self,
        rows: usize,
        needs: N,
        work: W,
        reply: oneshot::Sender<Result<T, StoreError>>,
    ) -> Result<Command, StoreError>
    where
        T: Send + 'static,
        N: Fn(&Keys, &mut Wanted) + Send + 'static,
        W: FnOnce(&PostgresTables<'_>) -> Result<T, StoreError> + Send + 'static,
    {
        let epoch = match self.epoch.load(Ordering::SeqCst) {
            0 => return Err(StoreError::Fenced),
            epoch => epoch,
        };
        let task = PostgresWrite { epoch, needs, work: Some(work), outcome: None, reply };
        Ok(WriterCommand::Perform(rows, Box::new(task)))
    }

    /// Finishes queued writes and ends the task.
    pub(super) async fn stop(&self) {
        group::stop(&self.queue).await;
    }
}

struct PostgresWrite<T, N, W> {
    epoch: u64,
    needs: N,
    work: Option<W>,
    outcome: Option<T>,
    reply: oneshot::Sender<Result<T, StoreError>>,
}

impl<T, N, W> PostgresTask for PostgresWrite<T, N, W>
where
    T: Send,
    N: Fn(&Keys, &mut Wanted) + Send,
    W: FnOnce(&PostgresTables<'_>) -> Result<T, StoreError> + Send,
{
    fn epoch(&self) -> u64 {
        self.epoch
    }

    fn want(&self, keys: &Keys, wanted: &mut Wanted) {
        (self.needs)(keys, wanted);
    }

    fn perform(&mut self, tables: &PostgresTables<'_>) -> Result<(), StoreError> {
        if let Some(work) = self.work.take() {
            self.outcome = Some(work(tables)?);
        }
        Ok(())
    }

    fn resolve(self: Box<Self>, ended: &Result<(), Arc<StoreError>>) {
        let answer = match (ended, self.outcome) {
            (Ok(()), Some(outcome)) => Ok(outcome),
            (Ok(()), None) => Err(StoreError::Closed),
            (Err(error), _) => Err(match **error {
                StoreError::Fenced => StoreError::Fenced,
                StoreError::Closed => StoreError::Closed,
                _ => failure(Shared(Arc::clone(error))),
            }),
        };
        // The caller may have stopped waiting.
        let _ = self.reply.send(answer);
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
        let mut stopped = None;
        loop {
            let mut group = CommitGroup::default();
            if heavy.is_empty() {
                let Some(first) = commands.recv().await else { break };
                group.take(first, &mut commands, &mut heavy);
            }
            group.gather(&mut commands, &mut heavy);
            let pause = last.pause(group.tasks.len() + heavy.len());
            if !pause.is_zero() {
                sleep(pause).await;
                group.gather(&mut commands, &mut heavy);
            }
            group.take_heavy(&mut heavy);
            let callers = group.tasks.len();
            let start = Instant::now();
            self.commit(group.tasks).await;
            let callers = callers + heavy.len() + commands.len();
            last = LastCommit { callers, took: start.elapsed() };
            stopped = stopped.or(group.stopped);
        }
        if let Some(done) = stopped {
            let _ = done.send(());
        }
    }

    async fn commit(&self, group: Vec<Box<dyn PostgresTask>>) {
        let epoch = self.epoch.load(Ordering::SeqCst);
        let (mut group, outdated): (Vec<_>, Vec<_>) =
            group.into_iter().partition(|task| task.epoch() == epoch);
        let fenced = Err(Arc::new(StoreError::Fenced));
        outdated.into_iter().for_each(|task| task.resolve(&fenced));
        let ended = match group.is_empty() {
            true => Ok(()),
            false => self.transact(epoch, &mut group).await.map_err(Arc::new),
        };
        if let Err(error) = &ended {
            let cause = std::error::Error::source(&**error).map(ToString::to_string);
            tracing::error!(%error, cause, waiting = group.len(), "the event store could not commit");
        }
        for task in group {
            task.resolve(&ended);
        }
    }

    async fn transact(
        &self,
        epoch: u64,
        group: &mut [Box<dyn PostgresTask>],
    ) -> Result<(), StoreError> {
        let keys = match self.keys.read() {
            Ok(keys) => Arc::clone(&keys),
            Err(_) => return Err(StoreError::Closed),
        };
        let mut wanted = Wanted::default();
        group.iter().for_each(|task| task.want(&keys, &mut wanted));
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
        let (start, mut backoff) = (Instant::now(), MIN_BACKOFF);
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
                let _ = self.epoch.compare_exchange(epoch, 0, Ordering::SeqCst, Ordering::SeqCst);
                return Err(StoreError::Fenced);
            }
            loaded?;
            tables.set_last(fence.last_seq, fence.last_generation);
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
}

/// Locks the lease, so that nobody takes it until the transaction has ended.
async fn fence(client: &Object) -> Result<Fence, StoreError> {
    let sql = "SELECT l.epoch, c.last_seq, g.last FROM lease l, counters c, generations g
        FOR SHARE OF l";
    let statement = client.prepare_cached(sql).await.map_err(failure)?;
    let row = client.query_one(&statement, &[]).await.map_err(failure)?;
    let epoch: i64 = get(&row, 0)?;
    Ok(Fence {
        epoch: epoch.unsigned_abs(),
        last_seq: get(&row, 1)?,
        last_generation: get(&row, 2)?,
    })
}

async fn write(
    client: &Object,
    tables: &mut PostgresTables<'_>,
    group: &mut [Box<dyn PostgresTask>],
) -> Result<(), StoreError> {
    for task in group {
        task.perform(tables)?;
        for event in tables.take_refs_of() {
            remove_refs(client, tables, &event).await?;
        }
    }
    tables.commit(client).await
}

/// Removes the refs that an event signed for, which was removed.
async fn remove_refs(
    client: &Object,
    tables: &mut PostgresTables<'_>,
    event: &Event,
) -> Result<(), StoreError> {
    for identifier in repository_names(event) {
        for endpoint in [Endpoint::Repository, Endpoint::PullRequests] {
            tables.flush_statements(client).await?;
            let mut change = FamilyChange::new(endpoint, identifier.clone());
            for (owner, view) in git::views(client, number(endpoint), &identifier).await? {
                let removal = refs_removal(event, endpoint, owner, &view);
                removal.into_iter().for_each(|removal| change.push(removal));
            }
            tables.change_family(&change)?;
        }
    }
    Ok(())
}
