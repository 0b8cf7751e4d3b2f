//! The negentropy sessions of one socket (NIP-77).

use std::collections::BTreeMap;
use std::time::Duration;

use grasp_core::Mono;
use nostr::filter::Filter;

use super::super::codec::{Reply, SubId};
use super::super::limits::Limits;
use super::{Output, Reconciled, Token};

/// Open sessions by id. Ids of REQs are another namespace.
#[derive(Debug, Default)]
pub(super) struct Reconciliations {
    open: BTreeMap<SubId, Open>,
    ids: BTreeMap<Token, SubId>,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    token: Token,
    items: usize,
    turn: Turn,
}

/// Whose message comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Ours,
    Theirs { since: Mono },
}

impl Reconciliations {
    /// Opens a session; one of the same id gives way first.
    pub(super) fn open(
        &mut self,
        token: Token,
        id: SubId,
        filter: Box<Filter>,
        message: Vec<u8>,
        limits: &Limits,
    ) -> Vec<Output> {
        let mut outputs = self.close(&id);
        if self.open.len() >= limits.neg_sessions {
            let reason = "rate-limited: too many negentropy subscriptions";
            outputs.push(Output::Send(Reply::neg_err(&id, reason)));
            return outputs;
        }
        self.open.insert(id.clone(), Open { token, items: 0, turn: Turn::Ours });
        self.ids.insert(token, id);
        outputs.push(Output::OpenNeg { token, filter, message });
        outputs
    }

    /// Goes on with an open session.
    pub(super) fn go_on(&mut self, id: &SubId, message: Vec<u8>) -> Vec<Output> {
        let Some(open) = self.open.get_mut(id) else {
            return vec![Output::Send(Reply::neg_err(id, "closed: no such session"))];
        };
        match open.turn {
            Turn::Ours => self.fail(id, Reply::neg_err(id, "invalid: it is not your turn")),
            Turn::Theirs { .. } => {
                open.turn = Turn::Ours;
                vec![Output::AnswerNeg { token: open.token, message }]
            }
        }
    }

    /// Ends a session, if it is open. The client gets no answer.
    pub(super) fn close(&mut self, id: &SubId) -> Vec<Output> {
        let closed = self.open.remove(id);
        if let Some(open) = closed {
            self.ids.remove(&open.token);
        }
        closed.map(|open| Output::DropNeg(open.token)).into_iter().collect()
    }

    pub(super) fn reconciled(
        &mut self,
        now: Mono,
        token: Token,
        what: Reconciled,
        limits: &Limits,
    ) -> Vec<Output> {
        let Some(id) = self.ids.get(&token).cloned() else {
            return Vec::new();
        };
        let full = "rate-limited: negentropy memory is in use, try again later";
        match what {
            Reconciled::Opened { items, .. } if !self.has_room(items, limits) => {
                self.fail(&id, Reply::neg_err(&id, full))
            }
            Reconciled::Opened { items, answer } => self.answered(now, id, Some(items), answer),
            Reconciled::Answered(answer) => self.answered(now, id, None, answer),
            Reconciled::TooBig => {
                let reason = "blocked: this query is too big".into();
                self.fail(&id, Reply::NegErr(id.clone(), reason, Some(limits.neg_items)))
            }
            Reconciled::NoRoom => self.fail(&id, Reply::neg_err(&id, full)),
            Reconciled::Invalid => {
                self.fail(&id, Reply::neg_err(&id, "invalid: not a negentropy message"))
            }
            Reconciled::StoreFailed => {
                self.fail(&id, Reply::neg_err(&id, "error: the event store failed"))
            }
        }
    }

    /// Ends the sessions that went unused for too long.
    pub(super) fn expire(&mut self, now: Mono, idle: Duration) -> Vec<Output> {
        let stale =
            |open: &Open| matches!(open.turn, Turn::Theirs { since } if now - since >= idle);
        let ids: Vec<_> =
            self.open.iter().filter(|(_, open)| stale(open)).map(|(id, _)| id.clone()).collect();
        ids.iter()
            .flat_map(|id| self.fail(id, Reply::neg_err(id, "closed: idle for too long")))
            .collect()
    }

    pub(super) fn next_deadline(&self, idle: Duration) -> Option<Mono> {
        let waiting = self.open.values().filter_map(|open| match open.turn {
            Turn::Theirs { since } => Some(since + idle),
            Turn::Ours => None,
        });
        waiting.min()
    }

    pub(super) fn is_open(&self, token: Token) -> bool {
        self.ids.contains_key(&token)
    }

    fn has_room(&self, items: usize, limits: &Limits) -> bool {
        let held: usize = self.open.values().map(|open| open.items).sum();
        held.saturating_add(items) <= limits.neg_connection_items
    }

    fn answered(
        &mut self,
        now: Mono,
        id: SubId,
        items: Option<usize>,
        answer: Vec<u8>,
    ) -> Vec<Output> {
        if let Some(open) = self.open.get_mut(&id) {
            open.items = items.unwrap_or(open.items);
            open.turn = Turn::Theirs { since: now };
        }
        vec![Output::Send(Reply::NegMsg(id, answer))]
    }

    fn fail(&mut self, id: &SubId, reply: Reply) -> Vec<Output> {
        let mut outputs = self.close(id);
        outputs.push(Output::Send(reply));
        outputs
    }
}
