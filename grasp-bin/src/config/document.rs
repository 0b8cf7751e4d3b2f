//! Every setting, defined once: a key of the file, a flag, and a row of the reference.

use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::path::PathBuf;

use clap::Args;
use grasp_core::{Identifier, RelayUrl, RepoId, ServiceIdentity};
use grasp_relay::server::AddressRange;
use serde::{Deserialize, Serialize};

use super::value::{ByteCount, HostLimit, LogFilter, Model, Npub, Text, Time, list, one, optional};
use super::{Config, LogFormat};

/// Settings as they are given, each of them optional. The id of a flag is the key in the file.
#[derive(Clone, Debug, Default, Serialize, Deserialize, Args)]
#[serde(deny_unknown_fields, default)]
#[command(next_help_heading = "The instance")]
pub(crate) struct Document {
    /// Address and port to listen on.
    #[arg(id = "listen", long = "listen", value_name = "ADDR:PORT")]
    pub(crate) listen: Option<SocketAddr>,
    /// Address that others reach the server at, and that announcements must list. Routes lie below its mount.
    /// Default: the address it listens on.
    #[arg(id = "domain", long = "domain", value_name = "HOST[:PORT][/MOUNT]")]
    pub(crate) domain: Option<Text<ServiceIdentity>>,
    /// Directory with everything that the server stores.
    #[arg(id = "data_dir", long = "data-dir", value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Socket of `grasp status` and similar commands. Default: `admin.sock` in the data directory.
    #[arg(id = "admin_socket", long = "admin-socket", value_name = "PATH", hide_short_help = true)]
    pub(crate) admin_socket: Option<PathBuf>,
    /// File with the key that the service signs with, created at the first start. Default: `service.key` in the data
    /// directory.
    #[arg(id = "service_key", long = "service-key", value_name = "PATH", hide_short_help = true)]
    pub(crate) service_key: Option<PathBuf>,
    /// Relays to sync from, whether a repository names them or not.
    #[arg(id = "bootstrap", long = "bootstrap", value_name = "URL")]
    pub(crate) bootstrap: Option<Vec<Text<RelayUrl>>>,
    /// Keys that may sign states: those listed that list back, or all that are listed.
    #[arg(id = "maintainers", long = "maintainers", value_enum)]
    pub(crate) maintainers: Option<Model>,
    /// Allows events to send the server to loopback and private addresses, for test networks. Bootstrap relays may
    /// always be there.
    #[arg(id = "allow_private_targets", long = "allow-private-targets", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) allow_private_targets: Option<bool>,
    /// PEM file with certificate authorities that are trusted beside the public ones, for relays (`wss:`) and git
    /// servers (`https:`).
    #[arg(
        id = "trusted_roots",
        long = "trusted-roots",
        value_name = "PATH",
        hide_short_help = true
    )]
    pub(crate) trusted_roots: Option<PathBuf>,
    /// Reverse proxies whose `X-Forwarded-For` is believed.
    #[arg(id = "trusted_proxies", long = "trusted-proxies", value_name = "ADDRESS[/PREFIX]")]
    pub(crate) trusted_proxies: Option<Vec<Text<AddressRange>>>,
    /// Key of the operator: shown in NIP-11, and its events are accepted.
    #[arg(id = "operator", long = "operator", value_name = "NPUB")]
    pub(crate) operator: Option<Text<Npub>>,
    /// Lets contributors push pull requests to `/prs/` (GRASP-06).
    #[arg(id = "contributor_proposals", long = "contributor-proposals", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) contributor_proposals: Option<bool>,
    /// Serves `/metrics`.
    #[arg(id = "metrics", long = "metrics", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) metrics: Option<bool>,
    /// Time that a stopping server waits for its clients to finish.
    #[arg(id = "stop_timeout", long = "stop-timeout", value_name = "TIME", hide_short_help = true)]
    pub(crate) stop_timeout: Option<Text<Time>>,
    /// Repositories that one author may have hosted. The operator may have more.
    #[arg(
        id = "repositories_per_author",
        long = "repositories-per-author",
        value_name = "NUMBER",
        hide_short_help = true
    )]
    pub(crate) repositories_per_author: Option<NonZeroU64>,
    #[command(flatten)]
    pub(crate) about: AboutSection,
    #[command(flatten)]
    pub(crate) log: LogSection,
    #[command(flatten)]
    pub(crate) bans: BansSection,
    #[command(flatten)]
    pub(crate) archive: ArchiveSection,
    #[command(flatten)]
    pub(crate) sync: SyncSection,
    #[command(flatten)]
    pub(crate) hunt: HuntSection,
    #[command(flatten)]
    pub(crate) sidecar: SidecarSection,
    #[command(flatten)]
    pub(crate) purgatory: PurgatorySection,
    #[command(flatten)]
    pub(crate) git: GitSection,
    #[command(flatten)]
    pub(crate) relay: RelaySection,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, Args)]
