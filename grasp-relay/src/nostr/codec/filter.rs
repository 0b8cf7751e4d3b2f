//! Reads NIP-01 filters within limits.

use std::collections::BTreeSet;
use std::fmt;
use std::marker::PhantomData;

use nostr::filter::{Filter, SingleLetterTag};
use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde_json::value::RawValue;

/// Keys of a filter. `ids`, `authors`, `kinds`, `since`, `until`, `limit`, `search` and a tag per letter are fewer.
const MAX_FILTER_KEYS: usize = 64;

/// The reason for which a filter is not answered. The texts name the key and never repeat its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum FilterFault {
    #[error("invalid: a filter must be an object")]
    NotAnObject,
    #[error("invalid: a filter names a key twice")]
    Repeated,
    #[error("invalid: {0} of a filter has the wrong form")]
    Malformed(&'static str),
    #[error("invalid: more than {0} values in a filter")]
    TooManyValues(usize),
    #[error("unsupported: this relay has no full-text search")]
    Search,
    #[error("unsupported: unrecognised filter key")]
    UnknownKey,
}

/// Reads one filter with at most `max` values in all its lists together.
pub(super) fn read(text: &str, max: usize) -> Result<Filter, FilterFault> {
    let Members(members) = serde_json::from_str(text).map_err(|_| FilterFault::NotAnObject)?;
    if members.len() >= MAX_FILTER_KEYS {
        return Err(FilterFault::UnknownKey);
    }
    let mut filter = Filter::new();
    let mut budget = ValueBudget { max, remaining: max };
    let mut seen = BTreeSet::new();
    for (key, value) in members {
        member(&mut filter, &key, value.get(), &mut budget)?;
        if !seen.insert(key) {
            return Err(FilterFault::Repeated);
        }
    }
    Ok(filter)
}

/// Counts the values of all lists of a filter.
pub(super) fn values(filter: &Filter) -> usize {
    let tags: usize = filter.generic_tags.values().map(BTreeSet::len).sum();
    tags + filter.ids.as_ref().map_or(0, BTreeSet::len)
        + filter.authors.as_ref().map_or(0, BTreeSet::len)
        + filter.kinds.as_ref().map_or(0, BTreeSet::len)
}

fn member(
    filter: &mut Filter,
    key: &str,
    text: &str,
    budget: &mut ValueBudget,
) -> Result<(), FilterFault> {
    match key {
        "ids" => filter.ids = Some(budget.list("ids", text)?),
        "authors" => filter.authors = Some(budget.list("authors", text)?),
        "kinds" => filter.kinds = Some(budget.list("kinds", text)?),
        "since" => filter.since = scalar("since", text)?,
        "until" => filter.until = scalar("until", text)?,
        "limit" => filter.limit = scalar("limit", text)?,
        "search" => return Err(FilterFault::Search),
        _ => {
            let tag = tag_name(key).ok_or(FilterFault::UnknownKey)?;
            let values = budget.list("a tag", text)?;
            filter.generic_tags.insert(tag, values);
        }
    }
    Ok(())
}

fn tag_name(key: &str) -> Option<SingleLetterTag> {
    let mut letters = key.strip_prefix('#')?.chars();
    let letter = letters.next().filter(|_| letters.next().is_none())?;
    SingleLetterTag::from_char(letter).ok()
}

fn scalar<T: for<'de> Deserialize<'de>>(
    name: &'static str,
    text: &str,
) -> Result<Option<T>, FilterFault> {
    serde_json::from_str(text).map_err(|_| FilterFault::Malformed(name))
}

/// The number of values that a filter may still have.
struct ValueBudget {
    max: usize,
    remaining: usize,
}

impl ValueBudget {
    fn list<T>(&mut self, name: &'static str, text: &str) -> Result<BTreeSet<T>, FilterFault>
    where
        T: for<'de> Deserialize<'de> + Ord,
    {
        let mut json = serde_json::Deserializer::from_str(text);
        let (values, count) = Values(self.remaining, PhantomData)
            .deserialize(&mut json)
            .map_err(|_| FilterFault::Malformed(name))?;
        self.remaining =
            self.remaining.checked_sub(count).ok_or(FilterFault::TooManyValues(self.max))?;
        Ok(values)
    }
}

/// Builds a list of at most this many values and counts the others.
struct Values<T>(usize, PhantomData<T>);

impl<'de, T: Deserialize<'de> + Ord> DeserializeSeed<'de> for Values<T> {
    type Value = (BTreeSet<T>, usize);
    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        json.deserialize_seq(self)
    }
}

impl<'de, T: Deserialize<'de> + Ord> Visitor<'de> for Values<T> {
    type Value = (BTreeSet<T>, usize);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut values = BTreeSet::new();
        let mut count: usize = 0;
        while count < self.0 {
            match list.next_element()? {
                Some(value) => values.insert(value),
                None => return Ok((values, count)),
            };
            count += 1;
        }
        while list.next_element::<IgnoredAny>()?.is_some() {
            count = count.saturating_add(1);
        }
        Ok((values, count))
    }
}

/// The members of an object as text, at most [`MAX_FILTER_KEYS`] of them.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        json.deserialize_map(MembersVisitor)
    }
}

struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = Members<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = Vec::new();
        while members.len() < MAX_FILTER_KEYS {
            match map.next_entry()? {
                Some(member) => members.push(member),
                None => return Ok(Members(members)),
            }
        }
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Members(members))
    }
}

#[cfg(test)]
mod tests {
    use nostr::event::Kind;
    use nostr::types::Timestamp;

    use super::*;

    #[test]
    fn reads_what_nip_01_allows() {
        let text =
            r##"{"kinds":[1,2],"since":5,"until":9,"limit":0,"#t":["x"],"#T":["y"],"ids":[]}"##;
        let expected = Filter::new()
            .kinds([Kind::from(1), Kind::from(2)])
            .since(Timestamp::from_secs(5))
            .until(Timestamp::from_secs(9))
            .limit(0)
            .custom_tag(SingleLetterTag::LOWERCASE_T, "x")
            .custom_tag(SingleLetterTag::UPPERCASE_T, "y")
            .ids([]);
        assert_eq!(read(text, 10), Ok(expected));
        assert_eq!(read(r#"{"limit":null}"#, 10), Ok(Filter::new()));
    }

    #[test]
    fn values_are_counted_over_all_lists_and_before_they_merge() {
        let text = r##"{"kinds":[1,1],"#t":["x","x"]}"##;
        assert!(read(text, 4).is_ok());
        assert_eq!(read(text, 3), Err(FilterFault::TooManyValues(3)));
    }
}
