//! The commands that change nothing, and the one that makes any call.

use anyhow::{Context as _, Result};
use clap::Subcommand;
use grasp_core::RepoId;
use grasp_relay::instance::operations::parse_repository;
use grasp_relay::management::rules::{AuditQuery, Method, RepoQuery, RepoState, Request};
use nostr::key::PublicKey;
use serde_json::{Value, json};

use super::call;
use crate::cli::parse_owner;

/// The lists of bans.
const BANS: [Method; 3] = [
    Method::ListBannedPubkeys,
    Method::ListBannedRepos,
    Method::ListBannedEvents,
];

/// The lists of what is allowed.
const ALLOWED: [Method; 2] = [Method::ListAllowedPubkeys, Method::ListAllowedRepos];

#[derive(Debug, Subcommand)]
pub(crate) enum Read {
    /// Lists all bans.
    Bans,
    /// Lists what is allowed.
    Allowed,
    /// Lists held repositories.
    Held,
    /// Lists blocked networks.
    Blocked,
    /// Lists repositories by the bytes of their git data.
    Repos {
        /// A part of the name or of the owner's npub.
        #[arg(long, value_name = "TEXT")]
        query: Option<String>,
        /// The owner.
        #[arg(long, value_name = "NPUB", value_parser = parse_owner)]
        owner: Option<PublicKey>,
        /// `served`, `waiting`, `held` or `damaged`.
        #[arg(long, value_name = "STATE", value_parser = parse_state)]
        state: Option<RepoState>,
        /// The last repository of the page before.
        #[arg(long, value_name = "REPOSITORY", value_parser = parse_repository)]
        after: Option<RepoId>,
    },
    /// Shows how much git data owners have, and may have.
    Usage {
        /// The owner whose repositories to show. Without one: all owners.
        #[arg(value_name = "NPUB", value_parser = parse_owner)]
        owner: Option<PublicKey>,
    },
    /// Lists roles with their members.
    Roles,
    /// Lists changes and refused calls, the newest first.
    Audit {
        /// The last row of the page before.
        #[arg(long, value_name = "NUMBER")]
        after: Option<u64>,
        /// The method.
        #[arg(long, value_name = "METHOD")]
        method: Option<String>,
        /// The number of rows at most.
        #[arg(long, value_name = "NUMBER", default_value_t = 50)]
        limit: usize,
    },
    /// Shows the rights of the caller.
    Whoami,
    /// Says what a call would do, without doing it.
    Preview {
        /// The method of NIP-86.
        method: String,
        /// Its parameters, as a JSON list.
        #[arg(default_value = "[]")]
        params: String,
    },
    /// Makes any call of NIP-86.
    Call {
        /// The method.
        method: String,
        /// Its parameters, as a JSON list.
        #[arg(default_value = "[]")]
        params: String,
    },
}

impl Read {
    /// Returns the calls that the command is.
    pub(super) fn calls(&self) -> Result<Vec<Request>> {
        let one = match self {
            Self::Bans => return Ok(BANS.map(|method| call(method, json!([]))).to_vec()),
            Self::Allowed => return Ok(ALLOWED.map(|method| call(method, json!([]))).to_vec()),
            Self::Held => call(Method::ListHeld, json!([])),
            Self::Blocked => call(Method::ListBlockedIps, json!([])),
            Self::Roles => call(Method::ListRoles, json!([])),
            Self::Whoami => call(Method::WhoAmI, json!([])),
            Self::Usage { owner } => call(Method::GetUsage, json!([owner])),
            Self::Repos {
                query,
                owner,
                state,
                after,
            } => {
                let query = RepoQuery {
                    query: query.clone(),
                    owner: *owner,
                    state: *state,
                    after: after.clone(),
                    limit: None,
                };
                call(Method::ListRepos, json!([query]))
            }
            Self::Audit {
                after,
                method,
                limit,
            } => {
                let query = AuditQuery {
                    after: *after,
                    method: method.clone(),
                    limit: Some(*limit),
                    actor: None,
                };
                call(Method::ListAudit, json!([query]))
            }
            Self::Preview { method, params } => {
                call(Method::Preview, json!([method, parse_params(params)?]))
            }
            Self::Call { method, params } => Request {
                method: method.clone(),
                params: parse_params(params)?,
            },
        };
        Ok(vec![one])
    }
}

fn parse_state(text: &str) -> Result<RepoState, String> {
    serde_json::from_value(json!(text))
        .map_err(|_| "expected served, waiting, held or damaged".into())
}

fn parse_params(text: &str) -> Result<Vec<Value>> {
    serde_json::from_str(text).context("the parameters are not a JSON list")
}
