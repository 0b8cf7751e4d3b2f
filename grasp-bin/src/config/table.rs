//! Every setting, defined once.

use std::sync::LazyLock;

use grasp_core::MaintainerModel::{Plain, Reciprocal};
use grasp_relay::instance::{OutboxMode, TlsMode};
use grasp_relay::web::{Confirm, Show};

use super::LogFormat;
use super::setting::{
    Setting, acme_directory, bytes, choice, count, host_limit, key, limits, list, log_filter,
    node_address, object_store, one, optional, optional_list, path, switch, text, time,
};

/// The sections of the file and their titles, in the order of the reference.
pub(crate) const SECTIONS: [(&str, &str); 15] = [
    ("", "The server"),
    ("tls", "TLS by the server itself, without a proxy"),
    ("about", "Presentation in NIP-11"),
    ("log", "Log on standard error"),
    ("bans", "Refused authors and repositories"),
    ("allow", "Repositories that are hosted, if not all are"),
    (
        "archive",
        "Repositories that are stored although they do not list this server (GRASP-05)",
    ),
    ("sync", "Events from other relays (GRASP-02, GRASP-03)"),
    ("hunt", "Git data from other servers (GRASP-02)"),
    ("sidecar", "For `grasp sidecar`"),
    ("purgatory", "Events that wait for their git data"),
    ("git", "The git host"),
    ("quota", "Git data that is kept"),
    ("relay", "Limits of the relay"),
    ("pages", "Web pages"),
];

/// Defines the settings, by section: key, number of values, form, field, `common` if `-h` shows it, and meaning.
macro_rules! settings {
    ($($key:literal = $number:ident $form:expr => $($field:ident).+ $(, $common:ident)? $help:literal;)*) => {
        /// Returns all settings, by section.
        pub(crate) fn settings() -> &'static [Setting] {
            static SETTINGS: LazyLock<Vec<Setting>> = LazyLock::new(|| vec![$(Setting {
                help: $help,
                is_common: settings!(@is_common $($common)?),
                ..$number($key, $form, |c| &mut c.$($field).+)
            }),*]);
            &SETTINGS
        }
    };
    (@is_common) => { false };
    (@is_common common) => { true };
}

