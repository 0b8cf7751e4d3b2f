//! The negentropy sessions of one connection (NIP-77).

use std::collections::BTreeMap;
use std::time::Duration;

use grasp_core::Mono;
use nostr::filter::Filter;

use super::super::codec::{Reply, SubId};
use super::super::limits::Limits;
use super::{NegOutcome, Output, Token};

/// Open sessions by id. Ids of REQs are another namespace.
#[derive(Debug, Default)]
pub(super) struct NegSessions {
    open: BTreeMap<SubId, NegSession>,
    ids: BTreeMap<Token, SubId>,
}

#[derive(Clone, Copy, Debug)]
struct NegSession {
    token: Token,
    items: usize,
    awaiting: Awaiting,
}

/// The side whose message comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaiting {
    Relay,
    Client { since: Mono },
}

impl NegSessions {
    /// Opens a session; one of the same id is closed first.
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
        self.open.insert(id.clone(), NegSession { token, items: 0, awaiting: Awaiting::Relay });
        self.ids.insert(token, id);
        outputs.push(Output::OpenNeg { token, filter, message });
        outputs
    }

    /// Answers a message of an open session.
    pub(super) fn answer(&mut self, id: &SubId, message: Vec<u8>) -> Vec<Output> {
        let Some(open) = self.open.get_mut(id) else {
            return vec![Output::Send(Reply::neg_err(id, "closed: no such session"))];
        };
        match open.awaiting {
            Awaiting::Relay => self
                .fail(id, Reply::neg_err(id, "invalid: NEG-MSG before the answer to the last one")),
            Awaiting::Client { .. } => {
                open.awaiting = Awaiting::Relay;
                vec![Output::AnswerNeg { token: open.token, message }]
            }
        }
    }

    /// Closes a session, if it is open, without a reply.
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
        what: NegOutcome,
        limits: &Limits,
    ) -> Vec<Output> {
        let Some(id) = self.ids.get(&token).cloned() else {
            return Vec::new();
        };
        let full = "rate-limited: negentropy memory is in use, try again later";
        match what {
            NegOutcome::Opened { items, .. } if !self.has_room(items, limits) => {
                self.fail(&id, Reply::neg_err(&id, full))
            }
            NegOutcome::Opened { items, answer } => self.answered(now, id, Some(items), answer),
            NegOutcome::Answered(answer) => self.answered(now, id, None, answer),
            NegOutcome::TooBig => {
                let reason = "blocked: this query is too big".into();
                self.fail(&id, Reply::NegErr(id.clone(), reason, Some(limits.neg_items)))
            }
            NegOutcome::AtCapacity => self.fail(&id, Reply::neg_err(&id, full)),
            NegOutcome::Invalid => {
                self.fail(&id, Reply::neg_err(&id, "invalid: not a negentropy message"))
            }
            NegOutcome::StoreFailed => {
                self.fail(&id, Reply::neg_err(&id, "error: the event store failed"))
            }
        }
    }

    /// Closes the sessions that were idle for too long.
    pub(super) fn expire(&mut self, now: Mono, idle: Duration) -> Vec<Output> {
        let stale = |open: &NegSession| matches!(open.awaiting, Awaiting::Client { since } if now - since >= idle);
        let ids: Vec<_> =
            self.open.iter().filter(|(_, open)| stale(open)).map(|(id, _)| id.clone()).collect();
        ids.iter()
            .flat_map(|id| self.fail(id, Reply::neg_err(id, "closed: idle for too long")))
            .collect()
    }

    pub(super) fn next_deadline(&self, idle: Duration) -> Option<Mono> {
        let waiting = self.open.values().filter_map(|open| match open.awaiting {
            Awaiting::Client { since } => Some(since + idle),
            Awaiting::Relay => None,
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
            open.awaiting = Awaiting::Client { since: now };
        }
        vec![Output::Send(Reply::NegMsg(id, answer))]
    }

    fn fail(&mut self, id: &SubId, reply: Reply) -> Vec<Output> {
        let mut outputs = self.close(id);
        outputs.push(Output::Send(reply));
        outputs
    }
}
