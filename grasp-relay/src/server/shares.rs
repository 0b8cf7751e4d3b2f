//! Events per minute that one network may send, over however many connections.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use grasp_core::Mono;
use grasp_core::resources::{Bounds, Claimant, ClientNetwork, Meter};

const MINUTE: Duration = Duration::from_secs(60);

/// Part of what is free that a lone IPv4 address may have: half of what its /24 may have, which is half of all.
const SHARE_OF_ONE: u64 = 4;

/// Counts the events that clients send, by network.
///
/// All connections share it; nothing waits while it is locked.
#[derive(Clone, Debug)]
pub(crate) struct Shares {
    sent: Arc<Mutex<Meter>>,
}

impl Shares {
    /// Allows one address this many a minute while no other network sends as many.
    pub(crate) fn new(per_minute: u32) -> Self {
        let total = u64::from(per_minute).saturating_mul(SHARE_OF_ONE);
        let bounds = Bounds { reserve: 0, ..Bounds::of(total) };
        Self { sent: Arc::new(Mutex::new(Meter::new(bounds, MINUTE))) }
    }

    /// Takes one of a network's share, if there is one.
    #[must_use]
    pub(crate) fn take(&self, network: ClientNetwork, now: Mono) -> bool {
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        sent.spend(now, &Claimant::at(network), 1).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Mono = Mono::from_secs(1_000);

    fn network(address: &str) -> ClientNetwork {
        ClientNetwork::of(address.parse().unwrap())
    }

    #[test]
    fn each_address_has_its_own_share() {
        let shares = Shares::new(2);
        let (alice, eve) = (network("192.0.2.1"), network("198.51.100.1"));
        assert!(shares.take(eve, NOW) && shares.take(eve, NOW) && !shares.take(eve, NOW));
        assert!(shares.take(alice, NOW));
        assert!(shares.take(eve, NOW + 2 * MINUTE), "it comes back");
    }

    #[test]
    fn neighbours_share_what_their_network_may_have() {
        let shares = Shares::new(64);
        let taken = |address: u8| {
            let network = network(&format!("198.51.100.{address}"));
            (0..1_000).take_while(|_| shares.take(network, NOW)).count()
        };
        let sum: usize = (0..=255).map(taken).sum();
        assert!(sum <= 128, "half of all, not {sum}");
        assert!(shares.take(network("192.0.2.1"), NOW));
    }
}
