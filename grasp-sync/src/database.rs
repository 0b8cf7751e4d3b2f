//! Sync for a relay whose events are in a database of rust-nostr: `nostr-sqlite`, `nostr-lmdb`, `nostr-memory`, or
//! another implementation of [`NostrDatabase`].
//!
//! ```text
//!   your relay ──save, delete──▶ ┌───────────────┐ ──▶ database
//!                                │ DatabaseRelay │
//!   Syncer ◀──what was saved and removed── │     │
//!   Syncer ──events of other relays──▶ └───────────────┘
//! ```
//!
//! [`DatabaseRelay`] wraps the database, and is one itself: give your relay a clone of it instead of the database, and
//! sync learns of everything that is saved and removed. Whatever changes the database past it is found after a restart
//! only.
//!
//! # Costs
//!
//! The databases differ. With 100,000 events on a laptop's disk, `nostr-sqlite` 0.45 needs 1.6 seconds for one `#a`
//! filter, because it searches by date, and saves 16 events in 10 seconds while it lists all of them; `nostr-lmdb`
//! needs a millisecond, and a gigabyte on disk. Sync lists events once per filter and full pass (a day). So
//! `nostr-sqlite` suits relays of up to some ten thousand events; see also [`DatabaseRelay::with_max_rows`].

mod feed;
mod rules;

#[doc(no_inline)]
pub use nostr_database;

use std::collections::BTreeSet;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::StreamExt as _;
use grasp_core::admission::{Origin, Retry};
use grasp_core::deletion::DeletionRequest;
use grasp_core::nip34::Announcement;
use grasp_core::nostr::event::{Event, EventId, Kind};
use grasp_core::nostr::filter::Filter;
use grasp_core::nostr::types::Timestamp;
use grasp_core::{RepoId, ServiceIdentity, Verified, admission, kinds};
use nostr_database::error::Error;
use nostr_database::{
    DatabaseEventStatus, Features, NostrDatabase, RejectedReason, SaveEventStatus,
};
use tokio::sync::{Mutex, broadcast};

use self::feed::FilterPages;
use self::rules::RelayRules;
use crate::local::{BoxFuture, BoxStream, InventoryFailed, News, Row, SyncedRelay, Taken};

/// News that may wait for the reader of a feed; one that is slower begins anew.
const NEWS_QUEUE: usize = 8_192;
/// Default of [`DatabaseRelay::with_max_rows`].
const MAX_ROWS: usize = 1_000_000;

/// A relay on a database of rust-nostr. Cheap to clone; clones are the same relay.
///
/// By default it takes the events that belong to a repository of its own: announcements that list it, states of such a
/// repository, and events that name one or a stored event. Its own rules can be [stricter](Self::with_rule), and
/// repositories that do not list it can be [included](Self::following_unlisted).
///
/// ```
/// use std::sync::Arc;
/// use grasp_sync::database::DatabaseRelay;
/// use grasp_sync::database::nostr_database::NostrDatabase;
/// use grasp_sync::{Settings, Syncer};
/// use nostr_sqlite::store::NostrSqlite;
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let database = NostrSqlite::builder().in_file("events.db").build().await?;
/// let own: grasp_sync::core::ServiceIdentity = "relay.example.com".parse()?;
/// let relay = DatabaseRelay::new(database, own.clone());
/// let syncer = Syncer::start(Arc::new(relay.clone()), Settings::new(own)).await?;
/// // From now on the relay saves through `relay`, which is a `NostrDatabase` too.
/// # let event: grasp_sync::local::Event = unimplemented!();
/// relay.save_event(&event).await?;
/// # Ok(()) }
/// ```
pub struct DatabaseRelay<D>(Arc<Shared<D>>);

struct Shared<D> {
    database: D,
    news: broadcast::Sender<News>,
    rules: RelayRules,
    max_rows: usize,
    /// Held while announcements are saved or events removed, so that news are in the order of these changes.
    changes: Mutex<()>,
}

impl<D> Clone for DatabaseRelay<D> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<D: fmt::Debug> fmt::Debug for DatabaseRelay<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DatabaseRelay")
            .field(&self.0.database)
            .finish()
    }
}

impl<D: NostrDatabase> DatabaseRelay<D> {
    /// Wraps the database of the relay that others know by this address.
    pub fn new(database: D, own: ServiceIdentity) -> Self {
        Self(Arc::new(Shared {
            database,
            news: broadcast::Sender::new(NEWS_QUEUE),
            rules: RelayRules::new(own),
            max_rows: MAX_ROWS,
            changes: Mutex::default(),
        }))
    }

    /// Adds a rule for events of other relays: an event that it refuses is not saved.
    ///
    /// # Panics
    ///
    /// If this relay was cloned before.
    #[must_use]
    pub fn with_rule(
        mut self,
        rule: impl Fn(&Event) -> Result<(), Retry> + Send + Sync + 'static,
    ) -> Self {
        self.unshared().rules.own_rule = Some(Box::new(rule));
        self
    }

