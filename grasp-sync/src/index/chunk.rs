//! Splitting of filters by size, and packing them into requests.

use std::collections::BTreeSet;

use nostr::filter::{Filter, SingleLetterTag};

use super::budget::{REQ_BYTES, RequestBudget};
use grasp_core::Identifier;

/// Longest value in a filter with others; relays that store lengths in one byte refuse a whole REQ for a longer one.
pub const MAX_SHARED_VALUE_BYTES: usize = 255;

/// Length of the longest `"since":…,"until":…,"limit":…,`. Every filter leaves room for it, so that a pager can set
/// these fields.
const WINDOW_BYTES: usize = 3 * (r#""since":,"#.len() + 20);

const _: () = assert!(
    RequestBudget::MIN_FILTER_BYTES > 6 * Identifier::MAX_BYTES + 256 + WINDOW_BYTES,
    "any one value must fit the smallest filter"
);

/// Splits `{ …base, #tag: values }` into filters within the budget, for each of the tags.
///
/// Values come sorted, which makes sets cheap to build. Values over [`MAX_SHARED_VALUE_BYTES`] get filters of their
/// own.
pub(super) fn split(
    base: &Filter,
    tags: &[SingleLetterTag],
    values: impl Iterator<Item = String>,
    budget: &RequestBudget,
) -> Vec<Filter> {
    let room = budget.filter_bytes().saturating_sub(empty_len(base));
    let mut chunks = Chunks::new(room, budget.values_per_filter());
    let mut long = Chunks::new(room, budget.values_per_filter());
    for value in values {
        if value.len() > MAX_SHARED_VALUE_BYTES {
            long.push(value);
        } else {
            chunks.push(value);
        }
    }
    chunks
        .finish()
        .chain(long.finish())
        .flat_map(|values| filters_over(base, tags, values))
        .collect()
}

/// Returns the length of the filter with an empty list for a tag and the longest window.
fn empty_len(base: &Filter) -> usize {
    let mut filter = base.clone();
    filter.generic_tags.insert(SingleLetterTag::LOWERCASE_A, BTreeSet::new());
    widest_len(&filter)
}

fn filters_over<'a>(
    base: &'a Filter,
    tags: &'a [SingleLetterTag],
    values: BTreeSet<String>,
) -> impl Iterator<Item = Filter> + 'a {
    tags.iter().map(move |tag| {
        let mut filter = base.clone();
        filter.generic_tags.insert(*tag, values.clone());
        filter
    })
}

/// Groups of values that fit into a filter.
struct Chunks {
    room: usize,
    max_values: usize,
    done: Vec<BTreeSet<String>>,
    open: Vec<String>,
    open_bytes: usize,
}

impl Chunks {
    fn new(room: usize, max_values: usize) -> Self {
        Self { room, max_values, done: Vec::new(), open: Vec::new(), open_bytes: 0 }
    }

    fn push(&mut self, value: String) {
        // Counts a comma for the first value too.
        let bytes = json_len(&value) + 1;
        if self.open.len() == self.max_values || self.open_bytes + bytes > self.room {
            self.close();
        }
        self.open_bytes += bytes;
        self.open.push(value);
    }

    fn close(&mut self) {
        if !self.open.is_empty() {
            self.done.push(self.open.drain(..).collect());
            self.open_bytes = 0;
        }
    }

    fn finish(mut self) -> impl Iterator<Item = BTreeSet<String>> {
        self.close();
        self.done.into_iter()
    }
}

/// Returns the length of a text as a JSON string, with quotes and escapes.
fn json_len(text: &str) -> usize {
    let escaped = |byte: u8| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 2,
        0x00..=0x1f => 6,
        _ => 1,
    };
    2 + text.bytes().map(escaped).sum::<usize>()
}

/// Packs filters into requests within the budget, in order. A filter that fits into none gets one of its own.
///
/// Filters with a value over [`MAX_SHARED_VALUE_BYTES`] come last, in requests of their own: a relay that does not
/// accept such a value refuses the whole request.
///
/// ```
/// use grasp_sync::index::{RequestBudget, pack_requests};
/// use nostr::filter::Filter;
///
/// let filters: Vec<_> = (0..7).map(|n| Filter::new().identifier(n.to_string())).collect();
/// let budget = RequestBudget::default().lowered_to_filters_per_req(3);
/// let sizes: Vec<_> = pack_requests(filters, &budget).iter().map(Vec::len).collect();
/// assert_eq!(sizes, [3, 3, 1]);
/// ```
pub fn pack_requests(filters: Vec<Filter>, budget: &RequestBudget) -> Vec<Vec<Filter>> {
    let (long, shared): (Vec<_>, Vec<_>) = filters.into_iter().partition(has_long_value);
    let mut requests = pack(shared, budget);
    requests.extend(pack(long, budget));
    requests
}

fn pack(filters: Vec<Filter>, budget: &RequestBudget) -> Vec<Vec<Filter>> {
    let mut requests: Vec<Vec<Filter>> = Vec::new();
    let mut bytes = REQ_BYTES;
    for filter in filters {
        let len = widest_len(&filter) + 1;
        match requests.last_mut() {
            Some(open)
                if open.len() < budget.filters_per_req()
                    && bytes + len <= budget.message_bytes() =>
            {
                bytes += len;
                open.push(filter);
            }
            _ => {
                bytes = REQ_BYTES + len;
                requests.push(vec![filter]);
            }
        }
    }
    requests
}

