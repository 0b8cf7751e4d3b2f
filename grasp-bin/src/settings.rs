//! Everything about a server that can be set.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use grasp_core::admission::{Archive, Bans, FanOutLimits, Policy};
use grasp_core::outbound::OutboundPolicy;
use grasp_core::{MaintainerModel, ServiceIdentity};
use grasp_purgatory::git::{BinaryError, FetchLimits, Git, Slots, StagingLimits};
use grasp_purgatory::hunt::HuntConfig;
use grasp_relay::git_http::GitLimits;
use grasp_relay::nostr::{Limits, RelayInfo};
use grasp_relay::server::AddressRange;
use grasp_relay::store::sqlite::SqliteOptions;
use grasp_sync::{driver, engine};
use nostr::key::PublicKey;
use serde::{Deserialize, Serialize};

/// What a [`Server`](crate::Server) is built from.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The address that others reach us at.
    pub service: ServiceIdentity,
    /// Where everything is kept.
    pub data_dir: PathBuf,
    /// What keeps the events.
    pub store: Store,
    /// How our own store uses the machine.
    pub sqlite: SqliteOptions,
    /// The file with the key that the service itself signs with; one in the data directory if there is none.
    pub service_key: Option<PathBuf>,
    /// What we say about ourselves.
    pub about: About,
    /// Who may sign states.
    pub maintainers: MaintainerModel,
    /// How far ahead of our clock an event may be dated.
    pub max_ahead: Duration,
    /// The operator's key.
    pub operator: Option<PublicKey>,
    /// What one author, and one root, may bring before counting begins anew.
    pub fan_out: FanOutLimits,
    /// Who and what is not welcome.
    pub bans: Bans,
    /// Repositories that are kept without being asked to (GRASP-05).
    pub archive: Archive,
    /// Whether contributors may push pull requests to `/prs/` (GRASP-06).
    pub contributor_proposals: bool,
    /// Repositories that one author may have served here for the asking.
    pub repositories_per_author: usize,
    /// Proxies whose `X-Forwarded-For` is believed.
    pub trusted_proxies: Vec<AddressRange>,
    /// The relay's bounds.
    pub relay: Limits,
    /// The git host's bounds.
    pub git: GitLimits,
    /// The git to run; `None` for the one that is found.
    pub git_program: Option<PathBuf>,
    /// Where repositories are; `None` for a place within the data directory.
    pub repositories: Option<PathBuf>,
    /// Git processes at once.
    pub processes: Processes,
    /// What uploads that wait for their event may take on disk; how many and how much in all, purgatory says.
    pub staging: StagingLimits,
    /// What waits for its git data, how long, and how much of it.
    pub purgatory: grasp_purgatory::Config,
    /// How events are kept in step with other relays.
    pub sync: Sync,
    /// How git data that is waited for is hunted for.
    pub hunt: HuntConfig,
    /// What a conversation with another git server may cost.
    pub fetch: FetchLimits,
    /// A PEM file with authorities whose certificates are believed beside those of the public ones.
    pub trusted_roots: Option<PathBuf>,
    /// Where events of strangers may send us.
    pub outbound: OutboundPolicy,
    /// Whether `/metrics` is served.
    pub metrics: bool,
}

/// How events are kept in step with other relays.
#[derive(Clone, Debug)]
pub struct Sync {
    /// Whether they are.
    pub enabled: bool,
    /// Whom to ask for what, and when.
    pub engine: engine::Config,
    /// What one relay may do to us.
    pub limits: driver::Limits,
}

/// What a server says about itself (NIP-11).
#[derive(Clone, Debug)]
pub struct About {
    /// A short name; the address if there is none.
    pub name: Option<String>,
    /// A few sentences.
    pub description: String,
    /// How to reach the operator.
    pub contact: Option<String>,
    /// Where a picture is.
    pub icon: Option<String>,
    /// Which repositories are taken in, in words.
    pub acceptance: String,
    /// How events are curated beyond spam control, if they are.
    pub curation: Option<String>,
}

/// Git processes that may run at once; as many as fit the processors where nothing is said.
#[derive(Clone, Copy, Debug, Default)]
pub struct Processes {
    /// Those that work as fast as the machine lets them.
    pub own_pace: Option<NonZeroUsize>,
    /// Those that work as fast as a client reads or sends.
    pub client_pace: Option<NonZeroUsize>,
    /// Those that work as fast as another server sends.
    pub remote_pace: Option<NonZeroUsize>,
}

/// Some 160 threads by name.
const WHOLE_FROM: usize = 32 * 1024;

