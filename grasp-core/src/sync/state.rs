//! Connection and confirmed items of one relay.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::limits::ConnectionStatus;
use crate::{RelayUrl, RepoId};
use nostr::nips::nip01::Coordinate;
use nostr::types::Timestamp;

use super::SyncIndex;
use super::items::{PendingItems, RelaySyncNeeds};
use super::{RepoSyncNeeds, RootId};

/// Time for which confirmed items outlive the connection. A catch-up reaches back by the same time before the last
/// connect, so that back-dated events and differing clocks leave no gap.
pub const CONFIRMED_RETENTION: Duration = Duration::from_secs(15 * 60);

/// The result of fetching history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum History {
    /// All requests were proven complete.
    Complete,
    /// A batch failed. Its items are not confirmed, so they are requested again.
    BatchesFailed,
    /// The announcements or the catch-up failed. They are in no batch, so the next connect repeats them.
    CatchUpFailed,
}

/// The state of one relay.
///
/// `Disconnected → Connecting → Syncing → Connected | ConnectedHistoricSyncFailures → Disconnected`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayState {
    /// Items with complete history and a live subscription.
    pub confirmed: RelaySyncNeeds,
    /// Configured by the operator; never retired.
    pub is_bootstrap: bool,
    status: ConnectionStatus,
    /// Start of the current session.
    session: Option<Timestamp>,
    last_connected: Option<Timestamp>,
    disconnected_at: Option<Timestamp>,
}

impl RelayState {
    /// Returns the state of a relay that was never connected.
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

    /// Records the start of an attempt to connect; ignored unless disconnected.
    pub fn connecting(&mut self) {
        if self.status == ConnectionStatus::Disconnected {
            self.status = ConnectionStatus::Connecting;
        }
    }

    /// Records a connection. Returns the start of the catch-up with the confirmed items; if there is none, nothing is
    /// confirmed any more.
    #[must_use]
    pub fn connected(&mut self, now: Timestamp) -> Option<Timestamp> {
        let last = self
            .last_connected
            .filter(|_| !self.should_clear_state(now));
        if last.is_none() {
            self.clear_sync_state();
        }
        self.status = ConnectionStatus::Syncing;
        self.session = Some(now);
        self.disconnected_at = None;
        last.map(|last| last - CONFIRMED_RETENTION)
    }

    /// Records the end of fetching history; ignored if disconnected.
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

    /// Records that the connection was lost, or the attempt failed.
    ///
    /// A failed attempt does not reset the age of the confirmed items.
    pub fn disconnected(&mut self, now: Timestamp) {
        if self.status.is_connected() {
            self.disconnected_at = Some(now);
        }
        self.status = ConnectionStatus::Disconnected;
        self.session = None;
    }

    /// Clears the confirmed items, to fetch everything again over the same connection, as once a day.
    pub fn start_over(&mut self, now: Timestamp) {
        self.clear_sync_state();
        self.last_connected = None;
        if self.status.is_connected() {
            self.status = ConnectionStatus::Syncing;
            self.session = Some(now);
        }
    }

    /// Adds the items of a completed batch to the confirmed ones.
    pub fn confirm(&mut self, items: RelaySyncNeeds) {
        self.confirmed.include(items);
    }

    /// Clears the confirmed items.
    fn clear_sync_state(&mut self) {
        self.confirmed = RelaySyncNeeds::default();
    }

    /// Returns whether the relay was disconnected for longer than [`CONFIRMED_RETENTION`].
    pub fn should_clear_state(&self, now: Timestamp) -> bool {
        self.disconnected_at
            .is_some_and(|since| now - CONFIRMED_RETENTION > since)
    }

    /// Returns the phase of the connection.
    pub fn connection_status(&self) -> ConnectionStatus {
        self.status
    }

    /// Returns the start of the last session whose announcements and catch-up were complete.
    ///
    /// A session that was cut short does not count: a catch-up from its start would miss events before it.
    pub fn last_connected(&self) -> Option<Timestamp> {
        self.last_connected
    }
}

