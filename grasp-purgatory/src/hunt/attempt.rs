//! One attempt for one repository: the next server to ask, and the end.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use grasp_core::service::relay_of_clone_url;
use grasp_core::{CloneUrl, Host, RelayUrl, RepoId};

use super::plan::Needs;
use super::schedule::End;
use super::visit::{Role, Visit, VisitState};
use super::{HostClass, HuntReport, Hunter, Output, RequestId};
use crate::purgatory::Want;

/// Addresses tried in one attempt; the next attempt goes on with those tried longest ago.
const MAX_ADDRESSES_PER_ATTEMPT: usize = 64;

/// Slow servers that an attempt leaves behind before it waits for one of them.
const MAX_LATE_VISITS: usize = 3;

/// Time without an answer after which a request is cancelled.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// The hunt for one repository. Outlives an attempt while a visit runs or is queued.
#[derive(Debug, Default)]
pub(super) struct Hunt {
    pub(super) needs: Needs,
    /// Addresses of the present attempt, in order.
    places: Vec<CloneUrl>,
    /// Addresses that the present attempt has tried or queued; those with a visit of an earlier attempt are among them.
    tried: BTreeSet<CloneUrl>,
    /// At most one for each host.
    pub(super) visits: BTreeMap<Host, Visit>,
}

impl Hunter {
    pub(super) fn on_wants_read(&mut self, repo: &RepoId, wants: Option<Vec<Want>>) {
        if !self.schedule.is_running(repo) {
            return;
        }
        let Some(wants) = wants else {
            return self.end_attempt(repo, End::Wanting);
        };
        let needs = Needs::new(wants);
        if needs.is_empty() {
            let end = self.schedule.needless(repo);
            return self.satisfy(repo, end);
        }
        let places = needs.places(&self.memory, MAX_ADDRESSES_PER_ATTEMPT, self.now.mono);
        let hunt = self.hunts.entry(repo.clone()).or_default();
        hunt.tried = hunt
            .visits
            .values()
            .map(|visit| visit.url.clone())
            .collect();
        (hunt.needs, hunt.places) = (needs, places);
        self.ask_next(repo);
    }

    /// Asks the next server that may be asked now. Without one it queues visits with those that may be asked later,
    /// and is over once these were asked; those that are late it leaves to themselves.
    pub(super) fn ask_next(&mut self, repo: &RepoId) {
        let Some(hunt) = self.hunts.get(repo) else {
            return;
        };
        if hunt.awaits_visit() || !self.schedule.is_running(repo) {
            return;
        }
        let mut throttled = BTreeSet::new();
        while let Some(url) = self.next_place(repo, |host| !throttled.contains(host)) {
            let host = url.host();
            if let Some(permit) = self.hosts.admit(self.now.mono, &host, repo) {
                self.add_visit(repo, url, Role::Awaited);
                return self.grant(vec![permit]);
            }
            throttled.insert(host);
        }
        self.enqueue_with_hosts(repo);
        let Some(hunt) = self.hunts.get(repo) else {
            return;
        };
        if hunt.has_queued_visit() {
            // Each visit is to an address that counts as tried.
            let were_asked = hunt.tried.len() > hunt.visits.len();
            self.schedule
                .wait_for_hosts(self.now.mono, repo, were_asked);
            self.report(HuntReport::WaitingForHosts { repo: repo.clone() });
        } else {
            self.give_up_attempt(repo);
        }
    }

    /// Returns the next address to try on the hosts that may be asked, and has its host classified.
    fn next_place(&mut self, repo: &RepoId, may_ask: impl Fn(&Host) -> bool) -> Option<CloneUrl> {
        let url = self.hunts.get(repo)?.next_place(may_ask)?.clone();
        self.classify(&url);
        Some(url)
    }

    fn add_visit(&mut self, repo: &RepoId, url: CloneUrl, role: Role) {
        if let Some(hunt) = self.hunts.get_mut(repo) {
            hunt.tried.insert(url.clone());
            hunt.visits.insert(url.host(), Visit::new(url, role));
        }
    }

    /// Ends an attempt for which every server was asked and something is left.
    fn give_up_attempt(&mut self, repo: &RepoId) {
        let is_pressing = self
            .hunts
            .get(repo)
            .is_none_or(|hunt| hunt.needs.is_pressing());
        self.end_attempt(
            repo,
            if is_pressing {
                End::Wanting
            } else {
                End::Later
            },
        );
    }

