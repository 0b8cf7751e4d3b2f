//! Client messages and replies in their wire format.
//!
//! Reading is bounded before anything is allocated, and a message that cannot be read yields the reply to send.

mod filter;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use grasp_core::limits::EoseHint;
use grasp_core::nip34::State;
use grasp_core::{kinds, neg};
use nostr::event::{Event, EventId, Kind};
use nostr::filter::Filter;
use serde::Serialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::limits::Limits;

/// A subscription id that a client chose, within bounds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SubId(Arc<str>);

impl SubId {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    #[cfg(test)]
    pub(crate) fn of(text: &str) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for SubId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Bytes that a value of a filter takes beside its text: in the filter, and in the index of subscriptions.
const VALUE_OVERHEAD_BYTES: usize = 384;

/// The number of full filters whose values one REQ or COUNT may have.
const MAX_FULL_FILTERS: usize = 10;

/// The filters of one REQ or COUNT, and the size of their text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QueryFilters {
    pub(crate) filters: Vec<Filter>,
    pub(crate) bytes: usize,
    values: usize,
}

/// One well-formed message of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Event(Box<Event>),
    Auth(Box<Event>),
    Req(SubId, QueryFilters),
    Count(SubId, QueryFilters),
    Close(SubId),
    NegOpen(SubId, Box<Filter>, Vec<u8>),
    NegMsg(SubId, Vec<u8>),
    NegClose(SubId),
}

impl Request {
    /// Reads one text frame; a message that cannot be read returns the reply to send.
    pub(crate) fn read(text: &str, limits: &Limits) -> Result<Self, Reply> {
        let frame = Frame::read(text, limits.filters.saturating_add(1))
            .map_err(|fault| Reply::notice(format_args!("invalid: {fault}")))?;
        match frame.verb.as_str() {
            "EVENT" => event(&frame, limits).map(Self::Event),
            "AUTH" => event(&frame, limits).map(Self::Auth),
            "REQ" => QueryFilters::read(&frame, limits).map(|(id, query)| Self::Req(id, query)),
            "COUNT" => QueryFilters::read(&frame, limits).map(|(id, query)| Self::Count(id, query)),
            "CLOSE" => sub_id(&frame, limits).map(Self::Close),
            "NEG-OPEN" => neg_open(&frame, limits),
            "NEG-MSG" => neg_msg(&frame, limits),
            "NEG-CLOSE" => sub_id(&frame, limits).map(Self::NegClose),
            _ => Err(Reply::notice("unsupported: unknown message type")),
        }
    }
}

impl QueryFilters {
    /// Returns the approximate memory that the filters take. Many short values take far more than their text.
    pub(crate) fn weight(&self) -> usize {
        self.bytes.saturating_add(self.values.saturating_mul(VALUE_OVERHEAD_BYTES))
    }

    fn read(frame: &Frame<'_>, limits: &Limits) -> Result<(SubId, Self), Reply> {
        let id = sub_id(frame, limits)?;
        let refuse = |reason: String| Reply::closed(&id, reason);
        let raw = frame.rest.get(1..).unwrap_or_default();
        if raw.is_empty() {
            return Err(refuse("invalid: no filter".into()));
        }
        if frame.surplus > 0 {
            let most = limits.filters;
            return Err(refuse(format!("invalid: more than {most} filters")));
        }
        let most = limits.filter_values.saturating_mul(MAX_FULL_FILTERS);
        let (mut filters, mut values) = (Vec::with_capacity(raw.len()), 0);
        for raw in raw {
            let filter = filter::read(raw.get(), limits.filter_values)
                .map_err(|fault| refuse(fault.to_string()))?;
            values += filter::values(&filter);
            if values > most {
                return Err(refuse(format!("invalid: more than {most} values in a request")));
            }
            filters.push(filter);
        }
        let bytes = raw.iter().map(|raw| raw.get().len()).sum();
        Ok((id, Self { filters, bytes, values }))
    }
}

