//! Private services (GRASP-08): who is a member, and which requests are those of members.
//!
//! ```text
//!   configured keys ─┐
//!   relays of served ├─▶ EffectiveMembers ─▶ keys ─▶ sessions (NIP-42), requests (NIP-98), announcements
//!   announcements ───┘        │    ▲
//!                             ▼    │ NIP-11
//!                          relays to read
//! ```
//!
//! ```
//! use std::collections::BTreeSet;
//! use grasp_core::private::{EffectiveMembers, PublicOrigin, RelayDocument, member_of_request, root_of_url};
//! use grasp_core::{CloneUrl, Mono, RelayUrl};
//! use nostr::key::PublicKey;
//! use nostr::types::Timestamp;
//!
//! let [alice, mirror] = [1, 2].map(|n| PublicKey::from_byte_array([n; 32]));
//! let mut members = EffectiveMembers::new(BTreeSet::from([alice]));
//!
//! // A served announcement names another relay, which turns out to be a private service too.
//! let relay: RelayUrl = "wss://mirror.example".parse()?;
//! members.named(Mono::ZERO, BTreeSet::from([relay.clone()]));
//! assert_eq!(members.to_read(Mono::ZERO), [relay.clone()]);
//! members.read(Mono::ZERO, &relay, RelayDocument::Private(mirror));
//! assert_eq!(members.members(), BTreeSet::from([alice, mirror]));
//!
//! // Requests are authorized for the address of a repository.
//! let url: CloneUrl = "https://git.example/npub1x/a.git".parse()?;
//! let origin = PublicOrigin::of(&"git.example".parse()?, true);
//! let root = origin.root_of("/npub1x/a.git/info/refs");
//! assert_eq!(root, root_of_url(&url));
//! let now = Timestamp::from_secs(1_700_000_000);
//! assert_eq!(member_of_request("Nostr bm8=", &root, &members.members(), now), None);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod effective;

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use nostr::key::PublicKey;
use nostr::types::Timestamp;

pub use self::effective::{EffectiveMembers, RelayDocument};
use crate::http_auth::{HttpAuthRule, judge_header};
use crate::repo::CloneUrl;
use crate::service::ServiceIdentity;
use crate::text::{ParseError, invalid};

/// The scheme, host and port by which members reach a private service, as in `https://git.example:8443`.
///
/// ```
/// use grasp_core::private::PublicOrigin;
///
/// let origin: PublicOrigin = "https://git.example".parse().unwrap();
/// let root = "https://git.example/npub1x/a.git";
/// assert_eq!(origin.root_of("/npub1x/a.git/info/refs"), root);
/// assert_eq!(origin.root_of("/npub1x/a.git/git-upload-pack"), root);
/// for bad in ["git.example", "https://git.example/x", "https://git.example?x", "ftp://git.example"] {
///     assert!(bad.parse::<PublicOrigin>().is_err(), "{bad}");
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicOrigin(String);

impl PublicOrigin {
    /// Returns the origin of a service for which none is set: `https`, and on loopback `http` unless the service is known
    /// to be reached by TLS.
    pub fn of(service: &ServiceIdentity, is_secure: bool) -> Self {
        let scheme = if is_loopback(service.host()) && !is_secure {
            "http"
        } else {
            "https"
        };
        Self(format!("{scheme}://{}", service.authority()))
    }

    /// Returns the canonical root of a request: the address that its authorization must name.
    ///
    /// That is the origin, and the path as the client sent it, with the mount, up to the last `.git` that ends a segment.
    /// A path without one is its own root, without a final slash.
    pub fn root_of(&self, path: &str) -> String {
        format!("{}{}", self.0, repository_part(path))
    }
}

impl FromStr for PublicOrigin {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let Some((scheme @ ("http" | "https"), authority)) = text.split_once("://") else {
            return invalid("expected http:// or https://");
        };
        if authority.contains(['/', '?', '#', '@']) {
            return invalid("expected a scheme, a host and a port, and nothing else");
        }
        let service: ServiceIdentity = authority.parse()?;
        Ok(Self(format!("{scheme}://{}", service.authority())))
    }
}

impl fmt::Display for PublicOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost"
        || address
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

/// Returns a path up to the last `.git` that ends a segment.
fn repository_part(path: &str) -> &str {
    const SUFFIX: &str = ".git";
    let mut end = path.len();
    while let Some(before) = path.get(..end).and_then(|part| part.rfind(SUFFIX)) {
        let part = before + SUFFIX.len();
        if matches!(path.as_bytes().get(part), None | Some(b'/')) {
            return path.get(..part).unwrap_or(path);
        }
        end = before;
    }
    path.trim_end_matches('/')
}

/// Returns the canonical root that authorizes a client for a git URL: the URL up to its last `.git`.
pub fn root_of_url(url: &CloneUrl) -> &str {
    let text = url.as_str();
    let text = text.split(['?', '#']).next().unwrap_or(text);
    repository_part(text)
}

/// Returns the member whose request carries this `Authorization` (NIP-98) for this canonical root.
///
/// A forged authorization takes as long as that of a stranger, whoever it claims to be of.
pub fn member_of_request(
    authorization: &str,
    root: &str,
    members: &BTreeSet<PublicKey>,
    now: Timestamp,
) -> Option<PublicKey> {
    let auth = judge_header(authorization, &HttpAuthRule::git(root), now).ok()?;
    members.contains(&auth.author).then_some(auth.author)
}

#[cfg(test)]
mod tests;
