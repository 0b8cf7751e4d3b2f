//! Live fan-out: one task owns the index of subscriptions and sends each accepted event to those that match.
//!
//! The hub never waits for a listener. Each has a queue bounded in events and bytes; an event that finds it full ends
//! the subscription it is for, and the listener gets [`HubMessage::Overflow`]. No event is skipped silently.

mod commands;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use nostr::event::{Event, EventId};
use nostr::filter::Filter;
use tokio::sync::{broadcast, mpsc, oneshot};

use self::commands::{CommandReceiver, CommandSender};
use super::subscriptions::{Subscriber, SubscriptionIndex};
use crate::store::weight_of;

/// The weight of filters that the hub is not woken for.
const MAX_ASLEEP_WEIGHT: usize = 64;

/// Removed events that may be queued for a listener: 8 MB.
const MAX_REMOVED_QUEUED: usize = 250_000;

/// Ephemeral events that may be queued for other nodes; beyond it the oldest are dropped.
const EPHEMERAL_QUEUE: usize = 1_024;

/// An accepted event, serialised once for all listeners, if there are any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// The event.
    pub event: Arc<Event>,
    /// The event as compact JSON.
    pub json: Arc<str>,
}

impl Published {
    /// Serialises an event.
    pub fn new(event: Arc<Event>) -> Self {
        let json = event.as_json().into();
        Self { event, json }
    }
}

/// A handle to the fan-out task. Cheap to clone; the task ends with its last clone and listener.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// use std::sync::Arc;
/// use grasp_relay::nostr::hub::{Capacity, HubMessage, Hub};
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
/// let HubMessage::Event { subscription: 7, published } = listener.next().await else { panic!() };
/// assert_eq!(published.event, issue);
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Hub {
    commands: Arc<CommandSender>,
    listeners: Arc<AtomicU64>,
    sockets: Arc<AtomicUsize>,
    feeds: Arc<AtomicUsize>,
    ephemeral: broadcast::Sender<Arc<Event>>,
    source: StoredEvents,
}

/// The source of the stored events that a hub publishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StoredEvents {
    /// This process, after each commit.
    Own,
    /// The database that this node shares with others.
    Database,
}

/// Counts one connection or feed until it is dropped.
#[derive(Debug)]
pub(crate) struct CountGuard(Arc<AtomicUsize>);

impl CountGuard {
    fn new(among: &Arc<AtomicUsize>) -> Self {
        among.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(among))
    }
}

impl Drop for CountGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The capacity of one listener's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// The number of events.
    pub events: usize,
    /// The bytes of their JSON.
    pub bytes: usize,
}

/// A message to a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HubMessage {
    /// An event that matches one of its subscriptions.
    Event {
        /// The subscription.
        subscription: u64,
        /// The event.
        published: Arc<Published>,
    },
    /// This subscription is in force, if its [confirmation](Listener::subscribe_confirmed) was asked for. Comes after
    /// everything that was published before.
    Subscribed {
        /// The subscription.
        subscription: u64,
    },
    /// Events were removed from the store without a replacement. Only for listeners [with removals](Listener::with_removals).
    Removed(Arc<[EventId]>),
    /// The queue was full when an event came for this subscription, which has ended. Comes after the events that were
    /// queued before.
    Overflow {
        /// The subscription.
        subscription: u64,
    },
}

/// The numbers of connections, listeners and subscriptions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HubStats {
    /// Open websockets.
    pub sockets: usize,
    /// Connections and feeds that have or had a subscription.
    pub listeners: usize,
    /// Subscriptions of connections.
    pub subscriptions: usize,
}

/// One listener's subscriptions and queue. Dropping it ends them all.
#[derive(Debug)]
pub struct Listener {
    commands: Arc<CommandSender>,
    queue: ListenerQueue,
    messages: mpsc::UnboundedReceiver<HubMessage>,
}

#[derive(Debug)]
enum Command {
    Publish(Arc<Event>),
    Removed(Arc<[EventId]>),
    Subscribe {
        queue: ListenerQueue,
        subscription: u64,
        filters: Arc<[Filter]>,
        confirm: bool,
    },
    Unsubscribe(Subscriber),
    RemoveListener(u64),
    HubStats(oneshot::Sender<HubStats>),
}

impl Hub {
    /// Starts the hub's task on the current runtime.
    pub fn start() -> Self {
        Self::with_source(StoredEvents::Own)
    }