fn has_long_value(filter: &Filter) -> bool {
    filter.generic_tags.values().flatten().any(|value| value.len() > MAX_SHARED_VALUE_BYTES)
}

/// Returns the length of a filter as JSON with the longest window.
fn widest_len(filter: &Filter) -> usize {
    let limit = filter.limit.and_then(|limit| u64::try_from(limit).ok());
    let times = [filter.since, filter.until].map(|time| time.map(|time| time.as_secs()));
    let window: usize = times.into_iter().chain([limit]).flatten().map(field_len).sum();
    filter.as_json().len() - window + WINDOW_BYTES
}

/// Returns the length of `"since":n,`; the names of the other two fields are as long.
fn field_len(number: u64) -> usize {
    let digits = number.checked_ilog10().unwrap_or(0) as usize + 1;
    r#""since":,"#.len() + digits
}

#[cfg(test)]
mod tests {
    use nostr::types::Timestamp;

    use super::*;

    const D: &[SingleLetterTag] = &[SingleLetterTag::LOWERCASE_D];

    fn split_all(values: &[String], budget: &RequestBudget) -> Vec<Filter> {
        split(&Filter::new(), D, values.iter().cloned(), budget)
    }

    fn lens(filters: &[Filter]) -> Vec<usize> {
        let values = |filter: &Filter| filter.generic_tags[&D[0]].len();
        filters.iter().map(values).collect()
    }

    /// Returns the filter with the longest window.
    fn widest(filter: &Filter) -> Filter {
        let end = Timestamp::from_secs(u64::MAX);
        filter.clone().since(end).until(end).limit(usize::MAX)
    }

    #[test]
    fn lengths_equal_those_of_the_json() {
        for text in
            ["", "plain", "\"q\"", "a\\b", "\u{1}\u{8}\t\n\u{b}\u{c}\r\u{1f}\u{7f}", "日本🦀"]
        {
            assert_eq!(json_len(text), serde_json::to_string(text).unwrap().len(), "{text:?}");
        }
        let plain = Filter::new().kind(grasp_core::kinds::STATE).identifier("x");
        for filter in [
            plain.clone(),
            plain.clone().since(Timestamp::from_secs(0)).limit(0),
            plain.until(Timestamp::from_secs(1_700_000_000)).limit(500),
        ] {
            assert_eq!(widest_len(&filter), widest(&filter).as_json().len());
        }
    }

    #[test]
    fn splits_by_count() {
        let values: Vec<_> = (100..355).map(|n| n.to_string()).collect();
        assert_eq!(lens(&split_all(&values, &RequestBudget::default())), [100, 100, 55]);
    }

    #[test]
    fn splits_by_bytes_and_fills_filters() {
        let budget = RequestBudget::default().with_values_per_filter(1_000);
        let ids: Vec<_> = (0..1_000).map(|n| format!("{n:064x}")).collect();
        let filters = split_all(&ids, &budget);
        assert_eq!(lens(&filters), [487, 487, 26]);
        let full = widest(&filters[0]).as_json().len();
        assert!(full <= budget.filter_bytes() && full + 67 > budget.filter_bytes());
    }

    #[test]
    fn three_full_filters_make_one_request() {
        let budget = RequestBudget::default().with_values_per_filter(1_000);
        let ids: Vec<_> = (0..1_461).map(|n| format!("{n:064x}")).collect();
        let requests = pack_requests(split_all(&ids, &budget), &budget);
        assert_eq!(requests.len(), 1);
        assert_eq!(lens(&requests[0]), [487; 3]);
    }

    #[test]
    fn counts_escapes() {
        let budget = RequestBudget::default().with_values_per_filter(1_000);
        let values: Vec<_> = (0..300).map(|n| format!("{n:03}{}", "\u{1}".repeat(100))).collect();
        let filters = split_all(&values, &budget);
        assert_eq!(filters.len(), 6);
        assert!(
            filters.iter().all(|filter| widest(filter).as_json().len() <= budget.filter_bytes())
        );
    }

    #[test]
    fn long_values_share_neither_filter_nor_request_with_others() {
        let short = "x".repeat(MAX_SHARED_VALUE_BYTES);
        let long = "x".repeat(MAX_SHARED_VALUE_BYTES + 1);
        let budget = RequestBudget::default();
        let filters = split_all(&["a".into(), long, short], &budget);
        assert_eq!(lens(&filters), [2, 1]);
        let tail = Filter::new().identifier("z");
        let requests =
            pack_requests(vec![filters[1].clone(), filters[0].clone(), tail.clone()], &budget);
        assert_eq!(requests, [vec![filters[0].clone(), tail], vec![filters[1].clone()]]);
    }

    #[test]
    fn the_longest_value_fits_into_the_smallest_budget() {
        let budget = RequestBudget::default().lowered_to_message_bytes(0);
        let base = Filter::new().kind(grasp_core::kinds::STATE);
        let value = format!("{}{}", "x".repeat(71), "\u{1}".repeat(Identifier::MAX_BYTES));
        let filters = split(&base, D, [value].into_iter(), &budget);
        assert_eq!(lens(&filters), [1]);
        assert!(widest(&filters[0]).as_json().len() <= RequestBudget::MIN_FILTER_BYTES);
    }
}
