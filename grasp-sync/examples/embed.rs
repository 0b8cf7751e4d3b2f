//! A small relay that keeps itself complete: NIP-01 on a websocket, events in a `HashMap`, `grasp-sync` inside.
//!
//! `cargo run --example embed -- 127.0.0.1:7447 relay.example.com wss://other.example.com`
//! listens there, is known by that name, and syncs from that relay and from those that its repositories name. A line
//! `lose` on standard input makes it lose all events, as a broken disk would: sync fetches them again. With `--trial` before the
//! address, other relays may be on this machine.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _, future, stream};
use grasp_sync::core::nostr::filter::MatchEventOptions;
use grasp_sync::core::nostr::types::Timestamp;
use grasp_sync::core::outbound::OutboundPolicy;
use grasp_sync::core::{Version, admission::is_expired, deletion};
use grasp_sync::local::{
    BoxFuture, BoxStream, Event, Filter, InventoryFailed, Kind, News, Origin, Retry, Row,
    SyncedRelay, Taken, Verified,
};
use grasp_sync::{Settings, Syncer};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::broadcast;
use tokio_tungstenite::{accept_async, tungstenite::Message};

/// Events by coordinate, or else by id: of a replaceable event one version is kept.
type Events = HashMap<String, Arc<Event>>;

struct Relay {
    events: Mutex<Events>,
    news: broadcast::Sender<News>,
}

impl Relay {
    fn events(&self) -> MutexGuard<'_, Events> {
        self.events.lock().expect("no holder of the lock panics")
    }

    /// Accepts an event from a client or from sync. This relay wants git events, and comments on them.
    fn take(&self, event: &Verified<Arc<Event>>) -> Taken {
        let is_git = matches!(event.kind.as_u16(), 5 | 1111 | 1617..=1633 | 30617 | 30618);
        if !is_git || is_expired(event, Timestamp::now()) {
            return Taken::Refused(Retry::Never);
        }
        let mut events = self.events();
        let key = match deletion::coordinate(event) {
            Some(coordinate) => coordinate.to_string(),
            None => event.id.to_hex(),
        };
        let known = events.get(&key);
        if known.is_some_and(|known| Version::of(known) >= Version::of(event)) {
            return Taken::Known;
        }
        let mut requests = events
            .values()
            .filter(|one| one.kind == Kind::EventDeletion);
        if requests.any(|request| deletes(request, event)) {
            return Taken::Refused(Retry::Never);
        }
        events.insert(key, Arc::clone(event));
        // Sent under the lock, so that news are in the order of changes.
        let _ = self.news.send(News::Accepted(Arc::clone(event)));
        if event.kind == Kind::EventDeletion {
            self.remove(&mut events, |other| deletes(event, other));
        }
        Taken::Stored
    }

    /// Removes events that were deleted or have expired, and streams that.
    fn remove(&self, events: &mut Events, is_gone: impl Fn(&Event) -> bool) {
        for event in events.values().filter(|event| is_gone(event)) {
            let _ = self.news.send(News::removed(event));
        }
        events.retain(|_, event| !is_gone(event));
    }

    fn remove_expired(&self) {
        let now = Timestamp::now();
        self.remove(&mut self.events(), |event| is_expired(event, now));
    }

    /// Loses all events. Streams that, so that sync compares everything again.
    fn lose_everything(&self) {
        self.events().clear();
        let _ = self.news.send(News::Lost);
    }

    /// Returns the matching events, newest first.
    fn find(&self, filter: &Filter) -> Vec<Arc<Event>> {
        let events = self.events();
        let matching = events.values().filter(|event| matches(filter, event));
        let mut found: Vec<_> = matching.cloned().collect();
        found.sort_by_key(|event| (Reverse(event.created_at), event.id));
        found.truncate(filter.limit.unwrap_or(usize::MAX));
        found
    }
}

fn matches(filter: &Filter, event: &Event) -> bool {
    filter.match_event(event, MatchEventOptions::default())
}

/// Returns whether a deletion request names an event of the same author (NIP-09).
fn deletes(request: &Event, event: &Event) -> bool {
    let Ok(named) = deletion::DeletionRequest::parse(request) else {
        return false;
    };
    let coordinate = deletion::coordinate(event);
    let is_named = coordinate.is_some_and(|one| named.coordinates.contains(&one));
    request.pubkey == event.pubkey
        && deletion::is_deletable(event.kind)
        && (named.ids.contains(&event.id) || (is_named && event.created_at <= request.created_at))
}

/// The interface that sync needs of a relay.
impl SyncedRelay for Relay {
    fn accepted(&self, kinds: &[Kind]) -> BoxStream<'static, News> {
        // Listening begins before anything is read, so that no event is missed in between.
        let later = stream::unfold(self.news.subscribe(), async |mut news| {
            Some((news.recv().await.ok()?, news)) // a feed that fell behind ends, and is begun anew
        });
        let stored = self.find(&Filter::new().kinds(kinds.iter().copied()));
        let stored = stored.into_iter().map(News::Accepted);
        Box::pin(stream::iter(stored.chain([News::CaughtUp])).chain(later))
    }

    fn ingest(&self, events: Vec<Verified<Arc<Event>>>, _: Origin) -> BoxFuture<'_, Vec<Taken>> {
        let taken = events.iter().map(|event| self.take(event)).collect();
        Box::pin(future::ready(taken))
    }

    fn inventory(&self, filter: Filter) -> BoxFuture<'_, Result<Vec<Row>, InventoryFailed>> {
        let found = self.find(&filter);
        let rows = found.iter().map(|event| Row::of(event)).collect();
        Box::pin(future::ready(Ok(rows)))
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
            news = news.recv() => {
                let News::Accepted(event) = news? else { continue };
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
    let mut args = std::env::args().skip(1).peekable();
    let is_trial = args.next_if_eq("--trial").is_some();
    let listener = TcpListener::bind(args.next().ok_or("where to listen?")?).await?;
    let mut settings = Settings::new(args.next().ok_or("under which name?")?.parse()?);
    settings.engine.bootstrap = args.map(|url| url.parse()).collect::<Result<_, _>>()?;
    if is_trial {
        settings = settings.with_outbound(OutboundPolicy::everywhere());
    }
    let relay = Arc::new(Relay {
        events: Mutex::default(),
        news: broadcast::channel(4_096).0,
    });
    let console = Arc::clone(&relay);
    std::thread::spawn(move || {
        for _ in std::io::stdin()
            .lines()
            .map_while(Result::ok)
            .filter(|line| line == "lose")
        {
            console.lose_everything();
        }
    });
    let _syncer = Syncer::start(relay.clone(), settings).await?;
    let mut clock = tokio::time::interval(Duration::from_secs(1));
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                tokio::spawn(serve(relay.clone(), accepted?.0));
            }
            _ = clock.tick() => relay.remove_expired(),
        }
    }
}
