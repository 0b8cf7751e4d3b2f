//! The task that owns the core: handles one order after another, and writes its records before it executes its outputs.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use grasp_core::{Identifier, Mono};
use nostr::event::EventId;
use tokio::sync::{broadcast, mpsc, oneshot, watch};

use super::maintenance::{MaintenanceSchedule, MaintenanceStep};
use super::queue::{self, Work, WorkQueues};
use super::survey::SurveyRequest;
use super::{
    DiskBudget, JOURNAL, LocalRelay, ORDER_QUEUE, Order, Question, RepoChange, Until, Waiter,
};
use crate::database::{Addition, Commit, Database, DatabaseError};
use crate::hunt::HuntHandle;
use crate::purgatory::Record;
use crate::{CleanupTask, HoldOutcome, Input, Output, PassNumber, Purgatory};

/// Turns that share one write of their records.
const MAX_TURNS_PER_WRITE: usize = 64;

/// Time between attempts to write records.
const WRITE_RETRY: Duration = Duration::from_secs(1);

pub(super) struct Inbox {
    pub(super) orders: mpsc::Receiver<Order>,
    /// Questions that are answered while orders wait.
    pub(super) questions: mpsc::Receiver<Question>,
}

impl Inbox {
    /// Returns the next order or question, or only the next question if orders wait; `None` once all handles are dropped.
    async fn next(&mut self, takes_orders: bool) -> Option<Order> {
        tokio::select! {
            order = self.orders.recv(), if takes_orders => order,
            Some(question) = self.questions.recv() => Some(Order::Ask(question)),
            else => None,
        }
    }
}

/// The condition of a waiter, resolved when it began to wait.
pub(super) enum Awaited {
    /// These passes have ended, or this event is no longer in purgatory.
    Passes { event: Option<EventId>, passes: Vec<(Identifier, PassNumber)> },
    /// Maintenance is not running.
    MaintenanceIdle,
}

