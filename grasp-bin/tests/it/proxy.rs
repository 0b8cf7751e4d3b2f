//! A server behind the reverse proxy of the documentation, with a real one.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{Server, command, get, said};

/// Ended when dropped.
struct Nginx(Child);

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn free_address() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

/// The documented server, on loopback and without its certificate.
fn settings(dir: &Path, listen: &str, behind: &str) -> String {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/how-to/deploy/nginx.conf");
    let text = std::fs::read_to_string(docs).unwrap();
    let plain = |line: &&str| !line.contains("ssl_certificate") && !line.contains("[::]:443");
    let text: Vec<_> = text.lines().filter(plain).collect();
    let text = text.join("\n").replace("443 ssl", listen).replace("127.0.0.1:7334", behind);
    let dir = dir.display();
    format!(
        "daemon off; master_process off; pid {dir}/pid; error_log {dir}/error.log;\n\
         events {{}}\nhttp {{ access_log off; client_body_temp_path {dir}; proxy_temp_path {dir};\n\
         fastcgi_temp_path {dir}; uwsgi_temp_path {dir}; scgi_temp_path {dir};\n{text}\n}}\n"
    )
}

#[test]
fn everything_works_through_the_documented_nginx() {
    let nginx = ["nginx", "/usr/sbin/nginx"]
        .into_iter()
        .find(|name| Command::new(name).arg("-v").stderr(Stdio::null()).status().is_ok());
    let Some(nginx) = nginx else {
        println!("skipped: there is no nginx here");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let (outside, inside) = (free_address(), free_address());
    let data = dir.path().join("data");
    std::fs::create_dir(&data).unwrap();
    let ours = format!("domain = '{outside}'\ntrusted_proxies = ['127.0.0.1']\n");
    std::fs::write(data.join("grasp.toml"), ours).unwrap();
    let _server = Server::start_at(&inside, &data);
    let file = dir.path().join("nginx.conf");
    std::fs::write(&file, settings(dir.path(), &outside, &inside)).unwrap();
    let log = dir.path().join("error.log");
    let proxy =
        Command::new(nginx).arg("-c").arg(&file).arg("-e").arg(&log).stderr(Stdio::null()).spawn();
    let _proxy = Nginx(proxy.unwrap());
    let began = Instant::now();
    while std::net::TcpStream::connect(&outside).is_err() {
        let wrong = || std::fs::read_to_string(&log).unwrap_or_default();
        assert!(began.elapsed() < Duration::from_secs(30), "{}", wrong());
        std::thread::sleep(Duration::from_millis(20));
    }
    let work = dir.path().join("hello");
    std::fs::create_dir(&work).unwrap();
    // More than a proxy holds in memory.
    std::fs::write(
        work.join("large"),
        (0..400_000u32).flat_map(u32::to_le_bytes).collect::<Vec<_>>(),
    )
    .unwrap();
    for args in [&["init", "-q"][..], &["add", "."], &["commit", "-q", "-m", "first"]] {
        let who = ["-c", "user.name=alice", "-c", "user.email=alice@example.com"];
        assert!(said(Command::new("git").args(who).args(args).current_dir(&work)).ok);
    }
    // Websocket, NIP-11 and a push, all through the proxy.
    let push = ["push", "--server", &outside];
    let pushed = said(command().args(push).current_dir(&work).env("HOME", dir.path()));
    assert!(pushed.ok, "{pushed:?}");
    let url = pushed.out.lines().find_map(|line| line.trim().strip_prefix("git clone ")).unwrap();
    let copy = dir.path().join("copy");
    assert!(said(Command::new("git").args(["clone", "-q", url]).arg(&copy)).ok);
    assert!(copy.join("large").is_file());
    let doctor = ["doctor", "--data-dir", data.to_str().unwrap(), "--listen", &inside];
    let well = said(command().args(doctor));
    assert!(well.out.contains("shows the NIP-11 document of this server"), "{well:?}");
    assert_eq!(get(&outside, "/health"), (200, "ok\n".into()));
    assert_eq!(get(&outside, "/metrics").0, 404, "figures are not for everybody");
}
