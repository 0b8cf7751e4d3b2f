//! The driver of the model: performs the outputs of purgatory.

use grasp_core::Identifier;
use grasp_purgatory::{CleanupTask, HoldOutcome, Input, Output, Stage};

use crate::model_world::{PowerCut, StepResult, World};

/// An output whose result returns later as an input.
pub(crate) enum Task {
    Survey(Identifier),
    Release(Output),
}

impl World {
    /// Counts one step; the power may be cut just before it.
    pub(crate) fn step(&mut self) -> StepResult {
        self.check_always();
        match &mut self.steps_until_power_cut {
            Some(0) => Err(PowerCut),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    pub(crate) fn handle(&mut self, input: Input) -> StepResult {
        let recorded = self.transcript.is_some().then(|| input.clone());
        let outputs = self.core.handle(self.now, input);
        if let Some((transcript, recorded)) = self.transcript.as_mut().zip(recorded) {
            transcript.push((self.now, recorded, format!("{outputs:?}")));
        }
        if !outputs.records.is_empty() {
            self.step()?;
        }
        self.disk.journal.extend(outputs.records);
        outputs.effects.into_iter().try_for_each(|effect| self.perform(effect))
    }

    fn perform(&mut self, effect: Output) -> StepResult {
        self.step()?;
        match effect {
            Output::RunTask(task) => {
                self.tasks_run.push(task.clone());
                let end = self.run_task(task);
                self.step()?;
                self.handle(end)?;
            }
            Output::Answer { id, outcome } => {
                self.answer = Some(outcome);
                let offered = self.offered.take().filter(|event| event.id == id);
                self.acknowledged
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
        self.check_view_is_unused(&task);
        if self.failing_tasks > 0 {
            self.failing_tasks -= 1;
            self.failed = true;
            return Input::TaskFailed(task);
        }
        self.disk.perform(&task, |a| self.policy.hosts(a));
        Input::TaskDone(task)
    }

    /// Asserts that no task removes a view that an event is held for.
    fn check_view_is_unused(&self, task: &CleanupTask) {
        if let CleanupTask::RemoveView { repo, .. } = task {
            assert!(!self.core.has_view(repo), "a task removes a view that an event is held for");
        }
    }

    /// Performs tasks until none is left or the next action begins, and retries after a failure. The result of a task
    /// may reach purgatory long after it happened.
    pub(crate) fn run(&mut self) -> StepResult {
        loop {
            while self.may_step() {
                if let Some(task) = self.tasks.pop_front() {
                    let input = self.work(task)?;
                    self.results.push_back(input);
                } else if let Some(input) = self.results.pop_front() {
                    self.handle(input)?;
                } else {
                    break;
                }
            }
            if !self.is_idle() || !std::mem::take(&mut self.failed) {
                self.is_settled |= self.is_idle();
                return Ok(());
            }
            self.now = self.now.after(self.config.retry_after);
            self.handle(Input::Tick)?;
        }
    }

    fn may_step(&mut self) -> bool {
        match &mut self.steps_left {
            Some(0) => false,
            Some(left) => {
                *left -= 1;
                true
            }
            None => true,
        }
    }

    /// Returns whether no task or result is pending.
    pub(crate) fn is_idle(&self) -> bool {
        self.tasks.is_empty() && self.results.is_empty()
    }

    fn work(&mut self, task: Task) -> StepResult<Input> {
        self.step()?;
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
        self.step()?;
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
