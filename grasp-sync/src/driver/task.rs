//! Tasks that end with their owner.

use tokio::task::AbortHandle;

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
