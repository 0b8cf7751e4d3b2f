//! One relay: what it has given us, and whether we are talking.

use std::collections::BTreeMap;
use std::time::Duration;

use nostr::types::Timestamp;

use super::RelaySyncNeeds;
use crate::RelayUrl;

/// What each relay has confirmed, and how we stand with it.
pub type RelaySyncIndex = BTreeMap<RelayUrl, RelayState>;

/// How long what a relay has confirmed outlives the connection. A catch-up reaches back by the same length
/// before the last connect, so that back-dated events and clocks that disagree leave no gap.
pub const RETENTION: Duration = Duration::from_secs(15 * 60);

/// Where the life of a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConnectionStatus {
    /// Nobody is talking.
    Disconnected,
    /// An attempt is under way.
    Connecting,
    /// Connected; history is still being fetched.
    Syncing,
    /// Connected, history complete.
    Connected,
    /// Connected and live, but some history could not be had.
    ConnectedHistoricSyncFailures,
}

impl ConnectionStatus {
    /// Whether the relay can be sent a request.
    pub fn is_connected(self) -> bool {
        match self {
            Self::Disconnected | Self::Connecting => false,
            Self::Syncing | Self::Connected | Self::ConnectedHistoricSyncFailures => true,
        }
    }
}

/// How to take up with a relay that has just been connected.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resume {
    /// Ask for everything: nothing is confirmed.
    Fresh,
    /// What is confirmed stays so; ask for what came since then.
    CatchUp {
        /// Where the catch-up begins.
        since: Timestamp,
    },
}

/// How the fetching of history ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum History {
    /// Everything asked for was proven complete.
    Complete,
    /// Some batch failed. Its items are not confirmed, hence asked for again.
    BatchesFailed,
    /// The announcements or the catch-up failed. No batch accounts for these, so the next connect repeats them.
    CatchUpFailed,
}

/// All that is known of one relay.
///
/// `Disconnected → Connecting → Syncing → Connected | ConnectedHistoricSyncFailures → Disconnected`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayState {
    /// What we have from it completely, and hear of live.
    pub confirmed: RelaySyncNeeds,
    /// Configured by the operator: never retired.
    pub is_bootstrap: bool,
    status: ConnectionStatus,
    /// When the present session began, if there is one.
    session: Option<Timestamp>,
    last_connected: Option<Timestamp>,
    disconnected_at: Option<Timestamp>,
}

impl RelayState {
    /// A relay that was never connected.
    pub fn new(is_bootstrap: bool) -> Self {
        Self {
            confirmed: RelaySyncNeeds::default(),
            is_bootstrap,
            status: ConnectionStatus::Disconnected,
            session: None,
            last_connected: None,
            disconnected_at: None,
        }
    }

    /// An attempt to connect begins. Changes nothing if one is under way or has succeeded.
    pub fn connecting(&mut self) {
        if self.status == ConnectionStatus::Disconnected {
            self.status = ConnectionStatus::Connecting;
        }
    }

    /// The connection stands. Forgets what was confirmed if that is no longer to be relied on.
    pub fn connected(&mut self, now: Timestamp) -> Resume {
        let resume = self.resumption(now);
        if resume == Resume::Fresh {
            self.clear_sync_state();
        }
        self.status = ConnectionStatus::Syncing;
        self.session = Some(now);
        self.disconnected_at = None;
        resume
    }

    /// History has been fetched as far as it could be. Changes nothing if the connection is gone.
    pub fn history_ended(&mut self, outcome: History) {
        if !self.status.is_connected() {
            return;
        }
        self.status = match outcome {
            History::Complete => ConnectionStatus::Connected,
            History::BatchesFailed | History::CatchUpFailed => {
                ConnectionStatus::ConnectedHistoricSyncFailures
            }
        };
        if outcome != History::CatchUpFailed {
            self.last_connected = self.session;
        }
    }

    /// The connection is lost, or was not made.
    ///
    /// A failed attempt does not count as having been here: else attempts alone would keep the confirmed
    /// state young for ever.
    pub fn disconnected(&mut self, now: Timestamp) {
        if self.status.is_connected() {
            self.disconnected_at = Some(now);
        }
        self.status = ConnectionStatus::Disconnected;
        self.session = None;
    }

    /// Everything is to be fetched anew over the standing connection, as once a day.
    pub fn start_over(&mut self, now: Timestamp) {
        self.clear_sync_state();
        self.last_connected = None;
        if self.status.is_connected() {
            self.status = ConnectionStatus::Syncing;
            self.session = Some(now);
        }
    }

    /// A batch has ended properly: its items are had.
    pub fn confirm(&mut self, items: RelaySyncNeeds) {
        self.confirmed.include(items);
    }

    /// Forgets everything confirmed.
    fn clear_sync_state(&mut self) {
        self.confirmed = RelaySyncNeeds::default();
    }

