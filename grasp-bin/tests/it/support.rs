//! `grasp` as a child process.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A running `grasp serve` on a free port of loopback. Killed when dropped.
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) url: String,
}

impl Server {
    pub(crate) fn start(data: &Path) -> Self {
        Self::start_at("127.0.0.1:0", data)
    }

    pub(crate) fn start_at(listen: &str, data: &Path) -> Self {
        Self::start_with(&["--listen", listen], data)
    }

    pub(crate) fn start_with(settings: &[&str], data: &Path) -> Self {
        Self::start_by(command(), settings, data)
    }

    /// Starts a server by another command that executes ours.
    pub(crate) fn start_by(mut command: Command, settings: &[&str], data: &Path) -> Self {
        let mut child = command
            .args(["serve", "--data-dir"])
            .arg(data)
            .args(settings)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let url = lines.map_while(Result::ok).find_map(|line| {
            line.split_whitespace()
                .find(|word| word.starts_with("ws://") || word.starts_with("wss://"))
                .map(str::to_owned)
        });
        Self {
            child,
            url: url.expect("the server prints its URL"),
        }
    }

    pub(crate) fn host(&self) -> &str {
        self.url.strip_prefix("ws://").unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the command, without the settings in the environment of the tests. A test with a public domain asks no relay
/// of users: the index relays are real ones.
pub(crate) fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_grasp"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("GRASP_")) {
        command.env_remove(name);
    }
    command.env_remove("NOTIFY_SOCKET");
    command.env("GRASP_SYNC_OUTBOX", "off");
    command
}

/// The output of a command, and whether it succeeded.
#[derive(Debug)]
pub(crate) struct CommandOutput {
    pub(crate) ok: bool,
    /// None if a signal ended it.
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// Runs `grasp` to its end.
pub(crate) fn grasp(args: &[&str]) -> CommandOutput {
    run_to_end(command().args(args))
}

/// Runs a command to its end.
pub(crate) fn run_to_end(command: &mut Command) -> CommandOutput {
    let output = command.output().unwrap();
    CommandOutput {
        ok: output.status.success(),
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Returns the status and the body of a page.
pub(crate) fn get(host: &str, path: &str) -> (u16, String) {
    get_with(host, path, "")
}

/// Gets a path with further header lines, each with its line end.
pub(crate) fn get_with(host: &str, path: &str, header: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(host).unwrap();
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {host}\r\n{header}Connection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let end = answer.windows(4).position(|it| it == b"\r\n\r\n");
    let (head, body) = answer.split_at(end.unwrap() + 4);
    let head = std::str::from_utf8(head).unwrap().to_ascii_lowercase();
    let body = match head.contains("transfer-encoding: chunked") {
        true => whole(body),
        false => body.to_vec(),
    };
    (
        head.split(' ').nth(1).unwrap().parse().unwrap(),
        String::from_utf8(body).unwrap(),
    )
}

/// Returns a body that was sent in chunks, as one.
fn whole(mut chunks: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let line = chunks.windows(2).position(|it| it == b"\r\n").unwrap();
        let (length, rest) = chunks.split_at(line);
        let length = usize::from_str_radix(std::str::from_utf8(length).unwrap(), 16).unwrap();
        if length == 0 {
            return body;
        }
        body.extend(&rest[2..2 + length]);
        chunks = &rest[length + 4..];
    }
}

/// Prints that a test did not run, past what the test harness captures: `.ci/run` counts these lines.
pub(crate) fn skipped(reason: &str) {
    std::io::stderr()
        .write_all(format!("skipped: {reason}\n").as_bytes())
        .unwrap();
}
