//! The loop: passes inputs to the engine, and performs its outputs.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use grasp_core::nostr::event::Event;
use grasp_core::nostr::filter::Filter;
use grasp_core::outbound::{OutboundPolicy, Provenance};
use grasp_core::{Mono, RelayUrl};
use tokio::sync::{Semaphore, broadcast, mpsc};
use tokio::time::timeout;

use super::connection::{DialTarget, Handle, Shared};
use super::intake::{EventIntake, Followers, Following};
use super::outbound::Outbound;
use super::records::RecordWriter;
use super::relay_lists::{RelayListReader, RelayListRequest};
use super::status::{Observer, Status};
use super::{Clock, LoopCommand, Settings, Task, intake};
use crate::engine::{
    Accepted, Config, ConnId, Frame, Input, InventoryFailed, InventoryId, Output, Report, Row,
    SyncEngine, VisitId, VisitOutcome,
};
use crate::local::SyncedRelay;
use crate::outbox::{self, FetchOutcome, Outbox, OutboxConfig, TaskId};
use grasp_core::sync::IndexChange;

/// Inputs that may wait; senders wait when there are more.
const INPUT_QUEUE: usize = 1_024;
const CONCURRENT_INVENTORIES: usize = 2;
/// Time that the local relay may take for an inventory.
const INVENTORY_TIMEOUT: Duration = Duration::from_secs(60);

/// An input of one of the machines.
enum MachineInput {
    Engine(Input),
    Outbox(outbox::Input),
}

/// The outbox, and the task that makes its requests.
struct RunningOutbox {
    machine: Outbox,
    reader: RelayListReader,
}

/// The owner of the engine and the outbox.
pub(super) struct EventLoop {
    engine: SyncEngine,
    outbox: Option<RunningOutbox>,
    /// The inputs of the outbox; closed if it does not run.
    outbox_inbox: mpsc::Receiver<outbox::Input>,
    clock: Clock,
    shared: Arc<Shared>,
    handles: BTreeMap<ConnId, Handle>,
    inbox: mpsc::Receiver<Input>,
    record_writer: RecordWriter,
    status: Status,
    observer: Arc<dyn Observer>,
    reports: broadcast::Sender<Report>,
    /// Our own address, as the origin of events that are offered again.
    own: RelayUrl,
    inventories: Arc<Semaphore>,
    _feed: Task,
}

impl EventLoop {
    pub(super) async fn begin(
        local: Arc<dyn SyncedRelay>,
        settings: Settings,
        reports: broadcast::Sender<Report>,
    ) -> io::Result<Self> {
        let (inputs, inbox) = mpsc::channel(INPUT_QUEUE);
        let (record_writer, records) = RecordWriter::start(settings.records).await?;
        let clock = settings.clock;
        let own = settings
            .engine
            .own
            .relay_url(true)
            .map_err(io::Error::other)?;
        let mut config = settings.engine;
        config.can_authenticate = settings.keys.is_some();
        config.recheck_announcements |= !local.tells_held();
        // What a private service has is nobody else's business, not even its addresses.
        let outbox = settings.outbox.filter(|_| !config.is_private);
        config.follows_user_relays = outbox.is_some();
        if let Some(outbox) = &outbox {
            let named = outbox.index_relays.iter().chain(&outbox.fallback_relays);
            config.named.extend(named.cloned());
        }
        let intake = EventIntake::new(Arc::clone(&local), inputs.clone(), clock.clone());
        let recent = Arc::clone(&intake.recent);
        let following = Following::new(&config);
        let (outbox_inputs, outbox_inbox) = mpsc::channel(INPUT_QUEUE);
        let followers = Followers {
            engine: inputs.clone(),
            outbox: outbox.is_some().then(|| outbox_inputs.clone()),
        };
        let feed = Task::spawn(intake::follow_feed(local, following, recent, followers));
        let shared = Shared {
            outbound: Outbound::new(settings.outbound, &settings.roots),
            keys: settings.keys,
            limits: settings.limits,
            intake,
            inputs,
            dials_private: config.dials_private(),
        };
        let outbox = outbox.map(|outbox| RunningOutbox {
            machine: outbox_machine(outbox, settings.outbound, &config),
            reader: RelayListReader::start(&shared, outbox_inputs),
        });
        let mut event_loop = Self {
            engine: SyncEngine::new(clock.now(), config),
            outbox,
            outbox_inbox,
            clock,
            shared: Arc::new(shared),
            handles: BTreeMap::new(),
            inbox,
            record_writer,
            status: Status::default(),
            observer: settings.observer,
            reports,
            own,
            inventories: Arc::new(Semaphore::new(CONCURRENT_INVENTORIES)),
            _feed: feed,
        };
        event_loop.handle(Input::Restored(records));
        Ok(event_loop)
    }

