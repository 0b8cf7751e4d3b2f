//! Repository states (kind 30618): the branches and tags.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use nostr::event::{Event, Tag};

use super::tags;
use crate::event::Version;
use crate::kinds;
use crate::repo::{Identifier, Namespace, Oid, RefName, RepoId};
use crate::text::{ParseError, invalid};

/// A repository state: the complete set of branches and tags that its author signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// The author's own repository with that identifier; the state may control those of other owners too.
    pub repo: RepoId,
    /// Date and id of the event.
    pub version: Version,
    /// Branches and tags with their targets; `None` for a value that is not an object id. A state with such a ref can
    /// never be realised.
    pub refs: BTreeMap<RefName, Option<Oid>>,
    /// The branch for HEAD.
    pub head: Option<RefName>,
}

impl State {
    /// Maximum size of a state event from a client, as JSON: about 14,000 refs.
    pub const MAX_EVENT_BYTES: usize = 1024 * 1024;

    /// Parses a state. Ignores peeled refs (`…^{}`), symbolic values and other namespaces.
    pub fn parse(event: &Event) -> Result<Self, ParseError> {
        if event.kind != kinds::STATE {
            return invalid("not a repository state");
        }
        let Some(identifier) = tags::first(event, "d") else {
            return invalid("the state has no d tag");
        };
        let mut refs = BTreeMap::new();
        for tag in event.tags.iter() {
            let Some((name, declared)) = parse_ref_tag(tag)? else {
                continue;
            };
            match refs.entry(name) {
                Entry::Vacant(entry) => _ = entry.insert(declared),
                Entry::Occupied(entry) if *entry.get() == declared => {}
                Entry::Occupied(entry) => {
                    return invalid(format!("{} has two values", entry.key()));
                }
            }
        }
        check_conflicts(&refs)?;
        Ok(Self {
            repo: RepoId::new(event.pubkey, Identifier::new(identifier)?),
            version: Version::of(event),
            refs,
            head: tags::first(event, "HEAD").and_then(parse_head),
        })
    }

    /// Returns the objects that are needed to realise the state, or `None` if it can never be realised.
    pub fn tips(&self) -> Option<Vec<Oid>> {
        self.refs.values().copied().collect()
    }

    /// Returns whether these refs are exactly those of the state.
    pub fn is_realised_by(&self, refs: &BTreeMap<RefName, Oid>) -> bool {
        self.refs.len() == refs.len()
            && self
                .refs
                .iter()
                .zip(refs)
                .all(|((want, declared), (have, oid))| want == have && *declared == Some(*oid))
    }
}

/// Parses a tag that declares a ref; `None` for other tags.
fn parse_ref_tag(tag: &Tag) -> Result<Option<(RefName, Option<Oid>)>, ParseError> {
    let name = tag.kind();
    let value = tag.content().unwrap_or_default();
    let is_branch_or_tag = name.starts_with("refs/heads/") || name.starts_with("refs/tags/");
    if !is_branch_or_tag || name.ends_with("^{}") || value.starts_with("ref: ") {
        return Ok(None);
    }
    Ok(Some((RefName::new(name)?, value.parse().ok())))
}

/// Parses the branch in a HEAD value, with or without `ref: `.
fn parse_head(value: &str) -> Option<RefName> {
    let name = RefName::new(value.strip_prefix("ref: ").unwrap_or(value)).ok()?;
    matches!(name.namespace(), Namespace::Branch(_)).then_some(name)
}

