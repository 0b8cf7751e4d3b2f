//! Responses of the servers to the requests of git clients, timed without a git client.
//!
//! Without anything new, `git fetch` sends two requests: `info/refs` and `ls-refs`. A client that has everything and requests
//! it nevertheless starts git at the server; that is timed, too. The load generator shares the processors with the
//! server, so the processor time of the server is printed beside the times of the clients.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use grasp_tests::wire::pkt;

use crate::load::SmallRepo;
use crate::median;
use crate::server::{Kind, Server};

/// A row of the table: its title, the requests, and the target.
type Row = (&'static str, fn(Target<'_>) -> Requests, &'static str);

/// Requests of one client, one after the other.
const SEQUENTIAL_REQUESTS: usize = 300;

/// Clients that send requests at the same time.
const CLIENTS: usize = 8;

/// Time for which they send requests.
const LOAD_DURATION: Duration = Duration::from_secs(4);

/// Time after which a request has failed.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The requests of one operation of a client, each as a head without `Connection` and a body.
type Requests = Vec<Vec<u8>>;

/// A server and a repository on it.
type Target<'a> = (&'a Server, &'a SmallRepo);

/// Prints the time of single responses, and the rate under load, beside the targets.
pub(crate) fn compare(target: [Target<'_>; 2]) {
    println!(
        "\nresponses on a kept connection, median of {SEQUENTIAL_REQUESTS}; in brackets the processor time of the server and its git\n  \
         {:38} {:>21} {:>21}  wanted",
        "", "grasp", "http-backend"
    );
    let kinds: [Row; 5] = [
        (
            "info/refs, version 0",
            |target| vec![info_refs(target, "")],
            "≤ 0.5 ms",
        ),
        (
            "info/refs, version 2",
            |target| vec![info_refs(target, VERSION_2)],
            "≤ 0.5 ms",
        ),
        (
            "info/refs for a push",
            |target| vec![info_refs_of(target, "git-receive-pack", "")],
            "",
        ),
        ("fetch of nothing new (2 requests)", nothing_new, "≤ 10 ms"),
        (
            "fetch of all that the client has",
            |target| vec![everything_here(target)],
            "≤ 10 ms",
        ),
    ];
    for (what, requests, wanted) in kinds {
        let [ours, theirs] = target.map(|target| sequential(target, &requests(target)));
        println!("  {what:38} {} {}  {wanted}", cell(ours), cell(theirs));
    }
    println!(
        "\ninfo/refs, version 2, {CLIENTS} clients for {LOAD_DURATION:?}: responses per second, median, processor time of the server each"
    );
    for (what, keep_alive, wanted) in [("kept", true, "≥ 5,000/s"), ("one for each", false, "")] {
        for (server, small) in target {
            let seen = under_load((server, small), keep_alive);
            println!(
                "  connection {what:14} {:8} {:>8.0}/s {:>9.2?} {:>9.2?}  {}",
                server.kind.name(),
                seen.rate,
                seen.median,
                seen.processor,
                if server.kind == Kind::Grasp {
                    wanted
                } else {
                    ""
                },
            );
        }
    }
}

fn cell((time, processor): (Duration, Duration)) -> String {
    format!("{:>21}", format!("{time:.2?} ({processor:.2?})"))
}

const VERSION_2: &str = "Git-Protocol: version=2\r\n";

fn info_refs(target: Target<'_>, headers: &str) -> Vec<u8> {
    info_refs_of(target, "git-upload-pack", headers)
}

fn info_refs_of((server, small): Target<'_>, service: &str, headers: &str) -> Vec<u8> {
    let (path, address) = (small.path(), &server.address);
    let line = format!("GET {path}/info/refs?service={service} HTTP/1.1\r\nHost: {address}\r\n");
    format!("{line}{headers}\r\n").into_bytes()
}

fn upload_pack((server, small): Target<'_>, body: &[u8]) -> Vec<u8> {
    let (path, address, length) = (small.path(), &server.address, body.len());
    let head = format!(
        "POST {path}/git-upload-pack HTTP/1.1\r\nHost: {address}\r\n{VERSION_2}\
         Content-Type: application/x-git-upload-pack-request\r\nContent-Length: {length}\r\n\r\n"
    );
    [head.as_bytes(), body].concat()
}

/// Returns the requests of `git fetch` without anything new.
fn nothing_new(target: Target<'_>) -> Requests {
    let lines = [
        "peel\n",
        "symrefs\n",
        "ref-prefix refs/heads/\n",
        "ref-prefix refs/tags/\n",
    ];
    let arguments = lines.into_iter().chain(["ref-prefix HEAD\n"]).flat_map(pkt);
    let body: Vec<u8> = [
        pkt("command=ls-refs\n"),
        pkt("object-format=sha1"),
        b"0001".to_vec(),
    ]
    .concat()
    .into_iter()
    .chain(arguments)
    .chain(*b"0000")
    .collect();
    vec![info_refs(target, VERSION_2), upload_pack(target, &body)]
}

/// Returns the request of a client for a commit that it has.
fn everything_here(target: Target<'_>) -> Vec<u8> {
    let tip = target.1.tip();
    let parts = [
        pkt("command=fetch"),
        pkt("object-format=sha1"),
        b"0001".to_vec(),
        pkt("ofs-delta\n"),
        pkt(format!("want {tip}\n")),
        pkt(format!("have {tip}\n")),
        pkt("done\n"),
        b"0000".to_vec(),
    ];
    upload_pack(target, &parts.concat())
}

/// Returns the median time of the requests together, and the processor time of the server for them.
fn sequential((server, _): Target<'_>, requests: &Requests) -> (Duration, Duration) {
    let mut client = Client::connect(&server.address);
    requests.iter().for_each(|request| client.request(request));
    let before = processor_time(server.id());
    let mut times: Vec<Duration> = (0..SEQUENTIAL_REQUESTS)
        .map(|_| {
            let start = Instant::now();
            requests.iter().for_each(|request| client.request(request));
            start.elapsed()
        })
        .collect();
    let processor = (processor_time(server.id()) - before) / SEQUENTIAL_REQUESTS as u32;
    (median(&mut times), processor)
}

struct Load {
    rate: f64,
    median: Duration,
    processor: Duration,
}

/// Lets several clients request refs, each as fast as it gets responses.
fn under_load(target: Target<'_>, keep_alive: bool) -> Load {
    let (request, server) = (info_refs(target, VERSION_2), target.0);
    let (before, start) = (processor_time(server.id()), Instant::now());
    let mut times: Vec<Duration> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| scope.spawn(|| send_repeatedly(&server.address, &request, keep_alive)))
            .collect();
        clients
            .into_iter()
            .flat_map(|client| client.join().expect("no client panics"))
            .collect()
    });
    let (took, count) = (start.elapsed(), times.len().max(1));
    let processor = (processor_time(server.id()) - before) / count as u32;
    Load {
        rate: count as f64 / took.as_secs_f64(),
        median: median(&mut times),
        processor,
    }
}

