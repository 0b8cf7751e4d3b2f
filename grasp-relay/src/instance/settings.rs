//! The settings that a server is built from.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use grasp_core::ServiceIdentity;
use grasp_core::admission::{Archive, FanOutLimits, Policy};
use grasp_core::outbound::OutboundPolicy;
use grasp_core::quota::Quotas;
use grasp_purgatory::git::{
    BinaryError, FetchLimits, Git, PackCache, PackStorageOptions, Slots, StagingLimits,
};
use grasp_purgatory::hunt::HuntConfig;
use grasp_sync::{driver, engine};
use nostr::key::PublicKey;
use url::Url;

use crate::git_http::GitLimits;
use crate::in_step::InStepSettings;
use crate::instance::outbox::OutboxSettings;
use crate::instance::private::PrivateSettings;
use crate::instance::server::tls::{TlsMode, TlsSettings};
use crate::management::rules::RelayText;
use crate::nostr::{Limits, RelayInfo};
use crate::server::AddressRange;
use crate::store::sqlite::SqliteOptions;
use crate::tls::can_be_ordered;
use crate::web::PageSettings;

/// The settings of a [`Server`](super::Server).
#[derive(Clone, Debug)]
pub struct Settings {
    /// The public address of the server, and what it admits.
    pub policy: Policy,
    /// The directory of all data.
    pub data_dir: PathBuf,
    /// Options of the database.
    pub sqlite: SqliteOptions,
    /// The database that several nodes share; `None` for a file in the data directory and a single process.
    pub database: Option<DatabaseUrl>,
    /// The object store of the packs that several nodes share, as `s3://bucket/prefix` or `file:///dir`.
    pub packs: Option<Url>,
    /// Credentials, region and endpoint of that object store.
    pub pack_storage: PackStorageOptions,
    /// The address at which the other nodes reach this one, as `http://host:port`.
    pub node_address: Option<Url>,
    /// Bytes of packs from the object store that a node keeps on disk.
    pub pack_cache_bytes: u64,
    /// The file with the key that the service signs with; `None` for `service.key` in the data directory, and for a key
    /// in the database that several nodes share.
    pub service_key: Option<PathBuf>,
    /// A short name; `None` for the address.
    pub name: Option<String>,
    /// Texts of NIP-11 that cannot be changed while the server runs, and where they are set.
    pub fixed_texts: BTreeMap<RelayText, String>,
    /// The server's description of itself (NIP-11), as far as it does not follow from other settings.
    pub info: RelayInfo,
    /// Limits of events per author and per root in each counting period.
    pub fan_out: FanOutLimits,
    /// Proxies whose `X-Forwarded-For` is believed.
    pub trusted_proxies: Vec<AddressRange>,
    /// Limits of the relay.
    pub relay: Limits,
    /// Limits of the git host.
    pub git: GitLimits,
    /// Limits of the git data that is kept.
    pub quota: QuotaSettings,
    /// Which pages there are, and what they look like.
    pub pages: PageSettings,
    /// A file with the icon of pages.
    pub page_icon: Option<PathBuf>,
    /// The git program; `None` for the first in `PATH`.
    pub git_program: Option<PathBuf>,
    /// The directory of repositories; `None` for `git` in the data directory.
    pub repositories: Option<PathBuf>,
    /// Limits of concurrent git processes.
    pub processes: Slots,
    /// Limits of uploads that wait for their event; `purgatory` overrides the number and the total.
    pub staging: StagingLimits,
    /// Limits of events that wait for their git data.
    pub purgatory: grasp_purgatory::Config,
    /// Sync with other relays.
    pub sync: Sync,
    /// Limits of the hunt for git data.
    pub hunt: HuntConfig,
    /// How often the refs of other servers are compared.
    pub in_step: InStepSettings,
    /// Limits of one fetch from another git server.
    pub fetch: FetchLimits,
    /// A PEM file with certificate authorities that are trusted beside the public ones.
    pub trusted_roots: Option<PathBuf>,
    /// The addresses that events may make the server connect to.
    pub outbound: OutboundPolicy,
    /// Serves `/metrics`.
    pub metrics: bool,
    /// TLS by the server itself.
    pub tls: TlsSettings,
    /// Whether only members use the server (GRASP-08), and who they are.
    pub private: PrivateSettings,
    /// The path of the admin socket, if it is not in the data directory.
    pub admin_socket: Option<PathBuf>,
    /// Answers `/health` with 503 while it is degraded: git objects are missing on disk, or the TLS certificate is missing
    /// or about to expire.
    pub fail_health_when_degraded: bool,
}

