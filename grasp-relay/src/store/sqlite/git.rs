//! The tables of refs, packs and purgatory, within a transaction that the caller commits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use grasp_core::service::Endpoint;
use grasp_core::{Identifier, RepoId};
use grasp_purgatory::Record;
use grasp_purgatory::database::{
    Addition, FamilyChange, FamilyRow, Generation, Pack, RetiredRef, View,
};
use nostr::event::{Event, EventId};
use nostr::key::PublicKey;
use nostr::types::Timestamp;
use rusqlite::types::{Type, Value};
use rusqlite::{Params, Row, params, params_from_iter};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::tables::SqliteTables;
use crate::store::changes::{self, Changes, FamilyKey, GitRows, number, refs_removal, view};
use crate::store::keys::seconds;
use crate::store::repository_names;

impl GitRows for SqliteTables<'_> {
    fn generation(
        &self,
        key: FamilyKey<'_>,
        owner: &PublicKey,
    ) -> rusqlite::Result<Option<Generation>> {
        self.find(
            "SELECT generation FROM views WHERE endpoint = ?1 AND identifier = ?2 AND owner = ?3",
            params![key.0, key.1, owner.as_bytes()],
            |row| Ok(Generation(unsigned(row, 0)?)),
        )
    }

    fn next_generation(&self, _: FamilyKey<'_>, _: &PublicKey) -> rusqlite::Result<i64> {
        self.conn
            .prepare_cached("UPDATE generations SET last = last + 1 RETURNING last")?
            .query_row([], |row| row.get(0))
    }

    fn change(&self, sql: &'static str, values: Vec<Value>) -> rusqlite::Result<()> {
        self.execute(sql, params_from_iter(values))?;
        Ok(())
    }

    fn to_json(&self, value: &impl Serialize) -> rusqlite::Result<Value> {
        let text = serde_json::to_string(value);
        text.map(Value::Text)
            .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))
    }
}

impl SqliteTables<'_> {
    /// Removes the refs that an event signed for, which is being removed.
    pub(super) fn remove_refs(&self, event: &Event) -> rusqlite::Result<()> {
        for identifier in repository_names(event) {
            for endpoint in [Endpoint::Repository, Endpoint::PullRequests] {
                let mut change = FamilyChange::new(endpoint, identifier.clone());
                for (owner, view) in self.views((number(endpoint), identifier.as_str()))? {
                    let removal = refs_removal(event, endpoint, owner, &view);
                    removal.into_iter().for_each(|removal| change.push(removal));
                }
                self.change_family(&change)?;
            }
        }
        Ok(())
    }
}

