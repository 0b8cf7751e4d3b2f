//! Output of the commands that query a running server, as text or JSON.

use std::io::Write as _;
use std::path::Path;

use anyhow::Result;
use grasp_relay::web::figures::{RelayRow, RepoRow, WaitingRow};
use grasp_relay::web::{format_age, format_duration};
use serde::Serialize;

use super::AdminClient;
use super::summary::summary;
use super::table::table;
use super::watch::watch;

/// A command that queries a running server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdminCommand {
    Status,
    Watch,
    Repositories,
    Relays,
    Purgatory,
}

/// Queries the server behind a socket, and prints the result.
pub(crate) fn run(socket: &Path, command: AdminCommand, json: bool) -> Result<()> {
    let mut client = AdminClient::connect(socket)?;
    let text = match command {
        AdminCommand::Watch => return watch(socket, client, json),
        AdminCommand::Status => formatted(&client.status()?, json, summary),
        AdminCommand::Repositories => {
            formatted(&client.repositories()?, json, |rows| repositories(rows))
        }
        AdminCommand::Purgatory => formatted(&client.waiting()?, json, |rows| waiting(rows)),
        AdminCommand::Relays => {
            let status = client.status()?;
            formatted(&status.relays, json, |rows| relays(status.now, rows))
        }
    }?;
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}

fn formatted<T: Serialize>(
    value: &T,
    json: bool,
    text: impl FnOnce(&T) -> String,
) -> Result<String> {
    Ok(if json { serde_json::to_string_pretty(value)? + "\n" } else { text(value) })
}

pub(super) fn relays(now: u64, rows: &[RelayRow]) -> String {
    if rows.is_empty() {
        return "no other relay is followed\n".into();
    }
    let cells = |relay: &RelayRow| {
        vec![
            relay.url.clone(),
            relay.state.text().into(),
            relay.health.text().into(),
            relay.synced_text(now),
            relay.backlog.to_string(),
            relay.stored.to_string(),
            relay.gaps.to_string(),
            relay.uptime_text(),
            relay.coverage_text(),
            relay.missing_text(),
            relay.remark(now),
        ]
    };
    let rows: Vec<_> = rows.iter().map(cells).collect();
    let head = [
        "relay", "state", "health", "synced", "backlog", "new", "gaps", "up", "coverage",
        "missing", "remark",
    ];
    table(&head, &rows)
}

fn repositories(rows: &[RepoRow]) -> String {
    if rows.is_empty() {
        return "no repository is hosted\n".into();
    }
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = now.map_or(0, |now| now.as_secs());
    let cells = |repo: &RepoRow| {
        let (name, owner) = (repo.identifier.clone(), repo.owner.clone());
        vec![name, format_age(now, Some(repo.active_at)), repo.refs.to_string(), owner]
    };
    let rows: Vec<_> = rows.iter().map(cells).collect();
    table(&["name", "last active", "refs", "owner"], &rows)
}

fn waiting(rows: &[WaitingRow]) -> String {
    if rows.is_empty() {
        return "nothing waits for git data\n".into();
    }
    let cells = |row: &WaitingRow| {
        let next = match (row.position, row.next_in, row.hunted) {
            (Some(position), ..) => {
                let wait = row.turn_in.filter(|wait| *wait > 0);
                let wait = wait
                    .map_or_else(String::new, |wait| format!(", about {}", format_duration(wait)));
                format!("number {position} in the queue{wait}")
            }
            (None, Some(next), _) => format!("in {}", format_duration(next)),
            (None, None, 0) => "within an hour".into(),
            (None, None, _) => "now".into(),
        };
        vec![
            row.identifier.clone(),
            row.hunted.to_string(),
            row.wanted.to_string(),
            row.tips.to_string(),
            row.attempts.to_string(),
            next,
            row.expires_in.map_or_else(String::new, |end| format!("in {}", format_duration(end))),
            row.places.join(" "),
        ]
    };
    let rows: Vec<_> = rows.iter().map(cells).collect();
    let head =
        ["name", "waiting", "expired", "objects", "tries", "next try", "expires", "git servers"];
    table(&head, &rows)
}

#[cfg(test)]
mod tests {
    use grasp_relay::web::figures::MissingRow;

    use super::*;

    #[test]
    fn waiting_names_are_listed_with_next_attempt_and_expiry() {
        let row = WaitingRow {
            identifier: "hello".into(),
            hunted: 1,
            attempts: 3,
            next_in: Some(80),
            expires_in: Some(1_500),
            places: vec!["https://git.example.com/hello.git".into()],
            ..WaitingRow::default()
        };
        let now = WaitingRow { next_in: None, ..row.clone() };
        let in_line = WaitingRow { position: Some(62), turn_in: Some(120), ..row.clone() };
        let text = waiting(&[row, now, in_line]);
        let lines: Vec<_> = text.lines().collect();
        let words = lines[1].split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("3 in 1 minute in 25 minutes"), "{text}");
        assert!(lines[2].contains("now"), "{text}");
        assert!(lines[3].contains("number 62 in the queue, about 2 minutes"), "{text}");
    }

    #[test]
    fn an_unreachable_relay_is_shown_with_reason_and_next_try() {
        let row = RelayRow {
            url: "wss://relay.example.com".into(),
            trouble: Some("it cannot be reached".into()),
            retry_at: Some(160),
            ..RelayRow::default()
        };
        assert!(relays(100, &[row]).contains("it cannot be reached; next try in 1 minute"));
    }

    #[test]
    fn a_relay_is_shown_with_missing_events() {
        let missing = vec![MissingRow { repository: "30617:ab:grasp".into(), events: 7 }];
        let row = RelayRow { missing, coverage: Some(0.5), ..RelayRow::default() };
        let text = relays(100, &[row]);
        assert!(text.contains("50.0 %") && text.contains("7 (grasp 7)"), "{text}");
    }

    #[test]
    fn an_owner_is_not_shortened() {
        let owner = "npub10elfcs4fr0l0r8af98jlmgdh9c8tcxjvz9qkw038js35mp4dma8qzvjptg";
        let row = RepoRow { owner: owner.into(), ..RepoRow::default() };
        assert!(repositories(&[row]).contains(owner));
    }
}
