//! Checks of this machine.

use std::fs;
use std::io::{self, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

use grasp_purgatory::git::GitVersion;
use grasp_relay::web::format_bytes;

use super::Finding;
use crate::admin::AdminClient;
use crate::config::Config;
use crate::push::is_local;

/// Bytes of free disk space below which the check fails.
const MIN_FREE_BYTES: u64 = 1 << 30;

/// The time of one durable write above which the disk slows every push and event.
const SLOW_DISK: Duration = Duration::from_millis(50);

/// Open files besides connections: databases, packs, pipes of git.
const OTHER_FILES: u64 = 512;

/// Runs all checks of this machine.
pub(super) fn findings(config: &Config) -> Vec<Finding> {
    let data = &config.settings.data_dir;
    vec![
        git(config),
        port(config),
        domain(config),
        targets(config),
        disk(data),
        free_space(data),
        files(config),
    ]
}

fn git(config: &Config) -> Finding {
    match config.settings.git() {
        Ok(git) => Finding::good("git", format!("version {}", git.version())),
        Err(error) => {
            let remedy = format!(
                "install git {} or newer and have it in PATH, or name it with --git-program",
                GitVersion::OLDEST
            );
            Finding::failed("git", error.to_string(), remedy)
        }
    }
}

fn port(config: &Config) -> Finding {
    let listen = config.listen;
    match TcpListener::bind(listen) {
        Ok(_) => Finding::good("port", format!("{listen} is free")),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => port_in_use(config),
        Err(error) => Finding::failed(
            "port",
            format!("could not listen on {listen}: {error}"),
            "choose another address with --listen; ports below 1024 need CAP_NET_BIND_SERVICE",
        ),
    }
}

fn port_in_use(config: &Config) -> Finding {
    let (listen, port) = (config.listen, config.listen.port());
    match AdminClient::connect(&config.admin_socket()).and_then(|mut client| client.status()) {
        Ok(status) => Finding::good("port", format!("{listen} is served, as {}", status.service)),
        Err(_) => Finding::failed(
            "port",
            format!("{listen} is taken by a program that does not serve this data directory"),
            format!("find that program (ss -ltnp 'sport = :{port}'), or choose another port"),
        ),
    }
}

fn domain(config: &Config) -> Finding {
    let Some(domain) = &config.domain else {
        return Finding::warning(
            "domain",
            format!("none is set, so the server is known as {}", config.listen),
            "set --domain to the public address; announcements must list that one",
        );
    };
    if !config.settings.git.secure && !is_local(domain) {
        return Finding::warning(
            "domain",
            format!("{domain}, shown as http:// and ws://"),
            "set git.secure = true once a proxy serves it over TLS; browsers and many clients require it",
        );
    }
    Finding::good("domain", domain.to_string())
}

fn targets(config: &Config) -> Finding {
    let public = config.domain.as_ref().is_some_and(|domain| !is_local(domain));
    if config.settings.outbound.allow_private && public {
        return Finding::warning(
            "targets",
            "events can make this public server connect to private addresses",
            "remove allow_private_targets unless this is a test network",
        );
    }
    if config.settings.outbound.allow_private {
        return Finding::good("targets", "private addresses are allowed, for a test network");
    }
    Finding::good("targets", "events cannot make this server connect to private addresses")
}

/// Measures a durable write of a file, which it removes again.
fn disk(data: &Path) -> Finding {
    let began = Instant::now();
    let probe = nearest_existing(data).join(".doctor");
    let written = fs::File::create(&probe).and_then(|mut file| {
        file.write_all(b"grasp")?;
        file.sync_all()
    });
    let took = began.elapsed();
    let _ = fs::remove_file(&probe);
    match written {
        Ok(()) if took > SLOW_DISK => Finding::warning(
            "disk",
            format!("{} takes {} ms for one durable write", data.display(), took.as_millis()),
            "put the data directory on a faster disk",
        ),
        Ok(()) => Finding::good(
            "disk",
            format!("{} takes a durable write in {} ms", data.display(), took.as_millis()),
        ),
        Err(error) => Finding::failed(
            "disk",
            format!("{} cannot be written to: {error}", data.display()),
            "give it to the user that the server runs as, or choose another with --data-dir",
        ),
    }
}

/// Returns the data directory or its nearest parent that exists. The check does not create it: the server does, with
/// private permissions.
fn nearest_existing(data: &Path) -> &Path {
    let there = data.ancestors().find(|dir| dir.exists());
    there.unwrap_or(Path::new("."))
}

fn free_space(data: &Path) -> Finding {
    let Ok(stats) = rustix::fs::statvfs(nearest_existing(data)) else {
        return Finding::skipped("free space", "the file system does not report it");
    };
    let free = stats.f_bavail.saturating_mul(stats.f_frsize);
    let detail = format_bytes(free);
    match free {
        0..MIN_FREE_BYTES => {
            Finding::failed("free space", detail, "delete files, or choose another --data-dir")
        }
        _ if stats.f_bavail < stats.f_blocks / 20 => {
            Finding::warning("free space", format!("{detail}, less than 5 %"), "delete files soon")
        }
        _ => Finding::good("free space", detail),
    }
}

fn files(config: &Config) -> Finding {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let needed = config.settings.relay.tcp_connections as u64 + OTHER_FILES;
    match limit.current {
        Some(allowed) if allowed < needed => Finding::warning(
            "files",
            format!("{allowed} may be open; {needed} are needed for relay.tcp_connections"),
            format!("set LimitNOFILE={needed} in the unit, or ulimit -n {needed} in the shell"),
        ),
        Some(allowed) => Finding::good("files", format!("{allowed} may be open")),
        None => Finding::good("files", "any number may be open"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::State;

    #[test]
    fn a_port_that_is_in_use_fails_the_check() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config { listen: taken.local_addr().unwrap(), ..Config::default() };
        config.settings.data_dir = dir.path().into();
        let finding = port(&config);
        assert!(
            finding.is_failed() && finding.detail.contains(&config.listen.to_string()),
            "{finding}"
        );
    }

    #[test]
    fn a_directory_that_cannot_be_written_to_fails_the_check() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let finding = disk(&file.join("data"));
        assert!(finding.is_failed() && finding.detail.contains("file/data"), "{finding}");
        assert!(!disk(dir.path()).is_failed() && !disk(&dir.path().join("not/yet")).is_failed());
        assert!(!free_space(&dir.path().join("not/yet")).detail.contains("does not report"));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_public_server_that_may_connect_to_private_addresses_is_warned_about() {
        let mut config =
            Config { domain: Some("git.example.com".parse().unwrap()), ..Config::default() };
        assert_eq!(targets(&config).state, State::Good);
        config.settings.outbound.allow_private = true;
        assert!(matches!(targets(&config).state, State::Warning { .. }));
        config.domain = Some("127.0.0.1:7334".parse().unwrap());
        assert_eq!(targets(&config).state, State::Good);
    }
}
