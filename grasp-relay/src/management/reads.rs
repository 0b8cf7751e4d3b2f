//! Calls that change nothing.

use std::collections::BTreeSet;

use crate::management::rules::{
    Actor, AuditQuery, AuthorizedCall, Call, Caller, Method, RightsFacts, allowed_kinds,
};
use grasp_core::policy::{PolicyList, PolicySubject};
use nostr::event::Kind;
use serde_json::{Value, json};

use super::{CallError, Management};
use crate::store::StoreError;
use crate::store::policy::{AuditPage, AuditRow, PolicyEntry};

/// Rows of the audit log in an answer, unless fewer are wanted.
const MAX_AUDIT_ROWS: usize = 200;

/// Roles that exist without being created: id and what they may do.
const BUILT_IN: [(&str, &str); 3] = [
    ("observer", "reads everything"),
    ("moderator", "also bans, allows, holds and restores"),
    ("admin", "everything but giving and taking `admin`"),
];

impl Management {
    /// Answers a call that changes nothing.
    pub(super) async fn read(
        &self,
        caller: &Caller,
        facts: &RightsFacts,
        call: AuthorizedCall,
    ) -> Result<Value, CallError> {
        let parts = &self.0.parts;
        let answered = match call.call() {
            Call::SupportedMethods => Ok(json!(methods_of(caller))),
            Call::WhoAmI => Ok(who_is(caller, facts)),
            Call::OpenSession => Ok(self.open_session(caller)),
            Call::Status => parts.server.status().await,
            Call::ListRepos(query) => parts.server.repositories(query.clone()).await,
            Call::GetUsage(owner) => parts.server.usage(*owner).await,
            Call::Preview(inner) => {
                self.check(caller, facts, inner).await?;
                self.preview(inner).await
            }
            Call::ListEntries(_, lists) => Ok(self.entries(lists).await?),
            Call::ListAllowedKinds => Ok(self.kinds()),
            Call::ListHeld => Ok(self.held().await?),
            Call::ListRoles => Ok(self.roles(facts).await?),
            Call::ListAudit(query) => Ok(self.audit(query).await?),
            // Changes are carried out elsewhere.
            _ => Err("this method changes something".to_owned()),
        };
        answered.map_err(CallError::Failed)
    }

    fn open_session(&self, caller: &Caller) -> Value {
        let Actor::Key(key) = caller.actor else {
            return Value::Null;
        };
        let now = self.0.parts.clock.now().unix;
        let (token, expires_at) = self.0.sessions.open(&key, now);
        json!({"token": token, "expires_at": expires_at.as_secs()})
    }

    /// Returns the entries of lists, those of the settings first.
    async fn entries(&self, lists: &[PolicyList]) -> Result<Value, StoreError> {
        let parts = &self.0.parts;
        let mut rows = Vec::new();
        for list in lists {
            for subject in fixed_entries(*list, parts.policy.settings()) {
                let mut row = named(&subject);
                row["reason"] = json!("set in the settings");
                row["fixed"] = json!(true);
                rows.push(row);
            }
            for entry in parts.store.policy_entries(Some(*list)).await? {
                rows.push(entry_row(&entry));
            }
        }
        Ok(Value::Array(rows))
    }

    fn kinds(&self) -> Value {
        let policy = self.0.parts.policy.live().now();
        let refused: BTreeSet<Kind> = policy.bans.kinds.clone();
        json!(allowed_kinds(&refused))
    }

    async fn held(&self) -> Result<Value, StoreError> {
        let mut rows = Vec::new();
        for held in self.0.parts.store.held_repos().await? {
            rows.push(json!({
                "repo": held.repo,
                "reason": held.reason,
                "since": held.since.as_secs(),
                "until": held.until.as_secs(),
                "by": held.actor,
            }));
        }
        Ok(Value::Array(rows))
    }

    async fn roles(&self, facts: &RightsFacts) -> Result<Value, StoreError> {
        let mut rows = Vec::new();
        for (id, description) in BUILT_IN {
            rows.push(json!({
                "id": id, "label": id, "description": description, "color": "", "order": 0,
                "members": members_of(id, facts), "fixed": true,
            }));
        }
        for role in self.0.parts.store.roles().await? {
            rows.push(json!({
                "id": role.id, "label": role.label, "description": role.description, "color": role.color,
                "order": role.position, "members": members_of(&role.id, facts),
            }));
        }
        Ok(Value::Array(rows))
    }

