//! Connections, shared out between the owners that name relays and the networks that relays are in.
//!
//! An event can name any relay, and thousands of names can lead to one machine. So a connection is taken from a
//! [`Pool`] for an owner of a repository that lists the relay, or else for a user whose relay it is, and for the
//! network of the relay's address. Where there is no room left, relays take turns: the relay that waits longest is
//! connected to, and one of the same kind that had its turn and whose owner or network has more connections gives way.
//! Visits end soon: none gives way, and they have their part of the handshakes. Bootstrap relays are not counted.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use grasp_core::resources::{Claimant, ClientNetwork, Grant, Pool, Shortage};
use grasp_core::sync::{SyncIndex, SyncLevel};
use grasp_core::{Host, Mono, RelayUrl};

use super::Config;
use super::shares::Shares;
use super::visits::Scope;

/// Concurrent handshakes.
pub(super) const MAX_HANDSHAKES: usize = 8;
/// Time that a relay keeps its connection although others wait.
const TURN_LENGTH: Duration = Duration::from_secs(10 * 60);
/// Shortest time between two relays that are connected to in turn.
const TURN_GAP: Duration = Duration::from_secs(10);
/// Handshakes for other relays after which one for a visit comes first.
const HANDSHAKES_PER_VISIT: usize = 3;

/// The open connections, and the claimants that hold them.
#[derive(Debug)]
pub(super) struct Connections {
    shares: Shares,
    most_per_host: usize,
    /// Relays that are not counted.
    exempt: BTreeSet<RelayUrl>,
    by_host: BTreeMap<Host, usize>,
    held: BTreeMap<RelayUrl, Held>,
    /// The time at which the next relay is connected to in turn, if any waits.
    next_turn: Option<Mono>,
    /// Shortest time between the starts of two handshakes.
    handshake_gap: Duration,
    next_handshake: Mono,
    /// Handshakes since the last one for a visit.
    since_visit: usize,
    /// True if a relay waits for a handshake.
    pub(super) is_waiting: bool,
    /// True if a relay may have become dialable, or a slot free, since the last check.
    pub(super) needs_check: bool,
}

#[derive(Debug)]
struct Held {
    grant: Grant,
    claim: Claim,
    /// The time since which it is connected, if it is.
    since: Option<Mono>,
}

/// What a connection is taken for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    pub(super) claimant: Claimant,
    /// What the relay is followed for.
    pub(super) scope: Scope,
}

impl Held {
    fn had_its_turn(&self, now: Mono) -> bool {
        self.since.is_some_and(|since| now - since >= TURN_LENGTH)
    }
}

/// Returns the claimant of a connection to a relay: of the owners that list it, or else of the users whose relay it is,
/// the one that holds fewest. It has authority if a served repository lists the relay.
pub(super) fn claimant(
    pool: &Pool,
    index: &SyncIndex,
    relay: &RelayUrl,
    address: Option<IpAddr>,
) -> Claimant {
    let has_authority = index.is_wanted_in_full_from(relay);
    let level = if has_authority {
        SyncLevel::Full
    } else {
        SyncLevel::StateOnly
    };
    let network = address.map(ClientNetwork::of);
    let unsigned = Claimant {
        network,
        author: None,
        has_authority,
    };
    let mut least: Option<(u64, Claimant)> = None;
    let authors = index.users_of(relay);
    let authors = authors.filter(|_| !index.is_listed(relay));
    for owner in index.owners(relay, Some(level)).chain(authors) {
        let held = pool.held_by(&Claimant::default().signed_by(owner));
        if least.is_none_or(|(fewest, _)| held < fewest) {
            least = Some((held, unsigned.signed_by(owner)));
        }
        if held == 0 {
            break;
        }
    }
    least.map_or(unsigned, |(_, claimant)| claimant)
}

