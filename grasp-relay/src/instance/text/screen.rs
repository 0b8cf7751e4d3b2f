//! The view of `grasp status --watch`: the state of a server on one screen, from 80 columns on.

use super::status::fit;
use crate::web::figures::{Neighbour, RelayRow, Status, WaitingRow};
use crate::web::history::Series;
use crate::web::{format_bytes, format_duration};

/// Heights of a bar of one character, the lowest first.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Characters of the labels of figures over time.
const LABEL: usize = 8;

/// Rows of each table, so that every part is on the screen.
const MAX_ROWS: usize = 6;

/// Returns the lines of the view, none longer than this number of columns.
pub fn screen_lines(status: &Status, waiting: &[WaitingRow], columns: usize) -> Vec<String> {
    let mut lines = vec![title(status, columns), "─".repeat(columns)];
    lines.push(figures(status));
    for address in status.damaged.iter().take(MAX_ROWS) {
        lines.push(format!("git objects are missing on disk: {address}"));
    }
    if !status.history.is_empty() {
        lines.push(String::new());
        lines.extend(history(&status.history, columns));
    }
    if status.beside.is_none() {
        lines.push(String::new());
        lines.extend(purgatory(status, waiting, columns));
    }
    if !status.nodes.is_empty() {
        lines.push(String::new());
        lines.push("NODES".into());
        for node in status.nodes.iter().take(MAX_ROWS) {
            let role = node.role();
            let lag = node.lag;
            lines.push(format!(" {:<40} {role}, {lag} events behind", node.address));
        }
    }
    lines.push(String::new());
    lines.extend(relays(status));
    let compared: Vec<&Neighbour> = status
        .neighbours
        .iter()
        .filter(|it| is_compared(it))
        .collect();
    if !compared.is_empty() {
        lines.push(String::new());
        lines.push("GIT SERVERS".into());
        for one in compared.iter().take(MAX_ROWS) {
            lines.push(format!(" {:<30} {}", fit(&one.host, 30), one.text()));
        }
        lines.extend(more(compared.len()));
    }
    lines.iter().map(|line| fit(line, columns)).collect()
}

fn is_compared(one: &Neighbour) -> bool {
    one.equal + one.different + one.unreachable > 0
}

/// Returns the first line: whose status it is, and how it is, at both ends.
fn title(status: &Status, columns: usize) -> String {
    let state = match (status.ready, status.damaged.is_empty()) {
        (false, _) => "NOT READY",
        (true, true) => "working",
        (true, false) => "DEGRADED",
    };
    let uptime = format_duration(status.now.saturating_sub(status.started));
    let right = format!("{state}, up for {uptime}");
    let subject = match &status.beside {
        Some(relay) => format!("sidecar of {relay}"),
        None => status.service.clone(),
    };
    let left = format!("{subject} · grasp {}", status.version);
    let left = fit(
        &left,
        columns.saturating_sub(right.chars().count() + 1).max(2),
    );
    let gap = columns.saturating_sub(left.chars().count() + right.chars().count());
    format!("{left}{}{right}", " ".repeat(gap))
}

fn figures(status: &Status) -> String {
    let per_minute = status.events_per_minute.round() as u64;
    if status.beside.is_some() {
        return format!("{} new events, {per_minute}/min", status.intake.stored);
    }
    format!(
        "{} repositories · {} events, {per_minute} new/min · {} on disk · {} clients",
        status.repositories,
        status.events,
        format_bytes(status.disk_bytes),
        status.sockets
    )
}

/// Returns each figure of the last hour as bars.
fn history(series: &[Series], columns: usize) -> Vec<String> {
    let mut lines = vec!["LAST HOUR".to_owned()];
    for one in series {
        let highest = one.hour.iter().flatten().copied().max();
        let text = match highest {
            Some(highest) => format!("highest {highest}"),
            None => "nothing recorded".into(),
        };
        let width = columns.saturating_sub(LABEL + 3 + text.chars().count());
        let newest = one.hour.len().saturating_sub(width);
        let mut bars = String::new();
        for value in one.hour.iter().skip(newest) {
            bars.push(bar(*value, highest.unwrap_or(0)));
        }
        lines.push(format!(" {:<LABEL$} {bars} {text}", one.key));
    }
    lines
}

/// Returns a bar; a point for no value, and a space for zero.
fn bar(value: Option<u64>, highest: u64) -> char {
    match value {
        None => '·',
        Some(0) => ' ',
        Some(value) => {
            let share = value as f64 / highest.max(1) as f64;
            let at = (share * 8.0).ceil() as usize;
            BARS[at.clamp(1, 8) - 1]
        }
    }
}

