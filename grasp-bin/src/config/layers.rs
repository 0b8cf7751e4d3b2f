//! Layers of settings: defaults, file, environment, flags; and the source of each value.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use clap::{Arg, Args as _, Command, FromArgMatches as _};
use serde::Deserialize as _;
use toml::de::{DeTable, DeValue};
use toml::{Table, Value};

use super::document::Document;
use super::{Config, check};

/// Prefix of all variables.
const PREFIX: &str = "GRASP_";

/// The file when none is named, in the data directory, the working directory or the user's.
const FILE: &str = "grasp.toml";

/// The variable that names the file.
const FILE_VARIABLE: &str = "GRASP_CONFIG";

/// The variable of the user's directory for data.
const XDG_DATA: &str = "XDG_DATA_HOME";

/// Flags of every command that takes settings.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Flags {
    /// The settings file [env: GRASP_CONFIG].
    #[arg(id = "config", long = "config", value_name = "FILE", help_heading = "The settings file")]
    pub(crate) file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) document: Document,
}

/// The environment of a process.
pub(crate) trait Vars {
    /// Returns the value of a variable; an empty one counts as none.
    fn var(&self, name: &str) -> Option<String>;
    /// Returns the names of all variables.
    fn names(&self) -> Vec<String>;
}

/// The source of a setting's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Default,
    /// A file, at a line.
    File(PathBuf, usize),
    Variable(String),
    Flag(String),
}

/// A setting that cannot be used.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    source: Source,
    key: String,
    reason: String,
}

/// Reasons why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Problems {
    #[error("could not read {}", .0.display())]
    Unreadable(PathBuf, #[source] std::io::Error),
    #[error("{}", .0.iter().map(Problem::to_string).collect::<Vec<_>>().join("\n"))]
    Settings(Vec<Problem>),
}

/// A configuration, and the source of each value.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) config: Config,
    /// The file that was read.
    pub(crate) file: Option<PathBuf>,
    /// Variables with our prefix that are no settings. Container platforms make such variables, so this is no error.
    pub(crate) unknown_vars: Vec<String>,
    sources: BTreeMap<String, Source>,
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

    /// Returns the source of a setting's value.
    pub(crate) fn source(&self, key: &str) -> &Source {
        self.sources.get(key).unwrap_or(&Source::Default)
    }
}

/// Reads the file, the environment and the flags.
pub(crate) fn load(flags: &Flags, vars: &impl Vars) -> Result<Loaded, Problems> {
    let file = flags.file.clone().or_else(|| vars.var(FILE_VARIABLE).map(PathBuf::from));
    let file = file.or_else(|| find_file(flags, vars));
    let read = |path: &PathBuf| {
        std::fs::read_to_string(path).map_err(|error| Problems::Unreadable(path.clone(), error))
    };
    let text = file.as_ref().map(read).transpose()?;
    merge(file.as_deref().zip(text.as_deref()), vars, flags)
}

/// Merges a file's text, the environment and the flags.
pub(crate) fn merge(
    file: Option<(&Path, &str)>,
    vars: &impl Vars,
    flags: &Flags,
) -> Result<Loaded, Problems> {
    let mut layers = Layers::default();
    if let Some(home) = xdg_data(vars) {
        layers.set("data_dir", home.into(), Source::Variable(XDG_DATA.into()));
    }
    if let Some((path, text)) = file {
        layers.add_file(path, text);
    }
    let settings = settings();
    for setting in settings.iter() {
        layers.add_variable(setting, vars);
    }
    layers.add_document(&flags.document, |key| Source::Flag(format!("--{}", flag(key))));
    let is_setting = |name: &String| settings.iter().any(|setting| variable(key(setting)) == *name);
    let ours = |name: &String| name.starts_with(PREFIX) && name != FILE_VARIABLE;
    let names = vars.names().into_iter();
    let unknown_vars = names.filter(|name| ours(name) && !is_setting(name)).collect();
    layers.finish(file.map(|(path, _)| path.to_owned()), unknown_vars)
}

