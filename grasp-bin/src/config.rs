//! The configuration: defaults, a file, the environment and flags, in that order.
//!
//! Every setting has one definition, in [`table`]. Its key in the file, its variable, its flag, its line in `--help` and
//! its row in the reference come from there.

mod setting;
mod table;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use clap::{Arg, ArgMatches, Command};
use grasp_core::{RelayUrl, ServiceIdentity};
use grasp_relay::instance::doctor::Deployment;
use grasp_relay::instance::{Settings, TlsMode};
use grasp_relay::management::rules::RelayText;
use toml::de::{DeTable, DeValue};

pub(crate) use self::setting::Setting;
pub(crate) use self::table::{SECTIONS, settings};

/// The port when none is chosen.
const PORT: u16 = 7334;

/// Prefix of all variables.
const PREFIX: &str = "GRASP_";

/// The file when none is named, in the data directory, the working directory or the user's.
const FILE: &str = "grasp.toml";

/// The variable that names the file.
const FILE_VARIABLE: &str = "GRASP_CONFIG";

/// The variable of the user's directory for data.
const XDG_DATA: &str = "XDG_DATA_HOME";

/// Everything that can be set for a process that serves.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// The address to listen on.
    pub(crate) listen: SocketAddr,
    /// The public address; the listening address if none is set.
    pub(crate) domain: Option<ServiceIdentity>,
    /// The relay that `grasp sidecar` syncs.
    pub(crate) sidecar_relay: Option<RelayUrl>,
    /// The address of the status pages of a sidecar.
    pub(crate) sidecar_listen: Option<SocketAddr>,
    pub(crate) log: LogSettings,
    /// The settings of the server. Its address is that of `listen` until the public one is known.
    pub(crate) settings: Settings,
}

impl Config {
    /// Returns the server as it is deployed on this machine.
    pub(crate) fn deployment(&self) -> Deployment {
        Deployment {
            listen: self.listen,
            domain: self.domain.clone(),
            settings: self.settings.clone(),
        }
    }
}

/// The settings of the log.
#[derive(Clone, Debug)]
pub(crate) struct LogSettings {
    pub(crate) filter: String,
    pub(crate) format: LogFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogFormat {
    Human,
    Json,
}

impl Default for Config {
    fn default() -> Self {
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, PORT));
        let service = listen
            .to_string()
            .parse()
            .expect("an address is a service's address");
        Self {
            listen,
            domain: None,
            sidecar_relay: None,
            sidecar_listen: None,
            log: LogSettings {
                filter: "info".into(),
                format: LogFormat::Human,
            },
            settings: Settings::new(service, "data"),
        }
    }
}

/// Flags of every command that takes settings.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flags {
    /// The settings file.
    pub(crate) file: Option<PathBuf>,
    /// The texts of each setting that is given, by key.
    pub(crate) given: BTreeMap<&'static str, Vec<String>>,
}

impl clap::Args for Flags {
    fn augment_args(command: Command) -> Command {
        let file = Arg::new("config")
            .long("config")
            .value_name("FILE")
            .value_parser(clap::value_parser!(PathBuf))
            .help_heading("The settings file")
            .help("The settings file [env: GRASP_CONFIG]");
        let flags = SECTIONS.iter().flat_map(|(section, title)| {
            let settings = settings()
                .iter()
                .filter(move |one| one.section() == *section);
            settings.map(|setting| setting.arg(title))
        });
        command.arg(file).args(flags)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl clap::FromArgMatches for Flags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let texts = |setting: &Setting| {
            let texts = matches.get_many::<String>(setting.key)?;
            Some((setting.key, texts.cloned().collect()))
        };
        let given = settings().iter().filter_map(texts).collect();
        Ok(Self {
            file: matches.get_one("config").cloned(),
            given,
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The environment of a process, by name.
pub(crate) type Variables = BTreeMap<String, String>;

/// Returns variables without those that are empty or not text, which count as none.
pub(crate) fn variables(all: impl Iterator<Item = (OsString, OsString)>) -> Variables {
    let text = |(name, value): (OsString, OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    all.filter_map(text)
        .filter(|(_, value)| !value.is_empty())
        .collect()
}

/// The source of a setting's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ValueSource {
    Default,
    /// A file, at a line.
    File(PathBuf, usize),
    Variable(String),
    Flag(String),
}

impl fmt::Display for ValueSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path, line) => write!(f, "{}:{line}", path.display()),
            Self::Variable(name) | Self::Flag(name) => f.write_str(name),
        }
    }
}

