//! Output of the commands that query a running server, as text or JSON.

use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use grasp_relay::instance::InstanceError;
use grasp_relay::instance::admin::{AdminRequest, request};
use grasp_relay::instance::text::{
    relay_table, repository_table, screen_lines, summary, waiting_table,
};
use grasp_relay::web::figures::{RepositoryRow, Status, WaitingRow};
use grasp_relay::web::format_duration;
use serde::Serialize;

/// Prints the status of the server behind a socket, once or until interrupted.
pub(crate) fn status(socket: &Path, is_watched: bool, json: bool) -> Result<()> {
    if is_watched {
        return watch(socket, json);
    }
    print(&request(socket, AdminRequest::Status)?, json, summary)
}

/// Prints the hosted repositories.
pub(crate) fn repositories(socket: &Path, json: bool) -> Result<()> {
    let rows: Vec<RepositoryRow> = request(socket, AdminRequest::Repositories)?;
    print(&rows, json, |rows| repository_table(rows))
}

/// Prints the relays that are synced with.
pub(crate) fn relays(socket: &Path, json: bool) -> Result<()> {
    let status: Status = request(socket, AdminRequest::Status)?;
    print(&status.relays, json, |rows| relay_table(status.now, rows))
}

/// Prints the repository names whose events wait for git data.
pub(crate) fn purgatory(socket: &Path, json: bool) -> Result<()> {
    let rows: Vec<WaitingRow> = request(socket, AdminRequest::Waiting)?;
    print(&rows, json, |rows| waiting_table(rows))
}

pub(super) fn print<T: Serialize>(
    value: &T,
    json: bool,
    text: impl FnOnce(&T) -> String,
) -> Result<()> {
    let text = if json {
        serde_json::to_string_pretty(value)? + "\n"
    } else {
        text(value)
    };
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}

const REDRAW_INTERVAL: Duration = Duration::from_secs(2);

/// Moves the cursor to the top left.
const HOME: &str = "\x1b[H";

/// Clears the rest of the line, and everything below.
const END_OF_LINE: &str = "\x1b[K\r\n";
const END: &str = "\x1b[J";

/// Prints the status until interrupted: as lines of JSON, or redrawn on the screen. Waits for a server that was stopped.
fn watch(socket: &Path, json: bool) -> Result<()> {
    let mut out = std::io::stdout();
    let is_screen = out.is_terminal() && !json;
    let mut status: Result<Status, InstanceError> = Ok(request(socket, AdminRequest::Status)?);
    if is_screen {
        out.write_all(b"\x1b[2J")?;
    }
    loop {
        let text = match status {
            Ok(status) if json => serde_json::to_string(&status)? + "\n",
            Ok(status) if is_screen => {
                screen_lines(&status, &waiting(socket, &status), size().0).join("\n")
            }
            Ok(status) => summary(&status),
            Err(error) if json => {
                eprintln!("grasp: {}", error.in_one_line());
                String::new()
            }
            Err(error) => format!("{}\n\nTrying again.\n", error.in_one_line()),
        };
        let text = if is_screen {
            drawn(&text, size())
        } else {
            text
        };
        out.write_all(text.as_bytes())?;
        out.flush()?;
        std::thread::sleep(REDRAW_INTERVAL);
        status = request(socket, AdminRequest::Status);
    }
}

/// Returns what waits for git data; nothing for a sidecar, and while the server does not answer.
fn waiting(socket: &Path, status: &Status) -> Vec<WaitingRow> {
    if status.beside.is_some() {
        return Vec::new();
    }
    request(socket, AdminRequest::Waiting).unwrap_or_default()
}

/// Returns the columns and lines of the terminal.
fn size() -> (usize, usize) {
    match rustix::termios::tcgetwinsize(std::io::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
        _ => (80, 24),
    }
}

/// Returns the text and control codes that redraw the screen, cut to its size.
fn drawn(text: &str, (columns, lines): (usize, usize)) -> String {
    let room = lines.saturating_sub(3);
    let all: Vec<&str> = text.lines().collect();
    let mut drawn = String::from(HOME);
    for line in all.iter().take(room) {
        drawn.extend(line.chars().take(columns));
        drawn.push_str(END_OF_LINE);
    }
    let rest = all.len().saturating_sub(room);
    if rest > 0 {
        drawn.push_str(&format!("… {rest} more lines"));
    }
    drawn.push_str(END_OF_LINE);
    let interval = format_duration(REDRAW_INTERVAL.as_secs());
    drawn.push_str(&format!("updated every {interval}; Ctrl-C ends this view"));
    drawn.push_str(END);
    drawn
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_cut_to_the_screen() {
        let text = "x".repeat(500) + "\n" + &"y\n".repeat(100);
        let drawn = drawn(&text, (40, 10));
        let lines: Vec<_> = drawn.split("\r\n").collect();
        assert!(lines.len() <= 10, "{drawn}");
        assert_eq!(lines[0].matches('x').count(), 40);
        assert!(
            drawn.contains("… 94 more lines") && drawn.contains("Ctrl-C"),
            "{drawn}"
        );
    }
}