/// The address of a PostgreSQL database. Its password is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct DatabaseUrl(Url);

impl DatabaseUrl {
    /// Returns the address with its password.
    pub fn url(&self) -> &str {
        self.0.as_str()
    }
}

impl FromStr for DatabaseUrl {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let url = Url::parse(text).ok().filter(|url| {
            matches!(url.scheme(), "postgres" | "postgresql") && url.path().len() > 1
        });
        url.map(Self)
            .ok_or("expected postgres://[USER[:PASSWORD]@]HOST[:PORT]/DATABASE")
    }
}

impl fmt::Display for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = self.0.clone();
        if shown.password().is_some() {
            let _ = shown.set_password(Some("***"));
        }
        // A password may also be a parameter.
        shown.set_query(None);
        shown.fmt(f)
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Limits of the git data that is kept, beside that of a repository.
#[derive(Clone, Debug)]
pub struct QuotaSettings {
    /// Bytes that all repositories of one owner may have together.
    pub owner_bytes: u64,
    /// Bytes that all repositories may have together; `None` for nine tenths of their file system.
    pub total_bytes: Option<u64>,
}

impl Default for QuotaSettings {
    fn default() -> Self {
        Self {
            owner_bytes: Quotas::default().owner_bytes,
            total_bytes: None,
        }
    }
}

/// Settings of sync with other relays.
#[derive(Clone, Debug)]
pub struct Sync {
    /// Syncs with other relays.
    pub enabled: bool,
    /// Settings of the sync engine.
    pub engine: engine::Config,
    /// Limits of what is accepted from one relay.
    pub limits: driver::Limits,
    /// Events from the relays of users (GRASP-03).
    pub outbox: OutboxSettings,
}

/// Bytes of filters at another GRASP server from which on a full comparison replaces them: some 160 threads.
const FULL_SYNC_BYTES: usize = 32 * 1024;

impl Settings {
    /// Returns the default settings for an address and a data directory.
    pub fn new(service: ServiceIdentity, data_dir: impl Into<PathBuf>) -> Self {
        let grasp_sync::Settings {
            mut engine, limits, ..
        } = grasp_sync::Settings::new(service.clone());
        engine.full_sync_above = Some(FULL_SYNC_BYTES);
        Self {
            sync: Sync {
                enabled: true,
                engine,
                limits,
                outbox: OutboxSettings::default(),
            },
            policy: Policy::new(service),
            data_dir: data_dir.into(),
            sqlite: SqliteOptions::default(),
            database: None,
            packs: None,
            pack_storage: PackStorageOptions::default(),
            node_address: None,
            pack_cache_bytes: PackCache::DEFAULT_BYTES,
            service_key: None,
            name: None,
            fixed_texts: BTreeMap::new(),
            info: RelayInfo::default(),
            fan_out: FanOutLimits::default(),
            trusted_proxies: Vec::new(),
            relay: Limits::default(),
            git: GitLimits::default(),
            quota: QuotaSettings::default(),
            processes: Slots::default(),
            staging: StagingLimits::default(),
            purgatory: grasp_purgatory::Config::default(),
            hunt: HuntConfig::default(),
            in_step: InStepSettings::default(),
            fetch: FetchLimits::default(),
            trusted_roots: None,
            outbound: OutboundPolicy::default(),
            pages: PageSettings::default(),
            page_icon: None,
            git_program: None,
            repositories: None,
            metrics: true,
            tls: TlsSettings::default(),
            private: PrivateSettings::default(),
            admin_socket: None,
            fail_health_when_degraded: false,
        }
    }

    /// Replaces the public address.
    #[must_use]
    pub fn reached_at(mut self, service: ServiceIdentity) -> Self {
        self.sync.engine.own = service.clone();
        self.policy.service = service;
        self
    }

    /// Returns the path of the socket at which `grasp status` and similar commands reach a running server.
    pub fn admin_socket(&self) -> PathBuf {
        match &self.admin_socket {
            Some(path) => path.clone(),
            None => self.data_dir.join("admin.sock"),
        }
    }