    pub(super) async fn run(mut self, mut commands: mpsc::Receiver<LoopCommand>) {
        loop {
            let deadline = self.engine.next_deadline();
            let outbox = self.outbox.as_ref();
            let outbox_deadline = outbox.and_then(|outbox| outbox.machine.next_deadline());
            tokio::select! {
                command = commands.recv() => match command {
                    Some(LoopCommand::Stop(reply)) => {
                        self.finish().await;
                        let _ = reply.send(());
                        return;
                    }
                    Some(command) => self.answer(command),
                    None => return self.finish().await,
                },
                Some(input) = self.inbox.recv() => self.handle(input),
                Some(input) = self.outbox_inbox.recv() => self.work(MachineInput::Outbox(input)),
                () = until(&self.clock, deadline) => self.handle(Input::Tick),
                () = until(&self.clock, outbox_deadline) => {
                    self.work(MachineInput::Outbox(outbox::Input::Tick));
                }
            }
        }
    }

    fn answer(&mut self, command: LoopCommand) {
        match command {
            LoopCommand::Status(reply) => {
                self.update_status();
                let _ = reply.send(self.status.clone());
            }
            LoopCommand::Settled(reply) => {
                self.update_status();
                let status = self.status.has_settled().then(|| self.status.clone());
                let _ = reply.send(status);
            }
            LoopCommand::Bootstrap(relays) => {
                self.work(MachineInput::Outbox(outbox::Input::Bootstrap(
                    relays.clone(),
                )));
                self.handle(Input::Bootstrap(relays));
            }
            LoopCommand::SyncNow(relay, reply) => {
                let _ = reply.send(self.status.relays.contains_key(&relay));
                // What was stored a minute ago may be lost by now: that is one reason to compare.
                self.shared.intake.forget_answers();
                self.handle(Input::SyncNow { relay });
            }
            // Handled by the loop, which it ends.
            LoopCommand::Stop(_) => {}
        }
    }

    /// Brings the status up to date with what no report says.
    fn update_status(&mut self) {
        let now = self.clock.now();
        self.status.is_collecting = self.engine.is_collecting();
        self.status.at = now.unix;
        self.status.wanted(self.engine.wanted());
        self.status.retries(now, self.engine.retries());
        let outbox = self.outbox.as_ref();
        self.status.outbox = outbox.map(|outbox| outbox.machine.stats());
    }

    fn handle(&mut self, input: Input) {
        self.work(MachineInput::Engine(input));
    }

    /// Handles an input, and the inputs that follow from it at once.
    fn work(&mut self, work: MachineInput) {
        let mut waiting = VecDeque::from([work]);
        while let Some(work) = waiting.pop_front() {
            match work {
                MachineInput::Engine(input) => waiting.extend(self.handle_one(input)),
                MachineInput::Outbox(input) => {
                    let Some(outbox) = &mut self.outbox else {
                        continue;
                    };
                    let outputs = outbox.machine.handle(self.clock.now().mono, input);
                    let reader = &outbox.reader;
                    let outputs = outputs.into_iter();
                    waiting.extend(outputs.filter_map(|output| perform_outbox(reader, output)));
                }
            }
        }
    }

    fn handle_one(&mut self, input: Input) -> Vec<MachineInput> {
        self.status.note_input(&input);
        if let Input::ConnectFailed { conn, .. } | Input::Disconnected { conn, .. } = &input {
            self.handles.remove(conn);
        }
        let outputs = self.engine.handle(self.clock.now(), input);
        outputs
            .into_iter()
            .filter_map(|output| self.perform(output))
            .collect()
    }

