//! `grasp init`: the settings of a new server, its unit, and its first start.
//!
//! What will be written is decided by [`plan`], which touches nothing. Nothing that exists is overwritten.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;
use grasp_core::ServiceIdentity;
use grasp_core::service::npub;
use grasp_relay::instance::{Contact, doctor};
use nostr::key::PublicKey;
use toml::Value;

use crate::config::{self, Flags, Variables};
use crate::{block_on, operations};

/// The unit, for a program in `/usr/local/bin`.
const UNIT: &str = include_str!("init/grasp.service");
const UNIT_PROGRAM: &str = "/usr/local/bin/grasp";
const UNIT_SETTINGS: &str = "/etc/grasp/grasp.toml";

/// Where units are that an administrator writes.
const UNIT_FILE: &str = "/etc/systemd/system/grasp.service";

/// Where packages install units. Such a unit reads the default settings file, and leaves with its package.
const PACKAGED_UNIT: &str = "/usr/lib/systemd/system/grasp.service";

/// Exists while systemd is the init process.
const SYSTEMD_RUNS: &str = "/run/systemd/system";

/// The data directory of the unit.
const UNIT_DATA: &str = "/var/lib/grasp";

/// The new server.
#[derive(Clone, Debug, Args)]
pub(crate) struct InitArgs {
    /// The public address of the server, as `git.example.com`.
    #[arg(long, value_name = "HOST")]
    domain: ServiceIdentity,
    /// Your public key, as npub or hex.
    #[arg(long, value_name = "KEY", value_parser = parse_key)]
    operator: PublicKey,
    /// Your mail address for the ACME server, as `operator@example.com`.
    #[arg(long, value_name = "MAIL")]
    contact: Option<Contact>,
    /// Leaves TLS to a proxy on this machine.
    #[arg(long)]
    behind_proxy: bool,
    /// Writes a systemd unit, too, and starts it.
    #[arg(long)]
    systemd: bool,
    /// Prints what would be written and run, and changes nothing.
    #[arg(long)]
    dry_run: bool,
    /// The settings file to write. Default: `grasp.toml` in the working directory, with `--systemd` `/etc/grasp/grasp.toml`.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The data directory. Default: `data` in the working directory, with `--systemd` `/var/lib/grasp`.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

fn parse_key(text: &str) -> Result<PublicKey, &'static str> {
    PublicKey::parse(text).map_err(|_| "expected a public key, as npub or hex")
}

/// What the machine has.
struct Machine {
    program: PathBuf,
    working_dir: PathBuf,
    systemd_runs: bool,
    has_packaged_unit: bool,
}

impl Machine {
    fn find() -> Result<Self> {
        Ok(Self {
            program: std::env::current_exe().context("could not find this program")?,
            working_dir: std::env::current_dir().context("could not find the working directory")?,
            systemd_runs: Path::new(SYSTEMD_RUNS).exists(),
            has_packaged_unit: Path::new(PACKAGED_UNIT).exists(),
        })
    }
}

/// What is to be written and run.
#[derive(Debug, PartialEq, Eq)]
struct SetupPlan {
    settings_file: PathBuf,
    files: Vec<PlannedFile>,
    commands: Vec<Vec<&'static str>>,
    /// What the user runs if no unit does.
    by_hand: String,
}

#[derive(Debug, PartialEq, Eq)]
struct PlannedFile {
    path: PathBuf,
    text: String,
}

/// Decides what is to be written and run.
fn plan(args: &InitArgs, machine: &Machine) -> SetupPlan {
    let dir = match args.systemd {
        true => PathBuf::from("/etc/grasp"),
        false => machine.working_dir.clone(),
    };
    let settings_file = args
        .config
        .clone()
        .unwrap_or_else(|| dir.join("grasp.toml"));
    let data_dir = args.data_dir.clone().unwrap_or_else(|| match args.systemd {
        true => UNIT_DATA.into(),
        false => machine.working_dir.join("data"),
    });
    let mut files = vec![PlannedFile {
        path: settings_file.clone(),
        text: settings_text(args, &data_dir),
    }];
    let is_packaged = machine.has_packaged_unit && settings_file == Path::new(UNIT_SETTINGS);
    if args.systemd && !is_packaged {
        let text = UNIT
            .replace(UNIT_PROGRAM, &machine.program.display().to_string())
            .replace(UNIT_SETTINGS, &settings_file.display().to_string());
        files.push(PlannedFile {
            path: UNIT_FILE.into(),
            text,
        });
    }
    let mut commands = Vec::new();
    if args.systemd && machine.systemd_runs {
        commands.push(vec!["systemctl", "daemon-reload"]);
        commands.push(vec!["systemctl", "enable", "--now", "grasp"]);
    }
    let by_hand = format!("grasp serve --config {}", settings_file.display());
    SetupPlan {
        settings_file,
        files,
        commands,
        by_hand,
    }
}

