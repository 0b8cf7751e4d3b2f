//! What a filter asks for: from history, and of one event that just came in.

use nostr::event::Event;
use nostr::filter::{Filter, SingleLetterTag};

use super::limits::Limits;

/// The filters as the store is asked them: with a bounded `limit` each, and without those that want no history.
pub(crate) fn history(filters: &[Filter], limits: &Limits) -> Vec<Filter> {
    filters
        .iter()
        .filter(|filter| filter.limit != Some(0))
        .map(|filter| {
            let limit = filter.limit.unwrap_or(limits.default_limit);
            filter.clone().limit(limit.min(limits.max_limit))
        })
        .collect()
}

/// One event with its tags laid out once, to be held against many filters.
#[derive(Clone, Debug)]
pub(crate) struct Facts<'a> {
    pub(crate) event: &'a Event,
    pub(crate) tags: Vec<(SingleLetterTag, &'a str)>,
}

impl<'a> Facts<'a> {
    pub(crate) fn of(event: &'a Event) -> Self {
        let tags = event.tags.iter();
        Self {
            event,
            tags: tags.filter_map(|tag| Some((tag.single_letter_tag()?, tag.content()?))).collect(),
        }
    }

    /// Whether any of the filters wants this event.
    pub(crate) fn match_any(&self, filters: &[Filter]) -> bool {
        filters.iter().any(|filter| self.matches(filter))
    }

    /// Whether a filter wants this event, by NIP-01 to the letter: an empty list wants nothing.
    pub(crate) fn matches(&self, filter: &Filter) -> bool {
        let event = self.event;
        filter.ids.as_ref().is_none_or(|ids| ids.contains(&event.id))
            && filter.authors.as_ref().is_none_or(|keys| keys.contains(&event.pubkey))
            && filter.kinds.as_ref().is_none_or(|kinds| kinds.contains(&event.kind))
            && filter.since.is_none_or(|since| event.created_at >= since)
            && filter.until.is_none_or(|until| event.created_at <= until)
            && self.match_tags(filter)
    }

    fn match_tags(&self, filter: &Filter) -> bool {
        filter.generic_tags.iter().all(|(name, values)| {
            let mut tags = self.tags.iter();
            tags.any(|(tag, value)| tag == name && values.contains(*value))
        })
    }
}

#[cfg(test)]
mod tests {
    use nostr::event::{EventBuilder, FinalizeEvent, Kind, Tag};
    use nostr::key::Keys;
    use nostr::types::Timestamp;

    use super::*;

    fn event() -> Event {
        EventBuilder::new(Kind::from(1), "")
            .tags([Tag::hashtag("x"), Tag::custom("E", ["root"])])
            .custom_created_at(Timestamp::from_secs(100))
            .finalize(&Keys::generate())
            .expect("signed")
    }

    #[test]
    fn history_is_bounded_by_filter_and_left_out_where_not_wanted() {
        let limits = Limits { max_limit: 50, default_limit: 20, ..Limits::default() };
        let filters = [
            Filter::new(),
            Filter::new().limit(7),
            Filter::new().limit(0),
            Filter::new().limit(usize::MAX),
        ];
        let limits: Vec<_> = history(&filters, &limits).iter().map(|filter| filter.limit).collect();
        assert_eq!(limits, [Some(20), Some(7), Some(50)]);
    }

    #[test]
    fn every_condition_must_hold_and_one_value_of_each_list() {
        let event = event();
        let facts = Facts::of(&event);
        let at = Timestamp::from_secs;
        let hit = |filter: Filter| facts.matches(&filter);
        assert!(hit(Filter::new()));
        assert!(hit(Filter::new()
            .id(event.id)
            .author(event.pubkey)
            .kinds([Kind::from(1), Kind::from(2)])));
        assert!(hit(Filter::new().since(at(100)).until(at(100)).hashtags(["x", "y"])));
        assert!(hit(Filter::new().custom_tag(SingleLetterTag::UPPERCASE_E, "root")));
        assert!(!hit(Filter::new().custom_tag(SingleLetterTag::LOWERCASE_E, "root")));
        assert!(!hit(Filter::new().since(at(101))));
        assert!(!hit(Filter::new().until(at(99))));
        assert!(!hit(Filter::new().kind(Kind::from(1)).hashtag("y")));
        assert!(!hit(Filter::new().author(Keys::generate().public_key())));
    }

    #[test]
    fn an_empty_list_wants_nothing() {
        let event = event();
        let facts = Facts::of(&event);
        assert!(!facts.matches(&Filter::new().ids([])));
        assert!(!facts.matches(&Filter::new().authors([])));
        assert!(!facts.matches(&Filter::new().kinds([])));
        assert!(!facts.matches(&Filter::new().hashtags(Vec::<String>::new())));
        assert!(!facts.match_any(&[]));
    }
}
