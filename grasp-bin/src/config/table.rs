//! Every setting, defined once.

use std::sync::LazyLock;

use grasp_core::MaintainerModel;

use super::LogFormat;
use super::setting::{
    Setting, bytes, choice, count, host_limit, key, limits, list, log_filter, one, optional, path,
    switch, text, time,
};

/// The sections of the file and their titles, in the order of the reference.
pub(crate) const SECTIONS: [(&str, &str); 11] = [
    ("", "The instance"),
    ("about", "Presentation in NIP-11"),
    ("log", "Log on standard error"),
    ("bans", "Refused authors and repositories"),
    ("archive", "Repositories kept although they do not list this instance (GRASP-05)"),
    ("sync", "Events from other relays (GRASP-02)"),
    ("hunt", "Git data from other servers (GRASP-02)"),
    ("sidecar", "For `grasp sidecar`"),
    ("purgatory", "Events that wait for their git data"),
    ("git", "The git host"),
    ("relay", "Limits of the relay"),
];

/// Returns all settings, by section.
pub(crate) fn settings() -> &'static [Setting] {
    static SETTINGS: LazyLock<Vec<Setting>> = LazyLock::new(|| {
        let sections = [
            instance(),
            nodes(),
            access(),
            presentation(),
            selection(),
            sync_and_hunt(),
            hosting(),
        ];
        sections.into_iter().flatten().collect()
    });
    &SETTINGS
}

fn instance() -> Vec<Setting> {
    vec![
        one("listen", text("ADDR:PORT"), |c| &mut c.listen)
            .common()
            .help("Address and port to listen on"),
        optional("domain", text("HOST[:PORT][/MOUNT]"), |c| &mut c.domain).common().help(
            "Address that others reach the server at, and that announcements must list. Routes lie below its mount. \
             Default: the address it listens on",
        ),
        one("data_dir", path("DIR"), |c| &mut c.settings.data_dir)
            .common()
            .help("Directory with everything that the server stores"),
        optional("admin_socket", path("PATH"), |c| &mut c.admin_socket).help(
            "Socket of `grasp status` and similar commands. Default: `admin.sock` in the data directory",
        ),
        optional("service_key", path("PATH"), |c| &mut c.settings.service_key).help(
            "File with the key that the service signs with, created at the first start. Default: `service.key` in the \
             data directory",
        ),
        list("bootstrap", text("URL"), |c| &mut c.settings.sync.engine.bootstrap)
            .common()
            .help("Relays to sync from, whether a repository names them or not"),
    ]
}

fn nodes() -> Vec<Setting> {
    vec![
        optional("database", text("URL"), |c| &mut c.settings.database).help(
            "PostgreSQL database that several nodes share, as `postgres://grasp@db/grasp`. Default: a file in the data \
             directory, for one process",
        ),
        optional("packs", text("URL"), |c| &mut c.settings.packs).help(
            "Object store of the packs that several nodes share, as `s3://bucket/prefix` or `file:///dir`. Credentials, \
             region and endpoint come from the variables `AWS_…`",
        ),
        optional("node_address", text("URL"), |c| &mut c.settings.node_address)
            .help("Address at which the other nodes reach this one, as `http://node1:7334`"),
        one("pack_cache_bytes", bytes(), |c| &mut c.settings.pack_cache_bytes)
            .help("Packs from the object store that a node keeps on disk, in bytes"),
    ]
}

/// Returns the settings of who may do what at this server.
fn access() -> Vec<Setting> {
    let models =
        vec![("reciprocal", MaintainerModel::Reciprocal), ("plain", MaintainerModel::Plain)];
    vec![
        one("maintainers", choice(models), |c| &mut c.settings.policy.model)
            .common()
            .help("Keys that may sign states: those listed that list back, or all that are listed"),
        one("allow_private_targets", switch(), |c| &mut c.settings.outbound.allow_private)
            .common()
            .help(
                "Allows events to send the server to loopback and private addresses, for test networks. Bootstrap \
                 relays may always be there",
            ),
        optional("trusted_roots", path("PATH"), |c| &mut c.settings.trusted_roots).help(
            "PEM file with certificate authorities that are trusted beside the public ones, for relays (`wss:`) and \
             git servers (`https:`)",
        ),
        list("trusted_proxies", text("ADDRESS[/PREFIX]"), |c| &mut c.settings.trusted_proxies)
            .common()
            .help("Reverse proxies whose `X-Forwarded-For` is believed"),
        optional("operator", key(), |c| &mut c.settings.policy.operator)
            .common()
            .help("Key of the operator: shown in NIP-11, and its events are accepted"),
        one("contributor_proposals", switch(), |c| &mut c.settings.policy.contributor_proposals)
            .common()
            .help("Lets contributors push pull requests to `/prs/` (GRASP-06)"),
        one("metrics", switch(), |c| &mut c.settings.metrics).common().help("Serves `/metrics`"),
        one("fail_health_when_degraded", switch(), |c| &mut c.settings.fail_health_when_degraded)
            .help("Answers `/health` with 503 instead of 200 while git objects are missing on disk"),
        one("stop_timeout", time(), |c| &mut c.settings.relay.grace)
            .help("Time that a stopping server waits for its clients to finish"),
        one("repositories_per_author", count(), |c| &mut c.settings.policy.repositories_per_author)
            .help("Repositories that one author may have hosted. The operator may have more"),
    ]
}