    /// Returns a setting that contradicts another one or a limit, and why. The public address is the domain, if one is set.
    pub fn contradiction(
        &self,
        domain: Option<&ServiceIdentity>,
    ) -> Option<(&'static str, &'static str)> {
        for (holds, key, reason) in self.rules(domain) {
            if !holds {
                return Some((key, reason));
            }
        }
        let public = match domain {
            Some(domain) => self.clone().reached_at(domain.clone()),
            None => self.clone(),
        };
        self.private
            .contradiction(&public)
            .or_else(|| self.sync.outbox.contradiction(self))
    }

    /// Returns what must hold, with the setting and the reason if it does not.
    fn rules(&self, domain: Option<&ServiceIdentity>) -> [(bool, &'static str, &'static str); 9] {
        let relay = &self.relay;
        let tls = &self.tls;
        let can_order = domain.is_none_or(|it| can_be_ordered(it) && it.host() == it.authority());
        [
            (
                !self.policy.archive.ignores_deletions || is_archive(&self.policy.archive),
                "archive.ignore_deletions",
                "only an archive may ignore deletions: select repositories in the section archive",
            ),
            (
                relay.event_bytes <= relay.message_bytes,
                "relay.event_bytes",
                "an event must fit into a message, which may have 5MiB",
            ),
            (
                relay.connections <= relay.tcp_connections,
                "relay.connections",
                "above the number of TCP connections, which is 8192",
            ),
            (
                self.database.is_none() || self.packs.is_some(),
                "database",
                "nodes that share a database need an object store for packs, too: set packs",
            ),
            (
                self.database.is_none() || self.node_address.is_some(),
                "database",
                "nodes that share a database reach each other: set node_address",
            ),
            (
                self.packs.is_none() || self.database.is_some(),
                "packs",
                "only nodes that share a database keep their packs elsewhere: set database",
            ),
            (
                tls.mode == TlsMode::Off || domain.is_some(),
                "tls.mode",
                "a certificate is for a domain: set domain",
            ),
            (
                tls.mode != TlsMode::Acme || can_order,
                "tls.mode",
                "ACME servers issue certificates for names of the public DNS at the usual port: set such a domain, without a port",
            ),
            (
                tls.mode != TlsMode::Files || (tls.certificate.is_some() && tls.key.is_some()),
                "tls.mode",
                "set tls.certificate and tls.key to the files",
            ),
        ]
    }

    /// Returns the directory of repositories.
    pub fn repositories(&self) -> PathBuf {
        self.repositories
            .clone()
            .unwrap_or_else(|| self.data_dir.join("git"))
    }

    /// Returns the file with the key that the service signs with.
    pub fn service_key(&self) -> PathBuf {
        self.service_key
            .clone()
            .unwrap_or_else(|| self.data_dir.join("service.key"))
    }

    /// Returns the git program.
    pub(crate) fn git(&self) -> Result<Git, BinaryError> {
        let slots = self.processes;
        match &self.git_program {
            Some(program) => Git::at(program.clone(), slots),
            None => Git::find(&std::env::var_os("PATH").unwrap_or_default(), slots),
        }
    }

    /// Returns the limits of the git data that is kept, without what the operator gave single owners.
    pub(crate) fn quotas(&self) -> Quotas {
        let total_bytes = match (self.quota.total_bytes, &self.packs) {
            (Some(bytes), _) => bytes,
            (None, Some(_)) => u64::MAX,
            (None, None) => usable_bytes(&self.repositories()),
        };
        let mut quotas = Quotas::default();
        quotas.repository_bytes = self.git.repository_bytes;
        quotas.owner_bytes = self.quota.owner_bytes;
        quotas.total_bytes = total_bytes;
        quotas
    }

    /// Returns the limits of uploads that wait for their event: never more than purgatory keeps.
    pub(crate) fn staging(&self) -> StagingLimits {
        let grasp_purgatory::Config {
            tips_per_event,
            staged,
            ..
        } = self.purgatory;
        StagingLimits {
            tips_per_event,
            bytes_in_all: staged.bytes,
            ..self.staging
        }
    }

