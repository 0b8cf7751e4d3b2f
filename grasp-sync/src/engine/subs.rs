//! The subscriptions of one connection: their use, their slots, and their timeouts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::limits::{Slot, SlotClass};
use grasp_core::Mono;
use grasp_core::limits::Admit;

use super::history::CountAs;
use super::io::{ConnId, Frame, JobId, LiveId, SubId};
use super::relay::RelayContext;

/// The use of a subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SubKind {
    /// A request of the live set.
    Live(LiveId),
    /// A page of each of these jobs, in the order of the request's filters.
    Pages(Arc<[JobId]>),
    /// A NIP-77 session of a job.
    Neg(JobId),
    /// A fetch by ids.
    Ids,
}

/// The reason for which a request cannot be sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blocked {
    BySlots,
    ByPace,
}

/// An open subscription.
#[derive(Debug)]
pub(super) struct OpenSub {
    pub(super) slot: Slot,
    pub(super) kind: SubKind,
    /// True if it was sent; the slot of a session is taken before.
    pub(super) is_sent: bool,
    /// True if the relay has answered.
    pub(super) is_answered: bool,
    opened: Mono,
    /// The time at which it is taken for lost.
    pub(super) due: Option<Mono>,
}

impl OpenSub {
    /// Returns how long it has been open.
    pub(super) fn lasted(&self, now: Mono) -> Duration {
        now - self.opened
    }
}

/// Longest duration of one request, however much it delivers.
const MAX_REQUEST_TIME: Duration = Duration::from_secs(10 * 60);
/// Time to the first answer of a NIP-77 session.
pub(super) const NEG_OPEN_TIMEOUT: Duration = Duration::from_secs(15);
/// Time to each further answer.
pub(super) const NEG_IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Rows whose judgement is awaited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unjudged {
    pub(super) kind: SubKind,
    pub(super) count_as: CountAs,
    pub(super) rows: usize,
}

/// The subscriptions of one connection, by id.
#[derive(Debug)]
pub(super) struct Subs {
    pub(super) conn: ConnId,
    open: BTreeMap<SubId, OpenSub>,
    /// Rows delivered and not judged yet, of open and of closed subscriptions.
    unjudged: BTreeMap<SubId, Unjudged>,
}

impl Subs {
    pub(super) fn new(conn: ConnId) -> Self {
        Self {
            conn,
            open: BTreeMap::new(),
            unjudged: BTreeMap::new(),
        }
    }

    /// Closes every subscription that matches.
    pub(super) fn close_all(
        &mut self,
        ctx: &mut RelayContext<'_>,
        which: impl Fn(&SubKind) -> bool,
    ) {
        let subs: Vec<_> = self
            .iter()
            .filter(|(_, open)| which(&open.kind))
            .map(|(sub, _)| sub)
            .collect();
        subs.into_iter().for_each(|sub| self.close(ctx, sub));
    }

    /// Closes a subscription from our side, and frees its slot.
    pub(super) fn close(&mut self, ctx: &mut RelayContext<'_>, sub: SubId) {
        let Some(open) = self.open.remove(&sub) else {
            return;
        };
        self.unsubscribe(ctx, sub, &open);
        ctx.history.ledger.free(open.slot);
    }

    /// Tells the relay that a subscription has ended, if it knows of it.
    pub(super) fn unsubscribe(&self, ctx: &mut RelayContext<'_>, sub: SubId, open: &OpenSub) {
        if open.is_sent {
            let frame = match open.kind {
                SubKind::Neg(_) => Frame::NegClose { sub },
                SubKind::Live(_) | SubKind::Pages(_) | SubKind::Ids => Frame::Unsubscribe { sub },
            };
            ctx.send(self.conn, frame);
        }
    }

