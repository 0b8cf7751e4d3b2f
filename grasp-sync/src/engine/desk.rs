//! What the relays share, and what one of them has before it during its turn.

use std::collections::BTreeMap;

use grasp_core::sync::{
    BatchId, PendingBatch, PendingSyncIndex, RelayState, RelaySyncIndex, SyncIndex,
};
use grasp_core::{Mono, Now, RelayUrl};

use super::config::Config;
use super::ids::{ConnId, Ids, InventoryId, JobId};
use super::io::{Frame, Output};
use super::layer::Layer;
use super::missing::Question;
use super::parks::Way;
use super::provenance::Provenance;
use super::rejected::Rejected;
use super::relay::Standing;
use super::report::Report;
use super::rng::Rng;

/// Who asked our own relay what it has.
#[derive(Debug)]
pub(super) enum Asker {
    /// A job that compares it with a relay's.
    Job(RelayUrl, JobId),
    /// Whoever wants to know which repositories a relay lacks events of.
    Missing(Box<Question>),
}

/// What all relays share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) config: Config,
    /// What is wanted.
    pub(super) index: SyncIndex,
    /// What is confirmed.
    pub(super) states: RelaySyncIndex,
    /// What is under way.
    pub(super) pending: PendingSyncIndex,
    pub(super) rejected: Rejected,
    /// Who brought events that our own relay holds.
    pub(super) held: Provenance,
    /// Who brought events that it refused for want of something, and may take yet.
    pub(super) refused: Provenance,
    pub(super) ids: Ids,
    pub(super) rng: Rng,
    /// Questions to our own relay, and who asked.
    pub(super) inventories: BTreeMap<InventoryId, Asker>,
    /// Events that relays have offered and that are not here yet.
    pub(super) wanted: usize,
    /// Items of our own that sessions hold in memory.
    pub(super) held_items: BTreeMap<JobId, usize>,
}

impl Shared {
    pub(super) fn held_items(&self) -> usize {
        self.held_items.values().sum()
    }
}

/// One relay's turn: the time, what is known of the relay, what is shared, and where outputs go.
pub(super) struct Desk<'a> {
    pub(super) now: Now,
    pub(super) relay: &'a RelayUrl,
    pub(super) standing: &'a mut Standing,
    pub(super) shared: &'a mut Shared,
    pub(super) out: &'a mut Vec<Output>,
}

impl Desk<'_> {
    pub(super) fn mono(&self) -> Mono {
        self.now.mono
    }

    pub(super) fn send(&mut self, conn: ConnId, frame: Frame) {
        if let Some(request) = frame.request() {
            let relay = self.relay.clone();
            self.report(Report::Requested { relay, request });
        }
        self.out.push(Output::Send { relay: self.relay.clone(), conn, frame });
    }

    pub(super) fn report(&mut self, report: Report) {
        self.out.push(Output::Report(report));
    }

    pub(super) fn state(&mut self) -> Option<&mut RelayState> {
        self.shared.states.get_mut(self.relay)
    }

    /// The batches under way here.
    pub(super) fn batches(&mut self) -> &mut Vec<PendingBatch> {
        self.shared.pending.entry(self.relay.clone()).or_default()
    }

    pub(super) fn batch(&mut self, id: BatchId) -> Option<&mut PendingBatch> {
        self.batches().iter_mut().find(|batch| batch.batch_id == id)
    }

    pub(super) fn take_batch(&mut self, id: BatchId) -> Option<PendingBatch> {
        let batches = self.batches();
        let place = batches.iter().position(|batch| batch.batch_id == id)?;
        Some(batches.remove(place))
    }

    /// The relay finds us too fast. Written at once: whoever takes over from us must not go on like that.
    pub(super) fn pause_starts(&mut self) {
        let is_news = !self.standing.pace.is_paused(self.now.mono);
        self.standing.pace.refused(self.now.mono);
        if is_news {
            self.standing.write_at = Some(self.now.mono);
        }
    }

    /// The relay does not want to be asked for this.
    pub(super) fn park(&mut self, layer: Layer, way: Way) {
        self.standing.parks.park(self.now.mono, layer, way);
        self.note_change();
    }

    /// The relay's record has changed and is to be written before long.
    pub(super) fn note_change(&mut self) {
        let at = self.now.mono + self.shared.config.persist_after;
        self.standing.write_at.get_or_insert(at);
    }
}
