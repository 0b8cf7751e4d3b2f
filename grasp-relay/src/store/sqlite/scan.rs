//! Reading lists of an index side by side, in serving order, without ever holding more than a handful of rows each.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use nostr::event::EventId;
use rusqlite::{CachedStatement, Row, Rows, Statement, params};

use super::keys::Position;
use super::ledger::Ledger;
use super::plan::List;

/// The part of serving order that is wanted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Everything up to here is out of the question, or was examined before.
    pub(super) after: Position,
    /// The oldest time that counts, as `newest` has it.
    pub(super) oldest: i64,
}

/// A row of an index: an event without its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Found {
    pub(super) at: Position,
    pub(super) seq: i64,
    /// Zero if the list does not tell.
    pub(super) kind: u16,
}

/// Rows read from one list at a time, at most. Starts lower, so that a small limit over many lists stays cheap.
const LONGEST_RUN: usize = 1_024;

/// Several lists of one index as one.
pub(super) struct Merge<'c> {
    statement: CachedStatement<'c>,
    lists: Vec<Cursor<'c>>,
    waiting: BinaryHeap<Reverse<Entry>>,
    oldest: i64,
}

struct Cursor<'c> {
    list: &'c List,
    run: usize,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    found: Found,
    list: usize,
    /// More of this list may follow, and has not been read.
    last: bool,
}

impl<'c> Merge<'c> {
    /// Opens lists, expecting that about `wanted` rows will be taken.
    pub(super) fn open(
        ledger: &Ledger<'c>,
        lists: &'c [List],
        bounds: Bounds,
        wanted: usize,
    ) -> rusqlite::Result<Option<Self>> {
        let Some(first) = lists.first() else {
            return Ok(None);
        };
        // Twice the fair share, so that most lists are read once; two rows tell whether a list goes on.
        let run = (wanted / lists.len()).min(LONGEST_RUN / 2) * 2;
        let run = run.max(2);
        let mut merge = Self {
            statement: ledger.conn.prepare_cached(first.sql())?,
            lists: lists.iter().map(|list| Cursor { list, run }).collect(),
            waiting: BinaryHeap::new(),
            oldest: bounds.oldest,
        };
        for list in 0..merge.lists.len() {
            merge.refill(list, bounds.after)?;
        }
        Ok(Some(merge))
    }

    /// The next row in serving order; an event that is in several lists comes several times in a row.
    pub(super) fn next(&mut self) -> rusqlite::Result<Option<Found>> {
        let Some(Reverse(entry)) = self.waiting.pop() else {
            return Ok(None);
        };
        if entry.last {
            self.refill(entry.list, entry.found.at)?;
        }
        Ok(Some(entry.found))
    }

    fn refill(&mut self, list: usize, after: Position) -> rusqlite::Result<()> {
        let Some(cursor) = self.lists.get_mut(list) else {
            return Ok(());
        };
        let bounds = Bounds { after, oldest: self.oldest };
        let mut rows = cursor.list.rows(&mut self.statement, bounds, cursor.run)?;
        let mut read = 0;
        while let Some(row) = rows.next()? {
            read += 1;
            self.waiting.push(Reverse(Entry {
                found: Found::read(row)?,
                list,
                last: read == cursor.run,
            }));
        }
        cursor.run = (cursor.run * 2).min(LONGEST_RUN);
        Ok(())
    }
}

impl List {
    const fn sql(&self) -> &'static str {
        match self {
            Self::Everything => {
                "SELECT newest, id, seq, 0 FROM events INDEXED BY events_by_time
                 WHERE (newest, id) > (?1, ?2) AND newest <= ?3 ORDER BY newest, id LIMIT ?4"
            }
            Self::Kind(_) => {
                "SELECT newest, id, seq, kind FROM events INDEXED BY events_by_kind
                 WHERE kind = ?5 AND (newest, id) > (?1, ?2) AND newest <= ?3
                 ORDER BY newest, id LIMIT ?4"
            }
            Self::AuthorKind(..) => {
                "SELECT newest, id, seq, kind FROM events INDEXED BY events_by_author
                 WHERE pubkey = ?5 AND kind = ?6 AND (newest, id) > (?1, ?2) AND newest <= ?3
                 ORDER BY newest, id LIMIT ?4"
            }
            Self::Tag(_) => {
                "SELECT newest, id, seq, kind FROM tags
                 WHERE tag = ?5 AND (newest, id) > (?1, ?2) AND newest <= ?3
                 ORDER BY newest, id LIMIT ?4"
            }
        }
    }

    fn rows<'s>(
        &self,
        statement: &'s mut Statement<'_>,
        bounds: Bounds,
        most: usize,
    ) -> rusqlite::Result<Rows<'s>> {
        let (newest, id) = (bounds.after.newest(), bounds.after.id());
        let (oldest, most) = (bounds.oldest, i64::try_from(most).unwrap_or(i64::MAX));
        match self {
            Self::Everything => statement.query(params![newest, id, oldest, most]),
            Self::Kind(kind) => statement.query(params![newest, id, oldest, most, kind]),
            Self::AuthorKind(author, kind) => {
                statement.query(params![newest, id, oldest, most, author, kind])
            }
            Self::Tag(tag) => statement.query(params![newest, id, oldest, most, tag]),
        }
    }
}

impl Found {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self { at: Position::read(row)?, seq: row.get(2)?, kind: row.get(3)? })
    }
}

/// Counts the rows of lists, giving up at `most`.
pub(super) fn count_up_to(
    ledger: &Ledger<'_>,
    lists: &[List],
    bounds: &Bounds,
    most: usize,
) -> rusqlite::Result<usize> {
    let mut counted = 0;
    for list in lists {
        let mut statement = ledger.conn.prepare_cached(list.sql())?;
        let mut rows = list.rows(&mut statement, *bounds, most - counted)?;
        while rows.next()?.is_some() {
            counted += 1;
        }
        if counted >= most {
            break;
        }
    }
    Ok(counted)
}

/// Looks up events by id, in serving order.
pub(super) fn look_up<'i>(
    ledger: &Ledger<'_>,
    ids: impl IntoIterator<Item = &'i EventId>,
    bounds: Bounds,
) -> rusqlite::Result<Vec<Found>> {
    let mut statement =
        ledger.conn.prepare_cached("SELECT newest, id, seq, kind FROM events WHERE id = ?1")?;
    let mut found = Vec::new();
    for id in ids {
        let mut rows = statement.query([id.as_bytes()])?;
        if let Some(row) = rows.next()? {
            found.push(Found::read(row)?);
        }
    }
    found.retain(|found| found.at > bounds.after && found.at.newest() <= bounds.oldest);
    found.sort_unstable();
    Ok(found)
}
