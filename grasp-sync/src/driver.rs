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
//!
//! ```no_run
//! use std::sync::Arc;
//! use grasp_sync::core::nostr::filter::Filter;
//! use grasp_sync::core::outbound::{OutboundPolicy, Provenance};
//! use grasp_sync::core::RelayUrl;
//! use grasp_sync::driver::{
//!     BadRoots, Client, Clock, Counts, Failed, Limits, Log, NoRecords, NotFollowed, Outbound, RelayStatus, Roots,
//!     Settings, Status, Syncer, Unanswered, relay_information,
//! };
//! use grasp_sync::SyncedRelay;
//!
//! async fn run(relay: Arc<dyn SyncedRelay>, pem: &[u8]) -> Result<(), Box<dyn std::error::Error>> {
//!     let roots = Roots::default().with(pem).map_err(|why: BadRoots| format!("roots.pem: {why}"))?;
//!     let settings = Settings::new("us.example".parse()?)
//!         .with_roots(roots.clone())
//!         .with_clock(Clock::system())
//!         .with_records(NoRecords)
//!         .with_observer(Log);
//!     let syncer = Syncer::start(relay, settings).await?;
//!
//!     let other: RelayUrl = "wss://other.example".parse()?;
//!     if let Err(NotFollowed) = syncer.sync_now(&other).await {
//!         syncer.set_bootstrap([other.clone()]).await;
//!     }
//!     let status: Status = syncer.until_complete().await;
//!     for (url, relay) in &status.relays {
//!         let RelayStatus { counts: Counts { live, known, .. }, failed, .. } = relay;
//!         println!("{url}: {live} new live events, {known} known ones");
//!         if let Some(Failed { why, retry_at, .. }) = failed {
//!             println!("  {why}; the next attempt is at {retry_at}");
//!         }
//!     }
//!
//!     // The parts that sync dials with also serve commands about one relay.
//!     let outbound = Outbound::new(OutboundPolicy::default(), &roots);
//!     let mut client = Client::connect(&other, &outbound, &Limits::default()).await.map_err(|why| why.to_string())?;
//!     match client.page(&Filter::new().limit(10)).await {
//!         Ok(events) => println!("{} events", events.len()),
//!         Err(Unanswered::Closed(text)) => println!("refused: {text}"),
//!         Err(error) => return Err(error.into()),
//!     }
//!     let document = outbound.get(&other, Provenance::Operator).await.map_err(|why| why.to_string())?;
//!     println!("its document has {} bytes", document.body().len());
//!     if let Some(facts) = relay_information(&other, OutboundPolicy::default(), &roots).await {
//!         println!("its software is {:?}", facts.software);
//!     }
//!     Ok(())
//! }
//! ```

mod client;
pub(crate) mod codec;
mod connection;
mod intake;
mod outbound;
mod perform;
mod records;
mod relay_lists;
mod status;

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fmt, io};

use grasp_core::nostr::key::Keys;
use grasp_core::nostr::types::Timestamp;
use grasp_core::outbound::OutboundPolicy;
use grasp_core::{Mono, Now, RelayUrl, ServiceIdentity};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::task::AbortHandle;

#[doc(no_inline)]
pub use hyper::{Request, Response, body::Bytes};

pub use self::client::{Client, Unanswered};
pub use self::connection::Limits;
pub use self::outbound::{BadRoots, Outbound, Roots, relay_information};
use self::perform::EventLoop;
pub use self::records::{NoRecords, RecordFile, RecordStore};
pub use self::status::{Counts, Failed, Log, Observer, RelayStatus, Status};
use crate::engine::{Config, Report};
use crate::local::SyncedRelay;
use crate::outbox::OutboxConfig;

