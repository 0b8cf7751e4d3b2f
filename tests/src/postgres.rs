//! A real PostgreSQL server in a temporary directory, on loopback, as a user without privileges.
#![allow(clippy::unwrap_used, reason = "without the server there is no test")]

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::reserved::reserve_address;

/// The user that may do everything, and the password that it needs over TCP.
pub const USER: &str = "grasp";
/// See [`USER`].
pub const PASSWORD: &str = "a-test-password";

/// A running server, which ends with the process that started it.
#[derive(Debug)]
pub struct Postgres {
    programs: PathBuf,
    dir: PathBuf,
    port: u16,
    owner: (u32, u32),
    databases: AtomicU64,
    /// Stops the server and removes its directory once its standard input ends, however this process does.
    guard: Child,
}

impl Postgres {
    /// Returns the one server of this test binary, which does not wait for the disk; `None`, after printing that the test is
    /// skipped, if PostgreSQL is not installed.
    pub fn shared() -> Option<&'static Self> {
        static SHARED: OnceLock<Option<Postgres>> = OnceLock::new();
        let start = |programs| Self::start(programs, &std::env::temp_dir(), false);
        let shared = SHARED.get_or_init(|| programs().map(start));
        if shared.is_none() {
            skipped();
        }
        shared.as_ref()
    }

    /// Starts a server that writes to disk durably; `None`, after printing that the test is skipped, if PostgreSQL is not
    /// installed.
    pub fn durable() -> Option<Self> {
        Self::durable_in(&std::env::temp_dir())
    }

    /// Starts such a server below this directory.
    pub fn durable_in(parent: &Path) -> Option<Self> {
        let found = programs();
        if found.is_none() {
            skipped();
        }
        found.map(|programs| Self::start(programs, parent, true))
    }

    fn start(programs: PathBuf, parent: &Path, is_durable: bool) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("grasp-pg")
            .tempdir_in(parent)
            .unwrap()
            .keep();
        let owner = owner(&dir);
        chown(&dir, Some(owner.0), Some(owner.1)).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).unwrap();
        let secret = dir.join("password");
        fs::write(&secret, PASSWORD).unwrap();
        let port = reserve_address([127, 0, 0, 1]).port();
        let (data, stop) = (
            dir.join("data"),
            "read _; \"$0\" stop -D \"$1/data\" -m immediate; rm -rf \"$1\"",
        );
        let guard = Command::new("sh")
            .args(["-c", stop])
            .args([programs.join("pg_ctl"), dir.clone()])
            .uid(owner.0)
            .gid(owner.1)
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let server = Self {
            programs,
            dir,
            port,
            owner,
            databases: AtomicU64::new(0),
            guard,
        };
        let pwfile = format!("--pwfile={}", secret.display());
        server.run(
            "initdb",
            &[
                "-D",
                data.to_str().unwrap(),
                "-U",
                USER,
                &pwfile,
                "--auth-local=trust",
                "--auth-host=scram-sha-256",
                "--encoding=UTF8",
                "--locale=C",
                "--no-sync",
            ],
        );
        server.configure(is_durable);
        server.control("start");
        server
    }

    fn configure(&self, is_durable: bool) {
        let mut settings = format!(
            "listen_addresses = '127.0.0.1'\nport = {}\nunix_socket_directories = '{}'\n\
             max_connections = 400\n",
            self.port,
            self.dir.display()
        );
        settings += match is_durable {
            true => "shared_buffers = 512MB\n",
            false => "shared_buffers = 64MB\nfsync = off\nfull_page_writes = off\n",
        };
        let mut file = fs::OpenOptions::new()
            .append(true)
            .open(self.dir.join("data/postgresql.conf"))
            .unwrap();
        file.write_all(settings.as_bytes()).unwrap();
    }

    /// Creates an empty database and returns its address.
    pub fn database(&self) -> String {
        let name = format!("db{}", self.databases.fetch_add(1, Ordering::SeqCst));
        self.sql("postgres", &format!("CREATE DATABASE {name}"));
        self.url(&name)
    }

    /// Returns the address of a database by a socket file, where no password is needed.
    pub fn url(&self, database: &str) -> String {
        let host = self.dir.display().to_string().replace('/', "%2F");
        format!("postgres://{USER}@{host}:{}/{database}", self.port)
    }

    /// Returns the address of a database over TCP.
    pub fn tcp_url(&self, password: &str, database: &str) -> String {
        format!(
            "postgres://{USER}:{password}@127.0.0.1:{}/{database}",
            self.port
        )
    }

    /// Executes SQL in a database, by its name or address, and returns what it prints.
    pub fn sql(&self, database: &str, sql: &str) -> String {
        let name = database.rsplit('/').next().unwrap();
        let (host, port) = (self.dir.to_str().unwrap(), self.port.to_string());
        self.run(
            "psql",
            &[
                "-h",
                host,
                "-p",
                &port,
                "-U",
                USER,
                "-d",
                name,
                "-X",
                "-q",
                "-t",
                "-A",
                "-v",
                "ON_ERROR_STOP=1",
                "-c",
                sql,
            ],
        )
    }

    /// Executes SQL in a transaction of another session, which lasts until the session is dropped.
    pub fn hold(&self, database: &str, sql: &str) -> Session {
        let name = database.rsplit('/').next().unwrap();
        let (host, port) = (self.dir.to_str().unwrap(), self.port.to_string());
        let mut command = self.command("psql");
        command.args([
            "-h", host, "-p", &port, "-U", USER, "-d", name, "-X", "-q", "-t", "-A",
        ]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let input = process.stdin.as_mut().unwrap();
        writeln!(input, "BEGIN; {sql}; SELECT 'held';").unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap()).lines();
        assert!(output.any(|line| line.unwrap() == "held"));
        Session(process)
    }

    /// Enables TLS with this certificate and key, and returns the file of the certificate.
    pub fn enable_tls(&self, certificate: &str, key: &str) -> PathBuf {
        let (public, secret) = (self.dir.join("server.crt"), self.dir.join("server.key"));
        for (path, text) in [(&public, certificate), (&secret, key)] {
            fs::write(path, text).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
            chown(path, Some(self.owner.0), Some(self.owner.1)).unwrap();
        }
        for (name, value) in [("ssl_cert_file", &public), ("ssl_key_file", &secret)] {
            self.sql(
                "postgres",
                &format!("ALTER SYSTEM SET {name} = '{}'", value.display()),
            );
        }
        self.sql("postgres", "ALTER SYSTEM SET ssl = on");
        self.restart();
        public
    }

    /// Restarts the server, which ends all connections at once.
    pub fn restart(&self) {
        self.control("restart");
    }

    fn control(&self, what: &str) {
        let (data, log) = (self.dir.join("data"), self.dir.join("log"));
        let (data, log) = (data.to_str().unwrap(), log.to_str().unwrap());
        // The server would inherit a pipe, whose end would then never be seen.
        let mut command = self.command("pg_ctl");
        command.args([what, "-D", data, "-l", log, "-m", "fast", "-w", "-t", "60"]);
        let status = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap();
        assert!(
            status.success(),
            "{what}: {}",
            fs::read_to_string(log).unwrap_or_default()
        );
    }

    fn run(&self, program: &str, args: &[&str]) -> String {
        let output = self.command(program).args(args).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program}: {errors}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        command
            .uid(self.owner.0)
            .gid(self.owner.1)
            .current_dir("/")
            .stdin(Stdio::null());
        command
    }
}

