//! Discovery: which relay is asked for the relay lists of which authors next.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};
use std::time::Duration;

use grasp_core::nostr::key::PublicKey;
use grasp_core::{Mono, RelayUrl};

use super::authors::pause;
use super::io::TaskId;

/// Authors per request.
pub(super) const MAX_AUTHORS_PER_BATCH: usize = 100;
/// Time after which an answer is no longer waited for.
const BATCH_TIMEOUT: Duration = Duration::from_secs(30);
/// Time between an answer and the next request.
const BATCH_GAP: Duration = Duration::from_secs(1);

/// The authors of one request to one relay.
#[derive(Debug)]
pub(super) struct AuthorBatch {
    pub(super) id: TaskId,
    pub(super) source: RelayUrl,
    pub(super) authors: Vec<PublicKey>,
    deadline: Mono,
}

/// A relay that was asked before.
#[derive(Debug, Default)]
struct AskedRelay {
    failures: u32,
    paused_until: Mono,
}

/// The requests for relay lists, one after the other.
///
/// A pass collects what is due, by relay. One relay that was never asked before is asked per pass, at once; the others
/// take turns, a batch each. Relays that lists name which arrive meanwhile join the same pass.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    sources: BTreeMap<RelayUrl, AskedRelay>,
    /// Relays that are to be asked, with the number of authors at the start of the pass.
    queue: BTreeMap<RelayUrl, usize>,
    /// The relay that was asked last.
    last: Option<RelayUrl>,
    /// True if this pass may still ask a new relay.
    allows_new: bool,
    batch: Option<AuthorBatch>,
    next_batch: Mono,
}

impl Rounds {
    /// Begins a pass with what is due. Relays that no author needs are forgotten, unless they are paused.
    pub(super) fn begin_pass(
        &mut self,
        now: Mono,
        due: BTreeMap<RelayUrl, usize>,
        needed: &BTreeSet<RelayUrl>,
    ) {
        self.allows_new = true;
        self.queue = due;
        self.sources
            .retain(|relay, source| needed.contains(relay) || source.paused_until > now);
    }

    /// Adds what has become due during a pass.
    pub(super) fn add(&mut self, source: RelayUrl) {
        *self.queue.entry(source).or_default() += 1;
    }

    /// Removes a relay that is asked for nobody any more in this pass.
    pub(super) fn done(&mut self, source: &RelayUrl) {
        self.queue.remove(source);
    }

    /// Returns whether a batch may begin now.
    pub(super) fn is_idle(&self, now: Mono) -> bool {
        self.batch.is_none() && now >= self.next_batch && !self.queue.is_empty()
    }

    /// Returns the next relay of the queue: those of `configured` before all others, so that what users name delays
    /// nobody whose list is looked for there. The first of the relays never asked before is the one that `configured`
    /// has, then that of most authors.
    pub(super) fn next(&mut self, now: Mono, configured: &BTreeSet<RelayUrl>) -> Option<RelayUrl> {
        let known = self.next_known(now, configured);
        let is_configured = known
            .as_ref()
            .is_some_and(|known| configured.contains(known));
        let new = self.next_new(configured);
        let new = new.filter(|new| !is_configured || configured.contains(new));
        self.allows_new &= new.is_none();
        let source = new.or(known)?;
        self.sources.entry(source.clone()).or_default();
        self.last = Some(source.clone());
        Some(source)
    }

    fn next_new(&self, configured: &BTreeSet<RelayUrl>) -> Option<RelayUrl> {
        if !self.allows_new {
            return None;
        }
        let new = self.queue.iter();
        let new = new.filter(|(relay, _)| !self.sources.contains_key(*relay));
        let ranked = new.map(|(relay, authors)| {
            let is_configured = configured.contains(relay);
            (is_configured, *authors, Reverse(relay))
        });
        ranked.max().map(|(_, _, Reverse(relay))| relay.clone())
    }

    /// Returns the next relay in turn: of the operator's, or else of those that answered last time, or else of all.
    fn next_known(&self, now: Mono, configured: &BTreeSet<RelayUrl>) -> Option<RelayUrl> {
        let after = self.last.clone().map_or(Unbounded, Excluded);
        let rest = self.queue.range((after, Unbounded));
        let mut next = None;
        for (relay, _) in rest.chain(&self.queue) {
            let source = self.sources.get(relay);
            let Some(source) = source.filter(|source| now >= source.paused_until) else {
                continue;
            };
            let is_others = !configured.contains(relay);
            let rank = (is_others, is_others && source.failures > 0);
            if next.is_none_or(|(best, _)| rank < best) {
                next = Some((rank, relay));
            }
        }
        next.map(|(_, relay)| relay.clone())
    }

    /// Notes that a request was sent.
    pub(super) fn began(
        &mut self,
        now: Mono,
        id: TaskId,
        source: RelayUrl,
        authors: Vec<PublicKey>,
    ) {
        self.batch = Some(AuthorBatch {
            id,
            source,
            authors,
            deadline: now + BATCH_TIMEOUT,
        });
    }

    /// Takes the open batch, if it is this one.
    pub(super) fn answered(&mut self, now: Mono, id: TaskId) -> Option<AuthorBatch> {
        let batch = self.batch.take_if(|batch| batch.id == id)?;
        self.next_batch = now + BATCH_GAP;
        Some(batch)
    }

    /// Takes the open batch, if its time is over.
    pub(super) fn expired(&mut self, now: Mono) -> Option<AuthorBatch> {
        let batch = self.batch.take_if(|batch| now >= batch.deadline)?;
        self.next_batch = now + BATCH_GAP;
        Some(batch)
    }

    /// Notes that a relay has answered.
    pub(super) fn succeeded(&mut self, relay: &RelayUrl) {
        if let Some(source) = self.sources.get_mut(relay) {
            source.failures = 0;
        }
    }

    /// Notes that a relay has not answered: it is not asked for anyone for a while.
    pub(super) fn failed(&mut self, now: Mono, relay: &RelayUrl) {
        if let Some(source) = self.sources.get_mut(relay) {
            source.failures = source.failures.saturating_add(1);
            source.paused_until = now + pause(source.failures);
        }
    }

    pub(super) fn deadline(&self, now: Mono) -> Option<Mono> {
        if let Some(batch) = &self.batch {
            return Some(batch.deadline);
        }
        // Later than that, the rest of the queue waits for the next pass.
        (!self.queue.is_empty() && now < self.next_batch).then_some(self.next_batch)
    }
}
