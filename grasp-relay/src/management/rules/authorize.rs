//! Who may call what, and what is refused to everybody.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use ipnet::IpNet;
use nostr::event::Kind;
use nostr::key::PublicKey;

use super::call::{Call, RelayText};
use super::roles::{Rank, RoleId};
use grasp_core::RepoId;
use grasp_core::kinds;
use grasp_core::policy::PolicySubject;

/// The party that calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Actor {
    /// A key.
    Key(PublicKey),
    /// A user of the machine, by number, who can reach the socket of the server.
    Local(u32),
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(key) => f.write_str(&key.to_hex()),
            Self::Local(user) => write!(f, "local:{user}"),
        }
    }
}

/// What shows that a call is the actor's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallProof {
    /// A signature of this very call.
    Signed,
    /// A token of a session, which authorizes reads.
    Session,
    /// The operating system says so.
    Local,
}

/// A party with its rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The party.
    pub actor: Actor,
    /// What shows it.
    pub proof: CallProof,
    /// Its rights.
    pub rank: Rank,
}

impl Caller {
    /// Returns a party with the rights that it has at this server.
    pub fn new(actor: Actor, proof: CallProof, facts: &RightsFacts) -> Self {
        let rank = match actor {
            Actor::Key(key) => facts.rank(&key),
            Actor::Local(_) => Rank::Operator,
        };
        Self { actor, proof, rank }
    }

    fn key(&self) -> Option<PublicKey> {
        match self.actor {
            Actor::Key(key) => Some(key),
            Actor::Local(_) => None,
        }
    }
}

/// What rights follow from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RightsFacts {
    /// The operator of the settings.
    pub operator: Option<PublicKey>,
    /// The key that the server signs with.
    pub service_key: PublicKey,
    /// The roles of keys.
    pub roles: BTreeMap<PublicKey, BTreeSet<RoleId>>,
    /// Banned authors, who have no role as long as they are.
    pub banned: BTreeSet<PublicKey>,
    /// The proxies whose `X-Forwarded-For` is trusted.
    pub trusted_proxies: Vec<IpNet>,
    /// Texts that flags, variables or the file set, and where.
    pub fixed: BTreeMap<RelayText, String>,
}

impl RightsFacts {
    /// Returns those of a server without operator, roles, proxies and settings.
    pub const fn of_service(service_key: PublicKey) -> Self {
        Self {
            operator: None,
            service_key,
            roles: BTreeMap::new(),
            banned: BTreeSet::new(),
            trusted_proxies: Vec::new(),
            fixed: BTreeMap::new(),
        }
    }

    /// Returns the rights of a key.
    pub fn rank(&self, key: &PublicKey) -> Rank {
        if self.operator == Some(*key) {
            return Rank::Operator;
        }
        if self.banned.contains(key) {
            return Rank::Anyone;
        }
        let ranks = self.roles.get(key).into_iter().flatten().map(Rank::of_role);
        ranks.max().unwrap_or_default()
    }

    /// Returns whether any key has more rights than every other, so that it is worthwhile to offer the methods.
    pub fn has_managers(&self) -> bool {
        self.operator.is_some() || self.roles.keys().any(|key| self.rank(key) > Rank::Anyone)
    }
}

/// A call that its caller may make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorizedCall(Call);

impl AuthorizedCall {
    /// Returns the call, narrowed to what the caller may see.
    pub const fn call(&self) -> &Call {
        &self.0
    }
}

