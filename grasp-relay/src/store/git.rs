//! Reading refs, packs and the records of purgatory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use grasp_core::service::Endpoint;
use grasp_core::{Identifier, RepoId};
use grasp_purgatory::Record;
use grasp_purgatory::database::{
    Addition, Commit, Committed, Database, DatabaseFuture, FamilyRow, Generation, Pack, RetiredRef,
    View,
};
use grasp_purgatory::git::Refs;
use nostr::event::EventId;
use nostr::key::PublicKey;
use nostr::types::Timestamp;

use super::changes::{addition_kind, blob, garbage, integer, number, phase, text, time};
use super::engine::{Columns, DatabaseEngine, EngineStore, Query, Unreadable};
use super::{StoreError, failure};

/// Selects all parts of a family but its retired refs, which are then of one moment.
const FAMILY_SQL: &str = "SELECT 0, owner, generation, head, refs, state, number, 0
        FROM views WHERE endpoint = ?1 AND identifier = ?2
    UNION ALL SELECT 1, NULL, bytes, name, NULL, NULL, is_attic, verified
        FROM packs WHERE endpoint = ?1 AND identifier = ?2
    UNION ALL SELECT 2, NULL, mark, NULL, NULL, NULL, 0, 0
        FROM garbage WHERE endpoint = ?1 AND identifier = ?2";

/// Selects the identifiers of families that exist, of these.
const EXISTING_SQL: &str = "SELECT DISTINCT identifier FROM (
        SELECT identifier FROM views WHERE endpoint = ?2 AND identifier = ANY(?1)
        UNION ALL SELECT identifier FROM packs WHERE endpoint = ?2 AND identifier = ANY(?1)
        UNION ALL SELECT identifier FROM retired_refs
            WHERE endpoint = ?2 AND identifier = ANY(?1)) f";

impl<E: DatabaseEngine> Database for EngineStore<E> {
    fn commit(&self, commit: Commit) -> DatabaseFuture<'_, Committed> {
        Box::pin(async move { Ok(self.0.commit(commit).await?) })
    }

    fn view(&self, endpoint: Endpoint, repo: RepoId) -> DatabaseFuture<'_, Option<View>> {
        Box::pin(async move {
            let sql = "SELECT generation, head, refs, state, number FROM views
                WHERE endpoint = ?1 AND identifier = ?2 AND owner = ?3";
            let mut values = key(endpoint, &repo.identifier);
            values.push(blob(repo.owner.as_bytes()));
            Ok(self.0.rows(Query::new(sql, values, |row| read_view(row, 0))).await?.pop())
        })
    }

    fn family(&self, endpoint: Endpoint, identifier: Identifier) -> DatabaseFuture<'_, FamilyRow> {
        Box::pin(async move {
            let parts = Query::new(FAMILY_SQL, key(endpoint, &identifier), read_part);
            let parts = self.0.rows(parts).await?;
            let mut family = FamilyRow::default();
            for part in parts {
                match part {
                    FamilyPart::View(owner, view) => _ = family.views.insert(owner, view),
                    FamilyPart::Pack(pack, verified) => {
                        family.verified.insert(pack.name.clone(), verified);
                        family.packs.insert(pack);
                    }
                    FamilyPart::Garbage(mark) => family.garbage = Some(garbage(mark)),
                }
            }
            Ok(family)
        })
    }

    fn retired(
        &self,
        endpoint: Endpoint,
        identifier: Identifier,
    ) -> DatabaseFuture<'_, Vec<RetiredRef>> {
        Box::pin(async move {
            let sql = "SELECT owner, tip, name, since FROM retired_refs
                WHERE endpoint = ?1 AND identifier = ?2 ORDER BY owner, tip, name";
            let retired = Query::new(sql, key(endpoint, &identifier), |row| {
                let (owner, tip) = (row.public_key(0)?, row.parse(1)?);
                Ok(RetiredRef { owner, tip, name: row.parse(2)?, since: row.time(3)? })
            });
            Ok(self.0.rows(retired).await?)
        })
    }

    fn packs(
        &self,
        endpoint: Endpoint,
    ) -> DatabaseFuture<'_, BTreeMap<Identifier, BTreeSet<Pack>>> {
        Box::pin(async move {
            let sql = "SELECT identifier, name, is_attic, bytes FROM packs WHERE endpoint = ?1";
            let packs = Query::new(sql, vec![integer(number(endpoint))], |row| {
                let (name, is_attic) = (row.text(1)?, row.integer(2)? != 0);
                Ok((row.parse(0)?, Pack { name, is_attic, bytes: row.unsigned(3)? }))
            });
            let mut families: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
            for (identifier, pack) in self.0.rows(packs).await? {
                families.entry(identifier).or_default().insert(pack);
            }
            Ok(families)
        })
    }

    fn repositories(&self, endpoint: Endpoint) -> DatabaseFuture<'_, Vec<RepoId>> {
        Box::pin(async move {
            let sql = "SELECT owner, identifier FROM views WHERE endpoint = ?1";
            let repositories = Query::new(sql, vec![integer(number(endpoint))], |row| {
                Ok(RepoId::new(row.public_key(0)?, row.parse(1)?))
            });
            Ok(self.0.rows(repositories).await?)
        })
    }

    fn identifiers(&self, endpoint: Endpoint) -> DatabaseFuture<'_, BTreeSet<Identifier>> {
        Box::pin(async move {
            let sql = "SELECT identifier FROM views WHERE endpoint = ?1
                UNION SELECT identifier FROM packs WHERE endpoint = ?1
                UNION SELECT identifier FROM retired_refs WHERE endpoint = ?1";
            let found = Query::new(sql, vec![integer(number(endpoint))], |row| row.parse(0));
            Ok(self.0.rows(found).await?.into_iter().collect())
        })
    }

    fn existing(
        &self,
        endpoint: Endpoint,
        identifiers: BTreeSet<Identifier>,
    ) -> DatabaseFuture<'_, BTreeSet<Identifier>> {
        Box::pin(async move {
            let names = identifiers.iter().map(|name| text(name.as_str()));
            let found =
                Query::new(EXISTING_SQL, vec![integer(number(endpoint))], |row| row.parse(0));
            Ok(found.rows_of(&*self.0, names).await?.into_iter().collect())
        })
    }

    fn records(&self) -> DatabaseFuture<'_, Vec<Record>> {
        Box::pin(async move {
            let sql = "SELECT 0, id, event, '', phase, since, until FROM held
                UNION ALL SELECT 1, id, target, tip, bytes, 0, until FROM staged
                UNION ALL SELECT 2, NULL, task, '', 0, 0, 0 FROM tasks";
            Ok(self.0.rows(Query::new(sql, Vec::new(), read_record)).await?)
        })
    }

    fn additions(&self, since: Timestamp) -> DatabaseFuture<'_, Vec<Addition>> {
        Box::pin(async move {
            let sql = "SELECT at, identifier, author, kind, bytes FROM additions
                WHERE at >= ?1 ORDER BY at, identifier, author, kind";
            Ok(self.0.rows(Query::new(sql, vec![time(since)], read_addition)).await?)
        })
    }
}