/// Returns an error if a ref is a directory of another one.
///
/// Names such as `a-b` sort between `a` and `a/b`, so each name is compared with its own parents instead of its
/// neighbours.
fn check_conflicts(refs: &BTreeMap<RefName, Option<Oid>>) -> Result<(), ParseError> {
    for name in refs.keys() {
        let slashes = name.as_str().match_indices('/').map(|(at, _)| at).skip(2);
        for at in slashes {
            let Ok(parent) = RefName::new(&name.as_str()[..at]) else {
                continue;
            };
            if refs.contains_key(&parent) {
                return invalid(format!("{parent} and {name} cannot both exist"));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Unsigned, key};

    const A: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    const B: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";

    fn parse(tags: &[&[&str]]) -> Result<State, ParseError> {
        State::parse(&Unsigned::kind(30618).tags(&[&["d", "x"]]).tags(tags).by(key(1)))
    }

    fn name(text: &str) -> RefName {
        text.parse().unwrap()
    }

    #[test]
    fn reads_branches_and_tags_only() {
        let state = parse(&[
            &["refs/heads/main", A, "an ancestor"],
            &["refs/tags/v1", B],
            &["refs/tags/v1^{}", A],
            &["refs/nostr/x", A],
            &["refs/heads/alias", "ref: refs/heads/main"],
            &["HEAD", "ref: refs/heads/main"],
            &["nonce", "1", "20"],
        ])
        .unwrap();
        let declared: Vec<_> = state.refs.keys().map(RefName::as_str).collect();
        assert_eq!(declared, ["refs/heads/main", "refs/tags/v1"]);
        assert_eq!(state.head, Some(name("refs/heads/main")));
        assert_eq!(state.tips(), Some(vec![A.parse().unwrap(), B.parse().unwrap()]));
    }

    #[test]
    fn head_is_read_with_and_without_its_prefix_and_only_for_branches() {
        for head in ["ref: refs/heads/dev", "refs/heads/dev"] {
            assert_eq!(parse(&[&["HEAD", head]]).unwrap().head, Some(name("refs/heads/dev")));
        }
        for head in ["refs/tags/v1", "dev", "", "ref: ref: refs/heads/dev"] {
            assert_eq!(parse(&[&["HEAD", head]]).unwrap().head, None, "{head}");
        }
    }

    #[test]
    fn a_state_with_a_malformed_object_id_is_never_realised() {
        let state = parse(&[&["refs/heads/main", "abc123"], &["refs/heads/dev"]]).unwrap();
        assert_eq!(state.refs[&name("refs/heads/main")], None);
        assert_eq!(state.tips(), None);
        assert!(!state.is_realised_by(&BTreeMap::new()));
    }

    #[test]
    fn refuses_two_targets_of_a_ref() {
        assert!(parse(&[&["refs/heads/main", A], &["refs/heads/main", A]]).is_ok());
        assert_eq!(
            parse(&[&["refs/heads/main", A], &["refs/heads/main", B]]),
            invalid("refs/heads/main has two values")
        );
    }

    #[test]
    fn refuses_ref_names_that_git_refuses() {
        let refused = |name: &str| parse(&[&[name, A]]).unwrap_err().to_string();
        assert_eq!(refused("refs/heads/a..b"), "a ref name has a dot where git allows none");
        assert_eq!(refused("refs/heads/"), "a ref name has an empty component");
    }

    #[test]
    fn refuses_a_branch_that_is_a_directory() {
        let refs: &[&[&str]] =
            &[&["refs/heads/a", A], &["refs/heads/a-b", A], &["refs/heads/a/b", A]];
        assert_eq!(parse(refs), invalid("refs/heads/a and refs/heads/a/b cannot both exist"));
    }

    #[test]
    fn a_state_is_realised_by_exactly_its_refs() {
        let state = parse(&[&["refs/heads/main", A]]).unwrap();
        let main = (name("refs/heads/main"), A.parse().unwrap());
        let other = (name("refs/heads/dev"), A.parse().unwrap());
        assert!(state.is_realised_by(&BTreeMap::from([main.clone()])));
        assert!(!state.is_realised_by(&BTreeMap::from([main, other.clone()])));
        assert!(!state.is_realised_by(&BTreeMap::from([other])));
        assert!(parse(&[]).unwrap().is_realised_by(&BTreeMap::new()));
    }
}
