//! The search for events that match several filters, in pages.
//!
//! Each filter reads one index in serving order, a page of candidates at a time, from the place where the last page
//! ended. Between two pages a search holds only that place, so an abandoned search costs nothing, and no statement
//! examines more than a page. In exchange it is not a snapshot: events stored meanwhile may or may not be found.

mod pages;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use deadpool_postgres::ClientWrapper;
use futures_util::future::try_join_all;
use nostr::filter::Filter;
use nostr::types::Timestamp;

use self::pages::{IndexPage, IndexRequest, IndexRow, IndexSource};
use crate::store::conditions::{Bounds, Conditions, IndexChoice};
use crate::store::keys::{Digest, Keys, Position, seconds};
use crate::store::{StoreError, StoredEvent, matches_nothing};

/// Candidates of the first page of a filter whose index does not imply all conditions; later ones are larger.
const MIN_PAGE: usize = 64;

/// Candidates of a page with texts, and of one without.
const MAX_TEXT_PAGE: usize = 2_000;
const MAX_PAGE: usize = 10_000;

/// Rows of all lists together that one statement examines.
const MAX_EXAMINED_ROWS: usize = 500_000;

/// Rows counted when indexes are compared.
const PROBE_ROWS: i64 = 2_000;

/// A search in progress.
pub(super) struct Search {
    plans: Vec<FilterPlan>,
    now: i64,
}

/// An event that was found, with its text if that was asked for.
pub(super) struct Found {
    pub(super) at: Position,
    pub(super) json: Option<Arc<str>>,
}

impl Found {
    /// Returns the event with its text.
    pub(super) fn stored(self) -> Option<StoredEvent> {
        let id = self.at.event_id();
        let created_at = self.at.created_at();
        Some(StoredEvent {
            id,
            created_at,
            json: self.json?,
        })
    }
}

impl Search {
    /// Begins a search; `with_texts` if the texts of the events are wanted.
    pub(super) fn new(keys: &Keys, filters: Vec<Filter>, now: Timestamp, with_texts: bool) -> Self {
        let filters = filters
            .into_iter()
            .filter(|filter| !matches_nothing(filter));
        let plans = filters
            .map(|filter| FilterPlan::new(keys, filter, with_texts))
            .collect();
        Self {
            plans,
            now: seconds(now.as_secs()),
        }
    }

    /// Reads the next page of each filter that needs one, and returns what follows from them, `most` at most: newest
    /// first, ties by lowest id, each once. Returns `None` at the end.
    pub(super) async fn next(
        &mut self,
        client: &ClientWrapper,
        most: usize,
    ) -> Result<Option<Vec<Found>>, StoreError> {
        let now = self.now;
        let empty = self.plans.iter_mut().filter(|plan| plan.needs_page());
        try_join_all(empty.map(|plan| plan.read_page(client, now, most))).await?;
        let mut found = Vec::new();
        while found.len() < most && !self.plans.iter().any(FilterPlan::needs_page) {
            let heads = self.plans.iter().filter_map(|plan| plan.ready.front());
            let Some(next) = heads.map(|head| head.at).min() else {
                break;
            };
            let takers = self.plans.iter_mut().filter_map(|plan| plan.take(next));
            found.extend(takers.reduce(|first, _| first));
        }
        let is_over = found.is_empty() && self.plans.iter().all(FilterPlan::is_over);
        Ok((!is_over).then_some(found))
    }

    /// Returns the one filter of this search, if an index implies its conditions but for kinds, and it has no limit.
    pub(super) fn into_unordered(mut self) -> Result<Unordered, Self> {
        let is_simple = |plan: &FilterPlan| {
            let is_few = plan.gathering.is_none() && !matches!(plan.names, Names::Ids(_));
            is_few && plan.remaining == usize::MAX && !plan.conditions.need_event(plan.chosen)
        };
        match self.plans.pop_if(|plan| is_simple(plan)) {
            Some(plan) if self.plans.is_empty() => Ok(Unordered(plan, self.now)),
            plan => {
                self.plans.extend(plan);
                Err(self)
            }
        }
    }
}

