//! Verdicts on events, what became of them, and the OK messages that tell it.

use std::borrow::Cow;

use nostr::key::PublicKey;
use serde::{Deserialize, Serialize};

use super::Presence;
use crate::repo::RepoId;
use crate::text::ParseError;

/// The decision about an event: what is to be done with it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// Store and serve it.
    Store {
        /// It is stored because it is related to something stored.
        is_related: bool,
    },
    /// Carry out what it asks for, and never serve it: a deletion request of a banned author.
    Obey,
    /// Acknowledge it, and keep it in purgatory until its git data is here.
    Hold(Hold),
    /// Send it to live subscriptions, and never store it.
    Broadcast,
    /// The owner no longer lists this service: take the repository out of service.
    Delist {
        /// Keep the announcement itself, because another one lists its author.
        keep: bool,
    },
    /// Do nothing.
    Done(Outcome),
}

/// The reason for which an event is held. If its git data is here, it waits for the next survey only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hold {
    /// A repository that is not served yet; its empty view exists from now on.
    Announcement,
    /// A state of these repositories.
    State(Vec<RepoId>),
    /// A pull request that waits for its tip.
    Proposal,
}

impl Verdict {
    /// Returns whether the event is charged to its author and its roots (see [`FanOut`](super::FanOut)).
    pub const fn counts_for_fan_out(&self) -> bool {
        matches!(
            self,
            Self::Store { is_related: true } | Self::Hold(Hold::Proposal)
        )
    }

    /// Returns what becomes of the event once this verdict is carried out.
    pub fn outcome(self) -> Outcome {
        match self {
            Self::Store { .. } | Self::Obey | Self::Delist { keep: true } => Outcome::Stored,
            Self::Hold(_) => Outcome::Held,
            Self::Broadcast => Outcome::Broadcast,
            Self::Delist { keep: false } => Rejection::Delisted.into(),
            Self::Done(outcome) => outcome,
        }
    }
}

/// What became of an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[must_use]
pub enum Outcome {
    /// It is stored and served, and was not before.
    Stored,
    /// It is held in purgatory until its git data is here.
    Held,
    /// It was sent to live subscriptions, and is not kept.
    Broadcast,
    /// It was here already.
    Duplicate(Presence),
    /// A newer version of it is here.
    Superseded,
    /// It was refused.
    #[allow(missing_docs)]
    Refused { reason: Rejection, retry: Retry },
}

/// The time after which a refused event may be offered again. Exhaustive on purpose: whoever keeps refused events must know
/// all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Retry {
    /// Never: sync does not fetch that id again.
    Never,
    /// Once an event that it depends on has arrived.
    AfterDependency,
    /// Once the server has capacity again.
    Soon,
}

impl From<Rejection> for Outcome {
    fn from(reason: Rejection) -> Self {
        Self::Refused {
            retry: reason.retry(),
            reason,
        }
    }
}

impl From<Rejection> for Verdict {
    fn from(reason: Rejection) -> Self {
        Self::Done(reason.into())
    }
}

/// The reason for which an event is refused. Its text is the OK message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the texts say it")]
pub enum Rejection {
    #[error("invalid: the id or the signature does not verify")]
    Forged,
    /// It is not a valid event of its kind.
    #[error("invalid: {0}")]
    Malformed(String),
    /// Its expiration has passed (NIP-40).
    #[error("invalid: this event has expired")]
    Expired,
    #[error("invalid: created_at is too far in the future")]
    TooFarAhead,
    /// Only its author may publish it (NIP-70).
    #[error("auth-required: this event may only be published by its author")]
    Protected,
    #[error("invalid: a repost must not contain a protected event (NIP-70)")]
    ProtectedRepost,
    #[error("invalid: this event is deleted")]
    Deleted,
    #[error("invalid: this pubkey has requested to vanish")]
    Vanished,
    #[error("blocked: this author or repository is banned on this server")]
    Banned,
    /// Its kind is one that the operator refuses.
    #[error("blocked: this server does not accept events of this kind")]
    RefusedKind,
    /// The server has an allow list, and the repository is not on it.
    #[error("restricted: this server hosts only repositories that its operator has listed")]
    NotAllowed,
    /// The operator holds the repository, or it is being restored.
    #[error("blocked: this repository is not available on this server")]
    Withheld,
    #[error(
        "invalid: the announcement must list this service under clone and relays; clone: {}; relays: {}",
        first_of(clone),
        first_of(relays)
    )]
    NotListed {
        clone: Vec<String>,
        relays: Vec<String>,
    },
    #[error("restricted: only members of this private service announce repositories here")]
    NotMember,
    /// The next version of a hosted repository's announcement, by which its owner takes it out of service.
    #[error("invalid: this announcement no longer lists this service")]
    Delisted,
    /// A state of a repository that has no announcement.
    #[error("invalid: no announcement exists for this repository")]
    NoAnnouncement,
    /// A state by an author that is in no maintainer set.
    #[error("restricted: author not authorized for this repository")]
    NotMaintainer(PublicKey),
    #[error("restricted: event must reference an accepted repository or accepted event")]
    Unrelated,
    #[error(
        "restricted: profiles and relay lists are stored only of authors who own a repository here or take part in its \
         threads"
    )]
    UnknownAuthor,
    #[error("invalid: events of this kind are not stored")]
    NeverStored,
    #[error("invalid: the deletion request names an event of another author")]
    ForeignDeletion,
    #[error("invalid: the deletion request has too many targets")]
    TooManyTargets,
    #[error(
        "rate-limited: this author has as many repositories as this server hosts for one author"
    )]
    RepositoryQuota,
    /// A limit of purgatory is reached.
    #[error("rate-limited: too many events wait for git data, try again later")]
    Quota,
    #[error("rate-limited: too many events of this author or thread today")]
    RateLimited,
    /// The client's network, or all clients together, have used their share of lookups.
    #[error("rate-limited: this network has used its share of lookups, try again in a minute")]
    Busy,
    #[error("error: the event could not be stored, try again")]
    Internal,
}

