//! One of the hundred relays.

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::nostr::filter::Filter;
use grasp_sync::engine::{ConnId, Delivered, Frame, RelayFacts, Said, SubId};
use negentropy::{Id, Negentropy, NegentropyStorageVector};

use super::facts::{Facts, Item};

/// Events that it sends together.
const EVENTS_PER_CHUNK: usize = 250;
const EVENTS_PER_PAGE: usize = 500;

pub(super) enum Answer {
    Said(Said),
    Events(SubId, Vec<(Item, Delivered)>),
}

/// A relay: a GRASP server, strfry, or one of which nothing is known and that does not compare.
pub(super) struct Relay {
    number: usize,
    pub(super) repos: BTreeSet<usize>,
    pub(super) conn: Option<ConnId>,
    live: BTreeMap<SubId, Vec<Filter>>,
    sessions: BTreeMap<SubId, Negentropy<'static, NegentropyStorageVector>>,
}

impl Relay {
    pub(super) fn new(number: usize, facts: &Facts) -> Self {
        let all = 0..facts.repos();
        let repos = all
            .filter(|repo| facts.relays_of(*repo).contains(&number))
            .collect();
        Self {
            number,
            repos,
            conn: None,
            live: BTreeMap::new(),
            sessions: BTreeMap::new(),
        }
    }

    pub(super) fn connect(&mut self, conn: ConnId) -> RelayFacts {
        self.conn = Some(conn);
        self.facts()
    }

    fn compares(&self) -> bool {
        self.number % 4 != 3
    }

    fn facts(&self) -> RelayFacts {
        let software = match self.number % 4 {
            0 | 1 => Some("grasp-relay"),
            2 => Some("strfry"),
            _ => None,
        };
        let mut facts = RelayFacts::default();
        facts.software = software.map(str::to_owned);
        facts.max_subscriptions = Some(if software.is_some() { 200 } else { 20 });
        facts.max_limit = Some(EVENTS_PER_PAGE);
        facts.is_grasp = software == Some("grasp-relay");
        facts
    }

    /// Returns whether it has an item. The first relay has all announcements, and the issues of its own repositories.
    fn has(&self, item: &Item, facts: &Facts) -> bool {
        match *item {
            Item::Repo(n) => self.number == 0 || self.repos.contains(&n),
            Item::Root(n) => self.repos.contains(&facts.repo_of(n)),
        }
    }

    fn matching(&self, facts: &Facts, filter: &Filter) -> Vec<Item> {
        let is_listing = filter.generic_tags.is_empty();
        let knows = |n: usize| (self.number == 0 && is_listing) || self.repos.contains(&n);
        let mut items = facts.matching(filter, knows);
        items.retain(|item| self.has(item, facts));
        items
    }

    pub(super) fn receive(&mut self, facts: &Facts, frame: Frame) -> Vec<Answer> {
        match frame {
            Frame::Subscribe { sub, filters, .. } => {
                let answer = self.page(facts, sub, &filters);
                if filters.iter().all(|filter| filter.limit == Some(0)) {
                    self.live.insert(sub, filters);
                }
                answer
            }
            Frame::NegOpen { sub, .. } if !self.compares() => {
                let text = "error: not supported".to_owned();
                vec![Answer::Said(Said::NegErr { sub, text })]
            }
            Frame::NegOpen {
                sub,
                filter,
                message,
            } => {
                let mut storage = NegentropyStorageVector::new();
                for item in self.matching(facts, &filter) {
                    let row = facts.row(item);
                    let id = Id::from_byte_array(*row.id.as_bytes());
                    storage.insert(row.at.as_secs(), id).unwrap();
                }
                storage.seal().unwrap();
                self.sessions
                    .insert(sub, Negentropy::owned(storage, 60_000).unwrap());
                self.continue_session(sub, &message)
            }
            Frame::NegMsg { sub, message } => self.continue_session(sub, &message),
            Frame::Unsubscribe { sub } | Frame::NegClose { sub } => {
                self.live.remove(&sub);
                self.sessions.remove(&sub);
                vec![]
            }
            Frame::Authenticate => vec![],
        }
    }

    fn continue_session(&mut self, sub: SubId, message: &[u8]) -> Vec<Answer> {
        let Some(session) = self.sessions.get_mut(&sub) else {
            return vec![];
        };
        let message = session.reconcile(message).unwrap();
        vec![Answer::Said(Said::NegMsg { sub, message })]
    }

    /// Sends the newest events of each filter, then EOSE.
    fn page(&self, facts: &Facts, sub: SubId, filters: &[Filter]) -> Vec<Answer> {
        let mut places: BTreeMap<Item, Vec<bool>> = BTreeMap::new();
        for (place, filter) in filters
            .iter()
            .enumerate()
            .filter(|(_, one)| one.limit != Some(0))
        {
            let mut items = self.matching(facts, filter);
            items.retain(|item| {
                let at = facts.row(*item).at;
                filter.since.is_none_or(|since| at >= since)
                    && filter.until.is_none_or(|until| at <= until)
            });
            items.sort_by_key(|item| std::cmp::Reverse(facts.row(*item).at));
            for item in items
                .into_iter()
                .take(filter.limit.unwrap_or(EVENTS_PER_PAGE).min(EVENTS_PER_PAGE))
            {
                places
                    .entry(item)
                    .or_insert_with(|| vec![false; filters.len()])[place] = true;
            }
        }
        let events: Vec<(Item, Delivered)> = places
            .into_iter()
            .map(|(item, places)| {
                let (row, places) = (facts.row(item), places.into_iter().collect());
                (item, Delivered { row, places })
            })
            .collect();
        let chunks = events
            .chunks(EVENTS_PER_CHUNK)
            .map(|some| Answer::Events(sub, some.to_vec()));
        chunks
            .chain([Answer::Said(Said::Eose { sub, hint: None })])
            .collect()
    }

    /// Publishes an issue here; returns the subscriptions that receive it.
    pub(super) fn publish(&self, facts: &Facts, root: usize) -> Vec<(SubId, Delivered)> {
        let row = facts.row(Item::Root(root));
        let heard = |(sub, filters): (&SubId, &Vec<Filter>)| {
            let places: Vec<bool> = filters
                .iter()
                .map(|filter| facts.matches(filter, root))
                .collect();
            let is_heard = places.contains(&true);
            is_heard.then(|| {
                (
                    *sub,
                    Delivered {
                        row,
                        places: places.into_iter().collect(),
                    },
                )
            })
        };
        self.live.iter().filter_map(heard).collect()
    }
}
