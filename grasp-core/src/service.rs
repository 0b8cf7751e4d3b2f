//! The address of this service, and URLs that lead to it.

use std::fmt;
use std::str::FromStr;

use nostr::key::PublicKey;
use nostr::nips::nip19::{FromBech32, ToBech32};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

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

    /// Returns whether a URL of any scheme is exactly the address of this service; a final slash does not count.
    pub fn is_service_url(&self, url: &str) -> bool {
        UrlParts::parse(url, &SCHEMES).is_ok_and(|parts| {
            parts.url.query().is_none()
                && parts.url.fragment().is_none()
                && self.path_below(&parts).is_some_and(<[_]>::is_empty)
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
        let name = utf8_percent_encode(repo.identifier.as_str(), &ESCAPED);
        format!("{}/{}/{name}.git", self.mount_path(), npub(&repo.owner))
    }

    /// Returns the URL for cloning a repository and pushing to it.
    pub fn repo_url(&self, repo: &RepoId, secure: bool) -> String {
        let scheme = if secure { "https" } else { "http" };
        format!("{scheme}://{}{}", self.authority(), self.repo_path(repo))
    }

    /// Returns the mount as a path: empty, or `/a/b`.
    pub fn mount_path(&self) -> String {
        self.mount
            .iter()
            .map(|segment| format!("/{segment}"))
            .collect()
    }

    /// Returns the relay address of this service.
    pub fn relay_url(&self, secure: bool) -> Result<RelayUrl, ParseError> {
        let scheme = if secure { "wss" } else { "ws" };
        format!("{scheme}://{self}").parse()
    }

    /// Returns the name of the host, or its address; an IPv6 address is in brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the host with its port, if that is not the default.
    pub fn authority(&self) -> String {
        match self.port {
            Some(port) => format!("{}:{port}", self.host),
            None => self.host.clone(),
        }
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
        let parts = UrlParts::parse(url, &SCHEMES).ok();
        let below = parts
            .as_ref()
            .and_then(|parts| self.path_below(parts))
            .unwrap_or_default();
        let Some((head, [owner, name])) = below.split_at_checked(prefix.len()) else {
            return false;
        };
        head.iter().zip(prefix).all(|(have, want)| have == want)
            && *owner == npub(&repo.owner)
            && decode(name)
                .as_deref()
                .and_then(|name| name.strip_suffix(".git"))
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
/// assert!(relay_of_clone_url(&format!("https://grasp.example/{npub}/x").parse().unwrap()).is_none());
/// assert!(relay_of_clone_url(&"https://forge.example/me/x.git".parse().unwrap()).is_none());
/// ```
pub fn relay_of_clone_url(url: &CloneUrl) -> Option<RelayUrl> {
    let address = url.as_str().strip_prefix("http")?;
    let (address, name) = address.rsplit_once('/')?;
    let (address, owner) = address.rsplit_once('/')?;
    GitPath::parse(&format!("/{owner}/{name}")).filter(|_| name.ends_with(".git"))?;
    let address = address.strip_suffix("/prs").unwrap_or(address);
    format!("ws{address}").parse().ok()
}

/// Returns a public key as it is written in paths.
pub fn npub(key: &PublicKey) -> String {
    let Ok(npub) = key.to_bech32();
    npub
}

/// The characters of an identifier that are escaped in paths: all but `A-Za-z0-9-_.~`.
const ESCAPED: AsciiSet = NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');

/// Decodes percent-encoding once; `None` if an escape is malformed or the result is not UTF-8.
fn decode(text: &str) -> Option<String> {
    let mut escapes = text.split('%').skip(1);
    let is_escape = |rest: &str| rest.get(..2).and_then(hex_bytes::<1>).is_some();
    let decoded = percent_decode_str(text).decode_utf8().ok()?;
    escapes.all(is_escape).then(|| decoded.into_owned())
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
        let explicit = authority
            .rsplit_once(':')
            .and_then(|(_, port)| port.parse().ok());
        let port = parts.url.port().or(explicit);
        Ok(Self {
            host: parts.host,
            port,
            mount: parts.segments,
        })
    }
}

impl fmt::Display for ServiceIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.authority(), self.mount_path())
    }
}

/// A parsed request path below the mount that names a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GitPath {
    /// The repository; below `/prs/` its owner is the contributor.
    pub repo: RepoId,
    /// The endpoint that the path is below.
    pub endpoint: Endpoint,
    /// The path after `….git/`; empty for the repository itself.
    pub rest: String,
}

/// One of the two endpoints for git: hosted repositories, and pull requests of contributors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Endpoint {
    /// `/<npub>/<identifier>.git`
    Repository,
    /// `/prs/<npub>/<identifier>.git`, to which contributors push pull requests (GRASP-06).
    PullRequests,
}

