//! The `grasp` command: reads what the operator wants, builds the parts, hands them to each other.

mod cli;
mod serve;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Command};

fn main() -> ExitCode {
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