#[serde(deny_unknown_fields, default)]
#[command(next_help_heading = "Presentation in NIP-11")]
pub(crate) struct AboutSection {
    /// Short name. Default: the address.
    #[arg(id = "about.name", long = "about-name", value_name = "TEXT")]
    pub(crate) name: Option<String>,
    /// Description.
    #[arg(id = "about.description", long = "about-description", value_name = "TEXT")]
    pub(crate) description: Option<String>,
    /// Contact of the operator, as a `mailto:` or `https:` address.
    #[arg(id = "about.contact", long = "about-contact", value_name = "URL")]
    pub(crate) contact: Option<String>,
    /// Address of a square picture.
    #[arg(id = "about.icon", long = "about-icon", value_name = "URL", hide_short_help = true)]
    pub(crate) icon: Option<String>,
    /// Rule by which repositories are accepted, in words.
    #[arg(
        id = "about.acceptance",
        long = "about-acceptance",
        value_name = "TEXT",
        hide_short_help = true
    )]
    pub(crate) acceptance: Option<String>,
    /// Curation of events beyond spam control, in words.
    #[arg(
        id = "about.curation",
        long = "about-curation",
        value_name = "TEXT",
        hide_short_help = true
    )]
    pub(crate) curation: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, Args)]
#[serde(deny_unknown_fields, default)]
#[command(next_help_heading = "Log on standard error")]
pub(crate) struct LogSection {
    /// Levels, as in `info` or `grasp_relay=debug`.
    #[arg(id = "log.filter", long = "log-filter", value_name = "FILTER")]
    pub(crate) filter: Option<Text<LogFilter>>,
    /// Format of the lines.
    #[arg(id = "log.format", long = "log-format", value_enum)]
    pub(crate) format: Option<LogFormat>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, Args)]
#[serde(deny_unknown_fields, default)]
#[command(next_help_heading = "Refused authors and repositories")]
pub(crate) struct BansSection {
    /// Authors whose events are refused.
    #[arg(id = "bans.authors", long = "bans-authors", value_name = "NPUB", hide_short_help = true)]
    pub(crate) authors: Option<Vec<Text<Npub>>>,
    /// Repositories whose announcements are refused.
    #[arg(
        id = "bans.repos",
        long = "bans-repos",
        value_name = "30617:KEY:NAME",
        hide_short_help = true
    )]
    pub(crate) repos: Option<Vec<Text<RepoId>>>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, Args)]
