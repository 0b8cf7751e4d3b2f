//! All refs of a view at one moment, and what they become.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::time::Duration;

use grasp_core::nostr::types::Timestamp;
use grasp_core::push::PushCommand;
use grasp_core::{Namespace, Oid, RefName};

use crate::git::error::GitError;

/// Time that a tip without a ref can be restored.
pub const RETENTION: Duration = Duration::from_secs(90 * 24 * 60 * 60);

/// Namespace of such tips, hidden from every client.
const RETAINED: &str = "refs/grasp/retained/";

/// All refs of a view and its HEAD.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::git) struct Snapshot {
    pub(in crate::git) refs: BTreeMap<RefName, Target>,
    pub(in crate::git) head: Option<RefName>,
}

/// The object of a ref, and the one behind it if it is a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::git) struct Target {
    pub(in crate::git) oid: Oid,
    pub(in crate::git) peeled: Option<Oid>,
}

/// The changes of a view's refs.
#[derive(Clone, Debug)]
pub(in crate::git) struct Wish<'a> {
    /// Refs to move, each from where it is believed to be.
    pub(in crate::git) changes: &'a [PushCommand],
    /// The branch that HEAD should name.
    pub(in crate::git) head: Option<&'a RefName>,
    /// Tells which retained tips are old enough to go.
    pub(in crate::git) now: Timestamp,
}

impl Snapshot {
    /// The refs that clients may see.
    pub(in crate::git) fn visible(&self) -> BTreeMap<RefName, Oid> {
        let visible = self.refs.iter().filter(|(name, _)| name.namespace() != Namespace::Other);
        visible.map(|(name, target)| (name.clone(), target.oid)).collect()
    }

    /// The tips that are retained, and since when.
    pub(in crate::git) fn retained(&self) -> impl Iterator<Item = (Oid, u64)> {
        let retained = self.refs.iter();
        retained.filter_map(|(name, target)| Some((target.oid, retained_since(name)?)))
    }

    /// The same refs without the retained tips.
    pub(in crate::git) fn without_retained(mut self) -> Self {
        self.refs.retain(|name, _| retained_since(name).is_none());
        self
    }

    /// The refs that result if each changing ref is where it is believed to be.
    pub(in crate::git) fn after(
        &self,
        wish: &Wish<'_>,
        peeled: &BTreeMap<Oid, Oid>,
    ) -> Result<Self, GitError> {
        let mut refs = self.refs.clone();
        let mut replaced = BTreeSet::new();
        for PushCommand { old, new, name } in wish.changes {
            if refs.get(name).map(|target| target.oid) != *old {
                return Err(GitError::Moved(name.clone()));
            }
            // A pull request is its author's to take back, and can be brought again.
            let is_retained = name.is_branch_or_tag();
            replaced.extend(old.filter(|old| is_retained && Some(*old) != *new));
            match new {
                Some(oid) => {
                    let target = Target { oid: *oid, peeled: peeled.get(oid).copied() };
                    refs.insert(name.clone(), target);
                }
                None => _ = refs.remove(name),
            }
        }
        check_conflicts(&refs)?;
        self.retain(&mut refs, &replaced, wish.now);
        let head = choose_head(wish.head, self.head.as_ref(), &refs);
        Ok(Self { refs, head })
    }

    /// Keeps tips that were replaced now, and forgets those that were so long ago.
    fn retain(
        &self,
        refs: &mut BTreeMap<RefName, Target>,
        replaced: &BTreeSet<Oid>,
        now: Timestamp,
    ) {
        let oldest = now.as_secs().saturating_sub(RETENTION.as_secs());
        refs.retain(|name, target| match retained_since(name) {
            Some(since) => since >= oldest && !replaced.contains(&target.oid),
            None => true,
        });
        let targets = self.refs.values().filter(|target| replaced.contains(&target.oid));
        for target in targets {
            let name = RefName::new(&format!("{RETAINED}{}/{}", now.as_secs(), target.oid));
            refs.extend(name.map(|name| (name, *target)));
        }
    }

