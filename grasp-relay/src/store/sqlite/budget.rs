//! What one turn of a reader may cost.

/// What it costs to begin to read a list or to look up a key, in rows of an index.
pub(super) const SEEK: usize = 5;

/// What it costs to look at an event itself, in rows of an index.
const LOOK: usize = 10;

/// Bytes of an event's text that cost as much to read as a row of an index.
const BYTES_PER_ROW: usize = 200;

/// What a turn may still spend, in rows of an index.
///
/// A turn is over some ten milliseconds after it began, whatever is asked: whoever asks for more queues again, so that
/// nobody who asks for little waits for long.
#[derive(Debug)]
pub(super) struct Budget(usize);

impl Budget {
    /// The budget of one turn.
    pub(super) const fn of_turn() -> Self {
        Self(20_000)
    }

    pub(super) fn spend(&mut self, rows: usize) {
        self.0 = self.0.saturating_sub(rows);
    }

    /// Pays for an event of which this much text was read.
    pub(super) fn spend_look(&mut self, bytes: usize) {
        self.spend(LOOK + bytes / BYTES_PER_ROW);
    }

    pub(super) const fn is_spent(&self) -> bool {
        self.0 == 0
    }
}