/// The state of the task.
pub(super) struct Task {
    pub(super) purgatory: Purgatory,
    pub(super) database: Arc<dyn Database>,
    pub(super) disk: DiskBudget,
    pub(super) queues: WorkQueues,
    pub(super) hunting: Option<HuntHandle>,
    pub(super) answers: BTreeMap<EventId, Vec<oneshot::Sender<HoldOutcome>>>,
    pub(super) waiters: Vec<(Awaited, Waiter)>,
    pub(super) maintenance: MaintenanceSchedule,
    pub(super) relay: Arc<dyn LocalRelay>,
    pub(super) news: broadcast::Sender<RepoChange>,
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
            let records = records_of(&mut turns);
            if let Err(error) = self.write(&records).await {
                tracing::error!(%error, "the database cannot be written; pushes and events are refused until it can (is the disk full?)");
                if !self.write_later(&records, &mut late, &mut inbox).await {
                    return;
                }
                tracing::info!("the database can be written again");
            }
            for turn in turns {
                self.perform(turn);
            }
            self.wake();
        }
        if let Err(error) = self.commit(&[], self.disk.take_unsaved()).await {
            tracing::debug!(%error, "the last additions of git data were not saved");
        }
    }

    /// Handles one order and returns its outputs.
    fn handle(&mut self, order: Order) -> Vec<Output> {
        let now = self.relay.now();
        match order {
            Order::Tell(input) => self.purgatory.handle(now, input),
            Order::Hold { event, hold, origin, reply } => {
                self.answers.entry(event.id).or_default().push(reply);
                self.purgatory.handle(now, Input::Held { event, hold, origin })
            }
            Order::Ask(question) => {
                question(&self.purgatory);
                Vec::new()
            }
            Order::Wait { until, reply } => {
                self.waiters.push((self.awaited(until), Waiter::Caller(reply)));
                Vec::new()
            }
            Order::StartMaintenance => {
                self.maintenance.start_now(now.mono);
                self.continue_maintenance(now.mono)
            }
            Order::MaintenanceDue => self.continue_maintenance(now.mono),
            Order::Listed(names) => {
                self.maintenance.listed(now.mono, names);
                Vec::new()
            }
            Order::Maintained(identifier) => {
                let changed = Input::Changed { identifier: identifier.clone() };
                let outputs = self.purgatory.handle(now, changed);
                let settled = self.awaited(Until::Settled(identifier.clone()));
                self.waiters.push((settled, Waiter::Maintenance(identifier)));
                outputs
            }
        }
    }

    fn awaited(&self, until: Until) -> Awaited {
        match until {
            Until::Settled(name) => {
                let pass = self.purgatory.pending_pass(&name);
                let passes = pass.map(|pass| (name, pass)).into_iter().collect();
                Awaited::Passes { event: None, passes }
            }
            Until::Decided(id) => {
                Awaited::Passes { event: Some(id), passes: self.purgatory.passes_for(&id) }
            }
            Until::MaintenanceIdle => Awaited::MaintenanceIdle,
        }
    }

    /// Starts the next step of maintenance, if it is due.
    fn continue_maintenance(&mut self, now: Mono) -> Vec<Output> {
        match self.maintenance.next_step(now) {
            Some(MaintenanceStep::List) => self.queues.list(),
            Some(MaintenanceStep::Maintain(identifier)) => {
                let waits = !self.purgatory.held_events(&identifier).is_empty();
                let waiting = waits.then(|| self.purgatory.wanted_tips(&identifier));
                self.queues
                    .run(Some(identifier.clone()), vec![Work::Maintain { identifier, waiting }]);
            }
            None => {}
        }
        Vec::new()
    }

    /// Returns the next order; `None` once all handles are dropped.
    async fn next_order(&mut self, inbox: &mut Inbox) -> Option<Order> {
        tokio::select! {
            order = inbox.next(true) => order,
            () = until(&*self.relay, self.purgatory.next_deadline()) => Some(Order::Tell(Input::Tick)),
            () = until(&*self.relay, self.maintenance.deadline()) => Some(Order::MaintenanceDue),
        }
    }

    /// Writes records, before the outputs of their turns are executed.
    async fn write(&self, records: &[Record]) -> Result<(), DatabaseError> {
        let additions = match records.is_empty() {
            true => self.disk.take_many_unsaved(),
            false => self.disk.take_unsaved(),
        };
        self.commit(records, additions).await
    }

    async fn commit(
        &self,
        records: &[Record],
        additions: Vec<Addition>,
    ) -> Result<(), DatabaseError> {
        if records.is_empty() && additions.is_empty() {
            return Ok(());
        }
        tracing::trace!(target: JOURNAL, records = records.len(), "writing");
        let records = records.to_vec();
        let commit = Commit { records, additions: additions.clone(), ..Commit::default() };
        // Records alone are in conflict with nothing.
        if let Err(error) = self.database.commit(commit).await {
            self.disk.put_back(additions);
            return Err(error);
        }
        tracing::trace!(target: JOURNAL, "written");
        Ok(())
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
        self.answers.clear();
        self.waiters.retain(|(_, waiter)| matches!(waiter, Waiter::Maintenance(_)));
        let mut again = self.relay.now().mono + WRITE_RETRY;
        loop {
            let order = tokio::select! {
                () = until(&*self.relay, Some(again)) => {
                    if self.write(records).await.is_ok() {
                        self.writes.send_replace(true);
                        return true;
                    }
                    again = self.relay.now().mono + WRITE_RETRY;
                    continue;
                }
                order = inbox.next(late.len() < ORDER_QUEUE) => order,
            };
            match order {
                None => return false,
                Some(Order::Hold { .. } | Order::Wait { .. }) => {}
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
        for (identifier, outputs) in queue::by_identifier(turn) {
            let work: Vec<Work> =
                outputs.into_iter().flat_map(|output| self.work(output)).collect();
            if !work.is_empty() {
                self.queues.run(identifier, work);
            }
        }
    }

    /// Returns the change that an output is: a view is created and removed with its announcement.
    fn change_of(&self, output: &Output) -> Option<RepoChange> {
        match output {
            Output::RunTask(CleanupTask::CreateView { repo }) => {
                self.purgatory.held_announcement(repo).map(RepoChange::Held)
            }
            Output::RunTask(CleanupTask::RemoveView { repo, .. }) => {
                Some(RepoChange::Removed(repo.clone()))
            }
            _ => None,
        }
    }

    /// Adds to an output what its execution needs of the task's state.
    fn work(&mut self, output: Output) -> Vec<Work> {
        match output {
            Output::Answer { id, outcome } => {
                let waiting = self.answers.remove(&id).unwrap_or_default();
                waiting.into_iter().map(|reply| Work::Answer { reply, outcome }).collect()
            }
            Output::Survey { identifier } => {
                vec![Work::Survey(SurveyRequest::of(&self.purgatory, identifier))]
            }
            Output::Hunt { identifier, after } => {
                if let Some(hunting) = &self.hunting {
                    hunting.want(identifier, after);
                }
                Vec::new()
            }
            Output::Report(report) => {
                tracing::warn!(?report, "purgatory");
                Vec::new()
            }
            output => vec![Work::Output(output)],
        }
    }

    /// Wakes waiters whose condition holds. The end of a step of maintenance may be the condition of another.
    fn wake(&mut self) {
        let mut goes_on = true;
        while std::mem::take(&mut goes_on) {
            for (awaited, waiter) in std::mem::take(&mut self.waiters) {
                match waiter {
                    Waiter::Caller(reply) if reply.is_closed() => {}
                    waiter if !self.is_over(&awaited) => self.waiters.push((awaited, waiter)),
                    Waiter::Caller(reply) => _ = reply.send(()),
                    Waiter::Maintenance(name) => {
                        self.maintenance.maintained(self.relay.now().mono, &name);
                        goes_on = true;
                    }
                }
            }
        }
    }

    fn is_over(&self, awaited: &Awaited) -> bool {
        match awaited {
            Awaited::Passes { event, passes } => {
                event.is_some_and(|id| !self.purgatory.contains(&id))
                    || passes.iter().all(|(name, pass)| self.purgatory.pass_ended(name, *pass))
            }
            Awaited::MaintenanceIdle => self.maintenance.is_idle(),
        }
    }
}

/// Takes the records out of the outputs.
fn records_of(turns: &mut [Vec<Output>]) -> Vec<Record> {
    let mut records = Vec::new();
    for turn in turns {
        turn.retain_mut(|output| match output {
            Output::Journal(record) => {
                records.push(record.clone());
                false
            }
            _ => true,
        });
    }
    records
}

/// Sleeps until a deadline; for ever without one.
async fn until(relay: &dyn LocalRelay, deadline: Option<Mono>) {
    match deadline {
        Some(deadline) => tokio::time::sleep(deadline - relay.now().mono).await,
        None => std::future::pending().await,
    }
}
