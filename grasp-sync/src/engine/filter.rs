//! Filters: their layer, ways to split them, and a form that takes little memory.

use std::collections::BTreeSet;
use std::sync::Arc;

use grasp_core::kinds;
use grasp_core::nostr::event::EventId;
use grasp_core::nostr::filter::{Filter, SingleLetterTag};
use grasp_core::nostr::types::Timestamp;
use serde::{Deserialize, Serialize};

/// The kind of thing a filter asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Layer {
    /// Announcements and states.
    Announcements,
    /// Events that name our repositories.
    Repos,
    /// Events that name their roots.
    Roots,
    /// All that a relay has (full sync).
    All,
}

impl Layer {
    pub(super) fn of(filter: &Filter) -> Self {
        let names_root = |(tag, values): (&SingleLetterTag, &BTreeSet<String>)| match *tag {
            SingleLetterTag::LOWERCASE_E | SingleLetterTag::UPPERCASE_E => true,
            // A quote names either; only coordinates have colons.
            SingleLetterTag::LOWERCASE_Q => values.iter().all(|value| !value.contains(':')),
            _ => false,
        };
        if filter.generic_tags.is_empty() && filter.kinds.is_none() {
            Self::All
        } else if filter.generic_tags.is_empty() {
            Self::Announcements
        } else if filter.generic_tags.iter().any(names_root) {
            Self::Roots
        } else {
            Self::Repos
        }
    }
}

/// Returns the approximate length of a filter as JSON: no relay counts what it remembers to the byte.
pub(super) fn wire_len(filter: &Filter) -> usize {
    const FIELDS: usize = 128;
    let values = filter.generic_tags.values().flatten();
    let ids = filter.ids.as_ref().map_or(0, BTreeSet::len);
    FIELDS + values.map(|value| value.len() + 3).sum::<usize>() + ids * 67
}

/// The approximate date of the oldest event of our kinds: splitting below it finds nothing.
const OLDEST_EVENT_SECS: u64 = 1_577_836_800;
/// Seconds of a window below which it is not split further.
const MIN_WINDOW_SECS: u64 = 60 * 60;

/// Splits the window of a filter, with the second in the middle in both halves; `None` if it is too short.
pub(super) fn bisect(filter: &Filter, now: Timestamp) -> Option<[Filter; 2]> {
    let low = filter.since.map_or(OLDEST_EVENT_SECS, |since| {
        since.as_secs().max(OLDEST_EVENT_SECS)
    });
    let high = filter.until.unwrap_or(now).as_secs();
    let length = high.checked_sub(low)?;
    if length <= MIN_WINDOW_SECS {
        return None;
    }
    let middle = Timestamp::from_secs(low + length / 2);
    Some([filter.clone().until(middle), filter.clone().since(middle)])
}

/// Splits what a filter lists into halves that together match the same; `None` if it lists one value.
pub(crate) fn split(filter: &Filter) -> Option<[Filter; 2]> {
    let longest = filter
        .generic_tags
        .iter()
        .max_by_key(|(_, values)| values.len());
    if let Some((tag, values)) = longest.filter(|(_, values)| values.len() > 1) {
        return Some(halves(values).map(|half| {
            let mut part = filter.clone();
            part.generic_tags.insert(*tag, half);
            part
        }));
    }
    let kinds = filter.kinds.as_ref().filter(|kinds| kinds.len() > 1)?;
    Some(halves(kinds).map(|half| Filter {
        kinds: Some(half),
        ..filter.clone()
    }))
}

/// Splits a filter that lists one value and no kinds by the usual kinds; other kinds are in neither part. `None` if
/// it lists more, or is such a part already.
pub(crate) fn split_by_kind(filter: &Filter) -> Option<[Filter; 2]> {
    if filter.kinds.is_some() || filter.generic_tags.is_empty() || split(filter).is_some() {
        return None;
    }
    split(&filter.clone().kinds(kinds::COMMON_REPO_KINDS))
}

/// Splits what a filter lists into up to `max` parts that together match the same.
pub(super) fn split_into(filter: &Filter, max: usize) -> Vec<Filter> {
    let mut parts = vec![filter.clone()];
    while 2 * parts.len() <= max {
        let cut: Vec<Filter> = parts
            .iter()
            .flat_map(|part| split(part).map_or_else(|| vec![part.clone()], |two| two.to_vec()))
            .collect();
        if cut.len() == parts.len() {
            break;
        }
        parts = cut;
    }
    parts
}