impl Connections {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            shares: Shares::of_connections(config),
            most_per_host: config.connections_per_host,
            exempt: config.bootstrap.iter().cloned().collect(),
            by_host: BTreeMap::new(),
            held: BTreeMap::new(),
            next_turn: None,
            handshake_gap: config.handshake_gap,
            next_handshake: Mono::ZERO,
            since_visit: 0,
            is_waiting: false,
            needs_check: true,
        }
    }

    /// Sets the relays whose connections are not counted. None of them may have a connection.
    pub(super) fn set_exempt(&mut self, relays: &[RelayUrl]) {
        self.exempt = relays.iter().cloned().collect();
        self.needs_check = true;
    }

    pub(super) fn is_exempt(&self, relay: &RelayUrl) -> bool {
        self.exempt.contains(relay)
    }

    /// Returns whether no relay of this scope but exempt ones could be connected to, for any claimant.
    pub(super) fn is_full(&self, scope: Scope) -> bool {
        let pool = self.shares.of(scope);
        pool.usage().all >= pool.bounds().total
    }

    pub(super) fn claim(
        &self,
        index: &SyncIndex,
        relay: &RelayUrl,
        scope: Scope,
        address: Option<IpAddr>,
    ) -> Claim {
        let claimant = claimant(self.shares.of(scope), index, relay, address);
        Claim { claimant, scope }
    }

    /// Returns whether a relay may be connected to.
    pub(super) fn has_room(&self, relay: &RelayUrl, claim: &Claim) -> bool {
        let pool = self.shares.of(claim.scope);
        self.is_exempt(relay) || (pool.room(&claim.claimant) > 0 && self.has_host_room(relay))
    }

    pub(super) fn has_host_room(&self, relay: &RelayUrl) -> bool {
        self.by_host.get(&relay.host()).copied().unwrap_or_default() < self.most_per_host
    }

    /// Returns the number of connections that a claimant's owner or network has, whichever has more.
    pub(super) fn weight(&self, claim: &Claim) -> u64 {
        let pool = self.shares.of(claim.scope);
        let owner = pool.held_by(&Claimant {
            network: None,
            ..claim.claimant
        });
        owner.max(pool.held_by(&claim.claimant))
    }

    /// Takes a connection for a relay, in place of the one it has.
    pub(super) fn take(&mut self, relay: &RelayUrl, claim: Claim) -> Result<(), Shortage> {
        self.give_back(relay);
        if self.is_exempt(relay) {
            return Ok(());
        }
        if !self.has_host_room(relay) {
            return Err(Shortage::Total);
        }
        let grant = self.shares.of_mut(claim.scope).take(&claim.claimant, 1)?;
        *self.by_host.entry(relay.host()).or_default() += 1;
        self.held.insert(
            relay.clone(),
            Held {
                grant,
                claim,
                since: None,
            },
        );
        Ok(())
    }

    /// Notes that a relay is connected: its turn begins.
    pub(super) fn connected(&mut self, now: Mono, relay: &RelayUrl) {
        if let Some(held) = self.held.get_mut(relay) {
            held.since = Some(now);
        }
    }

    /// Releases the connection or attempt of a relay.
    pub(super) fn give_back(&mut self, relay: &RelayUrl) {
        let Some(held) = self.held.remove(relay) else {
            return;
        };
        self.shares.of_mut(held.claim.scope).give_back(held.grant);
        let host = relay.host();
        if let Some(count) = self.by_host.get_mut(&host) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.by_host.remove(&host);
            }
        }
    }

    /// Returns whether a relay that had its turn may have to give way to a claimant.
    pub(super) fn may_replace(&self, now: Mono, claim: &Claim) -> bool {
        let mut held = self.held.values();
        held.any(|held| held.had_its_turn(now) && self.outranks(claim, held))
    }

    /// Returns a relay that had its turn and without which there is room for a claimant.
    pub(super) fn give_way(
        &mut self,
        now: Mono,
        index: &SyncIndex,
        claim: &Claim,
    ) -> Option<RelayUrl> {
        let lighter = self.held.iter();
        let lighter =
            lighter.filter(|(_, held)| held.had_its_turn(now) && self.outranks(claim, held));
        let mut lighter: Vec<_> = lighter
            .map(|(relay, held)| {
                let weight = Reverse(self.weight(&held.claim));
                let owners = index.owners_of(relay);
                (
                    held.claim.claimant.has_authority,
                    weight,
                    owners,
                    held.since,
                    relay.clone(),
                )
            })
            .collect();
        lighter.sort();
        lighter
            .into_iter()
            .map(|(.., relay)| relay)
            .find(|relay| self.would_fit(relay, claim))
    }

    /// Returns whether a waiting claimant comes before a connected one: its owner and network have fewer connections;
    /// or as many, being the same. A served repository does not give way to one that is not, no relay to one of another
    /// kind, and no visit at all.
    fn outranks(&self, waiting: &Claim, held: &Held) -> bool {
        if waiting.scope != held.claim.scope || waiting.scope == Scope::Visits {
            return false;
        }
        let ours = self.weight(waiting);
        let theirs = self.weight(&held.claim);
        let waiting = &waiting.claimant;
        let its = &held.claim.claimant;
        if its.has_authority && !waiting.has_authority {
            return false;
        }
        let is_network = waiting.network.is_some() && waiting.network == its.network;
        let is_same = waiting.author == its.author || is_network;
        theirs > ours || (theirs == ours && is_same)
    }

    /// Returns whether there would be room for a claimant without a relay's connection.
    fn would_fit(&mut self, without: &RelayUrl, claim: &Claim) -> bool {
        let Some(held) = self.held.remove(without) else {
            return false;
        };
        let pool = self.shares.of_mut(held.claim.scope);
        pool.give_back(held.grant);
        let fits = claim.scope == held.claim.scope && pool.room(&claim.claimant) > 0;
        let grant = pool.force(&held.claim.claimant, 1);
        self.held.insert(without.clone(), Held { grant, ..held });
        fits
    }

    /// Notes whether relays wait without room; returns whether the turn of one of them has come.
    pub(super) fn take_turn(&mut self, now: Mono, is_waited_for: bool) -> bool {
        let is_due = self.next_turn.is_some_and(|at| now >= at);
        if is_due || self.next_turn.is_none() || !is_waited_for {
            self.next_turn = is_waited_for.then(|| now + TURN_GAP);
        }
        is_due && is_waited_for
    }

    /// Returns whether another handshake may start now, besides those under way.
    pub(super) fn may_dial(&self, now: Mono, handshakes: usize) -> bool {
        handshakes < MAX_HANDSHAKES && now >= self.next_handshake
    }

    /// Notes the start of a handshake.
    pub(super) fn dialled(&mut self, now: Mono, is_visit: bool) {
        self.next_handshake = now + self.handshake_gap;
        self.since_visit = if is_visit { 0 } else { self.since_visit + 1 };
    }

    /// Returns whether the next handshake is for a visit, if one waits. Otherwise visits come last.
    pub(super) fn is_turn_of_visits(&self) -> bool {
        self.since_visit >= HANDSHAKES_PER_VISIT
    }

    /// Returns when the next turn comes, or the next handshake may start.
    pub(super) fn deadline(&self, handshakes: usize) -> Option<Mono> {
        let may_start = self.is_waiting && handshakes < MAX_HANDSHAKES;
        self.next_turn
            .into_iter()
            .chain(may_start.then_some(self.next_handshake))
            .min()
    }

    #[cfg(any(test, feature = "test-util"))]
    /// Returns whether the connection of a relay is counted.
    pub(super) fn is_held(&self, relay: &RelayUrl) -> bool {
        self.held.contains_key(relay)
    }

    #[cfg(any(test, feature = "test-util"))]
    /// Panics unless every connection is accounted for once.
    pub(super) fn check(&self) {
        assert_eq!(
            self.shares.taken(),
            self.held.len() as u64,
            "connections are miscounted"
        );
        assert_eq!(
            self.by_host.values().sum::<usize>(),
            self.held.len(),
            "hosts are miscounted"
        );
    }
}

