//! How this server goes to others.

use super::Setting;
use crate::config::codec::{Bytes, Count, HostBudgets, OrNever, Switch, Time};

pub(super) const SYNC: &[Setting] = settings! { "sync." at [settings.sync];
    @common enabled: Switch, "Whether events are kept in step with other relays.";
};

pub(super) const ENGINE: &[Setting] = settings! { "sync." at [settings.sync.engine];
    discovery_window: Time,
        "How long newly accepted repositories and roots are collected before they are acted on, from the first.";
    discovery_quiet: Time, "A pause in the feed after which the collecting ends early; five times as long if the last ended less than a window ago.";
    reply_window: Time, "How long replies are collected before what answers them is asked for.";
    discovery_full: Count, "Changes after which the collecting ends early.";
    relays_per_repo: Count, "Relays of one repository that are followed.";
    values_per_filter: Count,
        "Values per filter at a relay of which neither the software nor the longest message is known; ten times as many where one is. Bytes are a further ceiling.";
    ids_per_fetch: Count, "Ids per request, for a relay that advertises no limit.";
    consolidation_threshold: Count, "Live filters on one connection above which they are rebuilt as fewer.";
    whole_from: OrNever<Bytes>,
        "Bytes of names from which on another GRASP server is asked for all that it has, or never.";
    poll_every: Time, "How often is asked for what could not be subscribed to.";
    watchdog: Time, "How long a request may go without a word.";
    backoff_first (backoff.first): Time, "How long a relay is left alone after it failed once; doubled each time.";
    backoff_cap (backoff.cap): Time, "The longest that a relay is left alone that is not dead.";
    dead_after (backoff.dead_after): Time, "How long a relay must fail to count as dead.";
    dead_retry (backoff.dead_retry): Time, "How long a dead relay is left alone.";
    settle (backoff.settle): Time, "How long a relay must stay well before its failures are forgotten.";
    quarantine: Time,
        "How long a relay is left alone that has no honest reason to fail so: no such name, bad TLS, no websocket.";
    connections: Count, "Connections to other relays at the same time, bootstrap relays not counted; half of them at most to relays that only held announcements name.";
    connections_per_host: Count, "Of these, connections to one host, whatever paths it is said to have.";
    handshakes: Count, "Handshakes at the same time.";
    handshake_gap: Time, "Least distance between the starts of two handshakes.";
    handshake_limit: Time, "When an attempt to connect is given up of which nothing was heard.";
    full_pass_earliest (full_pass.0): Time, "The earliest time for a full pass, counted from the last.";
    full_pass_latest (full_pass.1): Time, "The latest time for a full pass, counted from the last.";
    inventory_items: Count,
        "Items of local inventories in memory at the same time, at 40 bytes each; beyond it history is fetched by pages.";
    persist_after: Time, "How long after a change a relay's record is written.";
    slots_unadvertised (ledger.unadvertised): Count, "Subscriptions at a relay that advertises no limit.";
    slots_most (ledger.most): Count, "Subscriptions at most, whatever a relay advertises.";
    slots_reserve (ledger.reserve): Count, "Subscriptions that stay free.";
    slots_transient (ledger.transient_floor): Count, "Subscriptions that live ones leave to history.";
    fetches (ledger.fetches): Count, "Fetches at the same time, per relay.";
    reconciliations (ledger.reconciliations): Count, "Reconciliations at the same time, per relay.";
    retained_bytes (ledger.retained_bytes): Bytes, "Bytes of requests that a relay of which nothing is known is made to remember.";
    transient_bytes (ledger.transient_bytes): Bytes, "Of those, what live subscriptions leave to one fetch.";
};

pub(super) const LIMITS: &[Setting] = settings! { "sync." at [settings.sync.limits];
    message_bytes: Bytes, "The longest message of a relay that is read; a longer one ends the connection.";
    handshake_timeout: Time, "How long a connection may take to be made, from the name to the websocket.";
    ping_after: Time, "Silence after which a relay is asked whether it is still there.";
    idle_timeout: Time, "Silence after which a relay is taken for lost.";
    write_timeout: Time, "How long a relay may not read what it is sent.";
};

pub(super) const HUNT: &[Setting] = settings! { "hunt." at [settings.hunt];
    host_at_once (per_host.at_once): Count, "Conversations with one git server at the same time.";
    host_per_minute (per_host.starts): Count, "Conversations with one git server that begin in any minute.";
    grasp_at_once (per_grasp_host.at_once): Count, "Conversations with one GRASP server at the same time.";
    grasp_per_minute (per_grasp_host.starts): Count, "Conversations with one GRASP server that begin in any minute.";
    hosts: HostBudgets, "Hosts with limits of their own: at once and per minute, as in `github.com:10,60`.";
    debounce: Time, "The time between attempts that a burst of events of one repository can cause; the first begins at once.";
    max_waiting (per_host.max_waiting): Count, "Turns that may wait at one host.";
    backoff_first (backoff.first): Time, "When to look again after the first time in vain; doubled each time.";
    backoff_cap (backoff.cap): Time, "The longest pause between two looks while an event waits.";
    gives_way_after (backoff.dead_after): Time, "How long in vain until the pause becomes the one of `expired_retry`.";
    expired_retry (backoff.dead_retry): Time, "The pause between two looks once that is over.";
    pause: Time, "How long a server that asks for less is left alone if it does not say how long.";
    longest_pause: Time, "The longest that a server can have itself left alone.";
    guesses_per_visit: Count, "Objects asked for in one visit although the server does not advertise them.";
    guesses_per_minute: Count, "Such questions to one server within a minute.";
    memory: Time, "How long it is remembered what a server did not have, as long as it advertises the same.";
    remembered: Count, "For how many addresses that is remembered.";
    places_per_attempt: Count, "Addresses tried in one attempt.";
    answer_is_late: Time, "When a server is late with its first answer, so that another is asked beside it.";
    fetch_is_late: Time, "When a server that has answered is late with its objects.";
    fetch_gives_way: Time, "How long it may take with its objects while others wait because all `git.remote_pace` processes are busy; doubled each time.";
    late_visits: Count, "How many servers may be late at once before an attempt waits for one of them.";
    pull_every: Time, "How often everything that is served or was given up is looked after.";
};

pub(super) const FETCH: &[Setting] = settings! { "hunt." at [settings.fetch];
    fetch_bytes (bytes): Bytes, "Bytes of one fetch on disk.";
    fetch_objects (objects): Count, "Objects of one fetch. Whoever offers more is stopped before the first of them.";
    fetch_memory (memory): Bytes, "Memory of one git process that fetches.";
    listing_limit (listing): Time, "How long an advertisement may take.";
    fetch_silence (silence): Time, "How long a transfer may be silent.";
    fetch_limit (longest): Time, "How long a transfer may take in all.";
};
