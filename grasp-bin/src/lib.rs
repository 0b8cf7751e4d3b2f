//! The wiring of a grasp server: reads what the operator wants, builds the parts, hands them to each other.
//!
//! No rule lives here. The command is [`run`]; whole-instance tests build the same [`Server`] that it does.

mod admin;
mod cli;
mod config;
mod doctor;
mod http;
mod key;
mod metrics;
mod notify;
mod observer;
mod overview;
mod own_relay;
mod serve;
mod server;
mod settings;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

use crate::admin::Look;
use crate::cli::{Cli, Command, Configuration, Running};
use crate::config::flags::Flags;
use crate::config::{Environment, Layers, Loaded, reference};
pub use crate::own_relay::OwnRelay;
pub use crate::server::{Server, open_store};
pub use crate::settings::{About, Processes, Settings, Store, Sync};

/// The `grasp` command.
pub fn run() -> ExitCode {
    match obey(Cli::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("grasp: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn obey(command: Command) -> Result<ExitCode> {
    match command {
        Command::Serve(settings) => serve::run(load(&settings.flags)?)?,
        Command::Status { server, watch: false } => look_at(&server, Look::Status)?,
        Command::Status { server, watch: true } => look_at(&server, Look::Watch)?,
        Command::Repos(server) => look_at(&server, Look::Repositories)?,
        Command::Relays(server) => look_at(&server, Look::Relays)?,
        Command::Purgatory(server) => look_at(&server, Look::Purgatory)?,
        Command::Doctor { settings, offline } => {
            let healthy = doctor::examine(&load(&settings.flags)?.config, offline)?;
            return Ok(if healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        Command::Config(Configuration::Print(settings)) => {
            print!("{}", reference::in_force(&load(&settings.flags)?));
        }
        Command::Config(Configuration::Check(settings)) => check(&load(&settings.flags)?),
        Command::Config(Configuration::Reference) => print!("{}", reference::markdown()),
        Command::Metrics => print!("{}", metrics::reference::markdown()),
    }
    Ok(ExitCode::SUCCESS)
}

fn load(flags: &Flags) -> Result<Loaded> {
    Ok(Layers::load(flags, &Environment)?)
}

fn look_at(server: &Running, what: Look) -> Result<()> {
    let config = load(&server.flags())?.config;
    admin::look(&config.admin_socket(), what, server.json)
}

/// What is wrong was an error before; what is only strange is mentioned.
fn check(loaded: &Loaded) {
    for name in &loaded.strangers {
        eprintln!("grasp: {name} is in the environment and no setting of ours");
    }
}
