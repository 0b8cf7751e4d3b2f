//! The event kinds that have a meaning in GRASP.
//!
//! | kind | is |
//! |---|---|
//! | 30617, 30618 | an announcement, a state |
//! | 1617, 1618, 1619, 1621 | the root of a thread |
//! | 1111, 1, 1622 | a reply |
//! | 5, 62 | a deletion request, a request to vanish |
//! | 10317 | a user's list of GRASP servers |
//!
//! ```
//! use grasp_core::kinds::*;
//!
//! let numbers = [ANNOUNCEMENT, STATE, PATCH, PULL_REQUEST, PULL_REQUEST_UPDATE, ISSUE, DELETION, VANISH, GRASP_LIST];
//! assert_eq!(numbers.map(|kind| kind.as_u16()), [30617, 30618, 1617, 1618, 1619, 1621, 5, 62, 10317]);
//! assert_eq!([COVER_NOTE, CI_RESULT].map(|kind| kind.as_u16()), [1624, 9842]);
//! let named_by_others = [SOFTWARE, SOFTWARE_RELEASE, PROJECT, CONTAINER];
//! assert_eq!(named_by_others.map(|kind| kind.as_u16()), [32267, 30063, 30621, 30624]);
//!
//! // What sync asks the local relay for, and what other events of a thread are.
//! let mut wanted = ROOT_KINDS.iter().chain(&REPLY_KINDS).chain(&named_by_others);
//! assert!(wanted.all(|kind| SELF_SUBSCRIPTION_KINDS.contains(kind)));
//! assert!(COMMON_REPO_KINDS.contains(&DELETION) && PARTICIPATION_KINDS.contains(&ISSUE));
//! // If the relays of users are asked too, it delivers the kinds by which users take part.
//! assert!(SELF_SUBSCRIPTION_KINDS.iter().chain(&PARTICIPATION_KINDS).all(|kind| OUTBOX_KINDS.contains(kind)));
//! // What is stored of an author who takes part, from anybody, and never.
//! assert!(PROFILE_KINDS.iter().all(|kind| is_replaceable(*kind)));
//! assert!(UNCONDITIONAL_KINDS.contains(&VANISH) && NEVER_STORED_KINDS.iter().all(|kind| !is_replaceable(*kind)));
//! ```

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
/// A note about an issue, patch or pull request that is shown before its text.
pub const COVER_NOTE: Kind = Kind::from_u16(1_624);
/// A result of continuous integration.
pub const CI_RESULT: Kind = Kind::from_u16(9_842);
/// A user's list of GRASP servers.
pub const GRASP_LIST: Kind = Kind::GitUserGraspList;
/// A user's list of private GRASP servers, encrypted.
pub(crate) const PRIVATE_GRASP_LIST: Kind = Kind::from_u16(10_318);
/// NIP-09 deletion request.
pub const DELETION: Kind = Kind::EventDeletion;
/// NIP-62 request to vanish.
pub const VANISH: Kind = Kind::RequestToVanish;

/// Kinds that no operator can refuse: requests of authors, and what repositories are made of.
pub const NEVER_REFUSED_KINDS: [Kind; 12] = [
    DELETION,
    VANISH,
    PATCH,
    PULL_REQUEST,
    PULL_REQUEST_UPDATE,
    ISSUE,
    Kind::GitStatusOpen,
    Kind::GitStatusApplied,
    Kind::GitStatusClosed,
    Kind::GitStatusDraft,
    ANNOUNCEMENT,
    STATE,
];

/// Kinds that begin a thread about a repository; later events may name only these.
pub const ROOT_KINDS: [Kind; 4] = [PATCH, PULL_REQUEST, PULL_REQUEST_UPDATE, ISSUE];

/// Kinds that continue a thread; later events may name only these.
pub const REPLY_KINDS: [Kind; 3] = [Kind::Comment, Kind::TextNote, Kind::GitReply];

/// Kinds of most events about repositories and their threads: roots, replies, statuses, reactions and deletions.
pub const COMMON_REPO_KINDS: [Kind; 15] = [
    PATCH,
    PULL_REQUEST,
    PULL_REQUEST_UPDATE,
    ISSUE,
    REPLY_KINDS[0],
    REPLY_KINDS[1],
    REPLY_KINDS[2],
    Kind::GitStatusOpen,
    Kind::GitStatusApplied,
    Kind::GitStatusClosed,
    Kind::GitStatusDraft,
    Kind::Reaction,
    Kind::Label,
    Kind::ZapReceipt,
    DELETION,
];

