//! The id of a root event.

use std::cmp::Ordering;
use std::fmt;

use nostr::event::EventId;

/// The id of a patch, pull request or issue: what a thread about a repository begins with.
///
/// Sorts as event ids do, only faster: the first eight bytes of two hashes nearly always tell them apart, and
/// are compared as one number. Sets of roots are the bulk of what the sync index does.
///
/// ```
/// use grasp_core::sync::RootId;
/// use nostr::event::EventId;
///
/// let event = EventId::from_byte_array([7; 32]);
/// assert_eq!(RootId::from(event).event(), event);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RootId(EventId);

impl RootId {
    /// The id itself.
    pub fn event(&self) -> EventId {
        self.0
    }

    fn head(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = *self.0.as_bytes();
        u64::from_be_bytes([a, b, c, d, e, f, g, h])
    }
}

impl From<EventId> for RootId {
    fn from(event: EventId) -> Self {
        Self(event)
    }
}

impl Ord for RootId {
    fn cmp(&self, other: &Self) -> Ordering {
        let head = self.head().cmp(&other.head());
        head.then_with(|| self.0.cmp(&other.0))
    }
}

impl PartialOrd for RootId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Debug for RootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RootId({})", self.0)
    }
}

impl fmt::Display for RootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots_sort_as_their_event_ids_do() {
        let bytes = |places: &[(usize, u8)]| {
            let mut bytes = [9; 32];
            places
                .iter()
                .for_each(|(place, byte)| bytes[*place] = *byte);
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
