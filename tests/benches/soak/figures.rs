//! Resource use of the servers.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use grasp_tests::files;

use crate::server::Server;

/// The resources of one server.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    resident_mb: f64,
    open_files: usize,
    threads: usize,
    processes: usize,
    store_mb: f64,
    git_mb: f64,
}

/// The resources of all three servers, at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Figures([Usage; 3]);

impl Figures {
    pub(crate) fn of(servers: &[Server; 3]) -> Self {
        Self(servers.each_ref().map(Usage::of))
    }

    pub(crate) fn heading() -> String {
        let each = format!(
            "{:>7} {:>5} {:>4} {:>4} {:>7} {:>7}",
            "RSS MB", "files", "thr", "proc", "db MB", "git MB"
        );
        format!("{:>7}  {each}  {each}  {each}", "second")
    }

    pub(crate) fn row(&self, at: Duration) -> String {
        let each = self.0.map(|usage| {
            let (resident, store, git) = (usage.resident_mb, usage.store_mb, usage.git_mb);
            let (files, threads, processes) = (usage.open_files, usage.threads, usage.processes);
            format!(
                "{resident:>7.1} {files:>5} {threads:>4} {processes:>4} {store:>7.1} {git:>7.1}"
            )
        });
        format!("{:>7}  {}", at.as_secs(), each.join("  "))
    }
}

impl Usage {
    fn of(server: &Server) -> Self {
        let process = server.id();
        let entries =
            |name: &str| fs::read_dir(format!("/proc/{process}/{name}")).map_or(0, Iterator::count);
        Self {
            resident_mb: resident(process),
            open_files: entries("fd"),
            threads: entries("task"),
            processes: children(process),
            store_mb: megabytes(&server.data, is_database),
            git_mb: megabytes(&server.data.join("git"), |_| true),
        }
    }
}

/// Compares the medians of the last third of the run with those of the third before it.
pub(crate) fn growth(history: &[Figures]) -> String {
    let third = history.len() / 3;
    let median = |part: &[Figures], which: usize, of: fn(&Usage) -> f64| {
        let mut values: Vec<f64> = part.iter().map(|figures| of(&figures.0[which])).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or_default()
    };
    let mut text = String::from("from the second third to the last, medians:");
    type Of = fn(&Usage) -> f64;
    let kinds: [(&str, Of); 3] = [
        ("RSS MB", |usage| usage.resident_mb),
        ("open files", |usage| usage.open_files as f64),
        ("threads", |usage| usage.threads as f64),
    ];
    for (name, of) in kinds {
        let each = [0, 1, 2].map(|which| {
            let before = median(&history[third..2 * third], which, of);
            format!(
                "{before:.1} → {:.1}",
                median(&history[2 * third..], which, of)
            )
        });
        text.push_str(&format!("\n  {name:<11} {}", each.join(",  ")));
    }
    text
}

fn resident(process: u32) -> f64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kilobytes.unwrap_or_default() / 1024.0
}

fn children(process: u32) -> usize {
    let tasks = fs::read_dir(format!("/proc/{process}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let of =
        |task: fs::DirEntry| fs::read_to_string(task.path().join("children")).unwrap_or_default();
    tasks.map(|task| of(task).split_whitespace().count()).sum()
}

fn megabytes(dir: &Path, counts: impl Fn(&Path) -> bool) -> f64 {
    let all = files(dir).into_iter().filter(|path| counts(path));
    let bytes: u64 = all
        .filter_map(|path| fs::metadata(path).ok())
        .map(|file| file.blocks() * 512)
        .sum();
    bytes as f64 / 1_048_576.0
}

/// The databases and their logs, not the repositories beside them.
fn is_database(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.contains(".db")
}
