//! The state of one connection: its subscriptions, its rates, its authentication and its idle time.
//!
//! A state machine without IO or clock: [`Session::handle`] takes an input and returns outputs. Events do not pass
//! through it. Every REQ, COUNT and NEG-OPEN gets a fresh [`Token`], so that a late reply for a closed or replaced one is
//! ignored.
//!
//! At a private service (GRASP-08) a client has to prove first that it is a member; until then every request gets the same
//! refusal, in the form of its type.

mod authentication;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use grasp_core::{Mono, Now};
use nostr::event::{Event, EventId};
use nostr::filter::Filter;
use nostr::key::PublicKey;

use self::authentication::Authentication;
use super::codec::{QueryFilters, Reply, Request, SubId};
use super::limits::{Allowance, Limits};
use super::negentropy::{self, Snapshot};
use crate::ingest::Answer;
use crate::server::Config;

/// The key of one REQ, COUNT or NEG-OPEN, never used twice on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Token(pub(crate) u64);

/// An input of the session.
#[derive(Debug)]
pub(crate) enum Input {
    /// The connection is open.
    Opened,
    /// The members of a private service, which have changed.
    Members(Arc<BTreeSet<PublicKey>>),
    /// A message, or the reply to one that cannot be read.
    Message(Result<Request, Reply>),
    /// A ping or pong.
    Activity,
    Judged(EventId, Answer),
    /// The reply to a REQ, COUNT or negentropy message.
    Reply(Token, Reply),
    /// The set for a NEG-OPEN, and the reply to its message.
    NegOpened(Token, Arc<Snapshot>, Reply),
    Tick,
}

/// An output of the session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    Send(Reply),
    Ping,
    Ingest(Box<Event>),
    Subscribe(Token, SubId, QueryFilters),
    Unsubscribe(Token),
    Count(Token, SubId, QueryFilters),
    OpenNeg(Token, SubId, Box<Filter>, Vec<u8>),
    AnswerNeg(Token, SubId, Vec<u8>),
    Close(CloseReason),
}

/// The code and reason of a close frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CloseReason(pub(crate) u16, pub(crate) &'static str);

impl CloseReason {
    pub(crate) const SHUTTING_DOWN: Self = Self(1001, "the relay is shutting down");
    pub(crate) const NOT_UTF8: Self = Self(1007, "invalid: text must be UTF-8");
    pub(crate) const TOO_BIG: Self = Self(1009, "invalid: message too big");
    pub(crate) const PROTOCOL: Self = Self(1002, "invalid: broken websocket frame");
    pub(crate) const AT_CAPACITY: Self = Self(
        1013,
        "rate-limited: too many unfinished messages of this network",
    );
    pub(crate) const TOO_SLOW: Self = Self(1008, "closed: a message took too long");
    const IDLE: Self = Self(1001, "closed: idle for too long");
    const TOO_MANY_MESSAGES: Self = Self(1008, "rate-limited: too many messages");
    const TOO_MANY_AUTHS: Self = Self(1008, "rate-limited: too many failed AUTHs");
    const NO_AUTH: Self = Self(1008, "auth-required: no member authenticated in time");
    const NOT_A_MEMBER: Self = Self(1008, "restricted: not a member");
    /// Sent to a client whose membership ended. Nothing else is sent any more.
    pub(crate) const REMOVED: Self = Self(1008, "restricted: no longer a member");
}

#[derive(Debug)]
pub(crate) struct Session {
    config: Arc<Config>,
    auth: Authentication,
    subscriptions: BTreeMap<SubId, OpenSubscription>,
    /// Ids of REQs are another namespace.
    neg_sessions: BTreeMap<SubId, NegSession>,
    messages: Allowance,
    /// Messages above the allowance that are still answered.
    refusals: Allowance,
    events: Allowance,
    queries: Allowance,
    last_token: Token,
    active_at: Mono,
    pinged: bool,
}

/// A subscription, or a COUNT that is not answered yet.
#[derive(Clone, Copy, Debug)]
struct OpenSubscription {
    token: Token,
    bytes: usize,
}

/// A negentropy session (NIP-77).
#[derive(Debug)]
struct NegSession {
    token: Token,
    snapshot: Option<Arc<Snapshot>>,
    /// The time of the last answer, until the client's next message.
    idle_since: Option<Mono>,
}

