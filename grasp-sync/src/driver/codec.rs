//! The nostr messages between us and a relay.

use std::borrow::Cow;
use std::fmt;

use grasp_core::limits::EoseHint;
use grasp_core::neg;
use grasp_core::nostr::event::{Event, EventId};
use grasp_core::nostr::filter::Filter;
use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, SeqAccess, Visitor};

use crate::engine::{Said, SubId};

/// One message of a relay that concerns us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RelayMessage {
    /// EVENT. Nothing about the event is checked yet.
    Event(SubId, Event),
    /// AUTH: a challenge.
    Auth(String),
    /// OK, about an event of ours.
    Ok {
        event: EventId,
        accepted: bool,
        text: String,
    },
    /// Any other message.
    Said(Said),
}

impl RelayMessage {
    /// Parses one text frame, events included, in one pass. `None` for messages that are malformed, unknown or about
    /// a subscription that cannot be ours.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }
}

impl<'de> Deserialize<'de> for RelayMessage {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_seq(MessageVisitor)
    }
}

struct MessageVisitor;

impl<'de> Visitor<'de> for MessageVisitor {
    type Value = RelayMessage;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a message of a relay")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<RelayMessage, A::Error> {
        let (label, said): (Text<'_>, _) = (next(&mut seq)?, RelayMessage::Said);
        let message = match &*label.0 {
            "EVENT" => RelayMessage::Event(sub(&mut seq)?, next(&mut seq)?),
            "EOSE" => said(Said::Eose {
                sub: sub(&mut seq)?,
                hint: hint(&mut seq)?,
            }),
            "CLOSED" => said(Said::Closed {
                sub: sub(&mut seq)?,
                text: text(&mut seq)?,
            }),
            "NOTICE" => said(Said::Notice {
                text: text(&mut seq)?,
            }),
            "NEG-MSG" => {
                let (sub, message): (_, Text<'_>) = (sub(&mut seq)?, next(&mut seq)?);
                let message =
                    neg::from_hex(&message.0).ok_or_else(|| A::Error::custom("not hex"))?;
                said(Said::NegMsg { sub, message })
            }
            "NEG-ERR" => said(Said::NegErr {
                sub: sub(&mut seq)?,
                text: text(&mut seq)?,
            }),
            "AUTH" => RelayMessage::Auth(challenge(&mut seq)?),
            "OK" => {
                let event = next(&mut seq)?;
                let accepted = next(&mut seq)?;
                RelayMessage::Ok {
                    event,
                    accepted,
                    text: text(&mut seq)?,
                }
            }
            _ => return Err(A::Error::custom("no message of a relay")),
        };
        // Further elements are ignored, but must be well-formed.
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(message)
    }
}

fn next<'de, T: Deserialize<'de>, A: SeqAccess<'de>>(seq: &mut A) -> Result<T, A::Error> {
    seq.next_element()?
        .ok_or_else(|| A::Error::custom("too short"))
}

