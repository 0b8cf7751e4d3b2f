//! A relay that follows a script, and counts the requests.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use grasp_core::Mono;
use grasp_core::limits::EoseHint;
use grasp_core::nostr::event::{Event, EventId};
use grasp_core::nostr::filter::Filter;
use grasp_sync::engine::{ConnId, Frame, RelayFacts, Said, SubId};
use negentropy::{Id, Negentropy, NegentropyStorageVector};

use super::chance::Chance;
use super::local::matches;
use super::script::{Neg, Quirk, Script};

/// The messages it sends.
pub(crate) enum Reply {
    Said(Said),
    Events(SubId, Vec<Event>),
}

type Session = Negentropy<'static, NegentropyStorageVector>;

#[derive(Default)]
struct Connection {
    subs: BTreeMap<SubId, Vec<Filter>>,
    sessions: BTreeMap<SubId, Session>,
    is_authenticated: bool,
    is_challenged: bool,
}

pub(crate) struct Peer {
    pub(crate) script: Script,
    pub(crate) events: BTreeMap<EventId, Event>,
    /// Ids offered in reconciliation, and never delivered.
    pub(crate) phantoms: BTreeSet<EventId>,
    connection: Option<(ConnId, Connection)>,
    starts: VecDeque<Mono>,
    pub(crate) peak_subs: usize,
    pub(crate) peak_starts_per_minute: usize,
    pub(crate) requests: usize,
}

impl Peer {
    pub(crate) fn new(script: Script, events: impl IntoIterator<Item = Event>) -> Self {
        Self {
            script,
            events: events.into_iter().map(|event| (event.id, event)).collect(),
            phantoms: BTreeSet::new(),
            connection: None,
            starts: VecDeque::new(),
            peak_subs: 0,
            peak_starts_per_minute: 0,
            requests: 0,
        }
    }

    pub(crate) fn connect(&mut self, conn: ConnId) -> RelayFacts {
        self.connection = Some((conn, Connection::default()));
        let mut facts = RelayFacts::default();
        facts.has_document = true;
        facts.software = self.script.software.map(str::to_owned);
        facts.max_subscriptions = self.script.is_open.then_some(self.script.subs);
        facts.max_limit = self.script.is_open.then_some(self.script.page);
        facts.is_grasp = self.script.is_grasp;
        facts
    }

    pub(crate) fn is_connected(&self, conn: ConnId) -> bool {
        self.connection
            .as_ref()
            .is_some_and(|(open, _)| *open == conn)
    }

    pub(crate) fn has_connection(&self) -> bool {
        self.connection.is_some()
    }

    /// Ends the connection; returns whether there was one.
    pub(crate) fn cut(&mut self, conn: ConnId) -> bool {
        let was_connected = self.is_connected(conn);
        if was_connected {
            self.connection = None;
        }
        was_connected
    }

    /// Drops all connections.
    pub(crate) fn drop_connections(&mut self) {
        self.connection = None;
    }

    /// Returns the subscriptions that stay open.
    pub(crate) fn live_subs(&self) -> Vec<SubId> {
        self.connection
            .iter()
            .flat_map(|(_, connection)| connection.subs.keys().copied())
            .collect()
    }

    pub(crate) fn drop_sub(&mut self, sub: SubId) {
        if let Some((_, connection)) = &mut self.connection {
            connection.subs.remove(&sub);
        }
    }

    /// Publishes an event here.
    pub(crate) fn publish(&mut self, event: Event) -> Vec<(ConnId, Reply)> {
        let mut replies = Vec::new();
        if let Some((conn, connection)) = &self.connection {
            let wanted =
                |filters: &Vec<Filter>| filters.iter().any(|filter| matches(filter, &event));
            for (sub, _) in connection
                .subs
                .iter()
                .filter(|(_, filters)| wanted(filters))
            {
                replies.push((*conn, Reply::Events(*sub, vec![event.clone()])));
            }
        }
        self.events.insert(event.id, event);
        replies
    }

