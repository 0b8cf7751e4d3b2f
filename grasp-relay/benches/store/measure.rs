//! Measurements of time, memory and disk.

use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// Limits the time for samples of one kind.
const MAX_SAMPLING_TIME: Duration = Duration::from_secs(10);

/// One cell of the table.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Figure {
    /// None if it was not measured.
    pub(crate) value: Option<f64>,
    /// The number of samples, if they were fewer than intended.
    pub(crate) samples: Option<usize>,
}

impl From<f64> for Figure {
    fn from(value: f64) -> Self {
        Self {
            value: Some(value),
            samples: None,
        }
    }
}

/// The durations of several calls.
pub(crate) struct Times {
    /// Milliseconds, ascending.
    sorted: Vec<f64>,
    intended: usize,
}

impl Times {
    /// Makes `intended` calls, or fewer if they take longer than [`MAX_SAMPLING_TIME`].
    pub(crate) async fn of<F>(intended: usize, call: impl Fn(usize) -> F) -> Self
    where
        F: Future<Output = usize>,
    {
        let begin = Instant::now();
        let mut sorted = Vec::new();
        for n in 0..intended {
            let start = Instant::now();
            assert!(call(n).await > 0, "a query found nothing");
            sorted.push(start.elapsed().as_secs_f64() * 1_000.0);
            if begin.elapsed() > MAX_SAMPLING_TIME {
                break;
            }
        }
        sorted.sort_by(f64::total_cmp);
        Self { sorted, intended }
    }

    pub(crate) fn len(&self) -> usize {
        self.sorted.len()
    }

    /// Returns the time that this part of the calls did not exceed.
    pub(crate) fn at(&self, part: f64) -> Figure {
        let index = (self.len() - 1) as f64 * part;
        let few = self.len() < self.intended;
        Figure {
            value: Some(self.sorted[index as usize]),
            samples: few.then_some(self.len()),
        }
    }
}

/// Measures fdatasync after a file is overwritten, and after it is extended.
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
    format!("{over:.2?} to overwrite a file, {longer:.2?} to extend it (medians)")
}

/// Returns the bytes that files occupy on disk, which may be fewer than their length.
pub(crate) fn size(dir: &Path) -> f64 {
    use std::os::unix::fs::MetadataExt;
    let files = fs::read_dir(dir)
        .unwrap()
        .map(|file| file.unwrap().metadata().unwrap());
    files.map(|file| (file.blocks() * 512) as f64).sum()
}

/// Returns the resident memory of this process in megabytes.
pub(crate) fn resident() -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kilobytes.unwrap_or_default() / 1_024.0
}