    /// Returns the parts of GRASP that are enabled.
    fn enabled_grasps(&self) -> Vec<String> {
        let parts = [
            ("GRASP-01", true),
            ("GRASP-02", self.sync.enabled),
            ("GRASP-03", self.runs_outbox()),
            ("GRASP-05", is_archive(&self.policy.archive)),
            ("GRASP-06", self.policy.contributor_proposals),
            ("GRASP-08", self.private.enabled),
        ];
        parts
            .into_iter()
            .filter(|(_, runs)| *runs)
            .map(|(name, _)| name.into())
            .collect()
    }

    /// Returns the content of the NIP-11 document.
    pub(crate) fn info(&self, service_key: PublicKey) -> RelayInfo {
        let mut info = self.public_info();
        info.service_key = Some(service_key);
        if self.private.enabled {
            // Other private services take this key for the one that we authenticate with.
            info.pubkey = Some(service_key);
            info.auth_required = true;
            info.supported_nips.push(98);
            if info.repo_acceptance_criteria == RelayInfo::default().repo_acceptance_criteria {
                info.repo_acceptance_criteria = MEMBERS_ONLY.to_owned();
            }
        }
        info
    }

    /// Returns what it contains if the service is public.
    pub(crate) fn public_info(&self) -> RelayInfo {
        let archive_curation =
            is_archive(&self.policy.archive).then(|| ARCHIVE_CURATION.to_owned());
        let mut supported_nips = self.info.supported_nips.clone();
        let mut criteria = self.info.repo_acceptance_criteria.clone();
        let is_default = criteria == RelayInfo::default().repo_acceptance_criteria;
        if self.policy.allowed.only && is_default {
            criteria = LISTED_ONLY.to_owned();
        }
        if self.policy.archive.ignores_deletions {
            supported_nips.retain(|nip| !DELETION_NIPS.contains(nip));
        }
        RelayInfo {
            name: self
                .name
                .clone()
                .unwrap_or_else(|| self.policy.service.to_string()),
            pubkey: self.policy.operator,
            supported_grasps: self.enabled_grasps(),
            curation: self.info.curation.clone().or(archive_curation),
            repo_acceptance_criteria: criteria,
            created_at_ahead: self.policy.max_ahead,
            supported_nips,
            software: "grasp".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            ..self.info.clone()
        }
    }
}

/// Returns nine tenths of the file system of a directory, or of the one that it will be created in.
fn usable_bytes(directory: &Path) -> u64 {
    for path in directory.ancestors() {
        let path = match path.as_os_str().is_empty() {
            true => Path::new("."),
            false => path,
        };
        if let Ok(stats) = rustix::fs::statvfs(path) {
            return (stats.f_blocks / 10 * 9).saturating_mul(stats.f_frsize);
        }
    }
    u64::MAX
}

/// NIPs by which authors have their events deleted.
const DELETION_NIPS: [u16; 2] = [9, 62];

/// The rule by which a private service accepts repositories, unless the operator sets one.
const MEMBERS_ONLY: &str = "Only members announce repositories.";

/// The rule by which a server with an allow list accepts repositories, unless the operator sets one.
const LISTED_ONLY: &str = "Only repositories that the operator has listed are hosted.";

/// The curation text of an archive (GRASP-05), unless the operator sets one.
const ARCHIVE_CURATION: &str =
    "Also keeps read-only copies of repositories that do not list this server.";

fn is_archive(archive: &Archive) -> bool {
    let Archive {
        everything,
        owners,
        repos,
        identifiers,
        services,
        ignores_deletions: _,
    } = archive;
    let lists = [owners.len(), repos.len(), identifiers.len(), services.len()];
    *everything || lists.iter().any(|length| *length > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_password_of_a_database_is_not_shown() {
        for text in [
            "postgres://grasp:secret@db.example/grasp",
            "postgresql://grasp@db.example/grasp?password=secret&sslmode=require",
        ] {
            let url: DatabaseUrl = text.parse().unwrap();
            assert_eq!(url.url(), text);
            assert!(!format!("{url} {url:?}").contains("secret"), "{url}");
        }
        for bad in [
            "",
            "db/grasp",
            "mysql://db/grasp",
            "postgres://db",
            "postgres://db/",
        ] {
            assert!(bad.parse::<DatabaseUrl>().is_err(), "{bad}");
        }
    }
}
