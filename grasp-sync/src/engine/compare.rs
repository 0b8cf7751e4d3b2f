//! Compares sets with a relay (NIP-77): a session for each job, from our inventory to the ids that are missing here.

use crate::limits::{Refusal, SlotClass};
use grasp_core::limits::{Admit, PeerText};
use grasp_core::nostr::filter::Filter;

use super::fetch::has_room;
use super::filter::{Layer, wire_len};
use super::full_sync::max_offered;
use super::io::{Frame, InventoryFailed, InventoryId, JobId, Output, Report, Row, SubId};
use super::job::{Job, JobPhase, JobStep, Method};
use super::missing;
use super::reconcile::{Comparison, MAX_NEEDED, ReconcileStep, Reconciliation};
use super::relay::{Context, InventoryRequest};
use super::session::{ClosedBy, Session};
use super::subs::{Blocked, NEG_IDLE_TIMEOUT, NEG_OPEN_TIMEOUT, SubKind};
use super::suspended::RequestMode;

/// Items of local inventories held in memory; above it, history is fetched by pages. An item is 40 bytes.
const MAX_INVENTORY_ITEMS: usize = 1_000_000;
/// Ids offered by all relays and not fetched yet above which histories are paged instead of compared.
const MAX_WANTED_TOTAL: usize = 1_000_000;

impl Session {
    /// Starts a reconciliation by asking the local relay for its inventory.
    pub(super) fn start_reconciliation(
        &mut self,
        ctx: &mut Context<'_>,
        id: JobId,
    ) -> Result<(), Blocked> {
        let now = ctx.mono();
        let is_memory_full = ctx.shared.held_items.values().sum::<usize>() >= MAX_INVENTORY_ITEMS
            || ctx.shared.wanted >= MAX_WANTED_TOTAL;
        if ctx.history.neg.admit(now) != Admit::Go || is_memory_full {
            self.backlog.queue(id, Method::Page);
            return Ok(());
        }
        let ledger = &ctx.history.ledger;
        let is_full = ledger.in_use_by(SlotClass::Reconcile) >= self.max_neg_sessions;
        // What one comparison found is fetched before the next finds more.
        let is_behind = ctx.history.wants.len() >= MAX_NEEDED;
        if is_full || is_behind || !has_room(ledger, SlotClass::Reconcile) {
            return Err(Blocked::BySlots);
        }
        let Some(job) = self.backlog.get(id) else { return Ok(()) };
        let (filter, layer) = (job.filter(), job.layer);
        let bytes = wire_len(&filter) + 80;
        let sub = self.subs.open(ctx, SlotClass::Reconcile, bytes, SubKind::Neg(id))?;
        self.backlog.set_phase(id, JobPhase::Listing(sub));
        let request = ctx.shared.ids.next(InventoryId);
        ctx.history.suspended.sent(now, layer, RequestMode::History);
        ctx.shared.inventories.insert(request, InventoryRequest::Job(ctx.relay.clone(), id));
        ctx.out.push(Output::FetchInventory { request, filter: Box::new(filter) });
        self.backlog.merge_comparisons(id);
        Ok(())
    }

    /// Starts a comparison with the inventory of the local relay.
    pub(super) fn inventory(
        &mut self,
        ctx: &mut Context<'_>,
        id: JobId,
        items: Result<Vec<Row>, InventoryFailed>,
    ) {
        let full_sync = self.full_sync;
        let Some(job) = self.backlog.get_mut(id) else { return };
        let JobPhase::Listing(sub) = job.phase else { return };
        // With nothing to compare, pages bring more for each request, and requests are limited here.
        if ctx.history.profile.counts_frames && items.as_ref().is_ok_and(Vec::is_empty) {
            self.subs.close(ctx, sub);
            return self.backlog.queue(id, Method::Page);
        }
        let (since, until) = job.window();
        let is_within = |row: &Row| {
            since.is_none_or(|since| row.at >= since) && until.is_none_or(|until| row.at <= until)
        };
        let (original, layer) = (job.original_hash(), job.layer);
        let refused = ctx.shared.rejected.rows(&original).filter(is_within);
        let frame = ctx.history.profile.neg_frame;
        let (max_ids, max_items) = (max_offered(full_sync, layer), MAX_INVENTORY_ITEMS);
        let opened =
            items.ok().filter(|items| layer != Layer::All || items.len() <= max_items).and_then(
                |items| Reconciliation::open(items.into_iter().chain(refused), frame, max_ids),
            );
        let Some((reconciliation, first)) = opened else {
            self.subs.close(ctx, sub);
            return self.fail(ctx, id);
        };
        ctx.shared.held_items.insert(id, reconciliation.items());
        let (reconciliation, outgoing) = (Box::new(reconciliation), Some(first));
        job.phase = JobPhase::Comparing { sub, reconciliation, outgoing };
    }

