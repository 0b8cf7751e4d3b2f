//! Collects what a burst brings, and lets it go as one batch.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::Mono;

/// How long newly found repositories and roots are collected before they are acted on.
pub const DISCOVERY_WINDOW: Duration = Duration::from_secs(5);

/// Opens at the first item, stays open for its length, and never starts over.
///
/// Since later items do not push the end away, a steady trickle cannot hold a batch back for ever.
/// Equal items count once, so memory follows the distinct things that changed.
///
/// ```
/// use grasp_core::Mono;
/// use grasp_core::limits::{BatchWindow, DISCOVERY_WINDOW};
///
/// let mut window = BatchWindow::new(DISCOVERY_WINDOW);
/// window.offer(Mono::from_secs(10), "alpha");
/// window.offer(Mono::from_secs(14), "beta");
/// assert_eq!(window.deadline(), Some(Mono::from_secs(15)));
/// assert_eq!(window.take_if_due(Mono::from_secs(14)), None);
///
/// let batch = window.take_if_due(Mono::from_secs(15)).unwrap();
/// assert_eq!(batch.into_iter().collect::<Vec<_>>(), ["alpha", "beta"]);
/// assert_eq!(window.deadline(), None);
/// ```
#[derive(Clone, Debug)]
pub struct BatchWindow<T> {
    length: Duration,
    open: Option<Open<T>>,
}

#[derive(Clone, Debug)]
struct Open<T> {
    until: Mono,
    items: BTreeSet<T>,
}

impl<T: Ord> BatchWindow<T> {
    /// A closed window of this length.
    pub const fn new(length: Duration) -> Self {
        Self { length, open: None }
    }

    /// Adds an item, and opens the window if it is the first.
    pub fn offer(&mut self, now: Mono, item: T) {
        let until = now + self.length;
        let open = self.open.get_or_insert_with(|| Open { until, items: BTreeSet::new() });
        open.items.insert(item);
    }

    /// The batch, once its window has passed; the next item opens a new one.
    pub fn take_if_due(&mut self, now: Mono) -> Option<BTreeSet<T>> {
        let due = self.open.take_if(|open| now >= open.until)?;
        Some(due.items)
    }

    /// When the batch will be due, if one is being collected.
    pub fn deadline(&self) -> Option<Mono> {
        self.open.as_ref().map(|open| open.until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_items_do_not_push_the_end_away() {
        let mut window = BatchWindow::new(DISCOVERY_WINDOW);
        for ms in (0..5_000).step_by(100) {
            window.offer(Mono::from_millis(ms), ms);
            assert_eq!(window.deadline(), Some(Mono::from_secs(5)));
        }
        assert_eq!(window.take_if_due(Mono::from_secs(5)).unwrap().len(), 50);
    }

    #[test]
    fn nothing_is_due_before_anything_was_offered() {
        let mut window = BatchWindow::<u8>::new(DISCOVERY_WINDOW);
        assert_eq!(window.take_if_due(Mono::from_secs(99)), None);
    }

    #[test]
    fn a_new_window_opens_at_the_first_item_after_a_batch() {
        let mut window = BatchWindow::new(DISCOVERY_WINDOW);
        window.offer(Mono::ZERO, 1);
        assert!(window.take_if_due(Mono::from_secs(7)).is_some());
        window.offer(Mono::from_secs(8), 2);
        assert_eq!(window.deadline(), Some(Mono::from_secs(13)));
        assert_eq!(window.take_if_due(Mono::from_secs(13)), Some(BTreeSet::from([2])));
    }

    #[test]
    fn equal_items_count_once() {
        let mut window = BatchWindow::new(DISCOVERY_WINDOW);
        window.offer(Mono::ZERO, "same");
        window.offer(Mono::from_secs(1), "same");
        assert_eq!(window.take_if_due(Mono::from_secs(5)).unwrap().len(), 1);
    }
}
