//! Calls that change something.

use std::collections::BTreeSet;

use crate::management::rules::{
    AuthorizedCall, Call, CallRefusal, Caller, Request, RightsFacts, RoleId, RoleInfo,
    judge_restore, judge_target,
};
use futures_util::TryStreamExt as _;
use grasp_core::policy::PolicySubject;
use grasp_core::{RepoId, kinds};
use nostr::event::EventId;
use nostr::filter::Filter;
use nostr::types::Timestamp;
use serde_json::{Value, json};

use super::reads::fixed_entries;
use super::{CallError, CallOrigin, Management};
use crate::policy::KEEP_HIDDEN;
use crate::store::policy::{AuditEntry, PolicyAction, PolicyChange, PolicyChanged, Role};

impl Management {
    /// Carries out a change, with its row in the log, and puts it into force.
    pub(super) async fn change(
        &self,
        origin: CallOrigin,
        request: &Request,
        (caller, facts): (&Caller, &RightsFacts),
        call: AuthorizedCall,
    ) -> Result<Value, CallError> {
        let parts = &self.0.parts;
        parts.server.may_change().map_err(CallError::Failed)?;
        let now = parts.clock.now().unix;
        if let Err(error) = self.check(caller, facts, call.call()).await {
            if let CallError::Refused(refusal) = &error {
                self.log_refused(origin, request, refusal).await?;
            }
            return Err(error);
        }
        let change = PolicyChange {
            at: now,
            actions: actions_of(call.call(), now),
            audit: audit_entry(origin, request, None),
            auth_until: origin.auth().map(|auth| auth.expires_at),
        };
        match parts.store.change_policy(change).await? {
            PolicyChanged::Done => {}
            PolicyChanged::Replayed => return Err(CallError::Replayed),
        }
        tracing::info!(method = %request.method, actor = %origin.actor(), via = origin.via(), "administration");
        parts.policy.load(&*parts.store).await?;
        match call.call() {
            Call::SetQuota(subject, bytes) => {
                let set = parts.server.set_quota(subject.clone(), *bytes).await;
                set.map_err(CallError::Failed)
            }
            Call::Repair(repo) => {
                let repaired = parts.server.repair(repo.clone()).await;
                repaired.map_err(CallError::Failed)
            }
            Call::ChangeText(..) | Call::AssignRole(..) | Call::UnassignRole(..) => {
                self.load_info().await?;
                Ok(json!(true))
            }
            _ => Ok(json!(true)),
        }
    }

    /// Writes a refused call to the log.
    pub(super) async fn log_refused(
        &self,
        origin: CallOrigin,
        request: &Request,
        refusal: &CallRefusal,
    ) -> Result<(), CallError> {
        let parts = &self.0.parts;
        let change = PolicyChange {
            at: parts.clock.now().unix,
            actions: Vec::new(),
            audit: audit_entry(origin, request, Some(refusal)),
            auth_until: origin.auth().map(|auth| auth.expires_at),
        };
        match parts.store.change_policy(change).await? {
            PolicyChanged::Done => Ok(()),
            PolicyChanged::Replayed => Err(CallError::Replayed),
        }
    }

    /// Checks what depends on the database.
    pub(super) async fn check(
        &self,
        caller: &Caller,
        facts: &RightsFacts,
        call: &Call,
    ) -> Result<(), CallError> {
        let problem = match call {
            Call::RestoreRepo(repo) => {
                let rows = self.0.parts.store.held_repos().await?;
                let held: BTreeSet<RepoId> = rows.into_iter().map(|row| row.repo).collect();
                judge_restore(repo, &held)?;
                None
            }
            Call::CreateRole(RoleInfo { id, .. }) => {
                let exists = self.has_role(id).await?;
                exists.then_some("there is such a role; `editrole` changes it")
            }
            Call::EditRole(RoleInfo { id, .. }) | Call::DeleteRole(id) => {
                let exists = self.has_role(id).await?;
                (!exists).then_some("there is no such role")
            }
            Call::AssignRole(_, id) => {
                let exists = id.is_built_in() || self.has_role(id).await?;
                (!exists).then_some("there is no such role; `createrole` creates it")
            }
            Call::Remove(_, subject) => {
                let fixed = fixed_entries(subject.list(), self.0.parts.policy.settings());
                if fixed.contains(subject) {
                    return Err(CallRefusal::InSettings.into());
                }
                None
            }
            Call::Add(_, PolicySubject::BannedEvent(id), _) => {
                self.check_event(caller, facts, *id).await?;
                None
            }
            _ => None,
        };
        match problem {
            Some(problem) => Err(CallError::Failed(problem.to_owned())),
            None => Ok(()),
        }
    }

