//! What a test may want otherwise than it is by default.

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

/// What is put around a store.
pub type Wrapping = Arc<dyn Fn(Arc<dyn Store>) -> Arc<dyn Store> + Send + Sync>;

/// The settings of an instance.
#[derive(Clone)]
pub struct Settings {
    /// Who may sign for whom.
    pub model: MaintainerModel,
    /// What git clients may do.
    pub git: GitLimits,
    /// What others may do.
    pub relay: Limits,
    /// How long and how much may wait.
    pub purgatory: grasp_purgatory::Config,
    /// How much may wait on disk.
    pub staging: StagingLimits,
    /// How long replies are collected before what answers them is asked for.
    pub reply_window: Duration,
    /// The time.
    pub clock: Clock,
    /// What the store is wrapped in, if in anything.
    pub store: Option<Wrapping>,
    /// Another git than the one that is found.
    pub program: Option<PathBuf>,
    /// Where repositories are, if not with everything else.
    pub repositories: Option<PathBuf>,
    /// Other routes than those of our git hosting, on the same server.
    pub extra: Option<axum::Router>,
    /// The test is about one process and its disk, also where others have several nodes.
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
    /// The settings of a server that is always one process.
    pub fn one_process() -> Self {
        Self { one_process: true, ..Self::default() }
    }

    /// The settings of a server with this listener, and this directory to itself.
    pub(crate) fn built(&self, dir: &Path, address: SocketAddr) -> grasp_bin::Settings {
        let service = address.to_string().parse().expect("an address");
        let mut built = grasp_bin::Settings::new(service, dir);
        built.policy.model = self.model;
        built.git = self.git.clone();
        built.relay = self.relay.clone();
        built.purgatory = self.purgatory.clone();
        built.staging = self.staging;
        built.sync.engine.reply_window = self.reply_window;
        built.git_program.clone_from(&self.program);
        built.repositories.clone_from(&self.repositories);
        built
    }
}

/// A clock that runs as all do, and can be put forward.
#[derive(Clone, Debug, Default)]
pub struct TimeMachine {
    ahead: Arc<AtomicU64>,
}

impl TimeMachine {
    /// The settings of an instance with this clock. A node whose monotonic clock jumps loses its lease, so there is one
    /// process.
    pub fn settings(&self) -> Settings {
        Settings { clock: self.clock(), ..Settings::one_process() }
    }

    fn clock(&self) -> Clock {
        let (system, ahead) = (Clock::system(), Arc::clone(&self.ahead));
        Clock::new(move || {
            let (now, ahead) = (system.now(), ahead.load(Ordering::SeqCst));
            Now::new(now.mono + Duration::from_secs(ahead), now.unix + ahead)
        })
    }

    /// Puts the clock forward by that many seconds. Whoever waits notices with the next thing that happens.
    pub fn forward(&self, seconds: u64) {
        self.ahead.fetch_add(seconds, Ordering::SeqCst);
    }
}
