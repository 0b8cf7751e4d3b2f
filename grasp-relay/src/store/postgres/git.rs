//! Reading refs, packs and the records of purgatory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use deadpool_postgres::ClientWrapper;
use grasp_core::service::Endpoint;
use grasp_core::{Identifier, RepoId};
use grasp_purgatory::Record;
use grasp_purgatory::database::{Addition, FamilyRow, Pack, RetiredRef, View};
use nostr::event::{Event, EventId};
use nostr::key::PublicKey;
use nostr::types::Timestamp;
use serde::de::DeserializeOwned;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::connect::failure;
use super::values::{Unreadable, bytes, get, parse, unsigned};
use crate::store::StoreError;
use crate::store::changes::{self, number};
use crate::store::keys::seconds;

async fn rows(
    client: &ClientWrapper,
    sql: &str,
    values: &[&(dyn ToSql + Sync)],
) -> Result<Vec<Row>, StoreError> {
    let statement = client.prepare_cached(sql).await.map_err(failure)?;
    client.query(&statement, values).await.map_err(failure)
}

pub(super) async fn view(
    client: &ClientWrapper,
    endpoint: Endpoint,
    repo: &RepoId,
) -> Result<Option<View>, StoreError> {
    let sql = "SELECT generation, head, refs, state FROM views
        WHERE endpoint = $1 AND identifier = $2 AND owner = $3";
    let (name, owner) = (repo.identifier.as_str(), &repo.owner.as_bytes()[..]);
    let found = rows(client, sql, &[&number(endpoint), &name, &owner]).await?;
    found.first().map(|row| read_view(row, 0)).transpose()
}

/// Returns the views of a family.
pub(super) async fn views(
    client: &ClientWrapper,
    endpoint: i64,
    identifier: &Identifier,
) -> Result<Vec<(PublicKey, View)>, StoreError> {
    let sql = "SELECT owner, generation, head, refs, state FROM views
        WHERE endpoint = $1 AND identifier = $2";
    let found = rows(client, sql, &[&endpoint, &identifier.as_str()]).await?;
    found.iter().map(|row| Ok((read_key(row, 0)?, read_view(row, 1)?))).collect()
}

/// Reads a family by one statement, so that its parts are of one moment.
pub(super) async fn family(
    client: &ClientWrapper,
    endpoint: Endpoint,
    identifier: &Identifier,
) -> Result<FamilyRow, StoreError> {
    let sql = "SELECT 0::BIGINT, owner, generation, head, refs, state, 0::BIGINT, 0::BIGINT
            FROM views WHERE endpoint = $1 AND identifier = $2
        UNION ALL SELECT 1, NULL, bytes, name, NULL, NULL, is_attic, verified
            FROM packs WHERE endpoint = $1 AND identifier = $2
        UNION ALL SELECT 2, owner, since, name, tip, NULL, 0, 0
            FROM retired_refs WHERE endpoint = $1 AND identifier = $2
        UNION ALL SELECT 3, NULL, mark, NULL, NULL, NULL, 0, 0
            FROM garbage WHERE endpoint = $1 AND identifier = $2";
    let mut family = FamilyRow::default();
    for row in rows(client, sql, &[&number(endpoint), &identifier.as_str()]).await? {
        match get::<i64>(&row, 0)? {
            0 => _ = family.views.insert(read_key(&row, 1)?, read_view(&row, 2)?),
            1 => {
                let (name, bytes): (String, u64) = (get(&row, 3)?, unsigned(&row, 2)?);
                let verified = Timestamp::from_secs(unsigned(&row, 7)?);
                family.verified.insert(name.clone(), verified);
                family.packs.insert(Pack { name, bytes, is_attic: get::<i64>(&row, 6)? != 0 });
            }
            2 => family.retired.push(RetiredRef {
                owner: read_key(&row, 1)?,
                tip: parse(&row, 4)?,
                name: parse(&row, 3)?,
                since: Timestamp::from_secs(unsigned(&row, 2)?),
            }),
            _ => family.garbage = Some(changes::garbage(get(&row, 2)?)),
        }
    }
    family.retired.sort();
    Ok(family)
}

pub(super) async fn packs(
    client: &ClientWrapper,
    endpoint: Endpoint,
) -> Result<BTreeMap<Identifier, BTreeSet<Pack>>, StoreError> {
    let sql = "SELECT identifier, name, is_attic, bytes FROM packs WHERE endpoint = $1";
    let mut packs: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for row in rows(client, sql, &[&number(endpoint)]).await? {
        let pack = Pack {
            name: get(&row, 1)?,
            is_attic: get::<i64>(&row, 2)? != 0,
            bytes: unsigned(&row, 3)?,
        };
        packs.entry(parse(&row, 0)?).or_default().insert(pack);
    }
    Ok(packs)
}

