//! Client messages and replies in their wire format.
//!
//! Reading keeps no more elements and values than the limits allow, and a message that cannot be read yields the reply to
//! send.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::marker::PhantomData;

use grasp_core::limits::EoseHint;
use grasp_core::nip34::State;
use grasp_core::{kinds, neg};
use nostr::event::{Event, EventId, Kind};
use nostr::filter::{Filter, SingleLetterTag};
use serde::de::{Deserializer as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::limits::Limits;

/// Longest subscription id, in characters.
pub(super) const MAX_SUB_ID_CHARS: usize = 64;

/// A subscription id that a client chose, within bounds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct SubId(pub(super) String);

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
        // The message type, the subscription id, and the filters.
        let most = limits.filters.saturating_add(2);
        let (elements, count) = first_elements::<&RawValue>(text, most)
            .map_err(|_| Reply::notice("invalid: not a JSON array"))?;
        let verb: Option<String> = elements.first().and_then(|first| parse(first));
        let verb = verb.ok_or_else(|| Reply::notice("invalid: the message type is missing"))?;
        let rest = elements.get(1..).unwrap_or_default();
        let query = || QueryFilters::read(rest, count > most, limits);
        match verb.as_str() {
            "EVENT" => event(rest, limits).map(Self::Event),
            "AUTH" => event(rest, limits).map(Self::Auth),
            "REQ" => query().map(|(id, query)| Self::Req(id, query)),
            "COUNT" => query().and_then(|(id, query)| match query.searches() {
                0 => Ok(Self::Count(id, query)),
                _ => Err(Reply::closed(&id, NO_SEARCH)),
            }),
            "CLOSE" => sub_id(rest).map(Self::Close),
            "NEG-OPEN" => neg_open(rest, limits),
            "NEG-MSG" => neg_msg(rest),
            "NEG-CLOSE" => sub_id(rest).map(Self::NegClose),
            _ => Err(Reply::notice("unsupported: unknown message type")),
        }
    }
}

impl QueryFilters {
    /// Returns the approximate memory that the filters take. Many short values take far more than their text.
    pub(crate) fn weight(&self) -> usize {
        self.bytes
            .saturating_add(self.values.saturating_mul(VALUE_OVERHEAD_BYTES))
    }

    /// Returns the number of filters with a search (NIP-50).
    pub(crate) fn searches(&self) -> usize {
        let searches = self.filters.iter().filter(|filter| filter.search.is_some());
        searches.count()
    }

    fn read(rest: &[&RawValue], is_cut: bool, limits: &Limits) -> Result<(SubId, Self), Reply> {
        let id = sub_id(rest)?;
        let refuse = |reason: String| Reply::closed(&id, reason);
        let raw = rest.get(1..).unwrap_or_default();
        if raw.is_empty() {
            return Err(refuse("invalid: no filter".into()));
        }
        if is_cut {
            return Err(refuse(format!(
                "invalid: more than {} filters",
                limits.filters
            )));
        }
        let most = limits.filter_values.saturating_mul(MAX_FULL_FILTERS);
        let mut query = Self {
            filters: Vec::with_capacity(raw.len()),
            bytes: 0,
            values: 0,
        };
        for raw in raw {
            let (filter, values) = read_filter(raw, limits).map_err(refuse)?;
            query.filters.push(filter);
            query.bytes += raw.get().len();
            query.values += values;
            if query.values > most {
                return Err(refuse(format!(
                    "invalid: more than {most} values in a request"
                )));
            }
        }
        if query.searches() > 1 {
            return Err(refuse("invalid: more than one search in a request".into()));
        }
        Ok((id, query))
    }
}

/// The refusal of a search where there is none.
const NO_SEARCH: &str = "unsupported: a search needs a REQ";

/// The refusal of a search for other events.
const SEARCHED_KINDS: &str = "unsupported: a search is for announcements, with \"kinds\":[30617]";

/// The id and the kind that an event claims to have, however broken the rest of it is.
#[derive(Default, Deserialize)]
struct Claim<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    kind: Option<&'a RawValue>,
}

