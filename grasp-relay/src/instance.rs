//! A whole server, built from its settings: relay, git host, purgatory, hunt and sync, with status, administration, and the
//! commands on its data.
//!
//! [`Server`] is what `grasp serve` runs; `examples/` of this crate embeds one. Settings, log, signals and the command line are
//! the caller's.
//!
//! ```
//! use grasp_relay::Clock;
//! use grasp_relay::instance::{Server, Settings};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
//! # runtime.block_on(async {
//! let data = tempfile::tempdir()?;
//! let mut settings = Settings::new("127.0.0.1:7334".parse()?, data.path());
//! settings.sync.enabled = false;
//! let server = Server::open(&settings, Clock::system()).await?;
//! // `server.serve(listener, shutdown)` accepts connections until `shutdown` resolves.
//! server.close().await?;
//! # Ok(())
//! # })
//! # }
//! ```

pub mod admin;
pub mod doctor;
pub(crate) mod error;
pub mod files;
mod http;
mod identity;
mod listen;
pub mod metrics;
pub mod operations;
mod outbox;
pub(crate) mod overview;
mod own_relay;
mod private;
mod server;
mod settings;
mod sidecar;
mod sync_once;
pub mod text;

pub use error::{InstanceError, MustAct};
pub use listen::{listen, public_address};
pub use outbox::{OutboxMode, OutboxSettings};
pub use own_relay::OwnRelay;
pub use private::PrivateSettings;
pub use server::tls::{Contact, TlsMode, TlsSettings, TlsSockets};
pub use server::{Server, open_store};
pub use settings::{DatabaseUrl, QuotaSettings, Settings, Sync};
pub use sidecar::RelaySidecar;
pub use sync_once::{RelayStatuses, SyncOnce};

pub(crate) use private::authorization;
