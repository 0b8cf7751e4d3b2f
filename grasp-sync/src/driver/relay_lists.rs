//! Requests for the profiles and relay lists of users, one at a time, over connections for nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use grasp_core::admission::Retry;
use grasp_core::nostr::event::{Event, Kind};
use grasp_core::nostr::filter::{Filter, MatchEventOptions};
use grasp_core::nostr::key::PublicKey;
use grasp_core::outbound::Provenance;
use grasp_core::{RelayUrl, Version, kinds};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::Task;
use super::client::{Client, Unanswered, is_refusal};
use super::codec::{self, RelayMessage};
use super::connection::{Limits, Shared};
use super::intake::EventIntake;
use super::outbound::{self, Outbound};
use crate::engine::{Fault, Outcome, Said};
use crate::outbox::{FetchOutcome, Input, TaskId};

/// Requests that may wait; the machine makes one at a time.
const REQUEST_QUEUE: usize = 4;
/// Time that a relay may take, from the dial to its EOSE. The machine waits a little longer.
const FETCH_TIMEOUT: Duration = Duration::from_secs(25);
/// Time without requests after which a connection is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// Events after which a relay sends something else than what it was asked for.
const MAX_EVENTS: usize = 400;
/// Bytes of one event, and of all that are kept of an answer. Events beyond them are left out.
const MAX_EVENT_BYTES: usize = 64 * 1024;
const MAX_BYTES: usize = 4 * 1024 * 1024;

/// A request for what some authors say of themselves.
#[derive(Debug)]
pub(super) struct RelayListRequest {
    pub(super) id: TaskId,
    pub(super) source: RelayUrl,
    pub(super) from: Provenance,
    pub(super) authors: Vec<PublicKey>,
}

/// The task that makes the requests.
pub(super) struct RelayListReader {
    requests: mpsc::Sender<RelayListRequest>,
    _task: Task,
}

impl RelayListReader {
    /// Starts the task. Each request is answered by an input, once what came of it is judged.
    pub(super) fn start(shared: &Shared, inputs: mpsc::Sender<Input>) -> Self {
        let (sender, requests) = mpsc::channel(REQUEST_QUEUE);
        let worker = RelayListWorker {
            outbound: shared.outbound.clone(),
            limits: shared.limits.clone(),
            intake: shared.intake.clone(),
            inputs,
            open: None,
        };
        Self {
            requests: sender,
            _task: Task::spawn(worker.run(requests)),
        }
    }

    /// Queues a request; false if there are too many.
    pub(super) fn send(&self, request: RelayListRequest) -> bool {
        self.requests.try_send(request).is_ok()
    }
}

/// The reason why nothing is known of any author.
enum RelayListFailure {
    Connect(Fault),
    Answer(Unanswered),
    /// The relay sent too many events.
    Flood,
}

impl From<Fault> for RelayListFailure {
    fn from(fault: Fault) -> Self {
        Self::Connect(fault)
    }
}

impl From<Unanswered> for RelayListFailure {
    fn from(unanswered: Unanswered) -> Self {
        Self::Answer(unanswered)
    }
}

struct RelayListWorker {
    outbound: Outbound,
    limits: Limits,
    intake: EventIntake,
    inputs: mpsc::Sender<Input>,
    /// The connection of the last request.
    open: Option<(RelayUrl, Client)>,
}

impl RelayListWorker {
    async fn run(mut self, mut requests: mpsc::Receiver<RelayListRequest>) {
        loop {
            let Ok(next) = timeout(IDLE_TIMEOUT, requests.recv()).await else {
                self.open = None;
                let Some(request) = requests.recv().await else {
                    return;
                };
                self.answer(request).await;
                continue;
            };
            let Some(request) = next else {
                return;
            };
            self.answer(request).await;
        }
    }

