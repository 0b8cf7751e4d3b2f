//! The state of one connection: its subscriptions, its rates, its authentication and its idle time.
//!
//! A state machine without IO or clock: [`Session::handle`] takes an input and returns outputs. Events of history do
//! not pass through it. Every REQ, COUNT and NEG-OPEN gets a fresh [`Token`], so that a late result for a closed or
//! replaced one is ignored.

mod neg_sessions;

use std::collections::BTreeMap;
use std::sync::Arc;

use grasp_core::limits::EoseHint;
use grasp_core::{Mono, Now, ServiceIdentity};
use nostr::event::{Event, EventId};
use nostr::filter::Filter;
use nostr::key::PublicKey;

use self::neg_sessions::NegSessions;
use super::auth::Authentication;
use super::codec::{QueryFilters, Reply, Request, SubId};
use super::limits::{Allowance, Limits};
use crate::ingest::Answer;

/// The configuration that all sessions share.
#[derive(Clone, Debug)]
pub(crate) struct SessionConfig {
    pub(crate) limits: Limits,
    pub(crate) service: ServiceIdentity,
}

/// The key of one REQ, COUNT or NEG-OPEN, never used twice on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Token(pub(crate) u64);

/// An input of the session.
#[derive(Debug)]
pub(crate) enum Input<'a> {
    Text(&'a str),
    /// A long text that was read on another thread.
    Read(Result<Request, Reply>),
    Binary,
    /// A ping or pong.
    Activity,
    Judged(EventId, Answer),
    CaughtUp(Token, EoseHint),
    Ended(Token, EndReason),
    Counted(Token, u64),
    NegOutcome(Token, NegOutcome),
    Tick,
}

/// The reason for which a subscription or COUNT ended without the client asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndReason {
    Overflow,
    StoreFailed,
    AtCapacity,
    /// It got no read permit in time.
    Busy,
}

/// The result of one negentropy message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NegOutcome {
    /// The set was built, and the first message answered.
    Opened {
        items: usize,
        answer: Vec<u8>,
    },
    Answered(Vec<u8>),
    TooBig,
    AtCapacity,
    Invalid,
    StoreFailed,
}

/// An output of the session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    Send(Reply),
    Ping,
    Ingest(Box<Event>),
    Subscribe { token: Token, id: SubId, query: QueryFilters },
    Unsubscribe(Token),
    Count { token: Token, query: QueryFilters },
    OpenNeg { token: Token, filter: Box<Filter>, message: Vec<u8> },
    AnswerNeg { token: Token, message: Vec<u8> },
    DropNeg(Token),
    Close(CloseReason),
}

/// The code and reason of a close frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CloseReason {
    pub(crate) code: u16,
    pub(crate) reason: &'static str,
}

impl CloseReason {
    pub(crate) const SHUTTING_DOWN: Self =
        Self { code: 1001, reason: "the relay is shutting down" };
    pub(crate) const NOT_UTF8: Self = Self { code: 1007, reason: "invalid: text must be UTF-8" };
    pub(crate) const TOO_BIG: Self = Self { code: 1009, reason: "invalid: message too big" };
    pub(crate) const PROTOCOL: Self =
        Self { code: 1002, reason: "invalid: broken websocket frame" };
    pub(crate) const AT_CAPACITY: Self =
        Self { code: 1013, reason: "rate-limited: too many unfinished messages of this network" };
    pub(crate) const TOO_SLOW: Self =
        Self { code: 1008, reason: "closed: a message took too long" };
    const IDLE: Self = Self { code: 1001, reason: "closed: idle for too long" };
    const TOO_MANY_MESSAGES: Self = Self { code: 1008, reason: "rate-limited: too many messages" };
    pub(crate) const TOO_MANY_AUTHS: Self =
        Self { code: 1008, reason: "rate-limited: too many failed AUTHs" };
}

#[derive(Debug)]
pub(crate) struct Session {
    config: Arc<SessionConfig>,
    auth: Authentication,
    subscriptions: Subscriptions,
    neg_sessions: NegSessions,
    messages: Allowance,
    /// Messages above the allowance that are still answered.
    refusals: Allowance,
    events: Allowance,
    queries: Allowance,
    tokens: u64,
    active_at: Mono,
    pinged: bool,
}

const MESSAGE_RATE: &str = "rate-limited: too many messages";
const QUERY_RATE: &str = "rate-limited: too many queries";
const EVENT_RATE: &str = "rate-limited: too many events";

