//! Figures of a server as tables and lines.

use std::fmt::Write as _;

use super::is_control;
use crate::web::figures::{
    Figure, NodeStatus, RelayRow, RepositoryRow, Status, UsageReport, WaitingRow,
};
use crate::web::{format_age, format_bytes, format_duration};

/// Returns the relays that are synced with.
pub fn relay_table(now: u64, rows: &[RelayRow]) -> String {
    if rows.is_empty() {
        return "no other relay is followed\n".into();
    }
    let head: Vec<_> = RelayRow::default()
        .cells(now)
        .map(|(label, _)| label)
        .into();
    let cells = |relay: &RelayRow| relay.cells(now).map(|(_, text)| text).into();
    table(&head, &rows.iter().map(cells).collect::<Vec<_>>())
}

/// Returns the hosted repositories.
pub fn repository_table(rows: &[RepositoryRow]) -> String {
    if rows.is_empty() {
        return "no repository is hosted\n".into();
    }
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = now.map_or(0, |now| now.as_secs());
    let cells = |repo: &RepositoryRow| {
        let name = repo.identifier.clone();
        let owner = repo.owner.clone();
        vec![
            name,
            format_age(now, Some(repo.active_at)),
            repo.refs.to_string(),
            owner,
        ]
    };
    let rows: Vec<_> = rows.iter().map(cells).collect();
    table(&["name", "last active", "refs", "owner"], &rows)
}

/// Returns the repositories whose events wait for git data.
pub fn waiting_table(rows: &[WaitingRow]) -> String {
    if rows.is_empty() {
        return "nothing waits for git data\n".into();
    }
    let cells = |row: &WaitingRow| {
        let next = match (row.position, row.next_in, row.waiting) {
            (Some(position), ..) => {
                let wait = row.wait_seconds.filter(|wait| *wait > 0);
                let wait = wait.map_or_else(String::new, |wait| {
                    format!(", about {}", format_duration(wait))
                });
                format!("number {position} in the queue{wait}")
            }
            (None, Some(next), _) => format!("in {}", format_duration(next)),
            (None, None, 0) => "within an hour".into(),
            (None, None, _) => "now".into(),
        };
        vec![
            row.identifier.clone(),
            row.waiting.to_string(),
            row.expired.to_string(),
            row.tips.to_string(),
            row.attempts.to_string(),
            next,
            row.expires_in
                .map_or_else(String::new, |end| format!("in {}", format_duration(end))),
            row.owner.clone(),
            row.git_servers.join(" "),
        ]
    };
    let rows: Vec<_> = rows.iter().map(cells).collect();
    let head = [
        "name",
        "waiting",
        "expired",
        "tips",
        "attempts",
        "next attempt",
        "expires",
        "owner",
        "git servers",
    ];
    table(&head, &rows)
}

/// Returns the status as text.
pub fn summary(status: &Status) -> String {
    let uptime = format_duration(status.now.saturating_sub(status.started));
    let service = &status.service;
    let version = &status.version;
    let state = match (status.ready, &status.beside) {
        (true, _) if status.damaged.is_empty() => "working",
        (true, _) => "DEGRADED",
        (false, None) => "NOT READY",
        (false, Some(_)) => "THE RELAY DOES NOT ANSWER",
    };
    let subject = match &status.beside {
        Some(relay) => format!("sidecar of {relay}"),
        None => service.clone(),
    };
    let mut text = format!("{subject} (grasp {version}): {state}, up for {uptime}\n\n");
    let figures = status
        .sections()
        .into_iter()
        .map(|(title, figures)| (title, listed(&figures)));
    let progress = status
        .purgatory
        .hunt_progress()
        .map(|text| ("Git data fetched", text));
    let lines = figures
        .chain(progress)
        .chain([("Relays", connected(status))]);
    for (title, line) in lines.chain(damaged(status)) {
        let _ = writeln!(text, "{title}\n  {line}");
    }
    if !status.nodes.is_empty() {
        text.push('\n');
        text.push_str(&node_table(&status.nodes));
    }
    if !status.relays.is_empty() {
        text.push('\n');
        text.push_str(&relay_table(status.now, &status.relays));
    }
    text
}

fn node_table(nodes: &[NodeStatus]) -> String {
    let head: Vec<_> = NodeStatus::default().cells().map(|(label, _)| label).into();
    let cells = |node: &NodeStatus| node.cells().map(|(_, text)| text).into();
    table(&head, &nodes.iter().map(cells).collect::<Vec<_>>())
}

fn listed(figures: &[Figure]) -> String {
    let figure = |one: &Figure| format!("{} {}", one.label.to_lowercase(), one.text);
    figures.iter().map(figure).collect::<Vec<_>>().join(", ")
}

