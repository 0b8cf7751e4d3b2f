//! Sockets, timers and threads around the engine.
//!
//! ```text
//!   local relay ──feed──▶ ┌──────────────────────┐ ──Line──▶ connection ⇄ relay
//!   connections ─Input──▶ │ one loop, one engine │             │ events
//!   intake      ─Input──▶ │                      │             ▼
//!   timer       ─Tick───▶ └──────────────────────┘           intake ──▶ local relay
//!                               │ Persist  │ Report
//!                               ▼          ▼
//!                             scribe   observer, status
//! ```
//!
//! The loop waits for nobody: what it wants done runs in tasks, and whatever comes of it, loss and silence included,
//! is an input. Events do not pass through it; it hears only that they came and what became of them.

mod clock;
pub(crate) mod codec;
pub(crate) mod connection;
mod feed;
mod intake;
mod limits;
mod nip11;
mod observer;
pub(crate) mod outbound;
mod perform;
mod recent;
mod records;
mod roots;
mod scribe;
mod status;
pub(crate) mod task;

use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::sync::Arc;

use grasp_core::ServiceIdentity;
use grasp_core::nostr::key::Keys;
use grasp_core::outbound::OutboundPolicy;
use tokio::sync::{mpsc, oneshot};

pub use self::clock::Clock;
pub use self::limits::Limits;
pub use self::nip11::relay_information;
pub use self::observer::{Log, Observer};
use self::perform::Loop;
pub use self::records::{NoRecords, RecordFile, RecordStore};
pub use self::roots::{BadRoots, Roots};
pub use self::status::{Counts, Failed, RelayStatus, Status};
use crate::engine::Config;
use crate::local::LocalRelay;

/// Everything about syncing that may be set.
pub struct Settings {
    /// What is decided, and when.
    pub engine: Config,
    /// Where may be gone to. Default: nowhere private, unless the operator configured it as a bootstrap relay.
    pub outbound: OutboundPolicy,
    /// Whose certificates are believed. Default: those of the public authorities.
    pub roots: Roots,
    /// Who we are to relays that want to know (NIP-42). Default: nobody.
    pub keys: Option<Keys>,
    /// What outlives the process. Default: nothing.
    pub records: Box<dyn RecordStore>,
    /// Who is told what happens. Default: the log.
    pub observer: Arc<dyn Observer>,
    /// What one relay may do to us.
    pub limits: Limits,
    /// The time. Default: the machine's.
    pub clock: Clock,
}

impl Settings {
    /// The defaults for this service, with chance from the system.
    pub fn new(own: ServiceIdentity) -> Self {
        Self {
            engine: Config { seed: RandomState::new().hash_one(0u8), ..Config::new(own) },
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
/// Dropping it ends all connections; [`stop`](Self::stop) waits until what was learned is on disk.
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
    orders: mpsc::Sender<Order>,
}

/// What may be asked of the loop.
enum Order {
    Status(oneshot::Sender<Status>),
    Stop(oneshot::Sender<()>),
}

impl Syncer {
    /// Takes up where the records end, and starts to work on the current runtime.
    ///
    /// Fails only if the records cannot be read.
    pub async fn start(local: Arc<dyn LocalRelay>, settings: Settings) -> io::Result<Self> {
        let (orders, inbox) = mpsc::channel(16);
        let looping = Loop::begin(local, settings).await?;
        tokio::spawn(looping.run(inbox));
        Ok(Self { orders })
    }

    /// How things stand with each relay. Empty once stopped.
    pub async fn status(&self) -> Status {
        let (reply, status) = oneshot::channel();
        let _ = self.orders.send(Order::Status(reply)).await;
        status.await.unwrap_or_default()
    }

    /// Ends all connections, and returns when everything learned about relays is on disk.
    pub async fn stop(&self) {
        let (reply, stopped) = oneshot::channel();
        let _ = self.orders.send(Order::Stop(reply)).await;
        let _ = stopped.await;
    }
}