impl Session {
    /// Starts a session with an unguessable challenge.
    pub(crate) fn new(now: Now, config: Arc<SessionConfig>, challenge: String) -> Self {
        let limits = &config.limits;
        Self {
            auth: Authentication::new(challenge),
            subscriptions: Subscriptions::default(),
            neg_sessions: NegSessions::default(),
            messages: Allowance::new(limits.messages_per_minute),
            refusals: Allowance::new(limits.messages_per_minute),
            events: Allowance::new(limits.events_per_minute),
            queries: Allowance::new(limits.queries_per_minute),
            tokens: 0,
            active_at: now.mono,
            pinged: false,
            config,
        }
    }

    /// Takes an input and returns outputs, to be performed in this order.
    #[must_use]
    pub(crate) fn handle(&mut self, now: Now, input: Input<'_>) -> Vec<Output> {
        match input {
            Input::Text(text) => self.on_text(now, |limits| Request::read(text, limits)),
            Input::Read(request) => self.on_text(now, |_| request),
            Input::Binary => self.on_binary(now),
            Input::Activity => self.on_activity(now),
            Input::Judged(id, answer) => self.on_judged(id, answer),
            Input::CaughtUp(token, hint) => self.subscriptions.caught_up(token, hint),
            Input::Ended(token, why) => self.subscriptions.ended(token, why),
            Input::Counted(token, count) => self.subscriptions.counted(token, count),
            Input::NegOutcome(token, what) => {
                self.neg_sessions.reconciled(now.mono, token, what, &self.config.limits)
            }
            Input::Tick => self.on_tick(now),
        }
    }

    /// Returns the time of the next [`Input::Tick`], which changes with each `handle`.
    pub(crate) fn next_deadline(&self) -> Mono {
        let limits = &self.config.limits;
        let quiet = if self.pinged { limits.idle_timeout } else { limits.ping_after };
        let quiet = self.active_at + quiet.min(limits.idle_timeout);
        match self.neg_sessions.next_deadline(limits.neg_idle) {
            Some(neg) => neg.min(quiet),
            None => quiet,
        }
    }

    /// Returns the keys that the client authenticated as.
    pub(crate) fn authenticated(&self) -> Vec<PublicKey> {
        self.auth.keys().to_vec()
    }

    /// Returns whether this negentropy session is open.
    pub(crate) fn has_neg_session(&self, token: Token) -> bool {
        self.neg_sessions.is_open(token)
    }

    fn on_activity(&mut self, now: Now) -> Vec<Output> {
        self.active_at = now.mono;
        self.pinged = false;
        Vec::new()
    }

