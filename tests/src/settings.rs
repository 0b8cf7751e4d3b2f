//! Settings of an instance that tests change.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use grasp_core::{MaintainerModel, Now};
use grasp_purgatory::git::StagingLimits;
use grasp_relay::Clock;
use grasp_relay::git_http::GitLimits;
use grasp_relay::nostr::Limits;
use grasp_relay::store::Store;

/// Wraps the store of an instance.
pub type StoreWrapper = Arc<dyn Fn(Arc<dyn Store>) -> Arc<dyn Store> + Send + Sync>;

/// The settings of an instance.
#[derive(Clone)]
pub struct Settings {
    /// The rules that decide who may sign states.
    pub model: MaintainerModel,
    /// Limits of git clients.
    pub git: GitLimits,
    /// Limits of nostr clients.
    pub relay: Limits,
    /// Limits of purgatory.
    pub purgatory: grasp_purgatory::Config,
    /// Limits of staged uploads.
    pub staging: StagingLimits,
    /// Time for which replies are collected before their own replies are requested.
    pub reply_window: Duration,
    /// The clock of the server.
    pub clock: Clock,
    /// A wrapper around the store.
    pub store: Option<StoreWrapper>,
    /// Another git program than the installed one.
    pub program: Option<PathBuf>,
    /// Another directory of the repositories than the one in the data directory.
    pub repositories: Option<PathBuf>,
    /// Further routes of the server.
    pub extra: Option<axum::Router>,
    /// Keeps the server one process, also where tests run with several nodes.
    pub one_process: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            model: MaintainerModel::default(),
            git: GitLimits::default(),
            relay: Limits::default(),
            purgatory: grasp_purgatory::Config::default(),
            staging: StagingLimits::default(),
            reply_window: Duration::from_secs(15),
            clock: Clock::system(),
            store: None,
            program: None,
            repositories: None,
            extra: None,
            one_process: false,
        }
    }
}

impl Settings {
    /// Returns the settings of a server that is always one process.
    pub fn one_process() -> Self {
        Self {
            one_process: true,
            ..Self::default()
        }
    }

    /// Returns the settings of a server with this address and data directory.
    pub(crate) fn server_settings(
        &self,
        dir: &Path,
        address: SocketAddr,
    ) -> grasp_relay::instance::Settings {
        let service = address.to_string().parse().expect("an address");
        let mut settings = grasp_relay::instance::Settings::new(service, dir);
        settings.policy.model = self.model;
        settings.git = self.git.clone();
        settings.relay = self.relay.clone();
        settings.purgatory = self.purgatory.clone();
        settings.staging = self.staging;
        settings.sync.engine.reply_window = self.reply_window;
        settings.git_program.clone_from(&self.program);
        settings.repositories.clone_from(&self.repositories);
        settings
    }
}

/// The system clock, which a test can advance.
#[derive(Clone, Debug, Default)]
pub struct AdjustableClock {
    ahead: Arc<AtomicU64>,
}

impl AdjustableClock {
    /// Returns the settings of an instance with this clock. A node whose monotonic clock jumps loses its lease, so there
    /// is one process.
    pub fn settings(&self) -> Settings {
        Settings {
            clock: self.clock(),
            ..Settings::one_process()
        }
    }

    fn clock(&self) -> Clock {
        let (system, ahead) = (Clock::system(), Arc::clone(&self.ahead));
        Clock::new(move || {
            let (now, ahead) = (system.now(), ahead.load(Ordering::SeqCst));
            Now::new(now.mono + Duration::from_secs(ahead), now.unix + ahead)
        })
    }

    /// Advances the clock. Waiting tasks notice with their next input.
    pub fn advance(&self, seconds: u64) {
        self.ahead.fetch_add(seconds, Ordering::SeqCst);
    }
}