    /// Starts the hub of a node that shares its database with others. Whoever follows the commits of that database
    /// [publishes](Self::publish) the stored events of all nodes, those of this process among them.
    pub fn of_node() -> Self {
        Self::with_source(StoredEvents::Database)
    }

    fn with_source(source: StoredEvents) -> Self {
        let (commands, received) = commands::queue();
        tokio::spawn(HubState::default().run(received));
        let [sockets, feeds] = [Arc::default(), Arc::default()];
        let ephemeral = broadcast::Sender::new(EPHEMERAL_QUEUE);
        Self {
            commands: Arc::new(commands),
            listeners: Arc::default(),
            sockets,
            feeds,
            ephemeral,
            source,
        }
    }

    /// Publishes an event that this process has stored, unless it comes by the database.
    pub async fn publish_stored(&self, event: Arc<Event>) {
        if self.source == StoredEvents::Own {
            self.publish(event).await;
        }
    }

    /// Publishes an event that is never stored, here and at the other nodes.
    pub async fn publish_ephemeral(&self, event: Arc<Event>) {
        // Without other nodes there is no receiver.
        let _ = self.ephemeral.send(Arc::clone(&event));
        self.publish(event).await;
    }

    /// Subscribes to the events that this process accepts and never stores.
    pub fn ephemeral(&self) -> broadcast::Receiver<Arc<Event>> {
        self.ephemeral.subscribe()
    }

    /// Sends an accepted event to all matching subscriptions. Waits only for the hub itself, never for a listener.
    pub async fn publish(&self, event: Arc<Event>) {
        self.commands.send(Command::Publish(event)).await;
    }

    /// Tells the listeners with removals that these events were removed from the store without a replacement.
    pub async fn publish_removed(&self, events: BTreeSet<EventId>) {
        if !events.is_empty() {
            let events = events.into_iter().collect();
            self.commands.send(Command::Removed(events)).await;
        }
    }

    /// Returns the present numbers, after all commands that were sent before.
    pub async fn stats(&self) -> HubStats {
        let (answer, stats) = oneshot::channel();
        self.commands.send(Command::HubStats(answer)).await;
        let [sockets, feeds] =
            [&self.sockets, &self.feeds].map(|count| count.load(Ordering::Relaxed));
        let stats = stats.await.unwrap_or_default();
        // Each feed has one subscription, which is internal.
        let subscriptions = stats.subscriptions.saturating_sub(feeds);
        HubStats {
            sockets,
            subscriptions,
            ..stats
        }
    }

    /// Counts a websocket.
    pub(crate) fn socket(&self) -> CountGuard {
        CountGuard::new(&self.sockets)
    }

    /// Counts a feed.
    pub(crate) fn feed(&self) -> CountGuard {
        CountGuard::new(&self.feeds)
    }

    /// Creates a listener without subscriptions.
    pub fn listen(&self, capacity: Capacity) -> Listener {
        let (sender, messages) = mpsc::unbounded_channel();
        let queue = ListenerQueue {
            listener: self.listeners.fetch_add(1, Ordering::Relaxed),
            messages: sender,
            waiting: Arc::default(),
            capacity,
            gets_removals: false,
        };
        Listener {
            commands: self.commands.clone(),
            queue,
            messages,
        }
    }
}

impl Listener {
    /// Asks for [`HubMessage::Removed`] from the first subscription on, whatever the capacity for events: a subscription
    /// that overflowed misses no removal. A listener that leaves 250,000 removed events unread is told of no more.
    #[must_use]
    pub fn with_removals(mut self) -> Self {
        self.queue.gets_removals = true;
        self
    }

    /// Subscribes to everything that matches and is published from now on.
    ///
    /// Events that are published after this returns will arrive, so reading history afterwards leaves no gap.
    pub async fn subscribe(&self, subscription: u64, filters: Arc<[Filter]>) {
        self.send_subscribe(subscription, filters, false).await;
    }

    /// Subscribes likewise, and asks for [`HubMessage::Subscribed`].
    pub async fn subscribe_confirmed(&self, subscription: u64, filters: Arc<[Filter]>) {
        self.send_subscribe(subscription, filters, true).await;
    }