    fn on_binary(&mut self, now: Now) -> Vec<Output> {
        self.on_activity(now);
        match self.charge(now.mono) {
            Charge::Close => vec![Output::Close(CloseReason::TOO_MANY_MESSAGES)],
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
        self.on_activity(now);
        let charge = self.charge(now.mono);
        if charge == Charge::Close {
            return vec![Output::Close(CloseReason::TOO_MANY_MESSAGES)];
        }
        match read(&self.config.limits) {
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
            _ => self.perform(now, request),
        }
    }

    fn perform(&mut self, now: Now, request: Request) -> Vec<Output> {
        let limits = &self.config.limits;
        match request {
            Request::Event(event) => vec![Output::Ingest(event)],
            Request::Auth(event) => self.auth.attempt(now.unix, &event, &self.config),
            Request::Req(id, query) => {
                let token = next_token(&mut self.tokens);
                let opened = |id, query| Output::Subscribe { token, id, query };
                self.subscriptions.open(token, id, query, limits, opened)
            }
            Request::Count(id, query) => {
                let token = next_token(&mut self.tokens);
                let opened = |_, query| Output::Count { token, query };
                self.subscriptions.open(token, id, query, limits, opened)
            }
            Request::NegOpen(id, filter, message) => {
                let token = next_token(&mut self.tokens);
                self.neg_sessions.open(token, id, filter, message, limits)
            }
            Request::NegMsg(id, message) => self.neg_sessions.answer(&id, message),
            Request::Close(id) => self.subscriptions.close(&id),
            Request::NegClose(id) => self.neg_sessions.close(&id),
        }
    }

    /// Refuses a request in the form of its type. Closing is never refused, because it only frees.
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
            Request::NegClose(id) => self.neg_sessions.close(&id),
        }
    }

    /// Sends a reply with its consequences: CLOSED closes the subscription, auth-required sends the challenge.
    fn answer(&mut self, reply: Reply) -> Vec<Output> {
        let mut outputs = match &reply {
            Reply::Closed(id, _) => self.subscriptions.close(id),
            Reply::NegErr(id, ..) => self.neg_sessions.close(id),
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
        let limits = &self.config.limits;
        let quiet = now.mono - self.active_at;
        if quiet >= limits.idle_timeout {
            return vec![Output::Close(CloseReason::IDLE)];
        }
        let mut outputs = self.neg_sessions.expire(now.mono, limits.neg_idle);
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
            Charge::Close
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Charge {
    Paid,
    Refused,
    Close,
}

fn next_token(tokens: &mut u64) -> Token {
    *tokens += 1;
    Token(*tokens)
}

#[derive(Debug, Default)]
struct Subscriptions {
    open: BTreeMap<SubId, OpenSubscription>,
    ids: BTreeMap<Token, SubId>,
    /// Bytes of all open filters.
    bytes: usize,
}

#[derive(Clone, Copy, Debug)]
struct OpenSubscription {
    token: Token,
    bytes: usize,
}

impl Subscriptions {
    /// Opens a subscription or a COUNT, which holds a slot until it is answered; one of the same id is closed first.
    fn open(
        &mut self,
        token: Token,
        id: SubId,
        query: QueryFilters,
        limits: &Limits,
        opened: impl FnOnce(SubId, QueryFilters) -> Output,
    ) -> Vec<Output> {
        let mut outputs = self.close(&id);
        outputs.push(match self.admit(token, &id, query.bytes, limits) {
            Ok(()) => opened(id, query),
            Err(refusal) => Output::Send(refusal),
        });
        outputs
    }

    /// Closes a subscription, if it is open.
    fn close(&mut self, id: &SubId) -> Vec<Output> {
        self.forget(id).map(Output::Unsubscribe).into_iter().collect()
    }

    fn caught_up(&self, token: Token, hint: EoseHint) -> Vec<Output> {
        let id = self.ids.get(&token);
        id.map(|id| Output::Send(Reply::Eose(id.clone(), hint))).into_iter().collect()
    }

    fn counted(&mut self, token: Token, count: u64) -> Vec<Output> {
        self.finish(token, |id| Reply::Count(id.clone(), count))
    }

    fn ended(&mut self, token: Token, why: EndReason) -> Vec<Output> {
        self.finish(token, |id| Reply::closed(id, reason(why)))
    }

    fn finish(&mut self, token: Token, reply: impl FnOnce(&SubId) -> Reply) -> Vec<Output> {
        let Some(id) = self.ids.get(&token).cloned() else {
            return Vec::new();
        };
        let mut outputs = self.close(&id);
        outputs.push(Output::Send(reply(&id)));
        outputs
    }

    fn admit(
        &mut self,
        token: Token,
        id: &SubId,
        bytes: usize,
        limits: &Limits,
    ) -> Result<(), Reply> {
        if self.open.len() >= limits.subscriptions {
            let most = limits.subscriptions;
            let reason = format!("rate-limited: too many REQs: {most} subscriptions may be open");
            return Err(Reply::closed(id, reason));
        }
        let total = self.bytes.saturating_add(bytes);
        if total > limits.subscription_bytes {
            let most = limits.subscription_bytes;
            let reason = format!("rate-limited: active subscriptions exceed max size {most} bytes");
            return Err(Reply::closed(id, reason));
        }
        self.bytes = total;
        self.open.insert(id.clone(), OpenSubscription { token, bytes });
        self.ids.insert(token, id.clone());
        Ok(())
    }

    fn forget(&mut self, id: &SubId) -> Option<Token> {
        let open = self.open.remove(id)?;
        self.bytes = self.bytes.saturating_sub(open.bytes);
        self.ids.remove(&open.token);
        Some(open.token)
    }
}

const fn reason(why: EndReason) -> &'static str {
    match why {
        EndReason::Overflow => {
            "error: live event buffer overflow, ask again from the last event seen"
        }
        EndReason::StoreFailed => "error: the event store failed",
        EndReason::Busy => {
            "rate-limited: this network uses its share of this relay, try again later"
        }
        EndReason::AtCapacity => "rate-limited: this relay holds as many subscriptions as it can",
    }
}

#[cfg(test)]
mod tests;