#[cfg(test)]
mod tests {
    use grasp_core::nostr::event::EventId;
    use grasp_core::nostr::key::PublicKey;
    use grasp_core::nostr::types::Timestamp;
    use grasp_core::resources::Bounds;
    use grasp_core::sync::IndexChange;
    use grasp_core::{RepoId, Version};

    use super::*;

    fn owner(n: u8) -> PublicKey {
        PublicKey::from_byte_array([n; 32])
    }

    fn relay(n: usize) -> RelayUrl {
        format!("wss://r{n}.example").parse().unwrap()
    }

    fn announced(owner_of: u8, relays: &[RelayUrl], level: SyncLevel) -> IndexChange {
        let repo = RepoId::new(owner(owner_of), "r".parse().unwrap());
        let version = Version {
            created_at: Timestamp::from_secs(1),
            id: EventId::from_byte_array([0; 32]),
        };
        IndexChange::Announced {
            repo,
            version,
            relays: relays.to_vec(),
            level,
        }
    }

    fn setup(changes: Vec<IndexChange>, max: usize) -> (Connections, SyncIndex) {
        setup_with(changes, max, false)
    }

    fn setup_with(
        changes: Vec<IndexChange>,
        max: usize,
        follows_user_relays: bool,
    ) -> (Connections, SyncIndex) {
        let own = "us.example".parse().unwrap();
        let mut index = SyncIndex::new("us.example".parse().unwrap(), []);
        let _ = index.apply(changes);
        (
            Connections::new(&Config {
                connections: max,
                follows_user_relays,
                ..Config::new(own)
            }),
            index,
        )
    }

