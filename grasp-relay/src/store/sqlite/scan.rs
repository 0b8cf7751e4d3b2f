//! Reads the lists of an index in serving order: merged while they are few, value by value while they are many.
//!
//! Merging opens every list in each slice, which for ten thousand of them would take most of a second. A
//! [`ValueLookup`] goes on where the last slice ended and keeps only the first rows in serving order. Once those are
//! consumed, it reads the lists again from there on.

use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BTreeSet, BinaryHeap};
use std::ops::Bound;
use std::vec;

use nostr::event::EventId;
use rusqlite::{Connection, Row, Rows, Statement, params};

use super::search::{ReadBudget, SEEK_ROWS};
use super::tables::{SqliteTables, position};
use crate::store::conditions::Bounds;
use crate::store::keys::{Digest, Position};

/// A row of an index: an event without its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct IndexRow {
    pub(super) at: Position,
    pub(super) seq: i64,
    /// Zero if the index does not contain it.
    pub(super) kind: u16,
}

/// Rows read from one list at a time. The first read is shorter, so that a small limit over many lists stays cheap.
const MAX_RUN_ROWS: usize = 1_024;

/// Merges several lists into one.
///
/// It takes its statement from the cache anew for each run of rows: several filters read side by side share one
/// compiled statement that way.
pub(super) struct Merge<'c> {
    conn: &'c Connection,
    sql: &'static str,
    cursors: Vec<Cursor<'c>>,
    /// The next row of each list that goes on, with the index of its cursor.
    heads: BinaryHeap<Reverse<(IndexRow, usize)>>,
    oldest: i64,
}

/// A place in one list.
struct Cursor<'c> {
    /// `None` stands for all events.
    list: Option<&'c Digest>,
    ahead: vec::IntoIter<IndexRow>,
    /// Rows to read next; zero if the list has ended.
    run: usize,
}

impl<'c> Merge<'c> {
    /// Opens lists, or all events, and expects that about `wanted` rows will be taken.
    pub(super) fn open(
        tables: &SqliteTables<'c>,
        lists: Option<&'c [Digest]>,
        bounds: Bounds,
        wanted: usize,
    ) -> rusqlite::Result<Self> {
        let sql = if lists.is_some() {
            LIST_ROWS_SQL
        } else {
            ALL_ROWS_SQL
        };
        let lists: Vec<_> = match lists {
            Some(lists) => lists.iter().map(Some).collect(),
            None => vec![None],
        };
        // Some lists give more than their share: twice as much, so that most are read once.
        let run = match lists.len() {
            0 | 1 => wanted,
            count => wanted / count * 2,
        };
        let mut merge = Self {
            conn: tables.conn,
            sql,
            cursors: Vec::with_capacity(lists.len()),
            heads: BinaryHeap::with_capacity(lists.len()),
            oldest: bounds.oldest,
        };
        let mut statement = tables.conn.prepare_cached(sql)?;
        for (place, list) in lists.into_iter().enumerate() {
            let ahead = Vec::new().into_iter();
            let mut cursor = Cursor {
                list,
                ahead,
                run: run.clamp(2, MAX_RUN_ROWS),
            };
            cursor.read_ahead(&mut statement, bounds)?;
            merge
                .heads
                .extend(cursor.ahead.next().map(|head| Reverse((head, place))));
            merge.cursors.push(cursor);
        }
        Ok(merge)
    }

    /// Returns the next row in serving order; an event of several lists comes several times in a row.
    pub(super) fn next(&mut self) -> rusqlite::Result<Option<IndexRow>> {
        let Some(mut head) = self.heads.peek_mut() else {
            return Ok(None);
        };
        let Reverse((found, place)) = *head;
        let mut next = None;
        if let Some(cursor) = self.cursors.get_mut(place) {
            if cursor.ahead.len() == 0 && cursor.run > 0 {
                let bounds = Bounds {
                    after: found.at,
                    oldest: self.oldest,
                };
                let mut statement = self.conn.prepare_cached(self.sql)?;
                cursor.read_ahead(&mut statement, bounds)?;
            }
            next = cursor.ahead.next();
        }
        match next {
            Some(next) => head.0.0 = next,
            None => drop(PeekMut::pop(head)),
        }
        Ok(Some(found))
    }
}

impl Cursor<'_> {
    fn read_ahead(
        &mut self,
        statement: &mut Statement<'_>,
        bounds: Bounds,
    ) -> rusqlite::Result<()> {
        let mut ahead = Vec::with_capacity(self.run);
        let mut rows = rows(statement, self.list, bounds)?;
        while ahead.len() < self.run {
            let Some(row) = rows.next()? else {
                break;
            };
            ahead.push(IndexRow::read(row)?);
        }
        let ended = ahead.len() < self.run;
        self.run = if ended {
            0
        } else {
            (self.run * 2).min(MAX_RUN_ROWS)
        };
        self.ahead = ahead.into_iter();
        Ok(())
    }
}