    /// Ends an attempt whose queued visits are over.
    pub(super) fn end_if_all_asked(&mut self, repo: &RepoId) {
        let has_queued_visit = self.hunts.get(repo).is_some_and(Hunt::has_queued_visit);
        if self.schedule.waits_for_hosts(repo) && !has_queued_visit {
            self.give_up_attempt(repo);
        }
        self.forget_if_idle(repo);
    }

    /// Queues a visit with every host that could not be asked.
    fn enqueue_with_hosts(&mut self, repo: &RepoId) {
        let Some(hunt) = self.hunts.get(repo) else {
            return;
        };
        let untried = hunt.places.iter().filter(|url| !hunt.tried.contains(*url));
        let hosts: Vec<Host> = untried.map(CloneUrl::host).collect();
        for host in hosts {
            self.enqueue_with_host(repo, &host);
        }
    }

    /// Queues a visit to the next address of a host, unless one is under way there or the queue is full.
    pub(super) fn enqueue_with_host(&mut self, repo: &RepoId, host: &Host) {
        let Some(url) = self.next_place(repo, |other| other == host) else {
            return;
        };
        if let Some(permits) = self.hosts.enqueue(self.now.mono, host, repo) {
            self.add_visit(repo, url, Role::Queued);
            self.grant(permits);
        }
    }

    /// Handles a slow visit. One that began in the queue of its host is waited for no longer: every server was asked.
    pub(super) fn on_late(&mut self, request_id: RequestId) {
        let Some(request) = self.requests.get_mut(&request_id) else {
            return;
        };
        let limit = request.began + ANSWER_TIMEOUT;
        request.late_at = (!request.has_answered && self.now.mono < limit).then_some(limit);
        if !request.has_answered && request.late_at.is_none() {
            request.gives_way_at = None;
            return self.outputs.push(Output::Cancel { request_id });
        }
        let repo = request.permit.repo.clone();
        let hunt = self.hunts.get_mut(&repo);
        let visit = hunt.and_then(|hunt| hunt.visits.get_mut(&request.permit.host));
        let is_present = |visit: &&mut Visit| visit.state == VisitState::Running(request_id);
        let Some(visit) = visit.filter(is_present) else {
            return;
        };
        match visit.role {
            Role::Awaited => {
                visit.role = Role::Slow;
                self.ask_another(&repo);
            }
            Role::Queued => {
                visit.role = Role::Late;
                self.end_if_all_asked(&repo);
            }
            Role::Slow | Role::Late => {}
        }
    }

    /// Asks another server beside a slow visit, unless too many are slow.
    pub(super) fn ask_another(&mut self, repo: &RepoId) {
        let Some(hunt) = self.hunts.get_mut(repo) else {
            return;
        };
        let late = hunt
            .visits
            .values()
            .filter(|visit| visit.role == Role::Late)
            .count();
        let mut visits = hunt.visits.values_mut().filter(|_| late < MAX_LATE_VISITS);
        if let Some(visit) = visits.find(|visit| visit.role == Role::Slow) {
            visit.role = Role::Late;
            self.ask_next(repo);
        }
    }

    /// Cancels the remaining requests: every wanted object is here.
    pub(super) fn satisfy(&mut self, repo: &RepoId, end: End) {
        if let Some(hunt) = self.hunts.remove(repo) {
            self.cancel_visits(repo, &hunt);
        }
        if self.schedule.is_running(repo) || self.schedule.waits_for_hosts(repo) {
            self.end_attempt(repo, end);
        } else {
            // Between two attempts something may have come to be wanted that this hunt never knew of.
            self.schedule.satisfied(self.now.mono, repo);
        }
    }

    fn cancel_visits(&mut self, repo: &RepoId, hunt: &Hunt) {
        for (host, visit) in &hunt.visits {
            match visit.state {
                VisitState::Queued => self.hosts.withdraw(host, repo),
                VisitState::Ready => {}
                VisitState::Running(request_id) => {
                    // The one that brought the last object has ended.
                    let Some(request) = self.requests.get_mut(&request_id) else {
                        continue;
                    };
                    request.late_at = None;
                    self.outputs.push(Output::Cancel { request_id });
                }
            }
        }
        for permit in self.ready.withdraw(repo) {
            self.release(permit);
        }
    }

