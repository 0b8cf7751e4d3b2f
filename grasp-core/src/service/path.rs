//! Request paths that name a repository.

use nostr::key::PublicKey;
use nostr::nips::nip19::FromBech32;

use super::{decode, npub};
use crate::repo::{Identifier, RepoId};

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
    /// The identifier is decoded once and one `.git` is removed. Keys must be in the canonical spelling, lower-case
    /// `npub1…`, not hex. A path that could leave a directory is not an identifier, in any encoding.
    ///
    /// ```
    /// use grasp_core::service::GitPath;
    ///
    /// let npub = "npub10xlxvlhemja6c4dqv22uapctqupfhlxm9h8z3k2e72q4k9hcz7vqpkge6d";
    /// let path = GitPath::parse(&format!("/{npub}/my%20repo.git/info/refs")).unwrap();
    /// assert_eq!((path.repo.identifier.as_str(), path.rest.as_str()), ("my repo", "info/refs"));
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
        let identifier = Identifier::new(decode(name)?.strip_suffix(".git")?).ok()?;
        Some(Self { repo: RepoId::new(owner, identifier), endpoint, rest: rest.to_owned() })
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

    fn parse(path: &str) -> Option<(String, Endpoint, String)> {
        let path = GitPath::parse(&path.replace("NPUB", &npub(&key(1))))?;
        assert_eq!(path.repo.owner, key(1));
        Some((path.repo.identifier.to_string(), path.endpoint, path.rest))
    }

    #[test]
    fn decodes_once_and_strips_one_git_suffix() {
        let cases = [
            ("/NPUB/x.git", "x", ""),
            ("/NPUB/x.git/", "x", ""),
            ("/NPUB/x.git.git/HEAD", "x.git", "HEAD"),
            ("/NPUB/a%20%F0%9F%A6%80.git/info/refs", "a 🦀", "info/refs"),
            ("/NPUB/a%2520b.git", "a%20b", ""),
            ("/NPUB/x%2Egit/git-upload-pack", "x", "git-upload-pack"),
            ("/NPUB/a:b.git", "a:b", ""),
        ];
        for (path, name, rest) in cases {
            let expected = Some((name.to_owned(), Endpoint::Repository, rest.to_owned()));
            assert_eq!(parse(path), expected, "{path}");
        }
        let prs = Some(("x".to_owned(), Endpoint::PullRequests, "info/refs".to_owned()));
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
            "/NPUB/x",
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
        for owner in [key(1).to_hex(), canonical.to_uppercase(), wrong_checksum, "npub1".into()] {
            assert_eq!(GitPath::parse(&format!("/{owner}/x.git")), None, "{owner}");
        }
    }
}
