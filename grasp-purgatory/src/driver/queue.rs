//! Executes the outputs of purgatory: in order for one identifier, concurrently for different ones.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;

use grasp_core::Identifier;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;

use super::damage::Damage;
use super::refs::Unrelated;
use super::{DiskBudget, Order, PurgatoryParts};
use crate::active_work::ActiveWork;
use crate::database::{Commit, Committed, DatabaseError};
use crate::{CleanupTask, Input, Output};

/// Queues beyond which ended ones are removed.
const MAX_KNOWN_QUEUES: usize = 1_024;

/// Surveys that read store and refs at the same time: after a start all identifiers are surveyed.
const MAX_CONCURRENT_SURVEYS: usize = 16;

/// One unit of work in a queue. Returns the input that reports its end, if there is one.
pub(super) type Work = Pin<Box<dyn Future<Output = Option<Input>> + Send>>;

/// Groups the outputs of one turn by queue, in their order. An output without an identifier goes to the queue of the first
/// that has one.
pub(super) fn by_identifier(turn: Vec<Output>) -> BTreeMap<Option<Identifier>, Vec<Output>> {
    let default = turn.iter().find_map(identifier_of).cloned();
    let mut queues: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for output in turn {
        let identifier = identifier_of(&output).or(default.as_ref()).cloned();
        queues.entry(identifier).or_default().push(output);
    }
    queues
}

/// Returns the identifier of an output's queue, if it has one.
fn identifier_of(output: &Output) -> Option<&Identifier> {
    match output {
        Output::Survey { identifier } | Output::Release { identifier, .. } => Some(identifier),
        Output::RunTask(
            CleanupTask::CreateView { repo } | CleanupTask::RemoveView { repo, .. },
        ) => Some(&repo.identifier),
        Output::RunTask(CleanupTask::ClearProposal { names, .. }) => names.first(),
        _ => None,
    }
}

/// The queues: each new tokio task of a queue waits for the one before it.
pub(super) struct WorkQueues {
    pub(super) executor: Executor,
    tails: BTreeMap<Option<Identifier>, JoinHandle<()>>,
}

impl WorkQueues {
    pub(super) fn new(executor: Executor) -> Self {
        Self { executor, tails: BTreeMap::new() }
    }

    pub(super) fn run(&mut self, identifier: Option<Identifier>, work: Vec<Work>) {
        if self.tails.len() > MAX_KNOWN_QUEUES {
            self.tails.retain(|_, tail| !tail.is_finished());
        }
        let before = self.tails.remove(&identifier);
        let executor = self.executor.clone();
        let tail = tokio::spawn(async move {
            if let Some(before) = before {
                let _ = before.await;
            }
            for work in work {
                if let Some(input) = work.await {
                    executor.tell(input).await;
                }
            }
        });
        self.tails.insert(identifier, tail);
    }
}

/// Performs the work of the queues, with what all handles of the driver share.
#[derive(Clone)]
pub(super) struct Executor {
    pub(super) parts: Arc<PurgatoryParts>,
    pub(super) active_work: ActiveWork,
    pub(super) damage: Damage,
    pub(super) disk: DiskBudget,
    pub(super) unrelated: Unrelated,
    /// Permits of surveys to read.
    pub(super) readers: Arc<Semaphore>,
    orders: mpsc::WeakSender<Order>,
}

impl Executor {
    pub(super) fn new(parts: PurgatoryParts, orders: mpsc::WeakSender<Order>) -> Self {
        Self {
            disk: DiskBudget::new(parts.repository_bytes),
            parts: Arc::new(parts),
            active_work: ActiveWork::default(),
            damage: Damage::default(),
            unrelated: Unrelated::default(),
            readers: Arc::new(Semaphore::new(MAX_CONCURRENT_SURVEYS)),
            orders,
        }
    }

    /// Sends an input to purgatory.
    pub(super) async fn tell(&self, input: Input) {
        self.order(Order::Tell(input)).await;
    }

    /// Commits, together with the additions that are in no commit yet.
    pub(super) async fn commit(&self, commit: Commit) -> Result<Committed, DatabaseError> {
        self.disk.commit(&**self.parts.repos.database(), commit).await
    }

    pub(super) async fn order(&self, order: Order) {
        if let Some(orders) = self.orders.upgrade() {
            let _ = orders.send(order).await;
        }
    }

    pub(super) async fn task(&self, task: CleanupTask) -> Input {
        match self.try_task(&task).await {
            Ok(()) => Input::TaskDone(task),
            Err(error) => {
                tracing::warn!(%error, ?task, "a cleanup task failed and is retried");
                Input::TaskFailed(task)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use grasp_core::RepoId;
    use nostr::event::EventId;
    use nostr::key::PublicKey;

    use super::*;
    use crate::HoldOutcome;

    #[test]
    fn outputs_are_in_order_for_one_identifier_and_separate_for_others() {
        let name = |text: &str| text.parse::<Identifier>().unwrap();
        let repo = |text| RepoId::new(PublicKey::from_byte_array([1; 32]), name(text));
        let id = EventId::from_byte_array([1; 32]);
        let names = BTreeSet::from([name("y"), name("z")]);
        let turn = vec![
            Output::RunTask(CleanupTask::CreateView { repo: repo("x") }),
            Output::RunTask(CleanupTask::ClearProposal { id, keep: BTreeSet::new(), names }),
            Output::Answer { id, outcome: HoldOutcome::Held },
            Output::Survey { identifier: name("x") },
            Output::Survey { identifier: name("y") },
            Output::Survey { identifier: name("z") },
        ];
        let queues = by_identifier(turn).into_iter().map(|(identifier, outputs)| {
            let words = outputs.iter().map(|output| match output {
                Output::RunTask(CleanupTask::CreateView { .. }) => "create",
                Output::RunTask(_) => "clear",
                Output::Answer { .. } => "answer",
                _ => "survey",
            });
            (identifier.unwrap().to_string(), words.collect::<Vec<_>>().join(" "))
        });
        let expected = [("x", "create answer survey"), ("y", "clear survey"), ("z", "survey")];
        assert_eq!(queues.collect::<Vec<_>>(), expected.map(|(q, w)| (q.to_owned(), w.to_owned())));
    }

    #[test]
    fn outputs_without_identifier_have_a_queue_of_their_own() {
        let queues = by_identifier(vec![Output::Publish { events: Vec::new() }]);
        assert_eq!(queues.into_keys().collect::<Vec<_>>(), [None]);
    }
}
