//! The loop: passes inputs to the engine, and performs its outputs.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use grasp_core::admission::{Lasting, Origin, SyncPath};
use grasp_core::nostr::event::Event;
use grasp_core::nostr::filter::Filter;
use grasp_core::outbound::Provenance;
use grasp_core::{Mono, RelayUrl, Verified};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;

use super::clock::Clock;
use super::connection::{Call, Line, World};
use super::feed::Following;
use super::intake::Intake;
use super::observer::Observer;
use super::outbound::Outbound;
use super::scribe::Scribe;
use super::status::Status;
use super::task::Task;
use super::{Order, Settings, feed};
use crate::engine::{
    ConnId, Frame, Input, InventoryFailed, InventoryId, Judged, Outcome, Output, Row, SyncEngine,
};
use crate::local::LocalRelay;

/// Inputs that may wait; senders wait when there are more.
const INPUTS: usize = 1_024;
const INVENTORIES: usize = 2;
/// Time that the local relay may take for an inventory.
const INVENTORY: Duration = Duration::from_secs(60);

/// The owner of the engine.
pub(super) struct Loop {
    engine: SyncEngine,
    clock: Clock,
    world: Arc<World>,
    lines: BTreeMap<ConnId, Line>,
    inputs: mpsc::Receiver<Input>,
    scribe: Scribe,
    status: Status,
    observer: Arc<dyn Observer>,
    /// Our own address, as the origin of events that are offered again.
    own: RelayUrl,
    inventories: Arc<Semaphore>,
    _feed: Task,
}

impl Loop {
    pub(super) async fn begin(local: Arc<dyn LocalRelay>, settings: Settings) -> io::Result<Self> {
        let (told, inputs) = mpsc::channel(INPUTS);
        let (scribe, records) = Scribe::start(settings.records).await?;
        let clock = settings.clock;
        let own = settings.engine.own.relay_url(true).map_err(io::Error::other)?;
        let mut config = settings.engine;
        config.can_authenticate = settings.keys.is_some();
        config.recheck_announcements |= !local.tells_held();
        let intake = Intake::new(Arc::clone(&local), told.clone(), clock.clone());
        let recent = Arc::clone(&intake.recent);
        let following = Following { own: config.own.clone(), unlisted: config.follow_unlisted };
        let feed = Task::spawn(feed::listen(local, following, recent, told.clone()));
        let world = World {
            outbound: Outbound::new(settings.outbound, &settings.roots),
            keys: settings.keys,
            limits: settings.limits,
            intake,
            told,
        };
        let mut begun = Self {
            engine: SyncEngine::new(clock.now(), config),
            clock,
            world: Arc::new(world),
            lines: BTreeMap::new(),
            inputs,
            scribe,
            status: Status::default(),
            observer: settings.observer,
            own,
            inventories: Arc::new(Semaphore::new(INVENTORIES)),
            _feed: feed,
        };
        begun.handle(Input::Restored(records));
        Ok(begun)
    }

    pub(super) async fn run(mut self, mut orders: mpsc::Receiver<Order>) {
        loop {
            let deadline = self.engine.next_deadline();
            tokio::select! {
                order = orders.recv() => match order {
                    Some(Order::Status(reply)) => {
                        self.status.wanted(self.engine.wanted());
                        let _ = reply.send(self.status.clone());
                    }
                    Some(Order::Stop(reply)) => {
                        self.finish().await;
                        let _ = reply.send(());
                        return;
                    }
                    None => return self.finish().await,
                },
                Some(input) = self.inputs.recv() => self.handle(input),
                () = until(&self.clock, deadline) => self.handle(Input::Tick),
            }
        }
    }

