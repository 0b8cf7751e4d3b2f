//! The effective members of a private service: the configured ones, and other private services that hold its
//! repositories.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use nostr::key::PublicKey;

use crate::repo::RelayUrl;
use crate::time::Mono;

/// Relays whose documents are read; further ones are ignored.
const MAX_RELAYS: usize = 1_000;

/// Documents that are read at the same time.
const MAX_AT_ONCE: usize = 8;

/// The time after which a document is read again.
const RECHECK_AFTER: Duration = Duration::from_secs(5 * 60);

/// The pause after the first failure; each further one doubles it, up to [`RECHECK_AFTER`].
const FIRST_PAUSE: Duration = Duration::from_secs(2);

/// The time for which a relay that cannot be reached keeps its membership.
const KEPT_FOR: Duration = Duration::from_secs(24 * 60 * 60);

/// What a relay's NIP-11 document says about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelayDocument {
    /// It is a private service (GRASP-08), whose `pubkey` is this.
    Private(PublicKey),
    /// It is none, or names no key.
    Other,
    /// It could not be read.
    Unreadable,
}

/// Knows the members of a private service, and which relays' documents are to be read.
///
/// A machine without IO: [`EffectiveMembers::to_read`] names relays, whose documents come back by
/// [`EffectiveMembers::read`].
#[derive(Clone, Debug)]
pub struct EffectiveMembers {
    configured: BTreeSet<PublicKey>,
    relays: BTreeMap<RelayUrl, NamedRelay>,
}

/// A relay of a served announcement.
#[derive(Clone, Debug)]
struct NamedRelay {
    /// Its key, and when that was read last, if it is a private service.
    member: Option<(PublicKey, Mono)>,
    failures: u32,
    phase: DocumentPhase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DocumentPhase {
    /// Its document is to be read then.
    Due(Mono),
    /// Its document is being read.
    Reading,
}

impl EffectiveMembers {
    /// Starts with the keys that the operator configured.
    pub fn new(configured: BTreeSet<PublicKey>) -> Self {
        Self {
            configured,
            relays: BTreeMap::new(),
        }
    }

    /// Replaces the keys that the operator configured.
    pub fn configured(&mut self, configured: BTreeSet<PublicKey>) {
        self.configured = configured;
    }

    /// Takes the relays of all served announcements. A relay that none of them names any more is no member at once.
    pub fn named(&mut self, now: Mono, relays: BTreeSet<RelayUrl>) {
        self.relays.retain(|relay, _| relays.contains(relay));
        for relay in relays {
            if self.relays.len() >= MAX_RELAYS {
                return;
            }
            self.relays.entry(relay).or_insert(NamedRelay {
                member: None,
                failures: 0,
                phase: DocumentPhase::Due(now),
            });
        }
    }

    fn reading(&self) -> usize {
        let relays = self.relays.values();
        relays
            .filter(|relay| relay.phase == DocumentPhase::Reading)
            .count()
    }

    /// Returns the relays whose documents are to be read now.
    #[must_use]
    pub fn to_read(&mut self, now: Mono) -> Vec<RelayUrl> {
        let reading = self.reading();
        let mut due = Vec::new();
        for (url, relay) in &mut self.relays {
            if reading + due.len() >= MAX_AT_ONCE {
                break;
            }
            if matches!(relay.phase, DocumentPhase::Due(at) if at <= now) {
                relay.phase = DocumentPhase::Reading;
                due.push(url.clone());
            }
        }
        due
    }

    /// Takes what was read of a relay.
    pub fn read(&mut self, now: Mono, url: &RelayUrl, document: RelayDocument) {
        let Some(relay) = self.relays.get_mut(url) else {
            return;
        };
        match document {
            RelayDocument::Private(key) => relay.member = Some((key, now)),
            RelayDocument::Other => relay.member = None,
            RelayDocument::Unreadable => {
                relay.member = relay.member.filter(|(_, at)| now - *at < KEPT_FOR);
                let pause = FIRST_PAUSE * 2u32.saturating_pow(relay.failures.min(16));
                relay.failures = relay.failures.saturating_add(1);
                relay.phase = DocumentPhase::Due(now + pause.min(RECHECK_AFTER));
                return;
            }
        }
        relay.failures = 0;
        relay.phase = DocumentPhase::Due(now + RECHECK_AFTER);
    }

    /// Returns the members.
    pub fn members(&self) -> BTreeSet<PublicKey> {
        let relays = self.relays.values().filter_map(|relay| relay.member);
        let relays = relays.map(|(key, _)| key);
        self.configured.iter().copied().chain(relays).collect()
    }