settings! {
    "listen" = one text("ADDR:PORT") => listen, common
        "Address and port to listen on";
    "domain" = optional text("HOST[:PORT][/MOUNT]") => domain, common
        "Address that others reach the server at, and that announcements must list. Routes lie below its mount. Default: the address it listens on";
    "data_dir" = one path("DIR") => settings.data_dir, common
        "Directory with everything that the server stores";
    "admin_socket" = optional path("PATH") => settings.admin_socket
        "Socket of `grasp status` and similar commands. Default: `admin.sock` in the data directory";
    "service_key" = optional path("PATH") => settings.service_key
        "File with the key that the service signs with, created at the first start. Default: `service.key` in the data directory";
    "bootstrap" = list text("URL") => settings.sync.engine.bootstrap, common
        "Relays to sync from, whether a repository names them or not";
    "database" = optional text("URL") => settings.database
        "PostgreSQL database that several nodes share, as `postgres://grasp@db/grasp`. Default: a file in the data directory, for one process";
    "packs" = optional object_store() => settings.packs
        "Object store of the packs that several nodes share, as `s3://bucket/prefix` or `file:///dir`. Credentials, region and endpoint come from the variables `AWS_…`";
    "node_address" = optional node_address() => settings.node_address
        "Address at which the other nodes reach this one, as `http://node1:7334`";
    "pack_cache_bytes" = one bytes() => settings.pack_cache_bytes
        "Packs from the object store that a node keeps on disk, in bytes";
    "maintainers" = one choice(vec![("reciprocal", Reciprocal), ("plain", Plain)]) => settings.policy.model, common
        "Keys that may sign states: those listed that list back, or all that are listed";
    "allow_private_targets" = one switch() => settings.outbound.allow_private, common
        "Allows events to send the server to loopback and private addresses, for test networks. Bootstrap relays may always be there";
    "trusted_roots" = optional path("PATH") => settings.trusted_roots
        "PEM file with certificate authorities that are trusted beside the public ones, for relays (`wss:`) and git servers (`https:`)";
    "trusted_proxies" = list text("ADDRESS[/PREFIX]") => settings.trusted_proxies, common
        "Reverse proxies whose `X-Forwarded-For` is trusted";
    "operator" = optional key() => settings.policy.operator, common
        "Key of the operator: shown in NIP-11, and its events are accepted";
    "contributor_proposals" = one switch() => settings.policy.contributor_proposals, common
        "Lets contributors push pull requests to `/prs/` (GRASP-06)";
    "private" = one switch() => settings.private.enabled, common
        "Makes the service private (GRASP-08): only members read and write, over the relay, git and pages";
    "members" = list key() => settings.private.members, common
        "Members of a private service";
    "members_file" = optional path("PATH") => settings.private.members_file
        "File with further members, a key in each line. A change is in force within five seconds, and a removed member is disconnected";
    "public_origin" = optional text("URL") => settings.private.origin
        "Scheme, host and port by which members reach git, as `https://git.example`. Default: the domain with `https`, on loopback with `http`";
    "metrics" = one switch() => settings.metrics, common
        "Serves `/metrics`";
    "fail_health_when_degraded" = one switch() => settings.fail_health_when_degraded
        "Answers `/health` with 503 instead of 200 while it is degraded: git objects are missing on disk, or the TLS certificate is missing or about to expire";
    "stop_timeout" = one time() => settings.relay.grace
        "Time that a stopping server waits for its clients to finish";
    "repositories_per_author" = one count() => settings.policy.repositories_per_author
        "Repositories that one author may have hosted. The operator may have more";
    "tls.mode" = one choice(vec![("off", TlsMode::Off), ("acme", TlsMode::Acme), ("files", TlsMode::Files)]) => settings.tls.mode, common
        "Source of the certificate: none, an ACME server such as Let's Encrypt, whose terms you accept with it, or files. With one, `git.secure` is on";
    "tls.listen" = optional text("ADDR:PORT") => settings.tls.listen
        "Address and port to listen on for TLS. Default: port 443 of all addresses";
    "tls.http" = optional text("ADDR:PORT") => settings.tls.http
        "Address and port that redirect to TLS, and that answer the challenge HTTP-01. Default: port 80 of all addresses";
    "tls.contact" = optional text("MAIL") => settings.tls.contact
        "Address of the operator for the ACME server, as `operator@example.com`";
    "tls.directory" = one acme_directory() => settings.tls.directory
        "Directory of the ACME server";
    "tls.certificate" = optional path("PATH") => settings.tls.certificate
        "PEM file with the certificate and its chain, for the mode `files`. It is read again when it changes";
    "tls.key" = optional path("PATH") => settings.tls.key
        "PEM file with the key of the certificate";
    "about.name" = optional text("TEXT") => settings.name, common
        "Short name. Default: the address";
    "about.description" = one text("TEXT") => settings.info.description, common
        "Description";
    "about.contact" = optional text("URL") => settings.info.contact, common
        "Contact of the operator, as a `mailto:` or `https:` address";
    "about.icon" = optional text("URL") => settings.info.icon
        "Address of a square picture";
    "about.acceptance" = one text("TEXT") => settings.info.repo_acceptance_criteria
        "Rule by which repositories are accepted, in words";
    "about.curation" = optional text("TEXT") => settings.info.curation
        "Curation of events beyond spam control, in words";
    "log.filter" = one log_filter() => log.filter, common
        "Levels, as in `info` or `grasp_relay=debug`";
    "log.format" = one choice(vec![("human", LogFormat::Human), ("json", LogFormat::Json)]) => log.format, common
        "Format of the lines";
    "bans.authors" = list key() => settings.policy.bans.authors
        "Authors whose events are refused, and taken out of service";
    "bans.repos" = list text("30617:KEY:NAME") => settings.policy.bans.repos
        "Repositories whose announcements are refused, and that are taken out of service";
    "bans.names" = list text("NAME") => settings.policy.bans.names
        "Names of repositories whose announcements are refused";
    "allow.only" = one switch() => settings.policy.allowed.only
        "Hosts only repositories that are allowed: by the three settings below, by operators, or as those of the `operator`";
    "allow.authors" = list key() => settings.policy.allowed.authors
        "Owners whose repositories are all allowed";
    "allow.repos" = list text("30617:KEY:NAME") => settings.policy.allowed.repos
        "Repositories that are allowed";
    "allow.names" = list text("NAME") => settings.policy.allowed.names
        "Names that are allowed for every owner";
    "archive.everything" = one switch() => settings.policy.archive.everything
        "Stores every repository whose announcement is received";
    "archive.owners" = list key() => settings.policy.archive.owners
        "Stores all repositories of these owners";
    "archive.repos" = list text("30617:KEY:NAME") => settings.policy.archive.repos
        "Stores these repositories";
    "archive.identifiers" = list text("NAME") => settings.policy.archive.identifiers
        "Stores all repositories of these names";
    "archive.services" = list text("HOST[:PORT][/MOUNT]") => settings.policy.archive.services
        "Stores all repositories that list one of these services";
    "archive.ignore_deletions" = one switch() => settings.policy.archive.ignores_deletions
        "Stores the requests of authors to delete events or to vanish, and does not carry them out; NIP-11 then names neither NIP-9 nor NIP-62. Bans still apply";
    "sync.enabled" = one switch() => settings.sync.enabled, common
        "Syncs events with other relays";
    "sync.connections" = one count() => settings.sync.engine.connections
        "Connections to other relays at the same time, bootstrap relays not counted";
    "sync.outbox" = one choice(vec![("auto", OutboxMode::Auto), ("on", OutboxMode::On), ("off", OutboxMode::Off)]) => settings.sync.outbox.mode, common
        "Asks the relays of users who take part in repositories for their events, too (GRASP-03): if the server has a public address and is not private, always, or never";
    "sync.index_relays" = optional_list text("URL") => settings.sync.outbox.index_relays
        "Relays that collect the relay lists of all users, for `sync.outbox`. Those listed here are told who the server is, too. Default: `wss://purplepag.es`, `wss://index.hzrd149.com` and `wss://indexer.coracle.social`, which are only asked";
    "sync.fallback_relays" = list text("URL") => settings.sync.outbox.fallback_relays
        "Relays that `sync.outbox` asks for users without a relay list";
    "hunt.git_server" = one limits() => settings.hunt.per_host
        "Requests to one git server at the same time, and that begin in any minute";
    "hunt.grasp_server" = one limits() => settings.hunt.per_grasp_host
        "Requests to one GRASP server at the same time, and that begin in any minute";
    "hunt.hosts" = list host_limit() => settings.hunt.hosts
        "Hosts with limits of their own, as in `github.com:10,60`";
    "sidecar.relay" = optional text("URL") => sidecar_relay
        "Relay that the sidecar syncs; `--relay` overrides it";
    "sidecar.follow_unlisted" = one switch() => settings.sync.engine.follow_unlisted
        "Follows repositories, too, whose announcement does not list the relay by its `domain`";
    "sidecar.listen" = optional text("ADDR:PORT") => sidecar_listen
        "Address for `/health`, `/status` and `/metrics` of the sidecar; choose a private one. Default: none";
    "purgatory.hold_for" = one time() => settings.purgatory.hold_for
        "Time that an event waits before it expires";
    "git.push_bytes" = one bytes() => settings.git.push_bytes
        "Largest pack of a push";
    "git.repository_bytes" = one bytes() => settings.git.repository_bytes
        "Git data that one repository may have on disk, a quarter of it for its maintainers. Pushes beyond it are refused";
    "git.secure" = one switch() => settings.git.secure, common
        "Shows addresses with TLS (`https:`, `wss:`)";
    "git.repositories" = optional path("DIR") => settings.repositories
        "Directory of the repositories. Default: `git` in the data directory";
    "quota.owner_bytes" = one bytes() => settings.quota.owner_bytes
        "Git data that all repositories of one owner may have together, a quarter of it for owner and maintainers. `grasp quota` gives single owners another one";
    "quota.total_bytes" = optional bytes() => settings.quota.total_bytes
        "Git data that all repositories may have together. At this limit pushes are refused, and reads go on. Default: nine tenths of the file system of the repositories; with `packs` none";
    "relay.event_bytes" = one bytes() => settings.relay.event_bytes
        "Largest event as JSON; a state (30618) may have 1 MiB in any case";
    "relay.connections" = one count() => settings.relay.connections
        "Websockets at the same time";
    "relay.limits_loopback" = one switch() => settings.relay.limits_loopback
        "Applies the limits per minute to clients at loopback addresses, too. Turn it off for benchmarks only";
    "pages.show" = one choice(vec![("full", Show::Full), ("basic", Show::Basic), ("off", Show::Off)]) => settings.pages.show, common
        "Pages of repositories with their content, with the clone address only, or none; the status page is shown in any case";
    "pages.confirm" = one choice(vec![("auto", Confirm::Auto), ("always", Confirm::Always), ("never", Confirm::Never)]) => settings.pages.confirm
        "Visitors press a button before they see an expensive page: while pages use half of the processor time that they may use, always, or never";
    "pages.web_client" = one text("URL") => settings.pages.web_client
        "Web client that pages link to for what they cannot do, such as answering";
    "pages.icon" = optional path("FILE") => settings.page_icon
        "Icon of the pages: an SVG or PNG file of up to 64 KiB, read at the start";
    "pages.accent" = optional text("LIGHT,DARK") => settings.pages.branding.accent
        "Colours of links and buttons of the pages, in the light and the dark scheme, as in `#0b57d0,#8ab4f8`. Text in them must be readable (contrast 4.5)";
}