/// Selects the rows of one list, or of all events, from a place on.
///
/// Without LIMIT, because SQLite compiles a statement again each time its limit is bound; callers stop reading
/// instead.
const LIST_ROWS_SQL: &str = "SELECT newest, id, seq, kind FROM lists
    WHERE (newest, id) > (?1, ?2) AND newest <= ?3 AND list = ?4 ORDER BY newest, id";
const ALL_ROWS_SQL: &str = "SELECT newest, id, seq, 0 FROM events INDEXED BY events_by_time
    WHERE (newest, id) > (?1, ?2) AND newest <= ?3 ORDER BY newest, id";

fn rows<'s>(
    statement: &'s mut Statement<'_>,
    list: Option<&Digest>,
    bounds: Bounds,
) -> rusqlite::Result<Rows<'s>> {
    let (newest, id) = (bounds.after.newest(), bounds.after.id());
    match list {
        Some(list) => statement.query(params![newest, id, bounds.oldest, list]),
        None => statement.query(params![newest, id, bounds.oldest]),
    }
}

impl IndexRow {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            at: position(row)?,
            seq: row.get(2)?,
            kind: row.get(3)?,
        })
    }
}

/// Counts the rows of lists, and each list as a row, up to `most`: empty lists cost a lookup, too.
pub(super) fn count_up_to(
    tables: &SqliteTables<'_>,
    lists: impl Iterator<Item = Digest>,
    bounds: &Bounds,
    most: usize,
) -> rusqlite::Result<usize> {
    let mut counted = 0;
    let mut statement = tables.conn.prepare_cached(LIST_ROWS_SQL)?;
    for list in lists {
        let mut rows = rows(&mut statement, Some(&list), *bounds)?;
        counted += 1;
        while counted < most && rows.next()?.is_some() {
            counted += 1;
        }
        if counted >= most {
            return Ok(most);
        }
    }
    Ok(counted)
}

/// Reads one list in serving order while `take` returns true; returns the number of rows read.
pub(super) fn read_list(
    tables: &SqliteTables<'_>,
    list: &Digest,
    bounds: Bounds,
    mut take: impl FnMut(IndexRow) -> bool,
) -> rusqlite::Result<usize> {
    let mut statement = tables.conn.prepare_cached(LIST_ROWS_SQL)?;
    let mut rows = rows(&mut statement, Some(list), bounds)?;
    let mut read = 0;
    while let Some(row) = rows.next()? {
        read += 1;
        if !take(IndexRow::read(row)?) {
            break;
        }
    }
    Ok(read)
}

/// Looks up one event by id within the bounds.
pub(super) fn look_up(
    tables: &SqliteTables<'_>,
    id: &EventId,
    bounds: Bounds,
) -> rusqlite::Result<Option<IndexRow>> {
    let mut statement = tables
        .conn
        .prepare_cached("SELECT newest, id, seq, kind FROM events WHERE id = ?1")?;
    let mut rows = statement.query([id.as_bytes()])?;
    let found = rows.next()?.map(IndexRow::read).transpose()?;
    Ok(found.filter(|found| found.at > bounds.after && found.at.newest() <= bounds.oldest))
}

/// Rows that a lookup keeps, at least and at most.
const MIN_WINDOW: usize = 500;
const MAX_WINDOW: usize = 50_000;

/// The lookup of a filter's many values, over several slices.
pub(super) struct ValueLookup {
    names: LookupKeys,
    next: usize,
    /// The first rows in serving order of what was looked up.
    first: BTreeSet<IndexRow>,
    /// Rows after those in `first` were left out.
    is_cut: bool,
}

enum LookupKeys {
    Lists(Vec<Digest>),
    Ids(Vec<EventId>),
}

impl ValueLookup {
    pub(super) fn of_lists(lists: Vec<Digest>) -> Self {
        Self::of(LookupKeys::Lists(lists))
    }

    pub(super) fn of_ids(ids: BTreeSet<EventId>) -> Self {
        Self::of(LookupKeys::Ids(ids.into_iter().collect()))
    }

    fn of(names: LookupKeys) -> Self {
        Self {
            names,
            next: 0,
            first: BTreeSet::new(),
            is_cut: false,
        }
    }

