//! The behaviour of a relay.

use std::time::Duration;

use grasp_core::Mono;
use grasp_sync::engine::{Frame, Said};

use super::chance::Chance;

/// The behaviour of a relay with NIP-77.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Neg {
    Speaks,
    /// Refuses by a NOTICE.
    Disabled,
    /// Refuses by a NEG-ERR.
    Unknown,
    Silent,
    /// Compares no more than this many items.
    Small(usize),
    /// Answers with malformed messages.
    Garbles,
}

/// The reaction to one request, other than the usual.
pub(crate) enum Quirk {
    /// Nothing special.
    None,
    /// Sends this instead.
    Says(Vec<Said>),
}

/// The behaviour of a relay. The default is a friendly one.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    /// The maximum of rows per filter.
    pub(crate) page: usize,
    pub(crate) subs: usize,
    /// True if it advertises how many subscriptions it accepts.
    pub(crate) is_open: bool,
    pub(crate) filters: usize,
    pub(crate) neg: Neg,
    pub(crate) latency_ms: (u64, u64),
    /// Shortest and longest duration of a connection, in seconds.
    pub(crate) connection_secs: Option<(u64, u64)>,
    pub(crate) starts_per_minute: Option<usize>,
    pub(crate) takes_zero: bool,
    pub(crate) wants_auth: bool,
    /// The NOTICE for too many subscriptions, if any.
    pub(crate) hides_refusals: bool,
    /// One of this many requests is not answered at all.
    pub(crate) silent_one_in: Option<u64>,
    /// Seconds from the start during which it is unreachable.
    pub(crate) down_secs: Option<(u64, u64)>,
    pub(crate) software: Option<&'static str>,
    /// True if it advertises to be a GRASP server.
    pub(crate) is_grasp: bool,
    /// True if it refuses a filter for everything.
    pub(crate) wants_names: bool,
    /// True if its EOSE says whether that was everything (NIP-67).
    pub(crate) hints: bool,
    /// The reaction to the nth request.
    pub(crate) quirk: fn(usize, &Frame) -> Quirk,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            page: 500,
            subs: 200,
            is_open: true,
            filters: 10,
            neg: Neg::Speaks,
            latency_ms: (1, 30),
            connection_secs: None,
            starts_per_minute: None,
            takes_zero: true,
            wants_auth: false,
            hides_refusals: false,
            silent_one_in: None,
            down_secs: None,
            software: None,
            is_grasp: false,
            wants_names: false,
            hints: false,
            quirk: |_, _| Quirk::None,
        }
    }
}

impl Script {
    /// Returns a random behaviour.
    pub(crate) fn random(chance: &mut Chance) -> Self {
        let negs = [
            Neg::Speaks,
            Neg::Speaks,
            Neg::Disabled,
            Neg::Unknown,
            Neg::Silent,
            Neg::Small(40),
            Neg::Garbles,
        ];
        Self {
            page: *chance.pick(&[500, 100, 60]),
            subs: *chance.pick(&[200, 20, 10]),
            is_open: !chance.one_in(3),
            filters: *chance.pick(&[20, 10, 3, 1]),
            neg: *chance.pick(&negs),
            latency_ms: *chance.pick(&[(1, 5), (20, 400), (500, 3_000)]),
            connection_secs: *chance.pick(&[None, None, Some((30, 300)), Some((600, 4_000))]),
            starts_per_minute: *chance.pick(&[None, None, Some(120), Some(40)]),
            takes_zero: !chance.one_in(4),
            wants_auth: chance.one_in(5),
            hides_refusals: chance.one_in(3),
            silent_one_in: *chance.pick(&[None, None, Some(20)]),
            down_secs: *chance.pick(&[None, None, Some((0, 600)), Some((1_000, 3_000))]),
            software: *chance.pick(&[None, Some("strfry"), Some("grasp-relay")]),
            is_grasp: chance.one_in(2),
            wants_names: chance.one_in(4),
            hints: chance.one_in(2),
            quirk: |_, _| Quirk::None,
        }
    }

    pub(crate) fn is_up(&self, now: Mono) -> bool {
        let now = now.since_start().as_secs();
        !self
            .down_secs
            .is_some_and(|(from, to)| (from..to).contains(&now))
    }

    /// Returns the duration of the next connection.
    pub(crate) fn connection_duration(&self, chance: &mut Chance) -> Option<Duration> {
        let (min, max) = self.connection_secs?;
        Some(Duration::from_secs(chance.within(min, max)))
    }
}
