//! Which repository a request path names.

use nostr::key::PublicKey;
use nostr::nips::nip19::FromBech32;

use super::{decode, npub};
use crate::repo::{Identifier, RepoId};

/// A request path below the mount that names a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GitPath {
    /// The repository: at `/prs/` the one whose owner is the contributor.
    pub repo: RepoId,
    /// By which door it was entered.
    pub door: Door,
    /// What follows `….git`, without the slash between: empty for the repository itself.
    pub rest: String,
}

/// The two places where repositories are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Door {
    /// `/<npub>/<identifier>.git`
    Hosted,
    /// `/prs/<npub>/<identifier>.git`, where contributors bring pull requests (GRASP-06).
    Proposals,
}

impl GitPath {
    /// Reads a path as it stands in the request, percent-encoded; `None` if it names no repository.
    ///
    /// The identifier is decoded once and then loses exactly one `.git`. Only the canonical spelling of a key is
    /// read: lower-case `npub1…`, never hex or another kind of reference. What could leave a directory is no
    /// identifier, in whatever encoding it comes.
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
        let (door, path) = match path.strip_prefix("prs/") {
            Some(path) => (Door::Proposals, path),
            None => (Door::Hosted, path),
        };
        let (owner, path) = path.split_once('/')?;
        let (name, rest) = path.split_once('/').unwrap_or((path, ""));
        let owner = parse_npub(owner)?;
        let identifier = Identifier::new(decode(name)?.strip_suffix(".git")?).ok()?;
        Some(Self { repo: RepoId::new(owner, identifier), door, rest: rest.to_owned() })
    }
}

/// A key in its canonical spelling.
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

    fn parse(path: &str) -> Option<(String, Door, String)> {
        let path = GitPath::parse(&path.replace("NPUB", &npub(&key(1))))?;
        assert_eq!(path.repo.owner, key(1));
        Some((path.repo.identifier.to_string(), path.door, path.rest))
    }

    #[test]
    fn one_git_is_stripped_and_one_decoding_is_done() {
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
            let expected = Some((name.to_owned(), Door::Hosted, rest.to_owned()));
            assert_eq!(parse(path), expected, "{path}");
        }
        let prs = Some(("x".to_owned(), Door::Proposals, "info/refs".to_owned()));
        assert_eq!(parse("/prs/NPUB/x.git/info/refs"), prs);
    }

    #[test]
    fn what_could_leave_a_directory_names_nothing() {
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
    fn only_the_canonical_spelling_of_a_key_counts() {
        let canonical = npub(&key(1));
        let wrong_checksum = format!("{}x", &canonical[..canonical.len() - 1]);
        for owner in [key(1).to_hex(), canonical.to_uppercase(), wrong_checksum, "npub1".into()] {
            assert_eq!(GitPath::parse(&format!("/{owner}/x.git")), None, "{owner}");
        }
    }
}