/// Returns the parameters that identify a family.
fn key(endpoint: Endpoint, identifier: &Identifier) -> Vec<rusqlite::types::Value> {
    vec![integer(number(endpoint)), text(identifier.as_str())]
}

enum FamilyPart {
    View(PublicKey, View),
    Pack(Pack, Timestamp),
    Garbage(i64),
}

fn read_part(row: &dyn Columns) -> Result<FamilyPart, StoreError> {
    Ok(match row.integer(0)? {
        0 => FamilyPart::View(row.public_key(1)?, read_view(row, 2)?),
        1 => {
            let (name, is_attic) = (row.text(3)?, row.integer(6)? != 0);
            FamilyPart::Pack(Pack { name, is_attic, bytes: row.unsigned(2)? }, row.time(7)?)
        }
        _ => FamilyPart::Garbage(row.integer(2)?),
    })
}

/// Returns the query for the views of a family.
pub(crate) fn views_of(endpoint: Endpoint, identifier: &Identifier) -> Query<(PublicKey, View)> {
    let sql = "SELECT owner, generation, head, refs, state, number FROM views
        WHERE endpoint = ?1 AND identifier = ?2";
    let read = |row: &dyn Columns| Ok((row.public_key(0)?, read_view(row, 1)?));
    Query::new(sql, key(endpoint, identifier), read)
}

/// Reads the columns `generation, head, refs, state, number`.
fn read_view(row: &dyn Columns, first: usize) -> Result<View, StoreError> {
    let refs = Refs::decode(&row.text(first + 2)?, &row.text(first + 1)?);
    Ok(View {
        refs: Arc::new(refs.ok_or_else(|| failure(Unreadable("refs of a view")))?),
        state: row.bytes(first + 3)?.map(EventId::from_byte_array),
        generation: Generation(row.unsigned(first)?),
        number: row.unsigned(first + 4)?,
    })
}

/// Reads the record that leads to a row of purgatory.
fn read_record(row: &dyn Columns) -> Result<Record, StoreError> {
    let until = row.time(6)?;
    Ok(match row.integer(0)? {
        0 => Record::Held {
            event: Arc::new(row.event(2)?),
            phase: phase(row.integer(4)?),
            since: row.time(5)?,
            until,
        },
        1 => Record::Staged {
            id: row.event_id(1)?,
            tip: row.parse(3)?,
            target: row.json(2)?,
            bytes: row.unsigned(4)?,
            until,
        },
        _ => Record::TaskAdded { task: row.json(2)? },
    })
}

fn read_addition(row: &dyn Columns) -> Result<Addition, StoreError> {
    let (has_authority, source) = addition_kind(row.integer(3)?);
    Ok(Addition {
        at: row.time(0)?,
        identifier: row.parse(1)?,
        author: row.bytes(2)?.map(PublicKey::from_byte_array),
        has_authority,
        source,
        bytes: row.unsigned(4)?,
    })
}
