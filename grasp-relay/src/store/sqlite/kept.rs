//! Sets for reconciliation that are kept and brought up to date, instead of being read anew for each session.
//!
//! Peers that follow each other compare the same sets again and again, and most of the time the sets are equal. So the
//! sorted set of a recent filter is kept. The writer notes the events that each commit stores or removes; when the set is
//! asked for again, only those are looked up.

use std::collections::{BTreeSet, VecDeque};

use nostr::event::EventId;
use nostr::filter::Filter;
use nostr::types::Timestamp;

use crate::store::{ItemSet, weight_of};

/// Events that are noted; a set that is older than that is read anew.
const MAX_NOTED: usize = 10_000;

/// Sets that are kept.
const MAX_SETS: usize = 4;

/// Items of all sets that are kept: 12 MB.
const MAX_ITEMS: usize = 300_000;

/// Items from which on a set is kept: smaller ones are read soon enough.
const MIN_ITEMS: usize = 500;

/// The weight of a filter whose set is kept.
const MAX_WEIGHT: usize = 1_000;

/// The events that commits have stored or removed, in their order.
#[derive(Debug, Default)]
pub(super) struct TouchedEvents {
    /// The number of events that were forgotten.
    forgotten: u64,
    ids: VecDeque<EventId>,
}

/// A point between two commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Mark(u64);

impl TouchedEvents {
    /// Notes the events of a commit, once it can be read and before its callers get their results.
    pub(super) fn note(&mut self, ids: Vec<EventId>) {
        self.ids.extend(ids);
        let surplus = self.ids.len().saturating_sub(MAX_NOTED);
        self.ids.drain(..surplus);
        self.forgotten += surplus as u64;
    }

    /// Returns the point after all commits so far.
    pub(super) fn mark(&self) -> Mark {
        Mark(self.forgotten + self.ids.len() as u64)
    }

    /// Returns the events of the commits since a point; `None` if some of them were forgotten.
    pub(super) fn since(&self, mark: Mark) -> Option<BTreeSet<EventId>> {
        let known = usize::try_from(mark.0.checked_sub(self.forgotten)?).ok()?;
        Some(self.ids.iter().skip(known).copied().collect())
    }
}

/// The set of a filter as of a point.
#[derive(Clone, Debug)]
pub(super) struct KeptSet {
    pub(super) items: ItemSet,
    /// Everything that was committed before is considered; what was committed later may be.
    pub(super) mark: Mark,
    /// The time at which it was read.
    pub(super) read_at: Timestamp,
    /// The time at which the next stored event expires, of any filter.
    pub(super) next_expiry: Option<Timestamp>,
}

impl KeptSet {
    /// Returns whether no event has expired since.
    fn is_current(&self, now: Timestamp) -> bool {
        self.read_at <= now && self.next_expiry.is_none_or(|at| now < at)
    }

    /// Replaces the touched events by those of them that are in the set now, which are sorted.
    pub(super) fn updated(
        &self,
        touched: &BTreeSet<EventId>,
        present: Vec<(Timestamp, EventId)>,
    ) -> Vec<(Timestamp, EventId)> {
        let mut items = Vec::with_capacity(self.items.len() + present.len());
        let mut present = present.into_iter().peekable();
        for item in self.items.iter() {
            while let Some(new) = present.next_if(|new| new < item) {
                items.push(new);
            }
            if !touched.contains(&item.1) {
                items.push(*item);
            }
        }
        items.extend(present);
        items
    }
}

/// The sets that are kept, the last used one last.
#[derive(Debug, Default)]
pub(super) struct KeptSets(VecDeque<(Filter, KeptSet)>);

impl KeptSets {
    /// Returns the set of a filter, if it is kept and no event has expired since it was read.
    pub(super) fn find(&mut self, filter: &Filter, now: Timestamp) -> Option<KeptSet> {
        let at = self.0.iter().position(|(kept, _)| kept == filter)?;
        let (filter, set) = self.0.remove(at)?;
        if !set.is_current(now) {
            return None;
        }
        self.0.push_back((filter, set.clone()));
        Some(set)
    }