fn send_repeatedly(address: &str, request: &[u8], keep_alive: bool) -> Vec<Duration> {
    let (mut client, start, mut times) = (Client::connect(address), Instant::now(), Vec::new());
    while start.elapsed() < LOAD_DURATION {
        let begun = Instant::now();
        if !keep_alive {
            client = Client::connect(address);
        }
        client.request(request);
        times.push(begun.elapsed());
    }
    times
}

/// A connection on which requests are sent one after the other.
struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Client {
    fn connect(address: &str) -> Self {
        let stream = TcpStream::connect(address).expect("a server");
        stream.set_nodelay(true).expect("a socket");
        stream
            .set_read_timeout(Some(REQUEST_TIMEOUT))
            .expect("a socket");
        Self {
            stream,
            buffer: Vec::new(),
        }
    }

    /// Sends a request and reads the response, which must be a success in chunks.
    fn request(&mut self, request: &[u8]) {
        self.stream.write_all(request).expect("a listening server");
        self.buffer.clear();
        let mut piece = [0; 16 * 1024];
        while !self.buffer.ends_with(b"\r\n0\r\n\r\n") {
            let read = self.stream.read(&mut piece).expect("a response");
            assert!(
                read > 0,
                "incomplete response: {}",
                String::from_utf8_lossy(&self.buffer)
            );
            self.buffer.extend_from_slice(&piece[..read]);
        }
        let start = String::from_utf8_lossy(&self.buffer[..self.buffer.len().min(200)]);
        assert!(start.starts_with("HTTP/1.1 200"), "{start}");
    }
}

/// Returns the processor time of a process and of its children that have ended.
fn processor_time(process: u32) -> Duration {
    let line = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let fields = line
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace();
    let ticks: u64 = fields
        .skip(11)
        .take(4)
        .filter_map(|field| field.parse::<u64>().ok())
        .sum();
    // The kernel counts in hundredths of a second on every processor.
    Duration::from_millis(ticks * 10)
}
