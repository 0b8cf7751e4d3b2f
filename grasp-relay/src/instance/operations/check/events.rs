//! Verifying all stored events of a server, and dropping those that fail.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread::available_parallelism;

use nostr::event::EventId;
use serde::Serialize;
use tokio::task::JoinSet;

use crate::instance::admin::AdminSocket;
use crate::instance::error::{Explain as _, Result};
use crate::instance::server::DATABASE;
use crate::instance::settings::Settings;
use crate::store::EventStore as _;
use crate::store::check::{DropEvents as _, EventRow, EventTable, StoredEvents as _};
use crate::store::sqlite::{SqliteReader, SqliteStore};

/// A stored event that is not what its author signed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct InvalidEvent {
    pub(super) id: EventId,
    pub(super) table: EventTable,
    pub(super) reason: String,
}

/// All events of a server, verified.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct VerifiedEvents {
    pub(super) count: u64,
    pub(super) invalid: Vec<InvalidEvent>,
}

/// Verifies all events of a database on all processors. `progress` gets the number so far.
pub(super) async fn verify(
    database: &Arc<SqliteReader>,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<VerifiedEvents> {
    let workers = available_parallelism().map_or(1, NonZeroUsize::get);
    let mut verified = VerifiedEvents::default();
    let mut running: JoinSet<Vec<InvalidEvent>> = JoinSet::new();
    for table in EventTable::ALL {
        let mut after = None;
        loop {
            let events = database.events_after(table, after).await;
            let events = events.context("could not read the events of the database")?;
            let Some(last) = events.last() else { break };
            after = Some(last.id);
            verified.count += events.len() as u64;
            // One more than work is the one that waits.
            while running.len() > workers {
                collect(&mut running, &mut verified).await?;
            }
            running.spawn_blocking(move || invalid(table, &events));
            progress(verified.count);
        }
    }
    while !running.is_empty() {
        collect(&mut running, &mut verified).await?;
    }
    verified
        .invalid
        .sort_by_key(|event| (event.table, event.id));
    Ok(verified)
}

async fn collect(
    running: &mut JoinSet<Vec<InvalidEvent>>,
    verified: &mut VerifiedEvents,
) -> Result<()> {
    if let Some(done) = running.join_next().await {
        verified.invalid.extend(done?);
    }
    Ok(())
}

fn invalid(table: EventTable, events: &[EventRow]) -> Vec<InvalidEvent> {
    let mut invalid = Vec::new();
    for event in events {
        if let Some(fault) = event.fault() {
            invalid.push(InvalidEvent {
                id: event.id,
                table,
                reason: fault.to_string(),
            });
        }
    }
    invalid
}

/// Drops these events from the database of a server that does not run.
pub(super) async fn drop_invalid(settings: &Settings, invalid: &[InvalidEvent]) -> Result<()> {
    // No server may start meanwhile: it would not learn what is gone.
    let _socket = AdminSocket::bind(&settings.admin_socket())
        .context("events can be dropped only while the server is stopped")?;
    let mut by_table: BTreeMap<EventTable, BTreeSet<EventId>> = BTreeMap::new();
    for event in invalid {
        by_table.entry(event.table).or_default().insert(event.id);
    }
    let file = settings.data_dir.join(DATABASE);
    let options = settings.sqlite.clone();
    let store = SqliteStore::open(&file, options).context("could not open the database")?;
    for (table, ids) in by_table {
        let dropped = store.drop_events(table, ids).await;
        dropped.context("could not drop events from the database")?;
    }
    store.close().await.context("the database did not close")
}
