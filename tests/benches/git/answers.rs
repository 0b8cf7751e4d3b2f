//! The answers of the servers to the requests of git clients, timed without a git client.
//!
//! A fetch of nothing new is what `git fetch` sends then: `info/refs` and `ls-refs`. A client that has everything and asks
//! for it nevertheless starts git at the server; that is timed, too. The load generator shares the processors with the
//! server, so the processor time of the server is said beside what the clients saw.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use grasp_tests::wire::pkt;

use crate::load::Small;
use crate::median;
use crate::server::{Kind, Server};

/// What is asked, how the requests are made, and the target.
type Row = (&'static str, fn(Asked<'_>) -> Requests, &'static str);

/// Requests of one client, one after the other.
const SEQUENTIAL: usize = 300;

/// Clients that ask at once.
const CLIENTS: usize = 8;

/// Time for which they ask.
const LOAD: Duration = Duration::from_secs(4);

/// Time that a request may take before the bench gives up.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The requests of one operation of a client, each as a head without `Connection` and a body.
type Requests = Vec<Vec<u8>>;

/// A server and the repository that is asked for.
type Asked<'a> = (&'a Server, &'a Small);

/// Prints the time of single answers, and the rate under load, beside what is wanted.
pub(crate) fn compare(asked: [Asked<'_>; 2]) {
    println!(
        "\nanswers on a connection that is kept, median of {SEQUENTIAL}; in brackets the processor time of the server and its git\n  \
         {:38} {:>21} {:>21}  wanted",
        "", "grasp", "http-backend"
    );
    let kinds: [Row; 5] = [
        ("info/refs, version 0", |asked| vec![info_refs(asked, "")], "≤ 0.5 ms"),
        ("info/refs, version 2", |asked| vec![info_refs(asked, VERSION_2)], "≤ 0.5 ms"),
        ("info/refs for a push", |asked| vec![info_refs_of(asked, "git-receive-pack", "")], ""),
        ("fetch of nothing new (2 requests)", nothing_new, "≤ 10 ms"),
        ("fetch of all that the client has", |asked| vec![everything_here(asked)], "≤ 10 ms"),
    ];
    for (what, requests, wanted) in kinds {
        let [ours, theirs] = asked.map(|asked| sequential(asked, &requests(asked)));
        println!("  {what:38} {} {}  {wanted}", cell(ours), cell(theirs));
    }
    println!(
        "\ninfo/refs, version 2, {CLIENTS} clients for {LOAD:?}: answers per second, median, processor time of the server each"
    );
    for (what, keeps, wanted) in [("kept", true, "≥ 5,000/s"), ("one for each", false, "")] {
        for (server, small) in asked {
            let seen = under_load((server, small), keeps);
            println!(
                "  connection {what:14} {:8} {:>8.0}/s {:>9.2?} {:>9.2?}  {}",
                server.kind.name(),
                seen.rate,
                seen.median,
                seen.processor,
                if server.kind == Kind::Grasp { wanted } else { "" },
            );
        }
    }
}

fn cell((time, processor): (Duration, Duration)) -> String {
    format!("{:>21}", format!("{time:.2?} ({processor:.2?})"))
}

const VERSION_2: &str = "Git-Protocol: version=2\r\n";

fn info_refs(asked: Asked<'_>, headers: &str) -> Vec<u8> {
    info_refs_of(asked, "git-upload-pack", headers)
}

fn info_refs_of((server, small): Asked<'_>, service: &str, headers: &str) -> Vec<u8> {
    let (path, address) = (small.path(), &server.address);
    let line = format!("GET {path}/info/refs?service={service} HTTP/1.1\r\nHost: {address}\r\n");
    format!("{line}{headers}\r\n").into_bytes()
}

fn upload_pack((server, small): Asked<'_>, body: &[u8]) -> Vec<u8> {
    let (path, address, length) = (small.path(), &server.address, body.len());
    let head = format!(
        "POST {path}/git-upload-pack HTTP/1.1\r\nHost: {address}\r\n{VERSION_2}\
         Content-Type: application/x-git-upload-pack-request\r\nContent-Length: {length}\r\n\r\n"
    );
    [head.as_bytes(), body].concat()
}

/// Returns the requests of `git fetch` if there is nothing new.
fn nothing_new(asked: Asked<'_>) -> Requests {
    let lines = ["peel\n", "symrefs\n", "ref-prefix refs/heads/\n", "ref-prefix refs/tags/\n"];
    let arguments = lines.into_iter().chain(["ref-prefix HEAD\n"]).flat_map(pkt);
    let body: Vec<u8> = [pkt("command=ls-refs\n"), pkt("object-format=sha1"), b"0001".to_vec()]
        .concat()
        .into_iter()
        .chain(arguments)
        .chain(*b"0000")
        .collect();
    vec![info_refs(asked, VERSION_2), upload_pack(asked, &body)]
}

/// Returns the request of a client that wants what it has.
fn everything_here(asked: Asked<'_>) -> Vec<u8> {
    let tip = asked.1.tip();
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
    upload_pack(asked, &parts.concat())
}

/// Returns the median time of the requests together, and the processor time of the server for them.
fn sequential((server, _): Asked<'_>, requests: &Requests) -> (Duration, Duration) {
    let mut client = Client::connect(&server.address);
    requests.iter().for_each(|request| client.ask(request));
    let before = processor_time(server.id());
    let mut times: Vec<Duration> = (0..SEQUENTIAL)
        .map(|_| {
            let start = Instant::now();
            requests.iter().for_each(|request| client.ask(request));
            start.elapsed()
        })
        .collect();
    let processor = (processor_time(server.id()) - before) / SEQUENTIAL as u32;
    (median(&mut times), processor)
}

struct Load {
    rate: f64,
    median: Duration,
    processor: Duration,
}

/// Lets several clients ask for refs, each as fast as it gets answers.
fn under_load(asked: Asked<'_>, keeps: bool) -> Load {
    let (request, server) = (info_refs(asked, VERSION_2), asked.0);
    let (before, start) = (processor_time(server.id()), Instant::now());
    let mut times: Vec<Duration> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| scope.spawn(|| ask_for_a_while(&server.address, &request, keeps)))
            .collect();
        clients.into_iter().flat_map(|client| client.join().expect("no client panics")).collect()
    });
    let (took, count) = (start.elapsed(), times.len().max(1));
    let processor = (processor_time(server.id()) - before) / count as u32;
    Load { rate: count as f64 / took.as_secs_f64(), median: median(&mut times), processor }
}

