//! The OK message: what the sender of an event gets to read.

use std::borrow::Cow;

use super::verdict::{Known, Rejection, Verdict};

/// The answer to one event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Whether the sender may forget about the event.
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
    /// The OK message for this verdict, to be sent once what it promises is durable.
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
    /// The OK message for this refusal.
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
                    Places(clone),
                    Places(relays)
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
                Answer::no("invalid: the deletion request names somebody else's event")
            }
            Self::TooManyTargets => Answer::no("invalid: the deletion request has too many targets"),
            Self::Quota => Answer::no("rate-limited: too much is waiting for git data already"),
            Self::Crowded => {
                Answer::no("rate-limited: too many events of this author or thread today")
            }
            Self::Busy => Answer::no(
                "rate-limited: this network uses its share of this relay, try again in a minute",
            ),
            Self::Internal => Answer::no("error: the event could not be stored, try again"),
        }
    }
}

/// A few of the places an announcement names, short enough for a message.
struct Places<'a>(&'a [String]);

impl std::fmt::Display for Places<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const MOST: usize = 3;
        const LONGEST: usize = 80;
        if self.0.is_empty() {
            return f.write_str("none");
        }
        for (position, place) in self.0.iter().take(MOST).enumerate() {
            let separator = if position == 0 { "" } else { ", " };
            let shown: String = place.chars().filter(|c| !c.is_control()).take(LONGEST).collect();
            write!(f, "{separator}{shown}")?;
        }
        if self.0.len() > MOST {
            write!(f, " and {} more", self.0.len() - MOST)?;
        }
        Ok(())
    }
}
