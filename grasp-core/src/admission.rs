//! Decides whether an event is stored, held or refused, for events of clients and of sync alike.
//!
//! ```text
//! event ─▶ Needs::of ─▶ the caller looks things up ─▶ Facts ─▶ judge ─▶ Verdict ─▶ Outcome ─▶ Answer (the OK message)
//! ```
//!
//! [`judge`] is a pure function of the event, the time and the facts.
//!
//! ```
//! use std::sync::Arc;
//! use grasp_core::admission::{
//!     Answer, Archive, Bans, ExceededLimit, Facts, FanOut, FanOutLimits, Hold, KnownAnnouncement, MAX_TAGS,
//!     MaintainedRepo, Needs, Origin, Outcome, Policy, Presence, Retry, SyncPath, Verdict, is_expired, judge,
//! };
//! use grasp_core::nip34::{Announcement, References};
//! use grasp_core::{Mono, RepoId, Verified};
//! use nostr::event::{EventBuilder, FinalizeEvent, Kind, Tag};
//! use nostr::key::Keys;
//!
//! let mut policy = Policy::new("grasp.example".parse()?);
//! policy.bans = Bans::default();
//! policy.archive = Archive::default();
//! let alice = Keys::generate();
//! let repo = RepoId::new(alice.public_key(), "x".parse()?);
//! let clone = format!("https://grasp.example{}", policy.service.repo_path(&repo));
//! let announcement = EventBuilder::new(Kind::GitRepoAnnouncement, "")
//!     .tags([Tag::identifier("x"), Tag::parse(["clone", &clone])?, Tag::parse(["relays", "wss://grasp.example"])?])
//!     .finalize(&alice)?;
//! let now = announcement.created_at;
//! assert!(!is_expired(&announcement, now) && announcement.tags.len() <= MAX_TAGS);
//!
//! // An announcement waits for its git data.
//! let verdict = judge(&policy, now, &Origin::anonymous(), Verified::check(&announcement)?, &Facts::default());
//! assert!(matches!(verdict, Verdict::Hold(Hold::Announcement)));
//! let Answer { is_accepted, message } = verdict.outcome().answer();
//! assert!(is_accepted && message.starts_with("purgatory:"), "{message}");
//!
//! // A state that arrives by sync: its announcement and the repositories that its author maintains are looked up.
//! let state = EventBuilder::new(Kind::RepoState, "").tag(Tag::identifier("x")).finalize(&alice)?;
//! let needs = Needs::of(&state);
//! assert_eq!((needs.repo.as_ref(), needs.references), (Some(&repo), References::default()));
//! let announcement = Arc::new(Announcement::parse(&announcement)?);
//! let mut facts = Facts::default();
//! facts.announcements.push(KnownAnnouncement { announcement, presence: Presence::Stored });
//! facts.maintained.push(MaintainedRepo { repo: repo.clone(), presence: Presence::Stored });
//! let from = Origin::Sync { relay: "wss://other.example".parse()?, path: SyncPath::Live };
//! let verdict = judge(&policy, now, &from, Verified::check(&state)?, &facts);
//! assert!(matches!(&verdict, Verdict::Hold(Hold::State(repos)) if *repos == [repo]), "{verdict:?}");
//!
//! // A patch of a repository that is not here may be offered again, once that is here.
//! let patch = EventBuilder::new(Kind::GitPatch, "").finalize(&alice)?;
//! let outcome = judge(&policy, now, &from, Verified::check(&patch)?, &Facts::default()).outcome();
//! assert!(matches!(outcome, Outcome::Refused { retry: Retry::AfterDependency, .. }), "{outcome:?}");
//!
//! // One author may send a number of events in a day.
//! let mut limits = FanOutLimits::default();
//! limits.author.count = 1;
//! let mut fan_out = FanOut::new(limits);
//! assert_eq!(fan_out.admit(Mono::ZERO, &patch, &References::default()), Ok(()));
//! assert_eq!(fan_out.admit(Mono::ZERO, &patch, &References::default()), Err(ExceededLimit::Author));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod fan_out;
mod policy;
mod verdict;