#[serde(deny_unknown_fields, default)]
#[command(
    next_help_heading = "Repositories kept although they do not list this instance (GRASP-05)"
)]
pub(crate) struct ArchiveSection {
    /// Keeps every repository that is heard of.
    #[arg(id = "archive.everything", long = "archive-everything", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_short_help = true)]
    pub(crate) everything: Option<bool>,
    /// Keeps all repositories of these owners.
    #[arg(
        id = "archive.owners",
        long = "archive-owners",
        value_name = "NPUB",
        hide_short_help = true
    )]
    pub(crate) owners: Option<Vec<Text<Npub>>>,
    /// Keeps these repositories.
    #[arg(
        id = "archive.repos",
        long = "archive-repos",
        value_name = "30617:KEY:NAME",
        hide_short_help = true
    )]
    pub(crate) repos: Option<Vec<Text<RepoId>>>,
    /// Keeps all repositories of these names.
    #[arg(
        id = "archive.identifiers",
        long = "archive-identifiers",
        value_name = "NAME",
        hide_short_help = true
    )]
    pub(crate) identifiers: Option<Vec<Text<Identifier>>>,
    /// Keeps all repositories that list one of these services.
    #[arg(
        id = "archive.services",
        long = "archive-services",
        value_name = "HOST[:PORT][/MOUNT]",
        hide_short_help = true
    )]
    pub(crate) services: Option<Vec<Text<ServiceIdentity>>>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, Args)]
#[serde(deny_unknown_fields, default)]
#[command(next_help_heading = "Events from other relays (GRASP-02)")]
pub(crate) struct SyncSection {
    /// Keeps events in step with other relays.
    #[arg(id = "sync.enabled", long = "sync-enabled", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) enabled: Option<bool>,
    /// Connections to other relays at the same time, bootstrap relays not counted.
    #[arg(
        id = "sync.connections",
        long = "sync-connections",
        value_name = "NUMBER",
        hide_short_help = true
    )]
    pub(crate) connections: Option<NonZeroU64>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, Args)]
#[serde(deny_unknown_fields, default)]
#[command(next_help_heading = "Git data from other servers (GRASP-02)")]
pub(crate) struct HuntSection {
    /// Conversations with one git server at the same time.
    #[arg(
        id = "hunt.host_at_once",
        long = "hunt-host-at-once",
        value_name = "NUMBER",
        hide_short_help = true
    )]
    pub(crate) host_at_once: Option<NonZeroU64>,
    /// Conversations with one git server that begin in any minute.
    #[arg(
        id = "hunt.host_per_minute",
        long = "hunt-host-per-minute",
        value_name = "NUMBER",
        hide_short_help = true
    )]
    pub(crate) host_per_minute: Option<NonZeroU64>,
    /// Conversations with one GRASP server at the same time.
    #[arg(
        id = "hunt.grasp_at_once",
        long = "hunt-grasp-at-once",
        value_name = "NUMBER",
        hide_short_help = true
    )]
    pub(crate) grasp_at_once: Option<NonZeroU64>,
    /// Conversations with one GRASP server that begin in any minute.
    #[arg(
        id = "hunt.grasp_per_minute",
        long = "hunt-grasp-per-minute",
        value_name = "NUMBER",
        hide_short_help = true
    )]
    pub(crate) grasp_per_minute: Option<NonZeroU64>,
    /// Hosts with limits of their own, as in `github.com:10,60`.
    #[arg(
        id = "hunt.hosts",
        long = "hunt-hosts",
        value_name = "HOST:AT_ONCE,PER_MINUTE",
        hide_short_help = true
    )]
    pub(crate) hosts: Option<Vec<Text<HostLimit>>>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, Args)]
#[serde(deny_unknown_fields, default)]
#[command(next_help_heading = "For `grasp sidecar`")]
pub(crate) struct SidecarSection {
    /// Relay that the sidecar keeps complete; `--relay` wins.
    #[arg(
        id = "sidecar.relay",
        long = "sidecar-relay",
        value_name = "URL",
        hide_short_help = true
    )]
    pub(crate) relay: Option<Text<RelayUrl>>,
    /// Follows repositories, too, whose announcement does not list the relay by its `domain`.
    #[arg(id = "sidecar.follow_unlisted", long = "sidecar-follow-unlisted", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_short_help = true)]
    pub(crate) follow_unlisted: Option<bool>,
    /// Address for `/health`, `/status` and `/metrics` of the sidecar; a private one is best. Default: none.
    #[arg(
        id = "sidecar.listen",
        long = "sidecar-listen",
        value_name = "ADDR:PORT",
        hide_short_help = true
    )]
    pub(crate) listen: Option<SocketAddr>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, Args)]