/// Everything that one filter matches, to be read in any order by a statement that reads each row once.
pub(super) struct Unordered(FilterPlan, i64);

impl Unordered {
    /// Returns the search in serving order.
    pub(super) fn in_order(self) -> Search {
        Search {
            plans: vec![self.0],
            now: self.1,
        }
    }

    /// Returns the places of all matching events, in any order and some of them twice, or `most` of them.
    pub(super) async fn read(
        &self,
        client: &ClientWrapper,
        most: usize,
    ) -> Result<Vec<Position>, StoreError> {
        let Self(plan, now) = self;
        let request = IndexRequest {
            source: IndexSource::of(&plan.names),
            bounds: plan.bounds,
            size: most,
            with_texts: false,
            kinds: plan
                .conditions
                .kinds
                .as_ref()
                .filter(|_| plan.chosen != IndexChoice::Kinds),
            now: *now,
        };
        pages::read_unordered(client, &request).await
    }
}

/// The names by which an index is read.
enum Names {
    Everything,
    Lists(Vec<Digest>),
    Ids(Vec<[u8; 32]>),
}

/// One filter.
struct FilterPlan {
    conditions: Conditions,
    /// The indexes that could answer the filter, the usually best one first.
    choices: Vec<(IndexChoice, Vec<Digest>)>,
    chosen: IndexChoice,
    names: Names,
    /// The lookup of many names, if there are many.
    gathering: Option<Gathering>,
    with_texts: bool,
    bounds: Bounds,
    /// The number of events the filter may still return.
    remaining: usize,
    /// Events of the last page.
    ready: VecDeque<Found>,
    pages: usize,
    has_ended: bool,
}

impl FilterPlan {
    fn new(keys: &Keys, filter: Filter, with_texts: bool) -> Self {
        let bounds = Bounds::of(&filter);
        let ids = filter.ids.clone();
        let remaining = filter.limit.unwrap_or(usize::MAX);
        let conditions = Conditions::of(filter);
        let (chosen, choices, names) = match ids {
            Some(ids) => {
                let ids = ids.iter().map(|id| id.to_bytes()).collect();
                (IndexChoice::Ids, Vec::new(), Names::Ids(ids))
            }
            None => {
                let lists = |choice| (choice, conditions.lists(keys, choice).collect());
                let choices: Vec<(_, Vec<_>)> =
                    conditions.choices().into_iter().map(lists).collect();
                let first = choices.first().cloned();
                let (chosen, lists) = first.unwrap_or((IndexChoice::Everything, Vec::new()));
                let is_all = chosen == IndexChoice::Everything;
                (
                    chosen,
                    choices,
                    if is_all {
                        Names::Everything
                    } else {
                        Names::Lists(lists)
                    },
                )
            }
        };
        Self {
            gathering: Gathering::of(&names),
            names,
            conditions,
            choices,
            chosen,
            with_texts,
            bounds,
            remaining,
            ready: VecDeque::new(),
            pages: 0,
            has_ended: false,
        }
    }

    fn is_over(&self) -> bool {
        self.remaining == 0 || self.ready.is_empty() && self.has_ended
    }

    fn needs_page(&self) -> bool {
        self.ready.is_empty() && !self.is_over()
    }

    /// Takes the next event if it is at this place.
    fn take(&mut self, at: Position) -> Option<Found> {
        if self.remaining == 0 || self.ready.front()?.at != at {
            return None;
        }
        self.remaining -= 1;
        let taken = self.ready.pop_front();
        if self.remaining == 0 {
            self.ready.clear();
        }
        taken
    }