/// The settings of a [`Syncer`].
///
/// ```
/// use std::time::Duration;
/// use grasp_sync::driver::{Limits, RecordFile};
/// use grasp_sync::Settings;
///
/// let mut limits = Limits::default();
/// limits.idle_timeout = Duration::from_secs(60);
/// let mut settings = Settings::new("relay.example.com".parse()?)
///     .with_bootstrap(["wss://other.example.com".parse()?])
///     .with_records(RecordFile::new("relays.jsonl"))
///     .with_limits(limits);
/// settings.engine.relays_per_repo = 16;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[non_exhaustive]
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
    /// Asks the relays of users, too (GRASP-03). Address, bootstrap relays, policy and seed are those of these settings. A
    /// private service never does. Default: no.
    pub outbox: Option<OutboxConfig>,
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
            outbox: None,
            limits: Limits::default(),
            clock: Clock::system(),
        }
    }

    /// Adds relays to sync from whether a repository names them or not.
    #[must_use]
    pub fn with_bootstrap(mut self, relays: impl IntoIterator<Item = RelayUrl>) -> Self {
        self.engine.bootstrap.extend(relays);
        self
    }

    /// Follows repositories whose announcement does not list this relay too. Its own rules decide what is kept.
    #[must_use]
    pub fn follow_unlisted(mut self) -> Self {
        self.engine.follow_unlisted = true;
        self
    }

    /// Keeps what is learned about relays in this store, so that a restart repeats no requests.
    #[must_use]
    pub fn with_records(mut self, records: impl RecordStore) -> Self {
        self.records = Box::new(records);
        self
    }

    /// Asks the relays of users who take part in served repositories, too (GRASP-03).
    #[must_use]
    pub fn with_outbox(mut self, outbox: OutboxConfig) -> Self {
        self.outbox = Some(outbox);
        self
    }

    /// Sends reports to this observer instead of the log.
    #[must_use]
    pub fn with_observer(mut self, observer: impl Observer) -> Self {
        self.observer = Arc::new(observer);
        self
    }

    /// Trusts these certificate authorities.
    #[must_use]
    pub fn with_roots(mut self, roots: Roots) -> Self {
        self.roots = roots;
        self
    }

    /// Dials the addresses that this policy allows.
    #[must_use]
    pub fn with_outbound(mut self, outbound: OutboundPolicy) -> Self {
        self.outbound = outbound;
        self
    }

    /// Limits connections by these.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Reads the time from this clock.
    #[must_use]
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Authenticates with these keys at relays that ask for it (NIP-42).
    #[must_use]
    pub fn with_keys(mut self, keys: Keys) -> Self {
        self.keys = Some(keys);
        self
    }
}

/// Keeps a relay complete for as long as it exists.
///
/// Dropping it ends all connections; [`stop`](Self::stop) waits until all records are on disk.
///
/// ```
/// use std::sync::Arc;
/// use grasp_sync::driver::{Settings, Syncer};
/// use grasp_sync::SyncedRelay;
///
/// async fn run(relay: Arc<dyn SyncedRelay>) -> std::io::Result<()> {
///     let settings = Settings::new("us.example".parse().expect("an address"))
///         .with_bootstrap(["wss://other.example.com".parse().expect("an address")]);
///     let syncer = Syncer::start(relay, settings).await?;
///     for (relay, status) in syncer.until_complete().await.relays {
///         println!("{relay}: {:?}, {} new", status.connection, status.counts.stored());
///     }
///     syncer.stop().await;
///     Ok(())
/// }
/// ```
#[derive(Debug)]
pub struct Syncer {
    commands: mpsc::Sender<LoopCommand>,
    reports: broadcast::Sender<Report>,
}

/// Reports that may wait for a reader of [`Syncer::reports`].
const REPORT_QUEUE: usize = 1_024;
/// Interval between two checks whether everything is here.
const COMPLETE_POLL: Duration = Duration::from_millis(100);
/// Time for which nothing more may be expected before everything counts as here: what was stored last is streamed by
/// the local relay meanwhile, and may lead to more requests.
const SETTLED_AFTER: Duration = Duration::from_secs(2);

/// A command for the loop.
enum LoopCommand {
    Status(oneshot::Sender<Status>),
    /// Answered with the status if nothing more is expected soon.
    Settled(oneshot::Sender<Option<Status>>),
    Bootstrap(Vec<RelayUrl>),
    /// Answered with whether the relay is followed.
    SyncNow(RelayUrl, oneshot::Sender<bool>),
    Stop(oneshot::Sender<()>),
}