    async fn send_subscribe(&self, subscription: u64, filters: Arc<[Filter]>, confirm: bool) {
        let is_urgent = confirm || weight_of(&filters) > MAX_ASLEEP_WEIGHT;
        let subscribe = Command::Subscribe {
            queue: self.queue.clone(),
            subscription,
            filters,
            confirm,
        };
        match is_urgent {
            true => self.commands.send(subscribe).await,
            false => self.commands.send_asleep(subscribe).await,
        }
    }

    /// Ends one subscription. Events that were queued for it may still arrive.
    pub async fn unsubscribe(&self, subscription: u64) {
        let listener = self.queue.listener;
        let unsubscribe = Command::Unsubscribe(Subscriber {
            listener,
            subscription,
        });
        self.commands.send_asleep(unsubscribe).await;
    }

    /// Waits for the next message. Cancel-safe.
    pub async fn next(&mut self) -> HubMessage {
        match self.messages.recv().await {
            Some(message) => self.received(message),
            // The listener holds a sender, so the queue does not end before it does.
            None => std::future::pending().await,
        }
    }

    /// Returns the next message, if there is one already.
    pub fn try_next(&mut self) -> Option<HubMessage> {
        let message = self.messages.try_recv().ok()?;
        Some(self.received(message))
    }

    fn received(&self, message: HubMessage) -> HubMessage {
        let waiting = &*self.queue.waiting;
        match &message {
            HubMessage::Event { published, .. } => {
                waiting.events.fetch_sub(1, Ordering::Relaxed);
                let length = published.json.len();
                waiting.bytes.fetch_sub(length, Ordering::Relaxed);
            }
            HubMessage::Removed(events) => {
                waiting.removed.fetch_sub(events.len(), Ordering::Relaxed);
            }
            HubMessage::Subscribed { .. } | HubMessage::Overflow { .. } => {}
        }
        message
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.commands
            .push(Command::RemoveListener(self.queue.listener));
    }
}

/// The hub's end of one listener's queue. Its capacity is checked by the hub: overflows, one for each subscription, are
/// queued beyond it.
#[derive(Clone, Debug)]
struct ListenerQueue {
    listener: u64,
    messages: mpsc::UnboundedSender<HubMessage>,
    waiting: Arc<Waiting>,
    capacity: Capacity,
    /// Its listener is told of removed events.
    gets_removals: bool,
}

/// The events in a listener's queue.
#[derive(Debug, Default)]
struct Waiting {
    events: AtomicUsize,
    bytes: AtomicUsize,
    /// Removed events that the listener has not read.
    removed: AtomicUsize,
}

impl ListenerQueue {
    /// Queues an event; returns whether there was room for it.
    fn enqueue(&self, subscription: u64, published: &Arc<Published>) -> bool {
        let Waiting { events, bytes, .. } = &*self.waiting;
        let length = published.json.len();
        // Only the hub adds, so the numbers can only shrink meanwhile.
        let has_room = events.load(Ordering::Relaxed) < self.capacity.events
            && bytes.load(Ordering::Relaxed).saturating_add(length) <= self.capacity.bytes;
        if has_room {
            events.fetch_add(1, Ordering::Relaxed);
            bytes.fetch_add(length, Ordering::Relaxed);
            let published = published.clone();
            self.send(HubMessage::Event {
                subscription,
                published,
            });
        }
        has_room
    }

    /// Queues removed events, if the listener asked for them and reads.
    fn enqueue_removed(&self, events: &Arc<[EventId]>) {
        let removed = &self.waiting.removed;
        let is_full = removed.load(Ordering::Relaxed) >= MAX_REMOVED_QUEUED;
        if self.gets_removals && !is_full {
            removed.fetch_add(events.len(), Ordering::Relaxed);
            self.send(HubMessage::Removed(Arc::clone(events)));
        }
    }

    /// Sends a message; a listener that is gone is about to be removed.
    fn send(&self, message: HubMessage) {
        let _ = self.messages.send(message);
    }
}

/// The state of the hub's task.
#[derive(Debug, Default)]
struct HubState {
    index: SubscriptionIndex,
    queues: BTreeMap<u64, ListenerQueue>,
}

impl HubState {
    async fn run(mut self, commands: CommandReceiver) {
        let mut received = Vec::new();
        while commands.receive(&mut received).await {
            for command in received.drain(..) {
                self.handle(command);
            }
            tokio::task::consume_budget().await;
        }
    }

