//! Filters as they are kept in memory: event ids as bytes, shared by the tags that list the same ones.

use std::collections::BTreeSet;
use std::sync::Arc;

use grasp_core::nostr::event::EventId;
use grasp_core::nostr::filter::{Filter, SingleLetterTag};

/// A filter that takes little memory.
///
/// Nearly all values of all filters are event ids. As text, in a set, once for each of three tags, each takes some
/// three hundred bytes; here it takes thirty-two. There are as many of them as threads, times relays.
#[derive(Clone, Debug)]
pub(super) struct CompactFilter {
    /// The filter without its ids.
    without_ids: Filter,
    /// The tag, and its ids, sorted.
    ids: Option<(SingleLetterTag, Arc<[EventId]>)>,
}

impl CompactFilter {
    /// Compacts a filter; `like` is another whose ids may be the same.
    pub(super) fn new(mut filter: Filter, like: Option<&Self>) -> Self {
        let mut tags = filter.generic_tags.iter();
        let ids = match (tags.next(), tags.next()) {
            (Some((tag, values)), None) => as_ids(values).map(|ids| (*tag, ids)),
            _ => None,
        };
        let Some((tag, ids)) = ids else { return Self { without_ids: filter, ids: None } };
        filter.generic_tags.clear();
        let known = like.and_then(|like| like.ids.as_ref()).map(|(_, known)| known);
        let ids = match known.filter(|known| ***known == *ids) {
            Some(known) => Arc::clone(known),
            None => ids.into(),
        };
        Self { without_ids: filter, ids: Some((tag, ids)) }
    }

    /// Returns the filter as it was.
    pub(super) fn filter(&self) -> Filter {
        let mut filter = self.without_ids.clone();
        if let Some((tag, ids)) = &self.ids {
            filter.generic_tags.insert(*tag, ids.iter().map(EventId::to_hex).collect());
        }
        filter
    }

    /// Returns the filter without its ids: its window, kinds and other lists.
    pub(super) fn without_ids(&self) -> &Filter {
        &self.without_ids
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
    let id = |value: &String| EventId::from_hex(value).ok().filter(|id| id.to_hex() == *value);
    values.iter().map(id).collect()
}

#[cfg(test)]
mod tests {
    use crate::index::build_announcement_filter;

    use super::*;

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
        let kept =
            compact_all([tagged(tags[0], 0..9), tagged(tags[1], 0..9), tagged(tags[0], 9..18)]);
        let ids = |n: usize| kept[n].ids.as_ref().map(|(_, ids)| Arc::as_ptr(ids)).unwrap();
        assert!(std::ptr::eq(ids(0), ids(1)) && !std::ptr::eq(ids(1), ids(2)));
    }
}
