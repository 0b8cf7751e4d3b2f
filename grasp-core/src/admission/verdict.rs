//! Verdicts on events, and the OK messages that tell them.

use std::borrow::Cow;

use nostr::key::PublicKey;

use super::facts::Presence;
use crate::repo::RepoId;

/// The decision about an event.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// Stored and served.
    Accept(Acceptance),
    /// Acknowledged, and kept in purgatory until its git data is here.
    Hold(Hold),
    /// Sent to live subscriptions, never stored.
    Broadcast,
    /// Nothing to do.
    Known(Known),
    /// The owner no longer lists this service: the repository goes out of service.
    Delist {
        /// The announcement itself is kept, because another one lists its author.
        keep: bool,
    },
    /// Refused.
    Reject(Rejection),
}

impl Verdict {
    /// Returns whether the event is charged to its author and its roots (see [`FanOut`](super::FanOut)).
    pub const fn counts_for_fan_out(&self) -> bool {
        matches!(self, Self::Accept(Acceptance::Related) | Self::Hold(Hold::Proposal))
    }
}

/// The reason for which an event is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acceptance {
    /// It is related to something stored.
    Related,
    /// The next version of a hosted repository's announcement.
    Replacement,
    /// It names git data of a repository for which no data is awaited.
    Promoted,
    /// An announcement that is needed for maintainer sets only: no view, no authority by itself.
    Discovery,
    /// An event that had nothing to wait for in purgatory: it is stored and served already.
    Released,
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

/// The reason for which there is nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// The event is stored.
    Stored,
    /// The event is held.
    Held,
    /// A newer version of it is here.
    Superseded,
}

impl From<Presence> for Known {
    fn from(presence: Presence) -> Self {
        match presence {
            Presence::Stored => Self::Stored,
            Presence::Held => Self::Held,
        }
    }
}

/// The reason for which an event is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rejection {
    /// Its id or signature does not verify.
    Forged,
    /// It is not a valid event of its kind.
    Malformed(String),
    /// Its expiration has passed (NIP-40).
    Expired,
    /// It is dated too far ahead.
    TooFarAhead,
    /// Only its author may publish it (NIP-70).
    Protected,
    /// A repost with a protected event in it (NIP-70).
    ProtectedRepost,
    /// Its author deleted it.
    Deleted,
    /// Its author vanished.
    Vanished,
    /// Its author or repository is banned.
    Banned,
    /// An announcement that does not list this service.
    #[allow(missing_docs)]
    NotListed { clone: Vec<String>, relays: Vec<String> },
    /// A state of a repository that has no announcement.
    NoAnnouncement,
    /// A state by an author that is in no maintainer set.
    NotMaintainer(PublicKey),
    /// It is related to nothing that is stored.
    Unrelated,
    /// A profile or relay list of an author without a part in what is stored.
    UnknownAuthor,
    /// Its kind is never stored.
    NeverStored,
    /// A deletion request that names another author's event.
    ForeignDeletion,
    /// A deletion request with too many targets.
    TooManyTargets,
    /// A limit of purgatory or of the announcements of a name is reached.
    Quota,
    /// Its author, or the thread it belongs to, has had its share of a day.
    RateLimited,
    /// The client's network, or all clients together, have used their share of lookups.
    Busy,
    /// The server failed.
    Internal,
}

/// The time for which a refusal holds for an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lasting {
    /// For ever: sync does not fetch that id again.
    Forever,
    /// Until an event that it depends on arrives.
    UntilDependency,
    /// Until the server has capacity again.
    Briefly,
}

impl Rejection {
    /// Returns whether an event stored later can reverse this refusal.
    pub fn is_reversible(&self) -> bool {
        *self != Self::TooFarAhead && self.lasting() == Lasting::UntilDependency
    }

    /// Returns the time for which this refusal holds.
    pub fn lasting(&self) -> Lasting {
        match self {
            Self::Forged
            | Self::Malformed(_)
            | Self::Expired
            | Self::Protected
            | Self::ProtectedRepost
            | Self::Deleted
            | Self::Vanished
            | Self::Banned
            | Self::NeverStored
            | Self::ForeignDeletion
            | Self::TooManyTargets => Lasting::Forever,
            // An announcement that lists other services is accepted once another one lists its author.
            Self::NotListed { .. }
            | Self::NoAnnouncement
            | Self::NotMaintainer(_)
            | Self::Unrelated
            | Self::UnknownAuthor
            | Self::TooFarAhead => Lasting::UntilDependency,
            Self::Quota | Self::RateLimited | Self::Busy | Self::Internal => Lasting::Briefly,
        }
    }
}

