//! Whose turn it is: the crowd of one address does not stand before everybody else.
//!
//! All git processes wait in one line, in the order of asking. So whoever asks for much at once waits for a place in
//! that line in a line of their own.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::server::Household;

/// More lines than this are looked through for ones that nobody stands in.
const MANY: usize = 1_024;

/// The lines of all households. Clones share them; nothing waits while the map is held.
#[derive(Clone, Debug)]
pub(super) struct Lines {
    most: usize,
    lines: Arc<Mutex<HashMap<Household, Weak<Semaphore>>>>,
}

/// The right to run git, until it is dropped. Whoever comes from nowhere needs none.
pub(super) type Turn = Option<OwnedSemaphorePermit>;

impl Lines {
    /// Lets so many of one household run at once.
    pub(super) fn new(most: usize) -> Self {
        Self { most: most.clamp(1, Semaphore::MAX_PERMITS), lines: Arc::default() }
    }

    /// Waits until fewer of the same household run.
    pub(super) async fn turn(&self, household: Option<Household>) -> Turn {
        let line = self.line(household?);
        line.acquire_owned().await.ok()
    }

    fn line(&self, household: Household) -> Arc<Semaphore> {
        // A map is whole at any time.
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(line) = lines.get(&household).and_then(Weak::upgrade) {
            return line;
        }
        if lines.len() > MANY {
            lines.retain(|_, line| line.strong_count() > 0);
        }
        let line = Arc::new(Semaphore::new(self.most));
        lines.insert(household, Arc::downgrade(&line));
        line
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn who_asks_for_much_waits_for_themselves_and_nobody_else() {
        let lines = Lines::new(2);
        let turn = |number| lines.turn(Some(Household::numbered(number))).now_or_never();
        let (one, _two) = (turn(1), turn(1));
        assert!(one.is_some() && turn(1).is_none(), "a third waits");
        assert!(turn(2).is_some(), "somebody else does not");
        drop(one);
        assert!(turn(1).is_some());
        assert!(lines.turn(None).now_or_never().is_some());
    }

    #[test]
    fn empty_lines_do_not_pile_up() {
        let lines = Lines::new(1);
        for number in 0..5_000 {
            assert!(lines.turn(Some(Household::numbered(number))).now_or_never().is_some());
        }
        assert!(lines.lines.lock().unwrap().len() <= MANY + 1);
    }
}
