//! Reading refs, packs and the records of purgatory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use grasp_core::admission::Needs;
use grasp_core::quota::QuotaSubject;
use grasp_core::service::Endpoint;
use grasp_core::{RepoId, kinds};
use grasp_purgatory::Record;
use grasp_purgatory::database::{
    Addition, Commit, Committed, Database, DatabaseFuture, Generation, Pack, RepoRow, RetiredRef,
    View, ViewHead,
};
use grasp_purgatory::git::Refs;
use nostr::event::{Event, EventId};
use nostr::key::PublicKey;
use nostr::types::Timestamp;

use super::changes::{
    RepoKey, addition_kind, blob, endpoint, garbage, integer, number, phase, time,
};
use super::engine::{Columns, DatabaseEngine, EngineStore, Query, Unreadable};
use super::{REPOSITORY_KINDS, StoreError, failure};

/// Sums up the packs of each repository: of one owner, and of all.
const USAGE_SQL: &str = "SELECT owner, identifier, CAST(sum(bytes) AS BIGINT) FROM packs
    WHERE owner = ?1 GROUP BY owner, identifier";
const ALL_USAGE_SQL: &str = "SELECT owner, identifier, CAST(sum(bytes) AS BIGINT) FROM packs
    GROUP BY owner, identifier";

/// Selects the owners of repositories that a key maintains, by an index in this order.
pub(crate) const MAINTAINED_SQL: &str = "SELECT owner FROM maintained
    WHERE endpoint = ?1 AND identifier = ?2 AND maintainer = ?3 ORDER BY since, owner LIMIT ?4";

/// Selects all parts of a repository but its retired refs, which are then of one moment.
const ROW_SQL: &str = "SELECT 0, generation, head, refs, proposals, state, maintainers, shows, 0
        FROM repositories WHERE endpoint = ?1 AND identifier = ?2 AND owner = ?3
    UNION ALL SELECT 1, bytes, name, NULL, NULL, NULL, NULL, NULL, verified
        FROM packs WHERE endpoint = ?1 AND identifier = ?2 AND owner = ?3
    UNION ALL SELECT 2, mark, NULL, NULL, NULL, NULL, NULL, NULL, 0
        FROM garbage WHERE endpoint = ?1 AND identifier = ?2 AND owner = ?3";

