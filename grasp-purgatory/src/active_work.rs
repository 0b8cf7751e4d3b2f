//! Work in progress, which keeps what it is about from being removed.

use std::collections::BTreeMap;
use std::sync::Arc;

use grasp_core::Identifier;
use nostr::key::PublicKey;
use parking_lot::Mutex;

/// The repository that work is about; without an owner, all of an identifier.
type Subject = (Identifier, Option<PublicKey>);

/// Counts the work in progress. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct ActiveWork(Arc<Mutex<BTreeMap<Subject, usize>>>);

/// Work in progress on a repository, until dropped.
#[derive(Debug)]
pub struct WorkGuard {
    active_work: ActiveWork,
    subject: Subject,
}

impl ActiveWork {
    pub(crate) fn begin(&self, name: &Identifier, owner: Option<PublicKey>) -> WorkGuard {
        let subject = (name.clone(), owner);
        *self.0.lock().entry(subject.clone()).or_default() += 1;
        WorkGuard { active_work: self.clone(), subject }
    }

    pub(crate) fn is_active(&self, name: &Identifier, owner: PublicKey) -> bool {
        self.0.lock().contains_key(&(name.clone(), Some(owner)))
    }

    /// Returns whether work on an identifier or a repository of it is in progress.
    pub(crate) fn is_active_under(&self, name: &Identifier) -> bool {
        self.0.lock().range((name.clone(), None)..).next().is_some_and(|((it, _), _)| it == name)
    }
}

impl Drop for WorkGuard {
    fn drop(&mut self) {
        let mut count = self.active_work.0.lock();
        match count.get_mut(&self.subject) {
            Some(active_work) if *active_work > 1 => *active_work -= 1,
            _ => _ = count.remove(&self.subject),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_ends_with_the_last_guard() {
        let active_work = ActiveWork::default();
        let (name, owner): (Identifier, _) =
            ("x".parse().unwrap(), PublicKey::from_byte_array([1; 32]));
        let is_active =
            || (active_work.is_active(&name, owner), active_work.is_active_under(&name));
        let guards = [Some(owner), Some(owner), None].map(|of| active_work.begin(&name, of));
        let [one, two, all] = guards;
        drop(one);
        assert_eq!(is_active(), (true, true));
        assert!(!active_work.is_active_under(&"w".parse().unwrap()));
        drop(two);
        assert_eq!(is_active(), (false, true));
        drop(all);
        assert_eq!(is_active(), (false, false));
    }
}
