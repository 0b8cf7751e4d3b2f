//! Short reads on the threads of their callers.
//!
//! Handing a read to a thread and waking its caller again takes longer than looking up twenty events. So a read that is
//! expected to be short runs where it is asked for, if a connection is free, with a budget so small that no other task of
//! that thread waits long for it. What is not done by then goes on at the reader threads, where it queues with the others.
//!
//! Reads that turn out to be long send the next ones to the reader threads: many clients with heavy queries then meet the
//! queue and do not occupy the threads that serve everybody else.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use nostr::filter::Filter;
use rusqlite::Connection;

use super::readers::{open_for_reading, snapshot};
use super::search::ReadBudget;
use super::tables::SqliteTables;
use crate::store::keys::Keys;
use crate::store::{StoreError, StoreRules, weight_of};

/// Connections for short reads: one for each thread that can read at the same time, up to this number.
const MAX_CONNECTIONS: usize = 8;

/// Reads that go to the reader threads after one that used up its budget.
const PASSED_AFTER_LONG: u32 = 16;

/// Reads that go to the reader threads after one that took long although it did little: the file is on a slow disk and not
/// in memory.
const PASSED_AFTER_SLOW: u32 = 256;

/// The time from which on a short read counts as slow.
const SLOW: Duration = Duration::from_millis(5);

/// Filters of a query that is expected to be short.
const MAX_FILTERS: usize = 4;

/// The weight of the filters of such a query.
const MAX_WEIGHT: usize = 64;

/// Events that such a query asks for.
const MAX_EVENTS: usize = 128;

/// Connections for reads on the threads of their callers.
pub(super) struct DirectReaders {
    /// A connection is absent once the store is closed.
    connections: Box<[Mutex<Option<Connection>>]>,
    /// Reads that go to the reader threads before the next one is tried here.
    passed: AtomicU32,
    /// The time from which on a read counts as slow.
    pub(super) slow_after: Duration,
}

impl DirectReaders {
    pub(super) fn open(path: &Path, cache: usize) -> Result<Self, StoreError> {
        let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let mut connections = Vec::new();
        for _ in 0..threads.min(MAX_CONNECTIONS) {
            connections.push(Mutex::new(Some(open_for_reading(path, cache)?)));
        }
        Ok(Self {
            connections: connections.into(),
            passed: AtomicU32::new(0),
            slow_after: SLOW,
        })
    }

    /// Reads from one snapshot on this thread; gives the task back if it has to go to the reader threads.
    pub(super) fn try_read<T, R>(
        &self,
        keys: &Keys,
        rules: &StoreRules,
        task: R,
    ) -> Result<Result<T, StoreError>, R>
    where
        R: FnOnce(&SqliteTables<'_>, &mut ReadBudget) -> Result<T, StoreError>,
    {
        if self.passes() {
            return Err(task);
        }
        for connection in &self.connections {
            let connection = match connection.try_lock() {
                Ok(connection) => connection,
                // A read that panicked has left nothing behind.
                Err(TryLockError::Poisoned(connection)) => connection.into_inner(),
                Err(TryLockError::WouldBlock) => continue,
            };
            let Some(connection) = &*connection else {
                break;
            };
            let began = Instant::now();
            let mut budget = ReadBudget::of_short_read();
            let read = snapshot(connection, keys, rules, |tables| task(tables, &mut budget));
            self.note(&budget, began.elapsed());
            return Ok(read);
        }
        Err(task)
    }

    /// Returns whether the next read goes to the reader threads, and counts it.
    fn passes(&self) -> bool {
        // The common case writes nothing.
        if self.passed.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let less = |passed: u32| passed.checked_sub(1);
        let counted = self
            .passed
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        counted.is_ok()
    }

    /// Sends the next reads to the reader threads if this one was not short.
    fn note(&self, budget: &ReadBudget, took: Duration) {
        if took >= self.slow_after {
            self.passed.fetch_max(PASSED_AFTER_SLOW, Ordering::Relaxed);
        } else if budget.is_spent() {
            self.passed.fetch_max(PASSED_AFTER_LONG, Ordering::Relaxed);
        }
    }

    /// Waits for the reads in progress, and closes the connections.
    pub(super) fn close(&self) {
        for connection in &self.connections {
            let mut connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
            drop(connection.take());
        }
    }
}

/// Returns whether a query is expected to be short: few values, and few events.
pub(super) fn is_short(filters: &[Filter]) -> bool {
    if filters.len() > MAX_FILTERS {
        return false;
    }
    let mut events: usize = 0;
    for filter in filters {
        events = events.saturating_add(filter.limit.unwrap_or(usize::MAX));
    }
    events <= MAX_EVENTS && weight_of(filters) <= MAX_WEIGHT
}

/// Returns whether questions whether any event matches are expected to be answered soon.
pub(super) fn are_short(questions: &[Vec<Filter>]) -> bool {
    let mut filters = 0;
    let mut weight = 0;
    for question in questions {
        filters += question.len();
        weight += weight_of(question);
    }
    filters <= MAX_WEIGHT / 2 && weight <= MAX_WEIGHT
}
