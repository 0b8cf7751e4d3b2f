//! Sockets, timers and threads around the engine.
//!
//! ```text
//!   local relay ──feed──▶ ┌──────────────────────┐ ─Handle─▶ connection ⇄ relay
//!   connections ─Input──▶ │ one loop, one engine │             │ events
//!   intake      ─Input──▶ │                      │             ▼
//!   timer       ─Tick───▶ └──────────────────────┘           intake ──▶ local relay
//!                               │ Persist  │ Report
//!                               ▼          ▼
//!                       RecordWriter  observer, status
//! ```
//!
//! The loop blocks on nothing: work runs in tasks, and every result, loss and silence included, is an input. Events
//! do not pass through the loop; it only learns that they came and how they were judged.

mod client;
pub(crate) mod codec;
mod connection;
mod intake;
mod outbound;
mod perform;
mod records;
mod status;

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Instant;
use std::{fmt, io};

use grasp_core::nostr::key::Keys;
use grasp_core::nostr::types::Timestamp;
use grasp_core::outbound::OutboundPolicy;
use grasp_core::{Mono, Now, ServiceIdentity};
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

pub use self::client::{Client, Unanswered};
pub use self::connection::Limits;
pub use self::outbound::{BadRoots, Outbound, Roots, relay_information};
use self::perform::EventLoop;
pub use self::records::{NoRecords, RecordFile, RecordStore};
pub use self::status::{Counts, Failed, Log, Observer, RelayStatus, Status};
use crate::engine::Config;
use crate::local::LocalRelay;

/// The settings of a [`Syncer`].
pub struct Settings {
    /// Settings of the engine.
    pub engine: Config,
    /// Addresses that may be dialled. Default: none that is private, except for bootstrap relays.
    pub outbound: OutboundPolicy,
    /// Trusted certificate authorities. Default: the public ones.
    pub roots: Roots,
    /// Keys to authenticate with (NIP-42). Default: none.
    pub keys: Option<Keys>,
    /// Storage of relay records across restarts. Default: none.
    pub records: Box<dyn RecordStore>,
    /// Receiver of reports. Default: the log.
    pub observer: Arc<dyn Observer>,
    /// Limits of connections.
    pub limits: Limits,
    /// Source of time. Default: the machine's clocks.
    pub clock: Clock,
}

impl Settings {
    /// Returns the defaults for this service, with a random seed.
    pub fn new(own: ServiceIdentity) -> Self {
        Self {
            engine: Config {
                seed: RandomState::new().hash_one(0u8),
                ..Config::new(own)
            },
            outbound: OutboundPolicy::default(),
            roots: Roots::default(),
            keys: None,
            records: Box::new(NoRecords),
            observer: Arc::new(Log),
            limits: Limits::default(),
            clock: Clock::system(),
        }
    }
}

/// Keeps a relay complete for as long as it exists.
///
/// Dropping it ends all connections; [`stop`](Self::stop) waits until all records are on disk.
///
/// ```
/// use std::sync::Arc;
/// use grasp_sync::driver::{Settings, Syncer};
/// use grasp_sync::LocalRelay;
///
/// async fn run(relay: Arc<dyn LocalRelay>) -> std::io::Result<()> {
///     let mut settings = Settings::new("us.example".parse().expect("an address"));
///     settings.engine.bootstrap.push("wss://other.example.com".parse().expect("an address"));
///     let syncer = Syncer::start(relay, settings).await?;
///     for (relay, status) in syncer.status().await.relays {
///         println!("{relay}: {:?}, {} new", status.connection, status.counts.stored());
///     }
///     syncer.stop().await;
///     Ok(())
/// }
/// ```
#[derive(Debug)]
pub struct Syncer {
    commands: mpsc::Sender<Command>,
}

/// A command for the loop.
enum Command {
    Status(oneshot::Sender<Status>),
    Stop(oneshot::Sender<()>),
}

impl Syncer {
    /// Loads the records, and starts to work on the current runtime.
    ///
    /// Fails only if the records cannot be read.
    pub async fn start(local: Arc<dyn LocalRelay>, settings: Settings) -> io::Result<Self> {
        let (commands, inbox) = mpsc::channel(16);
        let event_loop = EventLoop::begin(local, settings).await?;
        tokio::spawn(event_loop.run(inbox));
        Ok(Self { commands })
    }

    /// Returns the status of each relay. Empty once stopped.
    pub async fn status(&self) -> Status {
        let (reply, status) = oneshot::channel();
        let _ = self.commands.send(Command::Status(reply)).await;
        status.await.unwrap_or_default()
    }

    /// Ends all connections, and returns when all records are on disk.
    pub async fn stop(&self) {
        let (reply, stopped) = oneshot::channel();
        let _ = self.commands.send(Command::Stop(reply)).await;
        let _ = stopped.await;
    }
}

/// The clocks that all decisions of sync are based on.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Now + Send + Sync>);

impl Clock {
    /// Creates a clock that calls this function.
    pub fn new(now: impl Fn() -> Now + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// Returns the machine's clocks; the monotonic one counts from now.
    pub fn system() -> Self {
        let start = Instant::now();
        Self::new(move || Now::new(Mono::new(start.elapsed()), Timestamp::now()))
    }

    fn now(&self) -> Now {
        (self.0)()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

/// A task that ends when this is dropped.
pub(crate) struct Task(AbortHandle);

impl Task {
    pub(crate) fn spawn(work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(work).abort_handle())
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}
