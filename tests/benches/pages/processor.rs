//! Processor time, which does not depend on other work on the machine as much as time does.

use std::path::Path;
use std::time::Duration;

/// Returns the processor time of a process, of its children that have ended, and of those that run.
pub(crate) fn processor_time(process: u32) -> Duration {
    let dir = Path::new("/proc").join(process.to_string());
    let line = std::fs::read_to_string(dir.join("stat")).unwrap_or_default();
    let fields = line.rsplit(')').next().unwrap_or_default();
    let ticks = fields.split_whitespace().skip(11).take(4);
    let ticks: u64 = ticks.filter_map(|field| field.parse::<u64>().ok()).sum();
    // The kernel counts in hundredths of a second on every processor.
    let own = Duration::from_millis(ticks * 10);
    let children: Duration = children_of(&dir).into_iter().map(processor_time).sum();
    own + children
}

fn children_of(dir: &Path) -> Vec<u32> {
    let tasks = std::fs::read_dir(dir.join("task"));
    let tasks = tasks.into_iter().flatten().flatten();
    let lists = tasks.map(|task| std::fs::read_to_string(task.path().join("children")));
    let texts: Vec<String> = lists.filter_map(Result::ok).collect();
    let ids = texts.iter().flat_map(|text| text.split_whitespace());
    ids.filter_map(|id| id.parse().ok()).collect()
}
