//! The driver of purgatory, and the relay around it as it sees it.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;

use grasp_core::admission::Policy;
use grasp_core::{Identifier, Now};
use nostr::event::{Event, EventId};
use nostr::filter::Filter;
use nostr::nips::nip01::Coordinate;

use crate::database::DatabaseFuture;

/// The relay that purgatory belongs to: its clock, the events that it serves, and their publication.
pub trait LocalRelay: Send + Sync + 'static {
    /// Reads the clocks.
    fn now(&self) -> Now;

    /// Returns the served events that a filter matches.
    fn events(&self, filter: Filter) -> DatabaseFuture<'_, Vec<Arc<Event>>>;

    /// Returns the number of served events that a filter matches.
    fn count(&self, filter: Filter) -> DatabaseFuture<'_, u64>;

    /// Returns for each filter whether a served event matches it.
    fn exists(&self, filters: Vec<Filter>) -> DatabaseFuture<'_, Vec<bool>>;

    /// Returns the identifiers of all served announcements of repositories that are hosted by this policy.
    fn hosted(&self, policy: &Policy) -> DatabaseFuture<'_, BTreeSet<Identifier>>;

    /// Returns those of these events that would not be stored now: deleted, vanished or expired ones.
    fn refused(&self, events: Vec<Arc<Event>>) -> DatabaseFuture<'_, BTreeSet<EventId>>;

    /// Returns the version that was served before the present or last one.
    fn previous(&self, coordinate: Coordinate) -> DatabaseFuture<'_, Option<Event>>;

    /// Publishes an event that was committed to the subscriptions of clients.
    fn publish(&self, event: Arc<Event>) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
}
