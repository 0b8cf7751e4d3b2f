//! What is known of each author: its relay list, and when which relay is asked for a newer one.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use grasp_core::outbox::RelayList;
use grasp_core::{Mono, RelayUrl, Version, nostr};
use nostr::event::EventId;
use nostr::key::PublicKey;

/// Time after which a relay that had the list of an author is asked for it again.
const FOUND_INTERVAL: Duration = Duration::from_secs(24 * 60 * 60);
/// The part of that time by which it varies, so that authors found together are not asked for together for ever.
const FOUND_JITTER: u32 = 20;
/// The first pause after a relay had no list of an author, or failed. Each further one doubles it.
const MISSING_INTERVAL: Duration = Duration::from_secs(5 * 60);
/// The longest of these pauses.
const MAX_MISSING_INTERVAL: Duration = Duration::from_secs(60 * 60);
/// Relays per author whose pauses are remembered, those of earlier lists included.
const MAX_ASKS: usize = 16;
/// Authors whose lists are remembered, those not asked for included.
const MAX_LISTS: usize = 40_000;

/// Returns the pause after so many failures in a row.
pub(super) fn pause(failures: u32) -> Duration {
    let doubled = 2u32.saturating_pow(failures.saturating_sub(1));
    MISSING_INTERVAL
        .saturating_mul(doubled)
        .min(MAX_MISSING_INTERVAL)
}

/// What is known of one author.
#[derive(Clone, Debug, Default)]
pub(super) struct AuthorRecord {
    pub(super) standing: Standing,
    list: Option<(Version, RelayList)>,
    /// True if the fallback relays serve as the relays of the author: a relay that should know has no list.
    pub(super) uses_fallback: bool,
    asks: Vec<Ask>,
}

/// What an author is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Standing {
    pub(super) is_eligible: bool,
    /// True if it has begun a thread.
    pub(super) has_root: bool,
    /// True if it takes part in a thread.
    pub(super) takes_part: bool,
    /// True if it maintains a repository.
    pub(super) maintains: bool,
}

/// When a relay may be asked for an author again.
#[derive(Clone, Debug)]
struct Ask {
    source: RelayUrl,
    due: Mono,
    failures: u32,
}

impl AuthorRecord {
    /// Returns the stored relay list, if there is one.
    pub(super) fn relay_list(&self) -> Option<&RelayList> {
        self.list.as_ref().map(|(_, list)| list)
    }

    /// Returns whether a relay may be asked for this author.
    pub(super) fn is_due(&self, now: Mono, source: &RelayUrl) -> bool {
        let ask = self.asks.iter().find(|ask| ask.source == *source);
        ask.is_none_or(|ask| now >= ask.due)
    }

    /// Notes that a relay has sent the list.
    pub(super) fn found(&mut self, now: Mono, source: &RelayUrl, seed: (u64, PublicKey)) {
        let ask = self.ask(source);
        ask.failures = 0;
        ask.due = now + jittered(seed, source);
    }

    /// Notes that a relay does not have the list, or did not answer.
    pub(super) fn missed(&mut self, now: Mono, source: &RelayUrl) {
        let ask = self.ask(source);
        ask.failures = ask.failures.saturating_add(1);
        ask.due = now + pause(ask.failures);
    }

    fn ask(&mut self, source: &RelayUrl) -> &mut Ask {
        let known = self.asks.iter().position(|ask| ask.source == *source);
        let at = known.unwrap_or_else(|| {
            if self.asks.len() >= MAX_ASKS {
                self.asks.sort_by_key(|ask| ask.due);
                self.asks.remove(0);
            }
            self.asks.push(Ask {
                source: source.clone(),
                due: Mono::ZERO,
                failures: 0,
            });
            self.asks.len() - 1
        });
        &mut self.asks[at]
    }
}

/// Returns the interval for one author and relay, which is always the same.
fn jittered(seed: (u64, PublicKey), source: &RelayUrl) -> Duration {
    let mut hasher = DefaultHasher::new();
    seed.hash(&mut hasher);
    source.hash(&mut hasher);
    let width = FOUND_INTERVAL / FOUND_JITTER;
    let seconds = hasher.finish() % (2 * width.as_secs() + 1);
    FOUND_INTERVAL - width + Duration::from_secs(seconds)
}

