//! Live fan-out: one task owns the index of subscriptions and hands each accepted event to those who want it.
//!
//! The hub never waits for a listener. Each has a queue bounded in events and bytes; an event that finds it full
//! ends the subscription it was meant for, and the listener is told so. Nothing is ever skipped in silence.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use nostr::event::Event;
use nostr::filter::Filter;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};

use super::subscriptions::{Index, Subscriber};

/// Commands waiting for the hub; whoever sends one more waits.
const BACKLOG: usize = 4_096;

/// An accepted event, written out once for everybody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// The event.
    pub event: Arc<Event>,
    /// The same as compact JSON.
    pub json: Arc<str>,
}

impl Published {
    /// Writes an event out.
    pub fn new(event: Arc<Event>) -> Self {
        let json = event.as_json().into();
        Self { event, json }
    }
}

/// The way to everybody who listens. Cheap to clone; the task behind it ends with its last clone and listener.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// use std::sync::Arc;
/// use grasp_relay::nostr::hub::{Capacity, Heard, Hub};
/// use nostr::event::{EventBuilder, FinalizeEvent, Kind};
/// use nostr::filter::Filter;
/// use nostr::key::Keys;
///
/// let hub = Hub::start();
/// let mut listener = hub.listen(Capacity { events: 10, bytes: 100_000 });
/// listener.subscribe(7, vec![Filter::new().kind(Kind::GitIssue)].into()).await;
///
/// let issue = Arc::new(EventBuilder::new(Kind::GitIssue, "broken").finalize(&Keys::generate())?);
/// hub.publish(issue.clone()).await;
/// let Heard::Event { subscription: 7, published } = listener.next().await else { panic!() };
/// assert_eq!(published.event, issue);
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Hub {
    commands: mpsc::Sender<Command>,
    listeners: Arc<AtomicU64>,
    sockets: Arc<AtomicUsize>,
    feeds: Arc<AtomicUsize>,
}

/// Somebody who is counted for as long as this exists.
#[derive(Debug)]
pub(crate) struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(among: &Arc<AtomicUsize>) -> Self {
        among.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(among))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How much may wait for one listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Events.
    pub events: usize,
    /// Their bytes as JSON.
    pub bytes: usize,
}

/// What a listener is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// An event that one of its subscriptions wants.
    Event {
        /// Which one.
        subscription: u64,
        /// The event.
        published: Arc<Published>,
    },
    /// The queue was full when an event came for this subscription. It has ended; what was queued for it before
    /// may still arrive.
    Overflow {
        /// Which one.
        subscription: u64,
    },
}

/// Who listens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Websockets that are open.
    pub sockets: usize,
    /// Connections and feeds with a subscription, now or before.
    pub listeners: usize,
    /// Subscriptions of connections.
    pub subscriptions: usize,
}

/// One listener's subscriptions and queue. Dropping it ends them all.
#[derive(Debug)]
pub struct Listener {
    commands: mpsc::Sender<Command>,
    mailbox: Mailbox,
    events: mpsc::Receiver<(u64, Arc<Published>)>,
    /// Bounded by the number of subscriptions: each overflows once.
    overflows: mpsc::UnboundedReceiver<u64>,
}

#[derive(Debug)]
enum Command {
    Publish(Published),
    Subscribe(Mailbox, u64, Arc<[Filter]>),
    Unsubscribe(Subscriber),
    Leave(u64),
    Census(oneshot::Sender<Census>),
}

impl Hub {
    /// Starts the hub's task on the current runtime.
    pub fn start() -> Self {
        let (commands, orders) = mpsc::channel(BACKLOG);
        tokio::spawn(Switchboard::default().run(orders));
        let [sockets, feeds] = [Arc::default(), Arc::default()];
        Self { commands, listeners: Arc::default(), sockets, feeds }
    }

    /// Hands an accepted event to everybody who wants it. Waits only for the hub itself, never for a listener.
    pub async fn publish(&self, event: Arc<Event>) {
        send(&self.commands, Command::Publish(Published::new(event))).await;
    }

    /// Counts who listens, after everything that was said to the hub before.
    pub async fn census(&self) -> Census {
        let (answer, census) = oneshot::channel();
        send(&self.commands, Command::Census(answer)).await;
        let [sockets, feeds] =
            [&self.sockets, &self.feeds].map(|count| count.load(Ordering::Relaxed));
        let census = census.await.unwrap_or_default();
        // A feed listens to one thing, and nobody outside knows of it.
        let subscriptions = census.subscriptions.saturating_sub(feeds);
        Census { sockets, subscriptions, ..census }
    }

    /// Counts one more websocket.
    pub(crate) fn socket(&self) -> Counted {
        Counted::new(&self.sockets)
    }

