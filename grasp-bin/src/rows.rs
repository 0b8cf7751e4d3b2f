//! Rows of the status: relays, and repository names that wait for git data.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use grasp_core::limits::Health;
use grasp_core::{Identifier, RelayUrl, RepoId};
use grasp_purgatory::hunt::HuntSchedule;
use grasp_purgatory::{Phase, Purgatory};
use grasp_relay::web::figures::{MissingRow, RelayHealth, RelayRow, RelayState, WaitingRow};
use grasp_sync::driver::RelayStatus;
use grasp_sync::engine::{Fault, Flaw, PeerReliability};
use grasp_sync::index::ConnectionStatus;

/// Limits the repository names in the list of what waits.
const MAX_WAITING_NAMES: usize = 1_000;

/// Returns the row of one relay.
pub(crate) fn relay_row((url, status): (&RelayUrl, &RelayStatus)) -> RelayRow {
    let down = status.connection == ConnectionStatus::Disconnected;
    let failed = status.failed.filter(|_| down);
    RelayRow {
        url: url.to_string(),
        state: match status.connection {
            ConnectionStatus::Disconnected => RelayState::Disconnected,
            ConnectionStatus::Connecting => RelayState::Connecting,
            ConnectionStatus::Syncing => RelayState::Syncing,
            ConnectionStatus::Connected => RelayState::Connected,
            ConnectionStatus::ConnectedHistoricSyncFailures => RelayState::Incomplete,
        },
        since: status.since.as_secs(),
        health: match status.health {
            Health::Healthy => RelayHealth::Healthy,
            Health::Degraded => RelayHealth::Degraded,
            Health::Dead => RelayHealth::Dead,
        },
        synced_at: status.synced_at.map(|at| at.as_secs()),
        backlog: status.backlog.max(status.wanted),
        stored: status.counts.stored(),
        gaps: status.gaps,
        interruptions: status.interruptions,
        refusal: status.last_refusal.as_ref().map(|text| text.as_str().to_owned()),
        trouble: failed.map(|failed| fault_text(failed.why).to_owned()),
        retry_at: failed.map(|failed| failed.retry_at.as_secs()),
        uptime: status.reliability.as_ref().and_then(PeerReliability::uptime),
        coverage: status.reliability.as_ref().and_then(PeerReliability::coverage),
        missing: status.reliability.as_ref().map(missing_rows).unwrap_or_default(),
    }
}

/// Returns the number of events that a relay lacks by repository, most first. Any author can name a repository, with any
/// characters.
fn missing_rows(seen: &PeerReliability) -> Vec<MissingRow> {
    let row = |(repo, events): (&RepoId, &u64)| MissingRow {
        repository: repo.to_string().escape_debug().to_string(),
        events: *events,
    };
    let mut rows: Vec<_> = seen.missing.iter().map(row).collect();
    rows.sort_by_key(|row| Reverse(row.events));
    rows
}

/// Explains why there is no connection.
pub(crate) fn fault_text(fault: Fault) -> &'static str {
    match fault {
        Fault::Unreachable => "it cannot be reached",
        Fault::NoSuchHost => "its host name does not exist",
        Fault::Certificate(Flaw::Untrusted) => {
            "its certificate is not signed by a trusted authority (see trusted_roots)"
        }
        Fault::Certificate(Flaw::OtherName) => "its certificate is for another host name",
        Fault::Certificate(Flaw::OutOfDate) => {
            "its certificate has expired or is not valid yet, or a clock is wrong"
        }
        Fault::Certificate(Flaw::Invalid) => "its certificate is not valid",
        Fault::Tls => "its TLS version or ciphers are not supported",
        Fault::Protocol => "it does not accept websockets",
        Fault::Private => "it is only for its members (GRASP-08)",
        Fault::Forbidden => "its address is private (see allow_private_targets)",
    }
}

/// Returns the repository names whose events wait for git data.
pub(crate) fn waiting_rows(
    purgatory: &Purgatory,
    now: u64,
    turns: &BTreeMap<Identifier, HuntSchedule>,
) -> Vec<WaitingRow> {
    let mut names = purgatory.wanting(Phase::Waiting);
    names.extend(purgatory.wanting(Phase::Expired));
    let names = names.iter().take(MAX_WAITING_NAMES);
    names.map(|name| waiting_row(purgatory, now, name, turns.get(name))).collect()
}

/// Returns the row of one name. Git servers that only stored announcements name are left out, to save a query.
fn waiting_row(
    purgatory: &Purgatory,
    now: u64,
    identifier: &Identifier,
    turn: Option<&HuntSchedule>,
) -> WaitingRow {
    let wants = purgatory.wants(identifier, &[]);
    let hunted = wants.iter().filter(|want| want.phase == Phase::Waiting).count();
    let places = wants.iter().flat_map(|want| want.trusted.iter().chain(&want.untrusted));
    let mut places: Vec<String> = places.map(ToString::to_string).collect();
    places.sort();
    places.dedup();
    WaitingRow {
        identifier: identifier.to_string(),
        hunted: hunted as u64,
        wanted: (wants.len() - hunted) as u64,
        tips: wants.iter().map(|want| want.tips.len() as u64).sum(),
        attempts: turn.map_or(0, |turn| turn.attempts.into()),
        next_in: turn.and_then(|turn| turn.next_in).map(|next| next.as_secs()),
        position: turn.and_then(|turn| turn.position).map(|queue| queue.position as u64),
        turn_in: turn.and_then(|turn| turn.position).map(|queue| queue.wait.as_secs()),
        expires_in: purgatory.expires(identifier).map(|end| end.as_secs().saturating_sub(now)),
        places,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use grasp_core::nostr::types::Timestamp;
    use grasp_sync::driver::Counts;

    use super::*;

    #[test]
    fn a_relay_is_shown_with_its_reliability() {
        let owner = "79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798";
        let repo = |name: &str| format!("30617:{owner}:{name}").parse::<RepoId>().unwrap();
        let reliability = PeerReliability {
            up: Duration::from_secs(30),
            down: Duration::from_secs(10),
            received: 1,
            compared: 3,
            lacking: 1,
            missing: [(repo("few"), 2), (repo("many\n"), 7)].into(),
            ..PeerReliability::default()
        };
        let status = RelayStatus {
            connection: ConnectionStatus::Connected,
            since: Timestamp::from_secs(1),
            health: Health::Healthy,
            synced_at: None,
            backlog: 0,
            wanted: 0,
            counts: Counts::default(),
            gaps: 0,
            interruptions: 0,
            requests: 0,
            batches: 0,
            last_refusal: None,
            failed: None,
            reliability: Some(reliability),
        };
        let row = relay_row((&"wss://relay.example.com".parse().unwrap(), &status));
        assert_eq!((row.uptime, row.coverage), (Some(0.75), Some(0.75)));
        let lacks = |row: &MissingRow| (row.repository.clone(), row.events);
        let expected = [(format!("30617:{owner}:many\\n"), 7), (format!("30617:{owner}:few"), 2)];
        assert_eq!(row.missing.iter().map(lacks).collect::<Vec<_>>(), expected);
    }
}
