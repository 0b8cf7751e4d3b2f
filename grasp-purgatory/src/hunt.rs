//! Fetches git data that events wait for.
//!
//! ```text
//!   purgatory ──want──▶ Schedule ──attempt──▶ Hunt ──visit──▶ Visit ──permit and slot──▶ git server
//!                       when?                 whom?           for what?
//! ```
//!
//! - `driver` starts an attempt for a repository when the `schedule` says so.
//! - `attempt` asks servers one after the other, those that the repository's maintainers name first. It visits the
//!   servers that may be asked right now, queues visits to the others, and is over once each of them was asked: waiting is
//!   not failing. A slow server is no longer waited for: another one is asked beside it.
//! - `visit` asks one server for the wanted objects by their ids, and for its advertisement only if it refuses them.
//! - `requests` lets each request of a visit wait for a permit of its host (`hosts`) and a slot (`slots`).
//! - `plan` chooses addresses, and the objects to request from each; it remembers what servers did not have.
//!
//! `schedule`, `hosts`, `slots` and `plan` decide, without input, output or clock. The task of the driver owns them; attempts
//! and visits are tasks that send it questions.
//!
//! Invariants: one attempt per repository; no server over its limits or asked during its pause; no address tried
//! twice in one attempt; no object requested that is here.

mod attempt;
mod driver;
mod hosts;
mod plan;
mod report;
mod requests;
mod schedule;
mod slots;
mod visit;

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::time::Duration;

use grasp_core::limits::BackoffPolicy;
use grasp_core::{CloneUrl, Host, Now, Oid, RelayUrl, RepoId};
use tokio::sync::oneshot;

pub use self::driver::{HuntFigures, HuntHandle, hunt};
pub use self::hosts::{HostClass, HostFigures, HostLimits, QueuePosition};
pub use self::plan::{Advertisement, Fingerprint};
pub use self::report::{FetchError, HuntReport};

use crate::git::Fetched;
use crate::purgatory::Want;

/// Settings of the hunt. The delay of a hunt is a setting of [purgatory](crate::Config).
#[derive(Clone, Debug)]
pub struct HuntConfig {
    /// The pauses between attempts that left something wanted. Default: 20 seconds doubling to 2 minutes, and hourly
    /// once half an hour has brought nothing.
    pub backoff: BackoffPolicy,
    /// Concurrent requests in all; each is a process or two. Default: 32.
    pub at_once: NonZeroUsize,
    /// Limits for a git server of unknown class; one request is one start. Default: 5 at once,
    /// 30 per minute.
    pub per_host: HostLimits,
    /// Limits for a GRASP server. Default: 8 at once, 600 per minute.
    pub per_grasp_host: HostLimits,
    /// Limits for certain servers, of any kind. Default: none.
    pub hosts: BTreeMap<Host, HostLimits>,
    /// Requests per minute to one server for objects that it does not advertise. Default: 6.
    pub guesses_per_minute: NonZeroUsize,
    /// Time without an answer after which another server is asked as well. Default: 5 seconds.
    pub answer_is_late: Duration,
    /// Time after its first answer at which a transfer counts as slow. Default: 30 seconds.
    pub fetch_is_late: Duration,
    /// Interval of the pull of every served or expired repository. Default: 1 hour.
    pub pull_every: Duration,
    /// Delay of the first event for a repository that is not hunted for, for others that may come with it.
    /// Default: 20 milliseconds.
    pub leading_edge: Duration,
    /// The time between attempts that a burst of events for one repository can cause. Default: 500 milliseconds.
    pub debounce: Duration,
}

impl Default for HuntConfig {
    fn default() -> Self {
        const MINUTE: Duration = Duration::from_secs(60);
        const AT_ONCE: NonZeroUsize = NonZeroUsize::new(32).expect("not zero");
        const GUESSES: NonZeroUsize = NonZeroUsize::new(6).expect("six is not zero");
        const GRASP_AT_ONCE: NonZeroUsize = NonZeroUsize::new(8).expect("eight is not zero");
        const GRASP_STARTS: NonZeroUsize = NonZeroUsize::new(600).expect("600 is not zero");
        Self {
            backoff: BackoffPolicy::GIT_HUNT,
            at_once: AT_ONCE,
            per_host: HostLimits::default(),
            per_grasp_host: HostLimits {
                at_once: GRASP_AT_ONCE,
                starts: GRASP_STARTS,
                ..HostLimits::default()
            },
            hosts: BTreeMap::new(),
            guesses_per_minute: GUESSES,
            answer_is_late: Duration::from_secs(5),
            fetch_is_late: Duration::from_secs(30),
            pull_every: MINUTE * 60,
            leading_edge: Duration::from_millis(20),
            debounce: Duration::from_millis(500),
        }
    }
}

/// The scope of an attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// Waiting events of purgatory.
    #[default]
    Waiting,
    /// Also expired events of purgatory, and served repositories that lack objects.
    Everything,
}

/// The surroundings of a hunt: events, repositories and other servers.
///
/// The relay implements it with its purgatory driver and sandboxed git; tests implement it with a script.
pub trait SyncContext: Send + Sync + 'static {
    /// The time.
    fn now(&self) -> Now;

    /// Returns the missing objects of a repository and the servers that may have them; `None` if they cannot be read now.
    fn wants(&self, repo: &RepoId, scope: Scope) -> impl Future<Output = Option<Vec<Want>>> + Send;

    /// Returns which of these objects a server advertises.
    fn list(
        &self,
        url: &CloneUrl,
        wanted: &BTreeSet<Oid>,
    ) -> impl Future<Output = Result<Advertisement, FetchError>> + Send;

    /// The kind of git server that has this relay; `None` if it does not say.
    fn classify(&self, relay: &RelayUrl) -> impl Future<Output = Option<HostClass>> + Send;

    /// Fetches objects with their whole history, and publishes them to purgatory. Reports on `answered` that the server
    /// has begun to answer. Dropped when it is cancelled.
    fn fetch(
        &self,
        repo: &RepoId,
        url: &CloneUrl,
        oids: &BTreeSet<Oid>,
        answered: oneshot::Sender<()>,
    ) -> impl Future<Output = Fetched> + Send;

    /// Returns every repository that is to be hunted for every hour.
    fn repos(&self) -> impl Future<Output = BTreeSet<RepoId>> + Send;

    /// Hears what is worth counting or logging.
    fn report(&self, report: &HuntReport);
}

/// The next attempt of a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HuntSchedule {
    /// Unsuccessful attempts since the last reset.
    pub attempts: u32,
    /// Time until the next; `None` while one is under way.
    pub next_in: Option<Duration>,
    /// The best position in the queue of a host, while the attempt waits for a permit.
    pub position: Option<QueuePosition>,
}
