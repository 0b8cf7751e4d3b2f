//! The lookup of a filter's many names, some by each statement.
//!
//! It keeps only the first rows in serving order. Once those are consumed, it looks the names up again from there on.

use std::collections::BTreeMap;

use deadpool_postgres::ClientWrapper;

use super::pages::{self, Candidate, Page, PageRequest, Source};
use super::{MAX_TEXT_PAGE, Names};
use crate::store::StoreError;
use crate::store::keys::Position;

/// Lists and ids that one statement looks up; a filter with more is gathered.
const MAX_LISTS: usize = 100;
const MAX_IDS: usize = 1_000;

/// Rows that are kept, at least and at most.
const MIN_WINDOW: usize = 500;
const MAX_WINDOW: usize = 50_000;

/// A lookup in progress.
#[derive(Default)]
pub(super) struct Gathering {
    next: usize,
    is_done: bool,
    /// The first rows in serving order of what was looked up.
    first: BTreeMap<Position, Candidate>,
    /// The place after which rows were left out.
    bound: Option<Position>,
}

impl Gathering {
    /// Returns a lookup if there are more names than one statement looks up.
    pub(super) fn of(names: &Names) -> Option<Self> {
        let is_wide = match names {
            Names::Everything => false,
            Names::Lists(lists) => lists.len() > MAX_LISTS,
            Names::Ids(ids) => ids.len() > MAX_IDS,
        };
        is_wide.then(Self::default)
    }

    /// Goes on by one statement. The page has candidates once all names are looked up.
    pub(super) async fn page(
        &mut self,
        client: &ClientWrapper,
        names: &Names,
        mut request: PageRequest<'_>,
        wanted: usize,
    ) -> Result<Page, StoreError> {
        if !self.is_done {
            self.gather(client, names, request, wanted.clamp(MIN_WINDOW, MAX_WINDOW)).await?;
            return Ok(Page { candidates: Vec::new(), has_more: true });
        }
        // Nothing of the last page is needed again, unless its texts were too long for one page.
        self.first = self.first.split_off(&request.bounds.after);
        self.first.remove(&request.bounds.after);
        if self.first.is_empty() {
            let has_more = self.bound.is_some();
            *self = Self::default();
            return Ok(Page { candidates: Vec::new(), has_more });
        }
        if !request.with_texts {
            let candidates = std::mem::take(&mut self.first).into_values().collect();
            return Ok(Page { candidates, has_more: true });
        }
        let rows: Vec<_> = self.first.values().take(MAX_TEXT_PAGE).map(|row| row.seq).collect();
        let last = self.first.values().nth(rows.len().saturating_sub(1)).map(|row| row.at);
        request.source = Source::Rows(&rows);
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
        mut request: PageRequest<'_>,
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
                    pages::read(client, &PageRequest { source: Source::Lists(&some), ..request })
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
                    pages::read(client, &PageRequest { source: Source::Ids(&some), ..request })
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
    fn take(&mut self, page: Page, window: usize) {
        let last = page.candidates.last().map(|last| last.at).filter(|_| page.has_more);
        self.first.extend(page.candidates.into_iter().map(|found| (found.at, found)));
        let place = self.first.keys().nth(window.saturating_sub(1)).copied();
        let overflow = place.filter(|_| self.first.len() > window);
        if let Some(bound) = [self.bound, last, overflow].into_iter().flatten().min() {
            self.first.retain(|at, _| *at <= bound);
            self.bound = Some(bound);
        }
    }
}
