//! Ids that the engine assigns before anything happens, so that every answer can be matched.

use std::fmt;

/// One subscription or NIP-77 session on one connection. Never used twice.
///
/// Its text is the subscription id on the wire; a message with any other id is not ours.
///
/// ```
/// use grasp_sync::engine::SubId;
///
/// assert_eq!(SubId::parse("g7").unwrap().to_string(), "g7");
/// assert!(SubId::parse("g07").is_none() && SubId::parse("7").is_none());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubId(pub(crate) u64);

/// One attempt to connect, and the connection that comes of it. Inputs that carry an older one change nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub(super) u64);

/// One request for the local relay's inventory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InventoryId(pub(super) u64);

/// Identifies a batch in logs and reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchId(pub(super) u64);

impl fmt::Display for SubId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "g{}", self.0)
    }
}

impl SubId {
    /// Reads the one spelling that we send.
    pub fn parse(text: &str) -> Option<Self> {
        let sub = Self(text.strip_prefix('g')?.parse().ok()?);
        (sub.to_string() == text).then_some(sub)
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