#[serde(deny_unknown_fields, default)]
#[command(next_help_heading = "Events that wait for their git data")]
pub(crate) struct PurgatorySection {
    /// Time that an event waits before it expires.
    #[arg(
        id = "purgatory.hold_for",
        long = "purgatory-hold-for",
        value_name = "TIME",
        hide_short_help = true
    )]
    pub(crate) hold_for: Option<Text<Time>>,
    /// Bytes on disk of uploads that wait for their event.
    #[arg(
        id = "purgatory.staged_bytes",
        long = "purgatory-staged-bytes",
        value_name = "BYTES",
        hide_short_help = true
    )]
    pub(crate) staged_bytes: Option<Text<ByteCount>>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, Args)]
#[serde(deny_unknown_fields, default)]
#[command(next_help_heading = "The git host")]
pub(crate) struct GitSection {
    /// Largest pack of a push.
    #[arg(
        id = "git.push_bytes",
        long = "git-push-bytes",
        value_name = "BYTES",
        hide_short_help = true
    )]
    pub(crate) push_bytes: Option<Text<ByteCount>>,
    /// Git data on disk that the repositories of one name may have together, a quarter of it for maintainers of served
    /// ones. Pushes beyond it are refused.
    #[arg(
        id = "git.repository_bytes",
        long = "git-repository-bytes",
        value_name = "BYTES",
        hide_short_help = true
    )]
    pub(crate) repository_bytes: Option<Text<ByteCount>>,
    /// Shows addresses with TLS (`https:`, `wss:`).
    #[arg(id = "git.secure", long = "git-secure", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) secure: Option<bool>,
    /// Git program. Default: the first in `PATH`.
    #[arg(id = "git.program", long = "git-program", value_name = "PATH", hide_short_help = true)]
    pub(crate) program: Option<PathBuf>,
    /// Directory of the repositories. Default: `git` in the data directory.
    #[arg(
        id = "git.repositories",
        long = "git-repositories",
        value_name = "DIR",
        hide_short_help = true
    )]
    pub(crate) repositories: Option<PathBuf>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, Args)]
#[serde(deny_unknown_fields, default)]
#[command(next_help_heading = "Limits of the relay")]
pub(crate) struct RelaySection {
    /// Largest event as JSON; a state (30618) may have 1 MiB in any case.
    #[arg(
        id = "relay.event_bytes",
        long = "relay-event-bytes",
        value_name = "BYTES",
        hide_short_help = true
    )]
    pub(crate) event_bytes: Option<Text<ByteCount>>,
    /// Websockets at the same time.
    #[arg(
        id = "relay.connections",
        long = "relay-connections",
        value_name = "NUMBER",
        hide_short_help = true
    )]
    pub(crate) connections: Option<NonZeroU64>,
}