impl Settings {
    /// The defaults.
    pub fn new(service: ServiceIdentity, data_dir: impl Into<PathBuf>) -> Self {
        let policy = Policy::new(service.clone());
        let grasp_sync::Settings { mut engine, limits, .. } =
            grasp_sync::Settings::new(service.clone());
        engine.whole_from = Some(WHOLE_FROM);
        Self {
            sync: Sync { enabled: true, engine, limits },
            service,
            data_dir: data_dir.into(),
            store: Store::Sqlite,
            sqlite: SqliteOptions::default(),
            service_key: None,
            about: About::default(),
            maintainers: policy.model,
            max_ahead: policy.max_ahead,
            operator: policy.operator,
            fan_out: FanOutLimits::default(),
            bans: policy.bans,
            archive: policy.archive,
            contributor_proposals: policy.contributor_proposals,
            repositories_per_author: policy.repositories_per_author,
            trusted_proxies: Vec::new(),
            relay: Limits::default(),
            git: GitLimits::default(),
            processes: Processes::default(),
            staging: StagingLimits::default(),
            purgatory: grasp_purgatory::Config::default(),
            hunt: HuntConfig::default(),
            fetch: FetchLimits::default(),
            trusted_roots: None,
            outbound: OutboundPolicy::default(),
            git_program: None,
            repositories: None,
            metrics: true,
        }
    }

    /// The same for a server that others reach at another address.
    #[must_use]
    pub fn reached_at(mut self, service: ServiceIdentity) -> Self {
        self.sync.engine.own = service.clone();
        self.service = service;
        self
    }

    /// Where repositories are.
    pub fn repositories(&self) -> PathBuf {
        self.repositories.clone().unwrap_or_else(|| self.data_dir.join("git"))
    }

    /// The file with the key that the service itself signs with.
    pub fn service_key(&self) -> PathBuf {
        self.service_key.clone().unwrap_or_else(|| self.data_dir.join("service.key"))
    }

    /// The git to run.
    pub(crate) fn git(&self) -> Result<Git, BinaryError> {
        let slots = self.processes.slots();
        match &self.git_program {
            Some(program) => Git::at(program.clone(), slots),
            None => Git::find(&std::env::var_os("PATH").unwrap_or_default(), slots),
        }
    }

    /// How much may lie on disk until somebody signs for it: never more than purgatory would keep.
    pub(crate) fn staging(&self) -> StagingLimits {
        let grasp_purgatory::Config { tips_per_event, staged, .. } = self.purgatory;
        StagingLimits { tips_per_event, bytes_in_all: staged.bytes, ..self.staging }
    }

    /// The settings of the rulebook.
    pub(crate) fn policy(&self) -> Policy {
        Policy {
            service: self.service.clone(),
            model: self.maintainers,
            max_ahead: self.max_ahead,
            operator: self.operator,
            bans: self.bans.clone(),
            archive: self.archive.clone(),
            contributor_proposals: self.contributor_proposals,
            repositories_per_author: self.repositories_per_author,
        }
    }

    /// What runs of GRASP.
    fn grasps(&self) -> Vec<String> {
        let parts = [
            ("GRASP-01", true),
            ("GRASP-02", self.sync.enabled),
            ("GRASP-05", is_archive(&self.archive)),
            ("GRASP-06", self.contributor_proposals),
        ];
        parts.into_iter().filter(|(_, runs)| *runs).map(|(name, _)| name.into()).collect()
    }

    /// What the NIP-11 document says.
    pub(crate) fn info(&self) -> RelayInfo {
        let About { name, description, contact, icon, acceptance, curation } = self.about.clone();
        let copies = is_archive(&self.archive).then(|| ARCHIVE.to_owned());
        RelayInfo {
            name: name.unwrap_or_else(|| self.service.to_string()),
            description,
            pubkey: self.operator,
            supported_grasps: self.grasps(),
            contact,
            icon,
            repo_acceptance_criteria: acceptance,
            curation: curation.or(copies),
            created_at_ahead: Some(self.max_ahead),
            software: "grasp".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            ..RelayInfo::default()
        }
    }
}

/// What an archive says of itself, unless the operator says it (GRASP-05).
const ARCHIVE: &str = "Also keeps read-only copies of repositories that do not list this server.";

fn is_archive(archive: &Archive) -> bool {
    let Archive { everything, owners, repos, identifiers, services } = archive;
    let lists = [owners.len(), repos.len(), identifiers.len(), services.len()];
    *everything || lists.iter().any(|length| *length > 0)
}

impl Default for About {
    fn default() -> Self {
        let info = RelayInfo::default();
        Self {
            name: None,
            description: info.description,
            contact: info.contact,
            icon: info.icon,
            acceptance: info.repo_acceptance_criteria,
            curation: info.curation,
        }
    }
}

impl Processes {
    pub(crate) fn slots(self) -> Slots {
        let slots = Slots::default();
        Slots {
            own_pace: self.own_pace.unwrap_or(slots.own_pace),
            client_pace: self.client_pace.unwrap_or(slots.client_pace),
            remote_pace: self.remote_pace.unwrap_or(slots.remote_pace),
            ..slots
        }
    }
}

/// What keeps the events: our own store, or a database of the ecosystem that this build has as a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
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
