//! What operators decide while the server runs, in the database: entries of the policy, held repositories, roles, texts that
//! replace settings, and the log of all this.

mod rows;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use grasp_core::RepoId;
use grasp_core::admission::Policy;
use grasp_core::policy::{HiddenCause, PolicyList, PolicySubject};
use grasp_core::quota::QuotaSubject;
use nostr::event::{Event, EventId};
use nostr::key::PublicKey;
use nostr::types::Timestamp;

pub(crate) use self::rows::{PolicyRows, of_repo};
use super::StoreFuture;

/// The number of newest rows of the log that are kept.
pub const MAX_AUDIT_ROWS: u64 = 100_000;

/// What operators decide, as every node reads it and only the writer changes it.
pub trait PolicyStore: Send + Sync + 'static {
    /// Carries out changes in one transaction, with their row in the log and the authorization that they use up. The
    /// [version](Self::policy_version) rises unless nothing was to be changed.
    ///
    /// Nothing is changed if the authorization was used before.
    fn change_policy(&self, change: PolicyChange) -> StoreFuture<'_, PolicyChanged>;

    /// Uses up an authorization, and forgets those of earlier than now; returns whether it had not been used before.
    /// For a call that changes nothing else.
    fn see_auth(&self, auth: UsedAuth, now: Timestamp) -> StoreFuture<'_, bool>;

    /// Returns the number that every change of the policy raises.
    fn policy_version(&self) -> StoreFuture<'_, u64>;

    /// Returns the entries of a list, or of all lists, by list and text.
    fn policy_entries(&self, list: Option<PolicyList>) -> StoreFuture<'_, Vec<PolicyEntry>>;

    /// Returns the repositories that operators hold, by owner and name.
    fn held_repos(&self) -> StoreFuture<'_, Vec<HeldRepo>>;

    /// Returns the roles by position, then id.
    fn roles(&self) -> StoreFuture<'_, Vec<Role>>;

    /// Returns who has which role, by key and role.
    fn role_members(&self) -> StoreFuture<'_, Vec<RoleMember>>;

    /// Returns the texts that replace settings, by the name of the setting.
    fn overrides(&self) -> StoreFuture<'_, BTreeMap<String, Override>>;

    /// Returns rows of the log, newest first.
    fn audit(&self, page: AuditPage) -> StoreFuture<'_, Vec<AuditRow>>;

    /// Takes stored events out of service for a cause, for one step. They can be restored until a time.
    fn hide(
        &self,
        cause: HiddenCause,
        until: Timestamp,
        now: Timestamp,
    ) -> StoreFuture<'_, HideStep>;

    /// Brings hidden events of a cause that no longer holds back, for one step. Those that this policy hides stay hidden.
    fn restore(
        &self,
        cause: HiddenCause,
        policy: Arc<Policy>,
        now: Timestamp,
    ) -> StoreFuture<'_, RestoreStep>;

    /// Returns the causes for which events may be hidden.
    fn hidden_causes(&self) -> StoreFuture<'_, BTreeSet<HiddenCause>>;

    /// Returns the repositories that were announced and are not any more, with the ids of their last announcements.
    fn unannounced(&self) -> StoreFuture<'_, BTreeMap<RepoId, EventId>>;

    /// Takes events out of service because a repository is [not announced](Self::unannounced), for one step; none if it is
    /// announced. They can be restored until a time.
    fn hide_dependents(
        &self,
        repo: RepoId,
        events: Vec<EventId>,
        until: Timestamp,
        now: Timestamp,
    ) -> StoreFuture<'_, HideStep>;

    /// Forgets a repository that is [not announced](Self::unannounced), unless events are hidden because of that.
    fn forget_unannounced(&self, repo: RepoId) -> StoreFuture<'_, ()>;

    /// Returns which of these events are hidden.
    fn hidden(&self, ids: Vec<EventId>) -> StoreFuture<'_, BTreeSet<EventId>>;
}

/// Changes that are made together, or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyChange {
    /// The time of the change.
    pub at: Timestamp,
    /// The changes; none for a call that was refused and is only logged.
    pub actions: Vec<PolicyAction>,
    /// The row in the log. Its actor is that of the changes.
    pub audit: AuditEntry,
    /// The time until which the id of the authorization is remembered. Calls of local users need none.
    pub auth_until: Option<Timestamp>,
}

