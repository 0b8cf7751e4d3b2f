//! Refusals of relays as a closed set of meanings, and the reaction to each.

use std::time::Duration;

/// Time for which coverage that a relay forbids is not requested.
pub(crate) const SUSPENDED_FOR: Duration = Duration::from_secs(24 * 60 * 60);

/// Delay before the one retry after a transient fault.
pub(crate) const RETRY_DELAY: Duration = Duration::from_secs(65);

/// Timeout of a request without any answer. Healthy but slow pages take more than 30 seconds.
pub(crate) const REQUEST_WATCHDOG: Duration = Duration::from_secs(120);

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
/// use grasp_sync::limits::{Heard, Refusal};
///
/// let refusal = Refusal::read(Heard::NegErr, "blocked: too many query results: 1000001");
/// assert_eq!(refusal, Refusal::SetTooLarge);
///
/// let refusal = Refusal::read(Heard::Closed, "ERROR: auth-required: who are you?");
/// assert_eq!(refusal, Refusal::AuthRequired);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Refusal {
    /// Too many requests per time. All requests pause, and are then spaced ([`Pace`](super::Pace)).
    Rate,
    /// Too many open subscriptions; the message names the refused one. The slot limit is lowered to the slots in use,
    /// and the request sent again when one is freed.
    SlotCount,
    /// Too many open subscriptions, in a NOTICE: one of the recent requests will not be answered. All unanswered ones
    /// count as refused, and the slot limit is lowered.
    DroppedStart,
    /// Too many open NIP-77 sessions. Opened again when another one ends.
    NegSessions,
    /// The set to reconcile is too large. Not a rate limit: waiting does not help. It is split by time, and fetched by
    /// pages if it cannot be split further.
    SetTooLarge,
    /// The NIP-77 session is unknown, or was idle for too long. Opened once more.
    NegClosed,
    /// The relay could not parse a NIP-77 message: a bug here, or another protocol version. The filter is fetched by
    /// pages.
    NegProtocol,
    /// The relay does not support NIP-77. Everything is fetched by pages until the next connection.
    NegUnsupported,
    /// Too many filters in one REQ. The number is halved; a single filter is suspended for a day.
    FilterCount,
    /// The open subscriptions take too many bytes. A setting of the relay's software, so it outlives the
    /// connection. The byte ceiling is lowered, and what no longer fits is polled.
    RetainedBytes {
        /// The stated limit.
        stated: Option<u64>,
    },
    /// The message itself is invalid; it would be refused again, so it is split and never sent unchanged.
    Malformed,
    /// The relay does not accept a `limit` of zero. Live subscriptions get a limit of one.
    LimitZero,
    /// The relay demands authentication. Sent once more after authenticating; then it is [`Policy`](Self::Policy).
    AuthRequired,
    /// The relay does not serve this request, or this client. Outlives the connection: suspended for a day, then
    /// tried once.
    Policy,
    /// The relay dropped live events. Subscribed again, and what was missed is fetched.
    LiveOverflow,
    /// A transient fault of the relay. Sent once more after 65 seconds.
    Transient,
    /// No answer came within two minutes. Never parsed from a text. The subscription is closed, and its
    /// request backs off.
    Silent,
    /// A NOTICE in unknown words, perhaps not a refusal. Shown to the operator.
    Remark,
    /// A refusal in unknown words. Shown to the operator, and suspended for a day.
    Unknown,
}

impl Refusal {
    /// Parses the text of a refusal. Total: a text in unknown words is [`Refusal::Unknown`], or milder where it came in
    /// a NOTICE or ended a live subscription.
    pub fn read(heard: Heard, text: &str) -> Self {
        let start: String = text.trim_start().chars().take(MAX_CHARS).collect();
        // One common relay puts `ERROR:` before every text, machine-readable prefixes included. Its capitals
        // distinguish it from the prefix `error:`.
        let start = start.strip_prefix("ERROR:").unwrap_or(&start).trim();
        let lower = start.to_ascii_lowercase();
        let (prefix, rest) = split_prefix(&lower);
        by_phrase(heard, rest)
            .or_else(|| by_words(heard, prefix, rest))
            .or_else(|| prefix.filter(|one| *one != Self::NegClosed || heard == Heard::NegErr))
            .unwrap_or(match heard {
                Heard::LiveClosed => Self::Transient,
                Heard::Notice => Self::Remark,
                Heard::Closed | Heard::NegErr => Self::Unknown,
            })
    }

    /// Returns whether the relay has no room for the request, and may have some later.
    pub const fn is_for_room(self) -> bool {
        matches!(
            self,
            Self::SlotCount | Self::DroppedStart | Self::NegSessions | Self::RetainedBytes { .. }
        )
    }