    /// Opens a subscription, as far as slots and pace allow; the caller sends it. A NIP-77 session is sent later, and
    /// paced then. Live requests are not paced: relays do not limit them by the minute.
    pub(super) fn open(
        &mut self,
        ctx: &mut RelayContext<'_>,
        class: SlotClass,
        bytes: usize,
        kind: SubKind,
    ) -> Result<SubId, Blocked> {
        let now = ctx.mono();
        let slot = ctx
            .history
            .ledger
            .take(class, bytes)
            .ok_or(Blocked::BySlots)?;
        if class == SlotClass::Fetch && ctx.history.pace.admit(now) != Admit::Go {
            ctx.history.ledger.free(slot);
            return Err(Blocked::ByPace);
        }
        let sub = ctx.shared.ids.next(SubId);
        let due = Some(now + ctx.shared.config.watchdog);
        let is_sent = class != SlotClass::Reconcile;
        let open = OpenSub {
            slot,
            kind,
            is_sent,
            is_answered: false,
            opened: now,
            due,
        };
        self.open.insert(sub, open);
        Ok(sub)
    }

    pub(super) fn kind(&self, sub: SubId) -> Option<SubKind> {
        self.open.get(&sub).map(|open| open.kind.clone())
    }

    pub(super) fn get(&self, sub: SubId) -> Option<&OpenSub> {
        self.open.get(&sub)
    }

    pub(super) fn remove(&mut self, sub: SubId) -> Option<OpenSub> {
        self.open.remove(&sub)
    }

    /// Notes an answer, which extends the timeout by `wait`, up to the longest duration of a request.
    pub(super) fn answered(&mut self, now: Mono, sub: SubId, wait: Duration) {
        if let Some(open) = self.open.get_mut(&sub) {
            open.is_answered = true;
            open.due = match open.kind {
                SubKind::Live(_) => None,
                _ => Some((now + wait).min(open.opened + MAX_REQUEST_TIME)),
            };
        }
    }

    /// Notes that it was sent only now.
    pub(super) fn sent(&mut self, now: Mono, sub: SubId, wait: Duration) {
        if let Some(open) = self.open.get_mut(&sub) {
            open.is_sent = true;
            open.due = Some(now + wait).map(|due| due.min(open.opened + MAX_REQUEST_TIME));
        }
    }

    /// Adds rows that were delivered under it.
    pub(super) fn delivered(&mut self, sub: SubId, rows: usize, count_as: CountAs) {
        if let Some(kind) = self.kind(sub) {
            self.unjudged
                .entry(sub)
                .or_insert(Unjudged {
                    kind,
                    count_as,
                    rows: 0,
                })
                .rows += rows;
        }
    }

    /// Returns the rows that are not judged yet.
    pub(super) fn unjudged(&self, sub: SubId) -> Option<Unjudged> {
        self.unjudged.get(&sub).cloned()
    }

    /// Subtracts judged rows; returns the use of the subscription and the rows still awaited.
    pub(super) fn judged(&mut self, sub: SubId, rows: usize) -> Option<Unjudged> {
        let waiting = self.unjudged.get_mut(&sub)?;
        waiting.rows = waiting.rows.saturating_sub(rows);
        if waiting.rows > 0 {
            return Some(waiting.clone());
        }
        self.unjudged.remove(&sub)
    }

    /// Returns the subscriptions whose timeout has passed.
    pub(super) fn overdue(&self, now: Mono) -> Vec<SubId> {
        let late = |open: &OpenSub| open.due.is_some_and(|due| now >= due);
        self.open
            .iter()
            .filter(|(_, open)| late(open))
            .map(|(sub, _)| *sub)
            .collect()
    }

    /// Extends an overdue timeout if rows are still being judged, up to the longest duration of a request.
    pub(super) fn extend_deadline(&mut self, now: Mono, sub: SubId) -> bool {
        let Some(open) = self
            .open
            .get_mut(&sub)
            .filter(|_| !self.unjudged.is_empty())
        else {
            return false;
        };
        let due = (now + NEG_OPEN_TIMEOUT).min(open.opened + MAX_REQUEST_TIME);
        open.due = Some(due);
        due > now
    }

    /// Returns the subscriptions that were sent and not answered, newest first.
    pub(super) fn unanswered(&self) -> Vec<(SubId, SubKind)> {
        let waiting = self
            .open
            .iter()
            .rev()
            .filter(|(_, open)| open.is_sent && !open.is_answered);
        waiting
            .map(|(sub, open)| (*sub, open.kind.clone()))
            .collect()
    }

    pub(super) fn deadline(&self) -> Option<Mono> {
        self.open.values().filter_map(|open| open.due).min()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (SubId, &OpenSub)> {
        self.open.iter().map(|(sub, open)| (*sub, open))
    }
}