fn presentation() -> Vec<Setting> {
    let formats = vec![("human", LogFormat::Human), ("json", LogFormat::Json)];
    vec![
        optional("about.name", text("TEXT"), |c| &mut c.settings.name)
            .common()
            .help("Short name. Default: the address"),
        one("about.description", text("TEXT"), |c| &mut c.settings.info.description)
            .common()
            .help("Description"),
        optional("about.contact", text("URL"), |c| &mut c.settings.info.contact)
            .common()
            .help("Contact of the operator, as a `mailto:` or `https:` address"),
        optional("about.icon", text("URL"), |c| &mut c.settings.info.icon)
            .help("Address of a square picture"),
        one("about.acceptance", text("TEXT"), |c| &mut c.settings.info.repo_acceptance_criteria)
            .help("Rule by which repositories are accepted, in words"),
        optional("about.curation", text("TEXT"), |c| &mut c.settings.info.curation)
            .help("Curation of events beyond spam control, in words"),
        one("log.filter", log_filter(), |c| &mut c.log.filter)
            .common()
            .help("Levels, as in `info` or `grasp_relay=debug`"),
        one("log.format", choice(formats), |c| &mut c.log.format)
            .common()
            .help("Format of the lines"),
    ]
}

/// Returns the settings of what is refused and what is kept.
fn selection() -> Vec<Setting> {
    vec![
        list("bans.authors", key(), |c| &mut c.settings.policy.bans.authors)
            .help("Authors whose events are refused"),
        list("bans.repos", text("30617:KEY:NAME"), |c| &mut c.settings.policy.bans.repos)
            .help("Repositories whose announcements are refused"),
        one("archive.everything", switch(), |c| &mut c.settings.policy.archive.everything)
            .help("Keeps every repository that is heard of"),
        list("archive.owners", key(), |c| &mut c.settings.policy.archive.owners)
            .help("Keeps all repositories of these owners"),
        list("archive.repos", text("30617:KEY:NAME"), |c| &mut c.settings.policy.archive.repos)
            .help("Keeps these repositories"),
        list("archive.identifiers", text("NAME"), |c| &mut c.settings.policy.archive.identifiers)
            .help("Keeps all repositories of these names"),
        list("archive.services", text("HOST[:PORT][/MOUNT]"), |c| {
            &mut c.settings.policy.archive.services
        })
        .help("Keeps all repositories that list one of these services"),
    ]
}

fn sync_and_hunt() -> Vec<Setting> {
    vec![
        one("sync.enabled", switch(), |c| &mut c.settings.sync.enabled)
            .common()
            .help("Keeps events in step with other relays"),
        one("sync.connections", count(), |c| &mut c.settings.sync.engine.connections)
            .help("Connections to other relays at the same time, bootstrap relays not counted"),
        one("hunt.git_server", limits(), |c| &mut c.settings.hunt.per_host)
            .help("Conversations with one git server at the same time, and that begin in any minute"),
        one("hunt.grasp_server", limits(), |c| &mut c.settings.hunt.per_grasp_host)
            .help("Conversations with one GRASP server at the same time, and that begin in any minute"),
        list("hunt.hosts", host_limit(), |c| &mut c.settings.hunt.hosts)
            .help("Hosts with limits of their own, as in `github.com:10,60`"),
        optional("sidecar.relay", text("URL"), |c| &mut c.sidecar_relay)
            .help("Relay that the sidecar keeps complete; `--relay` wins"),
        one("sidecar.follow_unlisted", switch(), |c| &mut c.settings.sync.engine.follow_unlisted).help(
            "Follows repositories, too, whose announcement does not list the relay by its `domain`",
        ),
        optional("sidecar.listen", text("ADDR:PORT"), |c| &mut c.sidecar_listen).help(
            "Address for `/health`, `/status` and `/metrics` of the sidecar; a private one is best. Default: none",
        ),
    ]
}

fn hosting() -> Vec<Setting> {
    vec![
        one("purgatory.hold_for", time(), |c| &mut c.settings.purgatory.hold_for)
            .help("Time that an event waits before it expires"),
        one("git.push_bytes", bytes(), |c| &mut c.settings.git.push_bytes)
            .help("Largest pack of a push"),
        one("git.repository_bytes", bytes(), |c| &mut c.settings.git.repository_bytes).help(
            "Git data on disk that the repositories of one name may have together, a quarter of it for maintainers of \
             served ones. Pushes beyond it are refused",
        ),
        one("git.secure", switch(), |c| &mut c.settings.git.secure)
            .common()
            .help("Shows addresses with TLS (`https:`, `wss:`)"),
        optional("git.repositories", path("DIR"), |c| &mut c.settings.repositories)
            .help("Directory of the repositories. Default: `git` in the data directory"),
        one("relay.event_bytes", bytes(), |c| &mut c.settings.relay.event_bytes)
            .help("Largest event as JSON; a state (30618) may have 1 MiB in any case"),
        one("relay.connections", count(), |c| &mut c.settings.relay.connections)
            .help("Websockets at the same time"),
    ]
}
