//! The choice of servers, and of objects to request from each.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use grasp_core::{CloneUrl, Mono, Oid};

use super::FetchError;
use crate::purgatory::{Phase, Want};

/// Objects remembered for one address. What is over it is asked for again, within the budget for that.
const MAX_OIDS_PER_ADDRESS: usize = 4_096;

/// Time that missing objects of a server are remembered, while its advertisement stays the same.
const MISSING_OBJECTS_LIFETIME: Duration = Duration::from_secs(30 * 60);

/// Doublings of the time of one address.
const MAX_DOUBLINGS: u32 = 6;

/// Two advertisements with the same mark are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint(u64);

/// The relevant part of a server's advertisement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advertisement {
    /// Those of the wanted objects that a ref points at: a branch, a tag or `refs/nostr/<id>`.
    pub has: BTreeSet<Oid>,
    /// The whole of it in short.
    pub fingerprint: Fingerprint,
}

impl Advertisement {
    /// Reads refs one by one, keeping little of them.
    pub fn read<'a>(
        refs: impl IntoIterator<Item = (&'a str, Oid)>,
        wanted: &BTreeSet<Oid>,
    ) -> Self {
        let mut hasher = DefaultHasher::new();
        let mut has = BTreeSet::new();
        for (name, oid) in refs {
            (name, oid.as_bytes()).hash(&mut hasher);
            if wanted.contains(&oid) {
                has.insert(oid);
            }
        }
        Self {
            has,
            fingerprint: Fingerprint(hasher.finish()),
        }
    }
}

/// The wanted objects of one repository, and the servers that may have them.
#[derive(Clone, Debug, Default)]
pub(super) struct HuntNeeds {
    wants: Vec<Want>,
}

impl HuntNeeds {
    /// Creates the needs of these events.
    pub(super) fn new(wants: Vec<Want>) -> Self {
        let mut needs = Self { wants };
        needs.wants.retain(|want| !want.tips.is_empty());
        needs
    }

    /// Removes objects that have arrived.
    pub(super) fn got(&mut self, oids: &BTreeSet<Oid>) {
        self.wants
            .iter_mut()
            .for_each(|want| want.tips.retain(|tip| !oids.contains(tip)));
        self.wants.retain(|want| !want.tips.is_empty());
    }

    /// Returns whether nothing is wanted.
    pub(super) fn is_empty(&self) -> bool {
        self.wants.is_empty()
    }

    /// Returns whether an event waits, rather than being looked for once an hour.
    pub(super) fn is_pressing(&self) -> bool {
        self.wants.iter().any(|want| want.phase == Phase::Waiting)
    }

    /// Returns the objects to request from an address: the tips of events that name it, or whose repository does.
    pub(super) fn of(&self, url: &CloneUrl) -> BTreeSet<Oid> {
        let wants = self.wants.iter().filter(|want| is_named(want, url));
        wants.flat_map(|want| want.tips.iter().copied()).collect()
    }

    /// Returns whether an address may have a wanted object.
    pub(super) fn has_any(&self, url: &CloneUrl) -> bool {
        self.wants.iter().any(|want| is_named(want, url))
    }

    /// Returns the addresses of an attempt: those of the maintainers, then those that only the authors of
    /// pull requests say, those not visited for the longest time first.
    ///
    /// If that is too much for one attempt, it is the first of the keepers' and some of the others, so that many of
    /// them cannot keep us from any.
    pub(super) fn places(&self, memory: &AddressMemory, most: usize, now: Mono) -> Vec<CloneUrl> {
        let mut seen = BTreeSet::new();
        let trusted = self.wants.iter().flat_map(|want| &want.trusted);
        let mut places: Vec<_> = trusted.filter(|url| seen.insert(*url)).collect();
        let untrusted = self.wants.iter().flat_map(|want| &want.untrusted);
        let mut others: Vec<_> = untrusted.filter(|url| seen.insert(*url)).collect();
        others.sort_by_key(|url| memory.last_visit(url));
        let always = places.len().min(most.div_ceil(2));
        places.extend(others);
        if places.len() > most {
            let rest = places.split_off(always);
            places.extend(some(rest, most - always, memory, now));
        }
        places.into_iter().cloned().collect()
    }
}

