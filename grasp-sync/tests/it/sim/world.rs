//! Random repositories on random relays, and the events that should be here in the end.

use grasp_core::nostr::event::{Event, EventId};
use grasp_core::nostr::key::PublicKey;
use grasp_core::sync::{
    RequestBudget, SyncIndex, build_announcement_filter, build_layer2_and_layer3_filters,
};
use grasp_core::{RelayUrl, RepoId};
use grasp_sync::engine::Config;
use std::collections::BTreeSet;

use super::chance::Chance;
use super::local::{Local, matches, our_url};
use super::peer::Peer;
use super::script::Script;
use super::{START, Sim, event};

/// A full pass every two to three hours, so that days are short.
pub(crate) fn config() -> Config {
    let hours = |n: u64| std::time::Duration::from_secs(n * 60 * 60);
    let mut config = Config::new("us.example".parse().unwrap());
    config.can_authenticate = true;
    config.full_pass = (hours(2), hours(3));
    config
}

pub(crate) fn relay(n: usize) -> RelayUrl {
    format!("wss://r{n}.example").parse().unwrap()
}

pub(crate) fn repo(chance: &mut Chance, name: &str) -> RepoId {
    RepoId::new(
        PublicKey::from_byte_array(chance.bytes()),
        name.parse().unwrap(),
    )
}

/// Returns a world in which no relay is ever unreachable, silent, full or rate-limited.
pub(crate) fn calm(seed: u64) -> Sim {
    random_of(seed, |script| Script {
        connection_secs: None,
        down_secs: None,
        silent_one_in: None,
        starts_per_minute: None,
        subs: 200,
        is_open: true,
        ..script
    })
}

/// Returns a world by seed: relays with random scripts and random shares of random threads.
pub(crate) fn random(seed: u64) -> Sim {
    random_of(seed, |script| script)
}

fn random_of(seed: u64, choose: impl Fn(Script) -> Script) -> Sim {
    let mut chance = Chance::seeded(seed ^ 0x5eed);
    let relays: Vec<RelayUrl> = (0..chance.within(1, 4) as usize).map(relay).collect();
    let mut config = config();
    config.bootstrap = relays.iter().take(1).cloned().collect();
    config.full_sync_above = *chance.pick(&[None, Some(1_000), Some(5_000)]);
    let mut sim = Sim::new(seed, config);
    for url in &relays {
        let script = choose(Script::random(&mut chance));
        sim.peers.insert(url.clone(), Peer::new(script, []));
    }
    for n in 0..chance.within(1, 5) {
        random_repo(&mut sim, &mut chance, &relays, n);
    }
    for _ in 0..chance.within(0, 60) {
        let other = repo(&mut chance, "other");
        let event = event::announcement(&mut chance, &other, START - 500, &relays);
        scatter(&mut sim, &mut chance, &relays, event);
    }
    sim
}

fn random_repo(sim: &mut Sim, chance: &mut Chance, relays: &[RelayUrl], n: u64) {
    let repo = repo(chance, &format!("repo-{n}"));
    let mut listed = vec![our_url(), chance.pick(relays).clone()];
    listed.extend(relays.iter().filter(|_| chance.one_in(2)).cloned());
    let announced = event::announcement(chance, &repo, START - 9_000, &listed);
    if chance.one_in(2) {
        sim.accept(announced);
    } else {
        scatter(sim, chance, relays, announced);
    }
    let states = chance.within(0, 2);
    for _ in 0..states {
        let at = START - chance.within(1, 8_000);
        let state = event::state(chance, &repo, at);
        scatter(sim, chance, relays, state);
    }
    for _ in 0..chance.within(0, 80) {
        random_thread(sim, chance, relays, &repo);
    }
}

fn random_thread(sim: &mut Sim, chance: &mut Chance, relays: &[RelayUrl], repo: &RepoId) {
    let at = START - chance.within(1, 1_000_000);
    let root = event::issue(chance, at, std::slice::from_ref(repo));
    for _ in 0..chance.within(0, 2) {
        let tag = *chance.pick(&["E", "e", "q"]);
        let later = at + chance.within(0, 900);
        let comment = event::comment(chance, later, root.id, tag);
        scatter(sim, chance, relays, comment);
    }
    scatter(sim, chance, relays, root);
}

/// Puts an event on at least one relay; some only later, while we are subscribed.
fn scatter(sim: &mut Sim, chance: &mut Chance, relays: &[RelayUrl], event: Event) {
    let first = chance.within(0, relays.len() as u64 - 1) as usize;
    for (n, url) in relays.iter().enumerate() {
        if n != first && !chance.one_in(3) {
            continue;
        }
        if chance.one_in(5) {
            let wait = std::time::Duration::from_secs(chance.within(0, 4_000));
            sim.publish_after(wait, url, event.clone());
        } else if let Some(peer) = sim.peers.get_mut(url) {
            peer.events.insert(event.id, event.clone());
        }
    }
}

/// Returns the events that should be here once every relay was asked for everything, by brute force.
pub(crate) fn obtainable(sim: &Sim) -> BTreeSet<EventId> {
    let mut local: Local = sim.local.clone();
    loop {
        let before = local.stored.len();
        let mut index = SyncIndex::new("us.example".parse().unwrap(), [relay(0)]);
        let changes = local
            .stored
            .values()
            .map(|event| super::accepted(event, false).change);
        let _ = index.apply(changes.flatten().collect::<Vec<_>>());
        for (url, peer) in &sim.peers {
            let Some(target) = index.target(url) else {
                continue;
            };
            let mut filters =
                build_layer2_and_layer3_filters(&target, None, &RequestBudget::default());
            filters.push(build_announcement_filter(None));
            let wanted = |event: &&Event| filters.iter().any(|filter| matches(filter, event));
            let _ = local.ingest(peer.events.values().filter(wanted).cloned().collect());
        }
        if local.stored.len() == before {
            return local.stored.into_keys().collect();
        }
    }
}
