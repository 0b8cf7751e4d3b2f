//! Peak memory of a process and of its children.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Memory in megabytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Memory {
    /// Growth of the server's resident memory.
    pub(crate) server: f64,
    /// Peak of all its git processes together.
    pub(crate) children: f64,
}

impl Memory {
    pub(crate) fn max(self, other: Self) -> Self {
        Self {
            server: self.server.max(other.server),
            children: self.children.max(other.children),
        }
    }
}

/// A process whose memory is sampled.
pub(crate) struct MemorySampler {
    process: u32,
    before: f64,
    stop: Arc<AtomicBool>,
    children: JoinHandle<f64>,
}

impl MemorySampler {
    pub(crate) fn start(process: u32) -> Self {
        // Resets the peak that the kernel keeps.
        let _ = fs::write(format!("/proc/{process}/clear_refs"), "5");
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let children = std::thread::spawn(move || {
            let mut peak: f64 = 0.0;
            while !stopped.load(Ordering::SeqCst) {
                peak = peak.max(
                    descendants(process)
                        .into_iter()
                        .map(|id| field(id, "VmRSS"))
                        .sum(),
                );
                std::thread::sleep(Duration::from_millis(50));
            }
            peak
        });
        Self {
            process,
            before: field(process, "VmRSS"),
            stop,
            children,
        }
    }

    pub(crate) fn stop(self) -> Memory {
        self.stop.store(true, Ordering::SeqCst);
        let children = self.children.join().unwrap_or_default();
        Memory {
            server: field(self.process, "VmHWM") - self.before,
            children,
        }
    }
}

/// Returns a field of a process's status in megabytes; zero for a process that has ended.
fn field(process: u32, name: &str) -> f64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kilobytes.unwrap_or_default() / 1024.0
}

/// Returns the descendants of a process.
fn descendants(process: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let mut open = vec![process];
    while let Some(parent) = open.pop() {
        let Ok(tasks) = fs::read_dir(format!("/proc/{parent}/task")) else {
            continue;
        };
        for task in tasks.flatten() {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            let children = children
                .split_whitespace()
                .filter_map(|id| id.parse::<u32>().ok());
            open.extend(children.clone());
            found.extend(children);
        }
    }
    found
}
