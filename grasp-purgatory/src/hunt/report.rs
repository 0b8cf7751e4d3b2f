//! What the hunt reports, and the reasons why a server gave less than it was asked for.

use std::time::Duration;

use grasp_core::limits::PeerText;
use grasp_core::outbound::Forbidden;
use grasp_core::{CloneUrl, Host, RepoId};

use super::hosts::HostClass;
use crate::purgatory;

/// The reason why a server gave less than it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError {
    /// Its address is not allowed.
    #[error("address not allowed: {0}")]
    Forbidden(#[from] Forbidden),
    /// It cannot be found or does not answer.
    #[error("unreachable: {0}")]
    Unreachable(PeerText),
    /// It asks for fewer requests.
    #[error("asked to slow down")]
    RateLimited {
        /// The pause that it asks for.
        retry_after: Option<Duration>,
    },
    /// It has no such repository, or an error of its own.
    #[error("answered with an error: {0}")]
    Answered(PeerText),
    /// It does not give what it was asked for.
    #[error("refused: {0}")]
    Refused(PeerText),
    /// Its objects are damaged or lack history.
    #[error("sent incomplete or damaged objects: {0}")]
    Broken(PeerText),
    /// It sent more bytes than allowed.
    #[error("sent more bytes than allowed")]
    TooLarge,
    /// It advertised more refs than are read.
    #[error("advertised too many refs")]
    TooManyRefs,
    /// It sent more objects than allowed.
    #[error("sent more than {limit} objects")]
    TooManyObjects {
        /// The limit.
        limit: u64,
    },
    /// It stopped sending.
    #[error("stopped sending")]
    Stalled,
    /// The request was cancelled.
    #[error("cancelled")]
    Cancelled,
    /// This server failed.
    #[error("failure on this server: {0}")]
    Internal(String),
}

impl FetchError {
    /// Returns whether the requested objects are the cause, so that a request for others may succeed.
    pub fn is_about_the_objects(&self) -> bool {
        matches!(
            self,
            Self::Refused(_) | Self::Broken(_) | Self::TooLarge | Self::TooManyObjects { .. }
        )
    }

    /// Returns whether the server has answered, so that it is known not to have the objects now.
    fn is_answer(&self) -> bool {
        match self {
            Self::Answered(_) | Self::TooManyRefs => true,
            Self::Forbidden(_) | Self::Unreachable(_) | Self::RateLimited { .. } => false,
            Self::Stalled | Self::Cancelled | Self::Internal(_) => false,
            error => error.is_about_the_objects(),
        }
    }
}

/// Something worth counting or logging.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(
    missing_docs,
    reason = "fields are documented where the name does not say it all"
)]
pub enum HuntReport {
    /// An attempt begins.
    Started {
        repo: RepoId,
        /// Number since the last reset, from 1.
        attempt: u32,
    },
    /// Everything that was wanted is here; the repository is hunted for no longer.
    Complete { repo: RepoId },
    /// Nothing was wanted when an attempt began: it came by itself, was given up, or all is well.
    Needless { repo: RepoId },
    /// A listed server has not been asked yet: the attempt waits for a permit of its host.
    WaitingForHosts { repo: RepoId },
    /// A host has said what kind of git server it is.
    Classified { host: Host, class: HostClass },
    /// An attempt ended and left something wanted, or something new is wanted since.
    Incomplete {
        repo: RepoId,
        attempts: u32,
        /// Delay of the next attempt; without one the hourly pull goes on with it.
        next: Option<Duration>,
    },
    /// Objects came.
    Fetched {
        repo: RepoId,
        url: CloneUrl,
        oids: usize,
    },
    /// A server gave less than it was asked for.
    Failed {
        repo: RepoId,
        url: CloneUrl,
        error: FetchError,
    },
    /// A server asked for fewer requests and is paused.
    Paused { host: Host, length: Duration },
}

impl HuntReport {
    /// Returns the input for purgatory: the time of held events depends on whether servers were asked.
    pub fn for_purgatory(&self) -> Option<purgatory::Input> {
        match self {
            Self::WaitingForHosts { repo } => {
                Some(purgatory::Input::HuntWaiting { repo: repo.clone() })
            }
            Self::Failed { error, .. } if !error.is_answer() => None,
            Self::Failed { repo, .. } | Self::Fetched { repo, .. } => {
                Some(purgatory::Input::HuntAnswered { repo: repo.clone() })
            }
            Self::Complete { repo } | Self::Needless { repo } | Self::Incomplete { repo, .. } => {
                Some(purgatory::Input::HuntEnded { repo: repo.clone() })
            }
            _ => None,
        }
    }
}