    /// Takes announcements that do not list this relay too: an archive of what other relays have. Sync asks for these
    /// repositories only with [`Settings::follow_unlisted`](crate::Settings::follow_unlisted) beside it. Limit what is kept by a
    /// [rule](Self::with_rule).
    ///
    /// # Panics
    ///
    /// If this relay was cloned before.
    #[must_use]
    pub fn following_unlisted(mut self) -> Self {
        self.unshared().rules.follows_unlisted = true;
        self
    }

    /// Limits the events that one comparison may list. If a filter matches more, its history is fetched by pages
    /// instead, since a list that was cut would make sync fetch the rest each day. Without an explicit limit,
    /// `nostr-sqlite` cuts at 10,000. Each event of a list takes 40 bytes. Default: 1,000,000.
    ///
    /// # Panics
    ///
    /// If this relay was cloned before.
    #[must_use]
    pub fn with_max_rows(mut self, rows: usize) -> Self {
        self.unshared().max_rows = rows;
        self
    }

    fn unshared(&mut self) -> &mut Shared<D> {
        Arc::get_mut(&mut self.0).expect("rules and limits are set before the first clone")
    }

    /// Returns the database. What is changed past the wrapper is found after a restart only.
    pub fn database(&self) -> &D {
        &self.0.database
    }

    /// Tells sync that events were lost without having been deleted, as after the restore of an old copy: everything is
    /// compared again.
    pub fn lost_events(&self) {
        self.tell(News::Lost);
    }

    fn tell(&self, news: News) {
        // Without a reader there is no feed, and the next one reads the database.
        let _ = self.0.news.send(news);
    }

    /// Saves an event, and tells sync of it and of what it removes.
    async fn save(&self, event: &Event) -> Result<SaveEventStatus, Error> {
        let kind = event.kind;
        let has_order = [kinds::ANNOUNCEMENT, kinds::DELETION, kinds::VANISH].contains(&kind);
        let _order = match has_order {
            true => Some(self.0.changes.lock().await),
            false => None,
        };
        let removable = self.removable_by(event).await?;
        let status = self.0.database.save_event(event).await?;
        if status.is_success() {
            self.0.rules.saved(event);
            self.tell(News::Accepted(Arc::new(event.clone())));
            self.tell_removed(removable).await?;
        }
        Ok(status)
    }

    /// Returns the stored events that an event may remove: a deletion (NIP-09) or a wish to vanish (NIP-62).
    async fn removable_by(&self, event: &Event) -> Result<Vec<Removable>, Error> {
        let own = Filter::new().author(event.pubkey);
        let mut filters = Vec::new();
        if event.kind == Kind::RequestToVanish {
            filters.push(own.kinds(kinds::SELF_SUBSCRIPTION_KINDS));
        } else if event.kind == Kind::EventDeletion {
            // A request with too many targets is refused by this crate's rules, but the database may obey it.
            let Ok(named) = DeletionRequest::parse(event) else {
                filters.push(own.kinds(kinds::SELF_SUBSCRIPTION_KINDS));
                return self.find_removable(filters).await;
            };
            if !named.ids.is_empty() {
                filters.push(own.clone().ids(named.ids));
            }
            let has_announcements = named
                .coordinates
                .iter()
                .any(|one| one.kind == kinds::ANNOUNCEMENT);
            if has_announcements {
                filters.push(own.kind(kinds::ANNOUNCEMENT));
            }
        }
        self.find_removable(filters).await
    }

    /// Finds all stored events that match, page by page: a deletion may remove more than a list may have.
    async fn find_removable(&self, filters: Vec<Filter>) -> Result<Vec<Removable>, Error> {
        let mut found = Vec::new();
        for filter in filters {
            let mut pages = FilterPages::new(filter);
            while let Some(events) = pages.next(&self.0.database).await? {
                found.extend(events.iter().map(Removable::of));
            }
        }
        Ok(found)
    }

    /// Tells sync of those events that are no longer stored.
    async fn tell_removed(&self, events: Vec<Removable>) -> Result<(), Error> {
        for event in events {
            let status = self.0.database.check_id(&event.id).await?;
            if status != DatabaseEventStatus::Saved {
                self.tell_gone(event);
            }
        }
        Ok(())
    }

    fn tell_gone(&self, event: Removable) {
        self.0.rules.gone(&event.news);
        self.tell(event.news);
    }

    async fn ingest_one(&self, event: &Event) -> Taken {
        if admission::is_expired(event, Timestamp::now()) {
            return Taken::Refused(Retry::Never);
        }
        let saved = match self.0.rules.judge(&self.0.database, event).await {
            Ok(Ok(())) => self.save(event).await,
            Ok(Err(retry)) => return Taken::Refused(retry),
            Err(error) => Err(error),
        };
        match saved {
            Ok(SaveEventStatus::Success) => Taken::Stored,
            Ok(SaveEventStatus::Rejected(RejectedReason::Duplicate | RejectedReason::Replaced)) => {
                Taken::Known
            }
            Ok(SaveEventStatus::Rejected(RejectedReason::Other)) => {
                Taken::Refused(Retry::AfterDependency)
            }
            Ok(SaveEventStatus::Rejected(_)) => Taken::Refused(Retry::Never),
            Err(error) => {
                tracing::error!(event = %event.id, %error, "could not save an event of another relay");
                Taken::Refused(Retry::Soon)
            }
        }
    }

