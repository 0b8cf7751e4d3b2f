//! What the server answered, for people and for programs.

use std::io::Write as _;
use std::path::Path;

use anyhow::Result;
use grasp_relay::web::figures::{RelayRow, RepoRow, WaitingRow};
use grasp_relay::web::{ago, span};
use serde::Serialize;

use super::Client;
use super::glance::glance;
use super::table::table;
use super::watch::watch;

/// What to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Everything at a glance.
    Status,
    /// The same, again and again.
    Watch,
    /// The repositories.
    Repositories,
    /// The relays.
    Relays,
    /// What waits for git data.
    Purgatory,
}

/// Asks the server behind a socket, and prints what it says.
pub(crate) fn look(socket: &Path, what: Look, json: bool) -> Result<()> {
    let mut client = Client::connect(socket)?;
    let text = match what {
        Look::Watch => return watch(socket, client, json),
        Look::Status => written(&client.status()?, json, glance),
        Look::Repositories => written(&client.repositories()?, json, |rows| repositories(rows)),
        Look::Purgatory => written(&client.waiting()?, json, |rows| waiting(rows)),
        Look::Relays => {
            let status = client.status()?;
            written(&status.relays, json, |rows| relays(status.now, rows))
        }
    }?;
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}

fn written<T: Serialize>(value: &T, json: bool, text: impl FnOnce(&T) -> String) -> Result<String> {
    Ok(if json { serde_json::to_string_pretty(value)? + "\n" } else { text(value) })
}

pub(super) fn relays(now: u64, rows: &[RelayRow]) -> String {
    if rows.is_empty() {
        return "no other relay is followed\n".into();
    }
    let cells = |relay: &RelayRow| {
        vec![
            relay.url.clone(),
            relay.state.words().into(),
            relay.health.words().into(),
            relay.synced(now),
            relay.backlog.to_string(),
            relay.stored.to_string(),
            relay.gaps.to_string(),
            relay.uptime(),
            relay.coverage(),
            relay.lacks(),
            relay.remark(now),
        ]
    };
    let rows: Vec<_> = rows.iter().map(cells).collect();
    let head = [
        "relay", "state", "health", "synced", "backlog", "new", "gaps", "up", "coverage", "lacks",
        "remark",
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
        vec![name, ago(now, Some(repo.active_at)), repo.refs.to_string(), owner]
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
                let wait = wait.map_or_else(String::new, |wait| format!(", about {}", span(wait)));
                format!("number {position} in line{wait}")
            }
            (None, Some(next), _) => format!("in {}", span(next)),
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
            row.expires_in.map_or_else(String::new, |end| format!("in {}", span(end))),
            row.places.join(" "),
        ]
    };
    let rows: Vec<_> = rows.iter().map(cells).collect();
    let head =
        ["name", "waiting", "expired", "objects", "tries", "next try", "expires", "may be at"];
    table(&head, &rows)
}

#[cfg(test)]
mod tests {
    use grasp_relay::web::figures::MissingRow;

    use super::*;

    #[test]
    fn what_waits_is_listed_with_its_next_attempt_and_its_end() {
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
        assert!(lines[3].contains("number 62 in line, about 2 minutes"), "{text}");
    }

    #[test]
    fn a_relay_that_cannot_be_reached_says_why_and_when_it_is_tried_again() {
        let row = RelayRow {
            url: "wss://relay.example.com".into(),
            trouble: Some("nobody answers there".into()),
            retry_at: Some(160),
            ..RelayRow::default()
        };
        assert!(relays(100, &[row]).contains("nobody answers there; next try in 1 minute"));
    }

    #[test]
    fn a_relay_is_shown_with_what_it_lacks() {
        let missing = vec![MissingRow { repository: "30617:ab:grasp".into(), events: 7 }];
        let row = RelayRow { missing, coverage: Some(0.5), ..RelayRow::default() };
        let text = relays(100, &[row]);
        assert!(text.contains("50.0 %") && text.contains("7 (grasp 7)"), "{text}");
    }

    #[test]
    fn an_owner_is_shown_whole_so_that_it_can_be_copied() {
        let owner = "npub10elfcs4fr0l0r8af98jlmgdh9c8tcxjvz9qkw038js35mp4dma8qzvjptg";
        let row = RepoRow { owner: owner.into(), ..RepoRow::default() };
        assert!(repositories(&[row]).contains(owner));
    }
}
