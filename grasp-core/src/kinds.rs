//! The event kinds that GRASP gives a meaning to.

use nostr::event::Kind;

/// NIP-34 repository announcement.
pub const ANNOUNCEMENT: Kind = Kind::GitRepoAnnouncement;
/// NIP-34 repository state.
pub const STATE: Kind = Kind::RepoState;
/// NIP-34 patch.
pub const PATCH: Kind = Kind::GitPatch;
/// NIP-34 pull request.
pub const PULL_REQUEST: Kind = Kind::GitPullRequest;
/// NIP-34 pull request update.
pub const PULL_REQUEST_UPDATE: Kind = Kind::GitPullRequestUpdate;
/// NIP-34 issue.
pub const ISSUE: Kind = Kind::GitIssue;
/// A user's list of GRASP servers.
pub const GRASP_LIST: Kind = Kind::GitUserGraspList;
/// NIP-09 deletion request.
pub const DELETION: Kind = Kind::EventDeletion;
/// NIP-62 request to vanish.
pub const VANISH: Kind = Kind::RequestToVanish;

/// What a thread about a repository begins with; later events may name only these.
pub const ROOTS: [Kind; 4] = [PATCH, PULL_REQUEST, PULL_REQUEST_UPDATE, ISSUE];

/// What goes on with a thread; later events may name only these. Reactions and the like are named by nobody.
pub const REPLIES: [Kind; 3] = [Kind::Comment, Kind::TextNote, Kind::GitReply];

/// What most events about repositories and their threads are of: roots, replies, what became of proposals, and what
/// people leave with one touch.
pub const USUAL: [Kind; 15] = [
    PATCH,
    PULL_REQUEST,
    PULL_REQUEST_UPDATE,
    ISSUE,
    REPLIES[0],
    REPLIES[1],
    REPLIES[2],
    Kind::GitStatusOpen,
    Kind::GitStatusApplied,
    Kind::GitStatusClosed,
    Kind::GitStatusDraft,
    Kind::Reaction,
    Kind::Label,
    Kind::ZapReceipt,
    DELETION,
];

/// What makes somebody known: taking part in a thread or keeping a repository, not having a profile.
pub const TAKING_PART: [Kind; 13] = [
    ANNOUNCEMENT,
    PATCH,
    PULL_REQUEST,
    PULL_REQUEST_UPDATE,
    ISSUE,
    REPLIES[0],
    REPLIES[1],
    REPLIES[2],
    Kind::GitStatusOpen,
    Kind::GitStatusApplied,
    Kind::GitStatusClosed,
    Kind::GitStatusDraft,
    Kind::Reaction,
];

/// What somebody says about themselves: kept of known people only.
pub const ABOUT_THEIR_AUTHOR: [Kind; 2] = [Kind::Metadata, Kind::RelayList];

/// What is kept whoever signs it and whatever it names.
pub const ALWAYS_WELCOME: [Kind; 3] = [DELETION, VANISH, GRASP_LIST];

/// A piece of software (NIP-82), which names the repository that it is made from.
pub const SOFTWARE: Kind = Kind::from_u16(32_267);
/// A release of one (NIP-82), which names nothing but the software.
pub const SOFTWARE_RELEASE: Kind = Kind::from_u16(30_063);
/// A project of several repositories.
pub const PROJECT: Kind = Kind::from_u16(30_621);
/// A container image of a repository.
pub const CONTAINER: Kind = Kind::from_u16(30_624);

/// What a relay must tell its own syncer: everything that changes what to ask others for.
///
/// Of addressable members of repositories these are the kinds that are known to have something hang on them; others are
/// told of as they are accepted.
pub const SELF_SUBSCRIPTION: [Kind; 12] = [
    ANNOUNCEMENT,
    PATCH,
    PULL_REQUEST,
    PULL_REQUEST_UPDATE,
    ISSUE,
    REPLIES[0],
    REPLIES[1],
    REPLIES[2],
    SOFTWARE,
    SOFTWARE_RELEASE,
    PROJECT,
    CONTAINER,
];

/// Kinds that only prove something to one server at one moment, and are never stored.
pub const NEVER_STORED: [Kind; 2] = [Kind::Authentication, Kind::HttpAuth];

/// Kinds 0, 3 and 10000–19999: one event per author and kind (NIP-01).
///
/// The library counts kind 41 among them, which has many living events per author.
pub fn is_replaceable(kind: Kind) -> bool {
    matches!(kind.as_u16(), 0 | 3 | 10_000..=19_999)
}
