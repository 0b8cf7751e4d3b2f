//! The glance kept fresh on a terminal.

use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use grasp_relay::web::span;

use super::Client;
use super::glance::glance;

/// How often it is drawn anew.
const REDRAW: Duration = Duration::from_secs(2);

/// To the top left.
const HOME: &str = "\x1b[H";

/// Nothing more on this line; nothing more below.
const END_OF_LINE: &str = "\x1b[K\r\n";
const END: &str = "\x1b[J";

/// Draws until it is interrupted: in lines of JSON, one below the other, or onto the screen. A server that goes away is
/// waited for.
pub(super) fn watch(socket: &Path, client: Client, json: bool) -> Result<()> {
    let mut out = std::io::stdout();
    let screen = out.is_terminal() && !json;
    if screen {
        out.write_all(b"\x1b[2J")?;
    }
    let mut client = Some(client);
    loop {
        let status = match &mut client {
            Some(client) => client.status(),
            None => Client::connect(socket).and_then(|mut again| {
                let status = again.status();
                client = Some(again);
                status
            }),
        };
        let text = match status {
            Ok(status) if json => serde_json::to_string(&status)? + "\n",
            Ok(status) => glance(&status),
            Err(error) => {
                client = None;
                if json {
                    eprintln!("grasp: {error:#}");
                    String::new()
                } else {
                    format!("{error:#}\n\nIt is tried again.\n")
                }
            }
        };
        let text = if screen { drawn(&text, size()) } else { text };
        out.write_all(text.as_bytes())?;
        out.flush()?;
        std::thread::sleep(REDRAW);
    }
}

/// Columns and lines of the terminal.
fn size() -> (usize, usize) {
    match rustix::termios::tcgetwinsize(std::io::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
        _ => (80, 24),
    }
}

/// As much of a text as the screen holds, over what was there.
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
    let every = span(REDRAW.as_secs());
    drawn.push_str(&format!("fresh every {every}; Ctrl-C ends this view"));
    drawn.push_str(END);
    drawn
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_never_outgrows_its_screen() {
        let text = "x".repeat(500) + "\n" + &"y\n".repeat(100);
        let drawn = drawn(&text, (40, 10));
        let lines: Vec<_> = drawn.split("\r\n").collect();
        assert!(lines.len() <= 10, "{drawn}");
        assert_eq!(lines[0].matches('x').count(), 40);
        assert!(drawn.contains("… 94 more lines") && drawn.contains("Ctrl-C"), "{drawn}");
    }
}
