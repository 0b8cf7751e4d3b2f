//! How the world performs what a purgatory wants done.

use grasp_core::Identifier;
use grasp_purgatory::{CleanupTask, HoldOutcome, Input, Output, Stage};

use crate::model_world::{PowerCut, Powered, World};

/// Something that takes a while and comes back.
pub(crate) enum Task {
    Survey(Identifier),
    Release(Output),
}

impl World {
    /// One thing happens; the power may go just before it.
    pub(crate) fn spark(&mut self) -> Powered {
        self.check_moment();
        match &mut self.fuse {
            Some(0) => Err(PowerCut),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    pub(crate) fn turn(&mut self, input: Input) -> Powered {
        let heard = self.transcript.is_some().then(|| input.clone());
        let outputs = self.core.handle(self.now, input);
        if let Some((transcript, heard)) = self.transcript.as_mut().zip(heard) {
            transcript.push((self.now, heard, format!("{outputs:?}")));
        }
        let (records, effects): (Vec<_>, Vec<_>) =
            outputs.into_iter().partition(|output| matches!(output, Output::Journal(_)));
        if !records.is_empty() {
            self.spark()?;
        }
        for record in records {
            let Output::Journal(record) = record else { unreachable!() };
            self.disk.journal.push(record);
        }
        effects.into_iter().try_for_each(|effect| self.perform(effect))
    }

    fn perform(&mut self, effect: Output) -> Powered {
        self.spark()?;
        match effect {
            Output::Journal(_) => unreachable!("records come first"),
            Output::RunTask(task) => {
                self.tasks_run.push(task.clone());
                let end = self.run_task(task);
                self.spark()?;
                self.turn(end)?;
            }
            Output::Answer { id, outcome } => {
                self.answer = Some(outcome);
                let offered = self.offered.take().filter(|event| event.id == id);
                self.promised
                    .extend(offered.filter(|_| outcome == HoldOutcome::Held).map(|e| (id, e)));
            }
            Output::Survey { identifier } => self.tasks.push_back(Task::Survey(identifier)),
            Output::Release { .. } => self.tasks.push_back(Task::Release(effect)),
            Output::Publish { events } => {
                let store = &self.disk.store;
                assert!(events.iter().all(|event| store.has_ever_had(&event.id)), "stored first");
                self.published.extend(events.iter().map(|event| event.id));
            }
            Output::Hunt { identifier, after } => self.hunts.push((identifier, after)),
        }
        Ok(())
    }

    fn run_task(&mut self, task: CleanupTask) -> Input {
        self.spare_what_is_waited_for(&task);
        if self.failing_tasks > 0 {
            self.failing_tasks -= 1;
            self.failed = true;
            return Input::TaskFailed(task);
        }
        self.disk.perform(&task, |a| self.policy.hosts(a));
        Input::TaskDone(task)
    }

    /// Nobody may ask for a view to be removed that an event waits for.
    fn spare_what_is_waited_for(&self, task: &CleanupTask) {
        if let CleanupTask::RemoveView { repo, .. } = task {
            assert!(!self.core.has_view(repo), "a view that is waited for would be removed");
        }
    }

    /// Performs tasks until none is left or the world turns to something else, and waits for another try where
    /// something failed. What a task comes to may be heard long after it happened.
    pub(crate) fn run(&mut self) -> Powered {
        loop {
            while self.has_patience() {
                if let Some(task) = self.tasks.pop_front() {
                    let news = self.work(task)?;
                    self.news.push_back(news);
                } else if let Some(news) = self.news.pop_front() {
                    self.turn(news)?;
                } else {
                    break;
                }
            }
            if !self.is_quiet() || !std::mem::take(&mut self.failed) {
                self.is_settled |= self.is_quiet();
                return Ok(());
            }
            self.now = self.now.after(self.config.retry_after);
            self.turn(Input::Tick)?;
        }
    }

    fn has_patience(&mut self) -> bool {
        match &mut self.patience {
            Some(0) => false,
            Some(left) => {
                *left -= 1;
                true
            }
            None => true,
        }
    }

    /// Whether nothing is under way.
    pub(crate) fn is_quiet(&self) -> bool {
        self.tasks.is_empty() && self.news.is_empty()
    }

    fn work(&mut self, task: Task) -> Powered<Input> {
        self.spark()?;
        let input = match task {
            Task::Survey(identifier) if self.fails(Stage::Survey) => {
                Input::SurveyFailed { identifier }
            }
            Task::Survey(identifier) => {
                Input::Surveyed { survey: self.survey(&identifier), identifier }
            }
            Task::Release(Output::Release { identifier, views, proposals, events, withdraw }) => {
                let failed = self.fails(Stage::Release) || !self.disk.git.can_apply(&proposals);
                self.failed |= failed;
                if failed {
                    Input::ReleaseFailed { identifier }
                } else {
                    let (refs, events) = ((&*views, &*proposals), (&*events, &*withdraw));
                    let refused = self.disk.release(&identifier, refs, events);
                    Input::Released { identifier, refused }
                }
            }
            Task::Release(_) => unreachable!(),
        };
        self.spark()?;
        Ok(input)
    }

    fn fails(&mut self, stage: Stage) -> bool {
        match &mut self.failing {
            Some((failing, times)) if *failing == stage && *times > 0 => {
                *times -= 1;
                self.failed = true;
                true
            }
            _ => false,
        }
    }
}
