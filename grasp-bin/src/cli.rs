//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use bytesize::ByteSize;
use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use grasp_core::quota::QuotaSubject;
use grasp_core::{Identifier, RelayUrl, RepoId};
use grasp_relay::instance::operations::parse_repository;
use grasp_relay::publish::PushServer;
use nostr::key::PublicKey;

use crate::admin::AdminArgs;
use crate::config::Flags;
use crate::init::InitArgs;

/// Git repositories that belong to their maintainers: a nostr relay and git host.
#[derive(Debug, Parser)]
#[command(name = "grasp", version)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: CliCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CliCommand {
    /// Runs the server until Ctrl-C or SIGTERM.
    Serve(Flags),
    /// Sets up a new server: writes its settings, checks this machine, and starts it. Overwrites nothing.
    Init(InitArgs),
    /// Shows the status of a running server.
    Status {
        #[command(flatten)]
        server: RunningServer,
        /// Shows it again every 2 seconds, until Ctrl-C.
        #[arg(long)]
        watch: bool,
    },
    /// Lists the repositories of a running server.
    Repos(RunningServer),
    /// Shows how much git data the owners of repositories have at a running server, and how much they may have.
    Usage {
        /// The owner whose repositories to show. Without one: all owners, those with most first.
        #[arg(value_name = "NPUB", value_parser = parse_owner)]
        owner: Option<PublicKey>,
        #[command(flatten)]
        server: RunningServer,
    },
    /// Gives an owner or a repository another quota of git data at a running server, at once and for good.
    Quota {
        /// The owner, as `NPUB`, or the repository, as `NPUB/NAME`.
        #[arg(value_name = "NPUB[/NAME]")]
        subject: QuotaSubject,
        /// The quota, as in `2GiB`; `none` for that of the settings.
        #[arg(value_name = "BYTES", value_parser = parse_quota)]
        quota: QuotaArg,
        #[command(flatten)]
        server: RunningServer,
    },
    /// Moderates and administrates a running server, or any relay by key (NIP-86).
    Admin(AdminArgs),
    /// Lists the relays that a running server follows.
    Relays(RunningServer),
    /// Lists the repositories whose events wait for git data at a running server.
    Purgatory(RunningServer),
    /// Checks what a server needs from its surroundings, and names a remedy for each problem.
    Doctor {
        #[command(flatten)]
        flags: Flags,
        /// Skips the checks that use the network.
        #[arg(long)]
        offline: bool,
    },
    /// Looks for missing and damaged data on disk, and verifies all stored events: exit code 0 if everything is sound, 1 if it
    /// is not. Changes nothing without `--repair` or `--drop-invalid`.
    Check {
        /// The repository to check, as `30617:KEY:NAME` or `NPUB/NAME`. Without one: all.
        #[arg(value_name = "REPOSITORY", value_parser = parse_repository)]
        repository: Option<RepoId>,
        /// Keeps what is readable of damaged packs, has the running server fetch what is missing from other servers, and
        /// waits up to a minute for it.
        #[arg(long)]
        repair: bool,
        /// Drops stored events whose id or signature does not verify. The server must be stopped.
        #[arg(long, conflicts_with = "repository")]
        drop_invalid: bool,
        #[command(flatten)]
        server: RunningServer,
    },
    /// Removes from a repository what no branch, tag or pull request needs, such as commits that a forced push replaced. They
    /// are kept for 90 days otherwise, and can be read by their ids.
    Purge {
        /// The repository, as `30617:KEY:NAME` or `NPUB/NAME`.
        #[arg(value_name = "REPOSITORY", value_parser = parse_repository)]
        repository: RepoId,
        #[command(flatten)]
        server: RunningServer,
    },
    /// Copies the data of a server, running or not, into a new directory: exit code 1 if packs were missing.
    Backup {
        /// The directory of the backup. It must be empty, or not exist.
        #[arg(value_name = "DIR")]
        dir: PathBuf,
        #[command(flatten)]
        data: ServerData,
    },
    /// Checks a backup, and installs it into an empty data directory.
    Restore {
        /// The directory of the backup.
        #[arg(value_name = "DIR")]
        dir: PathBuf,
        /// Installs a backup with missing or damaged packs, too. `grasp check --repair` can then fetch what is missing.
        #[arg(long)]
        accept_damage: bool,
        #[command(flatten)]
        data: ServerData,
    },
    /// Moves the data of a single server that is stopped to the database and the object store of several nodes: exit code
    /// 1 if packs were missing.
    Import {
        /// The data directory of the single server. It is not changed.
        #[arg(value_name = "DIR")]
        dir: PathBuf,
        #[command(flatten)]
        flags: Flags,
    },
    /// Announces the repository of a working copy at servers, signs its state, and pushes it.
    Push(PushArgs),
    /// Fetches everything that other relays have into the store, without serving.
    Sync(SyncArgs),
    /// Syncs another relay, of any software, with the relays of its repositories (GRASP-02).
    Sidecar(SidecarArgs),
    /// Shows how two servers on loopback sync a repository.
    Demo {
        /// Keeps the servers running until Ctrl-C.
        #[arg(long)]
        keep: bool,
    },
    /// Shows or checks the settings.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Renders text for pages, as the server asks on standard input.
    #[command(hide = true)]
    Render,
    /// Prints the completions of a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Prints the manual page, or writes those of all commands.
    Man {
        /// The directory to write the pages of all commands to. It must exist.
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
}

