//! Settings, inputs and outputs of the hunter.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::time::Duration;

use grasp_core::limits::{BackoffPolicy, PeerText};
use grasp_core::outbound::Forbidden;
use grasp_core::{CloneUrl, Host, Oid, RelayUrl, RepoId};

use super::hosts::{HostClass, HostLimits};
use super::plan::Advertisement;
use crate::purgatory::{self, Want};

/// Identifies one request to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestId(pub(super) u64);

/// The scope of an attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// Waiting events of purgatory.
    #[default]
    Waiting,
    /// Also expired events of purgatory, and served repositories that lack objects.
    Everything,
}

/// Something that happened.
#[derive(Clone, Debug)]
#[allow(
    missing_docs,
    reason = "fields are documented where the name does not say it all"
)]
pub enum Input {
    /// Something new of a repository waits for its objects.
    Wanted {
        repo: RepoId,
        /// Delay, unless a hunt is due sooner. `None`: as soon as a burst of events allows.
        after: Option<Duration>,
    },
    /// [`Output::ReadWants`] is done: what is wanted and not here. `None` if that could not be read.
    WantsRead {
        repo: RepoId,
        /// Only tips that are not here with their whole history.
        wants: Option<Vec<Want>>,
    },
    /// [`Output::List`] succeeded.
    Listed {
        request_id: RequestId,
        advertised: Advertisement,
    },
    /// The server of an [`Output::Fetch`] has begun to answer.
    Answered { request_id: RequestId },
    /// [`Output::Fetch`] is done, or [`Output::List`] failed.
    Ended {
        request_id: RequestId,
        got: BTreeSet<Oid>,
        error: Option<FetchError>,
    },
    /// [`Output::Classify`] is done. `None` if the host did not say what it is.
    Classified {
        host: Host,
        class: Option<HostClass>,
    },
    /// [`Output::ListRepos`] is done: every repository that is to be hunted for every hour.
    ReposListed { repos: BTreeSet<RepoId> },
    /// The time of [`next_deadline`](super::Hunter::next_deadline) has come.
    Tick,
}

/// Something to be done. Each but `Cancel` and `Report` is a task whose end is an input, also after a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "fields are documented where the name does not say it all"
)]
pub enum Output {
    /// Find out what a repository wants that is not here.
    ReadWants { repo: RepoId, scope: Scope },
    /// Ask a server what it has.
    List {
        request_id: RequestId,
        repo: RepoId,
        url: CloneUrl,
        wanted: BTreeSet<Oid>,
    },
    /// Get objects with their whole history.
    Fetch {
        request_id: RequestId,
        repo: RepoId,
        url: CloneUrl,
        oids: BTreeSet<Oid>,
    },
    /// Find out what kind of git server a host is.
    Classify {
        host: Host,
        /// The relay that it has if it is a GRASP server.
        relay: RelayUrl,
    },
    /// Cancel a request; its end is still an input.
    Cancel { request_id: RequestId },
    /// Find out which repos are to be hunted for every hour.
    ListRepos,
    /// Something worth counting or logging.
    Report(HuntReport),
}

/// The reason why a server gave less than it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError {
    /// Its address is not allowed.
    #[error("address not allowed: {0}")]
    Forbidden(#[from] Forbidden),
    /// It cannot be found or does not answer.
    #[error("unreachable: {0}")]
    Unreachable(PeerText),
    /// It asks for fewer requests.
    #[error("asked to slow down")]
    RateLimited {
        /// The pause that it asks for.
        retry_after: Option<Duration>,
    },
    /// It has no such repository, or an error of its own.
    #[error("answered with an error: {0}")]
    Answered(PeerText),
    /// It does not give what it was asked for.
    #[error("refused: {0}")]
    Refused(PeerText),
    /// Its objects are damaged or lack history.
    #[error("sent incomplete or damaged objects: {0}")]
    Broken(PeerText),
    /// It sent more bytes than allowed.
    #[error("sent more bytes than allowed")]
    TooLarge,
    /// It advertised more refs than are read.
    #[error("advertised too many refs")]
    TooManyRefs,
    /// It sent more objects than allowed.
    #[error("sent more than {limit} objects")]
    TooManyObjects {
        /// The limit.
        limit: u64,
    },
    /// It stopped sending.
    #[error("stopped sending")]
    Stalled,
    /// The request was cancelled.
    #[error("cancelled")]
    Cancelled,
    /// This server failed.
    #[error("failure on this server: {0}")]
    Internal(String),
}

impl FetchError {
    /// Returns whether the requested objects are the cause, so that a request for others may succeed.
    pub fn is_about_the_objects(&self) -> bool {
        matches!(
            self,
            Self::Refused(_) | Self::Broken(_) | Self::TooLarge | Self::TooManyObjects { .. }
        )
    }

    /// Returns whether the server has answered, so that it is known not to have the objects now.
    fn is_answer(&self) -> bool {
        match self {
            Self::Answered(_) | Self::TooManyRefs => true,
            Self::Forbidden(_) | Self::Unreachable(_) | Self::RateLimited { .. } => false,
            Self::Stalled | Self::Cancelled | Self::Internal(_) => false,
            error => error.is_about_the_objects(),
        }
    }
}

/// Something worth counting or logging.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(
    missing_docs,
    reason = "fields are documented where the name does not say it all"
)]
pub enum HuntReport {
    /// An attempt begins.
    Started {
        repo: RepoId,
        /// Number since the last reset, from 1.
        attempt: u32,
    },
    /// Everything that was wanted is here; the repository is hunted for no longer.
    Complete { repo: RepoId },
    /// Nothing was wanted when an attempt began: it came by itself, was given up, or all is well.
    Needless { repo: RepoId },
    /// A listed server has not been asked yet: the attempt waits for a permit of its host.
    WaitingForHosts { repo: RepoId },
    /// A host has said what kind of git server it is.
    Classified { host: Host, class: HostClass },
    /// An attempt ended and left something wanted, or something new is wanted since.
    Incomplete {
        repo: RepoId,
        attempts: u32,
        /// Delay of the next attempt; without one the hourly pull goes on with it.
        next: Option<Duration>,
    },
    /// Objects came.
    Fetched {
        repo: RepoId,
        url: CloneUrl,
        oids: usize,
    },
    /// A server gave less than it was asked for.
    Failed {
        repo: RepoId,
        url: CloneUrl,
        error: FetchError,
    },
    /// A server asked for fewer requests and is paused.
    Paused { host: Host, length: Duration },
}

impl HuntReport {
    /// Returns the input for purgatory: the time of held events depends on whether servers were asked.
    pub fn for_purgatory(&self) -> Option<purgatory::Input> {
        match self {
            Self::WaitingForHosts { repo } => {
                Some(purgatory::Input::HuntWaiting { repo: repo.clone() })
            }
            Self::Failed { error, .. } if !error.is_answer() => None,
            Self::Failed { repo, .. } | Self::Fetched { repo, .. } => {
                Some(purgatory::Input::HuntAnswered { repo: repo.clone() })
            }
            Self::Complete { repo } | Self::Needless { repo } | Self::Incomplete { repo, .. } => {
                Some(purgatory::Input::HuntEnded { repo: repo.clone() })
            }
            _ => None,
        }
    }
}

/// Settings of the hunter. The delay of a hunt is a setting of [purgatory](crate::Config).
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