impl<E: DatabaseEngine> Database for EngineStore<E> {
    fn commit(&self, commit: Commit) -> DatabaseFuture<'_, Committed> {
        Box::pin(async move { Ok(self.0.commit(commit).await?) })
    }

    fn view(&self, endpoint: Endpoint, repo: RepoId) -> DatabaseFuture<'_, Option<View>> {
        Box::pin(async move {
            let sql = "SELECT generation, head, refs, proposals, state, maintainers, shows
                FROM repositories WHERE endpoint = ?1 AND identifier = ?2 AND owner = ?3";
            let values = RepoKey::new(endpoint, &repo).values([]);
            Ok(self
                .0
                .rows(Query::new(sql, values, |row| read_view(row, 0)))
                .await?
                .pop())
        })
    }

    fn view_head(&self, endpoint: Endpoint, repo: RepoId) -> DatabaseFuture<'_, Option<ViewHead>> {
        Box::pin(async move {
            let sql = "SELECT generation, state, shows FROM views
                WHERE endpoint = ?1 AND identifier = ?2 AND owner = ?3";
            let values = RepoKey::new(endpoint, &repo).values([]);
            let heads = Query::new(sql, values, |row| {
                Ok(ViewHead {
                    generation: Generation(row.unsigned(0)?),
                    state: row.bytes(1)?.map(EventId::from_byte_array),
                    shows: row.bytes(2)?.map(PublicKey::from_byte_array),
                })
            });
            Ok(self.0.rows(heads).await?.pop())
        })
    }

    fn row(&self, endpoint: Endpoint, repo: RepoId) -> DatabaseFuture<'_, RepoRow> {
        Box::pin(async move {
            let values = RepoKey::new(endpoint, &repo).values([]);
            let mut row = RepoRow::default();
            for part in self.0.rows(Query::new(ROW_SQL, values, read_part)).await? {
                match part {
                    RowPart::View(view) => row.view = Some(view),
                    RowPart::Pack(pack, verified) => {
                        row.verified.insert(pack.name.clone(), verified);
                        row.packs.insert(pack);
                    }
                    RowPart::Garbage(mark) => row.garbage = Some(garbage(mark)),
                }
            }
            Ok(row)
        })
    }

    fn packs_of(&self, endpoint: Endpoint, repo: RepoId) -> DatabaseFuture<'_, BTreeSet<Pack>> {
        Box::pin(async move {
            let sql = "SELECT name, bytes FROM packs
                WHERE endpoint = ?1 AND identifier = ?2 AND owner = ?3";
            let values = RepoKey::new(endpoint, &repo).values([]);
            let packs = Query::new(sql, values, |row| {
                Ok(Pack {
                    name: row.text(0)?,
                    bytes: row.unsigned(1)?,
                })
            });
            Ok(self.0.rows(packs).await?.into_iter().collect())
        })
    }

    fn retired(&self, endpoint: Endpoint, repo: RepoId) -> DatabaseFuture<'_, Vec<RetiredRef>> {
        Box::pin(async move {
            let sql = "SELECT tip, name, since FROM retired_refs
                WHERE endpoint = ?1 AND identifier = ?2 AND owner = ?3 ORDER BY tip";
            let values = RepoKey::new(endpoint, &repo).values([]);
            let retired = Query::new(sql, values, |row| {
                Ok(RetiredRef {
                    tip: row.parse(0)?,
                    name: row.parse(1)?,
                    since: row.time(2)?,
                })
            });
            Ok(self.0.rows(retired).await?)
        })
    }

    fn packs(&self, endpoint: Endpoint) -> DatabaseFuture<'_, BTreeMap<RepoId, BTreeSet<Pack>>> {
        Box::pin(async move {
            let sql = "SELECT owner, identifier, name, bytes FROM packs WHERE endpoint = ?1";
            let packs = Query::new(sql, vec![integer(number(endpoint))], |row| {
                Ok((
                    read_repo(row)?,
                    Pack {
                        name: row.text(2)?,
                        bytes: row.unsigned(3)?,
                    },
                ))
            });
            let mut repos: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
            for (repo, pack) in self.0.rows(packs).await? {
                repos.entry(repo).or_default().insert(pack);
            }
            Ok(repos)
        })
    }

    fn repositories(&self, endpoint: Endpoint) -> DatabaseFuture<'_, Vec<RepoId>> {
        Box::pin(async move {
            let sql = "SELECT owner, identifier FROM views WHERE endpoint = ?1";
            let repositories = Query::new(sql, vec![integer(number(endpoint))], read_repo);
            Ok(self.0.rows(repositories).await?)
        })
    }

    fn maintained(
        &self,
        endpoint: Endpoint,
        repo: RepoId,
        most: usize,
    ) -> DatabaseFuture<'_, Vec<PublicKey>> {
        Box::pin(async move {
            let most = integer(i64::try_from(most).unwrap_or(i64::MAX));
            let values = RepoKey::new(endpoint, &repo).values([most]);
            let owners = Query::new(MAINTAINED_SQL, values, |row| row.public_key(0));
            Ok(self.0.rows(owners).await?)
        })
    }

    fn all(&self, endpoint: Endpoint) -> DatabaseFuture<'_, BTreeSet<RepoId>> {
        Box::pin(async move {
            let sql = "SELECT owner, identifier FROM views WHERE endpoint = ?1
                UNION SELECT owner, identifier FROM packs WHERE endpoint = ?1
                UNION SELECT owner, identifier FROM retired_refs WHERE endpoint = ?1";
            let found = Query::new(sql, vec![integer(number(endpoint))], read_repo);
            Ok(self.0.rows(found).await?.into_iter().collect())
        })
    }

    fn records(&self) -> DatabaseFuture<'_, Vec<Record>> {
        Box::pin(async move {
            let sql = "SELECT 0, id, event, '', phase, since, until FROM held
                UNION ALL SELECT 1, id, target, tip, bytes, 0, until FROM staged
                UNION ALL SELECT 2, NULL, task, '', 0, 0, 0 FROM tasks";
            Ok(self
                .0
                .rows(Query::new(sql, Vec::new(), read_record))
                .await?)
        })
    }

    fn additions(&self, since: Timestamp) -> DatabaseFuture<'_, Vec<Addition>> {
        Box::pin(async move {
            let sql = "SELECT owner, identifier, at, author, kind, bytes FROM additions
                WHERE at >= ?1 ORDER BY at, identifier, owner, author, kind";
            Ok(self
                .0
                .rows(Query::new(sql, vec![time(since)], read_addition))
                .await?)
        })
    }

    fn quotas(&self) -> DatabaseFuture<'_, BTreeMap<QuotaSubject, u64>> {
        Box::pin(async move {
            let sql = "SELECT subject, bytes FROM quotas";
            let quotas = Query::new(sql, Vec::new(), |row| Ok((row.parse(0)?, row.unsigned(1)?)));
            Ok(self.0.rows(quotas).await?.into_iter().collect())
        })
    }

    fn git_usage(&self, owner: Option<PublicKey>) -> DatabaseFuture<'_, BTreeMap<RepoId, u64>> {
        Box::pin(async move {
            let read = |row: &dyn Columns| Ok((read_repo(row)?, row.unsigned(2)?));
            let usage = match owner {
                Some(owner) => Query::new(USAGE_SQL, vec![blob(owner.as_bytes())], read),
                None => Query::new(ALL_USAGE_SQL, Vec::new(), read),
            };
            Ok(self.0.rows(usage).await?.into_iter().collect())
        })
    }

    fn git_bytes(&self) -> DatabaseFuture<'_, u64> {
        Box::pin(async move {
            let sql = "SELECT CAST(coalesce(sum(bytes), 0) AS BIGINT) FROM packs";
            let sum = Query::new(sql, Vec::new(), |row| row.unsigned(0));
            Ok(self.0.rows(sum).await?.pop().unwrap_or_default())
        })
    }
}

