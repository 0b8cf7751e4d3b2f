//! Administration by key (NIP-86) and by the socket of the machine: both make the same calls, with the same rules.
//!
//! `rules` says who may call what. [`Management`] proves the caller, carries out what concerns the
//! policy, roles and texts on the [`PolicyStore`](crate::store::policy::PolicyStore), and passes the rest to the [`ManagedServer`].

mod changes;
mod http;
mod preview;
mod reads;
pub mod rules;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use crate::management::rules::{
    Actor, Call, CallProof, CallRefusal, Caller, Rank, RelayText, RepoQuery, Request, RightsFacts,
    SessionKey, authorize,
};
use futures_util::future::BoxFuture;
use grasp_core::http_auth::HttpAuth;
use grasp_core::policy::PolicySubject;
use grasp_core::quota::QuotaSubject;
use grasp_core::{ParseError, RepoId, ServiceIdentity};
use nostr::key::PublicKey;
use serde_json::Value;

pub use self::http::ManagementRoute;
use self::http::Rates;
use crate::clock::Clock;
use crate::nostr::InfoOwner;
use crate::policy::PolicyOwner;
use crate::server::NodeKey;
use crate::store::policy::UsedAuth;
use crate::store::{Store, StoreError};

/// What administration needs of the server beside its policy.
pub trait ManagedServer: Send + Sync + 'static {
    /// Returns whether this process changes anything; a reader says whom to ask instead.
    fn may_change(&self) -> Result<(), String>;

    /// Returns the status.
    fn status(&self) -> BoxFuture<'_, Result<Value, String>>;

    /// Returns a page of repositories.
    fn repositories(&self, query: RepoQuery) -> BoxFuture<'_, Result<Value, String>>;

    /// Returns the git data of all owners, or of one with its repositories.
    fn usage(&self, owner: Option<PublicKey>) -> BoxFuture<'_, Result<Value, String>>;

    /// Puts a quota into force; returns what the owner or repository has and may have then.
    fn set_quota(
        &self,
        subject: QuotaSubject,
        bytes: Option<u64>,
    ) -> BoxFuture<'_, Result<Value, String>>;

    /// Salvages damaged packs of a repository, and returns whether objects are missing still.
    fn repair(&self, repo: RepoId) -> BoxFuture<'_, Result<Value, String>>;

    /// Returns how much a new entry of the policy, or a hold, would take out of service.
    fn footprint(&self, target: ChangeTarget) -> BoxFuture<'_, Result<Footprint, String>>;
}

/// What a change is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeTarget {
    /// An entry of the policy.
    Entry(PolicySubject),
    /// A repository.
    Repository(RepoId),
}

/// How much a change takes out of service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it all")]
pub struct Footprint {
    pub repositories: u64,
    pub events: u64,
    /// Bytes of git data.
    pub bytes: u64,
}

/// The parts that administration is made of.
pub struct ManagementParts {
    /// The address of the server.
    pub service: ServiceIdentity,
    /// What rights follow from, without the roles, which are in the database.
    pub facts: RightsFacts,
    /// The database.
    pub store: Arc<dyn Store>,
    /// The policy.
    pub policy: Arc<PolicyOwner>,
    /// The texts of NIP-11.
    pub info: Arc<InfoOwner>,
    /// The server.
    pub server: Arc<dyn ManagedServer>,
    /// The key of the nodes of the server, if it has several.
    pub node_key: Option<NodeKey>,
    /// The source of time.
    pub clock: Clock,
}

/// Administration of a server. Cheap to clone.
#[derive(Clone)]
pub struct Management(Arc<SharedManagement>);

struct SharedManagement {
    parts: ManagementParts,
    sessions: SessionKey,
    rates: Rates,
}

/// Where a call came from.
#[derive(Clone, Copy, Debug)]
enum CallOrigin {
    /// A request that its key signed.
    Signed(HttpAuth),
    /// A request of a session.
    Session(PublicKey),
    /// A user of this machine.
    Local(u32),
}

impl CallOrigin {
    const fn actor(&self) -> Actor {
        match self {
            Self::Signed(auth) => Actor::Key(auth.author),
            Self::Session(key) => Actor::Key(*key),
            Self::Local(user) => Actor::Local(*user),
        }
    }

    const fn proof(&self) -> CallProof {
        match self {
            Self::Signed(_) => CallProof::Signed,
            Self::Session(_) => CallProof::Session,
            Self::Local(_) => CallProof::Local,
        }
    }

    /// Returns its name in the audit log.
    const fn via(&self) -> &'static str {
        match self {
            Self::Signed(_) | Self::Session(_) => "nip86",
            Self::Local(_) => "socket",
        }
    }

    const fn auth(&self) -> Option<HttpAuth> {
        match self {
            Self::Signed(auth) => Some(*auth),
            Self::Session(_) | Self::Local(_) => None,
        }
    }
}

