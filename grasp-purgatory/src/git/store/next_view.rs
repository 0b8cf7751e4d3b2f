//! The view that a change of refs leads to. Nothing is read here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use grasp_core::nostr::types::Timestamp;
use grasp_core::push::PushCommand;
use grasp_core::{Oid, RefName};
use nostr::event::EventId;
use nostr::key::PublicKey;

use crate::database::{
    Garbage, MaintainerChanges, ProposalChanges, RepoChange, RetiredRef, View, ViewChange,
};
use crate::git::refs::{NextHead, RefTarget, Refs};

/// The refs that a repository shall have.
#[derive(Clone, Debug, Default)]
pub struct WantedRefs {
    /// Branches and tags, exactly; `None` leaves them as they are.
    pub target: Option<RefTarget>,
    /// Pull requests whose ref shall point at this tip.
    pub proposals: BTreeMap<EventId, Oid>,
    /// The maintainers to remember; `None` leaves them as they are.
    pub maintainers: Option<BTreeSet<PublicKey>>,
    /// The owner of the repository to be an address of. No ref stays then.
    pub shows: Option<PublicKey>,
}

/// What a view shall be.
#[derive(Clone, Debug, Default)]
pub(super) struct NextView {
    /// Changes of single refs.
    pub(super) changes: Vec<PushCommand>,
    pub(super) head: NextHead,
    /// The state event that declares branches and tags.
    state: Option<EventId>,
    maintainers: BTreeSet<PublicKey>,
    /// The owner of the repository that it is an address of.
    shows: Option<PublicKey>,
}

impl NextView {
    /// The same view with these changes of refs.
    pub(super) fn moved(view: &View, changes: &[PushCommand]) -> Self {
        Self {
            changes: changes.to_vec(),
            head: NextHead::Kept,
            state: view.state,
            maintainers: view.maintainers.clone(),
            shows: view.shows,
        }
    }

    /// The view that is wanted. If it is to be an address, its refs go without a change of each.
    pub(super) fn wanted(view: Option<&View>, wanted: &WantedRefs) -> Self {
        if let Some(lead) = wanted.shows {
            return Self {
                maintainers: wanted.maintainers.clone().unwrap_or_default(),
                shows: Some(lead),
                ..Self::default()
            };
        }
        let mut next = Self::default();
        let mut current = BTreeMap::new();
        if let Some(view) = view {
            next = Self::moved(view, &[]);
            current = view.refs.tips();
        }
        if let Some(target) = &wanted.target {
            next.changes = target.changes(&current);
            next.head = NextHead::Declared(target.head.clone());
            next.state = target.state;
        }
        for (id, tip) in &wanted.proposals {
            let name = RefName::nostr(*id);
            let old = current.get(&name).copied();
            if old != Some(*tip) {
                next.changes.push(PushCommand {
                    old,
                    new: Some(*tip),
                    name,
                });
            }
        }
        if let Some(maintainers) = &wanted.maintainers {
            next.maintainers = maintainers.clone();
            next.shows = None;
        }
        next
    }

    /// Returns the change that leads from a view to this one with these refs; `None` if it is the same.
    pub(super) fn plan(
        self,
        mut change: RepoChange,
        view: Option<&View>,
        after: Refs,
        now: Timestamp,
    ) -> Option<RepoChange> {
        let is_same = view.is_some_and(|view| {
            view.state == self.state
                && view.maintainers == self.maintainers
                && view.shows == self.shows
        });
        let before = view.map(|view| view.refs.clone()).unwrap_or_default();
        if is_same && after == *before {
            return None;
        }
        change.garbage = self.garbage(&before);
        change.view = Some(ViewChange {
            from: view.map(|view| view.generation),
            state: self.state,
            maintained: MaintainerChanges::between(view, &self.maintainers, self.shows),
            maintainers: self.maintainers,
            shows: self.shows,
            retired: retired_refs(before.retired_by(&after), now),
            proposals: ProposalChanges::between(&before, &after),
            to: Some(Arc::new(after)),
        });
        Some(change)
    }

    /// Adds the removal of a view to a change. Its tips are retired, if there is a time for that.
    pub(super) fn remove(change: &mut RepoChange, view: &View, now: Option<Timestamp>) {
        let nothing = Refs::default();
        if !view.refs.refs.is_empty() {
            change.garbage = Some(Garbage::Removed);
        }
        let retired = now.map(|now| retired_refs(view.refs.all_retired_by(&nothing), now));
        change.view = Some(ViewChange {
            from: Some(view.generation),
            to: None,
            state: None,
            maintainers: BTreeSet::new(),
            shows: None,
            retired: retired.unwrap_or_default(),
            proposals: ProposalChanges::between(&view.refs, &nothing),
            maintained: MaintainerChanges::between(Some(view), &BTreeSet::new(), None),
        });
    }

