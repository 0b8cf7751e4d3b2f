//! The refs of a view, and their changes.
//!
//! All refs of a view are one value, which the database replaces in one transaction: a client that clones meanwhile sees
//! the old refs or the new ones and nothing between, a branch `a` can become `a/b` in one step, and ten thousand refs
//! cost one write.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use grasp_core::nip34::State;
use grasp_core::push::PushCommand;
use grasp_core::{Namespace, Oid, RefName};
use nostr::event::EventId;

use super::error::GitError;

/// Time that the objects of a retired ref are kept.
pub const RETIRED_REFS_RETENTION: Duration = Duration::from_secs(90 * 24 * 60 * 60);

/// Bytes in memory that a ref takes beside its name.
const MEMORY_PER_REF: u64 = 128;

/// All refs of a view and its HEAD.
///
/// ```
/// use grasp_purgatory::git::Refs;
///
/// let text = format!("{} refs/heads/main\n", "a".repeat(40));
/// let refs = Refs::decode(&text, "refs/heads/main").unwrap();
/// assert_eq!(refs.encode().lines().last(), text.lines().last());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refs {
    /// The refs, each with its object.
    pub refs: BTreeMap<RefName, Target>,
    /// The branch that HEAD names, whether it exists or not.
    pub head: RefName,
}

/// Where HEAD goes by a change of refs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum NextHead {
    /// It stays, if it can.
    #[default]
    Kept,
    /// The state says which branch it names, or does not. Where it was before does not matter, so repositories that show
    /// the same state have the same HEAD.
    Declared(Option<RefName>),
}

/// The object of a ref, and the one behind it if it is a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it all")]
pub struct Target {
    pub oid: Oid,
    pub peeled: Option<Oid>,
}

impl Default for Refs {
    /// Returns the refs of a view to which nothing was pushed yet.
    fn default() -> Self {
        let head = RefName::new("refs/heads/main").expect("a valid name");
        Self {
            refs: BTreeMap::new(),
            head,
        }
    }
}

impl Refs {
    /// Returns the refs without the objects behind tags.
    pub fn tips(&self) -> BTreeMap<RefName, Oid> {
        self.refs
            .iter()
            .map(|(name, target)| (name.clone(), target.oid))
            .collect()
    }

    /// Returns about how many bytes the refs take in memory.
    pub(super) fn memory(&self) -> u64 {
        self.refs
            .keys()
            .map(|name| name.as_str().len() as u64 + MEMORY_PER_REF)
            .sum()
    }

    /// Returns the refs that result if each changing ref is where the command says. `peeled` has the objects behind tags.
    pub(super) fn after(
        &self,
        changes: &[PushCommand],
        head: &NextHead,
        peeled: &BTreeMap<Oid, Oid>,
    ) -> Result<Self, GitError> {
        let mut refs = self.refs.clone();
        for PushCommand { old, new, name } in changes {
            if refs.get(name).map(|target| target.oid) != *old {
                return Err(GitError::Moved(name.clone()));
            }
            match new {
                Some(oid) => {
                    let target = Target {
                        oid: *oid,
                        peeled: peeled.get(oid).copied(),
                    };
                    refs.insert(name.clone(), target);
                }
                None => _ = refs.remove(name),
            }
        }
        check_conflicts(&refs)?;
        let head = match head {
            NextHead::Kept => choose_head(None, &self.head, &refs),
            NextHead::Declared(wish) => choose_head(wish.as_ref(), &Self::default().head, &refs),
        };
        Ok(Self { refs, head })
    }

    /// Returns the tips of branches and tags that these refs have and `next` does not.
    ///
    /// A pull request is its author's to take back, and can be brought again.
    pub fn retired_by(&self, next: &Self) -> BTreeMap<Oid, RefName> {
        let removed = self.removed_by(next);
        removed
            .filter(|(_, name)| name.is_branch_or_tag())
            .collect()
    }