/// Returns the settings of a new server.
fn settings_text(args: &InitArgs, data_dir: &Path) -> String {
    let quoted = |text: String| Value::String(text).to_string();
    let mut text =
        String::from("# The public address of this server. Announcements must list it.\n");
    let _ = writeln!(text, "domain = {}", quoted(args.domain.to_string()));
    let _ = writeln!(
        text,
        "data_dir = {}",
        quoted(data_dir.display().to_string())
    );
    let operator = quoted(npub(&args.operator));
    let _ = writeln!(text, "\n# Your public key.\noperator = {operator}");
    if args.behind_proxy {
        text.push_str(
            "\n# The proxy, which does TLS. Its X-Forwarded-For is trusted.\n\
             trusted_proxies = [\"127.0.0.1\", \"::1\"]\n\n[git]\nsecure = true\n",
        );
        return text;
    }
    text.push_str(
        "\n[tls]\n# A certificate of Let's Encrypt, whose terms you accept with it.\nmode = \"acme\"\n",
    );
    if let Some(contact) = &args.contact {
        let _ = writeln!(text, "contact = {}", quoted(contact.to_string()));
    }
    text
}

/// Writes a new server's settings and unit, checks the machine, and starts the server. Returns whether nothing failed.
pub(crate) fn run(args: &InitArgs) -> Result<bool> {
    let plan = plan(args, &Machine::find()?);
    refuse_conflicts(&plan)?;
    if args.dry_run {
        print!("{}", described(&plan));
        return Ok(true);
    }
    for file in &plan.files {
        if write_new(file)? {
            println!("wrote {}", file.path.display());
        } else {
            println!("kept {}, which is the same", file.path.display());
        }
    }
    let flags = Flags {
        file: Some(plan.settings_file.clone()),
        ..Flags::default()
    };
    println!();
    let loaded = config::load(&flags, &Variables::new())?;
    // Nothing answers at the own address before the first start.
    let deployment = loaded.config.deployment();
    let findings = block_on(async { Ok(doctor::check_before_start(&deployment).await) })?;
    if !operations::print_findings(&findings) {
        println!(
            "\nThe server was not started. Remove the causes, then: {}",
            start(&plan)
        );
        return Ok(false);
    }
    for command in &plan.commands {
        println!("{}", command.join(" "));
        let status = Command::new(command[0]).args(&command[1..]).status();
        let status = status.with_context(|| format!("could not run {}", command[0]))?;
        if !status.success() {
            bail!("{} failed; see journalctl --unit grasp", command.join(" "));
        }
    }
    match plan.commands.is_empty() {
        true => println!("\nStart the server: {}", plan.by_hand),
        false => println!("\nThe server runs. Its log: journalctl --unit grasp --follow"),
    }
    Ok(true)
}

fn start(plan: &SetupPlan) -> String {
    match plan.commands.last() {
        Some(command) => command.join(" "),
        None => plan.by_hand.clone(),
    }
}

/// Returns what would happen.
fn described(plan: &SetupPlan) -> String {
    let mut text = String::new();
    for file in &plan.files {
        let _ = writeln!(text, "# {}\n{}", file.path.display(), file.text);
    }
    text.push_str("# commands\ngrasp doctor\n");
    for command in &plan.commands {
        let _ = writeln!(text, "{}", command.join(" "));
    }
    text
}

