//! What a process and its children take, at most, over a while.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Megabytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Memory {
    /// By how much the server grew.
    pub(crate) server: f64,
    /// What all its git processes took together.
    pub(crate) children: f64,
}

impl Memory {
    pub(crate) fn max(self, other: Self) -> Self {
        Self { server: self.server.max(other.server), children: self.children.max(other.children) }
    }
}

/// A process under observation.
pub(crate) struct Watched {
    process: u32,
    before: f64,
    over: Arc<AtomicBool>,
    children: JoinHandle<f64>,
}

impl Watched {
    pub(crate) fn begin(process: u32) -> Self {
        // The kernel forgets the peak until now.
        let _ = fs::write(format!("/proc/{process}/clear_refs"), "5");
        let over = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&over);
        let children = std::thread::spawn(move || {
            let mut most: f64 = 0.0;
            while !told.load(Ordering::SeqCst) {
                most =
                    most.max(descendants(process).into_iter().map(|id| field(id, "VmRSS")).sum());
                std::thread::sleep(Duration::from_millis(50));
            }
            most
        });
        Self { process, before: field(process, "VmRSS"), over, children }
    }

    pub(crate) fn end(self) -> Memory {
        self.over.store(true, Ordering::SeqCst);
        let children = self.children.join().unwrap_or_default();
        Memory { server: field(self.process, "VmHWM") - self.before, children }
    }
}

/// A field of a process's status in megabytes; zero for one that is gone.
fn field(process: u32, name: &str) -> f64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kilobytes.unwrap_or_default() / 1024.0
}

/// The children of a process, and theirs.
fn descendants(process: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let mut open = vec![process];
    while let Some(parent) = open.pop() {
        let Ok(tasks) = fs::read_dir(format!("/proc/{parent}/task")) else { continue };
        for task in tasks.flatten() {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            let children = children.split_whitespace().filter_map(|id| id.parse::<u32>().ok());
            open.extend(children.clone());
            found.extend(children);
        }
    }
    found
}
