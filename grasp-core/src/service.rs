//! Who we are, and which URLs mean us.

mod path;

use std::fmt;
use std::str::FromStr;

use nostr::key::PublicKey;
use nostr::nips::nip19::ToBech32;

pub use self::path::{Door, GitPath};
use crate::repo::Parts;
use crate::repo::{CloneUrl, Identifier, RelayUrl, RepoId, UrlError};

/// The address this server is reached at: `host[:port][/mount]`.
///
/// Whether a URL means us is decided on its parsed parts, never on its text: the same host, the same effective
/// port, and our mount as its first whole path segments. The scheme does not count.
///
/// ```
/// use grasp_core::ServiceIdentity;
///
/// let us: ServiceIdentity = "grasp.example/git".parse().unwrap();
/// assert!(us.is_us("wss://GRASP.example./git/"));
/// assert!(!us.is_us("wss://grasp.example.evil.org/git"));
/// assert!(!us.is_us("https://evil.org/grasp.example/git"));
/// assert!(!us.is_us("wss://grasp.example/gitlab"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceIdentity {
    host: String,
    /// `None` stands for the default port of whichever scheme is used.
    port: Option<u16>,
    mount: Vec<String>,
}

const SCHEMES: [&str; 4] = ["ws", "wss", "http", "https"];

impl ServiceIdentity {
    /// Whether a URL leads to this server, at its mount or below.
    pub fn is_us(&self, url: &str) -> bool {
        Parts::parse(url, &SCHEMES).is_ok_and(|parts| self.path_below(&parts).is_some())
    }

    /// Whether a relay's address is ours, with nothing added to it.
    pub fn is_relay(&self, url: &RelayUrl) -> bool {
        Parts::parse(url.as_str(), &SCHEMES).is_ok_and(|parts| {
            parts.url.query().is_none() && self.path_below(&parts).is_some_and(<[_]>::is_empty)
        })
    }

    /// Whether a clone URL is where *we* serve this repository.
    pub fn serves(&self, url: &CloneUrl, repo: &RepoId) -> bool {
        self.names(url.as_str(), &[], repo)
    }

    /// Whether a clone URL is exactly our place for pull requests by `signer` (`/prs/…`, GRASP-06).
    pub fn serves_proposals(&self, url: &CloneUrl, signer: &RepoId) -> bool {
        self.names(url.as_str(), &["prs"], signer) && !url.as_str().contains('?')
    }

    /// The path of a repository below the mount, percent-encoded: `/<npub>/<identifier>.git`.
    pub fn repo_path(&self, repo: &RepoId) -> String {
        let mut path = self.mount_path();
        path.push_str(&format!("/{}/{}.git", npub(&repo.owner), encode(&repo.identifier)));
        path
    }

    /// Where a repository is cloned from and pushed to.
    pub fn repo_url(&self, repo: &RepoId, secure: bool) -> String {
        let scheme = if secure { "https" } else { "http" };
        let address = self.to_string();
        let host = address.strip_suffix(&self.mount_path()).unwrap_or(&address);
        format!("{scheme}://{host}{}", self.repo_path(repo))
    }

    /// The mount as a path: empty, or `/a/b`.
    pub fn mount_path(&self) -> String {
        self.mount.iter().map(|segment| format!("/{segment}")).collect()
    }

    /// Our relay address, for events and filters.
    pub fn relay_url(&self, secure: bool) -> Result<RelayUrl, UrlError> {
        let scheme = if secure { "wss" } else { "ws" };
        format!("{scheme}://{self}").parse()
    }

