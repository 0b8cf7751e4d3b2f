//! Slots of concurrent requests: repositories take turns for them, and a slow request ends when another waits.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use grasp_core::{Mono, RepoId};

use super::HuntConfig;
use super::hosts::{HostVisitId, Permit};

/// Time of a transfer after which its slot is overdue. Doubled each time that an address lost a slot in this way, so
/// that large transfers end eventually.
const FETCH_SLOT: Duration = Duration::from_secs(5 * 60);

/// The slots of requests, and the permits that wait for one.
///
/// The clock of a request starts when the request does, not when its permit is granted.
#[derive(Debug)]
pub(super) struct Slots {
    at_once: usize,
    /// Time without an answer after which a slot is overdue.
    answer_time: Duration,
    /// Each repository that waits, once, in the order in which they come up.
    round: VecDeque<RepoId>,
    waiting: BTreeMap<RepoId, VecDeque<Permit>>,
    /// The requests under way, each with the time from which it is overdue; `None` once it was told to end.
    running: BTreeMap<HostVisitId, Option<Mono>>,
}

impl Slots {
    pub(super) fn new(config: &HuntConfig) -> Self {
        Self {
            at_once: config.at_once.get(),
            answer_time: config.answer_is_late,
            round: VecDeque::new(),
            waiting: BTreeMap::new(),
            running: BTreeMap::new(),
        }
    }

    /// Queues a request. The next one of a visit that has begun comes before those of others.
    pub(super) fn push(&mut self, permit: Permit, has_begun: bool) {
        let waiting = self.waiting.entry(permit.repo.clone()).or_default();
        if has_begun {
            self.round.retain(|other| *other != permit.repo);
            self.round.push_front(permit.repo.clone());
            waiting.push_front(permit);
        } else {
            if waiting.is_empty() {
                self.round.push_back(permit.repo.clone());
            }
            waiting.push_back(permit);
        }
    }

    /// Takes a slot for the next request, if one is free.
    pub(super) fn start(&mut self, now: Mono) -> Option<Permit> {
        if self.running.len() >= self.at_once {
            return None;
        }
        let repo = self.round.pop_front()?;
        let waiting = self.waiting.get_mut(&repo)?;
        let next = waiting.pop_front()?;
        if waiting.is_empty() {
            self.waiting.remove(&repo);
        } else {
            self.round.push_back(repo);
        }
        self.running
            .insert(next.visit(), Some(now + self.answer_time));
        Some(next)
    }

    /// Gives a request time for its objects: its server has begun to answer.
    pub(super) fn answered(&mut self, now: Mono, visit: &HostVisitId, time_factor: u32) {
        if let Some(Some(overdue_at)) = self.running.get_mut(visit) {
            *overdue_at = now + FETCH_SLOT * time_factor;
        }
    }

    /// Frees the slot of a request that has ended.
    pub(super) fn end(&mut self, visit: &HostVisitId) {
        self.running.remove(visit);
    }

    /// Removes a waiting request, and returns its permit.
    #[must_use = "a permit that is not released stays taken"]
    pub(super) fn withdraw(&mut self, visit: &HostVisitId) -> Option<Permit> {
        let waiting = self.waiting.get_mut(&visit.repo)?;
        let position = waiting
            .iter()
            .position(|permit| permit.host == visit.host)?;
        let permit = waiting.remove(position);
        if waiting.is_empty() {
            self.waiting.remove(&visit.repo);
            self.round.retain(|repo| *repo != visit.repo);
        }
        permit
    }

    /// Returns a request that is to end because it is overdue and another waits; each only once.
    pub(super) fn next_overdue(&mut self, now: Mono) -> Option<HostVisitId> {
        if self.next_deadline()? > now {
            return None;
        }
        let times = self.running.iter_mut();
        let overdue = times.filter(|(_, overdue_at)| overdue_at.is_some());
        let (visit, overdue_at) = overdue.min_by_key(|(_, overdue_at)| **overdue_at)?;
        *overdue_at = None;
        Some(visit.clone())
    }

    /// Returns the time at which the next request is overdue, if one waits for its slot.
    pub(super) fn next_deadline(&self) -> Option<Mono> {
        let ending = self.running.values().filter(|at| at.is_none()).count();
        // Each request that was told to end makes a slot free.
        if self.round.len() <= ending {
            return None;
        }
        self.running.values().flatten().min().copied()
    }

