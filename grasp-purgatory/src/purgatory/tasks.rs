//! Changes of git data that stay pending until they are done.

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::{Mono, Oid, RepoId};
use nostr::event::EventId;
use serde::{Deserialize, Serialize};

use super::io::{Output, Outputs, Record};

/// An idempotent change of git data that stays pending until it is done, also across a crash.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(
    missing_docs,
    reason = "fields are documented where the name does not say it all"
)]
pub enum CleanupTask {
    /// Create an empty view for a repository, unless it has one.
    CreateView { repo: RepoId },
    /// Take a view out of service, into retention.
    ///
    /// To be checked again under the lock of the repository: the view stays if a stored announcement asks for it.
    RemoveView {
        repo: RepoId,
        /// Removes the view although a push to it is under way, which then fails: its owner withdrew it. Without it
        /// the task fails during a push: the announcement only expired.
        #[serde(default, rename = "at_once")]
        is_immediate: bool,
    },
    /// Remove from staging all tips of a pull request but those in `keep`, and `refs/nostr/<id>` from these repositories
    /// where it is neither one of these nor the tip of a stored event of that id.
    ClearProposal {
        id: EventId,
        keep: BTreeSet<Oid>,
        repos: BTreeSet<RepoId>,
    },
    /// Remove the objects that were fetched or pushed for an event which was never served, and is withdrawn now, from these
    /// repositories, where nothing else needs them.
    ClearObjects {
        id: EventId,
        tips: BTreeSet<Oid>,
        repos: BTreeSet<RepoId>,
    },
}

impl CleanupTask {
    /// Returns the key of what the task is about. A task takes the place of the pending one with its key.
    pub fn key(&self) -> String {
        match self {
            Self::CreateView { repo } | Self::RemoveView { repo, .. } => format!("view {repo}"),
            Self::ClearProposal { id, .. } => Self::key_of_proposal(id),
            Self::ClearObjects { id, .. } => format!("objects {id}"),
        }
    }

    pub(super) fn key_of_proposal(id: &EventId) -> String {
        format!("proposal {id}")
    }
}

/// The pending tasks.
#[derive(Debug, Default)]
pub(super) struct CleanupTasks {
    /// By their keys.
    pending: BTreeMap<String, CleanupTask>,
    /// Time at which failed tasks are tried again.
    pub(super) retry_at: Option<Mono>,
}

impl CleanupTasks {
    pub(super) fn apply(&mut self, record: &Record) {
        match record {
            Record::TaskAdded { task } => _ = self.pending.insert(task.key(), task.clone()),
            Record::TaskDone { task } if self.is_pending(task) => {
                self.pending.remove(&task.key());
            }
            _ => {}
        }
    }

    fn record(&mut self, out: &mut Outputs, record: Record) {
        self.apply(&record);
        out.write(record);
    }

    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = &CleanupTask> {
        self.pending.values()
    }

    fn is_pending(&self, task: &CleanupTask) -> bool {
        self.pending.get(&task.key()) == Some(task)
    }

    /// Adds a task in place of the pending one with the same key, and runs it.
    pub(super) fn add(&mut self, out: &mut Outputs, task: CleanupTask) {
        if !self.is_pending(&task) {
            self.drop_conflicting(out, &task.key());
            self.record(out, Record::TaskAdded { task: task.clone() });
        }
        out.push(Output::RunTask(task));
    }

    /// Clears a pull request but for the tips to keep, also at the repositories of the pending task for it.
    pub(super) fn clear_proposal(
        &mut self,
        out: &mut Outputs,
        id: EventId,
        keep: BTreeSet<Oid>,
        mut repos: BTreeSet<RepoId>,
    ) {
        let pending = self.pending.get(&CleanupTask::key_of_proposal(&id));
        if let Some(CleanupTask::ClearProposal { repos: more, .. }) = pending {
            repos.extend(more.iter().cloned());
        }
        self.add(out, CleanupTask::ClearProposal { id, keep, repos });
    }

    /// Drops the pending task with a key: repeated later, it would undo what is done now.
    pub(super) fn drop_conflicting(&mut self, out: &mut Outputs, key: &str) {
        if let Some(task) = self.pending.get(key).cloned() {
            self.record(out, Record::TaskDone { task });
        }
    }

    pub(super) fn done(&mut self, out: &mut Outputs, task: CleanupTask) {
        if self.is_pending(&task) {
            self.record(out, Record::TaskDone { task });
        }
    }

    pub(super) fn run_all(&self, out: &mut Outputs) {
        self.iter()
            .for_each(|task| out.push(Output::RunTask(task.clone())));
    }

    /// Runs the pending tasks if it is time to try failed ones again.
    pub(super) fn retry(&mut self, out: &mut Outputs, now: Mono) {
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
            self.run_all(out);
        }
    }
}