    /// Returns the refusal of a filter for everything, if the script says so.
    fn refusal_of_whole(&self, frame: &Frame) -> Option<Said> {
        let is_whole = |filter: &Filter| {
            filter.generic_tags.is_empty() && filter.kinds.is_none() && filter.ids.is_none()
        };
        let text = "restricted: name what you want".to_owned();
        match frame {
            _ if !self.script.wants_names => None,
            Frame::Subscribe { sub, filters, .. } if filters.iter().any(is_whole) => {
                Some(Said::Closed { sub: *sub, text })
            }
            Frame::NegOpen { sub, filter, .. } if is_whole(filter) => {
                Some(Said::NegErr { sub: *sub, text })
            }
            _ => None,
        }
    }

    pub(crate) fn receive(
        &mut self,
        now: Mono,
        conn: ConnId,
        frame: Frame,
        chance: &mut Chance,
    ) -> Vec<Reply> {
        if !self.is_connected(conn) {
            return vec![];
        }
        if matches!(frame, Frame::Subscribe { .. } | Frame::NegOpen { .. }) {
            self.requests += 1;
            if let Quirk::Says(said) = (self.script.quirk)(self.requests, &frame) {
                return said.into_iter().map(Reply::Said).collect();
            }
        }
        if let Some(said) = self.refusal_of_whole(&frame) {
            return vec![Reply::Said(said)];
        }
        match frame {
            Frame::Subscribe { sub, filters, .. } => self.subscribe(now, sub, filters, chance),
            Frame::NegOpen {
                sub,
                filter,
                message,
            } => self.open(now, sub, &filter, &message, chance),
            Frame::NegMsg { sub, message } => self.continue_session(sub, &message),
            Frame::Unsubscribe { sub } | Frame::NegClose { sub } => {
                if let Some((_, connection)) = &mut self.connection {
                    connection.subs.remove(&sub);
                    connection.sessions.remove(&sub);
                }
                vec![]
            }
            Frame::Authenticate => {
                if let Some((_, connection)) = &mut self.connection {
                    connection.is_authenticated = true;
                }
                vec![Reply::Said(Said::Authenticated { accepted: true })]
            }
        }
    }

    /// Returns the refusal of a request, independent of its filters.
    fn refusal(&mut self, now: Mono, chance: &mut Chance) -> Option<Refusal> {
        self.starts.push_back(now);
        while self
            .starts
            .front()
            .is_some_and(|at| now - *at > Duration::from_secs(60))
        {
            self.starts.pop_front();
        }
        self.peak_starts_per_minute = self.peak_starts_per_minute.max(self.starts.len());
        if self.script.silent_one_in.is_some_and(|n| chance.one_in(n)) {
            return Some(Refusal::Silence);
        }
        if self
            .script
            .starts_per_minute
            .is_some_and(|max| self.starts.len() > max)
        {
            return Some(Refusal::Says("rate-limited: too many queries"));
        }
        let (_, connection) = self.connection.as_ref()?;
        if self.script.wants_auth && !connection.is_authenticated {
            return Some(Refusal::Auth);
        }
        let open = connection.subs.len() + connection.sessions.len();
        if open < self.script.subs {
            self.peak_subs = self.peak_subs.max(open + 1);
            return None;
        }
        let hides = self.script.hides_refusals;
        Some(if hides {
            Refusal::Notice
        } else {
            Refusal::Says("rate-limited: too many REQs")
        })
    }

    fn refuse(&mut self, refusal: Refusal, closed: impl Fn(String) -> Said) -> Vec<Reply> {
        match refusal {
            Refusal::Silence => vec![],
            Refusal::Says(text) => vec![Reply::Said(closed(text.into()))],
            Refusal::Notice => {
                let text = "ERROR: too many concurrent REQs".to_owned();
                vec![Reply::Said(Said::Notice { text })]
            }
            Refusal::Auth => {
                let mut said = vec![];
                if let Some((_, connection)) = &mut self.connection {
                    if !std::mem::replace(&mut connection.is_challenged, true) {
                        said.push(Reply::Said(Said::Challenge));
                    }
                }
                said.push(Reply::Said(closed("auth-required: who are you?".into())));
                said
            }
        }
    }

