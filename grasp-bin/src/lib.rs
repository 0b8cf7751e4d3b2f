//! The wiring of a grasp server: reads what the operator wants, builds the parts, hands them to each other.
//!
//! No rule lives here. The command is [`run`]; whole-instance tests build the same [`Server`] that it does.

mod cli;
mod own_relay;
mod serve;
mod server;
mod service_key;
mod settings;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Command};
pub use crate::own_relay::OwnRelay;
pub use crate::server::Server;
pub use crate::settings::{Hunt, Settings, Store, Sync};

/// The `grasp` command.
pub fn run() -> ExitCode {
    let cli = Cli::parse();
    cli.log.start();
    let Command::Serve(settings) = cli.command;
    match serve::run(&settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("grasp: {error:#}");
            ExitCode::FAILURE
        }
    }
}
