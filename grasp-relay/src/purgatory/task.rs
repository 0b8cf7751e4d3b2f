//! The task that owns the core: one order after another, each written down before anything is done about it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use grasp_core::{Identifier, Mono};
use grasp_purgatory::hunt::HuntHandle;
use grasp_purgatory::journal::Record;
use grasp_purgatory::journal::{Journal, JournalError};
use grasp_purgatory::{CleanupTask, HoldOutcome, Input, Output, PassNumber, Purgatory};
use nostr::event::EventId;
use tokio::sync::{broadcast, mpsc, oneshot, watch};

use super::lane::{self, Lanes, Op};
use super::maintenance::{MaintenanceSchedule, Step};
use super::survey::SurveyRequest;
use super::{JOURNAL, ORDER_QUEUE, Order, Question, RepoChange, Until, Waiter};
use crate::clock::Clock;

/// Turns that share one write of the journal, at most.
const MAX_TURNS_PER_WRITE: usize = 64;
/// How long a journal that refused a write is left alone.
const WRITE_RETRY: Duration = Duration::from_secs(1);

/// Where all that is told and asked arrives.
pub(super) struct Inbox {
    pub(super) orders: mpsc::Receiver<Order>,
    /// Asked while orders may have to wait.
    pub(super) questions: mpsc::Receiver<Question>,
}

impl Inbox {
    /// The next of either, or the next question if orders have to wait; `None` once nobody can want anything any more.
    async fn next(&mut self, takes_orders: bool) -> Option<Order> {
        tokio::select! {
            order = self.orders.recv(), if takes_orders => order,
            Some(question) = self.questions.recv() => Some(Order::Ask(question)),
            else => None,
        }
    }
}

/// What somebody waits for, found out when they began to.
pub(super) enum Awaited {
    /// The end of these passes, or that this event is gone from purgatory.
    Passes { event: Option<EventId>, passes: Vec<(Identifier, PassNumber)> },
    /// That no round is under way.
    MaintenanceIdle,
}

/// The one owner of the core.
pub(super) struct Task {
    pub(super) purgatory: Purgatory,
    /// Away while it is written to.
    pub(super) journal: Option<Journal>,
    pub(super) lanes: Lanes,
    pub(super) hunting: Option<HuntHandle>,
    pub(super) answers: BTreeMap<EventId, Vec<oneshot::Sender<HoldOutcome>>>,
    pub(super) waiters: Vec<(Awaited, Waiter)>,
    pub(super) maintenance: MaintenanceSchedule,
    pub(super) clock: Clock,
    pub(super) news: broadcast::Sender<RepoChange>,
    /// Whether the journal took what it was last given.
    pub(super) writes: watch::Sender<bool>,
}

impl Task {
    pub(super) async fn run(mut self, mut inbox: Inbox) {
        // What happened while the journal could not be written.
        let mut late: VecDeque<Order> = VecDeque::new();
        loop {
            let order = match late.pop_front() {
                Some(order) => Some(order),
                None => self.next_order(&mut inbox).await,
            };
            let Some(order) = order else { return };
            let mut turns = vec![self.take(order)];
            while turns.len() < MAX_TURNS_PER_WRITE {
                let next = late.pop_front().or_else(|| inbox.orders.try_recv().ok());
                let Some(order) = next else { break };
                turns.push(self.take(order));
            }
            let records = records_of(&mut turns);
            if let Err(error) = self.write(&records).await {
                tracing::error!(%error, "the journal cannot be written; nothing more is taken until it can");
                if !self.write_later(&records, &mut late, &mut inbox).await {
                    return;
                }
                tracing::info!("the journal can be written again");
            }
            for turn in turns {
                self.perform(turn);
            }
            self.wake();
        }
    }