/// Values by key, as they are laid over each other.
#[derive(Default)]
struct Layers {
    values: BTreeMap<String, (Value, Source)>,
    problems: Vec<Problem>,
}

impl Layers {
    /// Sets a value, if it is one that the setting can have.
    fn set(&mut self, key: &str, value: Value, source: Source) {
        match Document::deserialize(nested([(key, value.clone())])) {
            Ok(_) => {
                self.values.insert(key.to_owned(), (value, source));
            }
            Err(error) => self.refuse(source, key, error.message()),
        }
    }

    fn refuse(&mut self, source: Source, key: &str, reason: &str) {
        let reason = reason.trim().to_owned();
        self.problems.push(Problem { source, key: key.to_owned(), reason });
    }

    fn add_file(&mut self, path: &Path, text: &str) {
        let line_at = |byte: usize| text.bytes().take(byte).filter(|b| *b == b'\n').count() + 1;
        let source = |byte| Source::File(path.to_owned(), line_at(byte));
        let (lines, table) = match (DeTable::parse(text), text.parse::<Table>()) {
            (Ok(lines), Ok(table)) => (lines, table),
            (Err(error), _) | (_, Err(error)) => {
                let byte = error.span().map_or(0, |span| span.start);
                return self.refuse(source(byte), "", error.message());
            }
        };
        let mut starts = BTreeMap::new();
        collect_starts("", lines.get_ref(), &mut starts);
        for (key, value) in flat(table) {
            let byte = starts.get(&key).copied().unwrap_or(0);
            self.set(&key, value, source(byte));
        }
    }

    /// Has the command line's parser read a variable as if it were the flag.
    fn add_variable(&mut self, setting: &Arg, vars: &impl Vars) {
        let name = variable(key(setting));
        let Some(text) = vars.var(&name) else { return };
        let takes_many = matches!(setting.get_action(), clap::ArgAction::Append);
        let values = text.split(',').map(str::trim).filter(|value| !value.is_empty());
        let values: Vec<&str> = if takes_many { values.collect() } else { vec![text.trim()] };
        let arguments = values.iter().map(|value| format!("--{}={value}", flag(key(setting))));
        let command = Document::augment_args(Command::new("grasp").no_binary_name(true));
        let parsed = command
            .try_get_matches_from(arguments)
            .and_then(|matches| Document::from_arg_matches(&matches));
        match parsed {
            Ok(document) => self.add_document(&document, |_| Source::Variable(name.clone())),
            Err(error) => {
                let inner = std::error::Error::source(&error).map(ToString::to_string);
                let whole = error.to_string();
                let first = whole.lines().find(|line| !line.is_empty()).unwrap_or_default();
                let reason =
                    inner.unwrap_or_else(|| first.trim_start_matches("error: ").to_owned());
                self.refuse(Source::Variable(name), key(setting), &reason);
            }
        }
    }

    fn add_document(&mut self, document: &Document, source: impl Fn(&str) -> Source) {
        for (key, value) in values(document) {
            let source = source(&key);
            self.values.insert(key, (value, source));
        }
    }

    fn finish(
        mut self,
        file: Option<PathBuf>,
        unknown_vars: Vec<String>,
    ) -> Result<Loaded, Problems> {
        let (values, sources): (Vec<_>, BTreeMap<_, _>) = self
            .values
            .iter()
            .map(|(key, (value, source))| {
                ((key.as_str(), value.clone()), (key.clone(), source.clone()))
            })
            .unzip();
        let mut config = Config::default();
        match Document::deserialize(nested(values)) {
            Ok(document) => document.apply(&mut config),
            Err(error) => self.refuse(Source::Default, "", error.message()),
        }
        if let Some((key, reason)) = check(&config) {
            let source = sources.get(key).cloned().unwrap_or(Source::Default);
            self.refuse(source, key, reason);
        }
        if self.problems.is_empty() {
            Ok(Loaded { config, file, unknown_vars, sources })
        } else {
            Err(Problems::Settings(self.problems))
        }
    }
}

