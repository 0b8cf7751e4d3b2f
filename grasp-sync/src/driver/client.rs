//! A client of one relay, for one user at a time.

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use grasp_core::RelayUrl;
use grasp_core::nostr::event::Event;
use grasp_core::nostr::filter::Filter;
use grasp_core::nostr::key::Keys;
use grasp_core::outbound::Provenance;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;

use super::Limits;
use super::codec::{self, RelayMessage};
use super::connection::authentication;
use super::outbound::{CheckedRoute, Outbound, Socket};
use crate::engine::{Fault, Said, SubId, split, split_by_kind};
use crate::limits::{Ending, Heard, Next, PageRequest, Pager, PagerConfig, Refusal};

/// Time that the relay may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// The reason why a relay did not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unanswered {
    /// The connection is lost, or the answer took too long.
    #[error("the connection to the relay was lost")]
    Lost,
    /// The relay closed the subscription, with this text.
    #[error("the relay refused the request: {0}")]
    Closed(String),
}

/// A websocket to a relay.
pub struct Client {
    socket: Socket,
    subs: u64,
    idle: Duration,
    ping_after: Duration,
    /// Messages of other subscriptions that came while a page was read: events, and CLOSED.
    deferred: VecDeque<RelayMessage>,
    relay: RelayUrl,
    /// The latest challenge of the relay (NIP-42).
    challenge: Option<String>,
}

/// Reads everything that is stored for a filter, page by page.
///
/// A second that holds more than the relay shows in a page is read in parts.
pub(crate) struct PagedRead<'a> {
    client: &'a mut Client,
    /// The parts still to be read; the last is under way.
    parts: Vec<(Filter, Option<Pager>)>,
}

impl PagedRead<'_> {
    /// Returns the next page; `None` when all is read.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<Event>>, Unanswered> {
        while let Some((filter, pager)) = self.parts.last_mut() {
            let pager = pager.get_or_insert_with(|| {
                Pager::new(PagerConfig {
                    since: filter.since,
                    ..PagerConfig::default()
                })
            });
            match pager.next() {
                Next::Ask(PageRequest { limit, until, .. }) => {
                    let mut asked = filter.clone().limit(limit);
                    // The filter's own end holds until the pages are below it.
                    asked.until = until.into_iter().chain(filter.until).min();
                    let page = self.client.page(&asked).await?;
                    let _ = pager.page_ended(page.iter().map(|one| (one.created_at, one.id)));
                    return Ok(Some(page));
                }
                Next::Done(Ending::Exhausted) => self.finish_part(),
                Next::Done(Ending::PageBound | Ending::NoProgress) => return Err(Unanswered::Lost),
            }
        }
        Ok(None)
    }

    fn finish_part(&mut self) {
        let Some((filter, Some(pager))) = self.parts.pop() else {
            return;
        };
        for at in pager.gaps() {
            let parts: Vec<Filter> = match split(&filter) {
                Some(parts) => parts.into(),
                None => {
                    tracing::warn!(%at, "the local relay does not return all events of one second");
                    split_by_kind(&filter).into_iter().flatten().collect()
                }
            };
            self.parts.extend(
                parts
                    .into_iter()
                    .map(|part| (part.since(*at).until(*at), None)),
            );
        }
    }
}

/// Returns whether a notice refuses the request that was sent last.
pub(super) fn is_refusal(notice: &str) -> bool {
    let refusal = Refusal::read(Heard::Notice, notice);
    refusal.is_about_the_filter() || refusal == Refusal::DroppedStart
}

impl Client {
    /// Connects to a relay that the operator named, which may be at any address.
    pub async fn connect(
        relay: &RelayUrl,
        outbound: &Outbound,
        limits: &Limits,
    ) -> Result<Self, Fault> {
        let connecting = async {
            let route = outbound.route(relay, Provenance::Operator).await?;
            Self::open(relay, &route, limits).await
        };
        let connected = timeout(limits.handshake_timeout, connecting).await;
        connected.unwrap_or(Err(Fault::Unreachable))
    }

    /// Opens a websocket to a relay whose addresses were checked.
    pub(crate) async fn open(
        relay: &RelayUrl,
        route: &CheckedRoute,
        limits: &Limits,
    ) -> Result<Self, Fault> {
        let upgraded = timeout(limits.handshake_timeout, route.upgrade(relay, limits)).await;
        let (socket, _) = upgraded.unwrap_or(Err(Fault::Unreachable))?;
        let Limits {
            idle_timeout: idle,
            ping_after,
            ..
        } = *limits;
        Ok(Self {
            socket,
            subs: 0,
            idle,
            ping_after,
            deferred: VecDeque::new(),
            relay: relay.clone(),
            challenge: None,
        })
    }

    /// Publishes an event; returns whether the relay accepted it, and the text of its answer.
    pub async fn publish(&mut self, event: &Event) -> Result<(bool, String), Unanswered> {
        self.send(codec::event(event)).await?;
        self.answer_to(event).await
    }

    async fn answer_to(&mut self, event: &Event) -> Result<(bool, String), Unanswered> {
        loop {
            match self.receive_answer().await? {
                RelayMessage::Ok {
                    event: id,
                    accepted,
                    text,
                } if id == event.id => {
                    return Ok((accepted, text));
                }
                _ => {}
            }
        }
    }