impl Session {
    /// Starts a session with an unguessable challenge.
    pub(crate) fn new(now: Now, config: Arc<Config>, challenge: String) -> Self {
        let limits = &config.limits;
        Self {
            auth: Authentication::new(now.mono, challenge, config.private.as_ref()),
            subscriptions: BTreeMap::new(),
            neg_sessions: BTreeMap::new(),
            messages: Allowance::new(limits.messages_per_minute),
            refusals: Allowance::new(limits.messages_per_minute),
            events: Allowance::new(limits.events_per_minute),
            queries: Allowance::new(limits.queries_per_minute),
            last_token: Token(0),
            active_at: now.mono,
            pinged: false,
            config,
        }
    }

    /// Takes an input and returns outputs, to be performed in this order.
    #[must_use]
    pub(crate) fn handle(&mut self, now: Now, input: Input) -> Vec<Output> {
        match input {
            Input::Opened if self.auth.is_locked() => self.auth.challenge().into_iter().collect(),
            Input::Opened => Vec::new(),
            Input::Members(members) => self.auth.members_changed(members).into_iter().collect(),
            Input::Message(request) => self.on_message(now, request),
            Input::Activity => {
                self.note_activity(now);
                Vec::new()
            }
            Input::Judged(
                id,
                Answer {
                    is_accepted: accepted,
                    message,
                },
            ) => self.answer(
                now,
                Reply::Ok {
                    id,
                    accepted,
                    message,
                },
            ),
            Input::Reply(token, reply) if self.is_open(token) => self.answer(now, reply),
            Input::Reply(..) => Vec::new(),
            Input::NegOpened(token, snapshot, reply) => {
                self.on_neg_opened(now, token, snapshot, reply)
            }
            Input::Tick => self.on_tick(now),
        }
    }

    /// Returns the time of the next [`Input::Tick`], which changes with each `handle`.
    pub(crate) fn next_deadline(&self) -> Mono {
        let limits = &self.config.limits;
        let quiet = if self.pinged {
            limits.idle_timeout
        } else {
            limits.ping_after
        };
        let quiet = self.active_at + quiet.min(limits.idle_timeout);
        let idle = self
            .neg_sessions
            .values()
            .filter_map(|open| open.idle_since)
            .min();
        let quiet = idle.map_or(quiet, |since| quiet.min(since + limits.neg_idle));
        let locked_until = self.auth.locked_until();
        locked_until.map_or(quiet, |until| quiet.min(until))
    }

    /// Returns the keys that the client authenticated as.
    pub(crate) fn authenticated(&self) -> Vec<PublicKey> {
        self.auth.keys().to_vec()
    }

    /// Returns the set of a negentropy session.
    pub(crate) fn snapshot(&self, id: &SubId) -> Option<Arc<Snapshot>> {
        self.neg_sessions.get(id)?.snapshot.clone()
    }

    fn is_open(&self, token: Token) -> bool {
        self.subscriptions.values().any(|open| open.token == token)
            || self.neg_sessions.values().any(|open| open.token == token)
    }

    fn note_activity(&mut self, now: Now) {
        self.active_at = now.mono;
        self.pinged = false;
    }

    fn on_message(&mut self, now: Now, request: Result<Request, Reply>) -> Vec<Output> {
        self.note_activity(now);
        let is_paid = self.messages.take(now.mono);
        if !is_paid && !self.refusals.take(now.mono) {
            return vec![Output::Close(CloseReason::TOO_MANY_MESSAGES)];
        }
        let request = match request {
            Ok(request) => request,
            Err(reply) if self.auth.is_locked() => return self.demand_auth(reply),
            Err(reply) => return self.answer(now, reply),
        };
        if self.auth.is_locked() && !matches!(request, Request::Auth(_)) {
            return self.demand_auth(form_of_refusal(&request));
        }
        match &request {
            _ if !is_paid => self.refuse(now, request, "rate-limited: too many messages"),
            Request::Event(_) if !self.events.take(now.mono) => {
                self.refuse(now, request, "rate-limited: too many events")
            }
            Request::Req(..) | Request::Count(..) | Request::NegOpen(..)
                if !self.queries.take(now.mono) =>
            {
                self.refuse(now, request, "rate-limited: too many queries")
            }
            _ => self.perform(now, request),
        }
    }

