//! Executes the outputs of purgatory: in order for one repository, concurrently for different ones.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;

use grasp_core::RepoId;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;

use super::damage::Damage;
use super::refs::Unavailable;
use super::{DiskBudget, Order, PurgatoryParts, QuotaAccount};
use crate::active_work::ActiveWork;
use crate::database::{Commit, Committed, DatabaseError};
use crate::git::GitError;
use crate::{CleanupTask, Input, Output, Purgatory, WakeCause};

/// Queues beyond which ended ones are removed.
const MAX_KNOWN_QUEUES: usize = 1_024;

/// Surveys that read store and refs at the same time: after a start all repositories are surveyed.
const MAX_CONCURRENT_SURVEYS: usize = 16;

/// One unit of work in a queue. Returns the input that reports its end, if there is one.
pub(super) type Work = Pin<Box<dyn Future<Output = Option<Input>> + Send>>;

/// Groups the outputs of one turn by queue, in their order. An output without a repository goes to the queue of the first
/// that has one.
pub(super) fn by_repo(turn: Vec<Output>) -> BTreeMap<Option<RepoId>, Vec<Output>> {
    let default = turn.iter().find_map(repo_of).cloned();
    let mut queues: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for output in turn {
        let repo = repo_of(&output).or(default.as_ref()).cloned();
        queues.entry(repo).or_default().push(output);
    }
    queues
}

/// Returns the repository of an output's queue, if it has one.
fn repo_of(output: &Output) -> Option<&RepoId> {
    match output {
        Output::Survey { repo } | Output::Release { repo, .. } => Some(repo),
        Output::RunTask(
            CleanupTask::CreateView { repo } | CleanupTask::RemoveView { repo, .. },
        ) => Some(repo),
        Output::RunTask(
            CleanupTask::ClearProposal { repos, .. } | CleanupTask::ClearObjects { repos, .. },
        ) => repos.first(),
        _ => None,
    }
}

/// The queues: each new tokio task of a queue waits for the one before it.
pub(super) struct WorkQueues {
    pub(super) executor: Executor,
    tails: BTreeMap<Option<RepoId>, JoinHandle<()>>,
}

impl WorkQueues {
    pub(super) fn new(executor: Executor) -> Self {
        Self {
            executor,
            tails: BTreeMap::new(),
        }
    }

    pub(super) fn run(&mut self, repo: Option<RepoId>, work: Vec<Work>) {
        if self.tails.len() > MAX_KNOWN_QUEUES {
            self.tails.retain(|_, tail| !tail.is_finished());
        }
        let before = self.tails.remove(&repo);
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
        self.tails.insert(repo, tail);
    }
}

/// Performs the work of the queues, with what all handles of the driver share.
#[derive(Clone)]
pub(super) struct Executor {
    pub(super) parts: Arc<PurgatoryParts>,
    pub(super) active_work: ActiveWork,
    pub(super) damage: Damage,
    pub(super) disk: DiskBudget,
    pub(super) quota: QuotaAccount,
    pub(super) unavailable: Unavailable,
    /// Permits of surveys to read.
    pub(super) readers: Arc<Semaphore>,
    orders: mpsc::WeakSender<Order>,
}

impl Executor {
    pub(super) fn new(parts: PurgatoryParts, orders: mpsc::WeakSender<Order>) -> Self {
        let database = Arc::clone(parts.repos.database());
        let quota = QuotaAccount::new(database, Arc::clone(&parts.relay), parts.quotas.clone());
        Self {
            disk: DiskBudget::default(),
            quota,
            parts: Arc::new(parts),
            active_work: ActiveWork::default(),
            damage: Damage::default(),
            unavailable: Unavailable::default(),
            readers: Arc::new(Semaphore::new(MAX_CONCURRENT_SURVEYS)),
            orders,
        }
    }

    /// Sends an input to purgatory.
    pub(super) async fn tell(&self, input: Input) {
        self.order(Order::Tell(input)).await;
    }

