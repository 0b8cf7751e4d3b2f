//! One thread that writes, and one transaction for everybody who is waiting.
//!
//! Whatever has queued up while the last transaction was being written goes into the next one, so the cost of making
//! it durable is shared by all. Nobody hears anything before the commit; if it fails, everybody hears that.

use std::sync::Arc;
use std::thread;

use rusqlite::{Connection, TransactionBehavior};
use tokio::sync::{mpsc, oneshot};

use super::keys::Keys;
use super::ledger::Ledger;
use super::log::Log;
use crate::store::StoreError;
use crate::store::rules::Rules;

/// How many calls may wait before callers have to wait for a place to wait.
const QUEUE: usize = 1_024;

/// How many events are gathered for one transaction before it is closed to latecomers.
const GROUP: usize = 5_000;

/// The way to the writer's thread.
pub(super) struct Writer {
    queue: mpsc::Sender<Order>,
}

enum Order {
    Perform(Box<dyn Task>),
    Stop(oneshot::Sender<()>),
}

/// Something to be done within a transaction.
trait Task: Send {
    /// How many events it is about.
    fn weight(&self) -> usize;
    fn perform(&mut self, ledger: &Ledger<'_>) -> rusqlite::Result<()>;
    /// Tells the one who waits how the transaction ended.
    fn resolve(self: Box<Self>, ended: Result<(), Arc<rusqlite::Error>>);
}

impl Writer {
    pub(super) fn start(
        conn: Connection,
        log: Log,
        keys: Keys,
        rules: Arc<Rules>,
    ) -> std::io::Result<Self> {
        let (queue, orders) = mpsc::channel(QUEUE);
        let desk = Desk {
            conn,
            log,
            keys,
            rules,
        };
        thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || desk.work(orders))?;
        Ok(Self { queue })
    }

    /// Performs work in the next transaction and answers once that is durable.
    pub(super) async fn perform<T, W>(&self, weight: usize, work: W) -> Result<T, StoreError>
    where
        T: Send + 'static,
        W: FnOnce(&Ledger<'_>) -> rusqlite::Result<T> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let task = Once {
            weight,
            work: Some(work),
            outcome: None,
            reply,
        };
        let order = Order::Perform(Box::new(task));
        let sent = self.queue.send(order).await;
        sent.map_err(|_| StoreError::Closed)?;
        answer.await.map_err(|_| StoreError::Closed)?
    }

    /// Leaves work to be done when there is room for it, or never.
    pub(super) fn suggest<W>(&self, work: W)
    where
        W: FnOnce(&Ledger<'_>) -> rusqlite::Result<()> + Send + 'static,
    {
        let (reply, _) = oneshot::channel();
        let task = Once {
            weight: 1,
            work: Some(work),
            outcome: None,
            reply,
        };
        // A full queue means there are more important things to write.
        let _ = self.queue.try_send(Order::Perform(Box::new(task)));
    }

    /// Finishes what is queued, empties the log and ends the thread.
    pub(super) async fn stop(&self) {
        let (done, finished) = oneshot::channel();
        if self.queue.send(Order::Stop(done)).await.is_ok() {
            // An error means the thread ended without us, which is what was wanted.
            let _ = finished.await;
        }
    }
}

struct Once<T, W> {
    weight: usize,
    work: Option<W>,
    outcome: Option<T>,
    reply: oneshot::Sender<Result<T, StoreError>>,
}

impl<T, W> Task for Once<T, W>
where
    T: Send,
    W: FnOnce(&Ledger<'_>) -> rusqlite::Result<T> + Send,
{
    fn weight(&self) -> usize {
        self.weight
    }

    fn perform(&mut self, ledger: &Ledger<'_>) -> rusqlite::Result<()> {
        if let Some(work) = self.work.take() {
            self.outcome = Some(work(ledger)?);
        }
        Ok(())
    }

    fn resolve(self: Box<Self>, ended: Result<(), Arc<rusqlite::Error>>) {
        let answer = match (ended, self.outcome) {
            (Ok(()), Some(outcome)) => Ok(outcome),
            (Ok(()), None) => Err(StoreError::Closed),
            (Err(error), _) => Err(StoreError::Engine(Box::new(error))),
        };
        // Whoever stopped waiting does not want to know.
        let _ = self.reply.send(answer);
    }
}

/// What the thread owns.
struct Desk {
    conn: Connection,
    log: Log,
    keys: Keys,
    rules: Arc<Rules>,
}

impl Desk {
    fn work(mut self, mut orders: mpsc::Receiver<Order>) {
        let mut stopped = None;
        while let Some(first) = orders.blocking_recv() {
            let mut group = Vec::new();
            let mut weight = 0;
            let mut next = Some(first);
            while let Some(order) = next {
                match order {
                    Order::Perform(task) => {
                        weight += task.weight();
                        group.push(task);
                    }
                    Order::Stop(done) => {
                        // No new orders; those already queued are still received.
                        orders.close();
                        stopped = Some(done);
                    }
                }
                next = (weight < GROUP).then(|| orders.try_recv().ok()).flatten();
            }
            self.commit(group);
        }
        self.leave();
        if let Some(done) = stopped {
            let _ = done.send(());
        }
    }

    fn commit(&mut self, mut group: Vec<Box<dyn Task>>) {
        let ended = self.transact(&mut group).map_err(Arc::new);
        if let Err(error) = &ended {
            tracing::error!(%error, waiting = group.len(), "the event store could not write");
        }
        for task in group {
            task.resolve(ended.clone());
        }
        self.log.grown(&self.conn);
    }

    fn transact(&mut self, group: &mut [Box<dyn Task>]) -> rusqlite::Result<()> {
        let tx = self
            .conn
            .transaction_with_behavior(TransactionBehavior::Immediate)?;
        let ledger = Ledger::new(&tx, &self.keys, &self.rules);
        for task in group {
            task.perform(&ledger)?;
        }
        ledger.finish()?;
        drop(ledger);
        tx.commit()
    }

    fn leave(self) {
        self.log.empty(&self.conn);
        // Closing the last connection removes the log; what is left in it is read at the next start.
        drop(self.conn);
    }
}
