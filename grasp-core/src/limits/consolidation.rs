//! When a relay's live filters have become too many small ones.

/// Filters on one connection above which they are rebuilt as fewer, fuller ones.
pub const CONSOLIDATION_THRESHOLD: usize = 70;

/// Should the filters of a connection be rebuilt, rather than these new ones added to them?
///
/// Asked before adding, so that the threshold is never passed and then noticed.
///
/// ```
/// use grasp_core::limits::{CONSOLIDATION_THRESHOLD, should_consolidate};
///
/// assert!(!should_consolidate(68, 2, CONSOLIDATION_THRESHOLD));
/// assert!(should_consolidate(68, 3, CONSOLIDATION_THRESHOLD));
/// ```
pub const fn should_consolidate(current: usize, new: usize, threshold: usize) -> bool {
    current.saturating_add(new) > threshold
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_rebuilt_above_the_threshold_and_not_at_it() {
        assert!(!should_consolidate(0, 70, CONSOLIDATION_THRESHOLD));
        assert!(should_consolidate(0, 71, CONSOLIDATION_THRESHOLD));
        assert!(should_consolidate(70, 1, CONSOLIDATION_THRESHOLD));
    }

    #[test]
    fn absurd_counts_do_not_wrap_around() {
        assert!(should_consolidate(usize::MAX, 1, CONSOLIDATION_THRESHOLD));
    }
}