/// So many of these, in their order: those not visited for the longest time, and any of those never visited.
fn some<'a>(
    urls: Vec<&'a CloneUrl>,
    count: usize,
    memory: &AddressMemory,
    now: Mono,
) -> impl Iterator<Item = &'a CloneUrl> {
    let draw = |url: &CloneUrl| {
        let mut hasher = DefaultHasher::new();
        (now.since_start(), url.as_str()).hash(&mut hasher);
        hasher.finish()
    };
    let mut ranked: Vec<_> = urls.into_iter().enumerate().collect();
    ranked.sort_by_cached_key(|(_, url)| (memory.last_visit(url), draw(url)));
    ranked.truncate(count);
    ranked.sort_by_key(|(position, _)| *position);
    ranked.into_iter().map(|(_, url)| url)
}

fn is_named(want: &Want, url: &CloneUrl) -> bool {
    want.trusted.contains(url) || want.untrusted.contains(url)
}

/// The objects to request from a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FetchPlan {
    /// All at once.
    pub batch: BTreeSet<Oid>,
    /// One by one, for one that the server does not have makes it refuse all others with it.
    pub guesses: Vec<Oid>,
}

/// The reason why an object is not requested from a server in the same way again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RequestFailure {
    /// Refused when it was requested without an advertisement.
    Refused,
    /// Requested with others without success; any of them may have been the cause.
    Doubted,
    /// Requested alone without success.
    Missed,
}

/// Objects that a request did not bring.
#[derive(Debug)]
pub(super) struct MissedObjects {
    oids: BTreeSet<Oid>,
    /// A single object was requested.
    was_alone: bool,
    /// The server refused them, rather than sending broken ones.
    is_refusal: bool,
}

impl MissedObjects {
    pub(super) fn new(
        asked: &BTreeSet<Oid>,
        got: &BTreeSet<Oid>,
        error: Option<&FetchError>,
    ) -> Self {
        Self {
            oids: asked.difference(got).copied().collect(),
            was_alone: asked.len() == 1,
            // A server that reports success and leaves objects out has refused them.
            is_refusal: matches!(error, None | Some(FetchError::Refused(_))),
        }
    }

    /// Returns the reason. A refusal without an advertisement is judged by what the server advertises afterwards.
    fn failure(&self, advertised_since: Option<&BTreeSet<Oid>>) -> RequestFailure {
        let Some(advertised) = advertised_since.filter(|_| self.is_refusal) else {
            return if self.was_alone {
                RequestFailure::Missed
            } else {
                RequestFailure::Doubted
            };
        };
        if self.was_alone && advertised.is_disjoint(&self.oids) {
            RequestFailure::Missed
        } else {
            RequestFailure::Refused
        }
    }
}

/// The objects that servers did not have, while their advertisements stay the same.
#[derive(Debug)]
pub(super) struct AddressMemory {
    most: usize,
    addresses: BTreeMap<CloneUrl, Remembered>,
}

#[derive(Debug, Default)]
struct Remembered {
    /// Time of the last visit.
    visited: Mono,
    /// The last advertisement, and the time since which it is known.
    advertised: Option<(Fingerprint, Mono)>,
    failures: BTreeMap<Oid, RequestFailure>,
    /// Transfers that were cancelled for waiting requests.
    gave_way: u32,
}

