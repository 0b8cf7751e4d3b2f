//! Text of strangers as HTML, made by worker processes.
//!
//! Parsers of Markdown and HTML, and regular expressions of grammars, run on what anybody sends. They can overflow the stack,
//! which no process survives, loop, or fill memory. So they run in workers with limits of the kernel, which are killed after
//! two seconds; whatever a worker does, the page shows plain text instead.

mod job;
#[cfg(feature = "pages")]
mod worker_process;

/// What a worker executes.
#[cfg(feature = "pages")]
pub mod worker;

use std::path::PathBuf;

use grasp_purgatory::git::PageWork;

pub(crate) use self::job::{Job, MAX_TEXT, Place};

/// Renders by workers, if there is a program for them.
pub(crate) struct Renderer {
    #[cfg(feature = "pages")]
    workers: Option<worker_process::Workers>,
}

impl Renderer {
    /// Creates a renderer whose workers are this program; without one everything stays plain text.
    #[cfg(feature = "pages")]
    pub(crate) fn new(program: Option<PathBuf>) -> Self {
        Self {
            workers: program.map(worker_process::Workers::new),
        }
    }

    /// Creates a renderer that renders nothing: everything stays plain text.
    #[cfg(not(feature = "pages"))]
    pub(crate) fn new(_: Option<PathBuf>) -> Self {
        Self {}
    }

    /// Returns a text as HTML without characters that turn the direction of the page, and charges the page for it. `None` if it has to be shown as plain text.
    #[cfg(feature = "pages")]
    pub(crate) async fn render(&self, job: &Job<'_>, work: &PageWork) -> Option<String> {
        let html = self.workers.as_ref()?.render(job, work).await?;
        // After rendering, because an entity can name such a character, too.
        Some(super::shown(&html))
    }

    /// Returns nothing: without the feature `pages` everything is shown as plain text.
    #[cfg(not(feature = "pages"))]
    pub(crate) async fn render(&self, _: &Job<'_>, _: &PageWork) -> Option<String> {
        None
    }
}