use std::sync::Arc;

pub use fan_out::{ExceededLimit, FanOut, FanOutLimits, Share};
use nostr::event::{Event, Kind, Tag};
use nostr::key::PublicKey;
use nostr::types::Timestamp;
pub use policy::{Allowed, Archive, Bans, Policy};
use serde::{Deserialize, Serialize};
pub use verdict::{Answer, Hold, Outcome, Rejection, Retry, Verdict};

use self::fan_out::size;
use crate::event::{Verified, Version};
use crate::kinds;
use crate::nip34::{Announcement, Proposal, References, State, tags};
use crate::repo::{Identifier, RelayUrl, RepoId};
use crate::resources::{Claimant, ClientNetwork};

/// Judges an event by the facts known at this moment.
///
/// ```
/// use grasp_core::admission::{Facts, Origin, Policy, Rejection, Verdict, judge};
/// use grasp_core::Verified;
/// use nostr::event::{EventBuilder, FinalizeEvent, Kind};
/// use nostr::{key::Keys, types::Timestamp};
///
/// let note = EventBuilder::new(Kind::TextNote, "hi").finalize(&Keys::generate()).unwrap();
/// let now = note.created_at;
/// let note = Verified::check(note).unwrap();
/// let policy = Policy::new("grasp.example".parse().unwrap());
/// let verdict = judge(&policy, now, &Origin::anonymous(), note.as_ref(), &Facts::default());
/// assert_eq!(verdict, Verdict::from(Rejection::Unrelated));
/// assert!(verdict.outcome().answer().message.starts_with("restricted: "));
/// ```
pub fn judge(
    policy: &Policy,
    now: Timestamp,
    origin: &Origin,
    event: Verified<&Event>,
    facts: &Facts,
) -> Verdict {
    let verdict = check_any_kind(policy, now, origin, &event).and_then(|()| match facts.known {
        Some(presence) => Ok(Verdict::Done(Outcome::Duplicate(presence))),
        None => judge_kind(policy, origin, &event, facts),
    });
    verdict.unwrap_or_else(Verdict::from)
}

/// The checks that every kind goes through, in their order.
fn check_any_kind(
    policy: &Policy,
    now: Timestamp,
    origin: &Origin,
    event: &Event,
) -> Result<(), Rejection> {
    if is_banned(policy, event) {
        Err(Rejection::Banned)
    } else if policy.refuses(event.kind) {
        Err(Rejection::RefusedKind)
    } else if is_expired(event, now) {
        Err(Rejection::Expired)
    } else if event.created_at > now + policy.max_ahead {
        Err(Rejection::TooFarAhead)
    } else if event.is_protected() && !origin.is_author(&event.pubkey) {
        Err(Rejection::Protected)
    } else if embeds_protected(event) {
        Err(Rejection::ProtectedRepost)
    } else if has_too_many_tags(event) {
        Err(Rejection::Malformed(format!(
            "it has more than {MAX_TAGS} tags"
        )))
    } else {
        Ok(())
    }
}

/// Returns whether an event is refused by a ban. Requests of a banned author to delete or to vanish are carried out.
fn is_banned(policy: &Policy, event: &Event) -> bool {
    let is_request = event.kind == kinds::DELETION || event.kind == kinds::VANISH;
    policy.bans.events.contains(&event.id)
        || policy.bans.authors.contains(&event.pubkey) && !is_request
}

/// Tags of one event, each of which may be a row of an index. The refs of a state are not indexed, and not counted.
pub const MAX_TAGS: usize = 2_000;

fn has_too_many_tags(event: &Event) -> bool {
    let is_counted = |tag: &&Tag| event.kind != kinds::STATE || tag.single_letter_tag().is_some();
    event.tags.iter().filter(is_counted).count() > MAX_TAGS
}