    async fn answer(&mut self, request: RelayListRequest) {
        let id = request.id;
        let outcome = match timeout(FETCH_TIMEOUT, self.fetch(&request)).await {
            Ok(Ok(events)) => self.offer(&request.source, events).await,
            Ok(Err(failure)) => {
                let relay = &request.source;
                match failure {
                    RelayListFailure::Connect(why) => {
                        tracing::debug!(%relay, "no relay lists: {why}")
                    }
                    RelayListFailure::Answer(why) => {
                        tracing::debug!(%relay, "no relay lists: {why}")
                    }
                    RelayListFailure::Flood => {
                        tracing::debug!(%relay, "no relay lists: too many events")
                    }
                }
                FetchOutcome::Failed
            }
            Err(_) => {
                self.open = None;
                FetchOutcome::Failed
            }
        };
        let _ = self.inputs.send(Input::Fetched { id, outcome }).await;
    }

    /// Returns the newest event of each author and kind that the relay has.
    async fn fetch(&mut self, request: &RelayListRequest) -> Result<Vec<Event>, RelayListFailure> {
        let known = self.open.take();
        let known = known.filter(|(relay, _)| *relay == request.source);
        let mut client = match known {
            Some((_, client)) => client,
            None => self.connect(&request.source, request.from).await?,
        };
        let authors = request.authors.iter().copied();
        let filter = Filter::new().authors(authors).kinds(kinds::PROFILE_KINDS);
        let events = read(&mut client, &filter).await?;
        self.open = Some((request.source.clone(), client));
        Ok(events)
    }

    /// Reads the NIP-11 document, then opens the websocket, unless the relay is a private service (GRASP-08).
    async fn connect(&mut self, relay: &RelayUrl, from: Provenance) -> Result<Client, Fault> {
        let route = self.outbound.route(relay, from).await?;
        let facts = outbound::fetch_facts(relay, &route).await?;
        if facts.is_private {
            return Err(Fault::Private);
        }
        Client::open(relay, &route, &self.limits).await
    }

    /// Offers events to the local relay.
    async fn offer(&mut self, source: &RelayUrl, events: Vec<Event>) -> FetchOutcome {
        let lists = events.iter().filter(|event| event.kind == Kind::RelayList);
        let lists: BTreeMap<_, _> = lists.map(|list| (list.id, list.pubkey)).collect();
        let mut accepted = BTreeSet::new();
        let mut found = BTreeSet::new();
        for judged in self.intake.offer_found(source, events).await {
            let Some(author) = lists.get(&judged.row.id) else {
                continue;
            };
            match judged.outcome {
                Outcome::Forged => {}
                Outcome::Stored | Outcome::Known => {
                    found.insert(*author);
                    accepted.insert(*author);
                }
                Outcome::Held
                | Outcome::Refused {
                    retry: Retry::Never,
                    ..
                } => _ = found.insert(*author),
                // It may be stored soon, so it is asked for again soon.
                Outcome::Refused {
                    retry: Retry::Soon | Retry::AfterDependency,
                    ..
                } => {}
            }
        }
        FetchOutcome::Complete { found, accepted }
    }
}

/// Reads the answer to one request up to its EOSE, and keeps the newest event of each author and kind.
async fn read(client: &mut Client, filter: &Filter) -> Result<Vec<Event>, RelayListFailure> {
    let asked = client.subscribe(filter).await?;
    let mut newest: BTreeMap<(PublicKey, Kind), Event> = BTreeMap::new();
    let mut received = 0;
    let mut bytes = 0;
    loop {
        match client.receive_answer().await? {
            RelayMessage::Event(sub, event) if sub == asked => {
                received += 1;
                if received > MAX_EVENTS {
                    return Err(RelayListFailure::Flood);
                }
                let size = size(&event);
                let is_asked = filter.match_event(&event, MatchEventOptions::default());
                let at = (event.pubkey, event.kind);
                let is_newer = newest
                    .get(&at)
                    .is_none_or(|known| Version::of(&event) > Version::of(known));
                let fits = size <= MAX_EVENT_BYTES && bytes + size <= MAX_BYTES;
                if is_asked && is_newer && fits {
                    bytes += size;
                    newest.insert(at, event);
                }
            }
            RelayMessage::Said(Said::Eose { sub, .. }) if sub == asked => break,
            RelayMessage::Said(Said::Closed { sub, text }) if sub == asked => {
                return Err(Unanswered::Closed(text).into());
            }
            RelayMessage::Said(Said::Notice { text }) if is_refusal(&text) => {
                return Err(Unanswered::Closed(text).into());
            }
            _ => {}
        }
    }
    client.send(codec::close(asked)).await?;
    Ok(newest.into_values().collect())
}