/// The reason for which a call is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the texts say it")]
#[non_exhaustive]
pub enum CallRefusal {
    #[error("this key may not call this method")]
    Right,
    #[error("this call has to be signed by itself; a session authorizes reads only")]
    Unsigned,
    #[error("only the operator gives and takes `admin`")]
    GrantsAdmin,
    #[error("the operator cannot be banned or held")]
    Operator,
    #[error("the server itself cannot be banned or held")]
    Service,
    #[error("a key cannot ban itself")]
    Oneself,
    #[error("a key cannot be banned by one with fewer rights")]
    HigherRank,
    #[error("loopback cannot be blocked: the server and its proxy use it")]
    Loopback,
    #[error("the network has a trusted proxy (trusted_proxies), through which all clients come")]
    Proxy,
    #[error("kind {0} cannot be refused: repositories, deletions or requests to vanish need it")]
    NeededKind(u16),
    #[error("{} is set in {place}; change it there", .text.setting())]
    Fixed { text: RelayText, place: String },
    #[error("the role `{0}` cannot be created, changed or deleted: its rights are built in")]
    BuiltInRole(RoleId),
    #[error("`operator` is a setting, not a role that is given")]
    OperatorRole,
    #[error("it is not held here; what its author deleted, only its author brings back")]
    NotHeld,
    #[error("it is set in the settings; change it there")]
    InSettings,
    #[error("this event makes a repository; ban or hold the repository instead: grasp.banrepo")]
    MakesRepository,
    #[error("a ban or hold of its author or repository hides this event already")]
    Hidden,
}

impl CallRefusal {
    /// Returns whether the caller lacks a right, so that another one might do it.
    pub const fn is_about_rights(&self) -> bool {
        matches!(self, Self::Right | Self::GrantsAdmin | Self::HigherRank)
    }
}

/// Judges whether a caller may make a call. What only shows what is the caller's own is narrowed to that.
pub fn authorize(
    caller: &Caller,
    call: Call,
    facts: &RightsFacts,
) -> Result<AuthorizedCall, CallRefusal> {
    let info = call.method().info();
    if caller.rank < info.rank {
        return Err(CallRefusal::Right);
    }
    let needs_signature = info.is_change || call == Call::OpenSession;
    if needs_signature && caller.proof == CallProof::Session {
        return Err(CallRefusal::Unsigned);
    }
    let call = narrow(caller, call)?;
    judge_effect(caller, &call, facts)?;
    Ok(AuthorizedCall(call))
}

/// Narrows reads of callers without a role to what is their own.
fn narrow(caller: &Caller, call: Call) -> Result<Call, CallRefusal> {
    if caller.rank >= Rank::Observer {
        return Ok(call);
    }
    let Some(own) = caller.key() else {
        return Err(CallRefusal::Right);
    };
    let is_own = |key: Option<PublicKey>| key.is_none_or(|key| key == own);
    match call {
        Call::GetUsage(owner) if is_own(owner) => Ok(Call::GetUsage(Some(own))),
        Call::ListRepos(mut query) if is_own(query.owner) => {
            query.owner = Some(own);
            Ok(Call::ListRepos(query))
        }
        Call::GetUsage(_) | Call::ListRepos(_) => Err(CallRefusal::Right),
        other => Ok(other),
    }
}

/// Judges what a call would do, whoever calls.
fn judge_effect(caller: &Caller, call: &Call, facts: &RightsFacts) -> Result<(), CallRefusal> {
    match call {
        Call::Preview(inner) => {
            let signed = Caller {
                proof: CallProof::Signed,
                ..*caller
            };
            authorize(&signed, (**inner).clone(), facts).map(|_| ())
        }
        Call::Add(_, subject, _) => judge_entry(caller, subject, facts),
        Call::HoldRepo(repo, _) => match caller.rank {
            Rank::Operator => Ok(()),
            _ => judge_target(caller, &repo.owner, facts),
        },
        Call::CreateRole(role) | Call::EditRole(role) => judge_role(&role.id),
        Call::DeleteRole(role) => judge_role(role),
        Call::AssignRole(_, role) | Call::UnassignRole(_, role) => {
            if role.as_str() == "operator" {
                return Err(CallRefusal::OperatorRole);
            }
            match Rank::of_role(role) == Rank::Admin && caller.rank < Rank::Operator {
                true => Err(CallRefusal::GrantsAdmin),
                false => Ok(()),
            }
        }
        Call::ChangeText(text, _) => match facts.fixed.get(text) {
            Some(place) => Err(CallRefusal::Fixed {
                text: *text,
                place: place.clone(),
            }),
            None => Ok(()),
        },
        _ => Ok(()),
    }
}

