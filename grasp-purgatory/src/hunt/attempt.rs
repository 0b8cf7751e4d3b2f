//! The hunt for one repository: attempts, each of which asks one server after the other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use grasp_core::{CloneUrl, Host, RepoId};
use tokio::sync::{mpsc, watch};
use tokio::task::{Id, JoinError, JoinSet};

use super::driver::HuntShared;
use super::plan::HuntNeeds;
use super::requests::{Admission, QueuedRequest};
use super::schedule::End;
use super::visit::{Visit, VisitProgress};
use super::{FetchError, HuntReport, Scope, SyncContext};
use crate::purgatory::Want;

/// Addresses tried in one attempt; the next attempt goes on with those tried longest ago.
const MAX_ADDRESSES_PER_ATTEMPT: usize = 64;

/// Slow servers at which an attempt asks no further one beside them.
const MAX_SLOW_VISITS: usize = 4;

/// The hunt for one repository. Outlives an attempt while servers are slow.
pub(super) struct Hunt<C> {
    shared: Arc<HuntShared<C>>,
    repo: RepoId,
    /// What is wanted. Visits remove what has arrived.
    needs: watch::Sender<HuntNeeds>,
    /// Addresses of the present attempt, in order.
    addresses: Vec<CloneUrl>,
    /// Addresses that the present attempt has tried or queued; those with a visit of an earlier attempt are among them.
    tried: BTreeSet<CloneUrl>,
    /// At most one for each host.
    visits: BTreeMap<Host, VisitTask>,
    tasks: JoinSet<()>,
    progress: mpsc::UnboundedReceiver<(Host, VisitProgress)>,
    /// Given to each visit.
    progress_sender: mpsc::UnboundedSender<(Host, VisitProgress)>,
}

struct VisitTask {
    url: CloneUrl,
    progress: VisitProgress,
    id: Id,
}

impl<C: SyncContext> Hunt<C> {
    pub(super) fn new(shared: Arc<HuntShared<C>>, repo: RepoId) -> Self {
        let (progress_sender, progress) = mpsc::unbounded_channel();
        Self {
            shared,
            repo,
            needs: watch::Sender::default(),
            addresses: Vec::new(),
            tried: BTreeSet::new(),
            visits: BTreeMap::new(),
            tasks: JoinSet::new(),
            progress,
            progress_sender,
        }
    }

    /// Makes an attempt for each scope that is received, until there is nothing left to do.
    pub(super) async fn run(mut self, mut attempts: mpsc::UnboundedReceiver<Scope>) {
        let mut next = attempts.recv().await;
        while let Some(scope) = next {
            tokio::select! {
                biased;
                end = self.attempt(scope) => self.end(end).await,
                // The attempt waits for its turn at some servers, and it is time to ask the others again.
                again = attempts.recv() => {
                    next = again;
                    continue;
                }
            }
            next = self.rest(&mut attempts).await;
        }
    }

    /// Asks one server after the other for what is missing, until everything has arrived or each was asked.
    async fn attempt(&mut self, scope: Scope) -> End {
        let Some(wants) = self.read_wants(scope).await else {
            return End::Wanting;
        };
        let needs = HuntNeeds::new(wants);
        if needs.is_empty() {
            return End::Needless;
        }
        self.choose_addresses(needs).await;
        // Servers that may be asked now. One that is slow is no longer waited for.
        while self.has_asked_visit() || self.ask_next(Admission::Immediate).await {
            self.changed().await;
            if self.needs.borrow().is_empty() {
                return End::Satisfied;
            }
        }
        // Servers whose limits are used up. The attempt has not failed before each was asked.
        let were_asked = self.tried.len() > self.visits.len();
        let mut is_reported = false;
        loop {
            while self.ask_next(Admission::Queued).await {}
            if !self.has_queued_visit() {
                break;
            }
            if !is_reported {
                self.wait_for_hosts(were_asked).await;
                is_reported = true;
            }
            self.changed().await;
            if self.needs.borrow().is_empty() {
                return End::Satisfied;
            }
        }
        if self.needs.borrow().is_pressing() {
            End::Wanting
        } else {
            End::Later
        }
    }

    /// Reports the end of an attempt. If nothing is wanted any more, the remaining requests are cancelled.
    async fn end(&mut self, end: End) {
        if matches!(end, End::Satisfied | End::Needless) {
            self.tasks.shutdown().await;
            self.visits.clear();
            while self.progress.try_recv().is_ok() {}
        }
        let repo = self.repo.clone();
        let report = self
            .shared
            .hunter
            .ask(move |hunter, now| hunter.end_attempt(now.mono, &repo, end))
            .await;
        if let Some(report) = report {
            self.shared.context.report(&report);
        }
    }

    /// Waits for the next attempt. Slow visits continue meanwhile, and may bring what is missing.
    async fn rest(&mut self, attempts: &mut mpsc::UnboundedReceiver<Scope>) -> Option<Scope> {
        while !self.visits.is_empty() {
            tokio::select! {
                biased;
                next = attempts.recv() => return next,
                () = self.changed() => {}
            }
            if self.needs.borrow().is_empty() {
                self.end(End::Satisfied).await;
            }
        }
        let repo = self.repo.clone();
        self.shared.hunter.send(move |hunter, _| hunter.rest(&repo));
        attempts.recv().await
    }