    fn end_attempt(&mut self, repo: &RepoId, end: End) {
        let next = self.schedule.ended(self.now.mono, repo, end);
        self.forget_if_idle(repo);
        let repo = repo.clone();
        let report = match end {
            End::Satisfied if next.is_none() => HuntReport::Complete { repo },
            End::Needless if next.is_none() => HuntReport::Needless { repo },
            _ => HuntReport::Incomplete {
                attempts: self.schedule.attempts(&repo),
                next: next.map(|next| next - self.now.mono),
                repo,
            },
        };
        self.done += u64::from(!matches!(report, HuntReport::Incomplete { .. }));
        self.report(report);
    }

    /// Drops the state of a repository without visits; the next attempt makes a new one.
    fn forget_if_idle(&mut self, repo: &RepoId) {
        let is_idle = self
            .hunts
            .get(repo)
            .is_some_and(|hunt| hunt.visits.is_empty());
        if is_idle && !self.schedule.is_running(repo) {
            self.hunts.remove(repo);
        }
    }

    pub(super) fn on_classified(&mut self, host: Host, class: Option<HostClass>) {
        let Some(class) = class else { return };
        let permits = self.hosts.classified(self.now.mono, &host, class);
        self.report(HuntReport::Classified { host, class });
        self.grant(permits);
    }

    /// Classifies a host, if its address is one that GRASP servers have and its class is unknown.
    ///
    /// Only the root of a host is trusted: below it, hosts serve documents of their users.
    fn classify(&mut self, url: &CloneUrl) {
        let is_root = |relay: &RelayUrl| relay.as_str().matches('/').count() == 2;
        let Some(relay) = relay_of_clone_url(url).filter(is_root) else {
            return;
        };
        if self.hosts.must_classify(self.now.mono, &url.host()) {
            self.outputs.push(Output::Classify {
                host: url.host(),
                relay,
            });
        }
    }
}

impl Hunt {
    /// Returns the first address that was not tried, on a host without a visit that may be asked, and may have a wanted
    /// object.
    fn next_place(&self, may_ask: impl Fn(&Host) -> bool) -> Option<&CloneUrl> {
        let is_open = |host: Host| !self.visits.contains_key(&host) && may_ask(&host);
        let untried = self.places.iter().filter(|url| !self.tried.contains(*url));
        untried
            .filter(|url| is_open(url.host()))
            .find(|url| self.needs.has_any(url))
    }

    /// Returns whether an attempt waits for a visit.
    pub(super) fn awaits_visit(&self) -> bool {
        self.visits.values().any(|visit| visit.role.is_awaited())
    }

    /// Returns whether a queued visit has not ended.
    fn has_queued_visit(&self) -> bool {
        self.visits.values().any(|visit| visit.role == Role::Queued)
    }
}

#[cfg(test)]
mod tests {
    use grasp_core::Oid;
    use nostr::event::EventId;

    use super::*;
    use crate::purgatory::Phase;

    const A: &str = "https://a.example.com/x.git";
    const B: &str = "https://b.example.com/x.git";

    fn url(text: &str) -> CloneUrl {
        text.parse().unwrap()
    }

    /// A hunt with two addresses, of which these were tried.
    fn hunt(tried: &[&str]) -> Hunt {
        let want = Want {
            id: EventId::from_byte_array([1; 32]),
            phase: Phase::Waiting,
            tips: vec![Oid::Sha1([1; 20])],
            trusted: vec![url(A), url(B)],
            untrusted: Vec::new(),
        };
        Hunt {
            needs: Needs::new(vec![want]),
            places: vec![url(A), url(B)],
            tried: tried.iter().map(|text| url(text)).collect(),
            visits: BTreeMap::new(),
        }
    }

    #[test]
    fn throttled_hosts_are_left_out() {
        assert_eq!(
            hunt(&[]).next_place(|host| *host != url(A).host()),
            Some(&url(B))
        );
    }

    #[test]
    fn tried_addresses_are_left_out() {
        assert_eq!(hunt(&[A]).next_place(|_| true), Some(&url(B)));
    }

    #[test]
    fn there_is_an_end_of_addresses() {
        assert_eq!(hunt(&[A]).next_place(|host| *host != url(B).host()), None);
    }

    #[test]
    fn addresses_that_have_nothing_wanted_are_left_out() {
        let mut hunt = hunt(&[]);
        hunt.needs.got(&BTreeSet::from([Oid::Sha1([1; 20])]));
        assert_eq!(hunt.next_place(|_| true), None);
    }
}
