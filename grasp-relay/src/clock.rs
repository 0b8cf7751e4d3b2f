//! The source of time of the server.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use grasp_core::{Mono, Now};
use nostr::types::Timestamp;

/// The monotonic and the wall clock, read in one place and passed to everything that decides.
///
/// ```
/// use grasp_core::{Mono, Now};
/// use grasp_relay::Clock;
/// use nostr::types::Timestamp;
///
/// let stopped = Clock::new(|| Now::new(Mono::ZERO, Timestamp::from_secs(1_700_000_000)));
/// assert_eq!(stopped.now().unix.as_secs(), 1_700_000_000);
/// ```
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

    /// Reads both clocks.
    pub fn now(&self) -> Now {
        (self.0)()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}
