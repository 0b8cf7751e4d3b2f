//! Everything about a server that can be set.

use std::path::PathBuf;

use clap::ValueEnum;
use grasp_core::outbound::OutboundPolicy;
use grasp_core::{MaintainerModel, ServiceIdentity};
use grasp_purgatory::git::FetchLimits;
use grasp_purgatory::hunt::HuntConfig;
use grasp_relay::git_http::GitLimits;
use grasp_relay::nostr::Limits;

/// What a [`Server`](crate::Server) is built from.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The address that others reach us at.
    pub service: ServiceIdentity,
    /// Where everything is kept.
    pub data_dir: PathBuf,
    /// What keeps the events.
    pub store: Store,
    /// Who may sign states.
    pub maintainers: MaintainerModel,
    /// The relay's bounds.
    pub relay: Limits,
    /// The git host's bounds.
    pub git: GitLimits,
    /// What waits for its git data, how long, and how much of it.
    pub purgatory: grasp_purgatory::Config,
    /// Where events may send us.
    pub outbound: OutboundPolicy,
    /// How events are kept in step with other relays, if they are.
    pub sync: Option<Sync>,
    /// How git data is hunted for, if it is.
    pub hunt: Option<Hunt>,
}

/// How events are kept in step with other relays.
#[derive(Clone, Debug)]
pub struct Sync {
    /// Whom to ask for what, and when.
    pub engine: grasp_sync::engine::Config,
    /// What one relay may do to us.
    pub limits: grasp_sync::driver::Limits,
}

/// How git data is hunted for.
#[derive(Clone, Debug, Default)]
pub struct Hunt {
    /// Whom to ask for what, and when.
    pub hunter: HuntConfig,
    /// What one conversation with a git server may cost.
    pub limits: FetchLimits,
}

impl Settings {
    /// The defaults.
    pub fn new(service: ServiceIdentity, data_dir: impl Into<PathBuf>) -> Self {
        let grasp_sync::Settings { engine, outbound, limits, .. } =
            grasp_sync::Settings::new(service.clone());
        Self {
            sync: Some(Sync { engine, limits }),
            hunt: Some(Hunt::default()),
            outbound,
            service,
            data_dir: data_dir.into(),
            store: Store::Sqlite,
            maintainers: MaintainerModel::default(),
            relay: Limits::default(),
            git: GitLimits::default(),
            purgatory: grasp_purgatory::Config::default(),
        }
    }
}

/// What keeps the events: our own store, or a database of the ecosystem that this build has as a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Store {
    /// Our own, one SQLite file.
    Sqlite,
    /// The ecosystem's SQLite database.
    #[cfg(feature = "nostr-sqlite")]
    NostrSqlite,
    /// The ecosystem's LMDB database.
    #[cfg(feature = "nostr-lmdb")]
    NostrLmdb,
}