/// Reasons why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Problems {
    #[error("could not read {}", .0.display())]
    Unreadable(PathBuf, #[source] std::io::Error),
    /// A line for each setting that cannot be used: its source, its key and the reason.
    #[error("{}", .0.join("\n"))]
    Settings(Vec<String>),
}

/// A configuration, and the source of each value.
#[derive(Debug, Default)]
pub(crate) struct Loaded {
    pub(crate) config: Config,
    /// The file that was read.
    pub(crate) file: Option<PathBuf>,
    /// Variables with our prefix that are no settings. Container platforms make such variables, so this is no error.
    pub(crate) unknown_vars: Vec<String>,
    sources: BTreeMap<&'static str, ValueSource>,
    problems: Vec<String>,
}

impl Loaded {
    /// Starts the log and writes the source of the settings to it.
    pub(crate) fn start_log(&self) {
        self.config.log.start();
        if let Some(file) = &self.file {
            tracing::info!(file = %file.display(), "read the settings");
        }
        for name in &self.unknown_vars {
            tracing::warn!(name, "unknown variable with the prefix of settings");
        }
    }

    /// Whether a setting has its default value.
    pub(crate) fn is_default(&self, key: &str) -> bool {
        !self.sources.contains_key(key)
    }

    /// Returns the texts of NIP-11 that a file, a variable or a flag sets, and where.
    pub(crate) fn fixed_texts(&self) -> BTreeMap<RelayText, String> {
        let mut fixed = BTreeMap::new();
        for text in RelayText::ALL {
            let place = match self.source(text.setting()) {
                ValueSource::Default => continue,
                ValueSource::File(path, line) => format!("{}, line {line}", path.display()),
                ValueSource::Variable(name) => format!("the variable {name}"),
                ValueSource::Flag(name) => format!("the flag {name}"),
            };
            fixed.insert(text, place);
        }
        fixed
    }

    /// Returns the source of a setting's value.
    pub(crate) fn source(&self, key: &str) -> &ValueSource {
        self.sources.get(key).unwrap_or(&ValueSource::Default)
    }

    /// Sets a value over those of earlier layers, if it is one that the setting can have.
    fn set(
        &mut self,
        key: &str,
        texts: impl FnOnce(&Setting) -> Result<Vec<String>, String>,
        source: ValueSource,
    ) {
        let Some(setting) = settings().iter().find(|setting| setting.key == key) else {
            return self.refuse(&source, key, &unknown(key));
        };
        let set = texts(setting).and_then(|texts| setting.set(&mut self.config, &texts));
        match set {
            Ok(()) => _ = self.sources.insert(setting.key, source),
            Err(reason) => self.refuse(&source, key, &reason),
        }
    }

    fn refuse(&mut self, source: &ValueSource, key: &str, reason: &str) {
        let key = if key.is_empty() {
            String::new()
        } else {
            format!("{key}: ")
        };
        self.problems
            .push(format!("{source}: {key}{}", reason.trim()));
    }

    fn add_file(&mut self, path: &Path, text: &str) {
        let line_at = |byte: usize| text.bytes().take(byte).filter(|b| *b == b'\n').count() + 1;
        let source = |byte| ValueSource::File(path.to_owned(), line_at(byte));
        let table = match DeTable::parse(text) {
            Ok(table) => table,
            Err(error) => {
                let byte = error.span().map_or(0, |span| span.start);
                return self.refuse(&source(byte), "", error.message());
            }
        };
        for (name, value) in table.get_ref() {
            match value.get_ref() {
                DeValue::Table(section) => {
                    for (inner, value) in section {
                        let key = format!("{}.{}", name.get_ref(), inner.get_ref());
                        self.set(
                            &key,
                            |one| one.texts(value.get_ref()),
                            source(inner.span().start),
                        );
                    }
                }
                value => self.set(
                    name.get_ref(),
                    |one| one.texts(value),
                    source(name.span().start),
                ),
            }
        }
    }
}

/// Explains that there is no such key, with those of its section.
fn unknown(key: &str) -> String {
    let (section, name) = key.split_once('.').unwrap_or(("", key));
    let names = settings()
        .iter()
        .filter(|setting| setting.section() == section);
    let names: Vec<_> = names
        .map(|setting| format!("`{}`", setting.name()))
        .collect();
    match names.is_empty() {
        true => format!("unknown field: there is no section [{section}]"),
        false => format!(
            "unknown field `{name}`, expected one of {}",
            names.join(", ")
        ),
    }
}

