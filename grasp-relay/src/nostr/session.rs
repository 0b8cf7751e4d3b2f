//! One socket's accounts: what it may ask, what it has open, when it has been quiet for too long.
//!
//! A plain state machine. [`Session::handle`] takes what happened and says what to do; it opens nothing, reads no
//! clock and never sees an event of history. Every REQ, COUNT and NEG-OPEN gets a fresh [`Token`], so that a late
//! result for something closed or replaced finds nobody.

mod authentication;
mod reconciliations;
mod subscriptions;

use std::sync::Arc;

use grasp_core::limits::EoseHint;
use grasp_core::{Mono, Now, ServiceIdentity};
use nostr::event::{Event, EventId};
use nostr::filter::Filter;
use nostr::key::PublicKey;

use self::authentication::Authentication;
use self::reconciliations::Reconciliations;
use self::subscriptions::Subscriptions;
use super::codec::{Asked, Reply, Request, SubId};
use super::limits::Limits;
use super::rate::Allowance;
use crate::ingest::Answer;

/// What a session is held to; the same for all of them.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub(crate) limits: Limits,
    pub(crate) service: ServiceIdentity,
}

/// The name of one REQ, COUNT or NEG-OPEN, never used twice on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Token(pub(crate) u64);

/// What happened.
#[derive(Debug)]
pub(crate) enum Input<'a> {
    Text(&'a str),
    /// A long text that was read elsewhere.
    Read(Result<Request, Reply>),
    Binary,
    /// A ping or pong.
    Heard,
    Judged(EventId, Answer),
    CaughtUp(Token, EoseHint),
    Ended(Token, Ending),
    Counted(Token, u64),
    Reconciled(Token, Reconciled),
    Tick,
}

/// Why a subscription or COUNT ended without the client asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Overflow,
    StoreFailed,
    NoRoom,
    /// It got no turn at the store in time.
    Busy,
}

/// What became of one negentropy message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reconciled {
    /// The set was built, and the first message answered.
    Opened {
        items: usize,
        answer: Vec<u8>,
    },
    Answered(Vec<u8>),
    TooBig,
    NoRoom,
    Invalid,
    StoreFailed,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    Send(Reply),
    Ping,
    Ingest(Box<Event>),
    Subscribe { token: Token, id: SubId, asked: Asked },
    Unsubscribe(Token),
    Count { token: Token, asked: Asked },
    OpenNeg { token: Token, filter: Box<Filter>, message: Vec<u8> },
    AnswerNeg { token: Token, message: Vec<u8> },
    DropNeg(Token),
    Hangup(Hangup),
}

/// A close frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hangup {
    pub(crate) code: u16,
    pub(crate) reason: &'static str,
}

impl Hangup {
    pub(crate) const SHUTDOWN: Self = Self { code: 1001, reason: "the relay is shutting down" };
    pub(crate) const NOT_UTF8: Self = Self { code: 1007, reason: "invalid: text must be UTF-8" };
    pub(crate) const TOO_BIG: Self = Self { code: 1009, reason: "invalid: message too big" };
    pub(crate) const PROTOCOL: Self =
        Self { code: 1002, reason: "invalid: broken websocket frame" };
    pub(crate) const NO_ROOM: Self =
        Self { code: 1013, reason: "rate-limited: too many unfinished messages of this network" };
    pub(crate) const TOO_SLOW: Self =
        Self { code: 1008, reason: "closed: a message took too long" };
    const IDLE: Self = Self { code: 1001, reason: "closed: idle for too long" };
    const TOO_MANY_MESSAGES: Self = Self { code: 1008, reason: "rate-limited: too many messages" };
    const TOO_MANY_AUTHS: Self = Self { code: 1008, reason: "rate-limited: too many failed AUTHs" };
}

