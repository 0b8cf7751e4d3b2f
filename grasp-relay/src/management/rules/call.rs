//! A method with its parameters, read.

use nostr::key::PublicKey;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Request;
use super::method::Method;
use super::params::Params;
use super::roles::{RoleId, RoleInfo};
use super::text::invalid;
use grasp_core::ParseError;
use grasp_core::RepoId;
use grasp_core::policy::{PolicyList, PolicySubject};
use grasp_core::quota::QuotaSubject;

/// A method with its parameters. Methods with the same kind of effect are one variant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// `supportedmethods`
    SupportedMethods,
    /// `grasp.whoami`
    WhoAmI,
    /// `grasp.session`
    OpenSession,
    /// `grasp.status`
    Status,
    /// `grasp.listrepos`
    ListRepos(RepoQuery),
    /// `grasp.getusage`: of all owners, or of one.
    GetUsage(Option<PublicKey>),
    /// `grasp.setquota`: another quota than that of the settings, or no longer.
    SetQuota(QuotaSubject, Option<u64>),
    /// `grasp.repair`
    Repair(RepoId),
    /// `grasp.preview`: what another call would do.
    Preview(Box<Self>),
    /// Lists of the policy, one after the other.
    ListEntries(Method, &'static [PolicyList]),
    /// `listallowedkinds`
    ListAllowedKinds,
    /// Adds an entry to a list of the policy.
    Add(Method, PolicySubject, Option<String>),
    /// Removes an entry from a list of the policy.
    Remove(Method, PolicySubject),
    /// `grasp.holdrepo`
    HoldRepo(RepoId, Option<String>),
    /// `grasp.restorerepo`
    RestoreRepo(RepoId),
    /// `grasp.listheld`
    ListHeld,
    /// `grasp.listroles`
    ListRoles,
    /// `createrole`
    CreateRole(RoleInfo),
    /// `editrole`
    EditRole(RoleInfo),
    /// `deleterole`
    DeleteRole(RoleId),
    /// `assignrole`
    AssignRole(PublicKey, RoleId),
    /// `unassignrole`
    UnassignRole(PublicKey, RoleId),
    /// A text of NIP-11 that replaces the setting; an empty one does so no longer.
    ChangeText(RelayText, String),
    /// `grasp.listaudit`
    ListAudit(AuditQuery),
}

/// A text of NIP-11 that can be changed while the server runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "the names say it all")]
pub enum RelayText {
    Name,
    Description,
    Icon,
}

impl RelayText {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Name, Self::Description, Self::Icon];

    /// Returns the key of the setting.
    pub const fn setting(self) -> &'static str {
        match self {
            Self::Name => "about.name",
            Self::Description => "about.description",
            Self::Icon => "about.icon",
        }
    }

    /// Returns the bytes that it may have.
    const fn max_bytes(self) -> usize {
        match self {
            Self::Name => 100,
            Self::Description => 4_000,
            Self::Icon => 500,
        }
    }
}

/// The repositories that are wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RepoQuery {
    /// A part of the name or of the owner's npub.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub query: Option<String>,
    /// The owner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<PublicKey>,
    /// The state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<RepoState>,
    /// The last repository of the page before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<RepoId>,
    /// The number of repositories at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// The state of a repository, as operators see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RepoState {
    /// It can be read.
    Served,
    /// It waits for git data.
    Waiting,
    /// It was taken out of service.
    Held,
    /// Git objects are missing.
    Damaged,
}

/// The rows of the audit log that are wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AuditQuery {
    /// The last row of the page before, which has newer ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// The key that called, in hex, or `local:UID`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub actor: Option<String>,
    /// The method.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// The number of rows at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

impl Call {
    /// Reads a call by the name of its method and its parameters by position.
    pub fn parse(name: &str, params: &[Value]) -> Result<Self, ParseError> {
        let method: Method = name.parse()?;
        let mut params = Params::new(params);
        let call = Self::read(method, &mut params)?;
        params.end()?;
        Ok(call)
    }

    fn read(method: Method, params: &mut Params<'_>) -> Result<Self, ParseError> {
        Ok(match method {
            Method::SupportedMethods => Self::SupportedMethods,
            Method::WhoAmI => Self::WhoAmI,
            Method::OpenSession => Self::OpenSession,
            Method::Status => Self::Status,
            Method::ListRepos => Self::ListRepos(params.query()?),
            Method::GetUsage => Self::GetUsage(params.optional_key()?),
            Method::SetQuota => Self::SetQuota(params.quota_subject()?, params.optional_bytes()?),
            Method::Repair => Self::Repair(params.repo()?),
            Method::Preview => Self::read_preview(params)?,
            Method::ListAllowedKinds => Self::ListAllowedKinds,
            Method::HoldRepo => Self::HoldRepo(params.repo()?, params.reason()?),
            Method::RestoreRepo => {
                let repo = params.repo()?;
                // For the audit log, which has all parameters.
                params.reason()?;
                Self::RestoreRepo(repo)
            }
            Method::ListHeld => Self::ListHeld,
            Method::ListRoles => Self::ListRoles,
            Method::CreateRole => Self::CreateRole(params.role_info()?),
            Method::EditRole => Self::EditRole(params.role_info()?),
            Method::DeleteRole => Self::DeleteRole(params.role()?),
            Method::AssignRole => Self::AssignRole(params.key()?, params.role()?),
            Method::UnassignRole => Self::UnassignRole(params.key()?, params.role()?),
            Method::ChangeRelayName => read_text(RelayText::Name, params)?,
            Method::ChangeRelayDescription => read_text(RelayText::Description, params)?,
            Method::ChangeRelayIcon => read_text(RelayText::Icon, params)?,
            Method::ListAudit => Self::ListAudit(params.query()?),
            _ => return Self::read_entry(method, params),
        })
    }

