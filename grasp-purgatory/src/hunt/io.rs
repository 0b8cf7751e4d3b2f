//! What the hunter is told and wants done.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::time::Duration;

use grasp_core::limits::{BackoffPolicy, PeerText};
use grasp_core::outbound::Forbidden;
use grasp_core::{CloneUrl, Host, Identifier, Oid, RelayUrl};

use super::HostClass;
use super::permit::PermitConfig;
use super::plan::Advertisement;
use crate::purgatory::{self, Want};

/// One conversation with a server, as the hunter knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestId(pub(super) u64);

/// What an attempt looks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// What waits in purgatory.
    #[default]
    Waiting,
    /// That, what purgatory has given up, and what is served and lacks objects nevertheless.
    Everything,
}

/// Something that happened.
#[derive(Clone, Debug)]
pub enum Input {
    /// Something new waits for its objects under an identifier.
    Wanted {
        /// Where.
        identifier: Identifier,
        /// When to begin, unless a hunt is due sooner. `None`: as soon as a burst of events allows.
        after: Option<Duration>,
    },
    /// [`Output::Brief`] is answered: what is wanted and not here. `None` if that could not be learned.
    Briefed {
        /// Where.
        identifier: Identifier,
        /// Each with those of its tips alone that are not here with their whole history.
        wants: Option<Vec<Want>>,
    },
    /// [`Output::List`] is done.
    Listed {
        /// Which.
        request_id: RequestId,
        /// What the server has, or why that could not be learned.
        result: Result<Advertisement, Trouble>,
    },
    /// The server of an [`Output::Fetch`] has begun to answer.
    Answered {
        /// Which.
        request_id: RequestId,
    },
    /// [`Output::Classify`] is answered. `None` if the host did not say what it is.
    Classified {
        /// The host.
        host: Host,
        /// The kind of server.
        class: Option<HostClass>,
    },
    /// [`Output::Fetch`] is done.
    Fetched {
        /// Which.
        request_id: RequestId,
        /// What is here now, with its whole history. Whoever waits for it has been told.
        got: BTreeSet<Oid>,
        /// What went wrong with the rest.
        trouble: Option<Trouble>,
    },
    /// [`Output::Count`] is answered: every identifier that is to be looked after.
    Counted {
        /// All of them.
        identifiers: BTreeSet<Identifier>,
    },
    /// The time of [`next_deadline`](super::Hunter::next_deadline) has come.
    Tick,
}

/// Something to be done. Each but `Cancel` and `Report` is a task whose end is an input, whatever it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Find out what is wanted under an identifier and not here.
    Brief {
        /// Which.
        identifier: Identifier,
        /// How far to look.
        scope: Scope,
    },
    /// Ask a server what it has.
    List {
        /// Which conversation this is.
        request_id: RequestId,
        /// For what.
        identifier: Identifier,
        /// Whom.
        url: CloneUrl,
        /// Which of these it has matters.
        wanted: BTreeSet<Oid>,
    },
    /// Get objects with their whole history.
    Fetch {
        /// Which conversation this is.
        request_id: RequestId,
        /// For what.
        identifier: Identifier,
        /// From whom.
        url: CloneUrl,
        /// Which.
        oids: BTreeSet<Oid>,
    },
    /// Find out what kind of git server a host is.
    Classify {
        /// The host.
        host: Host,
        /// The relay that it has if it is a GRASP server.
        relay: RelayUrl,
    },
    /// Give up a conversation; its end is told nevertheless.
    Cancel {
        /// Which.
        request_id: RequestId,
    },
    /// Find out which identifiers are to be looked after every hour.
    Count,
    /// Something worth counting or logging.
    Report(HuntReport),
}

/// Why a server gave us less than it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Trouble {
    /// It may not be gone to.
    #[error("address not allowed: {0}")]
    Forbidden(#[from] Forbidden),
    /// It cannot be found or does not answer.
    #[error("unreachable: {0}")]
    Unreachable(PeerText),
    /// It asks for fewer requests.
    #[error("asked to slow down")]
    Limited {
        /// How long it wants to be left alone, if it says so.
        retry_after: Option<Duration>,
    },
    /// It has no such repository, or is in trouble itself.
    #[error("answered: {0}")]
    Answered(PeerText),
    /// It does not give what it was asked for.
    #[error("refused: {0}")]
    Refused(PeerText),
    /// What it gave is damaged or lacks history.
    #[error("gave something incomplete: {0}")]
    Broken(PeerText),
    /// It gave more than may be taken.
    #[error("gave too much")]
    TooLarge,
    /// It advertised more refs than are read.
    #[error("advertised too many refs")]
    LongList,
    /// It gave more objects than may be taken.
    #[error("gave more than {limit} objects")]
    TooMany {
        /// How many may be taken.
        limit: u64,
    },
    /// It went silent.
    #[error("went silent")]
    Stalled,
    /// The conversation was given up.
    #[error("given up")]
    Cancelled,
    /// Something is wrong on our side.
    #[error("our own trouble: {0}")]
    Ours(String),
}

impl Trouble {
    /// Whether the objects that were asked for are the cause, so that asking for other ones may help.
    pub fn is_about_the_objects(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::Broken(_) | Self::TooLarge | Self::TooMany { .. })
    }
}