/// A session with a transaction.
#[derive(Debug)]
pub struct Session(Child);

impl Drop for Session {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
    }
}

/// Returns the directory of the installed programs, those of the highest version.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten();
    let mut found: Vec<_> = versions.map(|version| version.path().join("bin")).collect();
    found.sort();
    found.reverse();
    found.extend(
        std::env::var_os("PATH")
            .iter()
            .flat_map(std::env::split_paths),
    );
    let has_all = |bin: &PathBuf| {
        ["initdb", "pg_ctl", "postgres", "psql"]
            .iter()
            .all(|program| bin.join(program).exists())
    };
    found.into_iter().find(has_all)
}

/// Returns the user and group of the server: it refuses to run as root.
fn owner(dir: &Path) -> (u32, u32) {
    use std::os::unix::fs::MetadataExt as _;
    let own = dir.metadata().unwrap();
    if own.uid() != 0 {
        return (own.uid(), own.gid());
    }
    let users = fs::read_to_string("/etc/passwd").unwrap();
    let ids = |name: &str| {
        let line = users
            .lines()
            .find(|line| line.split(':').next() == Some(name))?;
        let mut fields = line.split(':').skip(2);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    };
    ids("postgres").or_else(|| ids("nobody")).unwrap()
}

/// Prints that a test did not run, past what the test harness captures; panics where PostgreSQL is required.
fn skipped() {
    let is_required = std::env::var_os("GRASP_REQUIRE_POSTGRES").is_some_and(|value| value == "1");
    assert!(!is_required, "PostgreSQL is not installed");
    let text = b"skipped: PostgreSQL, which is not installed\n";
    std::io::stderr().write_all(text).unwrap();
}