/// The reason for which a call failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    #[error(transparent)]
    Invalid(#[from] ParseError),
    #[error(transparent)]
    Refused(#[from] CallRefusal),
    #[error("this authorization was used before; sign the call again")]
    Replayed,
    #[error("{0}")]
    Failed(String),
    #[error("the database failed; the log of the server says why")]
    Database(#[from] StoreError),
}

impl CallError {
    /// Returns the text for the caller; the log gets what is not for callers.
    fn reported(&self) -> String {
        if let Self::Database(source) = self {
            let source = format!("{source:?}");
            tracing::error!(error = source, "administration: the database failed");
        }
        self.to_string()
    }
}

impl Management {
    /// Creates the administration of a server.
    pub fn new(parts: ManagementParts) -> io::Result<Self> {
        let key = match &parts.node_key {
            // A session is valid at every node.
            Some(key) => key.derive("session"),
            None => {
                let mut key = [0; 32];
                getrandom::fill(&mut key)
                    .map_err(|_| io::Error::other("no random numbers available"))?;
                key
            }
        };
        Ok(Self(Arc::new(SharedManagement {
            parts,
            sessions: SessionKey::new(key),
            rates: Rates::default(),
        })))
    }

    /// Puts into force what the database says of names and roles, now and after each change of it by any node.
    pub async fn follow(self) {
        let mut policy = self.0.parts.policy.live();
        loop {
            if let Err(error) = self.load_info().await {
                tracing::warn!(%error, "could not read the texts of NIP-11 from the database");
            }
            policy.next().await;
        }
    }

    /// Makes a call for a user of this machine.
    pub async fn call_locally(&self, user: u32, request: &Request) -> Result<Value, String> {
        let called = self.call(CallOrigin::Local(user), request).await;
        called.map_err(|error| error.reported())
    }

    /// Makes a call. A change, and a refused one of a key with rights, is logged.
    async fn call(&self, origin: CallOrigin, request: &Request) -> Result<Value, CallError> {
        let facts = self.facts().await?;
        let caller = Caller::new(origin.actor(), origin.proof(), &facts);
        let call = request.call()?;
        let method = call.method();
        let authorized = match authorize(&caller, call, &facts) {
            Ok(authorized) => authorized,
            Err(refusal) => {
                // A key costs nothing, so calls of keys without rights would fill the log.
                let is_writer = self.0.parts.server.may_change().is_ok();
                if is_writer && method.info().is_change && caller.rank > Rank::Anyone {
                    self.log_refused(origin, request, &refusal).await?;
                }
                return Err(refusal.into());
            }
        };
        match method.info().is_change {
            true => {
                let rights = (&caller, &facts);
                self.change(origin, request, rights, authorized).await
            }
            false => {
                if *authorized.call() == Call::OpenSession {
                    self.use_up(origin).await?;
                }
                self.read(&caller, &facts, authorized).await
            }
        }
    }

    /// Uses up the authorization of a call that changes nothing, which may not be repeated nevertheless.
    async fn use_up(&self, origin: CallOrigin) -> Result<(), CallError> {
        let parts = &self.0.parts;
        let Some(auth) = origin.auth() else {
            return Ok(());
        };
        parts.server.may_change().map_err(CallError::Failed)?;
        let used = UsedAuth {
            id: auth.id,
            until: auth.expires_at,
        };
        match parts.store.see_auth(used, parts.clock.now().unix).await? {
            true => Ok(()),
            false => Err(CallError::Replayed),
        }
    }

    /// Returns what rights follow from, with the roles.
    async fn facts(&self) -> Result<RightsFacts, StoreError> {
        let parts = &self.0.parts;
        let mut facts = parts.facts.clone();
        facts.banned = parts.policy.live().now().bans.authors.clone();
        for member in parts.store.role_members().await? {
            // Roles were checked when they were given.
            if let Ok(role) = member.role.parse() {
                facts.roles.entry(member.pubkey).or_default().insert(role);
            }
        }
        Ok(facts)
    }

    /// Puts the texts of NIP-11 into force that the database has.
    async fn load_info(&self) -> Result<(), StoreError> {
        let parts = &self.0.parts;
        let overrides = parts.store.overrides().await?;
        let mut texts = BTreeMap::new();
        for text in RelayText::ALL {
            let given = overrides.get(text.setting());
            // A setting that was fixed since then wins.
            if let Some(given) = given.filter(|_| !parts.facts.fixed.contains_key(&text)) {
                texts.insert(text, given.value.clone());
            }
        }
        let facts = self.facts().await?;
        parts.info.replace(&texts, facts.has_managers());
        Ok(())
    }
}
