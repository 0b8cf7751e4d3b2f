//! Settings, inputs and outputs of purgatory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use grasp_core::admission::{Hold, Origin, Policy};
use grasp_core::nip34::State;
use grasp_core::resources::ClientNetwork;
use grasp_core::service::Endpoint;
use grasp_core::{Oid, RefName, RepoId, Version};
use nostr::event::{Event, EventId};
use nostr::key::PublicKey;
use nostr::types::Timestamp;

use super::held::Phase;
use super::staging::PushTarget;
use super::tasks::CleanupTask;

/// Settings of purgatory. The defaults follow the protocol and experience.
#[derive(Clone, Debug)]
pub struct Config {
    /// Time until a held event expires. Starts again with every sign of activity, such as a push.
    pub hold_for: Duration,
    /// Longest time that an event is held while the hunt still waits for permits of git servers; [`hold_for`](Self::hold_for)
    /// if that is longer.
    pub hold_at_most: Duration,
    /// Time that an expired announcement is remembered after the removal of its view, so that it is not fetched again
    /// each time that another relay offers it.
    pub remember_for: Duration,
    /// Time that an upload waits for the event that names it.
    pub stage_for: Duration,
    /// Time that the hourly pull still looks for an expired state or pull request.
    pub retry_expired_for: Duration,
    /// Delay of the hunt for an event that a user sent: a push usually follows.
    pub user_delay: Duration,
    /// Delay before a step that failed on this server is tried again.
    pub retry_after: Duration,
    /// States of one repository and author that are held; an older one may still be the one being pushed.
    pub states_per_author: usize,
    /// Limit of the waiting events of one author.
    pub per_author: Bound,
    /// Limit of the waiting events of one repository.
    pub per_repo: Bound,
    /// Approximate memory of the served states of one repository's maintainers: each survey of it reads them all.
    pub state_bytes_per_repo: u64,
    /// Limit of all waiting events; states of served repositories may use a quarter more.
    pub total: Bound,
    /// Limit of the expired events; those that would be dropped soonest are dropped first.
    pub expired: Bound,
    /// Limit of the uploads that wait for their event, counted by event.
    pub staged: Bound,
    /// Different uploads that may wait for one event, so that no client can displace another's upload.
    pub tips_per_event: usize,
}

/// A limit of a number and of a size in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it all")]
pub struct Bound {
    pub count: usize,
    pub bytes: u64,
}

impl Default for Config {
    fn default() -> Self {
        const MINUTE: Duration = Duration::from_secs(60);
        const DAY: Duration = Duration::from_secs(24 * 60 * 60);
        const MIB: u64 = 1024 * 1024;
        Self {
            hold_for: MINUTE * 30,
            hold_at_most: MINUTE * 360,
            remember_for: DAY,
            stage_for: MINUTE * 20,
            retry_expired_for: DAY * 30,
            user_delay: MINUTE * 3,
            retry_after: Duration::from_secs(30),
            states_per_author: 8,
            // The largest state takes some 4.5 MiB of memory, and eight of one author may wait.
            per_author: Bound {
                count: 1_000,
                bytes: 40 * MIB,
            },
            per_repo: Bound {
                count: 1_000,
                bytes: 40 * MIB,
            },
            state_bytes_per_repo: 64 * MIB,
            total: Bound {
                count: 50_000,
                bytes: 128 * MIB,
            },
            expired: Bound {
                count: 10_000,
                bytes: 32 * MIB,
            },
            staged: Bound {
                count: 1_000,
                bytes: 2_048 * MIB,
            },
            tips_per_event: 4,
        }
    }
}

