//! Invariants of one connection, checked in tests.

use std::collections::BTreeSet;

use grasp_core::RelayUrl;

use super::super::check::CLASSES;
use super::super::ids::JobId;
use super::super::job::Job;
use super::backlog::Backlog;
use super::history::RelayHistory;
use super::session::Session;
use super::subs::SubKind;
use crate::limits::SlotClass;

impl Session {
    pub(in crate::engine) fn has_job(&self, id: JobId) -> bool {
        self.backlog.jobs.contains_key(&id)
    }

    pub(in crate::engine) fn check(&self, url: &RelayUrl, history: &RelayHistory) {
        let ledger = &history.ledger;
        assert_eq!(
            ledger.in_use(),
            self.subs.iter().count(),
            "{url}: each slot has its subscription"
        );
        assert!(ledger.in_use() <= ledger.total(), "{url}: more subscriptions than allowed");
        for class in CLASSES {
            let (used, limit) = (ledger.in_use_by(class), ledger.class_limit(class));
            // A lowered budget ends no fetch that is under way; live requests are polled at once.
            let may_exceed = class != SlotClass::Live;
            assert!(used <= limit || may_exceed, "{url}: {used} of {limit} {class:?}");
        }
        self.check_subscriptions(url);
        self.backlog.check(url);
    }

    /// Checks that every subscription is known to its user, and has a timeout.
    fn check_subscriptions(&self, url: &RelayUrl) {
        for (sub, open) in self.subs.iter() {
            let is_known = match &open.kind {
                SubKind::Live(id) => {
                    self.live.requests.get(id).is_some_and(|one| one.sub() == Some(sub))
                }
                SubKind::Pages(jobs) => jobs.iter().any(|id| self.backlog.is_open_for(sub, *id)),
                SubKind::Neg(id) => self.backlog.is_open_for(sub, *id),
                SubKind::Ids => true,
            };
            assert!(is_known, "{url}: {sub} is unused");
            let is_live = matches!(open.kind, SubKind::Live(_)) && open.is_answered;
            assert!(is_live || open.is_watched(), "{url}: {sub} may never end");
        }
        let open: BTreeSet<_> = self.subs.iter().map(|(sub, _)| sub).collect();
        let jobs = self.backlog.jobs.values().filter_map(|job| job.sub());
        let live = self.live.requests.values().filter_map(|one| one.sub());
        assert!(jobs.chain(live).all(|sub| open.contains(&sub)), "{url}: a subscription is lost");
    }
}

impl Backlog {
    /// Panics unless every job is where its phase says, and belongs to a batch.
    fn check(&self, url: &RelayUrl) {
        for (id, batch) in &self.batches {
            let jobs = self.jobs_of(*id).count();
            assert!(jobs > 0 && batch.outstanding == jobs, "{url}: a batch has lost its jobs");
        }
        for (id, job) in &self.jobs {
            assert!(self.batches.contains_key(&job.batch), "{url}: a job without a batch");
            let is_queued = |method| {
                let mut queue = self.queues.get(&method).into_iter().flatten();
                queue.any(|(.., waiting)| waiting == id)
            };
            assert!(job.queued_for().is_none_or(is_queued), "{url}: a job in no queue");
            let waits = |(until, _)| self.backing_off.contains(&(until, *id));
            assert!(job.backoff().is_none_or(waits), "{url}: a job that is never woken");
            assert!(!job.is_complete(), "{url}: a job that has not ended");
        }
        for (method, queue) in &self.queues {
            let is_right = |id| self.jobs.get(id).and_then(Job::queued_for) == Some(*method);
            assert!(queue.iter().all(|(.., id)| is_right(id)), "{url}: a queued job is not queued");
        }
    }
}
