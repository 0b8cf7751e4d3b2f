//! The tables of refs, packs and purgatory, within a transaction that the caller commits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use grasp_core::service::Endpoint;
use grasp_core::{Identifier, RefName, RepoId, kinds};
use grasp_purgatory::Phase;
use grasp_purgatory::database::{
    Commit, Committed, Conflict, FamilyChange, FamilyRow, Forget, Garbage, Generation, Pack,
    RetiredRef, View, ViewChange,
};
use grasp_purgatory::git::Refs;
use grasp_purgatory::journal::Record;
use nostr::event::{Event, EventId};
use nostr::key::PublicKey;
use nostr::types::Timestamp;
use rusqlite::types::Type;
use rusqlite::{Params, Row, params};
use serde::de::DeserializeOwned;

use super::schema::{Position, seconds};
use super::tables::{Tables, Verdict};
use crate::store::repository_names;

/// Committing.
impl Tables<'_> {
    /// Performs a commit, or returns why nothing of it happens.
    pub(super) fn commit(&self, commit: &Commit) -> rusqlite::Result<Committed> {
        if let Some(conflict) = self.conflict(commit)? {
            return Ok(Committed::Conflict(conflict));
        }
        // Views first: a state that another one replaces is then the state of no view.
        commit.families.iter().try_for_each(|family| self.change_family(family))?;
        if !commit.withdraw.is_empty() {
            self.remove(&commit.withdraw)?;
        }
        let mut affected = self.affected.take();
        if !commit.save.is_empty() {
            // None of them is a request that would have to be continued.
            let (report, _) = self.save(&commit.save, commit.now)?;
            affected.extend(report.affected);
        }
        commit.records.iter().try_for_each(|record| self.apply(record))?;
        Ok(Committed::Done { affected })
    }

    fn conflict(&self, commit: &Commit) -> rusqlite::Result<Option<Conflict>> {
        for family in &commit.families {
            for view in &family.views {
                let now = self.generation(family, &view.owner)?;
                if now != view.from {
                    let repo = RepoId::new(view.owner, family.identifier.clone());
                    return Ok(Some(Conflict::Moved(family.endpoint, repo)));
                }
            }
        }
        let mut refused = BTreeSet::new();
        for event in &commit.save {
            if !self.would_serve(event, commit.now)? {
                refused.insert(event.id);
            }
        }
        Ok((!refused.is_empty()).then_some(Conflict::Refused(refused)))
    }

    /// Returns whether an event is served, or would be if it were saved.
    fn would_serve(&self, event: &Event, now: Timestamp) -> rusqlite::Result<bool> {
        match self.check(event, now)? {
            Verdict::Duplicate => Ok(true),
            Verdict::Accepted => {
                let Some(coordinate) = grasp_core::deletion::coordinate(event) else {
                    return Ok(true);
                };
                let head = self.head(&self.keys.coordinate(&coordinate))?;
                Ok(head.is_none_or(|head| head.at > Position::of(event)))
            }
            Verdict::Superseded | Verdict::Refused(_) | Verdict::DeletedBy(_) => Ok(false),
        }
    }

    fn generation(
        &self,
        family: &FamilyChange,
        owner: &PublicKey,
    ) -> rusqlite::Result<Option<Generation>> {
        self.find(
            "SELECT generation FROM views WHERE endpoint = ?1 AND identifier = ?2 AND owner = ?3",
            params![number(family.endpoint), family.identifier.as_str(), owner.as_bytes()],
            |row| Ok(Generation(unsigned(row, 0)?)),
        )
    }

    fn change_family(&self, family: &FamilyChange) -> rusqlite::Result<()> {
        let key = (number(family.endpoint), family.identifier.as_str());
        family.views.iter().try_for_each(|view| self.change_view(key, view))?;
        for pack in &family.remove_packs {
            self.execute(
                "DELETE FROM packs WHERE endpoint = ?1 AND identifier = ?2 AND name = ?3
                     AND is_attic = ?4",
                params![key.0, key.1, pack.name, pack.is_attic],
            )?;
        }
        for pack in &family.add_packs {
            self.execute(
                "INSERT OR REPLACE INTO packs (endpoint, identifier, name, is_attic, bytes)
                     VALUES (?1, ?2, ?3, ?4, ?5)",
                params![key.0, key.1, pack.name, pack.is_attic, seconds(pack.bytes)],
            )?;
        }
        if let Some((name, time)) = &family.verified {
            self.execute(
                "UPDATE packs SET verified = ?4 WHERE endpoint = ?1 AND identifier = ?2 AND name = ?3",
                params![key.0, key.1, name, seconds(time.as_secs())],
            )?;
        }
        self.forget(key, &family.forget)?;
        if family.is_collected {
            self.execute("DELETE FROM garbage WHERE endpoint = ?1 AND identifier = ?2", key)?;
        }
        if let Some(garbage) = family.garbage {
            self.execute(
                "INSERT INTO garbage (endpoint, identifier, mark) VALUES (?1, ?2, ?3)
                     ON CONFLICT DO UPDATE SET mark = max(mark, excluded.mark)",
                params![key.0, key.1, mark(garbage)],
            )?;
        }
        Ok(())
    }

    fn change_view(&self, key: (i64, &str), view: &ViewChange) -> rusqlite::Result<()> {
        for retired in &view.retired {
            self.execute(
                "INSERT OR REPLACE INTO retired_refs (endpoint, identifier, owner, tip, name, since)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                params![
                    key.0,
                    key.1,
                    retired.owner.as_bytes(),
                    retired.tip.to_string(),
                    retired.name.as_str(),
                    seconds(retired.since.as_secs())
                ],
            )?;
        }
        let owner = view.owner.as_bytes();
        let Some(refs) = &view.to else {
            self.execute(
                "DELETE FROM views WHERE endpoint = ?1 AND identifier = ?2 AND owner = ?3",
                params![key.0, key.1, owner],
            )?;
            return Ok(());
        };
        self.execute("UPDATE generations SET last = last + 1", [])?;
        self.execute(
            "INSERT INTO views (endpoint, identifier, owner, generation, head, refs, state)
                 VALUES (?1, ?2, ?3, (SELECT last FROM generations), ?4, ?5, ?6)
                 ON CONFLICT DO UPDATE SET generation = excluded.generation, head = excluded.head,
                     refs = excluded.refs, state = excluded.state",
            params![
                key.0,
                key.1,
                owner,
                refs.head.as_str(),
                refs.encode(),
                view.state.as_ref().map(EventId::as_bytes)
            ],
        )?;
        Ok(())
    }

    /// Removes the refs that an event signed for, which is being removed.
    pub(super) fn remove_refs_of(&self, event: &Event) -> rusqlite::Result<()> {
        for identifier in repository_names(event) {
            for endpoint in [Endpoint::Repository, Endpoint::PullRequests] {
                let mut change = FamilyChange::new(endpoint, identifier.clone());
                for (owner, view) in self.views((number(endpoint), identifier.as_str()))? {
                    let is_own = endpoint == Endpoint::Repository && owner == event.pubkey;
                    let is_gone = |name: &RefName| match event.kind {
                        kind if kind == kinds::ANNOUNCEMENT => is_own,
                        kind if kind == kinds::STATE => {
                            view.state == Some(event.id) && name.is_branch_or_tag()
                        }
                        _ => name.event() == Some(event.id),
                    };
                    if view.refs.refs.keys().any(is_gone) {
                        let mut left = Refs::clone(&view.refs);
                        left.refs.retain(|name, _| !is_gone(name));
                        change.push(removal(owner, &view, left));
                    }
                }
                self.change_family(&change)?;
            }
        }
        Ok(())
    }

    fn forget(&self, key: (i64, &str), forget: &Forget) -> rusqlite::Result<()> {
        let delete = |condition: &str, value: &dyn rusqlite::ToSql| {
            let sql = format!(
                "DELETE FROM retired_refs WHERE endpoint = ?1 AND identifier = ?2 AND {condition}"
            );
            self.execute(&sql, params![key.0, key.1, value])
        };
        match forget {
            Forget::Nothing => {}
            Forget::Of(owner) => _ = delete("owner = ?3", owner.as_bytes())?,
            Forget::Before(time) => _ = delete("since < ?3", &seconds(time.as_secs()))?,
            Forget::Tips(tips) => {
                for tip in tips {
                    delete("tip = ?3", &tip.to_string())?;
                }
            }
        }
        Ok(())
    }

    /// Applies one change of purgatory.
    fn apply(&self, record: &Record) -> rusqlite::Result<()> {
        match record {
            Record::Held { event, phase, since, until } => self.execute(
                "INSERT OR REPLACE INTO held (id, phase, since, until, event)
                     VALUES (?1, ?2, ?3, ?4, ?5)",
                params![
                    event.id.as_bytes(),
                    phase_number(*phase),
                    seconds(since.as_secs()),
                    seconds(until.as_secs()),
                    event.as_json()
                ],
            )?,
            Record::Moved { id, phase, until } => self.execute(
                "UPDATE held SET phase = ?2, until = ?3 WHERE id = ?1",
                params![id.as_bytes(), phase_number(*phase), seconds(until.as_secs())],
            )?,
            Record::Gone { id, .. } => {
                self.execute("DELETE FROM held WHERE id = ?1", [id.as_bytes()])?
            }
            Record::Staged { id, tip, target, bytes, until } => {
                let until = seconds(until.as_secs());
                self.execute(
                    "INSERT OR REPLACE INTO staged (id, tip, place, target, bytes, until)
                         VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                    params![
                        id.as_bytes(),
                        tip.to_string(),
                        target.upload_key(),
                        to_json(target)?,
                        seconds(*bytes),
                        until
                    ],
                )?;
                self.execute(
                    "UPDATE staged SET until = ?2 WHERE id = ?1",
                    params![id.as_bytes(), until],
                )?
            }
            Record::Unstaged { id, keep } => self.execute(
                "DELETE FROM staged WHERE id = ?1 AND tip <> ?2",
                params![id.as_bytes(), keep.map(|tip| tip.to_string()).unwrap_or_default()],
            )?,
            Record::TaskAdded { task } => self.execute(
                "INSERT OR REPLACE INTO tasks (key, task) VALUES (?1, ?2)",
                params![task.key(), to_json(task)?],
            )?,
            Record::TaskDone { task } => self.execute(
                "DELETE FROM tasks WHERE key = ?1 AND task = ?2",
                params![task.key(), to_json(task)?],
            )?,
        };
        Ok(())
    }
}

