//! Loading the rows that tasks need, by a few queries that travel together.

use deadpool_postgres::ClientWrapper;
use nostr::event::EventId;
use nostr::key::PublicKey;
use tokio::try_join;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::{CopyRow, EventRow, PostgresTables, RequestRow, WorkingSet};
use crate::store::changes::{RepoKey, Wanted};
use crate::store::keys::seconds;
use crate::store::postgres::values::{bytes, get, position, slices};
use crate::store::rules::STEP_EVENTS;
use crate::store::{StoreError, failure};

/// The columns of events that may be removed.
macro_rules! whole_events {
    ($from:literal) => {
        concat!(
            "SELECT e.seq, e.newest, e.id, e.pubkey, e.kind, e.json, x.at, ",
            $from,
            " LEFT JOIN expirations x ON x.seq = e.seq "
        )
    };
}

const KNOWN_SQL: &str = "SELECT seq, newest, id, pubkey, kind FROM events WHERE id = ANY($1)";
const TARGETS_SQL: &str = concat!(
    whole_events!("NULL::BYTEA FROM events e"),
    "WHERE e.id = ANY($1)"
);
const HEADS_SQL: &str = concat!(
    whole_events!("h.coordinate FROM heads h JOIN events e ON e.seq = h.seq"),
    "WHERE h.coordinate = ANY($1)"
);
const EXPIRED_SQL: &str = "SELECT e.seq, e.newest, e.id, e.pubkey, e.kind, e.json, x.at, NULL::BYTEA
    FROM expirations x JOIN events e ON e.seq = x.seq WHERE x.at <= $1 ORDER BY x.at, x.seq LIMIT $2";
const WRITTEN_SQL: &str = concat!(
    whole_events!("NULL::BYTEA FROM lists l JOIN events e ON e.seq = l.seq"),
    "WHERE l.list = $1 AND l.newest >= $2 AND l.kind <> 62 ORDER BY l.newest, l.id LIMIT $3"
);
const COPIES_SQL: &str = "SELECT seq, coordinate, newest, id, pubkey, expires_at FROM superseded
    WHERE coordinate = ANY($1)
    UNION SELECT seq, coordinate, newest, id, pubkey, expires_at FROM superseded WHERE id = ANY($2)";
const EXPIRED_COPIES_SQL: &str = "SELECT seq, coordinate, newest, id, pubkey, expires_at
    FROM superseded WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2";
const COPIES_BY_SQL: &str = "SELECT seq, coordinate, newest, id, pubkey, expires_at
    FROM superseded WHERE pubkey = $1 AND newest >= $2 ORDER BY newest LIMIT $3";
const GATES_SQL: &str = "SELECT r.seq, r.pubkey, r.id, r.newest, r.clock, r.retired, g.target
    FROM gates g JOIN requests r ON r.seq = g.request WHERE g.target = ANY($1)";
const REQUESTS_SQL: &str = "SELECT r.seq, r.pubkey, r.id, r.newest, r.clock, r.retired, NULL::BYTEA
    FROM unnest($1::BYTEA[], $2::BYTEA[]) w(pubkey, id)
    JOIN requests r ON r.pubkey = w.pubkey AND r.id = w.id";
const REQUESTS_BY_SQL: &str = "SELECT seq, pubkey, id, newest, clock, retired, NULL::BYTEA
    FROM requests WHERE pubkey = $1 AND newest >= $2 ORDER BY seq LIMIT $3";
const DUE_REQUESTS_SQL: &str = "SELECT seq, pubkey, id, newest, clock, retired, NULL::BYTEA
    FROM requests WHERE retired = $1 AND clock <= $2 ORDER BY clock LIMIT $3";
const VANISHED_SQL: &str = "SELECT pubkey, newest FROM vanished WHERE pubkey = ANY($1)";
const DELISTED_SQL: &str = "SELECT coordinate, newest, id FROM delisted WHERE coordinate = ANY($1)";
const VIEWS_SQL: &str = "SELECT v.endpoint, v.identifier, v.owner, v.generation
    FROM unnest($1::BIGINT[], $2::TEXT[], $3::BYTEA[]) w(endpoint, identifier, owner)
    JOIN views v ON v.endpoint = w.endpoint AND v.identifier = w.identifier AND v.owner = w.owner";

const AUTH_SQL: &str = "SELECT id FROM auth_seen WHERE id = ANY($1)";

/// Rows that one step takes.
const STEP: i64 = STEP_EVENTS as i64;

type Rows = Result<Vec<Row>, StoreError>;

