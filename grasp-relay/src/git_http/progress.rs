//! Parties that are waited for only as long as they get on.

use std::io;
use std::time::Duration;

use tokio::time::{Instant, timeout};

/// Waits for one party, which must move so many bytes in so much waiting for it.
///
/// Time in which others are waited for does not count. A byte now and then is no progress: git sends five every five
/// seconds while it computes.
#[derive(Debug)]
pub(super) struct Progress {
    step: u64,
    within: Duration,
    /// Bytes since the last step, and the time waited for them.
    moved: u64,
    waited: Duration,
}

impl Progress {
    pub(super) const fn of(step: u64, within: Duration) -> Self {
        Self { step, within, moved: 0, waited: Duration::ZERO }
    }

    /// Waits for something of this party's.
    pub(super) async fn wait<T>(&mut self, future: impl Future<Output = T>) -> io::Result<T> {
        let start = Instant::now();
        let result = timeout(self.within.saturating_sub(self.waited), future).await;
        self.waited += start.elapsed();
        result.map_err(|_| io::ErrorKind::TimedOut.into())
    }

    /// Notes bytes that the party has moved.
    pub(super) fn moved(&mut self, bytes: usize) {
        self.moved += bytes as u64;
        if self.moved >= self.step {
            (self.moved, self.waited) = (0, Duration::ZERO);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    /// How long it takes until a party that moves so many bytes every ten seconds is given up; none if it is not
    /// within an hour.
    async fn given_up(bytes: usize) -> Option<Duration> {
        let (start, mut progress) = (Instant::now(), Progress::of(1_000, MINUTE));
        while start.elapsed() < 60 * MINUTE {
            if progress.wait(sleep(Duration::from_secs(10))).await.is_err() {
                return Some(start.elapsed());
            }
            progress.moved(bytes);
            // Others are waited for, too.
            sleep(Duration::from_secs(7)).await;
        }
        None
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_party_that_does_not_get_on_is_given_up() {
        assert_eq!(given_up(200).await, None);
        assert_eq!(given_up(5).await, Some(Duration::from_secs(60 + 6 * 7)));
        assert!(given_up(150).await.is_some());
    }
}