/// One socket's state.
#[derive(Debug)]
pub(crate) struct Session {
    rules: Arc<Rules>,
    auth: Authentication,
    subscriptions: Subscriptions,
    reconciliations: Reconciliations,
    messages: Allowance,
    /// Messages above the allowance that are still answered.
    refusals: Allowance,
    events: Allowance,
    queries: Allowance,
    tokens: u64,
    heard_at: Mono,
    pinged: bool,
}

const MESSAGE_RATE: &str = "rate-limited: too many messages";
const QUERY_RATE: &str = "rate-limited: too many queries";
const EVENT_RATE: &str = "rate-limited: too many events";

impl Session {
    /// A session that begins now, with a challenge that nobody could guess.
    pub(crate) fn new(now: Now, rules: Arc<Rules>, challenge: String) -> Self {
        let limits = &rules.limits;
        Self {
            auth: Authentication::new(challenge),
            subscriptions: Subscriptions::default(),
            reconciliations: Reconciliations::default(),
            messages: Allowance::new(limits.messages_per_minute),
            refusals: Allowance::new(limits.messages_per_minute),
            events: Allowance::new(limits.events_per_minute),
            queries: Allowance::new(limits.queries_per_minute),
            tokens: 0,
            heard_at: now.mono,
            pinged: false,
            rules,
        }
    }

    /// Takes what happened; says what to do, in this order.
    #[must_use]
    pub(crate) fn handle(&mut self, now: Now, input: Input<'_>) -> Vec<Output> {
        match input {
            Input::Text(text) => self.on_text(now, |limits| Request::read(text, limits)),
            Input::Read(request) => self.on_text(now, |_| request),
            Input::Binary => self.on_binary(now),
            Input::Heard => self.on_heard(now),
            Input::Judged(id, answer) => self.on_judged(id, answer),
            Input::CaughtUp(token, hint) => self.subscriptions.caught_up(token, hint),
            Input::Ended(token, why) => self.subscriptions.ended(token, why),
            Input::Counted(token, count) => self.subscriptions.counted(token, count),
            Input::Reconciled(token, what) => {
                self.reconciliations.reconciled(now.mono, token, what, &self.rules.limits)
            }
            Input::Tick => self.on_tick(now),
        }
    }

    /// When to send the next [`Input::Tick`]. Ask again after each `handle`.
    pub(crate) fn next_deadline(&self) -> Mono {
        let limits = &self.rules.limits;
        let quiet = if self.pinged { limits.idle_timeout } else { limits.ping_after };
        let quiet = self.heard_at + quiet.min(limits.idle_timeout);
        match self.reconciliations.next_deadline(limits.neg_idle) {
            Some(neg) => neg.min(quiet),
            None => quiet,
        }
    }

    /// The keys that this socket proved to hold.
    pub(crate) fn authenticated(&self) -> Vec<PublicKey> {
        self.auth.keys().to_vec()
    }

    /// Whether this negentropy session is still open.
    pub(crate) fn is_reconciling(&self, token: Token) -> bool {
        self.reconciliations.is_open(token)
    }

    fn on_heard(&mut self, now: Now) -> Vec<Output> {
        self.heard_at = now.mono;
        self.pinged = false;
        Vec::new()
    }

    fn on_binary(&mut self, now: Now) -> Vec<Output> {
        self.on_heard(now);
        match self.charge(now.mono) {
            Charge::Hangup => vec![Output::Hangup(Hangup::TOO_MANY_MESSAGES)],
            Charge::Paid | Charge::Refused => {
                self.answer(Reply::notice("invalid: binary frames are not understood"))
            }
        }
    }

    fn on_text(
        &mut self,
        now: Now,
        read: impl FnOnce(&Limits) -> Result<Request, Reply>,
    ) -> Vec<Output> {
        self.on_heard(now);
        let charge = self.charge(now.mono);
        if charge == Charge::Hangup {
            return vec![Output::Hangup(Hangup::TOO_MANY_MESSAGES)];
        }
        match read(&self.rules.limits) {
            Err(reply) => self.answer(reply),
            Ok(request) if charge == Charge::Refused => self.refuse(request, MESSAGE_RATE),
            Ok(request) => self.on_request(now, request),
        }
    }

