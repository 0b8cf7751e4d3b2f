//! The reference of HTTP, compared with the responses of a server.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nostr::event::{EventBuilder, FinalizeEvent as _, Kind, Tag};
use nostr::key::Keys;

use crate::support::{Server, command, get_with, run_to_end};

/// One row of the reference.
#[derive(Debug)]
struct Row {
    method: String,
    path: String,
    header: Option<String>,
    status: u16,
    kind: String,
}

fn rows(page: &str) -> Vec<Row> {
    let row = |line: &str| {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let (request, status, kind) = (cells.get(1)?, cells.get(2)?, cells.get(3)?);
        let mut quoted = request.split('`').skip(1).step_by(2);
        let (method, path) = quoted.next()?.split_once(' ')?;
        let kind = kind.trim_matches('`').to_owned();
        let (method, path) = (method.to_owned(), path.to_owned());
        let header = quoted.next().map(str::to_owned);
        Some(Row {
            method,
            path,
            header,
            status: status.parse().ok()?,
            kind,
        })
    };
    page.lines().filter_map(row).collect()
}

/// Returns the status and the content type of a response, and whether pages of other origins may read it.
fn request(host: &str, row: &Row) -> (u16, String, bool) {
    let mut stream = TcpStream::connect(host).unwrap();
    let mut head = format!("{} {} HTTP/1.1\r\nHost: {host}\r\n", row.method, row.path);
    match row.header.as_deref() {
        Some("Upgrade: websocket") => head.push_str(
            "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
        ),
        Some(header) => head.push_str(&format!("{header}\r\nConnection: close\r\n")),
        None => head.push_str("Connection: close\r\n"),
    }
    let service = row.path.rsplit('/').next().unwrap();
    let body: &[u8] = if row.method == "POST" { b"0000" } else { b"" };
    if row.method == "POST" {
        head.push_str(&format!(
            "Content-Type: application/x-{service}-request\r\n"
        ));
    }
    write!(stream, "{head}Content-Length: {}\r\n\r\n", body.len()).unwrap();
    stream.write_all(body).unwrap();
    let mut bytes = Vec::new();
    while !bytes.windows(4).any(|end| end == b"\r\n\r\n") {
        let mut some = [0; 1_024];
        let length = stream.read(&mut some).unwrap();
        assert!(length > 0, "{row:?}");
        bytes.extend_from_slice(&some[..length]);
    }
    let head = String::from_utf8_lossy(&bytes).to_ascii_lowercase();
    let value = |name: &str| {
        head.lines()
            .find_map(|line| line.strip_prefix(name))
            .map(str::trim)
    };
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let kind = value("content-type:")
        .unwrap_or_default()
        .split(';')
        .next()
        .unwrap()
        .to_owned();
    (
        status,
        kind,
        value("access-control-allow-origin:") == Some("*"),
    )
}

#[test]
fn every_response_is_as_in_the_reference() {
    let dir = tempfile::tempdir().unwrap();
    let contributors = ["--listen", "127.0.0.1:0", "--contributor-proposals=true"];
    let server = Server::start_with(&contributors, &dir.path().join("data"));
    let work = dir.path().join("hello");
    std::fs::create_dir(&work).unwrap();
    for args in [
        &["init", "-q"][..],
        &["commit", "-q", "--allow-empty", "-m", "first"],
    ] {
        let who = [
            "-c",
            "user.name=alice",
            "-c",
            "user.email=alice@example.com",
        ];
        let mut git = std::process::Command::new("git");
        assert!(run_to_end(git.args(who).args(args).current_dir(&work)).ok);
    }
    let push = ["push", "--server", server.host()];
    let pushed = run_to_end(
        command()
            .args(push)
            .current_dir(&work)
            .env("HOME", dir.path()),
    )
    .out;
    let npub = pushed
        .split('/')
        .find(|part| part.starts_with("npub1"))
        .unwrap();
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/http.md");
    let page = std::fs::read_to_string(page).unwrap();
    let rows = rows(&page.replace("<npub>", npub).replace("<name>", "hello"));
    assert!(rows.len() > 25, "{rows:?}");
    for row in &rows {
        let (status, kind, shared) = request(server.host(), row);
        assert_eq!(status, row.status, "{row:?}");
        assert!(row.kind.is_empty() || kind == row.kind, "{row:?}: {kind}");
        assert!(shared, "{row:?}");
    }
}

/// Returns the header that authorizes a `GET` of an address.
fn authorization(keys: &Keys, url: &str) -> String {
    let tags = [["u", url], ["method", "GET"]].map(|tag| Tag::parse(tag).unwrap());
    let event = EventBuilder::new(Kind::HttpAuth, "").tags(tags);
    let json = event.finalize(keys).unwrap().as_json();
    format!("Authorization: Nostr {}\r\n", STANDARD.encode(json))
}

#[test]
fn an_owner_reads_the_own_usage_with_a_signed_request() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    let (host, keys) = (server.host(), Keys::generate());
    for scheme in ["https", "http"] {
        let header = authorization(&keys, &format!("{scheme}://{host}/usage"));
        let (status, body) = get_with(host, "/usage", &header);
        assert_eq!(status, 200, "{body}");
        let rows: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(rows.as_array().unwrap().len(), 1, "{rows}");
        assert_eq!(rows[0]["bytes"], 0);
        assert_eq!(rows[0]["quota"], 64u64 << 30);
    }
    for header in [
        String::new(),
        authorization(&keys, &format!("http://{host}/")),
        authorization(&keys, "http://elsewhere.example/usage"),
    ] {
        let (status, body) = get_with(host, "/usage", &header);
        assert_eq!(status, 401, "{header}: {body}");
        assert!(!body.contains("npub1"), "{body}");
    }
}