/// Something that happened.
#[derive(Clone, Debug)]
#[allow(
    missing_docs,
    reason = "fields are documented where the name does not say it all"
)]
pub enum Input {
    /// The driver is ready, after a start or a restart. Sent once, before anything else.
    ///
    /// Every held event is surveyed then. [`Input::Changed`] for each repository with a stored announcement should
    /// follow without haste: the earlier run may have ended between a change in the store and its hint.
    Started,
    /// An event was admitted that depends on git data: a hosted announcement, a state or a pull request.
    ///
    /// Sent even if the data is already here: refs are set before any event is stored.
    Held {
        event: Arc<Event>,
        hold: Hold,
        origin: Origin,
    },
    /// Something that purgatory does not own changed at a repository: an announcement or a state was stored, replaced
    /// or removed, or objects arrived by push or fetch.
    Changed { repo: RepoId },
    /// Like [`Input::Changed`], answered by [`Output::Settled`]. The driver numbers the callers.
    Settle {
        repo: RepoId,
        caller: u64,
        events: BTreeSet<EventId>,
    },
    /// The answer to [`Output::Survey`].
    Surveyed { repo: RepoId, survey: Box<Survey> },
    /// The survey could not be made.
    SurveyFailed { repo: RepoId },
    /// [`Output::Release`] is completely and durably done, or, if the store refuses some of its events, not at all.
    Released {
        repo: RepoId,
        refused: BTreeSet<EventId>,
    },
    /// [`Output::Release`] failed. No ref has moved and no event was stored.
    ReleaseFailed { repo: RepoId },
    /// A push to a repository was authorised and is about to be executed. `events` are the state that it will realise
    /// and the pull requests whose tips it brings.
    PushAuthorised {
        repo: RepoId,
        events: BTreeSet<EventId>,
    },
    /// A push left a tip in staging for an event that has not been received. `bytes` is the size of its objects. Answered
    /// by [`Output::Staged`].
    PushStaged {
        id: EventId,
        tip: Oid,
        target: PushTarget,
        bytes: u64,
        network: Option<ClientNetwork>,
    },
    /// The hunt for a repository waits for permits of servers that it has not asked yet.
    HuntWaiting { repo: RepoId },
    /// A git server has answered the hunt for a repository.
    HuntAnswered { repo: RepoId },
    /// The hunt for a repository has asked every listed server, or is over.
    HuntEnded { repo: RepoId },
    /// A fetch for a repository is running, not merely queued.
    FetchStarted { repo: RepoId },
    /// A fetch for a repository ended, with or without success.
    FetchEnded { repo: RepoId },
    /// Objects that served refs need are missing on disk.
    Damaged { repo: RepoId },
    /// A deletion request (kind 5) was stored.
    Deleted { request: Arc<Event> },
    /// A request to vanish (kind 62) was stored: it covers the author's events up to and including this time.
    Vanished { author: PublicKey, until: Timestamp },
    /// An owner published an announcement that no longer lists this service. `by` is its version.
    Delisted { repo: RepoId, by: Version },
    /// The operator changed the policy.
    Policy(Arc<Policy>),
    /// A task is done, or turned out to be unnecessary.
    TaskDone(CleanupTask),
    /// A task could not be done now.
    TaskFailed(CleanupTask),
    /// The time of [`next_deadline`](super::Purgatory::next_deadline) has come.
    Tick,
}

/// The contents of the event store and of git about one repository.
///
/// Data that is not part of the survey counts as absent; a survey that could not read everything has failed.
///
/// Purgatory keeps no copy of data that other components own. Every survey contains all of it and is compared with the
/// rules, so a lost hint costs time and nothing else.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// Stored announcements of the keys that decide who maintains the repository, one per author.
    pub announcements: Vec<Arc<Event>>,
    /// Stored states of the maintainers and of the owner, one per author.
    pub states: Vec<Arc<Event>>,
    /// Superseded states of maintainers without a stored one: their latest was deleted, and the one before counts again.
    pub previous: Vec<Arc<Event>>,
    /// Stored pull requests and updates that are addressed to its maintainers, the latest.
    pub proposals: Vec<Arc<Event>>,
    /// The repository as it is served; `None` without a view.
    pub view: Option<SurveyedView>,
    /// Pull requests that have a ref here, or in the owner's repository for pull requests, and are not stored.
    pub strays: BTreeSet<EventId>,
    /// States and pull requests, held or stored, whose objects are all here with their whole history.
    pub complete: BTreeSet<EventId>,
    /// Those of the held events that the event store would refuse: deleted, vanished or past their own expiration.
    pub refused: BTreeSet<EventId>,
    /// Other maintainers who have a hosted repository of this identifier and maintain it: their states are released
    /// and hunted for there, and copied from there.
    pub peers: BTreeSet<PublicKey>,
    /// The owner maintains a hosted repository, this one or another.
    pub is_owner_maintainer: bool,
    /// The repository that this one is an address of.
    pub lead: Option<SurveyedLead>,
}

impl Survey {
    /// Returns the stored events that concern the repository.
    pub(super) fn stored(&self) -> impl Iterator<Item = &Arc<Event>> {
        let announced = self.announcements.iter();
        announced.chain(&self.states).chain(&self.proposals)
    }
}

/// The hosted repository that the announcement of another owner leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SurveyedLead {
    /// Its owner.
    pub owner: PublicKey,
    /// It shows a state.
    pub is_shown: bool,
}

/// A repository as it is served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SurveyedView {
    /// All refs.
    pub refs: BTreeMap<RefName, Oid>,
    /// The state whose branches and tags these are.
    pub state: Option<EventId>,
    /// The maintainers when the refs were last set.
    pub maintainers: BTreeSet<PublicKey>,
    /// The owner of the repository that it is an address of.
    pub shows: Option<PublicKey>,
}

