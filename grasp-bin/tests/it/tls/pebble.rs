//! Pebble, an ACME test server, with a DNS server in which every name is this machine.

use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::authority::Authority;
use super::{RETRY, TIMEOUT, curl};
use crate::operations::free_address;
use crate::support::skipped;

/// A running ACME server, ended when dropped.
pub(super) struct Pebble {
    /// The URL of its directory.
    pub(super) directory: String,
    management: String,
    _processes: [Process; 2],
}

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What an ACME server does.
pub(super) struct Behaviour<'a> {
    /// The port of the domain at which it expects TLS-ALPN-01.
    pub(super) tls: &'a str,
    /// The port of the domain at which it expects HTTP-01.
    pub(super) http: &'a str,
    /// The lifetime of its certificates.
    pub(super) lifetime: Duration,
}

impl Pebble {
    /// Starts it, with its files in a directory; `None`, after printing that the test is skipped, if it is not installed.
    /// The authority of its own certificate is in the file `authority.pem` of that directory.
    pub(super) fn start(dir: &Path, behaviour: &Behaviour<'_>) -> Option<Self> {
        let dns = free_address();
        let dns_server = Command::new("pebble-challtestsrv")
            .args(["-dns01", &dns, "-management", &free_address()])
            .args(["-http01", "", "-https01", "", "-tlsalpn01", ""])
            .args(["-defaultIPv4", "127.0.0.1", "-defaultIPv6", ""])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let Ok(dns_server) = dns_server else {
            assert!(
                std::env::var_os("GRASP_REQUIRE_PEBBLE").is_none_or(|value| value != "1"),
                "pebble is not installed"
            );
            skipped("TLS by ACME, which needs pebble");
            return None;
        };
        let dns_server = Process(dns_server);
        let (listen, management) = (free_address(), free_address());
        write_files(dir, behaviour, &listen, &management);
        let acme_server = Command::new("pebble")
            .args(["-config", "pebble.json", "-dnsserver", &dns])
            .current_dir(dir)
            .env("PEBBLE_VA_NOSLEEP", "1")
            .env("PEBBLE_AUTHZREUSE", "0")
            .env("PEBBLE_WFE_NONCEREJECT", "0")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait_for(&dns);
        let pebble = Self {
            directory: format!("https://{listen}/dir"),
            management: format!("https://{management}"),
            _processes: [dns_server, Process(acme_server)],
        };
        pebble.write_root(dir);
        Some(pebble)
    }

    /// Waits until it answers, and writes the root of the certificates that it issues to `issued.pem`.
    fn write_root(&self, dir: &Path) {
        let began = Instant::now();
        loop {
            let (ok, root) = curl(&["--insecure", &format!("{}/roots/0", self.management)]);
            if ok {
                std::fs::write(dir.join("issued.pem"), root).unwrap();
                return;
            }
            assert!(began.elapsed() < TIMEOUT, "pebble did not start");
            sleep(RETRY);
        }
    }
}

/// Waits until a server accepts connections. A challenge that comes before the DNS server has started would fail.
fn wait_for(address: &str) {
    let began = Instant::now();
    while TcpStream::connect(address).is_err() {
        assert!(began.elapsed() < TIMEOUT, "{address} did not start");
        sleep(RETRY);
    }
}

fn write_files(dir: &Path, behaviour: &Behaviour<'_>, listen: &str, management: &str) {
    let authority = Authority::new(&dir.join("authority.pem"));
    authority.certify("127.0.0.1", &dir.join("own.pem"), &dir.join("own.key"));
    let Behaviour {
        tls,
        http,
        lifetime,
    } = behaviour;
    let settings = format!(
        r#"{{"pebble": {{
            "listenAddress": "{listen}", "managementListenAddress": "{management}",
            "certificate": "own.pem", "privateKey": "own.key",
            "httpPort": {http}, "tlsPort": {tls},
            "certificateValidityPeriod": {},
            "ocspResponderURL": "", "externalAccountBindingRequired": false
        }}}}"#,
        lifetime.as_secs()
    );
    std::fs::write(dir.join("pebble.json"), settings).unwrap();
}
