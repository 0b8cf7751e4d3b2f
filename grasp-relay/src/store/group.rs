//! The tasks that share a transaction, and how long a writer waits for more of them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::engine::StoreEngine;
use super::{StoreError, failure};

/// Writes that may be queued before callers wait for a place in the queue.
pub(crate) const QUEUE_CAPACITY: usize = 1_024;

/// Rows that are collected for one transaction: some 5,000 usual events.
const MAX_COMMIT_ROWS: usize = 50_000;

/// Rows of a task that joins the next transaction; a batch of usual events has fewer. Heavier tasks are spread over
/// several transactions.
const MAX_LIGHT_ROWS: usize = 2_500;

/// Rows from which on a task is heavy.
pub(crate) const HEAVY_ROWS: usize = MAX_LIGHT_ROWS + 1;

/// Rows of heavier tasks in one transaction beside light ones, unless a single one has more, so that the light ones do not
/// wait long.
const MIN_HEAVY_ROWS: usize = 5_000;

/// Rows of heavier tasks in one transaction, when no light one has come for a while: one that comes then waits for some
/// tens of milliseconds.
const MAX_HEAVY_ROWS: usize = 20_000;

/// The time that a group waits for more tasks, at most.
const MAX_COMMIT_DELAY: Duration = Duration::from_millis(1);

/// A command to a writer.
pub(crate) enum WriterCommand<T> {
    /// Work for a transaction, and the approximate number of rows it writes.
    Perform(usize, T),
    /// The end, after what is queued.
    Stop(oneshot::Sender<()>),
}

/// Finishes queued writes and ends the writer.
pub(crate) async fn stop<T>(queue: &mpsc::Sender<WriterCommand<T>>) {
    let (done, finished) = oneshot::channel();
    if queue.send(WriterCommand::Stop(done)).await.is_ok() {
        // An error means that the writer has ended already.
        let _ = finished.await;
    }
}

/// An error that several callers get.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct SharedError(Arc<StoreError>);

/// Work for one transaction.
pub(crate) trait WriteTask<E: StoreEngine>: Send {
    fn perform(&mut self, tables: &E::Tables<'_>) -> Result<(), StoreError>;
    /// Sends the result of the transaction to the caller.
    fn resolve(self: Box<Self>, ended: &Result<(), Arc<StoreError>>);
}

struct QueuedWork<T, W> {
    work: Option<W>,
    outcome: Option<T>,
    reply: oneshot::Sender<Result<T, StoreError>>,
}

/// The result of a task, once its transaction has ended.
pub(crate) struct Answer<T>(oneshot::Receiver<Result<T, StoreError>>);

impl<T> Answer<T> {
    pub(crate) async fn received(self) -> Result<T, StoreError> {
        self.0.await.map_err(|_| StoreError::Closed)?
    }
}

/// Makes a task of this work, and returns where its result will be.
pub(crate) fn task<E, T, W>(work: W) -> (Box<dyn WriteTask<E>>, Answer<T>)
where
    E: StoreEngine,
    T: Send + 'static,
    W: for<'a> FnOnce(&E::Tables<'a>) -> Result<T, StoreError> + Send + 'static,
{
    let (reply, answer) = oneshot::channel();
    (
        Box::new(QueuedWork {
            work: Some(work),
            outcome: None,
            reply,
        }),
        Answer(answer),
    )
}

impl<E, T, W> WriteTask<E> for QueuedWork<T, W>
where
    E: StoreEngine,
    T: Send,
    W: for<'a> FnOnce(&E::Tables<'a>) -> Result<T, StoreError> + Send,
{
    fn perform(&mut self, tables: &E::Tables<'_>) -> Result<(), StoreError> {
        if let Some(work) = self.work.take() {
            self.outcome = Some(work(tables)?);
        }
        Ok(())
    }

    fn resolve(self: Box<Self>, ended: &Result<(), Arc<StoreError>>) {
        let answer = match ended.as_ref().map_err(|error| (error, &**error)) {
            Ok(()) => self.outcome.ok_or(StoreError::Closed),
            Err((_, StoreError::Fenced)) => Err(StoreError::Fenced),
            Err((_, StoreError::Closed)) => Err(StoreError::Closed),
            Err((error, _)) => Err(failure(SharedError(Arc::clone(error)))),
        };
        // The caller may have stopped waiting.
        let _ = self.reply.send(answer);
    }
}