    /// Counts one more feed, from when it listens.
    pub(crate) fn feed(&self) -> Counted {
        Counted::new(&self.feeds)
    }

    /// A new listener, without subscriptions yet.
    pub fn listen(&self, capacity: Capacity) -> Listener {
        let (events_in, events) = mpsc::channel(capacity.events.max(1));
        let (overflows_in, overflows) = mpsc::unbounded_channel();
        Listener {
            commands: self.commands.clone(),
            mailbox: Mailbox {
                listener: self.listeners.fetch_add(1, Ordering::Relaxed),
                events: events_in,
                overflows: overflows_in,
                waiting: Arc::default(),
                most_waiting: capacity.bytes,
            },
            events,
            overflows,
        }
    }
}

impl Listener {
    /// Asks for everything that matches and is published from now on.
    ///
    /// Once this returns, an event that is published later will be heard: reading history after it leaves no gap.
    pub async fn subscribe(&self, subscription: u64, filters: Arc<[Filter]>) {
        let mailbox = self.mailbox.clone();
        send(&self.commands, Command::Subscribe(mailbox, subscription, filters)).await;
    }

    /// Ends one subscription. What is queued for it may still arrive.
    pub async fn unsubscribe(&self, subscription: u64) {
        let listener = self.mailbox.listener;
        send(&self.commands, Command::Unsubscribe(Subscriber { listener, subscription })).await;
    }

    /// Waits for the next thing to hear. Loses nothing if it is dropped while waiting.
    pub async fn next(&mut self) -> Heard {
        tokio::select! {
            biased;
            Some(subscription) = self.overflows.recv() => Heard::Overflow { subscription },
            Some(event) = self.events.recv() => self.received(event),
            // The listener holds a sender of both, so neither ends before it does.
            else => std::future::pending().await,
        }
    }

    /// The next thing to hear, if it is already there.
    pub fn try_next(&mut self) -> Option<Heard> {
        if let Ok(subscription) = self.overflows.try_recv() {
            return Some(Heard::Overflow { subscription });
        }
        let event = self.events.try_recv().ok()?;
        Some(self.received(event))
    }

    fn received(&self, (subscription, published): (u64, Arc<Published>)) -> Heard {
        self.mailbox.waiting.fetch_sub(published.json.len(), Ordering::Relaxed);
        Heard::Event { subscription, published }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let leave = Command::Leave(self.mailbox.listener);
        if let Err(TrySendError::Full(leave)) = self.commands.try_send(leave) {
            let commands = self.commands.clone();
            tokio::spawn(async move { send(&commands, leave).await });
        }
    }
}

/// A hub that is gone has nobody left to tell; that is no error of the one who tells it.
async fn send(commands: &mpsc::Sender<Command>, command: Command) {
    let _ = commands.send(command).await;
}

/// The hub's end of one listener's queue.
#[derive(Clone, Debug)]
struct Mailbox {
    listener: u64,
    events: mpsc::Sender<(u64, Arc<Published>)>,
    overflows: mpsc::UnboundedSender<u64>,
    waiting: Arc<AtomicUsize>,
    most_waiting: usize,
}

#[derive(Debug, PartialEq, Eq)]
enum Offered {
    Taken,
    Full,
    Gone,
}

impl Mailbox {
    fn offer(&self, subscription: u64, published: &Arc<Published>) -> Offered {
        let bytes = published.json.len();
        // Only the hub adds, so what is there can but shrink before the next line.
        if self.waiting.load(Ordering::Relaxed).saturating_add(bytes) > self.most_waiting {
            return Offered::Full;
        }
        self.waiting.fetch_add(bytes, Ordering::Relaxed);
        match self.events.try_send((subscription, published.clone())) {
            Ok(()) => Offered::Taken,
            Err(refused) => {
                self.waiting.fetch_sub(bytes, Ordering::Relaxed);
                match refused {
                    TrySendError::Full(_) => Offered::Full,
                    TrySendError::Closed(_) => Offered::Gone,
                }
            }
        }
    }
}

/// The hub's own state: nobody else sees it.
#[derive(Debug, Default)]
struct Switchboard {
    index: Index,
    mailboxes: BTreeMap<u64, Mailbox>,
}

impl Switchboard {
    async fn run(mut self, mut orders: mpsc::Receiver<Command>) {
        while let Some(order) = orders.recv().await {
            self.obey(order);
        }
    }

    fn obey(&mut self, order: Command) {
        match order {
            Command::Publish(published) => self.publish(&Arc::new(published)),
            Command::Subscribe(mailbox, subscription, filters) => {
                let listener = mailbox.listener;
                self.mailboxes.entry(listener).or_insert(mailbox);
                self.index.insert(Subscriber { listener, subscription }, filters);
            }
            Command::Unsubscribe(subscriber) => {
                self.index.remove(subscriber);
            }
            Command::Leave(listener) => self.leave(listener),
            Command::Census(answer) => {
                let _ = answer.send(Census {
                    sockets: 0,
                    listeners: self.mailboxes.len(),
                    subscriptions: self.index.len(),
                });
            }
        }
    }