/// A quota of the command line; `None` for that of the settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QuotaArg(pub(crate) Option<u64>);

pub(crate) fn parse_quota(text: &str) -> Result<QuotaArg, &'static str> {
    if text == "none" {
        return Ok(QuotaArg(None));
    }
    let size: Option<ByteSize> = text.parse().ok();
    match size.map(|size| size.as_u64()) {
        Some(bytes) if bytes <= MAX_QUOTA => Ok(QuotaArg(Some(bytes))),
        _ => Err("expected bytes, as in 2GiB, or none"),
    }
}

pub(crate) fn parse_owner(text: &str) -> Result<PublicKey, &'static str> {
    PublicKey::parse(text).map_err(|_| "expected an npub or a key in hex")
}

/// The largest quota: more would not fit into the database.
const MAX_QUOTA: u64 = i64::MAX.unsigned_abs();

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Prints every setting in force as a settings file, with the source of each value.
    Print(Flags),
    /// Reports wrong settings, with key and line.
    Check(Flags),
}

#[derive(Clone, Debug, Args)]
pub(crate) struct SidecarArgs {
    /// The relay. Without one: `sidecar.relay` of the settings.
    #[arg(long, value_name = "URL")]
    pub(crate) relay: Option<RelayUrl>,
    /// Ends once everything is there: exit code 0 if it is, 2 if some of it could not be fetched.
    #[arg(long)]
    pub(crate) once: bool,
    /// Time limit with `--once`, such as `90s` or `2h`.
    #[arg(long, value_name = "TIME", default_value = "1h", requires = "once", value_parser = humantime::parse_duration)]
    pub(crate) timeout: Duration,
    #[command(flatten)]
    pub(crate) flags: Flags,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct PushArgs {
    /// A server to push to, as HOST[:PORT][/MOUNT] with or without a scheme; may be given several times.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7334")]
    pub(crate) server: Vec<PushServer>,
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
    /// Deletes what the servers have and the working copy lacks.
    #[arg(long)]
    pub(crate) force: bool,
    /// Signs an announcement although it names fewer maintainers or relays than the one that the working copy saw last.
    #[arg(long)]
    pub(crate) accept_fewer: bool,
    /// Time limit, such as `90s` or `2h`.
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = humantime::parse_duration)]
    pub(crate) timeout: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct SyncArgs {
    /// Ends once everything is here: exit code 0 if it is, 2 if some of it could not be fetched.
    #[arg(long, required = true)]
    once: bool,
    /// A relay to fetch events from; may be given several times.
    #[arg(long, value_name = "URL", required = true)]
    pub(crate) from: Vec<RelayUrl>,
    /// Time limit, such as `90s` or `2h`.
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = humantime::parse_duration)]
    pub(crate) timeout: Duration,
    #[command(flatten)]
    pub(crate) flags: Flags,
}

/// Selects the data of a server.
#[derive(Debug, Args)]
pub(crate) struct ServerData {
    /// Its settings file.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Its data directory.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

impl ServerData {
    /// Returns the flags that lead to the settings of that server.
    pub(crate) fn flags(&self, admin_socket: Option<&PathBuf>) -> Flags {
        let paths = [
            ("data_dir", self.data_dir.as_ref()),
            ("admin_socket", admin_socket),
        ];
        let given = paths
            .into_iter()
            .filter_map(|(key, path)| Some((key, vec![path?.display().to_string()])));
        Flags {
            file: self.config.clone(),
            given: given.collect(),
        }
    }
}

/// Selects a running server.
#[derive(Debug, Args)]
pub(crate) struct RunningServer {
    #[command(flatten)]
    data: ServerData,
    /// Its admin socket, if that is elsewhere.
    #[arg(long, value_name = "PATH")]
    admin_socket: Option<PathBuf>,
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

impl RunningServer {
    /// Returns the flags that lead to the settings of that server.
    pub(crate) fn flags(&self) -> Flags {
        self.data.flags(self.admin_socket.as_ref())
    }
}
