//! Refusals of relays as a closed set of meanings, and the action for each.

mod reading;

use std::time::Duration;

/// Time for which coverage that a relay forbids is not requested.
pub const PARK: Duration = Duration::from_secs(24 * 60 * 60);

/// Delay before the one retry after a transient fault.
pub const RETRY_DELAY: Duration = Duration::from_secs(65);

/// Timeout of a request without any answer. Healthy but slow pages take more than 30 seconds.
pub const REQUEST_WATCHDOG: Duration = Duration::from_secs(120);

/// The message that a text came in; the same words can mean different things.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Heard {
    /// CLOSED of a request for stored events.
    Closed,
    /// CLOSED of a live subscription.
    LiveClosed,
    /// NEG-ERR.
    NegErr,
    /// NOTICE, which names no request.
    Notice,
}

/// The meaning of a refusal.
///
/// Parsed from known phrases at the start of a text, after a machine-readable prefix, or as plain words of a
/// sentence, so that the name of a repository in a text decides nothing. Numbers in texts are ignored, but
/// for one that can only lower a limit. Unknown texts are not interpreted.
///
/// Concerns one connection, unless stated otherwise.
///
/// ```
/// use grasp_sync::limits::{Action, Heard, Refusal};
///
/// let refusal = Refusal::read(Heard::NegErr, "blocked: too many query results: 1000001");
/// assert_eq!(refusal, Refusal::SetTooLarge);
/// assert_eq!(refusal.action(), Action::Bisect);
///
/// let refusal = Refusal::read(Heard::Closed, "ERROR: auth-required: who are you?");
/// assert_eq!(refusal.action(), Action::AuthenticateOnce);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Refusal {
    /// Too many requests per time.
    Rate,
    /// Too many open subscriptions; the message names the refused one.
    SlotCount,
    /// Too many open subscriptions, in a NOTICE: one of the recent requests will not be answered.
    DroppedStart,
    /// Too many open NIP-77 sessions.
    NegSessions,
    /// The set to reconcile is too large. Not a rate limit: waiting does not help.
    SetTooLarge,
    /// The NIP-77 session is unknown, or was idle for too long.
    NegClosed,
    /// The relay could not parse a NIP-77 message: a bug here, or another protocol version.
    NegProtocol,
    /// The relay does not support NIP-77.
    NegUnsupported,
    /// Too many filters in one REQ.
    FilterCount,
    /// The open subscriptions take too many bytes. A setting of the relay's software, so it outlives the
    /// connection.
    RetainedBytes {
        /// The stated limit.
        stated: Option<u64>,
    },
    /// The message itself is invalid; it would be refused again.
    Malformed,
    /// The relay does not accept a `limit` of zero.
    LimitZero,
    /// The relay demands authentication.
    AuthRequired,
    /// The relay does not serve this request, or this client. Outlives the connection.
    Policy,
    /// The relay dropped live events.
    LiveOverflow,
    /// A transient fault of the relay.
    Transient,
    /// No answer came within [`REQUEST_WATCHDOG`]. Never parsed from a text.
    Silent,
    /// A NOTICE in unknown words, perhaps not a refusal.
    Remark,
    /// A refusal in unknown words.
    Unknown,
}

/// The reaction to a [`Refusal`].
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Report it to the relay's [`Pace`](super::Pace), which pauses all requests and then spaces them.
    PauseStarts,
    /// Lower the slot limit to the slots in use, and retry when one is freed.
    LowerSlots,
    /// Treat unanswered requests as refused, and lower the slot limit.
    RefuseUnanswered,
    /// Queue the session until another one ends.
    WaitForSession,
    /// Split the range by time, then by kind or author; fetch by pages if it cannot be split further.
    Bisect,
    /// Open the session once more.
    ReopenOnce,
    /// Fetch this filter by pages, and log the text.
    PageFilter,
    /// Fetch by pages until the next connection, which may try NIP-77 again.
    PageSession,
    /// Halve the number of filters per REQ; park a single filter that is refused.
    HalveFilters,
    /// Lower the byte ceiling, to the stated limit if there is one, and poll the coverage that no longer fits.
    LowerBytes(Option<u64>),
    /// Fix or split the message; do not send it again unchanged.
    NeverResend,
    /// Subscribe live with a `since` of now and a `limit` of one instead of zero.
    LiveWithoutLimitZero,
    /// Authenticate and send the request once more; a second refusal is policy.
    AuthenticateOnce,
    /// Do not request this coverage for this long, keep the connection, then try once.
    Park(Duration),
    /// Subscribe again from a little before the last event seen.
    ResubscribeSince,
    /// Retry once after this long.
    RetryOnce(Duration),
    /// Close the subscription, free its slot, and count it as failed.
    CloseAndFail,
    /// Show the text to the operator.
    Surface,
    /// Show the text to the operator, and do not request this coverage for this long.
    ParkAndSurface(Duration),
}

impl Refusal {
    /// Parses the text of a refusal. Total: a text in unknown words is [`Refusal::Unknown`], or milder where it came in
    /// a NOTICE or ended a live subscription.
    pub fn read(heard: Heard, text: &str) -> Self {
        reading::read(heard, text)
    }

    /// Returns the reaction to this refusal.
    pub const fn action(self) -> Action {
        match self {
            Self::Rate => Action::PauseStarts,
            Self::SlotCount => Action::LowerSlots,
            Self::DroppedStart => Action::RefuseUnanswered,
            Self::NegSessions => Action::WaitForSession,
            Self::SetTooLarge => Action::Bisect,
            Self::NegClosed => Action::ReopenOnce,
            Self::NegProtocol => Action::PageFilter,
            Self::NegUnsupported => Action::PageSession,
            Self::FilterCount => Action::HalveFilters,
            Self::RetainedBytes { stated } => Action::LowerBytes(stated),
            Self::Malformed => Action::NeverResend,
            Self::LimitZero => Action::LiveWithoutLimitZero,
            Self::AuthRequired => Action::AuthenticateOnce,
            Self::Policy => Action::Park(PARK),
            Self::LiveOverflow => Action::ResubscribeSince,
            Self::Transient => Action::RetryOnce(RETRY_DELAY),
            Self::Silent => Action::CloseAndFail,
            Self::Remark => Action::Surface,
            Self::Unknown => Action::ParkAndSurface(PARK),
        }
    }

    /// Returns a fixed name for metrics and logs; a relay's own words are never a label.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::SlotCount => "slot_count",
            Self::DroppedStart => "dropped_start",
            Self::NegSessions => "neg_sessions",
            Self::SetTooLarge => "set_too_large",
            Self::NegClosed => "neg_closed",
            Self::NegProtocol => "neg_protocol",
            Self::NegUnsupported => "neg_unsupported",
            Self::FilterCount => "filter_count",
            Self::RetainedBytes { .. } => "retained_bytes",
            Self::Malformed => "malformed",
            Self::LimitZero => "limit_zero",
            Self::AuthRequired => "auth_required",
            Self::Policy => "policy",
            Self::LiveOverflow => "live_overflow",
            Self::Transient => "transient",
            Self::Silent => "silent",
            Self::Remark => "remark",
            Self::Unknown => "unknown",
        }
    }
}

#[cfg(test)]
mod tests;
