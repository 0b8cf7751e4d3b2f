//! A ref transaction as a directory: once it has its final name, it happens.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use super::Snapshot;
use crate::git::error::GitError;
use crate::git::layout::{self, Family, Layout};

/// The steps of a transaction, in order. A crash after [`Step::Decided`] ends in the new refs, before it in the old.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::git) enum Step {
    /// Everything that will be written is on disk, under a name that is never read.
    Prepared,
    /// The transaction has its name in the journal.
    Decided,
    /// The refs are the new ones.
    RefsMoved,
    /// HEAD is the new one.
    HeadMoved,
    /// Nothing is left to do but to forget the transaction.
    Finished,
}

/// A transaction of one view that may be unfinished.
#[derive(Clone, Debug)]
pub(in crate::git) struct Pending {
    entry: PathBuf,
    view: PathBuf,
}

impl Pending {
    /// The transaction of this view, whether there is one or not.
    pub(in crate::git) fn of(entry: PathBuf, view: PathBuf) -> Self {
        Self { entry, view }
    }

    /// Those that a crash has left behind.
    pub(in crate::git) fn left_behind(layout: &Layout) -> Result<Vec<Self>, GitError> {
        let entries = layout::list(&layout.journal())?.into_iter();
        let found = entries.filter_map(|entry| {
            let (key, owner) = layout::name(&entry).split_once('.')?;
            let view = layout.family_of_key(key.to_owned()).views().join(owner);
            Some(Self { view, entry })
        });
        Ok(found.collect())
    }

    /// Returns whether it belongs to a view of this family.
    pub(in crate::git) fn is_of(&self, family: &Family) -> bool {
        self.view.starts_with(family.path())
    }

    /// Makes the refs and HEAD of the view this snapshot. `scratch` must not exist and lie on the same disk.
    ///
    /// `watch` is told of each step and may end the work there, as a crash would.
    pub(in crate::git) fn commit(
        &self,
        next: &Snapshot,
        scratch: &Path,
        watch: impl FnMut(Step) -> ControlFlow<()>,
    ) -> Result<(), GitError> {
        let mut watch = watch;
        layout::create_dir(scratch)?;
        layout::write_synced(&scratch.join("packed-refs"), next.encode().as_bytes())?;
        if let Some(head) = &next.head {
            layout::write_synced(&scratch.join("HEAD"), format!("ref: {head}\n").as_bytes())?;
        }
        layout::sync(scratch)?;
        self.sync_new_view()?;
        if watch(Step::Prepared).is_break() {
            return Ok(());
        }
        layout::rename(scratch, &self.entry)?;
        self.sync_journal()?;
        if watch(Step::Decided).is_break() {
            return Ok(());
        }
        self.roll_forward(watch)
    }

    /// Finishes what was decided. Doing it twice is the same as doing it once.
    pub(in crate::git) fn roll_forward(
        &self,
        mut watch: impl FnMut(Step) -> ControlFlow<()>,
    ) -> Result<(), GitError> {
        if !self.entry.is_dir() {
            return Ok(());
        }
        if self.view.is_dir() {
            for (file, step) in [("packed-refs", Step::RefsMoved), ("HEAD", Step::HeadMoved)] {
                self.move_into_place(file)?;
                if watch(step).is_break() {
                    return Ok(());
                }
            }
            // A ref that an operator has set by hand would hide the packed one of its name.
            layout::list(&self.view.join("refs"))?.iter().try_for_each(|it| layout::remove(it))?;
            layout::sync(&self.view)?;
        }
        if watch(Step::Finished).is_break() {
            return Ok(());
        }
        layout::remove(&self.entry)?;
        self.sync_journal()
    }

    fn move_into_place(&self, file: &str) -> Result<(), GitError> {
        let from = self.entry.join(file);
        if from.is_file() { layout::rename(&from, &self.view.join(file)) } else { Ok(()) }
    }

    fn sync_journal(&self) -> Result<(), GitError> {
        self.entry.parent().map_or(Ok(()), layout::sync)
    }

