//! What operators decide, as rows that every database has.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use grasp_core::RepoId;
use grasp_core::admission::Policy;
use grasp_core::policy::{HiddenCause, PolicyList, PolicySubject};
use grasp_purgatory::database::QuotaChange;
use nostr::event::EventId;
use nostr::types::Timestamp;
use rusqlite::types::Value;

use super::{
    AuditEntry, AuditPage, AuditRow, HeldRepo, HideStep, MAX_AUDIT_ROWS, Override, PolicyAction,
    PolicyChange, PolicyChanged, PolicyEntry, PolicyStore, RestoreStep, Role, RoleMember, UsedAuth,
};
use crate::store::changes::{Changes, GitRows, blob, integer, text, time};
use crate::store::dependents;
use crate::store::engine::{Columns, EngineStore, Query, StoreEngine};
use crate::store::hiding::{self, Term};
use crate::store::keys::seconds;
use crate::store::{StoreError, StoreFuture};

const ENTRIES_SQL: &str =
    "SELECT list, subject, reason, actor, at FROM policy ORDER BY list, subject";
const ENTRIES_OF_SQL: &str =
    "SELECT list, subject, reason, actor, at FROM policy WHERE list = ?1 ORDER BY list, subject";

/// Selects rows of the log. An empty text is no condition.
const AUDIT_SQL: &str = "SELECT seq, at, actor, via, auth, method, params, error FROM audit
    WHERE seq < ?1 AND (?2 = '' OR actor = ?2) AND (?3 = '' OR method = ?3)
    ORDER BY seq DESC LIMIT ?4";

impl<R: GitRows> PolicyRows for R {}

/// Changing what operators decide, within a transaction.
pub(crate) trait PolicyRows: GitRows {
    /// Carries out a change, unless its authorization was used before.
    fn change_policy(&self, change: &PolicyChange) -> Result<PolicyChanged, StoreError> {
        if let (Some(id), Some(until)) = (change.audit.auth, change.auth_until) {
            self.forget_auth(change.at)?;
            if !self.use_auth(&UsedAuth { id, until })? {
                return Ok(PolicyChanged::Replayed);
            }
        }
        for action in &change.actions {
            self.act(action, &change.audit.actor, change.at)?;
        }
        if !change.actions.is_empty() {
            self.raise_policy_version()?;
        }
        self.log(&change.audit, change.at)?;
        Ok(PolicyChanged::Done)
    }

    /// Has every process read again what operators decide.
    fn raise_policy_version(&self) -> Result<(), StoreError> {
        let raise = "UPDATE policy_version SET last = last + 1";
        self.change(raise, Vec::new())
    }

    /// Forgets authorizations that could not be used again.
    fn forget_auth(&self, now: Timestamp) -> Result<(), StoreError> {
        let forget = "DELETE FROM auth_seen WHERE until < ?1";
        self.change(forget, vec![time(now)])
    }

    fn act(&self, action: &PolicyAction, actor: &str, at: Timestamp) -> Result<(), StoreError> {
        match action {
            PolicyAction::Add { subject, reason } => self.change(
                "INSERT INTO policy (list, subject, reason, actor, at) VALUES (?1, ?2, ?3, ?4, ?5)
                     ON CONFLICT (list, subject) DO UPDATE SET
                         reason = excluded.reason, actor = excluded.actor, at = excluded.at",
                entry(subject, [text(reason), text(actor), time(at)]),
            ),
            PolicyAction::Remove(subject) => self.change(
                "DELETE FROM policy WHERE list = ?1 AND subject = ?2",
                entry(subject, []),
            ),
            PolicyAction::Hold {
                repo,
                reason,
                until,
            } => self.change(
                "INSERT INTO held_repos (identifier, owner, reason, actor, since, until)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6)
                     ON CONFLICT (identifier, owner) DO UPDATE SET
                         reason = excluded.reason, actor = excluded.actor, until = excluded.until",
                of_repo(repo, [text(reason), text(actor), time(at), time(*until)]),
            ),
            PolicyAction::Restore(repo) => self.change(
                "DELETE FROM held_repos WHERE identifier = ?1 AND owner = ?2",
                of_repo(repo, []),
            ),
            PolicyAction::SetQuota(subject, bytes) => self.change_quota(&QuotaChange {
                subject: subject.clone(),
                bytes: *bytes,
            }),
            PolicyAction::Override(key, value) => self.replace(key, value.as_deref(), actor, at),
            action => self.act_on_role(action, actor, at),
        }
    }