/// Returns the bytes of an event's texts.
fn size(event: &Event) -> usize {
    let values = event.tags.iter().flat_map(|tag| tag.as_slice());
    event.content.len() + values.map(String::len).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_core::future::BoxFuture;
    use futures_core::stream::BoxStream;
    use futures_util::StreamExt as _;
    use grasp_core::Verified;
    use grasp_core::admission::Origin;
    use grasp_core::nostr::event::{EventBuilder, FinalizeEvent as _};
    use grasp_core::nostr::key::Keys;
    use grasp_core::outbound::OutboundPolicy;
    use tokio::net::TcpListener;

    use super::*;
    use crate::driver::{Clock, Roots};
    use crate::engine::{InventoryFailed, Row};
    use crate::local::{News, SyncedRelay, Taken};

    /// A local relay without events, which answers any offer like this.
    struct Answers(Taken);

    impl SyncedRelay for Answers {
        fn accepted(&self, _: &[Kind]) -> BoxStream<'static, News> {
            futures_util::stream::empty().boxed()
        }

        fn ingest(
            &self,
            events: Vec<Verified<Arc<Event>>>,
            _: Origin,
        ) -> BoxFuture<'_, Vec<Taken>> {
            Box::pin(async move { vec![self.0; events.len()] })
        }

        fn inventory(&self, _: Filter) -> BoxFuture<'_, Result<Vec<Row>, InventoryFailed>> {
            Box::pin(async { Ok(Vec::new()) })
        }
    }

    /// Returns a worker, and the engine's end of its intake.
    fn worker(local: Answers) -> (RelayListWorker, mpsc::Receiver<crate::engine::Input>) {
        let (to_engine, engine) = mpsc::channel(8);
        let (inputs, _) = mpsc::channel(8);
        let worker = RelayListWorker {
            outbound: Outbound::new(OutboundPolicy::default(), &Roots::default()),
            limits: Limits::default(),
            intake: EventIntake::new(Arc::new(local), to_engine, Clock::system()),
            inputs,
            open: None,
        };
        (worker, engine)
    }

    #[tokio::test]
    async fn a_list_that_is_refused_for_now_is_not_found() {
        let source: RelayUrl = "wss://index.example.com".parse().unwrap();
        for (taken, is_found, is_accepted) in [
            (Taken::Stored, true, true),
            (Taken::Known, true, true),
            (Taken::Held, true, false),
            (Taken::Refused(Retry::Never), true, false),
            (Taken::Refused(Retry::Soon), false, false),
            (Taken::Refused(Retry::AfterDependency), false, false),
        ] {
            let author = Keys::generate();
            let list = EventBuilder::new(Kind::RelayList, "").finalize(&author);
            let (mut worker, _engine) = worker(Answers(taken));
            let author: BTreeSet<PublicKey> = [author.public_key()].into();
            let expected = FetchOutcome::Complete {
                found: if is_found { author.clone() } else { [].into() },
                accepted: if is_accepted { author } else { [].into() },
            };
            let outcome = worker.offer(&source, vec![list.unwrap()]).await;
            assert_eq!(outcome, expected, "{taken:?}");
        }
    }

    #[tokio::test]
    async fn relays_that_events_name_may_be_at_no_private_address() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let source: RelayUrl = format!("ws://{}", listener.local_addr().unwrap())
            .parse()
            .unwrap();
        let (mut worker, _engine) = worker(Answers(Taken::Known));
        let refused = worker.connect(&source, Provenance::Event).await.err();
        assert_eq!(refused, Some(Fault::Forbidden));
        // The operator may name it: the connection is made, and ends without an answer.
        let end = async move { drop(listener.accept().await) };
        let (connected, ()) = tokio::join!(worker.connect(&source, Provenance::Operator), end);
        assert_ne!(connected.err(), Some(Fault::Forbidden));
    }
}
