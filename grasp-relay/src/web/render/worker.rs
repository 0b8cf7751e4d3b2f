//! The work of a worker process: it reads jobs from its input and writes HTML, until its input ends.

mod highlight;
mod markdown;
mod mentions;

use std::io::{self, BufReader, BufWriter};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

use super::job::{Job, MAX_HTML, ReceivedJob, write_answer};

/// Memory of a worker.
const MAX_MEMORY: u64 = 256 * 1024 * 1024;

/// CPU time of a worker in its whole life, in seconds.
const MAX_CPU_SECONDS: u64 = 600;

/// Renders until the input ends. Limits this process first, for good.
pub fn run() -> io::Result<()> {
    limit_process();
    let mut input = BufReader::new(io::stdin().lock());
    let mut output = BufWriter::new(io::stdout().lock());
    while let Some(received) = ReceivedJob::read(&mut input)? {
        let start = cpu_time();
        let html = received.job().map(|job| render(&job));
        let html = html.filter(|html| html.len() <= MAX_HTML);
        let used = cpu_time().saturating_sub(start);
        write_answer(&mut output, used, html.as_deref())?;
    }
    Ok(())
}

fn render(job: &Job<'_>) -> String {
    match job {
        Job::Markdown { place, text } => markdown::render(place, text),
        Job::Note { place, text } => markdown::render_note(place, text),
        Job::Code { file_name, text } => highlight::file(file_name, text),
    }
}

/// Bounds memory and CPU time, and forbids to write files.
fn limit_process() {
    let bounds = [
        (Resource::Data, MAX_MEMORY),
        (Resource::Cpu, MAX_CPU_SECONDS),
        (Resource::Fsize, 0),
        (Resource::Core, 0),
    ];
    for (resource, bound) in bounds {
        let limit = Rlimit {
            current: Some(bound),
            maximum: Some(bound),
        };
        // A system that does not know a limit does without; the time limit of the server holds in any case.
        _ = setrlimit(resource, limit);
    }
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}
