//! What relays and repository names look like to an operator.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use grasp_core::limits::Health;
use grasp_core::sync::ConnectionStatus;
use grasp_core::{Identifier, RelayUrl, RepoId};
use grasp_purgatory::hunt::Turn;
use grasp_purgatory::{Phase, Purgatory};
use grasp_relay::web::figures::{MissingRow, RelayHealth, RelayRow, RelayState, WaitingRow};
use grasp_sync::driver::RelayStatus;
use grasp_sync::engine::{Fault, Flaw, PeerReliability};

/// Names under which something waits that are told of at most.
const MOST_WAITING: usize = 1_000;

/// How things stand with one relay.
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
        trouble: failed.map(|failed| in_words(failed.why).to_owned()),
        retry_at: failed.map(|failed| failed.retry_at.as_secs()),
        uptime: status.reliability.as_ref().and_then(PeerReliability::uptime),
        coverage: status.reliability.as_ref().and_then(PeerReliability::coverage),
        missing: status.reliability.as_ref().map(missing).unwrap_or_default(),
    }
}

/// What a relay lacks, by repository, most first. Strangers name repositories, and may put anything into a name.
fn missing(seen: &PeerReliability) -> Vec<MissingRow> {
    let row = |(repo, events): (&RepoId, &u64)| MissingRow {
        repository: repo.to_string().escape_debug().to_string(),
        events: *events,
    };
    let mut rows: Vec<_> = seen.missing.iter().map(row).collect();
    rows.sort_by_key(|row| Reverse(row.events));
    rows
}

/// Why no connection is made, in words.
pub(crate) fn in_words(why: Fault) -> &'static str {
    match why {
        Fault::Unreachable => "nobody answers there",
        Fault::NoSuchHost => "there is no such host",
        Fault::Certificate(Flaw::Untrusted) => {
            "nobody whom we trust has signed its certificate (see trusted_roots)"
        }
        Fault::Certificate(Flaw::OtherName) => "its certificate is for another name",
        Fault::Certificate(Flaw::OutOfDate) => {
            "its certificate has expired or does not hold yet, or a clock is wrong"
        }
        Fault::Certificate(Flaw::Invalid) => "its certificate is not valid",
        Fault::Tls => "it speaks no TLS that we understand",
        Fault::Protocol => "it speaks no websocket",
        Fault::Private => "it is only for its own people (GRASP-08)",
        Fault::Forbidden => {
            "its address is private, and events may not lead there (allow_private_targets)"
        }
    }
}

/// The names under which something waits.
pub(crate) fn waiting(
    purgatory: &Purgatory,
    now: u64,
    turns: &BTreeMap<Identifier, Turn>,
) -> Vec<WaitingRow> {
    let mut names = purgatory.wanting(Phase::Waiting);
    names.extend(purgatory.wanting(Phase::Shelved));
    let names = names.iter().take(MOST_WAITING);
    names.map(|name| waiting_row(purgatory, now, name, turns.get(name))).collect()
}

/// What waits under one name. Places that only stored announcements name are not looked up for this.
fn waiting_row(
    purgatory: &Purgatory,
    now: u64,
    identifier: &Identifier,
    turn: Option<&Turn>,
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
        position: turn.and_then(|turn| turn.in_line).map(|line| line.position as u64),
        turn_in: turn.and_then(|turn| turn.in_line).map(|line| line.wait.as_secs()),
        expires_in: purgatory.expires(identifier).map(|end| end.as_secs().saturating_sub(now)),
        places,
    }
}
