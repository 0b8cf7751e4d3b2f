//! The one timer of a connection.

use std::pin::Pin;

use grasp_core::Mono;
use tokio::time::{Instant, Sleep, sleep};

use crate::clock::Clock;

/// Rings at the session's next deadline.
///
/// The deadline moves later with every frame; the timer is left alone then, and looks again when it fires.
pub(super) struct Alarm {
    sleep: Pin<Box<Sleep>>,
    set_for: Mono,
}

impl Alarm {
    pub(super) fn set(now: Mono, deadline: Mono) -> Self {
        Self { sleep: Box::pin(sleep(deadline - now)), set_for: deadline }
    }

    /// Waits until the deadline has passed.
    pub(super) async fn ring(&mut self, clock: &Clock, deadline: Mono) {
        if deadline < self.set_for {
            self.reset(clock.now().mono, deadline);
        }
        loop {
            self.sleep.as_mut().await;
            let now = clock.now().mono;
            if deadline <= now {
                return;
            }
            self.reset(now, deadline);
        }
    }

    fn reset(&mut self, now: Mono, deadline: Mono) {
        self.sleep.as_mut().reset(Instant::now() + (deadline - now));
        self.set_for = deadline;
    }
}