    /// Connects to as many relays as the limits allow; `None` is an unknown address.
    fn fill(
        connections: &mut Connections,
        index: &SyncIndex,
        relays: &[RelayUrl],
        address: Option<&str>,
    ) -> usize {
        let address = address.map(|text| text.parse().unwrap());
        let taken = relays.iter().filter(|relay| {
            let claim = connections.claim(index, relay, Scope::Full, address);
            let is_taken = connections.take(relay, claim).is_ok();
            connections.connected(Mono::ZERO, relay);
            is_taken
        });
        let count = taken.count();
        connections.check();
        count
    }

    #[test]
    fn an_owner_and_an_address_get_a_quarter_each() {
        let relays: Vec<_> = (0..600).map(relay).collect();
        let (mut connections, index) = setup(vec![announced(1, &relays, SyncLevel::Full)], 512);
        assert_eq!(fill(&mut connections, &index, &relays, None), 128);
        let by_many = |n: usize| announced(n as u8, &relays[n * 6..n * 6 + 6], SyncLevel::Full);
        let (mut connections, index) = setup((0..100).map(by_many).collect(), 512);
        assert_eq!(
            fill(&mut connections, &index, &relays, Some("198.51.100.7")),
            128
        );
    }

    #[test]
    fn a_relay_is_counted_for_the_owner_with_the_fewest_connections() {
        let relays: Vec<_> = (0..20).map(relay).collect();
        let announced = [
            announced(1, &relays, SyncLevel::Full),
            announced(2, &relays[19..], SyncLevel::Full),
        ];
        let (mut connections, index) = setup(announced.into(), 40);
        assert_eq!(fill(&mut connections, &index, &relays, None), 11);
        assert!(connections.is_held(&relays[19]));
    }

