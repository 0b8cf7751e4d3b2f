//! What the hunter needs from the world.

use std::collections::BTreeSet;
use std::future::Future;

use grasp_core::{CloneUrl, Identifier, Now, Oid};

use super::{Advertisement, Report, Scope, Trouble};
use crate::purgatory::Want;

/// The world around a hunter: events, repositories and other servers.
///
/// The server implements it with its keeper and the sandboxed git; tests implement it with a script.
pub trait SyncContext: Send + Sync + 'static {
    /// The time.
    fn now(&self) -> Now;

    /// What is wanted under an identifier and not here, and where it may be. `None` if that cannot be learned now.
    fn brief(
        &self,
        identifier: &Identifier,
        scope: Scope,
    ) -> impl Future<Output = Option<Vec<Want>>> + Send;

    /// What a server has of this.
    fn list(
        &self,
        url: &CloneUrl,
        wanted: &BTreeSet<Oid>,
    ) -> impl Future<Output = Result<Advertisement, Trouble>> + Send;

    /// Gets objects with their whole history, and tells whoever waits for them. Says which are here now, and what went
    /// wrong with the others. Dropped when it is given up.
    fn fetch(
        &self,
        identifier: &Identifier,
        url: &CloneUrl,
        oids: &BTreeSet<Oid>,
    ) -> impl Future<Output = (BTreeSet<Oid>, Option<Trouble>)> + Send;

    /// Every identifier that is to be looked after every hour.
    fn identifiers(&self) -> impl Future<Output = BTreeSet<Identifier>> + Send;

    /// Hears what is worth counting or logging.
    fn report(&self, report: &Report);
}
