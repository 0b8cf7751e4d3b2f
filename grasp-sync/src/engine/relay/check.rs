//! Invariants of one connection, checked in tests.

use std::collections::BTreeSet;

use grasp_core::RelayUrl;

use super::super::check::CLASSES;
use super::super::ids::JobId;
use super::super::job::{JobPhase, Purpose};
use super::history::RelayHistory;
use super::session::Session;
use super::subs::SubKind;

impl Session {
    pub(in crate::engine) fn has_job(&self, id: JobId) -> bool {
        self.jobs.contains_key(&id)
    }

    pub(in crate::engine) fn check(&self, url: &RelayUrl, history: &RelayHistory, batches: usize) {
        let ledger = &history.ledger;
        assert_eq!(ledger.in_use(), self.subs.len(), "{url}: each slot has its subscription");
        assert!(ledger.in_use() <= ledger.total(), "{url}: more subscriptions than allowed");
        for class in CLASSES {
            let (used, limit) = (ledger.in_use_by(class), ledger.class_limit(class));
            // A lowered budget ends no fetch that is under way; live requests are polled at once.
            let may_exceed = class != crate::limits::SlotClass::Live;
            assert!(used <= limit || may_exceed, "{url}: {used} of {limit} {class:?}");
        }
        self.check_subscriptions(url);
        self.check_jobs(url);
        let groups = self.groups.values();
        let of_batches = groups.filter(|group| matches!(group.purpose, Purpose::Batch(_)));
        assert_eq!(of_batches.count(), batches, "{url}: each batch has its group");
    }

    /// Checks that every subscription is known to its user, and has a timeout.
    fn check_subscriptions(&self, url: &RelayUrl) {
        for (sub, open) in self.subs.iter() {
            let is_known = match &open.kind {
                SubKind::Live(id) => {
                    self.live.requests.get(id).is_some_and(|one| one.sub() == Some(sub))
                }
                SubKind::Pages(jobs) => jobs.iter().any(|id| self.is_open_for(sub, *id)),
                SubKind::Neg(id) => self.is_open_for(sub, *id),
                SubKind::Ids => true,
            };
            assert!(is_known, "{url}: {sub} is unused");
            let is_live = matches!(open.kind, SubKind::Live(_)) && open.is_answered;
            assert!(is_live || open.is_watched(), "{url}: {sub} may never end");
        }
        let open: BTreeSet<_> = self.subs.iter().map(|(sub, _)| sub).collect();
        let jobs = self.jobs.values().filter_map(|job| job.sub());
        let live = self.live.requests.values().filter_map(|one| one.sub());
        assert!(jobs.chain(live).all(|sub| open.contains(&sub)), "{url}: a subscription is lost");
    }

    /// Checks that every job is where its phase says, and belongs to a group.
    fn check_jobs(&self, url: &RelayUrl) {
        for (id, job) in &self.jobs {
            assert!(self.groups.contains_key(&job.group), "{url}: a job without a group");
            let in_line = |method| {
                let queue = self.queues.get(&method);
                queue.is_some_and(|queue| queue.iter().any(|(_, waiting)| waiting == id))
            };
            match &job.phase {
                JobPhase::Queued(method) => assert!(in_line(*method), "{url}: a job in no line"),
                JobPhase::BackingOff { until, .. } => {
                    assert!(
                        self.backing_off.contains(&(*until, *id)),
                        "{url}: a job rests for ever"
                    );
                }
                JobPhase::AwaitingJudgement => {
                    assert!(!job.is_complete(), "{url}: a job that has not ended")
                }
                _ => {}
            }
        }
        for (method, queue) in &self.queues {
            for (_, id) in queue {
                let phase = self.jobs.get(id).map(|job| &job.phase);
                let is_right = matches!(phase, Some(JobPhase::Queued(queued)) if queued == method);
                assert!(is_right, "{url}: a stranger in line");
            }
        }
    }
}