/// Runs a prepared query, or none if there is nothing to ask for.
async fn ask<const N: usize>(
    client: &ClientWrapper,
    sql: &str,
    keys: [&(dyn ToSql + Sync); N],
    is_asked: bool,
) -> Rows {
    if !is_asked {
        return Ok(Vec::new());
    }
    let statement = client.prepare_cached(sql).await.map_err(failure)?;
    client.query(&statement, &keys).await.map_err(failure)
}

impl PostgresTables<'_> {
    /// Loads rows. All of them are those of one moment if nobody else writes.
    pub(in crate::store::postgres) async fn load(
        &mut self,
        client: &ClientWrapper,
        wanted: &Wanted,
    ) -> Result<(), StoreError> {
        let ids = slices(&wanted.ids);
        let targets = slices(&wanted.targets);
        let coordinates = slices(&wanted.coordinates);
        let kept = slices(&wanted.kept);
        let gates = slices(&wanted.gates);
        let authors = slices(&wanted.authors);
        let used = slices(&wanted.auth);
        let (by, of): (Vec<_>, Vec<_>) = wanted
            .requests
            .iter()
            .map(|(author, id)| (&author[..], &id[..]))
            .unzip();
        let now = wanted.expired.unwrap_or_default();
        let is_due = wanted.expired.is_some();
        let (
            known,
            due,
            old_copies,
            targets,
            heads,
            copies,
            gates,
            requests,
            vanished,
            delisted,
            views,
            auth,
        ) = try_join!(
            ask(client, KNOWN_SQL, [&ids], !ids.is_empty()),
            ask(client, EXPIRED_SQL, [&now, &STEP], is_due),
            ask(client, EXPIRED_COPIES_SQL, [&now, &STEP], is_due),
            ask(client, TARGETS_SQL, [&targets], !targets.is_empty()),
            ask(client, HEADS_SQL, [&coordinates], !coordinates.is_empty()),
            ask(
                client,
                COPIES_SQL,
                [&kept, &targets],
                !(kept.is_empty() && targets.is_empty())
            ),
            ask(client, GATES_SQL, [&gates], !gates.is_empty()),
            ask(client, REQUESTS_SQL, [&by, &of], !by.is_empty()),
            ask(client, VANISHED_SQL, [&authors], !authors.is_empty()),
            ask(client, DELISTED_SQL, [&kept], !kept.is_empty()),
            load_views(client, &wanted.views),
            ask(client, AUTH_SQL, [&used], !used.is_empty()),
        )?;
        let rows = self.rows.get_mut();
        rows.add_known(&known)?;
        rows.add_events(due.into_iter().chain(targets).chain(heads))?;
        rows.add_copies(&old_copies)?;
        rows.add_copies(&copies)?;
        rows.add_requests(&gates)?;
        rows.add_requests(&requests)?;
        rows.add_vanished(&vanished)?;
        rows.add_delisted(&delisted)?;
        rows.add_views(&views)?;
        rows.add_auth(&auth)?;
        Ok(())
    }

    /// Loads rows that a request to vanish or a sweep removes, some of each for one step.
    pub(in crate::store::postgres) async fn load_due(
        &mut self,
        client: &ClientWrapper,
        wanted: &Wanted,
    ) -> Result<(), StoreError> {
        let rows = self.rows.get_mut();
        for (list, author, until) in &wanted.vanishing {
            let list = &list[..];
            let author = &author[..];
            let (written, copies, requests) = try_join!(
                ask(client, WRITTEN_SQL, [&list, until, &STEP], true),
                ask(client, COPIES_BY_SQL, [&author, until, &STEP], true),
                ask(client, REQUESTS_BY_SQL, [&author, until, &STEP], true),
            )?;
            rows.add_events(written)?;
            rows.add_copies(&copies)?;
            rows.add_requests(&requests)?;
        }
        let Some(now) = wanted.swept else {
            return Ok(());
        };
        let [retired, forgotten] = [
            self.rules.retired_before(now),
            self.rules.forgotten_before(now),
        ]
        .map(seconds);
        let (retired, forgotten) = try_join!(
            ask(client, DUE_REQUESTS_SQL, [&0i64, &retired, &STEP], true),
            ask(client, DUE_REQUESTS_SQL, [&1i64, &forgotten, &STEP], true),
        )?;
        let ids = retired
            .iter()
            .map(|row| bytes(row, 2))
            .collect::<Result<Vec<[u8; 32]>, _>>()?;
        let served = ask(client, TARGETS_SQL, [&slices(&ids)], !ids.is_empty()).await?;
        rows.add_events(served)?;
        rows.add_requests(&retired)?;
        rows.add_requests(&forgotten)
    }

    /// Sets the last numbers that rows were given, and whether events are hidden.
    pub(in crate::store::postgres) fn set_last(
        &mut self,
        seq: i64,
        generation: i64,
        has_hidden: bool,
    ) {
        let rows = self.rows.get_mut();
        (rows.last_seq, rows.last_generation) = (seq, generation);
        rows.has_hidden = has_hidden;
    }
}

