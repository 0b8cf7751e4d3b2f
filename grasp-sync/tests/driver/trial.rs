//! The setup of tests with a bad relay beside a good one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use grasp_core::nostr::event::Event;
use grasp_core::{RelayUrl, RepoId};
use grasp_sync::driver::{RelayStatus, Settings, Syncer};
use serde_json::{Value, json};

use crate::events::Author;
use crate::local::Local;
use crate::scripted::{ClientSocket, HonestRelay, Received, Scripted, matching};

/// A relay's answer: given the message, the stored events, and the number of messages before.
pub(crate) type Answers = fn(&Value, &[Event], usize) -> Vec<Value>;

/// Starts a relay that has these events and answers like this.
pub(crate) async fn relay(info: Option<Value>, stored: Vec<Event>, answers: Answers) -> Scripted {
    let stored = Arc::new(stored);
    Scripted::with_info(info, move |client| serve(client, stored.clone(), answers)).await
}

async fn serve(mut client: ClientSocket, stored: Arc<Vec<Event>>, answers: Answers) {
    for n in 0.. {
        let Some(message) = client.next().await else {
            return;
        };
        for answer in answers(&message, &stored, n) {
            if !client.send(answer).await {
                return;
            }
        }
    }
}

/// Answers like a well-behaved relay that does not support NIP-77.
pub(crate) fn well_behaved_answers(message: &Value, stored: &[Event]) -> Vec<Value> {
    match message[0].as_str() {
        Some("REQ") => {
            let mut answers: Vec<Value> = events(message, stored);
            answers.push(json!(["EOSE", message[1]]));
            answers
        }
        Some("NEG-OPEN") => vec![json!(["NEG-ERR", message[1], "error: not supported"])],
        _ => vec![],
    }
}

/// Returns the stored events that a REQ asks for.
pub(crate) fn events(req: &Value, stored: &[Event]) -> Vec<Value> {
    matching(req, stored)
        .into_iter()
        .map(|event| json!(["EVENT", req[1], event]))
        .collect()
}

/// Returns whether a message is a request for stored events.
pub(crate) fn is_fetch(message: &Value) -> bool {
    message[0] == "REQ" && message[2]["limit"] != 0
}

/// A repository of which a bad relay and a good one have issues.
pub(crate) struct Trial {
    pub(crate) author: Author,
    pub(crate) repo: RepoId,
    pub(crate) local: Local,
    good: HonestRelay,
    good_relay: Scripted,
    begun: Instant,
}

impl Trial {
    pub(crate) async fn new() -> Self {
        let author = Author::new();
        let repo = author.repo("grasp");
        let good = HonestRelay::new([]);
        let good_relay = good.start().await;
        Self {
            repo,
            author,
            local: Local::new(),
            good,
            good_relay,
            begun: Instant::now(),
        }
    }

    pub(crate) fn issues(&self, count: usize) -> Vec<Event> {
        (0..count)
            .map(|n| self.author.issue(&self.repo, &n.to_string()))
            .collect()
    }

    /// Starts to sync from these and from the good relay.
    pub(crate) async fn start_sync(&mut self, bad: &[&Scripted]) -> Syncer {
        self.start_sync_with(bad, |_| {}).await
    }

    pub(crate) async fn start_sync_with(
        &mut self,
        bad: &[&Scripted],
        change: impl FnOnce(&mut Settings),
    ) -> Syncer {
        let urls: Vec<_> = bad.iter().map(|relay| relay.url()).collect();
        self.start_sync_at(&urls, change).await
    }

    pub(crate) async fn start_sync_at(
        &mut self,
        bad: &[RelayUrl],
        change: impl FnOnce(&mut Settings),
    ) -> Syncer {
        let good = self.good_relay.url();
        let listed: Vec<_> = bad.iter().chain([&good]).collect();
        let _ = self
            .local
            .publish(&self.author.announcement("grasp", &listed));
        let mut settings = Local::settings(&[]);
        settings.engine.handshake_gap = Duration::from_millis(10);
        change(&mut settings);
        self.begun = Instant::now();
        Syncer::start(Arc::new(self.local.clone()), settings)
            .await
            .unwrap()
    }

    /// Asserts that the events of the bad relays arrive.
    pub(crate) async fn assert_arrive(&self, events: &[Event]) {
        let arriving = async {
            self.local
                .until_has(&events.iter().collect::<Vec<_>>())
                .await
        };
        if tokio::time::timeout(Duration::from_secs(29), arriving)
            .await
            .is_err()
        {
            let missing = events.iter().filter(|event| !self.local.has(event));
            let missing: Vec<_> = missing
                .map(|event| event.content.as_str())
                .take(9)
                .collect();
            panic!("not here: {missing:?}");
        }
    }

    /// Asserts that new events of the good relay arrive at once.
    pub(crate) async fn assert_undisturbed(&self, syncer: &Syncer) {
        let listens = |status: &RelayStatus| status.synced_at.is_some();
        Local::until_status(syncer, &self.good_relay.url(), listens).await;
        let issue = self
            .author
            .issue(&self.repo, &format!("{:?}", self.begun.elapsed()));
        self.good.publish(issue.clone());
        let arrives = async { self.local.until_has(&[&issue]).await };
        tokio::time::timeout(Duration::from_secs(5), arrives)
            .await
            .expect("at once");
    }

    /// Asserts that a relay of unknown software got no more requests than allowed: sixty at once, two more every second,
    /// and twenty open.
    pub(crate) fn assert_within_limits(&self, relay: &Scripted) {
        let received = relay.received();
        let is_start = |message: &Value| {
            is_fetch(message) || message[0] == "NEG-OPEN" || message[0] == "NEG-MSG"
        };
        let starts = received
            .messages
            .iter()
            .filter(|(_, message)| is_start(message))
            .count();
        let max = 60 + 2 * (self.begun.elapsed().as_secs() as usize + 1);
        assert!(starts <= max, "{starts} requests, {max} allowed");
        let open = max_open(&received);
        assert!(open <= 20, "{open} open at once");
    }
}

/// Returns the maximum of subscriptions open at once on one connection, without those that the relay ended.
fn max_open(received: &Received) -> usize {
    let mut open = std::collections::BTreeSet::new();
    let mut max = 0;
    for (n, (connection, message)) in received.messages.iter().enumerate() {
        for (_, of, name) in received.ended.iter().filter(|(after, ..)| *after == n) {
            open.remove(&(*of, name.clone()));
        }
        let name = (*connection, message[1].to_string());
        match message[0].as_str() {
            Some("REQ" | "NEG-OPEN") => _ = open.insert(name),
            Some("CLOSE" | "NEG-CLOSE") => _ = open.remove(&name),
            _ => {}
        }
        max = max.max(open.iter().filter(|(of, _)| of == connection).count());
    }
    max
}