/// Returns the items that are wanted from a relay and neither pending nor confirmed: target − pending − confirmed.
///
/// `None` if there are none, or the relay is not connected; it is asked when it connects. Announcements (layer 1) and
/// the catch-up of confirmed items are decided with the connection, not here.
///
/// The target may be all that is wanted from the relay, or only what a change has added
/// ([`SyncDelta::added`](super::SyncDelta::added)): if nothing was open before the change, the result is the same.
///
/// ```
/// use grasp_core::RepoId;
/// use grasp_core::sync::{RelayState, RelaySyncNeeds, SyncLevel, compute_actions};
/// use nostr::types::Timestamp;
///
/// let owner = "79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798";
/// let repo: RepoId = format!("30617:{owner}:grasp").parse()?;
/// let target = RelaySyncNeeds { repos: [(repo, SyncLevel::Full)].into(), ..Default::default() };
///
/// let mut state = RelayState::new(false);
/// assert_eq!(compute_actions(&target, [], &state), None, "not connected");
///
/// let _ = state.connected(Timestamp::from_secs(1_700_000_000));
/// assert_eq!(compute_actions(&target, [], &state), Some(target.clone()));
/// assert_eq!(compute_actions(&target, [&target], &state), None, "pending");
///
/// state.confirm(target.clone());
/// assert_eq!(compute_actions(&target, [], &state), None, "confirmed");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn compute_actions<'a>(
    target: &RelaySyncNeeds,
    pending: impl IntoIterator<Item = &'a PendingItems>,
    state: &RelayState,
) -> Option<PendingItems> {
    if !state.connection_status().is_connected() {
        return None;
    }
    let mut new = target.without(&state.confirmed);
    for items in pending {
        if new.is_empty() {
            break;
        }
        new = new.without(items);
    }
    (!new.is_empty()).then_some(new)
}

/// The difference between the targets before and after a batch of changes.
///
/// Items that were added and removed within the batch are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SyncDelta {
    /// Items that are newly wanted, or at a higher level.
    pub added: BTreeMap<RelayUrl, RelaySyncNeeds>,
    /// Items that are no longer wanted at this level. A repository may still be wanted at a lower one.
    pub removed: BTreeMap<RelayUrl, RelaySyncNeeds>,
    /// Relays that became targets.
    pub discovered: BTreeSet<RelayUrl>,
    /// Relays that are no longer targets. Never a bootstrap relay.
    pub retired: BTreeSet<RelayUrl>,
}

impl SyncDelta {
    fn relay(&mut self, relay: &RelayUrl, was: bool, is: bool) {
        match (was, is) {
            (false, true) => _ = self.discovered.insert(relay.clone()),
            (true, false) => _ = self.retired.insert(relay.clone()),
            _ => {}
        }
    }

    fn repo(&mut self, repo: &RepoId, was: Option<&RepoSyncNeeds>, is: Option<&RepoSyncNeeds>) {
        for relay in was.into_iter().chain(is).flat_map(|needs| &needs.relays) {
            let was = was.and_then(|needs| needs.level_at(relay));
            let is = is.and_then(|needs| needs.level_at(relay));
            // `None` is less than any level.
            let (side, level) = match is.cmp(&was) {
                Ordering::Greater => (&mut self.added, is),
                Ordering::Less => (&mut self.removed, was),
                Ordering::Equal => continue,
            };
            let needs = side.entry(relay.clone()).or_default();
            needs.repos.extend(level.map(|level| (repo.clone(), level)));
        }
    }
}

/// Roots that are added to or removed from each relay.
type RootsByRelay<'a> = BTreeMap<&'a RelayUrl, Vec<RootId>>;

/// Builds each set at once, which is cheaper than inserting one by one.
fn set_roots(roots_by_relay: RootsByRelay<'_>, side: &mut BTreeMap<RelayUrl, RelaySyncNeeds>) {
    for (relay, roots) in roots_by_relay {
        let needs = side.entry(relay.clone()).or_default();
        needs.root_events = roots.into_iter().collect();
    }
}

/// The targets before the batch, as far as it changes them.
#[derive(Default)]
pub(super) struct Before {
    relays: BTreeMap<RelayUrl, bool>,
    /// Level and relays of a repository; its roots are recorded separately.
    repos: BTreeMap<RepoId, Option<RepoSyncNeeds>>,
    /// The relays from which a root was wanted.
    roots: BTreeMap<RootId, BTreeSet<RelayUrl>>,
    members: BTreeMap<Coordinate, BTreeSet<RelayUrl>>,
}