/// Reading.
impl Tables<'_> {
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
        let garbage = garbage.map(|mark| match mark {
            1 => Garbage::Moved,
            _ => Garbage::Removed,
        });
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
            let phase = if row.get::<_, i64>(0)? == 0 { Phase::Waiting } else { Phase::Expired };
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

    fn rows<T>(
        &self,
        sql: &str,
        params: impl Params,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<Vec<T>> {
        self.conn.prepare_cached(sql)?.query_map(params, read)?.collect()
    }
}

/// Returns the change of a view that loses refs.
fn removal(owner: PublicKey, view: &View, left: Refs) -> (ViewChange, Option<Garbage>) {
    let since = Timestamp::now();
    let retired = view.refs.retired_by(&left).into_iter();
    let retired = retired.map(|(tip, name)| RetiredRef { owner, tip, name, since }).collect();
    let keeps_state = left.refs.keys().any(RefName::is_branch_or_tag);
    let state = view.state.filter(|_| keeps_state);
    let (from, to) = (Some(view.generation), Some(Arc::new(left)));
    (ViewChange { owner, from, to, state, retired }, Some(Garbage::Removed))
}

fn number(endpoint: Endpoint) -> i64 {
    match endpoint {
        Endpoint::Repository => 0,
        Endpoint::PullRequests => 1,
    }
}