/// The share of heavier tasks in a transaction, in rows: it grows while nobody else writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeavyShare(usize);

impl Default for HeavyShare {
    fn default() -> Self {
        Self(MIN_HEAVY_ROWS)
    }
}

impl HeavyShare {
    /// Returns the share for the next transaction, which has light tasks unless the heavier ones are alone in it.
    pub(crate) fn next(&mut self, is_alone: bool) -> usize {
        let share = match is_alone {
            true => self.0,
            false => MIN_HEAVY_ROWS,
        };
        self.0 = match is_alone {
            true => (share * 2).min(MAX_HEAVY_ROWS),
            false => MIN_HEAVY_ROWS,
        };
        share
    }
}

/// Heavy tasks for later transactions, with their rows.
pub(crate) type HeavyTasks<T> = VecDeque<(usize, T)>;

/// The tasks that share a transaction.
pub(crate) struct CommitGroup<T> {
    pub(crate) tasks: Vec<T>,
    rows: usize,
    /// The caller who asked to stop after this group.
    pub(crate) stopped: Option<oneshot::Sender<()>>,
}

impl<T> Default for CommitGroup<T> {
    fn default() -> Self {
        Self {
            tasks: Vec::new(),
            rows: 0,
            stopped: None,
        }
    }
}

impl<T> CommitGroup<T> {
    /// Takes queued light tasks while there is room, and moves heavy ones to their own queue.
    pub(crate) fn gather(
        &mut self,
        commands: &mut mpsc::Receiver<WriterCommand<T>>,
        heavy: &mut HeavyTasks<T>,
    ) {
        while self.rows < MAX_COMMIT_ROWS && heavy.len() < QUEUE_CAPACITY {
            let Ok(command) = commands.try_recv() else {
                return;
            };
            self.take(command, commands, heavy);
        }
    }

    /// Takes heavy tasks up to their share of a transaction.
    pub(crate) fn take_heavy(&mut self, heavy: &mut HeavyTasks<T>, share: usize) {
        let mut rows = 0;
        while rows < share {
            let Some((more, task)) = heavy.pop_front() else {
                return;
            };
            rows += more;
            self.tasks.push(task);
        }
    }

    pub(crate) fn take(
        &mut self,
        command: WriterCommand<T>,
        commands: &mut mpsc::Receiver<WriterCommand<T>>,
        heavy: &mut HeavyTasks<T>,
    ) {
        match command {
            WriterCommand::Perform(rows, task) if rows > MAX_LIGHT_ROWS => {
                heavy.push_back((rows, task));
            }
            WriterCommand::Perform(rows, task) => {
                self.rows += rows;
                self.tasks.push(task);
            }
            WriterCommand::Stop(done) => {
                // No new commands; those already queued are still received.
                commands.close();
                self.stopped = Some(done);
            }
        }
    }
}

/// Figures of the last transaction, from which the next delay follows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LastCommit {
    /// The number of tasks that shared it or were queued when it ended.
    pub(crate) callers: usize,
    pub(crate) took: Duration,
}

impl LastCommit {
    /// Returns the time to wait for callers of the last group to come back with more work.
    ///
    /// Without it the callers split into two groups that alternate, each half as large and each with an fsync of its
    /// own.
    pub(crate) fn pause(self, gathered: usize) -> Duration {
        match gathered < self.callers {
            true => (self.took / 8).min(MAX_COMMIT_DELAY),
            false => Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_heavy_tasks_grows_while_nobody_else_writes() {
        let mut share = HeavyShare::default();
        let shares = [true, true, true, true, false, true, true].map(|alone| share.next(alone));
        assert_eq!(
            shares,
            [5_000, 10_000, 20_000, 20_000, 5_000, 5_000, 10_000]
        );
    }

    #[test]
    fn many_callers_are_waited_for_and_a_single_one_is_not_delayed() {
        let callers = |callers, millis| LastCommit {
            callers,
            took: Duration::from_millis(millis),
        };
        assert_eq!(LastCommit::default().pause(1), Duration::ZERO);
        assert_eq!(callers(1, 8).pause(1), Duration::ZERO);
        assert_eq!(callers(64, 4).pause(32), Duration::from_micros(500));
        assert_eq!(callers(64, 4).pause(64), Duration::ZERO);
        assert_eq!(callers(64, 400).pause(32), MAX_COMMIT_DELAY);
    }
}