impl From<ParseError> for Rejection {
    fn from(why: ParseError) -> Self {
        Self::Malformed(why.to_string())
    }
}

impl Rejection {
    /// Returns whether an event stored later can reverse this refusal.
    pub fn is_reversible(&self) -> bool {
        self.retry() == Retry::AfterDependency
            && !matches!(
                self,
                Self::TooFarAhead
                    | Self::Delisted
                    | Self::NotMember
                    | Self::NotAllowed
                    | Self::Withheld
            )
    }

    /// Returns the time after which the event may be offered again.
    pub fn retry(&self) -> Retry {
        match self {
            Self::Forged
            | Self::Malformed(_)
            | Self::Expired
            | Self::Protected
            | Self::ProtectedRepost
            | Self::Deleted
            | Self::Vanished
            | Self::Banned
            | Self::RefusedKind
            | Self::NeverStored
            | Self::ForeignDeletion
            | Self::TooManyTargets => Retry::Never,
            // An announcement that lists other services is accepted once another one lists its author.
            // So is one of a key that becomes a member.
            Self::NotListed { .. }
            | Self::NotMember
            | Self::NotAllowed
            | Self::Withheld
            | Self::Delisted
            | Self::NoAnnouncement
            | Self::NotMaintainer(_)
            | Self::Unrelated
            | Self::UnknownAuthor
            | Self::TooFarAhead => Retry::AfterDependency,
            Self::RepositoryQuota
            | Self::Quota
            | Self::RateLimited
            | Self::Busy
            | Self::Internal => Retry::Soon,
        }
    }
}

/// The answer to one event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The event needs no further sending.
    pub is_accepted: bool,
    /// Empty, or a machine-readable prefix and an explanation.
    pub message: Cow<'static, str>,
}

impl Outcome {
    /// Returns the OK message, to be sent once what it promises is durable.
    pub fn answer(&self) -> Answer {
        let (is_accepted, message) = match self {
            Self::Stored | Self::Broadcast => (true, ""),
            Self::Held => (true, "purgatory: won't be served until git data arrives"),
            Self::Duplicate(Presence::Stored) => (true, "duplicate: already have this event"),
            Self::Duplicate(Presence::Held) => (true, "duplicate: in purgatory"),
            Self::Superseded => (false, "replaced: have a newer version of this event"),
            Self::Refused { reason, .. } => {
                return Answer {
                    is_accepted: false,
                    message: reason.to_string().into(),
                };
            }
        };
        Answer {
            is_accepted,
            message: message.into(),
        }
    }
}

/// Returns the first URLs of an announcement, short enough for a message.
fn first_of(urls: &[String]) -> String {
    const MAX_URLS: usize = 3;
    const MAX_CHARS: usize = 80;
    let shorten = |url: &String| -> String {
        url.chars()
            .filter(|c| !c.is_control())
            .take(MAX_CHARS)
            .collect()
    };
    let first: Vec<_> = urls.iter().take(MAX_URLS).map(shorten).collect();
    match urls.len() {
        0 => String::from("none"),
        1..=MAX_URLS => first.join(", "),
        count => format!("{} and {} more", first.join(", "), count - MAX_URLS),
    }
}