/// One change of what operators decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyAction {
    /// Adds an entry, or replaces the reason of the one that is there.
    Add {
        /// The entry.
        subject: PolicySubject,
        /// The reason, for people.
        reason: String,
    },
    /// Removes an entry.
    Remove(PolicySubject),
    /// Takes a repository out of service, with its git data kept as it is.
    Hold {
        /// The repository.
        repo: RepoId,
        /// The reason, for people.
        reason: String,
        /// The time until which it can be restored.
        until: Timestamp,
    },
    /// Puts a held repository back into service.
    Restore(RepoId),
    /// Creates or replaces a role.
    PutRole(Role),
    /// Removes a role, also from its members.
    RemoveRole(String),
    /// Gives a key a role.
    Assign(PublicKey, String),
    /// Takes a role from a key.
    Unassign(PublicKey, String),
    /// Replaces a setting by a text, or no longer.
    Override(String, Option<String>),
    /// Sets a quota that replaces the setting, or no longer.
    SetQuota(QuotaSubject, Option<u64>),
}

/// The outcome of [`PolicyStore::change_policy`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum PolicyChanged {
    /// All changes are durable.
    Done,
    /// The authorization was used before; nothing was changed or logged.
    Replayed,
}

/// The outcome of one step of [`PolicyStore::hide`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HideStep {
    /// Nothing is left to hide.
    pub is_done: bool,
    /// The repositories of which events were hidden.
    pub affected: BTreeSet<RepoId>,
    /// The events that were hidden.
    pub removed: BTreeSet<EventId>,
}

/// The outcome of one step of [`PolicyStore::restore`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestoreStep {
    /// No event of the cause is hidden any more.
    pub is_done: bool,
    /// The events that are served again.
    pub restored: Vec<Arc<Event>>,
    /// The repositories of which events were restored.
    pub affected: BTreeSet<RepoId>,
    /// The events that the restored ones removed, being requests of their authors.
    pub removed: BTreeSet<EventId>,
}

/// An authorization that is used once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsedAuth {
    /// The id of the authorization event.
    pub id: EventId,
    /// The time until which it is remembered: at least as long as it is valid.
    pub until: Timestamp,
}

/// An entry of the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it all")]
pub struct PolicyEntry {
    pub subject: PolicySubject,
    pub reason: String,
    /// Who added it, as the log names it.
    pub actor: String,
    pub at: Timestamp,
}

/// A repository that is kept out of service by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it all")]
pub struct HeldRepo {
    pub repo: RepoId,
    pub reason: String,
    /// Who holds it, as the log names it.
    pub actor: String,
    pub since: Timestamp,
    /// The time until which it can be restored.
    pub until: Timestamp,
}

/// A role of NIP-86. Those named in the rights have rights, the others are labels.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it all")]
pub struct Role {
    pub id: String,
    pub label: String,
    pub description: String,
    pub color: String,
    /// The place among the roles.
    pub position: i64,
}

/// A key that has a role.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it all")]
pub struct RoleMember {
    pub pubkey: PublicKey,
    pub role: String,
    /// Who gave it, as the log names it.
    pub actor: String,
    pub at: Timestamp,
}

/// A text that replaces a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it all")]
pub struct Override {
    pub value: String,
    /// The number of times that it was set.
    pub revision: u64,
    pub actor: String,
    pub at: Timestamp,
}

/// What the log says of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it all")]
pub struct AuditEntry {
    /// A key in hex, or `local:<uid>`.
    pub actor: String,
    /// The way that the call came, such as `nip86` or `socket`.
    pub via: String,
    /// The id of the authorization.
    pub auth: Option<EventId>,
    pub method: String,
    /// The parameters as JSON.
    pub params: String,
    /// The reason for which it was refused.
    pub error: Option<String>,
}

/// A row of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it all")]
pub struct AuditRow {
    pub seq: u64,
    pub at: Timestamp,
    pub entry: AuditEntry,
}

/// The rows of the log that are wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditPage {
    /// Rows before this one, that is older ones; all if there is none.
    pub before: Option<u64>,
    /// Rows of this actor.
    pub actor: Option<String>,
    /// Rows of this method.
    pub method: Option<String>,
    /// The number of rows at most.
    pub limit: usize,
}