/// Something worth counting or logging.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HuntReport {
    /// An identifier is hunted for from now on.
    Queued {
        /// Which.
        identifier: Identifier,
        /// When the first attempt begins; `None` for at once.
        after: Option<Duration>,
    },
    /// An attempt begins.
    Started {
        /// For what.
        identifier: Identifier,
        /// Which one since the last fresh start, from 1.
        attempt: u32,
    },
    /// Everything that was wanted is here; the identifier is hunted for no longer.
    Complete {
        /// Which.
        identifier: Identifier,
    },
    /// Nothing was wanted when an attempt began: it came by itself, was given up, or all is well.
    Needless {
        /// Under what.
        identifier: Identifier,
    },
    /// A listed server has not been asked yet, because it is not this identifier's turn there.
    InLine {
        /// Which.
        identifier: Identifier,
    },
    /// A host has said what kind of git server it is.
    Classified {
        /// The host.
        host: Host,
        /// The kind of server.
        class: HostClass,
    },
    /// An attempt ended and left something wanted, or something new is wanted since.
    Incomplete {
        /// Which.
        identifier: Identifier,
        /// Attempts without success so far.
        attempts: u32,
        /// How long until the next; without one the hourly turn goes on with it.
        next: Option<Duration>,
    },
    /// Objects came.
    Fetched {
        /// For what.
        identifier: Identifier,
        /// From where.
        url: CloneUrl,
        /// How many tips.
        oids: usize,
    },
    /// A server gave less than it was asked for.
    Failed {
        /// For what.
        identifier: Identifier,
        /// Which.
        url: CloneUrl,
        /// Why.
        trouble: Trouble,
    },
    /// A server is left alone.
    Paused {
        /// Which.
        host: Host,
        /// For how long.
        length: Duration,
    },
}

impl HuntReport {
    /// What purgatory needs to know of it: how long events wait depends on whether servers were asked.
    pub fn for_purgatory(&self) -> Option<purgatory::Input> {
        Some(match self {
            Self::InLine { identifier } => {
                purgatory::Input::HuntWaiting { identifier: identifier.clone() }
            }
            Self::Failed { trouble: Trouble::Limited { .. }, .. } => return None,
            Self::Failed { identifier, .. } | Self::Fetched { identifier, .. } => {
                purgatory::Input::HuntAnswered { identifier: identifier.clone() }
            }
            Self::Complete { identifier }
            | Self::Needless { identifier }
            | Self::Incomplete { identifier, .. } => {
                purgatory::Input::HuntEnded { identifier: identifier.clone() }
            }
            _ => return None,
        })
    }
}

/// The settings of the hunter. When a hunt begins is a setting of [purgatory](crate::Config).
#[derive(Clone, Debug)]
pub struct HuntConfig {
    /// The rests between attempts that left something wanted. Default: 20 seconds doubling to 2 minutes, and hourly
    /// once half an hour has brought nothing.
    pub backoff: BackoffPolicy,
    /// Conversations in all at the same time; each is a process or two. Default: 32.
    pub at_once: NonZeroUsize,
    /// Limits for a git server that has not said what it is; one conversation of git is one start. Default: 5 at once,
    /// 30 per minute.
    pub per_host: PermitConfig,
    /// Limits for a GRASP server. Default: 8 at once, 600 per minute.
    pub per_grasp_host: PermitConfig,
    /// Limits for certain servers, whatever they are. Default: none.
    pub hosts: BTreeMap<Host, PermitConfig>,
    /// How long a server that asks for less is left alone if it does not say how long. Default: 1 minute.
    pub pause: Duration,
    /// The longest that a server can have itself left alone. Default: 1 hour.
    pub longest_pause: Duration,
    /// Objects asked for in one visit although the server does not advertise them. Default: 2.
    pub guesses_per_visit: usize,
    /// Such questions to one server within a minute. Default: 6.
    pub guesses_per_minute: NonZeroUsize,
    /// How long it is remembered what a server did not have, as long as it advertises the same. Default: 30 minutes.
    pub memory: Duration,
    /// For how many addresses that is remembered. Default: 4,096.
    pub remembered: usize,
    /// Addresses tried in one attempt; the next attempt goes on with those tried longest ago. Default: 64.
    pub places_per_attempt: usize,
    /// When a server is late with its first answer, so that another is asked beside it. Default: 5 seconds.
    pub answer_is_late: Duration,
    /// When a server that has not answered at all is given up. Default: 1 minute.
    pub answer_limit: Duration,
    /// When it is late with its objects, once it has answered. Default: 30 seconds.
    pub fetch_is_late: Duration,
    /// How long a server may take with its objects while others wait because all [`at_once`](Self::at_once) are busy.
    /// Doubled each time that an address has given way, for what is large must come some day. One that
    /// has not answered gives way as soon as it is late. Default: 5 minutes.
    pub fetch_gives_way: Duration,
    /// How many servers may be late at once before an attempt waits for one of them. Default: 3.
    pub late_visits: usize,
    /// How often everything that is served or was given up is looked after. Default: 1 hour.
    pub pull_every: Duration,
    /// How long the first event under an identifier that is not hunted for waits for others that may come with it.
    /// Default: 20 milliseconds.
    pub leading_edge: Duration,
    /// The time between attempts that a burst of events under one identifier can cause. Default: 500 milliseconds.
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
            per_host: PermitConfig::default(),
            per_grasp_host: PermitConfig {
                at_once: GRASP_AT_ONCE,
                starts: GRASP_STARTS,
                ..PermitConfig::default()
            },
            hosts: BTreeMap::new(),
            pause: MINUTE,
            longest_pause: MINUTE * 60,
            guesses_per_visit: 2,
            guesses_per_minute: GUESSES,
            memory: MINUTE * 30,
            remembered: 4_096,
            places_per_attempt: 64,
            answer_is_late: Duration::from_secs(5),
            answer_limit: MINUTE,
            fetch_is_late: Duration::from_secs(30),
            fetch_gives_way: MINUTE * 5,
            late_visits: 3,
            pull_every: MINUTE * 60,
            leading_edge: Duration::from_millis(20),
            debounce: Duration::from_millis(500),
        }
    }
}