/// Reads the file, the environment and the flags.
pub(crate) fn load(flags: &Flags, vars: &Variables) -> Result<Loaded, Problems> {
    let file = flags
        .file
        .clone()
        .or_else(|| vars.get(FILE_VARIABLE).map(PathBuf::from));
    let file = file.or_else(|| find_file(flags, vars));
    let read = |path: &PathBuf| {
        std::fs::read_to_string(path).map_err(|error| Problems::Unreadable(path.clone(), error))
    };
    let text = file.as_ref().map(read).transpose()?;
    merge(file.as_deref().zip(text.as_deref()), vars, flags)
}

/// Merges a file's text, the environment and the flags.
fn merge(file: Option<(&Path, &str)>, vars: &Variables, flags: &Flags) -> Result<Loaded, Problems> {
    let mut loaded = Loaded::default();
    if let Some(home) = xdg_data(vars) {
        loaded.set(
            "data_dir",
            |_| Ok(vec![home]),
            ValueSource::Variable(XDG_DATA.into()),
        );
    }
    if let Some((path, text)) = file {
        loaded.file = Some(path.to_owned());
        loaded.add_file(path, text);
    }
    let mut unknown: BTreeMap<_, _> = vars
        .iter()
        .filter(|(name, _)| name.starts_with(PREFIX) && *name != FILE_VARIABLE)
        .collect();
    for setting in settings() {
        if let Some(text) = unknown.remove(&setting.variable()) {
            let source = ValueSource::Variable(setting.variable());
            loaded.set(setting.key, |setting| Ok(setting.split(text)), source);
        }
    }
    loaded.unknown_vars = unknown.into_keys().cloned().collect();
    for (key, texts) in &flags.given {
        let flag = |setting: &Setting| format!("--{}", setting.flag());
        let source = settings().iter().find(|one| one.key == *key).map(flag);
        loaded.set(
            key,
            |_| Ok(texts.clone()),
            ValueSource::Flag(source.unwrap_or_default()),
        );
    }
    if loaded.config.settings.tls.mode != TlsMode::Off {
        loaded.config.settings.git.secure = true;
    }
    if let Some((key, reason)) = loaded
        .config
        .settings
        .contradiction(loaded.config.domain.as_ref())
    {
        loaded.refuse(&loaded.source(key).clone(), key, reason);
    }
    if loaded.problems.is_empty() {
        Ok(loaded)
    } else {
        Err(Problems::Settings(loaded.problems))
    }
}

/// Returns the first file that exists where one is looked for.
fn find_file(flags: &Flags, vars: &Variables) -> Option<PathBuf> {
    let data_dir = flags.given.get("data_dir").and_then(|texts| texts.first());
    let data_dir = data_dir.or_else(|| vars.get("GRASP_DATA_DIR")).cloned();
    let data_dir = data_dir
        .or_else(|| xdg_data(vars))
        .unwrap_or_else(|| "data".into());
    let home = || vars.get("HOME").map(|home| Path::new(home).join(".config"));
    let users = vars.get("XDG_CONFIG_HOME").map(PathBuf::from).or_else(home);
    let places = [
        Some(data_dir.into()),
        Some(PathBuf::new()),
        users.map(|dir| dir.join("grasp")),
    ];
    places
        .into_iter()
        .flatten()
        .map(|dir| dir.join(FILE))
        .find(|path| path.is_file())
}

/// Returns the user's directory for data, unless there is a `data` in the working directory.
fn xdg_data(vars: &Variables) -> Option<String> {
    let home = vars.get(XDG_DATA).filter(|_| !Path::new("data").is_dir())?;
    Some(Path::new(home).join("grasp").display().to_string())
}

/// Returns everything that is in force as a settings file, each line with its source.
pub(crate) fn in_force(loaded: &Loaded) -> String {
    let mut text = String::new();
    for (section, title) in SECTIONS {
        let _ = match section {
            "" => writeln!(text, "# {title}"),
            name => writeln!(text, "\n[{name}] # {title}"),
        };
        for setting in settings()
            .iter()
            .filter(|setting| setting.section() == section)
        {
            let line = match setting.value(&loaded.config) {
                Some(value) => format!("{} = {value}", setting.name()),
                None => format!("# {} is not set", setting.name()),
            };
            let _ = writeln!(text, "{line:<44} # {}", loaded.source(setting.key));
        }
    }
    text
}