    /// Returns the tips that refs are moved to, by their names.
    pub(super) fn named_tips(&self) -> BTreeMap<RefName, Oid> {
        let changes = self.changes.iter();
        changes
            .filter_map(|change| Some((change.name.clone(), change.new?)))
            .collect()
    }

    /// Returns the garbage that it may leave.
    fn garbage(&self, before: &Refs) -> Option<Garbage> {
        if self.shows.is_some() && self.changes.is_empty() {
            return (!before.refs.is_empty()).then_some(Garbage::Moved);
        }
        let mut garbage = None;
        for change in &self.changes {
            if change.old.is_some() && change.old != change.new {
                let left = match change.name.event() {
                    Some(_) => Garbage::Removed,
                    None => Garbage::Moved,
                };
                garbage = garbage.max(Some(left));
            }
        }
        garbage
    }
}

fn retired_refs(tips: BTreeMap<Oid, RefName>, since: Timestamp) -> Vec<RetiredRef> {
    tips.into_iter()
        .map(|(tip, name)| RetiredRef { tip, name, since })
        .collect()
}

/// The objects that these commands move refs to.
pub(super) fn tips<'a>(commands: impl IntoIterator<Item = &'a PushCommand>) -> BTreeSet<Oid> {
    commands
        .into_iter()
        .filter_map(|command| command.new)
        .collect()
}

#[cfg(test)]
mod tests {
    use grasp_core::RepoId;
    use grasp_core::service::Endpoint;

    use super::*;
    use crate::git::refs::Target;

    fn key(n: u8) -> PublicKey {
        PublicKey::from_byte_array([n; 32])
    }

    fn oid(n: u8) -> Oid {
        Oid::Sha1([n; 20])
    }

    fn proposal() -> RefName {
        RefName::nostr(EventId::from_byte_array([1; 32]))
    }

    fn main() -> RefName {
        "refs/heads/main".parse().unwrap()
    }

    fn refs(refs: &[(RefName, u8)]) -> Refs {
        let mut all = Refs::default();
        for (name, n) in refs {
            let target = Target {
                oid: oid(*n),
                peeled: None,
            };
            all.refs.insert(name.clone(), target);
        }
        all
    }

    fn view(all: &[(RefName, u8)]) -> View {
        View {
            refs: Arc::new(refs(all)),
            ..View::default()
        }
    }

    fn moved(name: RefName, new: Option<u8>) -> PushCommand {
        PushCommand {
            name,
            old: Some(oid(1)),
            new: new.map(oid),
        }
    }

    fn plan(next: NextView, view: &View, after: Refs) -> Option<RepoChange> {
        let repo = RepoId::new(key(1), "x".parse().unwrap());
        let change = RepoChange::new(Endpoint::Repository, repo);
        next.plan(change, Some(view), after, Timestamp::from_secs(1))
    }

    #[test]
    fn a_moved_branch_is_retired_and_a_removed_pull_request_is_not() {
        let view = view(&[(main(), 1), (proposal(), 1)]);
        let branch = NextView::moved(&view, &[moved(main(), Some(2))]);
        let after = refs(&[(main(), 2), (proposal(), 1)]);
        let change = plan(branch, &view, after).unwrap();
        assert_eq!(change.garbage, Some(Garbage::Moved));
        assert_eq!(change.view.unwrap().retired.len(), 1);
        let removal = NextView::moved(&view, &[moved(proposal(), None)]);
        let change = plan(removal, &view, refs(&[(main(), 1)])).unwrap();
        assert_eq!(change.garbage, Some(Garbage::Removed));
        assert!(change.view.unwrap().retired.is_empty());
    }

    #[test]
    fn the_same_view_is_no_change() {
        let view = view(&[(main(), 1)]);
        let next = NextView::wanted(Some(&view), &WantedRefs::default());
        assert_eq!(plan(next, &view, refs(&[(main(), 1)])), None);
    }

    #[test]
    fn an_address_forgets_the_state_and_retires_its_tips() {
        let mut view = view(&[(main(), 1)]);
        view.state = Some(EventId::from_byte_array([2; 32]));
        let wanted = WantedRefs {
            shows: Some(key(2)),
            ..WantedRefs::default()
        };
        let next = NextView::wanted(Some(&view), &wanted);
        let change = plan(next, &view, Refs::default()).unwrap();
        assert_eq!(change.garbage, Some(Garbage::Moved));
        let view = change.view.unwrap();
        assert_eq!((view.state, view.shows), (None, Some(key(2))));
        assert_eq!(view.retired.len(), 1);
    }
}