    /// Goes on until every value is looked up or the budget is spent; returns whether it is done.
    pub(super) fn advance(
        &mut self,
        tables: &SqliteTables<'_>,
        bounds: Bounds,
        wanted: usize,
        budget: &mut ReadBudget,
    ) -> rusqlite::Result<bool> {
        if self.is_cut && self.is_done() && self.after(bounds.after).next().is_none() {
            (self.next, self.is_cut) = (0, false);
            self.first.clear();
        }
        let window = wanted.clamp(MIN_WINDOW, MAX_WINDOW);
        while !self.is_done() && !budget.is_spent() {
            self.look_up_next(tables, bounds, window, budget)?;
        }
        Ok(self.is_done())
    }

    /// Returns the rows after a place, in serving order.
    pub(super) fn after(&self, place: Position) -> impl Iterator<Item = &IndexRow> {
        let place = IndexRow {
            at: place,
            seq: i64::MAX,
            kind: u16::MAX,
        };
        self.first.range((Bound::Excluded(place), Bound::Unbounded))
    }

    /// Returns whether rows were left out.
    pub(super) const fn is_cut(&self) -> bool {
        self.is_cut
    }

    fn is_done(&self) -> bool {
        let names = match &self.names {
            LookupKeys::Lists(lists) => lists.len(),
            LookupKeys::Ids(ids) => ids.len(),
        };
        self.next >= names
    }

    fn look_up_next(
        &mut self,
        tables: &SqliteTables<'_>,
        bounds: Bounds,
        window: usize,
        budget: &mut ReadBudget,
    ) -> rusqlite::Result<()> {
        budget.spend(SEEK_ROWS);
        match &self.names {
            LookupKeys::Ids(ids) => {
                let id = ids.get(self.next);
                let found = id.map(|id| look_up(tables, id, bounds)).transpose()?;
                self.first.extend(found.flatten());
            }
            LookupKeys::Lists(lists) => {
                let Some(list) = lists.get(self.next) else {
                    return Ok(());
                };
                let (first, is_cut) = (&mut self.first, &mut self.is_cut);
                let rows = read_list(tables, list, bounds, |found| {
                    let is_wanted = first.len() < window || first.last() > Some(&found);
                    first.extend(is_wanted.then_some(found));
                    if first.len() > window {
                        first.pop_last();
                    }
                    *is_cut |= first.len() >= window;
                    is_wanted
                })?;
                budget.spend(rows);
            }
        }
        self.next += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::StatementStatus;

    use super::*;
    use crate::store::StoreRules;
    use crate::store::sqlite::tables::load_keys;

    fn file() -> Connection {
        let conn = Connection::open_in_memory().unwrap();
        conn.execute_batch(include_str!("schema.sql")).unwrap();
        conn
    }

    #[test]
    fn every_list_is_read_from_its_own_index_in_order() {
        let conn = file();
        for (sql, index) in [
            (
                LIST_ROWS_SQL,
                "SEARCH lists USING PRIMARY KEY (list=? AND (newest,id)>(?,?) AND newest<?)",
            ),
            (
                ALL_ROWS_SQL,
                "SEARCH events USING COVERING INDEX events_by_time ((newest,id)>(?,?) AND newest<?)",
            ),
        ] {
            let mut explain = conn.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
            let mut plan = Vec::new();
            let mut rows = explain.raw_query();
            while let Some(row) = rows.next().unwrap() {
                plan.push(row.get::<_, String>(3).unwrap());
            }
            // One step, so nothing is sorted.
            assert_eq!(plan, [index]);
        }
    }

    #[test]
    fn lists_that_are_read_side_by_side_share_one_statement() {
        let conn = file();
        let keys = load_keys(&conn).unwrap();
        let rules = StoreRules::default();
        let tables = SqliteTables::new(&conn, &keys, &rules);
        let lists = [Digest::default()];
        let bounds = Bounds {
            after: Position::FIRST,
            oldest: 0,
        };
        let open = |_| Merge::open(&tables, Some(&lists), bounds, 1).unwrap();
        let side_by_side = [0, 1, 2].map(open);
        drop(side_by_side);
        let statement = conn.prepare_cached(LIST_ROWS_SQL).unwrap();
        assert_eq!(statement.get_status(StatementStatus::Run), 3);
    }

    #[test]
    fn reading_another_list_does_not_compile_the_statement_again() {
        let conn = file();
        let mut statement = conn.prepare(LIST_ROWS_SQL).unwrap();
        for number in 0..10 {
            let bounds = Bounds {
                after: Position::FIRST,
                oldest: -number,
            };
            let list = Digest::from([number as u8; 16]);
            let mut rows = rows(&mut statement, Some(&list), bounds).unwrap();
            assert!(rows.next().unwrap().is_none());
        }
        assert_eq!(statement.get_status(StatementStatus::RePrepare), 0);
    }
}
