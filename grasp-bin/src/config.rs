//! The configuration: defaults, a file, the environment and flags, in that order.
//!
//! Every setting has one definition, in [`document`]. Its key in the file, its variable, its flag, its line in `--help`
//! and its row in the reference come from there.

pub(crate) mod document;
pub(crate) mod layers;
pub(crate) mod reference;
#[cfg(test)]
mod tests;
mod value;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clap::ValueEnum;
use grasp_core::{RelayUrl, ServiceIdentity};
use serde::{Deserialize, Serialize};

pub(crate) use self::layers::{Environment, Flags, Loaded, load};
use crate::settings::Settings;

/// The port when none is chosen.
const PORT: u16 = 7334;

/// Everything that can be set for a process that serves.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// Where to listen.
    pub(crate) listen: SocketAddr,
    /// The address that others reach us at; where we listen if there is none.
    pub(crate) domain: Option<ServiceIdentity>,
    /// Where `grasp status` and the like find a running server.
    pub(crate) admin_socket: Option<PathBuf>,
    /// The relay that `grasp sidecar` stands beside.
    pub(crate) sidecar_relay: Option<RelayUrl>,
    /// Where a sidecar answers to those who watch it.
    pub(crate) sidecar_listen: Option<SocketAddr>,
    /// How to tell what happens.
    pub(crate) log: Log,
    /// The server itself. Its address is the one of `listen` until it is known better.
    pub(crate) settings: Settings,
}

/// How to tell what happens.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    pub(crate) filter: String,
    pub(crate) format: LogFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    Human,
    Json,
}

impl Default for Config {
    fn default() -> Self {
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, PORT));
        let service = listen.to_string().parse().expect("an address is a service's address");
        Self {
            listen,
            domain: None,
            admin_socket: None,
            sidecar_relay: None,
            sidecar_listen: None,
            log: Log { filter: "info".into(), format: LogFormat::Human },
            settings: Settings::new(service, "data"),
        }
    }
}

impl Config {
    /// Where `grasp status` and the like find a running server.
    pub(crate) fn admin_socket(&self) -> PathBuf {
        let beside = || self.settings.data_dir.join("admin.sock");
        self.admin_socket.clone().unwrap_or_else(beside)
    }
}

/// Returns a setting that contradicts another one or a limit, and why.
fn check(config: &Config) -> Option<(&'static str, &'static str)> {
    let Settings { relay, purgatory, staging, .. } = &config.settings;
    let rules = [
        (
            relay.event_bytes <= relay.message_bytes,
            "relay.event_bytes",
            "an event must fit into a message, which may have 5MiB",
        ),
        (
            relay.connections <= relay.tcp_connections,
            "relay.connections",
            "above the number of TCP connections, which is 8192",
        ),
        (
            staging.bytes_per_family <= purgatory.staged.bytes,
            "purgatory.staged_bytes",
            "below what the uploads to one repository may have",
        ),
    ];
    rules.into_iter().find(|(holds, ..)| !holds).map(|(_, key, reason)| (key, reason))
}
