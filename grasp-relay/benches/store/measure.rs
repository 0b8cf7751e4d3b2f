//! Measuring: times, rates, memory, disk.

use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long samples of one kind are taken, at most.
const PATIENCE: Duration = Duration::from_secs(10);

/// One cell of the table.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Figure {
    /// Nothing, if it was not asked for.
    pub(crate) value: Option<f64>,
    /// How many samples it comes from, if they were fewer than intended.
    pub(crate) samples: Option<usize>,
}

impl From<f64> for Figure {
    fn from(value: f64) -> Self {
        Self { value: Some(value), samples: None }
    }
}

/// How long each of several calls took.
pub(crate) struct Times {
    /// Milliseconds, ascending.
    sorted: Vec<f64>,
    intended: usize,
}

impl Times {
    /// Calls so many times, or as often as patience allows.
    pub(crate) async fn of<F>(intended: usize, call: impl Fn(usize) -> F) -> Self
    where
        F: Future<Output = usize>,
    {
        let begin = Instant::now();
        let mut sorted = Vec::new();
        for n in 0..intended {
            let start = Instant::now();
            assert!(call(n).await > 0, "every question has an answer");
            sorted.push(start.elapsed().as_secs_f64() * 1_000.0);
            if begin.elapsed() > PATIENCE {
                break;
            }
        }
        sorted.sort_by(f64::total_cmp);
        Self { sorted, intended }
    }

    pub(crate) fn len(&self) -> usize {
        self.sorted.len()
    }

    /// The time that this part of the calls did not exceed.
    pub(crate) fn at(&self, part: f64) -> Figure {
        let place = (self.len() - 1) as f64 * part;
        let few = self.len() < self.intended;
        Figure { value: Some(self.sorted[place as usize]), samples: few.then_some(self.len()) }
    }
}

/// What the disk itself asks for durability when a file is written over, and when it is made longer.
pub(crate) fn fdatasync(dir: &Path) -> String {
    let path = dir.join("sync");
    let mut file = fs::File::create(&path).unwrap();
    let mut median = || {
        let mut times: Vec<_> = (0..101)
            .map(|_| {
                let start = Instant::now();
                file.write_all(&[7; 4096]).unwrap();
                file.sync_data().unwrap();
                start.elapsed()
            })
            .collect();
        times.sort();
        file.seek(SeekFrom::Start(0)).unwrap();
        times[50]
    };
    let (longer, over) = (median(), median());
    fs::remove_file(path).unwrap();
    format!("{over:.2?} to write over a file, {longer:.2?} to make it longer (medians)")
}

/// Bytes really taken from the disk: a database may have made its file longer than it is.
pub(crate) fn size(dir: &Path) -> f64 {
    use std::os::unix::fs::MetadataExt;
    let files = fs::read_dir(dir).unwrap().map(|file| file.unwrap().metadata().unwrap());
    files.map(|file| (file.blocks() * 512) as f64).sum()
}

/// Megabytes of memory this process occupies.
pub(crate) fn resident() -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kilobytes.unwrap_or_default() / 1_024.0
}
