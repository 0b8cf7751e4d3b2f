//! Reads the parameters of a call by position.

use std::slice::Iter;

use ipnet::IpNet;
use nostr::event::{EventId, Kind};
use nostr::key::PublicKey;
use serde_json::Value;

use super::roles::{RoleId, RoleInfo};
use super::text::{invalid, parse_event_id};
use grasp_core::ParseError;
use grasp_core::policy::{PolicyList, PolicySubject};
use grasp_core::quota::QuotaSubject;
use grasp_core::{Identifier, RepoId};

/// Largest reason in bytes.
const MAX_REASON_BYTES: usize = 500;

/// Largest number of seconds or bytes that a database keeps.
const MAX_NUMBER: u64 = i64::MAX.unsigned_abs();

/// The repositories that a ban is of.
pub(super) enum RepoForm {
    Owner(PublicKey),
    Repository(RepoId),
    Name(Identifier),
}

impl RepoForm {
    /// Returns the entry of the list of banned ones.
    pub(super) fn banned(self) -> PolicySubject {
        match self {
            Self::Owner(key) => PolicySubject::BannedAuthor(key),
            Self::Repository(repo) => PolicySubject::BannedRepo(repo),
            Self::Name(name) => PolicySubject::BannedName(name),
        }
    }

    /// Returns the entry of the list of allowed ones.
    pub(super) fn allowed(self) -> PolicySubject {
        match self {
            Self::Owner(key) => PolicySubject::AllowedAuthor(key),
            Self::Repository(repo) => PolicySubject::AllowedRepo(repo),
            Self::Name(name) => PolicySubject::AllowedName(name),
        }
    }
}

/// The parameters that were not read yet.
pub(super) struct Params<'a>(Iter<'a, Value>);

impl<'a> Params<'a> {
    pub(super) fn new(params: &'a [Value]) -> Self {
        Self(params.iter())
    }

    /// Fails if there are more.
    pub(super) fn end(mut self) -> Result<(), ParseError> {
        match self.0.next() {
            None => Ok(()),
            Some(_) => invalid("there are more parameters than the method has"),
        }
    }