    /// Returns the number of requests under way.
    pub(super) fn in_use(&self) -> usize {
        self.running.len()
    }
}

#[cfg(test)]
mod tests {
    use grasp_core::Host;
    use nostr::key::PublicKey;
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::hosts::Hosts;
    use super::*;

    const LATE: Duration = Duration::from_secs(5);

    fn slots(at_once: usize, requests: &[&str]) -> Slots {
        let mut slots = Slots::new(&HuntConfig {
            at_once: at_once.try_into().unwrap(),
            ..HuntConfig::default()
        });
        for (n, name) in requests.iter().enumerate() {
            slots.push(permit(name, n), false);
        }
        slots
    }

    /// Returns a permit of the n-th host.
    fn permit(name: &str, n: usize) -> Permit {
        let mut hosts = Hosts::new(&HuntConfig::default());
        let host: Host = format!("h{n}.example.com").parse().unwrap();
        let owner = PublicKey::from_byte_array([1; 32]);
        let repo = RepoId::new(owner, name.parse().unwrap());
        let permit = hosts.admit(Mono::ZERO, &host, &repo);
        permit.expect("no request was sent yet")
    }

    /// Ends each request as soon as it starts, and returns the order of their repositories.
    fn order(mut slots: Slots) -> Vec<String> {
        let mut order = Vec::new();
        while let Some(permit) = slots.start(Mono::ZERO) {
            order.push(permit.repo.identifier.to_string());
            slots.end(&permit.visit());
        }
        order
    }

    #[test]
    fn repositories_take_turns_independent_of_their_number_of_requests() {
        let slots = slots(1, &["a", "a", "a", "b", "c"]);
        assert_eq!(order(slots), ["a", "b", "c", "a", "a"]);
    }

    #[test]
    fn a_visit_that_has_begun_continues_before_others_begin() {
        let mut slots = slots(2, &["a", "b", "b"]);
        slots.push(permit("b", 7), true);
        let next = slots.start(Mono::ZERO).unwrap();
        assert_eq!(next.host.as_str(), "h7.example.com");
        assert_eq!(order(slots), ["a", "b", "b"]);
    }

    #[test]
    fn a_withdrawn_request_returns_its_permit_and_is_not_started() {
        let mut slots = slots(1, &["a", "b"]);
        let visit = permit("a", 0).visit();
        assert_eq!(slots.withdraw(&visit), Some(permit("a", 0)));
        assert_eq!(slots.withdraw(&visit), None);
        assert_eq!(order(slots), ["b"]);
    }

    #[test]
    fn a_silent_request_is_overdue_once_and_only_if_another_waits() {
        let mut slots = slots(1, &["a"]);
        let running = slots.start(Mono::ZERO).unwrap().visit();
        assert_eq!(slots.next_deadline(), None);
        slots.push(permit("b", 1), false);
        assert_eq!(slots.next_deadline(), Some(Mono::ZERO + LATE));
        assert_eq!(slots.next_overdue(Mono::from_secs(4)), None);
        assert_eq!(slots.next_overdue(Mono::ZERO + LATE), Some(running));
        slots.push(permit("c", 2), false);
        assert_eq!(slots.next_overdue(Mono::from_secs(60)), None);
    }

    #[test]
    fn a_transfer_has_five_minutes_and_twice_as_long_the_next_time() {
        for (time_factor, minutes) in [(1, 5), (2, 10)] {
            let mut slots = slots(1, &["a", "b"]);
            let running = slots.start(Mono::ZERO).unwrap().visit();
            slots.answered(Mono::from_secs(1), &running, time_factor);
            let overdue = Mono::from_secs(1 + 60 * minutes);
            assert_eq!(slots.next_deadline(), Some(overdue));
        }
    }

    proptest! {
        #[test]
        fn every_request_starts_in_the_end(acts in vec((0..4u8, any::<bool>()), 0..80)) {
            let mut slots = slots(3, &[]);
            let mut pushed = 0;
            let mut started = Vec::new();
            for (n, (name, is_push)) in acts.into_iter().enumerate() {
                if is_push {
                    slots.push(permit(&name.to_string(), n), false);
                    pushed += 1;
                } else if let Some(permit) = slots.start(Mono::ZERO) {
                    started.push(permit.visit());
                }
                prop_assert!(slots.in_use() <= 3);
            }
            for visit in &started {
                slots.end(visit);
            }
            prop_assert_eq!(started.len() + order(slots).len(), pushed);
        }
    }
}