fn sub<'de, A: SeqAccess<'de>>(seq: &mut A) -> Result<SubId, A::Error> {
    SubId::parse(&next::<Text<'_>, _>(seq)?.0).ok_or_else(|| A::Error::custom("not ours"))
}

/// Characters of a relay's text that are kept.
const MAX_TEXT_CHARS: usize = 1_024;

/// Reads a text that some relays leave out, or replace by something else.
fn text<'de, A: SeqAccess<'de>>(seq: &mut A) -> Result<String, A::Error> {
    match seq.next_element()? {
        Some(TextOrOther::Text(text)) => Ok(text.chars().take(MAX_TEXT_CHARS).collect()),
        Some(TextOrOther::Other(_)) | None => Ok(String::new()),
    }
}

/// Reads the first known hint of EOSE (NIP-67); anything else is no hint.
fn hint<'de, A: SeqAccess<'de>>(seq: &mut A) -> Result<Option<EoseHint>, A::Error> {
    let Some(Hints::List(hints)) = seq.next_element()? else {
        return Ok(None);
    };
    Ok(hints.iter().find_map(|hint| match hint {
        TextOrOther::Text(hint) => EoseHint::read(hint),
        TextOrOther::Other(_) => None,
    }))
}

/// The values that may be in the place of hints.
#[derive(serde::Deserialize)]
#[serde(untagged)]
enum Hints<'a> {
    List(#[serde(borrow)] Vec<TextOrOther<'a>>),
    Other(IgnoredAny),
}

/// Reads a challenge, which must be returned unchanged.
fn challenge<'de, A: SeqAccess<'de>>(seq: &mut A) -> Result<String, A::Error> {
    let challenge = next::<Text<'_>, _>(seq)?.0;
    match challenge.len() <= MAX_TEXT_CHARS {
        true => Ok(challenge.into_owned()),
        false => Err(A::Error::custom("too long a challenge")),
    }
}

/// A text, borrowed if it has no escapes.
#[derive(serde::Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// A text, or anything else.
#[derive(serde::Deserialize)]
#[serde(untagged)]
enum TextOrOther<'a> {
    #[serde(borrow)]
    Text(Cow<'a, str>),
    Other(IgnoredAny),
}

pub(crate) fn req(sub: SubId, filters: &[Filter]) -> String {
    let filters: String = filters
        .iter()
        .map(|filter| format!(",{}", json(filter)))
        .collect();
    format!(r#"["REQ","{sub}"{filters}]"#)
}

pub(crate) fn close(sub: SubId) -> String {
    json(&("CLOSE", sub.to_string()))
}

pub(crate) fn neg_open(sub: SubId, filter: &Filter, message: &[u8]) -> String {
    json(&("NEG-OPEN", sub.to_string(), filter, neg::to_hex(message)))
}

pub(crate) fn neg_msg(sub: SubId, message: &[u8]) -> String {
    json(&("NEG-MSG", sub.to_string(), neg::to_hex(message)))
}

pub(crate) fn neg_close(sub: SubId) -> String {
    json(&("NEG-CLOSE", sub.to_string()))
}

pub(crate) fn auth(event: &Event) -> String {
    json(&("AUTH", event))
}

pub(crate) fn event(event: &Event) -> String {
    json(&("EVENT", event))
}

/// Filters and events are texts, numbers and lists, which can always be serialized.
fn json(message: &impl serde::Serialize) -> String {
    serde_json::to_string(message).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use grasp_core::nostr::event::{EventBuilder, FinalizeEvent, Kind};
    use grasp_core::nostr::key::Keys;

    use super::*;

    fn g(n: u8) -> SubId {
        SubId(n.into())
    }

    fn eose(hint: Option<EoseHint>) -> RelayMessage {
        RelayMessage::Said(Said::Eose { sub: g(2), hint })
    }

    fn closed(text: &str) -> RelayMessage {
        RelayMessage::Said(Said::Closed {
            sub: g(3),
            text: text.into(),
        })
    }

    fn notice(text: &str) -> RelayMessage {
        RelayMessage::Said(Said::Notice { text: text.into() })
    }

    #[test]
    fn parses_every_message() {
        let signed = EventBuilder::new(Kind::GitIssue, "a \"quoted\" line\n");
        let signed = signed.finalize(&Keys::generate()).unwrap();
        let id = signed.id;
        let event = serde_json::to_string(&signed).unwrap();
        for (said, message) in [
            (
                format!(r#"["EVENT","g1",{event}]"#),
                RelayMessage::Event(g(1), signed),
            ),
            (r#" [ "EOSE" , "g2" ] "#.into(), eose(None)),
            (
                r#"["EOSE","g2",["finish"]]"#.into(),
                eose(Some(EoseHint::Finish)),
            ),
            (
                r#"["EOSE","g2",["more"],7]"#.into(),
                eose(Some(EoseHint::More)),
            ),
            (
                r#"["EOSE","g2",[7,{},"later","more"]]"#.into(),
                eose(Some(EoseHint::More)),
            ),
            (r#"["EOSE","g2",["Finish","soon"]]"#.into(), eose(None)),
            (r#"["EOSE","g2","finish"]"#.into(), eose(None)),
            (r#"["EOSE","g2",{"finish":true}]"#.into(), eose(None)),
            (r#"["EOSE","g2",null]"#.into(), eose(None)),
            (r#"["EOSE","g2",-1.5e9]"#.into(), eose(None)),
            (
                r#"["CLOSED","g3","error: \"x\""]"#.into(),
                closed("error: \"x\""),
            ),
            (r#"["CLOSED","g3"]"#.into(), closed("")),
            (r#"["NOTICE",null]"#.into(), notice("")),
            (
                r#"["NEG-MSG","g4","61ff"]"#.into(),
                RelayMessage::Said(Said::NegMsg {
                    sub: g(4),
                    message: vec![0x61, 0xff],
                }),
            ),
            (
                r#"["NEG-ERR","g4","blocked",500]"#.into(),
                RelayMessage::Said(Said::NegErr {
                    sub: g(4),
                    text: "blocked".into(),
                }),
            ),
            (
                r#"["AUTH","\u0061b"]"#.into(),
                RelayMessage::Auth("ab".into()),
            ),
            (
                format!(r#"["OK","{id}",false,"invalid: no"]"#),
                RelayMessage::Ok {
                    event: id,
                    accepted: false,
                    text: "invalid: no".into(),
                },
            ),
        ] {
            assert_eq!(RelayMessage::parse(&said), Some(message), "{said}");
        }
    }

    #[test]
    fn truncates_texts_of_relays() {
        let long = "ü".repeat(2_000_000);
        let kept = "ü".repeat(MAX_TEXT_CHARS);
        assert_eq!(
            RelayMessage::parse(&format!(r#"["NOTICE","{long}"]"#)),
            Some(notice(&kept))
        );
        assert_eq!(
            RelayMessage::parse(&format!(r#"["CLOSED","g3","{long}"]"#)),
            Some(closed(&kept))
        );
        assert_eq!(RelayMessage::parse(&format!(r#"["AUTH","{long}"]"#)), None);
    }

    #[test]
    fn ignores_malformed_and_foreign_messages() {
        for said in [
            "",
            "{}",
            "[]",
            "[1]",
            r#"["EOSE"]"#,
            r#"["EOSE","somebody"]"#,
            r#"["EOSE","g01"]"#,
            r#"["EVENT","g1",{"id":"x"}]"#,
            r#"["EVENT","g1"]"#,
            r#"["NEG-MSG","g1","6"]"#,
            r#"["COUNT","g1",{"count":5}]"#,
            r#"["EOSE","g1"] trailing"#,
            r#"["EOSE","g1","#,
        ] {
            assert_eq!(RelayMessage::parse(said), None, "{said}");
        }
        assert_eq!(
            RelayMessage::parse(&format!("[\"EOSE\",\"g1\",{}", "[".repeat(100_000))),
            None
        );
    }

    #[test]
    fn writes_valid_messages() {
        let filter = Filter::new().kind(Kind::GitIssue).limit(0);
        assert_eq!(
            req(g(1), &[filter.clone(), filter.clone()]),
            r#"["REQ","g1",{"kinds":[1621],"limit":0},{"kinds":[1621],"limit":0}]"#
        );
        assert_eq!(
            neg_open(g(2), &filter, &[0x61]),
            r#"["NEG-OPEN","g2",{"kinds":[1621],"limit":0},"61"]"#
        );
        assert_eq!(neg_msg(g(2), &[1, 255]), r#"["NEG-MSG","g2","01ff"]"#);
    }

    proptest::proptest! {
        #[test]
        fn parsing_never_panics(text: String) {
            let _ = RelayMessage::parse(&text);
            let _ = RelayMessage::parse(&format!("[\"EVENT\",\"g1\",{text}]"));
        }
    }
}
