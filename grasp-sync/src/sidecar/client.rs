//! One connection to the relay, for one user at a time.

use std::collections::VecDeque;
use std::time::Duration;

use crate::limits::{Ending, Next, PageRequest, Pager, PagerConfig};
use futures_util::{SinkExt as _, StreamExt as _};
use grasp_core::RelayUrl;
use grasp_core::nostr::event::Event;
use grasp_core::nostr::filter::Filter;
use grasp_core::outbound::Provenance;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;

use crate::driver::Limits;
use crate::driver::codec::{self, RelayMessage};
use crate::driver::connection::{Opened, Socket, open};
use crate::driver::outbound::Outbound;
use crate::engine::{SubId, split, split_by_kind};

/// Time that the relay may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// The address of the relay, and the means to connect.
pub(super) struct Remote {
    pub(super) relay: RelayUrl,
    pub(super) outbound: Outbound,
    pub(super) limits: Limits,
}

/// The connection is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lost;

pub(super) struct Client {
    socket: Socket,
    subs: u64,
    idle: Duration,
    ping_after: Duration,
    /// Messages of other subscriptions that came while a page was read: events, and CLOSED.
    deferred: VecDeque<RelayMessage>,
}

/// Reads everything that is stored for a filter, page by page.
///
/// A second that holds more than the relay shows in a page is read in parts.
pub(super) struct PagedRead<'a> {
    client: &'a mut Client,
    /// The parts still to be read; the last is under way.
    parts: Vec<(Filter, Option<Pager>)>,
}

impl PagedRead<'_> {
    /// Returns the next page; `None` when all is read.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<Event>>, Lost> {
        while let Some((filter, pager)) = self.parts.last_mut() {
            let pager = pager.get_or_insert_with(|| {
                Pager::new(PagerConfig { since: filter.since, ..PagerConfig::default() })
            });
            match pager.next() {
                Next::Ask(request) => {
                    let page = self.client.page(filter, request).await?;
                    let _ = pager.page_ended(page.iter().map(|one| (one.created_at, one.id)));
                    return Ok(Some(page));
                }
                Next::Done(Ending::Exhausted) => self.finish_part(),
                Next::Done(Ending::PageBound | Ending::NoProgress) => return Err(Lost),
            }
        }
        Ok(None)
    }

    fn finish_part(&mut self) {
        let Some((filter, Some(pager))) = self.parts.pop() else { return };
        for at in pager.gaps() {
            match split(&filter) {
                Some(parts) => {
                    let parts = parts.map(|part| (part.since(*at).until(*at), None));
                    self.parts.extend(parts);
                }
                None => {
                    tracing::warn!(%at, "the local relay does not return all events of one second");
                    let parts = split_by_kind(&filter).into_iter().flatten();
                    self.parts.extend(parts.map(|part| (part.since(*at).until(*at), None)));
                }
            }
        }
    }
}

impl Client {
    pub(super) async fn connect(remote: &Remote) -> Result<Self, Lost> {
        let Remote { relay, outbound, limits } = remote;
        match open(outbound, limits, relay, Provenance::Operator).await {
            Ok(Opened { socket, .. }) => Ok(Self {
                socket,
                subs: 0,
                idle: limits.idle_timeout,
                ping_after: limits.ping_after,
                deferred: VecDeque::new(),
            }),
            Err(fault) => {
                tracing::warn!(%relay, ?fault, "cannot connect to the local relay");
                Err(Lost)
            }
        }
    }

    /// Subscribes to a filter; events come by [`receive`](Self::receive).
    pub(super) async fn subscribe(&mut self, filter: &Filter) -> Result<SubId, Lost> {
        let sub = self.new_sub()?;
        self.send(codec::req(sub, std::slice::from_ref(filter))).await?;
        Ok(sub)
    }

    /// Starts to read everything that is stored for a filter.
    pub(super) fn read(&mut self, filter: Filter) -> PagedRead<'_> {
        PagedRead { client: self, parts: vec![(filter, None)] }
    }

    /// Reads one page of stored events.
    async fn page(&mut self, filter: &Filter, request: PageRequest) -> Result<Vec<Event>, Lost> {
        let mut filter = filter.clone().limit(request.limit);
        // The filter's own end holds until the pages are below it.
        filter.until = request.until.into_iter().chain(filter.until).min();
        let page = self.subscribe(&filter).await?;
        let mut events = Vec::new();
        loop {
            match timeout(ANSWER_TIMEOUT, self.read_message()).await.map_err(|_| Lost)?? {
                RelayMessage::Event(sub, event) if sub == page => events.push(event),
                RelayMessage::Eose(sub, _) if sub == page => break,
                RelayMessage::Closed(sub, text) if sub == page => {
                    tracing::warn!(text, "the local relay closed a query for stored events");
                    return Err(Lost);
                }
                other @ (RelayMessage::Event(..) | RelayMessage::Closed(..)) => {
                    self.deferred.push_back(other)
                }
                _ => {}
            }
        }
        self.send(codec::close(page)).await?;
        Ok(events)
    }

    /// Returns the next message, without a timeout; those that came during pages first.
    pub(super) async fn receive(&mut self) -> Result<RelayMessage, Lost> {
        if let Some(message) = self.deferred.pop_front() {
            return Ok(message);
        }
        loop {
            if let Ok(message) = timeout(self.ping_after, self.read_message()).await {
                return message;
            }
            self.socket.send(Message::Ping(Vec::new().into())).await.map_err(|_| Lost)?;
            // Any message shows that the connection lives, even the pong.
            let rest = self.idle.saturating_sub(self.ping_after);
            match timeout(rest, self.read_frame()).await {
                Ok(Ok(Some(message))) => return Ok(message),
                Ok(Ok(None)) => {}
                Ok(Err(Lost)) | Err(_) => return Err(Lost),
            }
        }
    }

    /// Returns the answer to a message that was just sent.
    pub(super) async fn receive_answer(&mut self) -> Result<RelayMessage, Lost> {
        timeout(ANSWER_TIMEOUT, self.read_message()).await.map_err(|_| Lost)?
    }

    pub(super) async fn send(&mut self, text: String) -> Result<(), Lost> {
        let sent = timeout(ANSWER_TIMEOUT, self.socket.send(Message::text(text))).await;
        if matches!(sent, Ok(Ok(()))) { Ok(()) } else { Err(Lost) }
    }

    async fn read_message(&mut self) -> Result<RelayMessage, Lost> {
        loop {
            if let Some(message) = self.read_frame().await? {
                return Ok(message);
            }
        }
    }

    /// Returns the next message, if it is one for us.
    async fn read_frame(&mut self) -> Result<Option<RelayMessage>, Lost> {
        match self.socket.next().await {
            Some(Ok(Message::Text(text))) => Ok(RelayMessage::parse(&text)),
            Some(Ok(Message::Close(_)) | Err(_)) | None => Err(Lost),
            Some(Ok(_)) => Ok(None),
        }
    }

    fn new_sub(&mut self) -> Result<SubId, Lost> {
        self.subs += 1;
        format!("g{}", self.subs).parse().map_err(|_| Lost)
    }
}