    /// Returns the tips that these refs have and `next` does not, those of pull requests too: of a repository that is taken
    /// out of service and may come back.
    pub fn all_retired_by(&self, next: &Self) -> BTreeMap<Oid, RefName> {
        let mut retired: BTreeMap<_, _> = self.removed_by(next).collect();
        // A tip has the name of a branch or tag rather than that of a pull request.
        retired.extend(self.retired_by(next));
        retired
    }

    /// Returns the tips of refs that `next` does not have or has moved.
    fn removed_by(&self, next: &Self) -> impl Iterator<Item = (Oid, RefName)> {
        let is_kept = |(name, target): &(&RefName, &Target)| {
            let kept = next.refs.get(*name);
            kept.is_some_and(|kept| kept.oid == target.oid)
        };
        let removed = self.refs.iter().filter(move |it| !is_kept(it));
        removed.map(|(name, target)| (target.oid, name.clone()))
    }

    /// Encodes the refs as the content of a `packed-refs` file.
    pub fn encode(&self) -> String {
        let header = "# pack-refs with: peeled fully-peeled sorted \n".to_owned();
        header + &self.encode_those(|_| true)
    }

    /// Encodes branches and tags, which a state declares: lines of such a file.
    pub fn encode_declared(&self) -> String {
        self.encode_those(RefName::is_branch_or_tag)
    }

    /// Encodes what no state declares, the refs of pull requests: lines of such a file.
    pub fn encode_proposals(&self) -> String {
        self.encode_those(|name| !name.is_branch_or_tag())
    }

    fn encode_those(&self, is_wanted: impl Fn(&RefName) -> bool) -> String {
        let mut text = String::new();
        for (name, Target { oid, peeled }) in &self.refs {
            if !is_wanted(name) {
                continue;
            }
            _ = writeln!(text, "{oid} {name}");
            if let Some(peeled) = peeled {
                _ = writeln!(text, "^{peeled}");
            }
        }
        text
    }

    /// Decodes what [`encode`](Self::encode) wrote, or both of its parts, one after the other; `None` for anything else.
    pub fn decode(packed: &str, head: &str) -> Option<Self> {
        let mut refs: BTreeMap<RefName, Target> = BTreeMap::new();
        let mut last = None;
        for line in packed.lines() {
            if line.starts_with('#') {
                continue;
            }
            if let Some(peeled) = line.strip_prefix('^') {
                let target: &mut Target = refs.get_mut(last.as_ref()?)?;
                target.peeled = Some(peeled.parse().ok()?);
                continue;
            }
            let (oid, name) = line.split_once(' ')?;
            let name: RefName = name.parse().ok()?;
            refs.insert(
                name.clone(),
                Target {
                    oid: oid.parse().ok()?,
                    peeled: None,
                },
            );
            last = Some(name);
        }
        Some(Self {
            refs,
            head: head.parse().ok()?,
        })
    }
}

/// The branches and tags that a view shall have, exactly.
///
/// ```
/// use std::collections::BTreeMap;
/// use grasp_purgatory::git::RefTarget;
///
/// let main: grasp_core::RefName = "refs/heads/main".parse().unwrap();
/// let tip: grasp_core::Oid = "a".repeat(40).parse().unwrap();
/// let refs = BTreeMap::from([(main.clone(), tip)]);
/// let target = RefTarget { refs, head: Some(main), state: None };
/// assert_eq!(target.changes(&BTreeMap::new()).len(), 1);
/// assert!(target.changes(&target.refs).is_empty());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RefTarget {
    /// Branches and tags and where they point.
    pub refs: BTreeMap<RefName, Oid>,
    /// The branch that HEAD should name.
    pub head: Option<RefName>,
    /// The state event that declares them.
    pub state: Option<EventId>,
}

