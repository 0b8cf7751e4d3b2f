//! The life of a server: what it tells the service manager, how it ends, and what it never says.
#![cfg(unix)]

use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{Server, command, get};

fn tell(child: &Child, signal: &str) {
    let pid = child.id().to_string();
    assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
}

fn ask_for_a_websocket(stream: &mut std::net::TcpStream, host: &str) {
    let key = "dGhlIHNhbXBsZSBub25jZQ==";
    write!(
        stream,
        "GET / HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n"
    )
    .unwrap();
}

/// A websocket that never answers, so that a server which lets everybody finish waits for it.
fn silent_guest(server: &Server) -> std::net::TcpStream {
    let mut stream = std::net::TcpStream::connect(server.host()).unwrap();
    ask_for_a_websocket(&mut stream, server.host());
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
fn a_second_signal_ends_the_server_at_once() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("grasp.toml"), "stop_timeout = '10m'\n").unwrap();
    let mut server = Server::start(dir.path());
    let mut guest = silent_guest(&server);
    while !get(server.host(), "/metrics").1.contains("grasp_relay_websockets 1\n") {}
    tell(&server.child, "-INT");
    // The goodbye shows that the first was heard.
    assert!(guest.read(&mut [0; 64]).unwrap() > 0);
    assert!(server.child.try_wait().unwrap().is_none(), "it waits for its guest");
    let began = Instant::now();
    tell(&server.child, "-TERM");
    assert_eq!(server.child.wait().unwrap().code(), Some(130));
    assert!(began.elapsed() < Duration::from_secs(60));
    // Nothing is broken by that.
    let again = Server::start(dir.path());
    assert_eq!(get(again.host(), "/health"), (200, "ok\n".into()));
}

#[test]
fn while_it_lets_everybody_finish_it_is_not_ready_and_takes_nobody_new() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("grasp.toml"), "stop_timeout = '10m'\n").unwrap();
    let mut server = Server::start(dir.path());
    assert_eq!(get(server.host(), "/health"), (200, "ok\n".into()));
    let mut guest = silent_guest(&server);
    tell(&server.child, "-TERM");
    assert!(guest.read(&mut [0; 64]).unwrap() > 0, "the goodbye");
    assert_eq!(get(server.host(), "/health"), (503, "stopping\n".into()));
    let mut client = std::net::TcpStream::connect(server.host()).unwrap();
    ask_for_a_websocket(&mut client, server.host());
    let mut refused = String::new();
    client.read_to_string(&mut refused).unwrap();
    assert!(refused.starts_with("HTTP/1.1 503 ") && refused.contains("Retry-After: "), "{refused}");
    assert!(server.child.try_wait().unwrap().is_none(), "it waits for its guest");
    drop(guest);
    assert!(server.child.wait().unwrap().success());
    assert!(std::net::TcpStream::connect(server.host()).is_err());
}

/// Processes that have something to do with a directory, by their arguments or their environment.
#[cfg(target_os = "linux")]
fn processes_with(dir: &std::path::Path) -> usize {
    let all = std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let about = all.map(|process| {
        let parts = ["cmdline", "environ"].map(|part| std::fs::read(process.join(part)));
        parts.into_iter().flatten().flatten().collect::<Vec<u8>>()
    });
    let dir = dir.display().to_string();
    about.filter(|about| String::from_utf8_lossy(about).contains(&dir)).count()
}

#[cfg(target_os = "linux")]
#[test]
fn ctrl_c_ends_the_demo_whenever_it_comes_and_leaves_nothing() {
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
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        assert!(lines.any(|line| line.contains(until)), "{until}");
        assert!(std::fs::read_dir(dir.path()).unwrap().count() > 0);
        tell(&child, "-INT");
        let rest: Vec<_> = lines.collect();
        assert_eq!(child.wait().unwrap().success(), done, "{until}: {rest:?}");
        assert!(
            rest.iter().any(|line| line.contains("directories are removed")),
            "{until}: {rest:?}"
        );
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "{until}");
        let began = Instant::now();
        while processes_with(dir.path()) > 0 {
            assert!(began.elapsed() < Duration::from_secs(10), "{until}: something still runs");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn ctrl_c_ends_the_server_well() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path());
    tell(&server.child, "-INT");
    assert!(server.child.wait().unwrap().success());
    assert!(!dir.path().join("admin.sock").exists());
}

#[cfg(target_os = "linux")]
#[test]
fn the_service_manager_hears_when_it_is_ready_alive_and_stopping() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut child = command()
        .args(["serve", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(dir.path().join("data"))
        .env("NOTIFY_SOCKET", &path)
        .env("WATCHDOG_USEC", "200000")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let heard = || {
        let mut text = [0; 200];
        // The end of a child of another test may interrupt the call.
        let mut received = manager.recv(&mut text);
        while received.as_ref().is_err_and(|error| error.kind() == ErrorKind::Interrupted) {
            received = manager.recv(&mut text);
        }
        String::from_utf8(text[..received.unwrap()].to_vec()).unwrap()
    };
    assert!(heard().starts_with("READY=1"));
    assert_eq!(heard(), "WATCHDOG=1");
    tell(&child, "-TERM");
    while !heard().starts_with("STOPPING=1") {}
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_start_says_where_everything_is_and_the_log_never_says_a_secret() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let log = std::fs::File::create(dir.path().join("log")).unwrap();
    let args = ["serve", "--listen", "127.0.0.1:0", "--domain", "git.example.com"];
    let mut child = command()
        .args(args)
        .args(["--log-filter", "trace", "--log-format", "json", "--data-dir"])
        .arg(&data)
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .unwrap();
    let mut said = String::new();
    let mut out = child.stdout.take().unwrap();
    while !said.contains("Ctrl-C") {
        let mut some = [0; 1_024];
        let length = out.read(&mut some).unwrap();
        assert!(length > 0, "{said}");
        said.push_str(std::str::from_utf8(&some[..length]).unwrap());
    }
    tell(&child, "-TERM");
    assert!(child.wait().unwrap().success());
    for told in [
        "listen  127.0.0.1:",
        "ws://git.example.com",
        "http://git.example.com/<npub>/<name>.git",
        "grasp push --server http://git.example.com",
        data.to_str().unwrap(),
    ] {
        assert!(said.contains(told), "{told}: {said}");
    }
    let secret = std::fs::read_to_string(data.join("service.key")).unwrap();
    let log = std::fs::read_to_string(dir.path().join("log")).unwrap();
    assert!(log.lines().count() > 3);
    for line in log.lines() {
        assert!(serde_json::from_str::<serde_json::Value>(line).is_ok(), "{line}");
    }
    assert!(!log.contains(secret.trim()) && !said.contains(secret.trim()));
}