    /// Reads some candidates, and keeps those that match.
    async fn read_page(
        &mut self,
        client: &ClientWrapper,
        now: i64,
        most: usize,
    ) -> Result<(), StoreError> {
        if self.pages == 1 && self.choices.len() > 1 {
            self.choose(client).await?;
        }
        self.pages += 1;
        let with_texts = self.with_texts || self.conditions.need_event(self.chosen);
        let wanted = most.min(self.remaining);
        let mut request = IndexRequest {
            source: IndexSource::Everything,
            bounds: self.bounds,
            size: self.page_size(wanted, with_texts),
            with_texts,
            kinds: self
                .conditions
                .kinds
                .as_ref()
                .filter(|_| self.chosen != IndexChoice::Kinds),
            now,
        };
        let page = match (&mut self.gathering, &self.names) {
            (Some(gathering), names) => gathering.page(client, names, request, wanted).await?,
            (None, names) => {
                request.source = IndexSource::of(names);
                pages::read(client, &request).await?
            }
        };
        self.keep(page);
        Ok(())
    }

    /// Keeps the candidates that match.
    fn keep(&mut self, page: IndexPage) {
        self.has_ended = !page.has_more;
        for candidate in page.candidates {
            // An event of several lists comes several times in a row.
            let is_again = candidate.at == self.bounds.after;
            self.bounds.after = candidate.at;
            if !is_again && !candidate.has_expired && self.admits(&candidate) {
                let json = candidate.text.map(|(_, json)| json);
                let json = json.filter(|_| self.with_texts);
                self.ready.push_back(Found {
                    at: candidate.at,
                    json,
                });
            }
        }
    }

    fn page_size(&self, wanted: usize, with_texts: bool) -> usize {
        // Few candidates may match, and there may be another index with fewer of them.
        let size = match self.is_implied() {
            true => wanted.max(1 << (2 * self.pages).min(16)),
            false => MIN_PAGE << (2 * self.pages.saturating_sub(1)).min(16),
        };
        let (lists, most) = match &self.names {
            Names::Ids(ids) => return ids.len().saturating_add(1),
            Names::Lists(lists) => (lists.len(), MAX_EXAMINED_ROWS),
            Names::Everything => (1, MAX_EXAMINED_ROWS),
        };
        let most = (most / lists.max(1)).max(MIN_PAGE);
        size.min(most)
            .min(if with_texts { MAX_TEXT_PAGE } else { MAX_PAGE })
    }

    /// Compares indexes by counting a few of their rows, and goes on with the shortest. All are in the same order.
    async fn choose(&mut self, client: &ClientWrapper) -> Result<(), StoreError> {
        let counts = self
            .choices
            .iter()
            .map(|(_, lists)| pages::count_up_to(client, lists, self.bounds, PROBE_ROWS));
        let counts = try_join_all(counts).await?;
        let shortest = counts
            .iter()
            .zip(&self.choices)
            .min_by_key(|(count, _)| **count);
        if let Some((_, (chosen, lists))) = shortest {
            if self.chosen != *chosen {
                (self.chosen, self.names) = (*chosen, Names::Lists(lists.clone()));
                self.gathering = Gathering::of(&self.names);
            }
        }
        self.choices.clear();
        Ok(())
    }

    /// Returns whether the chosen index implies all conditions.
    fn is_implied(&self) -> bool {
        let has_other_kinds = self.conditions.kinds.is_some() && self.chosen != IndexChoice::Kinds;
        !has_other_kinds && !self.conditions.need_event(self.chosen)
    }

    /// Returns whether a candidate fulfils the conditions that its index does not imply.
    fn admits(&self, candidate: &IndexRow) -> bool {
        let Self {
            conditions, chosen, ..
        } = self;
        conditions.admit_kind(candidate.kind)
            && (!conditions.need_event(*chosen)
                || candidate.text.as_ref().is_some_and(|(author, json)| {
                    conditions.admit_author(author)
                        && (!conditions.need_tags(*chosen) || conditions.admit_tags(json))
                }))
    }
}

/// Lists and ids that one statement looks up; a filter with more is gathered.
const MAX_LISTS: usize = 100;
const MAX_IDS: usize = 1_000;

/// Rows that are kept, at least and at most.
const MIN_WINDOW: usize = 500;
const MAX_WINDOW: usize = 50_000;

/// A lookup in progress.
#[derive(Default)]
struct Gathering {
    next: usize,
    is_done: bool,
    /// The first rows in serving order of what was looked up.
    first: BTreeMap<Position, IndexRow>,
    /// The place after which rows were left out.
    bound: Option<Position>,
}