impl AddressMemory {
    /// Remembers nothing yet, and at most so many addresses.
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            addresses: BTreeMap::new(),
        }
    }

    /// Notes the beginning of a visit.
    pub(super) fn visited(&mut self, now: Mono, url: &CloneUrl) {
        if !self.addresses.contains_key(url) {
            self.make_room();
        }
        self.addresses.entry(url.clone()).or_default().visited = now;
    }

    /// A server was listed. What is remembered of another advertisement is worth nothing now.
    pub(super) fn listed(&mut self, now: Mono, url: &CloneUrl, fingerprint: Fingerprint) {
        let Some(remembered) = self.addresses.get_mut(url) else {
            return;
        };
        let holds = |(known, since): (Fingerprint, Mono)| {
            known == fingerprint && now - since < MISSING_OBJECTS_LIFETIME
        };
        if !remembered.advertised.is_some_and(holds) {
            remembered.advertised = Some((fingerprint, now));
            remembered.failures.clear();
        }
    }

    /// A server did not deliver objects that it was asked for, before or after an advertisement.
    pub(super) fn missed(
        &mut self,
        url: &CloneUrl,
        missed: MissedObjects,
        advertised_since: Option<&BTreeSet<Oid>>,
    ) {
        let failure = missed.failure(advertised_since);
        self.failed(url, missed.oids, failure);
    }

    /// Remembers failures. The graver of two reasons counts.
    fn failed(
        &mut self,
        url: &CloneUrl,
        oids: impl IntoIterator<Item = Oid>,
        failure: RequestFailure,
    ) {
        let Some(Remembered { failures, .. }) = self.addresses.get_mut(url) else {
            return;
        };
        for oid in oids {
            if failures.len() < MAX_OIDS_PER_ADDRESS || failures.contains_key(&oid) {
                let known = failures.entry(oid).or_insert(failure);
                *known = failure.max(*known);
            }
        }
    }

    /// Returns whether objects may be requested without an advertisement: the server has failed at none so far.
    pub(super) fn may_ask_directly(&self, url: &CloneUrl, wanted: &BTreeSet<Oid>) -> bool {
        let known = self.addresses.get(url);
        known.is_none_or(|known| !wanted.iter().any(|oid| known.failures.contains_key(oid)))
    }

    /// A transfer gave way to others. It may have been a large one, so it has twice the time from now on.
    pub(super) fn gave_way(&mut self, url: &CloneUrl) {
        if let Some(remembered) = self.addresses.get_mut(url) {
            remembered.gave_way = remembered.gave_way.saturating_add(1);
        }
    }

    /// Returns the factor of the time of a transfer.
    pub(super) fn time_factor(&self, url: &CloneUrl) -> u32 {
        let gave_way = self
            .addresses
            .get(url)
            .map_or(0, |remembered| remembered.gave_way);
        1 << gave_way.min(MAX_DOUBLINGS)
    }

    /// Returns the objects to request from a server that was just [listed](Self::listed).
    pub(super) fn plan(
        &self,
        url: &CloneUrl,
        wanted: &BTreeSet<Oid>,
        advertised: &Advertisement,
    ) -> FetchPlan {
        let mut plan = FetchPlan::default();
        let remembered = self.addresses.get(url);
        for oid in wanted {
            match remembered.and_then(|remembered| remembered.failures.get(oid)) {
                Some(RequestFailure::Missed) => {}
                None | Some(RequestFailure::Refused) if advertised.has.contains(oid) => {
                    plan.batch.insert(*oid);
                }
                _ => plan.guesses.push(*oid),
            }
        }
        plan
    }

    fn last_visit(&self, url: &CloneUrl) -> Option<Mono> {
        self.addresses.get(url).map(|remembered| remembered.visited)
    }

    fn make_room(&mut self) {
        while self.addresses.len() >= self.most.max(1) {
            let oldest = self
                .addresses
                .iter()
                .min_by_key(|(_, remembered)| remembered.visited);
            let Some(oldest) = oldest.map(|(url, _)| url.clone()) else {
                return;
            };
            self.addresses.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use nostr::event::EventId;

    use super::*;

    fn oid(n: u8) -> Oid {
        Oid::Sha1([n; 20])
    }

    fn oids(numbers: &[u8]) -> BTreeSet<Oid> {
        numbers.iter().map(|n| oid(*n)).collect()
    }

    fn url(text: &str) -> CloneUrl {
        text.parse().unwrap()
    }

    fn urls(texts: &[&str]) -> Vec<CloneUrl> {
        texts.iter().map(|text| url(text)).collect()
    }

    fn want(tips: &[u8], trusted: &[&str], untrusted: &[&str]) -> Want {
        Want {
            id: EventId::from_slice(&[tips[0]; 32]).unwrap(),
            phase: Phase::Waiting,
            tips: tips.iter().map(|n| oid(*n)).collect(),
            trusted: urls(trusted),
            untrusted: urls(untrusted),
        }
    }

    fn memory() -> AddressMemory {
        AddressMemory::new(4_096)
    }

    fn list(memory: &mut AddressMemory, second: u64, address: &str, fingerprint: Fingerprint) {
        memory.visited(Mono::from_secs(second), &url(address));
        memory.listed(Mono::from_secs(second), &url(address), fingerprint);
    }

    const A: &str = "https://a.example.com/x.git";
    const B: &str = "https://b.example.com/x.git";
    const C: &str = "https://c.example.com/x.git";

    #[test]
    fn addresses_of_maintainers_come_first_and_those_of_contributors_last() {
        let needs = HuntNeeds::new(vec![want(&[1], &[A], &[C]), want(&[2], &[A, B], &[])]);
        assert_eq!(needs.places(&memory(), 9, Mono::ZERO), urls(&[A, B, C]));
    }

    #[test]
    fn a_contributors_server_is_asked_for_the_contribution_alone() {
        let needs = HuntNeeds::new(vec![want(&[1], &[A], &[C]), want(&[2], &[A], &[])]);
        assert_eq!(needs.of(&url(A)), oids(&[1, 2]));
        assert_eq!(needs.of(&url(C)), oids(&[1]));
    }

    fn addresses(count: usize) -> Vec<String> {
        (0..count)
            .map(|n| format!("https://h{n}.example.com/x"))
            .collect()
    }

    /// Returns the addresses that a number of attempts visit.
    fn visited(needs: &HuntNeeds, memory: &mut AddressMemory, attempts: u64) -> BTreeSet<CloneUrl> {
        let mut seen = BTreeSet::new();
        for attempt in 0..attempts {
            let now = Mono::from_secs(attempt * 120);
            let places = needs.places(memory, 64, now);
            assert_eq!(places.len(), 64);
            for place in places {
                memory.visited(now, &place);
                seen.insert(place);
            }
        }
        seen
    }

    #[test]
    fn thousands_of_addresses_are_tried_a_few_at_a_time_and_all_in_the_end() {
        let many = addresses(2_000);
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let (mut memory, needs) = (memory(), HuntNeeds::new(vec![want(&[1], &[A], &many)]));
        assert_eq!(needs.places(&memory, 64, Mono::ZERO)[0], url(A));
        assert_eq!(visited(&needs, &mut memory, 32).len(), 2_001);
    }

    #[test]
    fn more_addresses_than_are_remembered_are_visited() {
        let many = addresses(300);
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let mut memory = AddressMemory::new(100);
        let needs = HuntNeeds::new(vec![want(&[1], &[], &many)]);
        assert_eq!(visited(&needs, &mut memory, 60).len(), 300);
    }

    #[test]
    fn of_too_many_addresses_of_maintainers_the_first_are_always_tried_and_all_in_the_end() {
        let many = addresses(1_000);
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let (mut memory, needs) = (memory(), HuntNeeds::new(vec![want(&[1], &many, &[])]));
        for second in 0..9 {
            let places = needs.places(&memory, 64, Mono::from_secs(second));
            assert_eq!(places[..32], urls(&many[..32]));
        }
        assert_eq!(visited(&needs, &mut memory, 40).len(), 1_000);
    }

    #[test]
    fn advertised_objects_come_in_one_batch_and_others_one_by_one() {
        let wanted = oids(&[1, 2, 3]);
        let nostr = format!("refs/nostr/{}", "e".repeat(64));
        let refs = [
            ("refs/heads/main", oid(1)),
            (nostr.as_str(), oid(3)),
            ("refs/tags/x", oid(9)),
        ];
        let advertised = Advertisement::read(refs, &wanted);
        assert_eq!(advertised.has, oids(&[1, 3]));
        let plan = memory().plan(&url(A), &wanted, &advertised);
        assert_eq!(
            plan,
            FetchPlan {
                batch: oids(&[1, 3]),
                guesses: vec![oid(2)]
            }
        );
    }

    #[test]
    fn a_miss_is_remembered_until_the_server_advertises_something_else() {
        let mut memory = memory();
        let wanted = oids(&[1]);
        let before = Advertisement::read([("refs/heads/main", oid(7))], &wanted);
        let after = Advertisement::read([("refs/heads/main", oid(8))], &wanted);
        list(&mut memory, 0, A, before.fingerprint);
        memory.failed(&url(A), [oid(1)], RequestFailure::Missed);
        list(&mut memory, 60, A, before.fingerprint);
        assert_eq!(memory.plan(&url(A), &wanted, &before), FetchPlan::default());
        assert_eq!(
            memory.plan(&url(B), &wanted, &before).guesses,
            [oid(1)],
            "another server may have it"
        );
        list(&mut memory, 61, A, after.fingerprint);
        assert_eq!(memory.plan(&url(A), &wanted, &after).guesses, [oid(1)]);
    }

    #[test]
    fn a_miss_is_forgotten_after_half_an_hour() {
        let mut memory = memory();
        let wanted = oids(&[1]);
        let advertised = Advertisement::read([("refs/heads/main", oid(7))], &wanted);
        list(&mut memory, 0, A, advertised.fingerprint);
        memory.failed(&url(A), [oid(1)], RequestFailure::Missed);
        list(&mut memory, 30 * 60, A, advertised.fingerprint);
        assert_eq!(memory.plan(&url(A), &wanted, &advertised).guesses, [oid(1)]);
    }

    #[test]
    fn after_a_refused_batch_each_object_is_asked_for_alone() {
        let mut memory = memory();
        let wanted = oids(&[1, 2]);
        let advertised = Advertisement::read([("a", oid(1)), ("b", oid(2))], &wanted);
        list(&mut memory, 0, A, advertised.fingerprint);
        memory.failed(&url(A), wanted.clone(), RequestFailure::Doubted);
        let plan = memory.plan(&url(A), &wanted, &advertised);
        assert_eq!(
            plan,
            FetchPlan {
                batch: oids(&[]),
                guesses: vec![oid(1), oid(2)]
            }
        );
        memory.failed(&url(A), [oid(1)], RequestFailure::Missed);
        assert_eq!(memory.plan(&url(A), &wanted, &advertised).guesses, [oid(2)]);
    }

    #[test]
    fn memory_is_bounded_and_forgets_the_oldest() {
        let mut memory = AddressMemory::new(2);
        for (second, text) in [A, B, C].iter().enumerate() {
            list(&mut memory, second as u64, text, Fingerprint(0));
        }
        assert_eq!(
            memory.addresses.keys().cloned().collect::<Vec<_>>(),
            urls(&[B, C])
        );
    }

    #[test]
    fn received_objects_are_not_wanted_any_more() {
        let mut needs = HuntNeeds::new(vec![want(&[1, 2], &[A], &[]), want(&[2], &[B], &[])]);
        needs.got(&oids(&[2]));
        assert_eq!(
            (needs.of(&url(A)), needs.of(&url(B))),
            (oids(&[1]), oids(&[]))
        );
        assert!(!needs.is_empty());
        needs.got(&oids(&[1]));
        assert!(needs.is_empty());
    }
}
