//! The settings written out: as a file of what is in force, and as the reference.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use clap::Arg;
use toml::Value;

use super::document::Document;
use super::layers::{flag, key, settings, values};
use super::{Config, Loaded};

/// Returns everything that is in force as a settings file, each line with its source.
pub(crate) fn in_force(loaded: &Loaded) -> String {
    let values = values(&Document::of(&loaded.config));
    let mut text = String::new();
    for (section, title, settings) in sections() {
        let heading = match section.as_str() {
            "" => format!("# {title}\n"),
            name => format!("\n[{name}] # {title}\n"),
        };
        text.push_str(&heading);
        for setting in settings {
            let name = key(&setting).rsplit('.').next().unwrap_or_default();
            let line = match values.get(key(&setting)) {
                Some(value) => format!("{name} = {value}"),
                None => format!("# {name} is not set"),
            };
            let _ = writeln!(text, "{line:<44} # {}", loaded.source(key(&setting)));
        }
    }
    text
}

/// Returns the reference of all settings, as Markdown.
pub(crate) fn markdown() -> String {
    let defaults = values(&Document::of(&Config::default()));
    let mut text = String::from(include_str!("reference/opening.md"));
    for (section, title, settings) in sections() {
        let heading = match section.as_str() {
            "" => format!("\n## {title}\n\n"),
            name => format!("\n## `[{name}]` {title}\n\n"),
        };
        text.push_str(&heading);
        text.push_str("| key | flag and value | default | meaning |\n|---|---|---|---|\n");
        for setting in settings {
            text.push_str(&row(&setting, &defaults));
        }
    }
    text
}

fn row(setting: &Arg, defaults: &BTreeMap<String, Value>) -> String {
    let default = defaults.get(key(setting)).map(Value::to_string);
    let default = default.filter(|value| value != "[]").map(|value| format!("`{value}`"));
    let choices: Vec<String> =
        setting.get_possible_values().iter().map(|choice| choice.get_name().to_owned()).collect();
    let names = setting.get_value_names().unwrap_or_default().iter().map(ToString::to_string);
    let form = if choices.is_empty() { names.collect() } else { choices }.join("\\|");
    let (key, flag) = (key(setting), flag(key(setting)));
    let meaning = setting.get_help().map(ToString::to_string).unwrap_or_default();
    let default = default.unwrap_or_default();
    format!("| `{key}` | `--{flag} {form}` | {default} | {meaning} |\n")
}

/// Returns the tables of the file in order: name, title, and settings.
fn sections() -> Vec<(String, String, Vec<Arg>)> {
    let mut sections: Vec<(String, String, Vec<Arg>)> = Vec::new();
    for setting in settings() {
        let section = key(&setting).split_once('.').map_or("", |(section, _)| section).to_owned();
        match sections.iter_mut().find(|(name, ..)| *name == section) {
            Some((.., settings)) => settings.push(setting),
            None => {
                let title = setting.get_help_heading().unwrap_or_default().to_owned();
                sections.push((section, title, vec![setting]));
            }
        }
    }
    sections
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_page_is_up_to_date() {
        crate::page::hold_to("reference/configuration.md", &markdown());
    }
}
