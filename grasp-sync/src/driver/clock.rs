//! The source of time: both clocks, read in one place.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use grasp_core::nostr::types::Timestamp;
use grasp_core::{Mono, Now};

/// The clocks that all decisions of sync are based on.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Now + Send + Sync>);

impl Clock {
    /// Creates a clock that calls this function.
    pub fn new(now: impl Fn() -> Now + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// Returns the machine's clocks; the monotonic one counts from now.
    pub fn system() -> Self {
        let start = Instant::now();
        Self::new(move || Now::new(Mono::new(start.elapsed()), Timestamp::now()))
    }

    pub(crate) fn now(&self) -> Now {
        (self.0)()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}