fn mark(garbage: Garbage) -> i64 {
    match garbage {
        Garbage::Moved => 1,
        Garbage::Removed => 2,
    }
}

fn phase_number(phase: Phase) -> i64 {
    match phase {
        Phase::Waiting => 0,
        Phase::Expired => 1,
    }
}

/// Reads the columns `generation, head, refs, state`.
fn read_view(row: &Row<'_>, first: usize) -> rusqlite::Result<View> {
    let (head, refs): (String, String) = (row.get(first + 1)?, row.get(first + 2)?);
    let refs = Refs::decode(&refs, &head).ok_or_else(|| unreadable(first, "refs of a view"))?;
    let state: Option<[u8; 32]> = row.get(first + 3)?;
    Ok(View {
        refs: Arc::new(refs),
        state: state.map(EventId::from_byte_array),
        generation: Generation(unsigned(row, first)?),
    })
}

/// Reads the columns `name, is_attic, bytes`.
fn read_pack(row: &Row<'_>, first: usize) -> rusqlite::Result<Pack> {
    Ok(Pack {
        name: row.get(first)?,
        is_attic: row.get(first + 1)?,
        bytes: unsigned(row, first + 2)?,
    })
}

/// Reads a number that was written by [`seconds`], whatever it counts.
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

fn to_json(value: &impl serde::Serialize) -> rusqlite::Result<String> {
    serde_json::to_string(value)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))
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