    /// Returns when the next document is to be read; `None` while as many are read as may be at once.
    pub fn next_deadline(&self) -> Option<Mono> {
        if self.reading() >= MAX_AT_ONCE {
            return None;
        }
        let phases = self.relays.values().map(|relay| relay.phase);
        phases
            .filter_map(|phase| match phase {
                DocumentPhase::Due(at) => Some(at),
                DocumentPhase::Reading => None,
            })
            .min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::key;

    const T0: Mono = Mono::from_secs(100);

    fn relays(names: &[&str]) -> BTreeSet<RelayUrl> {
        let url = |name: &&str| format!("wss://{name}.example").parse().unwrap();
        names.iter().map(url).collect()
    }

    fn relay(name: &str) -> RelayUrl {
        relays(&[name]).pop_first().unwrap()
    }

    fn after(seconds: u64) -> Mono {
        T0 + Duration::from_secs(seconds)
    }

    fn started(names: &[&str]) -> EffectiveMembers {
        let mut members = EffectiveMembers::new([key(1)].into());
        members.named(T0, relays(names));
        assert_eq!(members.to_read(T0).len(), names.len());
        members
    }

    #[test]
    fn the_key_of_a_named_private_service_is_a_member() {
        let mut members = started(&["a", "b"]);
        assert_eq!(members.members(), [key(1)].into());
        members.read(T0, &relay("a"), RelayDocument::Private(key(2)));
        members.read(T0, &relay("b"), RelayDocument::Other);
        assert_eq!(members.members(), [key(1), key(2)].into());
    }

    #[test]
    fn a_relay_that_is_not_named_any_more_is_no_member_at_once() {
        let mut members = started(&["a"]);
        members.read(T0, &relay("a"), RelayDocument::Private(key(2)));
        members.named(T0, relays(&["b"]));
        assert_eq!(members.members(), [key(1)].into());
        members.read(T0, &relay("a"), RelayDocument::Private(key(2)));
        assert_eq!(members.members(), [key(1)].into(), "a late answer");
    }

    #[test]
    fn a_service_that_is_not_private_any_more_is_no_member() {
        let mut members = started(&["a"]);
        members.read(T0, &relay("a"), RelayDocument::Private(key(2)));
        assert_eq!(members.next_deadline(), Some(T0 + RECHECK_AFTER));
        assert!(members.to_read(after(299)).is_empty());
        assert_eq!(members.to_read(after(300)), [relay("a")]);
        members.read(after(300), &relay("a"), RelayDocument::Other);
        assert_eq!(members.members(), [key(1)].into());
    }

    #[test]
    fn an_unreachable_service_stays_a_member_for_a_day() {
        let mut members = started(&["a"]);
        members.read(T0, &relay("a"), RelayDocument::Private(key(2)));
        let day = KEPT_FOR.as_secs();
        members.read(after(day - 1), &relay("a"), RelayDocument::Unreadable);
        assert!(members.members().contains(&key(2)));
        members.read(after(day), &relay("a"), RelayDocument::Unreadable);
        assert!(!members.members().contains(&key(2)));
    }

    #[test]
    fn a_failed_read_is_repeated_with_growing_pauses() {
        let mut members = started(&["a"]);
        let mut now = T0;
        let mut pauses = Vec::new();
        for _ in 0..10 {
            members.read(now, &relay("a"), RelayDocument::Unreadable);
            let next = members.next_deadline().unwrap();
            pauses.push((next - now).as_secs());
            now = next;
            assert_eq!(members.to_read(now), [relay("a")]);
        }
        assert_eq!(pauses, [2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        members.read(now, &relay("a"), RelayDocument::Other);
        assert!(members.to_read(now + RECHECK_AFTER).contains(&relay("a")));
        members.read(now, &relay("a"), RelayDocument::Unreadable);
        assert_eq!(members.next_deadline(), Some(now + FIRST_PAUSE));
    }

    #[test]
    fn the_relays_and_the_concurrent_reads_are_bounded() {
        let mut members = EffectiveMembers::new(BTreeSet::new());
        let names: Vec<String> = (0..2 * MAX_RELAYS).map(|n| format!("r{n}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        members.named(T0, relays(&names));
        assert_eq!(members.relays.len(), MAX_RELAYS);
        let first = members.to_read(T0);
        assert_eq!(first.len(), MAX_AT_ONCE);
        assert!(members.to_read(T0).is_empty() && members.next_deadline().is_none());
        members.read(T0, &first[0], RelayDocument::Other);
        assert_eq!(members.to_read(T0).len(), 1);
    }
}
