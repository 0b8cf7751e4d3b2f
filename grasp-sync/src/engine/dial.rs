//! Whom to connect to next, without a burst of handshakes.

use std::collections::BTreeMap;
use std::time::Duration;

use grasp_core::{Mono, RelayUrl};

use super::config::Config;
use super::ids::ConnId;

/// The handshakes under way.
#[derive(Debug)]
pub(super) struct Dialer {
    most: usize,
    gap: Duration,
    limit: Duration,
    next_start: Mono,
    under_way: BTreeMap<ConnId, Handshake>,
    /// Whether somebody waits for a handshake to begin.
    waits: bool,
    /// Whether something has happened since that may let one begin.
    look: bool,
}

#[derive(Debug)]
struct Handshake {
    relay: RelayUrl,
    until: Mono,
}

impl Dialer {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            most: config.handshakes.max(1),
            gap: config.handshake_gap,
            limit: config.handshake_limit,
            next_start: Mono::ZERO,
            under_way: BTreeMap::new(),
            waits: false,
            look: true,
        }
    }

    /// Whether one more may begin now.
    pub(super) fn is_free(&self, now: Mono) -> bool {
        self.under_way.len() < self.most && now >= self.next_start
    }

    pub(super) fn started(&mut self, now: Mono, relay: RelayUrl, conn: ConnId) {
        self.next_start = now + self.gap;
        self.under_way.insert(conn, Handshake { relay, until: now + self.limit });
    }

    /// A handshake has ended, one way or another. Nothing happens for one that had ended before.
    pub(super) fn ended(&mut self, conn: ConnId) {
        self.under_way.remove(&conn);
        self.look = true;
    }

    /// A relay may have become dialable, or room free.
    pub(super) fn look(&mut self) {
        self.look = true;
    }

    /// Whether that is so since this was last asked.
    pub(super) fn take_look(&mut self) -> bool {
        std::mem::take(&mut self.look)
    }

    /// Those that have taken too long.
    pub(super) fn overdue(&self, now: Mono) -> Vec<(RelayUrl, ConnId)> {
        let late = self.under_way.iter().filter(|(_, handshake)| now >= handshake.until);
        late.map(|(conn, handshake)| (handshake.relay.clone(), *conn)).collect()
    }

    pub(super) fn set_waits(&mut self, waits: bool) {
        self.waits = waits;
    }

    /// When to look again: a handshake is overdue, or the next may begin.
    pub(super) fn deadline(&self) -> Option<Mono> {
        let overdue = self.under_way.values().map(|handshake| handshake.until).min();
        let has_room = self.under_way.len() < self.most;
        let start = (self.waits && has_room).then_some(self.next_start);
        overdue.into_iter().chain(start).min()
    }

    pub(super) fn count(&self) -> usize {
        self.under_way.len()
    }

    pub(super) fn most(&self) -> usize {
        self.most
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
    fn handshakes_keep_their_distance_and_number() {
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
    fn one_that_ends_makes_room_and_one_that_never_ends_is_overdue() {
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
