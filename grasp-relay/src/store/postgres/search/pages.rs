//! One page of candidates of a filter, by one statement.

use std::collections::BTreeSet;
use std::sync::Arc;

use deadpool_postgres::ClientWrapper;
use futures_util::TryStreamExt as _;
use nostr::key::PublicKey;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::Names;
use crate::store::conditions::Bounds;
use crate::store::keys::{Digest, Position};
use crate::store::postgres::values::{bytes, get, position, slices};
use crate::store::{StoreError, failure};

/// The source of candidates.
#[derive(Clone, Copy)]
pub(super) enum IndexSource<'a> {
    Everything,
    Lists(&'a [Digest]),
    Ids(&'a [[u8; 32]]),
    /// Rows that were found before.
    Rows(&'a [i64]),
}

impl<'a> IndexSource<'a> {
    pub(super) fn of(names: &'a Names) -> Self {
        match names {
            Names::Everything => Self::Everything,
            Names::Lists(lists) => Self::Lists(lists),
            Names::Ids(ids) => Self::Ids(ids),
        }
    }
}

#[derive(Clone, Copy)]
pub(super) struct IndexRequest<'a> {
    pub(super) source: IndexSource<'a>,
    pub(super) bounds: Bounds,
    pub(super) size: usize,
    pub(super) with_texts: bool,
    /// Candidates of other kinds come without text.
    pub(super) kinds: Option<&'a BTreeSet<u16>>,
    pub(super) now: i64,
}

pub(super) struct IndexPage {
    pub(super) candidates: Vec<IndexRow>,
    pub(super) has_more: bool,
}

/// A row of an index, in serving order.
#[derive(Clone)]
pub(super) struct IndexRow {
    pub(super) at: Position,
    pub(super) seq: i64,
    pub(super) kind: u16,
    pub(super) has_expired: bool,
    pub(super) text: Option<(PublicKey, Arc<str>)>,
}

/// Texts of a page, in bytes, unless a single one is longer: a page ends before the next one.
macro_rules! max_page_bytes {
    () => {
        "1048576"
    };
}

macro_rules! page {
    ($candidates:expr) => {
        concat!(
            "SELECT p.newest, p.id, p.seq, p.kind, EXISTS (
                 SELECT 1 FROM expirations x WHERE x.seq = p.seq AND x.at <= $5)
             FROM (",
            $candidates,
            ") p ORDER BY p.newest, p.id"
        )
    };
    ($candidates:expr, with_texts) => {
        concat!(
            "SELECT p.newest, p.id, p.seq, p.kind, EXISTS (
                 SELECT 1 FROM expirations x WHERE x.seq = p.seq AND x.at <= $5), e.pubkey,
                 CASE WHEN sum(octet_length(e.json)) OVER w >= ",
            max_page_bytes!(),
            " THEN NULL ELSE e.json END,
                 sum(octet_length(e.json)) OVER w >= ",
            max_page_bytes!(),
            "
             FROM (",
            $candidates,
            ") p LEFT JOIN events e ON e.seq = p.seq AND e.id = p.id
                 AND ($6::INTEGER[] IS NULL OR p.kind = ANY($6))
             WINDOW w AS (
                 ORDER BY p.newest, p.id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
             ORDER BY p.newest, p.id"
        )
    };
}

macro_rules! everything {
    () => {
        "SELECT newest, id, seq, kind FROM events
         WHERE (newest, id) > ($1, $2) AND newest <= $3 ORDER BY newest, id LIMIT $4"
    };
}

macro_rules! of_lists {
    ($names:literal) => {
        concat!(
            "SELECT l.newest, l.id, l.seq, l.kind FROM unnest($",
            $names,
            "::BYTEA[]) w(list)
             CROSS JOIN LATERAL (SELECT newest, id, seq, kind FROM lists
                 WHERE lists.list = w.list AND (newest, id) > ($1, $2) AND newest <= $3
                 ORDER BY newest, id LIMIT $4) l
             ORDER BY l.newest, l.id LIMIT $4"
        )
    };
}

macro_rules! of_events {
    ($names:literal) => {
        concat!(
            "SELECT newest, id, seq, kind FROM events WHERE ",
            $names,
            "
             AND (newest, id) > ($1, $2) AND newest <= $3 ORDER BY newest, id LIMIT $4"
        )
    };
}

/// A page of so few events that their texts need no bound.
const FEW_IDS_SQL: &str = "SELECT e.newest, e.id, e.seq, e.kind, EXISTS (
        SELECT 1 FROM expirations x WHERE x.seq = e.seq AND x.at <= $5), e.pubkey, e.json, FALSE
    FROM events e WHERE e.id = ANY($7) AND (e.newest, e.id) > ($1, $2) AND e.newest <= $3
        AND ($6::INTEGER[] IS NULL OR e.kind = ANY($6))
    ORDER BY e.newest, e.id LIMIT $4";

/// Ids whose events are read without a bound of their texts.
const FEW_IDS: usize = 4;

const SQL: [[&str; 2]; 4] = [
    [page!(everything!()), page!(everything!(), with_texts)],
    [page!(of_lists!("6")), page!(of_lists!("7"), with_texts)],
    [
        page!(of_events!("id = ANY($6)")),
        page!(of_events!("id = ANY($7)"), with_texts),
    ],
    [
        page!(of_events!("seq = ANY($6)")),
        page!(of_events!("seq = ANY($7)"), with_texts),
    ],
];

/// Reads a page.
pub(super) async fn read(
    client: &ClientWrapper,
    request: &IndexRequest<'_>,
) -> Result<IndexPage, StoreError> {
    let IndexRequest {
        source,
        bounds: Bounds { after, oldest },
        size,
        with_texts,
        kinds,
        now,
    } = request;
    let (number, names): (usize, Option<Box<dyn ToSql + Send + Sync>>) = match *source {
        IndexSource::Everything => (0, None),
        IndexSource::Lists(lists) => (1, Some(Box::new(slices(lists)))),
        IndexSource::Ids(ids) => (2, Some(Box::new(slices(ids)))),
        IndexSource::Rows(rows) => (3, Some(Box::new(rows))),
    };
    let sql = match source {
        IndexSource::Ids(ids) if *with_texts && ids.len() <= FEW_IDS => FEW_IDS_SQL,
        _ => SQL[number][usize::from(*with_texts)],
    };
    let limit = i64::try_from(*size).unwrap_or(i64::MAX);
    let newest = after.newest();
    let id = &after.id()[..];
    let kinds = numbers(*kinds);
    let mut values: Vec<&(dyn ToSql + Sync)> = vec![&newest, &id, oldest, &limit, now];
    if *with_texts {
        values.push(&kinds);
    }
    values.extend(names.as_deref().map(|names| names as &(dyn ToSql + Sync)));
    let statement = client.prepare_cached(sql).await.map_err(failure)?;
    let rows = client.query(&statement, &values).await.map_err(failure)?;
    let mut has_more = rows.len() >= *size;
    let mut candidates = Vec::with_capacity(rows.len());
    for row in &rows {
        if *with_texts && get::<Option<bool>>(row, 7)? == Some(true) {
            has_more = true;
            break;
        }
        candidates.push(read_candidate(row, *with_texts)?);
    }
    Ok(IndexPage {
        candidates,
        has_more,
    })
}

const UNORDERED_SQL: [&str; 2] = [
    "SELECT newest, id FROM events e
     WHERE (newest, id) > ($1, $2) AND newest <= $3 AND ($6::INTEGER[] IS NULL OR kind = ANY($6))
        AND NOT EXISTS (SELECT 1 FROM expirations x WHERE x.seq = e.seq AND x.at <= $5) LIMIT $4",
    "SELECT l.newest, l.id FROM unnest($7::BYTEA[]) w(list) JOIN lists l ON l.list = w.list
     WHERE (l.newest, l.id) > ($1, $2) AND l.newest <= $3
        AND ($6::INTEGER[] IS NULL OR l.kind = ANY($6))
        AND NOT EXISTS (SELECT 1 FROM expirations x WHERE x.seq = l.seq AND x.at <= $5) LIMIT $4",
];

/// Reads the places of up to `size` events of everything or of lists, in any order, and an event of several lists several
/// times.
pub(super) async fn read_unordered(
    client: &ClientWrapper,
    request: &IndexRequest<'_>,
) -> Result<Vec<Position>, StoreError> {
    let IndexRequest {
        source,
        bounds: Bounds { after, oldest },
        size,
        kinds,
        now,
        ..
    } = request;
    let lists = match *source {
        IndexSource::Lists(lists) => Some(slices(lists)),
        _ => None,
    };
    let limit = i64::try_from(*size).unwrap_or(i64::MAX);
    let newest = after.newest();
    let id = &after.id()[..];
    let kinds = numbers(*kinds);
    let mut values: Vec<&(dyn ToSql + Sync)> = vec![&newest, &id, oldest, &limit, now, &kinds];
    values.extend(lists.as_ref().map(|lists| lists as &(dyn ToSql + Sync)));
    let sql = UNORDERED_SQL[usize::from(lists.is_some())];
    let statement = client.prepare_cached(sql).await.map_err(failure)?;
    let rows = client
        .query_raw(&statement, values)
        .await
        .map_err(failure)?;
    let places = rows
        .map_err(failure)
        .and_then(|row| std::future::ready(position(&row, 0)));
    places.try_collect().await
}

fn numbers(kinds: Option<&BTreeSet<u16>>) -> Option<Vec<i32>> {
    kinds.map(|kinds| kinds.iter().map(|kind| i32::from(*kind)).collect())
}

fn read_candidate(row: &Row, with_texts: bool) -> Result<IndexRow, StoreError> {
    let json: Option<&str> = if with_texts { get(row, 6)? } else { None };
    let text = match json {
        Some(json) => Some((PublicKey::from_byte_array(bytes(row, 5)?), Arc::from(json))),
        None => None,
    };
    Ok(IndexRow {
        at: position(row, 0)?,
        seq: get(row, 2)?,
        kind: u16::try_from(get::<i32>(row, 3)?).unwrap_or(u16::MAX),
        has_expired: get(row, 4)?,
        text,
    })
}

const COUNT_SQL: &str = "SELECT count(*) FROM (
    SELECT 1 FROM unnest($4::BYTEA[]) w(list) CROSS JOIN LATERAL (SELECT 1 FROM lists
        WHERE lists.list = w.list AND (newest, id) > ($1, $2) AND newest <= $3 LIMIT $5) l LIMIT $5) c";

/// Counts the rows of lists up to `most`.
pub(super) async fn count_up_to(
    client: &ClientWrapper,
    lists: &[Digest],
    Bounds { after, oldest }: Bounds,
    most: i64,
) -> Result<i64, StoreError> {
    let statement = client.prepare_cached(COUNT_SQL).await.map_err(failure)?;
    let newest = after.newest();
    let id = &after.id()[..];
    let lists = slices(lists);
    let row = client
        .query_one(&statement, &[&newest, &id, &oldest, &lists, &most])
        .await;
    get(&row.map_err(failure)?, 0)
}
