//! `grasp status --watch`: the summary, redrawn on a terminal.

use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use grasp_relay::web::format_duration;

use super::AdminClient;
use super::summary::summary;

const REDRAW_INTERVAL: Duration = Duration::from_secs(2);

/// Moves the cursor to the top left.
const HOME: &str = "\x1b[H";

/// Clears the rest of the line, and everything below.
const END_OF_LINE: &str = "\x1b[K\r\n";
const END: &str = "\x1b[J";

/// Prints the status until interrupted: as lines of JSON, or redrawn on the screen. Reconnects to a server that was
/// restarted.
pub(super) fn watch(socket: &Path, client: AdminClient, json: bool) -> Result<()> {
    let mut out = std::io::stdout();
    let screen = out.is_terminal() && !json;
    if screen {
        out.write_all(b"\x1b[2J")?;
    }
    let mut client = Some(client);
    loop {
        let status = match &mut client {
            Some(client) => client.status(),
            None => AdminClient::connect(socket).and_then(|mut again| {
                let status = again.status();
                client = Some(again);
                status
            }),
        };
        let text = match status {
            Ok(status) if json => serde_json::to_string(&status)? + "\n",
            Ok(status) => summary(&status),
            Err(error) => {
                client = None;
                if json {
                    eprintln!("grasp: {error:#}");
                    String::new()
                } else {
                    format!("{error:#}\n\nTrying again.\n")
                }
            }
        };
        let text = if screen { drawn(&text, size()) } else { text };
        out.write_all(text.as_bytes())?;
        out.flush()?;
        std::thread::sleep(REDRAW_INTERVAL);
    }
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
        assert!(drawn.contains("… 94 more lines") && drawn.contains("Ctrl-C"), "{drawn}");
    }
}
