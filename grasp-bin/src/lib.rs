//! The `grasp` command: command line, settings, log and signals, and what is printed.
//!
//! Everything else is in the other crates: the server that `grasp serve` runs is `grasp_relay::instance::Server`.

mod admin;
mod arenas;
mod cli;
mod config;
mod demo;
mod init;
mod log;
mod manual;
mod once;
mod operations;
mod serve;
mod sidecar;
mod signals;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Error, Result};
use clap::Parser;
use grasp_core::RepoId;
use grasp_core::service::npub;
use grasp_relay::instance::operations::CheckRequest;
use grasp_relay::instance::{InstanceError, files};
use grasp_relay::publish::{self, Push, Work};
use nostr::key::Keys;

use crate::cli::{
    Cli, CliCommand, ConfigCommand, PushArgs, RunningServer, ServerData, SidecarArgs, SyncArgs,
};
use crate::config::{Flags, Loaded};

/// Runs the `grasp` command.
pub fn run() -> ExitCode {
    match execute(Cli::parse().command) {
        Ok(code) => code,
        Err(error) => {
            // A prefix on each line, so that a script can tell them from the log.
            for line in format!("{error:#}").lines() {
                eprintln!("grasp: {line}");
            }
            if let Some(remedy) = database_remedy(&error) {
                eprintln!("grasp: the database is damaged: {remedy}");
            }
            ExitCode::FAILURE
        }
    }
}

/// Returns the remedy for an error that a damaged database has caused.
fn database_remedy(error: &Error) -> Option<&'static str> {
    let error: &InstanceError = error.downcast_ref()?;
    error.database_remedy()
}

fn execute(command: CliCommand) -> Result<ExitCode> {
    if runs_for_long(&command) {
        arenas::bound();
    }
    match command {
        CliCommand::Serve(flags) => serve::run(load(&flags)?)?,
        CliCommand::Status { server, watch } => {
            admin::status(&socket(&server)?, watch, server.json)?
        }
        CliCommand::Repos(server) => admin::repositories(&socket(&server)?, server.json)?,
        CliCommand::Usage { owner, server } => admin::usage(&socket(&server)?, owner, server.json)?,
        CliCommand::Quota {
            subject,
            quota,
            server,
        } => admin::set_quota(&socket(&server)?, subject, quota)?,
        CliCommand::Admin(args) => admin::administrate(&args)?,
        CliCommand::Relays(server) => admin::relays(&socket(&server)?, server.json)?,
        CliCommand::Purgatory(server) => admin::purgatory(&socket(&server)?, server.json)?,
        CliCommand::Doctor { flags, offline } => {
            return operations::doctor(&load(&flags)?.config, offline);
        }
        CliCommand::Purge { repository, server } => purge(&server, &repository)?,
        CliCommand::Check {
            repository,
            repair,
            drop_invalid,
            server,
        } => {
            let request = CheckRequest {
                repository,
                repair,
                drop_invalid,
            };
            return check(&server, &request);
        }
        CliCommand::Backup { dir, data } => return back_up(&dir, &data),
        CliCommand::Restore {
            dir,
            accept_damage,
            data,
        } => restore(&data, &dir, accept_damage)?,
        CliCommand::Import { dir, flags } => {
            return operations::import(&load(&flags)?.config.settings, &dir);
        }
        CliCommand::Push(asked) => block_on(push_to(asked))?,
        CliCommand::Sync(asked) => return sync_once(asked),
        CliCommand::Sidecar(asked) => return run_sidecar(asked),
        CliCommand::Demo { keep } => block_on(demo::run(keep))?,
        CliCommand::Config(ConfigCommand::Print(flags)) => {
            print!("{}", config::in_force(&load(&flags)?));
        }
        CliCommand::Config(ConfigCommand::Check(flags)) => print_check_result(&load(&flags)?),
        CliCommand::Render => grasp_relay::web::render::worker::run()?,
        CliCommand::Init(request) => return Ok(exit_code(init::run(&request)?)),
        CliCommand::Completions { shell } => manual::print_completions(shell)?,
        CliCommand::Man { dir } => manual::write_pages(dir.as_deref())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns whether the command keeps running, so that its memory matters.
fn runs_for_long(command: &CliCommand) -> bool {
    matches!(
        command,
        CliCommand::Serve(_) | CliCommand::Sync(_) | CliCommand::Sidecar(_)
    )
}

fn exit_code(is_success: bool) -> ExitCode {
    match is_success {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

fn check(server: &RunningServer, request: &CheckRequest) -> Result<ExitCode> {
    let settings = load(&server.flags())?.config.settings;
    operations::check(&settings, request, server.json)
}

fn purge(server: &RunningServer, repo: &RepoId) -> Result<()> {
    operations::purge(&load(&server.flags())?.config.settings, repo)
}

fn restore(data: &ServerData, dir: &Path, accept_damage: bool) -> Result<()> {
    let settings = load(&data.flags(None))?.config.settings;
    operations::restore(&settings, dir, accept_damage)
}

fn back_up(dir: &Path, data: &ServerData) -> Result<ExitCode> {
    operations::back_up(&load(&data.flags(None))?.config.settings, dir)
}

fn load(flags: &Flags) -> Result<Loaded> {
    Ok(config::load(
        flags,
        &config::variables(std::env::vars_os()),
    )?)
}

/// Returns the admin socket of a running server.
fn socket(server: &RunningServer) -> Result<PathBuf> {
    Ok(load(&server.flags())?.config.settings.admin_socket())
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
    let push = Push {
        keys: user_key(args.key.as_deref())?,
        work,
        servers: args.server,
        name: args.name,
        refs: args.refs,
        force: args.force,
        accept_fewer: args.accept_fewer,
        timeout: args.timeout,
        warn,
    };
    let urls = publish::push(&push).await?;
    println!("pushed as {}", npub(&push.keys.public_key()));
    for url in urls {
        println!("  git clone {url}");
    }
    Ok(())
}

/// Prints a warning.
fn warn(text: &str) {
    eprintln!("grasp: warning: {text}");
}

/// Reads the user's key from this file or the one in their directory for data, or creates it and says so on standard
/// error: `grasp push` has no log.
pub(crate) fn user_key(path: Option<&Path>) -> Result<Keys> {
    let var = |name| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let home = || var("HOME").map(|home| home.join(".local/share"));
    let data = || Some(var("XDG_DATA_HOME").or_else(home)?.join("grasp/user.key"));
    let path = path.map(Path::to_owned).or_else(data);
    let path = path.context("there is no home directory for the key; set --key")?;
    let (keys, is_new) = files::load_or_create(&path)?;
    if is_new {
        let path = path.display();
        eprintln!("grasp: created your key, {path}; keep a copy of it in a safe place");
    }
    Ok(keys)
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
