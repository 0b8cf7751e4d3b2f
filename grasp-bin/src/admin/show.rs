//! What the server answered, for people and for programs.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use grasp_relay::web::figures::{RelayRow, RepoRow, Status, WaitingRow};
use grasp_relay::web::{ago, size, span};
use serde::Serialize;

use super::Client;
use super::table::table;

/// How often a live view is drawn anew.
const REDRAW: Duration = Duration::from_secs(2);

/// To the top left, and nothing left of what was there.
const CLEAR: &str = "\x1b[H\x1b[2J\x1b[3J";

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
        Look::Watch => return watch(&mut client, json),
        Look::Status => written(&client.status()?, json, status),
        Look::Repositories => written(&client.repositories()?, json, |rows| repositories(rows)),
        Look::Purgatory => written(&client.waiting()?, json, |rows| waiting(rows)),
        Look::Relays => {
            let status = client.status()?;
            written(&status.relays, json, |rows| relays(status.now, rows))
        }
    }?;
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}

/// Draws until it is interrupted; in lines of JSON, or onto a cleared screen.
fn watch(client: &mut Client, json: bool) -> Result<()> {
    let mut out = std::io::stdout();
    let clear = if out.is_terminal() { CLEAR } else { "" };
    let mut before: Option<Status> = None;
    loop {
        let now = client.status()?;
        let text = if json {
            serde_json::to_string(&now)? + "\n"
        } else {
            format!("{clear}{}{}", status(&now), rates(before.as_ref(), &now))
        };
        out.write_all(text.as_bytes())?;
        out.flush()?;
        before = Some(now);
        std::thread::sleep(REDRAW);
    }
}

fn written<T: Serialize>(value: &T, json: bool, text: impl FnOnce(&T) -> String) -> Result<String> {
    Ok(if json { serde_json::to_string_pretty(value)? + "\n" } else { text(value) })
}

fn status(status: &Status) -> String {
    let (held, intake) = (&status.purgatory, &status.intake);
    let state = if status.ready { "working" } else { "NOT READY" };
    let uptime = span(status.now.saturating_sub(status.started));
    let connected = status.relays.iter().filter(|relay| is_up(relay)).count();
    let mut text =
        format!("{} (grasp {}): {state}, up for {uptime}\n\n", status.service, status.version);
    for (label, line) in [
        (
            "holds",
            format!(
                "{} repositories, {} events, {} on disk",
                status.repositories,
                status.events,
                size(status.store_bytes)
            ),
        ),
        (
            "serves",
            format!("{} connections, {} subscriptions", status.listeners, status.subscriptions),
        ),
        (
            "took in",
            format!(
                "{} stored, {} held, {} known, {} refused since it started",
                intake.stored, intake.held, intake.known, intake.rejected
            ),
        ),
        (
            "waiting",
            format!(
                "{} announcements, {} states, {} pull requests; {} names hunted for, {} expired, {} uploads ({})",
                held.announcements,
                held.states,
                held.proposals,
                held.hunting,
                held.shelved,
                held.staged,
                size(held.staged_bytes)
            ),
        ),
        ("relays", format!("{connected} of {} connected", status.relays.len())),
    ] {
        let _ = writeln!(text, "  {label:<8} {line}");
    }
    if !status.relays.is_empty() {
        text.push('\n');
        text.push_str(&relays(status.now, &status.relays));
    }
    text
}

fn is_up(relay: &RelayRow) -> bool {
    use grasp_relay::web::figures::RelayState::{Connected, Incomplete, Syncing};
    matches!(relay.state, Syncing | Connected | Incomplete)
}

/// What went on between two looks.
fn rates(before: Option<&Status>, now: &Status) -> String {
    let Some(before) = before.filter(|before| before.now < now.now) else { return "\n".into() };
    let seconds = now.now - before.now;
    let stored = now.intake.stored.saturating_sub(before.intake.stored);
    format!(
        "\n{:.1} events stored per second; Ctrl-C ends this view\n",
        stored as f64 / seconds as f64
    )
}

fn relays(now: u64, rows: &[RelayRow]) -> String {
    if rows.is_empty() {
        return "no other relay is followed\n".into();
    }
    let cells = |relay: &RelayRow| {
        vec![
            relay.url.clone(),
            relay.state.words().into(),
            relay.health.words().into(),
            ago(now, relay.synced_at),
            relay.backlog.to_string(),
            relay.stored.to_string(),
            relay.gaps.to_string(),
            relay.refusal.clone().unwrap_or_default(),
        ]
    };
    let rows: Vec<_> = rows.iter().map(cells).collect();
    let head = ["relay", "state", "health", "synced", "backlog", "new", "gaps", "last refusal"];
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
        let (hunted, wanted, tips) = (row.hunted, row.wanted, row.tips);
        let places = row.places.join(" ");
        vec![
            row.identifier.clone(),
            hunted.to_string(),
            wanted.to_string(),
            tips.to_string(),
            places,
        ]
    };
    let rows: Vec<_> = rows.iter().map(cells).collect();
    table(&["name", "hunted", "expired", "objects", "may be at"], &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_glance_says_whether_all_is_well() {
        let relay = RelayRow { url: "wss://relay.example.com".into(), ..RelayRow::default() };
        let stands = Status { ready: true, now: 120, relays: vec![relay], ..Status::default() };
        let text = status(&stands);
        assert!(text.contains("working, up for 2 minutes"), "{text}");
        assert!(
            text.contains("0 of 1 connected") && text.contains("wss://relay.example.com"),
            "{text}"
        );
        assert!(status(&Status::default()).contains("NOT READY"));
    }

    #[test]
    fn rates_are_of_the_time_between_two_looks() {
        let mut later = Status { now: 4, ..Status::default() };
        later.intake.stored = 6;
        let text = rates(Some(&Status { now: 2, ..Status::default() }), &later);
        assert!(text.contains("3.0 events stored per second"), "{text}");
        assert_eq!(rates(None, &later), "\n");
    }
}
