//! How the hunter goes about it.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::time::Duration;

use grasp_core::Host;
use grasp_core::limits::BackoffPolicy;

use super::permit::PermitConfig;

/// The settings of the hunter. When a hunt begins is a setting of [purgatory](crate::Config).
#[derive(Clone, Debug)]
pub struct HuntConfig {
    /// The rests between attempts that left something wanted. Default: 20 seconds doubling to 2 minutes, and hourly
    /// once half an hour has brought nothing.
    pub backoff: BackoffPolicy,
    /// Conversations in all at the same time; each is a process or two. Default: 32.
    pub at_once: NonZeroUsize,
    /// Limits for a git server that has not said what it is; one conversation of git is one start. Default: 5 at once,
    /// 30 per minute.
    pub per_host: PermitConfig,
    /// Limits for a GRASP server. Default: 8 at once, 600 per minute.
    pub per_grasp_host: PermitConfig,
    /// Limits for certain servers, whatever they are. Default: none.
    pub hosts: BTreeMap<Host, PermitConfig>,
    /// How long a server that asks for less is left alone if it does not say how long. Default: 1 minute.
    pub pause: Duration,
    /// The longest that a server can have itself left alone. Default: 1 hour.
    pub longest_pause: Duration,
    /// Objects asked for in one visit although the server does not advertise them. Default: 2.
    pub guesses_per_visit: usize,
    /// Such questions to one server within a minute. Default: 6.
    pub guesses_per_minute: NonZeroUsize,
    /// How long it is remembered what a server did not have, as long as it advertises the same. Default: 30 minutes.
    pub memory: Duration,
    /// For how many addresses that is remembered. Default: 4,096.
    pub remembered: usize,
    /// Addresses tried in one attempt; the next attempt goes on with those tried longest ago. Default: 64.
    pub places_per_attempt: usize,
    /// When a server is late with its first answer, so that another is asked beside it. Default: 5 seconds.
    pub answer_is_late: Duration,
    /// When a server that has not answered at all is given up. Default: 1 minute.
    pub answer_limit: Duration,
    /// When it is late with its objects, once it has answered. Default: 30 seconds.
    pub fetch_is_late: Duration,
    /// How long a server may take with its objects while others wait because all [`at_once`](Self::at_once) are busy.
    /// Doubled each time that an address has given way, for what is large must come some day. One that
    /// has not answered gives way as soon as it is late. Default: 5 minutes.
    pub fetch_gives_way: Duration,
    /// How many servers may be late at once before an attempt waits for one of them. Default: 3.
    pub late_visits: usize,
    /// How often everything that is served or was given up is looked after. Default: 1 hour.
    pub pull_every: Duration,
    /// How long the first event under an identifier that is not hunted for waits for others that may come with it.
    /// Default: 20 milliseconds.
    pub leading_edge: Duration,
    /// The time between attempts that a burst of events under one identifier can cause. Default: 500 milliseconds.
    pub debounce: Duration,
}

impl Default for HuntConfig {
    fn default() -> Self {
        const MINUTE: Duration = Duration::from_secs(60);
        const AT_ONCE: NonZeroUsize = NonZeroUsize::new(32).expect("not zero");
        const GUESSES: NonZeroUsize = NonZeroUsize::new(6).expect("six is not zero");
        const GRASP_AT_ONCE: NonZeroUsize = NonZeroUsize::new(8).expect("eight is not zero");
        const GRASP_STARTS: NonZeroUsize = NonZeroUsize::new(600).expect("600 is not zero");
        Self {
            backoff: BackoffPolicy::GIT_HUNT,
            at_once: AT_ONCE,
            per_host: PermitConfig::default(),
            per_grasp_host: PermitConfig {
                at_once: GRASP_AT_ONCE,
                starts: GRASP_STARTS,
                ..PermitConfig::default()
            },
            hosts: BTreeMap::new(),
            pause: MINUTE,
            longest_pause: MINUTE * 60,
            guesses_per_visit: 2,
            guesses_per_minute: GUESSES,
            memory: MINUTE * 30,
            remembered: 4_096,
            places_per_attempt: 64,
            answer_is_late: Duration::from_secs(5),
            answer_limit: MINUTE,
            fetch_is_late: Duration::from_secs(30),
            fetch_gives_way: MINUTE * 5,
            late_visits: 3,
            pull_every: MINUTE * 60,
            leading_edge: Duration::from_millis(20),
            debounce: Duration::from_millis(500),
        }
    }
}
