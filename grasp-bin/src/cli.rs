//! What can be said on the command line.

use std::io::IsTerminal;

use clap::{Args, Parser, Subcommand};
use tracing_subscriber::EnvFilter;

use crate::config::flags::Flags;
use crate::config::{Log, LogFormat};

/// Git repositories that belong to their maintainers: a nostr relay and git host.
#[derive(Debug, Parser)]
#[command(name = "grasp", version)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Runs the server until it is told to stop (Ctrl-C or SIGTERM).
    Serve(Settings),
    /// Shows or checks the settings.
    #[command(subcommand)]
    Config(Configuration),
}

#[derive(Debug, Subcommand)]
pub(crate) enum Configuration {
    /// Prints everything in force, as a file, with who said so.
    Print(Settings),
    /// Says what is wrong with the settings, and nothing if nothing is.
    Check(Settings),
    /// Prints the reference of all settings, as Markdown.
    Reference,
}

/// Every setting. `-h` shows the common ones, `--help` all.
#[derive(Debug, Args)]
pub(crate) struct Settings {
    #[command(flatten)]
    pub(crate) flags: Flags,
}

impl Log {
    /// Begins to write the log to standard error.
    pub(crate) fn start(&self) {
        let log = tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::new(&self.filter))
            .with_ansi(std::io::stderr().is_terminal())
            .with_writer(std::io::stderr);
        match self.format {
            LogFormat::Human => log.init(),
            LogFormat::Json => log.json().init(),
        }
    }
}
