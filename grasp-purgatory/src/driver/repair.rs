//! Repair of damaged repositories on the operator's request.

use std::time::Duration;

use crate::Input;
use crate::git::GitError;
use grasp_core::Identifier;

use super::PurgatoryDriver;

/// Added to the time of a repair, so that packs are read again that were read in the same second.
const CLOCK_RESOLUTION: Duration = Duration::from_secs(1);

impl PurgatoryDriver {
    /// Reads all packs of an identifier, salvages the readable objects of damaged ones, and starts to fetch what is missing
    /// from other servers. Returns whether objects are missing.
    pub async fn repair(&self, identifier: &Identifier) -> Result<bool, GitError> {
        let now = self.parts.relay.now().unix;
        for store in std::iter::once(self.repos()).chain(self.contributors()) {
            let damaged = store.verify(identifier, now + CLOCK_RESOLUTION, now).await?;
            if !damaged.is_empty() {
                tracing::error!(%identifier, ?damaged, "packs are damaged; what is unreadable is fetched from other servers");
            }
            self.damage.inspect((store.endpoint(), store), identifier, true).await?;
        }
        let is_missing = self.lacks_objects(identifier);
        if is_missing {
            self.tell(Input::Damaged { identifier: identifier.clone() }).await;
        }
        Ok(is_missing)
    }

    /// Returns whether repositories of an identifier are known to lack objects.
    pub fn lacks_objects(&self, identifier: &Identifier) -> bool {
        self.damage.is_damaged(identifier)
    }
}
