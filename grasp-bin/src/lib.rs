//! The wiring of a grasp server: reads what the operator wants, builds the parts, hands them to each other.
//!
//! No rule lives here. The command is [`run`]; whole-instance tests build the same [`Server`] that it does.

mod cli;
mod config;
mod key;
mod notify;
mod own_relay;
mod serve;
mod server;
mod settings;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

use crate::cli::{Cli, Command, Configuration};
use crate::config::{Environment, Layers, Loaded, reference};
pub use crate::own_relay::OwnRelay;
pub use crate::server::Server;
pub use crate::settings::{About, Hunt, Processes, Settings, Store};

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
        Command::Serve(settings) => serve::run(load(&settings)?)?,
        Command::Config(Configuration::Print(settings)) => {
            print!("{}", reference::in_force(&load(&settings)?));
        }
        Command::Config(Configuration::Check(settings)) => check(&load(&settings)?),
        Command::Config(Configuration::Reference) => print!("{}", reference::markdown()),
    }
    Ok(ExitCode::SUCCESS)
}

fn load(settings: &cli::Settings) -> Result<Loaded> {
    Ok(Layers::load(&settings.flags, &Environment)?)
}

/// What is wrong was an error before; what is only strange is mentioned.
fn check(loaded: &Loaded) {
    for name in &loaded.strangers {
        eprintln!("grasp: {name} is in the environment and no setting of ours");
    }
}
