//! Pages of a repository with 5,000 commits and 3,000 files, beside those of cgit.
//!
//! ```sh
//! cargo bench -p grasp-tests --bench pages             # two minutes
//! GRASP_BENCH_ROUNDS=10 cargo bench -p grasp-tests --bench pages
//! ```
//!
//! Each server is a process of its own: ours with default settings except for its port and private targets, and one that
//! runs cgit, if it is installed, as a CGI program behind the same HTTP server. The two take turns, and every time is a
//! median. "New" pages show something that was not requested before; objects are in the memory of the system for both.

#[path = "pages/cgit.rs"]
mod cgit;
#[path = "pages/client.rs"]
mod client;
#[path = "pages/content.rs"]
mod content;
#[path = "git/memory.rs"]
#[allow(dead_code, reason = "the bench of git uses more of it")]
mod memory;
#[path = "pages/processor.rs"]
mod processor;
#[path = "soak/server.rs"]
#[allow(dead_code, reason = "the soak test uses more of it")]
mod server;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use self::cgit::Cgit;
use self::client::{Client, Load, under_load};
use self::content::Content;
use self::memory::MemorySampler;
use self::processor::processor_time;
use self::server::Server;

/// Clients that send requests at the same time.
const CLIENTS: usize = 8;

/// Time for which they do.
const LOAD_DURATION: Duration = Duration::from_secs(4);

/// Bytes in a kilobyte, as goals count.
const KB: f64 = 1_000.0;

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        // The command that operators run, which runs itself to render.
        Some("serve" | "render") => return grasp_bin::run(),
        Some("cgit") => {
            cgit::serve();
            return ExitCode::SUCCESS;
        }
        _ => {}
    }
    if !std::env::args().any(|argument| argument == "--bench") {
        return ExitCode::SUCCESS; // `cargo test --benches` only checks that it builds
    }
    let dir = tempfile::tempdir().expect("a directory");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let server = Server::start("127.0.0.1:0", dir.path().join("data"), Vec::new());
    let content = runtime.block_on(Content::push(&server));
    let cgit = Cgit::start(dir.path(), content.path());
    if cgit.is_none() {
        println!("cgit is not installed (`apt-get install cgit`): nothing to compare with");
    }
    let bench = Bench {
        runtime,
        server,
        content,
        cgit,
        rounds: rounds(),
    };
    let memory = MemorySampler::start(bench.server.id());
    bench.times();
    bench.kept();
    bench.throughput();
    bench.weights();
    let memory = memory.stop();
    println!(
        "\nmemory: server + {:.0} MB (wanted ≤ 64), workers and git {:.0} MB",
        memory.server, memory.children
    );
    ExitCode::SUCCESS
}

fn rounds() -> usize {
    let rounds = std::env::var("GRASP_BENCH_ROUNDS").ok();
    let rounds = rounds.and_then(|text| text.parse().ok());
    rounds
        .unwrap_or(content::MAX_ROUNDS)
        .min(content::MAX_ROUNDS)
}

/// A page: its name, its path here and at cgit in some round, and the wanted time.
struct Row {
    name: &'static str,
    ours: fn(&Content, usize) -> String,
    theirs: fn(&Content, usize) -> String,
    wanted: &'static str,
}

static ROWS: [Row; 5] = [
    Row {
        name: "repository",
        ours: |_, _| String::new(),
        theirs: |_, _| String::new(),
        wanted: "≤ 30 ms",
    },
    Row {
        name: "tree of 50 files",
        ours: |_, n| format!("/tree/main/{}", content::directory(n)),
        theirs: |_, n| format!("tree/{}", content::directory(n)),
        wanted: "≤ 10 ms",
    },
    Row {
        name: "file of 1,000 lines, highlighted",
        ours: |_, n| format!("/file/main/{}", content::large_file(n)),
        theirs: |_, n| format!("tree/{}", content::large_file(n)),
        wanted: "≤ 60 ms",
    },
    Row {
        name: "log of 50",
        ours: |content, n| format!("/log/main?from={}", content.commit(n * 60)),
        theirs: |content, n| format!("log/?id={}", content.commit(n * 60)),
        wanted: "≤ 20 ms",
    },
    Row {
        name: "commit with its diff",
        ours: |content, n| format!("/commit/{}", content.commit(n * 60)),
        theirs: |content, n| format!("commit/?id={}", content.commit(n * 60)),
        wanted: "≤ 40 ms",
    },
];

static CRAWLED: Row = Row {
    name: "another commit",
    ours: |content, n| format!("/commit/{}", content.commit(2_500 + n)),
    theirs: |content, n| format!("commit/?id={}", content.commit(2_500 + n)),
    wanted: "",
};

struct Bench {
    runtime: tokio::runtime::Runtime,
    server: Server,
    content: Content,
    cgit: Option<Cgit>,
    rounds: usize,
}

impl Bench {
    fn ours(&self, path: &str) -> String {
        format!("{}{path}", self.content.base)
    }

