//! Whether an answer to a REQ was all there is (NIP-67).

use grasp_core::limits::EoseHint;
use nostr::filter::Filter;

/// Counts what is sent of one history.
///
/// Of a single filter the store is asked for one event more than is sent: whether it comes tells exactly. Several
/// filters share their answer, and which of them an event is for is not told: if all that was sent is less than the
/// smallest limit, none of them was cut.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completeness {
    limit: usize,
    is_single: bool,
    sent: usize,
    is_cut: bool,
}

impl Completeness {
    /// Begins the answer to filters, of which the store is asked `wanted`.
    pub(crate) fn begin(filters: &[Filter], wanted: &mut [Filter]) -> Self {
        let limit = wanted.iter().filter_map(|filter| filter.limit).min();
        // Of filters that want no history nothing is sent, whatever there is.
        let limit = limit.filter(|_| filters.len() == wanted.len()).unwrap_or(0);
        let is_single = filters.len() == 1 && limit > 0;
        if let ([only], true) = (wanted, is_single) {
            only.limit = Some(limit.saturating_add(1));
        }
        Self { limit, is_single, sent: 0, is_cut: false }
    }

    /// Whether one more event is sent.
    pub(crate) fn admit(&mut self) -> bool {
        self.is_cut |= self.is_single && self.sent >= self.limit;
        self.sent += usize::from(!self.is_cut);
        !self.is_cut
    }

    /// What is to be said at the end.
    pub(crate) fn hint(&self) -> EoseHint {
        let is_more = if self.is_single { self.is_cut } else { self.sent >= self.limit };
        if is_more { EoseHint::More } else { EoseHint::Finish }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is sent, and what is said at the end, if the store has so many for these limits.
    fn answered(limits: &[usize], found: usize) -> (usize, EoseHint) {
        let filters: Vec<_> = limits.iter().map(|limit| Filter::new().limit(*limit)).collect();
        let mut wanted: Vec<_> =
            filters.iter().filter(|filter| filter.limit != Some(0)).cloned().collect();
        let mut answer = Completeness::begin(&filters, &mut wanted);
        let most: usize = wanted.iter().filter_map(|filter| filter.limit).sum();
        let sent = (0..found.min(most)).filter(|_| answer.admit()).count();
        (sent, answer.hint())
    }

    #[test]
    fn a_single_filter_is_told_exactly_and_sent_no_more_than_its_limit() {
        use EoseHint::{Finish, More};
        let table = [(0, 0, Finish), (4, 4, Finish), (5, 5, Finish), (6, 5, More), (90, 5, More)];
        for (found, sent, hint) in table {
            assert_eq!(answered(&[5], found), (sent, hint), "{found}");
        }
    }

    #[test]
    fn of_several_filters_everything_was_sent_if_it_is_less_than_any_limit() {
        assert_eq!(answered(&[5, 9], 4), (4, EoseHint::Finish));
        assert_eq!(answered(&[5, 9], 5), (5, EoseHint::More));
        assert_eq!(answered(&[0], 3), (0, EoseHint::More), "nothing was asked for");
        assert_eq!(answered(&[0, 9], 3), (3, EoseHint::More));
    }
}