    /// Reads a call about the lists of the policy.
    fn read_entry(method: Method, params: &mut Params<'_>) -> Result<Self, ParseError> {
        let subject = match method {
            Method::BanPubkey | Method::UnbanPubkey => PolicySubject::BannedAuthor(params.key()?),
            Method::AllowPubkey | Method::UnallowPubkey => {
                PolicySubject::AllowedAuthor(params.key()?)
            }
            Method::BanEvent | Method::AllowEvent => PolicySubject::BannedEvent(params.event()?),
            Method::DisallowKind | Method::AllowKind => PolicySubject::RefusedKind(params.kind()?),
            Method::BlockIp | Method::UnblockIp => PolicySubject::BlockedNetwork(params.network()?),
            Method::BanRepo | Method::UnbanRepo => params.repo_form()?.banned(),
            Method::AllowRepo | Method::UnallowRepo => params.repo_form()?.allowed(),
            _ => return Ok(Self::ListEntries(method, lists_of(method))),
        };
        let reason = params.reason()?;
        Ok(match method {
            Method::BanPubkey
            | Method::AllowPubkey
            | Method::BanEvent
            | Method::DisallowKind
            | Method::BlockIp
            | Method::BanRepo
            | Method::AllowRepo => Self::Add(method, subject, reason),
            _ => Self::Remove(method, subject),
        })
    }

    fn read_preview(params: &mut Params<'_>) -> Result<Self, ParseError> {
        let name = params.text("the name of a method")?;
        let inner = match params.next() {
            None => Vec::new(),
            Some(Value::Array(inner)) => inner.clone(),
            Some(_) => return invalid("expected the parameters of the method as a list"),
        };
        if name == Method::Preview.name() {
            return invalid("a preview of a preview says nothing");
        }
        let request = Request {
            method: name.to_owned(),
            params: inner,
        };
        Ok(Self::Preview(Box::new(request.call()?)))
    }

    /// Returns the method.
    pub const fn method(&self) -> Method {
        match self {
            Self::SupportedMethods => Method::SupportedMethods,
            Self::WhoAmI => Method::WhoAmI,
            Self::OpenSession => Method::OpenSession,
            Self::Status => Method::Status,
            Self::ListRepos(_) => Method::ListRepos,
            Self::GetUsage(_) => Method::GetUsage,
            Self::SetQuota(..) => Method::SetQuota,
            Self::Repair(_) => Method::Repair,
            Self::Preview(_) => Method::Preview,
            Self::ListAllowedKinds => Method::ListAllowedKinds,
            Self::ListEntries(method, _) | Self::Add(method, ..) | Self::Remove(method, _) => {
                *method
            }
            Self::HoldRepo(..) => Method::HoldRepo,
            Self::RestoreRepo(_) => Method::RestoreRepo,
            Self::ListHeld => Method::ListHeld,
            Self::ListRoles => Method::ListRoles,
            Self::CreateRole(_) => Method::CreateRole,
            Self::EditRole(_) => Method::EditRole,
            Self::DeleteRole(_) => Method::DeleteRole,
            Self::AssignRole(..) => Method::AssignRole,
            Self::UnassignRole(..) => Method::UnassignRole,
            Self::ChangeText(RelayText::Name, _) => Method::ChangeRelayName,
            Self::ChangeText(RelayText::Description, _) => Method::ChangeRelayDescription,
            Self::ChangeText(RelayText::Icon, _) => Method::ChangeRelayIcon,
            Self::ListAudit(_) => Method::ListAudit,
        }
    }
}

/// Returns the lists whose entries a method lists.
const fn lists_of(method: Method) -> &'static [PolicyList] {
    match method {
        Method::ListBannedPubkeys => &[PolicyList::BannedAuthor],
        Method::ListAllowedPubkeys => &[PolicyList::AllowedAuthor],
        Method::ListBannedEvents => &[PolicyList::BannedEvent],
        Method::ListBlockedIps => &[PolicyList::BlockedNetwork],
        Method::ListBannedRepos => &[PolicyList::BannedRepo, PolicyList::BannedName],
        Method::ListAllowedRepos => &[PolicyList::AllowedRepo, PolicyList::AllowedName],
        _ => &[],
    }
}

fn read_text(text: RelayText, params: &mut Params<'_>) -> Result<Call, ParseError> {
    let value = params.line("the text", text.max_bytes())?;
    let is_url = value.starts_with("https://") || value.starts_with("http://");
    match text {
        RelayText::Icon if !value.is_empty() && !is_url => {
            invalid("expected the address of a picture, as https://…")
        }
        _ => Ok(Call::ChangeText(text, value)),
    }
}