    fn act_on_role(
        &self,
        action: &PolicyAction,
        actor: &str,
        at: Timestamp,
    ) -> Result<(), StoreError> {
        match action {
            PolicyAction::PutRole(role) => self.change(
                "INSERT INTO roles (id, label, description, color, position)
                     VALUES (?1, ?2, ?3, ?4, ?5)
                     ON CONFLICT (id) DO UPDATE SET label = excluded.label, color = excluded.color,
                         description = excluded.description, position = excluded.position",
                vec![
                    text(&role.id),
                    text(&role.label),
                    text(&role.description),
                    text(&role.color),
                    integer(role.position),
                ],
            ),
            PolicyAction::RemoveRole(id) => {
                let members = "DELETE FROM role_members WHERE role = ?1";
                self.change(members, vec![text(id)])?;
                self.change("DELETE FROM roles WHERE id = ?1", vec![text(id)])
            }
            PolicyAction::Assign(key, role) => self.change(
                "INSERT INTO role_members (pubkey, role, actor, at) VALUES (?1, ?2, ?3, ?4)
                     ON CONFLICT (pubkey, role) DO NOTHING",
                vec![blob(key.as_bytes()), text(role), text(actor), time(at)],
            ),
            PolicyAction::Unassign(key, role) => self.change(
                "DELETE FROM role_members WHERE pubkey = ?1 AND role = ?2",
                vec![blob(key.as_bytes()), text(role)],
            ),
            _ => Ok(()),
        }
    }

    /// Replaces a setting by a text, or no longer.
    fn replace(
        &self,
        key: &str,
        value: Option<&str>,
        actor: &str,
        at: Timestamp,
    ) -> Result<(), StoreError> {
        match value {
            Some(value) => self.change(
                "INSERT INTO overrides (key, value, revision, actor, at) VALUES (?1, ?2, 1, ?3, ?4)
                     ON CONFLICT (key) DO UPDATE SET value = excluded.value,
                         revision = overrides.revision + 1,
                         actor = excluded.actor, at = excluded.at",
                vec![text(key), text(value), text(actor), time(at)],
            ),
            None => self.change("DELETE FROM overrides WHERE key = ?1", vec![text(key)]),
        }
    }

    /// Adds a row to the log, and forgets the oldest.
    fn log(&self, entry: &AuditEntry, at: Timestamp) -> Result<(), StoreError> {
        let auth = entry.auth.map(|id| blob(id.as_bytes()));
        self.change(
            "INSERT INTO audit (seq, at, actor, via, auth, method, params, error)
                 VALUES ((SELECT coalesce(max(seq), 0) + 1 FROM audit), ?1, ?2, ?3, ?4, ?5, ?6, ?7)",
            vec![
                time(at),
                text(&entry.actor),
                text(&entry.via),
                auth.unwrap_or(Value::Null),
                text(&entry.method),
                text(&entry.params),
                text(entry.error.as_deref().unwrap_or_default()),
            ],
        )?;
        self.change(
            "DELETE FROM audit WHERE seq <= (SELECT max(seq) FROM audit) - ?1",
            vec![integer(seconds(MAX_AUDIT_ROWS))],
        )
    }
}

/// Returns the parameters `list, subject` and those that follow.
fn entry<const N: usize>(subject: &PolicySubject, more: [Value; N]) -> Vec<Value> {
    let mut values = vec![text(subject.list().as_str()), text(&subject.to_string())];
    values.extend(more);
    values
}

/// Returns the parameters `identifier, owner` and those that follow.
pub(crate) fn of_repo<const N: usize>(repo: &RepoId, more: [Value; N]) -> Vec<Value> {
    let mut values = vec![text(repo.identifier.as_str()), blob(repo.owner.as_bytes())];
    values.extend(more);
    values
}

