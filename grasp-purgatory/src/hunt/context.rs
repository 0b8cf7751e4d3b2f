//! What the hunter needs from the world.

use std::collections::BTreeSet;
use std::future::Future;

use grasp_core::{CloneUrl, Identifier, Now, Oid, RelayUrl};
use tokio::sync::oneshot;

use super::{Advertisement, HostClass, Report, Scope, Trouble};
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

    /// The kind of git server that has this relay; `None` if it does not say.
    fn classify(&self, relay: &RelayUrl) -> impl Future<Output = Option<HostClass>> + Send;

    /// Gets objects with their whole history, and tells whoever waits for them. Says on `answered` that the server
    /// has begun to answer; returns which objects are here now, and what went wrong with the others. Dropped when it
    /// is given up.
    fn fetch(
        &self,
        identifier: &Identifier,
        url: &CloneUrl,
        oids: &BTreeSet<Oid>,
        answered: oneshot::Sender<()>,
    ) -> impl Future<Output = (BTreeSet<Oid>, Option<Trouble>)> + Send;

    /// Every identifier that is to be looked after every hour.
    fn identifiers(&self) -> impl Future<Output = BTreeSet<Identifier>> + Send;

    /// Hears what is worth counting or logging.
    fn report(&self, report: &Report);
}
