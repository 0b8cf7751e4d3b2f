//! The driver of the comparison with other servers: lists repositories, asks servers for their refs, keeps what was found.
//!
//! The rules, such as how often a server is asked, are in [`grasp_core::in_step`].

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use grasp_core::in_step::{
    Announced, Check, CheckPolicy, CheckResult, Checker, HostSteps, Input, ServerStep,
    different_refs,
};
use grasp_core::nip34::{Announcement, State};
use grasp_core::{CloneUrl, Host, Mono, RepoId, kinds};
use grasp_purgatory::git::Fetcher;
use grasp_purgatory::hunt::FetchError;
use nostr::filter::Filter;
use nostr::types::Timestamp;
use tokio::sync::mpsc;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{Instant, MissedTickBehavior};

use crate::clock::Clock;
use crate::git_http::GitHost;
use crate::store::{self, StoreError};

/// Announcements, and states, that repositories are listed from; the newest are used.
const MAX_EVENTS: usize = 10_000;

/// Visits that wait for the driver; further ones are dropped, because a visit soon comes again.
const VISIT_QUEUE: usize = 64;

/// Settings of the comparison with other servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InStepSettings {
    /// How often servers are asked.
    pub policy: CheckPolicy,
    /// How often the hosted repositories are listed. Default: 5 minutes.
    pub list_every: Duration,
}

impl Default for InStepSettings {
    fn default() -> Self {
        Self {
            policy: CheckPolicy::default(),
            list_every: Duration::from_secs(5 * 60),
        }
    }
}

/// A running comparison with other servers. Cheap to clone; it ends with the last clone.
#[derive(Clone, Debug)]
pub struct InStep {
    checker: Arc<Mutex<Checker>>,
    visits: mpsc::Sender<RepoId>,
}

impl InStep {
    /// Starts to compare the hosted repositories with the other servers that their announcements name.
    pub fn start(host: GitHost, fetcher: Fetcher, settings: InStepSettings) -> Self {
        let checker = Arc::new(Mutex::new(Checker::new(settings.policy)));
        let (visits, inbox) = mpsc::channel(VISIT_QUEUE);
        let driver = Driver {
            checker: Arc::clone(&checker),
            host,
            fetcher,
            list_every: settings.list_every,
            checks: JoinSet::new(),
            running: BTreeMap::new(),
        };
        tokio::spawn(driver.run(inbox));
        Self { checker, visits }
    }

    /// Notes that somebody looked at the servers of a repository, and returns what is known of them.
    pub fn visit(&self, repo: &RepoId) -> BTreeMap<CloneUrl, ServerStep> {
        let _ = self.visits.try_send(repo.clone());
        lock(&self.checker).steps(repo)
    }

    /// Returns what the last checks found, by host.
    pub fn hosts(&self) -> BTreeMap<Host, HostSteps> {
        lock(&self.checker).hosts()
    }
}

fn lock(checker: &Mutex<Checker>) -> MutexGuard<'_, Checker> {
    checker.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Driver {
    /// Shared with those who read what was found; nothing waits while it is locked.
    checker: Arc<Mutex<Checker>>,
    host: GitHost,
    fetcher: Fetcher,
    list_every: Duration,
    checks: JoinSet<Input>,
    /// The checks that run, so that one that fails is ended.
    running: BTreeMap<Id, Check>,
}

impl Driver {
    async fn run(mut self, mut visits: mpsc::Receiver<RepoId>) {
        let clock = self.host.clock.clone();
        // Nothing is listed before the first visit or period: the start of a server has other work.
        let first = Instant::now() + self.list_every;
        let mut lists = tokio::time::interval_at(first, self.list_every);
        lists.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut is_listed = false;
        loop {
            let deadline = lock(&self.checker).next_deadline();
            let mut inputs = Vec::new();
            tokio::select! {
                visited = visits.recv() => {
                    let Some(repo) = visited else { return };
                    if !is_listed {
                        inputs.push(self.list().await);
                    }
                    inputs.push(Input::Visited(repo));
                }
                _ = lists.tick() => inputs.push(self.list().await),
                Some(done) = self.checks.join_next_with_id() => inputs.push(self.ended(done)),
                () = until(&clock, deadline) => inputs.push(Input::Tick),
            };
            is_listed |= inputs.iter().any(|it| matches!(it, Input::Listed(_)));
            for input in inputs {
                self.handle(input);
            }
        }
    }