impl RefTarget {
    /// Returns the refs that a state declares; `None` if they can never be set.
    pub fn of(state: &State) -> Option<Self> {
        let refs = state
            .refs
            .iter()
            .map(|(name, declared)| Some((name.clone(), (*declared)?)));
        Some(Self {
            refs: refs.collect::<Option<_>>()?,
            head: state.head.clone(),
            state: Some(state.version.id),
        })
    }

    /// Returns the changes of these refs. Only branches and tags are compared.
    pub fn changes(&self, current: &BTreeMap<RefName, Oid>) -> Vec<PushCommand> {
        let gone = current
            .iter()
            .filter(|(name, _)| name.is_branch_or_tag() && !self.refs.contains_key(*name))
            .map(|(name, old)| PushCommand {
                old: Some(*old),
                new: None,
                name: name.clone(),
            });
        let moved = self
            .refs
            .iter()
            .filter(|(name, new)| current.get(*name) != Some(*new))
            .map(|(name, new)| PushCommand {
                old: current.get(name).copied(),
                new: Some(*new),
                name: name.clone(),
            });
        gone.chain(moved).collect()
    }
}

/// Finds a ref that would have to be a directory of another.
fn check_conflicts(refs: &BTreeMap<RefName, Target>) -> Result<(), GitError> {
    for name in refs.keys() {
        for (at, _) in name.as_str().match_indices('/').skip(2) {
            let parent = name.as_str().get(..at).map(RefName::new);
            match parent {
                Some(Ok(parent)) if refs.contains_key(&parent) => {
                    return Err(GitError::Conflict(parent, name.clone()));
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// Chooses among the branches there are: the wish, the present one, `main`, `master`, the first by name.
///
/// Without branches the present HEAD stays, for a clone of an empty repository shows it too.
fn choose_head<T>(
    wish: Option<&RefName>,
    present: &RefName,
    refs: &BTreeMap<RefName, T>,
) -> RefName {
    let usual = ["refs/heads/main", "refs/heads/master"].map(RefName::new);
    let usual = usual.iter().filter_map(|name| name.as_ref().ok());
    let branches = || {
        refs.keys()
            .filter(|n| matches!(n.namespace(), Namespace::Branch(_)))
    };
    let candidates = wish.into_iter().chain([present]).chain(usual);
    candidates
        .filter(|name| refs.contains_key(*name))
        .find(|name| matches!(name.namespace(), Namespace::Branch(_)))
        .or_else(|| branches().next())
        .unwrap_or(present)
        .clone()
}

#[cfg(test)]
mod tests {
    use proptest::collection::btree_map;
    use proptest::prelude::{Strategy, prop_assert_eq, proptest};

    use super::*;

    fn oid(n: u8) -> Oid {
        Oid::Sha1([n; 20])
    }

    fn name(text: &str) -> RefName {
        text.parse().unwrap()
    }

    fn change(text: &str, old: Option<u8>, new: Option<u8>) -> PushCommand {
        PushCommand {
            old: old.map(oid),
            new: new.map(oid),
            name: name(text),
        }
    }

    fn after(refs: &Refs, changes: &[PushCommand]) -> Result<Refs, GitError> {
        refs.after(changes, &NextHead::Kept, &BTreeMap::new())
    }

    fn with(refs: &[(&str, u8)]) -> Refs {
        let changes: Vec<_> = refs
            .iter()
            .map(|(n, o)| change(n, None, Some(*o)))
            .collect();
        after(&Refs::default(), &changes).unwrap()
    }

    #[test]
    fn a_ref_that_moved_meanwhile_stops_everything() {
        let refs = with(&[("refs/heads/a", 1)]);
        let error = after(&refs, &[change("refs/heads/a", Some(2), Some(3))]).unwrap_err();
        assert!(matches!(error, GitError::Moved(moved) if moved == name("refs/heads/a")));
        assert!(after(&refs, &[change("refs/heads/a", None, Some(3))]).is_err());
        assert!(after(&refs, &[change("refs/heads/b", Some(1), None)]).is_err());
    }

    #[test]
    fn a_branch_may_become_a_directory_in_one_step() {
        let refs = with(&[("refs/heads/a", 1)]);
        let changes = [
            change("refs/heads/a/b", None, Some(1)),
            change("refs/heads/a", Some(1), None),
        ];
        let names: Vec<_> = after(&refs, &changes).unwrap().refs.into_keys().collect();
        assert_eq!(names, [name("refs/heads/a/b")]);
        let error = after(&refs, &changes[..1]).unwrap_err();
        assert!(matches!(error, GitError::Conflict(..)), "{error}");
    }

    #[test]
    fn replaced_and_deleted_branches_are_retired_and_pull_requests_are_not() {
        let nostr = format!("refs/nostr/{}", "e".repeat(64));
        let refs = with(&[("refs/heads/a", 1), ("refs/heads/b", 2), (&nostr, 4)]);
        let changes = [
            change("refs/heads/a", Some(1), Some(3)),
            change("refs/heads/b", Some(2), None),
            change(&nostr, Some(4), None),
        ];
        let next = after(&refs, &changes).unwrap();
        let retired = BTreeMap::from([
            (oid(1), name("refs/heads/a")),
            (oid(2), name("refs/heads/b")),
        ]);
        assert_eq!(refs.retired_by(&next), retired);
        let mut all = retired;
        all.insert(oid(4), name(&nostr));
        assert_eq!(refs.all_retired_by(&next), all);
        assert!(next.retired_by(&next).is_empty());
    }

    #[test]
    fn the_packed_refs_text_is_sorted_has_peeled_tags_and_round_trips() {
        let mut refs = with(&[
            ("refs/tags/v1", 1),
            ("refs/heads/b", 2),
            ("refs/heads/a", 3),
        ]);
        refs.refs.get_mut(&name("refs/tags/v1")).unwrap().peeled = Some(oid(2));
        let text = refs.encode();
        let lines: Vec<_> = text
            .lines()
            .skip(1)
            .map(|line| line.split(' ').next_back().unwrap())
            .collect();
        let peeled = format!("^{}", oid(2));
        assert_eq!(
            lines,
            [
                "refs/heads/a",
                "refs/heads/b",
                "refs/tags/v1",
                peeled.as_str()
            ]
        );
        assert_eq!(Refs::decode(&text, refs.head.as_str()), Some(refs));
        assert_eq!(Refs::decode("no refs", "refs/heads/main"), None);
    }

    fn chosen(wish: Option<&str>, present: &str, branches: &[&str]) -> String {
        let branch = |branch: &str| RefName::new(&format!("refs/heads/{branch}")).unwrap();
        let refs = branches.iter().map(|name| (branch(name), ())).collect();
        choose_head(wish.map(branch).as_ref(), &branch(present), &refs).to_string()
    }

    #[test]
    fn head_follows_the_rules_in_their_order() {
        type Case<'a> = (Option<&'a str>, &'a str, &'a [&'a str], &'a str);
        let cases: [Case<'_>; 6] = [
            (Some("dev"), "main", &["dev", "main"], "refs/heads/dev"),
            (Some("dev"), "old", &["main", "old"], "refs/heads/old"),
            (None, "gone", &["a", "main", "master"], "refs/heads/main"),
            (None, "gone", &["a", "master"], "refs/heads/master"),
            (None, "gone", &["b", "a"], "refs/heads/a"),
            (Some("dev"), "main", &[], "refs/heads/main"),
        ];
        for (wish, present, branches, expected) in cases {
            assert_eq!(
                chosen(wish, present, branches),
                expected,
                "{wish:?} {present} {branches:?}"
            );
        }
    }

    #[test]
    fn a_declared_head_does_not_depend_on_the_one_before() {
        let mut refs = with(&[("refs/heads/dev", 1), ("refs/heads/old", 1)]);
        refs.head = name("refs/heads/old");
        let head = |refs: &Refs, next| refs.after(&[], &next, &BTreeMap::new()).unwrap().head;
        assert_eq!(head(&refs, NextHead::Kept), refs.head);
        for (wish, expected) in [
            (Some("refs/heads/old"), "refs/heads/old"),
            (Some("refs/heads/gone"), "refs/heads/dev"),
            (None, "refs/heads/dev"),
        ] {
            let declared = NextHead::Declared(wish.map(name));
            assert_eq!(head(&refs, declared.clone()), name(expected), "{wish:?}");
            let mut other = refs.clone();
            other.head = name("refs/heads/dev");
            assert_eq!(head(&other, declared.clone()), name(expected), "{wish:?}");
            assert_eq!(
                head(
                    &Refs {
                        refs: BTreeMap::new(),
                        ..other
                    },
                    declared
                ),
                name("refs/heads/main")
            );
        }
    }

    #[test]
    fn what_a_state_declares_and_pull_requests_are_encoded_apart() {
        let nostr = format!("refs/nostr/{}", "e".repeat(64));
        let mut refs = with(&[("refs/heads/a", 1), ("refs/tags/v1", 2), (&nostr, 3)]);
        refs.refs.get_mut(&name("refs/tags/v1")).unwrap().peeled = Some(oid(1));
        let declared = refs.encode_declared();
        let proposals = refs.encode_proposals();
        assert_eq!(declared.lines().count(), 3);
        assert_eq!(proposals, format!("{} {nostr}\n", oid(3)));
        let head = refs.head.as_str();
        assert_eq!(
            Refs::decode(&(declared + &proposals), head),
            Some(refs.clone())
        );
        assert_eq!(
            Refs::decode(&proposals, head).unwrap().encode_declared(),
            ""
        );
    }

    #[test]
    fn head_names_no_tag() {
        let tag = name("refs/tags/v1");
        let refs = BTreeMap::from([(tag.clone(), ()), (name("refs/heads/a"), ())]);
        assert_eq!(
            choose_head(Some(&tag), &name("refs/heads/x"), &refs),
            name("refs/heads/a")
        );
    }

    /// Some refs that can exist side by side; another such set may need some of them as directories.
    fn refs(names: &'static str) -> impl Strategy<Value = BTreeMap<RefName, Oid>> {
        btree_map(names, 0..4_u8, 0..6).prop_map(|refs| {
            let mut kept: BTreeMap<RefName, Oid> = BTreeMap::new();
            for (name, n) in refs {
                let name: RefName = name.parse().unwrap();
                if !kept.keys().any(|other| other.conflicts_with(&name)) {
                    kept.insert(name, Oid::Sha1([n; 20]));
                }
            }
            kept
        })
    }

    fn refs_at(tips: &BTreeMap<RefName, Oid>) -> Refs {
        let plain = |oid: &Oid| Target {
            oid: *oid,
            peeled: None,
        };
        let refs = tips
            .iter()
            .map(|(name, oid)| (name.clone(), plain(oid)))
            .collect();
        Refs {
            refs,
            ..Refs::default()
        }
    }

    proptest! {
        #[test]
        fn the_changes_lead_from_any_refs_to_exactly_the_target(
            current in refs("refs/(heads|tags|nostr)/[ab](/[ab])?"),
            wanted in refs("refs/(heads|tags)/[ab](/[ab])?"),
        ) {
            let target = RefTarget { refs: wanted.clone(), ..RefTarget::default() };
            let changes = target.changes(&current);
            let after = after(&refs_at(&current), &changes).unwrap().tips();
            let others = current.into_iter().filter(|(name, _)| !name.is_branch_or_tag());
            let expected: BTreeMap<_, _> = others.chain(wanted).collect();
            prop_assert_eq!(&after, &expected);
            prop_assert_eq!(target.changes(&after), vec![]);
        }
    }
}