impl Before {
    /// Records whether a relay is a target, before that changes.
    pub(super) fn relay(&mut self, index: &SyncIndex, relay: &RelayUrl) {
        self.relays
            .entry(relay.clone())
            .or_insert_with(|| index.is_target(relay));
    }

    /// Records a repository with its roots, before its relays or level change.
    pub(super) fn repo(&mut self, index: &SyncIndex, repo: &RepoId) {
        self.repos.entry(repo.clone()).or_insert_with(|| {
            let needs = index.repos.get(repo)?;
            Some(RepoSyncNeeds::new(
                needs.level,
                needs.relays.iter().cloned(),
            ))
        });
        for root in index.roots_of(repo) {
            self.root(index, root);
        }
        for member in index.members.of(repo) {
            self.member(index, member);
        }
    }

    /// Records the relays for a coordinate, unless recorded before.
    pub(super) fn member(&mut self, index: &SyncIndex, member: &Coordinate) {
        let wanted_from = || index.member_wanted_from(member).into_owned();
        self.members
            .entry(member.clone())
            .or_insert_with(wanted_from);
    }

    /// Records the relays of a root, before its repositories or the relays of its author change.
    pub(super) fn root(&mut self, index: &SyncIndex, root: &RootId) {
        self.roots
            .entry(*root)
            .or_insert_with(|| index.wanted_from(root).into_owned());
        // These may be targets for this root alone.
        for relay in index.user_relays.relays_for(root).into_iter().flatten() {
            self.relay(index, relay);
        }
    }

    /// Compares the recorded targets with the current ones.
    pub(super) fn compare(&self, index: &SyncIndex) -> SyncDelta {
        let mut delta = SyncDelta::default();
        for (relay, was) in &self.relays {
            delta.relay(relay, *was, index.is_target(relay));
        }
        for (repo, was) in &self.repos {
            delta.repo(repo, was.as_ref(), index.repos.get(repo));
        }
        self.compare_roots(index, &mut delta);
        self.compare_members(index, &mut delta);
        delta
    }

    fn compare_members(&self, index: &SyncIndex, delta: &mut SyncDelta) {
        for (member, was) in &self.members {
            let is = index.member_wanted_from(member);
            for relay in is.difference(was) {
                let needs = delta.added.entry(relay.clone()).or_default();
                needs.coordinates.insert(member.clone());
            }
            for relay in was.difference(&is) {
                let needs = delta.removed.entry(relay.clone()).or_default();
                needs.coordinates.insert(member.clone());
            }
        }
    }

    fn compare_roots(&self, index: &SyncIndex, delta: &mut SyncDelta) {
        // Most of the many roots have the same relays before and after.
        let mut groups: BTreeMap<_, Vec<RootId>> = BTreeMap::new();
        for (root, was) in &self.roots {
            let group = (was, index.wanted_from(root));
            groups.entry(group).or_default().push(*root);
        }
        let mut added = RootsByRelay::new();
        let mut removed = RootsByRelay::new();
        for ((was, is), roots) in &groups {
            for relay in is.difference(was) {
                added.entry(relay).or_default().extend(roots);
            }
            for relay in was.difference(is) {
                removed.entry(relay).or_default().extend(roots);
            }
        }
        set_roots(added, &mut delta.added);
        set_roots(removed, &mut delta.removed);
    }
}

#[cfg(test)]
mod tests {
    use crate::RepoId;
    use nostr::event::EventId;
    use nostr::key::PublicKey;

    use super::super::SyncLevel::{self, Full, StateOnly};
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
    fn disconnected_at_200() -> RelayState {
        let mut state = RelayState::new(false);
        assert_eq!(state.connected(at(100)), None);
        state.confirm(items());
        state.history_ended(History::Complete);
        state.disconnected(at(200));
        state
    }

    #[test]
    fn a_quick_reconnect_catches_up_from_before_the_last_connect() {
        let mut state = disconnected_at_200();
        assert_eq!(state.connected(at(215)), Some(at(85)));
        assert_eq!(state.confirmed, items());
        assert_eq!(state.connection_status(), ConnectionStatus::Syncing);
    }

