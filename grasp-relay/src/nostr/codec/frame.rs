//! The JSON array that every message is, taken apart without building anything large.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// No message type is longer, quoted.
const LONGEST_VERB: usize = 32;

/// The first element of a message, and the text of the others.
#[derive(Debug)]
pub(super) struct Frame<'a> {
    pub(super) verb: String,
    pub(super) rest: Vec<&'a RawValue>,
    /// Elements beyond those that were kept.
    pub(super) surplus: usize,
}

/// Why a text is no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum FrameFault {
    #[error("not a JSON array")]
    NotAnArray,
    #[error("the message type is missing")]
    NoVerb,
}

impl<'a> Frame<'a> {
    /// Takes a message apart, keeping at most `most` elements after the first.
    pub(super) fn read(text: &'a str, most: usize) -> Result<Self, FrameFault> {
        let mut json = serde_json::Deserializer::from_str(text);
        let (elements, surplus) = Elements(most.saturating_add(1))
            .deserialize(&mut json)
            .map_err(|_| FrameFault::NotAnArray)?;
        json.end().map_err(|_| FrameFault::NotAnArray)?;
        let (first, rest) = elements.split_first().ok_or(FrameFault::NoVerb)?;
        if first.get().len() > LONGEST_VERB {
            return Err(FrameFault::NoVerb);
        }
        Ok(Self {
            verb: serde_json::from_str(first.get()).map_err(|_| FrameFault::NoVerb)?,
            rest: rest.to_vec(),
            surplus,
        })
    }
}

/// Keeps the first so many elements of an array as text and only counts the others.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_huge_array_is_counted_and_not_kept() {
        let text = format!(r#"["REQ"{}]"#, ",1".repeat(100_000));
        let frame = Frame::read(&text, 10).expect("a message");
        assert_eq!((frame.rest.len(), frame.surplus), (10, 99_990));
    }
}
