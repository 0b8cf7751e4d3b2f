//! Which index answers a filter, and what is left to check event by event.

use std::collections::BTreeSet;

use nostr::filter::{Filter, SingleLetterTag};
use nostr::key::PublicKey;

use super::budget::{Budget, SEEK};
use super::gather::Gathering;
use super::keys::{Digest, Keys, Position, newest};
use super::ledger::Ledger;
use super::scan::{self, Bounds};
use crate::store::rules::matches_nothing;

/// A filter, ready to be read from an index.
pub(super) struct Plan {
    pub(super) source: Source,
    pub(super) rest: Rest,
    pub(super) bounds: Bounds,
    /// How many more events the filter wants.
    pub(super) remaining: usize,
}

/// Where candidates come from, in serving order.
pub(super) enum Source {
    /// All events.
    Everything,
    /// A few lists, merged as they are read.
    Lists(Vec<Digest>),
    /// Many lists, or ids: looked up one after the other, over as many turns as that takes.
    Gathered(Gathering),
}

/// Conditions that the source does not imply.
#[derive(Default)]
pub(super) struct Rest {
    pub(super) kinds: Option<BTreeSet<u16>>,
    pub(super) authors: Option<BTreeSet<PublicKey>>,
    pub(super) tags: Vec<(SingleLetterTag, BTreeSet<String>)>,
}

/// A way to read a filter that could be chosen.
enum Way {
    Tag(SingleLetterTag),
    Authors,
    Kinds,
}

/// Rows counted, at most, when ways are compared: first few, then more while no way has shown to be short.
const PROBES: [usize; 3] = [64, 512, 2_048];

/// Ways that are compared, those with the fewest values first.
const MAX_COMPARED_WAYS: usize = 8;

/// Lists of one filter that are opened anew in each turn; a filter that names more is gathered.
const MAX_MERGED_LISTS: usize = 32;

/// Plans a filter; `None` if it matches nothing.
///
/// An empty list, `limit: 0` and a time window that is closed match nothing. So does a filter with `search`, which no
/// index here can answer: silence is honest, ignoring the condition would be a wrong answer.
pub(super) fn plan(
    ledger: &Ledger<'_>,
    filter: Filter,
    budget: &mut Budget,
) -> rusqlite::Result<Option<Plan>> {
    if matches_nothing(&filter) {
        return Ok(None);
    }
    let bounds = Bounds {
        after: filter.until.map_or(Position::FIRST, Position::start_of),
        oldest: filter.since.map_or(0, newest),
    };
    let remaining = filter.limit.unwrap_or(usize::MAX);
    let mut rest = Rest {
        kinds: filter.kinds.map(|kinds| kinds.iter().map(|kind| kind.as_u16()).collect()),
        authors: filter.authors,
        tags: filter.generic_tags.into_iter().collect(),
    };
    let source = match filter.ids {
        Some(ids) => Source::Gathered(Gathering::of_ids(ids)),
        None => rest.take_shortest(ledger, &bounds, budget)?,
    };
    Ok(Some(Plan { source, rest, bounds, remaining }))
}

impl Rest {
    /// Takes out the conditions that promise the fewest candidates and turns them into lists.
    fn take_shortest(
        &mut self,
        ledger: &Ledger<'_>,
        bounds: &Bounds,
        budget: &mut Budget,
    ) -> rusqlite::Result<Source> {
        let mut ways = self.ways();
        let chosen = match ways.len() {
            0 => return Ok(Source::Everything),
            1 => ways.remove(0),
            _ => self.shortest(ledger, bounds, ways, budget)?,
        };
        let lists: Vec<Digest> = self.lists(ledger.keys, &chosen).collect();
        budget.spend(lists.len());
        match chosen {
            Way::Tag(name) => self.tags.retain(|(other, _)| *other != name),
            Way::Authors => self.authors = None,
            Way::Kinds => self.kinds = None,
        }
        Ok(match lists.len() {
            0..=MAX_MERGED_LISTS => Source::Lists(lists),
            _ => Source::Gathered(Gathering::of_lists(lists)),
        })
    }

    /// Every way this filter could be read, the one that is usually best first.
    ///
    /// Lists tell the kind of each event but not its author, so kinds lead only where no authors are named.
    fn ways(&self) -> Vec<Way> {
        let mut tags: Vec<_> = self.tags.iter().collect();
        tags.sort_by_key(|(_, values)| values.len());
        let tags = tags.into_iter().map(|(name, _)| Way::Tag(*name));
        let other = match (&self.authors, &self.kinds) {
            (Some(_), _) => Some(Way::Authors),
            (None, Some(_)) => Some(Way::Kinds),
            (None, None) => None,
        };
        tags.take(MAX_COMPARED_WAYS).chain(other).collect()
    }

    /// Compares ways by counting a few of their rows.
    fn shortest(
        &self,
        ledger: &Ledger<'_>,
        bounds: &Bounds,
        mut ways: Vec<Way>,
        budget: &mut Budget,
    ) -> rusqlite::Result<Way> {
        for most in PROBES {
            let mut best = (most, 0);
            for (number, way) in ways.iter().enumerate() {
                let lists = self.lists(ledger.keys, way);
                let rows = scan::count_up_to(ledger, lists, bounds, best.0)?;
                budget.spend(rows.saturating_add(SEEK));
                if rows < best.0 {
                    best = (rows, number);
                }
            }
            if best.0 < most {
                return Ok(ways.swap_remove(best.1));
            }
        }
        Ok(ways.swap_remove(0))
    }

    fn lists<'a>(&'a self, keys: &'a Keys, way: &'a Way) -> Box<dyn Iterator<Item = Digest> + 'a> {
        match way {
            Way::Tag(name) => {
                let named = self.tags.iter().filter(move |(other, _)| other == name);
                let values = named.flat_map(|(_, values)| values);
                Box::new(values.map(|value| keys.tag(*name, value)))
            }
            Way::Kinds => Box::new(self.kinds.iter().flatten().map(|kind| keys.kind(*kind))),
            Way::Authors => {
                let authors = self.authors.iter().flatten();
                Box::new(authors.map(|author| keys.author(author)))
            }
        }
    }
}
