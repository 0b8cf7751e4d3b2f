//! What decides whether a page that a client or the cache has is the current one, and how that is read.
//!
//! Whoever has the current page is told so for free, also while pages have used up their processor time. So reading a
//! version takes a turn among a few, and what was read is kept until the store changes.

use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use grasp_core::Mono;
use grasp_core::resources::Bounds;
use grasp_purgatory::database::View;
use grasp_purgatory::git::GitError;
use grasp_purgatory::resources::SharedPool;
use lru::LruCache;

use super::route::{Reads, Route, Subject};
use super::{Caching, Context, PageError, Site};

/// Versions that are read from the store at the same time.
const TURNS: u64 = 2;

/// Time that a request waits for its turn.
const TURN_WAIT: Duration = Duration::from_secs(10);

/// Time for which a version is kept. Events expire without a change of the store.
const MAX_AGE: Duration = Duration::from_secs(1);

/// Versions that are kept.
const MAX_KEPT: NonZeroUsize = match NonZeroUsize::new(1_024) {
    Some(count) => count,
    None => NonZeroUsize::MIN,
};

/// What decides whether a page that a client or the cache has is the current one.
pub(crate) struct Version {
    /// Changes whenever the page may.
    pub(crate) tag: String,
    pub(crate) caching: Caching,
    /// Expensive to make, and there are very many such pages: asked for under load, it has to be confirmed.
    pub(crate) is_costly: bool,
}

impl Version {
    /// Returns the version of a page that clients ask about each time.
    pub(crate) fn revalidated(tag: String) -> Self {
        Self {
            tag,
            caching: Caching::Revalidate,
            is_costly: false,
        }
    }

    /// Returns the version of a page that follows from the refs of a repository.
    pub(crate) fn of_view(view: &View) -> Self {
        Self::revalidated(format!("g{}", view.generation.0))
    }
}

/// Returns the turns in which versions are read.
pub(super) fn turns() -> SharedPool {
    SharedPool::new(Bounds {
        reserve: 0,
        ..Bounds::of(TURNS)
    })
}

/// The versions that were read lately, by what they are of.
pub(super) struct RecentTags(Mutex<LruCache<String, Recent>>);

struct Recent {
    tag: String,
    /// The number of changes of the store before it was read.
    commits: u64,
    until: Mono,
}

impl RecentTags {
    pub(super) fn new() -> Self {
        Self(Mutex::new(LruCache::new(MAX_KEPT)))
    }

    /// Returns a version that was read after this number of changes.
    fn get(&self, name: &str, commits: u64, now: Mono) -> Option<String> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let recent = kept.get(name)?;
        (recent.commits == commits && now < recent.until).then(|| recent.tag.clone())
    }

    fn insert(&self, name: String, tag: String, commits: u64, now: Mono) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let until = now + MAX_AGE;
        kept.put(
            name,
            Recent {
                tag,
                commits,
                until,
            },
        );
    }
}

impl Site {
    /// Returns the version of a page, and the time that it took to read it.
    pub(super) async fn version(
        &self,
        route: &Route,
        context: &Context<'_>,
        subject: &Subject,
    ) -> Result<(Version, Duration), PageError> {
        let name = match route.reads() {
            Reads::Refs => {
                let version = route.version(context, subject).await?;
                return Ok((version, Duration::ZERO));
            }
            Reads::Events(name) => {
                let generation = context.view.generation.0;
                Some(format!("{generation} {} {name}", context.request.address))
            }
            Reads::More => None,
        };
        let now = self.host.clock.now().mono;
        let commits = self.host.store.commits();
        let known = match (&name, commits) {
            (Some(name), Some(commits)) => self.recent.get(name, commits, now),
            _ => None,
        };
        if let Some(tag) = known {
            return Ok((Version::revalidated(tag), Duration::ZERO));
        }
        let claimant = &context.request.visitor.claimant;
        let turn = self.turns.wait(claimant, 1, TURN_WAIT).await;
        let turn = turn.map_err(GitError::Busy)?;
        let began = self.host.clock.now().mono;
        let version = route.version(context, subject).await?;
        drop(turn);
        if let (Some(name), Some(commits)) = (name, commits) {
            let tag = version.tag.clone();
            self.recent.insert(name, tag, commits, began);
        }
        Ok((version, self.host.clock.now().mono - began))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_kept_until_the_store_changes_and_for_a_second() {
        let recent = RecentTags::new();
        let at = |milliseconds| Mono::new(Duration::from_millis(milliseconds));
        recent.insert("a".into(), "1".into(), 7, at(0));
        assert_eq!(recent.get("a", 7, at(999)), Some("1".into()));
        assert_eq!(recent.get("a", 8, at(1)), None);
        assert_eq!(recent.get("a", 7, at(1_000)), None);
        assert_eq!(recent.get("b", 7, at(0)), None);
    }
}
