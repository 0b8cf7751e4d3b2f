//! Ids that the engine assigns before anything happens, so that every answer can be matched.

use std::fmt;
use std::str::FromStr;

/// One subscription or NIP-77 session on one connection. Never used twice.
///
/// Its text is the subscription id on the wire; a message with any other id is not ours.
///
/// ```
/// use grasp_sync::engine::SubId;
///
/// let sub: SubId = "g7".parse().unwrap();
/// assert_eq!(sub.to_string(), "g7");
/// assert!("g07".parse::<SubId>().is_err() && "7".parse::<SubId>().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubId(pub(super) u64);

/// One attempt to connect, and the connection that comes of it. Inputs that carry an older one change nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub(super) u64);

/// One request for the local relay's inventory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InventoryId(pub(super) u64);

/// Identifies a batch in logs and reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchId(pub(super) u64);

/// A text that is no subscription id of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotOurs;

impl fmt::Display for NotOurs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a subscription of ours")
    }
}

impl std::error::Error for NotOurs {}

impl fmt::Display for SubId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "g{}", self.0)
    }
}

impl FromStr for SubId {
    type Err = NotOurs;
    fn from_str(text: &str) -> Result<Self, NotOurs> {
        let digits = text.strip_prefix('g').ok_or(NotOurs)?;
        let sub = Self(digits.parse().map_err(|_| NotOurs)?);
        // Only the one spelling that we send.
        if sub.to_string() == text { Ok(sub) } else { Err(NotOurs) }
    }
}

/// One job: the history of one filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct JobId(pub(super) u64);

/// One request of the live set, over all the subscriptions that it is sent as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LiveId(pub(super) u64);

/// The source of ids: one counter for all, so that no two are equal.
#[derive(Debug, Default)]
pub(super) struct Ids(u64);

impl Ids {
    /// Returns a new id of a kind, as in `ids.next(SubId)`.
    pub(super) fn next<T>(&mut self, kind: fn(u64) -> T) -> T {
        self.0 += 1;
        kind(self.0)
    }
}