    /// Lets the core handle one order.
    fn take(&mut self, order: Order) -> Vec<Output> {
        let now = self.clock.now();
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

    /// Goes on with the round, if it is time.
    fn continue_maintenance(&mut self, now: Mono) -> Vec<Output> {
        match self.maintenance.next_step(now) {
            Some(Step::List) => self.lanes.list(),
            Some(Step::Maintain(identifier)) => {
                let waits = !self.purgatory.held_events(&identifier).is_empty();
                let waiting = waits.then(|| self.purgatory.wanted_tips(&identifier));
                self.lanes.run(Some(identifier.clone()), vec![Op::Tidy { identifier, waiting }]);
            }
            None => {}
        }
        Vec::new()
    }

    /// What is to be done next; `None` once nobody can want anything any more.
    async fn next_order(&mut self, inbox: &mut Inbox) -> Option<Order> {
        tokio::select! {
            order = inbox.next(true) => order,
            () = until(&self.clock, self.purgatory.next_deadline()) => Some(Order::Tell(Input::Tick)),
            () = until(&self.clock, self.maintenance.deadline()) => Some(Order::MaintenanceDue),
        }
    }

    /// Writes records at once, before anything else of their turns is done.
    async fn write(&mut self, records: &[Record]) -> Result<(), JournalError> {
        let Some(mut journal) = self.journal.take() else { return Ok(()) };
        if records.is_empty() {
            self.journal = Some(journal);
            return Ok(());
        }
        tracing::trace!(target: JOURNAL, records = records.len(), "writing");
        let snapshot = journal.is_long().then(|| self.purgatory.snapshot());
        let records = records.to_vec();
        let write = tokio::task::spawn_blocking(move || {
            // A snapshot is of the core as it is now: it says what the new records say, and more shortly.
            let written = match snapshot {
                Some(snapshot) => journal.compact(&snapshot),
                None => journal.append(&records),
            };
            (journal, written)
        });
        let (journal, written) = write.await.expect("writing the journal does not panic");
        self.journal = Some(journal);
        tracing::trace!(target: JOURNAL, "written");
        written
    }

    /// Tries until the journal takes what it refused: a full disk may have room again. What happens meanwhile waits
    /// behind what waits already; `false` if nobody is left who could want anything.
    ///
    /// The core knows more than the disk now, so nothing is done about it. Questions are answered; whoever brings an
    /// event, has brought one, or waits for something to be done, is turned away and may try again.
    async fn write_later(
        &mut self,
        records: &[Record],
        late: &mut VecDeque<Order>,
        inbox: &mut Inbox,
    ) -> bool {
        self.writes.send_replace(false);
        self.answers.clear();
        self.waiters.retain(|(_, waiter)| matches!(waiter, Waiter::Maintenance(_)));
        let mut again = self.clock.now().mono + WRITE_RETRY;
        loop {
            let order = tokio::select! {
                () = until(&self.clock, Some(again)) => {
                    if self.write(records).await.is_ok() {
                        self.writes.send_replace(true);
                        return true;
                    }
                    again = self.clock.now().mono + WRITE_RETRY;
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

    /// LaneExecutor the outputs of one turn to the lanes they belong to.
    fn perform(&mut self, turn: Vec<Output>) {
        for news in turn.iter().filter_map(|output| self.news_of(output)) {
            // That nobody listens is no failure.
            let _ = self.news.send(news);
        }
        for (lane, outputs) in lane::by_lane(turn) {
            let ops: Vec<Op> = outputs.into_iter().flat_map(|output| self.op(output)).collect();
            if !ops.is_empty() {
                self.lanes.run(lane, ops);
            }
        }
    }

    /// A view comes with its announcement, and goes with it.
    fn news_of(&self, output: &Output) -> Option<RepoChange> {
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

    fn op(&mut self, output: Output) -> Vec<Op> {
        match output {
            Output::Journal(_) => Vec::new(),
            Output::RunTask(task) => vec![Op::Do(task)],
            Output::Answer { id, outcome } => {
                let waiting = self.answers.remove(&id).unwrap_or_default();
                waiting.into_iter().map(|reply| Op::Answer { reply, outcome }).collect()
            }
            Output::Survey { identifier } => {
                vec![Op::Survey(SurveyRequest::of(&self.purgatory, identifier))]
            }
            Output::Apply { identifier, views, proposals } => {
                vec![Op::Apply { identifier, views, proposals }]
            }
            Output::Store { identifier, events, withdraw } => {
                vec![Op::Store { identifier, events, withdraw }]
            }
            Output::Publish { events } => vec![Op::Publish(events)],
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
        }
    }

    /// Tells those whose waiting is over. The end of a visit may be what somebody else waits for.
    fn wake(&mut self) {
        let mut goes_on = true;
        while std::mem::take(&mut goes_on) {
            for (awaited, waiter) in std::mem::take(&mut self.waiters) {
                match waiter {
                    Waiter::Caller(reply) if reply.is_closed() => {}
                    waiter if !self.is_over(&awaited) => self.waiters.push((awaited, waiter)),
                    Waiter::Caller(reply) => _ = reply.send(()),
                    Waiter::Maintenance(name) => {
                        self.maintenance.maintained(self.clock.now().mono, &name);
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

/// Takes the records out of what is to be done.
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

/// Sleeps until a point of the clock; for ever without one.
async fn until(clock: &Clock, deadline: Option<Mono>) {
    match deadline {
        Some(deadline) => tokio::time::sleep(deadline - clock.now().mono).await,
        None => std::future::pending().await,
    }
}