    /// Calls a function with the state of purgatory.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Purgatory) -> T + Send + 'static,
    ) -> Result<T, GitError> {
        let (reply, answer) = oneshot::channel();
        let question = move |purgatory: &Purgatory| _ = reply.send(question(purgatory));
        let orders = self.orders.upgrade().ok_or(GitError::Stopping)?;
        let asked = orders.send(Order::Ask(Box::new(question))).await;
        asked.map_err(|_| GitError::Stopping)?;
        drop(orders);
        answer.await.map_err(|_| GitError::Stopping)
    }

    /// Surveys the repositories that an event of this one may concern, but not this one.
    pub(super) async fn wake(&self, repo: &RepoId, cause: WakeCause) {
        match self.concerned(repo, cause).await {
            Ok(concerned) => {
                for repo in concerned {
                    self.tell(Input::Changed { repo }).await;
                }
            }
            Err(error) => {
                tracing::warn!(%error, %repo, "could not read which repositories an event concerns");
            }
        }
    }

    /// Surveys the repositories whose events were removed, and those that this concerns.
    pub(super) async fn wake_affected(&self, affected: impl IntoIterator<Item = RepoId>) {
        for repo in affected {
            self.tell(Input::Changed { repo: repo.clone() }).await;
            self.wake(&repo, WakeCause::Announcement).await;
        }
    }

    /// Returns the other repositories that an event of this one may concern.
    async fn concerned(&self, repo: &RepoId, cause: WakeCause) -> Result<Vec<RepoId>, GitError> {
        let _reading = self.readers.acquire().await;
        let mut reader = self.reach_reader(&repo.identifier);
        let mut concerned = Vec::new();
        match cause {
            WakeCause::Announcement => {
                for owner in reader.related(&repo.owner).await? {
                    concerned.push(RepoId::new(owner, repo.identifier.clone()));
                }
            }
            WakeCause::Content => {
                reader.read([repo.owner]).await?;
                if reader.get(&repo.owner).is_none() {
                    // A pull request may name many repositories that are not here.
                    return Ok(concerned);
                }
                for maintained in reader.maintained_by(&repo.owner).await? {
                    let owner = maintained.repo.owner;
                    let reach = reader.reach(&owner).await?;
                    // An address has no refs that would follow.
                    if reader.shown_by(&owner, &reach).is_none() {
                        concerned.push(maintained.repo);
                    }
                }
            }
        }
        concerned.retain(|other| other != repo);
        Ok(concerned)
    }

    /// Commits, together with the additions that are in no commit yet.
    pub(super) async fn commit(&self, commit: Commit) -> Result<Committed, DatabaseError> {
        self.disk
            .commit(&**self.parts.repos.database(), commit)
            .await
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

    use nostr::event::EventId;
    use nostr::key::PublicKey;

    use super::*;
    use crate::HoldOutcome;

    #[test]
    fn outputs_are_in_order_for_one_repository_and_separate_for_others() {
        let repo =
            |text: &str| RepoId::new(PublicKey::from_byte_array([1; 32]), text.parse().unwrap());
        let id = EventId::from_byte_array([1; 32]);
        let repos = BTreeSet::from([repo("y"), repo("z")]);
        let turn = vec![
            Output::RunTask(CleanupTask::CreateView { repo: repo("x") }),
            Output::RunTask(CleanupTask::ClearProposal {
                id,
                keep: BTreeSet::new(),
                repos,
            }),
            Output::Answer {
                id,
                outcome: HoldOutcome::Held,
            },
            Output::Survey { repo: repo("x") },
            Output::Survey { repo: repo("y") },
            Output::Survey { repo: repo("z") },
        ];
        let queues = by_repo(turn).into_iter().map(|(repo, outputs)| {
            let words = outputs.iter().map(|output| match output {
                Output::RunTask(CleanupTask::CreateView { .. }) => "create",
                Output::RunTask(_) => "clear",
                Output::Answer { .. } => "answer",
                _ => "survey",
            });
            (
                repo.unwrap().identifier.to_string(),
                words.collect::<Vec<_>>().join(" "),
            )
        });
        let expected = [
            ("x", "create answer survey"),
            ("y", "clear survey"),
            ("z", "survey"),
        ];
        assert_eq!(
            queues.collect::<Vec<_>>(),
            expected.map(|(q, w)| (q.to_owned(), w.to_owned()))
        );
    }

    #[test]
    fn outputs_without_repository_have_a_queue_of_their_own() {
        let queues = by_repo(vec![Output::Publish { events: Vec::new() }]);
        assert_eq!(queues.into_keys().collect::<Vec<_>>(), [None]);
    }
}