    /// The path segments after our mount, if the URL leads here at all.
    fn path_below<'a>(&self, parts: &'a Parts) -> Option<&'a [String]> {
        let same_port = match self.port {
            Some(port) => parts.port == port,
            None => parts.url.port().is_none(),
        };
        if parts.host != self.host || !same_port {
            return None;
        }
        parts.segments.strip_prefix(self.mount.as_slice())
    }

    fn names(&self, url: &str, prefix: &[&str], repo: &RepoId) -> bool {
        let Ok(parts) = Parts::parse(url, &SCHEMES) else {
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

/// The relay that a repository's server has if it is a GRASP server: the repository's address without the path that
/// such servers give their repositories. `None` if the address is not of that form.
///
/// ```
/// use grasp_core::service::relay_of;
///
/// let npub = "npub10xlxvlhemja6c4dqv22uapctqupfhlxm9h8z3k2e72q4k9hcz7vqpkge6d";
/// let url = format!("https://grasp.example/git/{npub}/x.git").parse().unwrap();
/// assert_eq!(relay_of(&url).unwrap().as_str(), "wss://grasp.example/git");
/// assert!(relay_of(&"https://forge.example/me/x.git".parse().unwrap()).is_none());
/// ```
pub fn relay_of(url: &CloneUrl) -> Option<RelayUrl> {
    let address = url.as_str().strip_prefix("http")?;
    let (address, name) = address.rsplit_once('/')?;
    let (address, owner) = address.rsplit_once('/')?;
    GitPath::parse(&format!("/{owner}/{name}"))?;
    let address = address.strip_suffix("/prs").unwrap_or(address);
    format!("ws{address}").parse().ok()
}

/// A public key as it stands in paths.
pub fn npub(key: &PublicKey) -> String {
    let Ok(npub) = key.to_bech32();
    npub
}

/// An identifier as it stands in paths: everything but `A-Za-z0-9-_.~` percent-encoded.
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

/// Undoes percent-encoding once; `None` if an escape is broken or the result is no text.
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
        let [byte] = crate::text::hex_bytes::<1>(digits)?;
        bytes.push(byte);
        rest = tail;
    }
    String::from_utf8(bytes).ok()
}

impl FromStr for ServiceIdentity {
    type Err = UrlError;
    fn from_str(text: &str) -> Result<Self, UrlError> {
        let parts = Parts::parse(&format!("https://{text}"), &SCHEMES)?;
        if parts.url.query().is_some() || parts.url.fragment().is_some() {
            return Err(UrlError::Malformed);
        }
        // `host:443` was written with a port and means just that port; the URL parser drops it as the default.
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
    fn the_scheme_does_not_count_and_the_port_does() {
        let plain = us("grasp.example");
        for url in [
            "ws://grasp.example",
            "wss://grasp.example:443/",
            "http://grasp.example:80/x",
            "https://grasp.example",
        ] {
            assert!(plain.is_us(url), "{url}");
        }
        assert!(!plain.is_us("wss://grasp.example:8443"));
        let ported = us("127.0.0.1:7334");
        assert!(ported.is_us("ws://127.0.0.1:7334") && ported.is_us("https://127.0.0.1:7334/a"));
        assert!(!ported.is_us("ws://127.0.0.1"));
        assert!(us("grasp.example:443").is_us("wss://grasp.example"));
        assert!(!us("grasp.example:443").is_us("ws://grasp.example"));
    }

    #[test]
    fn look_alikes_are_not_us() {
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
            assert!(!us.is_us(url), "{url}");
        }
    }

    #[test]
    fn a_mount_matches_whole_segments_only() {
        let us = us("h.example/a/b/");
        assert!(us.is_us("wss://h.example//a///b//c"));
        for url in [
            "wss://h.example",
            "wss://h.example/a",
            "wss://h.example/a/bc",
            "wss://h.example/x/a/b",
        ] {
            assert!(!us.is_us(url), "{url}");
        }
    }

    #[test]
    fn a_repository_is_served_at_exactly_one_path() {
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
    fn broken_escapes_decode_to_nothing() {
        assert_eq!(decode("a%20b").as_deref(), Some("a b"));
        for text in ["%", "%2", "%zz", "%ff", "%é"] {
            assert_eq!(decode(text), None, "{text}");
        }
    }

    #[test]
    fn what_was_read_is_written_back() {
        for text in ["h.example", "h.example:7334", "h.example/a/b", "[::1]:7334"] {
            assert_eq!(us(text).to_string(), text);
        }
    }
}