/// Names a repository whose objects are missing, if there is one.
fn damaged(status: &Status) -> Option<(&'static str, String)> {
    let first = status.damaged.first()?;
    let rest = match status.damaged.len() - 1 {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some((
        "Damaged repositories",
        format!("git objects are missing on disk: {first}{rest}; see the log"),
    ))
}

fn connected(status: &Status) -> String {
    if status.relays.is_empty() {
        return "no other relay is followed".into();
    }
    format!(
        "{} of {} connected",
        status.connected(),
        status.relays.len()
    )
}

/// Characters of a cell; longer text is cut and ends with `…`.
const MAX_CELL_WIDTH: usize = 72;

/// Characters of a cell in the last column, which moves no other: its text can be copied whole.
const MAX_LAST_CELL_WIDTH: usize = 500;

/// Formats rows under a head, in columns as wide as needed. Characters that control a terminal or the direction of text
/// are shown as `?`.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let max_width = |column: usize| {
        if column + 1 == head.len() {
            MAX_LAST_CELL_WIDTH
        } else {
            MAX_CELL_WIDTH
        }
    };
    let titles: Vec<String> = head.iter().map(|name| name.to_uppercase()).collect();
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            row.iter()
                .enumerate()
                .map(|(at, cell)| fit(cell, max_width(at)))
                .collect()
        })
        .collect();
    let lines = || std::iter::once(&titles).chain(&rows);
    let width = |column: usize| {
        lines()
            .filter_map(|line| line.get(column))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let mut text = String::new();
    for line in lines() {
        let mut written = String::new();
        for (cell, width) in line.iter().zip(&widths) {
            let _ = write!(written, "{cell:<width$}  ");
        }
        let _ = writeln!(text, "{}", written.trim_end());
    }
    text
}

/// Cuts a text to this many characters. Those that control a terminal or the direction of text are shown as `?`.
pub(super) fn fit(cell: &str, max_width: usize) -> String {
    let shown: String = cell
        .chars()
        .map(|c| if is_control(c) { '?' } else { c })
        .take(max_width + 1)
        .collect();
    if shown.chars().count() <= max_width {
        return shown;
    }
    shown
        .chars()
        .take(max_width.saturating_sub(1))
        .chain(['…'])
        .collect()
}

/// Returns how much git data owners or repositories have, and may have.
pub fn usage_table(report: &UsageReport) -> String {
    let mut rows = Vec::new();
    for row in &report.rows {
        let source = match row.is_given {
            true => "given",
            false => "",
        };
        rows.push(vec![
            format_bytes(row.bytes),
            format_bytes(row.quota),
            source.to_owned(),
            row.repositories.to_string(),
            row.name(),
        ]);
    }
    let head = ["used", "quota", "", "repositories", "of"];
    let limit = match report.total_quota {
        Some(limit) => format!(" of {}", format_bytes(limit)),
        None => String::new(),
    };
    let total = format_bytes(report.total_bytes);
    format!("{}all repositories: {total}{limit}\n", table(&head, &rows))
}

#[cfg(test)]
mod tests {
    use crate::web::figures::{MissingRow, PurgatoryFigures, UsageRow};
    use grasp_purgatory::Counts;

    use super::*;