    pub(super) fn neg_msg(&mut self, ctx: &mut Context<'_>, sub: SubId, message: &[u8]) {
        let Some(SubKind::Neg(id)) = self.subs.kind(sub) else { return };
        self.subs.answered(ctx.mono(), sub, NEG_IDLE_TIMEOUT);
        match self.backlog.get_mut(id).and_then(|job| job.receive(message)) {
            None | Some(ReconcileStep::Reply(_)) => {}
            Some(ReconcileStep::Done(found)) => self.compared(ctx, id, sub, found),
            Some(ReconcileStep::TooMuch) => {
                self.end_session(ctx, id, sub);
                self.split_by_time(ctx, id, Method::Reconcile);
            }
            Some(ReconcileStep::Broken) => {
                self.refused(ctx, sub, Refusal::NegProtocol, "", ClosedBy::Us);
            }
        }
    }

    /// Ends a session whose sets are compared, and wants the events that are missing here.
    fn compared(&mut self, ctx: &mut Context<'_>, id: JobId, sub: SubId, mut found: Comparison) {
        let Some(job) = self.backlog.get(id) else { return };
        let layer = job.layer;
        ctx.history.suspended.answered(layer, RequestMode::History);
        ctx.history.neg.fresh_start();
        if std::mem::take(&mut ctx.history.no_negentropy_reported) {
            ctx.report(|relay| Report::Negentropy { relay });
        }
        let needed = std::mem::take(&mut found.needed);
        // Polls compare every few minutes, and would dominate the count.
        if self.backlog.batch_of(id).is_some_and(|batch| batch.purpose.is_history()) {
            note_lacking(ctx, layer, &job.filter(), found);
        }
        if let Some(full_sync) = self.full_sync.as_mut().filter(|_| layer == Layer::All) {
            let took = self.subs.get(sub).map(|open| open.lasted(ctx.mono())).unwrap_or_default();
            full_sync.compared(ctx.mono(), took);
        }
        self.end_session(ctx, id, sub);
        let (now, wants) = (ctx.mono(), &mut ctx.history.wants);
        let results = needed.into_iter().map(|event| wants.want(now, event, Some(id)));
        let step = self.backlog.get_mut(id).map(|job| job.wants(results));
        step.into_iter().for_each(|step| self.take_step(ctx, id, step));
    }

    /// Closes the session of a job, and releases its inventory.
    pub(super) fn end_session(&mut self, ctx: &mut Context<'_>, id: JobId, sub: SubId) {
        self.subs.close(ctx, sub);
        self.backlog.forget_inventory(ctx, id);
    }

    pub(super) fn neg_refused(
        &mut self,
        ctx: &mut Context<'_>,
        id: JobId,
        refusal: Refusal,
        text: &str,
    ) {
        self.backlog.forget_inventory(ctx, id);
        let Some(job) = self.backlog.get_mut(id) else { return };
        let step = job.refused(refusal);
        match (&step, refusal) {
            (JobStep::NoNegentropy, _) => {
                if refusal == Refusal::NegUnsupported {
                    self.backlog.use_pages_only(ctx);
                    self.subs.close_all(ctx, |kind| matches!(kind, SubKind::Neg(_)));
                } else {
                    ctx.history.neg.failed(ctx.now.mono);
                }
                if !std::mem::replace(&mut ctx.history.no_negentropy_reported, true) {
                    let text = PeerText::new(text);
                    ctx.report(|relay| Report::NoNegentropy { relay, refusal, text });
                }
            }
            (JobStep::Queue(Method::Reconcile), Refusal::NegSessions) => {
                let open = ctx.history.ledger.in_use_by(SlotClass::Reconcile);
                self.max_neg_sessions = self.max_neg_sessions.min(open.max(1));
            }
            _ => {}
        }
        self.take_step(ctx, id, step);
    }

    /// Sends the next messages of the NIP-77 sessions under way.
    pub(super) fn send_neg_messages(&mut self, ctx: &mut Context<'_>) {
        let now = ctx.mono();
        for id in self.backlog.jobs_where(Job::has_neg_message) {
            let Some(job) = self.backlog.get_mut(id) else { continue };
            let is_opening =
                job.sub().and_then(|sub| self.subs.get(sub)).is_some_and(|open| !open.is_sent);
            let is_paced = is_opening || ctx.history.profile.counts_frames;
            if is_paced && ctx.history.pace.admit(now) != Admit::Go {
                return;
            }
            let Some((sub, message)) = job.take_neg_message() else { continue };
            let (frame, wait) = match is_opening {
                true => {
                    let filter = Box::new(job.filter());
                    (Frame::NegOpen { sub, filter, message }, NEG_OPEN_TIMEOUT)
                }
                false => (Frame::NegMsg { sub, message }, NEG_IDLE_TIMEOUT),
            };
            self.subs.sent(now, sub, wait);
            ctx.send(self.subs.conn, frame);
        }
    }
}

/// Notes our events that a relay lacks. In full sync it need not have all of them: those of its own repositories
/// count once they are attributed to one.
fn note_lacking(ctx: &mut Context<'_>, layer: Layer, filter: &Filter, found: Comparison) {
    let Comparison { items, lacking, lacking_ids, .. } = found;
    let health = &mut ctx.history.health;
    match layer {
        Layer::All => health.compared(items.saturating_sub(lacking), 0),
        Layer::Announcements | Layer::Repos | Layer::Roots => health.compared(items, lacking),
    }
    ctx.schedule_write();
    if !lacking_ids.is_empty() {
        let asked = missing::questions(&ctx.shared.index, ctx.relay, layer, filter, lacking_ids);
        missing::ask(ctx.shared, ctx.out, asked);
    }
}