    fn handle(&mut self, input: Input) {
        let now = self.host.clock.now();
        let checks = lock(&self.checker).handle(now, input);
        for check in checks {
            let host = self.host.clone();
            let fetcher = self.fetcher.clone();
            let task = self.checks.spawn(perform(host, fetcher, check.clone()));
            self.running.insert(task.id(), check);
        }
    }

    /// Returns the input for the end of a check, also of a failed one.
    fn ended(&mut self, done: Result<(Id, Input), JoinError>) -> Input {
        let id = done.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
        let check = self.running.remove(&id);
        match (done, check) {
            (Ok((_, input)), _) => input,
            (Err(error), Some(Check { repo, server })) => {
                tracing::error!(%error, %server, "a comparison of refs failed");
                let result = CheckResult::NotDone;
                Input::Checked {
                    repo,
                    server,
                    result,
                }
            }
            (Err(_), None) => Input::Tick,
        }
    }

    async fn list(&self) -> Input {
        match hosted(&self.host).await {
            Ok(listed) => Input::Listed(listed),
            Err(error) => {
                tracing::warn!(%error, "the event store failed to list repositories");
                Input::Tick
            }
        }
    }
}

/// Sleeps until a point of the clock; for ever without one.
async fn until(clock: &Clock, deadline: Option<Mono>) {
    match deadline {
        Some(deadline) => tokio::time::sleep(deadline - clock.now().mono).await,
        None => std::future::pending().await,
    }
}

/// Lists the hosted repositories with the other servers that they name.
async fn hosted(host: &GitHost) -> Result<Vec<Announced>, StoreError> {
    let now = host.clock.now().unix;
    let read = async |kind| {
        let filter = Filter::new().kind(kind).limit(MAX_EVENTS);
        store::events(&*host.store, filter, now).await
    };
    let mut signed: BTreeMap<RepoId, Timestamp> = BTreeMap::new();
    for event in read(kinds::STATE).await? {
        if let Ok(state) = State::parse(&event) {
            signed.insert(state.repo, state.version.created_at);
        }
    }
    let policy = host.policy.now();
    let mut listed = Vec::new();
    for event in read(kinds::ANNOUNCEMENT).await? {
        let Ok(announcement) = Announcement::parse(&event) else {
            continue;
        };
        if !policy.hosts(&announcement) {
            continue;
        }
        // A state of another maintainer is a change, too.
        let mut changed_at = announcement.version.created_at;
        let listed_keys = announcement.maintainer_list.listed.iter().copied();
        for key in listed_keys.chain([announcement.repo.owner]) {
            let state = RepoId::new(key, announcement.repo.identifier.clone());
            changed_at = changed_at.max(signed.get(&state).copied().unwrap_or(changed_at));
        }
        let mut servers = announcement.clone;
        servers.retain(|url| !policy.service.is_own_url(url.as_str()));
        listed.push(Announced {
            repo: announcement.repo,
            servers,
            changed_at,
        });
    }
    Ok(listed)
}

/// Compares the branches and tags of a server with those here.
async fn perform(host: GitHost, fetcher: Fetcher, check: Check) -> Input {
    let Check { repo, server } = check;
    let result = compare(&host, &fetcher, &repo, &server).await;
    tracing::debug!(%server, ?result, "compared the refs of a server");
    Input::Checked {
        repo,
        server,
        result,
    }
}

async fn compare(
    host: &GitHost,
    fetcher: &Fetcher,
    repo: &RepoId,
    server: &CloneUrl,
) -> CheckResult {
    let theirs = match fetcher.refs(server).await {
        Ok(refs) => refs,
        Err(FetchError::RateLimited { retry_after }) => {
            return CheckResult::Limited { retry_after };
        }
        Err(FetchError::Internal(error)) => {
            tracing::debug!(error, "could not ask a server for its refs");
            return CheckResult::NotDone;
        }
        Err(_) => return CheckResult::Failed,
    };
    // Ours last: a push that arrived meanwhile is then in both.
    let Ok(Some(shown)) = host.repos.resolve(repo).await else {
        return CheckResult::NotDone;
    };
    match host.repos.refs(&shown).await {
        Ok(ours) => CheckResult::Compared {
            different: different_refs(&ours, &theirs),
        },
        Err(_) => CheckResult::NotDone,
    }
}