/// Reads the event of EVENT or AUTH. Does not check its signature.
fn event(rest: &[&RawValue], limits: &Limits) -> Result<Box<Event>, Reply> {
    let [raw] = rest else {
        return Err(Reply::notice("invalid: expected one event"));
    };
    let claim = || serde_json::from_str::<Claim<'_>>(raw.get()).unwrap_or_default();
    let refuse = |reason: String| match claim().id.and_then(parse) {
        Some(id) => Reply::refused(id, reason),
        None => Reply::notice(reason),
    };
    let (bytes, mut most) = (raw.get().len(), limits.event_bytes);
    // A state names every branch and tag of a repository.
    if bytes > most && claim().kind.and_then(parse::<Kind>) == Some(kinds::STATE) {
        most = most.max(State::MAX_EVENT_BYTES);
    }
    if bytes > most {
        return Err(refuse(format!("invalid: event larger than {most} bytes")));
    }
    parse(raw)
        .map(Box::new)
        .ok_or_else(|| refuse("invalid: not a nostr event".into()))
}

fn sub_id(rest: &[&RawValue]) -> Result<SubId, Reply> {
    let most = MAX_SUB_ID_CHARS;
    let id: Option<String> = rest.first().and_then(|raw| parse(raw));
    let id = id
        .filter(|id| (1..=most).contains(&id.chars().count()))
        .map(SubId);
    id.ok_or_else(|| {
        Reply::notice(format_args!(
            "invalid: expected a subscription id of 1 to {most} characters"
        ))
    })
}

fn neg_open(rest: &[&RawValue], limits: &Limits) -> Result<Request, Reply> {
    let id = sub_id(rest)?;
    let [_, filter, message] = rest else {
        return Err(Reply::neg_err(
            &id,
            "invalid: expected one filter and one message",
        ));
    };
    let (filter, _) = read_filter(filter, limits).map_err(|reason| Reply::neg_err(&id, reason))?;
    if filter.search.is_some() {
        return Err(Reply::neg_err(&id, NO_SEARCH));
    }
    let message = neg_bytes(&id, message)?;
    Ok(Request::NegOpen(id, Box::new(filter), message))
}

