//! The words on the wire: what a client says, what we answer.

mod filter;
mod frame;
mod reply;

use std::fmt;
use std::sync::Arc;

use grasp_core::nip34::State;
use grasp_core::{kinds, neg};
use nostr::event::{Event, EventId, Kind};
use nostr::filter::Filter;
use serde_json::value::RawValue;

use self::frame::Frame;
pub(crate) use self::reply::{Reply, event_prefix};
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

/// What a value of a filter takes beside its text: in the filter, and in the index of those who listen.
const VALUE: usize = 384;

/// Values of one REQ or COUNT, in filters as full as they may be.
const MOST_FULL_FILTERS: usize = 10;

/// The filters of one REQ or COUNT, and how much text they were.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) filters: Vec<Filter>,
    pub(crate) bytes: usize,
    values: usize,
}

/// One well-formed message of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Event(Box<Event>),
    Auth(Box<Event>),
    Req(SubId, Asked),
    Count(SubId, Asked),
    Close(SubId),
    NegOpen(SubId, Box<Filter>, Vec<u8>),
    NegMsg(SubId, Vec<u8>),
    NegClose(SubId),
}

impl Request {
    /// Reads one text frame; what cannot be read comes back as the answer it deserves.
    pub(crate) fn read(text: &str, limits: &Limits) -> Result<Self, Reply> {
        let frame = Frame::read(text, limits.filters.saturating_add(1))
            .map_err(|fault| Reply::notice(format_args!("invalid: {fault}")))?;
        match frame.verb.as_str() {
            "EVENT" => event(&frame, limits).map(Self::Event),
            "AUTH" => event(&frame, limits).map(Self::Auth),
            "REQ" => Asked::read(&frame, limits).map(|(id, asked)| Self::Req(id, asked)),
            "COUNT" => Asked::read(&frame, limits).map(|(id, asked)| Self::Count(id, asked)),
            "CLOSE" => sub_id(&frame, limits).map(Self::Close),
            "NEG-OPEN" => neg_open(&frame, limits),
            "NEG-MSG" => neg_msg(&frame, limits),
            "NEG-CLOSE" => sub_id(&frame, limits).map(Self::NegClose),
            _ => Err(Reply::notice("unsupported: unknown message type")),
        }
    }
}

impl Asked {
    /// Roughly what they take in memory. Many short values take far more than their text.
    pub(crate) fn weight(&self) -> usize {
        self.bytes.saturating_add(self.values.saturating_mul(VALUE))
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
        let most = limits.filter_values.saturating_mul(MOST_FULL_FILTERS);
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

/// The event of EVENT or AUTH. Its signature is not looked at here.
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

/// How large an event may be. A state names every branch and tag of a repository.
fn max_bytes(raw: &RawValue, limits: &Limits) -> usize {
    #[derive(serde::Deserialize)]
    struct Claim {
        kind: Kind,
    }
    let is_state = || {
        let claim = serde_json::from_str::<Claim>(raw.get());
        claim.is_ok_and(|claim| claim.kind == kinds::STATE)
    };
    if raw.get().len() > limits.event_bytes && is_state() {
        return limits.event_bytes.max(State::MAX_EVENT_BYTES);
    }
    limits.event_bytes
}

/// The id that a broken event claims, so that its OK finds the one who waits for it.
fn claimed_id(raw: &RawValue) -> Option<EventId> {
    #[derive(serde::Deserialize)]
    struct Claim {
        id: EventId,
    }
    let claim: Claim = serde_json::from_str(raw.get()).ok()?;
    Some(claim.id)
}

fn sub_id(frame: &Frame<'_>, limits: &Limits) -> Result<SubId, Reply> {
    let most = limits.subscription_id_chars;
    let raw = frame.rest.first().map_or("", |raw| raw.get());
    // No text of that many characters is longer than this, escaped and quoted.
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
        let Ok(Request::Req(id, asked)) = read(r##"["REQ","s",{"kinds":[1]},{"#a":["x","y"]}]"##)
        else {
            panic!("not a REQ")
        };
        assert_eq!(id.as_str(), "s");
        assert_eq!(asked.filters.len(), 2);
        assert_eq!(asked.bytes, 13 + 16);
    }

    #[test]
    fn short_values_weigh_more_than_their_text_and_a_request_has_only_so_many() {
        let weight = |text: &str| match read(text) {
            Ok(Request::Req(_, asked)) => asked.weight(),
            other => panic!("{other:?}"),
        };
        assert_eq!(weight(r#"["REQ","s",{}]"#), 2);
        assert_eq!(weight(r##"["REQ","s",{"kinds":[1],"#a":["x","y"]}]"##), 28 + 3 * VALUE);
        let limits = Limits { filters: 30, filter_values: 4, ..Limits::default() };
        let full = |count: usize| {
            let filters: String = (0..count).map(|_| r#",{"kinds":[1,2,3,4]}"#).collect();
            Request::read(&format!(r#"["REQ","s"{filters}]"#), &limits)
        };
        assert!(full(MOST_FULL_FILTERS).is_ok());
        let refusal = full(MOST_FULL_FILTERS + 1).expect_err("too many").to_json();
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
}