/// Kinds that show that their author takes part in a repository or thread. A profile does not.
pub const PARTICIPATION_KINDS: [Kind; 13] = [
    ANNOUNCEMENT,
    PATCH,
    PULL_REQUEST,
    PULL_REQUEST_UPDATE,
    ISSUE,
    REPLY_KINDS[0],
    REPLY_KINDS[1],
    REPLY_KINDS[2],
    Kind::GitStatusOpen,
    Kind::GitStatusApplied,
    Kind::GitStatusClosed,
    Kind::GitStatusDraft,
    Kind::Reaction,
];

/// Kinds that describe their author, stored only for authors of an event of one of the [`PARTICIPATION_KINDS`] kinds.
pub const PROFILE_KINDS: [Kind; 2] = [Kind::Metadata, Kind::RelayList];

/// Kinds that are stored from any author, independent of what they name.
pub const UNCONDITIONAL_KINDS: [Kind; 4] = [DELETION, VANISH, GRASP_LIST, PRIVATE_GRASP_LIST];

/// An application (NIP-82), which names the repository of its source.
pub const SOFTWARE: Kind = Kind::from_u16(32_267);
/// A release of an application (NIP-82), which names only the application.
pub const SOFTWARE_RELEASE: Kind = Kind::from_u16(30_063);
/// A project of several repositories.
pub const PROJECT: Kind = Kind::from_u16(30_621);
/// A container image of a repository.
pub const CONTAINER: Kind = Kind::from_u16(30_624);

/// Kinds that a relay must deliver to its own sync: those that change what is requested from other relays.
///
/// Of the addressable events of repositories these are the kinds that others are known to refer to. A relay that can find
/// stored events of other addressable kinds delivers them too.
pub const SELF_SUBSCRIPTION_KINDS: [Kind; 12] = [
    ANNOUNCEMENT,
    PATCH,
    PULL_REQUEST,
    PULL_REQUEST_UPDATE,
    ISSUE,
    REPLY_KINDS[0],
    REPLY_KINDS[1],
    REPLY_KINDS[2],
    SOFTWARE,
    SOFTWARE_RELEASE,
    PROJECT,
    CONTAINER,
];

/// Kinds that a relay must deliver to its own sync for the relays of users to be asked, too (GRASP-03): those by which
/// users take part in repositories, and the lists of their relays.
pub const OUTBOX_KINDS: [Kind; 18] = [
    ANNOUNCEMENT,
    PATCH,
    PULL_REQUEST,
    PULL_REQUEST_UPDATE,
    ISSUE,
    REPLY_KINDS[0],
    REPLY_KINDS[1],
    REPLY_KINDS[2],
    SOFTWARE,
    SOFTWARE_RELEASE,
    PROJECT,
    CONTAINER,
    Kind::GitStatusOpen,
    Kind::GitStatusApplied,
    Kind::GitStatusClosed,
    Kind::GitStatusDraft,
    Kind::Reaction,
    Kind::RelayList,
];

/// Kinds that authenticate to one server at one time, and are never stored.
pub const NEVER_STORED_KINDS: [Kind; 2] = [Kind::Authentication, Kind::HttpAuth];

/// Returns whether there is one event per author and kind (NIP-01): kinds 0, 3 and 10000–19999.
///
/// The nostr crate includes kind 41, of which an author has many.
pub fn is_replaceable(kind: Kind) -> bool {
    matches!(kind.as_u16(), 0 | 3 | 10_000..=19_999)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outbox_kinds_are_those_of_sync_of_participation_and_relay_lists() {
        let mut all = SELF_SUBSCRIPTION_KINDS.to_vec();
        all.extend(PARTICIPATION_KINDS);
        all.push(Kind::RelayList);
        assert!(all.iter().all(|kind| OUTBOX_KINDS.contains(kind)));
        assert!(OUTBOX_KINDS.iter().all(|kind| all.contains(kind)));
    }
}