fn halves<T: Ord + Clone>(values: &BTreeSet<T>) -> [BTreeSet<T>; 2] {
    let middle = values.len() / 2;
    let first = values.iter().take(middle).cloned().collect();
    [first, values.iter().skip(middle).cloned().collect()]
}

/// A filter that takes little memory.
///
/// Nearly all values of all filters are event ids. As text, in a set, once for each of three tags, each takes some
/// three hundred bytes; here it takes thirty-two. There are as many of them as threads, times relays.
#[derive(Clone, Debug)]
pub(super) struct CompactFilter {
    pub(super) layer: Layer,
    /// The filter without its ids: its window, kinds and other lists.
    pub(super) without_ids: Filter,
    /// The tag, and its ids, sorted.
    ids: Option<(SingleLetterTag, Arc<[EventId]>)>,
}

impl CompactFilter {
    /// Compacts a filter; `like` is another whose ids may be the same.
    pub(super) fn new(mut filter: Filter, like: Option<&Self>) -> Self {
        let layer = Layer::of(&filter);
        let mut tags = filter.generic_tags.iter();
        let ids = match (tags.next(), tags.next()) {
            (Some((tag, values)), None) => as_ids(values).map(|ids| (*tag, ids)),
            _ => None,
        };
        let Some((tag, ids)) = ids else {
            return Self {
                layer,
                without_ids: filter,
                ids: None,
            };
        };
        filter.generic_tags.clear();
        let known = like
            .and_then(|like| like.ids.as_ref())
            .map(|(_, known)| known);
        let ids = match known.filter(|known| ***known == *ids) {
            Some(known) => Arc::clone(known),
            None => ids.into(),
        };
        Self {
            layer,
            without_ids: filter,
            ids: Some((tag, ids)),
        }
    }

    /// Returns the filter as it was.
    pub(super) fn filter(&self) -> Filter {
        let mut filter = self.without_ids.clone();
        if let Some((tag, ids)) = &self.ids {
            filter
                .generic_tags
                .insert(*tag, ids.iter().map(EventId::to_hex).collect());
        }
        filter
    }
}

/// Compacts filters, sharing ids between neighbours.
pub(super) fn compact_all(filters: impl IntoIterator<Item = Filter>) -> Vec<CompactFilter> {
    let mut kept: Vec<CompactFilter> = Vec::new();
    for filter in filters {
        let compact = CompactFilter::new(filter, kept.last());
        kept.push(compact);
    }
    kept
}

/// Returns the values as ids, if all of them are.
fn as_ids(values: &BTreeSet<String>) -> Option<Vec<EventId>> {
    let id = |value: &String| {
        EventId::from_hex(value)
            .ok()
            .filter(|id| id.to_hex() == *value)
    };
    values.iter().map(id).collect()
}