/// Calls a function for every setting with its field in the document and in the configuration.
macro_rules! each_setting {
    ($visit:ident, $document:ident, $config:ident) => {
        one::$visit(&mut $document.listen, &mut $config.listen);
        optional::$visit(&mut $document.domain, &mut $config.domain);
        one::$visit(&mut $document.data_dir, &mut $config.settings.data_dir);
        optional::$visit(&mut $document.admin_socket, &mut $config.admin_socket);
        optional::$visit(&mut $document.service_key, &mut $config.settings.service_key);
        list::$visit(&mut $document.bootstrap, &mut $config.settings.sync.engine.bootstrap);
        one::$visit(&mut $document.maintainers, &mut $config.settings.maintainers);
        one::$visit(
            &mut $document.allow_private_targets,
            &mut $config.settings.outbound.allow_private,
        );
        optional::$visit(&mut $document.trusted_roots, &mut $config.settings.trusted_roots);
        list::$visit(&mut $document.trusted_proxies, &mut $config.settings.trusted_proxies);
        optional::$visit(&mut $document.operator, &mut $config.settings.operator);
        one::$visit(
            &mut $document.contributor_proposals,
            &mut $config.settings.contributor_proposals,
        );
        one::$visit(&mut $document.metrics, &mut $config.settings.metrics);
        one::$visit(&mut $document.stop_timeout, &mut $config.settings.relay.grace);
        one::$visit(
            &mut $document.repositories_per_author,
            &mut $config.settings.repositories_per_author,
        );
        optional::$visit(&mut $document.about.name, &mut $config.settings.about.name);
        one::$visit(&mut $document.about.description, &mut $config.settings.about.description);
        optional::$visit(&mut $document.about.contact, &mut $config.settings.about.contact);
        optional::$visit(&mut $document.about.icon, &mut $config.settings.about.icon);
        one::$visit(&mut $document.about.acceptance, &mut $config.settings.about.acceptance);
        optional::$visit(&mut $document.about.curation, &mut $config.settings.about.curation);
        one::$visit(&mut $document.log.filter, &mut $config.log.filter);
        one::$visit(&mut $document.log.format, &mut $config.log.format);
        list::$visit(&mut $document.bans.authors, &mut $config.settings.bans.authors);
        list::$visit(&mut $document.bans.repos, &mut $config.settings.bans.repos);
        one::$visit(&mut $document.archive.everything, &mut $config.settings.archive.everything);
        list::$visit(&mut $document.archive.owners, &mut $config.settings.archive.owners);
        list::$visit(&mut $document.archive.repos, &mut $config.settings.archive.repos);
        list::$visit(&mut $document.archive.identifiers, &mut $config.settings.archive.identifiers);
        list::$visit(&mut $document.archive.services, &mut $config.settings.archive.services);
        one::$visit(&mut $document.sync.enabled, &mut $config.settings.sync.enabled);
        one::$visit(&mut $document.sync.connections, &mut $config.settings.sync.engine.connections);
        one::$visit(&mut $document.hunt.host_at_once, &mut $config.settings.hunt.per_host.at_once);
        one::$visit(
            &mut $document.hunt.host_per_minute,
            &mut $config.settings.hunt.per_host.starts,
        );
        one::$visit(
            &mut $document.hunt.grasp_at_once,
            &mut $config.settings.hunt.per_grasp_host.at_once,
        );
        one::$visit(
            &mut $document.hunt.grasp_per_minute,
            &mut $config.settings.hunt.per_grasp_host.starts,
        );
        list::$visit(&mut $document.hunt.hosts, &mut $config.settings.hunt.hosts);
        optional::$visit(&mut $document.sidecar.relay, &mut $config.sidecar_relay);
        one::$visit(
            &mut $document.sidecar.follow_unlisted,
            &mut $config.settings.sync.engine.follow_unlisted,
        );
        optional::$visit(&mut $document.sidecar.listen, &mut $config.sidecar_listen);
        one::$visit(&mut $document.purgatory.hold_for, &mut $config.settings.purgatory.hold_for);
        one::$visit(
            &mut $document.purgatory.staged_bytes,
            &mut $config.settings.purgatory.staged.bytes,
        );
        one::$visit(&mut $document.git.push_bytes, &mut $config.settings.git.push_bytes);
        one::$visit(
            &mut $document.git.repository_bytes,
            &mut $config.settings.git.repository_bytes,
        );
        one::$visit(&mut $document.git.secure, &mut $config.settings.git.secure);
        optional::$visit(&mut $document.git.program, &mut $config.settings.git_program);
        optional::$visit(&mut $document.git.repositories, &mut $config.settings.repositories);
        one::$visit(&mut $document.relay.event_bytes, &mut $config.settings.relay.event_bytes);
        one::$visit(&mut $document.relay.connections, &mut $config.settings.relay.connections);
    };
}

impl Document {
    /// Returns the document that would lead to a configuration.
    pub(crate) fn of(config: &Config) -> Self {
        let (mut document, mut config) = (Self::default(), config.clone());
        each_setting!(show, document, config);
        document
    }

    /// Changes what the document says in a configuration.
    pub(crate) fn apply(mut self, config: &mut Config) {
        each_setting!(apply, self, config);
    }
}