pub(super) async fn repositories(
    client: &ClientWrapper,
    endpoint: Endpoint,
) -> Result<Vec<RepoId>, StoreError> {
    let sql = "SELECT owner, identifier FROM views WHERE endpoint = $1";
    let found = rows(client, sql, &[&number(endpoint)]).await?;
    found.iter().map(|row| Ok(RepoId::new(read_key(row, 0)?, parse(row, 1)?))).collect()
}

/// Returns the identifiers of families: all of them, or those of these.
pub(super) async fn identifiers(
    client: &ClientWrapper,
    endpoint: Endpoint,
    among: Option<BTreeSet<Identifier>>,
) -> Result<BTreeSet<Identifier>, StoreError> {
    let among: Option<Vec<String>> =
        among.map(|among| among.iter().map(ToString::to_string).collect());
    let (all, some) = (
        "SELECT identifier FROM views WHERE endpoint = $1
            UNION SELECT identifier FROM packs WHERE endpoint = $1
            UNION SELECT identifier FROM retired_refs WHERE endpoint = $1",
        "SELECT identifier FROM views WHERE endpoint = $1 AND identifier = ANY($2)
            UNION SELECT identifier FROM packs WHERE endpoint = $1 AND identifier = ANY($2)
            UNION SELECT identifier FROM retired_refs WHERE endpoint = $1 AND identifier = ANY($2)",
    );
    let found = match among {
        None => rows(client, all, &[&number(endpoint)]).await?,
        Some(among) => rows(client, some, &[&number(endpoint), &among]).await?,
    };
    found.iter().map(|row| parse(row, 0)).collect()
}

/// Returns the records that lead to the rows of purgatory, by one statement.
pub(super) async fn records(client: &ClientWrapper) -> Result<Vec<Record>, StoreError> {
    let sql = "SELECT 0::BIGINT, NULL::BYTEA, event, NULL::TEXT, phase, since, until FROM held
        UNION ALL SELECT 1, id, target, tip, bytes, 0, until FROM staged
        UNION ALL SELECT 2, NULL, task, NULL, 0, 0, 0 FROM tasks";
    let read = |row: &Row| {
        let until = Timestamp::from_secs(unsigned(row, 6)?);
        Ok(match get::<i64>(row, 0)? {
            0 => Record::Held {
                event: Arc::new(Event::from_json(get::<&str>(row, 2)?).map_err(failure)?),
                phase: changes::phase(get(row, 4)?),
                since: Timestamp::from_secs(unsigned(row, 5)?),
                until,
            },
            1 => Record::Staged {
                id: EventId::from_byte_array(bytes(row, 1)?),
                tip: parse(row, 3)?,
                target: from_json(row, 2)?,
                bytes: unsigned(row, 4)?,
                until,
            },
            _ => Record::TaskAdded { task: from_json(row, 2)? },
        })
    };
    rows(client, sql, &[]).await?.iter().map(read).collect()
}

pub(super) async fn additions(
    client: &ClientWrapper,
    since: Timestamp,
) -> Result<Vec<Addition>, StoreError> {
    let sql = "SELECT at, identifier, author, kind, bytes FROM additions
        WHERE at >= $1 ORDER BY at, identifier, author, kind";
    let read = |row: &Row| {
        let (has_authority, source) = changes::addition_kind(get(row, 3)?);
        let author = get::<&[u8]>(row, 2)?;
        Ok(Addition {
            at: Timestamp::from_secs(unsigned(row, 0)?),
            identifier: parse(row, 1)?,
            author: (!author.is_empty()).then(|| read_key(row, 2)).transpose()?,
            has_authority,
            source,
            bytes: unsigned(row, 4)?,
        })
    };
    rows(client, sql, &[&seconds(since.as_secs())]).await?.iter().map(read).collect()
}

/// Reads the columns `generation, head, refs, state`.
fn read_view(row: &Row, first: usize) -> Result<View, StoreError> {
    let state = match get::<Option<&[u8]>>(row, first + 3)? {
        Some(_) => Some(bytes(row, first + 3)?),
        None => None,
    };
    changes::view(get(row, first)?, get(row, first + 1)?, get(row, first + 2)?, state)
        .ok_or_else(|| failure(Unreadable("refs of a view")))
}

fn read_key(row: &Row, at: usize) -> Result<PublicKey, StoreError> {
    Ok(PublicKey::from_byte_array(bytes(row, at)?))
}

fn from_json<T: DeserializeOwned>(row: &Row, at: usize) -> Result<T, StoreError> {
    serde_json::from_str(get(row, at)?).map_err(failure)
}