impl<E: StoreEngine> PolicyStore for EngineStore<E> {
    fn change_policy(&self, change: PolicyChange) -> StoreFuture<'_, PolicyChanged> {
        Box::pin(async move {
            let auth = change.audit.auth;
            let wanted = self
                .0
                .want(|_, wanted| wanted.auth.extend(auth.map(|id| id.to_bytes())));
            let rows = change.actions.len() + 1;
            let work = move |tables: &E::Tables<'_>| tables.change_policy(&change);
            self.0.write(rows, wanted, work).await
        })
    }

    fn see_auth(&self, auth: UsedAuth, now: Timestamp) -> StoreFuture<'_, bool> {
        Box::pin(async move {
            let wanted = self
                .0
                .want(|_, wanted| wanted.auth.push(auth.id.to_bytes()));
            let work = move |tables: &E::Tables<'_>| {
                tables.forget_auth(now)?;
                tables.use_auth(&auth)
            };
            self.0.write(1, wanted, work).await
        })
    }

    fn policy_version(&self) -> StoreFuture<'_, u64> {
        Box::pin(async move {
            let sql = "SELECT last FROM policy_version";
            let last = Query::new(sql, Vec::new(), |row| row.unsigned(0));
            Ok(self.0.rows(last).await?.pop().unwrap_or_default())
        })
    }

    fn policy_entries(&self, list: Option<PolicyList>) -> StoreFuture<'_, Vec<PolicyEntry>> {
        Box::pin(async move {
            let entries = match list {
                Some(list) => Query::new(ENTRIES_OF_SQL, vec![text(list.as_str())], read_entry),
                None => Query::new(ENTRIES_SQL, Vec::new(), read_entry),
            };
            self.0.rows(entries).await
        })
    }

    fn held_repos(&self) -> StoreFuture<'_, Vec<HeldRepo>> {
        Box::pin(async move {
            let sql = "SELECT owner, identifier, reason, actor, since, until FROM held_repos
                ORDER BY owner, identifier";
            let held = Query::new(sql, Vec::new(), |row| {
                Ok(HeldRepo {
                    repo: RepoId::new(row.public_key(0)?, row.parse(1)?),
                    reason: row.text(2)?,
                    actor: row.text(3)?,
                    since: row.time(4)?,
                    until: row.time(5)?,
                })
            });
            self.0.rows(held).await
        })
    }

    fn roles(&self) -> StoreFuture<'_, Vec<Role>> {
        Box::pin(async move {
            let sql = "SELECT id, label, description, color, position FROM roles
                ORDER BY position, id";
            let roles = Query::new(sql, Vec::new(), |row| {
                Ok(Role {
                    id: row.text(0)?,
                    label: row.text(1)?,
                    description: row.text(2)?,
                    color: row.text(3)?,
                    position: row.integer(4)?,
                })
            });
            self.0.rows(roles).await
        })
    }

    fn role_members(&self) -> StoreFuture<'_, Vec<RoleMember>> {
        Box::pin(async move {
            let sql = "SELECT pubkey, role, actor, at FROM role_members ORDER BY pubkey, role";
            let members = Query::new(sql, Vec::new(), |row| {
                Ok(RoleMember {
                    pubkey: row.public_key(0)?,
                    role: row.text(1)?,
                    actor: row.text(2)?,
                    at: row.time(3)?,
                })
            });
            self.0.rows(members).await
        })
    }

    fn overrides(&self) -> StoreFuture<'_, BTreeMap<String, Override>> {
        Box::pin(async move {
            let sql = "SELECT key, value, revision, actor, at FROM overrides";
            let overrides = Query::new(sql, Vec::new(), |row| {
                let text = Override {
                    value: row.text(1)?,
                    revision: row.unsigned(2)?,
                    actor: row.text(3)?,
                    at: row.time(4)?,
                };
                Ok((row.text(0)?, text))
            });
            Ok(self.0.rows(overrides).await?.into_iter().collect())
        })
    }

    fn audit(&self, page: AuditPage) -> StoreFuture<'_, Vec<AuditRow>> {
        Box::pin(async move {
            let values = vec![
                integer(page.before.map_or(i64::MAX, seconds)),
                text(&page.actor.unwrap_or_default()),
                text(&page.method.unwrap_or_default()),
                integer(i64::try_from(page.limit).unwrap_or(i64::MAX)),
            ];
            self.0.rows(Query::new(AUDIT_SQL, values, read_audit)).await
        })
    }

    fn hide(
        &self,
        cause: HiddenCause,
        until: Timestamp,
        now: Timestamp,
    ) -> StoreFuture<'_, HideStep> {
        Box::pin(hiding::hide_step(
            &*self.0,
            cause,
            Term { since: now, until },
        ))
    }

    fn restore(
        &self,
        cause: HiddenCause,
        policy: Arc<Policy>,
        now: Timestamp,
    ) -> StoreFuture<'_, RestoreStep> {
        Box::pin(hiding::restore_step(&*self.0, cause, policy, now))
    }

    fn hidden_causes(&self) -> StoreFuture<'_, BTreeSet<HiddenCause>> {
        Box::pin(hiding::causes(&*self.0))
    }

    fn unannounced(&self) -> StoreFuture<'_, BTreeMap<RepoId, EventId>> {
        Box::pin(dependents::unannounced(&*self.0))
    }

    fn hide_dependents(
        &self,
        repo: RepoId,
        events: Vec<EventId>,
        until: Timestamp,
        now: Timestamp,
    ) -> StoreFuture<'_, HideStep> {
        let term = Term { since: now, until };
        Box::pin(dependents::hide_step(&*self.0, repo, events, term))
    }

    fn forget_unannounced(&self, repo: RepoId) -> StoreFuture<'_, ()> {
        Box::pin(dependents::forget(&*self.0, repo))
    }

    fn hidden(&self, ids: Vec<EventId>) -> StoreFuture<'_, BTreeSet<EventId>> {
        Box::pin(hiding::hidden_among(&*self.0, ids))
    }
}

/// Reads the columns `list, subject, reason, actor, at`.
fn read_entry(row: &dyn Columns) -> Result<PolicyEntry, StoreError> {
    let list: PolicyList = row.parse(0)?;
    Ok(PolicyEntry {
        subject: list.subject(&row.text(1)?).map_err(crate::store::failure)?,
        reason: row.text(2)?,
        actor: row.text(3)?,
        at: row.time(4)?,
    })
}

/// Reads the columns of the log.
fn read_audit(row: &dyn Columns) -> Result<AuditRow, StoreError> {
    let entry = AuditEntry {
        actor: row.text(2)?,
        via: row.text(3)?,
        auth: row.bytes(4)?.map(EventId::from_byte_array),
        method: row.text(5)?,
        params: row.text(6)?,
        error: Some(row.text(7)?).filter(|error| !error.is_empty()),
    };
    Ok(AuditRow {
        seq: row.unsigned(0)?,
        at: row.time(1)?,
        entry,
    })
}