fn neg_msg(rest: &[&RawValue]) -> Result<Request, Reply> {
    let id = sub_id(rest)?;
    let [_, message] = rest else {
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

/// Reads one filter, and counts the values of all its lists. The reason of a refusal names a key and never repeats its
/// value.
fn read_filter(raw: &RawValue, limits: &Limits) -> Result<(Filter, usize), String> {
    let reader = FilterReader {
        filter: Filter::new(),
        seen: BTreeSet::new(),
        values: 0,
        most: limits.filter_values,
    };
    let read = serde_json::Deserializer::from_str(raw.get())
        .deserialize_map(reader)
        .unwrap_or_else(|_| Err("invalid: a filter must be an object".into()))?;
    let (filter, _) = &read;
    let is_for_announcements = filter.kinds == Some(BTreeSet::from([kinds::ANNOUNCEMENT]));
    match filter.search.is_some() && !is_for_announcements {
        true => Err(SEARCHED_KINDS.into()),
        false => Ok(read),
    }
}

/// A filter whose members are being read.
struct FilterReader {
    filter: Filter,
    /// The keys so far: known ones only, so there are few.
    seen: BTreeSet<String>,
    /// Values so far, before equal ones merge.
    values: usize,
    most: usize,
}

impl<'de> Visitor<'de> for FilterReader {
    type Value = Result<(Filter, usize), String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Self::Value, A::Error> {
        while let Some((key, value)) = map.next_entry::<String, &RawValue>()? {
            if let Err(reason) = self.member(key, value.get()) {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                return Ok(Err(reason));
            }
        }
        Ok(Ok((self.filter, self.values)))
    }
}

impl FilterReader {
    fn member(&mut self, key: String, text: &str) -> Result<(), String> {
        match key.as_str() {
            "ids" => self.filter.ids = Some(self.list("ids", text)?),
            "authors" => self.filter.authors = Some(self.list("authors", text)?),
            "kinds" => self.filter.kinds = Some(self.list("kinds", text)?),
            "since" => self.filter.since = scalar("since", text)?,
            "until" => self.filter.until = scalar("until", text)?,
            "limit" => self.filter.limit = scalar("limit", text)?,
            "search" => self.filter.search = scalar("search", text)?,
            key => {
                let tag = tag_name(key).ok_or("unsupported: unrecognised filter key")?;
                let values = self.list("a tag", text)?;
                self.filter.generic_tags.insert(tag, values);
            }
        }
        match self.seen.insert(key) {
            true => Ok(()),
            false => Err("invalid: a filter names a key twice".into()),
        }
    }

    fn list<T>(&mut self, name: &str, text: &str) -> Result<BTreeSet<T>, String>
    where
        T: for<'de> Deserialize<'de> + Ord,
    {
        let (values, count) = first_elements(text, self.most.saturating_sub(self.values))
            .map_err(|_| malformed(name))?;
        self.values = self.values.saturating_add(count);
        if self.values > self.most {
            return Err(format!(
                "invalid: more than {} values in a filter",
                self.most
            ));
        }
        Ok(values.into_iter().collect())
    }
}

fn scalar<T: for<'de> Deserialize<'de>>(name: &str, text: &str) -> Result<Option<T>, String> {
    serde_json::from_str(text).map_err(|_| malformed(name))
}

fn malformed(name: &str) -> String {
    format!("invalid: {name} of a filter has the wrong form")
}

fn tag_name(key: &str) -> Option<SingleLetterTag> {
    let mut letters = key.strip_prefix('#')?.chars();
    let letter = letters.next().filter(|_| letters.next().is_none())?;
    SingleLetterTag::from_char(letter).ok()
}

fn parse<T: for<'de> Deserialize<'de>>(raw: &RawValue) -> Option<T> {
    serde_json::from_str(raw.get()).ok()
}

/// Returns the first elements of an array, up to this number, and the number of all.
fn first_elements<'de, T: Deserialize<'de>>(
    text: &'de str,
    most: usize,
) -> serde_json::Result<(Vec<T>, usize)> {
    let mut json = serde_json::Deserializer::from_str(text);
    let elements = json.deserialize_seq(FirstElements(most, PhantomData))?;
    json.end()?;
    Ok(elements)
}

struct FirstElements<T>(usize, PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for FirstElements<T> {
    type Value = (Vec<T>, usize);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<Self::Value, A::Error> {
        let mut kept = Vec::new();
        while kept.len() < self.0 {
            let Some(element) = array.next_element()? else {
                break;
            };
            kept.push(element);
        }
        let mut count = kept.len();
        while array.next_element::<IgnoredAny>()?.is_some() {
            count += 1;
        }
        Ok((kept, count))
    }
}

/// One message to a client, other than EVENT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Ok {
        id: EventId,
        accepted: bool,
        message: Cow<'static, str>,
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

    pub(crate) fn refused(id: EventId, reason: impl Into<Cow<'static, str>>) -> Self {
        Self::Ok {
            id,
            accepted: false,
            message: reason.into(),
        }
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
            Self::Ok {
                id,
                accepted,
                message,
            } => json(&("OK", id, accepted, message)),
            Self::Eose(id, hint) => json(&("EOSE", id, [hint.as_str()])),
            Self::Closed(id, reason) => json(&("CLOSED", id, reason)),
            Self::Notice(text) => json(&("NOTICE", text)),
            Self::Count(id, count) => json(&("COUNT", id, serde_json::json!({ "count": count }))),
            Self::Auth(challenge) => json(&("AUTH", challenge)),
            Self::NegMsg(id, message) => json(&("NEG-MSG", id, neg::to_hex(message))),
            Self::NegErr(id, reason, None) => json(&("NEG-ERR", id, reason)),
            Self::NegErr(id, reason, Some(most)) => json(&("NEG-ERR", id, reason, most)),
        }
    }
}

/// Returns the part of an EVENT message before the event; a `]` closes it.
pub(crate) fn event_prefix(id: &SubId) -> String {
    format!(r#"["EVENT",{},"#, json(&id))
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("strings, numbers and ids always have a JSON form")
}

#[cfg(test)]
mod tests {
    use nostr::types::Timestamp;

    use super::*;

    fn read(text: &str) -> Result<Request, Reply> {
        let limits = Limits {
            filters: 3,
            filter_values: 4,
            event_bytes: 2_000,
            ..Limits::default()
        };
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
        assert!(matches!(
            read(&event(30618, 100_000)),
            Ok(Request::Event(_))
        ));
        assert!(refusal(&event(30617, 100_000)).contains("larger than 2000 bytes"));
        let max = State::MAX_EVENT_BYTES;
        let told = format!("larger than {max} bytes");
        assert!(refusal(&event(30618, max)).contains(&told));
    }

    #[test]
    fn reads_a_req_of_several_filters() {
        let Ok(Request::Req(id, query)) = read(r##"["REQ","s",{"kinds":[1]},{"#a":["x","y"]}]"##)
        else {
            panic!("not a REQ")
        };
        assert_eq!(id.0, "s");
        assert_eq!(query.filters.len(), 2);
        assert_eq!(query.bytes, 13 + 16);
    }

    #[test]
    fn short_values_count_more_than_their_text_and_values_per_request_are_bounded() {
        let weight = |text: &str| match read(text) {
            Ok(Request::Req(_, query)) => query.weight(),
            other => panic!("{other:?}"),
        };
        assert_eq!(weight(r#"["REQ","s",{}]"#), 2);
        assert_eq!(
            weight(r##"["REQ","s",{"kinds":[1],"#a":["x","y"]}]"##),
            28 + 3 * VALUE_OVERHEAD_BYTES
        );
        let limits = Limits {
            filters: 30,
            filter_values: 4,
            ..Limits::default()
        };
        let full = |count: usize| {
            let filters: String = (0..count).map(|_| r#",{"kinds":[1,2,3,4]}"#).collect();
            Request::read(&format!(r#"["REQ","s"{filters}]"#), &limits)
        };
        assert!(full(MAX_FULL_FILTERS).is_ok());
        let refusal = full(MAX_FULL_FILTERS + 1).expect_err("too many").to_json();
        assert!(
            refusal.starts_with(r#"["CLOSED","s","invalid: more than 40 values"#),
            "{refusal}"
        );
    }

    #[test]
    fn malformed_messages_get_a_notice_without_an_echo() {
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
            assert!(
                answer.starts_with(r#"["NOTICE","invalid: "#),
                "{text}: {answer}"
            );
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
        assert_eq!(
            answer,
            format!(r#"["OK","{id}",false,"invalid: not a nostr event"]"#)
        );
        let content = "x".repeat(3_000);
        let answer = refusal(&format!(
            r#"["EVENT",{{"id":"{id}","content":"{content}"}}]"#
        ));
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
            Ok(Request::NegMsg(SubId("n".into()), vec![0x61, 0xff]))
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
        let (kept, count) = first_elements::<&RawValue>(&text, 10).expect("an array");
        assert_eq!((kept.len(), count), (10, 100_001));
    }

    #[test]
    fn subscription_ids_are_escaped_wherever_they_stand() {
        let id = SubId("a\"]\n".into());
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
    fn a_refusal_for_size_states_the_limit() {
        let reply = Reply::NegErr(
            SubId("n".into()),
            "blocked: this query is too big".into(),
            Some(7),
        );
        assert_eq!(
            reply.to_json(),
            r#"["NEG-ERR","n","blocked: this query is too big",7]"#
        );
    }

    fn filter(text: &str, max: usize) -> Result<Filter, String> {
        let limits = Limits {
            filter_values: max,
            ..Limits::default()
        };
        read_filter(serde_json::from_str(text).expect("JSON"), &limits).map(|(filter, _)| filter)
    }

    #[test]
    fn reads_what_nip_01_allows() {
        let text =
            r##"{"kinds":[1,2],"since":5,"until":9,"limit":0,"#t":["x"],"#T":["y"],"ids":[]}"##;
        let expected = Filter::new()
            .kinds([Kind::from(1), Kind::from(2)])
            .since(Timestamp::from_secs(5))
            .until(Timestamp::from_secs(9))
            .limit(0)
            .custom_tag(SingleLetterTag::LOWERCASE_T, "x")
            .custom_tag(SingleLetterTag::UPPERCASE_T, "y")
            .ids([]);
        assert_eq!(filter(text, 10), Ok(expected));
        assert_eq!(filter(r#"{"limit":null}"#, 10), Ok(Filter::new()));
    }

    #[test]
    fn values_are_counted_over_all_lists_and_before_they_merge() {
        let text = r##"{"kinds":[1,1],"#t":["x","x"]}"##;
        assert!(filter(text, 4).is_ok());
        assert_eq!(
            filter(text, 3),
            Err("invalid: more than 3 values in a filter".into())
        );
    }
}