/// Reads the event of EVENT or AUTH. Does not check its signature.
fn event(frame: &Frame<'_>, limits: &Limits) -> Result<Box<Event>, Reply> {
    let [raw] = frame.rest[..] else {
        return Err(Reply::notice("invalid: expected one event"));
    };
    let refuse = |reason: String| match claimed_id(raw) {
        Some(id) => Reply::refused(id, reason),
        None => Reply::notice(reason),
    };
    let most = max_bytes(raw, limits);
    if raw.get().len() > most {
        return Err(refuse(format!("invalid: event larger than {most} bytes")));
    }
    serde_json::from_str(raw.get())
        .map(Box::new)
        .map_err(|_| refuse("invalid: not a nostr event".into()))
}

/// Returns the largest size of an event. A state names every branch and tag of a repository.
fn max_bytes(raw: &RawValue, limits: &Limits) -> usize {
    #[derive(serde::Deserialize)]
    struct ClaimedKind {
        kind: Kind,
    }
    let is_state = || {
        let claim = serde_json::from_str::<ClaimedKind>(raw.get());
        claim.is_ok_and(|claim| claim.kind == kinds::STATE)
    };
    if raw.get().len() > limits.event_bytes && is_state() {
        return limits.event_bytes.max(State::MAX_EVENT_BYTES);
    }
    limits.event_bytes
}

/// Returns the id that a broken event claims, for the OK message.
fn claimed_id(raw: &RawValue) -> Option<EventId> {
    #[derive(serde::Deserialize)]
    struct ClaimedId {
        id: EventId,
    }
    let claim: ClaimedId = serde_json::from_str(raw.get()).ok()?;
    Some(claim.id)
}

fn sub_id(frame: &Frame<'_>, limits: &Limits) -> Result<SubId, Reply> {
    let most = limits.subscription_id_chars;
    let raw = frame.rest.first().map_or("", |raw| raw.get());
    // The longest JSON form of that many characters, all escaped.
    let id: Option<String> = (raw.len() <= most.saturating_mul(12).saturating_add(2))
        .then(|| serde_json::from_str(raw).ok())
        .flatten();
    id.filter(|id| (1..=most).contains(&id.chars().count())).map(|id| SubId(id.into())).ok_or_else(
        || {
            Reply::notice(format_args!(
                "invalid: expected a subscription id of 1 to {most} characters"
            ))
        },
    )
}

fn neg_open(frame: &Frame<'_>, limits: &Limits) -> Result<Request, Reply> {
    let id = sub_id(frame, limits)?;
    let [_, filter, message] = frame.rest[..] else {
        return Err(Reply::neg_err(&id, "invalid: expected one filter and one message"));
    };
    let filter = filter::read(filter.get(), limits.filter_values)
        .map_err(|fault| Reply::neg_err(&id, fault.to_string()))?;
    let message = neg_bytes(&id, message)?;
    Ok(Request::NegOpen(id, Box::new(filter), message))
}

fn neg_msg(frame: &Frame<'_>, limits: &Limits) -> Result<Request, Reply> {
    let id = sub_id(frame, limits)?;
    let [_, message] = frame.rest[..] else {
        return Err(Reply::neg_err(&id, "invalid: expected one message"));
    };
    let message = neg_bytes(&id, message)?;
    Ok(Request::NegMsg(id, message))
}

fn neg_bytes(id: &SubId, raw: &RawValue) -> Result<Vec<u8>, Reply> {
    serde_json::from_str::<&str>(raw.get())
        .ok()
        .and_then(neg::from_hex)
        .ok_or_else(|| Reply::neg_err(id, "invalid: message is not hex"))
}

/// The longest message type, quoted.
const MAX_VERB_BYTES: usize = 32;

/// The message type, and the text of the other elements.
#[derive(Debug)]
struct Frame<'a> {
    verb: String,
    rest: Vec<&'a RawValue>,
    /// Elements beyond those that were kept.
    surplus: usize,
}

/// The reason for which a text is no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum FrameFault {
    #[error("not a JSON array")]
    NotAnArray,
    #[error("the message type is missing")]
    NoVerb,
}

impl<'a> Frame<'a> {
    /// Splits a message, and keeps at most `most` elements after the first.
    fn read(text: &'a str, most: usize) -> Result<Self, FrameFault> {
        let mut json = serde_json::Deserializer::from_str(text);
        let (elements, surplus) = Elements(most.saturating_add(1))
            .deserialize(&mut json)
            .map_err(|_| FrameFault::NotAnArray)?;
        json.end().map_err(|_| FrameFault::NotAnArray)?;
        let (first, rest) = elements.split_first().ok_or(FrameFault::NoVerb)?;
        if first.get().len() > MAX_VERB_BYTES {
            return Err(FrameFault::NoVerb);
        }
        Ok(Self {
            verb: serde_json::from_str(first.get()).map_err(|_| FrameFault::NoVerb)?,
            rest: rest.to_vec(),
            surplus,
        })
    }
}