/// The relay is not followed: no repository names it, and it is no bootstrap relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the relay is not followed; add it to the bootstrap relays")]
pub struct NotFollowed;

impl Syncer {
    /// Loads the records, and starts to work on the current runtime.
    ///
    /// Fails only if the records cannot be read.
    pub async fn start(local: Arc<dyn SyncedRelay>, settings: Settings) -> io::Result<Self> {
        let (commands, inbox) = mpsc::channel(16);
        let reports = broadcast::Sender::new(REPORT_QUEUE);
        let event_loop = EventLoop::begin(local, settings, reports.clone()).await?;
        tokio::spawn(event_loop.run(inbox));
        Ok(Self { commands, reports })
    }

    /// Returns the status of each relay. Empty once stopped.
    pub async fn status(&self) -> Status {
        let (reply, status) = oneshot::channel();
        let _ = self.commands.send(LoopCommand::Status(reply)).await;
        status.await.unwrap_or_default()
    }

    /// Waits until nothing more is expected soon, and returns the status then.
    ///
    /// Everything is here if [`Status::is_complete`]. Otherwise some relays refused part of their history, or cannot be
    /// reached and will not be dialled within half a minute. Give it a timeout: a large history may take hours.
    pub async fn until_complete(&self) -> Status {
        let mut settled_since = None;
        loop {
            let (reply, status) = oneshot::channel();
            if self
                .commands
                .send(LoopCommand::Settled(reply))
                .await
                .is_err()
            {
                return Status::default();
            }
            match status.await.unwrap_or_default() {
                Some(status) => {
                    let since = *settled_since.get_or_insert_with(Instant::now);
                    if since.elapsed() >= SETTLED_AFTER {
                        return status;
                    }
                }
                None => settled_since = None,
            }
            tokio::time::sleep(COMPLETE_POLL).await;
        }
    }

    /// Compares everything with a relay now, as once a day. A relay that is not connected is dialled at once, whatever
    /// its earlier failures.
    pub async fn sync_now(&self, relay: &RelayUrl) -> Result<(), NotFollowed> {
        let (reply, is_followed) = oneshot::channel();
        let command = LoopCommand::SyncNow(relay.clone(), reply);
        let _ = self.commands.send(command).await;
        match is_followed.await {
            Ok(true) => Ok(()),
            _ => Err(NotFollowed),
        }
    }

    /// Replaces the bootstrap relays. Earlier ones are followed for as long as a repository names them.
    pub async fn set_bootstrap(&self, relays: impl IntoIterator<Item = RelayUrl>) {
        let relays = relays.into_iter().collect();
        let _ = self.commands.send(LoopCommand::Bootstrap(relays)).await;
    }

    /// Returns the reports from now on.
    pub fn reports(&self) -> Reports {
        Reports(self.reports.subscribe())
    }

    /// Ends all connections, and returns when all records are on disk.
    pub async fn stop(&self) {
        let (reply, stopped) = oneshot::channel();
        let _ = self.commands.send(LoopCommand::Stop(reply)).await;
        let _ = stopped.await;
    }
}

/// The reports of a [`Syncer`], until it ends.
///
/// A reader that is too slow misses the oldest; [`Syncer::status`] counts all.
///
/// ```
/// use grasp_sync::driver::{Reports, Syncer};
/// use grasp_sync::engine::Report;
///
/// async fn print_new_events(syncer: &Syncer) {
///     let mut reports: Reports = syncer.reports();
///     while let Some(report) = reports.next().await {
///         if let Report::Stored { count, .. } = report {
///             println!("{count} new events");
///         }
///     }
/// }
/// ```
#[derive(Debug)]
pub struct Reports(broadcast::Receiver<Report>);

impl Reports {
    /// Waits for the next report. Returns `None` once the syncer has ended.
    pub async fn next(&mut self) -> Option<Report> {
        loop {
            match self.0.recv().await {
                Ok(report) => return Some(report),
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return None,
            }
        }
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
