//! The machine's clocks, read in one place.

use std::time::Instant;

use grasp_core::nostr::types::Timestamp;
use grasp_core::{Mono, Now};

/// Both clocks; the monotonic one counts from when this was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { start: Instant::now() }
    }

    pub(crate) fn now(self) -> Now {
        Now::new(Mono::new(self.start.elapsed()), Timestamp::now())
    }
}
