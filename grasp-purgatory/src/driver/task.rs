//! The task that owns the core: handles one order after another, and writes its records before it executes its outputs.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use grasp_core::{Mono, Oid, RepoId};
use nostr::event::EventId;
use tokio::sync::{broadcast, mpsc, oneshot, watch};

use super::queue::{self, Work, WorkQueues};
use super::{LivePolicy, LocalRelay, ORDER_QUEUE, Order, Outcomes, Question, RepoNews, Upload};
use crate::database::{Commit, DatabaseError};
use crate::hunt::HuntHandle;
use crate::purgatory::Record;
use crate::{CleanupTask, HoldOutcome, Input, Output, Outputs, Purgatory, PushTarget};

/// Turns that share one write of their records.
const MAX_TURNS_PER_WRITE: usize = 64;

/// Time between attempts to write records.
const WRITE_RETRY: Duration = Duration::from_secs(1);

pub(super) struct Inbox {
    pub(super) orders: mpsc::Receiver<Order>,
    /// Questions that are answered while orders wait.
    pub(super) questions: mpsc::Receiver<Question>,
    pub(super) policy: LivePolicy,
}

impl Inbox {
    /// Returns the next order or question, or only the next question if orders wait; `None` once all handles are dropped.
    async fn next(&mut self, takes_orders: bool) -> Option<Order> {
        // First, so that what follows from an order that was given after a change is judged by it.
        let changed = match takes_orders {
            true => self.policy.take_change(),
            false => None,
        };
        if let Some(policy) = changed {
            return Some(Order::Tell(Input::Policy(policy)));
        }
        tokio::select! {
            order = self.orders.recv(), if takes_orders => order,
            Some(question) = self.questions.recv() => Some(Order::Ask(question)),
            policy = self.policy.next(), if takes_orders => Some(Order::Tell(Input::Policy(policy))),
            else => None,
        }
    }
}

/// The callers that wait for an output of the core.
#[derive(Default)]
pub(super) struct Callers {
    /// Senders of events, until they are held or refused.
    senders: BTreeMap<EventId, Vec<EventSender>>,
    /// Clients that sent events which are held.
    decisions: BTreeMap<EventId, Vec<oneshot::Sender<HoldOutcome>>>,
    /// Pushes that left an upload.
    uploads: BTreeMap<(EventId, Oid, PushTarget), Vec<oneshot::Sender<bool>>>,
    /// Callers that wait for the changes at a repository, by number.
    settling: BTreeMap<u64, oneshot::Sender<Outcomes>>,
    /// The number of the last of them.
    last: u64,
}

struct EventSender {
    reply: oneshot::Sender<HoldOutcome>,
    /// Is told what became of the event, if it is held.
    decided: Option<oneshot::Sender<HoldOutcome>>,
}

impl Callers {
    /// Returns the answer that an output is, to those who wait for it; `None` if none does.
    fn answer(&mut self, output: Output) -> Option<Work> {
        Some(match output {
            Output::Answer { id, outcome } => {
                let mut waiting = Vec::new();
                for sender in self.senders.remove(&id)? {
                    waiting.push(sender.reply);
                    if let (HoldOutcome::Held, Some(decided)) = (outcome, sender.decided) {
                        self.decisions.entry(id).or_default().push(decided);
                    }
                }
                Box::pin(async move {
                    send_all(waiting, outcome);
                    None
                })
            }
            Output::Decided { id, outcome } => {
                let waiting = self.decisions.remove(&id)?;
                Box::pin(async move {
                    send_all(waiting, outcome);
                    None
                })
            }
            Output::Settled { caller, outcomes } => {
                let reply = self.settling.remove(&caller)?;
                Box::pin(async move {
                    let _ = reply.send(outcomes);
                    None
                })
            }
            Output::Staged {
                id,
                tip,
                target,
                is_kept,
            } => {
                let waiting = self.uploads.remove(&(id, tip, target))?;
                Box::pin(async move {
                    send_all(waiting, is_kept);
                    None
                })
            }
            _ => return None,
        })
    }
}

/// Sends the same answer to all who wait for it.
fn send_all<T: Copy>(waiting: Vec<oneshot::Sender<T>>, answer: T) {
    for reply in waiting {
        // The caller may be gone.
        let _ = reply.send(answer);
    }
}

