//! Servers in step: which announced git servers have the same refs as this one.
//!
//! [`Checker`] decides when the refs of which server are compared. It asks little: a server once an hour after a change or a
//! visit of the page, else once a day, one repository after the other and a few in a minute, and not while the server asks
//! for less. What the comparison found is kept until the next one.
//!
//! ```
//! use std::collections::BTreeMap;
//! use std::time::Duration;
//! use grasp_core::in_step::{
//!     Announced, Check, CheckPolicy, CheckResult, Checker, HostSteps, Input, RefsStep, ServerStep, different_refs,
//! };
//! use grasp_core::{CloneUrl, Mono, Now, RefName, RepoId};
//! use nostr::key::PublicKey;
//! use nostr::types::Timestamp;
//!
//! let repo = RepoId::new(PublicKey::from_byte_array([1; 32]), "x".parse()?);
//! let server: CloneUrl = "https://other.example/x.git".parse()?;
//! let mut now = Now::new(Mono::ZERO, Timestamp::from_secs(1_700_000_000));
//! let mut checker = Checker::new(CheckPolicy::default());
//! let announced = Announced { repo: repo.clone(), servers: vec![server.clone()], changed_at: now.unix };
//! let mut due: Vec<Check> = checker.handle(now, Input::Listed(vec![announced]));
//! while due.is_empty() {
//!     let deadline = checker.next_deadline().expect("a check is to come");
//!     now = now.after(deadline - now.mono);
//!     due = checker.handle(now, Input::Tick);
//! }
//! assert_eq!((&due[0].repo, &due[0].server), (&repo, &server));
//!
//! // The refs of the server are read and compared.
//! let main = RefName::new("refs/heads/main")?;
//! let ours = BTreeMap::from([(main, "a".repeat(40).parse()?)]);
//! let result = CheckResult::Compared { different: different_refs(&ours, &BTreeMap::new()) };
//! let _ = checker.handle(now, Input::Checked { repo: repo.clone(), server: server.clone(), result });
//! let step: ServerStep = checker.steps(&repo)[&server];
//! assert_eq!(step.refs, RefsStep::Different(1));
//! let of_host: HostSteps = checker.hosts()[&server.host()];
//! assert_eq!(of_host.different, 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use nostr::types::Timestamp;

use crate::repo::{CloneUrl, Host, Oid, RefName, RepoId};
use crate::time::{Mono, Now};

/// Repositories whose servers are checked; those listed first.
const MAX_REPOS: usize = 10_000;

/// Servers of one repository that are checked; those that its announcement names first.
const MAX_SERVERS: usize = 16;

/// Hosts of which nothing needs to be remembered are forgotten when there are more than this.
const MAX_HOSTS: usize = 1_024;

/// How often servers are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckPolicy {
    /// The time between two checks without a reason. Default: 1 day.
    pub idle: Duration,
    /// The least time between two checks of one server for one repository. Default: 1 hour.
    pub busy: Duration,
    /// The time after a change in which other servers may follow. Default: 5 minutes.
    pub settle: Duration,
    /// The least time between the starts of two checks at one host. Default: 30 seconds, a fifteenth of what the hunt may
    /// ask of a host that it does not know.
    pub pace: Duration,
    /// The pause of a host that asks for less and does not say how long. Default: 1 hour.
    pub pause: Duration,
    /// Checks at the same time. Default: 4.
    pub at_once: usize,
}

impl Default for CheckPolicy {
    fn default() -> Self {
        const MINUTE: Duration = Duration::from_secs(60);
        Self {
            idle: 24 * 60 * MINUTE,
            busy: 60 * MINUTE,
            settle: 5 * MINUTE,
            pace: MINUTE / 2,
            pause: 60 * MINUTE,
            at_once: 4,
        }
    }
}

/// A hosted repository, and the other git servers that its announcement names.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Announced {
    pub repo: RepoId,
    pub servers: Vec<CloneUrl>,
    /// The date of its newest announcement or state.
    pub changed_at: Timestamp,
}

/// What a check found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckResult {
    /// The server answered, and this many branches and tags differ.
    Compared {
        /// Names that only one of the two has, or that point to different objects.
        different: usize,
    },
    /// The server did not answer, or not with the refs of this repository.
    Failed,
    /// The server asks for fewer requests, for this long if it says so.
    Limited {
        /// The pause that it asks for.
        retry_after: Option<Duration>,
    },
    /// This server could not compare; it says nothing about the other one.
    NotDone,
}

/// How the refs of a server compare with the refs here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RefsStep {
    /// Not compared yet.
    #[default]
    Unknown,
    /// The same branches and tags.
    Equal,
    /// This many branches and tags differ.
    Different(usize),
    /// It has not answered since then.
    Unreachable(Timestamp),
}

