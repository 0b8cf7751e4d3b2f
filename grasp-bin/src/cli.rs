//! What can be said on the command line.

pub(crate) mod reference;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use grasp_core::{Identifier, RelayUrl};

use crate::config::Flags;
use crate::config::document::Document;
use crate::push::Target;

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
    /// Shows how a running server stands.
    Status {
        #[command(flatten)]
        server: Running,
        /// Keeps it on the screen and fresh, until Ctrl-C.
        #[arg(long)]
        watch: bool,
    },
    /// Lists the repositories of a running server.
    Repos(Running),
    /// Lists the relays that a running server follows.
    Relays(Running),
    /// Lists what waits for git data at a running server.
    Purgatory(Running),
    /// Looks at everything that a server needs from its surroundings, and names remedies.
    Doctor {
        #[command(flatten)]
        settings: Settings,
        /// Leaves the network alone.
        #[arg(long)]
        offline: bool,
    },
    /// Announces the repository of a working copy at servers, signs its state, and pushes it.
    Push(Push),
    /// Brings everything that other relays have into the store, without serving.
    Sync(Sync),
    /// Keeps another relay complete, whatever software it is (GRASP-02 beside a relay that knows nothing of it).
    Sidecar {
        /// The relay. Without one: `sidecar.relay` of the settings.
        #[arg(long, value_name = "URL")]
        relay: Option<RelayUrl>,
        #[command(flatten)]
        settings: Settings,
    },
    /// Shows two servers on loopback keeping a repository in step.
    Demo {
        /// Leaves them there until Ctrl-C.
        #[arg(long)]
        keep: bool,
    },
    /// Shows or checks the settings.
    #[command(subcommand)]
    Config(Configuration),
    /// Prints a reference, as Markdown.
    Reference {
        /// Of what.
        #[arg(long, value_enum, default_value = "settings")]
        of: Reference,
    },
}

/// What there is a reference of.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Reference {
    Settings,
    Metrics,
    Commands,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Configuration {
    /// Prints everything in force, as a file, with who said so.
    Print(Settings),
    /// Says what is wrong with the settings, with key and line.
    Check(Settings),
}

/// Every setting. `-h` shows the common ones, `--help` all.
#[derive(Debug, Args)]
pub(crate) struct Settings {
    #[command(flatten)]
    pub(crate) flags: Flags,
}

#[derive(Debug, Args)]
pub(crate) struct Push {
    /// A server to push to, as HOST[:PORT][/MOUNT] with or without a scheme; may be given several times.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7334")]
    pub(crate) server: Vec<Target>,
    /// The repository's name. Without one: that of the working copy's directory.
    #[arg(long)]
    pub(crate) name: Option<Identifier>,
    /// The file with the maintainer's key, made if there is none. Without one: in the user's data directory.
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
    /// Branches and tags to push, as patterns of `git for-each-ref`, with or without `refs/heads/` or `refs/tags/`; may be
    /// given several times. Without one: all.
    #[arg(long, value_name = "PATTERN")]
    pub(crate) refs: Vec<String>,
    /// Takes away what the servers have and the working copy lacks.
    #[arg(long)]
    pub(crate) force: bool,
    /// Signs an announcement although it names fewer maintainers or relays than the one that the working copy saw last.
    #[arg(long)]
    pub(crate) accept_fewer: bool,
    /// How long it may take, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "3600")]
    pub(crate) timeout: u64,
}

#[derive(Debug, Args)]
pub(crate) struct Sync {
    /// Ends once everything is here: exit code 0 if it is, 2 if some of it could not be had.
    #[arg(long, required = true)]
    once: bool,
    /// A relay to bring events from; may be given several times.
    #[arg(long, value_name = "URL", required = true)]
    pub(crate) from: Vec<RelayUrl>,
    /// How long it may take, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "3600")]
    pub(crate) patience: u64,
    #[command(flatten)]
    pub(crate) settings: Settings,
}

/// Which running server is meant.
#[derive(Debug, Args)]
pub(crate) struct Running {
    /// Its settings file.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Its data directory.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Its admin socket, if that is elsewhere.
    #[arg(long, value_name = "PATH")]
    admin_socket: Option<PathBuf>,
    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

impl Running {
    /// Returns the same as flags of the server itself.
    pub(crate) fn flags(&self) -> Flags {
        let (data_dir, admin_socket) = (self.data_dir.clone(), self.admin_socket.clone());
        let document = Document { data_dir, admin_socket, ..Document::default() };
        Flags { file: self.config.clone(), document }
    }
}
