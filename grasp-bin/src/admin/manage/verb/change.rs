//! The commands that change something.

use clap::Subcommand;
use grasp_core::RepoId;
use grasp_core::quota::QuotaSubject;
use grasp_relay::instance::operations::parse_repository;
use grasp_relay::management::rules::{Method, Request, RoleId};
use nostr::event::EventId;
use nostr::key::PublicKey;
use serde_json::json;

use super::call;
use crate::cli::{QuotaArg, parse_owner, parse_quota};

#[derive(Debug, Subcommand)]
pub(crate) enum Change {
    /// Bans an author with all repositories, a repository, a name, or an event. What is stored goes out of service, and comes
    /// back when the ban is lifted within 90 days.
    Ban {
        /// `NPUB`, `NPUB/NAME`, `NAME` or `note1…`.
        subject: BanSubject,
        /// The reason, which the log and other operators see.
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
    /// Lifts a ban.
    Unban {
        /// `NPUB`, `NPUB/NAME`, `NAME` or `note1…`.
        subject: BanSubject,
    },
    /// Hosts repositories of an owner, a repository or a name, where only listed ones are hosted.
    Allow {
        /// `NPUB`, `NPUB/NAME` or `NAME`.
        subject: BanSubject,
        /// The reason.
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
    /// Takes an owner, a repository or a name from that list.
    Unallow {
        /// `NPUB`, `NPUB/NAME` or `NAME`.
        subject: BanSubject,
    },
    /// Takes a repository out of service without banning anybody.
    Hold {
        /// The repository, as `NPUB/NAME`.
        #[arg(value_name = "REPOSITORY", value_parser = parse_repository)]
        repository: RepoId,
        /// The reason.
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
    /// Puts a held repository back into service.
    Restore {
        /// The repository, as `NPUB/NAME`.
        #[arg(value_name = "REPOSITORY", value_parser = parse_repository)]
        repository: RepoId,
    },
    /// Refuses connections of a network, and ends those that are open.
    Block {
        /// An address, or a network as `192.0.2.0/24`.
        network: String,
        /// The reason.
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
    /// Accepts connections of a network again.
    Unblock {
        /// An address, or a network as `192.0.2.0/24`.
        network: String,
    },
    /// Gives an owner or a repository another quota of git data.
    Quota {
        /// The owner, as `NPUB`, or the repository, as `NPUB/NAME`.
        #[arg(value_name = "NPUB[/NAME]")]
        subject: QuotaSubject,
        /// The quota, as in `2GiB`; `none` for that of the settings.
        #[arg(value_name = "BYTES", value_parser = parse_quota)]
        quota: QuotaArg,
    },
    /// Gives a key a role: `observer`, `moderator`, `admin`, or a label.
    Grant {
        /// The key.
        #[arg(value_name = "NPUB", value_parser = parse_owner)]
        member: PublicKey,
        /// The role.
        role: RoleId,
    },
    /// Takes a role from a key.
    Revoke {
        /// The key.
        #[arg(value_name = "NPUB", value_parser = parse_owner)]
        member: PublicKey,
        /// The role.
        role: RoleId,
    },
    /// Changes the name that the server has in NIP-11; an empty one for that of the settings.
    Name {
        /// The name.
        text: String,
    },
    /// Changes the description that the server has in NIP-11; an empty one for that of the settings.
    Description {
        /// The description.
        text: String,
    },
}

impl Change {
    /// Returns the call that the command is.
    pub(super) fn call(&self) -> Request {
        match self {
            Self::Ban { subject, reason } => {
                with_reason(subject.ban(), &subject.text(), reason.as_deref())
            }
            Self::Unban { subject } => call(subject.unban(), json!([subject.text()])),
            Self::Allow { subject, reason } => {
                with_reason(subject.allow(), &subject.text(), reason.as_deref())
            }
            Self::Unallow { subject } => call(subject.unallow(), json!([subject.text()])),
            Self::Hold { repository, reason } => {
                with_reason(Method::HoldRepo, &repository.to_string(), reason.as_deref())
            }
            Self::Restore { repository } => call(Method::RestoreRepo, json!([repository])),
            Self::Block { network, reason } => {
                with_reason(Method::BlockIp, network, reason.as_deref())
            }
            Self::Unblock { network } => call(Method::UnblockIp, json!([network])),
            Self::Quota { subject, quota } => call(Method::SetQuota, json!([subject, quota.0])),
            Self::Grant { member, role } => {
                call(Method::AssignRole, json!([member.to_hex(), role]))
            }
            Self::Revoke { member, role } => {
                call(Method::UnassignRole, json!([member.to_hex(), role]))
            }
            Self::Name { text } => call(Method::ChangeRelayName, json!([text])),
            Self::Description { text } => call(Method::ChangeRelayDescription, json!([text])),
        }
    }
}

/// What a ban is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BanSubject {
    Key(PublicKey),
    Event(EventId),
    /// A repository or a name, as the server reads it.
    Repository(String),
}

impl std::str::FromStr for BanSubject {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.starts_with("note1") {
            let id = EventId::parse(text).map_err(|error| error.to_string())?;
            return Ok(Self::Event(id));
        }
        match text.parse() {
            Ok(QuotaSubject::Owner(key)) => Ok(Self::Key(key)),
            Ok(QuotaSubject::Repository(repo)) => Ok(Self::Repository(repo.to_string())),
            Err(_) => match text.parse::<grasp_core::Identifier>() {
                Ok(name) => Ok(Self::Repository(name.to_string())),
                Err(error) => Err(error.to_string()),
            },
        }
    }
}

impl BanSubject {
    const fn ban(&self) -> Method {
        match self {
            Self::Key(_) => Method::BanPubkey,
            Self::Event(_) => Method::BanEvent,
            Self::Repository(_) => Method::BanRepo,
        }
    }

    const fn unban(&self) -> Method {
        match self {
            Self::Key(_) => Method::UnbanPubkey,
            Self::Event(_) => Method::AllowEvent,
            Self::Repository(_) => Method::UnbanRepo,
        }
    }

    const fn allow(&self) -> Method {
        match self {
            Self::Key(_) => Method::AllowPubkey,
            Self::Event(_) => Method::AllowEvent,
            Self::Repository(_) => Method::AllowRepo,
        }
    }

    const fn unallow(&self) -> Method {
        match self {
            Self::Key(_) => Method::UnallowPubkey,
            Self::Event(_) => Method::BanEvent,
            Self::Repository(_) => Method::UnallowRepo,
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Key(key) => key.to_hex(),
            Self::Event(id) => id.to_hex(),
            Self::Repository(text) => text.clone(),
        }
    }
}

fn with_reason(method: Method, subject: &str, reason: Option<&str>) -> Request {
    match reason {
        Some(reason) => call(method, json!([subject, reason])),
        None => call(method, json!([subject])),
    }
}