    /// Times single pages that were not requested before.
    fn times(&self) {
        println!(
            "\nnew pages, one at a time, median of {}; in brackets the processor time of the server and its processes\n  {:34} {:>19} {:>19}  wanted",
            self.rounds, "", "grasp", "cgit"
        );
        // Which commits there are is found out once after each push.
        let mut client = Client::connect(&self.server.address);
        let first = self.ours(&format!("/commit/{}", self.content.commit(1)));
        let walk = timed(|| _ = client.get(&first, ""));
        for row in &ROWS {
            let [mut ours, mut theirs] = <[Samples; 2]>::default();
            for round in 0..self.rounds {
                if row.name == "repository" {
                    let moved = self.content.move_branch(&self.server, round);
                    self.runtime.block_on(moved);
                }
                let path = self.ours(&(row.ours)(&self.content, round));
                ours.add(self.server.id(), || _ = client.get(&path, ""));
                if let Some(cgit) = &self.cgit {
                    let path = cgit::path(&(row.theirs)(&self.content, round));
                    let mut client = Client::connect(&cgit.address);
                    theirs.add(cgit.id(), || _ = client.get(&path, ""));
                }
            }
            let (ours, theirs) = (ours.shown(), theirs.shown());
            println!("  {:34} {ours:>19} {theirs:>19}  {}", row.name, row.wanted);
        }
        println!("  {:34} {walk:>10.1?}", "the first commit after a push");
    }

    /// Times the page of the repository while it is kept, and answers that it has not changed.
    fn kept(&self) {
        let path = self.ours("");
        let mut client = Client::connect(&self.server.address);
        let mut times: Vec<_> = (0..500)
            .map(|_| timed(|| _ = client.get(&path, "")))
            .collect();
        println!(
            "\nthe page of the repository, kept: {:.2?}, wanted ≤ 1 ms",
            median(&mut times)
        );
        for (what, path) in [("repository", path), ("tree", self.ours("/tree/main"))] {
            let tag = client.get(&path, "").header("etag");
            let headers = format!("If-None-Match: {tag}\r\n");
            assert_eq!(client.get(&path, &headers).status, 304);
            let request = |_| (path.clone(), headers.clone());
            let load = under_load(&self.server.address, CLIENTS, LOAD_DURATION, request);
            println!(
                "  304 for the page of the {what}, {CLIENTS} clients: {}, wanted ≥ 10,000/s",
                shown(&load)
            );
        }
    }

    /// Counts pages per second: those of visitors, who look at the same ones, and those of crawlers, who look at others.
    fn throughput(&self) {
        println!("\npages per second, {CLIENTS} clients");
        let visited = |n: usize| (&ROWS[n % ROWS.len()], n / ROWS.len() % 12);
        self.compare("visitors: 60 pages again and again", "≥ 2", &visited);
        // Commits that no other part of this has shown.
        let crawled = |n: usize| (&CRAWLED, n + 1);
        self.compare("crawlers: each time another commit", "≥ 2", &crawled);
    }

    fn compare(
        &self,
        what: &str,
        wanted: &str,
        page: &(dyn Fn(usize) -> (&'static Row, usize) + Sync),
    ) {
        let ours = under_load(&self.server.address, CLIENTS, LOAD_DURATION, |n| {
            let (row, round) = page(n);
            (self.ours(&(row.ours)(&self.content, round)), String::new())
        });
        println!("  {what:36} grasp {}", shown(&ours));
        let Some(cgit) = &self.cgit else { return };
        let theirs = under_load(&cgit.address, CLIENTS, LOAD_DURATION, |n| {
            let (row, round) = page(n);
            (
                cgit::path(&(row.theirs)(&self.content, round)),
                String::new(),
            )
        });
        println!("  {:36} cgit  {}", "", shown(&theirs));
        println!(
            "  {:36} ratio {:.2}, wanted {wanted}",
            "",
            ours.rate / theirs.rate
        );
    }

    /// Prints what a browser loads for each page: with the stylesheet and the icon, which it loads once.
    fn weights(&self) {
        println!(
            "\nbytes of a page, compressed, with those of its stylesheet and icon; wanted ≤ 50 KB"
        );
        let gzip = "Accept-Encoding: gzip\r\n";
        let mut client = Client::connect(&self.server.address);
        let page = client.get(&self.ours(""), "").text();
        let style = page.split('"').find(|text| text.contains("/-/style-"));
        let more = [style.unwrap_or_default(), "/-/icon.svg"];
        let more: usize = more.iter().map(|path| client.get(path, gzip).bytes()).sum();
        for row in &ROWS {
            let page = client.get(&self.ours(&(row.ours)(&self.content, 3)), gzip);
            println!(
                "  {:34} {:>6.1} KB",
                row.name,
                (page.bytes() + more) as f64 / KB
            );
        }
    }
}

/// Times of one kind of page, and the processor time for all of them.
#[derive(Default)]
struct Samples {
    times: Vec<Duration>,
    processor: Duration,
}

impl Samples {
    fn add(&mut self, process: u32, request: impl FnOnce()) {
        let before = processor_time(process);
        self.times.push(timed(request));
        self.processor += processor_time(process).saturating_sub(before);
    }

    fn shown(mut self) -> String {
        let each = self.processor / self.times.len().max(1) as u32;
        format!("{:.1?} ({each:.1?})", median(&mut self.times))
    }
}

fn shown(load: &Load) -> String {
    let refused = match load.refused {
        0 => String::new(),
        refused => format!(", {refused} refused"),
    };
    format!(
        "{:>8.0}/s, p50 {:.1?}, p99 {:.1?}{refused}",
        load.rate, load.p50, load.p99
    )
}

fn timed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