fn judge_role(role: &RoleId) -> Result<(), CallRefusal> {
    match role.is_built_in() {
        true => Err(CallRefusal::BuiltInRole(role.clone())),
        false => Ok(()),
    }
}

/// Judges a new entry of the policy.
fn judge_entry(
    caller: &Caller,
    subject: &PolicySubject,
    facts: &RightsFacts,
) -> Result<(), CallRefusal> {
    match subject {
        PolicySubject::BannedAuthor(key) => judge_banned(caller, key, facts),
        PolicySubject::BannedRepo(repo) => judge_banned(caller, &repo.owner, facts),
        PolicySubject::BlockedNetwork(network) => judge_network(network, facts),
        PolicySubject::RefusedKind(kind) => match kinds::NEVER_REFUSED_KINDS.contains(kind) {
            true => Err(CallRefusal::NeededKind(kind.as_u16())),
            false => Ok(()),
        },
        PolicySubject::BannedName(_)
        | PolicySubject::BannedEvent(_)
        | PolicySubject::AllowedAuthor(_)
        | PolicySubject::AllowedRepo(_)
        | PolicySubject::AllowedName(_) => Ok(()),
    }
}

fn judge_banned(caller: &Caller, key: &PublicKey, facts: &RightsFacts) -> Result<(), CallRefusal> {
    judge_target(caller, key, facts)?;
    match caller.key() == Some(*key) {
        true => Err(CallRefusal::Oneself),
        false => Ok(()),
    }
}

/// Judges whether what belongs to a key may be taken out of service.
pub fn judge_target(
    caller: &Caller,
    key: &PublicKey,
    facts: &RightsFacts,
) -> Result<(), CallRefusal> {
    if facts.operator == Some(*key) {
        Err(CallRefusal::Operator)
    } else if facts.service_key == *key {
        Err(CallRefusal::Service)
    } else if facts.rank(key) > caller.rank {
        Err(CallRefusal::HigherRank)
    } else {
        Ok(())
    }
}

/// Judges whether connections from a network may be closed.
fn judge_network(network: &IpNet, facts: &RightsFacts) -> Result<(), CallRefusal> {
    const LOOPBACK: [&str; 3] = ["127.0.0.0/8", "::1/128", "::ffff:127.0.0.0/104"];
    let overlaps = |other: &IpNet| network.contains(other) || other.contains(network);
    let mut loopback = LOOPBACK.iter().filter_map(|text| text.parse().ok());
    if loopback.any(|other| overlaps(&other)) {
        return Err(CallRefusal::Loopback);
    }
    match facts.trusted_proxies.iter().any(overlaps) {
        true => Err(CallRefusal::Proxy),
        false => Ok(()),
    }
}

/// Returns the kinds that events about git have and that are not among the refused ones.
pub fn allowed_kinds<'a>(refused: impl IntoIterator<Item = &'a Kind>) -> Vec<u16> {
    let refused: BTreeSet<u16> = refused.into_iter().map(|kind| kind.as_u16()).collect();
    let mut known: BTreeSet<u16> = BTreeSet::new();
    let lists = [
        kinds::COMMON_REPO_KINDS.as_slice(),
        &kinds::UNCONDITIONAL_KINDS,
        &kinds::PROFILE_KINDS,
        &[
            kinds::ANNOUNCEMENT,
            kinds::STATE,
            kinds::COVER_NOTE,
            kinds::CI_RESULT,
        ],
        &[
            kinds::SOFTWARE,
            kinds::SOFTWARE_RELEASE,
            kinds::PROJECT,
            kinds::CONTAINER,
        ],
    ];
    for list in lists {
        known.extend(list.iter().map(|kind| kind.as_u16()));
    }
    known.difference(&refused).copied().collect()
}

/// Judges whether a repository may be put back into service: only if operators hold it. Deletions of authors beat the
/// operator (NIP-09, NIP-62), and such repositories are not among those that operators hold.
pub fn judge_restore(repo: &RepoId, held: &BTreeSet<RepoId>) -> Result<(), CallRefusal> {
    match held.contains(repo) {
        true => Ok(()),
        false => Err(CallRefusal::NotHeld),
    }
}