    /// Refuses whatever a client sends that has not proven to be a member, in the form of this reply.
    fn demand_auth(&mut self, form: Reply) -> Vec<Output> {
        let reason = AUTH_REQUIRED;
        let refusal = match form {
            Reply::Ok { id, .. } => Reply::refused(id, reason),
            Reply::Closed(id, _) => Reply::closed(&id, reason),
            Reply::NegErr(id, ..) => Reply::neg_err(&id, reason),
            _ => Reply::notice(reason),
        };
        let mut outputs: Vec<_> = self.auth.challenge().into_iter().collect();
        outputs.push(Output::Send(refusal));
        outputs
    }

    fn perform(&mut self, now: Now, request: Request) -> Vec<Output> {
        match request {
            Request::Event(event) => vec![Output::Ingest(event)],
            Request::Auth(event) => self.auth.attempt(now.unix, &event, &self.config),
            Request::Req(id, query) => self.open_query(now, id, query, Output::Subscribe),
            Request::Count(id, query) => self.open_query(now, id, query, Output::Count),
            Request::Close(id) => self.close(&id),
            Request::NegOpen(id, filter, message) => self.open_neg(now, id, filter, message),
            Request::NegMsg(id, message) => self.continue_neg(now, id, message),
            Request::NegClose(id) => {
                self.neg_sessions.remove(&id);
                Vec::new()
            }
        }
    }

    /// Refuses a request in the form of its type. Closing is never refused, because it only frees.
    fn refuse(&mut self, now: Now, request: Request, reason: &'static str) -> Vec<Output> {
        let refusal = match &request {
            Request::Event(event) | Request::Auth(event) => Reply::refused(event.id, reason),
            Request::Req(id, _) | Request::Count(id, _) => Reply::closed(id, reason),
            Request::NegOpen(id, ..) | Request::NegMsg(id, _) => Reply::neg_err(id, reason),
            Request::Close(_) | Request::NegClose(_) => return self.perform(now, request),
        };
        self.answer(now, refusal)
    }

    /// Sends a reply with its consequences: some end what they are for, and auth-required sends the challenge first.
    fn answer(&mut self, now: Now, reply: Reply) -> Vec<Output> {
        let mut outputs = Vec::new();
        match &reply {
            Reply::Closed(id, _) | Reply::Count(id, _) => outputs = self.close(id),
            Reply::NegMsg(id, _) => {
                if let Some(open) = self.neg_sessions.get_mut(id) {
                    open.idle_since = Some(now.mono);
                }
            }
            Reply::NegErr(id, ..) => {
                self.neg_sessions.remove(id);
            }
            _ => {}
        }
        if reply.wants_auth() {
            outputs.extend(self.auth.challenge());
        }
        outputs.push(Output::Send(reply));
        outputs
    }

    /// Opens a subscription or a COUNT, which holds a slot until it is answered; one of the same id is closed first.
    fn open_query(
        &mut self,
        now: Now,
        id: SubId,
        query: QueryFilters,
        opened: impl FnOnce(Token, SubId, QueryFilters) -> Output,
    ) -> Vec<Output> {
        let mut outputs = self.close(&id);
        let Limits {
            subscriptions,
            subscription_bytes,
            ..
        } = self.config.limits;
        let held: usize = self.subscriptions.values().map(|open| open.bytes).sum();
        if self.subscriptions.len() >= subscriptions {
            let reason =
                format!("rate-limited: too many REQs: {subscriptions} subscriptions may be open");
            outputs.extend(self.answer(now, Reply::closed(&id, reason)));
        } else if held.saturating_add(query.bytes) > subscription_bytes {
            let reason = format!(
                "rate-limited: active subscriptions exceed max size {subscription_bytes} bytes"
            );
            outputs.extend(self.answer(now, Reply::closed(&id, reason)));
        } else {
            let (token, bytes) = (self.next_token(), query.bytes);
            self.subscriptions
                .insert(id.clone(), OpenSubscription { token, bytes });
            outputs.push(opened(token, id, query));
        }
        outputs
    }

    /// Closes a subscription, if it is open.
    fn close(&mut self, id: &SubId) -> Vec<Output> {
        let closed = self.subscriptions.remove(id);
        closed
            .map(|open| Output::Unsubscribe(open.token))
            .into_iter()
            .collect()
    }

