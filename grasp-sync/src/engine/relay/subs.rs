//! The subscriptions of one connection: their use, their slots, and their timeouts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::limits::Slot;
use grasp_core::Mono;

use super::super::context::RelayContext;
use super::super::ids::{ConnId, JobId, LiveId, SubId};
use super::super::io::Frame;
use super::gaps::CountAs;

/// The use of a subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::engine) enum SubKind {
    /// A request of the live set.
    Live(LiveId),
    /// A page of each of these jobs, in the order of the request's filters.
    Pages(Arc<[JobId]>),
    /// A NIP-77 session of a job.
    Neg(JobId),
    /// A fetch by ids.
    Ids,
}

/// An open subscription.
#[derive(Debug)]
pub(in crate::engine) struct OpenSub {
    pub(in crate::engine) slot: Slot,
    pub(in crate::engine) kind: SubKind,
    /// True if it was sent; the slot of a session is taken before.
    pub(in crate::engine) is_sent: bool,
    /// True if the relay has answered.
    pub(in crate::engine) is_answered: bool,
    opened: Mono,
    /// The time at which it is taken for lost.
    due: Option<Mono>,
}

impl OpenSub {
    /// Returns how long it has been open.
    pub(in crate::engine) fn lasted(&self, now: Mono) -> Duration {
        now - self.opened
    }

    #[cfg(any(test, feature = "test-util"))]
    /// Returns whether it has a timeout.
    pub(in crate::engine) fn is_watched(&self) -> bool {
        self.due.is_some()
    }
}

/// Longest duration of one request, however much it delivers.
const MAX_REQUEST_TIME: Duration = Duration::from_secs(10 * 60);
/// Time to the first answer of a NIP-77 session.
pub(in crate::engine) const NEG_OPEN_TIMEOUT: Duration = Duration::from_secs(15);
/// Time to each further answer.
pub(in crate::engine) const NEG_IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Rows whose judgement is awaited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::engine) struct Unjudged {
    pub(in crate::engine) kind: SubKind,
    pub(in crate::engine) count_as: CountAs,
    pub(in crate::engine) rows: usize,
}

/// The subscriptions of one connection, by id.
#[derive(Debug)]
pub(in crate::engine) struct Subs {
    pub(in crate::engine) conn: ConnId,
    open: BTreeMap<SubId, OpenSub>,
    /// Rows delivered and not judged yet, of open and of closed subscriptions.
    unjudged: BTreeMap<SubId, Unjudged>,
}

impl Subs {
    pub(in crate::engine) fn new(conn: ConnId) -> Self {
        Self { conn, open: BTreeMap::new(), unjudged: BTreeMap::new() }
    }

    /// Closes every subscription that matches.
    pub(in crate::engine) fn close_all(
        &mut self,
        ctx: &mut RelayContext<'_>,
        which: impl Fn(&SubKind) -> bool,
    ) {
        let subs: Vec<_> =
            self.iter().filter(|(_, open)| which(&open.kind)).map(|(sub, _)| sub).collect();
        subs.into_iter().for_each(|sub| self.close(ctx, sub));
    }

    /// Closes a subscription from our side, and frees its slot.
    pub(in crate::engine) fn close(&mut self, ctx: &mut RelayContext<'_>, sub: SubId) {
        let Some(open) = self.open.remove(&sub) else { return };
        self.unsubscribe(ctx, sub, &open);
        ctx.history.ledger.free(open.slot);
    }

    /// Tells the relay that a subscription has ended, if it knows of it.
    pub(in crate::engine) fn unsubscribe(
        &self,
        ctx: &mut RelayContext<'_>,
        sub: SubId,
        open: &OpenSub,
    ) {
        if open.is_sent {
            let frame = match open.kind {
                SubKind::Neg(_) => Frame::NegClose { sub },
                SubKind::Live(_) | SubKind::Pages(_) | SubKind::Ids => Frame::Unsubscribe { sub },
            };
            ctx.send(self.conn, frame);
        }
    }

    /// Returns the jobs that share a request.
    pub(in crate::engine) fn jobs_of(&self, sub: SubId) -> Vec<JobId> {
        match self.open.get(&sub).map(|open| &open.kind) {
            Some(SubKind::Pages(jobs)) => jobs.to_vec(),
            _ => Vec::new(),
        }
    }

    pub(in crate::engine) fn insert(
        &mut self,
        now: Mono,
        sub: SubId,
        slot: Slot,
        kind: SubKind,
        wait: Duration,
    ) {
        let due = Some(now + wait);
        let open = OpenSub { slot, kind, is_sent: true, is_answered: false, opened: now, due };
        self.open.insert(sub, open);
    }