/// Fails before anything is written if a file exists with another text.
fn refuse_conflicts(plan: &SetupPlan) -> Result<()> {
    for file in &plan.files {
        match fs::read_to_string(&file.path) {
            Ok(text) if text != file.text => bail!(
                "{} exists with other content and is not overwritten; edit it, or move it away",
                file.path.display()
            ),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                return Err(error)
                    .with_context(|| format!("could not read {}", file.path.display()));
            }
        }
    }
    Ok(())
}

/// Writes a file that does not exist, and returns whether it did not.
fn write_new(file: &PlannedFile) -> Result<bool> {
    let writing = || format!("could not write {}", file.path.display());
    if let Some(dir) = file.path.parent() {
        fs::create_dir_all(dir).with_context(writing)?;
    }
    let opened = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        // The user of the unit reads it; it contains no secret.
        .mode(0o644)
        .open(&file.path);
    match opened {
        Ok(mut opened) => {
            opened
                .write_all(file.text.as_bytes())
                .and_then(|()| opened.sync_all())
                .with_context(writing)?;
            Ok(true)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error).with_context(writing),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: InitArgs,
    }

    const KEY: &str = "npub10elfcs4fr0l0r8af98jlmgdh9c8tcxjvz9qkw038js35mp4dma8qzvjptg";

    fn planned(more: &[&str]) -> SetupPlan {
        planned_on(false, more)
    }

    /// Returns the plan for a machine on which a package has installed the unit, or not.
    fn planned_on(has_packaged_unit: bool, more: &[&str]) -> SetupPlan {
        let line = ["init", "--domain", "git.example.com", "--operator", KEY];
        let line = Line::parse_from(line.iter().chain(more));
        let machine = Machine {
            program: "/opt/bin/grasp".into(),
            working_dir: "/home/alice".into(),
            systemd_runs: true,
            has_packaged_unit,
        };
        plan(&line.args, &machine)
    }

    #[test]
    fn without_systemd_there_are_only_settings_in_the_working_directory() {
        let plan = planned(&["--contact", "a@example.com"]);
        assert_eq!(plan.files.len(), 1);
        assert_eq!(plan.files[0].path, Path::new("/home/alice/grasp.toml"));
        for line in [
            "domain = \"git.example.com\"",
            "data_dir = \"/home/alice/data\"",
            "mode = \"acme\"",
            "contact = \"mailto:a@example.com\"",
        ] {
            assert!(plan.files[0].text.contains(line), "{plan:?}");
        }
        assert!(plan.files[0].text.contains(KEY) && plan.commands.is_empty());
    }

    #[test]
    fn the_unit_runs_this_program() {
        let plan = planned(&["--systemd"]);
        assert_eq!(plan.files.len(), 2);
        let expected = "ExecStart=/opt/bin/grasp serve --config /etc/grasp/grasp.toml\n";
        assert!(plan.files[1].text.contains(expected), "{plan:?}");
        assert_eq!(plan.commands.len(), 2);
    }

    #[test]
    fn the_unit_of_a_package_is_used_unless_the_settings_are_elsewhere() {
        let plan = planned_on(true, &["--systemd"]);
        assert_eq!(plan.files.len(), 1);
        assert_eq!(plan.commands.len(), 2);
        let elsewhere = planned_on(true, &["--systemd", "--config", "/opt/grasp.toml"]);
        assert_eq!(elsewhere.files.len(), 2);
    }

    #[test]
    fn behind_a_proxy_there_is_no_certificate() {
        let plan = planned(&["--behind-proxy"]);
        assert!(!plan.files[0].text.contains("[tls]"));
        assert!(plan.files[0].text.contains("secure = true"));
    }

    #[test]
    fn nothing_that_exists_is_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let file = PlannedFile {
            path: dir.path().join("sub/grasp.toml"),
            text: "new".into(),
        };
        assert!(write_new(&file).unwrap());
        assert!(!write_new(&file).unwrap());
        fs::write(&file.path, "edited").unwrap();
        let plan = SetupPlan {
            settings_file: file.path.clone(),
            files: vec![file],
            commands: Vec::new(),
            by_hand: String::new(),
        };
        let error = refuse_conflicts(&plan).unwrap_err().to_string();
        assert!(error.contains("is not overwritten"), "{error}");
        assert!(!write_new(&plan.files[0]).unwrap());
        assert_eq!(fs::read_to_string(&plan.files[0].path).unwrap(), "edited");
    }
}