/// Reading.
impl SqliteTables<'_> {
    pub(super) fn view(&self, endpoint: Endpoint, repo: &RepoId) -> rusqlite::Result<Option<View>> {
        self.find(
            "SELECT generation, head, refs, state FROM views
                 WHERE endpoint = ?1 AND identifier = ?2 AND owner = ?3",
            params![number(endpoint), repo.identifier.as_str(), repo.owner.as_bytes()],
            |row| read_view(row, 0),
        )
    }

    pub(super) fn family(
        &self,
        endpoint: Endpoint,
        identifier: &Identifier,
    ) -> rusqlite::Result<FamilyRow> {
        let key = (number(endpoint), identifier.as_str());
        let views = self.views(key)?;
        let packs = self.rows(
            "SELECT name, is_attic, bytes, verified FROM packs
                 WHERE endpoint = ?1 AND identifier = ?2",
            key,
            |row| Ok((read_pack(row, 0)?, Timestamp::from_secs(unsigned(row, 3)?))),
        )?;
        let verified = packs.iter().map(|(pack, at)| (pack.name.clone(), *at)).collect();
        let retired = self.rows(
            "SELECT owner, tip, name, since FROM retired_refs
                 WHERE endpoint = ?1 AND identifier = ?2",
            key,
            |row| {
                Ok(RetiredRef {
                    owner: read_key(row, 0)?,
                    tip: parse(row, 1)?,
                    name: parse(row, 2)?,
                    since: Timestamp::from_secs(unsigned(row, 3)?),
                })
            },
        )?;
        let garbage = self.find(
            "SELECT mark FROM garbage WHERE endpoint = ?1 AND identifier = ?2",
            key,
            |row| row.get::<_, i64>(0),
        )?;
        let garbage = garbage.map(changes::garbage);
        Ok(FamilyRow {
            views: views.into_iter().collect(),
            packs: packs.into_iter().map(|(pack, _)| pack).collect(),
            verified,
            retired,
            garbage,
        })
    }

    fn views(&self, key: (i64, &str)) -> rusqlite::Result<Vec<(PublicKey, View)>> {
        self.rows(
            "SELECT owner, generation, head, refs, state FROM views
                 WHERE endpoint = ?1 AND identifier = ?2",
            key,
            |row| Ok((read_key(row, 0)?, read_view(row, 1)?)),
        )
    }

    pub(super) fn packs(
        &self,
        endpoint: Endpoint,
    ) -> rusqlite::Result<BTreeMap<Identifier, BTreeSet<Pack>>> {
        let rows = self.rows(
            "SELECT identifier, name, is_attic, bytes FROM packs WHERE endpoint = ?1",
            [number(endpoint)],
            |row| Ok((parse(row, 0)?, read_pack(row, 1)?)),
        )?;
        let mut packs: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for (identifier, pack) in rows {
            packs.entry(identifier).or_default().insert(pack);
        }
        Ok(packs)
    }

    pub(super) fn repositories(&self, endpoint: Endpoint) -> rusqlite::Result<Vec<RepoId>> {
        self.rows(
            "SELECT owner, identifier FROM views WHERE endpoint = ?1",
            [number(endpoint)],
            |row| Ok(RepoId::new(read_key(row, 0)?, parse(row, 1)?)),
        )
    }

    pub(super) fn identifiers(&self, endpoint: Endpoint) -> rusqlite::Result<BTreeSet<Identifier>> {
        let found = self.rows(
            "SELECT identifier FROM views WHERE endpoint = ?1
                 UNION SELECT identifier FROM packs WHERE endpoint = ?1
                 UNION SELECT identifier FROM retired_refs WHERE endpoint = ?1",
            [number(endpoint)],
            |row| parse(row, 0),
        )?;
        Ok(found.into_iter().collect())
    }

    pub(super) fn existing(
        &self,
        endpoint: Endpoint,
        mut identifiers: BTreeSet<Identifier>,
    ) -> rusqlite::Result<BTreeSet<Identifier>> {
        const SQL: &str = "SELECT 1 FROM views WHERE endpoint = ?1 AND identifier = ?2
            UNION ALL SELECT 1 FROM packs WHERE endpoint = ?1 AND identifier = ?2
            UNION ALL SELECT 1 FROM retired_refs WHERE endpoint = ?1 AND identifier = ?2";
        let mut failed = None;
        identifiers.retain(|identifier| {
            let exists = self.exists(SQL, (number(endpoint), identifier.as_str()));
            exists.map_err(|error| failed = Some(error)).unwrap_or(false)
        });
        failed.map_or(Ok(identifiers), Err)
    }

    /// Returns the records that lead to the rows of purgatory.
    pub(super) fn records(&self) -> rusqlite::Result<Vec<Record>> {
        let mut records = self.rows("SELECT phase, since, until, event FROM held", [], |row| {
            let phase = changes::phase(row.get(0)?);
            let event = Event::from_json(row.get::<_, String>(3)?);
            Ok(Record::Held {
                event: Arc::new(event.map_err(|error| unreadable(3, error))?),
                phase,
                since: Timestamp::from_secs(unsigned(row, 1)?),
                until: Timestamp::from_secs(unsigned(row, 2)?),
            })
        })?;
        records.extend(self.rows(
            "SELECT id, tip, target, bytes, until FROM staged",
            [],
            |row| {
                Ok(Record::Staged {
                    id: EventId::from_byte_array(row.get(0)?),
                    tip: parse(row, 1)?,
                    target: from_json(row, 2)?,
                    bytes: unsigned(row, 3)?,
                    until: Timestamp::from_secs(unsigned(row, 4)?),
                })
            },
        )?);
        records.extend(self.rows("SELECT task FROM tasks", [], |row| {
            Ok(Record::TaskAdded { task: from_json(row, 0)? })
        })?);
        Ok(records)
    }

    pub(super) fn additions(&self, since: Timestamp) -> rusqlite::Result<Vec<Addition>> {
        self.rows(
            "SELECT at, identifier, author, kind, bytes FROM additions WHERE at >= ?1 ORDER BY at",
            [seconds(since.as_secs())],
            |row| {
                let author: Vec<u8> = row.get(2)?;
                let (has_authority, source) = changes::addition_kind(row.get(3)?);
                Ok(Addition {
                    at: Timestamp::from_secs(unsigned(row, 0)?),
                    identifier: parse(row, 1)?,
                    author: (!author.is_empty()).then(|| read_key(row, 2)).transpose()?,
                    has_authority,
                    source,
                    bytes: unsigned(row, 4)?,
                })
            },
        )
    }

    fn rows<T>(
        &self,
        sql: &str,
        params: impl Params,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<Vec<T>> {
        self.conn.prepare_cached(sql)?.query_map(params, read)?.collect()
    }
}

/// Reads the columns `generation, head, refs, state`.
fn read_view(row: &Row<'_>, first: usize) -> rusqlite::Result<View> {
    let (generation, head, refs): (i64, String, String) =
        (row.get(first)?, row.get(first + 1)?, row.get(first + 2)?);
    view(generation, &head, &refs, row.get(first + 3)?)
        .ok_or_else(|| unreadable(first, "refs of a view"))
}

/// Reads the columns `name, is_attic, bytes`.
fn read_pack(row: &Row<'_>, first: usize) -> rusqlite::Result<Pack> {
    Ok(Pack {
        name: row.get(first)?,
        is_attic: row.get(first + 1)?,
        bytes: unsigned(row, first + 2)?,
    })
}

/// Reads a number that was unsigned before it was written.
fn unsigned(row: &Row<'_>, at: usize) -> rusqlite::Result<u64> {
    Ok(row.get::<_, i64>(at)?.unsigned_abs())
}

fn read_key(row: &Row<'_>, at: usize) -> rusqlite::Result<PublicKey> {
    Ok(PublicKey::from_byte_array(row.get(at)?))
}

fn parse<T: std::str::FromStr>(row: &Row<'_>, at: usize) -> rusqlite::Result<T> {
    let text: String = row.get(at)?;
    text.parse().map_err(|_| unreadable(at, format!("not readable: {text}")))
}

fn from_json<T: DeserializeOwned>(row: &Row<'_>, at: usize) -> rusqlite::Result<T> {
    let text: String = row.get(at)?;
    serde_json::from_str(&text).map_err(|error| unreadable(at, error))
}

fn unreadable(
    at: usize,
    error: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(at, Type::Text, error.into())
}