/// Keeps the first elements of an array as text, up to this number, and counts the others.
struct Elements(usize);

impl<'de> DeserializeSeed<'de> for Elements {
    type Value = (Vec<&'de RawValue>, usize);
    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        json.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Elements {
    type Value = (Vec<&'de RawValue>, usize);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<Self::Value, A::Error> {
        let mut kept = Vec::new();
        while kept.len() < self.0 {
            match array.next_element()? {
                Some(element) => kept.push(element),
                None => return Ok((kept, 0)),
            }
        }
        let mut surplus = 0;
        while array.next_element::<IgnoredAny>()?.is_some() {
            surplus += 1;
        }
        Ok((kept, surplus))
    }
}

/// One message to a client, other than EVENT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Ok {
        id: EventId,
        accepted: bool,
        message: String,
    },
    Eose(SubId, EoseHint),
    Closed(SubId, Cow<'static, str>),
    Notice(String),
    Count(SubId, u64),
    Auth(String),
    NegMsg(SubId, Vec<u8>),
    /// The last element is the largest set that would be served, where the size is the reason.
    NegErr(SubId, Cow<'static, str>, Option<usize>),
}

impl Reply {
    pub(crate) fn notice(reason: impl fmt::Display) -> Self {
        Self::Notice(reason.to_string())
    }

    pub(crate) fn refused(id: EventId, reason: impl Into<String>) -> Self {
        Self::Ok { id, accepted: false, message: reason.into() }
    }

    pub(crate) fn closed(id: &SubId, reason: impl Into<Cow<'static, str>>) -> Self {
        Self::Closed(id.clone(), reason.into())
    }

    pub(crate) fn neg_err(id: &SubId, reason: impl Into<Cow<'static, str>>) -> Self {
        Self::NegErr(id.clone(), reason.into(), None)
    }

    /// Returns whether the reply asks the client to authenticate.
    pub(crate) fn wants_auth(&self) -> bool {
        let reason: &str = match self {
            Self::Ok { message, .. } => message,
            Self::Closed(_, reason) | Self::NegErr(_, reason, _) => reason,
            _ => "",
        };
        reason.starts_with("auth-required:")
    }

    /// Returns the message in its wire format.
    pub(crate) fn to_json(&self) -> String {
        match self {
            Self::Ok { id, accepted, message } => json(&("OK", id, accepted, message)),
            Self::Eose(id, hint) => json(&("EOSE", id.as_str(), [hint.as_str()])),
            Self::Closed(id, reason) => json(&("CLOSED", id.as_str(), reason)),
            Self::Notice(text) => json(&("NOTICE", text)),
            Self::Count(id, count) => {
                json(&("COUNT", id.as_str(), serde_json::json!({ "count": count })))
            }
            Self::Auth(challenge) => json(&("AUTH", challenge)),
            Self::NegMsg(id, message) => neg_msg_json(id, message),
            Self::NegErr(id, reason, None) => json(&("NEG-ERR", id.as_str(), reason)),
            Self::NegErr(id, reason, Some(most)) => json(&("NEG-ERR", id.as_str(), reason, most)),
        }
    }
}

/// Returns the part of an EVENT message before the event; a `]` closes it.
pub(crate) fn event_prefix(id: &SubId) -> String {
    format!(r#"["EVENT",{},"#, json(&id.as_str()))
}

fn neg_msg_json(id: &SubId, message: &[u8]) -> String {
    format!(r#"["NEG-MSG",{},"{}"]"#, json(&id.as_str()), neg::to_hex(message))
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("strings, numbers and ids always have a JSON form")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Request, Reply> {
        let limits =
            Limits { filters: 3, filter_values: 4, event_bytes: 2_000, ..Limits::default() };
        Request::read(text, &limits)
    }

    fn refusal(text: &str) -> String {
        read(text).expect_err(text).to_json()
    }

    #[test]
    fn a_state_may_be_larger_than_other_events() {
        let event = |kind: u16, bytes: usize| {
            let (id, key, sig) = ("0".repeat(64), "1".repeat(64), "2".repeat(128));
            let content = "x".repeat(bytes);
            format!(
                r#"["EVENT",{{"id":"{id}","pubkey":"{key}","created_at":1,"kind":{kind},"tags":[],"content":"{content}","sig":"{sig}"}}]"#
            )
        };
        assert!(matches!(read(&event(30618, 100_000)), Ok(Request::Event(_))));
        assert!(refusal(&event(30617, 100_000)).contains("larger than 2000 bytes"));
        let most = State::MAX_EVENT_BYTES;
        let told = format!("larger than {most} bytes");
        assert!(refusal(&event(30618, most)).contains(&told));
    }

    #[test]
    fn reads_a_req_of_several_filters() {
        let Ok(Request::Req(id, query)) = read(r##"["REQ","s",{"kinds":[1]},{"#a":["x","y"]}]"##)
        else {
            panic!("not a REQ")
        };
        assert_eq!(id.as_str(), "s");
        assert_eq!(query.filters.len(), 2);
        assert_eq!(query.bytes, 13 + 16);
    }

    #[test]
    fn short_values_weigh_more_than_their_text_and_a_request_has_only_so_many() {
        let weight = |text: &str| match read(text) {
            Ok(Request::Req(_, query)) => query.weight(),
            other => panic!("{other:?}"),
        };
        assert_eq!(weight(r#"["REQ","s",{}]"#), 2);
        assert_eq!(
            weight(r##"["REQ","s",{"kinds":[1],"#a":["x","y"]}]"##),
            28 + 3 * VALUE_OVERHEAD_BYTES
        );
        let limits = Limits { filters: 30, filter_values: 4, ..Limits::default() };
        let full = |count: usize| {
            let filters: String = (0..count).map(|_| r#",{"kinds":[1,2,3,4]}"#).collect();
            Request::read(&format!(r#"["REQ","s"{filters}]"#), &limits)
        };
        assert!(full(MAX_FULL_FILTERS).is_ok());
        let refusal = full(MAX_FULL_FILTERS + 1).expect_err("too many").to_json();
        assert!(refusal.starts_with(r#"["CLOSED","s","invalid: more than 40 values"#), "{refusal}");
    }

    #[test]
    fn what_is_no_message_gets_a_notice_without_echo() {
        for text in [
            "",
            "nonsense",
            "{}",
            "[]",
            "[1]",
            r#"["REQ"]"#,
            r#"["REQ",7,{}]"#,
            r#"["REQ","",{}]"#,
            r#"["CLOSE",null]"#,
            r#"["EVENT",{"id":"zz"}]"#,
            r#"["EVENT",{},{}]"#,
            r#"["REQ","s",{}"#,
            r#"["REQ","s",{}]x"#,
        ] {
            let answer = refusal(text);
            assert!(answer.starts_with(r#"["NOTICE","invalid: "#), "{text}: {answer}");
        }
        assert!(refusal(r#"["HELLO",1]"#).starts_with(r#"["NOTICE","unsupported: "#));
        let shout = refusal(&format!(r#"["REQ","{}",{{}}]"#, "x".repeat(100_000)));
        assert!(shout.len() < 200, "{shout}");
    }

    #[test]
    fn a_bad_filter_closes_the_subscription_it_was_for() {
        for (filter, prefix) in [
            ("7", "invalid"),
            (r#"{"kinds":"1"}"#, "invalid"),
            (r#"{"kinds":[-1]}"#, "invalid"),
            (r#"{"kinds":[70000]}"#, "invalid"),
            (r#"{"ids":["abc"]}"#, "invalid"),
            (r#"{"ids":null}"#, "invalid"),
            (r#"{"authors":[1]}"#, "invalid"),
            (r##"{"#e":[1]}"##, "invalid"),
            (r#"{"limit":-1}"#, "invalid"),
            (r#"{"since":"now"}"#, "invalid"),
            (r#"{"kinds":[1,2,3,4,5]}"#, "invalid"),
            (r#"{"kinds":[1],"kinds":[2]}"#, "invalid"),
            (r#"{"search":"x"}"#, "unsupported"),
            (r##"{"#ab":["x"]}"##, "unsupported"),
            (r##"{"&t":["x"]}"##, "unsupported"),
        ] {
            let answer = refusal(&format!(r#"["REQ","s",{filter}]"#));
            let start = format!(r#"["CLOSED","s","{prefix}: "#);
            assert!(answer.starts_with(&start), "{filter}: {answer}");
        }
        assert!(refusal(r#"["REQ","s"]"#).starts_with(r#"["CLOSED","s","invalid: "#));
        assert!(refusal(r#"["COUNT","s",{},{},{},{}]"#).starts_with(r#"["CLOSED","s","invalid: "#));
    }

    #[test]
    fn a_broken_event_with_a_readable_id_gets_its_ok() {
        let id = "a".repeat(64);
        let answer = refusal(&format!(r#"["EVENT",{{"id":"{id}","kind":"x"}}]"#));
        assert_eq!(answer, format!(r#"["OK","{id}",false,"invalid: not a nostr event"]"#));
        let content = "x".repeat(3_000);
        let answer = refusal(&format!(r#"["EVENT",{{"id":"{id}","content":"{content}"}}]"#));
        assert_eq!(
            answer,
            format!(r#"["OK","{id}",false,"invalid: event larger than 2000 bytes"]"#)
        );
    }

    #[test]
    fn negentropy_is_refused_only_by_neg_err() {
        for text in [
            r#"["NEG-OPEN","n",{}]"#,
            r#"["NEG-OPEN","n",{},"6g"]"#,
            r#"["NEG-OPEN","n",{},"6"]"#,
            r#"["NEG-OPEN","n",{},7]"#,
            r#"["NEG-OPEN","n","id","61"]"#,
            r#"["NEG-OPEN","n",{"search":"x"},"61"]"#,
            r#"["NEG-MSG","n"]"#,
            r#"["NEG-MSG","n","zz"]"#,
        ] {
            assert!(refusal(text).starts_with(r#"["NEG-ERR","n","#), "{text}");
        }
        assert_eq!(
            read(r#"["NEG-MSG","n","61ff"]"#),
            Ok(Request::NegMsg(SubId::of("n"), vec![0x61, 0xff]))
        );
    }

    #[test]
    fn nesting_of_any_depth_is_refused_and_survived() {
        for depth in [200, 1_000_000] {
            let nest = "[".repeat(depth) + &"]".repeat(depth);
            assert!(refusal(&nest).starts_with(r#"["NOTICE","invalid: "#));
            let answer = refusal(&format!(r#"["REQ","s",{nest}]"#));
            assert!(answer.starts_with(r#"["CLOSED","s","invalid: "#));
            let answer = refusal(&format!(r#"["REQ","s",{{"kinds":{nest}}}]"#));
            assert!(answer.starts_with(r#"["CLOSED","s","invalid: "#));
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_panics_and_every_refusal_is_short(text in r#"\[?"?(EVENT|REQ|AUTH|NEG-OPEN|COUNT)?"?,?.{0,80}"#) {
            if let Err(reply) = read(&text) {
                proptest::prop_assert!(reply.to_json().len() < 1_000);
            }
        }
    }

    #[test]
    fn a_huge_array_is_counted_and_not_kept() {
        let text = format!(r#"["REQ"{}]"#, ",1".repeat(100_000));
        let frame = Frame::read(&text, 10).expect("a message");
        assert_eq!((frame.rest.len(), frame.surplus), (10, 99_990));
    }

    #[test]
    fn subscription_ids_are_escaped_wherever_they_stand() {
        let id = SubId::of("a\"]\n");
        for text in [
            Reply::Eose(id.clone(), EoseHint::Finish).to_json(),
            Reply::NegMsg(id.clone(), vec![0x61]).to_json(),
            event_prefix(&id) + "{}]",
        ] {
            let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            assert_eq!(value[1], "a\"]\n", "{text}");
        }
    }

    #[test]
    fn a_refusal_for_size_says_what_would_be_served() {
        let reply = Reply::NegErr(SubId::of("n"), "blocked: this query is too big".into(), Some(7));
        assert_eq!(reply.to_json(), r#"["NEG-ERR","n","blocked: this query is too big",7]"#);
    }
}