/// Returns whether a repost contains an event that only its author may publish (NIP-70).
fn embeds_protected(event: &Event) -> bool {
    matches!(event.kind, Kind::Repost | Kind::GenericRepost)
        && Event::from_json(&event.content).is_ok_and(|inner| inner.is_protected())
}

/// Returns whether the expiration of an event has passed (NIP-40); the stated second counts as passed.
pub fn is_expired(event: &Event, now: Timestamp) -> bool {
    event.tags.expiration().is_some_and(|end| end <= now)
}

fn judge_kind(
    policy: &Policy,
    origin: &Origin,
    event: &Event,
    facts: &Facts,
) -> Result<Verdict, Rejection> {
    match event.kind {
        kind if kinds::NEVER_STORED_KINDS.contains(&kind) => Err(Rejection::NeverStored),
        Kind::GitRepoAnnouncement => judge_announcement(policy, event, facts),
        Kind::RepoState => judge_state(event, facts),
        Kind::GitPullRequest | Kind::GitPullRequestUpdate => judge_proposal(policy, event, facts),
        _ => judge_other(policy, origin, event, facts),
    }
}

/// Judges an announcement (kind 30617).
fn judge_announcement(policy: &Policy, event: &Event, facts: &Facts) -> Result<Verdict, Rejection> {
    let new = Announcement::parse(event)?;
    if size(event) > Announcement::MAX_EVENT_BYTES as u64 {
        let why = format!(
            "an announcement may have at most {} bytes",
            Announcement::MAX_EVENT_BYTES
        );
        return Err(Rejection::Malformed(why));
    }
    check_repository(policy, &new.repo, facts.is_listed)?;
    if policy.members_only && !facts.is_member {
        return Err(Rejection::NotMember);
    }
    let own = || {
        facts
            .announcements
            .iter()
            .filter(|known| known.announcement.repo == new.repo)
    };
    let wins = |version| version > new.version;
    if facts.latest.is_some_and(wins) || own().any(|known| wins(known.announcement.version)) {
        return Ok(Verdict::Done(Outcome::Superseded));
    }
    let hosted = |known: &KnownAnnouncement| policy.hosts(&known.announcement);
    match (policy.hosts(&new), own().any(hosted)) {
        (false, true) => Ok(Verdict::Delist {
            keep: facts.is_listed,
        }),
        (false, false) if !facts.is_listed && own().next().is_none() => Err(not_listed(event)),
        // It is needed for maintainer sets only: no view, no authority by itself.
        (false, false) => Ok(Verdict::Store { is_related: false }),
        // A served repository gets a new announcement at once; one that is held, or was known for discovery only,
        // is not served without data.
        (true, _) if own().any(|known| known.presence == Presence::Stored && hosted(known)) => {
            Ok(Verdict::Store { is_related: false })
        }
        (true, _) if facts.is_repository_quota_reached => Err(Rejection::RepositoryQuota),
        (true, _) if facts.is_over_quota => Err(Rejection::Quota),
        (true, _) => Ok(Verdict::Hold(Hold::Announcement)),
    }
}

/// Refuses a repository that the policy keeps out of service. The announcement of one that is not allowed is kept where an
/// allowed one lists its author: maintainer sets need it.
fn check_repository(policy: &Policy, repo: &RepoId, is_listed: bool) -> Result<(), Rejection> {
    if policy.bans_repo(repo) {
        Err(Rejection::Banned)
    } else if !policy.allows(repo) && !is_listed {
        Err(Rejection::NotAllowed)
    } else if policy.allows(repo) && policy.withholds(repo) {
        Err(Rejection::Withheld)
    } else {
        Ok(())
    }
}

/// Refuses an announcement with all addresses that it lists, usable or not.
fn not_listed(event: &Event) -> Rejection {
    let values = |name| tags::all_values(event, name).map(str::to_owned).collect();
    Rejection::NotListed {
        clone: values("clone"),
        relays: values("relays"),
    }
}

