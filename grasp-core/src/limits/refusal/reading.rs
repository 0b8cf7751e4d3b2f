//! From a text to its meaning.

use super::{Heard, Refusal};

/// Characters of a text that are looked at; whatever matters stands at the beginning.
const HEAD: usize = 512;

/// The word that some texts begin with, up to a colon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Prefix {
    RateLimited,
    Forbidden,
    Wrong,
    Error,
    AuthRequired,
    Closed,
}

pub(super) fn read(heard: Heard, text: &str) -> Refusal {
    let head: String = text.trim_start().chars().take(HEAD).collect();
    // Put by one common relay in front of everything, machine-readable prefixes included. Told from
    // the prefix `error:` by its capitals.
    let head = head.strip_prefix("ERROR:").unwrap_or(&head).trim();
    let lower = head.to_ascii_lowercase();
    let (prefix, rest) = peel(&lower);
    by_opening(heard, rest)
        .or_else(|| by_prose(heard, prefix, rest))
        .or_else(|| by_prefix(heard, prefix))
        .unwrap_or(match heard {
            Heard::LiveClosed => Refusal::Transient,
            Heard::Notice => Refusal::Remark,
            Heard::Closed | Heard::NegErr => Refusal::Unknown,
        })
}

/// Takes the prefix off; of a vague one followed by another, the second counts.
fn peel(text: &str) -> (Option<Prefix>, &str) {
    let (outer, rest) = peel_one(text);
    match outer {
        Some(Prefix::Error | Prefix::Wrong) => {
            let (inner, rest) = peel_one(rest);
            (inner.or(outer), rest)
        }
        _ => (outer, rest),
    }
}

fn peel_one(text: &str) -> (Option<Prefix>, &str) {
    let (word, rest) = text.split_once(':').unwrap_or((text, ""));
    let prefix = match word.trim() {
        "rate-limited" => Prefix::RateLimited,
        "blocked" | "restricted" | "pow" | "mute" => Prefix::Forbidden,
        "invalid" | "unsupported" | "bad req" | "bad msg" => Prefix::Wrong,
        "error" => Prefix::Error,
        "auth-required" => Prefix::AuthRequired,
        "closed" => Prefix::Closed,
        _ => return (None, text),
    };
    (Some(prefix), rest.trim_start())
}

/// By the words that a text begins with after its prefix.
fn by_opening(heard: Heard, rest: &str) -> Option<Refusal> {
    const RETAINED: &str = "active subscriptions exceed max size";
    if let Some(figure) = rest.strip_prefix(RETAINED) {
        let stated = first_number(figure);
        return Some(Refusal::RetainedBytes { stated });
    }
    let concurrent = match heard {
        Heard::Notice => Refusal::DroppedStart,
        Heard::NegErr => Refusal::NegSessions,
        Heard::Closed | Heard::LiveClosed => Refusal::SlotCount,
    };
    let openings = [
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
    let known = openings.iter().find(|(words, _)| rest.starts_with(words));
    known.map(|(_, refusal)| *refusal)
}

/// By plain words anywhere, where no prefix says enough.
fn by_prose(heard: Heard, prefix: Option<Prefix>, rest: &str) -> Option<Refusal> {
    let is_vague = matches!(prefix, None | Some(Prefix::Error | Prefix::Wrong));
    let may_be_neg = matches!(heard, Heard::NegErr | Heard::Notice);
    let says = |phrase: &[&str]| says(rest, phrase);

    if is_vague && may_be_neg && NO_NEGENTROPY.iter().any(|phrase| says(phrase)) {
        return Some(Refusal::NegUnsupported);
    }
    if prefix == Some(Prefix::Wrong) && may_be_neg && says(&["negentropy"]) {
        return Some(Refusal::NegUnsupported);
    }
    let is_bare = prefix.is_none() || (prefix == Some(Prefix::Error) && heard == Heard::Notice);
    if is_bare && SLOW_DOWN.iter().any(|phrase| says(phrase)) {
        return Some(Refusal::Rate);
    }
    let is_stranger = prefix.is_none() && says(&["not", "a", "member"]);
    is_stranger.then_some(Refusal::Policy)
}

/// NEG-OPEN is the one command we send that a relay may not know.
const NO_NEGENTROPY: [&[&str]; 7] = [
    &["not", "support"],
    &["unknown", "cmd"],
    &["unknown", "command"],
    &["unknown", "message"],
    &["unrecognised", "command"],
    &["unrecognized", "command"],
    &["not", "parse", "command"],
];

const SLOW_DOWN: [&[&str]; 4] =
    [&["slow", "down"], &["throttl"], &["rate", "limit"], &["rate-limited"]];

fn by_prefix(heard: Heard, prefix: Option<Prefix>) -> Option<Refusal> {
    match prefix? {
        Prefix::RateLimited => Some(Refusal::Rate),
        Prefix::Forbidden => Some(Refusal::Policy),
        Prefix::Wrong => Some(Refusal::Malformed),
        Prefix::Error => Some(Refusal::Transient),
        Prefix::AuthRequired => Some(Refusal::AuthRequired),
        Prefix::Closed => (heard == Heard::NegErr).then_some(Refusal::NegClosed),
    }
}

/// Do these words follow one another? The last one may go on, as in "limit" and "limited".
fn says(text: &str, phrase: &[&str]) -> bool {
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

/// A word of the sentence itself; names, paths, quotations and numbers are none.
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
