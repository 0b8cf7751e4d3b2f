//! What can be seen on this machine alone.

use std::fs;
use std::io::{self, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

use grasp_purgatory::git::GitVersion;
use grasp_relay::web::size;

use super::Finding;
use crate::admin::Client;
use crate::config::Config;
use crate::push::is_local;

/// Less room than this does not last.
const LITTLE_ROOM: u64 = 1 << 30;

/// A disk that takes longer than this for one durable write slows every push and event.
const SLOW_DISK: Duration = Duration::from_millis(50);

/// Files beside those of connections: databases, packs, pipes of git.
const OTHER_FILES: u64 = 512;

/// Everything that can be seen here.
pub(super) fn findings(config: &Config) -> Vec<Finding> {
    let data = &config.settings.data_dir;
    vec![
        git(config),
        port(config),
        domain(config),
        targets(config),
        disk(data),
        room(data),
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
            Finding::bad("git", error.to_string(), remedy)
        }
    }
}

fn port(config: &Config) -> Finding {
    match TcpListener::bind(config.listen) {
        Ok(_) => Finding::good("port", format!("{} is free", config.listen)),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => taken(config),
        Err(error) => Finding::bad(
            "port",
            format!("{} cannot be listened on: {error}", config.listen),
            "choose another address with --listen; ports below 1024 need CAP_NET_BIND_SERVICE",
        ),
    }
}

fn taken(config: &Config) -> Finding {
    match Client::connect(&config.admin_socket()).and_then(|mut client| client.status()) {
        Ok(status) => {
            Finding::good("port", format!("{} is served, as {}", config.listen, status.service))
        }
        Err(_) => Finding::bad(
            "port",
            format!("{} is taken, and not by a server of this data directory", config.listen),
            format!(
                "find who has it (ss -ltnp 'sport = :{}'), or choose another",
                config.listen.port()
            ),
        ),
    }
}

fn domain(config: &Config) -> Finding {
    let Some(domain) = &config.domain else {
        return Finding::odd(
            "domain",
            format!("none is set, so it goes by {}", config.listen),
            "set --domain to the address that others reach it at; announcements must list that one",
        );
    };
    let is_loopback = is_local(domain);
    if !config.settings.git.secure && !is_loopback {
        return Finding::odd(
            "domain",
            format!("{domain}, shown as http:// and ws://"),
            "set git.secure = true once a proxy serves it over TLS; browsers and many clients insist",
        );
    }
    Finding::good("domain", domain.to_string())
}

fn targets(config: &Config) -> Finding {
    let public = config.domain.as_ref().is_some_and(|domain| !is_local(domain));
    if config.settings.outbound.allow_private && public {
        return Finding::odd(
            "targets",
            "events of strangers may send this public server to private addresses",
            "remove allow_private_targets unless this is a test network",
        );
    }
    if config.settings.outbound.allow_private {
        return Finding::good("targets", "private addresses are allowed, for a test network");
    }
    Finding::good("targets", "strangers cannot send this server to private addresses")
}

/// Writes and removes a file, as durably as everything else is written.
fn disk(data: &Path) -> Finding {
    let began = Instant::now();
    let probe = nearest(data).join(".doctor");
    let written = fs::File::create(&probe).and_then(|mut file| {
        file.write_all(b"grasp")?;
        file.sync_all()
    });
    let took = began.elapsed();
    let _ = fs::remove_file(&probe);
    match written {
        Ok(()) if took > SLOW_DISK => Finding::odd(
            "disk",
            format!("{} takes {} ms for one durable write", data.display(), took.as_millis()),
            "put the data directory on a faster disk",
        ),
        Ok(()) => Finding::good(
            "disk",
            format!("{} takes a durable write in {} ms", data.display(), took.as_millis()),
        ),
        Err(error) => Finding::bad(
            "disk",
            format!("{} cannot be written to: {error}", data.display()),
            "make it belong to whoever runs the server, or choose another with --data-dir",
        ),
    }
}

/// The data directory, or what is there of the way to it: to look must not make it, for the server makes it private.
fn nearest(data: &Path) -> &Path {
    let there = data.ancestors().find(|dir| dir.exists());
    there.unwrap_or(Path::new("."))
}

fn room(data: &Path) -> Finding {
    let Ok(stats) = rustix::fs::statvfs(nearest(data)) else {
        return Finding::skipped("room", "the file system does not say how much there is");
    };
    let free = stats.f_bavail.saturating_mul(stats.f_frsize);
    let seen = format!("{} free", size(free));
    match free {
        0..LITTLE_ROOM => Finding::bad("room", seen, "make room, or choose another --data-dir"),
        _ if stats.f_bavail < stats.f_blocks / 20 => {
            Finding::odd("room", format!("{seen}, less than a twentieth"), "make room soon")
        }
        _ => Finding::good("room", seen),
    }
}

fn files(config: &Config) -> Finding {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let wanted = config.settings.relay.tcp_connections as u64 + OTHER_FILES;
    match limit.current {
        Some(allowed) if allowed < wanted => Finding::odd(
            "files",
            format!("{allowed} may be open, {wanted} would be at relay.tcp_connections"),
            format!("LimitNOFILE={wanted} in the unit, or ulimit -n {wanted} in the shell"),
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
    fn a_port_that_somebody_else_has_is_bad_and_named() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config { listen: taken.local_addr().unwrap(), ..Config::default() };
        config.settings.data_dir = dir.path().into();
        let finding = port(&config);
        assert!(finding.is_bad() && finding.seen.contains(&config.listen.to_string()), "{finding}");
    }

    #[test]
    fn a_directory_that_cannot_be_written_to_is_bad_and_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let finding = disk(&file.join("data"));
        assert!(finding.is_bad() && finding.seen.contains("file/data"), "{finding}");
        assert!(!disk(dir.path()).is_bad() && !disk(&dir.path().join("not/yet")).is_bad());
        assert!(!room(&dir.path().join("not/yet")).seen.contains("does not say"));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_public_server_that_strangers_can_send_inside_is_odd() {
        let mut config =
            Config { domain: Some("git.example.com".parse().unwrap()), ..Config::default() };
        assert_eq!(targets(&config).state, State::Good);
        config.settings.outbound.allow_private = true;
        assert!(matches!(targets(&config).state, State::Odd { .. }));
        config.domain = Some("127.0.0.1:7334".parse().unwrap());
        assert_eq!(targets(&config).state, State::Good);
    }
}