fn ask_for_a_while(address: &str, request: &[u8], keeps: bool) -> Vec<Duration> {
    let (mut client, start, mut times) = (Client::connect(address), Instant::now(), Vec::new());
    while start.elapsed() < LOAD {
        let begun = Instant::now();
        if !keeps {
            client = Client::connect(address);
        }
        client.ask(request);
        times.push(begun.elapsed());
    }
    times
}

/// A connection on which one request is sent after the other.
struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Client {
    fn connect(address: &str) -> Self {
        let stream = TcpStream::connect(address).expect("a server");
        stream.set_nodelay(true).expect("a socket");
        stream.set_read_timeout(Some(TIMEOUT)).expect("a socket");
        Self { stream, buffer: Vec::new() }
    }

    /// Sends a request and reads the answer, which must be a success with chunks.
    fn ask(&mut self, request: &[u8]) {
        self.stream.write_all(request).expect("a listening server");
        self.buffer.clear();
        let mut piece = [0; 16 * 1024];
        while !self.buffer.ends_with(b"\r\n0\r\n\r\n") {
            let read = self.stream.read(&mut piece).expect("an answer");
            assert!(read > 0, "half an answer: {}", String::from_utf8_lossy(&self.buffer));
            self.buffer.extend_from_slice(&piece[..read]);
        }
        let start = String::from_utf8_lossy(&self.buffer[..self.buffer.len().min(200)]);
        assert!(start.starts_with("HTTP/1.1 200"), "{start}");
    }
}

/// Returns the processor time of a process and of its children that have ended.
fn processor_time(process: u32) -> Duration {
    let line = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let fields = line.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: u64 = fields.skip(11).take(4).filter_map(|field| field.parse::<u64>().ok()).sum();
    // The kernel counts in hundredths of a second, whatever the processor does.
    Duration::from_millis(ticks * 10)
}