/// The answer to one event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The event needs no further sending.
    pub accepted: bool,
    /// Empty, or a machine-readable prefix and an explanation.
    pub message: Cow<'static, str>,
}

impl Answer {
    const fn yes(message: &'static str) -> Self {
        Self { accepted: true, message: Cow::Borrowed(message) }
    }

    const fn no(message: &'static str) -> Self {
        Self { accepted: false, message: Cow::Borrowed(message) }
    }
}

impl Verdict {
    /// Returns the OK message, to be sent once what it promises is durable.
    pub fn answer(&self) -> Answer {
        match self {
            Self::Accept(_) | Self::Broadcast | Self::Delist { keep: true } => Answer::yes(""),
            Self::Hold(_) => Answer::yes("purgatory: won't be served until git data arrives"),
            Self::Known(Known::Stored) => Answer::yes("duplicate: already have this event"),
            Self::Known(Known::Held) => Answer::yes("duplicate: in purgatory"),
            Self::Known(Known::Superseded) => {
                Answer::no("replaced: have a newer version of this event")
            }
            Self::Delist { keep: false } => {
                Answer::no("invalid: this announcement no longer lists this service")
            }
            Self::Reject(why) => why.answer(),
        }
    }
}

impl Rejection {
    /// Returns the OK message for this refusal.
    pub fn answer(&self) -> Answer {
        match self {
            Self::Forged => Answer::no("invalid: the id or the signature does not verify"),
            Self::Malformed(why) => {
                Answer { accepted: false, message: format!("invalid: {why}").into() }
            }
            Self::Expired => Answer::no("invalid: this event has expired"),
            Self::TooFarAhead => Answer::no("invalid: created_at is too far in the future"),
            Self::Protected => {
                Answer::no("auth-required: this event may only be published by its author")
            }
            Self::ProtectedRepost => {
                Answer::no("invalid: a repost must not contain a protected event (NIP-70)")
            }
            Self::Deleted => Answer::no("invalid: this event is deleted"),
            Self::Vanished => Answer::no("invalid: this pubkey has requested to vanish"),
            Self::Banned => Answer::no("blocked: this author or repository is not welcome here"),
            Self::NotListed { clone, relays } => Answer {
                accepted: false,
                message: format!(
                    "invalid: the announcement must list this service under clone and relays; clone: {}; relays: {}",
                    UrlList(clone),
                    UrlList(relays)
                )
                .into(),
            },
            Self::NoAnnouncement => Answer::no("invalid: no announcement exists for this repository"),
            Self::NotMaintainer(_) => {
                Answer::no("restricted: author not authorized for this repository")
            }
            Self::Unrelated => Answer::no(
                "restricted: event must reference an accepted repository or accepted event",
            ),
            Self::UnknownAuthor => Answer::no(
                "restricted: profiles and relay lists are kept only of authors who own a repository here or take \
                 part in its threads",
            ),
            Self::NeverStored => Answer::no("invalid: events of this kind are not kept"),
            Self::ForeignDeletion => {
                Answer::no("invalid: the deletion request names an event of another author")
            }
            Self::TooManyTargets => Answer::no("invalid: the deletion request has too many targets"),
            Self::Quota => Answer::no("rate-limited: too much is waiting for git data already"),
            Self::RateLimited => {
                Answer::no("rate-limited: too many events of this author or thread today")
            }
            Self::Busy => Answer::no(
                "rate-limited: this network uses its share of this relay, try again in a minute",
            ),
            Self::Internal => Answer::no("error: the event could not be stored, try again"),
        }
    }
}

/// The first URLs of an announcement, short enough for a message.
struct UrlList<'a>(&'a [String]);

impl std::fmt::Display for UrlList<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const MAX_URLS: usize = 3;
        const MAX_CHARS: usize = 80;
        if self.0.is_empty() {
            return f.write_str("none");
        }
        for (position, place) in self.0.iter().take(MAX_URLS).enumerate() {
            let separator = if position == 0 { "" } else { ", " };
            let shown: String = place.chars().filter(|c| !c.is_control()).take(MAX_CHARS).collect();
            write!(f, "{separator}{shown}")?;
        }
        if self.0.len() > MAX_URLS {
            write!(f, " and {} more", self.0.len() - MAX_URLS)?;
        }
        Ok(())
    }
}