    fn subscribe(
        &mut self,
        now: Mono,
        sub: SubId,
        filters: Vec<Filter>,
        chance: &mut Chance,
    ) -> Vec<Reply> {
        let closed = |text| Said::Closed { sub, text };
        if let Some(refusal) = self.refusal(now, chance) {
            return self.refuse(refusal, closed);
        }
        if filters.len() > self.script.filters {
            let text = format!(
                "rate-limited: REQ exceeds max filter count {}",
                self.script.filters
            );
            return vec![Reply::Said(closed(text))];
        }
        if !self.script.takes_zero && filters.iter().any(|filter| filter.limit == Some(0)) {
            let text = "invalid: Filter 'limit' must be a positive integer, got 0";
            return vec![Reply::Said(closed(text.into()))];
        }
        let events = self.page(&filters);
        let hint = self.script.hints.then(|| self.hint(&filters));
        if let Some((_, connection)) = &mut self.connection {
            connection.subs.insert(sub, filters);
        }
        let mut replies: Vec<Reply> = events
            .chunks(50)
            .map(|some| Reply::Events(sub, some.to_vec()))
            .collect();
        replies.push(Reply::Said(Said::Eose { sub, hint }));
        replies
    }

    /// Returns whether everything that the filters match is sent (NIP-67).
    fn hint(&self, filters: &[Filter]) -> EoseHint {
        let is_cut = |filter: &Filter| {
            let max = filter.limit.unwrap_or(usize::MAX).min(self.script.page);
            self.events
                .values()
                .filter(|event| matches(filter, event))
                .count()
                > max
        };
        if filters.iter().any(is_cut) {
            EoseHint::More
        } else {
            EoseHint::Finish
        }
    }

    /// Returns the newest events of each filter, up to this relay's limit.
    fn page(&self, filters: &[Filter]) -> Vec<Event> {
        let mut page: BTreeMap<EventId, Event> = BTreeMap::new();
        for filter in filters {
            let mut rows: Vec<&Event> = self
                .events
                .values()
                .filter(|event| matches(filter, event))
                .collect();
            rows.sort_by_key(|event| (std::cmp::Reverse(event.created_at), event.id));
            let max = filter.limit.unwrap_or(usize::MAX).min(self.script.page);
            page.extend(
                rows.into_iter()
                    .take(max)
                    .map(|event| (event.id, event.clone())),
            );
        }
        page.into_values().collect()
    }

    fn open(
        &mut self,
        now: Mono,
        sub: SubId,
        filter: &Filter,
        message: &[u8],
        chance: &mut Chance,
    ) -> Vec<Reply> {
        let error = |text: String| Said::NegErr { sub, text };
        let notice = |text: &str| vec![Reply::Said(Said::Notice { text: text.into() })];
        match self.script.neg {
            Neg::Disabled => return notice("ERROR: bad msg: negentropy disabled"),
            Neg::Unknown => return vec![Reply::Said(error("error: not supported".into()))],
            Neg::Silent => return vec![],
            Neg::Garbles => {
                let message = chance.bytes().to_vec();
                return vec![Reply::Said(Said::NegMsg { sub, message })];
            }
            Neg::Speaks | Neg::Small(_) => {}
        }
        if let Some(refusal) = self.refusal(now, chance) {
            return self.refuse(refusal, error);
        }
        let rows: Vec<&Event> = self
            .events
            .values()
            .filter(|event| matches(filter, event))
            .collect();
        if matches!(self.script.neg, Neg::Small(max) if rows.len() > max) {
            return vec![Reply::Said(error(
                "blocked: too many query results: 99".into(),
            ))];
        }
        let mut storage = NegentropyStorageVector::new();
        for event in rows {
            let id = Id::from_byte_array(*event.id.as_bytes());
            storage.insert(event.created_at.as_secs(), id).unwrap();
        }
        for phantom in &self.phantoms {
            storage
                .insert(super::START - 1, Id::from_byte_array(*phantom.as_bytes()))
                .unwrap();
        }
        storage.seal().unwrap();
        let session = Negentropy::owned(storage, 60_000).unwrap();
        if let Some((_, connection)) = &mut self.connection {
            connection.sessions.insert(sub, session);
        }
        self.continue_session(sub, message)
    }

    fn continue_session(&mut self, sub: SubId, message: &[u8]) -> Vec<Reply> {
        let Some((_, connection)) = &mut self.connection else {
            return vec![];
        };
        let said = match connection.sessions.get_mut(&sub) {
            Some(session) => Said::NegMsg {
                sub,
                message: session.reconcile(message).unwrap(),
            },
            None => Said::NegErr {
                sub,
                text: "closed: unknown".into(),
            },
        };
        vec![Reply::Said(said)]
    }
}

enum Refusal {
    Silence,
    Says(&'static str),
    Notice,
    Auth,
}