    /// Returns the next one; `None` if it is missing or null.
    pub(super) fn next(&mut self) -> Option<&'a Value> {
        self.0.next().filter(|value| !value.is_null())
    }

    pub(super) fn text(&mut self, what: &str) -> Result<&'a str, ParseError> {
        match self.next().and_then(Value::as_str) {
            Some(text) => Ok(text),
            None => invalid(format!("expected {what}")),
        }
    }

    pub(super) fn key(&mut self) -> Result<PublicKey, ParseError> {
        parse_key(self.text("a public key")?)
    }

    pub(super) fn optional_key(&mut self) -> Result<Option<PublicKey>, ParseError> {
        match self.next() {
            None => Ok(None),
            Some(Value::String(text)) => parse_key(text).map(Some),
            Some(_) => invalid("expected a public key"),
        }
    }

    pub(super) fn event(&mut self) -> Result<EventId, ParseError> {
        match parse_event_id(self.text("the id of an event in hex")?) {
            Some(id) => Ok(id),
            None => invalid("expected the id of an event in hex"),
        }
    }

    pub(super) fn kind(&mut self) -> Result<Kind, ParseError> {
        let number = self.next().and_then(Value::as_u64);
        match number.and_then(|number| u16::try_from(number).ok()) {
            Some(kind) => Ok(Kind::from_u16(kind)),
            None => invalid("expected the number of a kind"),
        }
    }

    pub(super) fn network(&mut self) -> Result<IpNet, ParseError> {
        let text = self.text("an address or a network")?;
        match PolicyList::BlockedNetwork.subject(text)? {
            PolicySubject::BlockedNetwork(network) => Ok(network),
            _ => invalid("expected an address or a network"),
        }
    }

    pub(super) fn repo(&mut self) -> Result<RepoId, ParseError> {
        let text = self.text("a repository, as 30617:KEY:NAME or NPUB/NAME")?;
        match text.parse() {
            Ok(QuotaSubject::Repository(repo)) => Ok(repo),
            _ => invalid("expected a repository, as 30617:KEY:NAME or NPUB/NAME"),
        }
    }

    pub(super) fn quota_subject(&mut self) -> Result<QuotaSubject, ParseError> {
        self.text("an owner or a repository")?.parse()
    }

    pub(super) fn optional_bytes(&mut self) -> Result<Option<u64>, ParseError> {
        match self.next() {
            None => Ok(None),
            Some(value) => match value.as_u64().filter(|bytes| *bytes <= MAX_NUMBER) {
                Some(bytes) => Ok(Some(bytes)),
                None => invalid("expected a number of bytes or null"),
            },
        }
    }

    /// Reads a key, a key and a name, or a name.
    pub(super) fn repo_form(&mut self) -> Result<RepoForm, ParseError> {
        let text = self.text("NPUB, NPUB/NAME or NAME")?;
        match text.parse() {
            Ok(QuotaSubject::Owner(key)) => Ok(RepoForm::Owner(key)),
            Ok(QuotaSubject::Repository(repo)) => Ok(RepoForm::Repository(repo)),
            Err(_) => text.parse().map(RepoForm::Name),
        }
    }

    pub(super) fn reason(&mut self) -> Result<Option<String>, ParseError> {
        let reason = match self.next() {
            None => return Ok(None),
            Some(Value::String(reason)) => reason.trim(),
            Some(_) => return invalid("expected a text as reason"),
        };
        check_text(reason, MAX_REASON_BYTES, "the reason")?;
        Ok(Some(reason.to_owned()).filter(|reason| !reason.is_empty()))
    }

    /// Reads a text of one line that people see.
    pub(super) fn line(&mut self, what: &str, max_bytes: usize) -> Result<String, ParseError> {
        let text = self.text(what)?.trim();
        check_text(text, max_bytes, what)?;
        Ok(text.to_owned())
    }

    pub(super) fn role(&mut self) -> Result<RoleId, ParseError> {
        self.text("the id of a role")?.parse()
    }

    /// Reads id, label, description, color and order; all but the id may be left out.
    pub(super) fn role_info(&mut self) -> Result<RoleInfo, ParseError> {
        let id = self.role()?;
        let mut texts = [const { String::new() }; 3];
        for (text, what) in texts
            .iter_mut()
            .zip(["the label", "the description", "the color"])
        {
            match self.next() {
                None => {}
                Some(Value::String(given)) => {
                    check_text(given, MAX_REASON_BYTES, what)?;
                    given.trim().clone_into(text);
                }
                Some(_) => return invalid(format!("expected a text as {what}")),
            }
        }
        let [label, description, color] = texts;
        let order = match self.next() {
            None => 0,
            Some(order) => match order.as_i64() {
                Some(order) => order,
                None => return invalid("expected a number as order"),
            },
        };
        Ok(RoleInfo {
            id,
            label,
            description,
            color,
            order,
        })
    }

    /// Reads an object; an empty one if it is left out.
    pub(super) fn query<T: serde::de::DeserializeOwned + Default>(
        &mut self,
    ) -> Result<T, ParseError> {
        match self.next() {
            None => Ok(T::default()),
            Some(value) => serde_json::from_value(value.clone())
                .or_else(|error| invalid(format!("the query is not valid: {error}"))),
        }
    }
}

/// Parses a key in hex or as npub.
pub(super) fn parse_key(text: &str) -> Result<PublicKey, ParseError> {
    PublicKey::parse(text).or_else(|_| invalid("expected a public key in hex or as npub"))
}

/// Checks a text that people see: its length, and that nothing in it moves the cursor or changes the direction.
fn check_text(text: &str, max_bytes: usize, what: &str) -> Result<(), ParseError> {
    if text.len() > max_bytes {
        return invalid(format!("{what} has more than {max_bytes} bytes"));
    }
    let is_format = |c| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    match text.chars().any(|c| c.is_control() || is_format(c)) {
        true => invalid(format!("{what} has control characters")),
        false => Ok(()),
    }
}