    /// Checks whether an event may be banned. Without its announcement or state a repository would be none, and its git
    /// data be removed for good. What is hidden cannot be read, so it might be such an event.
    async fn check_event(
        &self,
        caller: &Caller,
        facts: &RightsFacts,
        id: EventId,
    ) -> Result<(), CallError> {
        let parts = &self.0.parts;
        let found = vec![Filter::new().id(id)];
        let mut found = parts.store.query(found, parts.clock.now().unix);
        while let Some(chunk) = found.try_next().await? {
            for stored in chunk {
                let event = stored.event()?;
                judge_target(caller, &event.pubkey, facts)?;
                if [kinds::ANNOUNCEMENT, kinds::STATE].contains(&event.kind) {
                    return Err(CallRefusal::MakesRepository.into());
                }
            }
        }
        let is_banned = parts.policy.live().now().bans.events.contains(&id);
        match !is_banned && parts.store.hidden(vec![id]).await?.contains(&id) {
            true => Err(CallRefusal::Hidden.into()),
            false => Ok(()),
        }
    }

    async fn has_role(&self, id: &RoleId) -> Result<bool, CallError> {
        let roles = self.0.parts.store.roles().await?;
        Ok(roles.iter().any(|role| role.id == id.as_str()))
    }
}

/// Returns the changes of the database that a call is.
fn actions_of(call: &Call, now: Timestamp) -> Vec<PolicyAction> {
    let action = match call.clone() {
        Call::Add(_, subject, reason) => PolicyAction::Add {
            subject,
            reason: reason.unwrap_or_default(),
        },
        Call::Remove(_, subject) => PolicyAction::Remove(subject),
        Call::HoldRepo(repo, reason) => PolicyAction::Hold {
            repo,
            reason: reason.unwrap_or_default(),
            until: now + KEEP_HIDDEN,
        },
        Call::RestoreRepo(repo) => PolicyAction::Restore(repo),
        Call::CreateRole(role) | Call::EditRole(role) => PolicyAction::PutRole(stored_role(role)),
        Call::DeleteRole(id) => PolicyAction::RemoveRole(id.to_string()),
        Call::AssignRole(key, id) => PolicyAction::Assign(key, id.to_string()),
        Call::UnassignRole(key, id) => PolicyAction::Unassign(key, id.to_string()),
        Call::ChangeText(text, value) => {
            let value = Some(value).filter(|value| !value.is_empty());
            PolicyAction::Override(text.setting().to_owned(), value)
        }
        Call::SetQuota(subject, bytes) => PolicyAction::SetQuota(subject, bytes),
        _ => return Vec::new(),
    };
    vec![action]
}

fn stored_role(role: RoleInfo) -> Role {
    Role {
        id: role.id.to_string(),
        label: role.label,
        description: role.description,
        color: role.color,
        position: role.order,
    }
}

fn audit_entry(origin: CallOrigin, request: &Request, refusal: Option<&CallRefusal>) -> AuditEntry {
    AuditEntry {
        actor: origin.actor().to_string(),
        via: origin.via().to_owned(),
        auth: origin.auth().map(|auth| auth.id),
        method: request.method.clone(),
        params: serde_json::to_string(&request.params).unwrap_or_default(),
        error: refusal.map(ToString::to_string),
    }
}