/// What is known of one server of a repository.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerStep {
    /// How its refs compare.
    pub refs: RefsStep,
    /// The time of the last check.
    pub checked_at: Option<Timestamp>,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Input {
    /// The hosted repositories at present.
    Listed(Vec<Announced>),
    /// Somebody looked at the servers of a repository.
    Visited(RepoId),
    /// A check is done.
    Checked {
        repo: RepoId,
        server: CloneUrl,
        result: CheckResult,
    },
    /// The time of [`Checker::next_deadline`] has come.
    Tick,
}

/// A comparison to make; its end is [`Input::Checked`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Check {
    pub repo: RepoId,
    pub server: CloneUrl,
}

/// Counts the branches and tags that differ.
pub fn different_refs(ours: &BTreeMap<RefName, Oid>, theirs: &BTreeMap<RefName, Oid>) -> usize {
    let mut names: BTreeSet<&RefName> = ours.keys().chain(theirs.keys()).collect();
    names.retain(|name| name.is_branch_or_tag() && ours.get(name) != theirs.get(name));
    names.len()
}

/// The state machine that decides when servers are checked, and keeps what was found.
#[derive(Debug)]
pub struct Checker {
    policy: CheckPolicy,
    repos: BTreeMap<RepoId, Watched>,
    hosts: BTreeMap<Host, HostRecord>,
    running: usize,
}

#[derive(Debug, Default)]
struct Watched {
    changed_at: Timestamp,
    servers: BTreeMap<CloneUrl, ServerState>,
}

#[derive(Debug)]
struct ServerState {
    step: ServerStep,
    is_running: bool,
    /// The start of the last check.
    started: Option<Mono>,
    due: Mono,
}

#[derive(Debug, Default)]
struct HostRecord {
    is_busy: bool,
    /// The next check may not start before.
    free_at: Mono,
}

impl Checker {
    /// Creates a machine that knows no repository.
    pub fn new(policy: CheckPolicy) -> Self {
        Self {
            policy,
            repos: BTreeMap::new(),
            hosts: BTreeMap::new(),
            running: 0,
        }
    }

    /// Handles one input and returns the checks to start.
    #[must_use = "a check that is not begun never ends"]
    pub fn handle(&mut self, now: Now, input: Input) -> Vec<Check> {
        match input {
            Input::Listed(listed) => self.listed(now, listed),
            Input::Visited(repo) => self.request(now, &repo, Duration::ZERO),
            Input::Checked {
                repo,
                server,
                result,
            } => self.checked(now, &repo, &server, result),
            Input::Tick => {}
        }
        self.start(now.mono)
    }

    /// Returns what is known of the servers of a repository, in the order of their addresses.
    pub fn steps(&self, repo: &RepoId) -> BTreeMap<CloneUrl, ServerStep> {
        let servers = self.repos.get(repo).map(|watched| &watched.servers);
        let steps = servers.into_iter().flatten();
        steps
            .map(|(url, state)| (url.clone(), state.step))
            .collect()
    }

    /// Returns the last result for each git host: whether all of its repositories were in step, and how many were.
    pub fn hosts(&self) -> BTreeMap<Host, HostSteps> {
        let mut hosts: BTreeMap<Host, HostSteps> = BTreeMap::new();
        for watched in self.repos.values() {
            for (url, state) in &watched.servers {
                let host = hosts.entry(url.host()).or_default();
                match state.step.refs {
                    RefsStep::Unknown => host.unknown += 1,
                    RefsStep::Equal => host.equal += 1,
                    RefsStep::Different(_) => host.different += 1,
                    RefsStep::Unreachable(_) => host.unreachable += 1,
                }
            }
        }
        hosts
    }

    /// Returns the time of the next [`Input::Tick`]. To be asked again after each [`handle`](Self::handle).
    pub fn next_deadline(&self) -> Option<Mono> {
        if self.running >= self.policy.at_once {
            return None;
        }
        let mut next: Option<Mono> = None;
        for watched in self.repos.values() {
            for (url, state) in &watched.servers {
                let host = self.hosts.get(&url.host());
                if state.is_running || host.is_some_and(|host| host.is_busy) {
                    continue;
                }
                let at = state.due.max(host.map_or(Mono::ZERO, |host| host.free_at));
                next = Some(next.map_or(at, |next| next.min(at)));
            }
        }
        next
    }