    /// Whether we have been away for longer than [`RETENTION`].
    pub fn should_clear_state(&self, now: Timestamp) -> bool {
        self.disconnected_at
            .is_some_and(|away| now.as_secs().saturating_sub(away.as_secs()) > RETENTION.as_secs())
    }

    /// Where the connection stands.
    pub fn connection_status(&self) -> ConnectionStatus {
        self.status
    }

    /// When the last session began whose announcements and catch-up were complete.
    ///
    /// A session that is cut short before does not count: catching up from its beginning would leave out what
    /// it had still to catch up with.
    pub fn last_connected(&self) -> Option<Timestamp> {
        self.last_connected
    }

    fn resumption(&self, now: Timestamp) -> Resume {
        match self.last_connected {
            Some(last) if !self.should_clear_state(now) => Resume::CatchUp {
                since: Timestamp::from_secs(last.as_secs().saturating_sub(RETENTION.as_secs())),
            },
            _ => Resume::Fresh,
        }
    }
}

#[cfg(test)]
mod tests {
    use nostr::event::EventId;

    use super::*;

    const MINUTE: u64 = 60;

    fn at(minutes: u64) -> Timestamp {
        Timestamp::from_secs(1_700_000_000 + minutes * MINUTE)
    }

    fn items() -> RelaySyncNeeds {
        RelaySyncNeeds {
            root_events: [EventId::from_byte_array([1; 32]).into()].into(),
            ..RelaySyncNeeds::default()
        }
    }

    /// Connected from minute 100 with complete history, lost at minute 200.
    fn away() -> RelayState {
        let mut state = RelayState::new(false);
        assert_eq!(state.connected(at(100)), Resume::Fresh);
        state.confirm(items());
        state.history_ended(History::Complete);
        state.disconnected(at(200));
        state
    }

    #[test]
    fn a_quick_return_catches_up_from_before_the_last_connect() {
        let mut state = away();
        assert_eq!(state.connected(at(215)), Resume::CatchUp { since: at(85) });
        assert_eq!(state.confirmed, items());
        assert_eq!(state.connection_status(), ConnectionStatus::Syncing);
    }

    #[test]
    fn a_late_return_starts_from_nothing() {
        let mut state = away();
        let late = Timestamp::from_secs(at(215).as_secs() + 1);
        assert!(!state.should_clear_state(at(215)) && state.should_clear_state(late));
        assert_eq!(state.connected(late), Resume::Fresh);
        assert!(state.confirmed.is_empty());
    }

    #[test]
    fn failed_attempts_do_not_keep_old_state_young() {
        let mut state = away();
        for minute in [205, 210, 216] {
            state.connecting();
            assert_eq!(state.connection_status(), ConnectionStatus::Connecting);
            state.disconnected(at(minute));
        }
        assert_eq!(state.disconnected_at, Some(at(200)));
        assert_eq!(state.connected(at(217)), Resume::Fresh);
    }

    #[test]
    fn a_catch_up_cut_short_is_repeated_in_full() {
        let mut state = away();
        assert_eq!(state.connected(at(210)), Resume::CatchUp { since: at(85) });
        state.disconnected(at(211));
        assert_eq!(state.connected(at(220)), Resume::CatchUp { since: at(85) });
        state.history_ended(History::BatchesFailed);
        state.disconnected(at(300));
        assert_eq!(state.connected(at(301)), Resume::CatchUp { since: at(205) });
        state.history_ended(History::CatchUpFailed);
        state.disconnected(at(400));
        assert_eq!(state.connected(at(401)), Resume::CatchUp { since: at(205) });
    }

    #[test]
    fn a_first_session_cut_short_counts_for_nothing() {
        let mut state = RelayState::new(true);
        assert_eq!(state.connected(at(0)), Resume::Fresh);
        state.confirm(items());
        state.disconnected(at(1));
        assert_eq!(state.connected(at(2)), Resume::Fresh);
        assert!(state.confirmed.is_empty());
    }

    #[test]
    fn starting_over_forgets_and_syncs_again() {
        let mut state = RelayState::new(false);
        let _ = state.connected(at(0));
        state.confirm(items());
        state.history_ended(History::Complete);
        assert_eq!(state.connection_status(), ConnectionStatus::Connected);
        state.start_over(at(60));
        assert!(state.confirmed.is_empty());
        assert_eq!(state.connection_status(), ConnectionStatus::Syncing);
        state.history_ended(History::Complete);
        assert_eq!(state.last_connected(), Some(at(60)));
    }

    #[test]
    fn late_news_of_history_does_not_revive_a_connection() {
        let mut state = away();
        state.history_ended(History::Complete);
        assert_eq!(state.connection_status(), ConnectionStatus::Disconnected);
        state.start_over(at(201));
        assert_eq!(state.connection_status(), ConnectionStatus::Disconnected);
    }
}