    fn handle(&mut self, command: Command) {
        match command {
            Command::Publish(event) => self.publish(event),
            Command::Removed(events) => {
                for queue in self.queues.values() {
                    queue.enqueue_removed(&events);
                }
            }
            Command::Subscribe {
                queue,
                subscription,
                filters,
                confirm,
            } => {
                let listener = queue.listener;
                let queue = self.queues.entry(listener).or_insert(queue);
                if confirm {
                    queue.send(HubMessage::Subscribed { subscription });
                }
                self.index.insert(
                    Subscriber {
                        listener,
                        subscription,
                    },
                    filters,
                );
            }
            Command::Unsubscribe(subscriber) => self.index.remove(subscriber),
            Command::RemoveListener(listener) => self.remove_listener(listener),
            Command::HubStats(answer) => {
                let _ = answer.send(HubStats {
                    sockets: 0,
                    listeners: self.queues.len(),
                    subscriptions: self.index.len(),
                });
            }
        }
    }

    fn publish(&mut self, event: Arc<Event>) {
        let subscribers = self.index.matching(&event);
        if subscribers.is_empty() {
            return;
        }
        let published = Arc::new(Published::new(event));
        for subscriber in subscribers {
            let Some(queue) = self.queues.get(&subscriber.listener) else {
                continue;
            };
            let subscription = subscriber.subscription;
            if !queue.enqueue(subscription, &published) {
                self.index.remove(subscriber);
                queue.send(HubMessage::Overflow { subscription });
            }
        }
    }

    fn remove_listener(&mut self, listener: u64) {
        self.index.remove_listener(listener);
        self.queues.remove(&listener);
    }
}

#[cfg(test)]
mod tests {
    use nostr::event::{EventBuilder, FinalizeEvent, Kind};
    use nostr::key::Keys;

    use super::*;

    const LARGE_CAPACITY: Capacity = Capacity {
        events: 100,
        bytes: 1_000_000,
    };

    fn note(text: &str) -> Arc<Event> {
        let note = EventBuilder::new(Kind::from(1), text).finalize(&Keys::generate());
        Arc::new(note.expect("signed"))
    }

    fn everything() -> Arc<[Filter]> {
        vec![Filter::new()].into()
    }

