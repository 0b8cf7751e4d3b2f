//! The requests of all hunts to git servers: each waits for a permit of its host, then for a slot.

use std::collections::BTreeMap;

use grasp_core::service::relay_of_clone_url;
use grasp_core::{CloneUrl, Host, Mono, RelayUrl, RepoId};
use tokio::sync::oneshot;

use super::HuntConfig;
use super::driver::HunterSender;
use super::hosts::{HostVisitId, Hosts, Permit};
use super::slots::Slots;

/// How a visit enters a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// Only if its limits allow a request now and nothing is queued.
    Immediate,
    /// By the queue of the host.
    Queued,
}

/// A request that waits for a permit of its host and a slot. Dropping it gives up the position in the queue.
pub(super) struct QueuedRequest {
    visit: HostVisitId,
    hunter: HunterSender,
    slot: oneshot::Receiver<RequestSlot>,
    /// The limits of the host do not allow the request now.
    pub(super) is_throttled: bool,
}

impl QueuedRequest {
    /// Begins a visit. `None` if the host may not be asked now, or its queue is full.
    pub(super) async fn admit(
        hunter: &HunterSender,
        url: &CloneUrl,
        repo: &RepoId,
        admission: Admission,
    ) -> Option<Self> {
        let visit = HostVisitId {
            host: url.host(),
            repo: repo.clone(),
        };
        let (reply, request) = Self::new(visit.clone(), hunter.clone());
        let url = url.clone();
        let is_admitted = hunter.ask(move |hunter, now| {
            let requests = &mut hunter.requests;
            requests.classify(now.mono, &url);
            requests.admit(now.mono, visit, admission, reply)
        });
        is_admitted.await.then_some(request)
    }

    fn new(visit: HostVisitId, hunter: HunterSender) -> (oneshot::Sender<RequestSlot>, Self) {
        let (reply, slot) = oneshot::channel();
        let request = Self {
            visit,
            hunter,
            slot,
            is_throttled: false,
        };
        (reply, request)
    }

    /// Waits until the request may start.
    pub(super) async fn slot(mut self) -> RequestSlot {
        match (&mut self.slot).await {
            Ok(slot) => slot,
            // The hunt is over, and with it this task.
            Err(_) => std::future::pending().await,
        }
    }
}

impl Drop for QueuedRequest {
    fn drop(&mut self) {
        let visit = self.visit.clone();
        self.hunter
            .send(move |hunter, now| hunter.requests.withdraw(now.mono, &visit));
    }
}

/// The right to make one request now. Its permit and slot are free again when it is dropped.
pub(super) struct RequestSlot {
    permit: Option<Permit>,
    hunter: HunterSender,
    overdue: oneshot::Receiver<()>,
}

impl RequestSlot {
    /// Waits until the request is overdue while another waits for its slot.
    pub(super) async fn is_overdue(&mut self) {
        if (&mut self.overdue).await.is_err() {
            std::future::pending().await
        }
    }

    /// Exchanges it for the next request of the same visit, before those of visits that have not begun.
    pub(super) async fn next(mut self) -> Option<QueuedRequest> {
        let permit = self.permit.take()?;
        let hunter = self.hunter.clone();
        let (reply, mut request) = QueuedRequest::new(permit.visit(), hunter);
        let is_throttled = self
            .hunter
            .ask(move |hunter, now| hunter.requests.continue_with(now.mono, permit, reply));
        request.is_throttled = is_throttled.await;
        Some(request)
    }

    /// Gives the request time for its objects: the server has begun to answer.
    pub(super) fn answered(&self, url: &CloneUrl) {
        let Some(permit) = &self.permit else { return };
        let visit = permit.visit();
        let url = url.clone();
        self.hunter.send(move |hunter, now| {
            let time_factor = hunter.memory.time_factor(&url);
            let slots = &mut hunter.requests.slots;
            slots.answered(now.mono, &visit, time_factor);
        });
    }
}

impl Drop for RequestSlot {
    fn drop(&mut self) {
        if let Some(permit) = self.permit.take() {
            self.hunter
                .send(move |hunter, now| hunter.requests.end(now.mono, permit));
        }
    }
}

/// The limits of requests, and the tasks that wait for them.
pub(super) struct Requests {
    pub(super) hosts: Hosts,
    slots: Slots,
    /// Requests that wait for a permit or a slot.
    waiting: BTreeMap<HostVisitId, WaitingRequest>,
    /// Requests under way, with the channel that tells each that it is overdue.
    running: BTreeMap<HostVisitId, oneshot::Sender<()>>,
    /// Hosts to classify, each with the relay that it has if it is a GRASP server.
    pub(super) unclassified: Vec<(Host, RelayUrl)>,
    hunter: HunterSender,
}

