//! The filters of the three layers: announcements, events about repositories, events about their roots; split by size,
//! and packed into requests.

use std::collections::BTreeSet;

use crate::{Identifier, RepoId, kinds};
use nostr::filter::{Filter, SingleLetterTag};
use nostr::nips::nip01::Coordinate;
use nostr::types::Timestamp;

use super::items::{RelaySyncNeeds, SyncLevel};
use super::roots::RootId;

/// Size limits of requests to one relay.
///
/// Limited by bytes and by counts. Starts with values that all known relays accept, and is only ever lowered, to
/// what a relay advertises or by what it refuses.
///
/// ```
/// use grasp_core::sync::RequestBudget;
///
/// let budget = RequestBudget::default().lowered_to_message_bytes(64 * 1024).lowered_to_filters_per_req(3);
/// assert_eq!((budget.message_bytes, budget.filters_per_req), (64 * 1024, 3));
/// assert_eq!(budget.lowered_to_filters_per_req(20).filters_per_req, 3);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestBudget {
    /// Maximum number of values per filter.
    pub values_per_filter: usize,
    /// Maximum length of a filter as JSON, with `since`, `until` and `limit`.
    pub filter_bytes: usize,
    /// Maximum length of a REQ as JSON.
    pub message_bytes: usize,
    /// Maximum number of filters per REQ.
    pub filters_per_req: usize,
}

impl RequestBudget {
    /// Upper limit of the values in a filter, independent of the settings.
    pub const MAX_VALUES_PER_FILTER: usize = 1_000;
    /// The smallest filter into which every value fits, even if written in six-byte escapes.
    pub const MIN_FILTER_BYTES: usize = 8 * 1024;

    /// Sets the number of values per filter, from one to [`Self::MAX_VALUES_PER_FILTER`].
    #[must_use]
    pub fn with_values_per_filter(self, values: usize) -> Self {
        Self {
            values_per_filter: values.clamp(1, Self::MAX_VALUES_PER_FILTER),
            ..self
        }
    }

    /// Lowers the length of a filter, to no less than [`Self::MIN_FILTER_BYTES`].
    #[must_use]
    pub fn lowered_to_filter_bytes(self, bytes: usize) -> Self {
        Self {
            filter_bytes: self.filter_bytes.min(bytes).max(Self::MIN_FILTER_BYTES),
            ..self
        }
    }

    /// Lowers the length of a message, to no less than one filter of [`Self::MIN_FILTER_BYTES`] needs. A relay that
    /// accepts less could not accept the events either.
    #[must_use]
    pub fn lowered_to_message_bytes(self, bytes: usize) -> Self {
        let min_bytes = Self::MIN_FILTER_BYTES + REQ_BYTES + 1;
        let message_bytes = self.message_bytes.min(bytes).max(min_bytes);
        let budget = self.lowered_to_filter_bytes(message_bytes - REQ_BYTES - 1);
        Self {
            message_bytes,
            ..budget
        }
    }

    /// Lowers the number of filters per REQ, to no less than one.
    #[must_use]
    pub fn lowered_to_filters_per_req(self, filters: usize) -> Self {
        Self {
            filters_per_req: self.filters_per_req.min(filters).max(1),
            ..self
        }
    }
}

impl Default for RequestBudget {
    /// 100 values and 32 KiB per filter, 10 filters and 96 KiB per request.
    fn default() -> Self {
        Self {
            values_per_filter: 100,
            filter_bytes: 32 * 1024,
            message_bytes: 96 * 1024,
            filters_per_req: 10,
        }
    }
}

/// Bytes of `["REQ",""]` with the longest subscription id that relays accept; each filter adds a comma.
const REQ_BYTES: usize = r#"["REQ",""]"#.len() + 64;

/// Longest value in a filter with others; relays that store lengths in one byte refuse a whole REQ for a longer one.
pub const MAX_SHARED_VALUE_BYTES: usize = 255;

