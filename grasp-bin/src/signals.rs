//! What the operator and the system say to a running process.

use crate::notify::{self, Stage};

/// Listens for SIGTERM and Ctrl-C. What is said between two looks is not lost.
pub(crate) struct Signals {
    #[cfg(unix)]
    ways: Option<[tokio::signal::unix::Signal; 2]>,
}

impl Signals {
    /// From now on neither ends the process by itself.
    #[cfg(unix)]
    pub(crate) fn listen() -> Self {
        use tokio::signal::unix::{SignalKind, signal};
        let ways = signal(SignalKind::terminate()).and_then(|term| {
            let int = signal(SignalKind::interrupt())?;
            Ok([term, int])
        });
        Self { ways: ways.ok() }
    }

    /// From now on Ctrl-C does not end the process by itself.
    #[cfg(not(unix))]
    pub(crate) fn listen() -> Self {
        Self {}
    }

    /// Resolves when the process is asked to stop; asked twice, it ends at once.
    pub(crate) async fn told_to_stop(mut self) {
        self.next().await;
        notify::tell(Stage::Stopping);
        tracing::info!("stopping; once more to stop at once");
        tokio::spawn(async move {
            self.next().await;
            std::process::exit(130);
        });
    }

    #[cfg(unix)]
    async fn next(&mut self) {
        let Some([term, int]) = &mut self.ways else {
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
