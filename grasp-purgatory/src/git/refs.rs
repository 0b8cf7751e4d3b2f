//! Moving the refs of a view, all or none.
//!
//! All refs of a view lie in its `packed-refs`, and nobody but this module writes there. So a transaction is the
//! renaming of one file: a client that clones meanwhile sees the old refs or the new ones and nothing between, a
//! branch `a` can become `a/b` in one step, and ten thousand refs cost one write. HEAD is a second file; that both
//! change or neither is what the journal is for.

mod journal;
mod snapshot;

use std::collections::BTreeMap;

use grasp_core::nip34::{DeclaredTarget, State};
use grasp_core::push::PushCommand;
use grasp_core::{Oid, RefName};

pub(super) use journal::{Pending, Step};
pub use snapshot::RETENTION;
pub(super) use snapshot::{Snapshot, Target, Wish};

/// The branches and tags that a view shall have, exactly.
///
/// ```
/// use std::collections::BTreeMap;
/// use grasp_purgatory::git::RefTarget;
///
/// let main: grasp_core::RefName = "refs/heads/main".parse().unwrap();
/// let tip: grasp_core::Oid = "a".repeat(40).parse().unwrap();
/// let target = RefTarget { refs: BTreeMap::from([(main.clone(), tip)]), head: Some(main) };
/// assert_eq!(target.changes(&BTreeMap::new()).len(), 1);
/// assert!(target.changes(&target.refs).is_empty());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RefTarget {
    /// Branches and tags and where they point.
    pub refs: BTreeMap<RefName, Oid>,
    /// The branch that HEAD should name.
    pub head: Option<RefName>,
}

impl RefTarget {
    /// Returns the refs that a state declares; `None` if they can never be set.
    pub fn of(state: &State) -> Option<Self> {
        let refs = state.refs.iter().map(|(name, declared)| match declared {
            DeclaredTarget::Oid(oid) => Some((name.clone(), *oid)),
            DeclaredTarget::Invalid => None,
        });
        Some(Self { refs: refs.collect::<Option<_>>()?, head: state.head.clone() })
    }

    /// Returns the changes of these refs. Only branches and tags are compared.
    pub fn changes(&self, current: &BTreeMap<RefName, Oid>) -> Vec<PushCommand> {
        let gone = current
            .iter()
            .filter(|(name, _)| name.is_branch_or_tag() && !self.refs.contains_key(*name))
            .map(|(name, old)| PushCommand { old: Some(*old), new: None, name: name.clone() });
        let moved = self.refs.iter().filter(|(name, new)| current.get(*name) != Some(*new)).map(
            |(name, new)| PushCommand {
                old: current.get(name).copied(),
                new: Some(*new),
                name: name.clone(),
            },
        );
        gone.chain(moved).collect()
    }
}

#[cfg(test)]
mod tests {
    use grasp_core::nostr::types::Timestamp;
    use proptest::collection::btree_map;
    use proptest::prelude::{Strategy, prop_assert_eq, proptest};

    use super::*;

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

    fn snapshot(refs: &BTreeMap<RefName, Oid>) -> Snapshot {
        let plain = |oid: &Oid| Target { oid: *oid, peeled: None };
        let refs = refs.iter().map(|(name, oid)| (name.clone(), plain(oid))).collect();
        Snapshot { refs, head: None }
    }

    proptest! {
        #[test]
        fn the_changes_lead_from_any_refs_to_exactly_the_target(
            current in refs("refs/(heads|tags|nostr)/[ab](/[ab])?"),
            wanted in refs("refs/(heads|tags)/[ab](/[ab])?"),
        ) {
            let target = RefTarget { refs: wanted.clone(), head: None };
            let changes = target.changes(&current);
            let wish = Wish { changes: &changes, head: None, now: Timestamp::from_secs(1) };
            let after = snapshot(&current).after(&wish, &BTreeMap::new()).unwrap().visible();
            let others = current.into_iter().filter(|(name, _)| !name.is_branch_or_tag());
            let expected: BTreeMap<_, _> = others.chain(wanted).collect();
            prop_assert_eq!(&after, &expected);
            prop_assert_eq!(target.changes(&after), vec![]);
        }
    }
}
