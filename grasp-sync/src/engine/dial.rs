//! The limits of concurrent handshakes.

use std::collections::BTreeMap;
use std::time::Duration;

use grasp_core::{Mono, RelayUrl};

use super::config::Config;
use super::ids::ConnId;

#[derive(Debug)]
pub(super) struct Dialer {
    max_handshakes: usize,
    gap: Duration,
    limit: Duration,
    next_start: Mono,
    under_way: BTreeMap<ConnId, Handshake>,
    /// True if a relay waits for a handshake.
    waits: bool,
    /// True if a relay may have become dialable since the last check.
    needs_check: bool,
}

#[derive(Debug)]
struct Handshake {
    relay: RelayUrl,
    until: Mono,
}

impl Dialer {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            max_handshakes: config.handshakes.max(1),
            gap: config.handshake_gap,
            limit: config.handshake_limit,
            next_start: Mono::ZERO,
            under_way: BTreeMap::new(),
            waits: false,
            needs_check: true,
        }
    }

    /// Returns whether another handshake may start now.
    pub(super) fn is_free(&self, now: Mono) -> bool {
        self.under_way.len() < self.max_handshakes && now >= self.next_start
    }

    pub(super) fn started(&mut self, now: Mono, relay: RelayUrl, conn: ConnId) {
        self.next_start = now + self.gap;
        self.under_way.insert(conn, Handshake { relay, until: now + self.limit });
    }

    /// Notes the end of a handshake. Ignores one that had ended before.
    pub(super) fn ended(&mut self, conn: ConnId) {
        self.under_way.remove(&conn);
        self.needs_check = true;
    }

    /// Requests a check: a relay may have become dialable, or a slot free.
    pub(super) fn request_check(&mut self) {
        self.needs_check = true;
    }

    /// Takes the request for a check.
    pub(super) fn take_check(&mut self) -> bool {
        std::mem::take(&mut self.needs_check)
    }

    /// Returns the handshakes that have taken too long.
    pub(super) fn overdue(&self, now: Mono) -> Vec<(RelayUrl, ConnId)> {
        let late = self.under_way.iter().filter(|(_, handshake)| now >= handshake.until);
        late.map(|(conn, handshake)| (handshake.relay.clone(), *conn)).collect()
    }

    pub(super) fn set_waits(&mut self, waits: bool) {
        self.waits = waits;
    }

    /// Returns when a handshake is overdue, or the next may start.
    pub(super) fn deadline(&self) -> Option<Mono> {
        let overdue = self.under_way.values().map(|handshake| handshake.until).min();
        let has_room = self.under_way.len() < self.max_handshakes;
        let start = (self.waits && has_room).then_some(self.next_start);
        overdue.into_iter().chain(start).min()
    }

    #[cfg(any(test, feature = "test-util"))]
    /// Panics if there are too many handshakes.
    pub(super) fn check(&self) {
        assert!(self.under_way.len() <= self.max_handshakes, "too many handshakes");
    }
}

#[cfg(test)]
mod tests {
    use super::super::ids::Ids;
    use super::*;

    fn dialer() -> (Dialer, Ids) {
        (Dialer::new(&Config::new("us.example".parse().unwrap())), Ids::default())
    }

    fn relay() -> RelayUrl {
        "wss://a.example".parse().unwrap()
    }

    #[test]
    fn handshakes_are_limited_in_rate_and_number() {
        let (mut dialer, mut ids) = dialer();
        let mut started = Vec::new();
        for ms in 0..10_000 {
            let now = Mono::from_millis(ms);
            if dialer.is_free(now) {
                dialer.started(now, relay(), ids.conn());
                started.push(ms);
            }
        }
        assert_eq!(started, [0, 250, 500, 750, 1_000, 1_250, 1_500, 1_750]);
    }

    #[test]
    fn ended_handshakes_make_room_and_endless_ones_are_overdue() {
        let (mut dialer, mut ids) = dialer();
        let conns: Vec<_> = (0..8).map(|_| ids.conn()).collect();
        conns.iter().for_each(|conn| dialer.started(Mono::ZERO, relay(), *conn));
        dialer.set_waits(true);
        assert_eq!(dialer.deadline(), Some(Mono::from_secs(30)));
        dialer.ended(conns[3]);
        assert_eq!(dialer.deadline(), Some(Mono::from_millis(250)));
        assert_eq!(dialer.overdue(Mono::from_secs(30)).len(), 7);
    }
}
