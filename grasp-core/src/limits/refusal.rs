//! What a peer's refusal means, as a closed set, and what to do about it.

mod reading;

use std::time::Duration;

/// How long what a peer forbids is left alone before it is probed once.
pub const PARK: Duration = Duration::from_secs(24 * 60 * 60);

/// The delay before the one retry after a passing fault.
pub const RETRY_DELAY: Duration = Duration::from_secs(65);

/// How long a request may stay without any answer. Healthy but slow pages take more than 30 seconds.
pub const REQUEST_WATCHDOG: Duration = Duration::from_secs(120);

/// Where a text was heard; the same words can mean different things.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Heard {
    /// CLOSED of a request that was to end by itself.
    Closed,
    /// CLOSED of a live subscription.
    LiveClosed,
    /// NEG-ERR.
    NegErr,
    /// NOTICE, which names no request.
    Notice,
}

/// Everything that a refusal can mean to us.
///
/// Read from well-known words where they stand at the start, after a machine-readable prefix, or as
/// plain words of a sentence, so that the name of a repository in a text decides nothing. Numbers in
/// texts are not believed, save one, which can only make us ask for less. Words that are not known
/// are never guessed at.
///
/// Concerns one connection only, unless said otherwise.
///
/// ```
/// use grasp_core::limits::{Action, Heard, Refusal};
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
    /// Too many starts in too short a time.
    Rate,
    /// Too many open subscriptions; the refused one is named.
    SlotCount,
    /// Too many open subscriptions, said without naming one: a recent start will never be answered.
    DroppedStart,
    /// Too many open NIP-77 sessions.
    NegSessions,
    /// The set to reconcile is too large. Not a rate: waiting does not help.
    SetTooLarge,
    /// The NIP-77 session idled too long or is unknown.
    NegClosed,
    /// The peer could not read our NIP-77 message: a bug of ours, or another version.
    NegProtocol,
    /// The peer does not speak NIP-77.
    NegUnsupported,
    /// Too many filters in one REQ.
    FilterCount,
    /// The peer remembers too many bytes of our subscriptions. A setting of its software, so it
    /// outlives the connection.
    RetainedBytes {
        /// What it says it allows.
        stated: Option<u64>,
    },
    /// Something in the message itself; it would be refused again.
    Malformed,
    /// A `limit` of zero is not understood.
    LimitZero,
    /// The peer wants to know who we are.
    AuthRequired,
    /// The peer does not want this, or does not want us. Outlives the connection.
    Policy,
    /// Live events were lost on the peer's side.
    LiveOverflow,
    /// A passing fault of the peer.
    Transient,
    /// No answer came within [`REQUEST_WATCHDOG`]. Never read from a text.
    Silent,
    /// A NOTICE in unknown words: perhaps no refusal at all.
    Remark,
    /// A refusal in unknown words.
    Unknown,
}

/// What to do about a [`Refusal`].
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Tell the relay's [`Pace`](super::Pace): it pauses all starts, then keeps a distance.
    PauseStarts,
    /// Lower the slot budget to the slots in use, and retry when one is freed.
    LowerSlots,
    /// Take the starts that were not answered yet for refused, and lower the slot budget.
    RefuseUnanswered,
    /// Keep the session in line until another one has ended.
    WaitForSession,
    /// Split the range by time, then by kind or author; page what cannot be split further.
    Bisect,
    /// Open the session once more.
    ReopenOnce,
    /// Fetch this filter by pages instead, and log the text.
    PageFilter,
    /// Fetch by pages until the next connection, which may try NIP-77 again.
    PageSession,
    /// Send half as many filters per REQ from now on; park a single filter that is refused.
    HalveFilters,
    /// Lower the byte ceiling, to the stated figure if there is one, and poll what no longer fits.
    LowerBytes(Option<u64>),
    /// Fix or split the message; never send it again unchanged.
    NeverResend,
    /// Subscribe live with a `since` of now and a `limit` of one instead of zero.
    LiveWithoutLimitZero,
    /// Authenticate, and send the same request once more; a second refusal is policy.
    AuthenticateOnce,
    /// Leave this coverage alone for so long, keep the connection, then probe once.
    Park(Duration),
    /// Subscribe again from a little before the last event seen.
    ResubscribeSince,
    /// Try once more after so long.
    RetryOnce(Duration),
    /// Close the subscription, free its slot, and count it as failed.
    CloseAndFail,
    /// Show the text to the operator, and change nothing.
    Surface,
    /// Show the text to the operator, and leave this coverage alone for so long.
    ParkAndSurface(Duration),
}

impl Refusal {
    /// Reads what a peer said. Total: any text has a meaning, be it [`Refusal::Unknown`].
    pub fn read(heard: Heard, text: &str) -> Self {
        reading::read(heard, text)
    }

    /// What to do about it.
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

    /// A fixed name for metrics and logs; the peer's own words never become a label.
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
