//! Many small live filters rebuilt as few full ones, without a moment in which nothing is remembered.

use grasp_core::sync::{PendingItems, RETENTION, build_layer2_and_layer3_filters};

use super::super::desk::Desk;
use super::super::ids::LiveId;
use super::super::report::Report;
use super::session::Session;
use super::whole::all;

impl Session {
    /// Listens to everything confirmed and everything under way in as few filters as will do.
    ///
    /// Called only when requests may be sent, and followed by sending at once. What came in between, or is still
    /// on its way, is delivered again, since the new requests reach back. Batches under way are not touched: they
    /// fetch history, and their items are listened to as before. Announcements keep their own subscription.
    pub(super) fn rebuild_live(&mut self, desk: &mut Desk<'_>) {
        self.live.rebuild = false;
        let before = self.live.filters();
        let filters = match self.whole {
            Some(_) => vec![all()],
            None => {
                let items = self.listened_items(desk);
                build_layer2_and_layer3_filters(&items, None, &self.budget)
            }
        };
        let after = filters.len();
        let now = desk.now.unix;
        let covered = self.live.items().map(|(_, one)| one.covered_until(now)).min();
        self.drop_live_items(desk);
        let from = Some(covered.unwrap_or(now) - RETENTION);
        self.live.add(&mut desk.shared.ids, now, filters, from, &self.budget);
        self.live.rebuilt = after;
        let relay = desk.relay.clone();
        desk.report(Report::Consolidated { relay, before, after });
    }

    fn listened_items(&self, desk: &mut Desk<'_>) -> PendingItems {
        let mut items = desk.state().map(|state| state.confirmed.clone()).unwrap_or_default();
        for batch in desk.batches().iter() {
            items.include(batch.items.clone());
        }
        items
    }

    /// Stops listening to items, announcements excepted.
    pub(super) fn drop_live_items(&mut self, desk: &mut Desk<'_>) {
        let items: Vec<_> = self.live.items().map(|(id, one)| (id, one.sub())).collect();
        for (id, sub) in items {
            if let Some(sub) = sub {
                self.close(desk, sub);
            }
            self.live.wanted.remove(&id);
            self.drop_poll(desk, id);
        }
        self.live.rebuilt = 0;
    }

    fn drop_poll(&mut self, desk: &mut Desk<'_>, live: LiveId) {
        use super::super::batch::Purpose;
        let group = self.groups.iter().find(|(_, one)| one.purpose == Purpose::Poll(live));
        let Some(group) = group.map(|(id, _)| *id) else { return };
        let jobs = self.jobs.iter().filter(|(_, job)| job.group == group);
        let jobs: Vec<_> = jobs.map(|(id, _)| *id).collect();
        for job in jobs {
            self.drop_job(desk, job);
        }
        self.groups.remove(&group);
    }
}