struct WaitingRequest {
    reply: oneshot::Sender<RequestSlot>,
    /// An earlier request of its visit was made.
    has_begun: bool,
}

impl Requests {
    pub(super) fn new(config: &HuntConfig, hunter: HunterSender) -> Self {
        Self {
            hosts: Hosts::new(config),
            slots: Slots::new(config),
            waiting: BTreeMap::new(),
            running: BTreeMap::new(),
            unclassified: Vec::new(),
            hunter,
        }
    }

    /// Returns the number of requests under way.
    pub(super) fn in_flight(&self) -> usize {
        self.slots.in_use()
    }

    /// Returns the time of the next [`advance`](Self::advance), if time alone allows or ends a request.
    pub(super) fn next_deadline(&self) -> Option<Mono> {
        let permit = self.hosts.next_deadline();
        permit.into_iter().chain(self.slots.next_deadline()).min()
    }

    /// Starts the requests that may start now, and ends those that are overdue.
    pub(super) fn advance(&mut self, now: Mono) {
        let permits = self.hosts.due(now);
        self.grant(now, permits);
        while let Some(permit) = self.slots.start(now) {
            let visit = permit.visit();
            let (is_overdue, overdue) = oneshot::channel();
            let slot = RequestSlot {
                permit: Some(permit),
                hunter: self.hunter.clone(),
                overdue,
            };
            // A slot that no visit takes is dropped, and free again.
            if let Some(waiting) = self.waiting.remove(&visit)
                && waiting.reply.send(slot).is_ok()
            {
                self.running.insert(visit, is_overdue);
            }
        }
        while let Some(visit) = self.slots.next_overdue(now) {
            if let Some(is_overdue) = self.running.remove(&visit) {
                let _ = is_overdue.send(());
            }
        }
    }

    /// Lets the requests that these permits are for wait for a slot.
    pub(super) fn grant(&mut self, now: Mono, permits: Vec<Permit>) {
        for permit in permits {
            if let Some(waiting) = self.waiting.get(&permit.visit()) {
                self.slots.push(permit, waiting.has_begun);
            } else {
                self.release(now, permit);
            }
        }
    }

    fn release(&mut self, now: Mono, permit: Permit) {
        let permits = self.hosts.release(now, permit);
        self.grant(now, permits);
    }

    fn admit(
        &mut self,
        now: Mono,
        visit: HostVisitId,
        admission: Admission,
        reply: oneshot::Sender<RequestSlot>,
    ) -> bool {
        let permits = match admission {
            Admission::Immediate => {
                let permit = self.hosts.admit(now, &visit.host, &visit.repo);
                permit.map(|permit| vec![permit])
            }
            Admission::Queued => self.hosts.enqueue(now, &visit.host, &visit.repo),
        };
        let Some(permits) = permits else {
            return false;
        };
        self.wait(now, visit, reply, permits, false);
        true
    }

    /// Exchanges the permit of a request for that of the next. Returns whether the host does not allow it now.
    fn continue_with(
        &mut self,
        now: Mono,
        permit: Permit,
        reply: oneshot::Sender<RequestSlot>,
    ) -> bool {
        let visit = permit.visit();
        self.running.remove(&visit);
        self.slots.end(&visit);
        let permits = self.hosts.continue_with(now, permit);
        let is_granted = permits.iter().any(|permit| permit.visit() == visit);
        self.wait(now, visit, reply, permits, true);
        !is_granted
    }

    fn wait(
        &mut self,
        now: Mono,
        visit: HostVisitId,
        reply: oneshot::Sender<RequestSlot>,
        permits: Vec<Permit>,
        has_begun: bool,
    ) {
        let waiting = WaitingRequest { reply, has_begun };
        self.waiting.insert(visit, waiting);
        self.grant(now, permits);
    }

    fn end(&mut self, now: Mono, permit: Permit) {
        let visit = permit.visit();
        self.running.remove(&visit);
        self.slots.end(&visit);
        self.release(now, permit);
    }

    /// Removes a request that waits.
    fn withdraw(&mut self, now: Mono, visit: &HostVisitId) {
        if self.waiting.remove(visit).is_none() {
            return;
        }
        self.hosts.withdraw(&visit.host, &visit.repo);
        if let Some(permit) = self.slots.withdraw(visit) {
            self.release(now, permit);
        }
    }

    /// Has a host classified, if its address is one that GRASP servers have and its class is unknown.
    ///
    /// Only the root of a host is trusted: below it, hosts serve documents of their users.
    fn classify(&mut self, now: Mono, url: &CloneUrl) {
        let Some(relay) = relay_of_clone_url(url) else {
            return;
        };
        let is_root = relay.as_str().matches('/').count() == 2;
        let host = url.host();
        if is_root && self.hosts.must_classify(now, &host) {
            self.unclassified.push((host, relay));
        }
    }
}
