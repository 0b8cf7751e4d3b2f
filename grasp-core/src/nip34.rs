//! NIP-34 events as values. Every parser is total: it returns a value or an error for any event.
//!
//! ```
//! use grasp_core::nip34::{Announcement, MaintainerList, Proposal, References, State, repo_refs};
//! use grasp_core::{CloneUrl, Host, Namespace, Oid, RefName, VerificationError, Verified};
//! use nostr::event::{EventBuilder, FinalizeEvent, Kind, Tag};
//! use nostr::key::Keys;
//!
//! let alice = Keys::generate();
//! let commit = "c".repeat(40);
//! let announcement = EventBuilder::new(Kind::GitRepoAnnouncement, "")
//!     .tags([Tag::identifier("x"), Tag::parse(["clone", "https://git.example:8443/x.git"])?])
//!     .finalize(&alice)?;
//! let announcement = Announcement::parse(&announcement)?;
//! let url: &CloneUrl = &announcement.clone[0];
//! let host: Host = url.host();
//! assert_eq!(host.as_str(), "git.example:8443");
//! let MaintainerList { listed, .. } = &announcement.maintainer_list;
//! assert!(listed.is_empty(), "she maintains it alone");
//!
//! let state = EventBuilder::new(Kind::RepoState, "")
//!     .tags([Tag::identifier("x"), Tag::parse(["refs/heads/main", &commit])?])
//!     .finalize(&alice)?;
//! let state = State::parse(&state)?;
//! let oid: Oid = commit.parse()?;
//! assert_eq!(state.tips(), Some(vec![oid]));
//! let main = RefName::new("refs/heads/main")?;
//! assert!(matches!(main.namespace(), Namespace::Branch("main")));
//!
//! let request = EventBuilder::new(Kind::GitPullRequest, "")
//!     .tags([Tag::parse(["a", &announcement.repo.to_string()])?, Tag::parse(["c", &commit])?])
//!     .finalize(&alice)?;
//! assert!(repo_refs(&request).contains(&announcement.repo));
//! assert_eq!(References::of(&request).coordinates.len(), 1);
//! assert_eq!(Proposal::parse(&request)?.tip, oid);
//!
//! // Whose event it is, only the check of its signature says.
//! let mut forged = request.clone();
//! forged.content = "another text".into();
//! assert_eq!(Verified::check(forged).err(), Some(VerificationError));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod announcement;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

pub use announcement::{Announcement, MaintainerList};
use nostr::event::{Event, EventId, Tag};
use nostr::key::PublicKey;
use nostr::nips::nip01::Coordinate;

use crate::event::Version;
use crate::kinds;
use crate::repo::{CloneUrl, Identifier, Namespace, Oid, RefName, RepoId, parse_coordinate};
use crate::text::{ParseError, invalid, parse_event_id};

/// A pull request, or an update with a new tip.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Proposal {
    pub id: EventId,
    pub author: PublicKey,
    /// The commit that must be here before the event is served.
    pub tip: Oid,
    /// Every repository that it is addressed to.
    pub repos: BTreeSet<RepoId>,
    /// Git servers with the commits according to the author, so tried last.
    pub clone: Vec<CloneUrl>,
}

impl Proposal {
    /// Parses a pull request or an update.
    pub fn parse(event: &Event) -> Result<Self, ParseError> {
        if event.kind != kinds::PULL_REQUEST && event.kind != kinds::PULL_REQUEST_UPDATE {
            return invalid("not a pull request");
        }
        let Some(tip) = tags::first(event, "c").and_then(|value| value.parse().ok()) else {
            return invalid("the pull request has no c tag with a commit id");
        };
        Ok(Self {
            id: event.id,
            author: event.pubkey,
            tip,
            repos: repo_refs(event),
            clone: tags::all_values(event, "clone")
                .filter_map(|url| url.parse().ok())
                .collect(),
        })
    }
}

/// The events that an event refers to by the first value of its `a`, `A`, `e`, `E` and `q` tags.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct References {
    /// Events referred to by id.
    pub ids: BTreeSet<EventId>,
    /// Replaceable and addressable events referred to by coordinate.
    pub coordinates: BTreeSet<Coordinate>,
}

impl References {
    /// Reads the references of an event; ignores values that are neither id nor coordinate.
    pub fn of(event: &Event) -> Self {
        let mut references = Self::default();
        for name in ["a", "A", "q"] {
            let parsed = tags::first_values(event, name).filter_map(|v| parse_coordinate(v).ok());
            references.coordinates.extend(parsed);
        }
        for name in ["e", "E", "q"] {
            references
                .ids
                .extend(tags::first_values(event, name).filter_map(parse_event_id));
        }
        references
    }
}

/// Returns every repository that an event is addressed to by its `a` tags.
pub fn repo_refs(event: &Event) -> BTreeSet<RepoId> {
    tags::first_values(event, "a")
        .filter_map(|value| value.parse().ok())
        .collect()
}

/// Reading of tags of any shape.
pub(crate) mod tags {
    use nostr::event::{Event, Tag};