/// The state of the task.
pub(super) struct Task {
    pub(super) purgatory: Purgatory,
    pub(super) queues: WorkQueues,
    pub(super) hunting: Option<HuntHandle>,
    pub(super) callers: Callers,
    pub(super) news: broadcast::Sender<RepoNews>,
    /// `false` while records cannot be written.
    pub(super) writes: watch::Sender<bool>,
}

impl Task {
    pub(super) async fn run(mut self, mut inbox: Inbox) {
        // Orders from while records could not be written.
        let mut late: VecDeque<Order> = VecDeque::new();
        loop {
            let order = match late.pop_front() {
                Some(order) => Some(order),
                None => self.next_order(&mut inbox).await,
            };
            let Some(order) = order else { break };
            let mut turns = vec![self.handle(order)];
            while turns.len() < MAX_TURNS_PER_WRITE {
                let next = late.pop_front().or_else(|| inbox.orders.try_recv().ok());
                let Some(order) = next else { break };
                turns.push(self.handle(order));
            }
            let records: Vec<_> = turns
                .iter_mut()
                .flat_map(|turn| std::mem::take(&mut turn.records))
                .collect();
            if let Err(error) = self.write(&records).await {
                tracing::error!(%error, "the database cannot be written; pushes and events are refused until it can (is the disk full?)");
                if !self.write_later(&records, &mut late, &mut inbox).await {
                    return;
                }
                tracing::info!("the database can be written again");
            }
            for turn in turns {
                self.perform(turn.effects);
            }
        }
        if let Err(error) = self.queues.executor.commit(Commit::default()).await {
            tracing::debug!(%error, "the last additions of git data were not saved");
        }
    }

    fn relay(&self) -> &dyn LocalRelay {
        &*self.queues.executor.parts.relay
    }

    /// Handles one order and returns its outputs.
    fn handle(&mut self, order: Order) -> Outputs {
        let now = self.relay().now();
        match order {
            Order::Tell(input) => self.purgatory.handle(now, input),
            Order::Hold {
                event,
                hold,
                origin,
                reply,
                decided,
            } => {
                let senders = self.callers.senders.entry(event.id).or_default();
                senders.push(EventSender { reply, decided });
                self.purgatory.handle(
                    now,
                    Input::Held {
                        event,
                        hold,
                        origin,
                    },
                )
            }
            Order::Ask(question) => {
                question(&self.purgatory);
                Outputs::default()
            }
            Order::Settle {
                repo,
                events,
                reply,
            } => {
                self.callers.last += 1;
                let caller = self.callers.last;
                self.callers.settling.insert(caller, reply);
                let settle = Input::Settle {
                    repo,
                    caller,
                    events,
                };
                self.purgatory.handle(now, settle)
            }
            Order::Stage { upload, reply } => {
                let Upload {
                    id, tip, target, ..
                } = &upload;
                let key = (*id, *tip, target.clone());
                self.callers.uploads.entry(key).or_default().push(reply);
                self.purgatory.handle(now, upload.into())
            }
            Order::Maintain { repo, done } => {
                self.maintain(repo, done);
                Outputs::default()
            }
        }
    }

    /// Queues the maintenance of a repository.
    fn maintain(&mut self, repo: RepoId, done: oneshot::Sender<()>) {
        let has_held = self.purgatory.has_held(&repo);
        let executor = self.queues.executor.clone();
        let maintained = repo.clone();
        let work: Work = Box::pin(async move {
            executor.maintain(&maintained, has_held).await;
            let _ = done.send(());
            None
        });
        self.queues.run(Some(repo), vec![work]);
    }

    /// Returns the next order; `None` once all handles are dropped.
    async fn next_order(&mut self, inbox: &mut Inbox) -> Option<Order> {
        tokio::select! {
            order = inbox.next(true) => order,
            () = until(self.relay(), self.purgatory.next_deadline()) => Some(Order::Tell(Input::Tick)),
        }
    }