/// Length of the longest `"since":…,"until":…,"limit":…,`. Every filter leaves room for it, so that a pager can set
/// these fields.
const WINDOW_BYTES: usize = 3 * (r#""since":,"#.len() + 20);

const _: () = assert!(
    RequestBudget::MIN_FILTER_BYTES > 6 * Identifier::MAX_BYTES + 256 + WINDOW_BYTES,
    "any one value must fit the smallest filter"
);

/// Tags by which an event names a repository.
const REPO_TAGS: [SingleLetterTag; 3] = [
    SingleLetterTag::LOWERCASE_A,
    SingleLetterTag::UPPERCASE_A,
    SingleLetterTag::LOWERCASE_Q,
];

/// Tags by which an event names another event.
const ROOT_TAGS: [SingleLetterTag; 3] = [
    SingleLetterTag::LOWERCASE_E,
    SingleLetterTag::UPPERCASE_E,
    SingleLetterTag::LOWERCASE_Q,
];

/// Builds the filter of layer 1: all announcements, states and lists of GRASP servers. Requested once per connection.
pub fn build_announcement_filter(since: Option<Timestamp>) -> Filter {
    let kinds = [kinds::GRASP_LIST, kinds::ANNOUNCEMENT, kinds::STATE];
    Filter {
        since,
        ..Filter::new().kinds(kinds)
    }
}

/// Builds the filters of layer 2: events that tag one of these repositories.
pub fn tagged_one_of_our_repo_event_filters<'a>(
    repos: impl IntoIterator<Item = &'a RepoId>,
    since: Option<Timestamp>,
    budget: &RequestBudget,
) -> Vec<Filter> {
    let values = repos.into_iter().map(RepoId::to_string);
    split(
        &Filter {
            since,
            ..Filter::new()
        },
        &REPO_TAGS,
        values,
        budget,
    )
}

/// Builds the filters of layer 3: events that tag one of these roots.
pub fn tagged_one_of_our_root_event_filters<'a>(
    roots: impl IntoIterator<Item = &'a RootId>,
    since: Option<Timestamp>,
    budget: &RequestBudget,
) -> Vec<Filter> {
    let values = roots.into_iter().map(|root| root.event().to_hex());
    split(
        &Filter {
            since,
            ..Filter::new()
        },
        &ROOT_TAGS,
        values,
        budget,
    )
}

/// Builds the filters of events that tag one of these replaceable or addressable events, which are no repositories.
pub fn tagged_with_a_coordinate_filters<'a>(
    coordinates: impl IntoIterator<Item = &'a Coordinate>,
    budget: &RequestBudget,
) -> Vec<Filter> {
    let values = coordinates.into_iter().map(Coordinate::to_string);
    split(&Filter::new(), &REPO_TAGS, values, budget)
}

/// Builds the filters of layers 2 and 3 for these items, and of states for those at [`SyncLevel::StateOnly`]. All other
/// states come with layer 1.
///
/// ```
/// use grasp_core::RepoId;
/// use grasp_core::sync::{RelaySyncNeeds, RequestBudget, SyncLevel, build_layer2_and_layer3_filters};
/// use nostr::event::EventId;
/// use nostr::types::Timestamp;
///
/// let owner = "79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798";
/// let repo: RepoId = format!("30617:{owner}:grasp").parse()?;
/// let items = RelaySyncNeeds {
///     repos: [(repo, SyncLevel::Full)].into(),
///     root_events: [EventId::from_byte_array([7; 32]).into()].into(),
///     ..RelaySyncNeeds::default()
/// };
/// let filters = build_layer2_and_layer3_filters(&items, Some(Timestamp::from_secs(9)), &RequestBudget::default());
/// assert_eq!(filters.len(), 6, "a, A, q for the repository; e, E, q for its root");
/// assert_eq!(filters[0].as_json(), format!(r##"{{"since":9,"#a":["30617:{owner}:grasp"]}}"##));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn build_layer2_and_layer3_filters(
    items: &RelaySyncNeeds,
    since: Option<Timestamp>,
    budget: &RequestBudget,
) -> Vec<Filter> {
    let any = Filter {
        since,
        ..Filter::new()
    };
    let full = items.repos_at(SyncLevel::Full);
    let mut filters = tagged_one_of_our_repo_event_filters(full, since, budget);
    // By any author; repositories of several owners may share an identifier.
    let held = items.repos_at(SyncLevel::StateOnly);
    let held: BTreeSet<String> = held.map(|repo| repo.identifier.to_string()).collect();
    let states = any.clone().kind(kinds::STATE);
    filters.extend(split(
        &states,
        &[SingleLetterTag::LOWERCASE_D],
        held.into_iter(),
        budget,
    ));
    let (replies, roots): (Vec<_>, Vec<_>) = items.root_events.iter().partition(|id| id.is_reply());
    filters.extend(tagged_one_of_our_root_event_filters(roots, since, budget));
    let replies = replies.into_iter().map(|reply| reply.event().to_hex());
    filters.extend(split(
        &any,
        &[SingleLetterTag::LOWERCASE_E],
        replies,
        budget,
    ));
    let members = items.coordinates.iter().map(Coordinate::to_string);
    filters.extend(split(
        &any,
        &[SingleLetterTag::LOWERCASE_A],
        members,
        budget,
    ));
    filters
}