/// All authors that are eligible, or whose list is stored.
#[derive(Debug, Default)]
pub(super) struct Authors {
    authors: BTreeMap<PublicKey, AuthorRecord>,
    /// The authors of the stored lists.
    lists: BTreeMap<EventId, PublicKey>,
}

impl Authors {
    pub(super) fn get(&self, key: &PublicKey) -> Option<&AuthorRecord> {
        self.authors.get(key)
    }

    pub(super) fn get_mut(&mut self, key: &PublicKey) -> Option<&mut AuthorRecord> {
        self.authors.get_mut(key)
    }

    pub(super) fn eligible(&self) -> impl Iterator<Item = (&PublicKey, &AuthorRecord)> {
        let authors = self.authors.iter();
        authors.filter(|(_, author)| author.standing.is_eligible)
    }

    pub(super) fn set_standing(&mut self, key: PublicKey, standing: Standing) {
        if standing.is_eligible {
            self.authors.entry(key).or_default().standing = standing;
        } else if let Some(author) = self.authors.get_mut(&key) {
            author.standing = standing;
            if author.list.is_none() {
                self.authors.remove(&key);
            }
        }
    }

    /// Takes over a list, unless a greater version is known.
    pub(super) fn list(&mut self, key: PublicKey, version: Version, list: RelayList) {
        let known = self.authors.get(&key).and_then(|one| one.list.as_ref());
        let known = known.map(|(version, _)| *version);
        if known >= Some(version) || (known.is_none() && self.lists.len() >= MAX_LISTS) {
            return;
        }
        if let Some(known) = known {
            self.lists.remove(&known.id);
        }
        self.lists.insert(version.id, key);
        let author = self.authors.entry(key).or_default();
        author.list = Some((version, list));
        author.uses_fallback = false;
    }

    /// Returns the author of a list.
    pub(super) fn author_of(&self, list: &EventId) -> Option<PublicKey> {
        self.lists.get(list).copied()
    }

    /// Forgets a list that was deleted.
    pub(super) fn unlist(&mut self, list: &EventId) {
        let Some(key) = self.lists.remove(list) else {
            return;
        };
        if let Some(author) = self.authors.get_mut(&key) {
            author.list = None;
            if !author.standing.is_eligible {
                self.authors.remove(&key);
            }
        }
    }

    /// Makes every relay due for every author.
    pub(super) fn forget_asks(&mut self) {
        for author in self.authors.values_mut() {
            author.asks.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_an_hour() {
        let minutes: Vec<u64> = (1..7).map(|n| pause(n).as_secs() / 60).collect();
        assert_eq!(minutes, [5, 10, 20, 40, 60, 60]);
        assert_eq!(pause(u32::MAX), MAX_MISSING_INTERVAL);
    }

    #[test]
    fn the_interval_varies_by_a_twentieth() {
        let author = PublicKey::from_byte_array([1; 32]);
        let intervals: Vec<u64> = (0..1_000)
            .map(|n| {
                let source = format!("wss://{n}.example.com").parse().unwrap();
                jittered((n, author), &source).as_secs()
            })
            .collect();
        let day = 24 * 60 * 60;
        assert!(intervals.iter().all(|one| one.abs_diff(day) <= day / 20));
        assert!(intervals.iter().any(|one| one.abs_diff(day) > day / 30));
    }

    #[test]
    fn pauses_are_remembered_for_a_limited_number_of_relays() {
        let mut author = AuthorRecord::default();
        let relay = |n: usize| format!("wss://{n}.example.com").parse().unwrap();
        for n in 0..3 * MAX_ASKS {
            author.missed(Mono::from_secs(n as u64), &relay(n));
        }
        assert_eq!(author.asks.len(), MAX_ASKS);
        let now = Mono::from_secs(100);
        assert!(author.is_due(now, &relay(0)));
        assert!(!author.is_due(now, &relay(3 * MAX_ASKS - 1)));
    }
}