    /// Returns the tags of one name, in order.
    pub(crate) fn named<'a>(event: &'a Event, name: &str) -> impl Iterator<Item = &'a Tag> {
        event.tags.iter().filter(move |tag| tag.kind() == name)
    }

    /// Returns the values of a tag.
    pub(super) fn values(tag: &Tag) -> impl Iterator<Item = &str> {
        tag.as_slice().iter().skip(1).map(String::as_str)
    }

    /// Returns the values of all tags of one name, in order, as if they were one tag.
    pub(crate) fn all_values<'a>(event: &'a Event, name: &str) -> impl Iterator<Item = &'a str> {
        named(event, name).flat_map(values)
    }

    /// Returns the first value of each tag of one name, in order.
    pub(crate) fn first_values<'a>(event: &'a Event, name: &str) -> impl Iterator<Item = &'a str> {
        named(event, name).filter_map(Tag::content)
    }

    /// Returns the first value of the first tag of one name.
    pub(crate) fn first<'a>(event: &'a Event, name: &str) -> Option<&'a str> {
        named(event, name).next().and_then(Tag::content)
    }
}

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

    #[test]
    fn a_pull_request_needs_a_commit_of_either_hash() {
        let with = |c: &str| {
            Proposal::parse(&Unsigned::kind(1618).tags(&[&["c", c]]).by(key(1))).map(|p| p.tip)
        };
        assert!(matches!(with(&"a".repeat(40)), Ok(Oid::Sha1(_))));
        assert!(matches!(with(&"a".repeat(64)), Ok(Oid::Sha256(_))));
        let tipless = "the pull request has no c tag with a commit id";
        assert_eq!(with("abc"), invalid(tipless));
        assert_eq!(
            Proposal::parse(&Unsigned::kind(1618).by(key(1))),
            invalid(tipless)
        );
        assert_eq!(
            Proposal::parse(&Unsigned::kind(1619).by(key(1))),
            invalid(tipless)
        );
    }

    #[test]
    fn refuses_issues_and_patches() {
        for kind in [1, 1617, 1621] {
            let event = Unsigned::kind(kind)
                .tags(&[&["c", &"a".repeat(40)]])
                .by(key(1));
            assert_eq!(Proposal::parse(&event), invalid("not a pull request"));
        }
    }

    #[test]
    fn reads_every_repository_that_it_is_addressed_to() {
        let a = format!("30617:{}:a", key(1));
        let b = format!("30617:{}:b:c", key(2));
        let state = format!("30618:{}:a", key(1));
        let c = "a".repeat(40);
        let tags: &[&[&str]] = &[
            &["a", &a],
            &["a", &b],
            &["a", &state],
            &["a", "x"],
            &["a"],
            &["A", "y"],
            &["c", &c],
        ];
        let repos = Proposal::parse(&Unsigned::kind(1619).tags(tags).by(key(3)))
            .unwrap()
            .repos;
        assert_eq!(
            repos,
            BTreeSet::from([a.parse().unwrap(), b.parse().unwrap()])
        );
    }

    #[test]
    fn reads_first_values_and_both_forms_of_quotes() {
        let (id, coordinate) = ("ab".repeat(32), format!("30617:{}:x", key(1)));
        let event = Unsigned::kind(1)
            .tags(&[
                &["e", "wss://x", &id],
                &["q", &coordinate],
                &["q", &id],
                &["p", &id],
            ])
            .by(key(1));
        let references = References::of(&event);
        assert_eq!(references.ids.len(), 1);
        assert_eq!(
            references.coordinates,
            BTreeSet::from([parse_coordinate(&coordinate).unwrap()])
        );
        assert_eq!(
            References::of(&Unsigned::kind(1).by(key(1))),
            References::default()
        );
    }

    const A: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    const B: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";

    fn parse(tags: &[&[&str]]) -> Result<State, ParseError> {
        State::parse(
            &Unsigned::kind(30618)
                .tags(&[&["d", "x"]])
                .tags(tags)
                .by(key(1)),
        )
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
        assert_eq!(
            state.tips(),
            Some(vec![A.parse().unwrap(), B.parse().unwrap()])
        );
    }

    #[test]
    fn head_is_read_with_and_without_its_prefix_and_only_for_branches() {
        for head in ["ref: refs/heads/dev", "refs/heads/dev"] {
            assert_eq!(
                parse(&[&["HEAD", head]]).unwrap().head,
                Some(name("refs/heads/dev"))
            );
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
        assert_eq!(
            refused("refs/heads/a..b"),
            "a ref name has a dot where git allows none"
        );
        assert_eq!(refused("refs/heads/"), "a ref name has an empty component");
    }

    #[test]
    fn refuses_a_branch_that_is_a_directory() {
        let refs: &[&[&str]] = &[
            &["refs/heads/a", A],
            &["refs/heads/a-b", A],
            &["refs/heads/a/b", A],
        ];
        assert_eq!(
            parse(refs),
            invalid("refs/heads/a and refs/heads/a/b cannot both exist")
        );
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