    async fn list_rows(&self, filter: Filter) -> Result<Vec<Row>, InventoryFailed> {
        if matches_nothing(&filter) {
            return Ok(Vec::new());
        }
        let limited = filter.limit(self.0.max_rows);
        let listed = self.0.database.negentropy_items(limited).await;
        let items = listed.map_err(|error| {
            tracing::error!(%error, "could not list the stored events for a comparison");
            InventoryFailed::Unreadable
        })?;
        if items.len() >= self.0.max_rows {
            return Err(InventoryFailed::TooLarge);
        }
        let row = |(id, at)| Row { at, id };
        Ok(items.into_iter().map(row).collect())
    }
}

/// A stored event that may be removed, and what sync is told then.
struct Removable {
    id: EventId,
    news: News,
}

impl Removable {
    fn of(event: &Event) -> Self {
        Self {
            id: event.id,
            news: News::removed(event),
        }
    }
}

/// Returns whether a list of the filter is empty: such a filter matches nothing, but the databases ignore the list.
fn matches_nothing(filter: &Filter) -> bool {
    filter.ids.as_ref().is_some_and(BTreeSet::is_empty)
        || filter.authors.as_ref().is_some_and(BTreeSet::is_empty)
        || filter.kinds.as_ref().is_some_and(BTreeSet::is_empty)
        || filter.generic_tags.values().any(BTreeSet::is_empty)
}

impl<D: NostrDatabase> SyncedRelay for DatabaseRelay<D> {
    fn accepted(&self, kinds: &[Kind]) -> BoxStream<'static, News> {
        feed::begin(self.clone(), self.0.news.subscribe(), kinds.to_vec()).boxed()
    }

    /// Returns `true`: nothing is held.
    fn tells_held(&self) -> bool {
        true
    }

    fn ingest(&self, events: Vec<Verified<Arc<Event>>>, _: Origin) -> BoxFuture<'_, Vec<Taken>> {
        Box::pin(async move {
            let mut taken = Vec::with_capacity(events.len());
            for event in &events {
                taken.push(self.ingest_one(event).await);
            }
            taken
        })
    }

    fn inventory(&self, filter: Filter) -> BoxFuture<'_, Result<Vec<Row>, InventoryFailed>> {
        Box::pin(self.list_rows(filter))
    }
}

type DatabaseFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// The database of the relay, whose changes sync is told of.
impl<D: NostrDatabase> NostrDatabase for DatabaseRelay<D> {
    fn backend(&self) -> &'static str {
        self.0.database.backend()
    }

    fn features(&self) -> Features {
        self.0.database.features()
    }

    fn save_event<'a>(&'a self, event: &'a Event) -> DatabaseFuture<'a, SaveEventStatus> {
        Box::pin(self.save(event))
    }

    fn check_id<'a>(&'a self, event_id: &'a EventId) -> DatabaseFuture<'a, DatabaseEventStatus> {
        self.0.database.check_id(event_id)
    }

    fn event_by_id<'a>(&'a self, event_id: &'a EventId) -> DatabaseFuture<'a, Option<Event>> {
        self.0.database.event_by_id(event_id)
    }

    fn count(&self, filter: Filter) -> DatabaseFuture<'_, usize> {
        self.0.database.count(filter)
    }

    fn query(&self, filter: Filter) -> DatabaseFuture<'_, BTreeSet<Event>> {
        self.0.database.query(filter)
    }

    fn negentropy_items(&self, filter: Filter) -> DatabaseFuture<'_, Vec<(EventId, Timestamp)>> {
        self.0.database.negentropy_items(filter)
    }

    /// Reads what matches first, to tell sync which of it is gone.
    fn delete(&self, filter: Filter) -> DatabaseFuture<'_, ()> {
        Box::pin(async move {
            let _order = self.0.changes.lock().await;
            let matching = self.find_removable(vec![filter.clone()]).await?;
            self.0.database.delete(filter).await?;
            self.tell_removed(matching).await
        })
    }

    fn wipe(&self) -> DatabaseFuture<'_, ()> {
        Box::pin(async move {
            let _order = self.0.changes.lock().await;
            let announcements = Filter::new().kind(kinds::ANNOUNCEMENT);
            let announcements = self.find_removable(vec![announcements]).await?;
            self.0.database.wipe().await?;
            for event in announcements {
                self.tell_gone(event);
            }
            Ok(())
        })
    }
}

/// Returns the repository that an announcement is of.
fn announced_repo(event: &Event) -> Option<RepoId> {
    Some(Announcement::parse(event).ok()?.repo)
}