    fn listed(&mut self, now: Now, listed: Vec<Announced>) {
        let mut before = std::mem::take(&mut self.repos);
        for announced in listed.into_iter().take(MAX_REPOS) {
            let known = before.remove(&announced.repo);
            let is_new = known.is_none();
            let mut known = known.unwrap_or_default();
            let has_changed = !is_new && announced.changed_at > known.changed_at;
            let mut watched = Watched {
                changed_at: announced.changed_at,
                servers: BTreeMap::new(),
            };
            for url in announced.servers.into_iter().take(MAX_SERVERS) {
                let state = known.servers.remove(&url);
                let first = now.mono + spread(&announced.repo, &url, self.policy.idle);
                let state = state.unwrap_or(ServerState {
                    step: ServerStep::default(),
                    is_running: false,
                    started: None,
                    due: first,
                });
                watched.servers.insert(url, state);
            }
            let repo = announced.repo;
            self.repos.insert(repo.clone(), watched);
            if has_changed {
                self.request(now, &repo, self.policy.settle);
            }
        }
        if self.hosts.len() > MAX_HOSTS {
            let is_needed = |host: &mut HostRecord| host.is_busy || host.free_at > now.mono;
            self.hosts.retain(|_, host| is_needed(host));
        }
    }

    /// Lets the servers of a repository be checked after a while, but not sooner than an hour after the last check.
    fn request(&mut self, now: Now, repo: &RepoId, after: Duration) {
        let Some(watched) = self.repos.get_mut(repo) else {
            return;
        };
        for state in watched.servers.values_mut() {
            let allowed = state.started.map_or(now.mono, |at| at + self.policy.busy);
            state.due = state.due.min((now.mono + after).max(allowed));
        }
    }

    fn checked(&mut self, now: Now, repo: &RepoId, server: &CloneUrl, result: CheckResult) {
        self.running = self.running.saturating_sub(1);
        let host = self.hosts.entry(server.host()).or_default();
        host.is_busy = false;
        if let CheckResult::Limited { retry_after } = result {
            let pause = retry_after.unwrap_or(self.policy.pause);
            host.free_at = host.free_at.max(now.mono + pause.min(self.policy.idle));
        }
        let servers = self.repos.get_mut(repo).map(|watched| &mut watched.servers);
        let Some(state) = servers.and_then(|servers| servers.get_mut(server)) else {
            return; // it is not announced any more
        };
        state.is_running = false;
        let refs = match (result, state.step.refs) {
            (CheckResult::Compared { different: 0 }, _) => RefsStep::Equal,
            (CheckResult::Compared { different }, _) => RefsStep::Different(different),
            (CheckResult::Failed, RefsStep::Unreachable(since)) => RefsStep::Unreachable(since),
            (CheckResult::Failed, _) => RefsStep::Unreachable(now.unix),
            // It answered, or was not asked: what was known stays.
            (CheckResult::Limited { .. } | CheckResult::NotDone, _) => return,
        };
        state.step = ServerStep {
            refs,
            checked_at: Some(now.unix),
        };
    }

    /// Starts what is due, that which waits for the longest time first.
    fn start(&mut self, now: Mono) -> Vec<Check> {
        let mut due: Vec<(Mono, &RepoId, &CloneUrl)> = Vec::new();
        for (repo, watched) in &self.repos {
            for (url, state) in &watched.servers {
                if state.due <= now && !state.is_running {
                    due.push((state.due, repo, url));
                }
            }
        }
        due.sort();
        let mut checks = Vec::new();
        for (_, repo, url) in due {
            if self.running >= self.policy.at_once {
                break;
            }
            let host = self.hosts.entry(url.host()).or_default();
            if host.is_busy || host.free_at > now {
                continue;
            }
            host.is_busy = true;
            host.free_at = now + self.policy.pace;
            self.running += 1;
            checks.push(Check {
                repo: repo.clone(),
                server: url.clone(),
            });
        }
        for check in &checks {
            let servers = self.repos.get_mut(&check.repo).map(|it| &mut it.servers);
            if let Some(state) = servers.and_then(|servers| servers.get_mut(&check.server)) {
                state.is_running = true;
                state.started = Some(now);
                state.due = now + self.policy.idle;
            }
        }
        checks
    }
}

/// The numbers of repositories of one host by what their last checks found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct HostSteps {
    pub equal: usize,
    pub different: usize,
    pub unreachable: usize,
    pub unknown: usize,
}

/// Returns a part of a period, the same for the same server, so that not all are checked at the same time.
fn spread(repo: &RepoId, url: &CloneUrl, period: Duration) -> Duration {
    let mut hasher = DefaultHasher::new();
    (repo, url).hash(&mut hasher);
    let part = u32::try_from(hasher.finish() % 1_000).unwrap_or(0);
    period / 1_000 * part
}

#[cfg(test)]
mod tests;
