//! The status of a server on one screen.

use std::fmt::Write as _;

use grasp_relay::web::figures::{PurgatoryFigures, Status};
use grasp_relay::web::{format_bytes, format_count, format_duration};

use super::show::relays;

/// Returns the status as text.
pub(super) fn summary(status: &Status) -> String {
    let uptime = format_duration(status.now.saturating_sub(status.started));
    let (service, version) = (&status.service, &status.version);
    let mut text = match (&status.beside, status.ready) {
        (None, true) => {
            let state = if status.damaged.is_empty() { "working" } else { "DEGRADED" };
            format!("{service} (grasp {version}): {state}, up for {uptime}\n\n")
        }
        (None, false) => format!("{service} (grasp {version}): NOT READY, up for {uptime}\n\n"),
        (Some(relay), true) => {
            format!("sidecar of {relay} (grasp {version}): working, up for {uptime}\n\n")
        }
        (Some(relay), false) => {
            format!("sidecar of {relay} (grasp {version}): THE RELAY DOES NOT ANSWER\n\n")
        }
    };
    let lines = if status.beside.is_some() { sidecar_lines(status) } else { server_lines(status) };
    for (label, line) in lines.into_iter().chain(damaged(status)) {
        let _ = writeln!(text, "  {label:<8} {line}");
    }
    if !status.relays.is_empty() {
        text.push('\n');
        text.push_str(&relays(status.now, &status.relays));
    }
    text
}

/// A label, and the text after it.
type Line = (&'static str, String);

fn sidecar_lines(status: &Status) -> Vec<Line> {
    vec![("events", received(status)), ("relays", connected(status))]
}

fn server_lines(status: &Status) -> Vec<Line> {
    let held = &status.purgatory;
    vec![
        (
            "stores",
            format!(
                "{}, {}",
                format_count(status.repositories, "repository", "repositories"),
                format_count(status.events, "event", "events"),
            ),
        ),
        (
            "on disk",
            format!(
                "{} of events, {} of git data, {} in total",
                format_bytes(status.store_bytes),
                format_bytes(status.git_bytes),
                format_bytes(status.disk_bytes)
            ),
        ),
        (
            "serves",
            format!(
                "{}, {}",
                format_count(status.sockets, "connection", "connections"),
                format_count(status.subscriptions, "subscription", "subscriptions")
            ),
        ),
        ("events", received(status)),
        (
            "waiting",
            format!(
                "{}, {}, {}; {} within an hour, {} expired",
                format_count(held.announcements, "announcement", "announcements"),
                format_count(held.states, "state", "states"),
                format_count(held.proposals, "pull request", "pull requests"),
                format_count(held.expiring, "expires", "expire"),
                held.expired,
            ),
        ),
        ("hunting", hunting(held)),
        (
            "uploads",
            format!(
                "{} for their event, {}",
                format_count(held.staged, "waits", "wait"),
                format_bytes(held.staged_bytes)
            ),
        ),
        ("relays", connected(status)),
    ]
}

fn hunting(held: &PurgatoryFigures) -> String {
    let next = match (held.hunting, held.seconds_left, held.next_attempt_in) {
        (0, ..) => String::new(),
        (_, Some(left), _) => {
            let (rate, queued) = (held.per_minute, held.in_line);
            format!(
                ", {queued} of them queued, {rate}/min, about {} left",
                format_duration(left.max(1))
            )
        }
        (_, None, Some(next)) => format!(", next attempt in {}", format_duration(next)),
        (_, None, None) => ", attempts are running".into(),
    };
    format!("{}{next}", format_count(held.hunting, "name", "names"))
}

/// Names a repository whose objects are missing, if there is one.
fn damaged(status: &Status) -> Option<Line> {
    let first = status.damaged.first()?;
    let rest = match status.damaged.len() - 1 {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(("damaged", format!("git objects are missing on disk: {first}{rest}; see the log")))
}

fn received(status: &Status) -> String {
    let intake = &status.intake;
    format!(
        "{} stored, {} held for git data, {} known, {} refused; {:.0} new per minute",
        intake.stored, intake.held, intake.known, intake.rejected, status.events_per_minute
    )
}

fn connected(status: &Status) -> String {
    if status.relays.is_empty() {
        return "no other relay is followed".into();
    }
    let connected = status.relays.iter().filter(|relay| relay.is_connected()).count();
    format!("{connected} of {} connected", status.relays.len())
}

#[cfg(test)]
mod tests {
    use grasp_relay::web::figures::RelayRow;

    use super::*;

    #[test]
    fn the_summary_shows_whether_the_server_is_ready() {
        let relay = RelayRow { url: "wss://relay.example.com".into(), ..RelayRow::default() };
        let status = Status { ready: true, now: 120, relays: vec![relay], ..Status::default() };
        let text = summary(&status);
        assert!(text.contains("working, up for 2 minutes"), "{text}");
        assert!(
            text.contains("0 of 1 connected") && text.contains("wss://relay.example.com"),
            "{text}"
        );
        assert!(summary(&Status::default()).contains("NOT READY"));
    }

    #[test]
    fn damaged_repositories_are_named() {
        let damaged = vec!["/npub1x/a.git".to_owned(), "/npub1x/b.git".to_owned()];
        let text = summary(&Status { ready: true, damaged, ..Status::default() });
        assert!(text.contains("DEGRADED, up for") && !text.contains("working"), "{text}");
        assert!(text.contains("missing on disk: /npub1x/a.git and 1 more"), "{text}");
    }

    #[test]
    fn disk_usage_is_shown_by_kind() {
        let (store_bytes, git_bytes, disk_bytes) = (1 << 10, 40 << 20, 41 << 20);
        let text = summary(&Status { store_bytes, git_bytes, disk_bytes, ..Status::default() });
        let expected = "on disk  1.0 KiB of events, 40.0 MiB of git data, 41.0 MiB in total";
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn purgatory_is_shown_with_expiry_and_next_attempt() {
        let purgatory = PurgatoryFigures {
            states: 1,
            hunting: 2,
            next_attempt_in: Some(12),
            expiring: 1,
            ..PurgatoryFigures::default()
        };
        let text = summary(&Status { purgatory, ..Status::default() });
        assert!(text.contains("1 state, 0 pull requests; 1 expires within an hour"), "{text}");
        assert!(text.contains("2 names, next attempt in 12 seconds"), "{text}");
        let purgatory = PurgatoryFigures {
            hunting: 985,
            in_line: 980,
            per_minute: 600,
            seconds_left: Some(120),
            ..purgatory
        };
        let text = summary(&Status { purgatory, ..Status::default() });
        let line = "985 names, 980 of them queued, 600/min, about 2 minutes left";
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn a_sidecar_names_its_relay_and_shows_no_repositories() {
        let beside = Some("ws://127.0.0.1:7777".into());
        let status = Status { beside, ready: true, ..Status::default() };
        let text = summary(&status);
        assert!(text.starts_with("sidecar of ws://127.0.0.1:7777"), "{text}");
        assert!(!text.contains("repositories") && !text.contains("waiting"), "{text}");
        assert!(summary(&Status { ready: false, ..status }).contains("DOES NOT ANSWER"));
    }
}
