//! The address of this service, and URLs that lead to it.

mod path;

use std::fmt;
use std::str::FromStr;

use nostr::key::PublicKey;
use nostr::nips::nip19::ToBech32;

pub use self::path::{Endpoint, GitPath};
use crate::repo::UrlParts;
use crate::repo::{CloneUrl, Identifier, RelayUrl, RepoId};
use crate::text::{ParseError, hex_bytes, invalid};

/// The address of this service: `host[:port][/mount]`.
///
/// URLs are compared by their parsed parts, never as text: the same host, the same effective port, and the mount as
/// the first whole path segments. The scheme is ignored.
///
/// ```
/// use grasp_core::ServiceIdentity;
///
/// let us: ServiceIdentity = "grasp.example/git".parse().unwrap();
/// assert!(us.is_own_url("wss://GRASP.example./git/"));
/// assert!(!us.is_own_url("wss://grasp.example.evil.org/git"));
/// assert!(!us.is_own_url("https://evil.org/grasp.example/git"));
/// assert!(!us.is_own_url("wss://grasp.example/gitlab"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceIdentity {
    host: String,
    /// `None` is the default port of any scheme.
    port: Option<u16>,
    mount: Vec<String>,
}

const SCHEMES: [&str; 4] = ["ws", "wss", "http", "https"];

impl ServiceIdentity {
    /// Returns whether a URL leads to this service, at its mount or below.
    pub fn is_own_url(&self, url: &str) -> bool {
        UrlParts::parse(url, &SCHEMES).is_ok_and(|parts| self.path_below(&parts).is_some())
    }

    /// Returns whether a relay URL is exactly the address of this service.
    pub fn is_relay(&self, url: &RelayUrl) -> bool {
        UrlParts::parse(url.as_str(), &SCHEMES).is_ok_and(|parts| {
            parts.url.query().is_none() && self.path_below(&parts).is_some_and(<[_]>::is_empty)
        })
    }

    /// Returns whether a clone URL is the address of this repository at this service.
    pub fn serves(&self, url: &CloneUrl, repo: &RepoId) -> bool {
        self.is_repo_url(url.as_str(), &[], repo)
    }

    /// Returns whether a clone URL is the pull-request endpoint of `signer` at this service (`/prs/…`, GRASP-06).
    pub fn serves_proposals(&self, url: &CloneUrl, signer: &RepoId) -> bool {
        self.is_repo_url(url.as_str(), &["prs"], signer) && !url.as_str().contains('?')
    }

    /// Returns the path of a repository with the mount, percent-encoded: `/<npub>/<identifier>.git`.
    pub fn repo_path(&self, repo: &RepoId) -> String {
        let mut path = self.mount_path();
        path.push_str(&format!("/{}/{}.git", npub(&repo.owner), encode(&repo.identifier)));
        path
    }

    /// Returns the URL for cloning a repository and pushing to it.
    pub fn repo_url(&self, repo: &RepoId, secure: bool) -> String {
        let scheme = if secure { "https" } else { "http" };
        let address = self.to_string();
        let host = address.strip_suffix(&self.mount_path()).unwrap_or(&address);
        format!("{scheme}://{host}{}", self.repo_path(repo))
    }

    /// Returns the mount as a path: empty, or `/a/b`.
    pub fn mount_path(&self) -> String {
        self.mount.iter().map(|segment| format!("/{segment}")).collect()
    }

    /// Returns the relay address of this service.
    pub fn relay_url(&self, secure: bool) -> Result<RelayUrl, ParseError> {
        let scheme = if secure { "wss" } else { "ws" };
        format!("{scheme}://{self}").parse()
    }

    /// Returns the path segments after the mount, if the URL leads to this service.
    fn path_below<'a>(&self, parts: &'a UrlParts) -> Option<&'a [String]> {
        let is_same_port = match self.port {
            Some(port) => parts.port == port,
            None => parts.url.port().is_none(),
        };
        if parts.host != self.host || !is_same_port {
            return None;
        }
        parts.segments.strip_prefix(self.mount.as_slice())
    }

    fn is_repo_url(&self, url: &str, prefix: &[&str], repo: &RepoId) -> bool {
        let Ok(parts) = UrlParts::parse(url, &SCHEMES) else {
            return false;
        };
        let Some(below) = self.path_below(&parts) else {
            return false;
        };
        let Some((head, [owner, name])) = below.split_at_checked(prefix.len()) else {
            return false;
        };
        head.iter().zip(prefix).all(|(have, want)| have == want)
            && *owner == npub(&repo.owner)
            && decode(name).as_deref().and_then(|name| name.strip_suffix(".git"))
                == Some(repo.identifier.as_str())
    }
}

/// Returns the relay of the GRASP server that a clone URL leads to: the URL without `/<npub>/<identifier>.git`.
/// `None` if the URL has another form.
///
/// ```
/// use grasp_core::service::relay_of_clone_url;
///
/// let npub = "npub10xlxvlhemja6c4dqv22uapctqupfhlxm9h8z3k2e72q4k9hcz7vqpkge6d";
/// let url = format!("https://grasp.example/git/{npub}/x.git").parse().unwrap();
/// assert_eq!(relay_of_clone_url(&url).unwrap().as_str(), "wss://grasp.example/git");
/// assert!(relay_of_clone_url(&"https://forge.example/me/x.git".parse().unwrap()).is_none());
/// ```
pub fn relay_of_clone_url(url: &CloneUrl) -> Option<RelayUrl> {
    let address = url.as_str().strip_prefix("http")?;
    let (address, name) = address.rsplit_once('/')?;
    let (address, owner) = address.rsplit_once('/')?;
    GitPath::parse(&format!("/{owner}/{name}"))?;
    let address = address.strip_suffix("/prs").unwrap_or(address);
    format!("ws{address}").parse().ok()
}