impl GitPath {
    /// Parses a percent-encoded path; `None` if it does not name a repository.
    ///
    /// The identifier is decoded once and one `.git` is removed; without `.git` the path names the same repository. Keys must be in the canonical spelling, lower-case
    /// `npub1…`, not hex. A path that could leave a directory is not an identifier, in any encoding.
    ///
    /// ```
    /// use grasp_core::service::{Endpoint, GitPath};
    ///
    /// let npub = "npub10xlxvlhemja6c4dqv22uapctqupfhlxm9h8z3k2e72q4k9hcz7vqpkge6d";
    /// let path = GitPath::parse(&format!("/{npub}/my%20repo.git/info/refs")).unwrap();
    /// assert_eq!((path.repo.identifier.as_str(), path.rest.as_str()), ("my repo", "info/refs"));
    /// assert_eq!(path.endpoint, Endpoint::Repository);
    /// assert!(GitPath::parse(&format!("/{npub}/%2e%2e%2fx.git")).is_none());
    /// ```
    pub fn parse(path: &str) -> Option<Self> {
        let path = path.strip_prefix('/')?;
        let (endpoint, path) = match path.strip_prefix("prs/") {
            Some(path) => (Endpoint::PullRequests, path),
            None => (Endpoint::Repository, path),
        };
        let (owner, path) = path.split_once('/')?;
        let (name, rest) = path.split_once('/').unwrap_or((path, ""));
        let owner = parse_npub(owner)?;
        let name = decode(name)?;
        let identifier = Identifier::new(name.strip_suffix(".git").unwrap_or(&name)).ok()?;
        Some(Self {
            repo: RepoId::new(owner, identifier),
            endpoint,
            rest: rest.to_owned(),
        })
    }
}

/// Parses a key in the canonical spelling.
fn parse_npub(text: &str) -> Option<PublicKey> {
    if !text.starts_with("npub1") {
        return None;
    }
    let key = PublicKey::from_bech32(text).ok()?;
    (npub(&key) == text).then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::key;

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
        let repo = RepoId::new(
            PublicKey::from_byte_array([7; 32]),
            "a b.git".parse().unwrap(),
        );
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

    fn parse(path: &str) -> Option<(String, Endpoint, String)> {
        let path = GitPath::parse(&path.replace("NPUB", &npub(&key(1))))?;
        assert_eq!(path.repo.owner, key(1));
        Some((path.repo.identifier.to_string(), path.endpoint, path.rest))
    }

    #[test]
    fn decodes_once_and_strips_at_most_one_git_suffix() {
        let cases = [
            ("/NPUB/x.git", "x", ""),
            ("/NPUB/x.git/", "x", ""),
            ("/NPUB/x.git.git/HEAD", "x.git", "HEAD"),
            ("/NPUB/a%20%F0%9F%A6%80.git/info/refs", "a 🦀", "info/refs"),
            ("/NPUB/a%2520b.git", "a%20b", ""),
            ("/NPUB/x%2Egit/git-upload-pack", "x", "git-upload-pack"),
            ("/NPUB/a:b.git", "a:b", ""),
            ("/NPUB/x", "x", ""),
            ("/NPUB/x/info/refs", "x", "info/refs"),
        ];
        for (path, name, rest) in cases {
            let expected = Some((name.to_owned(), Endpoint::Repository, rest.to_owned()));
            assert_eq!(parse(path), expected, "{path}");
        }
        let prs = Some((
            "x".to_owned(),
            Endpoint::PullRequests,
            "info/refs".to_owned(),
        ));
        assert_eq!(parse("/prs/NPUB/x.git/info/refs"), prs);
    }

    #[test]
    fn refuses_path_traversal() {
        for path in [
            "/NPUB/.git",
            "/NPUB/%2e%2e.git",
            "/NPUB/..%2f..%2fetc.git",
            "/NPUB/a%2Fb.git",
            "/NPUB/a%5Cb.git",
            "/NPUB/a%00.git",
            "/NPUB/a%zz.git",
            "/NPUB/a%ff.git",
            "/NPUB/../x",
            "//NPUB/x.git",
            "/NPUB//x.git",
            "/NPUB/..",
            "/NPUB/a%2Fb",
            "/NPUB",
            "/x.git",
            "",
        ] {
            assert_eq!(parse(path), None, "{path}");
        }
    }

    #[test]
    fn refuses_other_spellings_of_a_key() {
        let canonical = npub(&key(1));
        let wrong_checksum = format!("{}x", &canonical[..canonical.len() - 1]);
        for owner in [
            key(1).to_hex(),
            canonical.to_uppercase(),
            wrong_checksum,
            "npub1".into(),
        ] {
            assert_eq!(GitPath::parse(&format!("/{owner}/x.git")), None, "{owner}");
        }
    }
}