    /// Handles an input, and the inputs that follow from it at once.
    fn handle(&mut self, input: Input) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            self.status.told(&input);
            if let Input::ConnectFailed { conn, .. } | Input::Disconnected { conn, .. } = &input {
                self.lines.remove(conn);
            }
            let outputs = self.engine.handle(self.clock.now(), input);
            inputs.extend(outputs.into_iter().filter_map(|output| self.perform(output)));
        }
    }

    /// Performs an output; returns an input if it failed at once.
    fn perform(&mut self, output: Output) -> Option<Input> {
        match output {
            Output::Connect { relay, conn, configured } => self.connect(relay, conn, configured),
            Output::Disconnect { conn, .. } => _ = self.lines.remove(&conn),
            Output::Send { relay, conn, frame } => return self.send(relay, conn, frame),
            Output::FetchInventory { request, filter } => self.fetch(request, *filter),
            Output::Persist(record) => self.scribe.write(*record),
            Output::Reoffer { events } => self.reoffer(events),
            Output::Report(report) => {
                self.status.reported(self.clock.now().unix, &report);
                self.observer.report(&report);
            }
        }
        None
    }

    fn connect(&mut self, relay: RelayUrl, conn: ConnId, configured: bool) {
        let from = if configured { Provenance::Operator } else { Provenance::Stranger };
        let call = Call { relay, conn, from };
        self.lines.insert(conn, Line::start(Arc::clone(&self.world), call));
    }

    /// Gives up a connection whose relay does not read.
    fn send(&mut self, relay: RelayUrl, conn: ConnId, frame: Frame) -> Option<Input> {
        let line = self.lines.get(&conn)?;
        if line.send(frame).is_ok() {
            return None;
        }
        self.lines.remove(&conn);
        Some(Input::Disconnected { relay, conn })
    }

    fn fetch(&self, request: InventoryId, filter: Filter) {
        let (world, turns) = (Arc::clone(&self.world), Arc::clone(&self.inventories));
        tokio::spawn(async move {
            let _turn = turns.acquire_owned().await;
            let items = inventory(Arc::clone(&world.intake.local), filter).await;
            let _ = world.told.send(Input::Inventory { request, items }).await;
        });
    }

    fn reoffer(&self, events: Vec<Arc<Event>>) {
        let (world, relay) = (Arc::clone(&self.world), self.own.clone());
        let origin = Origin::Sync { relay, path: SyncPath::CatchUp };
        tokio::spawn(async move {
            let judged = offer_again(&world.intake, events, origin).await;
            let _ = world.told.send(Input::Reoffered { judged }).await;
        });
    }

    /// Ends all connections, and writes all records.
    async fn finish(mut self) {
        self.lines.clear();
        let records = self.engine.records(self.clock.now());
        self.scribe.finish(records).await;
    }
}

/// Asks the local relay for its inventory, with a timeout and in a task, since it may panic.
async fn inventory(
    local: Arc<dyn LocalRelay>,
    filter: Filter,
) -> Result<Vec<Row>, InventoryFailed> {
    let mut asked = tokio::spawn(async move { local.inventory(filter).await });
    match timeout(INVENTORY, &mut asked).await {
        Ok(Ok(items)) => items,
        Ok(Err(_)) => Err(InventoryFailed),
        Err(_) => {
            // Its permit is freed, so the request must not run on.
            asked.abort();
            Err(InventoryFailed)
        }
    }
}

/// Offers events again that the engine kept. They are verified again, since the engine keeps plain events.
async fn offer_again(intake: &Intake, events: Vec<Arc<Event>>, origin: Origin) -> Vec<Judged> {
    let rows: Vec<_> = events.iter().map(|event| Row::of(event)).collect();
    let check =
        move || events.into_iter().filter_map(|event| Verified::check(event).ok()).collect();
    let genuine: Vec<_> = tokio::task::spawn_blocking(check).await.unwrap_or_default();
    let taken = intake.offer(genuine.clone(), origin).await;
    let judged: BTreeMap<_, _> =
        genuine.iter().zip(taken).map(|(event, taken)| (event.id, taken.judged(event))).collect();
    let missing = |row: Row| {
        let outcome = Outcome::Refused { lasting: Lasting::Briefly, event: None };
        Judged { row, outcome }
    };
    rows.into_iter()
        .map(|row| judged.get(&row.id).cloned().unwrap_or_else(|| missing(row)))
        .collect()
}

/// Sleeps until the deadline; for ever without one.
async fn until(clock: &Clock, deadline: Option<Mono>) {
    match deadline {
        Some(deadline) => tokio::time::sleep(deadline - clock.now().mono).await,
        None => std::future::pending().await,
    }
}