    #[test]
    fn waiting_names_are_listed_with_next_attempt_and_expiry() {
        let row = WaitingRow {
            identifier: "hello".into(),
            waiting: 1,
            attempts: 3,
            next_in: Some(80),
            expires_in: Some(1_500),
            git_servers: vec!["https://git.example.com/hello.git".into()],
            ..WaitingRow::default()
        };
        let now = WaitingRow {
            next_in: None,
            ..row.clone()
        };
        let queued = WaitingRow {
            position: Some(62),
            wait_seconds: Some(120),
            ..row.clone()
        };
        let text = waiting_table(&[row, now, queued]);
        let lines: Vec<_> = text.lines().collect();
        let words = lines[1].split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("3 in 1 minute in 25 minutes"), "{text}");
        assert!(lines[2].contains("now"), "{text}");
        assert!(
            lines[3].contains("number 62 in the queue, about 2 minutes"),
            "{text}"
        );
    }

    #[test]
    fn an_unreachable_relay_is_shown_with_reason_and_next_try() {
        let row = RelayRow {
            url: "wss://relay.example.com".into(),
            failure: Some("it cannot be reached".into()),
            retry_at: Some(160),
            ..RelayRow::default()
        };
        assert!(relay_table(100, &[row]).contains("it cannot be reached; next try in 1 minute"));
    }

    #[test]
    fn a_relay_is_shown_with_missing_events() {
        let missing = vec![MissingRow {
            repository: "30617:ab:grasp".into(),
            events: 7,
        }];
        let row = RelayRow {
            missing,
            coverage: Some(0.5),
            ..RelayRow::default()
        };
        let text = relay_table(100, &[row]);
        assert!(
            text.contains("50.0 %") && text.contains("7 (grasp 7)"),
            "{text}"
        );
    }

    #[test]
    fn an_owner_is_not_shortened() {
        let owner = "npub10elfcs4fr0l0r8af98jlmgdh9c8tcxjvz9qkw038js35mp4dma8qzvjptg";
        let row = RepositoryRow {
            owner: owner.into(),
            ..RepositoryRow::default()
        };
        assert!(repository_table(&[row]).contains(owner));
    }

    #[test]
    fn the_summary_shows_whether_the_server_is_ready() {
        let relay = RelayRow {
            url: "wss://relay.example.com".into(),
            ..RelayRow::default()
        };
        let status = Status {
            ready: true,
            now: 120,
            relays: vec![relay],
            ..Status::default()
        };
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
        let text = summary(&Status {
            ready: true,
            damaged,
            ..Status::default()
        });
        assert!(
            text.contains("DEGRADED, up for") && !text.contains("working"),
            "{text}"
        );
        assert!(
            text.contains("missing on disk: /npub1x/a.git and 1 more"),
            "{text}"
        );
    }

    #[test]
    fn disk_usage_is_shown_by_kind() {
        let (store_bytes, git_bytes, disk_bytes) = (1 << 10, 40 << 20, 41 << 20);
        let text = summary(&Status {
            store_bytes,
            git_bytes,
            disk_bytes,
            ..Status::default()
        });
        let expected = "event store 1.0 KiB, git data 40.0 MiB, total on disk 41.0 MiB";
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn purgatory_is_shown_with_expiry_and_next_attempt() {
        let purgatory = PurgatoryFigures {
            counts: Counts {
                states: 1,
                ..Counts::default()
            },
            hunting: 2,
            next_attempt_in: Some(12),
            expiring: 1,
            ..PurgatoryFigures::default()
        };
        let text = summary(&Status {
            purgatory,
            ..Status::default()
        });
        assert!(
            text.contains("states 1, pull requests 0, names hunted for 2"),
            "{text}"
        );
        assert!(
            text.contains("expire within an hour 1, expired 0"),
            "{text}"
        );
        assert!(
            text.contains("Git data fetched\n  0 of 2, next attempt in 12 seconds"),
            "{text}"
        );
        let purgatory = PurgatoryFigures {
            hunting: 985,
            queued: 980,
            per_minute: 600,
            seconds_left: Some(120),
            ..purgatory
        };
        let text = summary(&Status {
            purgatory,
            ..Status::default()
        });
        let line = "0 of 985, 980 queued, 600 per minute, about 2 minutes left";
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn a_sidecar_names_its_relay_and_shows_no_repositories() {
        let beside = Some("ws://127.0.0.1:7777".into());
        let status = Status {
            beside,
            ready: true,
            ..Status::default()
        };
        let text = summary(&status);
        assert!(text.starts_with("sidecar of ws://127.0.0.1:7777"), "{text}");
        assert!(
            !text.contains("repositories") && !text.contains("Waiting"),
            "{text}"
        );
        assert!(
            summary(&Status {
                ready: false,
                ..status
            })
            .contains("DOES NOT ANSWER")
        );
    }

    #[test]
    fn columns_fit_their_widest_cell() {
        let rows = [
            vec!["a".into(), "long one".into()],
            vec!["bcd".into(), "x".into()],
        ];
        assert_eq!(
            table(&["k", "value"], &rows),
            "K    VALUE\na    long one\nbcd  x\n"
        );
    }

    #[test]
    fn control_characters_are_not_printed() {
        let rows = [
            vec!["\u{1b}[2J\r\n".into(), String::new()],
            vec!["y".repeat(900), "z".repeat(900)],
        ];
        let text = table(&["x", "y"], &rows);
        assert!(text.contains("?[2J??") && !text.contains('\u{1b}'));
        assert_eq!(text.matches('y').count(), MAX_CELL_WIDTH - 1);
        assert_eq!(text.matches('z').count(), MAX_LAST_CELL_WIDTH - 1);
    }

    #[test]
    fn characters_that_turn_text_around_are_not_printed() {
        let turning = [
            '\u{61c}', '\u{200e}', '\u{200f}', '\u{202a}', '\u{202e}', '\u{2066}', '\u{2069}',
        ];
        for c in turning {
            let text = table(&["x"], &[vec![format!("a{c}b")]]);
            assert_eq!(text, "X\na?b\n", "{c:?}");
        }
    }

    #[test]
    fn usage_is_shown_with_quota_and_whose_it_is() {
        let row = UsageRow {
            owner: "npub1x".into(),
            bytes: 3 << 20,
            quota: 2 << 30,
            is_given: true,
            repositories: 4,
            ..UsageRow::default()
        };
        let repository = UsageRow {
            repository: Some("hello".into()),
            is_given: false,
            ..row.clone()
        };
        let text = usage_table(&UsageReport {
            total_bytes: 5 << 30,
            total_quota: Some(10 << 30),
            rows: vec![row, repository],
        });
        let lines: Vec<_> = text.lines().collect();
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(words(lines[1]), "3.0 MiB 2.0 GiB given 4 npub1x");
        assert_eq!(words(lines[2]), "3.0 MiB 2.0 GiB 4 npub1x/hello");
        assert_eq!(lines[3], "all repositories: 5.0 GiB of 10.0 GiB");
    }
}
