//! The state that all relays share, and the context in which one relay runs.

use std::collections::BTreeMap;

use crate::index::SyncIndex;
use crate::memory::Memory;
use grasp_core::limits::Admit;
use grasp_core::nostr::event::EventId;
use grasp_core::{Mono, Now, RelayUrl};

use super::config::Config;
use super::fetch::Arrival;
use super::filter::Layer;
use super::history::{RelayHistory, Rng};
use super::ids::{ConnId, Ids, InventoryId, JobId};
use super::io::{Frame, Output};
use super::missing::Question;
use super::rejected::Rejected;
use super::report::Report;
use super::suspended::RequestMode;

/// Origins of events that are remembered.
const MAX_ORIGINS: usize = 40_000;
/// Time that an origin is remembered: git data may take days to arrive.
const ORIGIN_MEMORY_SECS: u64 = 7 * 24 * 60 * 60;

/// The purpose of a request for the local relay's inventory.
#[derive(Debug)]
pub(super) enum InventoryRequest {
    /// A job compares it with a relay's set.
    Job(RelayUrl, JobId),
    /// Finds the repositories that a relay lacks events of.
    Missing(Box<Question>),
}

/// State that all relays share.
#[derive(Debug)]
pub(super) struct EngineState {
    pub(super) config: Config,
    /// Items wanted from each relay.
    pub(super) index: SyncIndex,
    pub(super) rejected: Rejected,
    /// The origin of events that the local relay holds, or refused for want of a dependency, until they are stored. Git
    /// data may take hours to arrive; without this, such an event would then count as published by a client.
    pub(super) origins: Memory<EventId, (RelayUrl, Arrival), MAX_ORIGINS, ORIGIN_MEMORY_SECS>,
    pub(super) ids: Ids,
    pub(super) rng: Rng,
    /// Open requests to the local relay.
    pub(super) inventories: BTreeMap<InventoryId, InventoryRequest>,
    /// Events that relays have offered and that are not here yet.
    pub(super) wanted: usize,
    /// Local items that sessions hold in memory.
    pub(super) held_items: BTreeMap<JobId, usize>,
}

/// The context in which a relay runs: the time, its history, the shared state, and the outputs.
pub(super) struct Context<'a> {
    pub(super) now: Now,
    pub(super) relay: &'a RelayUrl,
    pub(super) history: &'a mut RelayHistory,
    pub(super) shared: &'a mut EngineState,
    pub(super) out: &'a mut Vec<Output>,
}

impl Context<'_> {
    pub(super) fn mono(&self) -> Mono {
        self.now.mono
    }

    pub(super) fn send(&mut self, conn: ConnId, frame: Frame) {
        if let Some(request) = frame.request() {
            self.report(|relay| Report::Requested { relay, request });
        }
        self.out.push(Output::Send { relay: self.relay.clone(), conn, frame });
    }

    /// Reports something about this relay.
    pub(super) fn report(&mut self, about: impl FnOnce(RelayUrl) -> Report) {
        self.out.push(Output::Report(about(self.relay.clone())));
    }

    /// Pauses requests because the relay rate-limits us. Written at once, so that a restart keeps the pause.
    pub(super) fn pause_starts(&mut self) {
        let is_news = !self.history.pace.is_paused(self.now.mono);
        self.history.pace.refused(self.now.mono);
        if is_news {
            self.history.write_at = Some(self.now.mono);
        }
    }

    /// Suspends requests that the relay refuses.
    pub(super) fn suspend(&mut self, layer: Layer, mode: RequestMode) {
        self.history.suspended.suspend(self.now.mono, layer, mode);
        self.schedule_write();
    }

    /// Returns the layers whose history is suspended, and until when.
    pub(super) fn suspended_layers(&self) -> BTreeMap<Layer, Mono> {
        let layers = [Layer::Announcements, Layer::Repos, Layer::Roots];
        let until =
            |layer| match self.history.suspended.admit(self.mono(), layer, RequestMode::History) {
                Admit::Go => None,
                Admit::Wait(until) => Some((layer, until)),
            };
        layers.into_iter().filter_map(until).collect()
    }

    pub(super) fn report_status(&mut self) {
        let status = self.history.state.connection_status();
        self.report(|relay| Report::Status { relay, status });
    }

    /// Reports the number of interruptions since the last full pass, if it has changed.
    pub(super) fn report_interruptions(&mut self) {
        let times = self.history.interrupted;
        if std::mem::replace(&mut self.history.interrupted_reported, times) != times {
            self.report(|relay| Report::Interrupted { relay, times });
            self.schedule_write();
        }
    }

    /// Schedules the relay's record to be written.
    pub(super) fn schedule_write(&mut self) {
        let at = self.now.mono + self.shared.config.persist_after;
        self.history.write_at.get_or_insert(at);
    }
}
