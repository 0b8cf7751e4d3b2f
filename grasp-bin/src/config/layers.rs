//! One layer over the other, and who said what.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use super::file::{self, Said};
use super::flags::Flags;
use super::table::{self, Setting};
use super::{Config, rules};

/// What every variable of ours begins with.
pub(crate) const PREFIX: &str = "GRASP_";

/// The file when none is named, in the data directory, the working directory or the user's.
const FILE: &str = "grasp.toml";

/// The variable that names the file.
const FILE_VARIABLE: &str = "GRASP_CONFIG";

/// The variable of the user's own place for data.
const XDG_DATA: &str = "XDG_DATA_HOME";

/// The environment of a process.
pub(crate) trait Vars {
    /// The value of a variable; an empty one counts as none.
    fn var(&self, name: &str) -> Option<String>;
    /// The names of all variables.
    fn names(&self) -> Vec<String>;
}

/// Who said what a setting is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// Nobody did.
    Default,
    /// A file, at a line.
    File(PathBuf, usize),
    /// A variable.
    Variable(String),
    /// A flag.
    Flag(String),
}

/// Something that cannot be as it was said.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    source: Source,
    key: String,
    what: String,
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Problems {
    /// The file cannot be read.
    #[error("could not read {}", .0.display())]
    Unreadable(PathBuf, #[source] std::io::Error),
    /// What is said cannot be.
    #[error("{}", listed(.0))]
    Said(Vec<Problem>),
}

/// A configuration, and where it comes from.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// What is in force.
    pub(crate) config: Config,
    /// The file that was read.
    pub(crate) file: Option<PathBuf>,
    /// Variables that look like ours and are none. Others name theirs so too, so this is no error.
    pub(crate) strangers: Vec<String>,
    sources: BTreeMap<&'static str, Source>,
}

impl Loaded {
    /// Begins to write the log, with where the settings come from.
    pub(crate) fn start_log(&self) {
        self.config.log.start();
        if let Some(file) = &self.file {
            tracing::info!(file = %file.display(), "read the settings");
        }
        for name in &self.strangers {
            tracing::warn!(name, "a variable that looks like a setting and is none");
        }
    }

    /// Whether nobody said what a setting is.
    pub(crate) fn is_default(&self, key: &str) -> bool {
        !self.sources.contains_key(key)
    }

    /// Who said what a setting is.
    pub(crate) fn source(&self, setting: &Setting) -> &Source {
        self.sources.get(setting.key).unwrap_or(&Source::Default)
    }
}

/// Settings as they are laid over each other.
pub(crate) struct Layers {
    config: Config,
    sources: BTreeMap<&'static str, Source>,
    problems: Vec<Problem>,
}

impl Layers {
    /// Reads the file, the environment and the flags.
    pub(crate) fn load(flags: &Flags, vars: &impl Vars) -> Result<Loaded, Problems> {
        let file = flags.file.clone().or_else(|| vars.var(FILE_VARIABLE).map(PathBuf::from));
        let file = file.or_else(|| found(flags, vars));
        let text = match &file {
            Some(path) => Some(
                std::fs::read_to_string(path)
                    .map_err(|error| Problems::Unreadable(path.clone(), error))?,
            ),
            None => None,
        };
        Self::over(file.as_deref().zip(text.as_deref()), vars, flags)
    }

    /// The layers of a file that was read already, the environment and the flags.
    pub(crate) fn over(
        file: Option<(&Path, &str)>,
        vars: &impl Vars,
        flags: &Flags,
    ) -> Result<Loaded, Problems> {
        let mut layers =
            Self { config: Config::default(), sources: BTreeMap::new(), problems: Vec::new() };
        if let (Some(setting), Some(home)) = (table::find("data_dir"), xdg_data(vars)) {
            layers.set(setting, Source::Variable(XDG_DATA.into()), &[home]);
        }
        if let Some((path, text)) = file {
            layers.lay_file(path, text);
        }
        for setting in table::all() {
            let name = setting.variable();
            if let Some(value) = vars.var(&name) {
                layers.set(setting, Source::Variable(name), &split(setting, &value));
            }
        }
        for (setting, texts) in &flags.given {
            layers.set(setting, Source::Flag(format!("--{}", setting.flag())), texts);
        }
        layers.finish(file.map(|(path, _)| path.to_owned()), vars)
    }

    fn lay_file(&mut self, path: &Path, text: &str) {
        let lines = match file::lines(text) {
            Ok(lines) => lines,
            Err(error) => {
                let source = Source::File(path.to_owned(), error.line);
                self.problems.push(Problem { source, key: String::new(), what: error.to_string() });
                return;
            }
        };
        for line in lines {
            let source = Source::File(path.to_owned(), line.line);
            let Some(setting) = table::find(&line.key) else {
                let what = unknown(&line.key);
                self.problems.push(Problem { source, key: line.key, what });
                continue;
            };
            let texts = match line.said {
                Said::One(text) => vec![text],
                Said::Many(texts) if setting.many => texts,
                Said::Many(_) | Said::Other => Vec::new(),
            };
            self.set(setting, source, &texts);
        }
    }

