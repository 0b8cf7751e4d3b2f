//! A server behind the documented reverse proxies.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::operations::free_address;
use crate::support::{Server, command, get, run_to_end, skipped};

/// A proxy process, killed when dropped.
struct Proxy(Child);

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns a file of the documentation.
fn documented(name: &str) -> String {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/how-to/deploy");
    std::fs::read_to_string(docs.join(name)).unwrap()
}

/// Returns the first of these programs that is installed.
fn installed(names: &[&'static str], argument: &str) -> Option<&'static str> {
    let runs = |name: &&&'static str| {
        let mut command = Command::new(name);
        command
            .arg(argument)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok()
    };
    let found = names.iter().find(runs).copied();
    if found.is_none() {
        skipped(&format!("{} is not installed", names[0]));
    }
    found
}

/// Returns the command of the documented nginx, on loopback and without its certificate.
fn nginx(program: &str, dir: &Path, listen: &str, behind: &str) -> Command {
    let text = documented("nginx.conf");
    let plain = |line: &&str| !line.contains("ssl_certificate") && !line.contains("[::]:443");
    let text: Vec<_> = text.lines().filter(plain).collect();
    let text = text
        .join("\n")
        .replace("443 ssl", listen)
        .replace("127.0.0.1:7334", behind);
    let (file, log, dir) = (dir.join("nginx.conf"), dir.join("log"), dir.display());
    let text = format!(
        "daemon off; master_process off; pid {dir}/pid; error_log {dir}/log;\n\
         events {{}}\nhttp {{ access_log off; client_body_temp_path {dir}; proxy_temp_path {dir};\n\
         fastcgi_temp_path {dir}; uwsgi_temp_path {dir}; scgi_temp_path {dir};\n{text}\n}}\n"
    );
    std::fs::write(&file, text).unwrap();
    let mut command = Command::new(program);
    command
        .arg("-c")
        .arg(&file)
        .arg("-e")
        .arg(&log)
        .stderr(Stdio::null());
    command
}

/// Returns the command of the documented Caddy, on loopback and without its certificate.
fn caddy(program: &str, dir: &Path, listen: &str, behind: &str) -> Command {
    let site = documented("Caddyfile").replace("git.example.com", &format!("http://{listen}"));
    let text = format!(
        "{{\n\tadmin off\n}}\n{}",
        site.replace("127.0.0.1:7334", behind)
    );
    let (file, log) = (
        dir.join("Caddyfile"),
        File::create(dir.join("log")).unwrap(),
    );
    std::fs::write(&file, text).unwrap();
    let mut command = Command::new(program);
    command
        .args(["run", "--adapter", "caddyfile", "--config"])
        .arg(&file)
        .env("HOME", dir);
    command
        .env_remove("XDG_CONFIG_HOME")
        .env_remove("XDG_DATA_HOME")
        .stderr(log);
    command
}

#[test]
fn everything_works_through_the_documented_nginx() {
    if let Some(program) = installed(&["nginx", "/usr/sbin/nginx"], "-v") {
        everything_works_through(|dir, listen, behind| nginx(program, dir, listen, behind));
    }
}

#[test]
fn everything_works_through_the_documented_caddy() {
    if let Some(program) = installed(&["caddy"], "version") {
        everything_works_through(|dir, listen, behind| caddy(program, dir, listen, behind));
    }
}

fn everything_works_through(proxy: impl FnOnce(&Path, &str, &str) -> Command) {
    let dir = tempfile::tempdir().unwrap();
    let (public, internal) = (free_address(), free_address());
    let data = dir.path().join("data");
    std::fs::create_dir(&data).unwrap();
    let settings = format!("domain = '{public}'\ntrusted_proxies = ['127.0.0.1']\n");
    std::fs::write(data.join("grasp.toml"), settings).unwrap();
    let _server = Server::start_at(&internal, &data);
    let _proxy = Proxy(proxy(dir.path(), &public, &internal).spawn().unwrap());
    let began = Instant::now();
    while std::net::TcpStream::connect(&public).is_err() {
        let log = || std::fs::read_to_string(dir.path().join("log")).unwrap_or_default();
        assert!(began.elapsed() < Duration::from_secs(30), "{}", log());
        std::thread::sleep(Duration::from_millis(20));
    }
    let work = dir.path().join("hello");
    std::fs::create_dir(&work).unwrap();
    // Larger than the buffers of a proxy.
    std::fs::write(
        work.join("large"),
        (0..400_000u32)
            .flat_map(u32::to_le_bytes)
            .collect::<Vec<_>>(),
    )
    .unwrap();
    for args in [
        &["init", "-q"][..],
        &["add", "."],
        &["commit", "-q", "-m", "first"],
    ] {
        let who = [
            "-c",
            "user.name=alice",
            "-c",
            "user.email=alice@example.com",
        ];
        assert!(run_to_end(Command::new("git").args(who).args(args).current_dir(&work)).ok);
    }
    // Websocket, NIP-11 and a push, all through the proxy.
    let push = ["push", "--server", &public];
    let pushed = run_to_end(
        command()
            .args(push)
            .current_dir(&work)
            .env("HOME", dir.path()),
    );
    assert!(pushed.ok, "{pushed:?}");
    let url = pushed
        .out
        .lines()
        .find_map(|line| line.trim().strip_prefix("git clone "))
        .unwrap();
    let copy = dir.path().join("copy");
    assert!(run_to_end(Command::new("git").args(["clone", "-q", url]).arg(&copy)).ok);
    assert!(copy.join("large").is_file());
    let doctor = [
        "doctor",
        "--data-dir",
        data.to_str().unwrap(),
        "--listen",
        &internal,
    ];
    let doctor = run_to_end(command().args(doctor));
    assert!(
        doctor
            .out
            .contains("shows the NIP-11 document of this server"),
        "{doctor:?}"
    );
    assert_eq!(get(&public, "/health"), (200, "ok\n".into()));
    assert_eq!(get(&public, "/metrics").0, 404, "metrics are not public");
}