/// Returns what waits for git data, and how far the hunt for it is.
fn purgatory(status: &Status, waiting: &[WaitingRow], columns: usize) -> Vec<String> {
    let held = &status.purgatory;
    let counts = &held.counts;
    let mut lines = vec![format!(
        "WAITING FOR GIT DATA  {} announcements, {} states, {} pull requests, {} uploads",
        counts.announcements, counts.states, counts.proposals, counts.staged
    )];
    if let Some(progress) = held.hunt_progress() {
        let width = 20.min(columns / 4);
        let all = (held.fetched + held.hunting).max(1);
        let done = usize::try_from(held.fetched * width as u64 / all).unwrap_or(width);
        let bar = format!("{}{}", "█".repeat(done), "░".repeat(width - done));
        lines.push(format!(" fetched {bar} {progress}"));
    }
    for row in waiting.iter().take(MAX_ROWS) {
        let next = match (row.position, row.next_in) {
            (Some(position), _) => format!("number {position} in the queue"),
            (None, Some(next)) => format!("next try in {}", format_duration(next)),
            (None, None) => "being tried".into(),
        };
        let tries = row.attempts;
        let name = fit(&row.identifier, 30);
        let events = row.waiting + row.expired;
        lines.push(format!(
            " {name:<30} {events:>4} events, {tries} tries, {next}"
        ));
    }
    lines.extend(more(waiting.len()));
    lines
}

/// Returns the relays, those with trouble first.
fn relays(status: &Status) -> Vec<String> {
    if status.relays.is_empty() {
        return vec!["RELAYS  no other relay is followed".into()];
    }
    let connected = status.connected();
    let all = status.relays.len();
    let mut lines = vec![format!("RELAYS  {connected} of {all} connected")];
    let mut rows: Vec<&RelayRow> = status.relays.iter().collect();
    rows.sort_by_key(|row| row.state.is_connected());
    for row in rows.iter().take(MAX_ROWS) {
        let sign = if row.state.is_connected() {
            '●'
        } else {
            '○'
        };
        let cells = row.cells(status.now);
        let text = |label: &str| {
            let cell = cells.iter().find(|(name, _)| *name == label);
            cell.map(|(_, text)| text.clone()).unwrap_or_default()
        };
        let missing = match text("missing") {
            none if none.is_empty() => String::new(),
            missing => format!(", misses {missing}"),
        };
        let url = fit(&row.url, 34);
        let state = text("state");
        let remark = text("remark");
        let remark = if remark.is_empty() {
            remark
        } else {
            format!(", {remark}")
        };
        lines.push(format!(" {sign} {url:<34} {state}{missing}{remark}"));
    }
    lines.extend(more(rows.len()));
    lines
}

/// Returns the line for rows that are left out.
fn more(rows: usize) -> Option<String> {
    let rest = rows.checked_sub(MAX_ROWS).filter(|rest| *rest > 0)?;
    Some(format!(" … and {rest} more"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busy() -> Status {
        let relay = |n: usize| RelayRow {
            url: format!("wss://a-relay-with-a-very-long-name-{n}.example.com/with/a/path"),
            failure: Some("connection refused because of a long reason".into()),
            retry_at: Some(200),
            ..RelayRow::default()
        };
        let mut status = Status {
            version: "0.2.0".into(),
            service: "git.example.com".into(),
            ready: true,
            now: 100,
            relays: (0..20).map(relay).collect(),
            ..Status::default()
        };
        status.purgatory.hunting = 6;
        status.purgatory.fetched = 2;
        status.history = vec![Series {
            key: "events".into(),
            hour: (0..60).map(|n| (n > 9).then_some(n)).collect(),
            ..Series::default()
        }];
        status
    }

    fn waiting(name: &str) -> WaitingRow {
        WaitingRow {
            identifier: name.into(),
            waiting: 1,
            next_in: Some(80),
            ..WaitingRow::default()
        }
    }

    #[test]
    fn view_fits_its_columns() {
        let rows = [waiting(&"long".repeat(50)), waiting("\u{1b}[2J\u{202e}")];
        for columns in [20, 40, 80, 200] {
            for line in screen_lines(&busy(), &rows, columns) {
                assert!(line.chars().count() <= columns, "{columns}: {line}");
                assert!(!line.contains(['\u{1b}', '\u{202e}']), "{line:?}");
            }
        }
    }

    #[test]
    fn all_parts_are_on_a_screen_of_30_lines() {
        let text = screen_lines(&busy(), &[waiting("x")], 80);
        assert!(text.len() <= 27, "{}", text.join("\n"));
        let text = text.join("\n");
        for part in [
            "git.example.com · grasp 0.2.0",
            "working, up for 1 minute",
            "LAST HOUR",
            "·········▂",
            "█████░",
            "next try in 1 minute",
            "RELAYS  0 of 20 connected",
            "… and 14 more",
        ] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
    }

    #[test]
    fn bar_tells_nothing_known_from_zero() {
        assert_eq!(bar(None, 5), '·');
        assert_eq!(bar(Some(0), 0), ' ');
        assert_eq!((bar(Some(1), 1_000), bar(Some(1_000), 1_000)), ('▁', '█'));
        assert_eq!(bar(Some(u64::MAX), u64::MAX), '█');
    }
}
