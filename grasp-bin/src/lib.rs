//! The `grasp` command: reads the settings, builds the parts of a server and connects them.
//!
//! Rules of the protocol are in the other crates. [`run`] is the command; tests build the same [`Server`].

#![allow(
    clippy::collapsible_if,
    reason = "the libraries that this code moves to promise a Rust without such conditions"
)]

mod admin;
mod arenas;
mod cli;
mod client;
mod config;
mod demo;
mod doctor;
mod files;
mod http;
mod identity;
mod init;
mod log;
mod manual;
mod metrics;
mod once;
mod operations;
mod outbox;
mod overview;
mod own_relay;
mod private;
mod push;
mod serve;
mod server;
mod settings;
mod sidecar;
mod signals;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Parser;

use crate::cli::{
    Cli, Command, ConfigCommand, PushArgs, RunningServer, ServerData, SidecarArgs, SyncArgs,
};
use crate::config::{Flags, Loaded};
use crate::operations::check::CheckRequest;
pub use crate::outbox::{OutboxMode, OutboxSettings};
pub use crate::own_relay::OwnRelay;
pub use crate::private::PrivateSettings;
use crate::push::{Push, Work};
pub use crate::server::tls::{Contact, TlsMode, TlsSettings};
pub use crate::server::{Server, open_store};
pub use crate::settings::{DatabaseUrl, QuotaSettings, Settings, Sync};

/// Runs the `grasp` command.
pub fn run() -> ExitCode {
    match execute(Cli::parse().command) {
        Ok(code) => code,
        Err(error) => {
            // A prefix on each line, so that a script can tell them from the log.
            for line in format!("{error:#}").lines() {
                eprintln!("grasp: {line}");
            }
            if let Some(remedy) = operations::database_remedy(&error) {
                eprintln!("grasp: the database is damaged: {remedy}");
            }
            ExitCode::FAILURE
        }
    }
}

fn execute(command: Command) -> Result<ExitCode> {
    if runs_for_long(&command) {
        arenas::bound();
    }
    match command {
        Command::Serve(flags) => serve::run(load(&flags)?)?,
        Command::Status { server, watch } => admin::status(&socket(&server)?, watch, server.json)?,
        Command::Repos(server) => admin::repositories(&socket(&server)?, server.json)?,
        Command::Usage { owner, server } => admin::usage(&socket(&server)?, owner, server.json)?,
        Command::Quota {
            subject,
            quota,
            server,
        } => admin::set_quota(&socket(&server)?, subject, quota)?,
        Command::Admin(args) => admin::administrate(&args)?,
        Command::Relays(server) => admin::relays(&socket(&server)?, server.json)?,
        Command::Purgatory(server) => admin::purgatory(&socket(&server)?, server.json)?,
        Command::Doctor { flags, offline } => {
            return Ok(exit_code(doctor::run(&load(&flags)?.config, offline)?));
        }
        Command::Purge { repository, server } => {
            operations::check::purge(&load(&server.flags())?.config, &repository)?;
        }
        Command::Check {
            repository,
            repair,
            drop_invalid,
            server,
        } => {
            let request = CheckRequest {
                repository,
                repair,
                drop_invalid,
                json: server.json,
            };
            return operations::check::run(&load(&server.flags())?.config, &request);
        }
        Command::Backup { dir, data } => return back_up(&dir, &data),
        Command::Restore {
            dir,
            accept_damage,
            data,
        } => {
            operations::restore::run(&load(&data.flags(None))?.config, &dir, accept_damage)?;
        }
        Command::Import { dir, flags } => return operations::import(&load(&flags)?.config, &dir),
        Command::Push(asked) => block_on(push_to(asked))?,
        Command::Sync(asked) => return sync_once(asked),
        Command::Sidecar(asked) => return run_sidecar(asked),
        Command::Demo { keep } => block_on(demo::run(keep))?,
        Command::Config(ConfigCommand::Print(flags)) => {
            print!("{}", config::in_force(&load(&flags)?));
        }
        Command::Config(ConfigCommand::Check(flags)) => print_check_result(&load(&flags)?),
        Command::Render => grasp_relay::web::render::worker::run()?,
        Command::Init(request) => return Ok(exit_code(init::run(&request)?)),
        Command::Completions { shell } => manual::print_completions(shell)?,
        Command::Man { dir } => manual::write_pages(dir.as_deref())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns whether the command keeps running, so that its memory matters.
fn runs_for_long(command: &Command) -> bool {
    matches!(
        command,
        Command::Serve(_) | Command::Sync(_) | Command::Sidecar(_)
    )
}

fn exit_code(is_success: bool) -> ExitCode {
    match is_success {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

fn back_up(dir: &Path, data: &ServerData) -> Result<ExitCode> {
    operations::backup::run(&load(&data.flags(None))?.config, dir)
}

fn load(flags: &Flags) -> Result<Loaded> {
    Ok(config::load(
        flags,
        &config::variables(std::env::vars_os()),
    )?)
}

/// Returns the admin socket of a running server.
fn socket(server: &RunningServer) -> Result<PathBuf> {
    Ok(load(&server.flags())?.config.admin_socket())
}

/// Runs a command that waits for files, processes and sockets.
fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Runtime::new()
        .context("could not start the runtime")?
        .block_on(work)
}

async fn push_to(args: PushArgs) -> Result<()> {
    // Before the key is created: a command that fails here must not leave one behind.
    let work = Work::open(&std::env::current_dir()?).await?;
    let keys = files::user_key(args.key.as_deref())?;
    let push = Push { keys, work, args };
    let urls = push::push(&push).await?;
    print!("{}", push::summary(&push.keys, &urls));
    Ok(())
}

fn sync_once(args: SyncArgs) -> Result<ExitCode> {
    let loaded = load(&args.flags)?;
    let is_complete = once::run(loaded, args.from, args.timeout)?;
    Ok(if is_complete {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(2)
    })
}

fn run_sidecar(args: SidecarArgs) -> Result<ExitCode> {
    let loaded = load(&args.flags)?;
    let once = args.once.then_some(args.timeout);
    let is_complete = sidecar::run(loaded, args.relay, once)?;
    Ok(if is_complete {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(2)
    })
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
