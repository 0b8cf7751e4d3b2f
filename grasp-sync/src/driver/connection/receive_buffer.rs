//! Events received at once: reported in few inputs, handed over as one chunk.

use super::super::intake::{Item, MAX_BATCH_EVENTS};
use crate::engine::{Delivered, Places, Row, SubId};

/// Bytes after which received events are handed over.
const MAX_BUFFERED_BYTES: usize = 512 * 1024;

/// Received events that were not handed over yet, and those that were not reported to the engine.
#[derive(Default)]
pub(super) struct ReceiveBuffer {
    rows: Vec<(SubId, Vec<Delivered>)>,
    items: Vec<Item>,
    bytes: usize,
}

impl ReceiveBuffer {
    pub(super) fn add(&mut self, item: Item, places: Places, bytes: usize) {
        let row = Delivered { row: Row::of(&item.event), places };
        match self.rows.last_mut() {
            Some((sub, rows)) if *sub == item.sub => rows.push(row),
            _ => self.rows.push((item.sub, vec![row])),
        }
        self.items.push(item);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    pub(super) fn is_full(&self) -> bool {
        self.items.len() >= MAX_BATCH_EVENTS || self.bytes >= MAX_BUFFERED_BYTES
    }

    /// Takes the rows to report, in the order in which they came.
    pub(super) fn take_rows(&mut self) -> Vec<(SubId, Vec<Delivered>)> {
        std::mem::take(&mut self.rows)
    }

    /// Takes the events to hand over, and their bytes.
    pub(super) fn take_items(&mut self) -> (Vec<Item>, usize) {
        (std::mem::take(&mut self.items), std::mem::take(&mut self.bytes))
    }
}