/// Something to be done.
///
/// Outputs are performed in order. `Survey` and `Release` are tasks whose end is an input; every other output is done when the next one begins.
#[derive(Clone, Debug)]
#[allow(
    missing_docs,
    reason = "fields are documented where the name does not say it all"
)]
pub enum Output {
    /// Run an idempotent task, and answer with [`Input::TaskDone`] or [`Input::TaskFailed`].
    RunTask(CleanupTask),
    /// Answer the sender of an event. Comes once for each [`Input::Held`].
    Answer { id: EventId, outcome: HoldOutcome },
    /// Tell the clients that sent an event what became of it: stored, dropped, or held until its git data arrives. Comes
    /// after an [`Output::Answer`] that says that it is held, in the same call if nothing is under way that could store it.
    Decided { id: EventId, outcome: HoldOutcome },
    /// Answer an [`Input::Settle`]: everything that had happened at the repository before is served if it can be. Of the
    /// events of the caller, those are missing that a failure left undecided.
    Settled {
        caller: u64,
        outcomes: BTreeMap<EventId, HoldOutcome>,
    },
    /// Answer an [`Input::PushStaged`]: whether the upload is kept until its event can be served.
    Staged {
        id: EventId,
        tip: Oid,
        target: PushTarget,
        is_kept: bool,
    },
    /// Read store and git, and answer with [`Input::Surveyed`].
    Survey { repo: RepoId },
    /// In one transaction: set branches, tags and HEAD, and the refs of pull requests; store events in this order
    /// (announcements, states from the oldest, pull requests), and end the records of those; stop serving the events in
    /// `withdraw`, which are held until they can be served again. A missing view is created.
    Release {
        repo: RepoId,
        refs: RefsTarget,
        events: Vec<Arc<Event>>,
        withdraw: Vec<EventId>,
    },
    /// Survey other repositories that an event of this one may concern.
    Wake { repo: RepoId, cause: WakeCause },
    /// Publish events to subscribers, in the order in which they were stored.
    Publish { events: Vec<Arc<Event>> },
    /// Hunt for git data of a repository, without regard to earlier failures: after this time unless a hunt is due
    /// sooner, or as soon as a burst of events allows.
    Hunt {
        repo: RepoId,
        after: Option<Duration>,
    },
}

/// What became of an event that purgatory was to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldOutcome {
    /// It is stored and served: its git data was here.
    Stored,
    /// It is held durably.
    Held,
    /// Newer versions of its author are held or served, or it was withdrawn.
    Superseded,
    /// A limit is reached.
    Full,
    /// It is no event that waits for git data.
    Unreadable,
}

/// The wanted refs of a repository.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RefsTarget {
    /// The state whose branches and tags are to be shown.
    pub state: StateTarget,
    /// Pull requests that get a ref.
    pub proposals: Vec<ProposalRef>,
    /// The present maintainers; none for an address.
    pub maintainers: BTreeSet<PublicKey>,
    /// The owner of the repository to be an address of.
    pub shows: Option<PublicKey>,
}

/// The wanted branches and tags of a repository.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum StateTarget {
    /// Those that it has.
    #[default]
    Unchanged,
    /// None.
    Nothing,
    /// Those of this state.
    Show(Arc<State>),
}

/// The wanted ref `refs/nostr/<id>` of a pull request, whose objects are here or staged.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "fields are documented where the name does not say it all"
)]
pub struct ProposalRef {
    pub id: EventId,
    pub tip: Oid,
    /// The repository, and the endpoint that gets the ref: a pull request may have been pushed to its author's
    /// repository too.
    pub places: BTreeSet<(Endpoint, RepoId)>,
}

/// The reason why other repositories are surveyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeCause {
    /// An announcement came or went: who maintains what may have changed.
    Announcement,
    /// A state or a pull request came or went.
    Content,
}

/// One of the two stages of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Reading store and git.
    Survey,
    /// Setting refs and storing events.
    Release,
}

/// The outputs of one call.
///
/// No effect may begin before all records are on disk. They are written together or not at all. Several calls may share
/// one write if their order is kept. When records cannot be written, the state machine is ahead of the disk and must be
/// discarded and restored.
#[derive(Debug, Default)]
pub struct Outputs {
    /// Records to append to the journal.
    pub records: Vec<Record>,
    /// Everything else, to be done after that.
    pub effects: Vec<Output>,
    /// Repositories whose survey was requested by this call.
    pub(super) surveyed: BTreeSet<RepoId>,
}

impl Outputs {
    pub(super) fn write(&mut self, record: Record) {
        self.records.push(record);
    }

    pub(super) fn push(&mut self, output: Output) {
        self.effects.push(output);
    }
}

/// One change of purgatory, written before its effects.
///
/// A database keeps what the records lead to: applying all records in their order gives the same purgatory as applying
/// the rows that are left of them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "fields are documented where the name does not say it all"
)]
pub enum Record {
    /// An event is held until then. It is written whole: no other server may have it.
    Held {
        event: Arc<Event>,
        phase: Phase,
        since: Timestamp,
        until: Timestamp,
    },
    /// The phase of an event changed, or its end.
    Moved {
        id: EventId,
        phase: Phase,
        until: Timestamp,
    },
    /// An event is no longer held.
    Gone { id: EventId },
    /// An upload of this size waits for an event. All uploads for the event wait until then.
    Staged {
        id: EventId,
        tip: Oid,
        target: PushTarget,
        bytes: u64,
        until: Timestamp,
    },
    /// The uploads for an event wait no longer, but for the tip to keep.
    Unstaged { id: EventId, keep: Option<Oid> },
    /// A task is pending, also after a restart.
    TaskAdded { task: CleanupTask },
    /// A task is no longer pending.
    TaskDone { task: CleanupTask },
}