async fn load_views(client: &ClientWrapper, views: &[RepoKey]) -> Rows {
    let endpoints: Vec<i64> = views.iter().map(|key| key.endpoint).collect();
    let names: Vec<&str> = views.iter().map(|key| key.identifier.as_str()).collect();
    let owners: Vec<&[u8]> = views.iter().map(|key| &key.owner.as_bytes()[..]).collect();
    ask(
        client,
        VIEWS_SQL,
        [&endpoints, &names, &owners],
        !views.is_empty(),
    )
    .await
}

impl WorkingSet {
    fn add_known(&mut self, rows: &[Row]) -> Result<(), StoreError> {
        for row in rows {
            let event = read_event(row, None, None)?;
            self.add_event(get(row, 0)?, event);
        }
        Ok(())
    }

    fn add_events(&mut self, rows: impl IntoIterator<Item = Row>) -> Result<(), StoreError> {
        for row in rows {
            let event = read_event(&row, get(&row, 5)?, get(&row, 6)?)?;
            let seq = get(&row, 0)?;
            self.add_event(seq, event);
            if get::<Option<&[u8]>>(&row, 7)?.is_some() {
                self.heads.insert(bytes(&row, 7)?, seq);
            }
        }
        Ok(())
    }

    fn add_event(&mut self, seq: i64, event: EventRow) {
        self.event_ids.insert(event.at.event_id(), seq);
        self.events.insert(seq, event);
    }

    fn add_copies(&mut self, rows: &[Row]) -> Result<(), StoreError> {
        for row in rows {
            let copy = CopyRow {
                coordinate: bytes(row, 1)?,
                at: position(row, 2)?,
                pubkey: PublicKey::from_byte_array(bytes(row, 4)?),
                ends: get(row, 5)?,
                new: None,
            };
            self.add_copy(get(row, 0)?, copy);
        }
        Ok(())
    }

    fn add_auth(&mut self, rows: &[Row]) -> Result<(), StoreError> {
        for row in rows {
            let id = EventId::from_byte_array(bytes(row, 0)?);
            self.used_auth.insert(id);
        }
        Ok(())
    }

    fn add_vanished(&mut self, rows: &[Row]) -> Result<(), StoreError> {
        for row in rows {
            let author = PublicKey::from_byte_array(bytes(row, 0)?);
            self.vanished.insert(author, get(row, 1)?);
        }
        Ok(())
    }

    fn add_delisted(&mut self, rows: &[Row]) -> Result<(), StoreError> {
        for row in rows {
            self.delisted.insert(bytes(row, 0)?, position(row, 1)?);
        }
        Ok(())
    }

    fn add_views(&mut self, rows: &[Row]) -> Result<(), StoreError> {
        for row in rows {
            let key = RepoKey {
                endpoint: get(row, 0)?,
                identifier: get(row, 1)?,
                owner: PublicKey::from_byte_array(bytes(row, 2)?),
            };
            self.views.insert(key, get(row, 3)?);
        }
        Ok(())
    }

    fn add_requests(&mut self, rows: &[Row]) -> Result<(), StoreError> {
        for row in rows {
            let seq = get(row, 0)?;
            let pubkey = bytes(row, 1)?;
            let id = bytes(row, 2)?;
            let pubkey = PublicKey::from_byte_array(pubkey);
            let id = EventId::from_byte_array(id);
            let request = RequestRow {
                pubkey,
                id,
                newest: get(row, 3)?,
                clock: get(row, 4)?,
                is_retired: get::<i64>(row, 5)? != 0,
                is_new: false,
            };
            self.requests.insert(seq, request);
            self.request_ids.insert((pubkey, id), seq);
            if get::<Option<&[u8]>>(row, 6)?.is_some() {
                self.gates.insert(bytes(row, 6)?, seq);
            }
        }
        Ok(())
    }
}

fn read_event(row: &Row, json: Option<String>, ends: Option<i64>) -> Result<EventRow, StoreError> {
    Ok(EventRow {
        at: position(row, 1)?,
        pubkey: PublicKey::from_byte_array(bytes(row, 3)?),
        kind: u16::try_from(get::<i32>(row, 4)?).unwrap_or(u16::MAX),
        ends,
        json,
        new: None,
    })
}
