//! The wiring of a grasp server: reads what the operator wants, builds the parts, hands them to each other.
//!
//! No rule lives here. The command is [`run`]; whole-instance tests build the same [`Server`] that it does.

mod admin;
mod cli;
mod client;
mod config;
mod demo;
mod disk;
mod doctor;
mod http;
mod key;
mod log;
mod metrics;
mod notify;
mod observer;
mod once;
mod overview;
mod own_relay;
mod pace;
#[cfg(test)]
mod page;
mod place;
mod push;
mod roots;
mod rows;
mod serve;
mod server;
mod settings;
mod sidecar;
mod signals;
mod wire;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Parser;

use crate::admin::Look;
use crate::cli::{Cli, Command, Configuration, Reference, Running};
use crate::config::{Environment, Flags, Loaded, reference};
use crate::once::Outcome;
pub use crate::own_relay::OwnRelay;
use crate::push::{Push, Work};
pub use crate::server::{Server, open_store};
pub use crate::settings::{About, Processes, Settings, Store, Sync};

/// The `grasp` command.
pub fn run() -> ExitCode {
    match obey(Cli::parse().command) {
        Ok(code) => code,
        Err(error) => {
            // A line each, so that a script can tell them from the log.
            for line in format!("{error:#}").lines() {
                eprintln!("grasp: {line}");
            }
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
        Command::Push(asked) => push_to(asked)?,
        Command::Sync(asked) => return sync_once(asked),
        Command::Sidecar { relay, settings } => sidecar::run(load(&settings.flags)?, relay)?,
        Command::Demo { keep } => demo::run(keep)?,
        Command::Config(Configuration::Print(settings)) => {
            print!("{}", reference::in_force(&load(&settings.flags)?));
        }
        Command::Config(Configuration::Check(settings)) => check(&load(&settings.flags)?),
        Command::Reference { of } => print!("{}", text_of(of)),
    }
    Ok(ExitCode::SUCCESS)
}

fn text_of(reference: Reference) -> String {
    match reference {
        Reference::Settings => config::reference::markdown(),
        Reference::Metrics => metrics::reference::markdown(),
        Reference::Commands => cli::reference::markdown(),
    }
}

fn load(flags: &Flags) -> Result<Loaded> {
    Ok(config::load(flags, &Environment)?)
}

fn look_at(server: &Running, what: Look) -> Result<()> {
    let config = load(&server.flags())?.config;
    admin::look(&config.admin_socket(), what, server.json)
}

fn push_to(asked: cli::Push) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // First of all: nobody gets a key made for nothing.
    let work = runtime.block_on(Work::open(&std::env::current_dir()?))?;
    let keys = key::load_or_create_aloud(&match &asked.key {
        Some(file) => file.clone(),
        None => key::of_user()?,
    })?;
    let cli::Push { name, server: servers, refs, force, accept_fewer, timeout, .. } = asked;
    let timeout = Duration::from_secs(timeout);
    let push = Push { keys, name, servers, work, refs, force, accept_fewer, timeout };
    let urls = runtime.block_on(push::push(&push))?;
    print!("{}", push::told(&push.keys, &urls));
    Ok(())
}

fn sync_once(asked: cli::Sync) -> Result<ExitCode> {
    let loaded = load(&asked.settings.flags)?;
    match once::run(loaded, asked.from, Duration::from_secs(asked.patience))? {
        Outcome::Complete => Ok(ExitCode::SUCCESS),
        Outcome::Incomplete => Ok(ExitCode::from(2)),
    }
}

/// What is wrong was an error before; what is only strange is mentioned.
fn check(loaded: &Loaded) {
    for name in &loaded.unknown_vars {
        eprintln!("grasp: {name} is in the environment and no setting of ours");
    }
    match &loaded.file {
        Some(file) => println!("no problems in {}", file.display()),
        None => println!("no problems; there is no settings file"),
    }
}