    /// Authenticates (NIP-42), as a relay with `auth-required` demands; returns its answer as [`publish`](Self::publish)
    /// does.
    pub async fn authenticate(&mut self, keys: &Keys) -> Result<(bool, String), Unanswered> {
        while self.challenge.is_none() {
            self.receive_answer().await?;
        }
        let challenge = self.challenge.take().unwrap_or_default();
        let auth = authentication(&self.relay, &challenge, keys).ok_or(Unanswered::Lost)?;
        self.send(codec::auth(&auth)).await?;
        self.answer_to(&auth).await
    }

    /// Subscribes to a filter; events come by [`receive`](Self::receive).
    pub(crate) async fn subscribe(&mut self, filter: &Filter) -> Result<SubId, Unanswered> {
        self.subs += 1;
        let sub = SubId(self.subs);
        self.send(codec::req(sub, std::slice::from_ref(filter)))
            .await?;
        Ok(sub)
    }

    /// Subscribes to a filter, and waits until the relay has sent what is stored or refuses. A relay that does neither for a
    /// while is taken to have accepted.
    pub(crate) async fn subscribe_live(&mut self, filter: &Filter) -> Result<SubId, Unanswered> {
        let live = self.subscribe(filter).await?;
        match timeout(ANSWER_TIMEOUT, self.end_of_stored(live)).await {
            Ok(Err(unanswered)) => Err(unanswered),
            Ok(Ok(())) | Err(_) => Ok(live),
        }
    }

    /// Waits until the relay has sent what is stored for a subscription. Events are kept for [`receive`](Self::receive).
    async fn end_of_stored(&mut self, live: SubId) -> Result<(), Unanswered> {
        loop {
            match self.read_message().await? {
                RelayMessage::Said(Said::Eose { sub, .. }) if sub == live => return Ok(()),
                RelayMessage::Said(Said::Closed { sub, text }) if sub == live => {
                    return Err(Unanswered::Closed(text));
                }
                // As for a page.
                RelayMessage::Said(Said::Notice { text }) if is_refusal(&text) => {
                    return Err(Unanswered::Closed(text));
                }
                other @ RelayMessage::Event(..) => self.deferred.push_back(other),
                _ => {}
            }
        }
    }

    /// Starts to read everything that is stored for a filter.
    pub(crate) fn read(&mut self, filter: Filter) -> PagedRead<'_> {
        PagedRead {
            client: self,
            parts: vec![(filter, None)],
        }
    }

    /// Returns the stored events that the relay shows for a filter. Nothing about them is checked.
    pub async fn page(&mut self, filter: &Filter) -> Result<Vec<Event>, Unanswered> {
        let page = self.subscribe(filter).await?;
        let mut events = Vec::new();
        loop {
            match self.receive_answer().await? {
                RelayMessage::Event(sub, event) if sub == page => events.push(event),
                RelayMessage::Said(Said::Eose { sub, .. }) if sub == page => break,
                RelayMessage::Said(Said::Closed { sub, text }) if sub == page => {
                    return Err(Unanswered::Closed(text));
                }
                // Some relays answer a filter that they refuse by a notice alone. Nothing else was requested meanwhile.
                RelayMessage::Said(Said::Notice { text }) if is_refusal(&text) => {
                    return Err(Unanswered::Closed(text));
                }
                other @ (RelayMessage::Event(..) | RelayMessage::Said(Said::Closed { .. })) => {
                    self.deferred.push_back(other)
                }
                _ => {}
            }
        }
        self.send(codec::close(page)).await?;
        Ok(events)
    }

    /// Returns the next message, without a timeout; those that came during pages first.
    pub(crate) async fn receive(&mut self) -> Result<RelayMessage, Unanswered> {
        if let Some(message) = self.deferred.pop_front() {
            return Ok(message);
        }
        loop {
            if let Ok(message) = timeout(self.ping_after, self.read_message()).await {
                return message;
            }
            self.socket
                .send(Message::Ping(Vec::new().into()))
                .await
                .map_err(|_| Unanswered::Lost)?;
            // Any message shows that the connection lives, even the pong.
            let rest = self.idle.saturating_sub(self.ping_after);
            if let Some(message) = timeout(rest, self.read_frame())
                .await
                .unwrap_or(Err(Unanswered::Lost))?
            {
                return Ok(message);
            }
        }
    }

    /// Returns the answer to a message that was just sent.
    pub(crate) async fn receive_answer(&mut self) -> Result<RelayMessage, Unanswered> {
        timeout(ANSWER_TIMEOUT, self.read_message())
            .await
            .unwrap_or(Err(Unanswered::Lost))
    }

    pub(crate) async fn send(&mut self, text: String) -> Result<(), Unanswered> {
        let sent = timeout(ANSWER_TIMEOUT, self.socket.send(Message::text(text))).await;
        if matches!(sent, Ok(Ok(()))) {
            Ok(())
        } else {
            Err(Unanswered::Lost)
        }
    }

    async fn read_message(&mut self) -> Result<RelayMessage, Unanswered> {
        loop {
            if let Some(message) = self.read_frame().await? {
                return Ok(message);
            }
        }
    }

    /// Returns the next message, if it is one for us.
    async fn read_frame(&mut self) -> Result<Option<RelayMessage>, Unanswered> {
        match self.socket.next().await {
            Some(Ok(Message::Text(text))) => {
                let message = RelayMessage::parse(&text);
                if let Some(RelayMessage::Auth(challenge)) = &message {
                    self.challenge = Some(challenge.clone());
                }
                Ok(message)
            }
            Some(Ok(Message::Close(_)) | Err(_)) | None => Err(Unanswered::Lost),
            Some(Ok(_)) => Ok(None),
        }
    }
}
