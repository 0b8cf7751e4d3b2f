//! The subscriptions of one connection: who they serve, which slot they hold, and by when they must be heard of.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use grasp_core::Mono;
use grasp_core::limits::Slot;

use super::super::ids::{JobId, LiveId, SubId};
use super::gaps::Course;

/// Whom a subscription is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Serves {
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
pub(in crate::engine) struct Open {
    pub(in crate::engine) slot: Slot,
    pub(in crate::engine) serves: Serves,
    /// Whether the relay has been told of it; a session's slot is taken before.
    pub(in crate::engine) is_sent: bool,
    /// Whether the relay has said anything about it.
    pub(in crate::engine) is_answered: bool,
    opened: Mono,
    /// When it is taken for lost, unless something is heard of it.
    due: Option<Mono>,
}

impl Open {
    /// How long it has been open.
    pub(in crate::engine) fn lasted(&self, now: Mono) -> Duration {
        now - self.opened
    }

    /// Whether it ends by itself if nothing is heard of it.
    pub(in crate::engine) fn is_watched(&self) -> bool {
        self.due.is_some()
    }
}

/// How long one request may take in all, however much comes of it.
const LONGEST: Duration = Duration::from_secs(10 * 60);
/// How long a NIP-77 session may go unanswered at first.
pub(in crate::engine) const NEG_FIRST: Duration = Duration::from_secs(15);
/// And later.
pub(in crate::engine) const NEG_IDLE: Duration = Duration::from_secs(30);

/// Rows whose judgement is awaited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::engine) struct Unjudged {
    pub(in crate::engine) serves: Serves,
    /// How they are counted.
    pub(in crate::engine) course: Course,
    /// How many.
    pub(in crate::engine) rows: usize,
}

/// All of them, by name.
#[derive(Debug, Default)]
pub(in crate::engine) struct Subs {
    open: BTreeMap<SubId, Open>,
    /// Rows delivered and not judged yet, of open subscriptions and of closed ones.
    unjudged: BTreeMap<SubId, Unjudged>,
}

impl Subs {
    pub(in crate::engine) fn insert(
        &mut self,
        now: Mono,
        sub: SubId,
        slot: Slot,
        serves: Serves,
        wait: Duration,
    ) {
        let due = Some(now + wait);
        let open = Open { slot, serves, is_sent: true, is_answered: false, opened: now, due };
        self.open.insert(sub, open);
    }

    /// Its slot is taken, but the relay will hear of it only later.
    pub(in crate::engine) fn not_sent_yet(&mut self, sub: SubId) {
        if let Some(open) = self.open.get_mut(&sub) {
            open.is_sent = false;
        }
    }

    pub(in crate::engine) fn serves(&self, sub: SubId) -> Option<Serves> {
        self.open.get(&sub).map(|open| open.serves.clone())
    }

    /// How long one has been open.
    pub(in crate::engine) fn lasted(&self, now: Mono, sub: SubId) -> Duration {
        self.open.get(&sub).map(|open| open.lasted(now)).unwrap_or_default()
    }

    /// Whether the relay has said anything about it.
    pub(in crate::engine) fn is_answered(&self, sub: SubId) -> bool {
        self.open.get(&sub).is_some_and(|open| open.is_answered)
    }

    pub(in crate::engine) fn remove(&mut self, sub: SubId) -> Option<Open> {
        self.open.remove(&sub)
    }

    /// Something was heard of it; it has so much time again, within the longest that any may take.
    pub(in crate::engine) fn heard(&mut self, now: Mono, sub: SubId, wait: Duration) {
        if let Some(open) = self.open.get_mut(&sub) {
            open.is_answered = true;
            open.due = match open.serves {
                Serves::Live(_) => None,
                _ => Some((now + wait).min(open.opened + LONGEST)),
            };
        }
    }

    /// It was sent only now.
    pub(in crate::engine) fn sent(&mut self, now: Mono, sub: SubId, wait: Duration) {
        if let Some(open) = self.open.get_mut(&sub) {
            open.is_sent = true;
            open.due = Some(now + wait).map(|due| due.min(open.opened + LONGEST));
        }
    }

    /// Rows came under it, to be counted like this.
    pub(in crate::engine) fn delivered(&mut self, sub: SubId, rows: usize, course: Course) {
        if let Some(serves) = self.serves(sub) {
            self.unjudged.entry(sub).or_insert(Unjudged { serves, course, rows: 0 }).rows += rows;
        }
    }

    /// The rows that came under it and are not judged yet.
    pub(in crate::engine) fn unjudged(&self, sub: SubId) -> Option<Unjudged> {
        self.unjudged.get(&sub).cloned()
    }

    /// Rows that came under it were judged: whom that concerns, and how many are still waited for.
    pub(in crate::engine) fn judged(&mut self, sub: SubId, rows: usize) -> Option<Unjudged> {
        let waiting = self.unjudged.get_mut(&sub)?;
        waiting.rows = waiting.rows.saturating_sub(rows);
        if waiting.rows > 0 {
            return Some(waiting.clone());
        }
        self.unjudged.remove(&sub)
    }

    /// Those of which nothing was heard for too long.
    pub(in crate::engine) fn overdue(&self, now: Mono) -> Vec<SubId> {
        let late = |open: &Open| open.due.is_some_and(|due| now >= due);
        self.open.iter().filter(|(_, open)| late(open)).map(|(sub, _)| *sub).collect()
    }

    /// Gives an overdue one more time, if the rows that came are not all judged; within the longest that any may take.
    pub(in crate::engine) fn put_off(&mut self, now: Mono, sub: SubId) -> bool {
        let Some(open) = self.open.get_mut(&sub).filter(|_| !self.unjudged.is_empty()) else {
            return false;
        };
        let due = (now + NEG_FIRST).min(open.opened + LONGEST);
        open.due = Some(due);
        due > now
    }

    /// Those that the relay was told of and has not said a word about, newest first.
    pub(in crate::engine) fn unanswered(&self) -> Vec<(SubId, Serves)> {
        let waiting = self.open.iter().rev().filter(|(_, open)| open.is_sent && !open.is_answered);
        waiting.map(|(sub, open)| (*sub, open.serves.clone())).collect()
    }

    /// When the longest unanswered of them was sent.
    pub(in crate::engine) fn oldest_unanswered(&self) -> Option<Mono> {
        let waiting = self.open.values().filter(|open| open.is_sent && !open.is_answered);
        waiting.map(|open| open.opened).min()
    }

    pub(in crate::engine) fn deadline(&self) -> Option<Mono> {
        self.open.values().filter_map(|open| open.due).min()
    }

    pub(in crate::engine) fn iter(&self) -> impl Iterator<Item = (SubId, &Open)> {
        self.open.iter().map(|(sub, open)| (*sub, open))
    }

    pub(in crate::engine) fn len(&self) -> usize {
        self.open.len()
    }
}