    fn set(&mut self, setting: &'static Setting, source: Source, texts: &[String]) {
        match (setting.read)(&mut self.config, texts) {
            Ok(()) => {
                self.sources.insert(setting.key, source);
            }
            Err(what) => {
                let what = expected(setting, texts, what);
                self.problems.push(Problem { source, key: setting.key.to_owned(), what });
            }
        }
    }

    fn finish(mut self, file: Option<PathBuf>, vars: &impl Vars) -> Result<Loaded, Problems> {
        if self.problems.is_empty() {
            self.check();
        }
        if !self.problems.is_empty() {
            return Err(Problems::Said(self.problems));
        }
        let strangers = strangers(vars);
        Ok(Loaded { config: self.config, file, strangers, sources: self.sources })
    }

    /// What is impossible only together is told of whichever of them was set.
    fn check(&mut self) {
        for broken in rules::broken(&self.config) {
            let said = broken.keys.iter().find_map(|key| self.sources.get_key_value(key));
            let (key, source) = match said {
                Some((key, source)) => ((*key).to_owned(), source.clone()),
                None => (broken.keys[0].to_owned(), Source::Default),
            };
            self.problems.push(Problem { source, key, what: broken.why.to_owned() });
        }
    }
}

/// The first file that exists where one is looked for.
fn found(flags: &Flags, vars: &impl Vars) -> Option<PathBuf> {
    let data_dir = flags.text("data_dir").or_else(|| vars.var("GRASP_DATA_DIR"));
    let data_dir = data_dir.or_else(|| xdg_data(vars));
    let data_dir = PathBuf::from(data_dir.unwrap_or_else(|| "data".into()));
    let home = || vars.var("HOME").map(|home| Path::new(&home).join(".config"));
    let users = vars.var("XDG_CONFIG_HOME").map(PathBuf::from).or_else(home);
    let places = [Some(data_dir), Some(PathBuf::new()), users.map(|dir| dir.join("grasp"))];
    places.into_iter().flatten().map(|dir| dir.join(FILE)).find(|path| path.is_file())
}

/// Where data belongs by the user's own word, unless there is a `data` here already.
fn xdg_data(vars: &impl Vars) -> Option<String> {
    let home = vars.var(XDG_DATA).filter(|_| !Path::new("data").is_dir())?;
    Some(Path::new(&home).join("grasp").display().to_string())
}

/// The values in a variable. Where there may be many, commas are between them.
fn split(setting: &Setting, value: &str) -> Vec<String> {
    if !setting.many {
        return vec![value.to_owned()];
    }
    value.split(',').map(|part| part.trim().to_owned()).filter(|part| !part.is_empty()).collect()
}

fn strangers(vars: &impl Vars) -> Vec<String> {
    let ours: BTreeSet<String> = table::all().map(Setting::variable).collect();
    let alike = vars.names().into_iter().filter(|name| name.starts_with(PREFIX));
    alike.filter(|name| name != FILE_VARIABLE && !ours.contains(name)).collect()
}

/// What is wrong with a value, and what would do instead.
fn expected(setting: &Setting, texts: &[String], what: String) -> String {
    let mut choices = setting.form.split('|');
    if let Some(choice) = choices.find(|choice| texts.iter().any(|text| text == choice)) {
        return format!("this build was made without {choice}; {what}");
    }
    if what.starts_with("expected") { what } else { format!("{what}; expected {}", setting.form) }
}

/// What to say of a name that is none: the one that was probably meant.
fn unknown(key: &str) -> String {
    let likeness = |setting: &&Setting| strsim::jaro_winkler(setting.key, key);
    let nearest = table::all().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
    match nearest.filter(|setting| likeness(setting) > 0.85) {
        Some(setting) => format!("there is no such setting; perhaps {} is meant", setting.key),
        None => "there is no such setting".into(),
    }
}

fn listed(problems: &[Problem]) -> String {
    let lines: Vec<_> = problems.iter().map(Problem::to_string).collect();
    lines.join("\n")
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.key.as_str() {
            "" => write!(f, "{}: {}", self.source, self.what),
            key => write!(f, "{}: {key}: {}", self.source, self.what),
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

/// The environment of this very process.
pub(crate) struct Environment;

impl Vars for Environment {
    fn var(&self, name: &str) -> Option<String> {
        std::env::var(name).ok().filter(|value| !value.is_empty())
    }

    fn names(&self) -> Vec<String> {
        std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).collect()
    }
}

#[cfg(test)]
#[path = "layers/tests.rs"]
mod tests;