    async fn received_note(listener: &mut Listener) -> (u64, Arc<Event>) {
        match listener.next().await {
            HubMessage::Event {
                subscription,
                published,
            } => (subscription, published.event.clone()),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn a_full_queue_ends_that_subscription_and_no_other() {
        let hub = Hub::start();
        let mut slow = hub.listen(Capacity {
            events: 2,
            bytes: 1_000_000,
        });
        let mut quick = hub.listen(LARGE_CAPACITY);
        slow.subscribe(1, everything()).await;
        quick.subscribe(1, everything()).await;
        let notes: Vec<_> = (0..4).map(|nth| note(&nth.to_string())).collect();
        for note in &notes {
            hub.publish(note.clone()).await;
        }
        for note in &notes {
            assert_eq!(received_note(&mut quick).await, (1, note.clone()));
        }
        assert_eq!(received_note(&mut slow).await.1, notes[0]);
        assert_eq!(received_note(&mut slow).await.1, notes[1]);
        assert_eq!(slow.next().await, HubMessage::Overflow { subscription: 1 });
        assert_eq!(slow.try_next(), None, "delivery continued after a gap");
        // A new subscription works again.
        slow.subscribe(2, everything()).await;
        hub.publish(notes[3].clone()).await;
        assert_eq!(received_note(&mut slow).await, (2, notes[3].clone()));
    }

    #[tokio::test]
    async fn a_confirmation_follows_what_was_published_before_and_precedes_what_is_published_after()
    {
        let hub = Hub::start();
        let mut listener = hub.listen(Capacity {
            events: 2,
            bytes: 1_000_000,
        });
        let notes: Vec<_> = (0..4).map(|nth| note(&nth.to_string())).collect();
        listener.subscribe(1, everything()).await;
        for note in &notes[..3] {
            hub.publish(note.clone()).await;
        }
        listener.subscribe_confirmed(2, everything()).await;
        for note in &notes[..2] {
            assert_eq!(received_note(&mut listener).await, (1, note.clone()));
        }
        assert_eq!(
            listener.next().await,
            HubMessage::Overflow { subscription: 1 }
        );
        assert_eq!(
            listener.next().await,
            HubMessage::Subscribed { subscription: 2 }
        );
        hub.publish(notes[3].clone()).await;
        assert_eq!(received_note(&mut listener).await, (2, notes[3].clone()));
    }

    #[tokio::test]
    async fn bytes_fill_a_queue_as_events_do_and_reading_empties_it() {
        let hub = Hub::start();
        let big = note(&"x".repeat(1_000));
        let mut listener = hub.listen(Capacity {
            events: 100,
            bytes: 2_000,
        });
        listener.subscribe(1, everything()).await;
        for _ in 0..3 {
            hub.publish(big.clone()).await;
            assert_eq!(received_note(&mut listener).await.1, big);
        }
        hub.publish(big.clone()).await;
        hub.publish(big.clone()).await;
        hub.publish(note("")).await;
        let mut overflowed = false;
        for _ in 0..2 {
            overflowed |= listener.next().await == HubMessage::Overflow { subscription: 1 };
        }
        assert!(overflowed);
    }

    #[tokio::test]
    async fn removals_come_in_order_to_those_who_asked_even_if_their_queue_is_full() {
        let hub = Hub::start();
        let capacity = Capacity {
            events: 1,
            bytes: 1_000_000,
        };
        let mut follower = hub.listen(capacity).with_removals();
        let mut client = hub.listen(capacity);
        follower.subscribe(1, everything()).await;
        client.subscribe(1, everything()).await;
        let (first, second) = (note("1"), note("2"));
        hub.publish(first.clone()).await;
        hub.publish_removed(BTreeSet::from([first.id])).await;
        hub.publish(second.clone()).await;
        hub.publish_removed(BTreeSet::from([second.id])).await;
        // The hub has handled all that once it answers.
        hub.stats().await;
        assert_eq!(received_note(&mut follower).await.1, first);
        let removed = |note: &Event| HubMessage::Removed([note.id].into());
        assert_eq!(follower.next().await, removed(&first));
        let overflow = HubMessage::Overflow { subscription: 1 };
        assert_eq!(follower.next().await, overflow);
        assert_eq!(follower.next().await, removed(&second));
        assert_eq!(received_note(&mut client).await.1, first);
        assert_eq!(client.next().await, overflow);
        assert_eq!(client.try_next(), None);
    }

    #[tokio::test]
    async fn a_listener_that_reads_nothing_keeps_a_bounded_number_of_removals() {
        let hub = Hub::start();
        let mut listener = hub.listen(LARGE_CAPACITY).with_removals();
        listener.subscribe(1, everything()).await;
        let many: BTreeSet<EventId> = (0..MAX_REMOVED_QUEUED as u64)
            .map(|n| {
                let mut id = [0; 32];
                id[..8].copy_from_slice(&n.to_be_bytes());
                EventId::from_byte_array(id)
            })
            .collect();
        let one = BTreeSet::from([EventId::from_byte_array([9; 32])]);
        hub.publish_removed(many).await;
        hub.publish_removed(one.clone()).await;
        hub.stats().await;
        assert!(matches!(listener.next().await, HubMessage::Removed(events) if events.len() > 1));
        assert_eq!(listener.try_next(), None);
        hub.publish_removed(one).await;
        assert!(matches!(listener.next().await, HubMessage::Removed(events) if events.len() == 1));
    }

    #[tokio::test]
    async fn events_published_after_subscribing_are_delivered() {
        let hub = Hub::start();
        let mut listener = hub.listen(LARGE_CAPACITY);
        listener.subscribe(1, everything()).await;
        let (first, second) = (note("1"), note("2"));
        hub.publish(first.clone()).await;
        listener.unsubscribe(1).await;
        hub.publish(second.clone()).await;
        listener.subscribe(2, everything()).await;
        hub.publish(second.clone()).await;
        assert_eq!(received_note(&mut listener).await, (1, first));
        assert_eq!(received_note(&mut listener).await, (2, second));
    }

    #[test]
    fn a_listener_that_left_leaves_nothing_behind() {
        let (messages, _) = mpsc::unbounded_channel();
        let queue = ListenerQueue {
            listener: 3,
            messages,
            waiting: Arc::default(),
            capacity: LARGE_CAPACITY,
            gets_removals: false,
        };
        let mut state = HubState::default();
        state.handle(Command::Subscribe {
            queue,
            subscription: 1,
            filters: everything(),
            confirm: false,
        });
        state.handle(Command::RemoveListener(3));
        assert!(state.index.len() == 0 && state.queues.is_empty());
    }
}
