//! What an operator bans, allows and refuses while the server runs: the entries of the lists of a policy.
//!
//! The settings begin a [`Policy`](crate::admission::Policy); these entries continue it.
//!
//! ```
//! use grasp_core::admission::{Allowed, Policy};
//! use grasp_core::policy::{HiddenCause, PolicyList, PolicySubject};
//! use grasp_core::{RepoId, kinds};
//! use nostr::key::PublicKey;
//!
//! let entry = PolicyList::BannedName.subject("spam").unwrap();
//! assert_eq!(entry, PolicySubject::BannedName("spam".parse().unwrap()));
//! assert_eq!((entry.list().as_str(), entry.to_string().as_str()), ("banned_name", "spam"));
//!
//! // Repositories of that name are out of service, with their announcements and states.
//! let mut policy = Policy::new("grasp.example".parse().unwrap()).with(&[entry]);
//! let owner = PublicKey::from_byte_array([1; 32]);
//! let spam = RepoId::new(owner, "spam".parse().unwrap());
//! assert!(policy.withholds(&spam) && policy.upholds(&HiddenCause::Repo(spam)));
//!
//! // So are all others that are not listed, where only listed ones are hosted.
//! let other = RepoId::new(owner, "other".parse().unwrap());
//! assert!(!policy.withholds(&other));
//! policy.allowed = Allowed { only: true, ..Allowed::default() };
//! assert!(policy.withholds(&other));
//!
//! // What repositories are made of is never refused by its kind.
//! policy.bans.kinds.extend(kinds::NEVER_REFUSED_KINDS);
//! assert!(!policy.refuses(kinds::ANNOUNCEMENT));
//! ```

mod cause;

use std::fmt;
use std::str::FromStr;

use ipnet::IpNet;
use nostr::event::{EventId, Kind};
use nostr::key::PublicKey;

pub use self::cause::HiddenCause;
use crate::repo::{Identifier, RepoId};
use crate::text::{ParseError, invalid, parse_event_id, parse_pubkey};

/// A list of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PolicyList {
    /// Authors whose events are refused, hidden and not hosted.
    BannedAuthor,
    /// Repositories that are not hosted.
    BannedRepo,
    /// Names that are hosted for no owner.
    BannedName,
    /// Single events that are refused and hidden.
    BannedEvent,
    /// Authors that are hosted where only listed ones are.
    AllowedAuthor,
    /// Repositories that are hosted where only listed ones are.
    AllowedRepo,
    /// Names that are hosted, for every owner, where only listed ones are.
    AllowedName,
    /// Networks whose connections are closed.
    BlockedNetwork,
    /// Kinds that are refused.
    RefusedKind,
}

impl PolicyList {
    /// All lists.
    pub const ALL: [Self; 9] = [
        Self::BannedAuthor,
        Self::BannedRepo,
        Self::BannedName,
        Self::BannedEvent,
        Self::AllowedAuthor,
        Self::AllowedRepo,
        Self::AllowedName,
        Self::BlockedNetwork,
        Self::RefusedKind,
    ];

    /// Returns the name that the list is stored under.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::BannedAuthor => "banned_author",
            Self::BannedRepo => "banned_repo",
            Self::BannedName => "banned_name",
            Self::BannedEvent => "banned_event",
            Self::AllowedAuthor => "allowed_author",
            Self::AllowedRepo => "allowed_repo",
            Self::AllowedName => "allowed_name",
            Self::BlockedNetwork => "blocked_ip",
            Self::RefusedKind => "refused_kind",
        }
    }

    /// Reads what the list says of one entry, as [`PolicySubject`] displays it.
    pub fn subject(self, text: &str) -> Result<PolicySubject, ParseError> {
        Ok(match self {
            Self::BannedAuthor => PolicySubject::BannedAuthor(parse_key(text)?),
            Self::BannedRepo => PolicySubject::BannedRepo(text.parse()?),
            Self::BannedName => PolicySubject::BannedName(text.parse()?),
            Self::BannedEvent => match parse_event_id(text) {
                Some(id) => PolicySubject::BannedEvent(id),
                None => return invalid("expected the id of an event in hex"),
            },
            Self::AllowedAuthor => PolicySubject::AllowedAuthor(parse_key(text)?),
            Self::AllowedRepo => PolicySubject::AllowedRepo(text.parse()?),
            Self::AllowedName => PolicySubject::AllowedName(text.parse()?),
            Self::BlockedNetwork => match parse_network(text) {
                Some(network) => PolicySubject::BlockedNetwork(network),
                None => return invalid("expected an address or a network"),
            },
            Self::RefusedKind => match text.parse::<u16>() {
                Ok(kind) => PolicySubject::RefusedKind(Kind::from(kind)),
                Err(_) => return invalid("expected the number of a kind"),
            },
        })
    }
}

