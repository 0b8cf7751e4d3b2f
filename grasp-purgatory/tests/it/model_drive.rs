//! The driver of the model: performs the outputs of purgatory.

use grasp_core::RepoId;
use grasp_purgatory::{CleanupTask, HoldOutcome, Input, Output, Stage, WakeCause};

use crate::model_world::{PowerCut, StepResult, World};

/// An output whose result returns later as an input.
pub(crate) enum Task {
    Survey(RepoId),
    Release(Output),
    Wake(RepoId, WakeCause),
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
        outputs
            .effects
            .into_iter()
            .try_for_each(|effect| self.perform(effect))
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
                if outcome == HoldOutcome::Held && !self.is_sync {
                    self.undecided.insert(id);
                }
                let offered = self.offered.take().filter(|event| event.id == id);
                self.acknowledged.extend(
                    offered
                        .filter(|_| outcome == HoldOutcome::Held)
                        .map(|e| (id, e)),
                );
            }
            Output::Decided { id, outcome } => {
                assert!(self.undecided.remove(&id), "decided once, after its answer");
                let is_stored = self.disk.store.ever(&id).is_some();
                assert!(outcome != HoldOutcome::Stored || is_stored, "stored first");
                self.decisions.insert(id, outcome);
            }
            Output::Settled { caller, outcomes } => _ = self.settled.insert(caller, outcomes),
            Output::Staged { id, is_kept, .. } => _ = self.uploads.insert(id, is_kept),
            Output::Survey { repo } => self.tasks.push_back(Task::Survey(repo)),
            Output::Release { .. } => self.tasks.push_back(Task::Release(effect)),
            Output::Wake { repo, cause } => self.tasks.push_back(Task::Wake(repo, cause)),
            Output::Publish { events } => {
                let store = &self.disk.store;
                assert!(
                    events.iter().all(|event| store.ever(&event.id).is_some()),
                    "stored first"
                );
                self.published.extend(events.iter().map(|event| event.id));
            }
            Output::Hunt { repo, after } => self.hunts.push((repo, after)),
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
            assert!(
                !self.core.has_view(repo),
                "a task removes a view that an event is held for"
            );
        }
    }

    /// Performs tasks until none is left or the next action begins, and retries after a failure. The result of a task
    /// may reach purgatory long after it happened; with a seed, tasks and results come in any order.
    pub(crate) fn run(&mut self) -> StepResult {
        loop {
            while self.may_step() {
                let drawn = self.draw(self.tasks.len() + self.results.len());
                if let Some(task) = self.tasks.remove(drawn) {
                    let inputs = self.work(task)?;
                    self.results.extend(inputs);
                } else if let Some(input) = self.results.remove(drawn - self.tasks.len()) {
                    self.handle(input)?;
                } else {
                    break;
                }
            }
            if !self.is_idle() || !std::mem::take(&mut self.failed) {
                self.is_settled |= self.is_idle();
                assert!(
                    !self.is_idle() || self.undecided.is_empty(),
                    "all are decided"
                );
                return Ok(());
            }
            self.now = self.now.after(self.config.retry_after);
            self.handle(Input::Tick)?;
        }
    }

    /// Returns a number below this one: the first without a seed.
    fn draw(&mut self, below: usize) -> usize {
        let Some(seed) = &mut self.seed else { return 0 };
        *seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(*seed >> 33)
            .unwrap()
            .checked_rem(below)
            .unwrap_or(0)
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

    /// Performs a task. Returns the inputs that report its end.
    fn work(&mut self, task: Task) -> StepResult<Vec<Input>> {
        self.step()?;
        let inputs = match task {
            Task::Survey(repo) if self.fails(Stage::Survey) => vec![Input::SurveyFailed { repo }],
            Task::Survey(repo) => {
                let survey = Box::new(self.survey(&repo));
                vec![Input::Surveyed { repo, survey }]
            }
            Task::Release(Output::Release {
                repo,
                refs,
                events,
                withdraw,
            }) => {
                // Uploads are taken in before the transaction.
                self.disk.git.promote(&refs.proposals);
                self.step()?;
                if self.fails(Stage::Release) {
                    vec![Input::ReleaseFailed { repo }]
                } else {
                    let refused = self.disk.release(&repo, &refs, &events, &withdraw);
                    vec![Input::Released { repo, refused }]
                }
            }
            Task::Release(_) => unreachable!(),
            Task::Wake(repo, cause) => {
                let concerned = self.concerned(&repo, cause).into_iter();
                concerned.map(|repo| Input::Changed { repo }).collect()
            }
        };
        self.step()?;
        Ok(inputs)
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