    async fn audit(&self, query: &AuditQuery) -> Result<Value, StoreError> {
        let page = AuditPage {
            before: query.after,
            actor: query.actor.clone(),
            method: query.method.clone(),
            limit: query.limit.unwrap_or(MAX_AUDIT_ROWS).min(MAX_AUDIT_ROWS),
        };
        let rows = self.0.parts.store.audit(page).await?;
        Ok(rows.iter().map(audit_row).collect())
    }
}

/// Returns the names of the methods that a caller may call.
fn methods_of(caller: &Caller) -> Vec<&'static str> {
    let callable = Method::ALL
        .iter()
        .filter(|method| caller.rank >= method.info().rank);
    callable.map(|method| method.name()).collect()
}

fn who_is(caller: &Caller, facts: &RightsFacts) -> Value {
    let mut roles = Vec::new();
    let mut name = caller.actor.to_string();
    if let Actor::Key(key) = caller.actor {
        name = key.to_hex();
        if facts.operator == Some(key) {
            roles.push("operator".to_owned());
        }
        roles.extend(
            facts
                .roles
                .get(&key)
                .into_iter()
                .flatten()
                .map(ToString::to_string),
        );
    }
    json!({"pubkey": name, "roles": roles, "methods": methods_of(caller)})
}

fn members_of(id: &str, facts: &RightsFacts) -> Vec<String> {
    let members = facts
        .roles
        .iter()
        .filter(|(_, roles)| roles.iter().any(|role| role.as_str() == id));
    members.map(|(key, _)| key.to_hex()).collect()
}

/// Returns the entries of a list that the settings have.
pub(super) fn fixed_entries(
    list: PolicyList,
    settings: &grasp_core::admission::Policy,
) -> Vec<PolicySubject> {
    let bans = &settings.bans;
    let allowed = settings.allowed.clone();
    match list {
        PolicyList::BannedAuthor => bans
            .authors
            .iter()
            .copied()
            .map(PolicySubject::BannedAuthor)
            .collect(),
        PolicyList::BannedRepo => bans
            .repos
            .iter()
            .cloned()
            .map(PolicySubject::BannedRepo)
            .collect(),
        PolicyList::BannedName => bans
            .names
            .iter()
            .cloned()
            .map(PolicySubject::BannedName)
            .collect(),
        PolicyList::BannedEvent => bans
            .events
            .iter()
            .copied()
            .map(PolicySubject::BannedEvent)
            .collect(),
        PolicyList::AllowedAuthor => allowed
            .authors
            .into_iter()
            .map(PolicySubject::AllowedAuthor)
            .collect(),
        PolicyList::AllowedRepo => allowed
            .repos
            .into_iter()
            .map(PolicySubject::AllowedRepo)
            .collect(),
        PolicyList::AllowedName => allowed
            .names
            .into_iter()
            .map(PolicySubject::AllowedName)
            .collect(),
        PolicyList::BlockedNetwork => settings
            .blocked
            .iter()
            .copied()
            .map(PolicySubject::BlockedNetwork)
            .collect(),
        PolicyList::RefusedKind => bans
            .kinds
            .iter()
            .copied()
            .map(PolicySubject::RefusedKind)
            .collect(),
    }
}

/// Returns a row with the subject under the name that NIP-86 gives it.
fn named(subject: &PolicySubject) -> Value {
    let name = match subject {
        PolicySubject::BannedAuthor(_) | PolicySubject::AllowedAuthor(_) => "pubkey",
        PolicySubject::BannedEvent(_) => "id",
        PolicySubject::BlockedNetwork(_) => "ip",
        PolicySubject::RefusedKind(_) => "kind",
        PolicySubject::BannedRepo(_)
        | PolicySubject::BannedName(_)
        | PolicySubject::AllowedRepo(_)
        | PolicySubject::AllowedName(_) => "repo",
    };
    json!({name: subject.to_string()})
}

fn entry_row(entry: &PolicyEntry) -> Value {
    let mut row = named(&entry.subject);
    row["reason"] = json!(entry.reason);
    row["since"] = json!(entry.at.as_secs());
    row["by"] = json!(entry.actor);
    row["fixed"] = json!(false);
    row
}

fn audit_row(row: &AuditRow) -> Value {
    let params: Value = serde_json::from_str(&row.entry.params).unwrap_or_default();
    let mut shown = json!({
        "seq": row.seq,
        "at": row.at.as_secs(),
        "actor": row.entry.actor,
        "via": row.entry.via,
        "method": row.entry.method,
        "params": params,
    });
    if let Some(error) = &row.entry.error {
        shown["error"] = json!(error);
    }
    shown
}