impl Gathering {
    /// Returns a lookup if there are more names than one statement looks up.
    fn of(names: &Names) -> Option<Self> {
        let is_wide = match names {
            Names::Everything => false,
            Names::Lists(lists) => lists.len() > MAX_LISTS,
            Names::Ids(ids) => ids.len() > MAX_IDS,
        };
        is_wide.then(Self::default)
    }

    /// Goes on by one statement. The page has candidates once all names are looked up.
    async fn page(
        &mut self,
        client: &ClientWrapper,
        names: &Names,
        mut request: IndexRequest<'_>,
        wanted: usize,
    ) -> Result<IndexPage, StoreError> {
        if !self.is_done {
            self.gather(client, names, request, wanted.clamp(MIN_WINDOW, MAX_WINDOW))
                .await?;
            return Ok(IndexPage {
                candidates: Vec::new(),
                has_more: true,
            });
        }
        // Nothing of the last page is needed again, unless its texts were too long for one page.
        self.first = self.first.split_off(&request.bounds.after);
        self.first.remove(&request.bounds.after);
        if self.first.is_empty() {
            let has_more = self.bound.is_some();
            *self = Self::default();
            return Ok(IndexPage {
                candidates: Vec::new(),
                has_more,
            });
        }
        if !request.with_texts {
            let candidates = std::mem::take(&mut self.first).into_values().collect();
            return Ok(IndexPage {
                candidates,
                has_more: true,
            });
        }
        let rows: Vec<_> = self
            .first
            .values()
            .take(MAX_TEXT_PAGE)
            .map(|row| row.seq)
            .collect();
        let last = self
            .first
            .values()
            .nth(rows.len().saturating_sub(1))
            .map(|row| row.at);
        request.source = IndexSource::Rows(&rows);
        request.size = rows.len();
        let mut page = pages::read(client, &request).await?;
        if page.candidates.len() < rows.len() && !page.has_more {
            // Some were removed since; nothing of them is to be read again.
            self.first.retain(|at, _| Some(*at) > last);
        }
        page.has_more = true;
        Ok(page)
    }

    async fn gather(
        &mut self,
        client: &ClientWrapper,
        names: &Names,
        mut request: IndexRequest<'_>,
        window: usize,
    ) -> Result<(), StoreError> {
        request.with_texts = false;
        request.size = window;
        if let Some(bound) = self.bound {
            request.bounds.oldest = request.bounds.oldest.min(bound.newest());
        }
        let count = match names {
            Names::Everything => 0,
            Names::Lists(lists) => {
                let some = lists.iter().skip(self.next).take(MAX_LISTS).copied();
                let some: Vec<_> = some.collect();
                self.take(
                    pages::read(
                        client,
                        &IndexRequest {
                            source: IndexSource::Lists(&some),
                            ..request
                        },
                    )
                    .await?,
                    window,
                );
                self.next += some.len();
                lists.len()
            }
            Names::Ids(ids) => {
                let some: Vec<_> = ids.iter().skip(self.next).take(MAX_IDS).copied().collect();
                request.size = some.len().saturating_add(1);
                self.take(
                    pages::read(
                        client,
                        &IndexRequest {
                            source: IndexSource::Ids(&some),
                            ..request
                        },
                    )
                    .await?,
                    window,
                );
                self.next += some.len();
                ids.len()
            }
        };
        self.is_done = self.next >= count;
        Ok(())
    }

    /// Keeps the first rows. What is after the last row of a page that has more is not complete, and left out.
    fn take(&mut self, page: IndexPage, window: usize) {
        let last = page
            .candidates
            .last()
            .map(|last| last.at)
            .filter(|_| page.has_more);
        self.first
            .extend(page.candidates.into_iter().map(|found| (found.at, found)));
        let place = self.first.keys().nth(window.saturating_sub(1)).copied();
        let overflow = place.filter(|_| self.first.len() > window);
        if let Some(bound) = [self.bound, last, overflow].into_iter().flatten().min() {
            self.first.retain(|at, _| *at <= bound);
            self.bound = Some(bound);
        }
    }
}