    /// Marks a subscription whose slot is taken and that is sent later.
    pub(in crate::engine) fn not_sent_yet(&mut self, sub: SubId) {
        if let Some(open) = self.open.get_mut(&sub) {
            open.is_sent = false;
        }
    }

    pub(in crate::engine) fn kind(&self, sub: SubId) -> Option<SubKind> {
        self.open.get(&sub).map(|open| open.kind.clone())
    }

    /// Returns how long a subscription has been open.
    pub(in crate::engine) fn lasted(&self, now: Mono, sub: SubId) -> Duration {
        self.open.get(&sub).map(|open| open.lasted(now)).unwrap_or_default()
    }

    /// Returns whether the relay has answered a subscription.
    pub(in crate::engine) fn is_answered(&self, sub: SubId) -> bool {
        self.open.get(&sub).is_some_and(|open| open.is_answered)
    }

    pub(in crate::engine) fn remove(&mut self, sub: SubId) -> Option<OpenSub> {
        self.open.remove(&sub)
    }

    /// Notes an answer, which extends the timeout by `wait`, up to the longest duration of a request.
    pub(in crate::engine) fn answered(&mut self, now: Mono, sub: SubId, wait: Duration) {
        if let Some(open) = self.open.get_mut(&sub) {
            open.is_answered = true;
            open.due = match open.kind {
                SubKind::Live(_) => None,
                _ => Some((now + wait).min(open.opened + MAX_REQUEST_TIME)),
            };
        }
    }

    /// Notes that it was sent only now.
    pub(in crate::engine) fn sent(&mut self, now: Mono, sub: SubId, wait: Duration) {
        if let Some(open) = self.open.get_mut(&sub) {
            open.is_sent = true;
            open.due = Some(now + wait).map(|due| due.min(open.opened + MAX_REQUEST_TIME));
        }
    }

    /// Adds rows that were delivered under it.
    pub(in crate::engine) fn delivered(&mut self, sub: SubId, rows: usize, count_as: CountAs) {
        if let Some(kind) = self.kind(sub) {
            self.unjudged.entry(sub).or_insert(Unjudged { kind, count_as, rows: 0 }).rows += rows;
        }
    }

    /// Returns the rows that are not judged yet.
    pub(in crate::engine) fn unjudged(&self, sub: SubId) -> Option<Unjudged> {
        self.unjudged.get(&sub).cloned()
    }

    /// Subtracts judged rows; returns the use of the subscription and the rows still awaited.
    pub(in crate::engine) fn judged(&mut self, sub: SubId, rows: usize) -> Option<Unjudged> {
        let waiting = self.unjudged.get_mut(&sub)?;
        waiting.rows = waiting.rows.saturating_sub(rows);
        if waiting.rows > 0 {
            return Some(waiting.clone());
        }
        self.unjudged.remove(&sub)
    }

    /// Returns the subscriptions whose timeout has passed.
    pub(in crate::engine) fn overdue(&self, now: Mono) -> Vec<SubId> {
        let late = |open: &OpenSub| open.due.is_some_and(|due| now >= due);
        self.open.iter().filter(|(_, open)| late(open)).map(|(sub, _)| *sub).collect()
    }

    /// Extends an overdue timeout if rows are still being judged, up to the longest duration of a request.
    pub(in crate::engine) fn extend_deadline(&mut self, now: Mono, sub: SubId) -> bool {
        let Some(open) = self.open.get_mut(&sub).filter(|_| !self.unjudged.is_empty()) else {
            return false;
        };
        let due = (now + NEG_OPEN_TIMEOUT).min(open.opened + MAX_REQUEST_TIME);
        open.due = Some(due);
        due > now
    }

    /// Returns the subscriptions that were sent and not answered, newest first.
    pub(in crate::engine) fn unanswered(&self) -> Vec<(SubId, SubKind)> {
        let waiting = self.open.iter().rev().filter(|(_, open)| open.is_sent && !open.is_answered);
        waiting.map(|(sub, open)| (*sub, open.kind.clone())).collect()
    }

    /// Returns when the oldest of these was sent.
    pub(in crate::engine) fn oldest_unanswered(&self) -> Option<Mono> {
        let waiting = self.open.values().filter(|open| open.is_sent && !open.is_answered);
        waiting.map(|open| open.opened).min()
    }

    pub(in crate::engine) fn deadline(&self) -> Option<Mono> {
        self.open.values().filter_map(|open| open.due).min()
    }

    pub(in crate::engine) fn iter(&self) -> impl Iterator<Item = (SubId, &OpenSub)> {
        self.open.iter().map(|(sub, open)| (*sub, open))
    }
}