    /// Returns whether the filter itself is refused, rather than its time or number.
    pub const fn is_about_the_filter(self) -> bool {
        matches!(
            self,
            Self::FilterCount | Self::Malformed | Self::Unknown | Self::SetTooLarge
        )
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

/// Characters of a text that are parsed; known phrases are at its beginning.
const MAX_CHARS: usize = 512;

/// Splits off the word before the first colon, if it has a meaning. If a vague one is followed by another, the second
/// counts.
fn split_prefix(text: &str) -> (Option<Refusal>, &str) {
    let (outer, rest) = split_one_prefix(text);
    match outer {
        Some(Refusal::Transient | Refusal::Malformed) => {
            let (inner, rest) = split_one_prefix(rest);
            (inner.or(outer), rest)
        }
        _ => (outer, rest),
    }
}

fn split_one_prefix(text: &str) -> (Option<Refusal>, &str) {
    let (word, rest) = text.split_once(':').unwrap_or((text, ""));
    let prefix = match word.trim() {
        "rate-limited" => Refusal::Rate,
        "blocked" | "restricted" | "pow" | "mute" => Refusal::Policy,
        "invalid" | "unsupported" | "bad req" | "bad msg" => Refusal::Malformed,
        "error" => Refusal::Transient,
        "auth-required" => Refusal::AuthRequired,
        "closed" => Refusal::NegClosed,
        _ => return (None, text),
    };
    (Some(prefix), rest.trim_start())
}

/// Classifies by the phrase after the prefix.
fn by_phrase(heard: Heard, rest: &str) -> Option<Refusal> {
    const TOO_MANY_BYTES: &str = "active subscriptions exceed max size";
    if let Some(after) = rest.strip_prefix(TOO_MANY_BYTES) {
        let stated = first_number(after);
        return Some(Refusal::RetainedBytes { stated });
    }
    let concurrent = match heard {
        Heard::Notice => Refusal::DroppedStart,
        Heard::NegErr => Refusal::NegSessions,
        Heard::Closed | Heard::LiveClosed => Refusal::SlotCount,
    };
    let phrases = [
        ("too many queries", Refusal::Rate),
        ("too many reqs", Refusal::SlotCount),
        ("too many subscriptions", Refusal::SlotCount),
        ("maximum concurrent subscription", Refusal::SlotCount),
        ("too many concurrent reqs", concurrent),
        ("too many concurrent neg", concurrent),
        ("too many negentropy subscriptions", Refusal::NegSessions),
        ("too many negentropy items", Refusal::SetTooLarge),
        ("too many query results", Refusal::SetTooLarge),
        ("this query is too big", Refusal::SetTooLarge),
        ("protocol-error", Refusal::NegProtocol),
        ("invalid negentropy message", Refusal::NegProtocol),
        ("negentropy error", Refusal::NegProtocol),
        ("negentropy disabled", Refusal::NegUnsupported),
        ("req exceeds max filter count", Refusal::FilterCount),
        ("invalid number of filters", Refusal::FilterCount),
        ("arr too big", Refusal::FilterCount),
        ("filter item too ", Refusal::Malformed),
        ("total filter items too large", Refusal::Malformed),
        ("unrecognised filter item", Refusal::Malformed),
        ("unrecognized filter item", Refusal::Malformed),
        ("filter 'limit' must be", Refusal::LimitZero),
        ("live event buffer overflow", Refusal::LiveOverflow),
    ];
    let known = phrases.iter().find(|(words, _)| rest.starts_with(words));
    known.map(|(_, refusal)| *refusal)
}

/// Classifies by plain words anywhere in the text, if the prefix is not specific.
fn by_words(heard: Heard, prefix: Option<Refusal>, rest: &str) -> Option<Refusal> {
    let is_vague = matches!(prefix, None | Some(Refusal::Transient | Refusal::Malformed));
    let may_be_neg = matches!(heard, Heard::NegErr | Heard::Notice);
    let contains_phrase = |phrase: &[&str]| contains_phrase(rest, phrase);

    if is_vague
        && may_be_neg
        && UNSUPPORTED_COMMAND
            .iter()
            .any(|phrase| contains_phrase(phrase))
    {
        return Some(Refusal::NegUnsupported);
    }
    if prefix == Some(Refusal::Malformed) && may_be_neg && contains_phrase(&["negentropy"]) {
        return Some(Refusal::NegUnsupported);
    }
    let is_unspecific =
        prefix.is_none() || (prefix == Some(Refusal::Transient) && heard == Heard::Notice);
    if is_unspecific && RATE_LIMITED.iter().any(|phrase| contains_phrase(phrase)) {
        return Some(Refusal::Rate);
    }
    let is_not_member = prefix.is_none() && contains_phrase(&["not", "a", "member"]);
    is_not_member.then_some(Refusal::Policy)
}

/// Phrases for an unsupported command: NEG-OPEN is the only command sent that a relay may not know.
const UNSUPPORTED_COMMAND: [&[&str]; 7] = [
    &["not", "support"],
    &["unknown", "cmd"],
    &["unknown", "command"],
    &["unknown", "message"],
    &["unrecognised", "command"],
    &["unrecognized", "command"],
    &["not", "parse", "command"],
];

const RATE_LIMITED: [&[&str]; 4] = [
    &["slow", "down"],
    &["throttl"],
    &["rate", "limit"],
    &["rate-limited"],
];

/// Returns whether these words follow one another. The last one may be longer, as in "limit" and "limited".
fn contains_phrase(text: &str, phrase: &[&str]) -> bool {
    let Some((last, first)) = phrase.split_last() else {
        return false;
    };
    let words: Vec<Option<&str>> = text.split_whitespace().map(plain_word).collect();
    words.windows(phrase.len()).any(|window| {
        let mut pairs = window.iter().zip(first);
        let begins = pairs.all(|(word, expected)| *word == Some(*expected));
        let ends = window.last().copied().flatten();
        begins && ends.is_some_and(|word| word.starts_with(last))
    })
}

/// Returns a token that is a plain word; names, paths, quotations and numbers are not.
fn plain_word(token: &str) -> Option<&str> {
    let word = token.trim_end_matches(['.', ',', ';', ':', '!', '?']);
    let is_plain = word == "rate-limited" || word.bytes().all(|byte| byte.is_ascii_alphabetic());
    is_plain.then_some(word)
}

fn first_number(text: &str) -> Option<u64> {
    let digits = text.trim_start_matches(|c: char| !c.is_ascii_digit());
    let end = digits.find(|c: char| !c.is_ascii_digit());
    let number = end.map_or(Some(digits), |end| digits.get(..end))?;
    number.parse().ok()
}

#[cfg(test)]
mod tests;
