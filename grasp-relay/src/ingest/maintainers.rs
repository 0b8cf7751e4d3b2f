//! The listed maintainers of stored announcements: their profiles and relay lists are accepted, too.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt as _;
use grasp_core::nip34::Announcement;
use grasp_core::{Mono, kinds};
use nostr::filter::Filter;
use nostr::key::PublicKey;
use tokio::sync::Mutex;

use super::{Pending, Pipeline};
use crate::store::StoreError;

/// Keys that are remembered; an announcement may list hundreds.
const MAX_KEYS: usize = 100_000;
/// The age of the cached keys, as a multiple of the time that reading them took: asking all the time costs a hundredth of
/// a core, and a small server knows a new maintainer at once.
const MAX_AGE_PER_DURATION: u32 = 100;
/// The greatest age of the cached keys.
const MAX_AGE: Duration = Duration::from_secs(60);

/// The listed maintainers as of the last time that anyone asked.
#[derive(Debug, Default)]
pub struct ListedMaintainers(Mutex<Option<Known>>);

#[derive(Debug)]
struct Known {
    until: Mono,
    keys: Arc<HashSet<PublicKey>>,
}

impl Pipeline {
    /// Lets listed maintainers count as known authors of what describes them, although they have published nothing else.
    pub(super) async fn know_maintainers(&self, round: &mut [Pending]) -> Result<(), StoreError> {
        for pending in round {
            let is_asked = kinds::PROFILE_KINDS.contains(&pending.event.kind);
            if is_asked && !pending.facts.is_author_known {
                let maintainers = self.listed_maintainers().await?;
                pending.facts.is_author_known = maintainers.contains(&pending.event.pubkey);
            }
        }
        Ok(())
    }

    /// Returns the cached keys, or reads them; concurrent calls wait for one read.
    async fn listed_maintainers(&self) -> Result<Arc<HashSet<PublicKey>>, StoreError> {
        let mut known = self.maintainers.0.lock().await;
        let began = self.clock.now().mono;
        if let Some(known) = known.as_ref().filter(|known| began < known.until) {
            return Ok(Arc::clone(&known.keys));
        }
        let keys = Arc::new(self.read_maintainers().await?);
        let ended = self.clock.now().mono;
        let age = (ended - began).saturating_mul(MAX_AGE_PER_DURATION);
        *known = Some(Known {
            until: ended + age.min(MAX_AGE),
            keys: Arc::clone(&keys),
        });
        Ok(keys)
    }

    async fn read_maintainers(&self) -> Result<HashSet<PublicKey>, StoreError> {
        let mut keys = HashSet::new();
        let announcements = vec![Filter::new().kind(kinds::ANNOUNCEMENT)];
        let mut pages = self.store.query(announcements, self.clock.now().unix);
        while let Some(page) = pages.try_next().await? {
            for stored in page {
                let Ok(announcement) = Announcement::parse(&stored.event()?) else {
                    continue;
                };
                for key in announcement.maintainer_list.listed {
                    if keys.len() < MAX_KEYS {
                        keys.insert(key);
                    }
                }
            }
        }
        Ok(keys)
    }
}