/// Judges a state (kind 30618) by the hosted repositories that its author maintains.
fn judge_state(event: &Event, facts: &Facts) -> Result<Verdict, Rejection> {
    let state = State::parse(event)?;
    if facts.latest.is_some_and(|latest| latest > state.version) {
        return Ok(Verdict::Done(Outcome::Superseded));
    }
    if facts.maintained.is_empty() {
        return Err(match facts.announcements.is_empty() && !facts.is_listed {
            true => Rejection::NoAnnouncement,
            false => Rejection::NotMaintainer(event.pubkey),
        });
    }
    // Any author can fill purgatory; maintainers of what is served have a share of it of their own.
    let signs_for_served = facts
        .maintained
        .iter()
        .any(|repo| repo.presence == Presence::Stored);
    if facts.is_over_quota && !signs_for_served {
        return Err(Rejection::Quota);
    }
    let repos = facts
        .maintained
        .iter()
        .map(|maintained| maintained.repo.clone());
    Ok(Verdict::Hold(Hold::State(repos.collect())))
}

/// Judges a pull request (kinds 1618 and 1619), which waits for its tip.
fn judge_proposal(policy: &Policy, event: &Event, facts: &Facts) -> Result<Verdict, Rejection> {
    let proposal = Proposal::parse(event)?;
    // A pull request that names its author's own endpoint here needs no repository (GRASP-06).
    if !facts.is_related && policy.own_urls(&proposal).next().is_none() {
        return Err(Rejection::Unrelated);
    }
    if facts.is_over_quota {
        return Err(Rejection::Quota);
    }
    Ok(Verdict::Hold(Hold::Proposal))
}

/// Judges an event of any other kind, which is stored if it is related to something stored.
fn judge_other(
    policy: &Policy,
    origin: &Origin,
    event: &Event,
    facts: &Facts,
) -> Result<Verdict, Rejection> {
    if facts
        .latest
        .is_some_and(|latest| latest > Version::of(event))
    {
        return Ok(Verdict::Done(Outcome::Superseded));
    }
    if event.kind == kinds::VANISH && !event.tags.iter().any(|tag| tag.kind() == "relay") {
        return Err(Rejection::Malformed("it names no relay".to_owned()));
    }
    // Ephemeral events are for those that listen now; a copy from another relay is late.
    if event.kind.is_ephemeral() && origin.is_sync() {
        return Err(Rejection::NeverStored);
    }
    if event.kind == kinds::DELETION && policy.bans.authors.contains(&event.pubkey) {
        return Ok(Verdict::Obey);
    }
    check_relation(policy, event, facts)?;
    match event.kind.is_ephemeral() {
        true => Ok(Verdict::Broadcast),
        false => Ok(Verdict::Store { is_related: true }),
    }
}

/// Refuses an event that is not related to anything stored and needs to be. Deletions, whether or not their target is
/// here, lists of GRASP servers, and events of the operator and of the service need no relation.
fn check_relation(policy: &Policy, event: &Event, facts: &Facts) -> Result<(), Rejection> {
    let is_unconditional = kinds::UNCONDITIONAL_KINDS.contains(&event.kind)
        || [policy.operator, policy.service_key].contains(&Some(event.pubkey));
    if is_unconditional {
        return Ok(());
    }
    match kinds::PROFILE_KINDS.contains(&event.kind) {
        true if !facts.is_author_known => Err(Rejection::UnknownAuthor),
        false if !facts.is_related => Err(Rejection::Unrelated),
        _ => Ok(()),
    }
}

/// The source of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A client of this relay.
    Client {
        /// Keys that the client proved to have (NIP-42).
        authenticated: Vec<PublicKey>,
        /// The client's network; `None` for the operator's own tools.
        network: Option<ClientNetwork>,
    },
    /// Another relay, by sync.
    #[allow(missing_docs)]
    Sync { relay: RelayUrl, path: SyncPath },
}

/// The part of sync that brought an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SyncPath {
    /// A live subscription.
    Live,
    /// The catch-up after a connection was made.
    CatchUp,
    /// The daily pass.
    Daily,
}