    /// A view is made without waiting for the disk; before it gets its first refs, that is made good.
    fn sync_new_view(&self) -> Result<(), GitError> {
        if self.view.join("packed-refs").exists() {
            return Ok(());
        }
        layout::sync_tree(&self.view)?;
        let mut above = self.view.ancestors().skip(1);
        let (Some(views), Some(family)) = (above.next(), above.next()) else {
            return Ok(());
        };
        for file in ["HEAD", "config", "identifier", "objects", "refs"] {
            layout::sync(&family.join(file))?;
        }
        // Then the names on the way there: of the view, the family, its shard.
        layout::sync(views)?;
        family.ancestors().take(3).try_for_each(layout::sync)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use grasp_core::{Oid, RepoId};
    use nostr::key::PublicKey;

    use super::*;
    use crate::git::never_stops;
    use crate::git::read;
    use crate::git::refs::Target;

    const STEPS: [Step; 5] =
        [Step::Prepared, Step::Decided, Step::RefsMoved, Step::HeadMoved, Step::Finished];

    /// A view without a store around it.
    struct Bench {
        _dir: tempfile::TempDir,
        layout: Layout,
        pending: Pending,
        scratches: std::cell::Cell<u32>,
    }

    impl Bench {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let layout = Layout::new(dir.path());
            for path in [layout.incoming(), layout.journal()] {
                layout::create_dir(&path).unwrap();
            }
            let owner = PublicKey::from_byte_array([1; 32]);
            let repo = RepoId::new(owner, "x".parse().unwrap());
            let family = layout.family(&repo.identifier);
            family.create(&repo.identifier, &layout.incoming().join("family")).unwrap();
            family.create_view(&repo, &layout.incoming().join("view")).unwrap();
            let pending = Pending::of(family.journal(&owner), family.view(&owner));
            Self { _dir: dir, layout, pending, scratches: 0.into() }
        }

        /// Commits, stopping after the `at`-th step.
        fn commit(&self, next: &Snapshot, at: Step) {
            self.scratches.set(self.scratches.get() + 1);
            let scratch = self.layout.incoming().join(self.scratches.get().to_string());
            self.pending.commit(next, &scratch, stop_at(at)).unwrap();
        }

        fn recover(&self, at: Option<Step>) {
            for left in Pending::left_behind(&self.layout).unwrap() {
                match at {
                    Some(at) => left.roll_forward(stop_at(at)).unwrap(),
                    None => left.roll_forward(never_stops).unwrap(),
                }
            }
        }

        fn read(&self) -> Snapshot {
            read::snapshot(&self.pending.view).unwrap()
        }
    }

    fn stop_at(at: Step) -> impl FnMut(Step) -> ControlFlow<()> {
        move |step| if step == at { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn snapshot(refs: &[(&str, u8)], head: &str) -> Snapshot {
        let refs = refs.iter().map(|(name, n)| {
            let target = Target { oid: Oid::Sha1([*n; 20]), peeled: None };
            (name.parse().unwrap(), target)
        });
        Snapshot { refs: refs.collect::<BTreeMap<_, _>>(), head: Some(head.parse().unwrap()) }
    }

    fn old() -> Snapshot {
        snapshot(&[("refs/heads/a", 1), ("refs/heads/b", 1)], "refs/heads/a")
    }

    /// What was a file becomes a directory, and HEAD goes along.
    fn new() -> Snapshot {
        snapshot(&[("refs/heads/a/x", 2), ("refs/heads/c", 3)], "refs/heads/a/x")
    }

    /// A view that has the old refs.
    fn bench() -> Bench {
        let bench = Bench::new();
        bench.commit(&old(), Step::Prepared);
        assert_eq!(bench.read().refs, BTreeMap::new());
        let scratch = bench.layout.incoming().join("old");
        bench.pending.commit(&old(), &scratch, never_stops).unwrap();
        assert_eq!(bench.read(), old());
        bench
    }

    #[test]
    fn a_crash_after_any_step_ends_in_the_old_refs_or_the_new() {
        for at in STEPS {
            let bench = bench();
            bench.commit(&new(), at);
            let seen = bench.read().refs;
            assert!(seen == old().refs || seen == new().refs, "{at:?}: {seen:?}");
            bench.recover(None);
            let expected = if at == Step::Prepared { old() } else { new() };
            assert_eq!(bench.read(), expected, "{at:?}");
            assert!(Pending::left_behind(&bench.layout).unwrap().is_empty(), "{at:?}");
        }
    }

    #[test]
    fn a_crash_during_recovery_is_recovered_from() {
        for first in [Step::Decided, Step::RefsMoved, Step::HeadMoved, Step::Finished] {
            for second in [Step::RefsMoved, Step::HeadMoved, Step::Finished] {
                let bench = bench();
                bench.commit(&new(), first);
                bench.recover(Some(second));
                bench.recover(None);
                assert_eq!(bench.read(), new(), "{first:?}, {second:?}");
            }
        }
    }

    #[test]
    fn a_view_that_is_gone_does_not_hold_up_recovery() {
        let bench = bench();
        bench.commit(&new(), Step::Decided);
        layout::remove(&bench.pending.view).unwrap();
        bench.recover(None);
        assert!(Pending::left_behind(&bench.layout).unwrap().is_empty());
    }
}