    /// Keeps the set of a filter, and forgets those that were not used for longest.
    pub(super) fn keep(&mut self, filter: Filter, set: KeptSet) {
        self.0.retain(|(kept, _)| *kept != filter);
        if !(MIN_ITEMS..=MAX_ITEMS).contains(&set.items.len()) {
            return;
        }
        self.0.push_back((filter, set));
        while self.0.len() > MAX_SETS || self.items() > MAX_ITEMS {
            self.0.pop_front();
        }
    }

    fn items(&self) -> usize {
        self.0.iter().map(|(_, set)| set.items.len()).sum()
    }
}

/// Returns whether the set of a filter can be brought up to date: it has no limit, and matches by what an event is.
pub(super) fn can_be_kept(filter: &Filter) -> bool {
    filter.limit.is_none()
        && filter.ids.is_none()
        && filter.search.is_none()
        && weight_of(std::slice::from_ref(filter)) <= MAX_WEIGHT
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nostr::event::Kind;

    use super::*;

    fn id(nth: usize) -> EventId {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&nth.to_be_bytes());
        EventId::from_byte_array(bytes)
    }

    fn set(items: impl IntoIterator<Item = usize>) -> KeptSet {
        let items = items.into_iter().map(|nth| (at(nth as u64), id(nth)));
        KeptSet {
            items: Arc::new(items.collect()),
            mark: Mark(0),
            read_at: at(1_000),
            next_expiry: None,
        }
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_secs(seconds)
    }

    #[test]
    fn a_set_gets_what_was_stored_and_loses_what_was_removed() {
        let old = set([1, 3, 5, 7]);
        let touched = [id(0), id(3), id(5), id(6), id(9)].into();
        // 5 was stored before, and noted after it had been read; 9 does not match or is gone again.
        let present = [0, 5, 6].map(|nth| (at(nth as u64), id(nth))).into();
        let new = set([0, 1, 5, 6, 7]);
        assert_eq!(old.updated(&touched, present), *new.items);
    }

    #[test]
    fn the_events_of_commits_are_known_from_a_point_on_unless_there_were_too_many() {
        let mut touched = TouchedEvents::default();
        touched.note(vec![id(1)]);
        let mark = touched.mark();
        assert_eq!(touched.since(mark), Some(BTreeSet::new()));
        touched.note(vec![id(2), id(3)]);
        assert_eq!(touched.since(mark), Some([id(2), id(3)].into()));
        touched.note((0..MAX_NOTED - 2).map(id).collect());
        assert!(touched.since(mark).is_some());
        touched.note(vec![id(4)]);
        assert_eq!(touched.since(mark), None);
        assert_eq!(touched.since(touched.mark()), Some(BTreeSet::new()));
    }

    #[test]
    fn few_sets_are_kept_until_an_event_expires() {
        let filter = |kind: u16| Filter::new().kind(Kind::from(kind));
        let mut kept = KeptSets::default();
        kept.keep(filter(1), set(0..MIN_ITEMS - 1));
        assert!(kept.find(&filter(1), at(2_000)).is_none(), "too small");
        for kind in 1..=5 {
            kept.keep(filter(kind), set(0..MIN_ITEMS));
            assert!(kept.find(&filter(1), at(2_000)).is_some(), "in use");
        }
        assert!(kept.find(&filter(2), at(2_000)).is_none());
        assert!(
            kept.find(&filter(5), at(999)).is_none(),
            "the clock was set"
        );
        let mut ending = set(0..MIN_ITEMS);
        ending.next_expiry = Some(at(3_000));
        kept.keep(filter(6), ending);
        assert!(kept.find(&filter(6), at(2_999)).is_some());
        assert!(kept.find(&filter(6), at(3_000)).is_none());
    }
}