    #[test]
    fn the_larger_holder_is_disconnected_after_its_time_and_served_never_for_unserved() {
        let relays: Vec<_> = (0..8).map(relay).collect();
        let changes = vec![
            announced(1, &relays[..4], SyncLevel::Full),
            announced(2, &relays[4..6], SyncLevel::Full),
            announced(3, &relays[6..7], SyncLevel::Full),
            announced(4, &relays[7..], SyncLevel::StateOnly),
        ];
        let (mut connections, index) = setup(changes, 4);
        *connections.shares.of_mut(Scope::Full) = Pool::new(Bounds {
            total: 4,
            reserve: 3,
            per_author: 9,
            smallest: 1,
        });
        assert_eq!(fill(&mut connections, &index, &relays[3..6], None), 3);
        assert_eq!(
            fill(&mut connections, &index, &relays[..1], None),
            1,
            "owners 1 and 2 have two"
        );
        let waiting = connections.claim(&index, &relays[6], Scope::Full, None);
        assert!(!connections.has_room(&relays[6], &waiting));
        assert!(!connections.may_replace(Mono::from_secs(599), &waiting));
        let later = Mono::from_secs(600);
        assert!(connections.may_replace(later, &waiting));
        assert!(connections.give_way(later, &index, &waiting).is_some());
        let unserved = connections.claim(&index, &relays[7], Scope::Full, None);
        assert!(!connections.may_replace(later, &unserved));
        let visit = connections.claim(&index, &relays[7], Scope::Visits, None);
        assert!(!connections.may_replace(later, &visit));
        let crowd = connections.claim(&index, &relays[1], Scope::Full, None);
        let gives_way = connections.give_way(later, &index, &crowd);
        assert_eq!(gives_way, Some(relays[0].clone()), "its own");
        connections.check();
    }

    #[test]
    fn turns_come_one_after_another() {
        let (mut connections, _) = setup(vec![], 4);
        assert_eq!(connections.deadline(0), None);
        assert!(!connections.take_turn(Mono::from_secs(5), true));
        assert_eq!(connections.deadline(0), Some(Mono::from_secs(15)));
        assert!(!connections.take_turn(Mono::from_secs(14), true));
        assert!(connections.take_turn(Mono::from_secs(15), true));
        assert!(!connections.take_turn(Mono::from_secs(16), true));
        assert!(!connections.take_turn(Mono::from_secs(30), false));
        assert_eq!(connections.deadline(0), None);
    }

    #[test]
    fn visits_have_connections_and_handshakes_of_their_own() {
        let relays: Vec<_> = (0..60).map(relay).collect();
        let changes = (0..40).map(|n| announced(n as u8, &relays[n..=n], SyncLevel::Full));
        let (mut connections, index) = setup_with(changes.collect(), 16, true);
        assert_eq!(fill(&mut connections, &index, &relays[..40], None), 10);
        assert!(connections.is_full(Scope::Full) && !connections.is_full(Scope::Visits));
        for (n, fits) in [(50, true), (51, true), (52, false)] {
            let claim = connections.claim(&index, &relays[n], Scope::Visits, None);
            assert_eq!(connections.take(&relays[n], claim).is_ok(), fits);
        }
        connections.check();
        connections.give_back(&relays[50]);
        assert!(connections.is_full(Scope::Full) && !connections.is_full(Scope::Visits));
        // Every fourth handshake, if visits wait all the time.
        let mut visits = Vec::new();
        for n in 0..9 {
            let is_visit = connections.is_turn_of_visits();
            connections.dialled(Mono::from_secs(n), is_visit);
            if is_visit {
                visits.push(n);
            }
        }
        assert_eq!(visits, [3, 7]);
    }

    #[test]
    fn handshakes_are_limited_in_rate_and_number() {
        let (mut connections, _) = setup(vec![], 4);
        let mut started = Vec::new();
        for ms in 0..10_000 {
            let now = Mono::from_millis(ms);
            if connections.may_dial(now, started.len()) {
                connections.dialled(now, false);
                started.push(ms);
            }
        }
        assert_eq!(started, [0, 250, 500, 750, 1_000, 1_250, 1_500, 1_750]);
        connections.is_waiting = true;
        assert_eq!(connections.deadline(8), None);
        assert_eq!(connections.deadline(7), Some(Mono::from_millis(2_000)));
    }
}