/// Splits `{ …base, #tag: values }` into filters within the budget, for each of the tags.
///
/// Values come sorted, which makes sets cheap to build. Values over [`MAX_SHARED_VALUE_BYTES`] get filters of their
/// own.
fn split(
    base: &Filter,
    tags: &[SingleLetterTag],
    values: impl Iterator<Item = String>,
    budget: &RequestBudget,
) -> Vec<Filter> {
    let room = budget.filter_bytes.saturating_sub(empty_len(base));
    let is_long = |value: &String| value.len() > MAX_SHARED_VALUE_BYTES;
    let (long, short): (Vec<_>, Vec<_>) = values.partition(is_long);
    // Counts a comma for the first value too.
    let chunk = |values| {
        group(values, budget.values_per_filter, room, |value: &String| {
            json_len(value) + 1
        })
    };
    let mut filters = Vec::new();
    for values in chunk(short).into_iter().chain(chunk(long)) {
        let values: BTreeSet<String> = values.into_iter().collect();
        filters.extend(tags.iter().map(|tag| {
            let mut filter = base.clone();
            filter.generic_tags.insert(*tag, values.clone());
            filter
        }));
    }
    filters
}

/// Groups items in order, up to a number and a length in each group. An item that fits into none gets one of its own.
fn group<T>(
    items: Vec<T>,
    max_items: usize,
    max_bytes: usize,
    len: impl Fn(&T) -> usize,
) -> Vec<Vec<T>> {
    let mut groups: Vec<Vec<T>> = Vec::new();
    let mut bytes = 0;
    for item in items {
        let len = len(&item);
        match groups.last_mut() {
            Some(open) if open.len() < max_items && bytes + len <= max_bytes => {
                bytes += len;
                open.push(item);
            }
            _ => {
                bytes = len;
                groups.push(vec![item]);
            }
        }
    }
    groups
}

