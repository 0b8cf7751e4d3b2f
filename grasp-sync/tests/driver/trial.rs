//! Tests of a bad relay: its events, the requests sent to it, and the good relay beside it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use grasp_core::nostr::event::Event;
use grasp_core::{RelayUrl, RepoId};
use grasp_sync::driver::{RelayStatus, Settings, Syncer};
use serde_json::{Value, json};

use crate::events::Author;
use crate::local::Local;
use crate::scripted::{Guest, Heard, Honest, Scripted, matching};

/// A relay's answer: given the message, the stored events, and the number of messages before.
pub(crate) type Answers = fn(&Value, &[Event], usize) -> Vec<Value>;

/// Starts a relay that has these events and answers like this.
pub(crate) async fn relay(card: Option<Value>, stored: Vec<Event>, answers: Answers) -> Scripted {
    let stored = Arc::new(stored);
    Scripted::with_card(card, move |guest| talk(guest, stored.clone(), answers)).await
}

async fn talk(mut guest: Guest, stored: Arc<Vec<Event>>, answers: Answers) {
    for n in 0.. {
        let Some(said) = guest.next().await else { return };
        for word in answers(&said, &stored, n) {
            if !guest.say(word).await {
                return;
            }
        }
    }
}

/// Answers like a well-behaved relay that does not support NIP-77.
pub(crate) fn properly(said: &Value, stored: &[Event]) -> Vec<Value> {
    match said[0].as_str() {
        Some("REQ") => {
            let mut words: Vec<Value> = events(said, stored);
            words.push(json!(["EOSE", said[1]]));
            words
        }
        Some("NEG-OPEN") => vec![json!(["NEG-ERR", said[1], "error: not supported"])],
        _ => vec![],
    }
}

/// Returns the stored events that a REQ asks for.
pub(crate) fn events(req: &Value, stored: &[Event]) -> Vec<Value> {
    matching(req, stored).into_iter().map(|event| json!(["EVENT", req[1], event])).collect()
}

/// Returns whether a message is a request for stored events.
pub(crate) fn is_fetch(said: &Value) -> bool {
    said[0] == "REQ" && said[2]["limit"] != 0
}

/// A repository of which a bad relay and a good one have issues.
pub(crate) struct Trial {
    pub(crate) author: Author,
    pub(crate) repo: RepoId,
    pub(crate) local: Local,
    good: Honest,
    good_relay: Scripted,
    begun: Instant,
}

impl Trial {
    pub(crate) async fn new() -> Self {
        let author = Author::new();
        let repo = author.repo("grasp");
        let good = Honest::new([]);
        let good_relay = good.start().await;
        Self { repo, author, local: Local::new(), good, good_relay, begun: Instant::now() }
    }

    pub(crate) fn issues(&self, count: usize) -> Vec<Event> {
        (0..count).map(|n| self.author.issue(&self.repo, &n.to_string())).collect()
    }

    /// Starts to sync from these and from the good relay.
    pub(crate) async fn begin(&mut self, bad: &[&Scripted]) -> Syncer {
        self.begin_with(bad, |_| {}).await
    }

    pub(crate) async fn begin_with(
        &mut self,
        bad: &[&Scripted],
        change: impl FnOnce(&mut Settings),
    ) -> Syncer {
        let urls: Vec<_> = bad.iter().map(|relay| relay.url()).collect();
        self.begin_at(&urls, change).await
    }

    pub(crate) async fn begin_at(
        &mut self,
        bad: &[RelayUrl],
        change: impl FnOnce(&mut Settings),
    ) -> Syncer {
        let good = self.good_relay.url();
        let listed: Vec<_> = bad.iter().chain([&good]).collect();
        let _ = self.local.publish(&self.author.announcement("grasp", &listed));
        let mut settings = Local::settings(&[]);
        settings.engine.handshake_gap = Duration::from_millis(10);
        change(&mut settings);
        self.begun = Instant::now();
        Syncer::start(Arc::new(self.local.clone()), settings).await.unwrap()
    }

    /// Expects the events of the bad relays to arrive in the end.
    pub(crate) async fn arrive(&self, events: &[Event]) {
        let arriving = async { self.local.until_has(&events.iter().collect::<Vec<_>>()).await };
        if tokio::time::timeout(Duration::from_secs(29), arriving).await.is_err() {
            let missing = events.iter().filter(|event| !self.local.has(event));
            let missing: Vec<_> = missing.map(|event| event.content.as_str()).take(9).collect();
            panic!("not here: {missing:?}");
        }
    }

    /// Expects the good relay to be followed as if it were the only one: new events arrive at once.
    pub(crate) async fn is_undisturbed(&self, syncer: &Syncer) {
        let listens = |status: &RelayStatus| status.synced_at.is_some();
        Local::until_status(syncer, &self.good_relay.url(), listens).await;
        let issue = self.author.issue(&self.repo, &format!("{:?}", self.begun.elapsed()));
        self.good.publish(issue.clone());
        let arrives = async { self.local.until_has(&[&issue]).await };
        tokio::time::timeout(Duration::from_secs(5), arrives).await.expect("at once");
    }

    /// Expects no more requests than unknown software is sent: sixty at once, two more with every second, and twenty
    /// of them open.
    pub(crate) fn was_polite(&self, relay: &Scripted) {
        let heard = relay.heard();
        let is_start =
            |said: &Value| is_fetch(said) || said[0] == "NEG-OPEN" || said[0] == "NEG-MSG";
        let starts = heard.messages.iter().filter(|(_, said)| is_start(said)).count();
        let most = 60 + 2 * (self.begun.elapsed().as_secs() as usize + 1);
        assert!(starts <= most, "{starts} requests, {most} allowed");
        let most = most_open(&heard);
        assert!(most <= 20, "{most} open at once");
    }
}

/// Returns the most subscriptions that were open at once on one connection, without those that the relay ended.
fn most_open(heard: &Heard) -> usize {
    let mut open = std::collections::BTreeSet::new();
    let mut most = 0;
    for (n, (connection, said)) in heard.messages.iter().enumerate() {
        for (_, of, name) in heard.ended.iter().filter(|(after, ..)| *after == n) {
            open.remove(&(*of, name.clone()));
        }
        let name = (*connection, said[1].to_string());
        match said[0].as_str() {
            Some("REQ" | "NEG-OPEN") => _ = open.insert(name),
            Some("CLOSE" | "NEG-CLOSE") => _ = open.remove(&name),
            _ => {}
        }
        most = most.max(open.iter().filter(|(of, _)| of == connection).count());
    }
    most
}