/// Returns a public key as it is written in paths.
pub fn npub(key: &PublicKey) -> String {
    let Ok(npub) = key.to_bech32();
    npub
}

/// Returns an identifier as it is written in paths: everything but `A-Za-z0-9-_.~` percent-encoded.
fn encode(identifier: &Identifier) -> String {
    use fmt::Write as _;
    let mut text = String::new();
    for byte in identifier.as_str().bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            text.push(char::from(byte));
        } else {
            write!(text, "%{byte:02X}").expect("writing to a String cannot fail");
        }
    }
    text
}

/// Decodes percent-encoding once; `None` if an escape is malformed or the result is not UTF-8.
fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        if first != b'%' {
            bytes.push(first);
            rest = tail;
            continue;
        }
        let (digits, tail) = tail.split_at_checked(2)?;
        let digits = std::str::from_utf8(digits).ok()?;
        let [byte] = hex_bytes::<1>(digits)?;
        bytes.push(byte);
        rest = tail;
    }
    String::from_utf8(bytes).ok()
}

impl FromStr for ServiceIdentity {
    type Err = ParseError;
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let parts = UrlParts::parse(&format!("https://{text}"), &SCHEMES)?;
        if parts.url.query().is_some() || parts.url.fragment().is_some() {
            return invalid("not host[:port][/mount]");
        }
        // `host:443` means that port only, but the URL parser drops it as the default.
        let authority = text.split('/').next().unwrap_or(text);
        let explicit = authority.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        let port = parts.url.port().or(explicit);
        Ok(Self { host: parts.host, port, mount: parts.segments })
    }
}

impl fmt::Display for ServiceIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.host)?;
        if let Some(port) = self.port {
            write!(f, ":{port}")?;
        }
        f.write_str(&self.mount_path())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(text: &str) -> ServiceIdentity {
        text.parse().unwrap()
    }

    #[test]
    fn the_port_counts_and_the_scheme_does_not() {
        let plain = us("grasp.example");
        for url in [
            "ws://grasp.example",
            "wss://grasp.example:443/",
            "http://grasp.example:80/x",
            "https://grasp.example",
        ] {
            assert!(plain.is_own_url(url), "{url}");
        }
        assert!(!plain.is_own_url("wss://grasp.example:8443"));
        let ported = us("127.0.0.1:7334");
        assert!(
            ported.is_own_url("ws://127.0.0.1:7334")
                && ported.is_own_url("https://127.0.0.1:7334/a")
        );
        assert!(!ported.is_own_url("ws://127.0.0.1"));
        assert!(us("grasp.example:443").is_own_url("wss://grasp.example"));
        assert!(!us("grasp.example:443").is_own_url("ws://grasp.example"));
    }

    #[test]
    fn similar_urls_of_others_do_not_match() {
        let us = us("us.example");
        for url in [
            "wss://us.example.evil.org",
            "https://evil.org/us.example/",
            "https://evil.org?us.example",
            "https://us.example@evil.org",
            "https://xus.example",
            "us.example",
            "",
        ] {
            assert!(!us.is_own_url(url), "{url}");
        }
    }

    #[test]
    fn a_mount_matches_whole_segments_only() {
        let us = us("h.example/a/b/");
        assert!(us.is_own_url("wss://h.example//a///b//c"));
        for url in [
            "wss://h.example",
            "wss://h.example/a",
            "wss://h.example/a/bc",
            "wss://h.example/x/a/b",
        ] {
            assert!(!us.is_own_url(url), "{url}");
        }
    }

    #[test]
    fn a_repository_has_exactly_one_path() {
        let repo = RepoId::new(PublicKey::from_byte_array([7; 32]), "a b.git".parse().unwrap());
        let us = us("h.example/m");
        let url: CloneUrl = us.repo_url(&repo, true).parse().unwrap();
        assert!(url.as_str().starts_with("https://h.example/m/npub1"));
        assert!(url.as_str().ends_with("/a%20b.git.git"));
        assert!(us.serves(&url, &repo));
        let other = RepoId::new(repo.owner, "a b".parse().unwrap());
        assert!(!us.serves(&url, &other));
        assert!(!us.serves_proposals(&url, &repo));
        let prs = url.as_str().replace("/m/", "/m/prs/").parse().unwrap();
        assert!(us.serves_proposals(&prs, &repo) && !us.serves(&prs, &repo));
    }

    #[test]
    fn malformed_escapes_are_refused() {
        assert_eq!(decode("a%20b").as_deref(), Some("a b"));
        for text in ["%", "%2", "%zz", "%ff", "%é"] {
            assert_eq!(decode(text), None, "{text}");
        }
    }

    #[test]
    fn display_and_parse_round_trip() {
        for text in ["h.example", "h.example:7334", "h.example/a/b", "[::1]:7334"] {
            assert_eq!(us(text).to_string(), text);
        }
    }
}
