//! Figures of a server as text, for terminals.

mod calls;
mod progress;
mod screen;
mod status;

pub use self::calls::call_result;
pub use self::progress::{missing_events, progress_text, sync_result};
pub use self::screen::screen_lines;
pub use self::status::{relay_table, repository_table, summary, table, usage_table, waiting_table};

/// Returns whether a character may control a terminal, end a line, or show the rest of it in another order.
pub fn is_control(c: char) -> bool {
    let is_direction = matches!(
        c,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2066}'..='\u{2069}'
    );
    c.is_control() || is_direction || matches!(c, '\u{2028}'..='\u{202e}')
}