/// Returns the length of the filter with an empty list for a tag and the longest window.
fn empty_len(base: &Filter) -> usize {
    let mut filter = base.clone();
    filter
        .generic_tags
        .insert(SingleLetterTag::LOWERCASE_A, BTreeSet::new());
    widest_len(&filter)
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
/// use grasp_core::sync::{RequestBudget, pack_requests};
/// use nostr::filter::Filter;
///
/// let filters: Vec<_> = (0..7).map(|n| Filter::new().identifier(n.to_string())).collect();
/// let budget = RequestBudget::default().lowered_to_filters_per_req(3);
/// let sizes: Vec<_> = pack_requests(filters, &budget).iter().map(Vec::len).collect();
/// assert_eq!(sizes, [3, 3, 1]);
/// ```
pub fn pack_requests(filters: Vec<Filter>, budget: &RequestBudget) -> Vec<Vec<Filter>> {
    let is_long = |value: &String| value.len() > MAX_SHARED_VALUE_BYTES;
    let has_long = |filter: &Filter| filter.generic_tags.values().flatten().any(is_long);
    let (long, shared): (Vec<_>, Vec<_>) = filters.into_iter().partition(has_long);
    let room = budget.message_bytes - REQ_BYTES;
    let pack = |filters| {
        group(filters, budget.filters_per_req, room, |one| {
            widest_len(one) + 1
        })
    };
    let mut requests = pack(shared);
    requests.extend(pack(long));
    requests
}

/// Returns the length of a filter as JSON with the longest window.
fn widest_len(filter: &Filter) -> usize {
    let limit = filter.limit.and_then(|limit| u64::try_from(limit).ok());
    let times = [filter.since, filter.until].map(|time| time.map(|time| time.as_secs()));
    let window: usize = times
        .into_iter()
        .chain([limit])
        .flatten()
        .map(field_len)
        .sum();
    filter.as_json().len() - window + WINDOW_BYTES
}

/// Returns the length of `"since":n,`; the names of the other two fields are as long.
fn field_len(number: u64) -> usize {
    let digits = number.checked_ilog10().unwrap_or(0) as usize + 1;
    r#""since":,"#.len() + digits
}

#[cfg(test)]
mod tests {
    use nostr::event::EventId;
    use nostr::key::PublicKey;

    use super::*;

    fn repo(n: u8, identifier: &str) -> RepoId {
        RepoId::new(
            PublicKey::from_byte_array([n; 32]),
            identifier.parse().unwrap(),
        )
    }

    fn json(filters: &[Filter]) -> Vec<String> {
        filters.iter().map(Filter::as_json).collect()
    }

    #[test]
    fn layer_1_is_one_filter() {
        assert_eq!(
            build_announcement_filter(None).as_json(),
            r#"{"kinds":[10317,30617,30618]}"#
        );
        let since = build_announcement_filter(Some(Timestamp::from_secs(5)));
        assert_eq!(
            since.limit(0).as_json(),
            r#"{"kinds":[10317,30617,30618],"since":5,"limit":0}"#
        );
    }

    #[test]
    fn a_repository_is_requested_by_three_tags() {
        let repo = repo(1, "a \"b\"");
        let filters =
            tagged_one_of_our_repo_event_filters([&repo], None, &RequestBudget::default());
        let value = serde_json::to_string(&repo.to_string()).unwrap();
        let wanted = ["#a", "#A", "#q"].map(|tag| format!(r#"{{"{tag}":[{value}]}}"#));
        assert_eq!(json(&filters), wanted);
    }

    #[test]
    fn a_root_is_requested_by_three_tags() {
        let root = EventId::from_byte_array([0xab; 32]).into();
        let filters =
            tagged_one_of_our_root_event_filters([&root], None, &RequestBudget::default());
        let wanted =
            ["#e", "#E", "#q"].map(|tag| format!(r#"{{"{tag}":["{}"]}}"#, "ab".repeat(32)));
        assert_eq!(json(&filters), wanted);
    }

    #[test]
    fn held_repositories_with_one_identifier_are_one_value() {
        let items = RelaySyncNeeds {
            repos: [
                (repo(1, "x"), SyncLevel::StateOnly),
                (repo(2, "x"), SyncLevel::StateOnly),
            ]
            .into(),
            ..RelaySyncNeeds::default()
        };
        let filters = build_layer2_and_layer3_filters(&items, None, &RequestBudget::default());
        assert_eq!(json(&filters), [r##"{"kinds":[30618],"#d":["x"]}"##]);
    }

    #[test]
    fn members_are_requested_by_coordinate() {
        let public_key = PublicKey::from_byte_array([1; 32]);
        let (kind, identifier) = (kinds::SOFTWARE, "app".to_owned());
        let items = RelaySyncNeeds {
            coordinates: [Coordinate {
                kind,
                public_key,
                identifier,
            }]
            .into(),
            ..RelaySyncNeeds::default()
        };
        let filters = build_layer2_and_layer3_filters(&items, None, &RequestBudget::default());
        let wanted = format!(r##"{{"#a":["32267:{public_key}:app"]}}"##);
        assert_eq!(json(&filters), [wanted]);
    }

    #[test]
    fn a_coordinate_is_tagged_in_three_ways() {
        let public_key = PublicKey::from_byte_array([1; 32]);
        let at = Coordinate {
            kind: kinds::SOFTWARE,
            public_key,
            identifier: "app".to_owned(),
        };
        let filters = tagged_with_a_coordinate_filters([&at], &RequestBudget::default());
        let wanted =
            ["#a", "#A", "#q"].map(|tag| format!(r#"{{"{tag}":["32267:{public_key}:app"]}}"#));
        assert_eq!(json(&filters), wanted);
    }

    #[test]
    fn no_items_give_no_filter() {
        let none = RelaySyncNeeds::default();
        assert!(build_layer2_and_layer3_filters(&none, None, &RequestBudget::default()).is_empty());
    }

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
        for text in [
            "",
            "plain",
            "\"q\"",
            "a\\b",
            "\u{1}\u{8}\t\n\u{b}\u{c}\r\u{1f}\u{7f}",
            "日本🦀",
        ] {
            assert_eq!(
                json_len(text),
                serde_json::to_string(text).unwrap().len(),
                "{text:?}"
            );
        }
        let plain = Filter::new().kind(kinds::STATE).identifier("x");
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
        assert_eq!(
            lens(&split_all(&values, &RequestBudget::default())),
            [100, 100, 55]
        );
    }

    #[test]
    fn splits_by_bytes_and_fills_filters() {
        let budget = RequestBudget::default().with_values_per_filter(1_000);
        let ids: Vec<_> = (0..1_000).map(|n| format!("{n:064x}")).collect();
        let filters = split_all(&ids, &budget);
        assert_eq!(lens(&filters), [487, 487, 26]);
        let full = widest(&filters[0]).as_json().len();
        assert!(full <= budget.filter_bytes && full + 67 > budget.filter_bytes);
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
        let values: Vec<_> = (0..300)
            .map(|n| format!("{n:03}{}", "\u{1}".repeat(100)))
            .collect();
        let filters = split_all(&values, &budget);
        assert_eq!(filters.len(), 6);
        assert!(
            filters
                .iter()
                .all(|filter| widest(filter).as_json().len() <= budget.filter_bytes)
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
        let requests = pack_requests(
            vec![filters[1].clone(), filters[0].clone(), tail.clone()],
            &budget,
        );
        assert_eq!(
            requests,
            [vec![filters[0].clone(), tail], vec![filters[1].clone()]]
        );
    }

    #[test]
    fn the_longest_value_fits_into_the_smallest_budget() {
        let budget = RequestBudget::default().lowered_to_message_bytes(0);
        let base = Filter::new().kind(kinds::STATE);
        let value = format!(
            "{}{}",
            "x".repeat(71),
            "\u{1}".repeat(Identifier::MAX_BYTES)
        );
        let filters = split(&base, D, [value].into_iter(), &budget);
        assert_eq!(lens(&filters), [1]);
        assert!(widest(&filters[0]).as_json().len() <= RequestBudget::MIN_FILTER_BYTES);
    }

    #[test]
    fn a_shorter_message_shortens_filters() {
        let budget = RequestBudget::default().lowered_to_message_bytes(16 * 1024);
        assert_eq!(budget.filter_bytes, 16 * 1024 - REQ_BYTES - 1);
        assert_eq!(budget.lowered_to_message_bytes(1 << 20), budget);
    }

    #[test]
    fn counts_stay_within_their_bounds() {
        let budget = RequestBudget::default();
        assert_eq!(budget.with_values_per_filter(0).values_per_filter, 1);
        assert_eq!(
            budget.with_values_per_filter(9_999).values_per_filter,
            1_000
        );
        assert_eq!(budget.lowered_to_filters_per_req(0).filters_per_req, 1);
    }
}
