//! Tables for a terminal.

use std::fmt::Write as _;

/// Characters of a cell; longer text is cut and ends with `…`.
const MAX_CELL_WIDTH: usize = 72;

/// Characters of a cell in the last column, which moves no other: its text can be copied whole.
const MAX_LAST_CELL_WIDTH: usize = 500;

/// Formats rows under a head, in columns as wide as needed. Control characters are shown as `?`.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let max_width =
        |column: usize| if column + 1 == head.len() { MAX_LAST_CELL_WIDTH } else { MAX_CELL_WIDTH };
    let titles: Vec<String> = head.iter().map(|name| name.to_uppercase()).collect();
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|row| row.iter().enumerate().map(|(at, cell)| fit(cell, max_width(at))).collect())
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

fn fit(cell: &str, max_width: usize) -> String {
    let shown: String =
        cell.chars().map(|c| if c.is_control() { '?' } else { c }).take(max_width + 1).collect();
    if shown.chars().count() <= max_width {
        return shown;
    }
    shown.chars().take(max_width - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_fit_their_widest_cell() {
        let rows = [vec!["a".into(), "long one".into()], vec!["bcd".into(), "x".into()]];
        assert_eq!(table(&["k", "value"], &rows), "K    VALUE\na    long one\nbcd  x\n");
    }

    #[test]
    fn control_characters_are_not_printed() {
        let rows =
            [vec!["\u{1b}[2J\r\n".into(), String::new()], vec!["y".repeat(900), "z".repeat(900)]];
        let text = table(&["x", "y"], &rows);
        assert!(text.contains("?[2J??") && !text.contains('\u{1b}'));
        assert_eq!(text.matches('y').count(), MAX_CELL_WIDTH - 1);
        assert_eq!(text.matches('z').count(), MAX_LAST_CELL_WIDTH - 1);
    }
}