enum RowPart {
    View(View),
    Pack(Pack, Timestamp),
    Garbage(i64),
}

fn read_part(row: &dyn Columns) -> Result<RowPart, StoreError> {
    Ok(match row.integer(0)? {
        0 => RowPart::View(read_view(row, 1)?),
        1 => RowPart::Pack(
            Pack {
                name: row.text(2)?,
                bytes: row.unsigned(1)?,
            },
            row.time(8)?,
        ),
        _ => RowPart::Garbage(row.integer(1)?),
    })
}

/// Reads the columns `owner, identifier`.
fn read_repo(row: &dyn Columns) -> Result<RepoId, StoreError> {
    Ok(RepoId::new(row.public_key(0)?, row.parse(1)?))
}

/// A repository with refs that an event signed for.
pub(crate) type SignedView = (Endpoint, RepoId, View);

/// Returns the query for the repositories with refs that an event signed for.
pub(crate) fn views_signed_by(event: &Event) -> Option<Query<SignedView>> {
    let read = |row: &dyn Columns| {
        let endpoint = endpoint(row.integer(2)?);
        Ok((endpoint, read_repo(row)?, read_view(row, 3)?))
    };
    let id = blob(event.id.as_bytes());
    Some(match event.kind {
        kind if kind == kinds::ANNOUNCEMENT => {
            let repo = Needs::of(event).repo?;
            let sql =
                "SELECT owner, identifier, endpoint, generation, head, refs, proposals, state, maintainers, shows
                FROM repositories WHERE endpoint = ?1 AND identifier = ?2 AND owner = ?3";
            Query::new(
                sql,
                RepoKey::new(Endpoint::Repository, &repo).values([]),
                read,
            )
        }
        kind if kind == kinds::STATE => {
            let sql =
                "SELECT owner, identifier, endpoint, generation, head, refs, proposals, state, maintainers, shows
                FROM repositories WHERE state = ?1";
            Query::new(sql, vec![id], read)
        }
        kind if REPOSITORY_KINDS.contains(&kind) => {
            let sql = "SELECT v.owner, v.identifier, v.endpoint, generation, head, refs, proposals, state,
                    maintainers, shows
                FROM proposal_refs p JOIN repositories v ON v.endpoint = p.endpoint
                    AND v.identifier = p.identifier AND v.owner = p.owner
                WHERE p.event = ?1";
            Query::new(sql, vec![id], read)
        }
        _ => return None,
    })
}

/// Reads the columns `generation, head, refs, proposals, state, maintainers, shows`.
fn read_view(row: &dyn Columns, first: usize) -> Result<View, StoreError> {
    let state = row.bytes(first + 4)?.map(EventId::from_byte_array);
    let proposals = row.text(first + 3)?;
    let refs = match state {
        Some(_) => Refs::decode(&(row.text(first + 2)? + &proposals), &row.text(first + 1)?),
        None => Refs::decode(&proposals, Refs::default().head.as_str()),
    };
    Ok(View {
        refs: Arc::new(refs.ok_or_else(|| failure(Unreadable("refs of a view")))?),
        state,
        generation: Generation(row.unsigned(first)?),
        maintainers: row.public_keys(first + 5)?,
        shows: row.bytes(first + 6)?.map(PublicKey::from_byte_array),
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

/// Reads the columns `owner, identifier, at, author, kind, bytes`.
fn read_addition(row: &dyn Columns) -> Result<Addition, StoreError> {
    let (has_authority, source) = addition_kind(row.integer(4)?);
    Ok(Addition {
        at: row.time(2)?,
        repo: read_repo(row)?,
        author: row.bytes(3)?.map(PublicKey::from_byte_array),
        has_authority,
        source,
        bytes: row.unsigned(5)?,
    })
}
