//! What an instance is, who runs it, and whom it welcomes.

use super::Setting;
use crate::config::codec::{
    Choice, Count, Directives, Key, List, Maybe, Model, Path, Switch, Time, Word,
};

pub(super) const PROCESS: &[Setting] = settings! { "" at [];
    @common listen: Word as "ADDR:PORT", "Where the server listens.";
    @common domain: Maybe<Word> as "HOST[:PORT][/MOUNT]",
        "The address that others reach the server at, and that announcements must list. The routes lie below its \
         mount. Without one: where it listens.";
    admin_socket: Maybe<Path>,
        "Where `grasp status` and the like find a running server. Without one: `admin.sock` in the data directory.";
};

pub(super) const SERVER: &[Setting] = settings! { "" at [settings];
    @common data_dir: Path as "DIR", "Where everything is kept.";
    service_key: Maybe<Path>,
        "The file with the key that the service signs with, made at the first start. Without one: `service.key` in \
         the data directory.";
    store: Choice as "sqlite|nostr-sqlite|nostr-lmdb",
        "What keeps the events: our own store, or a database of the ecosystem that this build has as a feature.";
    @common bootstrap (sync.engine.bootstrap): List<Word> as "URL",
        "Relays to sync from whether a repository names them or not.";
    @common maintainers: Model,
        "Who may sign states: whoever is listed and lists back, or whoever is listed.";
    @common allow_private_targets (outbound.allow_private): Switch,
        "Whether events of strangers may send the server to loopback and private addresses, for test networks. \
         Bootstrap relays may always be there.";
    trusted_roots: Maybe<Path>,
        "A PEM file with certificates of authorities that are believed beside the public ones, for networks with an \
         authority of their own. It holds for relays (`wss:`) and for git servers (`https:`).";
    @common trusted_proxies: List<Word> as "ADDRESS[/PREFIX]",
        "Reverse proxies whose `X-Forwarded-For` is believed.";
    @common operator: Maybe<Key>,
        "The operator's key: shown in NIP-11, and what it signs is welcome.";
    @common contributor_proposals: Switch,
        "Whether contributors may push pull requests to `/prs/` (GRASP-06).";
    @common metrics: Switch, "Whether `/metrics` is served.";
    repositories_per_author: Count,
        "Repositories that one author may have served here for the asking. The operator may have more.";
    max_ahead: Time, "How far ahead of the server's clock an event may be dated; at least a minute.";
};

pub(super) const ABOUT: &[Setting] = settings! { "about." at [settings.about];
    @common name: Maybe<Word>, "A short name. Without one: the address.";
    @common description: Word, "A few sentences.";
    @common contact: Maybe<Word>, "How to reach the operator, as a `mailto:` or `https:` address.";
    icon: Maybe<Word> as "URL", "Where a square picture is.";
    acceptance: Word, "Which repositories are taken in, in words.";
    curation: Maybe<Word>, "How events are curated beyond spam control, in words; leave it out if they are not.";
};

pub(super) const LOG: &[Setting] = settings! { "log." at [log];
    @common filter: Directives, "What to tell, as in `info` or `grasp_relay=debug`.";
    @common format: Choice as "human|json", "For people or for machines.";
};

pub(super) const SIDECAR: &[Setting] = settings! { "sidecar." at [];
    relay (sidecar_relay): Maybe<Word> as "URL", "The relay that `grasp sidecar` keeps complete; its `--relay` wins.";
    follow_unlisted (settings.sync.engine.follow_unlisted): Switch,
        "Whether `grasp sidecar` follows repositories too whose announcement does not list the relay by its `domain`.";
    listen (sidecar_listen): Maybe<Word> as "ADDR:PORT",
        "Where `grasp sidecar` answers to `/health`, `/status` and `/metrics`; a private address is best. Without one: \
         nowhere.";
};

pub(super) const BANS: &[Setting] = settings! { "bans." at [settings.bans];
    authors: List<Key>, "Authors whose events are refused.";
    repos: List<Word> as "30617:KEY:NAME", "Repositories whose announcements are refused.";
};

pub(super) const ARCHIVE: &[Setting] = settings! { "archive." at [settings.archive];
    everything: Switch, "Every repository that is heard of.";
    owners: List<Key>, "All repositories of these owners.";
    repos: List<Word> as "30617:KEY:NAME", "These repositories.";
    identifiers: List<Word> as "NAME", "All repositories of these names, whoever owns them.";
    services: List<Word> as "HOST[:PORT][/MOUNT]", "All repositories that list one of these services.";
};