    fn publish(&mut self, published: &Arc<Published>) {
        for subscriber in self.index.wanting(&published.event) {
            let Some(mailbox) = self.mailboxes.get(&subscriber.listener) else {
                continue;
            };
            match mailbox.offer(subscriber.subscription, published) {
                Offered::Taken => {}
                Offered::Full => {
                    self.index.remove(subscriber);
                    let _ = mailbox.overflows.send(subscriber.subscription);
                }
                Offered::Gone => self.leave(subscriber.listener),
            }
        }
    }

    fn leave(&mut self, listener: u64) {
        self.index.remove_listener(listener);
        self.mailboxes.remove(&listener);
    }
}

#[cfg(test)]
mod tests {
    use nostr::event::{EventBuilder, FinalizeEvent, Kind};
    use nostr::key::Keys;

    use super::*;

    const ROOMY: Capacity = Capacity { events: 100, bytes: 1_000_000 };

    fn note(text: &str) -> Arc<Event> {
        let note = EventBuilder::new(Kind::from(1), text).finalize(&Keys::generate());
        Arc::new(note.expect("signed"))
    }

    fn everything() -> Arc<[Filter]> {
        vec![Filter::new()].into()
    }

    async fn heard_note(listener: &mut Listener) -> (u64, Arc<Event>) {
        match listener.next().await {
            Heard::Event { subscription, published } => (subscription, published.event.clone()),
            Heard::Overflow { subscription } => panic!("overflow of {subscription}"),
        }
    }

    #[tokio::test]
    async fn a_full_queue_ends_that_subscription_and_no_other() {
        let hub = Hub::start();
        let mut slow = hub.listen(Capacity { events: 2, bytes: 1_000_000 });
        let mut quick = hub.listen(ROOMY);
        slow.subscribe(1, everything()).await;
        quick.subscribe(1, everything()).await;
        let notes: Vec<_> = (0..4).map(|nth| note(&nth.to_string())).collect();
        for note in &notes {
            hub.publish(note.clone()).await;
        }
        for note in &notes {
            assert_eq!(heard_note(&mut quick).await, (1, note.clone()));
        }
        assert_eq!(slow.next().await, Heard::Overflow { subscription: 1 });
        assert_eq!(heard_note(&mut slow).await.1, notes[0]);
        assert_eq!(heard_note(&mut slow).await.1, notes[1]);
        assert_eq!(slow.try_next(), None, "a gap would be filled in silence");
        // A new subscription works again.
        slow.subscribe(2, everything()).await;
        hub.publish(notes[3].clone()).await;
        assert_eq!(heard_note(&mut slow).await, (2, notes[3].clone()));
    }

    #[tokio::test]
    async fn bytes_fill_a_queue_as_events_do_and_reading_empties_it() {
        let hub = Hub::start();
        let big = note(&"x".repeat(1_000));
        let mut listener = hub.listen(Capacity { events: 100, bytes: 2_000 });
        listener.subscribe(1, everything()).await;
        for _ in 0..3 {
            hub.publish(big.clone()).await;
            assert_eq!(heard_note(&mut listener).await.1, big);
        }
        hub.publish(big.clone()).await;
        hub.publish(big.clone()).await;
        hub.publish(note("")).await;
        let mut overflowed = false;
        for _ in 0..2 {
            overflowed |= listener.next().await == Heard::Overflow { subscription: 1 };
        }
        assert!(overflowed);
    }

    #[tokio::test]
    async fn what_is_published_after_subscribing_is_heard() {
        let hub = Hub::start();
        let mut listener = hub.listen(ROOMY);
        listener.subscribe(1, everything()).await;
        let (first, second) = (note("1"), note("2"));
        hub.publish(first.clone()).await;
        listener.unsubscribe(1).await;
        hub.publish(second.clone()).await;
        listener.subscribe(2, everything()).await;
        hub.publish(second.clone()).await;
        assert_eq!(heard_note(&mut listener).await, (1, first));
        assert_eq!(heard_note(&mut listener).await, (2, second));
    }

    #[test]
    fn a_listener_that_left_leaves_nothing_behind() {
        let (events, _) = mpsc::channel(1);
        let (overflows, _) = mpsc::unbounded_channel();
        let mailbox =
            Mailbox { listener: 3, events, overflows, waiting: Arc::default(), most_waiting: 9 };
        let mut board = Switchboard::default();
        board.obey(Command::Subscribe(mailbox, 1, everything()));
        board.obey(Command::Leave(3));
        assert!(board.index.is_empty() && board.mailboxes.is_empty());
    }
}
