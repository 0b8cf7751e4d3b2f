//! Invariants of one connection, checked in tests.

use std::collections::BTreeSet;

use grasp_core::RelayUrl;

use super::super::batch::Purpose;
use super::super::check::CLASSES;
use super::super::history::Phase;
use super::super::ids::JobId;
use super::session::Session;
use super::standing::Standing;
use super::subs::Serves;

impl Session {
    pub(in crate::engine) fn has_job(&self, id: JobId) -> bool {
        self.jobs.contains_key(&id)
    }

    pub(in crate::engine) fn check(&self, url: &RelayUrl, standing: &Standing, batches: usize) {
        let ledger = &standing.ledger;
        assert_eq!(ledger.in_use(), self.subs.len(), "{url}: each slot has its subscription");
        assert!(ledger.in_use() <= ledger.total(), "{url}: more subscriptions than allowed");
        for class in CLASSES {
            let (used, limit) = (ledger.in_use_by(class), ledger.class_limit(class));
            // A lowered budget ends no fetch that is under way; live requests are polled at once.
            let may_exceed = class != grasp_core::limits::SlotClass::Live;
            assert!(used <= limit || may_exceed, "{url}: {used} of {limit} {class:?}");
        }
        self.check_served(url);
        self.check_jobs(url);
        let groups = self.groups.values();
        let of_batches = groups.filter(|group| matches!(group.purpose, Purpose::Batch(_)));
        assert_eq!(of_batches.count(), batches, "{url}: each batch has its group");
    }

    /// Checks that every subscription is known to its user, and has a timeout.
    fn check_served(&self, url: &RelayUrl) {
        for (sub, open) in self.subs.iter() {
            let is_known = match &open.serves {
                Serves::Live(id) => {
                    self.live.wanted.get(id).is_some_and(|one| one.sub() == Some(sub))
                }
                Serves::Pages(jobs) => jobs.iter().any(|id| self.is_open_for(sub, *id)),
                Serves::Neg(id) => self.is_open_for(sub, *id),
                Serves::Ids => true,
            };
            assert!(is_known, "{url}: {sub} serves nobody");
            let is_live = matches!(open.serves, Serves::Live(_)) && open.is_answered;
            assert!(is_live || open.is_watched(), "{url}: {sub} may never end");
        }
        let open: BTreeSet<_> = self.subs.iter().map(|(sub, _)| sub).collect();
        let jobs = self.jobs.values().filter_map(|job| job.sub());
        let live = self.live.wanted.values().filter_map(|one| one.sub());
        assert!(jobs.chain(live).all(|sub| open.contains(&sub)), "{url}: a subscription is lost");
    }

    /// Checks that every job is where its phase says, and belongs to a group.
    fn check_jobs(&self, url: &RelayUrl) {
        for (id, job) in &self.jobs {
            assert!(self.groups.contains_key(&job.group), "{url}: a job without a group");
            let in_line = |method| {
                let line = self.lines.get(&method);
                line.is_some_and(|line| line.iter().any(|(_, waiting)| waiting == id))
            };
            match &job.phase {
                Phase::Queued(method) => assert!(in_line(*method), "{url}: a job in no line"),
                Phase::Resting { until, .. } => {
                    assert!(self.resting.contains(&(*until, *id)), "{url}: a job rests for ever");
                }
                Phase::Settling => assert!(!job.is_settled(), "{url}: a job that has not ended"),
                _ => {}
            }
        }
        for (method, line) in &self.lines {
            for (_, id) in line {
                let phase = self.jobs.get(id).map(|job| &job.phase);
                let is_right = matches!(phase, Some(Phase::Queued(queued)) if queued == method);
                assert!(is_right, "{url}: a stranger in line");
            }
        }
    }
}
