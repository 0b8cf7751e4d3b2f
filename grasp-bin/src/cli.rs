//! What can be said on the command line or in the environment.

mod hunting;

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use grasp_core::{MaintainerModel, RelayUrl, ServiceIdentity};
use tracing_subscriber::EnvFilter;

use self::hunting::Hunting;
use crate::settings::Store;

/// Git repositories that belong to their maintainers: a nostr relay and git host.
#[derive(Debug, Parser)]
#[command(name = "grasp", version)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) log: Log,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Runs the server until it is told to stop (Ctrl-C or SIGTERM).
    Serve(Serve),
}

/// Where and as whom to serve.
#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Address and port to listen on.
    #[arg(long, env = "GRASP_LISTEN", default_value = "127.0.0.1:7334", value_name = "ADDR:PORT")]
    pub(crate) listen: SocketAddr,

    /// The address that others reach this server at, and that announcements must list. Defaults to where it listens.
    #[arg(long, env = "GRASP_DOMAIN", value_name = "HOST[:PORT][/MOUNT]")]
    pub(crate) domain: Option<ServiceIdentity>,

    /// Where everything is kept.
    #[arg(long, env = "GRASP_DATA_DIR", default_value = "data", value_name = "DIR")]
    pub(crate) data_dir: PathBuf,

    /// What keeps the events: our own store, or a database of the ecosystem that this build has as a feature.
    #[arg(long, env = "GRASP_STORE", value_enum, default_value = "sqlite")]
    pub(crate) store: Store,

    /// Who may sign states: whoever is listed and lists back, or whoever is listed.
    #[arg(long, env = "GRASP_MAINTAINERS", value_enum, default_value = "reciprocal")]
    pub(crate) maintainers: Model,

    /// A relay to sync from whether a repository names it or not; may be given several times.
    #[arg(long, env = "GRASP_BOOTSTRAP", value_name = "URL", value_delimiter = ',')]
    pub(crate) bootstrap: Vec<RelayUrl>,

    /// Lets events lead us to private addresses as well, for test networks. Bootstrap relays may always be private.
    #[arg(long, env = "GRASP_ALLOW_PRIVATE_TARGETS")]
    pub(crate) allow_private_targets: bool,

    /// Keeps to itself: events are not kept in step with other relays, and git data comes by pushes alone.
    #[arg(long, env = "GRASP_NO_SYNC")]
    pub(crate) no_sync: bool,

    #[command(flatten)]
    pub(crate) hunting: Hunting,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Model {
    Reciprocal,
    Plain,
}

impl From<Model> for MaintainerModel {
    fn from(model: Model) -> Self {
        match model {
            Model::Reciprocal => Self::Reciprocal,
            Model::Plain => Self::Plain,
        }
    }
}

/// How to tell what happens.
#[derive(Debug, Args)]
pub(crate) struct Log {
    /// For people or for machines.
    #[arg(long, env = "GRASP_LOG_FORMAT", value_enum, default_value = "human", global = true)]
    log_format: LogFormat,

    /// What to tell, as in `info` or `grasp_relay=debug`.
    #[arg(long, env = "GRASP_LOG", default_value = "info", global = true, value_name = "FILTER")]
    log: String,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormat {
    Human,
    Json,
}

impl Log {
    /// Begins to write the log to standard error.
    pub(crate) fn start(&self) {
        let log = tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::new(&self.log))
            .with_ansi(std::io::stderr().is_terminal())
            .with_writer(std::io::stderr);
        match self.log_format {
            LogFormat::Human => log.init(),
            LogFormat::Json => log.json().init(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Serve, clap::Error> {
        let args = ["grasp", "serve"].iter().chain(args);
        let Command::Serve(serve) = Cli::try_parse_from(args)?.command;
        Ok(serve)
    }

    #[test]
    fn defaults_are_loopback_and_a_directory_beside_us() {
        let serve = parse(&[]).unwrap();
        assert_eq!(serve.listen.to_string(), "127.0.0.1:7334");
        assert_eq!(serve.data_dir, PathBuf::from("data"));
        assert!(serve.domain.is_none());
    }

    #[test]
    fn a_domain_may_have_a_port_and_a_mount() {
        let serve = parse(&["--domain", "grasp.example:8443/git"]).unwrap();
        assert_eq!(serve.domain.unwrap().to_string(), "grasp.example:8443/git");
    }

    #[test]
    fn impossible_values_are_refused_by_name() {
        for (flag, value) in
            [("--listen", "nowhere"), ("--domain", "a b"), ("--bootstrap", "https://a.example")]
        {
            let error = parse(&[flag, value]).unwrap_err().to_string();
            assert!(error.contains(flag), "{error}");
        }
    }
}