/// Returns every setting as the command line knows it.
pub(crate) fn settings() -> Vec<Arg> {
    Document::augment_args(Command::new("grasp")).get_arguments().cloned().collect()
}

/// Returns the key of a setting, as `relay.event_bytes`.
pub(crate) fn key(setting: &Arg) -> &str {
    setting.get_id().as_str()
}

/// Returns the flag of a key without its dashes.
pub(crate) fn flag(key: &str) -> String {
    key.replace(['.', '_'], "-")
}

/// Returns the environment variable of a key.
fn variable(key: &str) -> String {
    format!("{PREFIX}{}", key.replace('.', "_").to_ascii_uppercase())
}

/// Returns the values that a document has, by key.
pub(crate) fn values(document: &Document) -> BTreeMap<String, Value> {
    Table::try_from(document).map(flat).unwrap_or_default()
}

/// Returns the values of nested tables under their full keys.
fn flat(table: Table) -> BTreeMap<String, Value> {
    let mut values = BTreeMap::new();
    for (name, value) in table {
        match value {
            Value::Table(inner) => {
                values
                    .extend(inner.into_iter().map(|(key, value)| (format!("{name}.{key}"), value)));
            }
            value => {
                values.insert(name, value);
            }
        }
    }
    values
}

/// Returns nested tables for values under their full keys.
fn nested<'a>(values: impl IntoIterator<Item = (&'a str, Value)>) -> Table {
    let mut table = Table::new();
    for (key, value) in values {
        match key.split_once('.') {
            Some((section, name)) => {
                let inner = table.entry(section).or_insert_with(|| Value::Table(Table::new()));
                if let Value::Table(inner) = inner {
                    inner.insert(name.to_owned(), value);
                }
            }
            None => {
                table.insert(key.to_owned(), value);
            }
        }
    }
    table
}

/// Collects the position in the text of every key.
fn collect_starts(prefix: &str, table: &DeTable<'_>, starts: &mut BTreeMap<String, usize>) {
    for (name, value) in table {
        let key = format!("{prefix}{}", name.get_ref());
        if let DeValue::Table(inner) = value.get_ref() {
            collect_starts(&format!("{key}."), inner, starts);
        }
        starts.insert(key, name.span().start);
    }
}

/// Returns the first file that exists where one is looked for.
fn find_file(flags: &Flags, vars: &impl Vars) -> Option<PathBuf> {
    let data_dir = flags.document.data_dir.clone();
    let data_dir = data_dir.or_else(|| vars.var("GRASP_DATA_DIR").map(PathBuf::from));
    let data_dir = data_dir.or_else(|| xdg_data(vars).map(PathBuf::from));
    let home = || vars.var("HOME").map(|home| Path::new(&home).join(".config"));
    let users = vars.var("XDG_CONFIG_HOME").map(PathBuf::from).or_else(home);
    let data_dir = data_dir.unwrap_or_else(|| "data".into());
    let places = [Some(data_dir), Some(PathBuf::new()), users.map(|dir| dir.join("grasp"))];
    places.into_iter().flatten().map(|dir| dir.join(FILE)).find(|path| path.is_file())
}

/// Returns the user's directory for data, unless there is a `data` in the working directory.
fn xdg_data(vars: &impl Vars) -> Option<String> {
    let home = vars.var(XDG_DATA).filter(|_| !Path::new("data").is_dir())?;
    Some(Path::new(&home).join("grasp").display().to_string())
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.key.as_str() {
            "" => write!(f, "{}: {}", self.source, self.reason),
            key => write!(f, "{}: {key}: {}", self.source, self.reason),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path, line) => write!(f, "{}:{line}", path.display()),
            Self::Variable(name) | Self::Flag(name) => f.write_str(name),
        }
    }
}

/// The environment of this process.
pub(crate) struct Environment;

impl Vars for Environment {
    fn var(&self, name: &str) -> Option<String> {
        std::env::var(name).ok().filter(|value| !value.is_empty())
    }

    fn names(&self) -> Vec<String> {
        std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).collect()
    }
}
