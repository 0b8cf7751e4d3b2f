//! How much one address may send, over however many connections.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use grasp_core::Mono;

use super::Household;
use crate::nostr::Allowance;

/// Addresses that are remembered. Beyond it those are forgotten that have sent nothing lately, or else all.
const MOST: usize = 1 << 16;

/// Events per minute of each address.
///
/// The map is shared by all connections; nothing waits while it is held.
#[derive(Clone, Debug)]
pub(crate) struct Shares {
    per_minute: u32,
    taken: Arc<Mutex<HashMap<Household, Allowance>>>,
}

impl Shares {
    pub(crate) fn new(per_minute: u32) -> Self {
        Self { per_minute, taken: Arc::default() }
    }

    /// Takes one of an address's share, if there is one.
    #[must_use]
    pub(crate) fn take(&self, who: Household, now: Mono) -> bool {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.len() >= MOST && !taken.contains_key(&who) {
            taken.retain(|_, share| !share.is_full(now));
            if taken.len() >= MOST {
                taken.clear();
            }
        }
        taken.entry(who).or_insert_with(|| Allowance::new(self.per_minute)).take(now)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const NOW: Mono = Mono::from_secs(1_000);

    #[test]
    fn each_address_has_its_own_share() {
        let shares = Shares::new(2);
        let [alice, eve] = [1, 2].map(Household::numbered);
        assert!(shares.take(eve, NOW) && shares.take(eve, NOW) && !shares.take(eve, NOW));
        assert!(shares.take(alice, NOW));
        assert!(shares.take(eve, NOW + Duration::from_secs(30)), "it fills up again");
    }

    #[test]
    fn no_more_are_remembered_than_may_be_and_the_busy_longest() {
        let (shares, busy) = (Shares::new(60), Household::numbered(0));
        let later = NOW + Duration::from_secs(2);
        while shares.take(busy, later) {}
        let number = |n: usize| Household::numbered(n as u128);
        for n in 1..2 * MOST {
            assert!(shares.take(number(n), if n < MOST { NOW } else { later }));
            if n == MOST {
                assert!(!shares.take(busy, later), "only those with a whole share were forgotten");
            }
        }
        assert!(shares.taken.lock().unwrap().len() <= MOST);
    }
}
