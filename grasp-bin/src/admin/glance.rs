//! How everything stands, on one screen.

use std::fmt::Write as _;

use grasp_relay::web::figures::Status;
use grasp_relay::web::{counted, size, span};

use super::show::relays;

/// Everything at a glance.
pub(super) fn glance(status: &Status) -> String {
    let uptime = span(status.now.saturating_sub(status.started));
    let (service, version) = (&status.service, &status.version);
    let mut text = match (&status.beside, status.ready) {
        (None, true) => {
            let works = if status.damaged.is_empty() { "working" } else { "DEGRADED" };
            format!("{service} (grasp {version}): {works}, up for {uptime}\n\n")
        }
        (None, false) => format!("{service} (grasp {version}): NOT READY, up for {uptime}\n\n"),
        (Some(relay), true) => {
            format!("sidecar of {relay} (grasp {version}): working, up for {uptime}\n\n")
        }
        (Some(relay), false) => {
            format!("sidecar of {relay} (grasp {version}): THE RELAY DOES NOT ANSWER\n\n")
        }
    };
    let lines = if status.beside.is_some() { beside(status) } else { server(status) };
    for (label, line) in lines.into_iter().chain(damaged(status)) {
        let _ = writeln!(text, "  {label:<8} {line}");
    }
    if !status.relays.is_empty() {
        text.push('\n');
        text.push_str(&relays(status.now, &status.relays));
    }
    text
}

/// A label, and what stands beside it.
type Line = (&'static str, String);

fn beside(status: &Status) -> Vec<Line> {
    vec![("brought", brought(status)), ("relays", connected(status))]
}

fn server(status: &Status) -> Vec<Line> {
    let held = &status.purgatory;
    let next = match (held.hunting, held.seconds_left, held.next_attempt_in) {
        (0, ..) => String::new(),
        (_, Some(left), _) => {
            let (rate, line) = (held.per_minute, held.in_line);
            format!(", {line} of them in line, {rate}/min, about {} left", span(left.max(1)))
        }
        (_, None, Some(next)) => format!(", next attempt in {}", span(next)),
        (_, None, None) => ", attempts are under way".into(),
    };
    vec![
        (
            "holds",
            format!(
                "{}, {}",
                counted(status.repositories, "repository", "repositories"),
                counted(status.events, "event", "events"),
            ),
        ),
        (
            "on disk",
            format!(
                "{} of events, {} of git data, {} in all",
                size(status.store_bytes),
                size(status.git_bytes),
                size(status.disk_bytes)
            ),
        ),
        (
            "serves",
            format!(
                "{}, {}",
                counted(status.sockets, "connection", "connections"),
                counted(status.subscriptions, "subscription", "subscriptions")
            ),
        ),
        ("took in", brought(status)),
        (
            "waiting",
            format!(
                "{}, {}, {}; {} within an hour, {} expired",
                counted(held.announcements, "announcement", "announcements"),
                counted(held.states, "state", "states"),
                counted(held.proposals, "pull request", "pull requests"),
                counted(held.expiring, "expires", "expire"),
                held.shelved,
            ),
        ),
        ("hunting", format!("{}{next}", counted(held.hunting, "name", "names"))),
        (
            "uploads",
            format!(
                "{} for their event, {}",
                counted(held.staged, "waits", "wait"),
                size(held.staged_bytes)
            ),
        ),
        ("relays", connected(status)),
    ]
}

/// The repositories that lack objects, if there are any.
fn damaged(status: &Status) -> Option<Line> {
    let first = status.damaged.first()?;
    let rest = match status.damaged.len() - 1 {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(("damaged", format!("git objects are missing on disk: {first}{rest}; see the log")))
}

fn brought(status: &Status) -> String {
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
    use grasp_relay::web::figures::{PurgatoryFigures, RelayRow};

    use super::*;

    #[test]
    fn the_glance_says_whether_all_is_well() {
        let relay = RelayRow { url: "wss://relay.example.com".into(), ..RelayRow::default() };
        let stands = Status { ready: true, now: 120, relays: vec![relay], ..Status::default() };
        let text = glance(&stands);
        assert!(text.contains("working, up for 2 minutes"), "{text}");
        assert!(
            text.contains("0 of 1 connected") && text.contains("wss://relay.example.com"),
            "{text}"
        );
        assert!(glance(&Status::default()).contains("NOT READY"));
    }

    #[test]
    fn missing_objects_are_told_with_the_repositories_that_lack_them() {
        let damaged = vec!["/npub1x/a.git".to_owned(), "/npub1x/b.git".to_owned()];
        let text = glance(&Status { ready: true, damaged, ..Status::default() });
        assert!(text.contains("DEGRADED, up for") && !text.contains("working"), "{text}");
        assert!(text.contains("missing on disk: /npub1x/a.git and 1 more"), "{text}");
    }

    #[test]
    fn events_git_data_and_everything_are_measured_apart() {
        let (store_bytes, git_bytes, disk_bytes) = (1 << 10, 40 << 20, 41 << 20);
        let text = glance(&Status { store_bytes, git_bytes, disk_bytes, ..Status::default() });
        let expected = "on disk  1.0 KiB of events, 40.0 MiB of git data, 41.0 MiB in all";
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn what_waits_is_told_with_what_expires_and_when_it_is_looked_for() {
        let purgatory = PurgatoryFigures {
            states: 1,
            hunting: 2,
            next_attempt_in: Some(12),
            expiring: 1,
            ..PurgatoryFigures::default()
        };
        let text = glance(&Status { purgatory, ..Status::default() });
        assert!(text.contains("1 state, 0 pull requests; 1 expires within an hour"), "{text}");
        assert!(text.contains("2 names, next attempt in 12 seconds"), "{text}");
        let purgatory = PurgatoryFigures {
            hunting: 985,
            in_line: 980,
            per_minute: 600,
            seconds_left: Some(120),
            ..purgatory
        };
        let text = glance(&Status { purgatory, ..Status::default() });
        let line = "985 names, 980 of them in line, 600/min, about 2 minutes left";
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn a_sidecar_says_whose_it_is_and_nothing_about_what_it_does_not_hold() {
        let beside = Some("ws://127.0.0.1:7777".into());
        let status = Status { beside, ready: true, ..Status::default() };
        let text = glance(&status);
        assert!(text.starts_with("sidecar of ws://127.0.0.1:7777"), "{text}");
        assert!(!text.contains("repositories") && !text.contains("waiting"), "{text}");
        assert!(glance(&Status { ready: false, ..status }).contains("DOES NOT ANSWER"));
    }
}
