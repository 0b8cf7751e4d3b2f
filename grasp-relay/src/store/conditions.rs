//! The conditions of a filter, and the indexes that could answer it.

use std::collections::BTreeSet;

use nostr::event::Event;
use nostr::filter::{Filter, SingleLetterTag};
use nostr::key::PublicKey;

use super::has_tag;
use super::keys::{Digest, Keys, Position, newest};

/// Indexes that are compared, those with the fewest values first.
const MAX_COMPARED_INDEXES: usize = 8;

/// The wanted part of serving order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// The place up to which everything is excluded or was examined before.
    pub(crate) after: Position,
    /// The oldest wanted time, as `newest` has it.
    pub(crate) oldest: i64,
}

impl Bounds {
    pub(crate) fn of(filter: &Filter) -> Self {
        Self {
            after: filter.until.map_or(Position::FIRST, Position::start_of),
            oldest: filter.since.map_or(0, newest),
        }
    }
}

/// The conditions of a filter on the events themselves.
pub(crate) struct Conditions {
    pub(crate) kinds: Option<BTreeSet<u16>>,
    authors: Option<BTreeSet<PublicKey>>,
    tags: Vec<(SingleLetterTag, BTreeSet<String>)>,
}

/// An index that answers a filter, and implies one of its conditions.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum IndexChoice {
    Ids,
    Tag(SingleLetterTag),
    Authors,
    Kinds,
    Everything,
}

impl Conditions {
    /// Returns the conditions of a filter besides its ids, times and limit.
    pub(crate) fn of(filter: Filter) -> Self {
        Self {
            kinds: filter
                .kinds
                .map(|kinds| kinds.iter().map(|kind| kind.as_u16()).collect()),
            authors: filter.authors,
            tags: filter.generic_tags.into_iter().collect(),
        }
    }

    /// Returns the indexes that could answer this filter, the usually best one first.
    ///
    /// Lists store the kind of each event but not its author, so kinds are considered only without authors.
    pub(crate) fn choices(&self) -> Vec<IndexChoice> {
        let mut tags: Vec<_> = self.tags.iter().collect();
        tags.sort_by_key(|(_, values)| values.len());
        let tags = tags.into_iter().map(|(name, _)| IndexChoice::Tag(*name));
        let other = match (&self.authors, &self.kinds) {
            (Some(_), _) => Some(IndexChoice::Authors),
            (None, Some(_)) => Some(IndexChoice::Kinds),
            (None, None) => None,
        };
        tags.take(MAX_COMPARED_INDEXES).chain(other).collect()
    }

    /// Returns the lists that an index consists of.
    pub(crate) fn lists<'a>(
        &'a self,
        keys: &'a Keys,
        choice: IndexChoice,
    ) -> Box<dyn Iterator<Item = Digest> + 'a> {
        match choice {
            IndexChoice::Tag(name) => {
                let named = self.tags.iter().filter(move |(other, _)| *other == name);
                let values = named.flat_map(|(_, values)| values);
                Box::new(values.map(move |value| keys.tag(name, value)))
            }
            IndexChoice::Kinds => {
                Box::new(self.kinds.iter().flatten().map(|kind| keys.kind(*kind)))
            }
            IndexChoice::Authors => Box::new(
                self.authors
                    .iter()
                    .flatten()
                    .map(|author| keys.author(author)),
            ),
            IndexChoice::Ids | IndexChoice::Everything => Box::new(std::iter::empty()),
        }
    }

    /// Returns whether an index leaves conditions to be checked on the event itself.
    pub(crate) fn need_event(&self, chosen: IndexChoice) -> bool {
        let has_other_authors = self.authors.is_some() && chosen != IndexChoice::Authors;
        has_other_authors || self.need_tags(chosen)
    }

    /// Returns whether an index leaves conditions on tags.
    pub(crate) fn need_tags(&self, chosen: IndexChoice) -> bool {
        self.tags
            .iter()
            .any(|(name, _)| chosen != IndexChoice::Tag(*name))
    }

    pub(crate) fn admit_kind(&self, kind: u16) -> bool {
        self.kinds
            .as_ref()
            .is_none_or(|kinds| kinds.contains(&kind))
    }

    pub(crate) fn admit_author(&self, author: &PublicKey) -> bool {
        self.authors
            .as_ref()
            .is_none_or(|authors| authors.contains(author))
    }

    pub(crate) fn admit_tags(&self, json: &str) -> bool {
        let event = Event::from_json(json);
        event.is_ok_and(|event| {
            self.tags
                .iter()
                .all(|(name, values)| has_tag(&event, *name, values))
        })
    }
}

#[cfg(test)]
mod tests {
    use nostr::event::{EventId, Kind, Signature, Tag};
    use nostr::types::Timestamp;

    use super::*;

    /// Results of checks (kind 9842) are asked for by the commit that they are about.
    #[test]
    fn a_commit_is_looked_up_like_a_coordinate() {
        let keys = Keys::new(&[1; 64]);
        let key = PublicKey::from_byte_array([1; 32]);
        for name in [SingleLetterTag::LOWERCASE_A, SingleLetterTag::LOWERCASE_C] {
            let tag = Tag::custom(name.as_char().to_string(), ["x"]);
            let result = Event::new(
                EventId::from_byte_array([1; 32]),
                key,
                Timestamp::from_secs(1),
                Kind::from(9842),
                [tag],
                "",
                Signature::from_slice(&[0; 64]).unwrap(),
            );
            assert!(keys.lists(&result).any(|list| list == keys.tag(name, "x")));
            let filter = Filter::new()
                .kind(Kind::from(9842))
                .custom_tag(name, "x".to_owned());
            let conditions = Conditions::of(filter);
            let choices = conditions.choices();
            assert!(choices.first() == Some(&IndexChoice::Tag(name)), "{name}");
            assert!(!conditions.need_event(IndexChoice::Tag(name)), "{name}");
        }
    }
}
