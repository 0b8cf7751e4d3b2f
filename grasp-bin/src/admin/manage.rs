//! `grasp admin`: the calls of administration as commands, over the socket of a running server or to any relay (NIP-86).

mod verb;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use grasp_relay::instance::admin::{AdminRequest, request};
use grasp_relay::instance::text::call_result;
use grasp_relay::management::rules::Request;
use grasp_relay::publish::{PushServer, management};
use serde_json::Value;

pub(crate) use self::verb::Verb;
use super::show::print;
use crate::config::{self, Flags};
use crate::{block_on, user_key};

/// What to do, and where.
#[derive(Debug, Args)]
pub(crate) struct AdminArgs {
    #[command(flatten)]
    place: ServerPlace,
    #[command(subcommand)]
    verb: Verb,
}

/// The server to administrate.
#[derive(Debug, Args)]
struct ServerPlace {
    /// A relay of any software, administrated by key (NIP-86), as HOST[:PORT][/MOUNT] with or without a scheme. Without one:
    /// the running server of this machine.
    #[arg(long, global = true, value_name = "ADDRESS")]
    server: Option<PushServer>,
    /// File with the key that signs calls to that relay. Without one: in the user's data directory.
    #[arg(long, global = true, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Settings file of the server of this machine.
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Data directory of the server of this machine.
    #[arg(long, global = true, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Admin socket of the server of this machine, if that is elsewhere.
    #[arg(long, global = true, value_name = "PATH")]
    admin_socket: Option<PathBuf>,
    /// Prints JSON.
    #[arg(long, global = true)]
    json: bool,
}

impl ServerPlace {
    /// Returns the flags that lead to the settings of the server of this machine.
    fn flags(&self) -> Flags {
        let paths = [
            ("data_dir", &self.data_dir),
            ("admin_socket", &self.admin_socket),
        ];
        let mut flags = Flags {
            file: self.config.clone(),
            ..Flags::default()
        };
        for (key, path) in paths {
            if let Some(path) = path {
                flags.given.insert(key, vec![path.display().to_string()]);
            }
        }
        flags
    }

    /// Makes a call, and returns its result.
    fn call(&self, call: &Request) -> Result<Value> {
        if let Some(server) = &self.server {
            if let Some(key) = &self.key {
                // A new key could do nothing.
                check_exists(key)?;
            }
            let keys = user_key(self.key.as_deref())?;
            return block_on(async { Ok(management::call(server, &keys, call).await?) });
        }
        let loaded = config::load(&self.flags(), &config::variables(std::env::vars_os()))?;
        let socket = loaded.config.settings.admin_socket();
        Ok(request(&socket, AdminRequest::Manage(call.clone()))?)
    }
}

fn check_exists(key: &Path) -> Result<()> {
    match key.try_exists() {
        Ok(true) => Ok(()),
        Ok(false) => bail!("there is no key in {}", key.display()),
        Err(error) => Err(error).with_context(|| format!("could not read {}", key.display())),
    }
}

/// Makes the calls of a command, and prints what they return.
pub(crate) fn run(args: &AdminArgs) -> Result<()> {
    for call in args.verb.calls()? {
        let result = args.place.call(&call)?;
        let text = |result: &Value| call_result(&call, result);
        print(&result, args.place.json, text)?;
    }
    Ok(())
}