    #[test]
    fn a_late_reconnect_starts_fresh() {
        let mut state = disconnected_at_200();
        let late = Timestamp::from_secs(at(215).as_secs() + 1);
        assert!(!state.should_clear_state(at(215)) && state.should_clear_state(late));
        assert_eq!(state.connected(late), None);
        assert!(state.confirmed.is_empty());
    }

    #[test]
    fn failed_attempts_do_not_renew_the_confirmed_items() {
        let mut state = disconnected_at_200();
        for minute in [205, 210, 216] {
            state.connecting();
            assert_eq!(state.connection_status(), ConnectionStatus::Connecting);
            state.disconnected(at(minute));
        }
        assert_eq!(state.disconnected_at, Some(at(200)));
        assert_eq!(state.connected(at(217)), None);
    }

    #[test]
    fn an_interrupted_catch_up_is_repeated() {
        let mut state = disconnected_at_200();
        assert_eq!(state.connected(at(210)), Some(at(85)));
        state.disconnected(at(211));
        assert_eq!(state.connected(at(220)), Some(at(85)));
        state.history_ended(History::BatchesFailed);
        state.disconnected(at(300));
        assert_eq!(state.connected(at(301)), Some(at(205)));
        state.history_ended(History::CatchUpFailed);
        state.disconnected(at(400));
        assert_eq!(state.connected(at(401)), Some(at(205)));
    }

    #[test]
    fn an_interrupted_first_session_does_not_count() {
        let mut state = RelayState::new(true);
        assert_eq!(state.connected(at(0)), None);
        state.confirm(items());
        state.disconnected(at(1));
        assert_eq!(state.connected(at(2)), None);
        assert!(state.confirmed.is_empty());
    }

    #[test]
    fn starting_over_clears_and_syncs_again() {
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
    fn the_end_of_history_does_not_change_a_lost_connection() {
        let mut state = disconnected_at_200();
        state.history_ended(History::Complete);
        assert_eq!(state.connection_status(), ConnectionStatus::Disconnected);
        state.start_over(at(201));
        assert_eq!(state.connection_status(), ConnectionStatus::Disconnected);
    }

    fn needs(repos: &[(u8, SyncLevel)], roots: &[u8]) -> RelaySyncNeeds {
        let repo = |n| RepoId::new(PublicKey::from_byte_array([n; 32]), "r".parse().unwrap());
        RelaySyncNeeds {
            repos: repos.iter().map(|(n, level)| (repo(*n), *level)).collect(),
            root_events: roots
                .iter()
                .map(|n| EventId::from_byte_array([*n; 32]).into())
                .collect(),
            ..RelaySyncNeeds::default()
        }
    }

    fn connected() -> RelayState {
        let mut state = RelayState::new(false);
        let _ = state.connected(Timestamp::from_secs(1));
        state
    }

    #[test]
    fn requests_only_items_neither_pending_nor_confirmed() {
        let mut state = connected();
        state.confirm(needs(&[(1, Full)], &[1]));
        let batches = [needs(&[(2, Full)], &[]), needs(&[], &[2])];
        let target = needs(&[(1, Full), (2, Full), (3, Full)], &[1, 2, 3]);
        assert_eq!(
            compute_actions(&target, &batches, &state),
            Some(needs(&[(3, Full)], &[3]))
        );
    }

    #[test]
    fn requests_a_promoted_repository_in_full() {
        let mut state = connected();
        state.confirm(needs(&[(1, StateOnly)], &[]));
        let batches = [needs(&[(2, StateOnly)], &[])];
        let target = needs(&[(1, Full), (2, Full)], &[]);
        assert_eq!(compute_actions(&target, &batches, &state), Some(target));
    }

    #[test]
    fn asks_only_connected_relays() {
        let target = needs(&[(1, Full)], &[]);
        let asked = |state: &RelayState| compute_actions(&target, [], state).is_some();
        let mut state = RelayState::new(true);
        assert!(!asked(&state));
        state.connecting();
        assert!(!asked(&state));
        let _ = state.connected(Timestamp::from_secs(1));
        assert!(asked(&state));
        state.history_ended(History::BatchesFailed);
        assert!(asked(&state));
        state.history_ended(History::Complete);
        assert!(asked(&state));
        state.disconnected(Timestamp::from_secs(2));
        assert!(!asked(&state));
    }
}
