//! The `grasp` command: reads the settings, builds the parts of a server and connects them.
//!
//! Rules of the protocol are in the other crates. [`run`] is the command; tests build the same [`Server`].

mod admin;
mod cli;
mod client;
mod config;
mod demo;
mod doctor;
mod files;
mod http;
mod log;
mod metrics;
mod once;
mod overview;
mod own_relay;
mod push;
mod serve;
mod server;
mod settings;
mod sidecar;
mod signals;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Parser;

use crate::admin::AdminCommand;
use crate::cli::{Cli, Command, ConfigCommand, PushArgs, Reference, RunningServer, SyncArgs};
use crate::config::{Flags, Loaded, reference};
use crate::once::Outcome;
pub use crate::own_relay::OwnRelay;
use crate::push::{Push, Work};
pub use crate::server::{Server, open_store};
pub use crate::settings::{Settings, Sync};

/// Runs the `grasp` command.
pub fn run() -> ExitCode {
    match execute(Cli::parse().command) {
        Ok(code) => code,
        Err(error) => {
            // A prefix on each line, so that a script can tell them from the log.
            for line in format!("{error:#}").lines() {
                eprintln!("grasp: {line}");
            }
            ExitCode::FAILURE
        }
    }
}

fn execute(command: Command) -> Result<ExitCode> {
    match command {
        Command::Serve(settings) => serve::run(load(&settings.flags)?)?,
        Command::Status { server, watch: false } => query(&server, AdminCommand::Status)?,
        Command::Status { server, watch: true } => query(&server, AdminCommand::Watch)?,
        Command::Repos(server) => query(&server, AdminCommand::Repositories)?,
        Command::Relays(server) => query(&server, AdminCommand::Relays)?,
        Command::Purgatory(server) => query(&server, AdminCommand::Purgatory)?,
        Command::Doctor { settings, offline } => {
            let healthy = doctor::run(&load(&settings.flags)?.config, offline)?;
            return Ok(if healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        Command::Push(asked) => push_to(asked)?,
        Command::Sync(asked) => return sync_once(asked),
        Command::Sidecar { relay, settings } => sidecar::run(load(&settings.flags)?, relay)?,
        Command::Demo { keep } => demo::run(keep)?,
        Command::Config(ConfigCommand::Print(settings)) => {
            print!("{}", reference::in_force(&load(&settings.flags)?));
        }
        Command::Config(ConfigCommand::Check(settings)) => {
            print_check_result(&load(&settings.flags)?)
        }
        Command::Reference { of } => print!("{}", markdown_of(of)),
    }
    Ok(ExitCode::SUCCESS)
}

fn markdown_of(reference: Reference) -> String {
    match reference {
        Reference::Settings => config::reference::markdown(),
        Reference::Metrics => metrics::markdown(),
        Reference::Commands => cli::markdown(),
    }
}

fn load(flags: &Flags) -> Result<Loaded> {
    Ok(config::load(flags, &config::variables(std::env::vars_os()))?)
}

fn query(server: &RunningServer, command: AdminCommand) -> Result<()> {
    let config = load(&server.flags())?.config;
    admin::run(&config.admin_socket(), command, server.json)
}

fn push_to(asked: PushArgs) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // Before the key is created: a command that fails here must not leave one behind.
    let work = runtime.block_on(Work::open(&std::env::current_dir()?))?;
    let keys = files::user_key(&match &asked.key {
        Some(file) => file.clone(),
        None => files::user_key_path()?,
    })?;
    let PushArgs { name, server: servers, refs, force, accept_fewer, timeout, .. } = asked;
    let timeout = Duration::from_secs(timeout);
    let push = Push { keys, name, servers, work, refs, force, accept_fewer, timeout };
    let urls = runtime.block_on(push::push(&push))?;
    print!("{}", push::told(&push.keys, &urls));
    Ok(())
}

fn sync_once(asked: SyncArgs) -> Result<ExitCode> {
    let loaded = load(&asked.settings.flags)?;
    match once::run(loaded, asked.from, Duration::from_secs(asked.time_limit))? {
        Outcome::Complete => Ok(ExitCode::SUCCESS),
        Outcome::Incomplete => Ok(ExitCode::from(2)),
    }
}

/// Prints the result of `grasp config check`; wrong settings have failed to load before.
fn print_check_result(loaded: &Loaded) {
    for name in &loaded.unknown_vars {
        eprintln!("grasp: the environment variable {name} is not a setting");
    }
    match &loaded.file {
        Some(file) => println!("no problems in {}", file.display()),
        None => println!("no problems; there is no settings file"),
    }
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
