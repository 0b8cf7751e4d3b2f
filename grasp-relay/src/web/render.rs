//! Text of strangers as HTML, made by worker processes.
//!
//! Parsers of Markdown and HTML, and regular expressions of grammars, run on what anybody sends. They can overflow the stack,
//! which no process survives, loop, or fill memory. So they run in workers with limits of the kernel, which are killed after
//! two seconds; whatever a worker does, the page shows plain text instead.

mod job;
#[cfg(feature = "pages")]
mod kept;
#[cfg(feature = "pages")]
mod worker_process;

/// What a worker executes.
#[cfg(feature = "pages")]
pub mod worker;

use std::path::PathBuf;
#[cfg(feature = "pages")]
use std::sync::{Mutex, MutexGuard, PoisonError};

use grasp_purgatory::git::PageWork;

pub(crate) use self::job::{Job, MAX_TEXT, Place};
#[cfg(feature = "pages")]
use self::kept::{JobHash, RenderedTexts};

/// Bytes of rendered texts that are kept.
#[cfg(feature = "pages")]
const KEPT_BYTES: usize = 16 * 1024 * 1024;

/// Renders by workers, if there is a program for them.
pub(crate) struct Renderer {
    #[cfg(feature = "pages")]
    workers: Option<worker_process::Workers>,
    #[cfg(feature = "pages")]
    kept: Mutex<RenderedTexts>,
}

impl Renderer {
    /// Creates a renderer whose workers are this program; without one everything stays plain text.
    #[cfg(feature = "pages")]
    pub(crate) fn new(program: Option<PathBuf>) -> Self {
        Self {
            workers: program.map(worker_process::Workers::new),
            kept: Mutex::new(RenderedTexts::new(KEPT_BYTES)),
        }
    }

    /// Creates a renderer that renders nothing: everything stays plain text.
    #[cfg(not(feature = "pages"))]
    pub(crate) fn new(_: Option<PathBuf>) -> Self {
        Self {}
    }

    /// Returns a text as HTML without characters that turn the direction of the page, and charges the page for it. `None` if it
    /// has to be shown as plain text.
    #[cfg(feature = "pages")]
    pub(crate) async fn render(&self, job: &Job<'_>, work: &PageWork) -> Option<String> {
        let workers = self.workers.as_ref()?;
        if job.text().len() > MAX_TEXT {
            return None;
        }
        let hash = JobHash::of(job);
        let kept = self.kept().get(&hash);
        if kept.is_some() {
            return kept;
        }
        let html = workers.render(job, work).await?;
        // After rendering, because an entity can name such a character, too.
        let html = super::shown(&html);
        self.kept().insert(hash, html.clone());
        Some(html)
    }

    #[cfg(feature = "pages")]
    fn kept(&self) -> MutexGuard<'_, RenderedTexts> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns nothing: without the feature `pages` everything is shown as plain text.
    #[cfg(not(feature = "pages"))]
    pub(crate) async fn render(&self, _: &Job<'_>, _: &PageWork) -> Option<String> {
        None
    }
}
