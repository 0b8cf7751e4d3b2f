//! What came in one go: told in few words, handed over in one piece.

use super::super::intake::{BATCH, Item};
use crate::engine::{Delivered, Places, Row, SubId};

/// Bytes after which what came is handed over.
const FULL: usize = 512 * 1024;

/// Events that came and were not handed over yet, and which of them the engine has not been told of.
#[derive(Default)]
pub(super) struct Burst {
    rows: Vec<(SubId, Vec<Delivered>)>,
    items: Vec<Item>,
    bytes: usize,
}

impl Burst {
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
        self.items.len() >= BATCH || self.bytes >= FULL
    }

    /// What the engine is to be told, in the order in which it came.
    pub(super) fn take_rows(&mut self) -> Vec<(SubId, Vec<Delivered>)> {
        std::mem::take(&mut self.rows)
    }

    /// What is to be handed over, and its size.
    pub(super) fn take_items(&mut self) -> (Vec<Item>, usize) {
        (std::mem::take(&mut self.items), std::mem::take(&mut self.bytes))
    }
}