    /// Performs an output; returns the input that follows at once, if any.
    fn perform(&mut self, output: Output) -> Option<MachineInput> {
        match output {
            Output::Connect {
                relay,
                conn,
                configured,
                needs_document,
            } => {
                self.connect(DialTarget {
                    relay,
                    conn,
                    from: provenance(configured),
                    needs_document,
                });
            }
            Output::Disconnect { conn, .. } => _ = self.handles.remove(&conn),
            Output::Send { relay, conn, frame } => {
                return self.send(relay, conn, frame).map(MachineInput::Engine);
            }
            Output::Visited { id, outcome } => {
                return Some(MachineInput::Outbox(outbox::Input::Visited {
                    id: TaskId(id.0),
                    is_complete: outcome == VisitOutcome::Complete,
                }));
            }
            Output::FetchInventory { request, filter } => self.fetch(request, *filter),
            Output::Persist(record) => self.record_writer.write(*record),
            Output::Reoffer { events } => self.reoffer(events),
            Output::Report(report) => {
                self.status.note_report(self.clock.now().unix, &report);
                self.observer.report(&report);
                if self.reports.receiver_count() > 0 {
                    let _ = self.reports.send(report);
                }
            }
        }
        None
    }

    fn connect(&mut self, target: DialTarget) {
        let conn = target.conn;
        self.handles
            .insert(conn, Handle::start(Arc::clone(&self.shared), target));
    }

    /// Gives up a connection whose relay does not read.
    fn send(&mut self, relay: RelayUrl, conn: ConnId, frame: Frame) -> Option<Input> {
        let handle = self.handles.get(&conn)?;
        if handle.send(frame) {
            return None;
        }
        self.handles.remove(&conn);
        Some(Input::Disconnected { relay, conn })
    }

    fn fetch(&self, request: InventoryId, filter: Filter) {
        let shared = Arc::clone(&self.shared);
        let permits = Arc::clone(&self.inventories);
        tokio::spawn(async move {
            let _permit = permits.acquire_owned().await;
            let items = inventory(&*shared.intake.local, filter).await;
            let _ = shared
                .inputs
                .send(Input::Inventory { request, items })
                .await;
        });
    }

    fn reoffer(&self, events: Vec<Arc<Event>>) {
        let shared = Arc::clone(&self.shared);
        let own = self.own.clone();
        tokio::spawn(async move {
            shared.intake.offer_again(&own, events).await;
        });
    }

    /// Ends all connections, and writes all records.
    async fn finish(mut self) {
        self.handles.clear();
        let records = self.engine.records(self.clock.now());
        self.record_writer.finish(records).await;
    }
}

/// Creates the outbox with what the settings of sync say of it.
fn outbox_machine(outbox: OutboxConfig, outbound: OutboundPolicy, engine: &Config) -> Outbox {
    Outbox::new(OutboxConfig {
        own: engine.own.clone(),
        outbound,
        bootstrap: engine.bootstrap.clone(),
        seed: engine.seed,
        ..outbox
    })
}

/// Performs an output of the outbox; returns the input that follows at once, if any.
fn perform_outbox(reader: &RelayListReader, output: outbox::Output) -> Option<MachineInput> {
    let input = match output {
        outbox::Output::Fetch {
            id,
            source,
            authors,
            configured,
        } => {
            let request = RelayListRequest {
                id,
                source,
                from: provenance(configured),
                authors,
            };
            let outcome = FetchOutcome::Failed;
            let failed = MachineInput::Outbox(outbox::Input::Fetched { id, outcome });
            return (!reader.send(request)).then_some(failed);
        }
        outbox::Output::Visit { id, relay, filters } => Input::Visit {
            relay,
            id: VisitId(id.0),
            filters,
        },
        outbox::Output::EndVisit { id } => Input::EndVisit { id: VisitId(id.0) },
        outbox::Output::Follow { author, relays } => Input::Accepted(Accepted {
            event: None,
            is_uncounted: false,
            change: Some(IndexChange::UserRelays { author, relays }),
        }),
    };
    Some(MachineInput::Engine(input))
}

fn provenance(configured: bool) -> Provenance {
    if configured {
        Provenance::Operator
    } else {
        Provenance::Event
    }
}

/// Asks the local relay for its inventory, with a timeout. It may panic.
async fn inventory(local: &dyn SyncedRelay, filter: Filter) -> Result<Vec<Row>, InventoryFailed> {
    let asked = AssertUnwindSafe(async { local.inventory(filter).await }).catch_unwind();
    let answered = timeout(INVENTORY_TIMEOUT, asked).await;
    answered
        .ok()
        .and_then(Result::ok)
        .unwrap_or(Err(InventoryFailed::Unreadable))
}

/// Sleeps until the deadline; for ever without one.
async fn until(clock: &Clock, deadline: Option<Mono>) {
    match deadline {
        Some(deadline) => tokio::time::sleep(deadline - clock.now().mono).await,
        None => std::future::pending().await,
    }
}