    async fn read_wants(&self, scope: Scope) -> Option<Vec<Want>> {
        let _slot = self.shared.reads.acquire().await;
        Box::pin(self.shared.context.wants(&self.repo, scope)).await
    }

    /// Begins to look for these needs, at the addresses of this attempt.
    async fn choose_addresses(&mut self, needs: HuntNeeds) {
        let wanted = needs.clone();
        self.addresses = self
            .shared
            .hunter
            .ask(move |hunter, now| {
                needs.places(&hunter.memory, MAX_ADDRESSES_PER_ATTEMPT, now.mono)
            })
            .await;
        self.tried = self
            .visits
            .values()
            .map(|visit| visit.url.clone())
            .collect();
        self.needs.send_replace(wanted);
    }

    /// Begins a visit to the first address that admits it. Returns `false` if there is none.
    async fn ask_next(&mut self, admission: Admission) -> bool {
        let mut refusing = BTreeSet::new();
        while let Some(url) = self.next_address(&refusing) {
            let hunter = &self.shared.hunter;
            let request = QueuedRequest::admit(hunter, &url, &self.repo, admission).await;
            if let Some(request) = request {
                self.begin_visit(url, request, admission);
                return true;
            }
            refusing.insert(url.host());
        }
        false
    }

    /// Returns the first address that was not tried, on a host without a visit, and may have a wanted object.
    fn next_address(&self, refusing: &BTreeSet<Host>) -> Option<CloneUrl> {
        let needs = self.needs.borrow();
        let mut addresses = self.addresses.iter();
        let next = addresses.find(|url| {
            let host = url.host();
            !self.tried.contains(*url)
                && !self.visits.contains_key(&host)
                && !refusing.contains(&host)
                && needs.has_any(url)
        });
        next.cloned()
    }

    fn begin_visit(&mut self, url: CloneUrl, request: QueuedRequest, admission: Admission) {
        let visit = Visit {
            shared: self.shared.clone(),
            repo: self.repo.clone(),
            url: url.clone(),
            needs: self.needs.clone(),
            progress: self.progress_sender.clone(),
        };
        let id = self.tasks.spawn(visit.run(request)).id();
        self.tried.insert(url.clone());
        let progress = match admission {
            Admission::Immediate => VisitProgress::Asked,
            Admission::Queued => VisitProgress::Queued,
        };
        let host = url.host();
        self.visits.insert(host, VisitTask { url, progress, id });
    }

    /// Waits until a visit makes progress or ends, or everything has arrived.
    async fn changed(&mut self) {
        let mut needs = self.needs.subscribe();
        tokio::select! {
            biased;
            _ = needs.wait_for(HuntNeeds::is_empty) => {}
            Some((host, progress)) = self.progress.recv() => {
                if let Some(visit) = self.visits.get_mut(&host) {
                    visit.progress = progress;
                }
            }
            Some(ended) = self.tasks.join_next_with_id() => self.visit_ended(ended),
        }
    }

    /// Removes a visit. One that panicked is a failure of this server.
    fn visit_ended(&mut self, ended: Result<(Id, ()), JoinError>) {
        let id = match &ended {
            Ok((id, ())) => *id,
            Err(error) => error.id(),
        };
        let mut hosts = self.visits.iter();
        let host = hosts.find(|(_, visit)| visit.id == id);
        let Some(host) = host.map(|(host, _)| host.clone()) else {
            return;
        };
        let visit = self.visits.remove(&host);
        if let (Some(visit), Err(error)) = (visit, ended) {
            self.shared.context.report(&HuntReport::Failed {
                repo: self.repo.clone(),
                url: visit.url,
                error: FetchError::Internal(error.to_string()),
            });
        }
    }

    /// Notes that servers are left to be asked, once their limits allow it.
    async fn wait_for_hosts(&self, were_asked: bool) {
        let repo = self.repo.clone();
        self.shared
            .hunter
            .ask(move |hunter, now| {
                let schedule = &mut hunter.schedule;
                schedule.wait_for_hosts(now.mono, &repo, were_asked);
            })
            .await;
        self.shared.context.report(&HuntReport::WaitingForHosts {
            repo: self.repo.clone(),
        });
    }

    /// Returns whether the attempt waits for a server: one that is not slow yet, or too many that are.
    fn has_asked_visit(&self) -> bool {
        self.count(VisitProgress::Asked) > 0 || self.count(VisitProgress::Slow) >= MAX_SLOW_VISITS
    }

    fn has_queued_visit(&self) -> bool {
        self.count(VisitProgress::Queued) > 0
    }

    fn count(&self, progress: VisitProgress) -> usize {
        self.visits
            .values()
            .filter(|visit| visit.progress == progress)
            .count()
    }
}
