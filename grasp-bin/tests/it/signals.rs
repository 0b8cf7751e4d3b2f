//! Notifications to the service manager, graceful shutdown, and the output of a start.
#![cfg(unix)]

use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{Server, command, get};

pub(crate) fn send_signal(child: &Child, signal: &str) {
    let pid = child.id().to_string();
    assert!(
        Command::new("kill")
            .args([signal, &pid])
            .status()
            .unwrap()
            .success()
    );
}

fn request_websocket(stream: &mut std::net::TcpStream, host: &str) {
    let key = "dGhlIHNhbXBsZSBub25jZQ==";
    write!(
        stream,
        "GET / HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n"
    )
    .unwrap();
}

/// Opens a websocket that never answers, so that a graceful shutdown waits for it.
fn unresponsive_websocket(server: &Server) -> std::net::TcpStream {
    let mut stream = std::net::TcpStream::connect(server.host()).unwrap();
    request_websocket(&mut stream, server.host());
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        answer.extend(byte);
    }
    assert!(answer.starts_with(b"HTTP/1.1 101"));
    stream
}

#[test]
fn a_second_signal_ends_the_server_immediately() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("grasp.toml"), "stop_timeout = '10m'\n").unwrap();
    let mut server = Server::start(dir.path());
    let mut websocket = unresponsive_websocket(&server);
    while !get(server.host(), "/metrics")
        .1
        .contains("grasp_relay_websockets 1\n")
    {}
    send_signal(&server.child, "-INT");
    // The close frame shows that the first signal was handled.
    assert!(websocket.read(&mut [0; 64]).unwrap() > 0);
    assert!(
        server.child.try_wait().unwrap().is_none(),
        "the server waits for the websocket"
    );
    let began = Instant::now();
    send_signal(&server.child, "-TERM");
    assert_eq!(server.child.wait().unwrap().code(), Some(130));
    assert!(began.elapsed() < Duration::from_secs(60));
    // The data is intact.
    let again = Server::start(dir.path());
    assert_eq!(get(again.host(), "/health"), (200, "ok\n".into()));
}

#[test]
fn during_a_graceful_shutdown_the_server_is_not_ready_and_accepts_no_websocket() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("grasp.toml"), "stop_timeout = '10m'\n").unwrap();
    let mut server = Server::start(dir.path());
    assert_eq!(get(server.host(), "/health"), (200, "ok\n".into()));
    let mut websocket = unresponsive_websocket(&server);
    send_signal(&server.child, "-TERM");
    assert!(websocket.read(&mut [0; 64]).unwrap() > 0, "the close frame");
    assert_eq!(get(server.host(), "/health"), (503, "stopping\n".into()));
    let mut client = std::net::TcpStream::connect(server.host()).unwrap();
    request_websocket(&mut client, server.host());
    let mut refused = String::new();
    client.read_to_string(&mut refused).unwrap();
    assert!(
        refused.starts_with("HTTP/1.1 503 ") && refused.contains("Retry-After: "),
        "{refused}"
    );
    assert!(
        server.child.try_wait().unwrap().is_none(),
        "the server waits for the websocket"
    );
    drop(websocket);
    assert!(server.child.wait().unwrap().success());
    assert!(std::net::TcpStream::connect(server.host()).is_err());
}

/// Returns the number of processes whose arguments or environment contain a directory.
#[cfg(target_os = "linux")]
fn processes_with(dir: &std::path::Path) -> usize {
    let all = std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .map(|entry| entry.path());
    let about = all.map(|process| {
        let parts = ["cmdline", "environ"].map(|part| std::fs::read(process.join(part)));
        parts.into_iter().flatten().flatten().collect::<Vec<u8>>()
    });
    let dir = dir.display().to_string();
    about
        .filter(|about| String::from_utf8_lossy(about).contains(&dir))
        .count()
}

#[cfg(target_os = "linux")]
#[test]
fn ctrl_c_ends_the_demo_at_any_step_and_leaves_nothing_behind() {
    for (keep, until, done) in [
        (false, "two servers", false),
        (false, "a maintainer", false),
        (false, "announced on both", false),
        (true, "Ctrl-C ends them", true),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let mut child = command()
            .args(["demo"])
            .args(keep.then_some("--keep"))
            .env("TMPDIR", dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap())
            .lines()
            .map_while(Result::ok);
        assert!(lines.any(|line| line.contains(until)), "{until}");
        assert!(std::fs::read_dir(dir.path()).unwrap().count() > 0);
        send_signal(&child, "-INT");
        let rest: Vec<_> = lines.collect();
        assert_eq!(child.wait().unwrap().success(), done, "{until}: {rest:?}");
        assert!(
            rest.iter()
                .any(|line| line.contains("directories are removed")),
            "{until}: {rest:?}"
        );
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "{until}");
        let began = Instant::now();
        while processes_with(dir.path()) > 0 {
            assert!(
                began.elapsed() < Duration::from_secs(10),
                "{until}: a process still runs"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn ctrl_c_ends_the_server_successfully() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path());
    send_signal(&server.child, "-INT");
    assert!(server.child.wait().unwrap().success());
    assert!(!dir.path().join("admin.sock").exists());
}

#[cfg(target_os = "linux")]
#[test]
fn the_service_manager_is_notified_of_ready_watchdog_and_stopping() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let mut child = command()
        .args(["serve", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(dir.path().join("data"))
        .env("NOTIFY_SOCKET", &path)
        .env("WATCHDOG_USEC", "200000")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let notification = || {
        let mut text = [0; 200];
        // The end of a child of another test may interrupt the call.
        let mut received = manager.recv(&mut text);
        while received
            .as_ref()
            .is_err_and(|error| error.kind() == ErrorKind::Interrupted)
        {
            received = manager.recv(&mut text);
        }
        String::from_utf8(text[..received.unwrap()].to_vec()).unwrap()
    };
    assert!(notification().starts_with("READY=1"));
    assert_eq!(notification(), "WATCHDOG=1");
    send_signal(&child, "-TERM");
    while !notification().starts_with("STOPPING=1") {}
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_start_prints_its_addresses_and_the_log_contains_no_secret() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let log = std::fs::File::create(dir.path().join("log")).unwrap();
    let args = [
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--domain",
        "git.example.com",
    ];
    let mut child = command()
        .args(args)
        .args([
            "--log-filter",
            "trace",
            "--log-format",
            "json",
            "--data-dir",
        ])
        .arg(&data)
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .unwrap();
    let mut output = String::new();
    let mut out = child.stdout.take().unwrap();
    while !output.contains("Ctrl-C") {
        let mut some = [0; 1_024];
        let length = out.read(&mut some).unwrap();
        assert!(length > 0, "{output}");
        output.push_str(std::str::from_utf8(&some[..length]).unwrap());
    }
    send_signal(&child, "-TERM");
    assert!(child.wait().unwrap().success());
    for expected in [
        "listen  127.0.0.1:",
        "ws://git.example.com",
        "http://git.example.com/<npub>/<name>.git",
        "grasp push --server http://git.example.com",
        data.to_str().unwrap(),
    ] {
        assert!(output.contains(expected), "{expected}: {output}");
    }
    let secret = std::fs::read_to_string(data.join("service.key")).unwrap();
    let log = std::fs::read_to_string(dir.path().join("log")).unwrap();
    assert!(log.lines().count() > 3);
    for line in log.lines() {
        assert!(
            serde_json::from_str::<serde_json::Value>(line).is_ok(),
            "{line}"
        );
    }
    assert!(!log.contains(secret.trim()) && !output.contains(secret.trim()));
}
