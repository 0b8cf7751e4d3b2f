//! The signals that stop a process.

use crate::notify;

/// Listens for SIGTERM and Ctrl-C. Signals between two waits are kept.
pub(crate) struct Signals {
    #[cfg(unix)]
    signals: Option<[tokio::signal::unix::Signal; 2]>,
}

impl Signals {
    /// Starts to listen; from now on neither signal ends the process by itself.
    #[cfg(unix)]
    pub(crate) fn listen() -> Self {
        use tokio::signal::unix::{SignalKind, signal};
        let signals = signal(SignalKind::terminate()).and_then(|term| {
            let int = signal(SignalKind::interrupt())?;
            Ok([term, int])
        });
        Self { signals: signals.ok() }
    }

    /// Starts to listen.
    #[cfg(not(unix))]
    pub(crate) fn listen() -> Self {
        Self {}
    }

    /// Resolves at the first signal; the second one ends the process at once.
    pub(crate) async fn stop_requested(mut self) {
        self.next().await;
        notify::stopping();
        tracing::info!("stopping; a second signal stops at once");
        tokio::spawn(async move {
            self.next().await;
            std::process::exit(130);
        });
    }

    #[cfg(unix)]
    async fn next(&mut self) {
        let Some([term, int]) = &mut self.signals else {
            return std::future::pending().await;
        };
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
    }

    #[cfg(not(unix))]
    async fn next(&mut self) {
        let _ = tokio::signal::ctrl_c().await;
    }
}