    /// Writes records, before the outputs of their turns are executed.
    async fn write(&self, records: &[Record]) -> Result<(), DatabaseError> {
        if records.is_empty() && !self.queues.executor.disk.has_many_unsaved() {
            return Ok(());
        }
        let commit = Commit {
            records: records.to_vec(),
            ..Commit::default()
        };
        // Records alone are in conflict with nothing.
        self.queues.executor.commit(commit).await.map(drop)
    }

    /// Retries a failed write until it succeeds, and queues orders meanwhile; `false` if all handles were dropped.
    ///
    /// The core is ahead of the disk, so no outputs are executed. Questions are answered; callers who hold an event or
    /// wait for a condition get an error and may retry.
    async fn write_later(
        &mut self,
        records: &[Record],
        late: &mut VecDeque<Order>,
        inbox: &mut Inbox,
    ) -> bool {
        self.writes.send_replace(false);
        self.callers = Callers {
            last: self.callers.last,
            ..Callers::default()
        };
        let mut again = self.relay().now().mono + WRITE_RETRY;
        loop {
            let order = tokio::select! {
                () = until(self.relay(), Some(again)) => {
                    if self.write(records).await.is_ok() {
                        self.writes.send_replace(true);
                        return true;
                    }
                    again = self.relay().now().mono + WRITE_RETRY;
                    continue;
                }
                order = inbox.next(late.len() < ORDER_QUEUE) => order,
            };
            match order {
                None => return false,
                Some(Order::Hold { .. }) => {}
                Some(Order::Settle { repo, .. }) => {
                    late.push_back(Order::Tell(Input::Changed { repo }));
                }
                Some(Order::Stage { upload, .. }) => late.push_back(Order::Tell(upload.into())),
                Some(Order::Ask(question)) => question(&self.purgatory),
                Some(order) => late.push_back(order),
            }
        }
    }

    /// Passes the outputs of one turn to their queues.
    fn perform(&mut self, turn: Vec<Output>) {
        for news in turn.iter().filter_map(|output| self.change_of(output)) {
            // Without subscribers sending fails, which is fine.
            let _ = self.news.send(news);
        }
        for (repo, outputs) in queue::by_repo(turn) {
            let work: Vec<_> = outputs.into_iter().filter_map(|it| self.work(it)).collect();
            if !work.is_empty() {
                self.queues.run(repo, work);
            }
        }
    }

    /// Returns the change that an output is: a view is created and removed with its announcement.
    fn change_of(&self, output: &Output) -> Option<RepoNews> {
        match output {
            Output::RunTask(CleanupTask::CreateView { repo }) => {
                self.purgatory.held_announcement(repo).map(RepoNews::Held)
            }
            Output::RunTask(CleanupTask::RemoveView { repo, .. }) => {
                Some(RepoNews::Removed(repo.clone()))
            }
            _ => None,
        }
    }

    /// Returns the execution of an output, with what it needs of the task's state; `None` if there is nothing left to do.
    fn work(&mut self, output: Output) -> Option<Work> {
        let executor = self.queues.executor.clone();
        Some(match output {
            Output::RunTask(task) => Box::pin(async move { Some(executor.task(task).await) }),
            Output::Survey { repo } => Box::pin(async move { Some(executor.survey(repo).await) }),
            Output::Release {
                repo,
                refs,
                events,
                withdraw,
            } => {
                Box::pin(async move { Some(executor.release(repo, refs, events, withdraw).await) })
            }
            Output::Wake { repo, cause } => {
                // Not in a queue: it only sends inputs, and nothing waits for it.
                tokio::spawn(async move { executor.wake(&repo, cause).await });
                return None;
            }
            Output::Publish { events } => Box::pin(async move {
                for event in events {
                    executor.parts.relay.publish(event).await;
                }
                None
            }),
            Output::Answer { .. }
            | Output::Decided { .. }
            | Output::Settled { .. }
            | Output::Staged { .. } => return self.callers.answer(output),
            Output::Hunt { repo, after } => {
                self.hunting.as_ref()?.want(repo, after);
                return None;
            }
        })
    }
}

/// Sleeps until a deadline; for ever without one.
async fn until(relay: &dyn LocalRelay, deadline: Option<Mono>) {
    match deadline {
        Some(deadline) => tokio::time::sleep(deadline - relay.now().mono).await,
        None => std::future::pending().await,
    }
}