impl fmt::Display for PolicyList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for PolicyList {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        match Self::ALL.into_iter().find(|list| list.as_str() == text) {
            Some(list) => Ok(list),
            None => invalid("expected the name of a list"),
        }
    }
}

fn parse_key(text: &str) -> Result<PublicKey, ParseError> {
    match parse_pubkey(text) {
        Some(key) => Ok(key),
        None => invalid("expected a key in hex"),
    }
}

/// Reads an address or a network, without the bits of a host.
fn parse_network(text: &str) -> Option<IpNet> {
    let network = match text.parse::<IpNet>() {
        Ok(network) => network,
        Err(_) => IpNet::from(text.parse::<std::net::IpAddr>().ok()?),
    };
    Some(network.trunc())
}

/// An entry of a list of a policy. Its text is a key or an id in hex, a coordinate, a name, a network or a number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "the lists say it")]
pub enum PolicySubject {
    BannedAuthor(PublicKey),
    BannedRepo(RepoId),
    BannedName(Identifier),
    BannedEvent(EventId),
    AllowedAuthor(PublicKey),
    AllowedRepo(RepoId),
    AllowedName(Identifier),
    BlockedNetwork(IpNet),
    RefusedKind(Kind),
}

impl PolicySubject {
    /// Returns the list that it is an entry of.
    pub const fn list(&self) -> PolicyList {
        match self {
            Self::BannedAuthor(_) => PolicyList::BannedAuthor,
            Self::BannedRepo(_) => PolicyList::BannedRepo,
            Self::BannedName(_) => PolicyList::BannedName,
            Self::BannedEvent(_) => PolicyList::BannedEvent,
            Self::AllowedAuthor(_) => PolicyList::AllowedAuthor,
            Self::AllowedRepo(_) => PolicyList::AllowedRepo,
            Self::AllowedName(_) => PolicyList::AllowedName,
            Self::BlockedNetwork(_) => PolicyList::BlockedNetwork,
            Self::RefusedKind(_) => PolicyList::RefusedKind,
        }
    }
}

impl fmt::Display for PolicySubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BannedAuthor(key) | Self::AllowedAuthor(key) => f.write_str(&key.to_hex()),
            Self::BannedRepo(repo) | Self::AllowedRepo(repo) => repo.fmt(f),
            Self::BannedName(name) | Self::AllowedName(name) => name.fmt(f),
            Self::BannedEvent(id) => f.write_str(&id.to_hex()),
            Self::BlockedNetwork(network) => network.fmt(f),
            Self::RefusedKind(kind) => kind.as_u16().fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_is_read_as_it_was_written() {
        let key = PublicKey::from_byte_array([7; 32]);
        let name: Identifier = "hello".parse().unwrap();
        let repo = RepoId::new(key, name.clone());
        let entries = [
            PolicySubject::BannedAuthor(key),
            PolicySubject::BannedRepo(repo.clone()),
            PolicySubject::BannedName(name.clone()),
            PolicySubject::BannedEvent(EventId::from_byte_array([3; 32])),
            PolicySubject::AllowedAuthor(key),
            PolicySubject::AllowedRepo(repo),
            PolicySubject::AllowedName(name),
            PolicySubject::BlockedNetwork("192.0.2.0/24".parse().unwrap()),
            PolicySubject::RefusedKind(Kind::from(7)),
        ];
        let lists = entries.each_ref().map(PolicySubject::list);
        assert_eq!(lists, PolicyList::ALL);
        for entry in entries {
            let list: PolicyList = entry.list().as_str().parse().unwrap();
            assert_eq!(list.subject(&entry.to_string()).unwrap(), entry);
        }
    }

    #[test]
    fn an_address_is_a_network_and_bits_of_a_host_do_not_matter() {
        let read = |text| {
            PolicyList::BlockedNetwork
                .subject(text)
                .unwrap()
                .to_string()
        };
        assert_eq!(read("192.0.2.7"), "192.0.2.7/32");
        assert_eq!(read("192.0.2.7/24"), "192.0.2.0/24");
        assert_eq!(read("2001:db8::1"), "2001:db8::1/128");
        assert!(PolicyList::BlockedNetwork.subject("example.com").is_err());
        assert!(PolicyList::RefusedKind.subject("65536").is_err());
        assert!("banned".parse::<PolicyList>().is_err());
    }
}
