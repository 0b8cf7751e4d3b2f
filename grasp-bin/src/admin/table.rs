//! Tables for a terminal.

use std::fmt::Write as _;

/// The widest a column becomes; more is cut, with a sign that it was.
const WIDEST: usize = 72;

/// The same for the last column, which pushes nothing aside: what stands there can be copied whole.
const LONGEST: usize = 500;

/// Rows under a head, in columns as wide as they need. Whatever could move the cursor is shown as `?`.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let most = |column: usize| if column + 1 == head.len() { LONGEST } else { WIDEST };
    let titles: Vec<String> = head.iter().map(|name| name.to_uppercase()).collect();
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|row| row.iter().enumerate().map(|(at, cell)| fitted(cell, most(at))).collect())
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

fn fitted(cell: &str, most: usize) -> String {
    let shown: String =
        cell.chars().map(|c| if c.is_control() { '?' } else { c }).take(most + 1).collect();
    if shown.chars().count() <= most {
        return shown;
    }
    shown.chars().take(most - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_they_need() {
        let rows = [vec!["a".into(), "long one".into()], vec!["bcd".into(), "x".into()]];
        assert_eq!(table(&["k", "value"], &rows), "K    VALUE\na    long one\nbcd  x\n");
    }

    #[test]
    fn nothing_a_stranger_wrote_moves_the_cursor() {
        let rows =
            [vec!["\u{1b}[2J\r\n".into(), String::new()], vec!["y".repeat(900), "z".repeat(900)]];
        let text = table(&["x", "y"], &rows);
        assert!(text.contains("?[2J??") && !text.contains('\u{1b}'));
        assert_eq!(text.matches('y').count(), WIDEST - 1);
        assert_eq!(text.matches('z').count(), LONGEST - 1);
    }
}
