//! A small relay that keeps itself complete: NIP-01 on a websocket, events in memory, `grasp-sync` inside.
//!
//! `cargo run --example embed -- 127.0.0.1:7447 relay.example.com wss://other.example.com`
//! listens there, is known by that name, and syncs from that relay and from those that its repositories name.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::sync::{Arc, Mutex};

use futures_util::{SinkExt as _, StreamExt as _, future, stream};
use grasp_core::nostr::filter::MatchEventOptions;
use grasp_sync::local::{
    BoxFuture, BoxStream, Event, EventId, Filter, InventoryFailed, Kind, LocalRelay, News, Origin,
    Retry, Row, Taken, Verified,
};
use grasp_sync::{Settings, Syncer};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::broadcast;
use tokio_tungstenite::{accept_async, tungstenite::Message};

struct Relay {
    events: Mutex<BTreeMap<EventId, Arc<Event>>>,
    news: broadcast::Sender<Arc<Event>>,
}

impl Relay {
    /// Accepts an event from a client or from sync. This relay wants git events, and comments on them.
    fn take(&self, event: &Verified<Arc<Event>>) -> Taken {
        if !matches!(event.kind.as_u16(), 5 | 1111 | 1617..=1633 | 30617 | 30618) {
            return Taken::Refused(Retry::Never);
        }
        let mut events = self.events.lock().expect("no holder of the lock panics");
        if events.insert(event.id, Arc::clone(event)).is_some() {
            return Taken::Known;
        }
        let _ = self.news.send(Arc::clone(event));
        Taken::Stored
    }

    /// Returns the matching events, newest first.
    fn find(&self, filter: &Filter) -> Vec<Arc<Event>> {
        let events = self.events.lock().expect("no holder of the lock panics");
        let mut found: Vec<_> = events
            .values()
            .filter(|e| matches(filter, e))
            .cloned()
            .collect();
        found.sort_by_key(|event| (Reverse(event.created_at), event.id));
        found.truncate(filter.limit.unwrap_or(usize::MAX));
        found
    }
}

fn matches(filter: &Filter, event: &Event) -> bool {
    filter.match_event(event, MatchEventOptions::default())
}

/// The interface that sync needs of a relay.
impl LocalRelay for Relay {
    fn accepted(&self, kinds: &[Kind]) -> BoxStream<'static, News> {
        // Listening begins before anything is read, so that no event is missed in between.
        let later = stream::unfold(self.news.subscribe(), |mut news| async {
            let event = news.recv().await.ok()?; // a feed that fell behind ends, and is begun anew
            Some((News::Accepted(event), news))
        });
        let stored = self.find(&Filter::new().kinds(kinds.iter().copied()));
        let stored = stored
            .into_iter()
            .map(News::Accepted)
            .chain([News::CaughtUp]);
        stream::iter(stored).chain(later).boxed()
    }

    fn ingest(&self, events: Vec<Verified<Arc<Event>>>, _: Origin) -> BoxFuture<'_, Vec<Taken>> {
        Box::pin(future::ready(
            events.iter().map(|event| self.take(event)).collect(),
        ))
    }

    fn inventory(&self, filter: Filter) -> BoxFuture<'_, Result<Vec<Row>, InventoryFailed>> {
        let found = self.find(&filter);
        Box::pin(future::ready(Ok(found
            .iter()
            .map(|event| Row::of(event))
            .collect())))
    }
}

/// Answers one message of a client.
fn answer(relay: &Relay, said: &Value, open: &mut HashMap<String, Vec<Filter>>) -> Vec<Value> {
    let name = said[1].as_str().unwrap_or_default().to_owned();
    match said[0].as_str() {
        Some("EVENT") => {
            let event = serde_json::from_value::<Event>(said[1].clone()).ok();
            let event = event.and_then(|event| Verified::check(Arc::new(event)).ok());
            let (accepted, text) = match event.map(|event| relay.take(&event)) {
                Some(Taken::Refused(_)) => (false, "blocked: only git is kept here"),
                Some(Taken::Known) => (true, "duplicate: already have this event"),
                Some(_) => (true, ""),
                None => (false, "invalid: not a signed event"),
            };
            vec![json!(["OK", said[1]["id"], accepted, text])]
        }
        Some("REQ") => {
            let asked = said.as_array().into_iter().flatten().skip(2).cloned();
            let filters: Vec<Filter> = asked
                .filter_map(|one| serde_json::from_value(one).ok())
                .collect();
            let found = filters.iter().flat_map(|filter| relay.find(filter));
            let found: BTreeMap<_, _> = found
                .map(|event| ((Reverse(event.created_at), event.id), event))
                .collect();
            let events = found.values().map(|event| json!(["EVENT", name, **event]));
            let answers = events.chain([json!(["EOSE", name])]).collect();
            open.insert(name, filters);
            answers
        }
        Some("CLOSE") if open.remove(&name).is_some() => vec![],
        _ => vec![json!(["NOTICE", "unsupported: EVENT, REQ and CLOSE are"])],
    }
}

async fn serve(relay: Arc<Relay>, stream: TcpStream) -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut socket = accept_async(stream).await?;
    let mut news = relay.news.subscribe();
    let mut open = HashMap::new();
    loop {
        let answers = tokio::select! {
            message = socket.next() => match message.ok_or("gone")?? {
                Message::Text(text) => answer(&relay, &serde_json::from_str(&text)?, &mut open),
                _ => continue,
            },
            event = news.recv() => {
                let event = event?;
                let wanted = |filters: &Vec<Filter>| filters.iter().any(|one| matches(one, &event));
                let subs = open.iter().filter(|(_, filters)| wanted(filters));
                subs.map(|(name, _)| json!(["EVENT", name, *event])).collect()
            }
        };
        for answer in answers {
            socket.feed(Message::text(answer.to_string())).await?;
        }
        socket.flush().await?;
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let listener = TcpListener::bind(args.next().ok_or("where to listen?")?).await?;
    let mut settings = Settings::new(args.next().ok_or("under which name?")?.parse()?);
    settings.engine.bootstrap = args.map(|url| url.parse()).collect::<Result<_, _>>()?;
    let (news, events) = (broadcast::channel(4_096).0, Mutex::default());
    let relay = Arc::new(Relay { events, news });
    let _syncer = Syncer::start(relay.clone(), settings).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(serve(relay.clone(), stream));
    }
}