    fn on_request(&mut self, now: Now, request: Request) -> Vec<Output> {
        match &request {
            Request::Event(_) if !self.events.take(now.mono) => self.refuse(request, EVENT_RATE),
            Request::Req(..) | Request::Count(..) | Request::NegOpen(..)
                if !self.queries.take(now.mono) =>
            {
                self.refuse(request, QUERY_RATE)
            }
            _ => self.obey(now, request),
        }
    }

    fn obey(&mut self, now: Now, request: Request) -> Vec<Output> {
        let limits = &self.rules.limits;
        match request {
            Request::Event(event) => vec![Output::Ingest(event)],
            Request::Auth(event) => self.auth.attempt(now.unix, &event, &self.rules),
            Request::Req(id, asked) => {
                let token = next_token(&mut self.tokens);
                let begun = |id, asked| Output::Subscribe { token, id, asked };
                self.subscriptions.begin(token, id, asked, limits, begun)
            }
            Request::Count(id, asked) => {
                let token = next_token(&mut self.tokens);
                let begun = |_, asked| Output::Count { token, asked };
                self.subscriptions.begin(token, id, asked, limits, begun)
            }
            Request::NegOpen(id, filter, message) => {
                let token = next_token(&mut self.tokens);
                self.reconciliations.open(token, id, filter, message, limits)
            }
            Request::NegMsg(id, message) => self.reconciliations.go_on(&id, message),
            Request::Close(id) => self.subscriptions.close(&id),
            Request::NegClose(id) => self.reconciliations.close(&id),
        }
    }

    /// Refuses in the form that this kind of request is refused in. Closing is never refused: it only frees.
    fn refuse(&mut self, request: Request, reason: &'static str) -> Vec<Output> {
        match request {
            Request::Event(event) | Request::Auth(event) => {
                self.answer(Reply::refused(event.id, reason))
            }
            Request::Req(id, _) | Request::Count(id, _) => self.answer(Reply::closed(&id, reason)),
            Request::NegOpen(id, ..) | Request::NegMsg(id, _) => {
                self.answer(Reply::neg_err(&id, reason))
            }
            Request::Close(id) => self.subscriptions.close(&id),
            Request::NegClose(id) => self.reconciliations.close(&id),
        }
    }

    /// Sends a reply, and makes it true: what is said to be closed is closed, who must authenticate gets a challenge.
    fn answer(&mut self, reply: Reply) -> Vec<Output> {
        let mut outputs = match &reply {
            Reply::Closed(id, _) => self.subscriptions.close(id),
            Reply::NegErr(id, ..) => self.reconciliations.close(id),
            _ => Vec::new(),
        };
        if reply.wants_auth() {
            outputs.extend(self.auth.challenge());
        }
        outputs.push(Output::Send(reply));
        outputs
    }

    fn on_judged(&mut self, id: EventId, answer: Answer) -> Vec<Output> {
        let Answer { accepted, message } = answer;
        self.answer(Reply::Ok { id, accepted, message: message.into_owned() })
    }

    fn on_tick(&mut self, now: Now) -> Vec<Output> {
        let limits = &self.rules.limits;
        let quiet = now.mono - self.heard_at;
        if quiet >= limits.idle_timeout {
            return vec![Output::Hangup(Hangup::IDLE)];
        }
        let mut outputs = self.reconciliations.expire(now.mono, limits.neg_idle);
        if quiet >= limits.ping_after && !self.pinged {
            self.pinged = true;
            outputs.push(Output::Ping);
        }
        outputs
    }

    fn charge(&mut self, now: Mono) -> Charge {
        if self.messages.take(now) {
            Charge::Paid
        } else if self.refusals.take(now) {
            Charge::Refused
        } else {
            Charge::Hangup
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Charge {
    Paid,
    Refused,
    Hangup,
}

fn next_token(tokens: &mut u64) -> Token {
    *tokens += 1;
    Token(*tokens)
}

#[cfg(test)]
mod tests;