    /// The content of `packed-refs`.
    pub(in crate::git) fn encode(&self) -> String {
        let mut text = String::from("# pack-refs with: peeled fully-peeled sorted \n");
        for (name, Target { oid, peeled }) in &self.refs {
            _ = writeln!(text, "{oid} {name}");
            if let Some(peeled) = peeled {
                _ = writeln!(text, "^{peeled}");
            }
        }
        text
    }
}

/// Returns the time at which a tip was retained, if this is the name of one.
fn retained_since(name: &RefName) -> Option<u64> {
    name.as_str().strip_prefix(RETAINED)?.split('/').next()?.parse().ok()
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
pub(super) fn choose_head<T>(
    wish: Option<&RefName>,
    present: Option<&RefName>,
    refs: &BTreeMap<RefName, T>,
) -> Option<RefName> {
    let usual = ["refs/heads/main", "refs/heads/master"].map(RefName::new);
    let usual = usual.iter().filter_map(|name| name.as_ref().ok());
    let branches = || refs.keys().filter(|n| matches!(n.namespace(), Namespace::Branch(_)));
    let candidates = wish.into_iter().chain(present).chain(usual);
    candidates
        .filter(|name| refs.contains_key(*name))
        .find(|name| matches!(name.namespace(), Namespace::Branch(_)))
        .or_else(|| branches().next())
        .or(present)
        .cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn oid(n: u8) -> Oid {
        Oid::Sha1([n; 20])
    }

    fn name(text: &str) -> RefName {
        text.parse().unwrap()
    }

    fn change(text: &str, old: Option<u8>, new: Option<u8>) -> PushCommand {
        PushCommand { old: old.map(oid), new: new.map(oid), name: name(text) }
    }

    fn after(snapshot: &Snapshot, changes: &[PushCommand], now: u64) -> Result<Snapshot, GitError> {
        let wish = Wish { changes, head: None, now: Timestamp::from_secs(now) };
        snapshot.after(&wish, &BTreeMap::new())
    }

    fn with(refs: &[(&str, u8)]) -> Snapshot {
        let changes: Vec<_> = refs.iter().map(|(n, o)| change(n, None, Some(*o))).collect();
        after(&Snapshot::default(), &changes, 0).unwrap()
    }

    #[test]
    fn a_ref_that_moved_meanwhile_stops_everything() {
        let snapshot = with(&[("refs/heads/a", 1)]);
        let error = after(&snapshot, &[change("refs/heads/a", Some(2), Some(3))], 0).unwrap_err();
        assert!(matches!(error, GitError::Moved(moved) if moved == name("refs/heads/a")));
        assert!(after(&snapshot, &[change("refs/heads/a", None, Some(3))], 0).is_err());
        assert!(after(&snapshot, &[change("refs/heads/b", Some(1), None)], 0).is_err());
    }

    #[test]
    fn a_branch_may_become_a_directory_in_one_step() {
        let snapshot = with(&[("refs/heads/a", 1)]);
        let changes =
            [change("refs/heads/a/b", None, Some(1)), change("refs/heads/a", Some(1), None)];
        let names: Vec<_> = after(&snapshot, &changes, 0).unwrap().visible().into_keys().collect();
        assert_eq!(names, [name("refs/heads/a/b")]);
        let error = after(&snapshot, &changes[..1], 0).unwrap_err();
        assert!(matches!(error, GitError::Conflict(..)), "{error}");
    }

    #[test]
    fn replaced_and_deleted_tips_are_retained_for_their_time_and_hidden() {
        let snapshot = with(&[("refs/heads/a", 1), ("refs/heads/b", 2)]);
        let changes =
            [change("refs/heads/a", Some(1), Some(3)), change("refs/heads/b", Some(2), None)];
        let moved = after(&snapshot, &changes, 1000).unwrap();
        let kept = |s: &Snapshot| {
            let hidden = s.refs.iter().filter(|(name, _)| retained_since(name).is_some());
            hidden.map(|(_, target)| target.oid).collect::<Vec<_>>()
        };
        assert_eq!(kept(&moved), [oid(1), oid(2)]);
        assert_eq!(moved.visible(), BTreeMap::from([(name("refs/heads/a"), oid(3))]));
        let last = 1000 + RETENTION.as_secs();
        assert_eq!(kept(&after(&moved, &[], last).unwrap()), [oid(1), oid(2)]);
        assert!(kept(&after(&moved, &[], last + 1).unwrap()).is_empty());
    }

    #[test]
    fn a_tip_that_is_replaced_again_is_retained_once_from_then_on() {
        let there = with(&[("refs/heads/a", 1)]);
        let away = after(&there, &[change("refs/heads/a", Some(1), Some(2))], 10).unwrap();
        let back = after(&away, &[change("refs/heads/a", Some(2), Some(1))], 20).unwrap();
        let away = after(&back, &[change("refs/heads/a", Some(1), Some(3))], 30).unwrap();
        let since: Vec<_> = away.refs.keys().filter_map(retained_since).collect();
        assert_eq!(since, [20, 30]);
    }

    #[test]
    fn the_file_is_sorted_by_name_and_tells_what_is_behind_tags() {
        let mut snapshot = with(&[("refs/tags/v1", 1), ("refs/heads/b", 2), ("refs/heads/a", 3)]);
        snapshot.refs.get_mut(&name("refs/tags/v1")).unwrap().peeled = Some(oid(2));
        let text = snapshot.encode();
        let lines: Vec<_> =
            text.lines().skip(1).map(|line| line.split(' ').next_back().unwrap()).collect();
        let peeled = format!("^{}", oid(2));
        assert_eq!(lines, ["refs/heads/a", "refs/heads/b", "refs/tags/v1", peeled.as_str()]);
    }
}

#[cfg(test)]
mod head_tests {
    use super::*;

    fn name(branch: &str) -> RefName {
        RefName::new(&format!("refs/heads/{branch}")).unwrap()
    }

    fn chosen(wish: Option<&str>, present: Option<&str>, branches: &[&str]) -> Option<String> {
        let refs = branches.iter().map(|branch| (name(branch), ())).collect();
        let (wish, present) = (wish.map(name), present.map(name));
        choose_head(wish.as_ref(), present.as_ref(), &refs).map(|name| name.to_string())
    }

    type Case<'a> = (Option<&'a str>, Option<&'a str>, &'a [&'a str], Option<&'a str>);

    #[test]
    fn head_follows_the_rules_in_their_order() {
        let cases: [Case<'_>; 8] = [
            (Some("dev"), Some("main"), &["dev", "main"], Some("refs/heads/dev")),
            (Some("dev"), Some("old"), &["main", "old"], Some("refs/heads/old")),
            (None, Some("gone"), &["a", "main", "master"], Some("refs/heads/main")),
            (None, Some("gone"), &["a", "master"], Some("refs/heads/master")),
            (None, Some("gone"), &["b", "a"], Some("refs/heads/a")),
            (Some("dev"), Some("main"), &[], Some("refs/heads/main")),
            (None, None, &["z"], Some("refs/heads/z")),
            (None, None, &[], None),
        ];
        for (wish, present, branches, expected) in cases {
            let found = chosen(wish, present, branches);
            assert_eq!(found.as_deref(), expected, "{wish:?} {present:?} {branches:?}");
        }
    }

    #[test]
    fn head_names_no_tag() {
        let tag: RefName = "refs/tags/v1".parse().unwrap();
        let refs = BTreeMap::from([(tag.clone(), ()), (name("a"), ())]);
        assert_eq!(choose_head(Some(&tag), None, &refs), Some(name("a")));
    }
}