#[cfg(test)]
mod tests {
    use grasp_core::RepoId;
    use grasp_core::nostr::key::PublicKey;
    use grasp_core::sync::{
        RelaySyncNeeds, RequestBudget, SyncLevel, build_announcement_filter,
        build_layer2_and_layer3_filters,
    };

    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);

    #[test]
    fn every_filter_of_ours_belongs_to_its_layer() {
        let repo =
            |n, d: &str| RepoId::new(PublicKey::from_byte_array([n; 32]), d.parse().unwrap());
        let items = RelaySyncNeeds {
            repos: [
                (repo(1, "x"), SyncLevel::Full),
                (repo(2, "y"), SyncLevel::StateOnly),
            ]
            .into(),
            root_events: [EventId::from_byte_array([1; 32]).into()].into(),
            ..RelaySyncNeeds::default()
        };
        let filters = build_layer2_and_layer3_filters(&items, None, &RequestBudget::default());
        let layers: Vec<_> = filters.iter().map(Layer::of).collect();
        let repos = [Layer::Repos; 4];
        assert_eq!(
            layers,
            repos
                .into_iter()
                .chain([Layer::Roots; 3])
                .collect::<Vec<_>>()
        );
        assert_eq!(
            Layer::of(&build_announcement_filter(None)),
            Layer::Announcements
        );
    }

    #[test]
    fn the_length_is_near_enough_and_not_too_short() {
        let ids = (0..200).map(|n: u8| EventId::from_byte_array([n; 32]));
        for filter in [
            build_announcement_filter(None),
            Filter::new().events(ids.clone()).since(NOW).limit(500),
            Filter::new().ids(ids),
        ] {
            let (near, exact) = (wire_len(&filter), filter.as_json().len());
            assert!((exact..exact + 128).contains(&near), "{near} for {exact}");
        }
    }

    #[test]
    fn halves_of_time_leave_nothing_out_and_end_at_an_hour() {
        let [old, new] = bisect(&Filter::new(), NOW).unwrap();
        assert_eq!((old.since, new.until), (None, None), "the ends stay open");
        assert_eq!(old.until, new.since);
        let mut windows = vec![Filter::new().since(NOW - 20_000u64).until(NOW)];
        let mut cuts = 0;
        while let Some(window) = windows.pop() {
            if let Some(parts) = bisect(&window, NOW) {
                cuts += 1;
                windows.extend(parts);
            }
        }
        assert_eq!(cuts, 7, "20,000 seconds become eight windows");
        assert_eq!(
            bisect(&Filter::new().until(Timestamp::from_secs(5)), NOW),
            None
        );
    }

    #[test]
    fn one_value_without_kinds_is_split_by_the_usual_ones_and_then_like_any_other() {
        let one = Filter::new().identifiers(["a"]);
        let mut parts = split_by_kind(&one).unwrap().to_vec();
        let mut seen = BTreeSet::new();
        while let Some(part) = parts.pop() {
            assert_eq!(split_by_kind(&part), None, "only once");
            match split(&part) {
                Some(halves) => parts.extend(halves),
                None => seen.extend(part.kinds.unwrap()),
            }
        }
        assert_eq!(seen, kinds::COMMON_REPO_KINDS.into());
        assert_eq!(split_by_kind(&Filter::new().identifiers(["a", "b"])), None);
        assert_eq!(split_by_kind(&Filter::new()), None);
    }

    #[test]
    fn a_filter_is_split_down_to_single_values_and_kinds() {
        let tags = Filter::new()
            .kinds([kinds::STATE])
            .identifiers(["a", "b", "c"]);
        let mut parts = vec![tags];
        let mut whole = BTreeSet::new();
        while let Some(part) = parts.pop() {
            match split(&part) {
                Some(halves) => parts.extend(halves),
                None => whole.extend(part.generic_tags.into_values().flatten()),
            }
        }
        assert_eq!(whole.into_iter().collect::<Vec<_>>(), ["a", "b", "c"]);
        let whole = build_announcement_filter(None);
        let halves = split(&whole).unwrap().map(|half| half.kinds.unwrap());
        assert_eq!(&halves[0] | &halves[1], whole.kinds.unwrap());
    }

    fn tagged(tag: SingleLetterTag, ids: std::ops::Range<u8>) -> Filter {
        let ids = ids.map(|n| EventId::from_byte_array([n; 32]).to_hex());
        Filter::new().custom_tags(tag, ids).since(5.into())
    }

    #[test]
    fn a_compacted_filter_is_restored_exactly() {
        let upper = "AB".repeat(32);
        for filter in [
            build_announcement_filter(None),
            tagged(SingleLetterTag::LOWERCASE_E, 0..40),
            Filter::new().identifiers(["x", "y"]),
            tagged(SingleLetterTag::LOWERCASE_E, 0..3).identifier("x"),
            Filter::new().custom_tag(SingleLetterTag::LOWERCASE_Q, upper),
        ] {
            assert_eq!(CompactFilter::new(filter.clone(), None).filter(), filter);
        }
    }

    #[test]
    fn neighbours_with_the_same_ids_share_them() {
        let tags = [SingleLetterTag::LOWERCASE_E, SingleLetterTag::UPPERCASE_E];
        let kept = compact_all([
            tagged(tags[0], 0..9),
            tagged(tags[1], 0..9),
            tagged(tags[0], 9..18),
        ]);
        let ids = |n: usize| {
            kept[n]
                .ids
                .as_ref()
                .map(|(_, ids)| Arc::as_ptr(ids))
                .unwrap()
        };
        assert!(std::ptr::eq(ids(0), ids(1)) && !std::ptr::eq(ids(1), ids(2)));
    }
}