impl Origin {
    /// Returns a client without proven keys.
    pub const fn anonymous() -> Self {
        Self::Client {
            authenticated: Vec::new(),
            network: None,
        }
    }

    /// Returns the claimant that an event's cost is accounted to: for sync, the server itself.
    pub fn claimant(&self) -> Claimant {
        match self {
            Self::Client { network, .. } => Claimant::maybe_at(*network),
            Self::Sync { .. } => Claimant::server(),
        }
    }

    /// Returns whether the client proved to be this author.
    pub(super) fn is_author(&self, author: &PublicKey) -> bool {
        matches!(self, Self::Client { authenticated, .. } if authenticated.contains(author))
    }

    /// Returns whether sync brought the event.
    pub fn is_sync(&self) -> bool {
        matches!(self, Self::Sync { .. })
    }
}

/// Limits the coordinates, and the ids, that are looked up for one event. Honest events name fewer.
const MAX_COORDINATES: usize = 64;
const MAX_IDS: usize = 256;

/// The lookups that an event needs before it can be judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Needs {
    /// The repository that it announces, or whose state it is: its announcements and maintainers are looked up.
    pub repo: Option<RepoId>,
    /// Events to look up.
    pub references: References,
    /// Stored events that name this one, by its id or its coordinate, are looked up too.
    pub named_by_others: bool,
}

impl Needs {
    /// Returns the lookups for an event.
    pub fn of(event: &Event) -> Self {
        let ruled = event.kind == kinds::ANNOUNCEMENT || event.kind == kinds::STATE;
        if ruled {
            let identifier = event
                .tags
                .identifier()
                .and_then(|d| Identifier::new(&d).ok());
            let repo = identifier.map(|identifier| RepoId::new(event.pubkey, identifier));
            return Self {
                repo,
                references: References::default(),
                named_by_others: false,
            };
        }
        let References { ids, coordinates } = References::of(event);
        let ids = ids.into_iter().take(MAX_IDS).collect();
        let coordinates = coordinates.into_iter().take(MAX_COORDINATES).collect();
        let references = References { ids, coordinates };
        Self {
            repo: None,
            references,
            named_by_others: true,
        }
    }
}

/// The facts about an event. The default has none.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The event itself, if it is here already.
    pub known: Option<Presence>,
    /// The stored version of the same replaceable or addressable event, or the version that took it out of service.
    pub latest: Option<Version>,
    /// Announcements of its repository that are here: at most one stored and one held.
    pub announcements: Vec<KnownAnnouncement>,
    /// A hosted repository of another owner and the same identifier lists its author, directly or by its maintainers.
    /// Being listed is enough: an announcement may be the one that lists back.
    pub is_listed: bool,
    /// Hosted repositories of the same identifier that the author of a state maintains.
    pub maintained: Vec<MaintainedRepo>,
    /// Stored events that it names (first values of `a`, `A`, `e`, `E`, `q`).
    pub named: References,
    /// It names, or is named by, a stored event.
    pub is_related: bool,
    /// Its author takes part in stored repositories or threads.
    pub is_author_known: bool,
    /// Its author has as many repositories as this server hosts for one author.
    pub is_repository_quota_reached: bool,
    /// A limit of purgatory is reached for it.
    pub is_over_quota: bool,
    /// Its author is a member of this private service (GRASP-08); nothing depends on it at a public one.
    pub is_member: bool,
}

/// The place where an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Presence {
    /// Stored and served.
    Stored,
    /// Acknowledged and held in purgatory.
    Held,
}

/// A hosted repository that an author maintains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MaintainedRepo {
    /// Its id.
    pub repo: RepoId,
    /// The place of its announcement.
    pub presence: Presence,
}

/// An announcement that is here.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct KnownAnnouncement {
    pub announcement: Arc<Announcement>,
    pub presence: Presence,
}

#[cfg(test)]
mod tests;
