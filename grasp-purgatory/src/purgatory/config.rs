//! How long things may wait, and how many.

use std::time::Duration;

/// The settings of purgatory. Every one has the default that the protocol or experience asks for.
#[derive(Clone, Debug)]
pub struct Config {
    /// How long an event waits before it counts as expired. Renewed by what shows that somebody is at it.
    pub wait: Duration,
    /// How long an event waits at most while servers that may have its data have not been asked yet, because it is not
    /// its turn there; [`wait`](Self::wait) if that is longer.
    pub longest_wait: Duration,
    /// How long an expired announcement is remembered after its view went, so that it is not fetched anew each time
    /// another relay offers it.
    pub soft: Duration,
    /// How long an upload waits for the event that names it.
    pub placeholder: Duration,
    /// How long an expired state or pull request is still looked for with the hourly pull.
    pub wanted: Duration,
    /// When the hunt for an event's data begins if a user brought the event: a push usually follows.
    pub user_delay: Duration,
    /// When something that failed on our side is tried again.
    pub retry: Duration,
    /// How many states of one author and identifier wait; an older one may still be the one being pushed.
    pub states_per_author: usize,
    /// What one author may have waiting.
    pub per_author: Bound,
    /// What may wait under one identifier.
    pub per_identifier: Bound,
    /// What may wait in all; states of repositories that are served, a quarter more.
    pub in_all: Bound,
    /// What is remembered after it expired. Over this, whatever would be forgotten soonest goes first.
    pub shelf: Bound,
    /// Uploads that wait for their event, by event.
    pub staged: Bound,
    /// How many different uploads may wait for one event, so that nobody can push another's away.
    pub tips_per_event: usize,
}

/// A bound on a number of things and on their size together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// How many.
    pub count: usize,
    /// How large in all.
    pub bytes: u64,
}

impl Default for Config {
    fn default() -> Self {
        const MINUTE: Duration = Duration::from_secs(60);
        const DAY: Duration = Duration::from_secs(24 * 60 * 60);
        const MIB: u64 = 1024 * 1024;
        Self {
            wait: MINUTE * 30,
            longest_wait: MINUTE * 360,
            soft: DAY,
            placeholder: MINUTE * 20,
            wanted: DAY * 30,
            user_delay: MINUTE * 3,
            retry: Duration::from_secs(30),
            states_per_author: 8,
            // The largest state takes some 4.5 MiB of memory, and of one author eight may wait.
            per_author: Bound { count: 1_000, bytes: 40 * MIB },
            per_identifier: Bound { count: 1_000, bytes: 40 * MIB },
            in_all: Bound { count: 50_000, bytes: 128 * MIB },
            shelf: Bound { count: 10_000, bytes: 32 * MIB },
            staged: Bound { count: 1_000, bytes: 2_048 * MIB },
            tips_per_event: 4,
        }
    }
}
