//! The id of a root event.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};

use nostr::event::EventId;

/// The id of a patch, pull request or issue, what a thread about a repository begins with; or of a reply in one.
///
/// That it is a reply's is a note on it, by which less is asked: whoever answers a reply names it by `e`, while roots
/// are named in more ways. It makes no other id of it.
///
/// Sorts as event ids do, only faster: the first eight bytes of two hashes nearly always tell them apart, and
/// are compared as one number. Comparing roots is the bulk of what the sync index does.
///
/// ```
/// use grasp_core::sync::RootId;
/// use nostr::event::EventId;
///
/// let event = EventId::from_byte_array([7; 32]);
/// assert_eq!(RootId::from(event).event(), event);
/// ```
#[derive(Clone, Copy)]
pub struct RootId {
    event: EventId,
    is_reply: bool,
}

impl RootId {
    /// The id itself.
    pub fn event(&self) -> EventId {
        self.event
    }

    /// The same, as that of a reply.
    #[must_use]
    pub fn as_reply(self) -> Self {
        Self { is_reply: true, ..self }
    }

    /// Whether it is that of a reply.
    pub fn is_reply(&self) -> bool {
        self.is_reply
    }

    /// The first eight bytes, which sort as the whole does.
    pub(super) fn head(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = *self.event.as_bytes();
        u64::from_be_bytes([a, b, c, d, e, f, g, h])
    }
}

impl From<EventId> for RootId {
    fn from(event: EventId) -> Self {
        Self { event, is_reply: false }
    }
}

impl PartialEq for RootId {
    fn eq(&self, other: &Self) -> bool {
        self.event == other.event
    }
}

impl Eq for RootId {}

impl Hash for RootId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.event.hash(state);
    }
}

impl Ord for RootId {
    fn cmp(&self, other: &Self) -> Ordering {
        let head = self.head().cmp(&other.head());
        head.then_with(|| self.event.cmp(&other.event))
    }
}

impl PartialOrd for RootId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Debug for RootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RootId({})", self.event)
    }
}

impl fmt::Display for RootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.event, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots_sort_as_their_event_ids_do() {
        let bytes = |places: &[(usize, u8)]| {
            let mut bytes = [9; 32];
            places.iter().for_each(|(place, byte)| bytes[*place] = *byte);
            EventId::from_byte_array(bytes)
        };
        let ids = [
            bytes(&[]),
            bytes(&[(0, 200)]),
            bytes(&[(7, 8), (8, 255)]),
            bytes(&[(8, 1)]),
            bytes(&[(31, 10)]),
        ];
        for one in ids {
            for other in ids {
                assert_eq!(RootId::from(one).cmp(&other.into()), one.cmp(&other));
            }
        }
    }
}
