//! The settings as flags of the command line.

use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

use super::Config;
use super::table::{self, SECTIONS, Setting};

const FILE: &str = "config";

/// What was said on the command line.
#[derive(Clone, Default)]
pub(crate) struct Flags {
    /// The settings file.
    pub(crate) file: Option<PathBuf>,
    /// Settings, each with what it was given.
    pub(crate) given: Vec<(&'static Setting, Vec<String>)>,
}

impl Flags {
    /// What a setting was given, if it was.
    pub(crate) fn text(&self, key: &str) -> Option<String> {
        let (_, texts) = self.given.iter().find(|(setting, _)| setting.key == key)?;
        texts.last().cloned()
    }
}

impl Args for Flags {
    fn augment_args(command: Command) -> Command {
        let defaults = Config::default();
        let file = Arg::new(FILE)
            .long(FILE)
            .value_name("FILE")
            .value_parser(clap::value_parser!(PathBuf))
            .help("The settings file [env: GRASP_CONFIG]")
            .help_heading("The settings file");
        let settings = SECTIONS.iter().flat_map(|section| {
            let heading = section.title;
            section.settings().map(move |setting| (setting, heading))
        });
        settings.fold(command.arg(file), |command, (setting, heading)| {
            command.arg(flag(setting, &defaults).help_heading(heading))
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn flag(setting: &'static Setting, defaults: &Config) -> Arg {
    let default = (setting.show)(defaults).join(",");
    let default = if default.is_empty() { default } else { format!(" [default: {default}]") };
    let doc = setting.doc.trim_end_matches('.');
    let arg = Arg::new(setting.key)
        .long(setting.flag())
        .value_name(setting.form)
        .help(format!("{doc} [env: {}]{default}", setting.variable()))
        .hide_short_help(!setting.common);
    match (setting.is_switch(), setting.many) {
        (true, _) => arg.num_args(0..=1).require_equals(true).default_missing_value("true"),
        (false, true) => arg.action(ArgAction::Append),
        (false, false) => arg,
    }
}

impl FromArgMatches for Flags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = table::all().filter_map(|setting| {
            let texts: Vec<String> = matches.get_many::<String>(setting.key)?.cloned().collect();
            Some((setting, texts))
        });
        Ok(Self { file: matches.get_one::<PathBuf>(FILE).cloned(), given: given.collect() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl std::fmt::Debug for Flags {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map()
            .entries(self.given.iter().map(|(setting, texts)| (setting.key, texts)))
            .finish()
    }
}