    /// Opens a negentropy session; one of the same id is closed first.
    fn open_neg(
        &mut self,
        now: Now,
        id: SubId,
        filter: Box<Filter>,
        message: Vec<u8>,
    ) -> Vec<Output> {
        self.neg_sessions.remove(&id);
        if self.neg_sessions.len() >= self.config.limits.neg_sessions {
            let reason = "rate-limited: too many negentropy subscriptions";
            return self.answer(now, Reply::neg_err(&id, reason));
        }
        let token = self.next_token();
        let open = NegSession {
            token,
            snapshot: None,
            idle_since: None,
        };
        self.neg_sessions.insert(id.clone(), open);
        vec![Output::OpenNeg(token, id, filter, message)]
    }

    /// Keeps the set of a negentropy session, if the connection may hold as many items.
    fn on_neg_opened(
        &mut self,
        now: Now,
        token: Token,
        snapshot: Arc<Snapshot>,
        reply: Reply,
    ) -> Vec<Output> {
        let snapshots = self
            .neg_sessions
            .values()
            .filter_map(|open| open.snapshot.as_ref());
        let held: usize = snapshots.map(|snapshot| snapshot.len()).sum();
        let opened = self
            .neg_sessions
            .iter_mut()
            .find(|(_, open)| open.token == token);
        let Some((id, open)) = opened else {
            return Vec::new();
        };
        if held.saturating_add(snapshot.len()) > self.config.limits.neg_connection_items {
            let refusal = Reply::neg_err(id, negentropy::AT_CAPACITY);
            return self.answer(now, refusal);
        }
        open.snapshot = Some(snapshot);
        self.answer(now, reply)
    }

    /// Takes the next message of a negentropy session, which must have got the answer to the last one.
    fn continue_neg(&mut self, now: Now, id: SubId, message: Vec<u8>) -> Vec<Output> {
        let reason = match self.neg_sessions.get_mut(&id) {
            Some(open) if open.idle_since.is_some() => {
                open.idle_since = None;
                return vec![Output::AnswerNeg(open.token, id, message)];
            }
            Some(_) => "invalid: NEG-MSG before the answer to the last one",
            None => "closed: no such session",
        };
        self.answer(now, Reply::neg_err(&id, reason))
    }

    fn on_tick(&mut self, now: Now) -> Vec<Output> {
        if self
            .auth
            .locked_until()
            .is_some_and(|until| now.mono >= until)
        {
            return vec![Output::Close(CloseReason::NO_AUTH)];
        }
        let (limits, quiet) = (&self.config.limits, now.mono - self.active_at);
        if quiet >= limits.idle_timeout {
            return vec![Output::Close(CloseReason::IDLE)];
        }
        let mut outputs = Vec::new();
        if quiet >= limits.ping_after && !self.pinged {
            self.pinged = true;
            outputs.push(Output::Ping);
        }
        let is_idle = |open: &NegSession| {
            open.idle_since
                .is_some_and(|since| now.mono - since >= limits.neg_idle)
        };
        let idle = self.neg_sessions.iter().filter(|(_, open)| is_idle(open));
        let refusal = |(id, _): (&SubId, _)| Reply::neg_err(id, "closed: idle for too long");
        for refusal in idle.map(refusal).collect::<Vec<_>>() {
            outputs.extend(self.answer(now, refusal));
        }
        outputs
    }

    fn next_token(&mut self) -> Token {
        self.last_token.0 += 1;
        self.last_token
    }
}

/// The refusal of everything but AUTH by a private service, before a member has authenticated.
const AUTH_REQUIRED: &str =
    "auth-required: this is a private service, authenticate as a member first";

/// Returns a refusal in the form of a request's type; a NOTICE for types without an answer of their own.
fn form_of_refusal(request: &Request) -> Reply {
    match request {
        Request::Event(event) | Request::Auth(event) => Reply::refused(event.id, AUTH_REQUIRED),
        Request::Req(id, _) | Request::Count(id, _) => Reply::closed(id, AUTH_REQUIRED),
        Request::NegOpen(id, ..) => Reply::neg_err(id, AUTH_REQUIRED),
        Request::Close(_) | Request::NegMsg(..) | Request::NegClose(_) => {
            Reply::notice(AUTH_REQUIRED)
        }
    }
}

#[cfg(test)]
mod private_tests;
#[cfg(test)]
mod tests;
